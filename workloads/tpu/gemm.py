"""Matrix products on a TPU: one operand rests in weight memory, the other streams from the host and back to it.

Blocks of rows go through all columns of tiles; while one column's sums are read, the next one's are made. Where inputs
stay in the array, weights and inputs change places and the product is computed transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import MatrixMultiply, Program, ReadHostMemory, WriteHostMemory
from workloads.ops import Gemm, Matvec
from workloads.registry import register
from workloads.tpu.choose import Config, block_rows, product_candidates
from workloads.tpu.emit import Emitter, Weights, formats


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


def candidates(op: Gemm | Matvec, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """Layouts with their estimates, the best first."""
    p = product_of(op, spec, Config("tiled"))
    return product_candidates(spec, schedule, p.rows, p.depth, p.columns, p.batch, p.bits, p.planes)


def product_of(op: Gemm | Matvec, spec: TpuSpec, config: Config) -> Product:
    """The product that an operator is on a machine; InputError where the machine cannot do it."""
    gemm = _gemm(op)
    bits, out_bits = formats(op, spec, str(gemm.dtype), str(gemm.out))
    if gemm.adds:
        raise InputError(f"{op}: {spec.name} has no way to load its accumulators, so beta must be 0")
    if gemm.acc != "int32":
        raise InputError(f"{op}: {spec.name} sums in int32, not acc={gemm.acc}")
    if config.wide and bits == 16:
        raise InputError(f"{op}: 8x16 is for int8 operands, dtype is {gemm.dtype}")
    rows, columns = (gemm.n, gemm.m) if _stays_left(op, spec) else (gemm.m, gemm.n)
    planes = bits // 8
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
    steps = [(b, first, min(block, p.rows - first)) for b in range(p.batch) for first in range(0, p.rows, block)]
    buffers = [e.ub(block * _pitch(spec, p)) for _ in range(min(2, len(steps)))]
    _stream(e, p, steps, buffers, left, result, weights, config)
    swapped = _stays_left(op, spec)

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        a, b = _operands(op, operands, swapped)
        store(memory.host, left, a.astype(np.int8 if wide == 1 else np.int16))
        for area, matrix in zip(weights, b, strict=True):
            store(memory.weights, area.address, area.image(matrix))

    def results(memory: Any) -> list[NDArray[Any]]:
        kind = {8: np.int8, 16: np.int16, 32: np.int32}[p.out_bits]
        found = load(memory.host, result, (p.batch, p.rows, p.columns), kind)
        found = found.swapaxes(1, 2) if swapped else found
        return [found.reshape(-1) if isinstance(op, Matvec) else found]

    return Program(op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results)


def _stream(
    e: Emitter, p: Product, steps: list[tuple[int, int, int]], buffers: list[int], left: int, result: int,
    weights: list[Weights], config: Config,
) -> None:  # fmt: skip
    """All blocks: (batch, first row, rows). Two buffers hold a block and the next; results go out one column late."""
    spec, wide = e.spec, p.bits // 8
    out_bytes = p.out_bits // 8
    pitch, out_pitch = _pitch(spec, p), spec.array.columns * out_bytes
    block = max(rows for _, _, rows in steps)
    ring = [e.ub(block * out_pitch) for _ in range(2 * spec.array.count)]
    limit = spec.accumulators.rows
    pending: list[WriteHostMemory] = []
    written = 0

    def fetch(number: int, step: int) -> None:
        """Elements of one depth tile of a block from the host."""
        b, first, rows = steps[number]
        start = step * spec.array.rows
        depth = min(spec.array.rows, p.depth - start)
        host = left + ((b * p.rows + first) * p.depth + start) * wide
        target = buffers[number % len(buffers)] + start * wide
        e.add(ReadHostMemory(host, target, rows, depth * wide, p.depth * wide, pitch))

    def flush() -> None:
        if pending:
            e.sync("host_write", "activation")
            e.add(pending.pop())

    for number, (b, first, rows) in enumerate(steps):
        area = weights[b]
        source = buffers[number % len(buffers)]
        if number:
            e.sync("host_read", *e.matrices)

        def multiply(step: int, repeat: int, shift: int, source: int = source, rows: int = rows, area: Weights = area) -> MatrixMultiply:
            start = step * spec.array.rows
            depth = min(repeat * spec.array.rows, p.depth - start)
            return MatrixMultiply(
                source + start * wide, pitch, rows, depth, area.width, 0, bits=p.bits, shift=shift, repeat=repeat
            )

        for n in range(area.wide):
            array = n % spec.array.count

            def before(step: int, number: int = number, array: int = array) -> None:
                if number == 0 and n == 0:
                    fetch(0, step)
                e.sync(f"matrix{array}", "host_read")

            # The first column on each array waits for the block's activations, tile by tile.
            acc = e.accumulators(array, rows, limit)
            _fold(e, area, n, rows, multiply, acc, array, before if n < spec.array.count else None)
            if n == 0 and number + 1 < len(steps):
                for step in range(area.deep):
                    fetch(number + 1, step)
            e.sync("activation", "host_write")
            flush()
            slot = ring[written % len(ring)]
            written += 1
            columns = area.columns_of(n)
            e.activate(acc, rows, columns, slot, out_pitch, p.out_bits, array)
            host = result + ((b * p.rows + first) * p.columns + n * area.width) * out_bytes
            pending.append(WriteHostMemory(slot, host, rows, columns * out_bytes, out_pitch, p.columns * out_bytes))
    flush()


def _fold(e: Emitter, area: Weights, n: int, rows: int, multiply: Any, acc: int, array: int, before: Any) -> None:
    """One column of tiles; where outputs stay, for each block of as many rows as the array has."""
    if e.spec.array.dataflow != "os":
        e.column(area, n, rows, multiply, acc, array, before)
        return
    for first in range(0, rows, e.spec.array.rows):
        count = min(e.spec.array.rows, rows - first)

        def part(step: int, repeat: int, shift: int, first: int = first, count: int = count) -> MatrixMultiply:
            made: MatrixMultiply = multiply(step, repeat, shift)
            return replace(made, ub=made.ub + first * made.pitch, rows=count)

        e.column(area, n, count, part, acc + first, array, before if first == 0 else None)


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


def _gemm(op: Gemm | Matvec) -> Gemm:
    return op.as_gemm() if isinstance(op, Matvec) else op


def _stays_left(op: Gemm | Matvec, spec: TpuSpec) -> bool:
    """Whether the left operand rests in the weight memory: of a vector product always, its matrix is on the left."""
    return (spec.array.dataflow == "is") != isinstance(op, Matvec)


def _operands(op: Gemm | Matvec, operands: Sequence[NDArray[Any]], swapped: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """What streams, [batch, rows, depth], and what rests, [batch, depth, columns]."""
    gemm = _gemm(op)
    a = np.asarray(operands[0]).reshape(gemm.a_shape).astype(np.int64)
    b = np.asarray(operands[1]).reshape(gemm.b_shape).astype(np.int64)
    a = a.swapaxes(1, 2) if gemm.ta == "T" else a
    b = b.swapaxes(1, 2) if gemm.tb == "T" else b
    return (b.swapaxes(1, 2), a.swapaxes(1, 2)) if swapped else (a, b)


def store(memory: NDArray[np.uint8], address: int, values: NDArray[Any]) -> None:
    """Writes an array to a memory."""
    raw = np.ascontiguousarray(values).view(np.uint8).ravel()
    memory[address : address + raw.size] = raw


def load(memory: NDArray[np.uint8], address: int, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """Reads an array from a memory."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return memory[address : address + size].copy().view(kind).reshape(shape)
