"""The GEMM main loop of Volta to Ampere: every warp copies its share of the operands and multiplies (CUTLASS 2.x).

Two ways of copying: `ldg` fetches the next k step to registers while the current one is multiplied and stores it to
the other of two shared buffers (Volta, Turing, and operands whose rows are not aligned); `cp.async` keeps
`stages` - 1 steps in flight past the registers (Ampere).

Within a step the fragments of the next part are read from shared memory while the current part is multiplied: part
by part, each an op, or, where the inner loop is one stream of multiplies and loads (`Inner.streams`), in one op a step.
Such a loop multiplies the last part of a step after the barrier, while it reads the first of the next.

What multiplies is an `Inner` (`workloads.gpu.gemm.mma`, `workloads.gpu.gemm.simt`), which a configuration names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Op,
    Program,
    RegisterTile,
    RoleBuilder,
    SharedTile,
    View,
    maximum,
)
from workloads.gpu import overhead
from workloads.gpu.configuration import Word
from workloads.gpu.gemm import epilogue, splitk
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import Figures, Work, round_shape, together, transfer
from workloads.gpu.gemm.fixup import ADDS, Fixup, Piece, fetches, owner_only, scratch
from workloads.gpu.gemm.plan import Plan, Tile, Unit, stream_tiles
from workloads.gpu.gemm.problem import (
    MAX_VECTOR_BYTES,
    Operand,
    Problem,
    add,
    ceil_div,
    multiply_add,
    problem,
    row_alignment,
    shared_sectors,
    without_scales,
)
from workloads.gpu.overhead import Mix, Overhead
from workloads.gpu.pointwise import lanes
from workloads.ops import Gemm
from workloads.registry import register

WARP_SIZE = 32
LINE_BYTES = 128
RESULT_COLUMNS = 32
"""Columns of C that a warp fetches at once where it adds to them."""
MOST_REGISTERS = 255
"""Of a thread, that instructions can name (CUDA C++ Programming Guide, compute capability 3.5 and later)."""
PRODUCT_COLUMNS = 8
"""Columns of one product of the tensor cores, of every shape."""


@dataclass(frozen=True)
class ThreadblockConfig(GemmConfig):
    """One kernel whose warps copy and multiply: its tiles, and how they are dealt.

    tile_m, tile_n, tile_k: output tile of a CTA, and values of k in one step.
    warp_m, warp_n: output tile of a warp.
    stages: shared buffers of an operand.
    copy: how operands come to shared memory, `ldg` or `cp.async`.
    group: tiles along one direction that are done together; 1 is the order of launch, along n, where the result is
        contiguous.
    split: pieces of k of each tile.
    reduce: a second kernel adds the pieces; without, the tile's owner does.
    stream_k: the tiles of the last wave are cut evenly over all CTAs.
    groups_of_rows: a group is always one of rows of tiles; without, groups run across the shorter side.
    reuse: with one buffer less, cp.async writes to the one that the current step has just read, behind a barrier for
        each operand.
    """

    groups_of_rows: ClassVar[bool] = False
    reuse: ClassVar[bool] = False
    copies_ahead: ClassVar[bool] = True
    """Whether its kernels can copy by cp.async."""
    step_bytes: ClassVar[int]
    """Bytes of k in one step where a schedule's text does not say it."""
    most_warp_m: ClassVar[int]
    """Rows of a warp's tile at most, where a schedule's text does not say it."""

    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("tile_m", "tile_n", "tile_k"),
        Word(("warp_m", "warp_n"), "warp"),
        Word(("copy",), among=("ldg", "cp.async")),
        Word.number("stages"),
        Word.number("group", 8),
        Word.number("split", 1),
        Word.flag("reduce"),
        Word.flag("stream-k", "stream_k"),
    )

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int = 2
    copy: str = "ldg"
    group: int = 8
    split: int = 1
    reduce: bool = False
    stream_k: bool = False

    @property
    def buffers(self) -> int:
        """Shared buffers of an operand."""
        return self.stages - 1 if self.reuse else self.stages

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)

    @property
    def accumulators(self) -> int:
        """Accumulator registers of a thread."""
        return self.warp_m * self.warp_n // WARP_SIZE

    @property
    def asynchronous(self) -> bool:
        """Whether operands are copied past the registers."""
        return self.copy == "cp.async"

    def inner(self, p: Problem, spec: GpuSpec) -> Inner:
        """What the warps do; InputError where the machine cannot do it."""
        raise NotImplementedError

    def resident(self, p: Problem, spec: GpuSpec, inner: Inner) -> int:
        """CTAs that the chip holds at once; 0 where not even one fits an SM."""
        used = registers(p, self, inner)
        if used > spec.sm.max_registers_per_thread:
            return 0
        return resident_ctas(spec, self.warps, used, operand_bytes(p, self, inner))

    def counts(self, p: Problem, f: Figures, inner: Inner, resident: int) -> Work:
        """Counts for the estimate, of what `inner` and `resident` have given."""
        return work(p, f, self, inner, resident)

    def work(self, p: Problem, spec: GpuSpec, f: Figures) -> Work:
        """Counts for the estimate."""
        inner = self.inner(p, spec)
        return self.counts(p, f, inner, self.resident(p, spec, inner))

    @classmethod
    def completed(cls, fields: dict[str, Any], p: Problem, spec: GpuSpec) -> dict[str, Any]:
        """The fields with the k step, the warps' tiles and the stages, where they are not said."""
        asynchronous = cls.copies_ahead and spec.cp_async is not None
        whole = {
            "tile_k": cls.step_bytes // DTYPE_BYTES[p.dtype],
            "warp_m": min(cls.most_warp_m, fields["tile_m"]),
            "warp_n": min(64, fields["tile_n"]),
            "copy": "cp.async" if asynchronous else "ldg",
        } | fields
        return {"stages": 3 if whole["copy"] == "cp.async" else 2} | whole


