"""Convolution by Winograd's minimal filtering, in kernels of their own (cuDNN's `winograd_nonfused`).

A tile of m x m results of an r x r filter of stride 1 needs (m + r - 1)^2 multiplies a pair of channels in place of
m^2 r^2. Four kernels, called as public profiles of cuDNN 7 call them: `winogradForwardData4x4` and
`winogradForwardFilter4x4` (9x9_5x5 for filters of 5 x 5) bring X and W to the points of a polynomial, a batched
product of the vendor's library multiplies there, one problem a point, `winogradForwardOutput4x4` brings the sums back.
What lies between goes through memory, so that short sums of large images gain nothing.

X, W and Y are NHWC as those of the implicit GEMM, X with its padding: neighbouring threads take neighbouring channels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import itemgetter
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    View,
)
from workloads.gpu import overhead
from workloads.gpu.attention.compose import on_tensors
from workloads.gpu.configuration import Configuration
from workloads.gpu.gemm import choose as gemms
from workloads.gpu.gemm import simt
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Load
from workloads.ops import Conv2d, Gemm
from workloads.ops.base import Array
from workloads.registry import build as build_kernel
from workloads.registry import register

OUTPUTS = {3: 4, 5: 5}
"""Rows and columns of results of a tile by those of the filter, as cuDNN has them: 4x4 and 9x9_5x5."""
DTYPES = ("fp32",)
"""Formats whose sums the transforms do not spoil."""
POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4")))
"""Where polynomials are evaluated, beside infinity; as many as a transform needs, from the first."""
WARPS = 8
OTHER_INSTRUCTIONS = 24
"""Instructions of an item beside arithmetic and moves: its place, addresses, bounds; as many registers hold these."""


@dataclass(frozen=True)
class WinogradConfig(Configuration):
    """outputs: rows and columns of results of a tile. product: the schedule of the batched product."""

    outputs: int
    product: str

    schedule: ClassVar[str] = "winograd"

    def __str__(self) -> str:
        return f"{self.schedule} {self.outputs}x{self.outputs} {self.product}"


@dataclass(frozen=True)
class Transforms:
    """y = result (filter g * data x), for results y of a row x with the filter g. In 2 dimensions they act on columns
    and then on rows."""

    result: Array
    filter: Array
    data: Array


@lru_cache(maxsize=8)
def transforms(outputs: int, taps: int) -> Transforms:
    """Toom-Cook's matrices for `outputs` results of a filter of `taps` (Lavin and Gray 2016, arXiv 1509.09308)."""
    finite = POINTS[: outputs + taps - 2]
    size = len(finite) + 1

    def polynomial(roots: list[Fraction]) -> list[Fraction]:
        found = [Fraction(1)]
        for root in roots:
            shifted = [Fraction(0), *found]
            found = [high - root * low for high, low in zip(shifted, [*found, Fraction(0)], strict=True)]
        return found + [Fraction(0)] * (size - len(found))

    def powers(count: int) -> list[list[Fraction]]:
        return [[point**i for i in range(count)] for point in finite]

    result = [[*column, Fraction(i == outputs - 1)] for i, column in enumerate(zip(*powers(outputs), strict=True))]
    scale = [math.prod((p - other for other in finite if other != p), start=Fraction(1)) for p in finite]
    rows = [[value / s for value in row] for row, s in zip(powers(taps), scale, strict=True)]
    weights = [*rows, [Fraction(i == taps - 1) for i in range(taps)]]
    data = [polynomial([other for other in finite if other != p]) for p in finite] + [polynomial(list(finite))]
    return Transforms(*(np.array(matrix, dtype=np.float64) for matrix in (result, weights, data)))


@dataclass(frozen=True)
class Geometry:
    """A convolution as its transforms walk it."""

    op: Conv2d

    @property
    def outputs(self) -> int:
        """Rows and columns of results of a tile."""
        return OUTPUTS[self.op.r]

    @property
    def side(self) -> int:
        """Rows and columns of X under a tile, and of points."""
        return self.outputs + self.op.r - 1

    @property
    def points(self) -> int:
        """Products of a tile and a pair of channels."""
        return self.side**2

    @property
    def down(self) -> int:
        """Tiles of a column of Y."""
        return ceil_div(self.op.output[0], self.outputs)

    @property
    def across(self) -> int:
        """Tiles of a row of Y."""
        return ceil_div(self.op.output[1], self.outputs)

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.op.n * self.down * self.across

    @property
    def product(self) -> Gemm:
        """One problem a point: tiles by channels of X, times these by channels of Y."""
        op = self.op
        return Gemm(
            m=self.tiles, n=op.k, k=op.c, batch=self.points, tb="T", dtype=op.dtype, out=op.dtype, acc=op.acc
        ).with_defaults(op.chosen_dtype)

    def place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """Image, and row and column of tiles."""
        within = tile % (self.down * self.across)
        return tile // (self.down * self.across), within // self.across, within % self.across

    def padded(self, x: Array) -> Array:
        """X as it is stored."""
        above, beside = self.op.padding
        return np.pad(np.asarray(x), ((0, 0), (above, above), (beside, beside), (0, 0)))


