"""Products of experts' rows on tensor memory.

The operands are exchanged, as in TensorRT-LLM's kernels for Blackwell: 128 rows of an expert's weights fill the lanes
of tensor memory, the rows of a block are its columns, so that a block may have few of them. One warp asks the TMA for
weights, and for rows that lie in a block; rows of tokens are gathered by four warps by cp.async. One thread multiplies,
four warps bring sums through shared memory to the result. A CTA has one tile, and an SM several CTAs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from arch import tcgen05
from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    WARP,
    Const,
    Expr,
    Kernel,
    KernelBuilder,
    RegisterTile,
    Ring,
    RoleBuilder,
    as_expr,
    minimum,
)
from workloads.gpu import overhead
from workloads.gpu.gemm.plan import Plan
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div, row_alignment
from workloads.gpu.gemm.tcgen05 import (
    COLUMNS_STEP,
    EPILOGUE_COLUMNS,
    INSTRUCTION_K_BYTES,
    LANES,
    MOST_COLUMNS,
    ROWS,
    STEP_BYTES,
    WARPS,
)
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.config import MoeConfig
from workloads.gpu.moe.product import GroupedProduct, Tile, write_tile
from workloads.gpu.overhead import Overhead

C = TypeVar("C", bound=MoeConfig)

REGISTERS = 80
"""Of a thread: a subtile of sums, and what addresses take."""
CTAS = 2
"""Of an SM, among which stages are dealt out: one stores while the other one multiplies."""
BESIDE_BYTES = 2048
"""Shared memory beside operands and results: barriers, alignment."""
COPIES_AHEAD = 4
"""Steps of gathered rows that are on their way at most before they are made known."""


def multiplies(spec: GpuSpec, dtype: str, rows: Sequence[int] = ()) -> bool:
    """Whether a machine has such products of a format, of rows of so many elements: TMA needs whole 16 B."""
    if any(elements * DTYPE_BYTES[dtype] % MAX_VECTOR_BYTES for elements in rows):
        return False
    shape = f"m{ROWS}n*k{INSTRUCTION_K_BYTES // DTYPE_BYTES[dtype]}"
    return spec.tcgen05 is not None and spec.has_instruction(tcgen05.OP, dtype, shape)


def fitted(spec: GpuSpec, dtype: str, config: C) -> C:
    """The configuration with tiles that tensor memory takes, and the stages for which shared memory has room."""
    depth = STEP_BYTES // DTYPE_BYTES[dtype]
    room = spec.shared.max_per_sm_bytes // CTAS - BESIDE_BYTES - _staging_bytes(config.block_m)
    stages = room // ((ROWS + config.block_m) * STEP_BYTES)
    return replace(config, block_n=ROWS, block_k=depth, warps=WARPS, stages=max(2, stages))


def takes(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> bool:
    """Whether a tile is one of these."""
    aligned = (row_alignment(tensor) == MAX_VECTOR_BYTES for tensor in (g.a, g.w, g.c))
    return (
        g.packed is None
        and g.scales_a is None
        and multiplies(spec, g.dtype)
        and config.block_m % COLUMNS_STEP == 0
        and config.block_m <= MOST_COLUMNS
        and (config.block_n, config.block_k * DTYPE_BYTES[g.dtype]) == (ROWS, STEP_BYTES)
        and all(aligned)
    )


def kernel(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> Kernel:
    """The kernel of a product. InputError where the machine cannot take the tile."""
    return _Writer(g, spec, config).kernel()


def _subtile(block_m: int) -> int:
    """Columns of tensor memory that a warp brings at once."""
    return EPILOGUE_COLUMNS if block_m % EPILOGUE_COLUMNS == 0 else COLUMNS_STEP


def _staging_bytes(block_m: int) -> int:
    """Shared memory of two subtiles of 16-bit results."""
    return 2 * _subtile(block_m) * ROWS * 2


class _Writer:
    """Writes the kernel; one method a role."""

    def __init__(self, g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> None:
        self.g, self.c = g, config
        self.steps = ceil_div(g.w.shape[2], config.block_k)
        self.plan = Plan(
            g.part.launched, g.part.tiles_n, 1, self.steps, g.part.launched * g.part.tiles_n, 0, config.group
        )
        self.gathers = g.tokens is not None
        self.warps = WARPS + 2 + (WARPS if self.gathers else 0)
        self.k = k = KernelBuilder(
            f"{g.name}_{config.block_m}x{config.block_n}x{config.block_k}", (self.plan.workers, 1, 1),
            code_bytes=(700 + 8 * config.block_m) * overhead.INSTRUCTION_BYTES,
        )  # fmt: skip
        stages, dtype = config.stages, g.dtype
        self.w = k.shared("w", (ROWS, config.block_k), dtype, stages, 128)
        self.x = k.shared("x", (config.block_m, config.block_k), dtype, stages, 128)
        self.subtile = _subtile(config.block_m)
        self.staging = k.shared("staging", (self.subtile, ROWS), g.c.dtype, 2, 128)
        self.acc = k.tensor("acc", (ROWS, config.block_m), "fp32")
        arrivals = 1 + (WARPS if self.gathers else 0)
        self.ring = Ring(k.mbarrier("full", stages, arrivals), k.mbarrier("empty", stages, 1))
        self.done = k.mbarrier("done", 1, 1)
        size = self.w.size_bytes + self.x.size_bytes + self.staging.size_bytes + BESIDE_BYTES
        if size > spec.shared.max_per_cta_bytes:
            most = spec.shared.max_per_cta_bytes
            raise InputError(
                f"schedule={config}: {size} B of shared memory, {spec.name} has {most} B a CTA; nearest: stages "
                f"{(most - self.staging.size_bytes - BESIDE_BYTES) * stages // (self.w.size_bytes + self.x.size_bytes)}"
            )

    def kernel(self) -> Kernel:
        """All roles, the epilogue first: its warps reach a quarter of tensor memory each by their numbers."""
        with self.k.role("epilogue", WARPS, REGISTERS) as r:
            with r.when(WARP.equals(0)):
                r.tcgen05_alloc()
            self._tile(r, self._epilogue, self._clear)  # whose warps have met since their last loads
            with r.when(WARP.equals(0)):
                r.tcgen05_dealloc()
        if self.gathers:
            with self.k.role("rows", WARPS, REGISTERS) as r:
                self._tile(r, self._gather)
        for name, write in (("weights", self._load), ("mma", self._multiply)):
            with self.k.role(name, 1, REGISTERS) as r:
                self._tile(r, write)
        return replace(self.k.build(), stands_for=self.g.part.stands_for)

    def _tile(
        self, r: RoleBuilder, compute: Callable[[RoleBuilder, Tile], None],
        clear: Callable[[RoleBuilder, Tile], None] = lambda r, tile: None,
    ) -> None:  # fmt: skip
        """What a role does, once all know that barriers and tensor memory are there, with the CTA's tile."""
        overhead.in_turn(r, overhead.WGMMA_BARRIERS.plus(overhead.WGMMA_CTA_SETUP, 1))
        r.bar_sync(0, self.warps)
        at = self.plan.unit(CTA_X, Const(0)).tile
        m, n = r.assign("tile_m", at.m), r.assign("tile_n", at.n)
        write_tile(r, self.g, m, n, self.c, partial(compute, r), partial(clear, r))

    # --- operands

    def _load(self, r: RoleBuilder, tile: Tile) -> None:
        """Weights, and rows where they lie together."""
        c = self.c
        with r.loop("k", self.steps) as k:
            stage, depth = self.ring.stage(k), k * c.block_k
            size = self.w.stage_bytes + (0 if self.gathers else self.x.stage_bytes)
            self.ring.acquire(r, k, size)
            weights = tile.rows_of_w(tile.n * ROWS, ROWS, depth, c.block_k)
            r.tma_load(self.w.stage(stage), weights, self.ring.full, stage)
            if not self.gathers:
                rows = tile.rows_of_a(0, c.block_m, depth, c.block_k)
                r.tma_load(self.x.stage(stage), rows, self.ring.full, stage)
            overhead.TCGEN05_PRODUCER_STEP.write(r)

    def _gather(self, r: RoleBuilder, tile: Tile) -> None:
        """Rows of tokens; what has landed is made known some steps later."""
        ahead = min(self.c.stages - 1, COPIES_AHEAD)
        with r.loop("k", self.steps) as k:
            self.ring.acquire(r, k)
            self._copy(r, tile, k)
            r.cp_commit()
            with r.when(k >= ahead):
                self._landed(r, k - ahead, ahead)
        left = minimum(as_expr(self.steps), ahead)
        with r.loop("rest", left) as i:
            self._landed(r, self.steps - left + i, 0)

    def _landed(self, r: RoleBuilder, step: Expr, left: int) -> None:
        """This warp's rows of a step are there for the tensor core to see; `left` later ones are in flight."""
        r.cp_wait(left)
        r.fence_async()
        self.ring.fill(r, step)

    def _copy(self, r: RoleBuilder, tile: Tile, k: Expr) -> None:
        """A warp's rows of a step: groups that lie evenly apart at once, or each as the token that it is."""
        rows = self.c.block_m // WARPS
        together = math.gcd(rows, self.g.blocks.group)
        if tile.even == Const(1):
            self._copy_groups(r, tile, k, together)
            return
        with r.when(tile.even):
            self._copy_groups(r, tile, k, together)
        with r.when(tile.even.equals(0)):
            self._copy_groups(r, tile, k, 0)

    def _copy_groups(self, r: RoleBuilder, tile: Tile, k: Expr, together: int) -> None:
        c, depth, step = self.c, k * self.c.block_k, max(together, 1)
        rows, vector = c.block_m // WARPS, row_alignment(self.g.a)
        for i in range(0, rows, step):
            row = WARP * rows + i
            dst = self.x[self.ring.stage(k), row:step, 0 : c.block_k]  # type: ignore[misc]
            src = tile.rows_of_a(row, step, depth, c.block_k) if together else tile.token_of(row, depth, c.block_k)
            count = ceil_div(src.size_bytes, WARP_SIZE * vector)
            r.cp_async(dst, src, count, vector_bytes=vector, mix=Overhead(0).plus(overhead.EXPERTS_PER_COPY, count).mix)

    # --- products and results

    def _multiply(self, r: RoleBuilder, tile: Tile) -> None:
        depth = INSTRUCTION_K_BYTES // DTYPE_BYTES[self.g.dtype]
        with r.loop("k", self.steps) as k:
            stage = self.ring.stage(k)
            self.ring.wait(r, k)
            r.tcgen05_mma(
                self.acc.stage(), self.w.stage(stage), self.x.stage(stage).T,
                shape=f"m{ROWS}n{self.c.block_m}k{depth}", dtype=self.g.dtype, count=self.c.block_k // depth,
                accumulate=k > 0,
            )  # fmt: skip
            r.tcgen05_commit(self.ring.empty, stage)
            overhead.TCGEN05_STEP.write(r)
        r.tcgen05_commit(self.done, 0)

    def _epilogue(self, r: RoleBuilder, tile: Tile) -> None:
        """A thread has a column of the result, of all rows of the block."""
        c, g, lanes = self.c, self.g, WARP * LANES
        out = g.c.dtype
        r.mbarrier_wait(self.done, 0, 0)
        r.tcgen05_fence_after()
        tile.weigh(r, c.block_m, c.block_m)
        overhead.WGMMA_EPILOGUE_TILE.write(r)
        for s, at in enumerate(range(0, c.block_m, self.subtile)):
            sums = RegisterTile("sums", (LANES, self.subtile), "fp32")
            r.tcgen05_ld(sums.whole, self.acc[0, lanes:LANES, at : self.subtile])  # type: ignore[misc]
            r.tcgen05_wait_ld()
            r.run("cvt", ceil_div(self.subtile, 2), dtype=out)
            if s > 1:
                with r.when(WARP.equals(0)):
                    r.bulk_wait(1)
                r.bar_sync(1, WARPS)
            dst = self.staging[s % 2, 0 : self.subtile, lanes:LANES]  # type: ignore[misc]
            count = ceil_div(LANES * self.subtile * DTYPE_BYTES[out], WARP_SIZE * MAX_VECTOR_BYTES)
            r.sts(dst, sums.whole.T, count, vector_bytes=16, mix=overhead.WGMMA_EPILOGUE_SUBTILE.mix)
            r.fence_async()
            r.bar_sync(1, WARPS)
            with r.when(WARP.equals(0)):
                r.tma_store(tile.rows_of_c(at, self.subtile, tile.n * ROWS, ROWS), self.staging.stage(s % 2))
                r.bulk_commit()
        with r.when(WARP.equals(0)):
            r.bulk_wait(0, read=False)

    def _clear(self, r: RoleBuilder, tile: Tile) -> None:
        """Zeros for an expert of another device."""
        rows = self.c.block_m // WARPS
        tile.store_zeros(r, WARP * rows, rows, tile.n * ROWS, ROWS)
