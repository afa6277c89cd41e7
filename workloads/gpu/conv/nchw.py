"""Convolutions of images that lie channel by channel (NCHW): transposes around a kernel for NHWC.

Kernels of tensor cores read neighbouring channels. cuDNN brings X and W there in kernels of their own before
(`nchwToNhwcKernel` beside `volta_fp16_s884cudnn_...` in public profiles), and Y back. W of 1 x 1 filters lies alike in
both orders and stays. X keeps its padding; a row of it is a multiple of the stride, so that pixels of one column of
the filter lie evenly apart. For gradients, what they read
is brought to NHWC and what they give is brought back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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

    @property
    def stored_pixels(self) -> int:
        """Pixels of an image of X as it is stored."""
        return self.stored[0] * self.across * self.op.strides[1]

    def problem(self) -> Problem:
        """The tensors: pixels of X, filters by rows, Y by rows."""
        p, op = super().problem(), self.op
        x = self.pixels(p.dtype)
        w = replace(p.b.tensor, name="w_rows", role="scratch", alias="w" if op.r * op.s == 1 else "w_nhwc")
        y = replace(p.c, name="y_nhwc", role="scratch")
        return replace(p, a=Operand(x, p.m, True), b=Operand(w, p.n, True), c=y)

    def pixels(self, dtype: str) -> GlobalTensor:
        """X behind its transpose: rows, columns that are no stride apart and groups, pixels, channels."""
        op, right = self.op, self.op.strides[1]
        shape = (op.n * self.stored[0], right * op.groups, self.across, self.run)
        strides = (self.across * right * op.c, self.run, right * op.c, 1)
        return GlobalTensor("x_pixels", shape, dtype, strides, "scratch", alias="x_nhwc")

    def under(self, copy: Copy, part: Expr, group: Expr, row: Expr, column: Expr) -> View:
        """Pixels of X under a piece of the filter: `copy.rows` positions from `row` on by `copy.columns` channels."""
        below, tap = part // self.taps * self.op.dilation, part % self.taps * self.op.dilation
        line, left = self.place(row)
        right = self.op.strides[1]
        start, pixel = tap % right * self.op.groups + group, left + tap // right
        tensor = copy.operand.tensor
        return tensor[self.above(line) + below, start, pixel : copy.rows, column : copy.columns]  # type: ignore[misc]

    def data(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Pixels of X: `copy.rows` positions by `copy.columns` channels, `row` and `column` into the tile."""
        part, first = self.step(depth)
        return self.under(copy, part, unit.tile.batch, unit.tile.m * copy.extent + row, first + column)

    def channels_first(self, x: Array) -> Array:
        """X as it is stored before the transpose."""
        (above, beside), wide = self.op.padding, self.across * self.op.strides[1]
        more = wide - self.op.w - 2 * beside
        padded = np.pad(np.asarray(x), ((0, 0), (0, 0), (above, above), (beside, beside + max(0, more))))
        return padded[..., :wide].reshape(self.op.n, self.op.c, -1)


class Turn(NamedTuple):
    """A transpose of the last two dimensions: what is read, and what is written."""

    source: GlobalTensor
    target: GlobalTensor


def _dense(name: str, shape: tuple[int, ...], dtype: str, role: str, alias: str = "") -> GlobalTensor:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(name, shape, dtype, strides, role, alias=alias)


def to_pixels(name: str, images: int, channels: int, pixels: int, dtype: str) -> Turn:
    """Images (or filters) of the input `name` to the scratch tensor `name_nhwc`."""
    return Turn(
        _dense(name, (images, channels, pixels), dtype, "input"),
        _dense(f"{name}_nhwc", (images, pixels, channels), dtype, "scratch"),
    )


def to_images(name: str, images: int, channels: int, pixels: int, dtype: str) -> Turn:
    """Pixels in the scratch tensor `name_nhwc`, which another shape may have written, to the output `name`."""
    return Turn(
        _dense(f"{name}_images", (images, pixels, channels), dtype, "scratch", alias=f"{name}_nhwc"),
        _dense(name, (images, channels, pixels), dtype, "output"),
    )


def filters(op: Conv2d, dtype: str) -> list[Turn]:
    """W to NHWC; nothing for filters of one element, which lie alike."""
    return [to_pixels("w", op.k, op.c // op.groups, op.r * op.s, dtype)] if op.r * op.s > 1 else []


def as_it_is(op: Conv2d, name: str, dtype: str, role: str) -> GlobalTensor:
    """Filters of one element: W or its gradient."""
    return _dense(name, (op.k, op.c // op.groups), dtype, role)


def between(
    text: str,
    before: Sequence[Turn],
    kernels: Iterable[Kernel],
    after: Sequence[Turn],
    tensors: Iterable[GlobalTensor],
    settings: Mapping[str, Any],
) -> Program:
    """The program of `kernels` between transposes. tensors: what the kernels use beside what is turned; scratch that
    shows another tensor comes behind it."""
    turns = [transpose.kernel(source, target, TURN, f"to_{target.name}") for source, target in (*before, *after)]
    ends = [turn.source for turn in before] + [turn.target for turn in after]
    own = list(tensors)
    inputs = [t for t in (*ends, *own) if t.role == "input"]
    outputs = [t for t in (*ends, *own) if t.role == "output"]
    scratch = [*(turn.target for turn in before), *(t for t in own if t.role == "scratch"), *(t.source for t in after)]
    return Program(
        text, (*inputs, *outputs, *scratch), (*turns[: len(before)], *kernels, *turns[len(before) :]),
        str(settings["config"]), dict(settings),
    )  # fmt: skip


def _turned(g: PixelGeometry) -> tuple[list[Turn], list[Turn]]:
    """What is transposed before and after: X and W, and Y."""
    op, p = g.op, g.problem()
    x = to_pixels("x", op.n, op.c, g.stored_pixels, p.dtype)
    return [x, *filters(op, p.dtype)], [to_images("y", op.n, op.k, math.prod(op.output), p.out)]


def program(op: Conv2d, g: PixelGeometry, kernel: Kernel, partials: GlobalTensor | None, config: object) -> Program:
    """The transposes, and between them `kernel`, which was written for `g`."""
    p, (before, after) = g.problem(), _turned(g)
    tensors = [p.a.tensor, p.b.tensor, p.c, *([partials] if partials is not None else [])]
    if len(before) == 1:
        tensors.insert(0, as_it_is(op, "w", p.dtype, "input"))
    return between(str(op), before, [kernel], after, tensors, {"config": config, "stored": {"x": g.channels_first}})


def turns_ps(spec: GpuSpec, turns: Iterable[Turn]) -> int:
    """Estimated picoseconds of transposes."""
    return lanes.load_ps(spec, [transpose.load(turn.source, TURN, spec) for turn in turns])


def transposes_ps(op: Conv2d, spec: GpuSpec) -> int:
    """Estimated picoseconds of the transposes around a forward pass."""
    before, after = _turned(PixelGeometry(op, 8, 32))
    return turns_ps(spec, [*before, *after])
