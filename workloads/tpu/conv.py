"""Convolutions on a TPU: images in the unified buffer, patches gathered by the systolic set-up, filters as weights.

Images come in chunks of which two fit beside the results. Each group of channels has tiles of its own; a depthwise
convolution so uses one column of the array at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import Convolve, Image, MatrixMultiply, Program, ReadHostMemory
from workloads.ops import Conv2d
from workloads.registry import register
from workloads.tpu.choose import Config, block_rows, product_candidates
from workloads.tpu.emit import Emitter, Outbox, formats, load, store


@register("conv2d", "tpu", "auto")
def candidates(op: Conv2d, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """Layouts with their estimates, the best first."""
    bits, _ = formats(op, spec, str(op.dtype), str(op.out))
    if spec.array.dataflow == "is":
        raise InputError(f"{op}: patches are gathered on their way into the array, so array.dataflow must be ws or os")
    gemm = op.as_gemm()
    return product_candidates(spec, schedule, gemm.m, gemm.k, gemm.n, gemm.batch, bits, bits // 8)


@register("conv2d", "tpu", "tiled")
def build(op: Conv2d, spec: TpuSpec, config: Config) -> Program:
    """The program; InputError where one image does not fit the unified buffer."""
    bits, out_bits = formats(op, spec, str(op.dtype), str(op.out))
    if config.wide:
        raise InputError(f"{op}: 8x16 is for matrix products")
    e = Emitter(spec, str(op))
    wide, out_bytes = bits // 8, out_bits // 8
    p, q = op.output
    x = e.host(op.n * op.h * op.w * op.c * wide)
    y = e.host(op.n * p * q * op.k * out_bytes)
    channels, filters = op.c // op.groups, op.k // op.groups
    weights = [e.weights(channels * op.r * op.s, filters, bits // 8) for _ in range(op.groups)]
    image_bytes = op.h * op.w * op.c * wide
    block = block_rows(spec, op.n * p * q, config.whole)
    outbox = Outbox(e, block, out_bits)
    room = spec.unified_buffer.size_bytes - e.ub_bytes - 4 * e.align
    images = op.n if op.n * image_bytes <= room else min(op.n, max(1, room // (2 * image_bytes)))
    chunks = [(first, min(images, op.n - first)) for first in range(0, op.n, images)]
    buffers = [e.ub(images * image_bytes) for _ in range(min(2, len(chunks)))]

    def fetch(number: int) -> None:
        first, count = chunks[number]
        size = count * image_bytes
        e.add(ReadHostMemory(x + first * image_bytes, buffers[number % len(buffers)], 1, size, size, size))

    fetch(0)
    for number, (image, count) in enumerate(chunks):
        e.sync("host_read", *e.matrices)
        for matrix in e.matrices:
            e.sync(matrix, "host_read")
        if number + 1 < len(chunks):
            fetch(number + 1)
        source = buffers[number % len(buffers)]
        for first in range(0, count * p * q, block):
            rows = min(block, count * p * q - first)
            for group, area in enumerate(weights):
                for n in range(area.wide):
                    array = n % spec.array.count
                    acc = e.accumulators(array, rows, spec.accumulators.rows)
                    height = spec.array.rows if spec.array.dataflow == "os" else rows
                    for row in range(0, rows, height):
                        some = min(height, rows - row)
                        make = partial(_multiply, op, spec, source, bits, group, first + row, some)
                        e.column(area, n, make, acc + row, array)
                    column = group * filters + n * area.width
                    host = y + ((image * p * q + first) * op.k + column) * out_bytes
                    outbox.send(acc, rows, area.columns_of(n), array, host, op.k * out_bytes)
    outbox.flush()

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        images, filters_ = (np.asarray(operand).astype(np.int64) for operand in operands)
        if op.layout == "nchw":
            images, filters_ = images.transpose(0, 2, 3, 1), filters_.transpose(0, 2, 3, 1)
        store(memory.host, x, images.astype(np.int8 if wide == 1 else np.int16))
        for group, area in enumerate(weights):
            own = filters_[group * filters : (group + 1) * filters]
            store(memory.weights, area.address, area.image(own.reshape(filters, -1).T))

    def results(memory: Any) -> list[NDArray[Any]]:
        kind = {8: np.int8, 16: np.int16, 32: np.int32}[out_bits]
        found = load(memory.host, y, (op.n, p, q, op.k), kind)
        return [found if op.layout == "nhwc" else found.transpose(0, 3, 1, 2)]

    return Program(op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results)


def _multiply(
    op: Conv2d, spec: TpuSpec, source: int, bits: int, group: int, first: int, rows: int, step: int, repeat: int
) -> MatrixMultiply:
    """Patches of `rows` output positions from `first` on, times `repeat` tiles of a group's filters."""
    p, q = op.output
    channels = op.c // op.groups
    (stride_h, stride_w), (pad_h, pad_w) = op.strides, op.padding
    image = Image(
        op.h, op.w, op.c, op.r, op.s, p, q, stride_h, stride_w, pad_h, pad_w, op.dilation, group * channels, channels
    )
    start = step * spec.array.rows
    depth = min(repeat * spec.array.rows, channels * op.r * op.s - start)
    pitch = op.c * bits // 8
    return Convolve(
        source, pitch, rows, depth, spec.array.columns, 0, bits=bits, repeat=repeat, image=image, first=first, tap=start
    )
