"""FlashAttention-3, backward: gradients by TMA and wgmma with specialised warps (Shah et al., arXiv 2407.08608).

Three kernels. The first adds up dO O by row, scales the logarithms of the sums of rows, and clears the sums of dQ. In
the second a CTA has a block of keys, 64 of them a consumer warpgroup, and walks over the blocks of queries. One warp
brings K, V, and block by block Q and dO by TMA. Consumers multiply with wgmma: S^T = K Q^T and dP^T = V dO^T, so that
P^T and dS^T lie in registers as dV += P^T dO and dK += dS^T Q take them; dS alone goes through shared memory, for
dQ = dS K. Another warp adds dQ to the sums by TMA, while the consumers go on. The third kernel rounds dQ. Where query
heads share keys, dK and dV are those of a query head, which further kernels add up.

Deterministic: the warp that adds a block of dQ waits until the blocks of keys before have added theirs.

Tiles, warps, registers and the order of products and waits are those of the published kernel (hopper/
flash_bwd_launch_template.h and mainloop_bwd_sm90_tma_gmma_ws.hpp). Heads of 192 and 256 elements, whose products are
cut in other ways, are left out.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    CTA_Z,
    WARP,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    View,
    maximum,
)
from workloads import libraries
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import LOG2_E, Array, check_head, padded
from workloads.gpu.attention.flash2 import Blocked
from workloads.gpu.attention.flash3 import RELEASE
from workloads.gpu.attention.gradients import WARPS, Gradients, contiguous, dotted, kept, slope
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.gemm.mma import MATRIX_BYTES
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, INSTRUCTION_K_BYTES, WARP_ROWS, WARPGROUP
from workloads.ops import AttentionBackward
from workloads.registry import register

WARPGROUPS = 2
"""Consumers; their warps."""
CONSUMERS = WARPGROUPS * WARPGROUP
STAGES = 2
"""Of Q, dO and dS."""
MOST_COLUMNS = 128
LAUNCH_REGISTERS, FEW_REGISTERS, MANY_REGISTERS = 168, 24, 240
"""Of a thread: at launch, of the warps that load and store, of consumers."""
DS_FULL, DQ_EMPTY, DQ_FULL = 1, 2, 2 + WARPGROUPS
"""Named barriers; the last two of a warpgroup each."""
HANDING = WARPGROUP + 1
"""Warps that meet there: those of a warpgroup and the one that stores."""
STEP = overhead.Overhead(alu=60, imad=10)
"""Of a consumer in a block of queries beside products and their values: assumed, half as much again as of the forward
pass, as there are five products, two named barriers and a store more."""
CODE_BYTES = 3600 * overhead.INSTRUCTION_BYTES


@dataclass(frozen=True)
class Flash3BackwardConfig(Configuration):
    """`block_m` queries a step, `block_n` keys a CTA.

    turned: dQ^T is computed, a warpgroup has half of its columns; else dQ, with as many rows as fill the warpgroups.
    values_in_registers: V is read once, into registers. separate_masks: blocks of queries that see all keys have steps
    without a mask. ordered: deterministic sums of dQ.
    """

    block_m: int
    block_n: int
    turned: bool = False
    values_in_registers: bool = False
    separate_masks: bool = False
    ordered: bool = False

    schedule: ClassVar[str] = "flash3"

    grammar: ClassVar[tuple[Word, ...]] = (Word.tile("block_m", "block_n"), Word.flag("ordered"))

    def cycles_a_mac(self, op: AttentionBackward, spec: GpuSpec) -> float:
        """Cycles of an SM's tensor cores for a multiply-add."""
        row = spec.instruction("wgmma", op.chosen_dtype, f"m64n{self.block_m}k16")
        return row.interval_cycles / row.macs


def columns(op: AttentionBackward) -> int:
    """Columns of a head in the kernels."""
    return max(64, padded(op.head_dim))


