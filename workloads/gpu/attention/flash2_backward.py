"""FlashAttention-2, backward: gradients by mma.sync and cp.async with weights computed again (Dao, arXiv 2307.08691).

Three kernels (csrc/flash_attn/src/flash_bwd_kernel.h). The first adds up dO O by row, and clears the sums of dQ. In the
second a CTA has a block of keys and walks over the blocks of queries, the last first: S = Q K^T, P, dP = dO V^T, dS;
dV += P^T dO, dK += dS^T Q in registers; dQ = dS K is added to sums in memory, atomically. P and dS go through shared
memory, since each product shares out its rows and columns over the warps in another way. The third rounds dQ. Where
query heads share keys, dK and dV are those of a query head, which a further kernel adds up.

Deterministic: as many CTAs as fill the SMs share the blocks of keys of a head; each has sums of dQ of its own, and the
third kernel adds these up in their order.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
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
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import WIDEST, Array, check_head, padded
from workloads.gpu.attention.flash2 import SHAPE, SHAPE_MACS, Blocked
from workloads.gpu.attention.gradients import WARPS, Gradients, contiguous, dotted, kept, slope
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.gemm.mma import MATRIX_BYTES
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.ops import AttentionBackward
from workloads.registry import register

PART = 16
"""Depth of what is read and multiplied at a time."""
STEP = overhead.Overhead(alu=150, imad=60)
"""Of a warp in a block of queries beside products and their values: assumed, twice that of the forward pass, as there
are five products in the place of two."""
CODE_BYTES = 5200 * overhead.INSTRUCTION_BYTES


@dataclass(frozen=True)
class Flash2BackwardConfig(Configuration):
    """`block_m` queries a step, `block_n` keys a CTA.

    rows_s, rows_kv, rows_q: warps along the rows of scores, of dK and dV, of dQ; the others lie along the columns.
    stages: of Q. splits: sums of dQ, each of CTAs of its own; 0: one for all.
    """

    block_m: int
    block_n: int
    rows_s: int
    rows_kv: int
    rows_q: int
    stages: int = 2
    splits: int = 0

    schedule: ClassVar[str] = "flash2"

    grammar: ClassVar[tuple[Word, ...]] = (Word.tile("block_m", "block_n"), Word.number("splits", 0))

    def cycles_a_mac(self, op: AttentionBackward, spec: GpuSpec) -> float:
        """Cycles of an SM's tensor cores for a multiply-add."""
        row = spec.instruction("mma", op.chosen_dtype, SHAPE)
        return row.cadence_cycles / row.macs / spec.sm.sub_cores


TILES = {
    64: (Flash2BackwardConfig(128, 128, 4, 4, 4), Flash2BackwardConfig(64, 128, 2, 4, 4)),
    128: (Flash2BackwardConfig(64, 128, 2, 4, 2), Flash2BackwardConfig(64, 64, 4, 2, 2)),
    WIDEST: (
        Flash2BackwardConfig(64, 64, 4, 2, 2), Flash2BackwardConfig(64, 64, 4, 2, 2, stages=1),
        Flash2BackwardConfig(32, 64, 2, 2, 2, stages=1), Flash2BackwardConfig(32, 32, 2, 2, 2, stages=1),
    ),
}  # fmt: skip
"""By the columns of a head, the tiles, those for the most shared memory first. The library keeps V in registers where
its tile of 64x64, for wide heads, does not fit; the smaller ones are assumed in its place."""


def shared_bytes(op: AttentionBackward, config: Flash2BackwardConfig) -> int:
    """Of a CTA: K and V, Q by stages, dO, the weights and their gradients."""
    c, d = config, padded(op.head_dim)
    elements = 2 * c.block_n * d + (c.stages + 1) * c.block_m * d + 2 * c.block_m * c.block_n
    return elements * DTYPE_BYTES[op.chosen_dtype]


def default_config(op: AttentionBackward, spec: GpuSpec) -> Flash2BackwardConfig:
    """The first of the published tiles (csrc/flash_attn/src/flash_bwd_launch_template.h) for which there is shared
    memory."""
    d, room = padded(op.head_dim), spec.shared.max_per_cta_bytes
    tiles = next(tiles for columns, tiles in TILES.items() if d <= columns)
    config = next((tile for tile in tiles if shared_bytes(op, tile) <= room), tiles[-1])
    splits = ceil_div(spec.sm.count, op.batch * op.heads) if op.deterministic == "1" else 0
    return replace(config, splits=splits)


