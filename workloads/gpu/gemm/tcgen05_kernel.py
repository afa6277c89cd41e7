"""The kernels of `tcgen05`: what each warp does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES
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
from workloads.gpu.gemm import epilogue, promotion, splitk
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Problem, ceil_div, problem
from workloads.gpu.gemm.tcgen05 import (
    ANSWER_BYTES,
    ANSWERS,
    INSTRUCTION_K_BYTES,
    LANES,
    REGISTERS,
    ROWS,
    SCALE_STAGES,
    STEP_BYTES,
    WARPS,
    Tcgen05Config,
    code_bytes,
    epilogue_bytes,
    group_k,
    kind,
    plan,
    scale_blocks,
    scale_groups,
    scaled_blocks,
    shape,
    stage_bytes,
    step_k,
    stored_problem,
    vector_scales,
)
from workloads.ops import Gemm, blocks
from workloads.ops.gemm import SCALE_BLOCK
from workloads.registry import register


@register("gemm", "gpu", "tcgen05")
def build(op: Gemm, spec: GpuSpec, config: Tcgen05Config) -> Program:
    """The program of `op` on `spec`. Raises InputError where `check` does."""
    p = problem(op)
    config.check(p, spec)
    builder = (_ScaledBuilder if p.scales else _Builder)(p, spec, config)
    scales = p.block_scales or p.scales or ()
    tensors, kernels = [p.a.tensor, p.b.tensor, *scales, *p.finish, p.c], [builder.kernel()]
    if config.split > 1:
        tensors.append(builder.p.c)
        kernels.append(splitk.reduction(p, spec, builder.p.c, dependent=True))
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


class _Builder:
    """Writes the kernel; one method a role or a part of one."""

    def __init__(self, p: Problem, spec: GpuSpec, config: Tcgen05Config) -> None:
        p = stored_problem(p, config)
        self.p, self.spec, self.config = p, spec, config
        self.x, self.y = p.sides(config.swap)
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
            self.scales = [self._scales("sx", first, 1), self._scales("sy", second, scale_blocks(c))]
        self.acc = self.k.tensor("acc", (ROWS, c.tile_n), p.acc, c.buffers)
        self.ring = Ring(self.k.mbarrier("full", c.stages, 1), self.k.mbarrier("empty", c.stages, 1))
        self.done = self.k.mbarrier("done", c.buffers, 1)
        self.free = self.k.mbarrier("free", c.buffers, WARPS * c.ctas)
        self.staging: SharedTile | None = None
        if epilogue_bytes(p, c):
            shape_c = (c.subtile, ROWS) if c.swap else (ROWS, c.subtile)
            swizzle = 128 if c.swap else min(128, c.subtile * DTYPE_BYTES[p.out])
            self.staging = self.k.shared("staging", shape_c, p.out, 2, swizzle if swizzle in (32, 64, 128) else 0)
        self.warps = WARPS + 2 + (p.scales is not None) + c.clc
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
        groups = scale_groups(self.p)
        tile = self.k.shared(name, (count * groups, blocks.GROUP_BYTES), tensor.dtype, self.config.stages)
        columns = count * groups * blocks.GROUP_BYTES // blocks.LANES
        return _Scales(tensor, tile, self.k.tensor(f"{name}_held", (ROWS, columns), tensor.dtype, SCALE_STAGES), count)

    def kernel(self) -> Kernel:
        """All roles, the epilogue first: its warps reach a quarter of tensor memory each by their numbers."""
        with self.k.role("epilogue", WARPS, self.registers) as r:
            with r.when(WARP.equals(0)):
                r.tcgen05_alloc()
            self._set_up(r)
            self._epilogue(r)
            if self.staging is None:  # else they have met since their last loads
                r.bar_sync(1, WARPS)
            with r.when(WARP.equals(0)):
                r.tcgen05_dealloc()
            self._leave(r)
        for name, write in self._single_warps().items():
            with self.k.role(name, 1, REGISTERS) as r:
                self._set_up(r)
                write(r)
                self._leave(r)
        return self.k.build()

    def _single_warps(self) -> dict[str, Callable[[RoleBuilder], None]]:
        """Roles of one warp each."""
        found: dict[str, Callable[[RoleBuilder], None]] = {"producer": self._producer, "mma": self._multiplier}
        return found | {"scheduler": self._scheduler} if self.config.clc else found

    @property
    def registers(self) -> int:
        """Of a thread of the epilogue."""
        return REGISTERS

    def _set_up(self, r: RoleBuilder) -> None:
        """Barriers are initialised by one warp, tensor memory is allocated; nobody uses them before all know."""
        overhead.in_turn(r, overhead.WGMMA_BARRIERS.plus(overhead.WGMMA_CTA_SETUP, 1))
        if self.config.pair:
            r.cluster_sync()
        else:
            r.bar_sync(0, self.warps)

    def _leave(self, r: RoleBuilder) -> None:
        """A CTA of a pair must not leave while the other one uses its memory: with launch control both meet. Else the
        second one has waited for the last products, and the first one for the other's epilogue (`_drain`)."""
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
        both_bytes = c.ctas * stage_bytes(self.p, c)
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
        groups = scale_groups(self.p)
        first = step * step_k(self.p.dtype) // group_k(self.p.dtype)
        for i in range(scales.blocks):
            box = scales.tensor[unit.tile.batch, block + i, first:groups, :]
            r.tma_load(scales.tile[stage, i * groups : groups, :], box, self.ring.full, stage, pair=self.config.pair)  # type: ignore[misc]

    def _copy_scales(self, r: RoleBuilder, step: Expr, stage: Expr) -> tuple[View, View] | None:
        """Brings the scales of a step to tensor memory, where each quarter of the lanes has all of them."""
        if not self.scales:
            return None
        for scales in self.scales:
            count = scales.blocks * scale_groups(self.p)
            dst, src = scales.held.stage(step % SCALE_STAGES), scales.tile.stage(stage)
            r.tcgen05_cp(dst, src, count, pair=self.config.pair, compute=_in_lanes)
        first, second = (scales.held.stage(step % SCALE_STAGES) for scales in self.scales)
        return first, second

    def _multiplier(self, r: RoleBuilder) -> None:
        """Of a tile one k step after the other, into the same sums; the first CTA of a pair does it for both."""
        c = self.config
        with self._leading(r):
            with self._units(r) as unit:
                self._acquire_sums(r, unit.index)
                with r.loop("k", unit.k_trips) as k:
                    self._multiply(r, unit, unit.first + k, unit.index % c.buffers, k > 0)
                    overhead.TCGEN05_STEP.write(r)
                r.tcgen05_commit(self.done, unit.index % c.buffers, self.both)
            self._drain(r, self.plan.pieces)

    def _acquire_sums(self, r: RoleBuilder, use: Expr) -> None:
        """Waits until the epilogue has read what lay in the columns of a number of use before."""
        buffers = self.config.buffers
        r.mbarrier_wait(self.free, use % buffers, use // buffers - 1)
        r.tcgen05_fence_after()

    def _multiply(self, r: RoleBuilder, unit: Unit, step: Expr, buffer: Expr, accumulate: IntLike) -> None:
        """The products of a k step, once its operands are there; they release its stage."""
        c, stage = self.config, self.ring.stage(step)
        self.ring.wait(r, step)
        first = self.x.by_rows(self.x.part(self.sx, stage, 0, ROWS, 0, self.depth))
        second = self.y.by_k(self.y.part(self.sy, stage, 0, c.columns, 0, self.depth))
        scales = self._copy_scales(r, step, stage)
        scaled: dict[str, Any] = {}
        if scales:
            at = unit.tile.n * c.tile_n % ROWS
            of_group = (step - unit.first + unit.k_begin) * step_k(self.p.dtype) % group_k(self.p.dtype)
            scaled = {"compute": partial(_scaled_products, self.p.dtype), "indices": (at, of_group)}
        r.tcgen05_mma(
            self.acc.stage(buffer), first, second, shape=shape(self.p, c), dtype=kind(self.p.dtype),
            count=STEP_BYTES // INSTRUCTION_K_BYTES, accumulate=accumulate, pair=c.pair, scales=scales, **scaled,
        )  # fmt: skip
        r.tcgen05_commit(self.ring.empty, stage, self.both)

    def _drain(self, r: RoleBuilder, uses: Callable[[Expr], Expr]) -> None:
        """The first CTA of a pair leaves when the other's epilogue has read its last sums. uses: of buffers, by a
        worker; launch control has the CTAs meet instead (`_leave`)."""
        c = self.config
        if c.pair and not c.clc:
            with r.loop("drain", c.buffers) as i:
                use = uses(self.worker) + i
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
            self._await_staging(r)
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
        self._await_stores(r)

    def _await_staging(self, r: RoleBuilder) -> None:
        """Where the last subtile of a tile and the first one of the next have the same buffer, it must have left."""
        if self.config.tile_n // self.config.subtile % 2 and self.staging is not None:
            with r.when(WARP.equals(0)):
                r.bulk_wait(0)

    def _await_stores(self, r: RoleBuilder) -> None:
        """All results are in memory."""
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

    def _store(self, r: RoleBuilder, unit: Unit, sums: RegisterTile, s: Expr, at: int = 0) -> None:
        """A subtile of sums, finished: through shared memory by TMA, or directly where rows of C are not aligned."""
        c, p = self.config, self.p
        rank: IntLike = CLUSTER_RANK if c.pair else 0
        row, column = unit.tile.m * c.tile_m + rank * ROWS, unit.tile.n * c.tile_n + s * c.subtile
        results = self._finished(r, unit, sums, at, row + WARP * LANES, column)
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
        piece = self.worker % self.p.c.shape[0] if self.config.split > 1 else None
        return self.p.results(unit.tile.batch, (first, rows), (column, columns), self.config.swap, piece)

    def _finished(self, r: RoleBuilder, unit: Unit, sums: RegisterTile, at: int, row: Expr, column: Expr) -> View:
        """A subtile's sums with scales and epilogue, whose first row and column are given."""
        c, p = self.config, self.p
        found: View = sums[:, at : c.subtile]  # type: ignore[misc]
        if c.split > 1:
            return found
        done = epilogue.results(p, sums)[:, at : c.subtile]  # type: ignore[misc]
        first, second = (row, LANES), (column, c.subtile)
        rows, cols = (second, first) if c.swap else (first, second)
        epilogue.finish(r, p, self.spec, found, done, unit.tile.batch, rows, cols)
        return done


class _ScaledBuilder(_Builder):
    """Writes the kernel for operands with scales by block: sums are in registers, products of a block of k in tensor
    memory."""

    def __init__(self, p: Problem, spec: GpuSpec, config: Tcgen05Config) -> None:
        super().__init__(p, spec, config)
        assert self.p.scales is not None
        self.of_a, self.of_b = self.p.scales
        stages = config.stages
        self.vector = self.k.shared("scales_a", (1, vector_scales(config)), "fp32", stages)
        self.by_block = self.k.shared("scales_b", (scaled_blocks(config), 1), "fp32", stages)
        self.scale_ring = Ring(
            self.k.mbarrier("scales_full", stages, 1), self.k.mbarrier("scales_empty", stages, WARPS)
        )

    @property
    def registers(self) -> int:
        """Sums, two subtiles of products, and what the others have beside these."""
        return min(255, self.config.tile_n + REGISTERS)

    def _single_warps(self) -> dict[str, Callable[[RoleBuilder], None]]:
        return super()._single_warps() | {"scales": self._scale_producer}

    def _scale_producer(self, r: RoleBuilder) -> None:
        c = self.config
        with self._units(r) as unit, r.loop("k", unit.k_trips) as k:
            step, block = unit.first + k, unit.k_begin + k
            stage = self.scale_ring.stage(step)
            self.scale_ring.acquire(r, step)
            first, second = self._rows(unit)[0], unit.tile.n * c.tile_n
            row, column = (second, first) if c.swap else (first, second)
            count = vector_scales(c)
            of_rows = self.of_a[unit.tile.batch, block:1, row:count]  # type: ignore[misc]
            of_columns = self.of_b[unit.tile.batch, column // SCALE_BLOCK : scaled_blocks(c), block:1]  # type: ignore[misc]
            r.cp_async(self.vector.stage(stage), of_rows)
            r.cp_async(self.by_block.stage(stage), of_columns, vector_bytes=4)
            r.cp_async_arrive(self.scale_ring.full, stage)
            overhead.TCGEN05_PRODUCER_STEP.write(r)

    def _multiplier(self, r: RoleBuilder) -> None:
        """Each k step into columns of its own."""
        buffers = self.config.buffers
        with self._leading(r):
            with self._units(r) as unit, r.loop("k", unit.k_trips) as k:
                step = unit.first + k
                self._acquire_sums(r, step)
                self._multiply(r, unit, step, step % buffers, 0)
                r.tcgen05_commit(self.done, step % buffers, self.both)
                overhead.TCGEN05_STEP.write(r)
            self._drain(r, self.plan.steps_done)

    def _epilogue(self, r: RoleBuilder) -> None:
        c = self.config
        sums = RegisterTile("sums", (LANES, c.tile_n), self.p.acc)
        with self._units(r) as unit:
            self._await_staging(r)
            self._promote(r, unit, Const(0), sums, first=True)
            with r.loop("k", unit.k_trips - 1, 1) as k:
                self._promote(r, unit, k, sums, first=False)
            overhead.WGMMA_EPILOGUE_TILE.write(r)
            for s in range(c.tile_n // c.subtile):
                self._store(r, unit, sums, Const(s), s * c.subtile)
        self._await_stores(r)

    def _promote(self, r: RoleBuilder, unit: Unit, k: Expr, sums: RegisterTile, *, first: bool) -> None:
        """Adds the products of a k step with their scales to the sums; a subtile's loads are on their way while the one
        before is added."""
        c, step = self.config, unit.first + k
        buffer, subtiles = step % c.buffers, c.tile_n // c.subtile
        products = [RegisterTile(f"products{i}", (LANES, c.subtile), self.p.acc) for i in range(min(2, subtiles))]

        def load(s: int) -> None:
            lanes = self.acc[buffer, WARP * LANES : LANES, s * c.subtile : c.subtile]  # type: ignore[misc]
            r.tcgen05_ld(products[s % 2].whole, lanes)

        self.scale_ring.wait(r, step)
        of_b = self._scales_of_b(r, step)
        factors = [] if c.swap else self._row_factors(r, step, of_b)
        r.mbarrier_wait(self.done, buffer, step // c.buffers)
        r.tcgen05_fence_after()
        load(0)
        for s in range(subtiles):
            at = s * c.subtile
            if c.swap:
                factors = [self._column_factors(r, step, of_b[0], at)]
            r.tcgen05_wait_ld()
            if s + 1 < subtiles:
                load(s + 1)
            else:
                r.tcgen05_fence_before()
                r.mbarrier_arrive(self.free, buffer, self.first)
                self.scale_ring.release(r, step)
            scaled = promotion.by_columns if c.swap else promotion.by_rows
            former = SCALE_BLOCK - unit.tile.n * c.tile_n % SCALE_BLOCK - at
            r.run(
                "fmul" if first else "ffma", c.subtile, dtype="fp32", dst=sums[:, at : c.subtile],  # type: ignore[misc]
                srcs=(products[s % 2].whole, *factors), indices=(former,),
                compute=scaled if first else promotion.added(scaled),
            )  # fmt: skip

    def _scales_of_b(self, r: RoleBuilder, step: Expr) -> list[RegisterTile]:
        """Of the blocks that a tile lies in."""
        found = [RegisterTile(f"sb{j}", (1, 1), "fp32") for j in range(scaled_blocks(self.config))]
        for j, tile in enumerate(found):
            scale = self.by_block[self.scale_ring.stage(step), j:1, 0:1]  # type: ignore[misc]
            r.lds(tile.whole, scale, 1, vector_bytes=4, sharers=32, into="sb")
        return found

    def _row_factors(self, r: RoleBuilder, step: Expr, of_b: list[RegisterTile]) -> list[View]:
        """Of a thread's row, with the scale of each block of columns."""
        of_rows = RegisterTile("sa", (1, LANES), "fp32")
        r.lds(
            of_rows.whole,
            self.vector[self.scale_ring.stage(step), :, WARP * LANES : LANES],
            1,
            vector_bytes=4,
            into="sa",
        )  # type: ignore[misc]
        waits = ("sa", "sb"), ()
        return [self._times(r, f"factor{j}", of_rows, tile, 1, waits[j]) for j, tile in enumerate(of_b)]

    def _column_factors(self, r: RoleBuilder, step: Expr, of_b: RegisterTile, at: int) -> View:
        """Of the columns of a subtile, which all threads read."""
        width = self.config.subtile
        of_columns = RegisterTile("sa", (1, width), "fp32")
        part = self.vector[self.scale_ring.stage(step), :, at:width]  # type: ignore[misc]
        r.lds(of_columns.whole, part, width // 4, vector_bytes=16, sharers=32, into="sa")
        return self._times(r, "factors", of_columns, of_b, width, ("sa",) if at else ("sa", "sb"))

    @staticmethod
    def _times(
        r: RoleBuilder, name: str, vector: RegisterTile, scalar: RegisterTile, count: int, after: tuple[str, ...]
    ) -> View:
        """A vector of scales of A, with one of B's. after: loads that nothing has waited for."""
        both = RegisterTile(name, vector.shape, "fp32")
        r.run(
            "fmul", count, dtype="fp32", dst=both.whole, srcs=(vector.whole, scalar.whole), compute=promotion.times,
            after=after,
        )  # fmt: skip
        return both.whole


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
    memory holds them, where in a block of these the columns begin, and the elements of k in a group of scales before
    these."""
    *held, at, before = others
    sides = []
    block = BLOCK_FORMATS[dtype].block
    for stored, lanes, first in ((a, held[0], 0), (b.T, held[1], at)):
        depth = stored.shape[1] * 8 // BLOCK_FORMATS[dtype].bits
        groups = ceil_div(depth, group_k(dtype))
        parts = lanes[: blocks.LANES].reshape(blocks.LANES, -1, blocks.GROUP_BYTES // blocks.LANES).swapaxes(0, 1)
        factors = blocks.by_rows(blocks.scales(dtype, parts.reshape(-1, groups, blocks.GROUP_BYTES)))
        factors = np.repeat(factors[first : first + stored.shape[0]], block, axis=1)[:, before : before + depth]
        sides.append(blocks.elements(dtype, stored) * factors)
    return np.asarray(sums + sides[0] @ sides[1].T)
