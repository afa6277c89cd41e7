"""Matrix products on a TPU: one operand rests in weight memory, the other streams from the host and back to it.

A mapping says which blocks of rows meet which groups of columns, in which order. While one column's sums are read, the
next one's are made. Where inputs stay in the array, weights and inputs change places and the product is computed
transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import MatrixMultiply, Program
from workloads.ops import Gemm, Matvec
from workloads.registry import register
from workloads.tpu.choose import Config
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
from workloads.tpu.mapping import Product, nest
from workloads.tpu.mapping import candidates as mappings

_PARTS = 8
"""Parts in which the first block of activations comes from a chip's own memory."""


@register("gemm", "tpu", "auto")
@register("matvec", "tpu", "auto")
def candidates(op: Gemm | Matvec, spec: TpuSpec, schedule: str, tuned: bool = False) -> list[tuple[Config, int]]:
    """Mappings with their estimates, the best first."""
    return mappings(spec, product_of(op, spec, Config("tiled")), schedule, tuned)


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
    stream = _Stream(e, p, replace(config, m=config.m or p.rows, n=config.n or p.columns), left, result)
    stream.emit(weights)
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

    return Program(op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results,
                   loops=nest(spec, p, stream.config))  # fmt: skip


@dataclass(frozen=True)
class _Pass:
    """A block of rows with a group of columns. columns: of tiles. buffer: of the unified buffer, in which the block
    lies. brought: for this pass; else it is there since an earlier one."""

    block: int
    columns: range
    buffer: int
    brought: bool


@dataclass(frozen=True)
class _Job:
    """A column of tiles for some rows of a block, from `row` on, on an array."""

    n: int
    row: int
    rows: int
    array: int
    acc: int = 0