def takes(op: Conv2d) -> bool:
    """Whether the transforms take a convolution: filters of 3 x 3 or 5 x 5, stride 1."""
    op = op.with_defaults(op.chosen_dtype)
    return (
        op.r == op.s and op.r in OUTPUTS and op.strides == (1, 1) and op.chosen_dtype in DTYPES
        and op.out == op.dtype and op.groups == op.dilation == 1
    )  # fmt: skip


def candidates(op: Conv2d, spec: GpuSpec, tiles: Collection[str] = ()) -> list[tuple[WinogradConfig, int]]:
    """The configuration, with its estimated time in picoseconds; none where the transforms do not take the problem.

    tiles: those that the product may have (`128x64`); all of the vendor's library where none are named.
    """
    if not takes(op):
        return []
    g = Geometry(op)
    named = [
        SimtConfig(tile_m, tile_n, simt.STEP_BYTES // DTYPE_BYTES["fp32"], warp_m, warp_n)
        for tile_m, tile_n, warp_m, warp_n, _ in gemms.simt_tiles()
        if f"{tile_m}x{tile_n}" in tiles
    ]
    try:
        products = [gemms.choose(g.product, spec, str(config)).candidates[0] for config in named]
        config, product_ps = (
            min(products, key=itemgetter(1)) if products else gemms.choose(g.product, spec).candidates[0]
        )
    except InputError:
        return []
    resident = lanes.resident(spec, WARPS, _registers(g))
    if resident < 1:
        return []
    loads = [_load(part, spec, resident) for part in _parts(g)]
    return [(WinogradConfig(g.outputs, str(config)), product_ps + lanes.load_ps(spec, loads))]


@register("conv2d", "gpu", "winograd")
def build(op: Conv2d, spec: GpuSpec, config: WinogradConfig) -> Program:
    """The program. InputError where the transforms do not take the problem."""
    if not takes(op) or config.outputs != OUTPUTS[op.r]:
        raise InputError(f"schedule={config}: takes fp32 filters of 3x3 and 5x5, stride 1; nearest: simt")
    g = Geometry(op)
    (rows, columns), dtype = op.output, op.chosen_dtype
    stored = (op.n, op.h + 2 * op.padding[0], op.w + 2 * op.padding[1], op.c)
    x = tensor("x", stored, dtype, "input")
    w = tensor("w", (op.k, op.r, op.s, op.c), dtype, "input")
    y = tensor("y", (op.n, rows, columns, op.k), dtype, "output")
    v = tensor("x_points", (g.points, g.tiles, op.c), dtype, "scratch")
    u = tensor("w_points", (g.points, op.k, op.c), dtype, "scratch")
    sums = tensor("y_points", (g.points, g.tiles, op.k), dtype, "scratch")
    program = build_kernel(g.product, spec, gemms.choose(g.product, spec, config.product).config)
    names = {"A": v, "B": u, "C": sums}
    scratch = [tensor for tensor in program.tensors if tensor.name not in names]
    names |= {tensor.name: tensor for tensor in scratch}
    data, weights, result = _parts(g)
    kernels = [
        _kernel(g, data, x, v), _kernel(g, weights, w, u),
        *(on_tensors(kernel, names, kernel.name) for kernel in program.kernels), _kernel(g, result, sums, y),
    ]  # fmt: skip
    settings = {"config": config, "stored": {"x": g.padded}}
    return Program(str(op), (x, w, y, v, u, sums, *scratch), tuple(kernels), str(config), settings)


def tensor(name: str, shape: tuple[int, ...], dtype: str, role: str) -> GlobalTensor:
    """A tensor that lies in memory row by row."""
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(name, shape, dtype, strides, role)


# ------------------------------------------------------------------------------------------------------- transforms


@dataclass(frozen=True)
class Part:
    """One transform: `matrix` from both sides of what lies under each of `items` (tiles, or filters), `channels` deep.
    before: rows and columns of values that an item is made of."""

    name: str
    matrix: Array
    before: int
    items: int
    channels: int

    @property
    def after(self) -> int:
        """Rows and columns of values that come out."""
        return len(self.matrix)

    @property
    def additions(self) -> int:
        """Multiply-adds of a thread: those of a matrix with the columns before, then with the rows after."""
        return (int(np.count_nonzero(self.matrix)) - self.after) * (self.before + self.after)

    def compute(self, old: Array, given: Array) -> Array:
        """What comes out, a column a channel."""
        square = given.reshape(self.before, self.before, -1)
        return np.einsum("ij,jkc,lk->ilc", self.matrix, square, self.matrix).reshape(self.after**2, -1)


def _parts(g: Geometry) -> tuple[Part, Part, Part]:
    """Those of X, of W and of the sums."""
    op, t = g.op, transforms(g.outputs, g.op.r)
    title = f"{g.outputs}x{g.outputs}" if op.r == 3 else f"{g.side}x{g.side}_{op.r}x{op.r}"
    return (
        Part(f"winogradForwardData{title}", t.data, g.side, g.tiles, op.c),
        Part(f"winogradForwardFilter{title}", t.filter, op.r, op.k, op.c),
        Part(f"winogradForwardOutput{title}", t.result, g.side, g.tiles, op.k),
    )


def _registers(g: Geometry) -> int:
    """Of a thread that holds the points of a tile and a row on its way."""
    return g.points + g.side + OTHER_INSTRUCTIONS


def _kernel(g: Geometry, part: Part, source: GlobalTensor, target: GlobalTensor) -> Kernel:
    """A kernel whose warps take an item, 32 channels of it."""
    moves = part.before**2 + part.after**2
    k = KernelBuilder(
        part.name, (ceil_div(part.items, WARPS), ceil_div(part.channels, WARP_SIZE), 1),
        code_bytes=(part.additions + moves + OTHER_INSTRUCTIONS) * overhead.INSTRUCTION_BYTES,
    )  # fmt: skip
    item, channel = CTA_X * WARPS + WARP, CTA_Y * WARP_SIZE
    width = DTYPE_BYTES[g.op.chosen_dtype]
    with k.role("warps", WARPS, _registers(g)) as r, r.when(item < part.items):
        before = RegisterTile("before", (part.before**2, WARP_SIZE), g.op.chosen_dtype)
        after = RegisterTile("after", (part.after**2, WARP_SIZE), g.op.chosen_dtype)
        for row, rows, box in _boxes(g, source, item, channel, part.before):
            r.ldg(before[row:rows, :], box, rows, into="before", vector_bytes=width)
        r.run(
            "ffma", part.additions, dtype="fp32", dst=after.whole, srcs=(before.whole,), compute=part.compute,
            after=("before",), mix=overhead.mix(alu=OTHER_INSTRUCTIONS),
        )  # fmt: skip
        for row, rows, box in _boxes(g, target, item, channel, part.after):
            r.stg(box, after[row:rows, :], rows, vector_bytes=width)
    return k.build()


def _boxes(g: Geometry, t: GlobalTensor, item: Expr, channel: Expr, side: int) -> Iterator[tuple[int, int, View]]:
    """The values of an item in a tensor: in boxes of rows of it, with the number of the first one and how many."""
    image, down, across = g.place(item)
    match t.name:
        case "w":
            for row in range(side):
                yield row * side, side, t[item, row, 0:side, channel:WARP_SIZE]
        case "x" | "y":
            for row in range(side):
                at, column = down * g.outputs + row, across * g.outputs
                yield row * side, side, t[image, at, column:side, channel:WARP_SIZE]  # type: ignore[misc]
        case _:
            yield 0, side**2, t[0 : side**2, item, channel:WARP_SIZE]


def _load(part: Part, spec: GpuSpec, resident: int) -> Load:
    """Counts of a transform for the estimate."""
    values = part.items * part.channels * DTYPE_BYTES["fp32"]
    instructions = part.additions + part.before**2 + part.after**2 + OTHER_INSTRUCTIONS
    return Load(
        ctas=ceil_div(part.items, WARPS) * ceil_div(part.channels, WARP_SIZE), resident=resident,
        read_bytes=part.before**2 * values, written_bytes=part.after**2 * values,
        issue=ceil_div(WARPS * instructions, spec.sm.sub_cores), path=2 * instructions,
    )  # fmt: skip
