"""Latent attention (MLA) of one query a sequence on Hopper, its projections absorbed: FlashMLA.

All query heads share one key head, whose values are the first columns of its keys. A CTA has 64 heads, the rows of a
warpgroup's wgmma. Q stays in shared memory; one warp brings blocks of 64 keys by TMA, columns of 128 B at a time, and
no values: they lie in the same blocks. 64 rows of 512 outputs do not fit the registers of one warpgroup, so that each
of two has half the columns, and the scores of every second block. They take turns ("seesaw"): softmax of one runs
beside the products of the other, whose weights each takes from shared memory for its own columns. The second one's
weights lie where the last columns of Q were, which both warpgroups keep in registers.

Row maxima are common: the first warpgroup's block comes first, and its weights are rescaled to the maxima after the
second one's block. Blocks of all sequences are shared out evenly over as many CTAs as there are SMs; a sequence that is
cut leaves parts in memory, which a second kernel adds up (`flash_decode.combine`).

Source of the schedule: DeepSeek, "A Deep-Dive Into The New Flash MLA Kernel" (April 2025), and the tile scheduler that
FlashMLA's interface documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    WARP,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    Table,
    Var,
    View,
    as_expr,
)
from workloads.gpu import overhead
from workloads.gpu.attention import flash3
from workloads.gpu.attention.blocks import Array, AttentionProblem, OnlineSoftmax, problem, width
from workloads.gpu.attention.configuration import AttentionConfig
from workloads.gpu.attention.flash_decode import COMBINED, Rows, combine
from workloads.gpu.attention.pages import KeyCopies
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.estimate import figures, transfer
from workloads.gpu.gemm.mma import MATRIX_BYTES
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, WARP_ROWS, WARPGROUP
from workloads.ops.attention import Attention
from workloads.registry import register

BLOCK_N = 64
"""Keys of a block."""
COLUMNS = 64
"""Of a copy by TMA: 128 B, its widest swizzle."""
STAGES = 2
"""Blocks in shared memory, one of each warpgroup."""
MOST_VALUES = 512
"""Columns of values, half of them in the registers of a warpgroup."""
SMALL_BYTES = 10 << 10
"""Of shared memory beside Q and two blocks: weights, maxima, barriers."""
CONSUMERS = STAGES * WARPGROUP
LAUNCHED, FEW, MANY = 168, 24, 240
"""Registers of a thread: at launch, of the warpgroup of the producer, of consumers."""
PIECE_BLOCKS = 5
"""What a sequence costs a CTA beside its blocks, in blocks, as the published scheduler has it."""
LEFT, RIGHT, LAST = 0, 1, 2
"""Parts of a stage that are handed back: columns of the values of either warpgroup, columns of keys alone."""
ALL, FIRST_SCALE, SECOND_WEIGHTS, FIRST_WEIGHTS, STORED = 0, 1, 2, 3, 4
"""Named barriers; of STORED each warpgroup has its own."""


@dataclass(frozen=True)
class FlashMlaConfig(AttentionConfig):
    """`parts` CTAs, for each 64 heads, share the blocks of all sequences."""

    parts: int

    schedule: ClassVar[str] = "flash-mla"

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("parts"),)

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        if not available(p, spec):
            rule = (
                "wgmma and TMA, one query, one cache of one key head in 2-byte elements, of whose columns (a multiple "
            )
            rule += (
                f"of {COLUMNS}) the first, a multiple of {2 * COLUMNS} up to {MOST_VALUES}, are values, in pages of a "
            )
            raise InputError(f"schedule={self}: needs {rule}multiple of {BLOCK_N} keys, if any; nearest: decode")
        if not 1 <= self.parts <= 65535:
            raise InputError(f"schedule={self}: 1 to 65535 parts; nearest: {default_config(p, spec)}")

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """Blocks of the fullest part, whose products follow each other, or all keys from memory; then what was cut."""
        f, op = figures(spec), p.op
        depth = flash3.step_k(p)
        scores = spec.instruction("wgmma", p.dtype, f"m64n{BLOCK_N}k{depth}").interval_cycles * (op.head_dim // depth)
        values = spec.instruction("wgmma", p.dtype, f"m64n{op.value_dim // 2}k{depth}").interval_cycles
        parts = pieces_of(_blocks(p), self.parts)
        most = max(sum(piece.end - piece.begin + PIECE_BLOCKS for piece in own) for own in parts)
        rounds = ceil_div(self.parts * ceil_div(op.heads, BLOCK_ROWS), spec.sm.count)
        work = rounds * most * int(scores + 2 * values * (BLOCK_N // depth))
        cut = sum(count for count in _splits(p, self) if count > 1)
        kernels = 2 if cut else 1
        read = transfer(sum(op.lengths_k) * op.head_dim * width(p), f.dram_rate)
        cycles = max(work, read) + transfer(2 * cut * op.heads * op.value_dim * 4, f.l2_rate)
        cycles += kernels * (f.start + 3 * f.load_latency)
        return kernels * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)


@dataclass(frozen=True)
class Piece:
    """Blocks `begin` to `end` of a sequence, which one CTA visits. split: its number among those of the sequence."""

    sequence: int
    begin: int
    end: int
    split: int


def pieces_of(blocks: tuple[int, ...], parts: int) -> list[list[Piece]]:
    """The pieces of each part, where sequences have `blocks` blocks: in turn, a part as many as it has room for, each
    piece with `PIECE_BLOCKS` beside its own."""
    room = ceil_div(sum(blocks) + PIECE_BLOCKS * len(blocks), parts) + PIECE_BLOCKS
    found: list[list[Piece]] = []
    sequence = begin = split = 0
    for _ in range(parts):
        own, left = [], room
        while sequence < len(blocks) and left > PIECE_BLOCKS:
            count = min(blocks[sequence] - begin, left - PIECE_BLOCKS)
            own.append(Piece(sequence, begin, begin + count, split))
            left -= count + PIECE_BLOCKS
            begin, split = begin + count, split + 1
            if begin == blocks[sequence]:
                sequence, begin, split = sequence + 1, 0, 0
        found.append(own)
    return found


def default_config(p: AttentionProblem, spec: GpuSpec) -> FlashMlaConfig:
    """The published one: a CTA for each SM."""
    return FlashMlaConfig(max(1, spec.sm.count // ceil_div(p.op.heads, BLOCK_ROWS)))


def available(p: AttentionProblem, spec: GpuSpec) -> bool:
    """Whether machine and problem are what the kernel is made for."""
    op = p.op
    fits = op.head_dim % COLUMNS == 0 == op.value_dim % (2 * COLUMNS) and op.value_dim + COLUMNS <= op.head_dim
    alone = op.one_cache and op.key_heads == 1 == op.queries and not op.window and not p.ragged_q
    return (
        fits and alone and op.value_dim <= MOST_VALUES and op.page % BLOCK_N == 0 and width(p) == 2
        and p.dtype == p.out and flash3.available(p, spec)
        and (1 + STAGES) * BLOCK_N * op.head_dim * 2 + SMALL_BYTES <= spec.shared.max_per_cta_bytes
    )  # fmt: skip


def _blocks(p: AttentionProblem) -> tuple[int, ...]:
    """Of each sequence."""
    return tuple(ceil_div(keys, BLOCK_N) for keys in p.op.lengths_k)


def _splits(p: AttentionProblem, config: FlashMlaConfig) -> list[int]:
    """Pieces of each sequence."""
    counts = [0] * p.op.batch
    for own in pieces_of(_blocks(p), config.parts):
        for piece in own:
            counts[piece.sequence] += 1
    return counts


@register("attention", "gpu", "flash-mla")
def build(op: Attention, spec: GpuSpec, config: FlashMlaConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    counts = _splits(p, config)
    most, rows = max(counts), Rows(op.heads, op.batch, 1, True)
    shape, strides = (most, op.batch, op.heads), (op.batch * op.heads, op.heads, 1)
    sums = GlobalTensor("part_lse", shape, "fp32", strides, "scratch")
    tensors, parts = [*p.operands, p.o, sums], None
    kernels = []
    if most > 1:
        d = op.value_dim
        parts = GlobalTensor("part_o", (*shape, d), "fp32", (*(s * d for s in strides), 1), "scratch")
        tensors.append(parts)
        listed = tuple(count if count > 1 else 0 for count in counts)
        kernels = [combine(p, most, rows, min(most, COMBINED), parts, sums, p.o, parts_of=listed)]
    kernels.insert(0, _Builder(p, config, counts, sums, parts).kernel())
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


class _Builder:
    """Writes the first kernel: CTAs are tiles of heads, parts."""

    def __init__(
        self, p: AttentionProblem, config: FlashMlaConfig, counts: list[int], sums: GlobalTensor,
        parts: GlobalTensor | None,
    ) -> None:  # fmt: skip
        self.p, self.sums, self.parts, self.counts = p, sums, parts, tuple(counts)
        self.d, self.half = p.op.head_dim, p.op.value_dim // 2
        self.boxes = self.d // COLUMNS
        self.k = k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (ceil_div(p.op.heads, BLOCK_ROWS), config.parts, 1),
            code_bytes=(230 + 2 * 60 + 4 * 500 + 400) * overhead.INSTRUCTION_BYTES,
        )  # fmt: skip
        self.q = k.shared("q", (BLOCK_ROWS, self.d), p.dtype, swizzle_bytes=128)
        self.keys = k.shared("k", (BLOCK_N, self.d), p.dtype, STAGES, swizzle_bytes=128)
        self.first_weights = k.shared("p", (BLOCK_ROWS, BLOCK_N), p.dtype, swizzle_bytes=128)
        # Of rows: their maxima, the factors of either warpgroup, the sums of a thread.
        self.top, self.factors = (
            k.shared("top", (BLOCK_ROWS, 1), "fp32"),
            k.shared("f", (BLOCK_ROWS, 1), "fp32", STAGES),
        )
        self.totals = k.shared("totals", (BLOCK_ROWS, 1), "fp32", STAGES)
        self.q_full, self.q_empty = k.mbarrier("q_full", 1, 1), k.mbarrier("q_empty", 1, CONSUMERS)
        self.full = k.mbarrier("full", STAGES * self.boxes, 1)
        self.empty = k.mbarrier("empty", STAGES * 3, WARPGROUP)
        self.q_last = RegisterTile("q_last", (WARP_ROWS, COLUMNS), p.dtype)
        self.other = RegisterTile("other", (WARP_ROWS, 1), "fp32")
        self.later = RegisterTile("later", (WARP_ROWS, BLOCK_N), p.dtype)
        self.head, self.own = CTA_X * BLOCK_ROWS, WARP % WARPGROUP * WARP_ROWS
        self._list(pieces_of(_blocks(p), config.parts))

    def _list(self, parts: list[list[Piece]]) -> None:
        """Tables of the pieces of all CTAs; no index leaves them, whatever the part."""
        most, pieces = max(len(own) for own in parts), [piece for own in parts for piece in own]
        starts = np.cumsum([0, *(len(own) for own in parts)])
        self.count = Table(tuple(len(own) for own in parts), CTA_Y)
        padded = pieces + [pieces[-1]] * most
        number = Table(tuple(int(start) for start in starts[:-1]), CTA_Y) + Var("piece")
        self.sequence, self.begin, self.end, self.split = (
            Table(tuple(getattr(piece, name) for piece in padded), number)
            for name in ("sequence", "begin", "end", "split")
        )

    def kernel(self) -> Kernel:
        """Both warpgroups, and the warp that loads."""
        for stage, step in enumerate((self._first, self._second)):
            with self.k.role(("first", "second")[stage], WARPGROUP, MANY) as r:
                self._set_up(r, MANY)
                self._consumer(r, stage, step)
        with self.k.role("producer", WARPGROUP, FEW) as r:
            self._set_up(r, FEW)
            with r.when(WARP.equals(0)), self._each_piece(r):
                self._load_piece(r)
        return self.k.build(launch_registers=LAUNCHED)

    def _set_up(self, r: RoleBuilder, registers: int) -> None:
        overhead.FLASH3_CTA_SETUP.write(r)
        r.bar_sync(ALL, CONSUMERS + WARPGROUP)
        r.setmaxnreg(registers)

    @contextmanager
    def _each_piece(self, r: RoleBuilder) -> Iterator[None]:
        """The pieces of this CTA one after the other; counts the uses of both stages."""
        for stage in range(STAGES):
            r.assign(f"used{stage}", 0)
        with r.loop("piece", self.count):
            yield
            r.assign("used0", Var("used0") + (self.trips + 1) // 2)
            r.assign("used1", Var("used1") + self.trips // 2)

    @property
    def trips(self) -> Expr:
        """Blocks of the piece."""
        return self.end - self.begin

    # --- loads

    def _load_piece(self, r: RoleBuilder) -> None:
        r.mbarrier_wait(self.q_empty, 0, Var("piece") - 1)
        r.mbarrier_expect(self.q_full, 0, self.q.stage_bytes)
        with r.loop("box", self.boxes) as box:
            at = box * COLUMNS
            src = self.p.q[self.sequence, 0, self.head : BLOCK_ROWS, at:COLUMNS]  # type: ignore[misc]
            r.tma_load(self.q[0, :, at:COLUMNS], src, self.q_full, 0)
        overhead.FLASH3_PRODUCER_TILE.write(r)
        with r.loop("i", (self.trips + 1) // 2) as i:
            place = self._place(r, self.begin + 2 * i)
            # In the order in which consumers hand them back.
            self._load(r, 0, LAST, i, place)
            with r.when(2 * i + 1 < self.trips):
                other = self._place(r, self.begin + 2 * i + 1)
                self._load(r, 1, LAST, i, other)
            self._load(r, 0, LEFT, i, place)
            with r.when(2 * i + 1 < self.trips):
                self._load(r, 1, RIGHT, i, other)
            self._load(r, 0, RIGHT, i, place)
            with r.when(2 * i + 1 < self.trips):
                self._load(r, 1, LEFT, i, other)
            overhead.FLASH3_PRODUCER_STEP.write(r)

    def _place(self, r: RoleBuilder, block: Expr) -> tuple[IntLike, Expr]:
        """First two coordinates of a block of keys; of a page the warp waits for its number."""
        p = self.p.at(self.sequence)
        if p.table:
            return KeyCopies(p, BLOCK_N).block(r, self.sequence, block * BLOCK_N)
        return p.key_place(block * BLOCK_N) if p.ragged else (self.sequence, block * BLOCK_N)

    def _load(self, r: RoleBuilder, stage: int, part: int, i: Expr, place: tuple[IntLike, Expr]) -> None:
        """Some columns of a block, box by box, each with a barrier of its own."""
        first, end = self._columns(part)
        phase = Var(f"used{stage}") + i
        r.mbarrier_wait(self.empty, 3 * stage + part, phase - 1)
        with r.loop("box", (end - first) // COLUMNS) as box:
            at = first + box * COLUMNS
            full = stage * self.boxes + at // COLUMNS
            r.mbarrier_expect(self.full, full, BLOCK_N * COLUMNS * width(self.p))
            src = self.p.k[place[0], place[1] : BLOCK_N, 0, at:COLUMNS]  # type: ignore[misc]
            r.tma_load(self.keys[stage, :, at:COLUMNS], src, self.full, full)

    def _columns(self, part: int) -> tuple[int, int]:
        """First column of a part and the one after its last."""
        bounds = (0, self.half, 2 * self.half, self.d)
        return bounds[part], bounds[part + 1]

    # --- consumers

    def _consumer(self, r: RoleBuilder, stage: int, step) -> None:  # type: ignore[no-untyped-def]
        s = OnlineSoftmax(self.p.at(self.sequence), WARP_ROWS, BLOCK_N, self.half, 0)
        with self._each_piece(r):
            overhead.FLASH3_CONSUMER_TILE.write(r)
            r.mbarrier_wait(self.q_full, 0, Var("piece"))
            last = self.q[0, self.own : WARP_ROWS, self.d - COLUMNS : COLUMNS]  # type: ignore[misc]
            r.ldmatrix(self.q_last.whole, last, WARP_ROWS * COLUMNS * 2 // MATRIX_BYTES)
            s.start(r)
            with r.loop("i", self.trips // 2) as i:
                step(r, s, i, both=True)
                overhead.FLASH3_CONSUMER_STEP.write(r)
            with r.when(self.trips % 2):
                step(r, s, self.trips // 2, both=False)
            self._store(r, s, stage)

    def _scores(self, r: RoleBuilder, s: OnlineSoftmax, stage: int, i: Expr) -> None:
        """Q K^T of a block, the columns that lie in registers first, masked where its sequence ends."""
        phase, last = Var(f"used{stage}") + i, self.boxes - 1

        def multiply(q: View, box: IntLike, first: bool) -> None:
            r.mbarrier_wait(self.full, stage * self.boxes + box, phase)
            k = self.keys[stage, :, box * COLUMNS : COLUMNS].T  # type: ignore[misc]
            self._wgmma(r, s.scores.whole, q, k, int(not first))

        r.wgmma_fence()
        multiply(self.q_last.whole, last, True)
        with r.loop("box", last) as n:
            box = (n + stage * (self.half // COLUMNS)) % last  # each its own columns of values last
            at = box * COLUMNS
            multiply(self.q[0, self.own : WARP_ROWS, at:COLUMNS], box, False)  # type: ignore[misc]
        r.wgmma_commit()
        r.wgmma_wait(0)
        r.mbarrier_arrive(self.empty, 3 * stage + LAST)
        keys = self.p.at(self.sequence).keys
        begin = (self.begin + 2 * i + stage) * BLOCK_N
        with r.when(begin + BLOCK_N > keys):
            s.mask(r, as_expr(0), begin)

    def _wgmma(self, r: RoleBuilder, acc: View, a: View, b: View, accumulate: int = 1) -> None:
        depth = flash3.step_k(self.p)
        count = a.extents[-1] // depth
        r.wgmma(
            acc, a, b, shape=f"m{BLOCK_ROWS}n{acc.extents[-1]}k{depth}", dtype=self.p.dtype, count=count,
            accumulate=accumulate, mix=overhead.mix(alu=2 * count),
        )  # fmt: skip

    def _outputs(self, r: RoleBuilder, s: OnlineSoftmax, weights: View, stage: int, part: int) -> None:
        """acc + P V of a block, in flight: this warpgroup's columns."""
        r.wgmma_fence()
        self._wgmma(r, s.acc.whole, weights, self.keys[stage, :, self._columns(part)[0] : self.half])  # type: ignore[misc]
        r.wgmma_commit()

    def _done(self, r: RoleBuilder, left: int, stage: int, part: int) -> None:
        """Hands a part back when at most `left` products are in flight."""
        r.wgmma_wait(left)
        r.mbarrier_arrive(self.empty, 3 * stage + part)

    def _rows(self, tile, first: int = 0, columns: int = 1, stage: int = 0) -> View:  # type: ignore[no-untyped-def]
        """This warp's rows of a shared tile."""
        return tile[stage, self.own : WARP_ROWS, first:columns]  # type: ignore[no-any-return]

    @property
    def _second_weights(self) -> View:
        return self._rows(self.q, self.d - COLUMNS, BLOCK_N)

    def _show(self, r: RoleBuilder, weights: RegisterTile, to: View, barrier: int) -> None:
        """Weights to shared memory, for the other warpgroup's wgmma."""
        r.stmatrix(to, weights.whole, WARP_ROWS * BLOCK_N * 2 // MATRIX_BYTES)
        r.fence_async()
        r.bar_arrive(barrier, CONSUMERS)

    def _scaled(self, r: RoleBuilder, s: OnlineSoftmax, *tiles: RegisterTile) -> None:
        """By the other warpgroup's factor."""
        for tile in tiles:
            count = max(s.lines, tile.shape[0] * tile.shape[1] // 32)
            r.run(
                "fmul", count, dtype="fp32", dst=tile.whole, srcs=(self.other.whole,),
                compute=lambda old, factor: old * factor,
            )  # fmt: skip

    def _first(self, r: RoleBuilder, s: OnlineSoftmax, i: Expr, *, both: bool) -> None:
        """A block, and the left columns of the values of two."""
        self._scores(r, s, 0, i)
        s.block(r, first=False)
        r.sts(self._rows(self.top), s.top.whole, 1, vector_bytes=4)
        r.sts(self._rows(self.factors), s.scale.whole, 1, vector_bytes=4)
        r.bar_arrive(FIRST_SCALE, CONSUMERS)
        s.convert(r)
        s.rescale(r)
        self._outputs(r, s, s.weights.whole, 0, LEFT)
        if not both:
            # Those of the step before have been read, or this block would not have come.
            self._show(r, s.weights, self._rows(self.first_weights, 0, BLOCK_N), FIRST_WEIGHTS)
            self._done(r, 0, 0, LEFT)
            return
        r.bar_sync(SECOND_WEIGHTS, CONSUMERS)
        r.lds(self.other.whole, self._rows(self.factors, stage=1), 1, vector_bytes=4)
        r.lds(s.top.whole, self._rows(self.top), 1, vector_bytes=4)
        self._scaled(r, s, s.scores, s.total)
        r.run("cvt", s.values // 2, dtype=self.p.dtype, dst=self.later.whole, srcs=(s.scores.whole,), compute=_second)
        self._show(r, self.later, self._rows(self.first_weights, 0, BLOCK_N), FIRST_WEIGHTS)
        self._done(r, 0, 0, LEFT)
        self._scaled(r, s, s.acc)
        self._outputs(r, s, self._second_weights, 1, LEFT)
        self._done(r, 0, 1, LEFT)

    def _second(self, r: RoleBuilder, s: OnlineSoftmax, i: Expr, *, both: bool) -> None:
        """The block after it, and the right columns of the values of both."""
        if both:
            self._scores(r, s, 1, i)
            s.maxima(r, first=True)
        r.bar_sync(FIRST_SCALE, CONSUMERS)
        r.lds(self.other.whole, self._rows(self.factors), 1, vector_bytes=4)
        self._scaled(r, s, s.total)
        if both:
            r.lds(s.top.whole, self._rows(self.top), 1, vector_bytes=4)
            top = s.new_top.whole
            r.run("fmnmx", s.lines, dtype="fp32", dst=top, srcs=(s.top.whole,), compute=np.maximum)
            s.weigh(r, first=False)
            r.sts(self._rows(self.top), s.top.whole, 1, vector_bytes=4)
            r.sts(self._rows(self.factors, stage=1), s.scale.whole, 1, vector_bytes=4)
            s.convert(r)
            self._show(r, s.weights, self._second_weights, SECOND_WEIGHTS)
            self._scaled(r, s, s.scale)
            s.rescale(r)
            self._outputs(r, s, s.weights.whole, 1, RIGHT)
        else:
            self._scaled(r, s, s.acc)
        r.bar_sync(FIRST_WEIGHTS, CONSUMERS)
        self._outputs(r, s, self._rows(self.first_weights, 0, BLOCK_N), 0, RIGHT)
        if both:
            self._done(r, 1, 1, RIGHT)
        self._done(r, 0, 0, RIGHT)

    # --- epilogue

    def _store(self, r: RoleBuilder, s: OnlineSoftmax, stage: int) -> None:
        """The sums of both warpgroups; then each stores its columns, through Q where the sequence is whole."""
        r.sts(self._rows(self.totals, stage=stage), s.total.whole, s.lines, vector_bytes=4)
        r.bar_sync(STORED + STAGES, CONSUMERS)  # all have read Q, too
        r.lds(self.other.whole, self._rows(self.totals, stage=1 - stage), s.lines, vector_bytes=4)
        r.run("fadd", s.lines, dtype="fp32", dst=s.total.whole, srcs=(self.other.whole,), compute=np.add)
        s.finish(r, empty=-np.inf)
        overhead.FLASH3_EPILOGUE.write(r)
        first, row = stage * self.half, self.head + self.own
        whole = Table(self.counts, self.sequence).equals(1)
        with r.when(whole):
            self._store_whole(r, s, stage, first)
        if self.parts:
            with r.when(1 - whole):
                box = self.parts[self.split, self.sequence, row:WARP_ROWS, first : self.half]  # type: ignore[misc]
                r.stg(box, s.acc.whole, WARP_ROWS * self.half // 64, vector_bytes=8)
        if not stage:
            lse = self.sums[self.split, self.sequence, row:WARP_ROWS]  # type: ignore[misc]
            r.stg(lse, s.total.whole, s.lines, vector_bytes=4)
        r.mbarrier_arrive(self.q_empty, 0)

    def _store_whole(self, r: RoleBuilder, s: OnlineSoftmax, stage: int, first: int) -> None:
        """Rows of outputs over those of Q, from where the TMA stores them."""
        count = WARP_ROWS * self.half * width(self.p) // MATRIX_BYTES
        r.stmatrix(self._rows(self.q, first, self.half), s.acc.whole, count)
        r.fence_async()
        r.bar_sync(STORED + stage, WARPGROUP)
        with r.when(WARP.equals(0)):
            box = self.p.o[self.sequence, 0, self.head : BLOCK_ROWS, first : self.half]  # type: ignore[misc]
            r.tma_store(box, self.q[0, :, first : self.half])
            r.bulk_commit()
            r.bulk_wait(0)


def _second(_: Array, source: Array) -> Array:
    return source
