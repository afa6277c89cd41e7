"""A convolution as the kernels of its implicit GEMM walk it: which product it is, and which boxes its tiles are.

X and Y are NHWC, weights [k, r, s, c]: in a row of X the pixels under a row of the filter lie side by side, so that a
step of the sum takes up to `tile_k` of their s c values. Where the filter's columns are spread (`dilation`), or where
channels go in `groups`, only the channels of one pixel do; a group is one product of a batch. Rows of a tile go in
groups of `columns` neighbours of one row of Y, which lie evenly apart in X and Y; where the columns of Y are no
multiple of that, the last group of a row has rows without a result. X is stored with its padding: rows and columns of
zeros are read like others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sim.gpu.language import Expr, GlobalTensor, View
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div
from workloads.gpu.gemm.threadblock import Copy
from workloads.ops import Conv2d, Gemm
from workloads.ops.base import Array


@dataclass(frozen=True)
class Geometry:
    """A convolution as its kernels walk it.

    results_by_position, sums_over_positions: whether rows of the product, or what it sums over, are positions of Y.
    blocks: groups of columns in a row of Y. taps: pieces of a row of the filter whose values are apart in X. chunks:
    k steps of a piece. by_tap: each column of the filter is a piece, also where the next one's values follow in X.
    """

    results_by_position: ClassVar[bool] = True
    sums_over_positions: ClassVar[bool] = False

    op: Conv2d
    columns: int
    tile_k: int
    by_tap: bool = field(default=False, kw_only=True)

    @property
    def positions(self) -> int:
        """Rows of Y, of all images."""
        return self.op.n * self.op.output[0]

    @property
    def blocks(self) -> int:
        """Groups of columns in a row of Y."""
        return ceil_div(self.op.output[1], self.columns)

    @property
    def taps(self) -> int:
        """Pieces of a row of the filter: one where the pixels under it are neighbours and all channels count."""
        return self.op.s if self.by_tap or self.op.dilation > 1 or self.op.groups > 1 else 1

    @property
    def run(self) -> int:
        """Values of a row of X under a piece of the filter."""
        return self.op.s * self.op.c // (self.taps * self.op.groups)

    @property
    def starts(self) -> int:
        """Where a piece may begin in X, a group's channels apart, from the first to the last one."""
        return ((self.taps - 1) * self.op.dilation + 1) * self.op.groups

    @property
    def chunks(self) -> int:
        """Steps of the sum in a piece of the filter."""
        return ceil_div(self.run, self.tile_k)

    @property
    def gemm(self) -> Gemm:
        """The product with all its padding."""
        op = self.op
        return Gemm(
            m=self.positions * self.blocks * self.columns, n=op.k // op.groups,
            k=op.r * self.taps * self.chunks * self.tile_k, batch=op.groups, tb="T",
            dtype=op.dtype, out=op.out, acc=op.acc,
        ).with_defaults(op.chosen_dtype)  # fmt: skip

    @property
    def stored(self) -> tuple[int, int]:
        """Rows and columns of X with its padding."""
        return self.op.h + 2 * self.op.padding[0], self.op.w + 2 * self.op.padding[1]

    @property
    def values(self) -> int:
        """Values of both operands as they are stored."""
        return self.op.n * math.prod(self.stored) * self.op.c + self.op.k * self.op.r * self.taps * self.run

    def problem(self) -> Problem:
        """The tensors: windows of X that overlap, filters by rows, Y by rows."""
        op, gemm, dtype = self.op, self.gemm, self.op.chosen_dtype
        out, acc = str(gemm.out), str(gemm.acc)
        (rows, width), right = self.stored, op.strides[1]
        q, channels = op.output[1], op.c // op.groups
        windows = (op.n * rows, self.starts, q, self.run)
        x = GlobalTensor("x", windows, dtype, (width * op.c, channels, right * op.c, 1), "input")
        filters = (op.groups, gemm.n, op.r * self.taps, self.run)
        w = GlobalTensor("w", filters, dtype, tuple(math.prod(filters[i + 1 :]) for i in range(4)), "input")
        y = GlobalTensor("y", (self.positions, q, op.groups, gemm.n), out, (q * op.k, op.k, gemm.n, 1), "output")
        return Problem(gemm, dtype, out, acc, Operand(x, gemm.m, True), Operand(w, gemm.n, True), y)

    def place(self, row: Expr) -> tuple[Expr, Expr]:
        """Row of Y, counted over all images, and column of position `row` of all groups of columns."""
        group = row // self.columns
        return group // self.blocks, group % self.blocks * self.columns + row % self.columns

    def above(self, line: Expr) -> Expr:
        """First row of X, as it is stored, under the filter that gives row `line` of Y."""
        op, p, down = self.op, self.op.output[0], self.op.strides[0]
        return line // p * self.stored[0] + line % p * down if op.n > 1 else line * down

    def part(self, part: Expr, group: Expr) -> tuple[Expr, Expr]:
        """How many rows below the first one a piece of the filter lies in X, and where it begins there."""
        if self.taps == 1:
            return part * self.op.dilation, group
        below, tap = part // self.taps, part % self.taps
        return below * self.op.dilation, tap * self.op.dilation * self.op.groups + group

    def step(self, depth: Expr) -> tuple[Expr, Expr]:
        """Piece of the filter, and the first of its values, of the step of the sum from `depth` on."""
        step = depth // self.tile_k
        return step // self.chunks, step % self.chunks * self.tile_k

    def data(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Windows of X: `copy.rows` positions by `copy.columns` values, `row` and `column` into the tile."""
        part, first = self.step(depth)
        below, start = self.part(part, unit.tile.batch)
        line, left = self.place(unit.tile.m * copy.extent + row)
        box = (self.above(line) + below, start, left, first + column)
        return copy.operand.tensor[box[0], box[1], box[2] : copy.rows, box[3] : copy.columns]  # type: ignore[misc]

    def filters(self, copy: Copy, unit: Unit, depth: Expr, row: Expr, column: Expr) -> View:
        """Pieces of filters: `copy.rows` channels of Y by `copy.columns` values."""
        part, first = self.step(depth)
        channel, value = unit.tile.n * copy.extent + row, first + column
        return copy.operand.tensor[unit.tile.batch, channel : copy.rows, part, value : copy.columns]  # type: ignore[misc]

    def result(self, tensor: GlobalTensor, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """Neighbours of a row of Y: `rows` of them by `cols` channels."""
        line, left = self.place(row)
        return tensor[line, left:rows, unit.tile.batch, col:cols]  # type: ignore[misc]

    def windows(self, x: Array) -> Array:
        """X as the kernel's tensor shows it: what lies under a piece of the filter, by start and position."""
        op, (above, beside) = self.op, self.op.padding
        padded = np.pad(np.asarray(x), ((0, 0), (above, above), (beside, beside), (0, 0)))
        flat = padded.reshape(op.n * self.stored[0], -1)
        found = np.lib.stride_tricks.sliding_window_view(flat, self.run, axis=1)
        right = op.strides[1] * op.c
        firsts = np.arange(self.starts)[:, None] * (op.c // op.groups) + np.arange(op.output[1]) * right
        return np.asarray(found[:, firsts])
