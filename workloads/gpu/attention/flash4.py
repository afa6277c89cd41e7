"""FlashAttention-4: attention forward on machines with tensor memory (Dao-AILab/flash-attention, flash_fwd_sm100.py).

A CTA has two tiles of 128 queries. One thread multiplies for both: scores of a tile beside the outputs of the other.
Scores and outputs lie in tensor memory. A warpgroup a tile makes weights of its scores, a row a thread, and stores them
where these were; a third one, the correction warps, rescales outputs where a maximum has grown, divides them by the
sums at the end, and stores them through shared memory.

Outputs are rescaled only where a maximum has grown by more than 2^8 (the kernel's threshold): with normally distributed
data not after a row's first keys. So the correction warps ask in each step, and here nothing ever has to be rescaled:
weights stay relative to the first maximum that a row has seen.

Of the exponentials a part is computed on the FMA pipe (`exp_on_fma`), by a polynomial of the third degree: special
functions take as long as both products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from arch import tcgen05
from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    CTA_Z,
    WARP,
    Expr,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    as_expr,
)
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import (
    LOG2_E,
    Array,
    AttentionProblem,
    blocks,
    check_together,
    exponentials,
    first_maximum,
    problem,
    width,
)
from workloads.gpu.attention.configuration import AttentionConfig, rounds_ps
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.tcgen05 import INSTRUCTION_K_BYTES, LANES, ROWS, WARPS
from workloads.ops.attention import Attention
from workloads.registry import register

TILES = 2
"""Of a CTA, each with a warpgroup for its softmax."""
BLOCK_N = 128
"""Keys of a step."""
HEADS = (64, 128)
"""Columns of heads: outputs and scores of two tiles fill tensor memory."""
CHUNK = 32
"""Columns of tensor memory that a warp loads or stores at once."""
ON_FMA = 25
"""Percent of the exponentials that the FMA pipe computes (`e2e_freq` of 16, four of them)."""
POLYNOMIAL = (("ffma", 4), ("fadd", 2), ("iadd", 2))
"""Instructions of one of these: range reduction, Horner's scheme of three steps, exponent."""
WARPS_ALL = TILES * WARPS + WARPS + 2
REGISTERS, SOFTMAX, CORRECTION, OTHERS = 128, 192, 104, 48
"""Of a thread: at launch; of the roles (`num_regs_softmax` and others)."""
SETUP_BYTES = 2048
CODE_BYTES = 14336
"""Machine code on the path that runs: about 900 instructions of all roles."""


