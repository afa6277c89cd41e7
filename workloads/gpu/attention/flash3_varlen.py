"""FlashAttention-3 as serving frameworks call it: caches in pages, heads of a group as rows, keys in parts.

The interface for sequences of different lengths (hopper/flash_api.cpp of vLLM's build) takes copies by TMA only where
pages hold whole blocks of keys, and queries more than a tile (`get_pagedkv_tma`): one warp reads a page's place, then
copies the block. Elsewhere the four producer warps copy by cp.async, each thread after it has read its page's place.
The query heads that share a key head are always rows of one tile (`pack_gqa`), which the consumers bring and store row
by row. Tiles, parts and the order of tiles are the published ones: hopper/tile_size.h,
heuristics.h, flash_prepare_scheduler.cu. Tiles come from a counter, and each one's sequence from a list that the CTA
walks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    WARP,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    MBarrier,
    Program,
    RegisterTile,
    RoleBuilder,
    Table,
    Var,
    as_expr,
    minimum,
)
from workloads import libraries
from workloads.gpu import overhead
from workloads.gpu.attention import cache_write, flash3
from workloads.gpu.attention.blocks import AttentionProblem, OnlineSoftmax, blocks, problem, width
from workloads.gpu.attention.configuration import AttentionConfig, rounds_ps
from workloads.gpu.attention.flash2 import Blocked
from workloads.gpu.attention.flash_decode import COMBINED, Rows, combine
from workloads.gpu.attention.pages import KeyCopies, check_pages
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.gpu.gemm.wgmma import WARP_ROWS, WARPGROUP
from workloads.ops.attention import Attention
from workloads.registry import register

MARGIN = Fraction(11, 10)
"""Of blocks a CTA, for parts that are not whole."""
SEQUENCES = 31
"""That a warp looks at together to find a tile's sequence."""
WINDOW_COMPARES = Fraction(5, 2)
"""For a score of a masked block where there is a window (163 ISETP for 64 scores in vLLM 0.24's code, 230 for 80)."""
PREPARE_BYTES = 700 * overhead.INSTRUCTION_BYTES
MOST_WARPS = 32
TILE_FOUND, TILE_TAKEN = 6, 7
"""Named barriers around the place of the next tile in shared memory."""


@dataclass(frozen=True)
class Flash3VarlenConfig(AttentionConfig):
    """Tile configuration: `block_m` rows a CTA, `block_n` keys a step, keys in `splits` parts. whole_blocks: pages hold
    whole blocks, which the TMA copies."""

    block_m: int
    block_n: int
    splits: int = 1
    overlap: bool = True
    whole_blocks: bool = False

    schedule: ClassVar[str] = "flash3-varlen"

    def tiles(self, p: AttentionProblem) -> flash3.Flash3Config:
        """The configuration of the kernel that it is a form of."""
        turns = self.block_m > 64 and self.overlap and flash3.columns(p) <= 128
        return flash3.Flash3Config(
            self.block_m, self.block_n, pingpong=turns, overlap=self.overlap, tma=self.whole_blocks
        )

    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("block_m", "block_n"),
        Word.number("splits"),
        Word.flag("overlap"),
        Word.flag("tma", "whole_blocks"),
    )

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if width(p) != 2 or p.op.head_dim > 256 or p.op.value_dim != p.op.head_dim:
            raise InputError(f"{where}: heads of 2-byte elements, 256 at most, as wide for values; nearest: decode")
        if not flash3.available(p, spec) or spec.cp_async is None:
            raise InputError(f"{where}: {spec.name} has no wgmma for {p.dtype}; its nearest schedule is flash2-varlen")
        flash3.check_tile(p, self.tiles(p), where)
        check_pages(p, where)
        if self.whole_blocks and (not p.op.page or p.op.page % self.block_n):
            other = replace(self, whole_blocks=False)
            raise InputError(f"{where}: the TMA copies blocks that lie in one page; nearest: page=256, or {other}")
        if self.splits > 1:
            blocks_seen = _visited(effective(p), self)
            if p.ragged_k:
                return
            if p.op.queries > 1:
                raise InputError(f"{where}: keys are cut for one query a sequence; nearest: splits 1")
            if ceil_div(blocks_seen, ceil_div(blocks_seen, self.splits)) != self.splits:
                nearest = ceil_div(blocks_seen, ceil_div(blocks_seen, self.splits))
                raise InputError(f"{where}: {blocks_seen} blocks leave a part empty; nearest: splits {nearest}")

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """About the time in picoseconds."""
        cycles = flash3.products(p, spec, self.block_m, self.block_n, flash3.columns(p))
        return rounds_ps(p, spec, self.block_m, self.block_n, cycles, self.overlap)


