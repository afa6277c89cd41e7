"""Convolution as an implicit GEMM: rows are positions of Y, the sum runs over the filter's rows and what they cover.

X and Y are NHWC, weights [k, r, s, c]: in a row of X the pixels under a row of the filter lie side by side, so that a
step of the sum takes up to `tile_k` of their s c values. Where the filter's columns are spread (`dilation`), or where
channels go in `groups`, only the channels of one pixel do; a group is one product of a batch. Rows of a tile go in
groups of `columns` neighbours of one row of Y, which lie evenly apart in X and Y; where the columns of Y are no
multiple of that, the last group of a row has rows without a result. X is stored with its padding: rows and columns of
zeros are read like others.

The kernels are the GEMM's of Volta to Ampere (`workloads.gpu.gemm.threadblock`) but for the addresses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from sim.gpu.language import Const, Expr, GlobalTensor, Program, View
from workloads.gpu.conv import depthwise, winograd
from workloads.gpu.conv.depthwise import DepthwiseConfig
from workloads.gpu.conv.winograd import WinogradConfig
from workloads.gpu.gemm import choose as gemms
from workloads.gpu.gemm import mma, simt, threadblock
from workloads.gpu.gemm.estimate import Figures, Work, estimate_ps, figures
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.threadblock import Copy, Inner, Writer
from workloads.gpu.select import Choice
from workloads.ops import Conv2d, Gemm
from workloads.ops.base import Array
from workloads.registry import register

KINDS = ("mma", "simt", "winograd", "depthwise")
GROUPS = (16, 8, 4)
"""Positions of a row of Y that a box of a copy may hold."""
SMALL_TILES = ((64, 32, 32, 16, 8), (32, 64, 16, 32, 8), (32, 32, 16, 16, 8))
"""Tiles under 64x64, with stages of cp.async, as `gemms.MMA_TILES`; cuDNN has sm80_xmma_fprop_..._tilesize64x32x64."""
EIGHT_WARPS = ((128, 128, 64, 32, 4), (256, 64, 64, 32, 4))
"""Tiles of cuDNN's kernels for Volta and Turing, whose CTAs have 256 threads."""
SHORT_STEP = 8
"""Elements of k of a step on the vector pipes where longer ones would be filled with zeros; the step of cuDNN's kernels
for Maxwell to Volta, as of their assembler's published analysis (maxas, SGEMM)."""
RUNNERS_UP = 12
CUT = " split"
"""Behind a tile of a library: its kernels that cut sums."""
VECTOR = " vector"
"""Behind a tile of a library, of a format that tensor cores take: its kernels on the vector pipes."""
VECTOR_BYTES = 16
"""Channels of a pixel, and of a filter, that cuDNN 7's kernels of tensor cores load at once: 8 of fp16 (`Tensor Ops
Made Easier in cuDNN`, NVIDIA's developer blog)."""


@dataclass(frozen=True)
class ConvMmaConfig(MmaConfig):
    """Tile configuration on tensor cores. columns: neighbours of a row of Y that lie together in a tile."""

    columns: int = 8

    def __str__(self) -> str:
        return f"{self.words(self.schedule)} columns {self.columns}"


@dataclass(frozen=True)
class ConvSimtConfig(SimtConfig):
    """Tile configuration on the vector pipes; `columns` as there."""

    columns: int = 8

    def __str__(self) -> str:
        return f"{self.words(self.schedule)} columns {self.columns}"


ImplicitConfig = ConvMmaConfig | ConvSimtConfig
Config = ImplicitConfig | WinogradConfig | DepthwiseConfig
_Tile = tuple[int, int, int, int, int]
"""Tile and warp tile, stages of cp.async."""


