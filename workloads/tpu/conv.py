"""Convolutions on a TPU: images in the unified buffer, patches gathered by the systolic set-up, filters as weights.

Images come in chunks of which two fit beside the results; an image that is too large for that comes in bands of rows,
each with the rows that its windows share with the next. Each group of channels has tiles of its own; a depthwise
convolution so uses one column of the array at a time.

Where inputs stay in the array they are its weights: patches are laid out in weight memory before the run, and filters
stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import Convolve, Image, MatrixMultiply, Program
from workloads.ops import Conv2d
from workloads.registry import register
from workloads.tpu.choose import Config
from workloads.tpu.emit import Emitter, Outbox, Weights, formats, load, numbers, planes_of, store, store_bytes
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
    return mappings(spec, p, schedule, tuned)


@register("conv2d", "tpu", "tiled")
def build(op: Conv2d, spec: TpuSpec, config: Config) -> Program:
    """The program; InputError where one row of windows does not fit the unified buffer."""
    bits, out_bits = formats(op, spec, str(op.dtype), str(op.out))
    if config.wide:
        raise InputError(f"{op}: 8x16 is for matrix products")
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
    room = spec.unified_buffer.size_bytes - e.ub_bytes - 4 * e.align
    chunks = _chunks(op, room // row_bytes)
    most = max(chunk.images * chunk.height for chunk in chunks)
    buffers = [e.ub(most * row_bytes) for _ in range(min(2, len(chunks)))]

    def fetch(number: int) -> None:
        chunk = chunks[number]
        size = chunk.images * chunk.height * row_bytes
        source = x + (chunk.image * op.h + chunk.first) * row_bytes
        e.read(source, buffers[number % len(buffers)], 1, size, size, size)

    fetch(0)
    jobs = 0  # columns of tiles so far, which the arrays take in turn
    for number, chunk in enumerate(chunks):
        e.sync(e.inbound, *e.matrices)
        for matrix in e.matrices:
            e.sync(matrix, e.inbound)
        if number + 1 < len(chunks):
            fetch(number + 1)
        source = buffers[number % len(buffers)]
        positions = chunk.images * chunk.rows * q
        for first in range(0, positions, block):
            rows = min(block, positions - first)
            for group, area in enumerate(weights):
                for n in range(area.wide):
                    array = jobs % spec.array.count
                    jobs += 1
                    acc = e.accumulators(array, rows, spec.accumulators.rows)
                    height = spec.array.rows if spec.array.dataflow == "os" else rows
                    for row in range(0, rows, height):
                        some = min(height, rows - row)
                        make = partial(_multiply, op, chunk, spec, source, bits, group, first + row, some)
                        e.column(area, n, make, acc + row, array)
                    column = group * filters + n * area.width
                    host = y + (((chunk.image * p + chunk.top) * q + first) * op.k + column) * out_bytes
                    outbox.send(acc, rows, area.columns_of(n), array, host, op.k * out_bytes)
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
                   loops=_nest(op, spec, chunks, block, weights[0]))  # fmt: skip


def _nest(
    op: Conv2d, spec: TpuSpec, chunks: list[_Chunk], block: int, area: Weights
) -> tuple[tuple[str, str, str], ...]:
    """The loops, the outermost first: memory, what it holds, loop."""
    outer = "host memory" if spec.unified_buffer.behind == "host" else "DRAM"
    most = max(chunk.images * chunk.rows * op.output[1] for chunk in chunks)
    whole = f"{chunks[0].images} images" if chunks[0].rows == op.output[0] else f"{chunks[0].rows} rows of an image"
    groups = [("unified buffer", "", f"group: {op.groups}")] if op.groups > 1 else []
    return (
        (outer, "images, results", f"n, p: {len(chunks)} of {whole}"),
        ("unified buffer", f"{min(2, len(chunks))} parts of images", f"m: {-(-most // block)} of {block} positions"),
        *groups,
        ("accumulators", f"{block} x {area.width} sums", f"k: {area.wide} of {area.width} filters"),
        ("accumulators", "", f"c, r, s: {area.deep * area.planes} of {area.rows}"),
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


def _chunks(op: Conv2d, room: int) -> list[_Chunk]:
    """Chunks of which one fits `room` rows of X if it is the only one, and two otherwise, where that can be."""
    p = op.output[0]
    if op.n * op.h <= room or 2 * op.h <= room:
        images = op.n if op.n * op.h <= room else min(op.n, room // (2 * op.h))
        return [
            _Chunk(first, min(images, op.n - first), 0, p, 0, op.h, op.padding[0]) for first in range(0, op.n, images)
        ]
    stride, reach = op.strides[0], (op.r - 1) * op.dilation + 1
    most = max(1, (room // 2 - reach) // stride + 1)
    rows = -(-p // -(-p // most))
    return [_band(op, image, top, min(rows, p - top)) for image in range(op.n) for top in range(0, p, rows)]


def _band(op: Conv2d, image: int, top: int, rows: int) -> _Chunk:
    """The rows of an image that some rows of its result need."""
    start = top * op.strides[0] - op.padding[0]
    end = start + (rows - 1) * op.strides[0] + (op.r - 1) * op.dilation + 1
    first = min(max(start, 0), op.h - 1)
    return _Chunk(image, 1, top, rows, first, max(min(end, op.h) - first, 1), first - start)


def _multiply(
    op: Conv2d, chunk: _Chunk, spec: TpuSpec, source: int, bits: int, group: int, first: int, rows: int, step: int,
    repeat: int,
) -> MatrixMultiply:  # fmt: skip
    """Patches of `rows` output positions from `first` on, times `repeat` tiles of a group's filters."""
    channels = op.c // op.groups
    (stride_h, stride_w), pad_w = op.strides, op.padding[1]
    image = Image(
        chunk.height, op.w, op.c, op.r, op.s, chunk.rows, op.output[1], stride_h, stride_w, chunk.above, pad_w,
        op.dilation, group * channels, channels,
    )  # fmt: skip
    start = step * spec.array.rows
    depth = min(repeat * spec.array.rows, channels * op.r * op.s - start)
    pitch = op.c * bits // 8
    return Convolve(
        source, pitch, rows, depth, spec.array.columns, 0, bits=bits, repeat=repeat, image=image, first=first, tap=start
    )