class Inner(Protocol):
    """What a warp does with a part of a k step that is in shared memory."""

    part_k: int
    """Elements of k of one part."""
    step: Overhead
    """Instructions of a k step beside loads, stores and multiplies."""
    per_copy: Overhead
    """Further ones for each copy instruction."""
    per_part: Overhead | None
    """For each load of less than 16 B beyond the first of 16, among the multiplies; None: each is a copy by itself."""
    setup: Overhead
    """Before the main loop."""
    epilogue: Overhead
    """After it."""
    extra_registers: int
    """Registers of a thread beside accumulators, fragments and prefetched elements."""
    macs: int
    """Multiply-accumulates of one warp instruction."""
    interval: float
    """Cycles of a sub-core's pipe that it takes."""
    held_values: int
    """Neighbouring values of a row of the result that one thread holds."""
    streams: bool
    """Whether a step is one stream of multiplies and loads."""
    scales: bool
    """Whether the result is multiplied by alpha."""
    moves: bool
    """Whether a move for each register brings the first fragments of the next step where that step has them."""
    widened: str | None
    """Format of operands in shared memory and beyond, where it is not their own."""

    def shared_shape(self, operand: Operand, rows: int, depth: int) -> tuple[tuple[int, int], int, int]:
        """Shape, swizzle and padding in bytes of an operand's shared tile."""
        ...

    def transposed(self, operand: Operand) -> bool:
        """Whether the shared tile holds the operand in the other order than global memory."""
        ...

    def fragment_bytes(self, warp_m: int, warp_n: int, depth: int) -> int:
        """Bytes that one warp reads from shared memory in `depth` of k."""
        ...

    def store_bytes(self, operand: Operand) -> int:
        """Bytes a thread writes at once when it stores an operand from registers to shared memory."""
        ...

    def clear(self, r: RoleBuilder, acc: RegisterTile) -> None:
        """Zeroes the accumulators, where the multiply cannot start from zero by itself."""
        ...

    def fragment_registers(self, warp_m: int, warp_n: int) -> int:
        """Registers of a thread that hold the fragments of one part."""
        ...

    def load(self, src: View, k_major: bool) -> Op:
        """The loads of a fragment from `src`, a part of a shared tile: rows by k if `k_major`, else k by rows."""
        ...

    def multiply(
        self, r: RoleBuilder, acc: View, srcs: tuple[View, ...], depth: int, accumulate: IntLike, **fields: Any
    ) -> None:
        """acc += a product of depth `depth` of `srcs`; `accumulate` is 0 where acc starts from zero.

        fields: further ones of the op, its `compute` among them.
        """
        ...


def resident_ctas(spec: GpuSpec, warps: int, registers: int, shared_bytes: int) -> int:
    """CTAs that the chip holds at once; 0 where not even one fits an SM."""
    granule = spec.sm.register_granule
    per_cta = ceil_div(registers * WARP_SIZE, granule) * granule * warps
    step = spec.shared.granule_bytes
    shared = ceil_div(shared_bytes + spec.shared.reserved_per_cta_bytes, step) * step
    if shared_bytes > spec.shared.max_per_cta_bytes:
        return 0
    limits = (
        spec.sm.max_warps // warps, spec.sm.registers // per_cta, spec.sm.max_ctas,
        spec.shared.max_per_sm_bytes // shared if shared else spec.sm.max_ctas,
    )  # fmt: skip
    return min(limits) * spec.sm.count


def prefetch_registers(p: Problem, config: ThreadblockConfig) -> int:
    """Registers of a thread that hold the next k step on its way to shared memory."""
    if config.copy != "ldg":
        return 0
    step = (config.tile_m + config.tile_n) * config.tile_k * DTYPE_BYTES[p.dtype]
    return ceil_div(step, 4 * WARP_SIZE * config.warps)