@dataclass(frozen=True)
class Geometry:
    """A convolution as its kernels walk it.

    blocks: groups of columns in a row of Y. taps: pieces of a row of the filter whose values are apart in X. chunks:
    k steps of a piece.
    """

    op: Conv2d
    columns: int
    tile_k: int

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
        return self.op.s if self.op.dilation > 1 or self.op.groups > 1 else 1

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

    def windows(self, x: Array) -> Array:
        """X as the kernel's tensor shows it: what lies under a piece of the filter, by start and position."""
        op, (above, beside) = self.op, self.op.padding
        padded = np.pad(np.asarray(x), ((0, 0), (above, above), (beside, beside), (0, 0)))
        flat = padded.reshape(op.n * self.stored[0], -1)
        found = np.lib.stride_tricks.sliding_window_view(flat, self.run, axis=1)
        right = op.strides[1] * op.c
        firsts = np.arange(self.starts)[:, None] * (op.c // op.groups) + np.arange(op.output[1]) * right
        return np.asarray(found[:, firsts])


class _Writer(Writer):
    """Writes the kernel of a convolution."""

    def __init__(self, g: Geometry, p: Problem, spec: GpuSpec, config: ImplicitConfig, inner: Inner) -> None:
        self.g, self.together = g, config.columns
        super().__init__(p, spec, config, inner)

    def _place(self, row: Expr) -> tuple[Expr, Expr]:
        """Row of Y, counted over all images, and column of row `row` of the product."""
        group = row // self.g.columns
        return group // self.g.blocks, group % self.g.blocks * self.g.columns + row % self.g.columns

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """Windows of X, or filters, in one step of the sum."""
        op, tensor = self.g.op, copy.operand.tensor
        share: Expr = copy.share(piece)
        row: Expr = share
        column: Expr = Const(0)
        if copy.blocks > 1:
            row, column = share % copy.memory_rows, share // copy.memory_rows * copy.columns
        step = depth // self.g.tile_k
        part, column = step // self.g.chunks, step % self.g.chunks * self.g.tile_k + column
        if copy.operand is not self.p.a:
            first = unit.tile.n * copy.extent + row
            return tensor[unit.tile.batch, first : copy.rows, part, column : copy.columns]  # type: ignore[misc]
        filter_row, start = part, unit.tile.batch
        if self.g.taps > 1:
            filter_row, start = part // self.g.taps, part % self.g.taps * op.dilation * op.groups + start
        line, left = self._place(unit.tile.m * copy.extent + row)
        p, rows = op.output[0], self.g.stored[0]
        above = line // p * rows + line % p * op.strides[0] if op.n > 1 else line * op.strides[0]
        above = above + filter_row * op.dilation
        return tensor[above, start, left : copy.rows, column : copy.columns]  # type: ignore[misc]

    def result(self, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """Neighbours of a row of Y."""
        line, left = self._place(row)
        return self.p.c[line, left:rows, unit.tile.batch, col:cols]  # type: ignore[misc]


def _refuse(op: Conv2d, spec: GpuSpec) -> None:
    """InputError for what no kernel does."""
    if op.layout != "nhwc":
        raise InputError(f"conv2d layout={op.layout}: kernels of {spec.name} read nhwc; layout=nhwc")


@register("conv2d", "gpu", "auto")
def choose(op: Conv2d, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel for `op` on `spec`: `auto`, `mma`, `simt`, or a configuration as it prints."""
    _refuse(op, spec)
    f = figures(spec)
    more = EIGHT_WARPS if len(schedule.split()) > 1 else ()
    found = sorted(
        (
            *((estimate_ps(work, f), str(config), config) for config, work in _candidates(op, spec, f, more)),
            *((time_ps, str(config), config) for config, time_ps in winograd.candidates(op, spec)),
            *((time_ps, str(config), config) for config, time_ps in depthwise.candidates(op, spec)),
        ),
        key=lambda item: item[:2],
    )
    if not found:
        raise InputError(f"conv2d dtype={op.dtype}: {spec.name} has no kernel for it")
    known = {text: (config, time_ps) for time_ps, text, config in found}
    if len(schedule.split()) > 1:
        if schedule not in known:
            raise InputError(f"schedule={schedule}: is none of the configurations of {op}{hint(schedule, known)}")
        return Choice(known[schedule][0], [known[schedule]])
    if schedule not in ("auto", *KINDS):
        near = hint(schedule, KINDS)
        raise InputError(f"schedule={schedule}: one of auto, {', '.join(KINDS)}, or a whole configuration{near}")
    kinds = {config.schedule for _, _, config in found}
    # Libraries keep to the tensor cores where they take the format.
    products = ("mma",) if "mma" in kinds else ("simt", "winograd")
    wanted = (schedule,) if schedule != "auto" else (*products, "depthwise")
    ranked = [(config, time_ps) for time_ps, _, config in found if config.schedule in wanted]
    best = ranked[:RUNNERS_UP]
    if not best:
        raise InputError(f"schedule={schedule}: {spec.name} runs {op} with {', '.join(sorted(kinds))}")
    return Choice(best[0][0], best)


def of_library(op: Conv2d, spec: GpuSpec, tiles: Collection[str]) -> list[tuple[Config, int]]:
    """Kernels of a library that has some tiles alone (`128x64`; with `128x64 split` also those that cut its sum), and
    Winograd's, with estimated times in picoseconds, best first; those of tensor cores, of eight warps, where they take
    the format. Channels that make no whole vectors go to its kernels on the vector pipes (`128x64 vector`), if it has
    any. InputError where none fits."""
    _refuse(op, spec)
    f = figures(spec)
    all_of_them = list(_candidates(op, spec, f, EIGHT_WARPS))
    on_tensor_cores = any(config.schedule == "mma" for config, _ in all_of_them)

    def name(config: ImplicitConfig) -> str:
        beside = VECTOR if on_tensor_cores and config.schedule == "simt" else ""
        return f"{config.tile_m}x{config.tile_n}{CUT if config.split > 1 else ''}{beside}"

    found = [(config, estimate_ps(work, f)) for config, work in all_of_them if name(config) in tiles]
    tensor = [entry for entry in found if entry[0].schedule == "mma" and entry[0].warps == 8]
    vector = [entry for entry in found if entry[0].schedule == "simt"]
    if vector and (op.c | op.k) * DTYPE_BYTES[op.chosen_dtype] % VECTOR_BYTES:
        tensor = vector
    whole: list[tuple[Config, int]] = [*(tensor or found), *winograd.candidates(op, spec)]
    if not found:
        raise InputError(f"conv2d dtype={op.dtype}: {spec.name} has no kernel with tiles {', '.join(sorted(tiles))}")
    return sorted(whole, key=lambda entry: (entry[1], str(entry[0])))[:RUNNERS_UP]


@register("conv2d", "gpu", "mma", "simt")
def build(op: Conv2d, spec: GpuSpec, config: ImplicitConfig) -> Program:
    """The program. InputError where the machine cannot take the configuration."""
    g = Geometry(op, config.columns, config.tile_k)
    p = g.problem()
    if isinstance(config, ConvMmaConfig):
        mma.check(p, spec, config)
        inner: Inner = mma.inner(p, spec, config)
    else:
        simt.check(p, spec, config)
        inner = simt.inner(p, spec, config)
    writer = _Writer(g, p, spec, config, inner)
    tensors = [p.a.tensor, p.b.tensor, p.c, *([writer.partials] if writer.partials is not None else [])]
    settings = {"config": config, "stored": {"x": g.windows}}
    return Program(str(op), tuple(tensors), (writer.kernel(),), str(config), settings)


def _candidates(
    op: Conv2d, spec: GpuSpec, f: Figures, more: Sequence[_Tile] = ()
) -> Iterator[tuple[ImplicitConfig, Work]]:
    """Configurations that fit, with their counts. more: tiles of tensor cores beside those of a product."""
    width = DTYPE_BYTES[op.chosen_dtype]
    fewest = min(ceil_div(op.output[1], columns) * columns for columns in GROUPS)
    for columns in GROUPS:
        # A wider group than need be only adds rows without results.
        if ceil_div(op.output[1], columns) * columns > 1.5 * fewest:
            continue
        problem = partial(Geometry, op, columns)
        draft = problem(gemms.MMA_STEP_BYTES // width).problem()
        if any(spec.has_instruction("mma", draft.dtype, shape) for shape in mma.SHAPES.get(draft.dtype, ())):
            yield from _mma(spec, f, problem, draft, more)
        if simt.available(spec, draft.dtype, draft.acc):
            yield from _simt(spec, f, problem, width)


def _mma(
    spec: GpuSpec, f: Figures, geometry: partial[Geometry], draft: Problem, more: Sequence[_Tile]
) -> Iterator[tuple[ImplicitConfig, Work]]:
    width = DTYPE_BYTES[draft.dtype]
    asynchronous = spec.cp_async is not None and min(draft.a.vector_bytes, draft.b.vector_bytes) >= 4
    copy = "cp.async" if asynchronous else "ldg"
    core = mma.TensorCore(spec, draft.dtype, copy)
    for tile_m, tile_n, warp_m, warp_n, stages in (*gemms.MMA_TILES, *more, *(SMALL_TILES if asynchronous else ())):
        for steps in (1, 2) if asynchronous else (1,):
            tile_k = steps * gemms.MMA_STEP_BYTES // width
            g = geometry(tile_k)
            config = ConvMmaConfig(
                tile_m, tile_n, tile_k, warp_m, warp_n, max(3, stages // steps) if asynchronous else 2, copy,
                columns=g.columns,
            )  # fmt: skip
            p = g.problem()
            resident = _resident(p, spec, config, core)
            try:
                mma.check(p, spec, config)
            except InputError:
                continue
            yield from _cuts(g, p, config, mma.work(p, f, config, core, resident))


def _simt(spec: GpuSpec, f: Figures, geometry: partial[Geometry], width: int) -> Iterator[tuple[ImplicitConfig, Work]]:
    whole = geometry(gemms.SIMT_STEP_BYTES // width)
    short = geometry(SHORT_STEP)
    for g, (tile_m, tile_n, warp_m, warp_n) in itertools.product((whole, short), gemms.SIMT_TILES):
        if g is short and g.gemm.k >= whole.gemm.k:
            continue
        config = ConvSimtConfig(tile_m, tile_n, g.tile_k, warp_m, warp_n, columns=g.columns)
        p = g.problem()
        vector = simt.inner(p, spec, config)
        resident = _resident(p, spec, config, vector)
        try:
            simt.check(p, spec, config)
        except InputError:
            continue
        yield from _cuts(g, p, config, simt.work(p, f, config, vector, resident))


def _cuts(g: Geometry, p: Problem, config: ImplicitConfig, work: Work) -> Iterator[tuple[ImplicitConfig, Work]]:
    """A configuration whole and with its sum cut, with what is read of X, whose windows overlap."""
    stored = g.op.n * g.stored[0] * g.stored[1] * g.op.c + g.op.k * g.op.r * g.taps * g.run
    read = stored * DTYPE_BYTES[p.dtype]
    work = replace(work, operand_bytes=read, round_bytes=work.round_bytes * read // work.operand_bytes)
    yield config, work
    for split in gemms.SPLITS[1:]:
        if work.ctas * split > work.resident or work.steps // split < gemms.LEAST_SPLIT_STEPS:
            return
        yield replace(config, split=split), replace(work, cuts=split, ctas=work.ctas * split)


def _resident(p: Problem, spec: GpuSpec, config: ImplicitConfig, inner: Inner) -> int:
    """CTAs that the chip holds at once; at least 1, so that what does not fit is refused with its reason."""
    used = threadblock.registers(p, config, inner)
    if used > spec.sm.max_registers_per_thread:
        return 1
    size = threadblock.operand_bytes(p, config, inner)
    return max(1, threadblock.resident_ctas(spec, config.warps, used, size))
