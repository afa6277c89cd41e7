"""Matrix products on a TPU: one operand rests in weight memory, the other streams from the host and back to it.

Blocks of rows go through all columns of tiles; while one column's sums are read, the next one's are made. Where inputs
stay in the array, weights and inputs change places and the product is computed transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import MatrixMultiply, Program
from workloads.ops import Gemm, Matvec
from workloads.registry import register
from workloads.tpu.choose import Config, block_rows, product_candidates
from workloads.tpu.emit import (
    Emitter,
    Outbox,
    Weights,
    formats,
    load,
    numbers,
    planes_of,
    spread,
    store,
    store_bytes,
)

_PARTS = 8
"""Parts in which the first block of activations comes from a chip's own memory."""


@dataclass(frozen=True)
class Product:
    """What is multiplied, for each batch: left [rows, depth] streams, right [depth, columns] rests as weights."""

    what: str
    rows: int
    depth: int
    columns: int
    batch: int
    bits: int
    out_bits: int
    planes: int


@register("gemm", "tpu", "auto")
@register("matvec", "tpu", "auto")
def candidates(op: Gemm | Matvec, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """Layouts with their estimates, the best first."""
    p = product_of(op, spec, Config("tiled"))
    return product_candidates(spec, schedule, p.rows, p.depth, p.columns, p.batch, p.bits, p.planes)


def product_of(op: Gemm | Matvec, spec: TpuSpec, config: Config) -> Product:
    """The product that an operator is on a machine; InputError where the machine cannot do it."""
    gemm = _gemm(op)
    bits, out_bits = formats(op, spec, str(gemm.dtype), str(gemm.out))
    if gemm.finished or gemm.quantised:
        raise InputError(
            f"{op}: {spec.name} has neither scales, epilogues nor packed weights; scale=none epilogue=none weights=same"
        )
    if gemm.adds:
        raise InputError(f"{op}: {spec.name} has no way to load its accumulators, so beta must be 0")
    sums = spec.format_of(32)
    if gemm.acc != sums:
        raise InputError(f"{op}: {spec.name} sums in {sums}, not acc={gemm.acc}")
    if config.wide and bits == 16:
        raise InputError(f"{op}: 8x16 is for int8 operands, dtype is {gemm.dtype}")
    rows, columns = (gemm.n, gemm.m) if _stays_left(op, spec) else (gemm.m, gemm.n)
    planes = planes_of(spec, bits)
    return Product(str(op), rows, gemm.k, columns, gemm.batch, 16 if config.wide else bits, out_bits, planes)


@register("matvec", "tpu", "tiled")
@register("gemm", "tpu", "tiled")
def build(op: Gemm | Matvec, spec: TpuSpec, config: Config) -> Program:
    """The program; InputError where its operands do not fit."""
    p = product_of(op, spec, config)
    e = Emitter(spec, p.what)
    wide = p.bits // 8
    left = e.host(p.batch * p.rows * p.depth * wide)
    result = e.host(p.batch * p.rows * p.columns * p.out_bits // 8)
    weights = [e.weights(p.depth, p.columns, p.planes) for _ in range(p.batch)]
    block = _fitting_block(e, p, config)
    blocks = [(b, first, min(block, p.rows - first)) for b in range(p.batch) for first in range(0, p.rows, block)]
    buffers = [e.ub(block * _pitch(spec, p)) for _ in range(min(2, len(blocks)))]
    _Stream(e, p, blocks, buffers, left, result).emit(weights)
    swapped = _stays_left(op, spec)

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        a, b = _operands(op, spec, operands, swapped)
        store(memory.host, left, a, spec.format_of(p.bits))
        for area, matrix in zip(weights, b, strict=True):
            store_bytes(memory.weights, area.address, area.image(matrix))

    def results(memory: Any) -> list[NDArray[Any]]:
        found = load(memory.host, result, (p.batch, p.rows, p.columns), spec.format_of(p.out_bits))
        found = found.swapaxes(1, 2) if swapped else found
        return [found.reshape(-1) if isinstance(op, Matvec) else found]

    return Program(op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results)


@dataclass
class _Stream:
    """Writes all blocks. Two buffers hold a block and the next."""

    e: Emitter
    p: Product
    blocks: list[tuple[int, int, int]]
    """Batch, first row and rows of each."""
    buffers: list[int]
    left: int
    result: int

    def __post_init__(self) -> None:
        self.wide, self.pitch = self.p.bits // 8, _pitch(self.e.spec, self.p)
        self.outbox = Outbox(self.e, max(rows for _, _, rows in self.blocks), self.p.out_bits)

    def emit(self, weights: list[Weights]) -> None:
        """All blocks; weights: of each batch."""
        for number, (batch, first, rows) in enumerate(self.blocks):
            if number:
                self.e.sync(self.e.inbound, *self.e.matrices)
            area, wide = weights[batch], self.p.out_bits // 8
            parts = spread(self.e.spec, rows, area.wide)
            for job in range(area.wide * len(parts)):
                n, (row, some) = job // len(parts), parts[job % len(parts)]
                self.column(area, number, n, job, row, some)
                if job == 0 and number + 1 < len(self.blocks):
                    self.fetch_whole(number + 1, area.deep)
                host = self.result + ((batch * self.p.rows + first + row) * self.p.columns + n * area.width) * wide
                array, columns = job % self.e.spec.array.count, area.columns_of(n)
                self.outbox.send(self.acc, some, columns, array, host, self.p.columns * wide)
        self.outbox.flush()

    def grain(self, area: Weights, number: int) -> int:
        """Tiles of a column that wait for their activations together. From the host they come one by one; from the
        chip's memory the first block comes in a few parts, so that the arrays start early, later ones as a whole."""
        if self.e.spec.unified_buffer.behind == "host":
            return 1
        return -(-area.deep // _PARTS) if number == 0 else area.deep

    def column(self, area: Weights, number: int, n: int, job: int, top: int, rows: int) -> None:
        """One column of tiles for `rows` rows of a block from `top` on; where outputs stay, for each block of as many
        rows as the array has. job: which of the block's it is."""
        e, grain = self.e, self.grain(area, number)
        array = job % e.spec.array.count
        acc = self.acc = e.accumulators(array, rows, e.spec.accumulators.rows)
        height = e.spec.array.rows if e.spec.array.dataflow == "os" else rows

        def before(step: int) -> None:
            if number == 0 and job == 0:
                self.fetch(0, step, grain)
            e.sync(f"matrix{array}", e.inbound)

        for row in range(0, rows, height):
            multiply = partial(self.multiply, area, number, top + row, min(height, rows - row))
            # The first column on each array waits for the block's activations, tile by tile.
            first = job < e.spec.array.count and row == 0
            e.column(area, n, multiply, acc + row, array, before if first else None, grain)

    def multiply(self, area: Weights, number: int, row: int, rows: int, step: int, repeat: int) -> MatrixMultiply:
        """Rows of a block times `repeat` tiles of a column."""
        height = self.e.spec.array.rows
        start = step * height
        source = self.buffers[number % len(self.buffers)] + row * self.pitch + start * self.wide
        depth = min(repeat * height, self.p.depth - start)
        return MatrixMultiply(source, self.pitch, rows, depth, area.width, 0, bits=self.p.bits, repeat=repeat)

    def fetch_whole(self, number: int, deep: int) -> None:
        """A block, whose depth is `deep` tiles: from the host tile by tile, from the chip's memory at once."""
        if self.e.spec.unified_buffer.behind == "dram":
            self.fetch(number, 0, deep)
            return
        for step in range(deep):
            self.fetch(number, step)

    def fetch(self, number: int, step: int, steps: int = 1) -> None:
        """What `steps` tiles multiply of a block."""
        batch, first, rows = self.blocks[number]
        start = step * self.e.spec.array.rows
        depth = min(steps * self.e.spec.array.rows, self.p.depth - start)
        host = self.left + ((batch * self.p.rows + first) * self.p.depth + start) * self.wide
        target = self.buffers[number % len(self.buffers)] + start * self.wide
        self.e.read(host, target, rows, depth * self.wide, self.p.depth * self.wide, self.pitch)


def _fitting_block(e: Emitter, p: Product, config: Config) -> int:
    """Rows of a block: what the accumulators hold, fewer where two blocks and their results exceed the buffer."""
    block = block_rows(e.spec, p.rows, config.whole)
    per_row = 2 * _pitch(e.spec, p) + 2 * e.spec.array.count * e.spec.array.columns * p.out_bits // 8
    room = e.spec.unified_buffer.size_bytes - 8 * e.align
    if block * per_row <= room:
        return block
    if p.batch * p.rows == block:
        per_row -= _pitch(e.spec, p)  # one block needs no second buffer
        if block * per_row <= room:
            return block
    fits = room // per_row
    if fits < 1:
        e.ub(per_row)
    return -(-p.rows // -(-p.rows // max(1, fits)))


def _pitch(spec: TpuSpec, p: Product) -> int:
    """Bytes from one row of activations to the next: whole tiles."""
    return -(-p.depth // spec.array.rows) * spec.array.rows * (p.bits // 8)


def matrices(op: Gemm | Matvec, spec: TpuSpec, operands: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the array multiplies, by batch: [rows, depth] and [depth, columns]; the dataflow says which rests."""
    return _operands(op, spec, operands, isinstance(op, Matvec))


def _gemm(op: Gemm | Matvec) -> Gemm:
    return op.as_gemm() if isinstance(op, Matvec) else op


def _stays_left(op: Gemm | Matvec, spec: TpuSpec) -> bool:
    """Whether the left operand rests in the weight memory: of a vector product always, its matrix is on the left."""
    return (spec.array.dataflow == "is") != isinstance(op, Matvec)


def _operands(
    op: Gemm | Matvec, spec: TpuSpec, operands: Sequence[NDArray[Any]], swapped: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """What streams, [batch, rows, depth], and what rests, [batch, depth, columns]."""
    gemm = _gemm(op)
    a = numbers(spec, np.asarray(operands[0]).reshape(gemm.a_shape))
    b = numbers(spec, np.asarray(operands[1]).reshape(gemm.b_shape))
    a = a.swapaxes(1, 2) if gemm.ta == "T" else a
    b = b.swapaxes(1, 2) if gemm.tb == "T" else b
    return (b.swapaxes(1, 2), a.swapaxes(1, 2)) if swapped else (a, b)
