"""Which schedule of an operator runs on a TPU: candidates with an estimate each, the best first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import Program
from workloads import registry
from workloads.tpu.emit import spread

SEARCHED = ("gemm", "matvec", "conv2d")
"""Operators whose mappings are searched."""


@dataclass(frozen=True)
class Config:
    """How an operator is laid out; of a product, its mapping (`workloads.tpu.mapping`).

    m: rows of a block; 0: all. n: columns of a group; 0: all. order: of the loops, the outermost first. held: blocks of
    rows that the unified buffer holds at a time, of a convolution parts of images; 0: one, or two of several. part: of
    a convolution, rows of results for which a part of the images is brought; 0: as many as fit. wide: 8-bit activations
    run as 16-bit ones. tile: rows and columns of an array that tiles of weights fill; empty: all. arrays: that work;
    0: all.
    """

    schedule: str
    m: int = 0
    n: int = 0
    order: str = "mnk"
    held: int = 0
    part: int = 0
    wide: bool = False
    tile: tuple[int, ...] = ()
    arrays: int = 0

    def __str__(self) -> str:
        """As people type it: it gives this layout again."""
        words = [self.schedule]
        if self.m:
            words.append(f"m={self.m}")
        if self.n:
            words.append(f"n={self.n} order={self.order} held={self.held}")
        if self.part:
            words.append(f"part={self.part}")
        if self.tile:
            words.append("tile={}x{}".format(*self.tile))
        if self.arrays:
            words.append(f"arrays={self.arrays}")
        return " ".join([*words, *(["8x16"] if self.wide else [])])

    def cut(self, spec: TpuSpec) -> TpuSpec:
        """The machine with as much of its arrays as works."""
        part = spec.using(*self.tile) if self.tile else spec
        used = part.array.model_copy(update={"count": self.arrays or spec.array.count})
        return part.model_copy(update={"array": used})


Ranked = list[tuple[Config, int]]
"""Configurations with the estimate of their cycles."""


def estimate(spec: TpuSpec, rows: int, depth: int, columns: int, bits: int, planes: int, whole: bool) -> int:
    """Cycles of the matrix unit with blocks that take half of the accumulators, or all of them."""
    return block_estimate(spec, rows, depth, columns, bits, planes, block_rows(spec, rows, whole))


def block_estimate(spec: TpuSpec, rows: int, depth: int, columns: int, bits: int, planes: int, block: int) -> int:
    """Cycles of the matrix unit: each tile takes the longest of streaming, shifting and fetching; what an output tile
    that fills the accumulators adds is the way out of the array and through the activation unit."""
    array = spec.array
    blocks = -(-rows // block)
    deep, wide = -(-depth // array.rows) * planes, -(-columns // array.columns)
    parts = spread(spec, min(rows, block), wide)
    wide, block = wide * len(parts), parts[0][1]
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
    choose = registry.chooser(op, spec)
    more = [tuned] if op.word in SEARCHED else []
    rest = " ".join(word for word in schedule.split() if not word.startswith("tile=")) or "auto"

    def on(tile: tuple[int, ...]) -> Ranked:
        some = choose(op, Config("", tile=tile).cut(spec), rest, *more)
        return [(replace(config, tile=tile), cycles) for config, cycles in some]

    return merged(on, _tiles(spec, schedule))


def merged(candidates_on: Callable[[Any], Ranked], parts: Iterable[Any]) -> Ranked:
    """Candidates on each of some parts of a machine, the best first; the first InputError where there are none."""
    found: Ranked = []
    refused: list[InputError] = []
    for part in parts:
        try:
            found += candidates_on(part)
        except InputError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    return sorted(found, key=lambda pair: pair[1])


def build(op: Any, spec: TpuSpec, config: Any) -> Program:
    """The program of an operator, on as much of the arrays as its configuration says."""
    program: Program = registry.build(op, config.cut(spec), config)
    return replace(program, tile=config.tile)


def doublings(most: int, least: int) -> list[int]:
    """The most, and doublings of the least that are fewer, the largest first."""
    return [most, *(size for i in reversed(range(most.bit_length())) if (size := least << i) < most)]


def _tiles(spec: TpuSpec, schedule: str) -> list[tuple[int, ...]]:
    """Rows and columns of an array that tiles of weights may fill, all first; empty where all is all there is. What a
    schedule says, if it does."""
    array, fifo = spec.array, spec.weight_fifo
    columns = doublings(array.columns, fifo.tile_columns)
    known = {f"{r}x{c}": (r, c) for r in doublings(array.rows, fifo.tile_rows) for c in columns}
    asked = [word.removeprefix("tile=") for word in schedule.split() if word.startswith("tile=")]
    for text in asked:
        if text not in known:
            raise InputError(f"schedule={schedule}: tile={text}: {spec.name} here has {', '.join(known)}")
    return [known[text] for text in asked[-1:]] or (list(known.values()) if len(known) > 1 else [()])