@dataclass
class _Stream:
    """Writes all passes in the order of the mapping's loops."""

    e: Emitter
    p: Product
    config: Config
    left: int
    result: int

    def __post_init__(self) -> None:
        """Blocks, passes, and their places in the unified buffer."""
        p, e, m = self.p, self.e, self.config.m
        self.wide, self.pitch = p.bits // 8, p.pitch(e.spec)
        self.blocks = [(b, first, min(m, p.rows - first)) for b in range(p.batch) for first in range(0, p.rows, m)]
        """Batch, first row and rows of each."""
        held = self.config.held or min(2, len(self.blocks))
        self.config = replace(self.config, held=held)
        self.passes = self._passes(held)
        most = max(rows for _, _, rows in self.blocks)
        self.buffers = [e.ub(most * self.pitch) for _ in range(held)]
        self.outbox = Outbox(e, most, p.out_bits)

    def _passes(self, held: int) -> list[_Pass]:
        """In the order of the loops. Blocks take the buffers in turn, one that is still there is not brought again."""
        width = self.e.spec.array.columns
        wide = self.p.tiles(self.e.spec, self.p.columns)
        size = max(1, -(-self.config.n // width))
        groups = [range(first, min(first + size, wide)) for first in range(0, wide, size)]
        each = len(self.blocks) // self.p.batch
        there: list[int] = []
        found = []
        for batch in range(self.p.batch):
            blocks = range(batch * each, (batch + 1) * each)
            if self.config.order == "nmk":
                order = [(block, group) for group in groups for block in blocks]
            else:
                order = [(block, group) for block in blocks for group in groups]
            for block, group in order:
                brought = block not in there[-held:]
                if brought:
                    there.append(block)
                buffer = (len(there) - 1 - there[::-1].index(block)) % held
                found.append(_Pass(block, group, buffer, brought))
        return found

    def emit(self, weights: list[Weights]) -> None:
        """All passes; weights: of each batch."""
        for number, here in enumerate(self.passes):
            if number:
                self.e.sync(self.e.inbound, *self.e.matrices)
            area = weights[self.blocks[here.block][0]]
            if number and here.brought and self.config.held == 1:
                self.fetch_whole(here, area.deep)
            jobs = self.jobs(here)
            if self.config.order == "mkn":
                jobs = self.slices(area, number, jobs)
            waiting = min(self.e.spec.array.count, len(jobs))  # columns that wait for this block, not for the next
            for job, part in enumerate(jobs):
                done = part if self.config.order == "mkn" else self.column(area, number, job, part)
                if job == waiting - 1 and self.config.order != "mkn":
                    self.fetch_next(number, area)
                self.send(area, here, done)
        self.outbox.flush()

    def jobs(self, here: _Pass) -> list[_Job]:
        """The columns of a pass; where they are few, each in as many parts as give each array one."""
        count = self.e.spec.array.count
        parts = spread(self.e.spec, self.blocks[here.block][2], len(here.columns))
        every = [(n, row, rows) for n in here.columns for row, rows in parts]
        return [_Job(n, row, rows, number % count) for number, (n, row, rows) in enumerate(every)]

    def send(self, area: Weights, here: _Pass, job: _Job) -> None:
        """The sums of a job."""
        batch, first, _ = self.blocks[here.block]
        wide, row = self.p.out_bits // 8, batch * self.p.rows + first + job.row
        host = self.result + (row * self.p.columns + job.n * area.width) * wide
        self.outbox.send(job.acc, job.rows, area.columns_of(job.n), job.array, host, self.p.columns * wide)

    def grain(self, area: Weights, number: int) -> int:
        """Tiles of a column that wait for their activations together. From the host they come one by one; from the
        chip's memory the first block comes in a few parts, so that the arrays start early, later ones as a whole."""
        if self.e.spec.unified_buffer.behind == "host":
            return 1
        return -(-area.deep // _PARTS) if number == 0 else area.deep

    def column(self, area: Weights, number: int, job: int, part: _Job) -> _Job:
        """A job through the whole depth; where outputs stay, for each block of as many rows as the array has. job:
        which of the pass's it is."""
        e, grain = self.e, self.grain(area, number)
        acc = e.accumulators(part.array, part.rows, e.spec.accumulators.rows)
        height = e.spec.array.rows if e.spec.array.dataflow == "os" else part.rows

        def before(step: int) -> None:
            if number == 0 and job == 0:
                self.fetch(self.passes[0], step, grain)
            e.sync(f"matrix{part.array}", e.inbound)

        for row in range(0, part.rows, height):
            multiply = partial(self.multiply, area, number, part.row + row, min(height, part.rows - row))
            # The first column on each array waits for the block's activations, tile by tile.
            first = job < e.spec.array.count and row == 0
            e.column(area, part.n, multiply, acc + row, part.array, before if first else None, grain)
        return replace(part, acc=acc)

    def slices(self, area: Weights, number: int, jobs: list[_Job]) -> list[_Job]:
        """All jobs of a pass together: each tile of the depth meets them all before the next one."""
        e, count = self.e, self.e.spec.array.count
        rows = [sum(job.rows for job in jobs if job.array == array) for array in range(count)]
        free = [e.accumulators(array, rows[array], e.spec.accumulators.rows) for array in range(count)]
        placed = []
        for job in jobs:
            placed.append(replace(job, acc=free[job.array]))
            free[job.array] += job.rows
        for plane in range(area.planes):
            for step in range(area.deep):
                if plane == 0 and number == 0:
                    self.fetch(self.passes[0], step)
                for i, job in enumerate(placed):
                    if plane == 0 and i < count and (number == 0 or step == 0):
                        e.sync(f"matrix{job.array}", e.inbound)
                    multiply = partial(self.multiply, area, number, job.row, job.rows)
                    e.tile(area, job.n, plane, step, multiply, job.acc, job.array)
                if plane == step == 0 and number:
                    self.fetch_next(number, area)
        if number == 0:
            self.fetch_next(number, area)
        return placed

    def multiply(self, area: Weights, number: int, row: int, rows: int, step: int, repeat: int) -> MatrixMultiply:
        """Rows of a block times `repeat` tiles of a column."""
        height = self.e.spec.array.rows
        start = step * height
        source = self.buffers[self.passes[number].buffer] + row * self.pitch + start * self.wide
        depth = min(repeat * height, self.p.depth - start)
        return MatrixMultiply(source, self.pitch, rows, depth, area.width, 0, bits=self.p.bits, repeat=repeat)

    def fetch_next(self, number: int, area: Weights) -> None:
        """The block of the pass behind this one, where another buffer can take it meanwhile."""
        if number + 1 < len(self.passes) and self.config.held > 1 and self.passes[number + 1].brought:
            self.fetch_whole(self.passes[number + 1], area.deep)

    def fetch_whole(self, here: _Pass, deep: int) -> None:
        """A block, whose depth is `deep` tiles: from the host tile by tile, from the chip's memory at once."""
        if self.e.spec.unified_buffer.behind == "dram":
            self.fetch(here, 0, deep)
            return
        for step in range(deep):
            self.fetch(here, step)

    def fetch(self, here: _Pass, step: int, steps: int = 1) -> None:
        """What `steps` tiles multiply of a block."""
        batch, first, rows = self.blocks[here.block]
        start = step * self.e.spec.array.rows
        depth = min(steps * self.e.spec.array.rows, self.p.depth - start)
        host = self.left + ((batch * self.p.rows + first) * self.p.depth + start) * self.wide
        target = self.buffers[here.buffer] + start * self.wide
        self.e.read(host, target, rows, depth * self.wide, self.p.depth * self.wide, self.pitch)


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
