"""GEMM on machines with tensor memory (Blackwell).

One warp asks the TMA for operands, one thread of another issues the products (`tcgen05.mma`), and four warps bring sums
from tensor memory to registers and on, as CUTLASS's sm100_mma_warpspecialized and cuBLAS's nvjet_sm100 do. A tile has
128 rows, or 256 of a pair of CTAs on two SMs: each has half of the rows, and of the columns of the second operand, in
its shared memory, so that the pair reads that operand once. CTAs take tile after tile. With two buffers in tensor
memory, the sums of one tile are stored while the next one is multiplied.

A CTA that has done its tile takes the next one by its number (a fixed stride), or asks the hardware for a CTA that has
not started (`clc`, cluster launch control): the grid has a CTA for each tile then.

`swap` exchanges the operands, computing the transpose of C: few rows of A are columns of a tile.

Operands in block formats bring their scales, which are copied to tensor memory step by step.

Pieces of k are added by a second kernel (`splitk`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from arch import tcgen05
from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CLUSTER_RANK,
    CTA_X,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    Ring,
    RoleBuilder,
    SharedTile,
    TensorTile,
    Var,
    View,
    minimum,
)
from workloads.gpu import overhead
from workloads.gpu.configuration import Word
from workloads.gpu.gemm import epilogue, splitk
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import MILLI, Figures, Work, round_shape, transfer
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.plan import Plan, Unit
from workloads.gpu.gemm.problem import (
    Operand,
    Problem,
    ceil_div,
    problem,
    shared_sectors,
    without_groups,
    without_scales,
)
from workloads.ops import Gemm, blocks
from workloads.registry import register

ROWS = 128
"""Of a tile in one SM: the lanes of tensor memory."""
WARPS = 4
"""Of the epilogue: each reaches a quarter of the lanes."""
LANES = ROWS // WARPS
STEP_BYTES = 128
"""Bytes of k in one stage: the width of the widest swizzle."""
INSTRUCTION_K_BYTES = 32
"""Bytes of k that one product has."""
COLUMNS_STEP = 16
"""Columns of a tile are a multiple of it."""
MOST_COLUMNS = 256
EPILOGUE_COLUMNS = 32
"""Columns of an epilogue subtile (CUTLASS's choice for most tiles)."""
SUBTILE_CYCLES = 180
"""Of a subtile, beside its barriers and conversions: stores to shared memory, until the fence has seen them."""
BESIDE_BYTES = 1024
"""Shared memory beside operands and results: barriers, answers of launch control, alignment of the first buffer."""
SCALE_STAGES, SCALE_COLUMNS = 2, 4
"""Steps whose scales are in tensor memory, and columns of a group of them for 128 rows."""
ANSWERS = 3
"""Answers of launch control on their way (CUTLASS: SchedulerPipelineStageCount)."""
ANSWER_BYTES = 16
REGISTERS = 152
"""Of a thread of six or seven warps, for the four that hold sums."""


@dataclass(frozen=True)
class Tcgen05Config(GemmConfig):
    """Tile configuration.

    tile_m, tile_n: output tile of a CTA or of a pair, along the first and second operand. pair: two CTAs share it.
    stages: of the operand buffers. buffers: of sums in tensor memory. swap: the first operand is B, the tile one of C
    transposed. persistent: CTAs take tile after tile; clc: those of CTAs that have not started. group: tiles done
    together along the first direction. split: pieces of k, which a second kernel adds.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pair: bool = False
    stages: int = 4
    buffers: int = 2
    swap: bool = False
    persistent: bool = True
    clc: bool = False
    group: int = 8
    split: int = 1

    schedule: ClassVar[str] = "tcgen05"
    on_tensor_cores: ClassVar[bool] = True
    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("tile_m", "tile_n", "tile_k"),
        Word.flag("pair"),
        Word.number("stages"),
        Word.number("buffers", 2),
        *map(Word.flag, ("clc", "swap")),
        Word.flag("one-tile", "persistent", False),
        Word.number("group", 8),
        Word.number("split", 1),
    )

    @property
    def ctas(self) -> int:
        """CTAs of a tile."""
        return 2 if self.pair else 1

    @property
    def columns(self) -> int:
        """Columns of the second operand in one CTA's shared memory."""
        return self.tile_n // self.ctas

    @property
    def subtile(self) -> int:
        """Columns of an epilogue subtile."""
        return EPILOGUE_COLUMNS if self.tile_n % EPILOGUE_COLUMNS == 0 else COLUMNS_STEP

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if spec.tcgen05 is None or spec.tma is None or spec.dsmem is None:
            raise InputError(f"{where}: {spec.name} has no tensor memory; its nearest schedule is mma")
        if p.op.adds:
            raise InputError(f"{where}: beta=1 is not available; nearest: mma")
        epilogue.check(p, spec, where)
        without_groups(p, where)
        without_scales(p, where)
        if self.tile_m != ROWS * self.ctas:
            raise InputError(f"{where}: a tile has {ROWS} rows, of a pair {2 * ROWS}; nearest: {ROWS * self.ctas}")
        step = COLUMNS_STEP * self.ctas
        if self.tile_n % step or not step <= self.tile_n <= MOST_COLUMNS:
            nearest = min(MOST_COLUMNS, max(1, round(self.tile_n / step)) * step)
            raise InputError(f"{where}: tile n must be a multiple of {step} up to {MOST_COLUMNS}, nearest: {nearest}")
        if self.tile_k != step_k(p.dtype):
            raise InputError(f"{where}: tile k must be {step_k(p.dtype)} for {p.dtype}")
        tcgen05.product(spec, p.dtype, shape(p, self), pair=self.pair)
        columns = spec.tcgen05.columns - _scale_columns(p, self)
        if not 1 <= self.buffers * self.tile_n <= columns:
            raise InputError(
                f"{where}: {self.buffers} buffers of {self.tile_n} columns, {spec.name} has {columns} for sums; "
                f"nearest: buffers = {max(1, columns // self.tile_n)}"
            )
        if not 1 <= self.stages <= max_stages(p, self, spec):
            raise InputError(
                f"{where}: {shared_bytes(p, self)} B of shared memory, {spec.name} has "
                f"{spec.shared.max_per_cta_bytes} B a CTA; nearest: stages = {max(1, max_stages(p, self, spec))}"
            )
        if self.split < 1 or (self.split > 1 and self.clc):
            raise InputError(f"{where}: split must be at least 1, and 1 with clc")
        for operand in operands(p, self):
            if not operand.tma:
                name, align = operand.tensor.name, operand.vector_bytes
                raise InputError(
                    f"{where}: rows of {name} start at multiples of {align} B, TMA needs 16 B; nearest: mma"
                )

    def work(self, p: Problem, spec: GpuSpec, f: Figures) -> Work:
        """Counts for the estimate."""
        return work(p, spec, f, self)

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism; the same where it does not use it."""
        match mechanism:
            case "tensor_memory":
                return MmaConfig.schedule
            case "pairs":
                return str(replace(self, pair=False, tile_m=ROWS, stages=max(1, self.stages * 2 // 3)))
            case "clc":
                return str(replace(self, clc=False))
            case "overlap":
                return str(replace(self, buffers=1))
            case _:
                return str(self)

    @classmethod
    def completed(cls, fields: dict[str, Any], p: Problem, spec: GpuSpec) -> dict[str, Any]:
        """The fields with the k step and as many stages as fit, where they are not said."""
        whole = {"tile_k": step_k(p.dtype)} | fields
        if spec.tcgen05 is not None and "stages" not in whole:
            whole["stages"] = max(1, max_stages(p, cls(**whole), spec))
        return whole


def operands(p: Problem, config: Tcgen05Config) -> tuple[Operand, Operand]:
    """First and second operand of a product."""
    return (p.b, p.a) if config.swap else (p.a, p.b)


def step_k(dtype: str) -> int:
    """Elements of k in one stage."""
    return STEP_BYTES * 8 // tcgen05.bits_of(dtype)


def row(dtype: str) -> str:
    """Shape of the instruction table's row of a format."""
    return f"m{ROWS}n*k{INSTRUCTION_K_BYTES * 8 // tcgen05.bits_of(dtype)}"


def shape(p: Problem, config: Tcgen05Config) -> str:
    """Of one product."""
    return f"m{config.tile_m}n{config.tile_n}k{INSTRUCTION_K_BYTES * 8 // tcgen05.bits_of(p.dtype)}"


def _stored(p: Problem, config: Tcgen05Config) -> Problem:
    """The problem as the kernel that multiplies sees it: it stores sums of pieces where a second one adds them."""
    if config.split == 1:
        return p
    return replace(p, out=p.acc, c=splitk.parts(p, min(config.split, ceil_div(p.k, config.tile_k))))


def _stage_bytes(p: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one CTA's operands of one k step."""
    return (ROWS + config.columns) * STEP_BYTES + (1 + _scale_blocks(config)) * _scale_groups(p) * blocks.GROUP_BYTES


def _scale_groups(p: Problem) -> int:
    """Groups of four scales of a row in one stage."""
    return step_k(p.dtype) // (blocks.GROUP * BLOCK_FORMATS[p.dtype].block) if p.block_scales else 0


def _scale_blocks(config: Tcgen05Config) -> int:
    """Blocks of 128 rows of scales of the second operand in which a tile may lie."""
    last = ROWS - math.gcd(config.tile_n, ROWS)  # where in a block it begins at most
    return ceil_div(last + config.tile_n, ROWS)


def _scale_columns(p: Problem, config: Tcgen05Config) -> int:
    """Columns of tensor memory for the scales of two steps."""
    return SCALE_STAGES * (1 + _scale_blocks(config)) * _scale_groups(p) * SCALE_COLUMNS


def _epilogue_bytes(stored: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one CTA's results on their way, of a problem (`_stored`)."""
    staged = stored.c_vector_bytes == 16
    return 2 * ROWS * config.subtile * DTYPE_BYTES[stored.out] if staged else 0


def shared_bytes(p: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one CTA."""
    return config.stages * _stage_bytes(p, config) + _epilogue_bytes(_stored(p, config), config) + BESIDE_BYTES


def most_buffers(p: Problem, config: Tcgen05Config, spec: GpuSpec) -> int:
    """Buffers of sums for which tensor memory has room."""
    assert spec.tcgen05 is not None
    return (spec.tcgen05.columns - _scale_columns(p, config)) // config.tile_n


def max_stages(p: Problem, config: Tcgen05Config, spec: GpuSpec) -> int:
    """Stages that fit beside the results."""
    room = spec.shared.max_per_cta_bytes - _epilogue_bytes(_stored(p, config), config) - BESIDE_BYTES
    return room // _stage_bytes(p, config)


def resident(spec: GpuSpec, config: Tcgen05Config) -> int:
    """Tiles that the chip works on at once: one CTA an SM, pairs within a GPC."""
    return max(1, sum(sms // config.ctas for sms in spec.sms_per_place))


def plan(p: Problem, spec: GpuSpec, config: Tcgen05Config) -> Plan:
    """Tiles, and workers (CTAs or pairs)."""
    x, y = operands(p, config)
    tiles_m, tiles_n = ceil_div(x.rows, config.tile_m), ceil_div(y.rows, config.tile_n)
    tiles, steps = tiles_m * tiles_n * p.batch, ceil_div(p.k, config.tile_k)
    dealt = config.persistent and not config.clc
    shared_tiles, workers = 0, min(tiles, resident(spec, config)) if dealt else tiles
    if config.split > 1:
        shared_tiles, workers = tiles, min(tiles * config.split, tiles * steps)
    return Plan(tiles_m, tiles_n, p.batch, steps, workers, shared_tiles, max(1, config.group), tiles_m < tiles_n)


@register("gemm", "gpu", "tcgen05")
def build(op: Gemm, spec: GpuSpec, config: Tcgen05Config) -> Program:
    """The program of `op` on `spec`. Raises InputError where `check` does."""
    p = problem(op)
    config.check(p, spec)
    builder = _Builder(p, spec, config)
    tensors, kernels = [p.a.tensor, p.b.tensor, *(p.block_scales or ()), *p.finish, p.c], [builder.kernel()]
    if config.split > 1:
        tensors.append(builder.p.c)
        kernels.append(splitk.reduction(p, spec, builder.p.c, dependent=True))
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


class _Builder:
    """Writes the kernel; one method a role or a part of one."""

    def __init__(self, p: Problem, spec: GpuSpec, config: Tcgen05Config) -> None:
        p = _stored(p, config)
        self.p, self.spec, self.config = p, spec, config
        self.x, self.y = operands(p, config)
        self.plan = plan(p, spec, config)
        c = config
        self.k = KernelBuilder(
            f"gemm_{c}".replace(" ", "_"), (self.plan.workers * c.ctas, 1, 1), (c.ctas, 1, 1), code_bytes=code_bytes(c)
        )
        self.depth = STEP_BYTES // DTYPE_BYTES[p.a.dtype]  # of a stage, in elements as stored
        shape_x, shape_y = self.x.tile_shape(ROWS, self.depth), self.y.tile_shape(c.columns, self.depth)
        self.sx = self.k.shared("x", shape_x, p.a.dtype, c.stages, swizzle_bytes=128)
        self.sy = self.k.shared("y", shape_y, p.a.dtype, c.stages, swizzle_bytes=128)
        self.scales: list[_Scales] = []
        if p.block_scales:
            first, second = reversed(p.block_scales) if c.swap else p.block_scales
            self.scales = [self._scales("sx", first, 1), self._scales("sy", second, _scale_blocks(c))]
        self.acc = self.k.tensor("acc", (ROWS, c.tile_n), p.acc, c.buffers)
        self.ring = Ring(self.k.mbarrier("full", c.stages, 1), self.k.mbarrier("empty", c.stages, 1))
        self.done = self.k.mbarrier("done", c.buffers, 1)
        self.free = self.k.mbarrier("free", c.buffers, WARPS * c.ctas)
        self.staging: SharedTile | None = None
        if _epilogue_bytes(p, c):
            shape_c = (c.subtile, ROWS) if c.swap else (ROWS, c.subtile)
            swizzle = 128 if c.swap else min(128, c.subtile * DTYPE_BYTES[p.out])
            self.staging = self.k.shared("staging", shape_c, p.out, 2, swizzle if swizzle in (32, 64, 128) else 0)
        self.warps = WARPS + 2 + c.clc
        if c.clc:
            self.answers = self.k.shared("answers", (1, ANSWER_BYTES // 4), "int32", ANSWERS)
            self.asked = self.k.mbarrier("asked", ANSWERS, 1)
            # Each warp that takes tiles reads the answers; the second CTA of a pair has none that multiplies.
            readers = self.warps * c.ctas - (c.ctas - 1)
            self.answered = self.k.mbarrier("answered", ANSWERS, readers)
        self.worker = CTA_X // c.ctas if c.pair else CTA_X
        self.both = Const(3) if c.pair else None
        self.first = Const(1) if c.pair else None

    def _scales(self, name: str, tensor: GlobalTensor, count: int) -> _Scales:
        """Places of the scales of an operand, of `count` blocks of rows."""
        groups = _scale_groups(self.p)
        tile = self.k.shared(name, (count * groups, blocks.GROUP_BYTES), tensor.dtype, self.config.stages)
        columns = count * groups * blocks.GROUP_BYTES // blocks.LANES
        return _Scales(tensor, tile, self.k.tensor(f"{name}_held", (ROWS, columns), tensor.dtype, SCALE_STAGES), count)

    def kernel(self) -> Kernel:
        """All roles, the epilogue first: its warps reach a quarter of tensor memory each by their numbers."""
        with self.k.role("epilogue", WARPS, REGISTERS) as r:
            with r.when(WARP.equals(0)):
                r.tcgen05_alloc()
            self._set_up(r)
            self._epilogue(r)
            if self.staging is None:  # else they have met since their last loads
                r.bar_sync(1, WARPS)
            with r.when(WARP.equals(0)):
                r.tcgen05_dealloc()
            self._leave(r)
        with self.k.role("producer", 1, REGISTERS) as r:
            self._set_up(r)
            self._producer(r)
            self._leave(r)
        with self.k.role("mma", 1, REGISTERS) as r:
            self._set_up(r)
            with self._leading(r):
                self._multiplier(r)
            self._leave(r)
        if self.config.clc:
            with self.k.role("scheduler", 1, REGISTERS) as r:
                self._set_up(r)
                self._scheduler(r)
                self._leave(r)
        return self.k.build()

    def _set_up(self, r: RoleBuilder) -> None:
        """Barriers are initialised by one warp, tensor memory is allocated; nobody uses them before all know."""
        overhead.in_turn(r, overhead.WGMMA_BARRIERS.plus(overhead.WGMMA_CTA_SETUP, 1))
        if self.config.pair:
            r.cluster_sync()
        else:
            r.bar_sync(0, self.warps)

    def _leave(self, r: RoleBuilder) -> None:
        """A CTA of a pair must not leave while the other one uses its memory: with launch control both meet. Else the
        second one has waited for the last products, and the first one for the other's epilogue (`_multiplier`)."""
        if self.config.pair and self.config.clc:
            r.cluster_sync()

    @contextmanager
    def _leading(self, r: RoleBuilder) -> Iterator[None]:
        """What the first CTA of a pair does alone."""
        if not self.config.pair:
            yield
            return
        with r.when(CLUSTER_RANK.equals(0)):
            yield

    @contextmanager
    def _units(self, r: RoleBuilder) -> Iterator[Unit]:
        """The loop over the pieces of a worker: dealt out, or asked for."""
        if not self.config.clc:
            with self.plan.units(r, self.worker) as unit:
                yield unit
            return
        tile, index = r.assign("tile", self.worker), r.assign("index", 0)
        with r.loop_while(tile >= 0):
            yield self._asked_unit(tile, index)
            slot = index % ANSWERS
            r.mbarrier_wait(self.asked, slot, index // ANSWERS)
            r.query_cancel("tile", self.answers.stage(slot))
            r.mbarrier_arrive(self.answered, slot, self.first)
            r.assign("index", index + 1)

    def _asked_unit(self, tile: Var, index: Var) -> Unit:
        steps, known = self.plan.k_steps, minimum(tile, self.plan.tiles - 1)
        return Unit(
            tile, self.plan.tile(known), Const(0), Const(steps), index * steps, index, Const(1), Const(0)
        )  # fmt: skip

    def _scheduler(self, r: RoleBuilder) -> None:
        """Asks for the next tile as soon as all warps have read an answer, until there is none."""
        tile, index = r.assign("tile", self.worker), r.assign("index", 0)
        with r.loop_while(tile >= 0):
            slot = index % ANSWERS
            with self._leading(r):
                r.mbarrier_wait(self.answered, slot, index // ANSWERS - 1)
            r.mbarrier_expect(self.asked, slot, ANSWER_BYTES)
            with self._leading(r):
                r.try_cancel(self.answers.stage(slot), self.asked, slot, self.both)
            r.mbarrier_wait(self.asked, slot, index // ANSWERS)
            r.query_cancel("tile", self.answers.stage(slot))
            r.mbarrier_arrive(self.answered, slot, self.first)
            r.assign("index", index + 1)

    # --- operands

    def _rows(self, unit: Unit) -> tuple[Expr, Expr]:
        """First row of this CTA's part of the tile in the first operand, and in the second one."""
        c = self.config
        rank: IntLike = CLUSTER_RANK if c.pair else 0
        return unit.tile.m * c.tile_m + rank * ROWS, unit.tile.n * c.tile_n + rank * c.columns

    def _producer(self, r: RoleBuilder) -> None:
        c = self.config
        both_bytes = c.ctas * _stage_bytes(self.p, c)
        with self._units(r) as unit, r.loop("k", unit.k_trips) as k:
            x_row, y_row = self._rows(unit)
            step = unit.first + k
            stage, depth = self.ring.stage(step), (unit.k_begin + k) * self.depth
            self.ring.acquire(r, step)
            with self._leading(r):
                r.mbarrier_expect(self.ring.full, stage, both_bytes)
            parts = ((self.x, self.sx, x_row, ROWS), (self.y, self.sy, y_row, c.columns))
            for operand, tile, row, rows in parts:
                dst = operand.part(tile, stage, 0, rows, 0, self.depth)
                src = operand.box(unit.tile.batch, row, rows, depth, self.depth)
                r.tma_load(dst, src, self.ring.full, stage, pair=c.pair)
            for scales, row in zip(self.scales, (x_row, unit.tile.n * c.tile_n), strict=False):
                self._load_scales(r, unit, scales, row // ROWS, unit.k_begin + k, stage)
            overhead.TCGEN05_PRODUCER_STEP.write(r)

    def _load_scales(self, r: RoleBuilder, unit: Unit, scales: _Scales, block: Expr, step: Expr, stage: Expr) -> None:
        """The scales of a k step of blocks of rows from `block` on."""
        groups = _scale_groups(self.p)
        for i in range(scales.blocks):
            box = scales.tensor[unit.tile.batch, block + i, step * groups : groups, :]
            r.tma_load(scales.tile[stage, i * groups : groups, :], box, self.ring.full, stage, pair=self.config.pair)  # type: ignore[misc]

    def _copy_scales(self, r: RoleBuilder, step: Expr, stage: Expr) -> tuple[View, View] | None:
        """Brings the scales of a step to tensor memory, where each quarter of the lanes has all of them."""
        if not self.scales:
            return None
        for scales in self.scales:
            count = scales.blocks * _scale_groups(self.p)
            dst, src = scales.held.stage(step % SCALE_STAGES), scales.tile.stage(stage)
            r.tcgen05_cp(dst, src, count, pair=self.config.pair, compute=_in_lanes)
        first, second = (scales.held.stage(step % SCALE_STAGES) for scales in self.scales)
        return first, second

    def _multiplier(self, r: RoleBuilder) -> None:
        c = self.config
        count = STEP_BYTES // INSTRUCTION_K_BYTES
        with self._units(r) as unit:
            buffer, turn = unit.index % c.buffers, unit.index // c.buffers
            r.mbarrier_wait(self.free, buffer, turn - 1)
            r.tcgen05_fence_after()
            with r.loop("k", unit.k_trips) as k:
                step = unit.first + k
                stage = self.ring.stage(step)
                self.ring.wait(r, step)
                first = self.x.by_rows(self.x.part(self.sx, stage, 0, ROWS, 0, self.depth))
                second = self.y.by_k(self.y.part(self.sy, stage, 0, c.columns, 0, self.depth))
                scales = self._copy_scales(r, step, stage)
                scaled: dict[str, Any] = {}
                if scales:
                    at = unit.tile.n * c.tile_n % ROWS
                    scaled = {"compute": partial(_scaled_products, self.p.dtype), "indices": (at,)}
                r.tcgen05_mma(
                    self.acc.stage(buffer), first, second, shape=shape(self.p, c), dtype=self.p.dtype, count=count,
                    accumulate=k > 0, pair=c.pair, scales=scales, **scaled,
                )  # fmt: skip
                r.tcgen05_commit(self.ring.empty, stage, self.both)
                overhead.TCGEN05_STEP.write(r)
            r.tcgen05_commit(self.done, buffer, self.both)
        if c.pair and not c.clc:
            with r.loop("drain", c.buffers) as i:
                use = self.plan.pieces(self.worker) + i
                r.mbarrier_wait(self.free, use % c.buffers, use // c.buffers - 1)

    # --- epilogue

    def _epilogue(self, r: RoleBuilder) -> None:
        c = self.config
        subtiles = c.tile_n // c.subtile
        with self._units(r) as unit:
            buffer, turn = unit.index % c.buffers, unit.index // c.buffers
            r.mbarrier_wait(self.done, buffer, turn)
            r.tcgen05_fence_after()
            overhead.WGMMA_EPILOGUE_TILE.write(r)
            if subtiles % 2 and self.staging is not None:
                # The last subtile of a tile and the first one of the next have the same buffer.
                with r.when(WARP.equals(0)):
                    r.bulk_wait(0)
            sums = [RegisterTile(f"sums{i}", (LANES, c.subtile), self.p.acc) for i in range(min(2, subtiles))]

            def load(tile: RegisterTile, s: IntLike) -> None:
                r.tcgen05_ld(tile.whole, self.acc[buffer, WARP * LANES : LANES, s * c.subtile : c.subtile])  # type: ignore[misc]

            def release() -> None:
                r.tcgen05_fence_before()
                r.mbarrier_arrive(self.free, buffer, self.first)

            # The loads of a subtile are on their way while the one before is stored.
            load(sums[0], 0)
            if subtiles > 1:
                self._pairs_of_subtiles(r, unit, sums, subtiles, load, release)
            if subtiles % 2:
                r.tcgen05_wait_ld()
                release()
                self._store(r, unit, sums[0], Const(subtiles - 1))
        if self.staging is not None:
            with r.when(WARP.equals(0)):
                r.bulk_wait(0, read=False)

    def _pairs_of_subtiles(
        self, r: RoleBuilder, unit: Unit, sums: list[RegisterTile], subtiles: int,
        load: Callable[[RegisterTile, IntLike], None], release: Callable[[], None],
    ) -> None:  # fmt: skip
        """All subtiles, or all but the last one, two in a trip; each with the load of the next one on its way."""
        with r.loop("subtile", subtiles // 2) as i:
            r.tcgen05_wait_ld()
            load(sums[1], 2 * i + 1)
            self._store(r, unit, sums[0], 2 * i)
            r.tcgen05_wait_ld()
            with r.when(2 * i + 2 < subtiles):
                load(sums[0], 2 * i + 2)
            if subtiles % 2 == 0:
                with r.when((2 * i + 2).equals(subtiles)):
                    release()
            self._store(r, unit, sums[1], 2 * i + 1)

    def _store(self, r: RoleBuilder, unit: Unit, sums: RegisterTile, s: Expr) -> None:
        """A subtile of sums, finished: through shared memory by TMA, or directly where rows of C are not aligned."""
        c, p = self.config, self.p
        rank: IntLike = CLUSTER_RANK if c.pair else 0
        row, column = unit.tile.m * c.tile_m + rank * ROWS, unit.tile.n * c.tile_n + s * c.subtile
        results = self._finished(r, unit, sums, row + WARP * LANES, column)
        if p.out != epilogue.held(p):
            r.run("cvt", ceil_div(c.subtile, 2), dtype=p.out)
        width = DTYPE_BYTES[p.out]
        if self.staging is None:
            vector = width if c.swap else max(width, min(p.c_vector_bytes, 16))
            count = ceil_div(LANES * c.subtile * width, 32 * vector)
            box = self._box(unit, row + WARP * LANES, LANES, column, c.subtile)
            r.stg(box, results.T if c.swap else results, count, vector_bytes=vector)
            return
        staging, buffer = self.staging, s % 2
        with r.when(WARP.equals(0)):
            r.bulk_wait(1)
        r.bar_sync(1, WARPS)
        if c.swap:
            src, dst = results.T, staging[buffer, 0 : c.subtile, WARP * LANES : LANES]  # type: ignore[misc]
        else:
            src, dst = results, staging[buffer, WARP * LANES : LANES, 0 : c.subtile]  # type: ignore[misc]
        # A thread has a row of the tile. Of results in two bytes whose rows are columns, stmatrix writes 16 bytes too.
        vector = 16 if width < 4 or not c.swap else width
        count = ceil_div(LANES * c.subtile * width, 32 * vector)
        r.sts(dst, src, count, vector_bytes=vector, mix=overhead.WGMMA_EPILOGUE_SUBTILE.mix)
        r.fence_async()
        r.bar_sync(1, WARPS)
        with r.when(WARP.equals(0)):
            r.tma_store(self._box(unit, row, ROWS, column, c.subtile), staging.stage(buffer))
            r.bulk_commit()

    def _box(self, unit: Unit, first: Expr, rows: int, column: Expr, columns: int) -> View:
        """`rows` by `columns` results of a tile in memory; where a second kernel adds the pieces, those of this one."""
        c = self.config
        (row, high), (col, wide) = ((column, columns), (first, rows)) if c.swap else ((first, rows), (column, columns))
        if c.split > 1:
            return self.p.c[self.worker % self.p.c.shape[0], unit.tile.batch, row:high, col:wide]  # type: ignore[misc]
        return self.p.c[unit.tile.batch, row:high, col:wide]  # type: ignore[misc]

    def _finished(self, r: RoleBuilder, unit: Unit, sums: RegisterTile, row: Expr, column: Expr) -> View:
        """A subtile's sums with scales and epilogue, whose first row and column are given."""
        c, p = self.config, self.p
        if c.split > 1:
            return sums.whole
        done = epilogue.results(p, sums)
        first, second = (row, LANES), (column, c.subtile)
        rows, cols = (second, first) if c.swap else (first, second)
        epilogue.finish(r, p, self.spec, sums.whole, done.whole, unit.tile.batch, rows, cols)
        return done.whole


class _Scales(NamedTuple):
    """Scales of an operand in a block format: in device memory, in shared memory and in tensor memory, of `blocks`
    blocks of rows."""

    tensor: GlobalTensor
    tile: SharedTile
    held: TensorTile
    blocks: int


def _in_lanes(_: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Groups of 512 bytes as 32 lanes of 16, in each quarter of the lanes."""
    groups = stored.reshape(stored.shape[0], blocks.LANES, -1)
    return np.tile(groups.swapaxes(0, 1).reshape(blocks.LANES, -1), (ROWS // blocks.LANES, 1))


def _scaled_products(dtype: str, sums: np.ndarray, a: np.ndarray, b: np.ndarray, *others: Any) -> np.ndarray:
    """The sums, and products of elements with their scales. others: scales of the rows and of the columns as tensor
    memory holds them, and where in a block of these the columns begin."""
    *held, at = others
    sides = []
    for stored, lanes, first in ((a, held[0], 0), (b.T, held[1], at)):
        groups = stored.shape[1] * 8 // BLOCK_FORMATS[dtype].bits // (blocks.GROUP * BLOCK_FORMATS[dtype].block)
        parts = lanes[: blocks.LANES].reshape(blocks.LANES, -1, blocks.GROUP_BYTES // blocks.LANES).swapaxes(0, 1)
        factors = blocks.by_rows(blocks.scales(dtype, parts.reshape(-1, groups, blocks.GROUP_BYTES)))
        factors = factors[first : first + stored.shape[0]]
        sides.append(blocks.elements(dtype, stored) * np.repeat(factors, BLOCK_FORMATS[dtype].block, axis=1))
    return np.asarray(sums + sides[0] @ sides[1].T)


def code_bytes(config: Tcgen05Config) -> int:
    """Machine code on the path that runs: set-up, roles, an epilogue with its subtiles unrolled."""
    instructions = 249 + 88 + 46 + 40 + 144 + config.tile_n // config.subtile * (20 + config.subtile // 2 * 3)
    return instructions * overhead.INSTRUCTION_BYTES


def work(p: Problem, spec: GpuSpec, f: Figures, c: Tcgen05Config) -> Work:
    """Counts for the estimate, per CTA."""
    x, y = operands(p, c)
    bits, out_width = tcgen05.bits_of(p.dtype), DTYPE_BYTES[p.out]
    steps = ceil_div(p.k, c.tile_k)
    tiles_m, tiles_n = ceil_div(x.rows, c.tile_m), ceil_div(y.rows, c.tile_n)
    tiles = tiles_m * tiles_n * p.batch * c.ctas
    at_once = resident(spec, c) * c.ctas
    product = tcgen05.product(spec, p.dtype, shape(p, c), pair=c.pair)
    busy = int(STEP_BYTES // INSTRUCTION_K_BYTES * product.row.interval_cycles)
    # Rows beyond an operand's end are asked from nowhere.
    requested = (x.rows * tiles_n + y.rows * tiles_m) * p.batch * STEP_BYTES
    stage_bytes = _stage_bytes(p, c)
    values = ROWS * c.tile_n
    store_bytes = values * out_width
    # A subtile comes from tensor memory while the one before is stored.
    assert spec.tcgen05 is not None
    read = transfer(ROWS * c.subtile * 4, int(spec.tcgen05.read_bytes_per_cycle * MILLI))
    stored = 2 * (f.barrier + f.barrier_per_warp * WARPS) + c.subtile + SUBTILE_CYCLES
    latency = spec.tcgen05.read_latency_cycles
    epilogue_cycles = c.tile_n // c.subtile * (max(read, stored) + latency) + min(read, stored)
    pieces = min(c.split, steps)
    side_m, side_n = round_shape(tiles_m, tiles_n, c.group, min(at_once, tiles) // c.ctas)
    setup = (overhead.WGMMA_BARRIERS.instructions + overhead.WGMMA_CTA_SETUP.instructions) * 2
    columns = ROWS if c.swap else c.subtile
    whole = Work(
        tiles=tiles,
        steps=steps,
        ctas=tiles * pieces,
        resident=at_once,
        persistent=c.persistent,
        busy=busy,
        bubble=max(0, f.mbarrier_wait + 2 * overhead.TCGEN05_PRODUCER_STEP.alu - busy),
        shared=transfer(product.operand_bytes * STEP_BYTES // INSTRUCTION_K_BYTES, f.shared_rate),
        unicast_bytes=stage_bytes,
        received_bytes=stage_bytes,
        requested_bytes=ceil_div(requested, tiles),
        cluster=c.ctas,
        ahead=c.stages,
        latency=f.load_latency + f.tma_latency,
        epilogue=epilogue_cycles,
        overlapped=c.buffers > 1,
        store_bytes=store_bytes,
        cuts=pieces,
        stream=False,
        partial_bytes=values * 4,
        code_bytes=code_bytes(c),
        setup=setup,
        operand_bytes=p.batch * p.k * (p.m + p.n) * bits // 8,
        round_bytes=(side_m * c.tile_m + side_n * c.tile_n) * p.k * bits // 8,
        result_bytes=p.batch * p.m * p.n * out_width,
        shared_sectors=shared_sectors(p, p.out, columns),
        extra_ps=f.launch_ps if c.split > 1 else 0,
        late=int(product.row.latency_cycles - product.row.interval_cycles),
    )
    return splitk.work(whole, _stored(p, c), f, pieces, columns) if c.split > 1 else whole
