"""Convolution as an implicit GEMM: rows are positions of Y, the sum runs over the filter's rows and what they cover.

Rows are neighbours of one row of Y: `workloads.gpu.conv.geometry` says which boxes of memory tiles are.
The kernels are the GEMM's of Volta to Ampere (`workloads.gpu.gemm.threadblock`) but for the addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from sim.gpu.language import Const, Expr, Program, View
from workloads import libraries
from workloads.gpu.attention.compose import on_tensors
from workloads.gpu.configuration import Word
from workloads.gpu.conv import depthwise, nchw, reorder, winograd
from workloads.gpu.conv.depthwise import DepthwiseConfig
from workloads.gpu.conv.geometry import Geometry
from workloads.gpu.conv.nchw import NCHW, PixelGeometry
from workloads.gpu.conv.winograd import WinogradConfig
from workloads.gpu.gemm import choose as gemms
from workloads.gpu.gemm import mma, simt
from workloads.gpu.gemm.estimate import Figures, Work, estimate_ps, figures
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.threadblock import Copy, Inner, Writer
from workloads.gpu.select import Choice, unknown_schedule
from workloads.ops import Conv2d
from workloads.registry import register

KINDS = ("mma", "simt", "winograd", "depthwise")
GROUPS = (16, 8, 4)
"""Positions of a row of Y that a box of a copy may hold."""
CUDNN = "cudnn@7"
"""Whose tiles and figures these are (`workloads/libraries`)."""
SHORT_STEP = 8
"""Elements of k of a step on the vector pipes where longer ones would be filled with zeros; the step of cuDNN's kernels
for Maxwell to Volta, as of their assembler's published analysis (maxas, SGEMM)."""
RUNNERS_UP = 12
CUT = " split"
"""Behind a tile of a library: its kernels that cut sums."""


@dataclass(frozen=True)
class ConvMmaConfig(MmaConfig):
    """One kernel on tensor cores: the tiles of a product, and what is a convolution's own.

    columns: neighbours of a row of Y that lie together in a tile.
    by_tap: a step of the sum has channels of one column of the filter alone.
    reordered: a kernel before brings the filters in order.
    """

    columns: int = 8
    by_tap: bool = False
    reordered: bool = False

    grammar: ClassVar[tuple[Word, ...]] = (
        *MmaConfig.grammar,
        Word.number("columns"),
        Word.flag("by tap", "by_tap"),
        Word.flag("reordered"),
    )


@dataclass(frozen=True)
class ConvSimtConfig(SimtConfig):
    """Tile configuration on the vector pipes; `columns` as there."""

    columns: int = 8

    grammar: ClassVar[tuple[Word, ...]] = (*SimtConfig.grammar, Word.number("columns"))
    by_tap: ClassVar[bool] = False
    reordered: ClassVar[bool] = False


ImplicitConfig = ConvMmaConfig | ConvSimtConfig
Config = ImplicitConfig | WinogradConfig | DepthwiseConfig
_Tile = tuple[int, int, int, int, int]
"""Tile and warp tile, stages of cp.async."""