def effective(p: AttentionProblem) -> AttentionProblem:
    """Without masks that hide nothing: a window as long as the keys, causality of one query."""
    op = p.op
    window = 0 if op.window >= op.keys else op.window
    causal = "0" if op.queries == 1 and not window else op.causal
    return replace(p, op=replace(op, window=window, causal=causal))


def group(p: AttentionProblem) -> int:
    """Rows of one query in a tile."""
    return p.op.heads // p.op.key_heads


def default_config(p: AttentionProblem, spec: GpuSpec) -> Flash3VarlenConfig:
    """The published tile, and the parts that the interface and the kernel before it settle on."""
    p = effective(p)
    op, d, local = p.op, flash3.columns(p), p.op.window > 0
    rows = op.queries * group(p)
    tile = flash3.published_tile(p) if op.page else (0, 0)
    if op.page and op.page % tile[1] == 0 and rows > tile[0]:
        return Flash3VarlenConfig(*tile, whole_blocks=True)
    overlap = True
    if d <= 64:
        block_m, block_n, overlap = 192, 128 if p.causal and not local else 160, not local
        if rows <= 64:  # for one warpgroup
            block_m, block_n, overlap = 64, 192, True
    elif d <= 96:
        block_m, block_n = 192, 128
    elif d <= 128:
        # Sources know a tile for one warpgroup here, too; measured calls of one tile take as long as those of two
        # warpgroups (docs/accuracy/decode.md).
        block_m, block_n = 128, 128
    else:
        block_m, block_n = 128, 96 if d <= 192 else 64 if local else 80
    config = Flash3VarlenConfig(block_m, block_n, 1, overlap)
    return replace(config, splits=_splits(p, spec, config))


def _splits(p: AttentionProblem, spec: GpuSpec, config: Flash3VarlenConfig) -> int:
    """Parts of the keys of a sequence: at most what would fill the SMs with one sequence, fewer of several."""
    op, sms = p.op, spec.sm.count
    tiles = ceil_div(op.queries * group(p), config.block_m)
    loaded = min(op.keys, op.window + config.block_m) if op.window else op.keys
    steps = ceil_div(loaded, config.block_n)
    alone = tiles * op.key_heads
    figures = libraries.release(flash3.RELEASE).values
    uncut = op.batch > figures["most_sequences"] or steps <= figures["least_blocks"] or op.queries > 1
    if uncut or 5 * alone >= 4 * sms:
        return 1
    counts = range(1, min(figures["most_splits"], sms, steps) + 1)
    shares = [Fraction(alone * n, sms) / ceil_div(alone * n, sms) for n in counts]
    most = next(n for n, share in enumerate(shares, 1) if 20 * share >= 17 * max(shares))
    steps = ceil_div(op.keys, config.block_n)
    all_steps = sum(ceil_div(keys, config.block_n) for keys in op.lengths_k)
    each = math.ceil(MARGIN * tiles * all_steps * op.key_heads / sms)
    parts = max(1, min(ceil_div(steps, each), most))
    return ceil_div(_visited(p, config), ceil_div(_visited(p, config), parts))


def parts_of(p: AttentionProblem, config: Flash3VarlenConfig) -> tuple[int, ...]:
    """Parts of the keys of each sequence: short ones have fewer (`num_splits_dynamic`)."""
    each = _blocks_of_part(p, config)
    return tuple(ceil_div(_visited(p, config, keys), each) for keys in p.op.lengths_k)


