"""Tiles of Triton's fused kernel as vLLM chooses them where it has not been tuned for a layer and a device."""

from __future__ import annotations

import re
from dataclasses import dataclass
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


KINDS: tuple[type[MoeConfig], ...] = (MoeConfig, EarlierMoeConfig)


def default_config(op: Moe) -> MoeConfig:
    """What vLLM takes since 0.17 (pull request 34846): larger tiles for more tokens."""
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


def earlier_config(op: Moe) -> EarlierMoeConfig:
    """What vLLM took before: two tiles, Triton's own defaults for warps and stages."""
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
