"""Products of experts' rows on warp-level mma: the main loop of Triton's matrix multiplication
(`workloads.gpu.gemm.triton`), but for the addresses; weights that are stored with fewer bits are brought to the rows'
format in it as Marlin does (`workloads.gpu.gemm.marlin`)."""

from __future__ import annotations

from dataclasses import replace

from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, Const, Expr, Kernel, RoleBuilder, View
from workloads.gpu import overhead
from workloads.gpu.gemm import mma, threadblock
from workloads.gpu.gemm.marlin import Dequantising, MarlinCore
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Problem
from workloads.gpu.gemm.threadblock import Copy, Writer
from workloads.gpu.gemm.triton import TritonConfig, TritonCore, warp_tile
from workloads.gpu.moe.config import MoeConfig
from workloads.gpu.moe.product import GroupedProduct, Tile, epilogue, write_setup, write_tile
from workloads.gpu.overhead import Overhead

EPILOGUE_TENTHS = 18
"""Instructions of the epilogue for ten accumulators of a thread."""


class ExpertsCore(TritonCore):
    """`Inner` of the fused kernel's compiled loop. Its set-up follows once the tile is known to have work."""

    step, per_copy, setup = overhead.EXPERTS_STEP, overhead.EXPERTS_PER_COPY, Overhead(0)
    moves = False

    def __init__(self, spec: GpuSpec, dtype: str, tile: TritonConfig, registers: tuple[int, int]) -> None:
        super().__init__(spec, dtype, "cp.async")
        held = tile.accumulators
        self.epilogue = epilogue(held, EPILOGUE_TENTHS)
        base, tenths = registers
        self.extra_registers = base + tenths * held // 10 - 2 * self.fragment_registers(tile.warp_m, tile.warp_n)


class PackedExpertsCore(MarlinCore, ExpertsCore):
    """The same with weights in the order in which threads need them."""


