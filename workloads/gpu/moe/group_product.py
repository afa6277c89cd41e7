"""Products of experts' rows by wgmma, as Triton's compiler pipelines a loop whose operands come by pointers.

All warps copy by cp.async, `stages` - 1 steps ahead, and multiply: one group of wgmma stays in flight, and the copies
that overwrite what a group has read follow the wait for it. Four warps take whole rows of 64; of eight, each four take
half of the rows, or half of the columns where there are 64 rows alone.

Operands with scales by block multiply each step of 128 into registers of its own, wait for it, and add it with its
scales to the sums; scales come by pointers at the beginning of the step, one of each row and one of the tile's weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

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
from workloads.ops.base import Array
from workloads.ops.gemm import SCALE_BLOCK

OUT_COLUMNS = 32
"""Of a warp's rows that are turned at once in a place of their own."""
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


def _check_blocks(config: MoeConfig) -> None:
    """InputError for a tile that scales by block do not fit."""
    if config.block_k != SCALE_BLOCK or SCALE_BLOCK % config.block_n:
        raise InputError(f"schedule={config}: with scale=block a step has {SCALE_BLOCK} of k, and columns divide that")


def _first_scaled(_: Array, products: Array, rows: Array, weights: Array) -> Array:
    return np.asarray(products * rows * weights)


