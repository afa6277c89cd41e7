"""Attention of one query a sequence on machines with tensor memory: the keys are cut into parts (`flash_decode`), which
a second kernel adds up.

The query heads that share a key head are rows of one tile of 128 lanes; lanes that no head fills are multiplied all the
same. One warp asks the TMA for keys and values, page by page where they lie in pages; one thread multiplies, the scores
of a block beside the outputs of the one before; four warps make weights of scores, a row a thread, and divide and store
the outputs at the end. Weights are relative to the first maximum that a row has seen, as in `flash4`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from arch import tcgen05
from arch.dtypes import DTYPE_BYTES
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
    Ring,
    RoleBuilder,
    View,
    as_expr,
    maximum,
    minimum,
)
from workloads.gpu import overhead
from workloads.gpu.attention import cache_write
from workloads.gpu.attention.blocks import (
    LOG2_E,
    Array,
    AttentionProblem,
    blocks,
    exponentials,
    first_maximum,
    problem,
    width,
)
from workloads.gpu.attention.configuration import AttentionConfig
from workloads.gpu.attention.flash4 import BLOCK_N, CHUNK
from workloads.gpu.attention.flash_decode import COMBINED, Rows, combine, parts_of_keys
from workloads.gpu.attention.pages import KeyCopies, check_pages
from workloads.gpu.configuration import Word
from workloads.gpu.figures import figures, transfer
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.tcgen05 import INSTRUCTION_K_BYTES, LANES, ROWS, WARPS
from workloads.ops.attention import Attention
from workloads.registry import register

HEADS = (64, 128, 256)
"""Columns of heads: beside the outputs, tensor memory has room for the scores of two blocks."""
MOST_STAGES = 12
"""Blocks of keys or values on their way at most, where shared memory has room for more."""
CTAS = 2
"""Of an SM, where tensor memory has room for their columns: one multiplies while the other makes weights."""
WARPS_ALL = WARPS + 2
REGISTERS = 168
"""Of a thread: a row's scores, in whose place its weights come, and what addresses take; two CTAs fit an SM."""
SETUP_BYTES = 2048
CODE_BYTES = 9600
"""Machine code on the path that runs: about 600 instructions of all roles."""


