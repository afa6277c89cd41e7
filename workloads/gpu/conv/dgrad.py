"""The gradient of a convolution's input as implicit GEMMs: positions of X by channels of X, summed over the filter.

Rows and columns of X that lie `stride` apart meet the same elements of the filter: each such phase is a product of its
own, of windows of dY with these elements, in a kernel of its own; with stride 1 there is one. Positions that no filter
has met (strides longer than the filter) are set to zero first. dY is stored with as many zeros around it as windows
need, dX with rows that hold whole strides. Kernels are those of the forward pass (`workloads.gpu.conv.implicit`);
libraries give all phases to one launch, so that short ones are too slow here. Images that lie channel by channel are
transposed before (`workloads.gpu.conv.nchw`), dX after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import CTA_X, WARP, Expr, GlobalTensor, Kernel, KernelBuilder, Program, RegisterTile, View
from workloads.gpu import overhead
from workloads.gpu.conv.geometry import Geometry
from workloads.gpu.conv.implicit import ImplicitConfig, candidates, pick, writer_of
from workloads.gpu.conv.nchw import NCHW, Turn, as_it_is, between, filters, to_images, to_pixels, turns_ps
from workloads.gpu.gemm.estimate import estimate_ps, figures
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div, row_alignment, zeros
from workloads.gpu.gemm.threadblock import Copy
from workloads.gpu.select import Choice
from workloads.ops import Conv2dDgrad, Gemm
from workloads.ops.base import Array
from workloads.registry import register

WARPS = 4
"""Of a CTA that sets dX to zero."""


@dataclass(frozen=True)
class Axis:
    """Rows (or columns) of X from `first` on, `stride` apart: how many, and which ones of the filter and of dY meet
    them: row `tap` + j `tap_step` of the filter, j below `taps`, meets row i of them in row i + `at` - j `at_step` of
    dY."""

    first: int
    count: int
    taps: int
    tap: int
    tap_step: int
    at: int
    at_step: int


def axes(op: Conv2dDgrad, axis: int) -> list[Axis]:
    """All of one direction: 0 for rows, 1 for columns."""
    size, filter_size = (op.h, op.w)[axis], (op.r, op.s)[axis]
    stride, pad = op.strides[axis], op.padding[axis]
    found = []
    for first in range(min(stride, size)):
        met = [tap for tap in range(filter_size) if (first + pad - tap * op.dilation) % stride == 0]
        at = [(first + pad - tap * op.dilation) // stride for tap in met] or [0]
        steps = (met[1] - met[0], at[0] - at[1]) if len(met) > 1 else (0, 0)
        count = ceil_div(size - first, stride)
        found.append(Axis(first, count, len(met), met[0] if met else 0, steps[0], at[0], steps[1]))
    return found


@dataclass(frozen=True)
class Around:
    """Zeros before the first row (or column) of dY, and the rows that are stored in all."""

    before: int
    stored: int

    @classmethod
    def of(cls, found: list[Axis], size: int) -> Around:
        """What windows of all phases need."""
        met = [axis for axis in found if axis.taps]
        before = max(0, *(-(axis.at - (axis.taps - 1) * axis.at_step) for axis in met))
        most = max(axis.count for axis in found)
        return cls(before, before + max(size, *(axis.at + most for axis in met)))


@dataclass(frozen=True)
class DgradGeometry(Geometry):
    """The product of one phase: `rows` and `across` of X."""

    op: Conv2dDgrad
    rows: Axis
    across: Axis

    @property
    def positions(self) -> int:
        """Rows of X of this phase, of all images."""
        return self.op.n * self.rows.count

    @property
    def blocks(self) -> int:
        """Groups of columns in a row of this phase."""
        return ceil_div(self.across.count, self.columns)

    @property
    def run(self) -> int:
        """Values of a pixel of dY that a group has."""
        return self.op.k // self.op.groups

    @property
    def gemm(self) -> Gemm:
        """The product with all its padding."""
        op = self.op
        return Gemm(
            m=self.positions * self.blocks * self.columns, n=op.c // op.groups,
            k=self.rows.taps * self.across.taps * self.chunks * self.tile_k, batch=op.groups,
            dtype=op.dtype, out=op.out, acc=op.acc,
        ).with_defaults(op.chosen_dtype)  # fmt: skip

    @property
    def around(self) -> tuple[Around, Around]:
        """Of dY's rows and columns."""
        op = self.op
        return Around.of(axes(op, 0), op.output[0]), Around.of(axes(op, 1), op.output[1])

    @property
    def stored(self) -> tuple[int, int]:
        """Rows and columns of dY with the zeros around it."""
        rows, columns = self.around
        return rows.stored, columns.stored

    @property
    def widest(self) -> int:
        """Columns of the phase that has the most."""
        return max(axis.count for axis in axes(self.op, 1))

    @property
    def starts(self) -> int:
        """Where a window may begin in a row of dY, a group's channels apart."""
        return (self.stored[1] - self.widest + 1) * self.op.groups

    @property
    def values(self) -> int:
        """Values of dY and of the elements of W that meet this phase."""
        op = self.op
        taps = self.rows.taps * self.across.taps
        return op.n * self.stored[0] * self.stored[1] * op.k + op.k * taps * op.c // op.groups

    def problem(self) -> Problem:
        """The tensors: windows of dY that overlap, W as it is stored, dX by phases of its columns."""
        op, gemm, dtype = self.op, self.gemm, self.op.chosen_dtype
        out, acc, channels, right = str(gemm.out), str(gemm.acc), op.c // op.groups, op.strides[1]
        rows, columns = self.stored
        windows = (op.n * rows, self.starts, self.widest, self.run)
        dy = GlobalTensor("dy", windows, dtype, (columns * op.k, self.run, op.k, 1), "input")
        taps = op.r * op.s * channels
        filters = (op.groups, self.run, op.r * op.s, channels)
        w = GlobalTensor("w", filters, dtype, (self.run * taps, taps, channels, 1), "input")
        shape = (op.n * op.h, self.widest, min(right, op.w) * op.groups, channels)
        step = shape[2] * channels
        dx = GlobalTensor("dx", shape, out, (self.widest * step, step, channels, 1), "output")
        return Problem(gemm, dtype, out, acc, Operand(dy, gemm.m, True), Operand(w, gemm.n, False), dx)

    def data(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Windows of dY: `copy.rows` positions by `copy.columns` channels."""
        top, pixel, left, channel = self.corner(unit, depth, unit.tile.m * copy.extent + row)
        start, channel = pixel * self.op.groups + unit.tile.batch, channel + column
        return copy.operand.tensor[top, start, left : copy.rows, channel : copy.columns]  # type: ignore[misc]

    def corner(self, unit: Unit, depth: Expr, row: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Of the box of dY for position `row` and the step from `depth` on: its row, the column of position 0 of its
        row, the position in that row, and the channel."""
        part, first = self.step(depth)
        line, left = self.place(row)
        (above, beside), (rows, across), count = self.around, (self.rows, self.across), self.rows.count
        top = line // count * self.stored[0] + line % count if self.op.n > 1 else line
        top = top + (rows.at + above.before) - part // across.taps * rows.at_step
        return top, part % across.taps * -across.at_step + (across.at + beside.before), left, first

    def filters(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """One element of filters: `copy.rows` channels of Y by `copy.columns` channels of X."""
        part, first = self.step(depth)
        rows, across = self.rows, self.across
        tap = (part // across.taps * rows.tap_step + rows.tap) * self.op.s
        tap = tap + part % across.taps * across.tap_step + across.tap
        channel = unit.tile.n * copy.extent + column
        value = first + row
        return copy.operand.tensor[unit.tile.batch, value : copy.rows, tap, channel : copy.columns]  # type: ignore[misc]

    def result(self, tensor: GlobalTensor, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """Neighbours of this phase in a row of dX: `rows` of them by `cols` channels."""
        line, left = self.place(row)
        count, down = self.rows.count, self.op.strides[0]
        line = line // count * self.op.h + line % count * down + self.rows.first
        phase = unit.tile.batch + self.across.first * self.op.groups
        return tensor[line, left:rows, phase, col:cols]  # type: ignore[misc]

    @property
    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Zeros around dY: above and below, left and right."""
        above, beside = self.around
        p, q = self.op.output
        return (above.before, above.stored - above.before - p), (beside.before, beside.stored - beside.before - q)

    def windows(self, x: Array) -> Array:
        """dY as the kernel's tensor shows it: a group's channels of a pixel, by start and position."""
        op = self.op
        flat = np.pad(np.asarray(x), ((0, 0), *self.sides, (0, 0))).reshape(op.n * self.stored[0], -1)
        found = np.lib.stride_tricks.sliding_window_view(flat, self.run, axis=1)
        return np.asarray(found[:, np.arange(self.starts)[:, None] * self.run + np.arange(self.widest) * op.k])

    def image(self, stored: Array) -> Array:
        """dX of what the kernels have stored."""
        op = self.op
        return np.asarray(stored).reshape(op.n, op.h, -1, op.c)[:, :, : op.w]


class DgradPixels(DgradGeometry):
    """The product of one phase whose dY lies pixel by pixel in memory, as a transpose has left it."""

    def problem(self) -> Problem:
        """The tensors: pixels of dY, W as its transpose has left it, dX by phases of its columns."""
        p, op = super().problem(), self.op
        rows, columns = self.stored
        shape = (op.n * rows, columns, op.groups, self.run)
        dy = GlobalTensor("dy_pixels", shape, p.dtype, (columns * op.k, op.k, self.run, 1), "scratch", alias="dy_nhwc")
        w = replace(p.b.tensor, name="w_rows", role="scratch", alias="w" if op.r * op.s == 1 else "w_nhwc")
        dx = replace(p.c, name="dx_nhwc", role="scratch")
        return replace(p, a=replace(p.a, tensor=dy), b=replace(p.b, tensor=w), c=dx)

    def data(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Pixels of dY: `copy.rows` positions by `copy.columns` channels."""
        top, start, left, channel = self.corner(unit, depth, unit.tile.m * copy.extent + row)
        pixel, channel = left + start, channel + column
        return copy.operand.tensor[top, pixel : copy.rows, unit.tile.batch, channel : copy.columns]  # type: ignore[misc]

    @property
    def turned(self) -> tuple[list[Turn], list[Turn]]:
        """What is transposed before and after: dY and W, and dX."""
        op, p = self.op, self.problem()
        dy = to_pixels("dy", op.n, op.k, math.prod(self.stored), p.dtype)
        pixels = op.h * self.widest * min(op.strides[1], op.w)
        return [dy, *filters(op, p.dtype)], [to_images("dx", op.n, op.c, pixels, p.out)]

    def channels_first(self, dy: Array) -> Array:
        """dY as it is stored before the transpose."""
        padded = np.pad(np.asarray(dy), ((0, 0), (0, 0), *self.sides))
        return padded.reshape(self.op.n, self.op.k, -1)

    def image(self, stored: Array) -> Array:
        """dX of what has been stored."""
        op = self.op
        return np.asarray(stored).reshape(op.n, op.c, op.h, -1)[..., : op.w]


def phases(op: Conv2dDgrad) -> tuple[list[tuple[Axis, Axis]], bool]:
    """Those that some filter has met, the largest first, and whether there are others."""
    every = [(rows, across) for rows in axes(op, 0) for across in axes(op, 1)]
    met = [(rows, across) for rows, across in every if rows.taps and across.taps]
    return sorted(met, key=lambda pair: -pair[0].taps * pair[1].taps), len(met) < len(every)


@register("conv2d_dgrad", "gpu", "auto")
def choose(op: Conv2dDgrad, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernels for `op` on `spec`: `auto`, `mma`, `simt`, or a configuration as it prints, which all phases have."""
    f, (met, _), around_ps = figures(spec), phases(op), 0
    if op.layout == NCHW:
        around_ps = turns_ps(spec, chain(*DgradPixels(op, 8, 32, *met[0]).turned))
    found = []
    for config, work in candidates(partial(_first, op), met[0][1].count, spec, f):
        if len(met) == 1 or config.split == 1:
            found.append((around_ps + len(met) * estimate_ps(work, f), str(config), config))
    if not found:
        raise InputError(f"conv2d_dgrad dtype={op.dtype}: {spec.name} has no kernel for it")
    found.sort(key=lambda item: item[:2])
    kinds = {config.schedule for _, _, config in found}
    return pick(op, spec, schedule, found, ("mma",) if "mma" in kinds else ("simt",))


def _first(op: Conv2dDgrad, columns: int, tile_k: int) -> DgradGeometry:
    """The phase with the longest sums."""
    return _geometry(op)(op, columns, tile_k, *phases(op)[0][0])


def _geometry(op: Conv2dDgrad) -> type[DgradGeometry]:
    return DgradPixels if op.layout == NCHW else DgradGeometry


@register("conv2d_dgrad", "gpu", "mma", "simt")
def build(op: Conv2dDgrad, spec: GpuSpec, config: ImplicitConfig) -> Program:
    """The program: a kernel a phase. InputError where the machine cannot take the configuration, or where several
    phases would cut their sums."""
    met, others = phases(op)
    if len(met) > 1 and config.split > 1:
        raise InputError(f"schedule={config}: sums of {len(met)} phases are not cut; without split")
    kernels, tensors = [], []
    for number, (rows, across) in enumerate(met):
        g = _geometry(op)(op, config.columns, config.tile_k, rows, across)
        p = g.problem()
        if others and not number:
            kernels.append(_cleared(p.c, op))
        writer = writer_of(g, p, spec, config)
        kernels.append(replace(writer.kernel(), name=f"dgrad_{rows.first}_{across.first}"))
        tensors = [p.a.tensor, p.b.tensor, p.c, *([writer.partials] if writer.partials is not None else [])]
    if isinstance(g, DgradPixels):
        before, after = g.turned
        if len(before) == 1:
            tensors.insert(0, as_it_is(op, "w", p.dtype, "input"))
        settings: dict[str, object] = {
            "config": config, "stored": {"dy": g.channels_first}, "shown": {"dx": g.image}
        }  # fmt: skip
        return between(str(op), before, kernels, after, tensors, settings)
    settings = {"config": config, "stored": {"dy": g.windows}, "shown": {"dx": g.image}}
    return Program(str(op), tuple(tensors), tuple(kernels), str(config), settings)


def _cleared(dx: GlobalTensor, op: Conv2dDgrad) -> Kernel:
    """Sets all of dX to zero: a warp a row of it, a line of bytes at once."""
    lines, width = dx.shape[0], dx.shape[1]
    k = KernelBuilder("clear", (ceil_div(lines, WARPS), 1, 1), code_bytes=64 * overhead.INSTRUCTION_BYTES)
    size = DTYPE_BYTES[dx.dtype]
    with k.role("warps", WARPS, 16) as r, r.when(lines > CTA_X * WARPS + WARP):
        empty = RegisterTile("empty", (dx.shape[2], dx.shape[3]), dx.dtype)
        r.run(overhead.ALU, 4, dtype="int32", dst=empty.whole, compute=zeros)
        row_bytes = dx.shape[2] * dx.shape[3] * size
        with r.loop("pixel", width) as pixel:
            box = dx[CTA_X * WARPS + WARP, pixel, 0 : dx.shape[2], 0 : dx.shape[3]]  # type: ignore[misc]
            r.stg(box, empty.whole, ceil_div(row_bytes, WARP_SIZE * 4), vector_bytes=min(4, row_alignment(dx)))
    return k.build()
