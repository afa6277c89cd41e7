"""What a program's instructions do to numbers: memories as bytes, moved by the units when their time has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.tpu import TpuSpec
from sim.tpu.program import (
    FRACTION_BITS,
    Activate,
    Convolve,
    HostWork,
    Image,
    MatrixMultiply,
    Program,
    ReadHostMemory,
    Vector,
    WriteHostMemory,
)

FIGURES = (
    "array.columns",
    "array.count",
    "array.operands",
    "array.rows",
    "unified_buffer.size",
)
"""Figures of a preset that this module reads."""

Bytes = NDArray[np.uint8]
SIGNED: Mapping[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32}
LOWEST: Mapping[int, int] = {bits: -(2 ** (bits - 1)) for bits in SIGNED}


class Memory:
    """All memories of one run. Rows of matrices start `pitch` bytes apart."""

    def __init__(self, spec: TpuSpec, program: Program) -> None:
        spec = program.part(spec)
        self.host: Bytes = np.zeros(program.host_bytes, dtype=np.uint8)
        self.weights: Bytes = np.zeros(program.weight_bytes, dtype=np.uint8)
        self.ub: Bytes = np.zeros(spec.unified_buffer.size_bytes, dtype=np.uint8)
        rows = 1 + max((i.acc + i.rows for i in program.instructions if isinstance(i, MatrixMultiply)), default=0)
        columns = spec.array.columns
        self.acc = [np.zeros((rows, columns), dtype=np.int32) for _ in range(spec.array.count)]
        self._spec = spec
        self._row_max: dict[int, NDArray[np.float64]] = {}
        self._row_sum: dict[int, NDArray[np.float64]] = {}

    # ---- copies ----

    def read_host(self, i: ReadHostMemory) -> None:
        """Host memory to the unified buffer or to weight memory."""
        target = self.weights if i.weights else self.ub
        rows(target, i.address, i.rows, i.row_bytes, i.pitch)[:] = rows(
            self.host, i.host, i.rows, i.row_bytes, i.host_pitch
        )

    def write_host(self, i: WriteHostMemory) -> None:
        """Unified buffer to host memory."""
        rows(self.host, i.host, i.rows, i.row_bytes, i.host_pitch)[:] = rows(
            self.ub, i.ub, i.rows, i.row_bytes, i.pitch
        )

    def call_host(self, work: HostWork) -> None:
        """A piece of work of the host."""
        work.run(self)

    # ---- matrix unit ----

    def tile(self, address: int, unsigned: int) -> NDArray[Any]:
        """One weight tile, [array.rows, array.columns]."""
        array = self._spec.array
        flat = self.weights[address : address + self._spec.tile_bytes].view(np.uint8 if unsigned else np.int8)
        return flat.reshape(array.rows, array.columns).astype(np.int64)

    def multiply(self, i: MatrixMultiply, step: int, address: int) -> None:
        """Repetition `step` of a matrix instruction with the tile at `address`."""
        first = step * self._spec.array.rows
        depth = min(self._spec.array.rows, i.depth - first)
        if isinstance(i, Convolve):
            left = self._patches(i, i.tap + first, depth)
        else:
            wide = i.bits // 8
            left = rows(self.ub, i.ub + first * wide, i.rows, depth * wide, i.pitch).copy().view(SIGNED[i.bits])
        # Sums stay far below 2**53, so that floating point is exact, and fast.
        sums = left.astype(np.float64) @ self.tile(address, i.unsigned)[:depth].astype(np.float64)
        products = sums.astype(np.int64) << i.shift
        target = self.acc[i.array][i.acc : i.acc + i.rows]
        base = target.astype(np.int64) if i.accumulate or step else 0
        target[:] = (products + base).astype(np.uint64).astype(np.uint32).view(np.int32)

    def _patches(self, i: Convolve, first: int, depth: int) -> NDArray[Any]:
        """Elements first ... first + depth of the patches, [rows, depth]; zeros around the images."""
        image, wide = i.image, i.bits // 8
        row, column, images = positions(image, i.first + np.arange(i.rows))
        tap, channel = np.divmod(first + np.arange(depth), image.channels)
        y = row[:, None] * image.stride_h - image.pad_h + (tap // image.s)[None] * image.dilation
        x = column[:, None] * image.stride_w - image.pad_w + (tap % image.s)[None] * image.dilation
        inside = (y >= 0) & (y < image.h) & (x >= 0) & (x < image.w)
        pixel = (images[:, None] * image.h + np.clip(y, 0, image.h - 1)) * image.w + np.clip(x, 0, image.w - 1)
        address = i.ub + pixel * i.pitch + (image.first_channel + channel)[None] * wide
        found = self._values(self.ub[address[..., None] + np.arange(wide)].copy(), i.bits)[..., 0]
        return np.where(inside, found, 0)

    # ---- activation and vector unit ----

    def activate(self, i: Activate) -> None:
        """Accumulators to the unified buffer."""
        values = self.acc[i.array][i.acc : i.acc + i.rows, i.first : i.first + i.columns].astype(np.int64)
        self._store(i.ub, i.pitch, apply(i.function, values, i.shift, i.bits), i.bits)

    def vector(self, i: Vector) -> None:
        """An operation on the unified buffer."""
        if i.op == "max_pool":
            self._store(i.ub, i.out_pitch or i.pitch, self._pooled(i), i.bits)
            return
        a = self._load(i.a, i)
        match i.op:
            case "add":
                result = a + self._load(i.b, i, i.b_pitch)
            case "multiply":
                result = rounded(a * self._load(i.b, i, i.b_pitch), i.shift)
            case "row_max":
                self._row_max[i.a] = a.max(axis=1, keepdims=True).astype(np.float64)
                return
            case "exp_sum":
                self._row_sum[i.a] = self._exp(i.a, a).sum(axis=1, keepdims=True)
                return
            case "softmax":
                shares = self._exp(i.a, a) / self._row_sum[i.a]
                result = np.rint(shares * 2 ** (i.bits - 1)).astype(np.int64)
            case function:
                result = apply(function, a, i.shift, i.bits)
        self._store(i.ub, i.out_pitch or i.pitch, saturated(result, i.bits), i.bits)

    def _exp(self, address: int, values: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.exp((values - self._row_max[address]) / 2**FRACTION_BITS)

    def _pooled(self, i: Vector) -> NDArray[Any]:
        image, wide = i.image, i.bits // 8
        row, column, images = positions(image, np.arange(i.rows))
        best = np.full((i.rows, i.columns), self._lowest(i.bits))
        for tap in range(image.r * image.s):
            y = row * image.stride_h - image.pad_h + tap // image.s
            x = column * image.stride_w - image.pad_w + tap % image.s
            inside = (y >= 0) & (y < image.h) & (x >= 0) & (x < image.w)
            pixel = (images[inside] * image.h + y[inside]) * image.w + x[inside]
            address = i.a + pixel[:, None] * i.columns * wide + np.arange(i.columns * wide)[None]
            best[inside] = np.maximum(best[inside], self._values(self.ub[address].copy(), i.bits))
        return best

    def _values(self, raw: Bytes, bits: int) -> NDArray[Any]:
        return raw.view(SIGNED[bits])

    def _lowest(self, bits: int) -> float:
        return LOWEST[bits]

    def _load(self, address: int, i: Vector, pitch: int = 0) -> NDArray[np.int64]:
        found = rows(self.ub, address, i.rows, i.columns * (i.bits // 8), pitch or i.pitch).copy().view(SIGNED[i.bits])
        return found.astype(np.int64)

    def _store(self, address: int, pitch: int, values: NDArray[np.int64], bits: int) -> None:
        raw = np.ascontiguousarray(values.astype(SIGNED[bits])).view(np.uint8)
        rows(self.ub, address, raw.shape[0], raw.shape[1], pitch)[:] = raw


def rows(memory: Bytes, address: int, count: int, width: int, pitch: int) -> Bytes:
    """`count` rows of `width` bytes, `pitch` bytes apart: a view, which can be written."""
    span = memory[address : address + (count - 1) * pitch + width]
    return np.lib.stride_tricks.as_strided(span, (count, width), (pitch, 1))


def positions(image: Image, number: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Row, column and image of output positions."""
    images, inside = np.divmod(number, image.p * image.q)
    row, column = np.divmod(inside, image.q)
    return row, column, images


def rounded(values: NDArray[np.int64], shift: int) -> NDArray[np.int64]:
    """values / 2**shift, rounded to nearest, halves up."""
    return (values + (1 << shift >> 1)) >> shift


def saturated(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Held to the range of a signed integer."""
    return np.clip(values, LOWEST[bits], -LOWEST[bits] - 1)


def apply(function: str, values: NDArray[np.int64], shift: int, bits: int) -> NDArray[np.int64]:
    """An activation function of values / 2**shift, in `bits`; sigmoid and tanh are tables over fixed point."""
    scaled = rounded(values, shift)
    match function:
        case "identity":
            return saturated(scaled, bits)
        case "relu":
            return saturated(np.maximum(scaled, 0), bits)
        case "tanh":
            result = np.tanh(scaled / 2**FRACTION_BITS)
        case _:
            result = 1 / (1 + np.exp(-np.clip(scaled / 2**FRACTION_BITS, -60, 60)))
    return saturated(np.rint(result * 2 ** (bits - 1)).astype(np.int64), bits)