def _blocks_of_part(p: AttentionProblem, config: Flash3VarlenConfig) -> int:
    """Blocks of keys of a part, where lengths differ: the longest sequence has `splits` parts at most."""
    return ceil_div(max(_visited(p, config, keys) for keys in p.op.lengths_k), config.splits)


def _visited(p: AttentionProblem, config: Flash3VarlenConfig, keys: int = 0) -> int:
    """Blocks of keys that the last tile of queries sees, of `keys` or of the longest sequence."""
    keys = keys or p.op.keys
    first = max(0, keys - p.op.window) if p.op.window else 0
    return ceil_div(keys, config.block_n) - first // config.block_n


@register("attention", "gpu", "flash3-varlen")
def build(op: Attention, spec: GpuSpec, config: Flash3VarlenConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    p = effective(p)
    listed = parts_of(p, config) if p.ragged_k and config.splits > 1 else ()
    rows = Rows(op.queries * group(p), op.batch * op.key_heads, op.key_heads, True)
    shape = (config.splits, rows.groups, rows.count)
    sums = GlobalTensor("part_lse", shape, "fp32", (rows.groups * rows.count, rows.count, 1), "scratch")
    tensors = [*p.operands, p.o, sums]
    kernels = []
    parts = None
    if config.splits > 1:
        d = flash3.columns(p)
        strides = (rows.groups * rows.count * d, rows.count * d, d, 1)
        parts = GlobalTensor("part_o", (*shape, d), "fp32", strides, "scratch")
        tensors.append(parts)
        kernels.append(combine(p, config.splits, rows, min(config.splits, COMBINED), parts, sums, p.o, parts_of=listed))
    lists = p.seqlens or p.table
    if p.op.window and op.queries == 1:
        lists = GlobalTensor("blocks_of", (op.batch, 1), "int32", (1, 1), "scratch")
        tensors.append(lists)
    kernels.insert(0, _Builder(p, spec, config, sums, parts, lists).kernel())
    if lists and lists.role == "scratch":
        kernels.insert(0, _prepare(p, lists))
    if p.new:
        kernels.insert(0, cache_write.kernel(p))
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


def _prepare(p: AttentionProblem, lists: GlobalTensor) -> Kernel:
    """Counts the blocks of each sequence (`prepare_varlen_num_blocks`): a warp's lanes a sequence each. Lists that are
    made ahead, once for all layers, do not know of a layer's window."""
    warps = min(MOST_WARPS, ceil_div(p.op.batch, SEQUENCES))
    k = KernelBuilder("prepare", (ceil_div(p.op.batch, SEQUENCES * MOST_WARPS), 1, 1), code_bytes=PREPARE_BYTES)
    first = (CTA_X * MOST_WARPS + WARP) * SEQUENCES
    count = RegisterTile("count", (SEQUENCES, 1), "int32")
    steps = libraries.figure(flash3.RELEASE, "prepare_steps")
    with k.role("warps", warps, 32) as r:
        if p.table:
            r.op("ldg", 2, srcs=(p.table[first:SEQUENCES, 0],), into="lengths", vector_bytes=4)  # type: ignore[misc]
        r.run(
            overhead.ALU, steps, dtype="int32", dst=count.whole, chain=steps, compute=np.zeros_like,
            after=("lengths",) if p.table else (),
        )  # fmt: skip
        r.bar_sync(0, warps)
        r.stg(lists[first:SEQUENCES, :], count.whole, 1, vector_bytes=4)  # type: ignore[misc]
    return k.build()


class _Builder(flash3.Builder):
    """Writes the kernel: where it differs from that for whole sequences that lie together."""

    def __init__(
        self, p: AttentionProblem, spec: GpuSpec, config: Flash3VarlenConfig, sums: GlobalTensor,
        parts: GlobalTensor | None, lists: GlobalTensor | None,
    ) -> None:  # fmt: skip
        self.varlen, self.sums, self.parts, self.rows_of_query = config, sums, parts, group(p)
        self.lists = lists
        self.rows: OnlineSoftmax | None = None
        self.parts_of = parts_of(p, config) if p.ragged_k and config.splits > 1 else (config.splits,) * p.op.batch
        self.listed = self._list(p) if p.ragged else ()
        super().__init__(p, spec, config.tiles(p))
        self.copies = KeyCopies(p, config.block_n // WARPGROUP, flash3.columns(p))
        # Rows of a tile that lie together in Q and O.
        self.run = math.gcd(self.rows_of_query, WARP_ROWS)

    @property
    def tiles_of_head(self) -> int:
        """Tiles of one key head: rows are queries and the heads that share it."""
        return ceil_div(self.p.op.queries * self.rows_of_query, self.c.block_m) * self.varlen.splits

    @property
    def all_tiles(self) -> int:
        """Tiles of all sequences, each of which has its own number where lengths differ."""
        return len(self.listed) or super().all_tiles

    def _list(self, p: AttentionProblem) -> tuple[tuple[int, int, int], ...]:
        """Batch and head, tile of rows and part of each tile: sequence by sequence, those that see most keys first."""
        rows = (ceil_div(queries * self.rows_of_query, self.varlen.block_m) for queries in p.op.lengths_q)
        return tuple(
            (batch * p.op.key_heads + head, m, part)
            for batch, count in enumerate(rows)
            for head in range(p.op.key_heads)
            for m in reversed(range(count))
            for part in range(self.parts_of[batch])
        )

    def _in_order(self, number: Expr) -> flash3.Tile:
        """The tile of a number, by the list where lengths differ."""
        if not self.listed:
            return super()._in_order(number)
        heads, m, part = (Table(column, number) for column in zip(*self.listed, strict=True))
        return self._tile(m, heads, part)

    def _longest_first(self, number: Expr) -> flash3.Tile:
        """The same order where lengths differ."""
        return self._in_order(number) if self.listed else super()._longest_first(number)

    @property
    def heads(self) -> int:
        """That tiles are counted over."""
        return self.p.op.key_heads

    def softmax(self) -> OnlineSoftmax:
        """Of rows that are heads of a query."""
        compares = WINDOW_COMPARES if self.p.op.window else Fraction(1)
        self.rows = OnlineSoftmax(
            self.p, WARP_ROWS, self.c.block_n, flash3.columns(self.p), group=self.rows_of_query, compares=compares
        )
        return self.rows

    def _tile(self, m: Expr, heads: Expr, part: Expr | None = None) -> flash3.Tile:
        """part: of a tile that is listed; `m` has no parts then."""
        splits = self.varlen.splits
        if part is None:
            part, m = (m % splits, m // splits) if splits > 1 else (as_expr(0), m)
        row = m * self.c.block_m
        last = (row + (self.c.block_m - 1)) // self.rows_of_query
        p = self.p.at(heads // self.heads)
        b = blocks(p, row // self.rows_of_query, 1, self.c.block_n, last)
        if splits > 1:
            share = (b.trips + (splits - 1)) // splits
            if self.p.ragged_k:
                share = as_expr(_blocks_of_part(self.p, self.varlen))
            begin = b.end - b.trips + part * share
            end = minimum(begin + share, b.end)
            # The first block is masked always; a window begins in the first block of the first part.
            head = minimum(end - begin - 1, part.equals(0)) if self.p.op.window else as_expr(0)
            b = replace(b, end=end, trips=end - begin, tail=as_expr(0), whole=end - begin - 1 - head, head=head)
        return flash3.Tile(row, heads % self.heads, heads // self.heads, b, part)

    @property
    def counted(self) -> bool:
        """Tiles come from a counter whatever the mask."""
        return True

    @property
    def stores_tiles(self) -> bool:
        """Rows of a tile lie apart in O."""
        return False

    @property
    def query_loaders(self) -> int:
        """All consumers."""
        return self.consumer_warps

    @contextmanager
    def _each_tile(self, r: RoleBuilder) -> Iterator[flash3.Tile]:
        with super()._each_tile(r) as t:
            if self.rows:
                self.rows.p = self.p.at(t.batch)
            self._learn(r)
            yield t
        self._learn(r)  # that there is none left

    def _learn(self, r: RoleBuilder) -> None:
        """The next tile. The first producer warp finds its sequence, one tile ahead of consumers, and leaves it in
        shared memory when all have read where the tile before lies; they wait until it is there."""
        warps = (1 if self.c.tma else WARPGROUP) + self.consumer_warps
        if r.name == "producer":
            with r.when(WARP.equals(0)):
                self._find(r)
                with r.when(Var("index") > 0):
                    r.bar_sync(TILE_TAKEN, warps)
                r.bar_arrive(TILE_FOUND, warps)
            with r.when(WARP > 0):
                r.bar_sync(TILE_FOUND, warps)
                r.bar_arrive(TILE_TAKEN, warps)
        else:
            r.bar_sync(TILE_FOUND, warps)
            r.bar_arrive(TILE_TAKEN, warps)

    def _find(self, r: RoleBuilder) -> None:
        """A tile's sequence: looks at groups of sequences from that of the CTA's last tile on, then its lengths."""
        with r.loop("look", 1 + self.workers // (SEQUENCES * self.tiles_m * self.heads)):
            self._fetch(r, "look")
            steps = libraries.figure(flash3.RELEASE, "look_steps")
            r.run(overhead.ALU, steps, dtype="int32", chain=steps, after=("look",) if self.lists else ())
        self._fetch(r, "lengths")
        r.run(overhead.ALU, 20, dtype="int32", after=("lengths",) if self.lists else ())

    def _fetch(self, r: RoleBuilder, into: str) -> None:
        """An entry of a list by sequence."""
        if self.lists:
            r.op("ldg", 1, srcs=(self.lists[0:1, 0],), into=into, vector_bytes=4)  # type: ignore[misc]

    def _overlapped_step(
        self, r: RoleBuilder, s: OnlineSoftmax, t: flash3.Tile, row: Expr, i: Expr, *, masked: bool
    ) -> None:  # fmt: skip
        """As it is compiled (vLLM 0.24, CUDA 13): the outputs of the block before are waited for ahead of the weights,
        after the maxima of a thread's first row, or after the mask."""
        step = Var("done") + i
        before = step - 1

        def wait() -> None:
            self._wait(r, 0)
            self._release(r, self.v_empty, before)

        self._scores(r, s, step, turn=True)
        self._outputs(r, s, before, before.equals(Var("done")), turn=False)
        self._give_turn(r)
        self._wait(r, 1)
        self._release(r, self.k_empty, step)
        if masked:
            s.mask(r, row, (t.blocks.end - 1 - i) * self.c.block_n)
            wait()
            s.maxima(r, first=False)
        else:
            s.maxima(r, first=False, between=wait)
        s.weigh(r, first=False)
        self._convert(r, s)
        s.rescale(r)
        overhead.FLASH3_CONSUMER_STEP.write(r)

    def _producer(self, r: RoleBuilder) -> None:
        """All four warps copy, or one by TMA; keys run one block ahead of values, as consumers ask for them."""
        with self._each_tile(r) as t:
            overhead.FLASH3_PRODUCER_TILE.write(r)
            self._load(r, t, Var("done"), t.blocks.end - 1, self.keys)
            with r.loop("i", t.blocks.trips - 1) as i:
                step, block = Var("done") + i, t.blocks.end - 1 - i
                self._load(r, t, step + 1, block - 1, self.keys)
                self._load(r, t, step, block, self.values)
                overhead.FLASH3_PRODUCER_STEP.write(r)
            self._load(r, t, Var("done") + t.blocks.trips - 1, t.blocks.end - t.blocks.trips, self.values)

    def _load(self, r: RoleBuilder, t: flash3.Tile, step: Expr, block: Expr, to: Blocked) -> None:
        """One block of K or V on its way: each warp its rows; the barrier knows when they have come."""
        keys = to is self.keys
        full, empty, tensor = (self.k_full, self.k_empty, self.p.k) if keys else (self.v_full, self.v_empty, self.p.v)
        stage = step % self.c.stages
        if self.c.tma:
            index, row = self.copies.block(r, t.batch, block * self.c.block_n)
            r.mbarrier_wait(empty, stage, step // self.c.stages - 1)
            r.mbarrier_expect(full, stage, to.tile.stage_bytes)
            for column in range(0, to.blocks * to.columns, to.columns):
                box = tensor[index, row : to.rows, t.head, column : to.columns]  # type: ignore[misc]
                r.tma_load(to.view(0, to.rows, column, to.columns, stage), box, full, stage)
            return
        r.mbarrier_wait(empty, stage, step // self.c.stages - 1)
        at = WARP * self.copies.rows
        self.copies.copy(r, to, tensor, t.batch, block * self.c.block_n, at, t.head, stage=stage, alu=2)
        r.cp_async_arrive(full, stage)

    def _await(self, r: RoleBuilder, full: MBarrier, stage: IntLike, phase: Expr) -> None:
        """What threads have copied is made visible to wgmma by who reads it."""
        r.mbarrier_wait(full, stage, phase)
        if full is self.q_full or not self.c.tma:
            r.fence_async()

    def _bring_queries(self, r: RoleBuilder, t: flash3.Tile) -> None:
        """Each consumer warp brings its rows, run by run."""
        r.mbarrier_wait(self.q_empty, 0, Var("index") - 1)
        d, own = flash3.columns(self.p), self._own_row
        for at in range(0, WARP_ROWS, self.run):
            query, head = self._row(t, own + at)
            batch, row = self._query_place(t, query)
            src = self.p.q[batch, row, head : self.run, 0:d]  # type: ignore[misc]
            count = ceil_div(self.run * d * width(self.p), 32 * MAX_VECTOR_BYTES)
            r.cp_async(self.q.view(own + at, self.run, 0, d), src, count, mix=overhead.mix(alu=6, imad=2))
        r.cp_async_arrive(self.q_full, 0)

    def _query_place(self, t: flash3.Tile, query: Expr) -> tuple[IntLike, Expr]:
        """Where a query lies in Q and O."""
        return self.p.at(t.batch).query_place(query) if self.p.ragged else (t.batch, query)

    def _row(self, t: flash3.Tile, at: Expr) -> tuple[Expr, Expr]:
        """Query and head of a row of the tile."""
        row = t.row + at
        return row // self.rows_of_query, t.head * self.rows_of_query + row % self.rows_of_query

    def _store(self, r: RoleBuilder, s: OnlineSoftmax, t: flash3.Tile, row: Expr) -> None:
        """Outputs run by run through shared memory; those of a part as they are in registers."""
        s.finish(r, empty=-np.inf)
        overhead.FLASH3_EPILOGUE.write(r)
        d, place = flash3.columns(self.p), t.batch * self.heads + t.head
        if self.parts:
            box = self.parts[t.part, place, row:WARP_ROWS, 0:d]  # type: ignore[misc]
            r.stg(box, s.acc.whole, WARP_ROWS * d // 64, vector_bytes=8)
        else:
            self._store_runs(r, s, t)
        r.stg(self.sums[t.part, place, row:WARP_ROWS], s.total.whole, 2, vector_bytes=4)  # type: ignore[misc]

    def _store_runs(self, r: RoleBuilder, s: OnlineSoftmax, t: flash3.Tile) -> None:
        d, out, own = flash3.columns(self.p), DTYPE_BYTES[self.p.out], self._own_row
        staging = self.o or self.q
        result = RegisterTile("result", (WARP_ROWS, d), self.p.out)
        view = staging.view(own, WARP_ROWS, 0, d)
        r.sts(view, s.acc.whole, ceil_div(WARP_ROWS * d, 64), vector_bytes=2 * out)
        r.lds(result.whole, view, ceil_div(WARP_ROWS * d * out, 32 * MAX_VECTOR_BYTES))
        if self.o is None:
            r.mbarrier_arrive(self.q_empty, 0)
        for at in range(0, WARP_ROWS, self.run):
            query, head = self._row(t, own + at)
            count = ceil_div(self.run * d * out, 32 * MAX_VECTOR_BYTES)
            batch, row = self._query_place(t, query)
            box = self.p.o[batch, row, head : self.run, 0:d]  # type: ignore[misc]
            r.stg(box, result[at : self.run, :], count, mix=overhead.mix(alu=6, imad=2))
