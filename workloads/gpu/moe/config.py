"""Tiles of Triton's fused kernel as vLLM chooses them: from its tables for layers and devices for which it has been
tuned (`workloads/libraries/vllm-tuned.csv`), by rules elsewhere."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workloads import libraries
from workloads.gpu.configuration import Configuration, Word, class_of
from workloads.ops import GroupedGemm, Moe
from workloads.ops.packed import DEPTH


@dataclass(frozen=True)
class MoeConfig(Configuration):
    """Tiles of both products.

    block_m: rows of a block, all of one expert.
    block_n, block_k: columns of a tile, and values of k in one step.
    warps: of a CTA.
    stages: steps of k on their way and in work.
    group: blocks of rows that are done together.
    """

    schedule: ClassVar[str] = "vllm"
    filters: ClassVar[bool] = False
    """Whether rows of experts on other devices get no blocks."""
    packed: ClassVar[bool] = False
    """Whether it is for weights that are stored with fewer bits."""
    registers: ClassVar[tuple[int, int]] = (50, 16)
    """Of a thread of the compiled kernel by mma: without accumulators, and for each ten. 63 and 64 with 8 accumulators,
    71 and 78 with 16, 101 and 102 with 32 (Triton 3.6, CUDA 13)."""

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 3
    group: int = 1

    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("block_m", "block_n", "block_k"),
        Word.number("warps"),
        Word.number("stages"),
        Word.number("group"),
    )


@dataclass(frozen=True)
class EarlierMoeConfig(MoeConfig):
    """Of vLLM before 0.17."""

    schedule: ClassVar[str] = "vllm-0.14"
    filters: ClassVar[bool] = True
    registers: ClassVar[tuple[int, int]] = (32, 10)
    """By Triton 3.5.1: 40 registers with 4 accumulators, 96 with 32."""


@dataclass(frozen=True)
class MarlinMoeConfig(MoeConfig):
    """Of weights that are stored with fewer bits: `workloads.gpu.gemm.marlin`'s loop in the place of Triton's."""

    schedule: ClassVar[str] = "marlin"
    packed: ClassVar[bool] = True


@dataclass(frozen=True)
class GroupedConfig(MoeConfig):
    """Of a grouped product by the same kernel."""

    schedule: ClassVar[str] = "grouped"


TUNED_CSV = libraries.FOLDER / "vllm-tuned.csv"
"""Tables of vLLM 0.24.0 for 16-bit weights on the machines of which it has some, with the release, 0.14.0 or 0.24.0,
that first has them (wheels on PyPI, vllm/model_executor/layers/fused_moe/configs, Apache-2.0)."""

KINDS: tuple[type[MoeConfig], ...] = (MoeConfig, EarlierMoeConfig, MarlinMoeConfig)

VLLM, EARLIER_VLLM, MARLIN = "vllm@0.17", "vllm@0.14", "marlin@1"
"""Releases whose tiles for layers that nobody has tuned these are (`workloads/libraries`)."""

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
    return MoeConfig(*_by_rules(op.tokens, op.local_experts))


def _by_rules(m: int, experts: int) -> tuple[int, ...]:
    """Fields of the configuration of a layer that nobody has tuned. m: tokens."""
    _, *tile = next(row for row in libraries.rows(VLLM, "untuned_tiles") if m <= row.most_tokens)
    grouped = m // experts > libraries.figure(VLLM, "group_tokens")
    return (*tile, libraries.figure(VLLM, "group") if grouped else 1)


def blockwise_config() -> MoeConfig:
    """What vLLM takes for operands with scales by block that nobody has tuned."""
    return MoeConfig(*libraries.rows(VLLM, "blockwise_tiles")[0])


def marlin_config(op: Moe) -> MarlinMoeConfig:
    """Rows as vLLM's `fused_marlin_moe` takes them: the fewest of which an expert's choices fill below nine tenths."""
    choices, tiles = op.tokens * op.topk, libraries.rows(MARLIN, "expert_tiles")
    tile = next((tile for tile in tiles if 10 * choices < 9 * tile.block_m * op.experts), tiles[-1])
    return MarlinMoeConfig(tile.block_m, tile.block_n, DEPTH, tile.warps, libraries.figure(MARLIN, "stages"))


def grouped_config(op: GroupedGemm, schedule: str) -> GroupedConfig:
    """By the rules for as many tokens, in blocks that `align` allows; or as it is asked for."""
    if schedule not in ("auto", GroupedConfig.schedule):
        return class_of(schedule, (GroupedConfig,)).parse(schedule)
    block_m, *rest = _by_rules(op.m, op.groups)
    return GroupedConfig(max(16, math.gcd(block_m, op.align)), *rest)


def earlier_config(op: Moe, machine: str) -> EarlierMoeConfig:
    """What vLLM took before; by rules two tiles, with Triton's own defaults for warps and stages."""
    if tile := _tuned_tile(op, machine, "0.14"):
        return EarlierMoeConfig(*tile)
    few, more = libraries.rows(EARLIER_VLLM, "untuned_tiles")
    tile = few if op.tokens <= op.local_experts else more
    return EarlierMoeConfig(tile.block_m, tile.block_n, tile.block_k, group=tile.group)