@dataclass(frozen=True)
class Flash4Config(AttentionConfig):
    """stages: of K and V together. exp_on_fma: see above."""

    stages: int = 3
    exp_on_fma: bool = True

    schedule: ClassVar[str] = "flash4"
    grammar: ClassVar[tuple[Word, ...]] = (
        Word.number("stages"),
        Word.flag("mufu", "exp_on_fma", False),
    )

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if spec.tcgen05 is None or not spec.has_instruction(tcgen05.OP, p.dtype, f"m{ROWS}n*k{_depth(p)}"):
            raise InputError(f"{where}: {spec.name} has no tensor memory for {p.dtype}; its nearest schedule is flash2")
        check_together(p, where, "flash2")
        if p.op.head_dim not in HEADS or width(p) != 2 or p.op.window:
            raise InputError(f"{where}: heads of {' or '.join(map(str, HEADS))} in 16 bits, no window; nearest: flash2")
        if not 2 <= self.stages <= max_stages(p, spec):
            raise InputError(f"{where}: shared memory has room for {max_stages(p, spec)} stages; at least 2")

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """About the time in picoseconds."""
        products = sum(
            tcgen05.product(spec, p.dtype, f"m{ROWS}n{n}k{_depth(p)}").row.interval_cycles * (k // _depth(p))
            for n, k in ((BLOCK_N, p.op.head_dim), (p.op.head_dim, BLOCK_N))
        )
        return rounds_ps(p, spec, TILES * ROWS, BLOCK_N, TILES * products, True)

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism; the same where it does not use it."""
        if mechanism == "tensor_memory":
            return "flash2"
        return str(replace(self, exp_on_fma=False) if mechanism == "exp_on_fma" else self)


def _depth(p: AttentionProblem) -> int:
    """Depth of one product."""
    return INSTRUCTION_K_BYTES // width(p)


def max_stages(p: AttentionProblem, spec: GpuSpec) -> int:
    """Stages of K and V beside queries and outputs, which leave through their place."""
    room = spec.shared.max_per_cta_bytes - TILES * ROWS * p.op.head_dim * width(p) - SETUP_BYTES
    return room // (BLOCK_N * p.op.head_dim * width(p))


def default_config(p: AttentionProblem, spec: GpuSpec) -> Flash4Config:
    """The published kernel's configuration."""
    return Flash4Config(min(6 if p.op.head_dim == 64 else 3, max(2, max_stages(p, spec))))


@register("attention", "gpu", "flash4")
def build(op: Attention, spec: GpuSpec, config: Flash4Config) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    return Program(f"{op}", p.tensors, (_Builder(p, config).kernel(),), str(config), {"config": config})


class _Builder:
    """Writes the kernel; one method a role or a part of one."""

    def __init__(self, p: AttentionProblem, config: Flash4Config) -> None:
        self.p, self.c, self.d = p, config, p.op.head_dim
        rows = ceil_div(p.op.queries, TILES * ROWS)
        self.k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (rows, p.op.heads, p.op.batch), code_bytes=14336
        )
        # Tiles that see most keys first.
        tile = (rows - 1) - CTA_X if p.masked else CTA_X
        self.row, self.head, self.batch = tile * (TILES * ROWS), CTA_Y, CTA_Z
        self.blocks = blocks(p, self.row, TILES * ROWS, BLOCK_N)
        each = range(TILES)
        self.q = [self.k.shared(f"q{i}", (ROWS, self.d), p.dtype, swizzle_bytes=128) for i in each]
        self.kv = self.k.shared("kv", (BLOCK_N, self.d), p.dtype, config.stages, swizzle_bytes=128)
        self.sums = [self.k.shared(f"sums{i}", (1, ROWS), "fp32") for i in each]
        self.scores = [self.k.tensor(f"scores{i}", (ROWS, BLOCK_N), "fp32") for i in each]
        self.weights = [self.k.tensor(f"weights{i}", (ROWS, BLOCK_N), p.dtype, over=self.scores[i]) for i in each]
        self.outputs = [self.k.tensor(f"outputs{i}", (ROWS, self.d), "fp32") for i in each]
        self.q_full = self.k.mbarrier("q_full", TILES, 1)
        self.full, self.empty = (self.k.mbarrier(f"kv_{name}", config.stages, 1) for name in ("full", "empty"))
        self.scored, self.done = self.k.mbarrier("scored", TILES, 1), self.k.mbarrier("done", TILES, 1)
        self.weighed = self.k.mbarrier("weighed", TILES, 2 * WARPS)  # stored, and outputs rescaled
        self.maximum, self.asked = (self.k.mbarrier(name, TILES, WARPS) for name in ("maximum", "asked"))

    def kernel(self) -> Kernel:
        """All roles."""
        for i in range(TILES):
            with self.k.role(f"softmax{i}", WARPS, SOFTMAX) as r:
                if i == 0:
                    with r.when(WARP.equals(0)):
                        r.tcgen05_alloc()
                self._set_up(r, SOFTMAX)
                self._softmax(r, i)
                r.bar_sync(0, WARPS_ALL)
                if i == 0:
                    with r.when(WARP.equals(0)):
                        r.tcgen05_dealloc()
        with self.k.role("correction", WARPS, CORRECTION) as r:
            self._set_up(r, CORRECTION)
            self._correction(r)
            r.bar_sync(0, WARPS_ALL)
        for name, write in (("mma", self._multiplier), ("load", self._producer)):
            with self.k.role(name, 1, OTHERS) as r:
                self._set_up(r, OTHERS)
                write(r)
                r.bar_sync(0, WARPS_ALL)
        return self.k.build(launch_registers=REGISTERS)

    def _set_up(self, r: RoleBuilder, registers: int) -> None:
        overhead.FLASH3_CTA_SETUP.write(r)
        r.bar_sync(0, WARPS_ALL)
        r.setmaxnreg(registers)

    def _producer(self, r: RoleBuilder) -> None:
        """Queries, then keys and values in turn."""
        p, last = self.p, self.blocks.end - 1
        for i in range(TILES):
            r.mbarrier_expect(self.q_full, i, self.q[i].stage_bytes)
            box = p.q[self.batch, self.row + i * ROWS : ROWS, self.head, :]  # type: ignore[misc]
            r.tma_load(self.q[i].stage(), box, self.q_full, i)
            if i == 0:
                self._load(r, 0, p.k, last)
        with r.loop("i", self.blocks.trips - 1) as step:
            self._load(r, 2 * step + 1, p.v, last - step)
            self._load(r, 2 * step + 2, p.k, last - 1 - step)
            overhead.FLASH3_PRODUCER_STEP.write(r)
        self._load(r, 2 * self.blocks.trips - 1, p.v, last - (self.blocks.trips - 1))

    def _load(self, r: RoleBuilder, number: IntLike, tensor: Any, block: Expr) -> None:
        stage, turn = as_expr(number) % self.c.stages, as_expr(number) // self.c.stages
        if number != 0:
            r.mbarrier_wait(self.empty, stage, turn - 1)
        r.mbarrier_expect(self.full, stage, self.kv.stage_bytes)
        box = tensor[self.batch, block * BLOCK_N : BLOCK_N, self.p.key_head(self.head), :]
        r.tma_load(self.kv.stage(stage), box, self.full, stage)

    # --- products

    def _multiplier(self, r: RoleBuilder) -> None:
        """Scores of the first block; then the outputs of a block, and the scores of the next in their place."""
        trips = self.blocks.trips
        for i in range(TILES):
            r.mbarrier_wait(self.q_full, i, 0)
            if i == 0:
                r.mbarrier_wait(self.full, 0, 0)
            self._scores(r, i, as_expr(0))
        r.tcgen05_commit(self.empty, 0)
        with r.loop("i", trips - 1) as step:
            values, keys = 2 * step + 1, 2 * step + 2
            self._await(r, values)
            for i in range(TILES):
                self._outputs(r, i, step, values)
                if i == 0:
                    self._await(r, keys)
                else:
                    r.tcgen05_commit(self.empty, values % self.c.stages)
                self._scores(r, i, keys % self.c.stages)
            r.tcgen05_commit(self.empty, keys % self.c.stages)
            overhead.TCGEN05_STEP.write(r)
        number = 2 * trips - 1
        self._await(r, number)
        for i in range(TILES):
            self._outputs(r, i, trips - 1, number)
            r.tcgen05_commit(self.done, i)

    def _await(self, r: RoleBuilder, number: Expr) -> None:
        r.mbarrier_wait(self.full, number % self.c.stages, number // self.c.stages)

    def _scores(self, r: RoleBuilder, i: int, stage: Expr) -> None:
        depth = _depth(self.p)
        r.tcgen05_mma(
            self.scores[i].stage(), self.q[i].stage(), self.kv.stage(stage).T, shape=f"m{ROWS}n{BLOCK_N}k{depth}",
            dtype=self.p.dtype, count=self.d // depth, accumulate=0,
        )  # fmt: skip
        r.tcgen05_commit(self.scored, i)

    def _outputs(self, r: RoleBuilder, i: int, step: Expr, number: Expr) -> None:
        depth = _depth(self.p)
        r.mbarrier_wait(self.weighed, i, step)
        r.tcgen05_fence_after()
        r.tcgen05_mma(
            self.outputs[i].stage(), self.weights[i].stage(), self.kv.stage(number % self.c.stages),
            shape=f"m{ROWS}n{self.d}k{depth}", dtype=self.p.dtype, count=BLOCK_N // depth, accumulate=step > 0,
        )  # fmt: skip

    # --- softmax

    def _softmax(self, r: RoleBuilder, i: int) -> None:
        top, total = RegisterTile("top", (LANES, 1), "fp32"), RegisterTile("total", (LANES, 1), "fp32")
        for tile, value in ((top, -np.inf), (total, 0.0)):
            r.run("imad", 1, dtype="int32", dst=tile.whole, compute=lambda old, value=value: np.full_like(old, value))
        tail, whole = self.blocks.tail, self.blocks.whole
        self._block(r, i, as_expr(0), top, total, masked=True)
        if self.p.masked:
            with r.loop("tail", tail) as step:
                self._block(r, i, 1 + step, top, total, masked=True)
        with r.loop("whole", whole) as step:
            self._block(r, i, 1 + tail + step, top, total, masked=False)
        lanes = self.sums[i][0, :, WARP * LANES : LANES]  # type: ignore[misc]
        r.mbarrier_wait(self.asked, i, 0)  # what is there has been read
        r.sts(lanes, total.whole.T, 1, vector_bytes=4)
        r.mbarrier_arrive(self.maximum, i)
        lse, factor = RegisterTile("lse", (LANES, 1), "fp32"), self.p.exponent_scale / LOG2_E

        def logarithm(_: Array, sums: Array, highest: Array) -> Array:
            return np.where(sums > 0, factor * highest + np.log(sums), np.inf)

        r.run("lg2", 1, dtype="fp32", dst=lse.whole, srcs=(total.whole, top.whole), compute=logarithm)
        row = self.row + i * ROWS + WARP * LANES
        r.stg(self.p.lse[self.batch, self.head, row:LANES], lse.whole, 1, vector_bytes=4)  # type: ignore[misc]

    def _block(
        self, r: RoleBuilder, i: int, step: Expr, top: RegisterTile, total: RegisterTile, *, masked: bool
    ) -> None:  # fmt: skip
        """Weights of one block of keys, a row a thread."""
        p, factor = self.p, self.p.exponent_scale
        scores = RegisterTile("scores", (LANES, BLOCK_N), "fp32")
        lanes, row = WARP * LANES, self.row + i * ROWS + WARP * LANES
        r.mbarrier_wait(self.scored, i, step)
        r.tcgen05_fence_after()
        for at in range(0, BLOCK_N, CHUNK):
            r.tcgen05_ld(scores[:, at:CHUNK], self.scores[i][0, lanes:LANES, at:CHUNK])  # type: ignore[misc]
        r.tcgen05_wait_ld()
        if masked:
            column = (self.blocks.end - 1 - step) * BLOCK_N

            def mask(found: Array, first_row: int, first_column: int) -> Array:
                seen = p.seen(first_row + np.arange(LANES), first_column + np.arange(BLOCK_N))
                return np.where(seen, found, -np.inf)

            r.run(
                "sel", BLOCK_N, dtype="int32", dst=scores.whole, compute=mask, indices=(row, column),
                mix=(("setp", BLOCK_N // 4),),
            )  # fmt: skip

        # Three operands an instruction.
        r.run("fmnmx", BLOCK_N // 2, dtype="fp32", dst=top.whole, srcs=(scores.whole,), compute=first_maximum)
        # The factor by which outputs would be rescaled goes to the correction warps, which have read the one before:
        # else nothing had been multiplied.
        r.sts(self.sums[i][0, :, lanes:LANES], top.whole.T, 1, vector_bytes=4)  # type: ignore[misc]
        r.mbarrier_arrive(self.maximum, i)
        on_fma = BLOCK_N * ON_FMA // 100 if self.c.exp_on_fma else 0
        mix = (("ffma", BLOCK_N), *((name, n * on_fma) for name, n in POLYNOMIAL if on_fma))
        r.run(
            "ex2", BLOCK_N - on_fma, dtype="fp32", dst=scores.whole, srcs=(top.whole,),
            compute=partial(exponentials, factor), mix=_joined(mix),
        )  # fmt: skip
        weights = RegisterTile("weights", (LANES, BLOCK_N), p.dtype)
        r.run("cvt", BLOCK_N // 2, dtype=p.dtype, dst=weights.whole, srcs=(scores.whole,), compute=lambda _, x: x)
        for at in range(0, BLOCK_N, CHUNK):
            r.tcgen05_st(self.weights[i][0, lanes:LANES, at:CHUNK], weights[:, at:CHUNK])  # type: ignore[misc]
        r.tcgen05_wait_st()
        r.tcgen05_fence_before()
        r.mbarrier_arrive(self.weighed, i)
        r.run(
            "fadd", BLOCK_N // 2, dtype="fp32", dst=total.whole, srcs=(scores.whole,),
            compute=lambda old, found: old + found.sum(axis=1, keepdims=True),
        )  # fmt: skip

    # --- correction and outputs

    def _correction(self, r: RoleBuilder) -> None:
        with r.loop("step", self.blocks.trips) as step:
            for i in range(TILES):
                self._ask(r, i, step)
                r.mbarrier_arrive(self.weighed, i)
        for i in range(TILES):
            r.mbarrier_arrive(self.asked, i)
        for i in range(TILES):
            sums = self._ask(r, i, self.blocks.trips)
            scale = RegisterTile("scale", (LANES, 1), "fp32")
            r.run(
                "rcp", 1, dtype="fp32", dst=scale.whole, srcs=(sums.whole,),
                compute=lambda _, x: 1 / np.where(x > 0, x, 1),
            )  # fmt: skip
            r.mbarrier_wait(self.done, i, 0)
            r.tcgen05_fence_after()
            self._store(r, i, scale)
        with r.when(WARP.equals(0)):
            r.bulk_wait(0, read=False)

    def _ask(self, r: RoleBuilder, i: int, turn: Expr) -> RegisterTile:
        """What a softmax warp has left for the rows of a warp: whether outputs have to be rescaled, a vote; at the end
        the sums."""
        found = RegisterTile(f"found{i}", (LANES, 1), "fp32")
        r.mbarrier_wait(self.maximum, i, turn)
        r.lds(found.whole.T, self.sums[i][0, :, WARP * LANES : LANES], 1, vector_bytes=4)  # type: ignore[misc]
        r.run("setp", 1, dtype="int32", srcs=(found.whole,), mix=overhead.mix(alu=4))
        return found

    def _store(self, r: RoleBuilder, i: int, scale: RegisterTile) -> None:
        """Outputs of a tile, divided by their sums, where its queries were."""
        out, lanes = DTYPE_BYTES[self.p.out], WARP * LANES
        for at in range(0, self.d, CHUNK):
            acc = RegisterTile("acc", (LANES, CHUNK), "fp32")
            r.tcgen05_ld(acc.whole, self.outputs[i][0, lanes:LANES, at:CHUNK])  # type: ignore[misc]
            r.tcgen05_wait_ld()
            r.run("fmul", CHUNK, dtype="fp32", dst=acc.whole, srcs=(scale.whole,), compute=lambda x, s: x * s)
            r.run("cvt", CHUNK // 2, dtype=self.p.out)
            r.sts(self.q[i][0, lanes:LANES, at:CHUNK], acc.whole, LANES * CHUNK * out // 512, vector_bytes=16)  # type: ignore[misc]
        r.fence_async()
        r.bar_sync(1, WARPS)
        with r.when(WARP.equals(0)):
            box = self.p.o[self.batch, self.row + i * ROWS : ROWS, self.head, :]  # type: ignore[misc]
            r.tma_store(box, self.q[i].stage())
            r.bulk_commit()


def _joined(mix: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Instructions of one name together."""
    found: dict[str, int] = {}
    for name, count in mix:
        found[name] = found.get(name, 0) + count
    return tuple(found.items())
