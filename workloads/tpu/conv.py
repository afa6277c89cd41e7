"""Convolutions on a TPU: images in the unified buffer, patches gathered by the systolic set-up, filters as weights.

Images come in parts (chunks) of which two fit beside the results; an image that is too large for that comes in bands of
rows, each with the rows that its windows share with the next. A mapping can say how large parts are, and how many are
held; which blocks of positions meet which columns of filters, in which order (`workloads.tpu.mapping`). Each group of
channels has tiles of its own; a depthwise convolution so uses one column of the array at a time.

Where inputs stay in the array they are its weights: patches are laid out in weight memory before the run, and filters
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import Convolve, Image, MatrixMultiply, Program
from workloads.ops import Conv2d
from workloads.registry import register
from workloads.tpu.choose import Config
from workloads.tpu.emit import (
    Emitter,
    Outbox,
    Weights,
    alignment,
    formats,
    load,
    numbers,
    planes_of,
    store,
    store_bytes,
)
from workloads.tpu.gemm import build as build_gemm
from workloads.tpu.gemm import candidates as gemm_candidates
from workloads.tpu.mapping import Product
from workloads.tpu.mapping import candidates as mappings


@dataclass(frozen=True)
class _Chunk:
    """What the unified buffer holds at a time: `images` whole images from `image` on, or a band of one of them.

    top, rows: rows of each image's result. first, height: rows of each image of X; above: rows of zeros over them.
    """

    image: int
    images: int
    top: int
    rows: int
    first: int
    height: int
    above: int


@register("conv2d", "tpu", "auto")
def candidates(op: Conv2d, spec: TpuSpec, schedule: str, tuned: bool = False) -> list[tuple[Config, int]]:
    """Mappings with their estimates, the best first."""
    bits, out_bits = formats(op, spec, str(op.dtype), str(op.out))
    gemm = op.as_gemm()
    if spec.array.dataflow == "is":
        return gemm_candidates(gemm, spec, schedule, tuned)
    planes = planes_of(spec, bits)
    p = Product(str(op), gemm.m, gemm.k, gemm.n, gemm.batch, bits, out_bits, planes, gathered=True)
    found = mappings(spec, p, schedule, tuned)
    return [(_resolved(op, spec, config, bits, out_bits), cycles) for config, cycles in found]


def _resolved(op: Conv2d, spec: TpuSpec, config: Config, bits: int, out_bits: int) -> Config:
    """A mapping with its parts of images: as large as fit, two of several, where it does not say so. InputError for
    parts that cannot be."""
    if config.wide:
        raise InputError(f"{op}: 8x16 is for matrix products")
    rows, room = op.output[0], _room_rows(op, config.cut(spec), config, bits, out_bits)
    if config.part > op.n * rows or (config.part > rows and config.part % rows):
        nearest = min(op.n, max(1, round(config.part / rows))) * rows
        raise InputError(
            f"schedule={config}: a part has 1 to {rows} rows of one image, or whole images of {rows}; "
            f"nearest: {nearest}"
        )
    chunks = _chunks(op, room, config.part)
    if config.held > len(chunks):
        raise InputError(f"schedule={config}: the images have {len(chunks)} parts; nearest: held={len(chunks)}")
    held = config.held or min(2, len(chunks))
    most = max(chunk.images * chunk.height for chunk in chunks)
    if (config.part or config.held) and held * most > room:
        raise InputError(
            f"schedule={config}: {held} parts take {held * most} rows of images, the unified buffer has room for "
            f"{room}; fewer of them, or smaller ones"
        )
    return replace(config, held=held, part=chunks[0].images * chunks[0].rows)


def _room_rows(op: Conv2d, spec: TpuSpec, config: Config, bits: int, out_bits: int) -> int:
    """Rows of images for which the unified buffer has room beside the results on their way."""
    block = config.m or op.n * op.output[0] * op.output[1]
    slots, pitch = 2 * spec.array.count, spec.array.columns * out_bits // 8
    align = alignment(spec)
    taken = slots * (-(-block * pitch // align) * align)
    return (spec.unified_buffer.size_bytes - taken - 4 * align) // (op.w * op.c * bits // 8)


@register("conv2d", "tpu", "tiled")
def build(op: Conv2d, spec: TpuSpec, config: Config) -> Program:
    """The program; InputError where one row of windows does not fit the unified buffer."""
    bits, out_bits = formats(op, spec, str(op.dtype), str(op.out))
    if spec.array.dataflow == "is":
        return _laid_out(op, spec, config)
    e = Emitter(spec, str(op))
    wide, out_bytes = bits // 8, out_bits // 8
    p, q = op.output
    x = e.host(op.n * op.h * op.w * op.c * wide)
    y = e.host(op.n * p * q * op.k * out_bytes)
    channels, filters = op.c // op.groups, op.k // op.groups
    weights = [e.weights(channels * op.r * op.s, filters, planes_of(spec, bits)) for _ in range(op.groups)]
    row_bytes = op.w * op.c * wide
    block = config.m or op.n * p * q
    outbox = Outbox(e, block, out_bits)
    chunks = _chunks(op, _room_rows(op, spec, config, bits, out_bits), config.part)
    most = max(chunk.images * chunk.height for chunk in chunks)
    buffers = [e.ub(most * row_bytes) for _ in range(config.held or min(2, len(chunks)))]

    def fetch(number: int) -> None:
        chunk = chunks[number]
        size = chunk.images * chunk.height * row_bytes
        source = x + (chunk.image * op.h + chunk.first) * row_bytes
        e.read(source, buffers[number % len(buffers)], 1, size, size, size)

    fetch(0)
    fetched, jobs = 1, 0  # jobs: columns of tiles so far, which the arrays take in turn
    for number, chunk in enumerate(chunks):
        e.sync(e.inbound, *e.matrices)
        if fetched == number:
            fetch(number)
            fetched += 1
        for matrix in e.matrices:
            e.sync(matrix, e.inbound)
        for ahead in range(fetched, min(number + len(buffers), len(chunks))):
            fetch(ahead)
            fetched += 1
        patches = _Patches(op, chunk, spec, buffers[number % len(buffers)], bits)
        for here in _passes(op, spec, config, chunk, block, weights):
            placed = [(n, (jobs + i) % spec.array.count) for i, n in enumerate(here.columns)]
            jobs += len(placed)
            first, rows, group = here.first, here.rows, here.group
            area, column = weights[group], group * filters
            host = y + ((chunk.image * p + chunk.top) * q + first) * op.k * out_bytes
            for n, array, acc in _summed(e, config, area, placed, rows, partial(patches.multiply, group, first)):
                place = host + (column + n * area.width) * out_bytes
                outbox.send(acc, rows, area.columns_of(n), array, place, op.k * out_bytes)
    outbox.flush()

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        images, filters_ = (numbers(spec, operand) for operand in operands)
        if op.layout == "nchw":
            images, filters_ = images.transpose(0, 2, 3, 1), filters_.transpose(0, 2, 3, 1)
        store(memory.host, x, images, spec.format_of(bits))
        for group, area in enumerate(weights):
            own = filters_[group * filters : (group + 1) * filters]
            store_bytes(memory.weights, area.address, area.image(own.reshape(filters, -1).T))

    def results(memory: Any) -> list[NDArray[Any]]:
        found = load(memory.host, y, (op.n, p, q, op.k), spec.format_of(out_bits))
        return [found if op.layout == "nhwc" else found.transpose(0, 3, 1, 2)]

    return Program(op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results,
                   loops=_nest(op, spec, config, chunks, block, weights[0]))  # fmt: skip


@dataclass(frozen=True)
class _Pass:
    """`rows` positions of a chunk, from `first` on, with some columns of tiles of a group of channels."""

    first: int
    rows: int
    group: int
    columns: range


def _passes(
    op: Conv2d, spec: TpuSpec, config: Config, chunk: _Chunk, block: int, weights: list[Weights]
) -> list[_Pass]:
    """What a chunk's positions meet, in the order of the mapping's loops."""
    positions = chunk.images * chunk.rows * op.output[1]
    size = -(-config.n // spec.array.columns) or weights[0].wide
    columns = [
        (group, range(n, min(n + size, area.wide)))
        for group, area in enumerate(weights)
        for n in range(0, area.wide, size)
    ]
    blocks = [(first, min(block, positions - first)) for first in range(0, positions, block)]
    if config.order == "nmk":
        return [_Pass(*rows, *some) for some in columns for rows in blocks]
    return [_Pass(*rows, *some) for rows in blocks for some in columns]


def _summed(
    e: Emitter, config: Config, area: Weights, placed: Sequence[tuple[int, int]], rows: int,
    make: Callable[[int, int, int, int], MatrixMultiply],
) -> Iterator[tuple[int, int, int]]:  # fmt: skip
    """Multiplies a pass's columns (number, array); of each, with its accumulators, when its sums are whole. make: (row,
    rows, step, repeat) -> instruction."""
    array, limit = e.spec.array, e.spec.accumulators.rows
    if config.order != "mkn":
        height = array.rows if array.dataflow == "os" else rows
        for n, number in placed:
            acc = e.accumulators(number, rows, limit)
            for row in range(0, rows, height):
                e.column(area, n, partial(make, row, min(height, rows - row)), acc + row, number)
            yield n, number, acc
        return
    taken = [sum(rows for _, number in placed if number == one) for one in range(array.count)]
    free = [e.accumulators(one, taken[one], limit) for one in range(array.count)]
    sums = []
    for n, number in placed:
        sums.append((n, number, free[number]))
        free[number] += rows
    for plane in range(area.planes):
        for step in range(area.deep):
            for n, number, acc in sums:
                e.tile(area, n, plane, step, partial(make, 0, rows), acc, number)
    yield from sums


def _nest(
    op: Conv2d, spec: TpuSpec, config: Config, chunks: list[_Chunk], block: int, area: Weights
) -> tuple[tuple[str, str, str], ...]:
    """The loops, the outermost first: memory, what it holds, loop."""
    outer = "host memory" if spec.unified_buffer.behind == "host" else "DRAM"
    most = max(chunk.images * chunk.rows * op.output[1] for chunk in chunks)
    whole = f"{chunks[0].images} images" if chunks[0].rows == op.output[0] else f"{chunks[0].rows} rows of an image"
    held = config.held or min(2, len(chunks))
    size = min(area.wide, -(-config.n // spec.array.columns) or area.wide)
    over = [f"m: {-(-most // block)} of {block} positions"]
    over += [f"group: {op.groups}"] if op.groups > 1 else []
    over += [f"k: {-(-area.wide // size)} of {size} columns of tiles"] if size < area.wide else []
    if config.order == "nmk":
        over.append(over.pop(0))
    inner = [f"k: {size} of {area.width} filters", f"c, r, s: {area.deep * area.planes} of {area.rows}"]
    together = 1
    if config.order == "mkn":
        inner.reverse()
        together = -(-size // spec.array.count)
    parts = f"{held} part{'s' if held > 1 else ''} of images"
    return (
        (outer, "images, results", f"n, p: {len(chunks)} of {whole}"),
        *(("unified buffer", "" if i else parts, loop) for i, loop in enumerate(over)),
        ("accumulators", f"{block * together} x {area.width} sums", inner[0]),
        ("accumulators", "", inner[1]),
        ("array", f"{area.rows} x {area.width} weights", f"m: {block} positions"),
    )


def _laid_out(op: Conv2d, spec: TpuSpec, config: Config) -> Program:
    """The convolution as the product of its patches, which rest, and its filters."""
    product = build_gemm(op.as_gemm(), spec, config)

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        product.fill(memory, op.patches(*operands))

    def results(memory: Any) -> list[NDArray[Any]]:
        return [op.image(product.results(memory)[0])]

    note = "Patches are laid out in weight memory before the run: nothing on the chip gathers them there."
    return replace(product, name=op.word, fill=fill, results=results, notes=(*product.notes, note))


def _chunks(op: Conv2d, room: int, part: int = 0) -> list[_Chunk]:
    """Chunks of `part` rows of results each; 0: of which one fits `room` rows of X if it is the only one, and two
    otherwise, where that can be."""
    p = op.output[0]
    images = rows = 0
    if part >= p:
        images = part // p
    elif part:
        rows = part
    elif op.n * op.h <= room or 2 * op.h <= room:
        images = op.n if op.n * op.h <= room else min(op.n, room // (2 * op.h))
    else:
        stride, reach = op.strides[0], (op.r - 1) * op.dilation + 1
        most = max(1, (room // 2 - reach) // stride + 1)
        rows = -(-p // -(-p // most))
    if images:
        return [
            _Chunk(first, min(images, op.n - first), 0, p, 0, op.h, op.padding[0]) for first in range(0, op.n, images)
        ]
    return [_band(op, image, top, min(rows, p - top)) for image in range(op.n) for top in range(0, p, rows)]


def _band(op: Conv2d, image: int, top: int, rows: int) -> _Chunk:
    """The rows of an image that some rows of its result need."""
    start = top * op.strides[0] - op.padding[0]
    end = start + (rows - 1) * op.strides[0] + (op.r - 1) * op.dilation + 1
    first = min(max(start, 0), op.h - 1)
    return _Chunk(image, 1, top, rows, first, max(min(end, op.h) - first, 1), first - start)


class _Patches(NamedTuple):
    """Patches of a chunk of images that lie in the unified buffer from `source` on, in `bits` a number."""

    op: Conv2d
    chunk: _Chunk
    spec: TpuSpec
    source: int
    bits: int

    def multiply(self, group: int, first: int, row: int, rows: int, step: int, repeat: int) -> MatrixMultiply:
        """Those of `rows` output positions from `first` + `row` on, times `repeat` tiles of a group's filters."""
        op, chunk, array = self.op, self.chunk, self.spec.array
        channels = op.c // op.groups
        (stride_h, stride_w), pad_w = op.strides, op.padding[1]
        image = Image(
            chunk.height, op.w, op.c, op.r, op.s, chunk.rows, op.output[1], stride_h, stride_w, chunk.above, pad_w,
            op.dilation, group * channels, channels,
        )  # fmt: skip
        start = step * array.rows
        depth = min(repeat * array.rows, channels * op.r * op.s - start)
        return Convolve(
            self.source, op.c * self.bits // 8, rows, depth, array.columns, 0, bits=self.bits, repeat=repeat,
            image=image, first=first + row, tap=start,
        )  # fmt: skip