def default_config(op: AttentionBackward) -> Flash3BackwardConfig:
    """The published tile."""
    ordered, masked = op.deterministic == "1", op.causal == "1" or op.window > 0
    if columns(op) == 64:
        return Flash3BackwardConfig(128, 128, separate_masks=True, ordered=ordered)
    if columns(op) == 96:
        return Flash3BackwardConfig(64, 128, values_in_registers=True, ordered=ordered)
    return Flash3BackwardConfig(64 if masked else 80, 128, turned=not masked, ordered=ordered)


def check(op: AttentionBackward, spec: GpuSpec) -> None:
    """InputError if the machine has no such instructions or there is no kernel of this size."""
    dtype = op.chosen_dtype
    if spec.tma is None or not spec.has_instruction("wgmma", dtype, f"m{BLOCK_ROWS}n*k16"):
        raise InputError(f"attention_backward: {spec.name} has no TMA with wgmma for {dtype}; its nearest is flash2")
    check_head("attention_backward", dtype, op.head_dim)
    if op.head_dim > MOST_COLUMNS:
        rule = f"flash3 has heads of up to {MOST_COLUMNS}"
        raise InputError(f"attention_backward head_dim={op.head_dim}: {rule}; nearest: schedule=flash2")


@register("attention_backward", "gpu", "flash3")
def build(op: AttentionBackward, spec: GpuSpec, config: Flash3BackwardConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    check(op, spec)
    return _Builder(op, config).program()


class _Builder(Gradients):
    """Writes the kernels."""

    def __init__(self, op: AttentionBackward, config: Flash3BackwardConfig) -> None:
        super().__init__(op, config.block_m, config.block_n, columns(op))
        self.c = config
        self.blocks_m, self.blocks_n = ceil_div(self.queries, config.block_m), ceil_div(self.keys, config.block_n)
        self.step_k = INSTRUCTION_K_BYTES // DTYPE_BYTES[self.dtype]
        # A warpgroup's part of dQ is 64 high: rows of queries, or columns of a head where it is turned.
        self.along_rows = not config.turned and config.block_m == WARPGROUPS * BLOCK_ROWS
        self.wide = config.block_m if config.turned else self.d if self.along_rows else self.d // WARPGROUPS
        padded = self.blocks_m * config.block_m
        parts = self.blocks_m * WARPGROUPS * BLOCK_ROWS
        self.sums = contiguous("dq_sums", (op.batch, op.heads, parts, self.wide), "fp32")
        self.dots, self.lse = (
            contiguous(name, (op.batch, op.heads, padded), "fp32") for name in ("dots", "lse_log2")
        )  # fmt: skip

    def program(self) -> Program:
        """The kernels in their order."""
        added, adding = self.heads_added()
        kernels = (self._prepare(), self._main(), self._convert(), *adding)
        tensors = (*self.inputs.values(), self.dots, self.lse, self.sums, *added, *self.outputs.values())
        return Program(str(self.op), tensors, kernels, str(self.c), {"config": self.c})

    # ---- beside the products

    def _prepare(self) -> Kernel:
        """Sums of dO O by row, logarithms to base 2; clears the sums of dQ."""
        k, own, row = self.rows_of_queries("dot_do_o", 400)
        count = ceil_div(own * self.d * DTYPE_BYTES[self.dtype], 32 * MAX_VECTOR_BYTES)
        do, o = (RegisterTile(name, (own, self.d), self.dtype) for name in ("do", "o"))
        dots, lse = (RegisterTile(name, (own, 1), "fp32") for name in ("dots", "lse"))
        cleared = WARPGROUPS * BLOCK_ROWS // WARPS
        zeros = RegisterTile("zeros", (cleared, self.wide), "fp32")
        with k.role("warps", WARPS, 64) as r:
            r.run(overhead.ALU, 60, dtype="int32", mix=overhead.mix(imad=30))
            r.ldg(lse.whole, self.inputs["lse"][CTA_Y, CTA_Z, row:own], 1, into="lse", vector_bytes=4)  # type: ignore[misc]
            for tile in (do, o):
                box = self.inputs[tile.name][CTA_Y, row:own, CTA_Z, 0 : self.d]  # type: ignore[misc]
                r.ldg(tile.whole, box, count, into=tile.name)
            r.run(
                "ffma", own * self.d // 32, dtype="fp32", dst=dots.whole, srcs=(do.whole, o.whole), compute=dotted,
                after=("do", "o"), mix=(("shf", own * self.d // 16), ("shfl", 3 * own)),
            )  # fmt: skip
            r.run("fmul", 1, dtype="fp32", dst=lse.whole, compute=_to_base_2, after=("lse",))
            for tensor, tile in ((self.dots, dots), (self.lse, lse)):
                r.stg(tensor[CTA_Y, CTA_Z, row:own], tile.whole, 1, vector_bytes=4)  # type: ignore[misc]
            r.run("imad", 4, dtype="int32", dst=zeros.whole, compute=np.zeros_like)
            first = CTA_X * (WARPGROUPS * BLOCK_ROWS) + WARP * cleared
            r.stg(
                self.sums[CTA_Y, CTA_Z, first:cleared, :], zeros.whole,  # type: ignore[misc]
                ceil_div(cleared * self.wide * 4, 32 * MAX_VECTOR_BYTES),
            )  # fmt: skip
        return k.build()

    def _convert(self) -> Kernel:
        """Sums of dQ, scaled and rounded, through shared memory into rows."""
        k, own, row = self.rows_of_queries("convert_dq", 300)
        group, warp = WARP // WARPGROUP, WARP % WARPGROUP * WARP_ROWS
        sums = RegisterTile("sums", (WARP_ROWS, self.wide), "fp32")
        rounded = RegisterTile("rounded", (WARP_ROWS, self.wide), self.dtype)
        rows = RegisterTile("rows", (own, self.d), self.dtype)
        tile = k.shared("dq", (self.c.block_m, self.d), self.dtype, pad_bytes=16)
        values, size = WARP_ROWS * self.wide // 32, DTYPE_BYTES[self.dtype]
        with k.role("warps", WARPS, 64) as r:
            r.run(overhead.ALU, 50, dtype="int32", mix=overhead.mix(imad=25))
            first = CTA_X * (WARPGROUPS * BLOCK_ROWS) + group * BLOCK_ROWS + warp
            box = self.sums[CTA_Y, CTA_Z, first:WARP_ROWS, :]  # type: ignore[misc]
            r.ldg(sums.whole, box, ceil_div(WARP_ROWS * self.wide * 4, 32 * MAX_VECTOR_BYTES), into="sums")
            r.run(
                "fmul", values, dtype="fp32", dst=rounded.whole, srcs=(sums.whole,), compute=self.scaled,
                after=("sums",), mix=((f"cvt.{self.dtype}", values // 2),),
            )  # fmt: skip
            count = WARP_ROWS * self.wide * size // MATRIX_BYTES
            if self.c.turned:
                at = group * BLOCK_ROWS + warp
                r.stmatrix(tile[0, :, at:WARP_ROWS], rounded.whole.T, count)  # type: ignore[misc]
            else:
                down, across = (group * BLOCK_ROWS, 0) if self.along_rows else (0, group * self.wide)
                r.stmatrix(tile[0, warp + down : WARP_ROWS, across : self.wide], rounded.whole, count)  # type: ignore[misc]
            r.bar_sync(0, WARPS)
            r.lds(rows.whole, tile[0, WARP * own : own, :])  # type: ignore[misc]
            r.stg(self.outputs["dq"][CTA_Y, row:own, CTA_Z, 0 : self.d], rows.whole)  # type: ignore[misc]
        return k.build()

    # ---- the products

    def _main(self) -> Kernel:
        """dK, dV, and sums of dQ. A CTA has a block of keys."""
        op, c, d = self.op, self.c, self.d
        heads = op.batch * op.heads
        grid = (self.blocks_n * heads, 1, 1) if op.causal == "1" else (self.blocks_n, op.heads, op.batch)
        self.k = k = KernelBuilder(
            f"attention_backward_{c}".replace(" ", "_"), grid, code_bytes=CODE_BYTES,
            flags=self.blocks_m * heads if c.ordered else 0,
        )  # fmt: skip
        self.keys_tile, self.values_tile = (k.shared(n, (c.block_n, d), self.dtype, swizzle_bytes=128) for n in "kv")
        self.q, self.do = (k.shared(n, (c.block_m, d), self.dtype, STAGES, 128) for n in ("q", "do"))
        self.ds = Blocked(k, "ds", c.block_m, c.block_n, self.dtype, STAGES)
        self.dq = k.shared("dq", (BLOCK_ROWS, self.wide), "fp32", WARPGROUPS)
        self.own_lse, self.own_dots = (k.shared(n, (1, c.block_m), "fp32", STAGES) for n in ("own_lse", "own_dots"))
        self.kv_full = k.mbarrier("kv_full", 1, 1)
        self.q_ring, self.do_ring = (k.ring(STAGES, consumers=CONSUMERS, name=f"{n}_") for n in ("q", "do"))
        self.n, self.head, self.batch = self._place()
        self.first, last = self.seeing(self.n)
        self.trips = maximum(0, last - self.first + 1)
        with k.role("producer", WARPGROUP, FEW_REGISTERS) as r:
            self._set_up(r, FEW_REGISTERS)
            with r.when(self.trips > 0) if op.window else nullcontext():
                with r.when(WARP.equals(0)):
                    self._produce(r)
                with r.when(WARP.equals(1)):
                    self._add_sums(r)
        with k.role("consumer", CONSUMERS, MANY_REGISTERS) as r:
            self._set_up(r, MANY_REGISTERS)
            self._consume(r)
        return k.build(launch_registers=LAUNCH_REGISTERS)

    def _place(self) -> tuple[Expr, Expr, Expr]:
        """Block of keys, head and sequence of a CTA. Under a causal mask those that most queries see come first, of a
        few heads at a time, so that Q, dO and sums of dQ stay in the L2."""
        if self.op.causal != "1":
            return CTA_X, CTA_Y, CTA_Z
        heads = self.op.batch * self.op.heads
        head_bytes = self.queries * self.d * (2 * DTYPE_BYTES[self.dtype] + 4)
        together = libraries.figure(RELEASE, "section_bytes_backward") // head_bytes
        section = min(heads, 1 << max(0, together.bit_length() - 1))
        within = CTA_X % (section * self.blocks_n)
        first = CTA_X // (section * self.blocks_n) * section
        left = heads % section  # what the last section has
        size: IntLike = section - (first + 1 > heads - left) * (section - left) if left else section
        head = first + within % size
        return within // size, head % self.op.heads, head // self.op.heads

    def _set_up(self, r: RoleBuilder, registers: int) -> None:
        overhead.FLASH3_CTA_SETUP.write(r)
        r.bar_sync(0, WARPGROUP + CONSUMERS)
        r.setmaxnreg(registers)

    # ---- loads and sums of dQ

    def _produce(self, r: RoleBuilder) -> None:
        """One warp: Q one block ahead of dO."""
        c, d, shared = self.c, self.d, self.head // self.group
        overhead.FLASH3_PRODUCER_TILE.write(r)
        self._bring(r, 0, dots=False)
        r.mbarrier_expect(self.kv_full, 0, self.keys_tile.stage_bytes + self.values_tile.stage_bytes)
        for tile, name in ((self.keys_tile, "k"), (self.values_tile, "v")):
            box = self.inputs[name][self.batch, self.n * c.block_n : c.block_n, shared, 0:d]  # type: ignore[misc]
            r.tma_load(tile.stage(), box, self.kv_full, 0)
        with r.loop("i", self.trips - 1) as i:
            self._bring(r, i, dots=True)
            self._bring(r, i + 1, dots=False)
            overhead.FLASH3_PRODUCER_STEP.write(r)
        self._bring(r, self.trips - 1, dots=True)

    def _bring(self, r: RoleBuilder, i: IntLike, *, dots: bool) -> None:
        """Step `i`: dO with the sums of its rows, or Q with its logarithms."""
        ring, tile, numbers = (
            (self.do_ring, self.do, self.own_dots) if dots else (self.q_ring, self.q, self.own_lse)
        )  # fmt: skip
        tensor, rows = (self.inputs["do"], self.dots) if dots else (self.inputs["q"], self.lse)
        stage, row = i % STAGES, (self.first + i) * self.c.block_m
        ring.acquire(r, i, tile.stage_bytes + numbers.stage_bytes)
        box = tensor[self.batch, row : self.c.block_m, self.head, 0 : self.d]  # type: ignore[misc]
        r.tma_load(tile.stage(stage), box, ring.full, stage)
        r.tma_load(numbers.stage(stage), rows[self.batch, self.head, row : self.c.block_m], ring.full, stage)  # type: ignore[misc]

    def _add_sums(self, r: RoleBuilder) -> None:
        """One warp: what each warpgroup has computed of a block of dQ, to the sums."""
        with r.loop("i", self.trips) as i:
            m = self.first + i
            flag = (self.batch * self.op.heads + self.head) * self.blocks_m + m
            if self.c.ordered:
                r.flag_wait(flag, self.n - self._first_keys(m))
            for group in range(WARPGROUPS):
                r.bar_sync(DQ_FULL + group, HANDING)
                row = (m * WARPGROUPS + group) * BLOCK_ROWS
                r.tma_store(self.sums[self.batch, self.head, row:BLOCK_ROWS, :], self.dq.stage(group), add=True)  # type: ignore[misc]
                r.bulk_commit()
            for group in range(WARPGROUPS):
                r.bulk_wait(WARPGROUPS - 1 - group)
                r.bar_arrive(DQ_EMPTY + group, HANDING)
            if self.c.ordered:
                r.bulk_wait(0, read=False)
                r.flag_add(flag)
            overhead.FLASH3_PRODUCER_STEP.write(r)

    def _first_keys(self, m: Expr) -> IntLike:
        """First block of keys that block `m` of queries sees."""
        if not self.op.window:
            return 0
        return maximum(0, m * self.block_m + (self.keys - self.queries - self.op.window + 1)) // self.block_n

    # ---- consumers

    def _consume(self, r: RoleBuilder) -> None:
        c, d = self.c, self.d
        self.s, self.dp = (RegisterTile(name, (WARP_ROWS, c.block_m), "fp32") for name in ("s", "dp"))
        self.p16, self.ds16 = (RegisterTile(name, (WARP_ROWS, c.block_m), self.dtype) for name in ("p16", "ds16"))
        self.acc_k, self.acc_v = (RegisterTile(name, (WARP_ROWS, d), "fp32") for name in ("acc_k", "acc_v"))
        self.acc_q = RegisterTile("acc_q", (WARP_ROWS, self.wide), "fp32")
        self.v16 = RegisterTile("v16", (WARP_ROWS, d), self.dtype)
        self.wg, self.own = WARP // WARPGROUP, WARP * WARP_ROWS
        with r.when((WARP % WARPGROUP).equals(0)):
            r.bar_arrive(DQ_EMPTY + self.wg, HANDING)
        for acc in (self.acc_k, self.acc_v):
            r.run("imad", WARP_ROWS * d // 32, dtype="int32", dst=acc.whole, compute=np.zeros_like)
        with r.when(self.trips > 0) if self.op.window else nullcontext():
            r.mbarrier_wait(self.kv_full, 0, 0)
            if c.values_in_registers:
                r.ldmatrix(self.v16.whole, self.values_tile[0, self.own : WARP_ROWS, :])  # type: ignore[misc]
        with r.loop("i", self.trips) as i:
            self._step(r, i)
        self._store(r)

    def _step(self, r: RoleBuilder, i: Expr) -> None:
        """A block of queries, in the order of the published kernel."""
        c, stage = self.c, i % STAGES
        values = WARP_ROWS * c.block_m // 32
        row = (self.first + i) * c.block_m
        v = self.v16.whole if c.values_in_registers else self.values_tile[0, self.own : WARP_ROWS, :]  # type: ignore[misc]
        self.q_ring.wait(r, i)
        self._multiply(r, self.s, self.keys_tile[0, self.own : WARP_ROWS, :], self.q.stage(stage).T)  # type: ignore[misc]
        lse = self._numbers(r, self.own_lse, stage)
        self.do_ring.wait(r, i)
        self._multiply(r, self.dp, v, self.do.stage(stage).T)
        r.wgmma_wait(1)
        self._mask(r, row)
        shuffled = (("shfl", c.block_m // 4),) if self.d == 64 else ()
        r.run(
            "ex2", values, dtype="fp32", dst=self.s.whole, srcs=(lse.whole,), compute=self._weights, after=("own_lse",),
            mix=(("ffma", values), *shuffled),
        )  # fmt: skip
        dots = self._numbers(r, self.own_dots, stage)
        r.wgmma_wait(0)
        r.run(
            "fadd", values, dtype="fp32", dst=self.dp.whole, srcs=(self.s.whole, dots.whole), compute=slope,
            after=("own_dots",), mix=(("fmul", values), *shuffled),
        )  # fmt: skip
        for rounded, tile in ((self.p16, self.s), (self.ds16, self.dp)):
            r.run("cvt", values // 2, dtype=self.dtype, dst=rounded.whole, srcs=(tile.whole,), compute=_same)
        r.stmatrix(self.ds.view(0, c.block_m, self.own, WARP_ROWS, stage), self.ds16.whole.T)
        self._multiply(r, self.acc_v, self.p16.whole, self.do.stage(stage), accumulate=1)
        r.fence_async()
        r.bar_sync(DS_FULL, CONSUMERS)
        self._multiply_queries(r, stage)
        r.wgmma_wait(1)
        self.do_ring.release(r, i)
        self._multiply(r, self.acc_k, self.ds16.whole, self.q.stage(stage), accumulate=1)
        r.wgmma_wait(1)
        r.bar_sync(DQ_EMPTY + self.wg, HANDING)
        r.sts(self.dq[self.wg, WARP % WARPGROUP * WARP_ROWS : WARP_ROWS, :], self.acc_q.whole)  # type: ignore[misc]
        r.fence_async()
        r.bar_arrive(DQ_FULL + self.wg, HANDING)
        r.wgmma_wait(0)
        self.q_ring.release(r, i)
        STEP.write(r)

    def _numbers(self, r: RoleBuilder, source, stage: Expr) -> RegisterTile:  # type: ignore[no-untyped-def]
        """A number of each query of the block, of which a thread needs a quarter; where these are many, the threads
        that need the same share them."""
        tile = RegisterTile(source.name, (1, self.c.block_m), "fp32")
        few = self.d == 64
        count = self.c.block_m // (32 if few else 8)
        r.lds(tile.whole, source.stage(stage), count, vector_bytes=4 if few else 8, into=source.name)
        return tile

    def _mask(self, r: RoleBuilder, row: Expr) -> None:
        """Keys beyond the last one always; what the mask hides where it does, or always."""
        values = WARP_ROWS * self.c.block_m // 32
        masked = self.ahead is not None
        where = (self.n * self.c.block_n + self.own, row)
        separate = masked and self.c.separate_masks
        with r.when(self.hidden(self.n, row)) if separate else nullcontext():
            r.run(
                "sel", values, dtype="int32", dst=self.s.whole, compute=self._masked, indices=where,
                mix=(("setp", values if masked else 2),),
            )  # fmt: skip
        if separate:
            r.run("sel", values, dtype="int32", dst=self.s.whole, compute=self._there, indices=where[:1])

    def _masked(self, scores: Array, first_key: int, first_query: int) -> Array:
        return self.masked(self._there(scores, first_key).T, first_query, first_key).T

    def _there(self, scores: Array, first_key: int) -> Array:
        """Scores of keys that there are."""
        key = first_key + np.arange(scores.shape[0])
        return np.where(key[:, None] < self.keys, scores, -np.inf)

    def _weights(self, scores: Array, lse_log2: Array) -> Array:
        return np.exp2(self.scale * LOG2_E * scores - lse_log2)

    def _multiply(
        self, r: RoleBuilder, acc: RegisterTile, a: View, b: View, accumulate: int = 0, *, commit: bool = True
    ) -> None:
        """A product, in flight."""
        depth, columns = a.extents[-2 if a.transposed else -1], acc.shape[1]
        count = depth // self.step_k
        r.wgmma_fence()
        r.wgmma(
            acc.whole, a, b, shape=f"m{BLOCK_ROWS}n{columns}k{self.step_k}", dtype=self.dtype, count=count,
            accumulate=accumulate, mix=overhead.mix(alu=2 * count),
        )  # fmt: skip
        if commit:
            r.wgmma_commit()

    def _multiply_queries(self, r: RoleBuilder, stage: Expr) -> None:
        """dQ = dS K, block of keys by block; or dQ^T = K^T dS^T."""
        c, warp = self.c, WARP % WARPGROUP * WARP_ROWS
        for key in range(0, c.block_n, self.ds.columns):
            if c.turned:
                at = self.wg * BLOCK_ROWS + warp
                a = self.keys_tile[0, key : self.ds.columns, at:WARP_ROWS].T  # type: ignore[misc]
                b = self.ds.view(0, c.block_m, key, self.ds.columns, stage).T
            else:
                down, across = (self.wg * BLOCK_ROWS, 0) if self.along_rows else (0, self.wg * self.wide)
                a = self.ds.view(down + warp, WARP_ROWS, key, self.ds.columns, stage)
                b = self.keys_tile[0, key : self.ds.columns, across : self.wide]  # type: ignore[misc]
            last = key + self.ds.columns >= c.block_n
            self._multiply(r, self.acc_q, a, b, accumulate=int(key > 0), commit=last)

    def _store(self, r: RoleBuilder) -> None:
        """dK and dV through the buffers of K and V."""
        size = DTYPE_BYTES[self.dtype]
        overhead.FLASH3_EPILOGUE.write(r)
        r.bar_sync(DS_FULL, CONSUMERS)
        through = ((self.acc_v, self.values_tile, self.dv), (self.acc_k, self.keys_tile, self.dk))
        for acc, tile, _ in through:
            values = WARP_ROWS * self.d // 32
            scaled = self.scaled_in_place if acc is self.acc_k else kept
            cvt = ((f"cvt.{self.dtype}", values // 2),)
            r.run("fmul", values, dtype="fp32", dst=acc.whole, compute=scaled, mix=cvt)
            r.stmatrix(tile[0, self.own : WARP_ROWS, :], acc.whole, WARP_ROWS * self.d * size // MATRIX_BYTES)  # type: ignore[misc]
        r.fence_async()
        r.bar_sync(DS_FULL, CONSUMERS)
        with r.when(WARP.equals(CONSUMERS - 1)):
            for _, tile, tensor in through:
                r.tma_store(self._of_keys(tensor), tile.stage())
            r.bulk_commit()
            r.bulk_wait(0)

    def _of_keys(self, tensor: GlobalTensor) -> View:
        """The CTA's keys of a head."""
        return tensor[self.batch, self.n * self.c.block_n : self.c.block_n, self.head, 0 : self.d]  # type: ignore[misc]


def _same(_: Array, values: Array) -> Array:
    return values


def _to_base_2(values: Array) -> Array:
    return LOG2_E * values