def registers(p: Problem, config: ThreadblockConfig, inner: Inner) -> int:
    """Registers of a thread: with the fragments of two parts, or of as much of the second as instructions can name.

    Kernels of cuBLAS in 160x128x32 with four warps have 254 in a profile of A800, those in 96x128x32 have 196: here 255
    and 190.
    """
    fragments = inner.fragment_registers(config.warp_m, config.warp_n)
    words = max(1, DTYPE_BYTES[p.acc] // 4)
    least = config.accumulators * words + fragments + prefetch_registers(p, config) + inner.extra_registers
    return max(least, min(least + fragments, MOST_REGISTERS))


def operand_bytes(p: Problem, config: ThreadblockConfig, inner: Inner) -> int:
    """Shared memory of one CTA."""
    total = 0
    for operand, rows in ((p.a, config.tile_m), (p.b, config.tile_n)):
        shape, _, pad = inner.shared_shape(operand, rows, config.tile_k)
        total += shape[0] * (shape[1] * DTYPE_BYTES[inner.widened or operand.dtype] + pad) * config.buffers
    return total


def plan(p: Problem, spec: GpuSpec, config: ThreadblockConfig, inner: Inner) -> Plan:
    """Tiles and CTAs."""
    tiles_m, tiles_n = ceil_div(p.m, config.tile_m), ceil_div(p.n, config.tile_n)
    tiles, steps = tiles_m * tiles_n * p.batch, ceil_div(p.k, config.tile_k)
    workers, shared_tiles = tiles, 0
    if config.split > 1:
        shared_tiles, workers = tiles, min(tiles * config.split, tiles * steps)
    elif config.stream_k:
        resident = resident_ctas(spec, config.warps, registers(p, config, inner), operand_bytes(p, config, inner))
        shared_tiles = stream_tiles(tiles, resident)
        if shared_tiles:
            workers = min(resident, shared_tiles * steps)
    along_n = tiles_m < tiles_n and config.group > 1 and not config.groups_of_rows
    return Plan(tiles_m, tiles_n, p.batch, steps, workers, shared_tiles, config.group, along_n)


def check(p: Problem, spec: GpuSpec, config: ThreadblockConfig, inner: Inner, where: str) -> None:
    """InputError if the machine or the problem cannot take this configuration."""
    without_scales(p, where)
    epilogue.check(p, spec, where)
    for name, tile, warp in (("m", config.tile_m, config.warp_m), ("n", config.tile_n, config.warp_n)):
        if warp < 1 or tile < 1 or tile % warp:
            nearest = max(1, round(tile / max(1, warp))) * max(1, warp)
            raise InputError(f"{where}: tile {name} = {tile} is no multiple of the warp's {warp}; nearest: {nearest}")
    # Fragments of two parts take turns, so that the first part of a step always finds the same registers.
    pair = 2 * inner.part_k
    if config.tile_k < 1 or config.tile_k % pair:
        nearest = max(1, round(config.tile_k / pair)) * pair
        raise InputError(f"{where}: tile k = {config.tile_k} must be a multiple of {pair}, nearest: {nearest}")
    if config.copy not in ("ldg", "cp.async"):
        raise InputError(f"{where}: copy {config.copy} is unknown; one of ldg, cp.async")
    if config.copy == "cp.async" and spec.cp_async is None:
        raise InputError(f"{where}: {spec.name} has no cp.async; nearest: ldg stages 2")
    if config.copy == "ldg" and config.stages != 2:
        raise InputError(f"{where}: copies through registers use two buffers; nearest: stages 2")
    if config.copy == "cp.async" and config.stages < 2:
        raise InputError(f"{where}: stages {config.stages}: at least 2")
    if config.copy == "cp.async":
        for operand in (p.a, p.b):
            if operand.vector_bytes < 4:
                raise InputError(
                    f"{where}: rows of {operand.tensor.name} start at multiples of {operand.vector_bytes} B, "
                    "cp.async copies 4 B or more; nearest: ldg stages 2"
                )
            if inner.transposed(operand):
                raise InputError(f"{where}: cp.async cannot transpose {operand.tensor.name}; nearest: ldg stages 2")
    if config.split < 1 or (config.split > 1 and config.stream_k):
        raise InputError(f"{where}: split must be at least 1, and 1 with stream-k")
    if config.reduce and config.split < 2:
        raise InputError(f"{where}: reduce adds pieces of k, there is one; nearest: split 2 reduce")
    if p.acc not in ADDS and (config.split > 1 or config.stream_k or p.op.adds):
        raise InputError(
            f"{where}: nothing adds sums of {p.acc} there; nearest: beta=0, and neither split nor stream-k"
        )
    threads = config.warps * WARP_SIZE
    if threads > spec.sm.max_threads_per_cta:
        raise InputError(f"{where}: {threads} threads a CTA, {spec.name} has {spec.sm.max_threads_per_cta}")
    used = registers(p, config, inner)
    if used > spec.sm.max_registers_per_thread:
        raise InputError(
            f"{where}: {used} registers a thread, {spec.name} has {spec.sm.max_registers_per_thread}; "
            "nearest: smaller warp tiles"
        )
    size = operand_bytes(p, config, inner)
    if size > spec.shared.max_per_cta_bytes:
        fits = spec.shared.max_per_cta_bytes // (size // config.buffers) + config.stages - config.buffers
        raise InputError(
            f"{where}: {size} B of shared memory, {spec.name} has {spec.shared.max_per_cta_bytes} B a CTA; "
            f"nearest: stages {fits}"
        )
    if resident_ctas(spec, config.warps, used, size) < 1:
        raise InputError(f"{where}: one CTA does not fit an SM of {spec.name}; nearest: smaller tiles")


@register("gemm", "gpu", "mma", "simt", "triton")
def build(op: Gemm, spec: GpuSpec, config: ThreadblockConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where the configuration's `check` does."""
    p = problem(op)
    config.check(p, spec)
    writer = Writer(p, spec, config, config.inner(p, spec))
    tensors, kernels = [p.a.tensor, p.b.tensor, *p.finish, p.c], [writer.kernel()]
    if writer.partials is not None:
        tensors.append(writer.partials)
    if config.reduce:
        assert writer.partials is not None
        kernels.append(splitk.reduction(p, spec, writer.partials))
    return Program(str(op), tuple(tensors), tuple(kernels), str(config), {"config": config})


@dataclass(frozen=True)
class Copy:
    """Copying of one operand.

    The shared tile holds `memory_rows` rows of memory, side by side in blocks of `columns`. Each of `warps` warps
    copies `pieces` boxes of `rows` rows of one block, with `count` instructions each; `buffer` holds them for `ldg`.
    extent: rows of the operand in the CTA's tile.
    """

    operand: Operand
    tile: SharedTile
    extent: int
    memory_rows: int
    blocks: int
    columns: int
    warps: int
    pieces: int
    rows: int
    count: int
    buffer: RegisterTile

    def share(self, piece: int) -> Expr:
        """First row of this warp's box number `piece`, blocks one below the other."""
        return (WARP * self.pieces + piece) * self.rows

    def place(self, row: IntLike, column: IntLike) -> tuple[IntLike, IntLike]:
        """Row and column of the shared tile for an element given in rows and columns of memory."""
        if self.blocks == 1:
            return row, column
        return column // self.columns * self.memory_rows + row, column % self.columns


@dataclass(frozen=True)
class _Piece:
    """A box of a shared tile: its place and size among the rows and along k of a warp's operand."""

    row: int
    rows: int
    k: int
    depth: int
    view: View


def _assembled(pieces: Sequence[_Piece], values: Sequence[np.ndarray]) -> np.ndarray:
    """An operand, rows by k, from the values of its pieces."""
    last = pieces[-1]
    out = np.empty((last.row + last.rows, last.k + last.depth), dtype=values[0].dtype)
    for piece, value in zip(pieces, values, strict=True):
        out[piece.row : piece.row + piece.rows, piece.k : piece.k + piece.depth] = value
    return out


def _streamed_product(a: Sequence[_Piece], b: Sequence[_Piece]) -> Callable[..., np.ndarray]:
    """The meaning of a streamed step: operands in pieces of shared memory, then the fragments held back, if any."""

    def compute(acc: np.ndarray, *values: np.ndarray) -> np.ndarray:
        split, end = len(a), len(a) + len(b)
        held = values[end:]
        first = held[0] @ held[1].T if held else 0
        return acc + first + _assembled(a, values[:split]) @ _assembled(b, values[split:end]).T

    return compute


def _times(mix: Mix, times: int) -> Mix:
    """The instructions of a mix so many times."""
    return tuple((name, count * times) for name, count in mix)


def _parts(inner: Inner, loads: int, vector: int) -> tuple[int, Overhead]:
    """Of loads of `vector` bytes: how many copies they are parts of, and what they take beside these, among the
    multiplies."""
    if inner.per_part is None:
        return loads, Overhead(0)
    copies = ceil_div(loads * vector, MAX_VECTOR_BYTES)
    parts = Overhead(0).plus(inner.per_part, loads - copies)
    return copies, parts.plus(overhead.PACK_PAIR, loads // 2) if vector < 4 else parts


def _code_bytes(c: ThreadblockConfig, inner: Inner) -> int:
    """Machine code: set-up, the unrolled k step, epilogue."""
    multiplies = c.warp_m * c.warp_n * c.tile_k // inner.macs
    # CUTLASS: 434 + 162 + 499 for 128x128x32, 515 + 273 + 499 for 128x256x64 (sm_80), 313 + 240 + 619 (sm_75).
    instructions = 450 + multiplies + 35 * (c.tile_k // inner.part_k) + 4 * c.accumulators
    return instructions * overhead.INSTRUCTION_BYTES


class Writer:
    """Writes the kernel; one method a part of it.

    together: rows that lie evenly apart in memory, of a tile of A and of the result; a copy's box has no more, and
    their number divides it. 0: all rows do.
    """

    together = 0

    def __init__(self, p: Problem, spec: GpuSpec, config: ThreadblockConfig, inner: Inner) -> None:
        self.p, self.spec, self.config, self.inner = p, spec, config, inner
        self.plan = plan(p, spec, config, inner)
        c = config
        self.registers = registers(p, c, inner)
        self.k = KernelBuilder(
            f"gemm_{c}".replace(" ", "_"), (self.plan.workers, 1, 1), code_bytes=_code_bytes(config, inner),
            flags=0 if config.reduce else self.plan.shared_tiles,
        )  # fmt: skip
        self.copies = (self._copy("a", p.a, c.tile_m), self._copy("b", p.b, c.tile_n))
        self.acc = RegisterTile("acc", (c.warp_m, c.warp_n), p.acc)
        self.fragments = [
            (
                RegisterTile(f"a{i}", (c.warp_m, inner.part_k), inner.widened or p.dtype),
                RegisterTile(f"b{i}", (c.warp_n, inner.part_k), inner.widened or p.dtype),
            )
            for i in range(1 if inner.streams else 2)
        ]
        self.pieces = self.plan.workers // self.plan.tiles
        if c.reduce:
            self.partials: GlobalTensor | None = splitk.parts(p, self.pieces)
        else:
            self.partials = scratch(self.plan, 1, c.tile_m, c.tile_n, p.acc)
        self.parts = c.tile_k // inner.part_k
        across = c.tile_m // c.warp_m
        self.row, self.col = WARP % across * c.warp_m, WARP // across * c.warp_n

    def _copy(self, name: str, operand: Operand, extent: int) -> Copy:
        c = self.config
        shape, swizzle, pad = self.inner.shared_shape(operand, extent, c.tile_k)
        tile = self.k.shared(name, shape, self.inner.widened or operand.dtype, c.buffers, swizzle, pad)
        memory_rows, columns = operand.tile_shape(extent, c.tile_k)
        blocks = 1
        if not self.inner.transposed(operand):
            blocks, columns = columns // shape[1], shape[1]
        # All warps share the rows; fewer do where there are fewer rows than warps. A box stays within its block.
        warps = c.warps
        while memory_rows * blocks % warps:
            warps -= 1
        each = memory_rows * blocks // warps
        rows = math.gcd(each, memory_rows, self.copied_together(operand))
        count = ceil_div(rows * columns * DTYPE_BYTES[operand.dtype], WARP_SIZE * operand.vector_bytes)
        buffer = RegisterTile(f"next_{name}", (each, columns), operand.dtype)
        return Copy(operand, tile, extent, memory_rows, blocks, columns, warps, each // rows, rows, count, buffer)

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        with self.k.role("warps", self.config.warps, self.registers) as r:
            self.inner.setup.write(r)
            with self.plan.units(r, CTA_X) as piece:
                unit = self._resolved(r, piece)
                self._main_loop(r, unit)
                if self.config.reduce:
                    self._store_part(r, unit)
                else:
                    self._finish(r, unit)
                if self.config.stream_k:
                    # The next tile's copies overwrite buffers that slower warps still use.
                    r.bar_sync(0, self.config.warps)
        return self.k.build()

    def _finish(self, r: RoleBuilder, unit: Unit) -> None:
        """The result of a whole tile; of a piece its sums, which the tile's owner adds to its own."""
        pieces = [Piece(self.acc, self.row, self.col)]
        if self.partials is not None:
            fixup = Fixup(self.partials, CTA_X, 1, unit.tile_index, self.config.warps)
            fixup.store(r, unit, pieces)
        with owner_only(r, unit):
            if self.partials is not None:
                fixup.add(r, unit, pieces)
            self._epilogue(r, unit)

    def _store_part(self, r: RoleBuilder, unit: Unit) -> None:
        """The sums of a piece, for the second kernel."""
        c, width = self.config, DTYPE_BYTES[self.p.acc]
        assert self.partials is not None
        self.inner.epilogue.write(r)
        row, col = unit.tile.m * c.tile_m + self.row, unit.tile.n * c.tile_n + self.col
        vector = max(width, min(row_alignment(self.partials), self.inner.held_values * width))
        count = ceil_div(c.warp_m * c.warp_n * width, WARP_SIZE * vector)
        box = self.partials[CTA_X % self.pieces, unit.tile.batch, row : c.warp_m, col : c.warp_n]  # type: ignore[misc]
        r.stg(box, self.acc.whole, count, vector_bytes=vector)

    @staticmethod
    def _resolved(r: RoleBuilder, unit: Unit) -> Unit:
        """The piece with its coordinates in registers: they are worked out once and not in every k step."""
        names = {
            "batch": unit.tile.batch,
            "tile_m": unit.tile.m,
            "tile_n": unit.tile.n,
            "k_begin": unit.k_begin,
            "k_trips": unit.k_trips,
        }
        known = {name: at if isinstance(at, Const) else r.assign(name, at) for name, at in names.items()}
        tile = Tile(known["batch"], known["tile_m"], known["tile_n"])
        return replace(unit, tile=tile, k_begin=known["k_begin"], k_trips=known["k_trips"])

    # --- copying

    def copied_together(self, operand: Operand) -> int:
        """Rows of an operand that lie evenly apart in memory, see `together`."""
        return self.together if operand is self.p.a else 0

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """What this warp's box number `piece` holds of global memory in the k step from `depth` on."""
        first = (unit.tile.m if copy.operand is self.p.a else unit.tile.n) * copy.extent
        share: Expr = copy.share(piece)
        row, column = (
            (share % copy.memory_rows, share // copy.memory_rows * copy.columns) if copy.blocks > 1 else (share, 0)
        )
        if copy.operand.k_major:
            row, column = first + row, depth + column
        else:
            row, column = depth + row, first + column
        return copy.operand.tensor[unit.tile.batch, row : copy.rows, column : copy.columns]  # type: ignore[misc]

    def _target(self, copy: Copy, stage: Expr, piece: int) -> View:
        """The same box of the shared tile, in the order of global memory."""
        share = copy.share(piece)
        if self.inner.transposed(copy.operand):
            return copy.tile[stage, 0 : copy.columns, share : copy.rows].T  # type: ignore[misc]
        return copy.tile[stage, share : copy.rows, 0 : copy.columns]  # type: ignore[misc]

    def _fetch(self, r: RoleBuilder, unit: Unit, k: Expr, stage: Expr, pointers: str = "") -> None:
        """Starts the copies of k step `k` of this piece, to registers or (cp.async) to buffer `stage`. pointers: the
        scoreboard that says when the copies of A have read theirs."""
        depth = (unit.k_begin + k) * self.config.tile_k
        for copy in self.copies:
            vector = copy.operand.vector_bytes
            whole, _ = _parts(self.inner, copy.count, vector)
            mix = overhead.mix(alu=self.inner.per_copy.alu * whole)
            with self._copying(r, copy):
                for piece in range(copy.pieces):
                    src = self.source(copy, unit, depth, piece)
                    if self.config.copy == "cp.async":
                        into = pointers if copy.operand is self.p.a else ""
                        target = self._target(copy, stage, piece)
                        r.cp_async(target, src, copy.count, vector_bytes=vector, mix=mix, into=into)
                    else:
                        dst = copy.buffer[piece * copy.rows : copy.rows, :]
                        r.ldg(dst, src, copy.count, into=copy.buffer.name, vector_bytes=vector, mix=mix)

    def _stash(self, r: RoleBuilder, stage: Expr) -> None:
        """Registers to buffer `stage`."""
        for copy in self.copies:
            vector = self.inner.store_bytes(copy.operand)
            count = ceil_div(copy.rows * copy.columns * DTYPE_BYTES[copy.tile.dtype], WARP_SIZE * vector)
            with self._copying(r, copy):
                held, arrived = copy.buffer, (copy.buffer.name,)
                if self.inner.widened is not None:
                    held = replace(held, name=f"wide_{held.name}", dtype=self.inner.widened)
                    self._widen(r, copy, held)
                for piece in range(copy.pieces):
                    src = held[piece * copy.rows : copy.rows, :]
                    after = arrived if piece == 0 and held is copy.buffer else ()
                    r.sts(self._target(copy, stage, piece), src, count, vector_bytes=vector, after=after)

    def _widen(self, r: RoleBuilder, copy: Copy, held: RegisterTile) -> None:
        """What has arrived, to the format in which it is multiplied."""
        cost = lanes.scaled(lanes.widen(copy.operand.dtype), math.prod(held.shape) / WARP_SIZE)
        after, srcs = (copy.buffer.name,), (copy.buffer.whole,)
        lanes.write(r, self.spec, cost, dst=held.whole, srcs=srcs, compute=lanes.keep, after=after)

    def _copying(self, r: RoleBuilder, copy: Copy) -> AbstractContextManager[None]:
        return nullcontext() if copy.warps == self.config.warps else r.when(copy.warps > WARP)

    # --- main loop

    def _pieces(self, copy: Copy, row: Expr, rows: int, k: int, depth: int, stage: Expr) -> list[_Piece]:
        """The part of a shared tile that holds `rows` by `depth` elements, in boxes that stay within its blocks."""
        k_major = self._shared_k_major(copy)
        high, deep = rows, depth
        if copy.blocks > 1 and k_major:
            deep = math.gcd(depth, copy.columns)
        elif copy.blocks > 1:
            high = math.gcd(rows, copy.columns)
        pieces = []
        for i in range(0, rows, high):
            for j in range(0, depth, deep):
                if k_major:
                    at, column = copy.place(row + i, k + j)
                    view = copy.tile[stage, at:high, column:deep]  # type: ignore[misc]
                else:
                    at, column = copy.place(k + j, row + i)
                    view = copy.tile[stage, at:deep, column:high]  # type: ignore[misc]
                pieces.append(_Piece(i, high, j, deep, view))
        return pieces

    def _shared_k_major(self, copy: Copy) -> bool:
        """Whether the rows of the shared tile run along k."""
        return copy.operand.k_major != self.inner.transposed(copy.operand)

    def _load_fragments(self, r: RoleBuilder, part: int, stage: Expr) -> None:
        """One part of a step to its set of registers."""
        depth, k = part * self.inner.part_k, self.inner.part_k
        fragments = self.fragments[part % len(self.fragments)]
        for copy, fragment, row in zip(self.copies, fragments, (self.row, self.col), strict=True):
            k_major = self._shared_k_major(copy)
            for piece in self._pieces(copy, row, fragment.shape[0], depth, k, stage):
                dst = fragment[piece.row : piece.rows, piece.k : piece.depth]  # type: ignore[misc]
                r.load(dst if k_major else dst.T, self.inner.load(piece.view, k_major))

    def _main_loop(self, r: RoleBuilder, unit: Unit) -> None:
        """Prologue: the first steps on their way. Then one k step a trip."""
        c = self.config
        if c.copy == "cp.async":
            for s in range(c.stages - 1):
                with r.when(unit.k_trips > s):
                    self._fetch(r, unit, Const(s), Const(s))
                r.cp_commit()
            r.cp_wait(c.stages - 2)
        else:
            self._fetch(r, unit, Const(0), Const(0))
            self._stash(r, Const(0))
        self.inner.clear(r, self.acc)
        r.bar_sync(0, c.warps)
        if self.inner.streams:
            self._streamed_loop(r, unit)
        else:
            self._loop_of_parts(r, unit)

    def _loop_of_parts(self, r: RoleBuilder, unit: Unit) -> None:
        """One k step a trip, part by part; the first fragments of the next step are read at the end of this one."""
        c, last = self.config, self.parts - 1
        self._load_fragments(r, 0, Const(0))
        with r.loop("k", unit.k_trips) as k:
            stage = k % c.buffers
            following = (k + 1) % c.buffers
            ahead = k + (c.stages - 1)
            for part in range(self.parts):
                accumulate = k > 0 if part == 0 else Const(1)
                if c.reuse and part >= last - 1:
                    (self._turn if part == last else self._refill)(r, unit, k, accumulate)
                    continue
                # What waits at the barrier cannot multiply: nothing of a part before one is left to do there.
                if c.reuse:
                    spread = self._share(6) if part + 1 == last - 1 else c.warp_n
                else:
                    spread = c.warp_n // 2 if part == last - 1 else c.warp_n
                mix: Mix = ()
                if part == last:
                    self._hand_over(r, following)
                    mix = self.inner.step.mix
                self._multiply(r, part, 0, spread, accumulate, spread=True, mix=mix)
                self._load_fragments(r, (part + 1) % self.parts, following if part == last else stage)
                if part == 0 and not c.reuse:
                    with r.when(ahead < unit.k_trips):
                        self._fetch(r, unit, ahead, ahead % c.buffers)
                self._multiply(r, part, spread, c.warp_n, accumulate)

    def _share(self, eighths: int) -> int:
        """Columns of some eighths of a warp's tile, in whole products."""
        return min(self.config.warp_n, ceil_div(eighths * self.config.warp_n, 8 * PRODUCT_COLUMNS) * PRODUCT_COLUMNS)

    def _refill(self, r: RoleBuilder, unit: Unit, k: Expr, accumulate: Expr) -> None:
        """The part of step `k` before its last, in which the buffer that is read in it is filled again.

        A barrier, multiplies with the last loads of fragments between them, a barrier, multiplies with the copies
        between them, as Triton's compiled loop has it. Pointers of the first operand go on when its copies have read
        them.
        """
        c, part, ahead = self.config, self.parts - 2, k + (self.config.stages - 1)
        cuts = [self._share(2 * count) for count in range(5)]
        r.bar_sync(0, c.warps)
        self._multiply(r, part, cuts[0], cuts[1], accumulate, spread=True)
        self._load_fragments(r, part + 1, k % c.buffers)
        self._multiply(r, part, cuts[1], cuts[2], accumulate)
        r.bar_sync(0, c.warps)
        self._multiply(r, part, cuts[2], cuts[3], accumulate, spread=True)
        with r.when(ahead < unit.k_trips):
            self._fetch(r, unit, ahead, ahead % c.buffers, pointers="pointers")
        self._multiply(r, part, cuts[3], cuts[4], accumulate, after=("pointers",))

    def _turn(self, r: RoleBuilder, unit: Unit, k: Expr, accumulate: Expr) -> None:
        """The last part of step `k`: the first fragments of the next step are read early and moved late, between
        multiplies, to the registers in which that step has them, as Triton's compiled loop has it."""
        c, part, following = self.config, self.parts - 1, (k + 1) % self.config.buffers
        cuts = [0, self._share(2), self._share(5), c.warp_n]
        self._hand_over(r, following)
        self._multiply(r, part, cuts[0], cuts[1], accumulate, spread=True, mix=self.inner.step.mix)
        self._load_fragments(r, 0, following)
        self._multiply(r, part, cuts[1], cuts[2], accumulate)
        moves = overhead.mix(alu=self.inner.fragment_registers(c.warp_m, c.warp_n) if self.inner.moves else 0)
        self._multiply(r, part, cuts[2], cuts[3], accumulate, mix=moves, moved=self.fragments[0])

    def _streamed_loop(self, r: RoleBuilder, unit: Unit) -> None:
        """One k step a trip, each one stream of multiplies and loads; the first and the last step stand alone.

        Copies through registers run one step ahead, so that all other steps fetch, without a question.
        """
        ahead = self.config.stages - 1
        with r.when(unit.k_trips > ahead):
            self._fetch(r, unit, Const(ahead), Const(ahead))
        self._stream(r, Const(0), held=False)
        with r.when(unit.k_trips > 1):
            self._hand_over(r, Const(1))
        if ahead == 1:
            with r.loop("k", maximum(unit.k_trips - 2, 0), 1) as k:
                self._fetch(r, unit, k + 1, (k + 1) % self.config.stages)
                self._stream(r, k, held=True)
                self._hand_over(r, (k + 1) % self.config.stages)
            with r.when(unit.k_trips > 1):
                self._stream(r, unit.k_trips - 1, held=True)
        else:
            with r.loop("k", unit.k_trips - 1, 1) as k:
                with r.when(k + ahead < unit.k_trips):
                    self._fetch(r, unit, k + ahead, (k + ahead) % self.config.stages)
                self._stream(r, k, held=True)
                self._hand_over(r, (k + 1) % self.config.stages)
        a, b = self.fragments[0]
        self.inner.multiply(r, self.acc.whole, (a.whole, b.whole.T), self.inner.part_k, Const(1), compute=multiply_add)

    def _stream(self, r: RoleBuilder, k: Expr, held: bool) -> None:
        """What the step before held back, then step `k` but for its last part, which is read and held back."""
        c, part_k = self.config, self.inner.part_k
        depth, stage = c.tile_k - part_k, k % c.stages
        a, b = (
            self._pieces(copy, row, rows, 0, depth, stage)
            for copy, row, rows in zip(self.copies, (self.row, self.col), (c.warp_m, c.warp_n), strict=True)
        )
        views, loads = [], []
        for copy, row, pieces in zip(self.copies, (self.row, self.col), (a, b), strict=True):
            k_major = self._shared_k_major(copy)
            views += [piece.view if k_major else piece.view.T for piece in pieces]
            for part in self._pieces(copy, row, pieces[-1].row + pieces[-1].rows, 0, part_k, stage):
                load = self.inner.load(part.view, k_major)
                loads.append(replace(load, count=load.count * (self.parts - 1), mix=_times(load.mix, self.parts - 1)))
        registers = [tile.whole for tile in self.fragments[0]] if held else []
        step = self.inner.step
        for copy in self.copies:
            step = step.plus(_parts(self.inner, copy.pieces * copy.count, copy.operand.vector_bytes)[1], 1)
        self.inner.multiply(
            r, self.acc.whole, (*views, *registers), depth + (part_k if held else 0), Const(int(held)),
            compute=_streamed_product(a, b), loads=tuple(loads), mix=step.mix,
        )  # fmt: skip
        self._load_fragments(r, self.parts - 1, stage)

    def _multiply(
        self, r: RoleBuilder, part: int, begin: int, end: int, accumulate: Expr,
        moved: tuple[RegisterTile, ...] = (), **fields: Any,
    ) -> None:  # fmt: skip
        """Columns `begin` to `end` of the warp tile, one part of a k step; nothing where there are none. moved: what
        the instructions of its mix move."""
        if begin == end:
            return
        a, b = self.fragments[part % 2]
        columns = end - begin
        srcs = (a.whole, b[begin:columns, :].T, *(tile.whole for tile in moved))
        self.inner.multiply(
            r, self.acc[:, begin:columns], srcs, self.inner.part_k, accumulate,
            compute=lambda acc, a, b, *_: multiply_add(acc, a, b), **fields,
        )  # fmt: skip

    def _hand_over(self, r: RoleBuilder, following: Expr) -> None:
        """The next step's operands are in buffer `following`, for all warps to see."""
        c = self.config
        if c.copy == "cp.async":
            r.cp_commit()
            r.cp_wait(c.stages - 2)
        else:
            self._stash(r, following)
        r.bar_sync(0, c.warps)

    # --- epilogue

    def result(self, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """A box of the result."""
        return self.p.c[unit.tile.batch, row:rows, col:cols]  # type: ignore[misc]

    def _add_result(self, r: RoleBuilder, row: Expr, col: Expr, unit: Unit) -> None:
        """beta = 1: what C holds is fetched a few columns at a time and added, as CUTLASS's epilogues do."""
        c, p = self.config, self.p
        old = RegisterTile("old", (c.warp_m, min(RESULT_COLUMNS, c.warp_n)), p.out)
        opcode, lane_adds = ADDS[p.acc]
        for j in range(0, c.warp_n, RESULT_COLUMNS):
            width = min(RESULT_COLUMNS, c.warp_n - j)
            elements = c.warp_m * width
            count = ceil_div(elements * DTYPE_BYTES[p.out], WARP_SIZE * p.c_vector_bytes)
            box, fetched = p.c[unit.tile.batch, row : c.warp_m, col + j : width], old[:, 0:width]  # type: ignore[misc]
            r.ldg(fetched, box, count, into="old", vector_bytes=p.c_vector_bytes)
            r.run(
                opcode, ceil_div(elements, WARP_SIZE * lane_adds), dtype=p.acc,
                dst=self.acc[:, j:width], srcs=(fetched,), compute=add, after=("old",),
            )  # fmt: skip

    def _epilogue(self, r: RoleBuilder, unit: Unit) -> None:
        c, p = self.config, self.p
        self.inner.epilogue.write(r)
        row, col = unit.tile.m * c.tile_m + self.row, unit.tile.n * c.tile_n + self.col
        if p.op.adds:
            self._add_result(r, row, col, unit)
        if self.inner.scales and p.acc == "fp32":
            r.run("fmul", c.accumulators, dtype="fp32")
        results = epilogue.results(p, self.acc)
        epilogue.finish(
            r, p, self.spec, self.acc.whole, results.whole, unit.tile.batch, (row, c.warp_m), (col, c.warp_n)
        )
        if convert := splitk.conversions(p, self.spec, c.accumulators):
            r.run("cvt", convert, dtype=p.out)
        width = DTYPE_BYTES[p.out]
        region = self._staging()
        if region is None:
            vector = max(width, min(p.c_vector_bytes, self.inner.held_values * width))
            rows = math.gcd(c.warp_m, self.together)
            count = ceil_div(rows * c.warp_n * width, WARP_SIZE * vector)
            for i in range(0, c.warp_m, rows):
                box = self.result(unit, row + i, rows, col, c.warp_n)
                r.stg(box, results[i:rows, :], count, vector_bytes=vector)
        else:
            r.bar_sync(0, c.warps)
            self._store_through_shared(r, unit, results, region, row, col)

    def _staging(self) -> tuple[int, int] | None:
        """Rows and columns that a warp can turn in its own part of the first operand's buffer; None: store directly.

        Only 2-byte results gain: threads that hold two neighbouring 4-byte ones fill 32 B sectors by themselves.
        """
        c, tile = self.config, self.copies[0].tile
        if DTYPE_BYTES[self.p.out] != 2 or tile.dtype != self.p.out:
            return None
        rows = tile.shape[0] // c.warps
        return (math.gcd(rows, c.warp_m, self.together), math.gcd(tile.shape[1], c.warp_n)) if rows else None

    def _store_through_shared(
        self, r: RoleBuilder, unit: Unit, results: RegisterTile, region: tuple[int, int], row: Expr, col: Expr
    ) -> None:
        """Box by box: fragments to shared memory, whole rows back, 16 bytes a thread to global memory."""
        c, p, tile = self.config, self.p, self.copies[0].tile
        rows, cols = region
        box_bytes = rows * cols * DTYPE_BYTES[p.out]
        staging = tile[0, WARP * (tile.shape[0] // c.warps) : rows, 0:cols]  # type: ignore[misc]
        out = RegisterTile("out", (rows, cols), p.out)
        vector = min(MAX_VECTOR_BYTES, p.c_vector_bytes)
        for i in range(0, c.warp_m, rows):
            for j in range(0, c.warp_n, cols):
                r.sts(staging, results[i:rows, j:cols], ceil_div(box_bytes, WARP_SIZE * 4), vector_bytes=4)
                r.lds(out.whole, staging, ceil_div(box_bytes, WARP_SIZE * MAX_VECTOR_BYTES), vector_bytes=16)
                box = self.result(unit, row + i, rows, col + j, cols)
                r.stg(box, out.whole, ceil_div(box_bytes, WARP_SIZE * vector), vector_bytes=vector)


def _stored_columns(p: Problem, c: ThreadblockConfig, inner: Inner) -> int:
    """Columns of a row of the result that an instruction stores."""
    width = DTYPE_BYTES[p.out]
    rows, columns = inner.shared_shape(p.a, c.tile_m, c.tile_k)[0]
    if width == 2 and (inner.widened or p.dtype) == p.out and rows >= c.warps:
        return min(math.gcd(columns, c.warp_n), WARP_SIZE * p.c_vector_bytes // width)
    return min(c.warp_n, WARP_SIZE * min(max(1, p.c_vector_bytes // width), inner.held_values))


def _lines(operand: Operand, rows: int, depth: int) -> int:
    """Lines of memory, whole or in part, that a k step reads of an operand, in blocks of a line at most; in the mean of
    all places within a line at which they begin."""
    long, across = (depth, rows) if operand.k_major else (rows, depth)
    width = DTYPE_BYTES[operand.dtype]
    begins = math.gcd(LINE_BYTES, long * width, *(width * stride for stride in operand.tensor.strides if stride != 1))
    blocks = ceil_div(long * width, LINE_BYTES)
    return across * (long * width + blocks * (LINE_BYTES - begins)) // LINE_BYTES


def work(p: Problem, f: Figures, c: ThreadblockConfig, inner: Inner, resident: int) -> Work:
    """Counts for the estimate."""
    interval = c.warp_m * c.warp_n * c.tile_k / inner.macs * inner.interval  # of a pipe, for one k step of one warp
    width, out_width = DTYPE_BYTES[p.dtype], DTYPE_BYTES[p.out]
    steps = ceil_div(p.k, c.tile_k)
    tiles_m, tiles_n = ceil_div(p.m, c.tile_m), ceil_div(p.n, c.tile_n)
    tiles = tiles_m * tiles_n * p.batch
    per_sub_core = ceil_div(c.warps, f.sub_cores)
    step_bytes = (c.tile_m + c.tile_n) * c.tile_k * width
    stored_bytes = step_bytes * DTYPE_BYTES[inner.widened or p.dtype] // width
    fragment_bytes = c.warps * inner.fragment_bytes(c.warp_m, c.warp_n, c.tile_k)
    vector = min(p.a.vector_bytes, p.b.vector_bytes)
    loads = step_bytes // (WARP_SIZE * c.warps * vector)
    copies, beside = _parts(inner, loads, vector)
    issue = c.warp_m * c.warp_n * c.tile_k // inner.macs + inner.step.alu + loads + beside.alu
    issue += copies * (1 + inner.per_copy.alu)
    shared = transfer(fragment_bytes + stored_bytes, f.shared_rate)
    busy = max(int(per_sub_core * interval), per_sub_core * issue, 0 if inner.streams else shared)
    sync = f.barrier + f.barrier_per_warp * c.warps
    barrier = sync + f.shared_latency
    # After the barrier all warps read their first fragments at once, and none multiplies before it has its own unless
    # it has held back some of the step before.
    bubble = barrier if inner.streams else barrier + transfer(fragment_bytes * inner.part_k // c.tile_k, f.shared_rate)
    bubble += 2 * sync if c.reuse else 0
    parts = max(1, c.tile_k // inner.part_k)
    if not inner.streams:
        # The pipe still has the multiplies of one part meanwhile.
        part = int(per_sub_core * interval) // parts
        bubble = together(bubble, part) - part
    asynchronous = c.copy == "cp.async"
    store_bytes = c.tile_m * c.tile_n * out_width
    # About 8 instructions per 32 values (CUTLASS: 499 for 64x64 and a warp). With beta = 1, C is read first.
    epilogue = c.tile_m * c.tile_n * 4 // 32 // f.sub_cores * 4 // max(1, min(4, c.warps)) + barrier
    if p.op.adds:
        epilogue += f.load_latency + transfer(store_bytes, f.read_rate)
    side_m, side_n = round_shape(tiles_m, tiles_n, c.group, min(resident, tiles))
    pieces = 1 if c.reduce else min(c.split, steps)
    whole = Work(
        tiles=tiles,
        steps=steps,
        ctas=tiles * pieces,
        resident=resident,
        persistent=False,
        busy=busy,
        # What comes through registers is asked for when a step begins and must be there before it ends.
        bubble=bubble if asynchronous else bubble + max(0, f.load_latency - busy),
        unicast_bytes=step_bytes,
        received_bytes=step_bytes,
        requested_bytes=step_bytes,
        ahead=c.stages - 1,
        latency=f.load_latency,
        epilogue=epilogue,
        overlapped=False,
        store_bytes=store_bytes,
        cuts=pieces,
        stream=c.stream_k and tiles % resident > 0,
        partial_bytes=c.tile_m * c.tile_n * 4,
        fetches=partial(fetches, ((c.warp_m, c.warp_n),)),
        code_bytes=_code_bytes(c, inner),
        setup=inner.setup.instructions * per_sub_core,
        operand_bytes=p.batch * p.k * (p.m + p.n) * width,
        round_bytes=(side_m * c.tile_m + side_n * c.tile_n) * p.k * width,
        result_bytes=p.batch * p.m * p.n * out_width * (2 if p.op.adds else 1),
        shared=shared if inner.streams else 0,
        # It is filled again after the first part of a step, and waited for before the last one.
        late=2 * (busy + bubble) // parts if asynchronous else 0,
        shared_sectors=shared_sectors(p, p.out, _stored_columns(p, c, inner)),
        lines=_lines(p.a, c.tile_m, c.tile_k) + _lines(p.b, c.tile_n, c.tile_k),
    )
    return splitk.work(whole, p, f, min(c.split, steps), c.warp_n) if c.reduce else whole