def check(op: AttentionBackward, spec: GpuSpec) -> None:
    """InputError if the machine has no such instructions or there is no kernel of this size."""
    dtype = op.chosen_dtype
    if spec.cp_async is None or not spec.has_instruction("mma", dtype, SHAPE):
        raise InputError(f"attention_backward: {spec.name} has no cp.async with mma {SHAPE} for {dtype}; a100 has")
    check_head("attention_backward", dtype, op.head_dim)


@register("attention_backward", "gpu", "flash2")
def build(op: AttentionBackward, spec: GpuSpec, config: Flash2BackwardConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    check(op, spec)
    return _Builder(op, config).program()


class _Builder(Gradients):
    """Writes the kernels."""

    def __init__(self, op: AttentionBackward, config: Flash2BackwardConfig) -> None:
        super().__init__(op, config.block_m, config.block_n, padded(op.head_dim))
        self.c = config
        self.splits = max(1, config.splits)
        self.sums = contiguous("dq_sums", (self.splits * op.batch, self.queries, op.heads, self.d), "fp32")
        self.dots = contiguous("dots", (op.batch, op.heads, self.queries), "fp32")

    def program(self) -> Program:
        """The kernels in their order."""
        added, adding = self.heads_added()
        kernels = (self._dots(), self._main(), self._convert(), *adding)
        tensors = (*self.inputs.values(), self.dots, self.sums, *added, *self.outputs.values())
        return Program(str(self.op), tensors, kernels, str(self.c), {"config": self.c})

    # ---- beside the products

    def _dots(self) -> Kernel:
        """Sums of dO O by row; clears the sums of dQ."""
        k, own, row = self.rows_of_queries("dot_do_o", 400)
        count = ceil_div(own * self.d * DTYPE_BYTES[self.dtype], 32 * MAX_VECTOR_BYTES)
        do, o = (RegisterTile(name, (own, self.d), self.dtype) for name in ("do", "o"))
        dots, zeros = RegisterTile("dots", (own, 1), "fp32"), RegisterTile("zeros", (own, self.d), "fp32")
        with k.role("warps", WARPS, 64) as r:
            r.run(overhead.ALU, 60, dtype="int32", mix=overhead.mix(imad=30))
            for tile in (do, o):
                box = self.inputs[tile.name][CTA_Y, row:own, CTA_Z, 0 : self.d]  # type: ignore[misc]
                r.ldg(tile.whole, box, count, into=tile.name)
            r.run(
                "ffma", own * self.d // 32, dtype="fp32", dst=dots.whole, srcs=(do.whole, o.whole), compute=dotted,
                after=("do", "o"), mix=(("shf", own * self.d // 16), ("shfl", 3 * own)),
            )  # fmt: skip
            r.stg(self.dots[CTA_Y, CTA_Z, row:own], dots.whole, 1, vector_bytes=4)  # type: ignore[misc]
            r.run("imad", 4, dtype="int32", dst=zeros.whole, compute=np.zeros_like)
            for split in range(self.splits):
                box = self.sums[split * self.op.batch + CTA_Y, row:own, CTA_Z, :]  # type: ignore[misc]
                r.stg(box, zeros.whole, ceil_div(own * self.d * 4, 32 * MAX_VECTOR_BYTES))
        return k.build()

    def _convert(self) -> Kernel:
        """Sums of dQ, of all splits, scaled and rounded."""
        k, own, row = self.rows_of_queries("convert_dq", 300)
        part, acc = (RegisterTile(name, (own, self.d), "fp32") for name in ("part", "acc"))
        out = RegisterTile("out", (own, self.d), self.dtype)
        count, values = ceil_div(own * self.d * 4, 32 * MAX_VECTOR_BYTES), own * self.d // 32
        with k.role("warps", WARPS, 64) as r:
            r.run(overhead.ALU, 50, dtype="int32", mix=overhead.mix(imad=25))
            r.run("imad", values, dtype="int32", dst=acc.whole, compute=np.zeros_like)
            with r.loop("split", self.splits) as split:
                box = self.sums[split * self.op.batch + CTA_Y, row:own, CTA_Z, :]  # type: ignore[misc]
                r.ldg(part.whole, box, count, into="part")
                r.run("fadd", values, dtype="fp32", dst=acc.whole, srcs=(part.whole,), compute=_add, after=("part",))
            r.run(
                "fmul", values, dtype="fp32", dst=out.whole, srcs=(acc.whole,), compute=self.scaled,
                mix=((f"cvt.{self.dtype}", values // 2),),
            )  # fmt: skip
            box = self.outputs["dq"][CTA_Y, row:own, CTA_Z, 0 : self.d]  # type: ignore[misc]
            r.stg(box, out.whole, ceil_div(count, 2))
        return k.build()

    # ---- the products

    def _main(self) -> Kernel:
        """dK, dV, and sums of dQ. A CTA has a block of keys, or every so many blocks of a head."""
        op, c, d = self.op, self.c, self.d
        blocks = ceil_div(self.keys, c.block_n)
        self.k = KernelBuilder(
            f"attention_backward_{c}".replace(" ", "_"), (c.splits or blocks, op.batch, op.heads), code_bytes=CODE_BYTES
        )
        self.keys_tile, self.values_tile = (Blocked(self.k, name, c.block_n, d, self.dtype) for name in ("k", "v"))
        self.q = Blocked(self.k, "q", c.block_m, d, self.dtype, c.stages)
        self.do = Blocked(self.k, "do", c.block_m, d, self.dtype)
        self.p, self.ds = (Blocked(self.k, name, c.block_m, c.block_n, self.dtype) for name in ("p", "ds"))
        self._registers()
        with self.k.role("warps", WARPS, 255) as r:
            overhead.FLASH2_SETUP.write(r)
            if not c.splits:
                self._block_of_keys(r, CTA_X)
            else:
                with r.loop("turn", maximum(0, (blocks - CTA_X + (c.splits - 1)) // c.splits)) as turn:
                    self._block_of_keys(r, CTA_X + turn * c.splits)
        return self.k.build()

    def _registers(self) -> None:
        """A warp's part of each product, and its place in it."""
        c, d = self.c, self.d

        def part(rows: int, columns: int, along: int) -> tuple[Expr, Expr, int, int]:
            own, wide = rows // along, columns // (WARPS // along)
            return WARP % along * own, WARP // along * wide, own, wide

        self.at_s, self.at_kv, self.at_q = (
            part(c.block_m, c.block_n, c.rows_s), part(c.block_n, d, c.rows_kv), part(c.block_m, d, c.rows_q)
        )  # fmt: skip
        self.s, self.dp = (RegisterTile(name, self.at_s[2:], "fp32") for name in ("s", "dp"))
        self.acc_k, self.acc_v = (RegisterTile(name, self.at_kv[2:], "fp32") for name in ("acc_k", "acc_v"))
        self.acc_q = RegisterTile("acc_q", self.at_q[2:], "fp32")
        self.lse, self.own_dots = (RegisterTile(name, (self.at_s[2], 1), "fp32") for name in ("lse", "own_dots"))
        tall = max(at[2] for at in (self.at_s, self.at_kv, self.at_q))
        wide = max(at[3] for at in (self.at_s, self.at_kv, self.at_q))
        self.a = [RegisterTile(f"a{i}", (tall, PART), self.dtype) for i in range(2)]
        self.b = [RegisterTile(f"b{i}", (PART, wide), self.dtype) for i in range(2)]

    def _block_of_keys(self, r: RoleBuilder, n: Expr) -> None:
        c = self.c
        first, last = self.seeing(n)
        trips = last - first + 1
        key = n * c.block_n
        shared = CTA_Z // self.group
        if c.splits:
            r.bar_sync(0, WARPS)
        # With a window there may be keys that no query sees: their gradients are zeros.
        with r.when(trips > 0) if self.op.window else nullcontext():
            for tile, tensor in ((self.values_tile, self.inputs["v"]), (self.keys_tile, self.inputs["k"])):
                self._copy(r, tile, tensor, key, shared)
            self._copy(r, self.q, self.inputs["q"], last * c.block_m, CTA_Z)
            self._copy(r, self.do, self.inputs["do"], last * c.block_m, CTA_Z)
            r.cp_commit()
            self._load_sums(r, self.lse, self.inputs["lse"], last * c.block_m)
        for acc in (self.acc_k, self.acc_v):
            r.run("imad", acc.shape[0] * acc.shape[1] // 32, dtype="int32", dst=acc.whole, compute=np.zeros_like)
        with r.loop("i", maximum(0, trips) if self.op.window else trips) as i:
            self._step(r, n, last - i, i, first)
        self._store(r, n)

    def _step(self, r: RoleBuilder, n: Expr, m: Expr, i: Expr, first: IntLike) -> None:
        """A block of queries."""
        c = self.c
        row, stage = m * c.block_m, i % c.stages
        r.cp_wait(0)
        r.bar_sync(0, WARPS)
        self._load_sums(r, self.own_dots, self.dots, row)
        self._multiply_rows(r, self.s, self.q, self.keys_tile, stage)
        self._weights(r, n, row)
        self._share(r, self.s, self.p)
        self._multiply_rows(r, self.dp, self.do, self.values_tile, 0)
        values = self.s.shape[0] * self.s.shape[1] // 32
        r.run(
            "fadd", values, dtype="fp32", dst=self.dp.whole, srcs=(self.s.whole, self.own_dots.whole), compute=slope,
            after=("own_dots",), mix=(("fmul", values),),
        )  # fmt: skip
        more = m > first
        if c.stages > 1:
            with r.when(more):
                self._copy(r, self.q, self.inputs["q"], row - c.block_m, CTA_Z, (i + 1) % c.stages)
            r.cp_commit()
        self._share(r, self.dp, self.ds)
        r.bar_sync(0, WARPS)
        self._multiply_columns(r, self.acc_v, self.p, self.do, 0)
        r.bar_sync(0, WARPS)
        with r.when(more):
            self._copy(r, self.do, self.inputs["do"], row - c.block_m, CTA_Z)
            self._load_sums(r, self.lse, self.inputs["lse"], row - c.block_m)
        r.cp_commit()
        self._multiply_queries(r)
        at, column, rows, columns = self.at_q
        split: IntLike = CTA_X if c.splits else 0
        box = self.sums[split * self.op.batch + CTA_Y, row + at : rows, CTA_Z, column:columns]  # type: ignore[misc]
        r.op("red", rows * columns // 32, dst=box, srcs=(self.acc_q.whole,), compute=_added, vector_bytes=4)
        self._multiply_columns(r, self.acc_k, self.ds, self.q, stage)
        if c.stages == 1:
            r.bar_sync(0, WARPS)
            with r.when(more):
                self._copy(r, self.q, self.inputs["q"], row - c.block_m, CTA_Z)
            r.cp_commit()
        STEP.write(r)

    def _copy(
        self, r: RoleBuilder, to: Blocked, tensor: GlobalTensor, row: IntLike, head: Expr, stage: IntLike = 0
    ) -> None:
        """All warps bring their share of the rows of a tile, block of columns by block."""
        own = to.rows // WARPS
        count = ceil_div(own * to.columns * DTYPE_BYTES[self.dtype], 32 * MAX_VECTOR_BYTES)
        for column in range(0, to.blocks * to.columns, to.columns):
            box = tensor[CTA_Y, row + WARP * own : own, head, column : to.columns]  # type: ignore[misc]
            r.cp_async(to.view(WARP * own, own, column, to.columns, stage), box, count)

    def _load_sums(self, r: RoleBuilder, tile: RegisterTile, tensor: GlobalTensor, row: IntLike) -> None:
        """A value of each of the warp's rows of scores."""
        at, _, rows, _ = self.at_s
        box = tensor[CTA_Y, CTA_Z, row + at : rows]  # type: ignore[misc]
        r.ldg(tile.whole, box, ceil_div(rows, 8), into=tile.name, vector_bytes=4)

    def _weights(self, r: RoleBuilder, n: Expr, row: Expr) -> None:
        """Weights of the scores; zero where a query sees no such key."""
        at, column, rows, columns = self.at_s
        values = rows * columns // 32
        if self.ahead is not None:
            with r.when(self.hidden(n, row)):
                r.run(
                    "sel", values, dtype="int32", dst=self.s.whole, compute=self.masked, mix=(("setp", values),),
                    indices=(row + at, n * self.c.block_n + column),
                )  # fmt: skip
        r.run(
            "ex2", values, dtype="fp32", dst=self.s.whole, srcs=(self.lse.whole,), compute=self.weights, after=("lse",),
            mix=(("ffma", values),),
        )  # fmt: skip

    def _share(self, r: RoleBuilder, tile: RegisterTile, to: Blocked) -> None:
        """For all warps; shared memory holds what is rounded, registers what is not."""
        at, column, rows, columns = self.at_s
        r.run("cvt", rows * columns // 64, dtype=self.dtype, dst=tile.whole, compute=kept)
        r.sts(to.view(at, rows, column, columns), tile.whole, rows * columns // 64, vector_bytes=4)

    def _multiply_rows(self, r: RoleBuilder, acc: RegisterTile, left: Blocked, right: Blocked, stage: IntLike) -> None:
        """acc = left right^T: queries by keys."""
        at, column, rows, columns = self.at_s

        def load(part: int, a: View, b: RegisterTile) -> None:
            self._ldmatrix(r, a, left.view(at, rows, part * PART, PART, stage))
            self._ldmatrix(r, b[:, 0:columns].T, right.view(column, columns, part * PART, PART))

        self._products(r, acc, self.d, load, accumulate=0)

    def _multiply_columns(
        self, r: RoleBuilder, acc: RegisterTile, left: Blocked, right: Blocked, stage: IntLike
    ) -> None:
        """acc += left^T right: keys by columns of a head."""
        at, column, rows, columns = self.at_kv

        def load(part: int, a: View, b: RegisterTile) -> None:
            self._ldmatrix(r, a.T, left.view(part * PART, PART, at, rows))
            self._columns(r, b, right, part * PART, column, columns, stage)

        self._products(r, acc, self.c.block_m, load, accumulate=1)

    def _multiply_queries(self, r: RoleBuilder) -> None:
        """dQ = dS K."""
        at, column, rows, columns = self.at_q

        def load(part: int, a: View, b: RegisterTile) -> None:
            self._ldmatrix(r, a, self.ds.view(at, rows, part * PART, PART))
            self._columns(r, b, self.keys_tile, part * PART, column, columns, 0)

        self._products(r, self.acc_q, self.c.block_n, load, accumulate=0)

    def _columns(
        self, r: RoleBuilder, b: RegisterTile, tile: Blocked, row: int, column: Expr, columns: int, stage: IntLike
    ) -> None:
        """Rows of a tile from a column on, block of columns by block."""
        wide = math.gcd(columns, tile.columns)
        for first in range(0, columns, wide):
            self._ldmatrix(r, b[:, first:wide], tile.view(row, PART, column + first, wide, stage))

    def _products(self, r: RoleBuilder, acc: RegisterTile, depth: int, load, *, accumulate: int) -> None:  # type: ignore[no-untyped-def]
        """Part by part: fragments of one are read while the one before multiplies."""
        rows, columns = acc.shape

        def fragments(part: int) -> tuple[View, RegisterTile]:
            return self.a[part % 2][0:rows, :], self.b[part % 2]

        parts = depth // PART
        load(0, *fragments(0))
        for part in range(parts):
            more = part + 1 < parts
            a, b = fragments(part)
            count = rows * columns * PART // SHAPE_MACS
            r.mma(
                acc.whole, a, b[:, 0:columns], shape=SHAPE, dtype=self.dtype, count=count,
                accumulate=max(accumulate, int(part > 0)), spread=more,
            )  # fmt: skip
            if more:
                load(part + 1, *fragments(part + 1))

    def _ldmatrix(self, r: RoleBuilder, dst: View, src: View) -> None:
        r.ldmatrix(dst, src, ceil_div(dst.size_bytes, MATRIX_BYTES))

    def _store(self, r: RoleBuilder, n: Expr) -> None:
        """dK and dV through the buffers of K and V, so that threads store whole vectors."""
        at, column, rows, columns = self.at_kv
        own, size = self.c.block_n // WARPS, DTYPE_BYTES[self.dtype]
        r.bar_sync(0, WARPS)
        through = ((self.acc_k, self.keys_tile, self.dk), (self.acc_v, self.values_tile, self.dv))
        for acc, tile, _ in through:
            r.run(
                "fmul", rows * columns // 32, dtype="fp32", dst=acc.whole,
                compute=self.scaled_in_place if acc is self.acc_k else kept,
                mix=((f"cvt.{self.dtype}", rows * columns // 64),),
            )  # fmt: skip
            wide = math.gcd(columns, tile.columns)
            for first in range(0, columns, wide):
                view = tile.view(at, rows, column + first, wide)
                r.sts(view, acc[:, first:wide], rows * wide // 64, vector_bytes=4)
        r.bar_sync(0, WARPS)
        result = RegisterTile("result", (own, self.d), self.dtype)
        for _, tile, tensor in through:
            for first in range(0, self.d, tile.columns):
                view = tile.view(WARP * own, own, first, tile.columns)
                count = ceil_div(own * tile.columns * size, 32 * MAX_VECTOR_BYTES)
                r.lds(result[:, first : tile.columns], view, count)
            box = tensor[CTA_Y, n * self.c.block_n + WARP * own : own, CTA_Z, 0 : self.d]  # type: ignore[misc]
            r.stg(box, result.whole, ceil_div(own * self.d * size, 32 * MAX_VECTOR_BYTES))


def _add(left: Array, right: Array) -> Array:
    return left + right


def _added(sums: Array, own: Array) -> Array:
    return sums + own.reshape(sums.shape)
