"""Products of experts' rows by wgmma, as Triton's compiler pipelines a loop whose operands come by pointers.

All warps copy by cp.async, `stages` - 1 steps ahead, and multiply: one group of wgmma stays in flight, and the copies
that overwrite what a group has read follow the wait for it. Four warps take whole rows of 64; of eight, each four take
half of the rows, or half of the columns where there are 64 rows alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    RegisterTile,
    RoleBuilder,
    View,
)
from workloads.gpu import overhead
from workloads.gpu.gemm.plan import Plan
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div, row_alignment
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, INSTRUCTION_K_BYTES, STEP_BYTES, WARP_ROWS, WARPGROUP
from workloads.gpu.moe.config import MoeConfig
from workloads.gpu.moe.product import GroupedProduct, Tile, epilogue, write_setup, write_tile
from workloads.gpu.overhead import Overhead

REGISTERS = 55
"""Of a thread beside accumulators: compiled kernels have 116 to 122 with 64."""
EPILOGUE_TENTHS = 9
"""Instructions of the epilogue for ten accumulators of a thread."""


def takes(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> bool:
    """Whether Triton multiplies such a tile by wgmma."""
    step = INSTRUCTION_K_BYTES // DTYPE_BYTES[g.w.dtype]
    return (
        g.packed is None
        and config.block_m % BLOCK_ROWS == 0
        and config.warps % WARPGROUP == 0
        and config.block_k * DTYPE_BYTES[g.w.dtype] % STEP_BYTES == 0
        and spec.has_instruction("wgmma", g.w.dtype, f"m{BLOCK_ROWS}n*k{step}")
    )


def kernel(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> Kernel:
    """The kernel of a product. InputError where the machine cannot take the tile."""
    return _Writer(g, spec, config).kernel()


class _Writer:
    """Writes the kernel."""

    def __init__(self, g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> None:
        self.g, self.c = g, config
        groups = config.warps // WARPGROUP
        by_rows = min(groups, config.block_m // BLOCK_ROWS)
        self.across = groups // by_rows
        self.width = config.block_n // self.across
        # Rows of 64 that one warpgroup multiplies, one after the other.
        self.bands = config.block_m // (BLOCK_ROWS * by_rows)
        self.row = WARP // WARPGROUP % by_rows * BLOCK_ROWS + WARP % WARPGROUP * WARP_ROWS
        self.col = WARP // (WARPGROUP * by_rows) * self.width
        self.stride = BLOCK_ROWS * by_rows
        self.steps = ceil_div(g.w.shape[2], config.block_k)
        self.plan = Plan(g.part.launched, g.part.tiles_n, 1, self.steps, g.part.launched * g.part.tiles_n, 0,
                         config.group)  # fmt: skip
        dtype = g.w.dtype
        values = self.bands * self.width // 2
        self.k = KernelBuilder(
            f"{g.name}_{config.block_m}x{config.block_n}x{config.block_k}", (self.plan.workers, 1, 1),
            code_bytes=(700 + 8 * values) * overhead.INSTRUCTION_BYTES,
        )  # fmt: skip
        self.x = self.k.shared("a", (config.block_m, config.block_k), dtype, config.stages, 128)
        self.y = self.k.shared("b", (config.block_n, config.block_k), dtype, config.stages, 128)
        self.values, self.registers = values, min(255, values + REGISTERS)
        self.acc = [RegisterTile(f"acc{i}", (WARP_ROWS, self.width), "fp32") for i in range(self.bands)]
        size = self.x.size_bytes + self.y.size_bytes
        if size > spec.shared.max_per_cta_bytes:
            most = spec.shared.max_per_cta_bytes
            raise InputError(
                f"schedule={config}: {size} B of shared memory, {spec.name} has {most} B a CTA; "
                f"nearest: stages {most // (size // config.stages)}"
            )

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        c, g = self.c, self.g
        with self.k.role("warps", self.c.warps, self.registers) as r:
            at = self.plan.unit(CTA_X, Const(0)).tile
            m, n = r.assign("tile_m", at.m), r.assign("tile_n", at.n)

            def compute(tile: Tile) -> None:
                write_setup(r, self._copies(c.block_m, g.a), self._copies(c.block_n, g.w))
                self._main_loop(r, tile)
                self._epilogue(r, tile)

            def clear(tile: Tile) -> None:
                rows = self.c.block_m // self.c.warps
                tile.store_zeros(r, WARP * rows, rows, tile.n * self.c.block_n, self.c.block_n)

            write_tile(r, self.g, m, n, self.c, compute, clear)
        return replace(self.k.build(), stands_for=self.g.part.stands_for)

    # --- main loop

    def _main_loop(self, r: RoleBuilder, tile: Tile) -> None:
        c = self.c
        ahead = c.stages - 1
        for s in range(min(ahead, self.steps)):
            self._fetch(r, tile, Const(s), Const(s))
            r.cp_commit()
        for _ in range(self.steps, ahead):
            r.cp_commit()
        self._step(r, tile, Const(0), first=True)
        with r.loop("k", self.steps - 1, 1) as k:
            self._step(r, tile, k, first=False)
        r.wgmma_wait(0)

    def _step(self, r: RoleBuilder, tile: Tile, k: Expr, first: bool) -> None:
        """Step k: its operands are there for all; what step k - 1 has read is copied to again."""
        c = self.c
        ahead = c.stages - 1
        r.cp_wait(ahead - 1)
        r.fence_async()
        r.bar_sync(0, c.warps)
        copies = self._copies(c.block_m, self.g.a) + self._copies(c.block_n, self.g.w)
        ahead_of_copies = overhead.EXPERTS_WGMMA_AHEAD.plus(overhead.EXPERTS_WGMMA_AHEAD_PER_COPY, copies)
        ahead_of_copies.write(r)
        self._multiply(r, k % c.stages, first)
        ahead_of_copies.write(r)
        if not first:
            r.wgmma_wait(1)
            if c.warps > WARPGROUP:
                r.bar_sync(0, c.warps)
        with r.when(k + ahead < self.steps):
            self._fetch(r, tile, k + ahead, (k + ahead) % c.stages)
        r.cp_commit()
        overhead.EXPERTS_WGMMA_STEP.write(r)

    def _multiply(self, r: RoleBuilder, stage: Expr, first: bool) -> None:
        """The group of wgmma of one step, in flight."""
        c, dtype = self.c, self.g.w.dtype
        depth = INSTRUCTION_K_BYTES // DTYPE_BYTES[dtype]
        shape, count = f"m{BLOCK_ROWS}n{self.width}k{depth}", c.block_k // depth
        second = self.y[stage, self.col : self.width, 0 : c.block_k].T  # type: ignore[misc]
        r.wgmma_fence()
        for i, acc in enumerate(self.acc):
            view = self.x[stage, self.row + i * self.stride : WARP_ROWS, 0 : c.block_k]  # type: ignore[misc]
            r.wgmma(acc.whole, view, second, shape=shape, dtype=dtype, count=count, accumulate=int(not first))
        r.wgmma_commit()

    def _fetch(self, r: RoleBuilder, tile: Tile, k: Expr, stage: Expr) -> None:
        """Starts the copies of step `k`: of each operand every warp takes as many rows."""
        c, g, depth = self.c, self.g, k * self.c.block_k
        rows = c.block_m // c.warps
        together = math.gcd(rows, g.blocks.group) if g.tokens else rows
        if tile.even == Const(1):
            self._fetch_rows(r, tile, rows, together, depth, stage)
        else:
            with r.when(tile.even):
                self._fetch_rows(r, tile, rows, together, depth, stage)
            with r.when(tile.even.equals(0)):
                self._fetch_rows(r, tile, rows, 0, depth, stage)
        columns = c.block_n // c.warps
        row = WARP * columns
        first = tile.n * c.block_n + row
        if not g.w.shape[1] % columns:  # columns beyond the last one are taken from the first one on
            first = first % g.w.shape[1]
        src = tile.rows_of_w(first, columns, depth, c.block_k)
        self._copy(r, self.y[stage, row:columns, 0 : c.block_k], src, row_alignment(g.w))  # type: ignore[misc]

    def _fetch_rows(self, r: RoleBuilder, tile: Tile, rows: int, together: int, depth: Expr, stage: Expr) -> None:
        """A warp's rows of the first operand, `together` at once; 0: each as the token that it is."""
        c, vector = self.c, row_alignment(self.g.a)
        for i in range(0, rows, max(together, 1)):
            row = WARP * rows + i
            dst = self.x[stage, row : max(together, 1), 0 : c.block_k]  # type: ignore[misc]
            src = tile.rows_of_a(row, together, depth, c.block_k) if together else tile.token_of(row, depth, c.block_k)
            self._copy(r, dst, src, vector)

    def _copies(self, rows: int, operand: GlobalTensor) -> int:
        """A warp's copy instructions of a step for so many rows of an operand."""
        size = rows * self.c.block_k * DTYPE_BYTES[operand.dtype]
        return ceil_div(size, self.c.warps * WARP_SIZE * row_alignment(operand))

    @staticmethod
    def _copy(r: RoleBuilder, dst: View, src: View, vector: int) -> None:
        count = ceil_div(src.size_bytes, WARP_SIZE * vector)
        each = Overhead(0).plus(overhead.EXPERTS_WGMMA_PER_COPY, count)
        r.cp_async(dst, src, count, vector_bytes=vector, mix=each.mix)

    # --- epilogue

    def _epilogue(self, r: RoleBuilder, tile: Tile) -> None:
        """Through a warp's own part of the first operand's buffers: fragments in, whole rows out."""
        c, g = self.c, self.g
        out = g.c.dtype
        tile.weigh(r, WARP_ROWS * self.bands, self.values)
        epilogue(self.values, EPILOGUE_TENTHS).write(r)
        r.run("cvt", ceil_div(self.values, 2), dtype=out)
        r.bar_sync(0, c.warps)
        cols = math.gcd(self.width, c.block_k)
        rows = RegisterTile("out", (WARP_ROWS, cols), out)
        buffer = WARP // (c.block_m // WARP_ROWS)
        staging = self.x[buffer, WARP % (c.block_m // WARP_ROWS) * WARP_ROWS : WARP_ROWS, 0:cols]  # type: ignore[misc]
        size = WARP_ROWS * cols * DTYPE_BYTES[out]
        vector = row_alignment(g.c)
        for i, acc in enumerate(self.acc):
            for j in range(0, self.width, cols):
                r.sts(staging, acc[:, j:cols], ceil_div(size, WARP_SIZE * MAX_VECTOR_BYTES), vector_bytes=16)
                r.lds(rows.whole, staging, ceil_div(size, WARP_SIZE * MAX_VECTOR_BYTES), vector_bytes=16)
                box = tile.rows_of_c(self.row + i * self.stride, WARP_ROWS, tile.n * c.block_n + self.col + j, cols)
                r.stg(box, rows.whole, ceil_div(size, WARP_SIZE * vector), vector_bytes=vector)