def kernel(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> Kernel:
    """The kernel of a product. InputError where the machine cannot take the tile."""
    p = g.problem(config)
    warp = warp_tile(config.block_m, config.block_n, config.warps)
    if g.packed is not None:
        warp = config.block_m, config.block_n // config.warps
    tile = TritonConfig(
        config.block_m, config.block_n, config.block_k, *warp, config.stages, "cp.async", config.group
    )  # fmt: skip
    if g.packed is not None:
        core = PackedExpertsCore(spec, p.dtype, tile, config.registers)
        threadblock.check(p, spec, tile, core, f"schedule={config}")
        return _PackedWriter(g, p, spec, tile, core, config).kernel()
    mma.MmaConfig.check(tile, p, spec)  # also where Triton would multiply by wgmma
    return _Writer(g, p, spec, tile, ExpertsCore(spec, p.dtype, tile, config.registers), config).kernel()


class _Writer(Writer):
    """Writes the kernel. As Triton 3.5 and 3.6 compile the loop, all fragments of a step are read behind the barrier at
    its begin, and a buffer is filled again at its end. Copies have no prefetch size."""

    tile: Tile

    def __init__(
        self, g: GroupedProduct, p: Problem, spec: GpuSpec, config: TritonConfig, core: mma.TensorCore, moe: MoeConfig
    ) -> None:
        self.g, self.moe = g, moe
        self.together = g.blocks.group if g.tokens else 0
        super().__init__(p, spec, config, core)
        self.together = 0
        self.k.name = f"{g.name}_{config.tile_m}x{config.tile_n}x{config.tile_k}"

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        with self.k.role("warps", self.config.warps, self.registers) as r:
            unit = self._resolved(r, self.plan.unit(CTA_X, Const(0)))

            def compute(tile: Tile) -> None:
                self.tile = tile
                write_setup(r, *(copy.count * copy.pieces for copy in self.copies))
                self._main_loop(r, unit)
                tile.weigh(r, self.config.warp_m, self.config.accumulators)
                self._epilogue(r, unit)

            def clear(tile: Tile) -> None:
                col = tile.n * self.config.tile_n + self.col
                tile.store_zeros(r, self.row, self.config.warp_m, col, self.config.warp_n)

            write_tile(r, self.g, unit.tile.m, unit.tile.n, self.moe, compute, clear)
        return replace(self.k.build(), stands_for=self.g.part.stands_for, prefetches=False)

    def _fetch(self, r: RoleBuilder, unit: Unit, k: Expr, stage: Expr, pointers: str = "") -> None:
        """Starts the copies of k step `k`; tokens that do not lie evenly apart row by row."""
        if self.tile.even == Const(1):
            super()._fetch(r, unit, k, stage, pointers)
            return
        a, b = both = self.copies
        with r.when(self.tile.even):
            self.copies = (a,)  # type: ignore[assignment]
            super()._fetch(r, unit, k, stage, pointers)
        with r.when(self.tile.even.equals(0)), self._copying(r, a):
            self._fetch_rows(r, a, (unit.k_begin + k) * self.config.tile_k, stage, pointers)
        self.copies = (b,)  # type: ignore[assignment]
        super()._fetch(r, unit, k, stage)
        self.copies = both

    def _fetch_rows(self, r: RoleBuilder, copy: Copy, depth: Expr, stage: Expr, pointers: str) -> None:
        for piece in range(copy.pieces):
            for i in range(copy.rows):
                share = copy.share(piece) + i
                row, column = self._place(copy, share)
                target = copy.tile[stage, share:1, 0 : copy.columns]  # type: ignore[misc]
                source = self.tile.token_of(row, depth + column, copy.columns)
                r.cp_async(target, source, 1, vector_bytes=copy.operand.vector_bytes, into=pointers)

    @staticmethod
    def _place(copy: Copy, share: Expr) -> tuple[Expr, Expr]:
        """Row of the block and column of the step where a box of the shared tile begins."""
        if copy.blocks > 1:
            return share % copy.memory_rows, share // copy.memory_rows * copy.columns
        return share, Const(0)

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """Rows of the block, or weights of its expert, in one step of the sum."""
        row, column = self._place(copy, copy.share(piece))
        if copy.operand is self.p.a:
            return self.tile.rows_of_a(row, copy.rows, depth + column, copy.columns)
        return self.tile.rows_of_w(unit.tile.n * copy.extent + row, copy.rows, depth + column, copy.columns)

    def result(self, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """Rows of the block."""
        return self.tile.rows_of_c(row - unit.tile.m * self.g.blocks.size, rows, col, cols)

    def _loop_of_parts(self, r: RoleBuilder, unit: Unit) -> None:
        c, last = self.config, self.parts - 1
        with r.loop("k", unit.k_trips) as k:
            stage, ahead = k % c.buffers, k + (c.stages - 1)
            r.cp_wait(c.stages - 2)
            r.bar_sync(0, c.warps)
            self._load_fragments(r, 0, stage)
            for part in range(last):
                begun = self._share(4)
                accumulate = k > 0 if part == 0 else Const(1)
                self._multiply(r, part, 0, begun, accumulate, spread=True)
                self._load_fragments(r, part + 1, stage)
                self._multiply(r, part, begun, c.warp_n, accumulate)
            self._last_part(r, unit, last, k > 0 if last == 0 else Const(1), ahead)

    def _last_part(self, r: RoleBuilder, unit: Unit, part: int, accumulate: Expr, ahead: Expr) -> None:
        c, cuts = self.config, [self._share(count) for count in (0, 2, 6, 8)]
        self._multiply(r, part, cuts[0], cuts[1], accumulate, spread=True, mix=self.inner.step.mix)
        r.bar_sync(0, c.warps)
        self._multiply(r, part, cuts[1], cuts[2], accumulate)
        with r.when(ahead < unit.k_trips):
            self._fetch(r, unit, ahead, ahead % c.buffers)
        r.cp_commit()
        self._multiply(r, part, cuts[2], cuts[3], accumulate)


class _PackedWriter(Dequantising, _Writer):
    """Writes the kernel of weights that are stored with fewer bits."""

    def __init__(
        self, g: GroupedProduct, p: Problem, spec: GpuSpec, config: TritonConfig, core: mma.TensorCore, moe: MoeConfig
    ) -> None:
        super().__init__(g, p, spec, config, core, moe)
        self.hold()

    def first_block(self) -> Expr:
        """Of the expert's matrix."""
        return self.tile.expert * self.packed_b.blocks(self.p.k)

    def first_group(self) -> Expr:
        """Of the expert's scales."""
        return self.tile.expert * self.packed_b.groups(self.p.k)
