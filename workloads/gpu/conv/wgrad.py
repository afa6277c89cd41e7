"""The gradient of a convolution's weights as an implicit GEMM: channels of Y by values under a filter, summed over Y.

A piece of the filter is a product of its own, of dY turned by the windows of X under that piece. The sum runs over all
positions of Y, in groups of `columns` neighbours; it is long where results are few, so that its sum is cut among CTAs.
Images that lie channel by channel are transposed before (`workloads.gpu.conv.nchw`), dW after.
Kernels are those of the forward pass (`workloads.gpu.conv.implicit`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import ClassVar

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import Expr, GlobalTensor, Program, View
from workloads.gpu.conv.geometry import Geometry
from workloads.gpu.conv.implicit import ImplicitConfig, candidates, pick, writer_of
from workloads.gpu.conv.nchw import NCHW, PixelGeometry, Turn, between, to_images, to_pixels, turns_ps
from workloads.gpu.gemm.estimate import estimate_ps, figures
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div
from workloads.gpu.gemm.threadblock import Copy
from workloads.gpu.select import Choice
from workloads.ops import Conv2dWgrad, Gemm
from workloads.registry import register


@dataclass(frozen=True)
class WgradGeometry(Geometry):
    """The product for each piece of a group's filters."""

    results_by_position: ClassVar[bool] = False
    sums_over_positions: ClassVar[bool] = True

    op: Conv2dWgrad

    @property
    def parts(self) -> int:
        """Pieces of a filter."""
        return self.op.r * self.taps

    @property
    def gemm(self) -> Gemm:
        """The product with all its padding."""
        op = self.op
        positions = self.positions * self.blocks * self.columns
        return Gemm(
            m=op.k // op.groups, n=self.run, k=ceil_div(positions, self.tile_k) * self.tile_k,
            batch=op.groups * self.parts, ta="T", dtype=op.dtype, out=op.out, acc=op.acc,
        ).with_defaults(op.chosen_dtype)  # fmt: skip

    @property
    def values(self) -> int:
        """Values of X and dY as they are stored."""
        op = self.op
        return op.n * self.stored[0] * self.stored[1] * op.c + self.positions * op.output[1] * op.k

    def problem(self) -> Problem:
        """The tensors: dY by rows, windows of X that overlap, dW by pieces."""
        op, gemm, dtype = self.op, self.gemm, self.op.chosen_dtype
        out, acc, q, channels = str(gemm.out), str(gemm.acc), op.output[1], op.c // op.groups
        width, right = self.stored[1], op.strides[1]
        dy = GlobalTensor("dy", (self.positions, q, op.groups, gemm.m), dtype, (q * op.k, op.k, gemm.m, 1), "input")
        windows = (op.n * self.stored[0], self.starts, q, self.run)
        x = GlobalTensor("x", windows, dtype, (width * op.c, channels, right * op.c, 1), "input")
        parts = (self.parts * self.run, self.run, 1)
        dw = GlobalTensor("dw", (op.groups, gemm.m, self.parts, self.run), out, (gemm.m * parts[0], *parts), "output")
        return Problem(gemm, dtype, out, acc, Operand(dy, gemm.m, False), Operand(x, gemm.n, False), dw)

    def data(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """dY: `copy.rows` positions by `copy.columns` channels."""
        line, left = self.place(depth + row)
        channel, group = unit.tile.m * copy.extent + column, unit.tile.batch // self.parts
        return copy.operand.tensor[line, left : copy.rows, group, channel : copy.columns]  # type: ignore[misc]

    def filters(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Windows of X: `copy.rows` positions by `copy.columns` values."""
        line, left = self.place(depth + row)
        below, start = self.part(unit.tile.batch % self.parts, unit.tile.batch // self.parts)
        above, value = self.above(line) + below, unit.tile.n * copy.extent + column
        return copy.operand.tensor[above, start, left : copy.rows, value : copy.columns]  # type: ignore[misc]

    def result(self, tensor: GlobalTensor, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """A piece of filters: `rows` channels of Y by `cols` values."""
        group, part = unit.tile.batch // self.parts, unit.tile.batch % self.parts
        return tensor[group, row:rows, part, col:cols]  # type: ignore[misc]


class WgradPixels(WgradGeometry, PixelGeometry):
    """The product whose X and dY lie pixel by pixel in memory, as transposes have left them."""

    def problem(self) -> Problem:
        """The tensors: dY by rows, pixels of X, dW by rows."""
        p, single = super().problem(), self.op.r * self.op.s == 1
        dy = replace(p.a.tensor, name="dy_rows", role="scratch", alias="dy_nhwc")
        dw = p.c if single else replace(p.c, name="dw_nhwc", role="scratch")
        return replace(p, a=replace(p.a, tensor=dy), b=replace(p.b, tensor=self.pixels(p.dtype)), c=dw)

    def filters(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Pixels of X: `copy.rows` positions by `copy.columns` channels."""
        group, part = unit.tile.batch // self.parts, unit.tile.batch % self.parts
        return self.under(copy, part, group, depth + row, unit.tile.n * copy.extent + column)

    @property
    def turned(self) -> tuple[list[Turn], list[Turn]]:
        """What is transposed before and after: X and dY, and dW of filters with several elements."""
        op, gemm = self.op, self.gemm
        dtype, out, taps, pixels = op.chosen_dtype, str(gemm.out), op.r * op.s, math.prod(op.output)
        before = [to_pixels("x", op.n, op.c, self.stored_pixels, dtype), to_pixels("dy", op.n, op.k, pixels, dtype)]
        return before, [to_images("dw", op.k, op.c // op.groups, taps, out)] if taps > 1 else []


@register("conv2d_wgrad", "gpu", "auto")
def choose(op: Conv2dWgrad, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel for `op` on `spec`: `auto`, `mma`, `simt`, or a configuration as it prints."""
    f, geometry, around_ps = figures(spec), _geometry(op), 0
    if op.layout == NCHW:
        around_ps = turns_ps(spec, chain(*WgradPixels(op, 8, 32).turned))
    tiles = candidates(partial(geometry, op), op.output[1], spec, f)
    found = sorted(((around_ps + estimate_ps(w, f), str(c), c) for c, w in tiles), key=lambda item: item[:2])
    if not found:
        raise InputError(f"conv2d_wgrad dtype={op.dtype}: {spec.name} has no kernel for it")
    kinds = {config.schedule for _, _, config in found}
    return pick(op, spec, schedule, found, ("mma",) if "mma" in kinds else ("simt",))


@register("conv2d_wgrad", "gpu", "mma", "simt")
def build(op: Conv2dWgrad, spec: GpuSpec, config: ImplicitConfig) -> Program:
    """The program. InputError where the machine cannot take the configuration."""
    g = _geometry(op)(op, config.columns, config.tile_k)
    p = g.problem()
    writer = writer_of(g, p, spec, config)
    tensors = [p.b.tensor, p.a.tensor, p.c, *([writer.partials] if writer.partials is not None else [])]
    if isinstance(g, WgradPixels):
        before, after = g.turned
        settings = {"config": config, "stored": {"x": g.channels_first}}
        return between(str(op), before, [writer.kernel()], after, tensors, settings)
    settings = {"config": config, "stored": {"x": g.windows}}
    return Program(str(op), tuple(tensors), (writer.kernel(),), str(config), settings)


def _geometry(op: Conv2dWgrad) -> type[WgradGeometry]:
    return WgradPixels if op.layout == NCHW else WgradGeometry
