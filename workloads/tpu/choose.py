"""Which schedule of an operator runs on a TPU: candidates with an estimate each, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.near import hint
from arch.tpu import TpuSpec
from workloads.registry import chooser

WORDS = ("halves", "whole", "8x16")


@dataclass(frozen=True)
class Config:
    """How a product is laid out. whole: an output tile may take all accumulators, not half of them (the other half
    being read meanwhile); wide: 8-bit activations run as 16-bit ones."""

    schedule: str
    whole: bool = False
    wide: bool = False

    def __str__(self) -> str:
        """As people type it."""
        if self.schedule != "tiled":
            return self.schedule
        return " ".join(["tiled", "whole" if self.whole else "halves", *(["8x16"] if self.wide else [])])


def product_candidates(
    spec: TpuSpec, schedule: str, rows: int, depth: int, columns: int, batch: int, bits: int, planes: int
) -> list[tuple[Config, int]]:
    """Layouts of a product [rows, depth] x [depth, columns] with the estimate of their cycles."""
    words = schedule.split()
    if schedule != "auto":
        if words[0] != "tiled":
            raise InputError(f"schedule={schedule}: must be auto or tiled [halves|whole] [8x16]; did you mean tiled?")
        for word in words[1:]:
            if word not in WORDS:
                known = ", ".join(WORDS)
                raise InputError(f"schedule={schedule}: unknown word {word}, one of {known}{hint(word, WORDS)}")
    wide = "8x16" in words
    if wide:
        bits = 16
    wanted = [whole for whole, word in ((False, "halves"), (True, "whole")) if word in words] or [False, True]
    half = max(1, spec.accumulators.rows // 2)
    if rows <= half and len(wanted) == 2:
        wanted = [False]
    made = [
        (Config("tiled", whole, wide), batch * estimate(spec, rows, depth, columns, bits, planes, whole))
        for whole in wanted
    ]
    return sorted(made, key=lambda item: item[1])


def estimate(spec: TpuSpec, rows: int, depth: int, columns: int, bits: int, planes: int, whole: bool) -> int:
    """Cycles of the matrix unit: each tile takes the longest of streaming, shifting and fetching; what an output tile
    that fills the accumulators adds is the way out of the array and through the activation unit."""
    array = spec.array
    block = block_rows(spec, rows, whole)
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


def candidates(op: Any, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """Candidates of an operator with the estimate of their cycles, the best first; InputError where there are none."""
    found: list[tuple[Config, int]] = chooser(op, spec)(op, spec, schedule)
    return found
