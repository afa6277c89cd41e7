"""Attention as Triton's fused-attention tutorial has it, on Hopper: FlashAttention-2 by wgmma, no warps specialised.

All warps do the same: 16 or 32 queries each, all keys, from the first on. They copy K and V by cp.async, `stages` - 1
blocks ahead. P V of a block is in flight until the scores of the next are waited for. A causal tile sweeps twice,
without mask over the keys before its queries and with it over the rest, and each sweep fills its own pipeline.

Source: triton-lang/triton, python/tutorials/06-fused-attention.py, which measures its configurations and takes the
fastest. Instruction counts, buffers, barriers and the order of products are those of the compiled kernel (Triton 3.9.0,
ptxas 12.9, sm_90a). It has no ragged edges, windows or shared key heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
)
from workloads.gpu import overhead
from workloads.gpu.attention import flash3
from workloads.gpu.attention.blocks import AttentionProblem, OnlineSoftmax, check_together, problem, width
from workloads.gpu.attention.configuration import AttentionConfig, rounds_ps
from workloads.gpu.attention.flash2 import Blocked
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, WARP_ROWS
from workloads.ops.attention import Attention
from workloads.registry import register

STEP_K = 16
"""Depth of one wgmma of 16-bit operands."""


@dataclass(frozen=True)
class FlashTritonConfig(AttentionConfig):
    """Tile configuration: `block_m` queries a CTA of `warps` warps, `block_n` keys a step, in `stages` buffers."""

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 3

    schedule: ClassVar[str] = "flash2-triton"

    @property
    def rows(self) -> int:
        """Queries of a warp."""
        return self.block_m // self.warps

    grammar: ClassVar[tuple[Word, ...]] = (Word.tile("block_m", "block_n"), Word.number("warps"), Word.number("stages"))

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where, op = f"schedule={self}", p.op
        if spec.tma is None or not spec.has_instruction("wgmma", p.dtype, f"m{BLOCK_ROWS}n*k{STEP_K}"):
            raise InputError(
                f"{where}: {spec.name} has no wgmma m{BLOCK_ROWS}n*k{STEP_K} for {p.dtype}; nearest: flash2"
            )
        if (self.block_m, self.warps) not in ((64, 4), (128, 4), (128, 8)):
            raise InputError(f"{where}: a tile has 64 queries of 4 warps or 128 of 4 or 8; nearest: 128 of 8")
        if self.block_n % STEP_K or not STEP_K <= self.block_n <= 256:
            raise InputError(f"{where}: a block of keys is a multiple of {STEP_K} from {STEP_K} to 256; nearest: 128")
        used = registers(p, self)
        if used > spec.sm.max_registers_per_thread:
            most = spec.sm.max_registers_per_thread
            raise InputError(f"{where}: {used} registers a thread, {spec.name} has {most}; nearest: 64x32")
        if op.head_dim not in (32, 64, 128, 256):
            rule = "the tutorial's kernel has heads of 32, 64, 128 or 256"
            raise InputError(f"{where}: {rule}, not {op.head_dim}; nearest: flash3")
        if self.stages < 2:
            raise InputError(f"{where}: stages {self.stages}: at least 2")
        check_together(p, where, "flash2-varlen")
        if op.window or op.key_heads != op.heads:
            raise InputError(f"{where}: the tutorial's kernel has no windows and no shared key heads; nearest: flash2")
        if p.out != p.dtype:
            raise InputError(f"{where}: the tutorial's kernel stores what it loads, {p.dtype}; nearest: out={p.dtype}")
        if op.queries % self.block_m or op.keys % self.block_n or (p.causal and op.queries != op.keys):
            rule = "takes whole tiles and, causal, as many keys as queries"
            raise InputError(f"{where}: the tutorial's kernel {rule}; nearest: flash2")
        if p.causal and self.block_m % self.block_n:
            raise InputError(f"{where}: whole blocks of keys lie before a causal tile; nearest: {self.block_m} keys")

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """About the time in picoseconds."""
        cycles = flash3.products(p, spec, self.block_m, self.block_n, p.head_dim)
        return rounds_ps(p, spec, self.block_m, self.block_n, cycles)


def default_config(p: AttentionProblem) -> FlashTritonConfig:
    """The fastest of the tutorial's configurations (Triton 3.0: 64 or 128 queries, 32 or 64 keys, 3, 4 or 7 stages, 4
    warps) as simulated on H100 with 2048 tokens."""
    return {64: FlashTritonConfig(64, 64, 4, 3), 128: FlashTritonConfig(128, 32, 4, 4)}.get(
        p.op.head_dim, FlashTritonConfig(64, 32, 4, 3)
    )


def registers(p: AttentionProblem, config: FlashTritonConfig) -> int:
    """Of a thread: accumulators, scores, weights and, as compiled, 45 more; 65 with a mask."""
    return config.rows * (2 * p.op.head_dim + 3 * config.block_n) // 64 + (65 if p.causal else 45)


@register("attention", "gpu", "flash2-triton")
def build(op: Attention, spec: GpuSpec, config: FlashTritonConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    return Program(f"{op}", p.tensors, (_Builder(p, config).kernel(),), str(config), {"config": config})


class _Builder:
    """Writes the kernel."""

    def __init__(self, p: AttentionProblem, config: FlashTritonConfig) -> None:
        self.p, self.c = p, config
        op, d = p.op, p.op.head_dim
        self.k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (op.queries // config.block_m, op.batch * op.heads, 1),
            code_bytes=_code_bytes(p, config),
        )  # fmt: skip
        self.q = Blocked(self.k, "q", config.block_m, d, p.dtype, 1, d)
        self.keys, self.values = (
            Blocked(self.k, name, config.block_n, d, p.dtype, config.stages, d) for name in ("k", "v")
        )
        self.own = WARP * config.rows
        # A wgmma takes 64 queries, 16 of each warp of a warpgroup: where a warp has 32, they lie in two places of Q.
        self.parts = [(at, WARP * WARP_ROWS + at // WARP_ROWS * BLOCK_ROWS) for at in range(0, config.rows, WARP_ROWS)]
        self.head, self.batch = CTA_Y % op.heads, CTA_Y // op.heads
        self.softmax = OnlineSoftmax(p, config.rows, config.block_n, d, sums_each_block=True)

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        c, p, s = self.c, self.p, self.softmax
        row = CTA_X * c.block_m
        blocks = Const(p.op.keys // c.block_n)
        with self.k.role("warps", c.warps, registers(p, c)) as r:
            overhead.FLASH_TRITON_SETUP.write(r)
            self._load_queries(r, row)
            s.start(r)
            if p.causal:
                before = CTA_X * (c.block_m // c.block_n)
                self._sweep(r, "whole", Const(0), before, None)
                r.bar_sync(0, c.warps)
                self._sweep(r, "masked", before, Const(c.block_m // c.block_n), row)
            else:
                self._sweep(r, "whole", Const(0), blocks, None)
            s.finish(r)
            overhead.FLASH_TRITON_EPILOGUE.write(r)
            self._store(r, row + self.own)
        return self.k.build()

    def _load_queries(self, r: RoleBuilder, row: Expr) -> None:
        """This warp's queries, through registers."""
        d, rows = self.p.op.head_dim, self.c.rows
        queries = RegisterTile("queries", (rows, d), self.p.dtype)
        src = self.p.q[self.batch, row + self.own : rows, self.head, :]  # type: ignore[misc]
        r.ldg(queries.whole, src, self._vectors(rows), into="queries")
        for at, place in self.parts:
            part = queries[at:WARP_ROWS, :]
            r.sts(
                self.q.view(place, WARP_ROWS, 0, d), part, self._vectors(WARP_ROWS), vector_bytes=MAX_VECTOR_BYTES,
                after=("queries",),
            )  # fmt: skip

    def _vectors(self, rows: int) -> int:
        """Instructions with which a warp moves rows in whole vectors."""
        return ceil_div(rows * self.p.op.head_dim * width(self.p), 32 * MAX_VECTOR_BYTES)

    def _store(self, r: RoleBuilder, row: Expr) -> None:
        """Outputs through this warp's places of Q, so that threads store whole vectors; LSE from registers."""
        s, d, rows = self.softmax, self.p.op.head_dim, self.c.rows
        result = RegisterTile("result", (rows, d), self.p.dtype)
        for at, place in self.parts:
            view, count = self.q.view(place, WARP_ROWS, 0, d), self._vectors(WARP_ROWS)
            r.sts(view, s.acc[at:WARP_ROWS, :], count, vector_bytes=MAX_VECTOR_BYTES)
            r.lds(result[at:WARP_ROWS, :], view, count)
        r.stg(self.p.o[self.batch, row:rows, self.head, :], result.whole, self._vectors(rows))  # type: ignore[misc]
        lse = self.p.lse[self.batch, self.head, row:rows]  # type: ignore[misc]
        r.stg(lse, s.total.whole, s.lines, vector_bytes=4)

    def _sweep(self, r: RoleBuilder, name: str, first: Expr, trips: Expr, row: Expr | None) -> None:
        """Blocks of keys from `first` on, pipelined on their own. row: the tile's first query where there is a mask."""
        c, s = self.c, self.softmax
        ahead = c.stages - 1
        with r.loop(f"{name}_fill", ahead) as stage:
            for to, tensor in ((self.keys, self.p.k), (self.values, self.p.v)):
                with r.when(trips > stage):
                    self._copy(r, to, tensor, first + stage, stage)
                r.cp_commit()
        with r.loop(name, trips) as i:
            r.cp_wait(2 * (ahead - 1))
            r.fence_async()
            r.bar_sync(0, c.warps)
            self._scores(r, i % c.stages)
            r.wgmma_wait(0)  # outputs of the block before included
            r.fence_async()
            if row is not None:
                s.mask(r, row + self.own, (first + i) * c.block_n)
            s.block(r, first=False)
            s.rescale(r)
            s.convert(r)
            self._outputs(r, i % c.stages)
            r.bar_sync(0, c.warps)
            for to, tensor in ((self.keys, self.p.k), (self.values, self.p.v)):
                with r.when(trips > i + ahead):
                    self._copy(r, to, tensor, first + i + ahead, (i + ahead) % c.stages)
                r.cp_commit()
            overhead.FLASH_TRITON_STEP.write(r)
        r.wgmma_wait(0)

    def _copy(self, r: RoleBuilder, to: Blocked, tensor: GlobalTensor, block: Expr, stage: IntLike) -> None:
        """This warp's share of a block's rows."""
        rows, d = to.rows // self.c.warps, self.p.op.head_dim
        own = WARP * rows
        src = tensor[self.batch, block * to.rows + own : rows, self.head, :]  # type: ignore[misc]
        count = self._vectors(rows)
        r.cp_async(to.view(own, rows, 0, d, stage), src, count, mix=overhead.mix(imad=count))

    def _scores(self, r: RoleBuilder, stage: IntLike) -> None:
        """Q K^T of one block, in flight."""
        s, d = self.softmax, self.p.op.head_dim
        r.wgmma_fence()
        for at, place in self.parts:
            r.wgmma(
                s.scores[at:WARP_ROWS, :], self.q.view(place, WARP_ROWS, 0, d), self.keys.tile.stage(stage).T,
                shape=f"m{BLOCK_ROWS}n{self.c.block_n}k{STEP_K}", dtype=self.p.dtype, count=d // STEP_K, accumulate=0,
                mix=overhead.mix(alu=2 * d // STEP_K),
            )  # fmt: skip
        r.wgmma_commit()

    def _outputs(self, r: RoleBuilder, stage: IntLike) -> None:
        """acc + P V of one block, in flight."""
        s, count = self.softmax, self.c.block_n // STEP_K
        r.wgmma_fence()
        for at, _ in self.parts:
            r.wgmma(
                s.acc[at:WARP_ROWS, :], s.weights[at:WARP_ROWS, :], self.values.tile.stage(stage),
                shape=f"m{BLOCK_ROWS}n{self.p.op.head_dim}k{STEP_K}", dtype=self.p.dtype, count=count,
                mix=overhead.mix(alu=2 * count),
            )  # fmt: skip
        r.wgmma_commit()


def _code_bytes(p: AttentionProblem, c: FlashTritonConfig) -> int:
    """Machine code on the path that runs: set-up, the loop, a masked one where there is a mask, the epilogue."""
    step = 6 * c.block_n // 2 + p.op.head_dim // 2 + 100
    return (280 + step + (2 * step if p.causal else 0) + 460) * overhead.INSTRUCTION_BYTES
