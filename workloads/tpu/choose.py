"""Which schedule of an operator runs on a TPU: candidates with an estimate each, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arch.tpu import TpuSpec
from workloads.registry import chooser

SEARCHED = ("gemm", "matvec", "conv2d")
"""Operators whose mappings are searched."""


@dataclass(frozen=True)
class Config:
    """How an operator is laid out; of a product, its mapping (`workloads.tpu.mapping`).

    m: rows of a block; 0: all. n: columns of a group; 0: all. order: of the loops, the outermost first. held: blocks of
    rows that the unified buffer holds at a time, of a convolution parts of images; 0: one, or two of several. part: of
    a convolution, rows of results for which a part of the images is brought; 0: as many as fit. wide: 8-bit activations
    run as 16-bit ones.
    """

    schedule: str
    m: int = 0
    n: int = 0
    order: str = "mnk"
    held: int = 0
    part: int = 0
    wide: bool = False

    def __str__(self) -> str:
        """As people type it: it gives this layout again."""
        words = [self.schedule]
        if self.m:
            words.append(f"m={self.m}")
        if self.n:
            words.append(f"n={self.n} order={self.order} held={self.held}")
        if self.part:
            words.append(f"part={self.part}")
        return " ".join([*words, *(["8x16"] if self.wide else [])])


def estimate(spec: TpuSpec, rows: int, depth: int, columns: int, bits: int, planes: int, whole: bool) -> int:
    """Cycles of the matrix unit with blocks that take half of the accumulators, or all of them."""
    return block_estimate(spec, rows, depth, columns, bits, planes, block_rows(spec, rows, whole))


def block_estimate(spec: TpuSpec, rows: int, depth: int, columns: int, bits: int, planes: int, block: int) -> int:
    """Cycles of the matrix unit: each tile takes the longest of streaming, shifting and fetching; what an output tile
    that fills the accumulators adds is the way out of the array and through the activation unit."""
    array = spec.array
    blocks = -(-rows // block)
    deep, wide = -(-depth // array.rows) * planes, -(-columns // array.columns)
    bandwidth = spec.dram.bandwidth_bytes_per_s * (1 - spec.dram.overhead)
    fetch = int(spec.tile_bytes * spec.clock.boost_hz / bandwidth)
    tile = max(block * spec.row_cycles(bits), array.rows, fetch * min(array.count, wide))
    out = array.rows + array.columns + block * max(1, array.columns // spec.activation.values)
    exposed = out if 2 * block > spec.accumulators.rows else 0
    return blocks * -(-wide // array.count) * (deep * tile + exposed) + out


def block_rows(spec: TpuSpec, rows: int, whole: bool) -> int:
    """Rows of a block: as few blocks as fit, evenly filled."""
    limit = spec.accumulators.rows if whole else max(1, spec.accumulators.rows // 2)
    blocks = -(-rows // limit)
    return -(-rows // blocks)


def candidates(op: Any, spec: TpuSpec, schedule: str, tuned: bool = False) -> list[tuple[Config, int]]:
    """Candidates of an operator with the estimate of their cycles, the best first; InputError where there are none.
    tuned: more of them, where there is a search."""
    choose = chooser(op, spec)
    found: list[tuple[Config, int]] = (
        choose(op, spec, schedule, tuned) if op.word in SEARCHED else choose(op, spec, schedule)
    )
    return found
