"""Convolutions of images that lie channel by channel (NCHW): transposes around a kernel for NHWC.

Kernels of tensor cores read neighbouring channels. cuDNN brings X and W there in kernels of their own before
(`nchwToNhwcKernel` beside `volta_fp16_s884cudnn_...` in public profiles), and Y back. W of 1 x 1 filters lies alike in
both orders and stays. X keeps its padding; a row of it is a multiple of the stride, so that pixels of one column of
the filter lie evenly apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arch.gpu import GpuSpec
from sim.gpu.language import Expr, GlobalTensor, Kernel, Program, View
from workloads.gpu.conv.geometry import Geometry
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div
from workloads.gpu.gemm.threadblock import Copy
from workloads.gpu.pointwise import lanes, transpose
from workloads.gpu.pointwise.transpose import TransposeConfig
from workloads.ops import Conv2d
from workloads.ops.base import Array

NCHW = "nchw"
TURN = TransposeConfig()


class PixelGeometry(Geometry):
    """A convolution whose X lies pixel by pixel in memory, each once, as a transpose has left it."""

    @property
    def taps(self) -> int:
        """Columns of the filter: each is a piece."""
        return self.op.s

    @property
    def across(self) -> int:
        """Pixels of a row of X under one column of the filter."""
        return ceil_div(self.stored[1], self.op.strides[1])

    def problem(self) -> Problem:
        """The tensors: pixels of X, filters by rows, Y by rows."""
        p, op, right = super().problem(), self.op, self.op.strides[1]
        shape = (op.n * self.stored[0], right * op.groups, self.across, self.run)
        strides = (self.across * right * op.c, self.run, right * op.c, 1)
        x = GlobalTensor("x_pixels", shape, p.dtype, strides, "scratch", alias="x_nhwc")
        w = replace(p.b.tensor, name="w_rows", role="scratch", alias="w" if op.r * op.s == 1 else "w_nhwc")
        y = replace(p.c, name="y_nhwc", role="scratch")
        return replace(p, a=Operand(x, p.m, True), b=Operand(w, p.n, True), c=y)

    def data(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Pixels of X: `copy.rows` positions by `copy.columns` channels, `row` and `column` into the tile."""
        part, first = self.step(depth)
        below, tap = part // self.taps * self.op.dilation, part % self.taps * self.op.dilation
        line, left = self.place(unit.tile.m * copy.extent + row)
        right = self.op.strides[1]
        start, pixel = tap % right * self.op.groups + unit.tile.batch, left + tap // right
        tensor = copy.operand.tensor
        return tensor[self.above(line) + below, start, pixel : copy.rows, first + column : copy.columns]  # type: ignore[misc]

    def channels_first(self, x: Array) -> Array:
        """X as it is stored before the transpose."""
        (above, beside), wide = self.op.padding, self.across * self.op.strides[1]
        more = wide - self.op.w - 2 * beside
        padded = np.pad(np.asarray(x), ((0, 0), (0, 0), (above, above), (beside, beside + max(0, more))))
        return padded[..., :wide].reshape(self.op.n, self.op.c, -1)


def _dense(name: str, shape: tuple[int, ...], dtype: str, role: str, alias: str = "") -> GlobalTensor:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(name, shape, dtype, strides, role, alias=alias)


def _turned(g: PixelGeometry) -> list[tuple[GlobalTensor, GlobalTensor]]:
    """What is transposed, and to what: X, W of filters with several elements, and last Y."""
    op, p = g.op, g.problem()
    pixels, taps, channels = g.stored[0] * g.across * op.strides[1], op.r * op.s, op.c // op.groups
    results = math.prod(op.output)
    found = [(
        _dense("x", (op.n, op.c, pixels), p.dtype, "input"),
        _dense("x_nhwc", (op.n, pixels, op.c), p.dtype, "scratch"),
    )]  # fmt: skip
    if taps > 1:
        found.append((
            _dense("w", (op.k, channels, taps), p.dtype, "input"),
            _dense("w_nhwc", (op.k, taps, channels), p.dtype, "scratch"),
        ))  # fmt: skip
    found.append((
        _dense("y_images", (op.n, results, op.k), p.out, "scratch", alias="y_nhwc"),
        _dense("y", (op.n, op.k, results), p.out, "output"),
    ))  # fmt: skip
    return found


def program(op: Conv2d, g: PixelGeometry, kernel: Kernel, partials: GlobalTensor | None, config: object) -> Program:
    """The transposes, and between them `kernel`, which was written for `g`."""
    p, turned = g.problem(), _turned(g)
    kernels = [transpose.kernel(source, target, TURN, f"to_{target.name}") for source, target in turned]
    (x, x_nhwc), *weights, (y_images, y) = turned
    w = weights[0][0] if weights else _dense("w", (op.k, op.c // op.groups), p.dtype, "input")
    scratch = [x_nhwc, *(target for _, target in weights), p.a.tensor, p.b.tensor, p.c, y_images]
    settings = {"config": config, "stored": {"x": g.channels_first}}
    return Program(
        str(op), (x, w, y, *scratch, *([partials] if partials is not None else [])),
        (*kernels[:-1], kernel, kernels[-1]), str(config), settings,
    )  # fmt: skip


def transposes_ps(op: Conv2d, spec: GpuSpec) -> int:
    """Estimated picoseconds of the transposes."""
    shapes: Sequence[tuple[GlobalTensor, GlobalTensor]] = _turned(PixelGeometry(op, 8, 32))
    return lanes.load_ps(spec, [transpose.load(source, TURN, spec) for source, _ in shapes])