def _add_scaled(sums: Array, products: Array, rows: Array, weights: Array) -> Array:
    return np.asarray(sums + products * rows * weights)


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
        # Results of another format than the operands' take a place of their own, where hardware uses the operands'.
        self.out = self.x
        if DTYPE_BYTES[g.c.dtype] != DTYPE_BYTES[dtype]:
            self.out = self.k.shared("out", (config.warps * WARP_ROWS, OUT_COLUMNS), g.c.dtype, 1, 64)
        self.values, self.registers = values, min(255, values + REGISTERS)
        self.acc, self.products = (
            [RegisterTile(f"{name}{i}", (WARP_ROWS, self.width), "fp32") for i in range(self.bands)]
            for name in ("acc", "product")
        )
        self.scales = [RegisterTile(f"scales{i}", (WARP_ROWS, 1), "fp32") for i in range(self.bands)]
        if g.scales_a is not None:
            _check_blocks(config)
            self.registers = min(255, 2 * values + REGISTERS)
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
        if self.g.scales_a is None:  # whose steps wait by themselves
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
        if self.g.scales_a is not None:
            self._scaled(r, tile, k, first)
        else:
            self._multiply(r, k % c.stages, self.acc, first)
        ahead_of_copies.write(r)
        if not first:
            if self.g.scales_a is None:
                r.wgmma_wait(1)
            if c.warps > WARPGROUP:
                r.bar_sync(0, c.warps)
        with r.when(k + ahead < self.steps):
            self._fetch(r, tile, k + ahead, (k + ahead) % c.stages)
        r.cp_commit()
        overhead.EXPERTS_WGMMA_STEP.write(r)

    def _scaled(self, r: RoleBuilder, tile: Tile, k: Expr, first: bool) -> None:
        """The products of one step, complete, with their scales."""
        g, of_a = self.g, self.g.scales_a
        assert of_a is not None
        assert g.scales is not None
        of_weights = RegisterTile("scale", (1, 1), "fp32")
        column = (tile.n * self.c.block_n + self.col) // SCALE_BLOCK
        r.ldg(of_weights.whole, g.scales[tile.expert, column:1, k:1], 1, into="scales", vector_bytes=4)  # type: ignore[misc]
        for i, scales in enumerate(self.scales):
            row = self.row + i * self.stride

            def load(together: int, scales: RegisterTile = scales, row: Expr = row) -> None:
                for j in range(0, WARP_ROWS, max(together, 1)):
                    src = (
                        tile.rows_of(of_a, row + j, together, k, 1) if together else tile.token_in(of_a, row + j, k, 1)
                    )
                    r.ldg(scales[j : max(together, 1), :], src, 1, into="scales", vector_bytes=4)

            self._in_windows(r, tile, WARP_ROWS, load)
        self._multiply(r, k % self.c.stages, self.products, first=True)
        r.wgmma_wait(0)
        for acc, product, scales in zip(self.acc, self.products, self.scales, strict=True):
            # A product with the row's scale, which is multiplied by that of the weights before, and a multiply-add.
            r.run(
                "ffma", acc.shape[0] * acc.shape[1] // WARP_SIZE, dtype="fp32", dst=acc.whole,
                srcs=(product.whole, scales.whole, of_weights.whole), after=("scales",),
                compute=_first_scaled if first else _add_scaled, mix=(("fmul.fp32", ceil_div(WARP_ROWS, 8)),),
            )  # fmt: skip

    def _multiply(self, r: RoleBuilder, stage: Expr, sums: list[RegisterTile], first: bool) -> None:
        """The group of wgmma of one step, in flight."""
        c, dtype = self.c, self.g.w.dtype
        depth = INSTRUCTION_K_BYTES // DTYPE_BYTES[dtype]
        shape, count = f"m{BLOCK_ROWS}n{self.width}k{depth}", c.block_k // depth
        second = self.y[stage, self.col : self.width, 0 : c.block_k].T  # type: ignore[misc]
        r.wgmma_fence()
        for i, acc in enumerate(sums):
            view = self.x[stage, self.row + i * self.stride : WARP_ROWS, 0 : c.block_k]  # type: ignore[misc]
            r.wgmma(acc.whole, view, second, shape=shape, dtype=dtype, count=count, accumulate=int(not first))
        r.wgmma_commit()

    def _fetch(self, r: RoleBuilder, tile: Tile, k: Expr, stage: Expr) -> None:
        """Starts the copies of step `k`: of each operand every warp takes as many rows."""
        c, g, depth = self.c, self.g, k * self.c.block_k
        rows = c.block_m // c.warps
        self._in_windows(r, tile, rows, lambda together: self._fetch_rows(r, tile, rows, together, depth, stage))
        columns = c.block_n // c.warps
        row = WARP * columns
        first = tile.n * c.block_n + row
        if not g.w.shape[1] % columns:  # columns beyond the last one are taken from the first one on
            first = first % g.w.shape[1]
        src = tile.rows_of_w(first, columns, depth, c.block_k)
        self._copy(r, self.y[stage, row:columns, 0 : c.block_k], src, row_alignment(g.w))  # type: ignore[misc]

    def _in_windows(self, r: RoleBuilder, tile: Tile, rows: int, read: Callable[[int], None]) -> None:
        """Reads a warp's rows, so many at once as lie evenly apart; 0: each as the token that it is."""
        together = math.gcd(rows, self.g.blocks.group) if self.g.tokens else rows
        if tile.even == Const(1):
            read(together)
            return
        with r.when(tile.even):
            read(together)
        with r.when(tile.even.equals(0)):
            read(0)

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
        """Through a warp's own part of shared memory: fragments in, whole rows out."""
        c, g = self.c, self.g
        out = g.c.dtype
        tile.weigh(r, WARP_ROWS * self.bands, self.values)
        epilogue(self.values, EPILOGUE_TENTHS).write(r)
        r.run("cvt", ceil_div(self.values, 2), dtype=out)
        r.bar_sync(0, c.warps)
        cols = math.gcd(self.width, c.block_k, self.out.shape[1])
        rows = RegisterTile("out", (WARP_ROWS, cols), out)
        parts = self.out.shape[0] // WARP_ROWS
        staging = self.out[WARP // parts, WARP % parts * WARP_ROWS : WARP_ROWS, 0:cols]  # type: ignore[misc]
        size = WARP_ROWS * cols * DTYPE_BYTES[out]
        vector = row_alignment(g.c)
        for i, acc in enumerate(self.acc):
            for j in range(0, self.width, cols):
                r.sts(staging, acc[:, j:cols], ceil_div(size, WARP_SIZE * MAX_VECTOR_BYTES), vector_bytes=16)
                r.lds(rows.whole, staging, ceil_div(size, WARP_SIZE * MAX_VECTOR_BYTES), vector_bytes=16)
                box = tile.rows_of_c(self.row + i * self.stride, WARP_ROWS, tile.n * c.block_n + self.col + j, cols)
                r.stg(box, rows.whole, ceil_div(size, WARP_SIZE * vector), vector_bytes=vector)
