"""Tiles of Triton's fused kernel as vLLM chooses them: from its tables for layers and devices for which it has been
tuned (`tuned.csv`), by rules elsewhere."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from arch.errors import InputError
from workloads.ops import Moe


@dataclass(frozen=True)
class MoeConfig:
    """Tiles of both products.

    block_m: rows of a block, all of one expert. block_n, block_k: columns and k step of a tile. warps: of a CTA.
    stages: k steps on their way and in work. group: blocks of rows that are done together.
    """

    schedule: ClassVar[str] = "vllm"
    filters: ClassVar[bool] = False
    """Whether rows of experts on other devices get no blocks."""

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 3
    group: int = 1

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.schedule} {tile} warps {self.warps} stages {self.stages} group {self.group}"


@dataclass(frozen=True)
class EarlierMoeConfig(MoeConfig):
    """Of vLLM before 0.17."""

    schedule: ClassVar[str] = "vllm-0.14"
    filters: ClassVar[bool] = True


TUNED_CSV = Path(__file__).with_name("tuned.csv")
"""Tables of vLLM 0.24.0 for 16-bit weights on the machines of which it has some, with the release, 0.14.0 or 0.24.0,
that first has them (wheels on PyPI, vllm/model_executor/layers/fused_moe/configs, Apache-2.0)."""

KINDS: tuple[type[MoeConfig], ...] = (MoeConfig, EarlierMoeConfig)

Tiles = Mapping[int, tuple[int, ...]]


@functools.cache
def tuned() -> Mapping[tuple[str, int, int], tuple[str, Tiles]]:
    """By machine, experts and inner elements of one device: the release, and fields of a `MoeConfig` by tokens."""
    found: dict[tuple[str, int, int], tuple[str, dict[int, tuple[int, ...]]]] = {}
    names = ("block_m", "block_n", "block_k", "warps", "stages", "group")
    with TUNED_CSV.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            layer = row["machine"], int(row["experts"]), int(row["inter"])
            tiles = found.setdefault(layer, (row["since"], {}))[1]
            tiles[int(row["tokens"])] = tuple(int(row[name]) for name in names)
    return found


def _tuned_tile(op: Moe, machine: str, release: str | None = None) -> tuple[int, ...] | None:
    """The tile of the table's nearest number of tokens; None where a release (None: any) has no table."""
    since, tiles = tuned().get((machine, op.local_experts, op.local_inter), ("", {}))
    if not tiles or release not in (None, since):
        return None
    return tiles[min(tiles, key=lambda tokens: abs(tokens - op.tokens))]


def default_config(op: Moe, machine: str) -> MoeConfig:
    """What vLLM takes since 0.17; by rules (pull request 34846) larger tiles for more tokens."""
    if tile := _tuned_tile(op, machine):
        return MoeConfig(*tile)
    m = op.tokens
    block_m = next((rows for rows, most in ((16, 32), (32, 96), (64, 512)) if m <= most), 128)
    return MoeConfig(
        block_m,
        64 if m <= 64 else 128,
        128 if m <= 64 else 64,
        4 if m <= 128 else 8,
        4 if m <= 32 else 3,
        16 if m // op.local_experts > 128 else 1,
    )


def earlier_config(op: Moe, machine: str) -> EarlierMoeConfig:
    """What vLLM took before; by rules two tiles, with Triton's own defaults for warps and stages."""
    if tile := _tuned_tile(op, machine, "0.14"):
        return EarlierMoeConfig(*tile)
    if op.tokens <= op.local_experts:
        return EarlierMoeConfig(16, 32, 64)
    return EarlierMoeConfig(64, 64, 32, group=8)


def parse(schedule: str) -> MoeConfig:
    """A configuration as it prints; InputError where it is none."""
    kinds = {kind.schedule: kind for kind in KINDS}
    match = re.fullmatch(r"(\S+) (\d+)x(\d+)x(\d+) warps (\d+) stages (\d+) group (\d+)", schedule)
    if match is None or match[1] not in kinds:
        raise InputError(
            f"schedule={schedule}: one of auto, {', '.join(kinds)}, or a whole configuration such as "
            f"{MoeConfig(64, 128, 64)}"
        )
    return kinds[match[1]](*map(int, match.groups()[1:]))