class ImplicitWriter(Writer):
    """Writes the kernel of a convolution or of one of its gradients."""

    def __init__(self, g: Geometry, p: Problem, spec: GpuSpec, config: ImplicitConfig, inner: Inner) -> None:
        self.g, self.together = g, g.columns if g.results_by_position else 0
        super().__init__(p, spec, config, inner)

    def copied_together(self, operand: Operand) -> int:
        """Positions of a row of Y."""
        return self.g.columns if operand is self.p.a or self.g.sums_over_positions else 0

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """A box of an operand, by its place in the tile that the CTA copies."""
        share: Expr = copy.share(piece)
        row: Expr = share
        column: Expr = Const(0)
        if copy.blocks > 1:
            row, column = share % copy.memory_rows, share // copy.memory_rows * copy.columns
        box = self.g.data if copy.operand is self.p.a else self.g.filters
        return box(copy, unit, depth, row, column)

    def result(self, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """See `Geometry.result`."""
        return self.g.result(self.p.c, unit, row, rows, col, cols)


def refuse_layout(op: Conv2d, spec: GpuSpec) -> None:
    """InputError for what no kernel does."""
    if op.layout == NCHW:
        raise InputError(f"{op.word} layout={op.layout}: kernels of {spec.name} read nhwc; layout=nhwc")


@register("conv2d", "gpu", "auto")
def choose(op: Conv2d, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel for `op` on `spec`: `auto`, `mma`, `simt`, or a configuration as it prints."""
    f = figures(spec)
    if op.layout == NCHW:
        return _of_channels_first(op, spec, f, schedule)
    whole = len(schedule.split()) > 1
    tiles = _libraries_too(op, spec, f) if whole else _estimated(_candidates(op, spec, f), f)
    found = sorted(
        (
            *((time_ps, str(config), config) for config, time_ps in tiles),
            *((time_ps, str(config), config) for config, time_ps in winograd.candidates(op, spec)),
            *((time_ps, str(config), config) for config, time_ps in depthwise.candidates(op, spec)),
        ),
        key=lambda item: item[:2],
    )
    if not found:
        raise InputError(f"conv2d dtype={op.dtype}: {spec.name} has no kernel for it")
    kinds = {config.schedule for _, _, config in found}
    # Libraries keep to the tensor cores where they take the format.
    products = ("mma",) if "mma" in kinds else ("simt", "winograd")
    return pick(op, spec, schedule, found, (*products, "depthwise"))


def _of_channels_first(op: Conv2d, spec: GpuSpec, f: Figures, schedule: str) -> Choice:
    """Kernels between transposes."""
    around_ps = nchw.transposes_ps(op, spec)
    tiles = candidates(partial(PixelGeometry, op), op.output[1], spec, f)
    found = sorted(((around_ps + estimate_ps(w, f), str(c), c) for c, w in tiles), key=lambda item: item[:2])
    if not found:
        raise InputError(f"conv2d dtype={op.dtype}: {spec.name} has no kernel for it")
    kinds = {config.schedule for _, _, config in found}
    return pick(op, spec, schedule, found, ("mma",) if "mma" in kinds else ("simt",))


def pick(
    op: Conv2d, spec: GpuSpec, schedule: str, found: Sequence[tuple[int, str, Config]], products: tuple[str, ...]
) -> Choice:
    """What was asked for of `found`, best first: a whole configuration, a kind, or with `auto` one of `products`."""
    known = {text: (config, time_ps) for time_ps, text, config in found}
    if len(schedule.split()) > 1:
        if schedule not in known:
            raise InputError(f"schedule={schedule}: is none of the configurations of {op}{hint(schedule, known)}")
        return Choice(known[schedule][0], [known[schedule]])
    if schedule not in ("auto", *KINDS):
        raise unknown_schedule(op, spec, schedule, KINDS)
    wanted = (schedule,) if schedule != "auto" else products
    best = [(config, time_ps) for time_ps, _, config in found if config.schedule in wanted][:RUNNERS_UP]
    if not best:
        kinds = {config.schedule for _, _, config in found}
        raise InputError(f"schedule={schedule}: {spec.name} runs {op} with {', '.join(sorted(kinds))}")
    return Choice(best[0][0], best)


def of_library(op: Conv2d, spec: GpuSpec, tiles: Collection[str]) -> list[tuple[Config, int]]:
    """Kernels of a library that has some tiles alone (`128x64`; with `128x64 split` also those that cut its sum), and
    Winograd's, whose product has these tiles, with estimated times in picoseconds, best first; those of tensor cores,
    of eight warps, where they take the format. InputError where none fits."""
    refuse_layout(op, spec)
    f, width = figures(spec), libraries.figure(CUDNN, "full_width")
    all_of_them = list(_estimated(_candidates(op, spec, f, _eight_warps()), f))
    if any(config.on_tensor_cores for config, _ in all_of_them):
        # Halves are stored pixel by pixel (NHWC), and a step has channels of one. int8 is stored in vectors of 32
        # channels (NCHW_VECT_C), each an image of its own, so that vectors under a row of the filter follow each other.
        own = _by_tap(op, spec, f) if op.chosen_dtype == "fp16" else _reordered(op, spec, all_of_them)
        all_of_them = [entry for entry in own if entry[0].warps == libraries.figure(CUDNN, "warps")]
    found = [
        (config, time_ps)
        for config, time_ps in all_of_them
        if f"{config.tile_m}x{config.tile_n}{CUT if config.split > 1 else ''}" in tiles
        and config.tile_n >= min(width, op.k // op.groups)
    ]
    if not found:
        raise InputError(f"conv2d dtype={op.dtype}: {spec.name} has no kernel with tiles {', '.join(sorted(tiles))}")
    whole: list[tuple[Config, int]] = [*found, *winograd.candidates(op, spec, tiles)]
    return sorted(whole, key=lambda entry: (entry[1], str(entry[0])))[:RUNNERS_UP]


@register("conv2d", "gpu", "mma", "simt")
def build(op: Conv2d, spec: GpuSpec, config: ImplicitConfig) -> Program:
    """The program. InputError where the machine cannot take the configuration."""
    if op.layout == NCHW:
        pixels = PixelGeometry(op, config.columns, config.tile_k)
        writer = writer_of(pixels, pixels.problem(), spec, config)
        return nchw.program(op, pixels, writer.kernel(), writer.partials, config)
    g = Geometry(op, config.columns, config.tile_k, by_tap=config.by_tap)
    p = g.problem()
    writer = writer_of(g, p, spec, config)
    kernels = [writer.kernel()]
    tensors = [p.a.tensor, p.b.tensor, p.c, *([writer.partials] if writer.partials is not None else [])]
    if config.reordered:
        w = p.b.tensor
        tensors += [reorder.ordered(w), *reorder.lines(w)]
        names = {tensor.name: tensor for tensor in tensors} | {w.name: reorder.ordered(w)}
        kernels = [reorder.kernel(w), on_tensors(kernels[0], names, kernels[0].name)]
    settings = {"config": config, "stored": {"x": g.windows}}
    return Program(str(op), tuple(tensors), tuple(kernels), str(config), settings)


def writer_of(g: Geometry, p: Problem, spec: GpuSpec, config: ImplicitConfig) -> ImplicitWriter:
    """Who writes the kernel of a configuration. InputError where the machine cannot take it."""
    config.check(p, spec)
    return ImplicitWriter(g, p, spec, config, config.inner(p, spec))


def _candidates(
    op: Conv2d, spec: GpuSpec, f: Figures, more: Sequence[_Tile] = ()
) -> Iterator[tuple[ImplicitConfig, Work]]:
    """Configurations that fit, with their counts. more: tiles of tensor cores beside those of a product."""
    yield from candidates(partial(Geometry, op), op.output[1], spec, f, more)


def _libraries_too(op: Conv2d, spec: GpuSpec, f: Figures) -> Iterator[tuple[ImplicitConfig, int]]:
    """Configurations that can be asked for, with estimated times: those of a library are among them."""
    plain = list(_estimated(_candidates(op, spec, f, _eight_warps()), f))
    yield from plain
    yield from _by_tap(op, spec, f)
    yield from _reordered(op, spec, plain)


def _estimated(found: Iterable[tuple[ImplicitConfig, Work]], f: Figures) -> Iterator[tuple[ImplicitConfig, int]]:
    """Configurations with estimated times in place of their counts."""
    return ((config, estimate_ps(work, f)) for config, work in found)


def _by_tap(op: Conv2d, spec: GpuSpec, f: Figures) -> Iterator[tuple[ImplicitConfig, int]]:
    """Configurations on tensor cores whose steps have channels of one column of the filter."""
    for columns in _groups(op.output[1]):
        geometry = partial(Geometry, op, columns, by_tap=True)
        draft = geometry(mma.STEP_BYTES // DTYPE_BYTES[op.chosen_dtype]).problem()
        if _on_tensor_cores(spec, draft):
            yield from _estimated(_mma(spec, f, geometry, draft, _eight_warps()), f)


def _reordered(
    op: Conv2d, spec: GpuSpec, found: Sequence[tuple[ImplicitConfig, int]]
) -> Iterator[tuple[ImplicitConfig, int]]:
    """Configurations on tensor cores behind a kernel that brings the filters in order."""
    for config, time_ps in found:
        if config.on_tensor_cores:
            w = Geometry(op, config.columns, config.tile_k).problem().b.tensor
            yield replace(config, reordered=True), time_ps + reorder.time_ps(w, spec)  # type: ignore[arg-type]


def candidates(
    geometry: Callable[[int, int], Geometry], across: int, spec: GpuSpec, f: Figures, more: Sequence[_Tile] = ()
) -> Iterator[tuple[ImplicitConfig, Work]]:
    """Configurations that fit what `geometry` makes of columns and `tile_k`, with their counts.

    across: neighbours of a row. more: tiles of tensor cores beside those of a product.
    """
    for columns in _groups(across):
        problem = partial(geometry, columns)
        width = DTYPE_BYTES[problem(SHORT_STEP).problem().dtype]
        draft = problem(mma.STEP_BYTES // width).problem()
        if _on_tensor_cores(spec, draft):
            yield from _mma(spec, f, problem, draft, more)
        if simt.available(spec, draft.dtype, draft.acc):
            yield from _simt(spec, f, problem, width)


def _groups(across: int) -> Iterator[int]:
    """Widths of a group of neighbours in a row of `across`: a wider one than need be adds rows without results."""
    fewest = min(ceil_div(across, columns) * columns for columns in GROUPS)
    yield from (columns for columns in GROUPS if ceil_div(across, columns) * columns <= 1.5 * fewest)


def _on_tensor_cores(spec: GpuSpec, draft: Problem) -> bool:
    """Whether the machine's tensor cores take the format."""
    return any(spec.has_instruction("mma", draft.dtype, shape) for shape in mma.SHAPES.get(draft.dtype, ()))


def _eight_warps() -> tuple[_Tile, ...]:
    """Tiles of cuDNN's kernels for Volta and Turing."""
    return libraries.rows(CUDNN, "eight_warps")


def _mma(
    spec: GpuSpec, f: Figures, geometry: Callable[[int], Geometry], draft: Problem, more: Sequence[_Tile]
) -> Iterator[tuple[ImplicitConfig, Work]]:
    width = DTYPE_BYTES[draft.dtype]
    asynchronous = spec.cp_async is not None and min(draft.a.vector_bytes, draft.b.vector_bytes) >= 4
    copy = "cp.async" if asynchronous else "ldg"
    core = mma.TensorCore(spec, draft.dtype, copy)
    small = libraries.rows(CUDNN, "small_tiles") if asynchronous else ()
    for tile_m, tile_n, warp_m, warp_n, stages in (*gemms.cutlass_tiles(), *more, *small):
        for steps in (1, 2) if asynchronous else (1,):
            tile_k = steps * mma.STEP_BYTES // width
            g = geometry(tile_k)
            config = ConvMmaConfig(
                tile_m, tile_n, tile_k, warp_m, warp_n, max(3, stages // steps) if asynchronous else 2, copy,
                columns=g.columns, by_tap=g.by_tap,
            )  # fmt: skip
            p = g.problem()
            resident = max(1, config.resident(p, spec, core))
            try:
                config.check(p, spec)
            except InputError:
                continue
            yield from _cuts(g, p, config, config.counts(p, f, core, resident))


def _simt(
    spec: GpuSpec, f: Figures, geometry: Callable[[int], Geometry], width: int
) -> Iterator[tuple[ImplicitConfig, Work]]:
    whole = geometry(simt.STEP_BYTES // width)
    short = geometry(SHORT_STEP)
    for g, (tile_m, tile_n, warp_m, warp_n, _) in itertools.product((whole, short), gemms.simt_tiles()):
        if g is short and g.gemm.k >= whole.gemm.k:
            continue
        config = ConvSimtConfig(tile_m, tile_n, g.tile_k, warp_m, warp_n, columns=g.columns)
        p = g.problem()
        vector = config.inner(p, spec)
        resident = max(1, config.resident(p, spec, vector))
        try:
            config.check(p, spec)
        except InputError:
            continue
        yield from _cuts(g, p, config, config.counts(p, f, vector, resident))


def _cuts(g: Geometry, p: Problem, config: ImplicitConfig, work: Work) -> Iterator[tuple[ImplicitConfig, Work]]:
    """A configuration whole and with its sum cut, with what is read of X, whose windows overlap."""
    read = g.values * DTYPE_BYTES[p.dtype]
    work = work._replace(operand_bytes=read, round_bytes=work.round_bytes * read // work.operand_bytes)
    yield config, work
    for split in gemms.SPLITS[1:]:
        if work.ctas * split > work.resident or work.steps // split < gemms.LEAST_SPLIT_STEPS:
            return
        yield replace(config, split=split), work._replace(cuts=split, ctas=work.ctas * split)