@dataclass(frozen=True)
class Flash4DecodeConfig(AttentionConfig):
    """splits: parts of the keys. stages: blocks of K and V together that are on their way."""

    splits: int
    stages: int

    schedule: ClassVar[str] = "flash4-decode"
    grammar: ClassVar[tuple[Word, ...]] = (Word.number("splits"), Word.number("stages"))

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if spec.tcgen05 is None or not spec.has_instruction(tcgen05.OP, p.dtype, f"m{ROWS}n*k{_depth(p)}"):
            raise InputError(f"{where}: {spec.name} has no tensor memory for {p.dtype}; its nearest schedule is decode")
        if p.op.queries > 1 or p.ragged or p.op.heads // p.op.key_heads > ROWS:
            raise InputError(f"{where}: one query a sequence of as many keys, {ROWS} heads a key head; nearest: decode")
        if p.op.head_dim not in HEADS or p.op.value_dim != p.op.head_dim or width(p) != 2:
            raise InputError(f"{where}: heads of {', '.join(map(str, HEADS))} in 16 bits; nearest: decode")
        check_pages(p, where)
        if p.op.page and max(p.op.page, BLOCK_N) % min(p.op.page, BLOCK_N):
            raise InputError(f"{where}: a page divides {BLOCK_N} keys, or is a multiple of them; nearest: decode")
        if not 2 <= self.stages <= max_stages(p, spec) or self.splits < 1:
            raise InputError(f"{where}: 2 to {max_stages(p, spec)} stages find room, and splits are 1 or more")

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """K and V from memory beside products of whole tiles; then what adds the parts."""
        f, d, groups = figures(spec), p.head_dim, p.op.batch * p.op.key_heads
        products = sum(
            tcgen05.product(spec, p.dtype, f"m{ROWS}n{n}k{_depth(p)}").row.interval_cycles * (k // _depth(p))
            for n, k in ((BLOCK_N, d), (d, BLOCK_N))
        )
        trips = ceil_div(_steps(p), self.splits)
        work = ceil_div(groups * self.splits, spec.sm.count) * trips * int(products)
        visited = groups * self.splits * trips * BLOCK_N * d * 2 * width(p)
        kernels = 2 if self.splits > 1 else 1
        parts = self.splits * p.op.batch * p.op.heads * d * 4 if kernels > 1 else 0
        cycles = max(work, transfer(visited, f.dram_rate)) + transfer(2 * parts, f.l2_rate)
        cycles += kernels * (f.start + 3 * f.load_latency)
        return kernels * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism; the same where it does not use it."""
        return "flash2-varlen" if mechanism == "tensor_memory" else str(self)


def _depth(p: AttentionProblem) -> int:
    """Depth of one product."""
    return INSTRUCTION_K_BYTES // width(p)


def _steps(p: AttentionProblem) -> int:
    """Blocks of keys that a query sees at most: a window may begin inside one."""
    whole = ceil_div(p.op.keys, BLOCK_N)
    return min(whole, ceil_div(p.op.window, BLOCK_N) + 1) if p.op.window else whole


def max_stages(p: AttentionProblem, spec: GpuSpec) -> int:
    """Blocks of keys or values beside the queries."""
    return _stages(p, spec.shared.max_per_cta_bytes)


def _stages(p: AttentionProblem, room: int) -> int:
    return (room - ROWS * p.op.head_dim * width(p) - SETUP_BYTES) // (BLOCK_N * p.op.head_dim * width(p))


def _held(p: AttentionProblem, spec: GpuSpec) -> int:
    """Blocks whose scores, or weights, are in tensor memory: of two where no second CTA finds room there."""
    return 1 if spec.tcgen05 and CTAS * (BLOCK_N + p.op.head_dim) <= spec.tcgen05.columns else 2


def default_config(p: AttentionProblem, spec: GpuSpec) -> Flash4DecodeConfig:
    """As many parts as `flash_decode` cuts, as many stages as fit and find work."""
    steps, ctas = _steps(p), CTAS if _held(p, spec) == 1 else 1
    splits = parts_of_keys(p.op.batch * p.op.key_heads, ctas * spec.sm.count, steps)
    most = _stages(p, spec.shared.max_per_cta_bytes // ctas)
    return Flash4DecodeConfig(splits, max(2, min(MOST_STAGES, most, 2 * ceil_div(steps, splits))))


def available(p: AttentionProblem, spec: GpuSpec) -> bool:
    """Whether machine and problem can take the default configuration."""
    if spec.tcgen05 is None:
        return False
    with suppress(InputError):
        default_config(p, spec).check(p, spec)
        return True
    return False


@register("attention", "gpu", "flash4-decode")
def build(op: Attention, spec: GpuSpec, config: Flash4DecodeConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    d, splits = op.head_dim, config.splits
    rows = Rows(op.heads // op.key_heads, op.batch * op.key_heads, op.key_heads, packed=True)
    shape = (splits, rows.groups, rows.count)
    strides = (rows.groups * rows.count, rows.count, 1)
    sums = GlobalTensor("part_lse", shape, "fp32", strides, "scratch")
    if splits == 1:
        # By group, so that lanes beyond its heads are not stored.
        parts = GlobalTensor("o_groups", (*shape, d), p.out, (*(s * d for s in strides), 1), "scratch", alias=p.o.name)
        kernels = [_Builder(p, config, rows, parts, sums, _held(p, spec)).kernel()]
    else:
        parts = GlobalTensor("part_o", (*shape, d), "fp32", (*(s * d for s in strides), 1), "scratch")
        first = _Builder(p, config, rows, parts, sums, _held(p, spec)).kernel()
        kernels = [first, combine(p, splits, rows, min(splits, COMBINED), parts, sums, p.o)]
    if p.new:
        kernels.insert(0, cache_write.kernel(p))
    return Program(f"{op}", (*p.operands, p.o, sums, parts), tuple(kernels), str(config), {"config": config})


class _Builder:
    """Writes the first kernel; one method a role or a part of one."""

    def __init__(
        self, p: AttentionProblem, config: Flash4DecodeConfig, rows: Rows, parts: GlobalTensor, sums: GlobalTensor,
        held: int,
    ) -> None:  # fmt: skip
        self.p, self.c, self.rows, self.parts, self.sums, self.d = p, config, rows, parts, sums, p.op.head_dim
        self.k = k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (config.splits, rows.groups, 1), code_bytes=CODE_BYTES
        )
        self.part, self.group = CTA_X, CTA_Y
        self.batch, self.head = self.group // rows.heads, self.group % rows.heads
        self.blocks = b = blocks(p, as_expr(0), 1, BLOCK_N)
        share = (b.trips + (config.splits - 1)) // config.splits
        first = b.end - b.trips + self.part * share
        self.last = minimum(first + share, b.end)
        self.trips = maximum(0, self.last - first)
        self.q = k.shared("q", (ROWS, self.d), p.dtype, swizzle_bytes=128)
        self.kv = k.shared("kv", (BLOCK_N, self.d), p.dtype, config.stages, swizzle_bytes=128)
        self.scores = k.tensor("scores", (ROWS, BLOCK_N), "fp32", held)
        # Of two bytes, they take half of the columns of their scores.
        self.weights = k.tensor("weights", (ROWS, 2 * BLOCK_N), p.dtype, held, over=self.scores)
        self.outputs = k.tensor("outputs", (ROWS, self.d), "fp32")
        self.held = held
        self.copies = KeyCopies(p, min(BLOCK_N, p.op.page or BLOCK_N))
        self.q_full, self.done = k.mbarrier("q_full", 1, 1), k.mbarrier("done", 1, 1)
        self.ring = Ring(k.mbarrier("kv_full", config.stages, 1), k.mbarrier("kv_empty", config.stages, 1))
        self.scored, self.weighed = k.mbarrier("scored", held, 1), k.mbarrier("weighed", held, WARPS)

    def kernel(self) -> Kernel:
        """All roles; a part without keys does nothing but say so."""
        with self.k.role("softmax", WARPS, REGISTERS) as r:
            with r.when(WARP.equals(0)):
                r.tcgen05_alloc()
            self._set_up(r)
            with r.when(self.trips > 0):
                self._softmax(r)
            with r.when(self.trips.equals(0)):
                self._nothing(r)
            r.bar_sync(1, WARPS)
            with r.when(WARP.equals(0)):
                r.tcgen05_dealloc()
        for name, write in (("load", self._producer), ("mma", self._multiplier)):
            with self.k.role(name, 1, REGISTERS) as r:
                self._set_up(r)
                with r.when(self.trips > 0):
                    write(r)
        return self.k.build()

    def _set_up(self, r: RoleBuilder) -> None:
        overhead.FLASH3_CTA_SETUP.write(r)
        r.bar_sync(0, WARPS_ALL)

    # --- operands: keys of the first block, then keys of the next and values of this one in turn

    @staticmethod
    def _keys(i: IntLike) -> Expr:
        """Number of the keys of block i among all loads."""
        return maximum(0, 2 * as_expr(i) - 1)

    def _values(self, i: IntLike) -> Expr:
        """Of the values of block i; behind the last one's there are no keys."""
        return minimum(2 * as_expr(i) + 2, 2 * self.trips - 1)

    def _producer(self, r: RoleBuilder) -> None:
        count = self.rows.count
        r.mbarrier_expect(self.q_full, 0, count * self.d * width(self.p))
        box = self.p.q[self.batch, 0, self.head * count : count, :]  # type: ignore[misc]
        r.tma_load(self.q[0, 0:count, :], box, self.q_full, 0)  # type: ignore[misc]
        self._load(r, self.p.k, Const(0), Const(0))
        with r.loop("i", self.trips) as i:
            with r.when(i + 1 < self.trips):
                self._load(r, self.p.k, i + 1, self._keys(i + 1))
            self._load(r, self.p.v, i, self._values(i))
            overhead.FLASH3_PRODUCER_STEP.write(r)

    def _load(self, r: RoleBuilder, tensor: GlobalTensor, i: Expr, number: Expr) -> None:
        """Block i of keys or values, counted from the last: of pages one box each."""
        first, stage = (self.last - 1 - i) * BLOCK_N, self.ring.stage(number)
        if number == Const(0):  # finds its stage empty
            r.mbarrier_expect(self.ring.full, 0, self.kv.stage_bytes)
        else:
            self.ring.acquire(r, number, self.kv.stage_bytes)
        piece = min(BLOCK_N, self.p.op.page or BLOCK_N)
        for at in range(0, BLOCK_N, piece):
            box = self._box(r, tensor, first + at, piece)
            r.tma_load(self.kv[stage, at:piece, :], box, self.ring.full, stage)  # type: ignore[misc]

    def _box(self, r: RoleBuilder, tensor: GlobalTensor, first: Expr, rows: int) -> View:
        """`rows` keys that lie together. Behind a sequence's end its last page is read again, and masked."""
        if self.p.table is None:
            return tensor[self.batch, first:rows, self.head, :]  # type: ignore[misc]
        page = minimum(first // self.p.op.page, self.p.op.page_table.shape[1] - 1)
        index = self.copies.block(r, self.batch, page * self.p.op.page)[0]
        return tensor[index, first % self.p.op.page : rows, self.head, :]  # type: ignore[misc]

    # --- products

    def _multiplier(self, r: RoleBuilder) -> None:
        r.mbarrier_wait(self.q_full, 0, 0)
        self._score(r, as_expr(0))
        with r.loop("i", self.trips) as i:
            if self.held == 1:
                self._add_outputs(r, i)
            with r.when(i + 1 < self.trips):
                self._score(r, i + 1)
            if self.held > 1:
                self._add_outputs(r, i)
            overhead.TCGEN05_STEP.write(r)
        r.tcgen05_commit(self.done, 0)

    def _score(self, r: RoleBuilder, i: Expr) -> None:
        """In place of weights that have been multiplied: products keep their order."""
        depth, number = _depth(self.p), self._keys(i)
        self.ring.wait(r, number)
        r.tcgen05_mma(
            self.scores.stage(i % self.held), self.q.stage(), self.kv.stage(self.ring.stage(number)).T,
            shape=f"m{ROWS}n{BLOCK_N}k{depth}", dtype=self.p.dtype, count=self.d // depth, accumulate=0,
        )  # fmt: skip
        r.tcgen05_commit(self.ring.empty, self.ring.stage(number))
        r.tcgen05_commit(self.scored, i % self.held)

    def _add_outputs(self, r: RoleBuilder, i: Expr) -> None:
        depth, number = _depth(self.p), self._values(i)
        self.ring.wait(r, number)
        r.mbarrier_wait(self.weighed, i % self.held, i // self.held)
        r.tcgen05_fence_after()
        r.tcgen05_mma(
            self.outputs.stage(), self.weights[i % self.held, :, 0:BLOCK_N], self.kv.stage(self.ring.stage(number)),
            shape=f"m{ROWS}n{self.d}k{depth}", dtype=self.p.dtype, count=BLOCK_N // depth, accumulate=i > 0,
        )  # fmt: skip
        r.tcgen05_commit(self.ring.empty, self.ring.stage(number))

    # --- softmax and outputs

    def _softmax(self, r: RoleBuilder) -> None:
        top, total = RegisterTile("top", (LANES, 1), "fp32"), RegisterTile("total", (LANES, 1), "fp32")
        for tile, value in ((top, -np.inf), (total, 0.0)):
            r.run("imad", 1, dtype="int32", dst=tile.whole, compute=lambda old, value=value: np.full_like(old, value))
        with r.loop("i", self.trips) as i:
            self._block(r, i, top, total)
        self._finish(r, top, total)

    def _block(self, r: RoleBuilder, i: Expr, top: RegisterTile, total: RegisterTile) -> None:
        """Weights of one block of keys, a row a thread."""
        p, b, factor, lanes = self.p, self.blocks, self.p.exponent_scale, WARP * LANES
        scores = RegisterTile("scores", (LANES, BLOCK_N), "fp32")
        weights = RegisterTile("weights", (LANES, BLOCK_N), p.dtype)
        held, block = i % self.held, self.last - 1 - i
        r.mbarrier_wait(self.scored, held, i // self.held)
        r.tcgen05_fence_after()
        for at in range(0, BLOCK_N, CHUNK):
            r.tcgen05_ld(scores[:, at:CHUNK], self.scores[held, lanes:LANES, at:CHUNK])  # type: ignore[misc]
        r.tcgen05_wait_ld()
        whole_end = b.end - 1 - b.tail
        with r.when((block >= whole_end) + (block < whole_end - b.whole)):
            r.run(
                "sel", BLOCK_N, dtype="int32", dst=scores.whole, compute=self._mask, indices=(block * BLOCK_N,),
                mix=(("setp", BLOCK_N // 4),),
            )  # fmt: skip

        # Three operands an instruction; then whether outputs would have to be rescaled, a vote.
        r.run("fmnmx", BLOCK_N // 2, dtype="fp32", dst=top.whole, srcs=(scores.whole,), compute=first_maximum)
        r.run("setp", 1, dtype="int32", srcs=(top.whole,), mix=overhead.mix(alu=4))
        r.run(
            "ex2", BLOCK_N, dtype="fp32", dst=scores.whole, srcs=(top.whole,), compute=partial(exponentials, factor),
            mix=(("ffma", BLOCK_N),),
        )  # fmt: skip
        r.run("cvt", BLOCK_N // 2, dtype=p.dtype, dst=weights.whole, srcs=(scores.whole,), compute=lambda _, x: x)
        for at in range(0, BLOCK_N, CHUNK):
            r.tcgen05_st(self.weights[held, lanes:LANES, at:CHUNK], weights[:, at:CHUNK])  # type: ignore[misc]
        r.tcgen05_wait_st()
        r.tcgen05_fence_before()
        r.mbarrier_arrive(self.weighed, held)
        r.run(
            "fadd", BLOCK_N // 2, dtype="fp32", dst=total.whole, srcs=(scores.whole,),
            compute=lambda old, found: old + found.sum(axis=1, keepdims=True),
        )  # fmt: skip

    def _mask(self, found: Array, first_column: int) -> Array:
        seen = self.p.seen(np.zeros(LANES, dtype=np.int64), first_column + np.arange(BLOCK_N))
        return np.where(seen, found, -np.inf)

    def _finish(self, r: RoleBuilder, top: RegisterTile, total: RegisterTile) -> None:
        """Outputs divided by their sums, and the LSE, of lanes that heads fill."""
        factor, row, form = self.p.exponent_scale / LOG2_E, WARP * LANES, self.parts.dtype
        scale, lse = RegisterTile("scale", (LANES, 1), "fp32"), RegisterTile("lse", (LANES, 1), "fp32")
        r.run(
            "rcp", 1, dtype="fp32", dst=scale.whole, srcs=(total.whole,),
            compute=lambda _, x: 1 / np.where(x > 0, x, 1),
        )  # fmt: skip

        def logarithm(_: Array, sums: Array, highest: Array) -> Array:
            return np.where(sums > 0, factor * highest + np.log(np.where(sums > 0, sums, 1)), -np.inf)

        r.run("lg2", 1, dtype="fp32", dst=lse.whole, srcs=(total.whole, top.whole), compute=logarithm)
        r.mbarrier_wait(self.done, 0, 0)
        r.tcgen05_fence_after()
        with r.when(row < self.rows.count):
            for at in range(0, self.d, CHUNK):
                acc = RegisterTile("acc", (LANES, CHUNK), "fp32")
                r.tcgen05_ld(acc.whole, self.outputs[0, row:LANES, at:CHUNK])  # type: ignore[misc]
                r.tcgen05_wait_ld()
                r.run("fmul", CHUNK, dtype="fp32", dst=acc.whole, srcs=(scale.whole,), compute=lambda x, s: x * s)
                if form != "fp32":
                    r.run("cvt", CHUNK // 2, dtype=form)
                box = self.parts[self.part, self.group, row:LANES, at:CHUNK]  # type: ignore[misc]
                r.stg(box, acc.whole, CHUNK * DTYPE_BYTES[form] // 16, vector_bytes=16)
            self._store_lse(r, lse)

    def _store_lse(self, r: RoleBuilder, lse: RegisterTile) -> None:
        row = WARP * LANES
        r.stg(self.sums[self.part, self.group, row:LANES], lse.whole, 1, vector_bytes=4)  # type: ignore[misc]

    def _nothing(self, r: RoleBuilder) -> None:
        """What a part without keys leaves: no weight."""
        lse = RegisterTile("lse", (LANES, 1), "fp32")
        r.run("imad", 1, dtype="int32", dst=lse.whole, compute=lambda old: np.full_like(old, -np.inf))
        with r.when(self.rows.count > WARP * LANES):
            self._store_lse(r, lse)
