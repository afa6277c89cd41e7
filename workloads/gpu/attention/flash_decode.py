"""Attention of few queries over many keys: FlashDecoding (Dao et al. 2023), a split of the keys over CTAs.

The first kernel is FlashAttention-2 on a part of the keys; it leaves each part's outputs and LSE in memory. The second
adds the parts, weighted by their LSE. Of a single part the first kernel writes the outputs, and no second runs. Where a
sequence has one query, the rows of a tile are the query heads that share a key head, so that K and V are read once for
all of them.

Tiles and the number of parts are those of the published kernels (csrc/flash_attn, flash_fwd_splitkv_kernel). The
interface of FlashAttention-2 for sequences of different lengths, as vLLM builds it, brings the heads of a group
together by reshaping Q, which is a copy where neither the batch nor the key heads are 1, copies the outputs to the
caller's tensor, and reshapes the LSE, which is a copy where Q's is (`seqlenq_ngroups_swapped` in flash_api.cpp):
kernels of their own. Without groups it does not cut keys.
FlashAttention-3 packs heads in its kernel. FlashAttention-2's interface for sequences of one length, which PyTorch
calls, needs no copies: its tensors have strides. It cuts keys of any attention that leaves SMs idle (`mha_fwd`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
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
    Table,
    View,
    as_expr,
    maximum,
    minimum,
)
from workloads.gpu import overhead
from workloads.gpu.attention import cache_write, flash2
from workloads.gpu.attention.blocks import Array, AttentionProblem, OnlineSoftmax, blocks, problem, width
from workloads.gpu.attention.configuration import AttentionConfig
from workloads.gpu.attention.flash2 import Blocked, Fragments, store_rows
from workloads.gpu.attention.pages import KeyCopies, check_pages
from workloads.gpu.attention.sample import sampled
from workloads.gpu.attention.unfused import CODE_BYTES, CTA, ELEMENTS, by_rows, elements, index_mix
from workloads.gpu.configuration import Word
from workloads.gpu.figures import figures, transfer
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.ops.attention import Attention
from workloads.registry import register

BLOCK_M = 64
"""Rows of the published tile."""
MOST_COLUMNS = 256
"""Of the values, that threads can add up in registers."""
MOST_SPLITS = 128
LEAST_STEPS = 4
"""Blocks of keys that FlashAttention-3 does not cut."""
COMBINED = 4
"""Parts that a warp of FlashAttention-3's second kernel has in flight; FlashAttention-2's loop waits for each."""


@dataclass(frozen=True)
class DecodeConfig(AttentionConfig):
    """One kernel for few queries: its tile, and into how many parts the keys are cut.

    block_m: rows of a CTA of `warps` warps.
    block_n: keys of a step.
    splits: parts of the keys.
    varlen: it is called by the interface for sequences of different lengths.
    fixed: it is called by FlashAttention-2's interface for sequences of one length.
    """

    block_m: int
    block_n: int
    splits: int
    warps: int = 4
    varlen: bool = False
    fixed: bool = False

    schedule: ClassVar[str] = "decode"

    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("block_m", "block_n"),
        Word.number("warps"),
        Word.number("splits"),
        Word.flag("varlen"),
        Word.flag("fixed"),
    )

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        flash2.check_tile(p, spec, f"schedule={self}", self.block_m, self.block_n, self.warps)
        check_pages(p, f"schedule={self}")
        if p.ragged and not self.varlen:
            raise InputError(f"schedule={self}: this kernel knows no lengths that differ; nearest: {self} varlen")
        if p.ragged_q and self.splits > 1:
            raise InputError(f"schedule={self}: keys are not cut where numbers of queries differ; nearest: splits 1")

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """K and V from memory beside products and softmax of whole tiles, in as many CTAs as find room; then what
        adds the parts."""
        f, rows, d = figures(spec), rows_of(p, fixed=self.fixed), p.head_dim
        step = flash2.products(p, spec, self.block_m, self.block_n)
        ctas = rows.groups * ceil_div(rows.count, self.block_m) * self.splits
        trips = ceil_div(ceil_div(min(p.op.keys, p.op.window or p.op.keys), self.block_n), self.splits)
        work = ceil_div(ctas, 2 * spec.sm.count) * trips * int(2 * step)
        visited = ctas * trips * self.block_n * d * 2 * width(p)
        parts = self.splits * rows.groups * rows.count * d * 4 if self.splits > 1 else 0
        kernels = 2 if self.splits > 1 else 1
        cycles = max(work, transfer(visited, f.dram_rate)) + transfer(2 * parts, f.l2_rate)
        cycles += kernels * (f.start + 3 * f.load_latency)
        return kernels * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)


@dataclass(frozen=True)
class Rows:
    """What the rows of a tile are: `count` of each of `groups` groups that share keys. packed: heads of one query.
    copied: Q and outputs lie by row of the group, [batch, row, key head, :], in tensors of their own, and the LSE that
    the caller gets is a copy. returned: outputs that lie as the caller's do are copied there too."""

    count: int
    groups: int
    heads: int
    packed: bool
    copied: bool = False
    returned: bool = False


def rows_of(p: AttentionProblem, varlen: bool = False, fixed: bool = False) -> Rows:
    """Heads of one query where there is one, else the queries of a head."""
    op = p.op
    if op.queries == 1 and op.heads > op.key_heads and not ((varlen or fixed) and op.window):
        copied = varlen and min(op.batch, op.key_heads) > 1
        return Rows(
            op.heads // op.key_heads, op.batch * op.key_heads, op.key_heads, True, copied, varlen and not copied
        )
    return Rows(op.queries, op.batch * op.heads, op.heads, False)


def default_config(p: AttentionProblem, spec: GpuSpec, varlen: bool = False) -> DecodeConfig:
    """The published tile, and the fewest parts that keep SMs within 15 % of the best balance."""
    block_n, rows = _block_n(p), rows_of(p, varlen)
    ctas = rows.groups * ceil_div(rows.count, BLOCK_M)
    steps = ceil_div(min(p.op.keys, p.op.window or p.op.keys), block_n)
    if spec.tma is None or varlen:
        whole = varlen and not rows.packed
        parts = 1 if whole else parts_of_keys(ctas, 2 * spec.sm.count, steps)
        return DecodeConfig(BLOCK_M, block_n, parts, varlen=varlen)
    # FlashAttention-3 has one CTA an SM, and leaves few blocks in one piece.
    return DecodeConfig(BLOCK_M, block_n, 1 if steps <= LEAST_STEPS else parts_of_keys(ctas, spec.sm.count, steps))


def fixed_config(p: AttentionProblem, spec: GpuSpec) -> DecodeConfig | None:
    """What FlashAttention-2's interface for sequences of one length runs where keys are cut, or where the heads of a
    group are the rows of a tile; None where its kernel runs as it is (csrc/flash_attn/flash_api.cpp, mha_fwd)."""
    if not p.together or p.op.page:
        return None
    block_n, rows = _block_n(p), rows_of(p, fixed=True)
    ctas = rows.groups * ceil_div(rows.count, BLOCK_M)
    parts = parts_of_keys(ctas, 2 * spec.sm.count, ceil_div(p.op.keys, block_n))
    if parts > 1:
        return DecodeConfig(BLOCK_M, block_n, parts, fixed=True)
    if rows.packed:
        whole = flash2.default_config(p, spec)
        return DecodeConfig(whole.block_m, whole.block_n, 1, whole.warps, fixed=True)
    return None


def _block_n(p: AttentionProblem) -> int:
    """Keys of a block of the published kernel."""
    d = p.head_dim
    return 256 if d <= 64 else 128 if d <= 128 else 64 if d <= 256 else 32


def parts_of_keys(ctas: int, room: int, steps: int) -> int:
    """The fewest parts that keep SMs within 15 % of the best balance. room: CTAs that the chip holds at once."""
    if 5 * ctas >= 4 * room:
        return 1
    best, shares = 0, {}
    for splits in range(1, min(MOST_SPLITS, room, steps) + 1):
        if splits > 1 and ceil_div(steps, splits) == ceil_div(steps, splits - 1):
            continue  # it would give some CTAs less without relieving the others
        waves = ceil_div(ctas * splits, room)
        shares[splits] = 1000 * ctas * splits // (room * waves)
        best = max(best, shares[splits])
    return min(splits for splits, share in shares.items() if 100 * share >= 85 * best)


@register("attention", "gpu", "decode", "decode-varlen", "flash2-varlen")
def build(op: Attention, spec: GpuSpec, config: DecodeConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    rows, d = rows_of(p, config.varlen, config.fixed), p.op.value_dim
    shape = (config.splits, rows.groups, rows.count)
    strides = (rows.groups * rows.count, rows.count, 1)
    sums = GlobalTensor("part_lse", shape, "fp32", strides, "scratch")
    copies = Copies.of(p, rows, sums if config.splits == 1 else None) if rows.copied or rows.returned else None
    outputs = copies.o if copies else p.o
    if rows.packed and not rows.copied and config.splits == 1:
        # By group, so that a tile's rows beyond its group are not stored.
        outputs = GlobalTensor(
            "o_groups", (rows.groups, rows.count, 1, d), p.out, (rows.count * d, d, d, 1), "scratch",
            alias=outputs.name,
        )  # fmt: skip
    tensors = [*p.operands, p.o, sums, *([copies.o] if copies else []), *([outputs] if outputs.alias else [])]
    q = copies.q if copies else p.q
    if config.splits > 1:
        d = p.value_dim
        parts = GlobalTensor("part_o", (*shape, d), "fp32", (*(s * d for s in strides), 1), "scratch")
        tensors.append(parts)
        ahead = min(config.splits, COMBINED if spec.tma and not config.fixed else 1)
        lse = copies.lse if copies and rows.copied else None
        kernels = [
            _Split(p, config, rows, q, parts, sums).kernel(),
            combine(p, config.splits, rows, ahead, parts, sums, outputs, lse_out=lse),
        ]
    else:
        kernels = [_Split(p, config, rows, q, outputs, sums).kernel()]
    if copies and rows.copied:
        tensors += [copies.q, copies.lse, copies.lse_by_head]
        kernels = [copies.gather(), *kernels, copies.scatter(), copies.gather_lse()]
    elif copies:
        kernels.append(copies.back())
    if p.new:
        kernels.insert(0, cache_write.kernel(p))
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


@dataclass(frozen=True)
class Copies:
    """The copies of the published interface: Q from [batch, 1, head, :] to [batch, row of the group, key head, :],
    outputs from there, or from a tensor that lies as the caller's does, the LSE from [batch, key head, row] to [head,
    batch]."""

    p: AttentionProblem
    q: GlobalTensor
    o: GlobalTensor
    lse: GlobalTensor
    lse_by_head: GlobalTensor

    @classmethod
    def of(cls, p: AttentionProblem, rows: Rows, sums: GlobalTensor | None) -> Copies:
        """The tensors that they make or read. sums: where the only kernel leaves the LSE; None where a second does."""
        op = p.op
        lse = GlobalTensor(
            "lse_by_row", (op.batch, rows.heads, rows.count), "fp32", (rows.heads * rows.count, rows.count, 1),
            "scratch", alias=sums.name if sums else "",
        )  # fmt: skip
        by_head = GlobalTensor("lse_by_head", (op.heads, op.batch), "fp32", (op.batch, 1), "scratch")
        if not rows.copied:
            return cls(p, p.q, replace(p.o, name="o_result", role="scratch"), lse, by_head)
        q, o = (
            GlobalTensor(
                name, (op.batch, op.heads // op.key_heads, op.key_heads, d), dtype,
                (op.heads * d, op.key_heads * d, d, 1), "scratch",
            )
            for name, d, dtype in (("q_by_row", op.head_dim, p.dtype), ("o_by_row", op.value_dim, p.out))
        )  # fmt: skip
        return cls(p, q, o, lse, by_head)

    def gather(self) -> Kernel:
        """Q by row of the group."""
        return self._kernel(self.p.q, self.q, True)

    def scatter(self) -> Kernel:
        """Outputs by head."""
        return self._kernel(self.o, self.p.o, False)

    def gather_lse(self) -> Kernel:
        """The LSE by head. A warp takes 32 sequences of a head; fewer leave some of its lanes idle."""
        op = self.p.op
        width, count = ceil_div(op.batch, WARP_SIZE) * WARP_SIZE, op.heads // op.key_heads
        here = RegisterTile("here", (1, WARP_SIZE), "fp32")

        def body(r: RoleBuilder, number: Expr) -> None:
            head, first = number // width, number % width
            with r.when(number < op.heads * width):
                source = self.lse[first:WARP_SIZE, head // count, head % count]  # type: ignore[misc]
                r.ldg(here.whole, source, 1, into="here", vector_bytes=4)
                target = self.lse_by_head[head, first:WARP_SIZE]  # type: ignore[misc]
                r.stg(target, here.whole, 1, vector_bytes=4, after=("here",))

        grid = (ceil_div(op.heads * width, CTA * ELEMENTS), 1, 1)
        return elements(KernelBuilder("copy_lse", grid, code_bytes=CODE_BYTES), index_mix(2, 3), body)

    def back(self) -> Kernel:
        """Outputs as they lie: whole vectors, some heads a warp."""
        op, d = self.p.op, self.p.op.value_dim
        each = max(1, WARP_SIZE * MAX_VECTOR_BYTES // (d * DTYPE_BYTES[self.p.out]))
        warps = CTA // WARP_SIZE
        k = KernelBuilder("copy_o_result", (ceil_div(op.heads, warps * each), op.batch, 1), code_bytes=CODE_BYTES)
        here = RegisterTile("here", (each, d), self.p.out)
        count = ceil_div(each * d * DTYPE_BYTES[self.p.out], WARP_SIZE * MAX_VECTOR_BYTES)
        first = (CTA_X * warps + WARP) * each
        with k.role("warps", warps, 32) as r, r.when(first < op.heads):
            box = self.o[CTA_Y, 0, first:each, :]  # type: ignore[misc]
            r.ldg(here.whole, box, count, into="here", mix=overhead.mix(alu=20, imad=8))
            r.stg(self.p.o[CTA_Y, 0, first:each, :], here.whole, count, after=("here",))  # type: ignore[misc]
        return k.build()

    def _kernel(self, source: GlobalTensor, target: GlobalTensor, gather: bool) -> Kernel:
        op, d = self.p.op, source.shape[3]
        grid = (ceil_div(op.heads * d, CTA * ELEMENTS), op.batch, 1)
        here = RegisterTile("here", (1, WARP_SIZE), source.dtype)

        def copy(r: RoleBuilder, vector: Expr, column: Expr) -> None:
            row, key_head = vector // op.key_heads, vector % op.key_heads
            by_group = (CTA_Y, row, key_head)
            by_head = (CTA_Y, as_expr(0), key_head * (op.heads // op.key_heads) + row)
            first, second = (by_head, by_group) if gather else (by_group, by_head)
            with r.when(vector < op.heads):
                r.ldg(here.whole, source[(*first, slice(column, WARP_SIZE))], 1, into="here", vector_bytes=2)
                r.stg(target[(*second, slice(column, WARP_SIZE))], here.whole, 1, vector_bytes=2, after=("here",))

        builder = KernelBuilder(f"copy_{source.name}_{target.name}", grid, code_bytes=CODE_BYTES)
        return elements(builder, index_mix(2, 4), by_rows(d, copy))


class _Split:
    """Writes the first kernel: CTAs are parts, groups, tiles of rows."""

    def __init__(
        self, p: AttentionProblem, config: DecodeConfig, rows: Rows, queries: GlobalTensor, parts: GlobalTensor,
        sums: GlobalTensor,
    ) -> None:  # fmt: skip
        self.p, self.c, self.rows, self.queries, self.parts, self.sums = p, config, rows, queries, parts, sums
        d, self.width = p.head_dim, min(p.value_dim, MOST_COLUMNS)
        columns = p.value_dim // self.width
        tiles = ceil_div(rows.count, config.block_m)
        # A thread's registers hold some columns of the values; CTAs of the others find the same weights.
        x = CTA_X // columns
        self.first_column: Expr = CTA_X % columns * self.width
        second = config.varlen or config.fixed  # of FlashAttention-2
        self.tile: Expr = x if second else CTA_Z
        self.part: Expr = CTA_Y if second else x
        self.group: Expr = CTA_Z if second else CTA_Y
        grid = (tiles, config.splits, rows.groups) if second else (config.splits, rows.groups, tiles)
        self.batch, self.head = self.group // rows.heads, self.group % rows.heads
        if second and config.splits == 1:
            grid, self.part = (tiles, rows.groups // rows.heads, rows.heads), as_expr(0)
            self.group, self.batch, self.head = CTA_Y * rows.heads + CTA_Z, CTA_Y, CTA_Z
        grid = (grid[0] * columns, *grid[1:])
        self.k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), grid,
            code_bytes=(240 + 1650 + 1180 + 350 + d) * overhead.INSTRUCTION_BYTES,
        )  # fmt: skip
        self.q, self.keys, self.values = (
            Blocked(self.k, name, n, columns, p.dtype)
            for name, n, columns in (
                ("q", config.block_m, d),
                ("k", config.block_n, d),
                ("v", config.block_n, self.width),
            )
        )
        self.p = p = p.at(self.batch)
        self.own_rows = config.block_m // config.warps
        self.copies = KeyCopies(p, max(8, config.block_n // config.warps))
        self.key_head = self.head if rows.packed else p.key_head(self.head)

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        row = self.tile * self.c.block_m
        with self.k.role("warps", self.c.warps, 255) as r:
            overhead.FLASH2_SETUP.write(r)
            self.p.read_lengths(r)
            # The grid is for the longest sequence.
            with r.when(row < self.p.queries) if self.p.ragged_q else nullcontext():
                self._tile(r, row)
        built = self.k.build()
        whole = self.c.varlen and self.c.splits == 1 and not self.rows.packed
        return sampled(built, self.p, self.c.block_m, self.c.block_n) if whole else built

    def _tile(self, r: RoleBuilder, row: Expr) -> None:
        """A tile of rows with its part of the keys."""
        c, d, packed = self.c, self.width, self.rows.packed
        query: Expr = as_expr(0) if packed else row
        b = blocks(self.p, query, 1 if packed else c.block_m, c.block_n)
        share = (b.trips + (c.splits - 1)) // c.splits
        first = b.end - b.trips + self.part * share
        last = minimum(first + share, b.end)
        s = OnlineSoftmax(self.p, self.own_rows, c.block_n, d, 0 if packed else 1)
        f = Fragments(self.p.dtype, self.own_rows, c.block_n, d, self.p.head_dim)
        own = WARP * self.own_rows
        s.start(r)
        with r.when(first < last):
            self._copy(
                r, self.q, lambda at, n, column: self._query(row + at, n, column), min(c.block_m, self.rows.count)
            )
            self._copy_keys(r, self.keys, self.p.k, last - 1)
            r.cp_commit()
        with r.loop("i", maximum(0, last - first)) as i:
            block = last - 1 - i
            r.cp_wait(0)
            r.bar_sync(0, c.warps)
            self._copy_keys(r, self.values, self.p.v, block)
            r.cp_commit()
            f.scores(r, s, self.q, own, self.keys)
            whole_end = b.end - 1 - b.tail
            with r.when((block >= whole_end) + (block < whole_end - b.whole)):
                s.mask(r, query if packed else query + own, block * c.block_n)
            r.cp_wait(0)
            r.bar_sync(0, c.warps)
            with r.when(block > first):
                self._copy_keys(r, self.keys, self.p.k, block - 1)
            r.cp_commit()
            s.block(r, first=False)
            s.rescale(r)
            s.convert(r)
            f.outputs(r, s, self.values)
            overhead.FLASH2_STEP.write(r)
        s.finish(r, empty=-np.inf)
        overhead.FLASH2_EPILOGUE.write(r)
        if c.splits > 1:
            box = self.parts[self.part, self.group, row + own : self.own_rows, self.first_column : d]  # type: ignore[misc]
            r.stg(box, s.acc.whole, self.own_rows * d // 64, vector_bytes=8)
        else:
            alone = packed and not self.rows.copied
            at: tuple[IntLike, Expr] = (self.group, row + own) if alone else (self.batch, row + own)
            if self.p.ragged_q:
                at = self.p.query_place(row + own)
            head = as_expr(0) if alone else self.head
            store_rows(r, s, self.q, own, self.parts, (*at, head), self.first_column, row + own)
        lse = self.sums[self.part, self.group, row + own : self.own_rows]  # type: ignore[misc]
        with r.when(self.first_column.equals(0)) if self.p.value_dim > d else nullcontext():
            r.stg(lse, s.total.whole, s.lines, vector_bytes=4)

    def _query(self, row: IntLike, rows: int, column: int) -> View:
        columns = self.q.columns
        if self.rows.packed and not self.rows.copied:
            head = self.head * self.rows.count + row
            return self.queries[self.batch, 0, head:rows, column:columns]  # type: ignore[misc]
        at: tuple[IntLike, IntLike] = (self.batch, row)
        if self.p.ragged_q:
            at = self.p.query_place(row)
        return self.queries[at[0], at[1] : rows, self.head, column:columns]  # type: ignore[misc]

    def _copy_keys(self, r: RoleBuilder, to: Blocked, tensor: GlobalTensor, block: Expr) -> None:
        """All warps bring their share of a block; fewer than eight rows a warp would leave lanes idle."""
        share = self.copies.rows
        with r.when(share * WARP < to.rows):
            self.copies.copy(
                r,
                to,
                tensor,
                self.batch,
                block * self.c.block_n,
                WARP * share,
                self.key_head,
                column=self.first_column if to is self.values else 0,
            )

    def _copy(self, r: RoleBuilder, to: Blocked, box, rows: int) -> None:  # type: ignore[no-untyped-def]
        """All warps bring their share of `rows` rows; fewer than eight a warp would leave lanes idle."""
        share = max(8, ceil_div(rows, self.c.warps))
        with r.when(share * WARP < rows):
            for block in range(to.blocks):
                columns = to.columns
                column = block * columns
                count = ceil_div(share * columns * width(self.p), 32 * MAX_VECTOR_BYTES)
                r.cp_async(to.view(WARP * share, share, column, columns), box(WARP * share, share, column), count)


def combine(
    p: AttentionProblem, splits: int, rows: Rows, ahead: int, parts: GlobalTensor, sums: GlobalTensor,
    outputs: GlobalTensor, *, parts_of: tuple[int, ...] = (), lse_out: GlobalTensor | None = None,
) -> Kernel:  # fmt: skip
    """The second kernel: a warp a row, with `ahead` parts on their way. parts_of: each sequence, where they differ; 0
    where its outputs are there already. lse_out: [batch, key head, row], of what both kernels have seen."""
    warps, d = 4, p.value_dim
    total = rows.groups * rows.count
    scalar = overhead.FLASH2_COMBINE if ahead == 1 else overhead.Overhead(0)
    code = 300 + scalar.instructions
    k = KernelBuilder("combine", (ceil_div(total, warps), 1, 1), code_bytes=code * overhead.INSTRUCTION_BYTES)
    number = CTA_X * warps + WARP
    group, row = number // rows.count, number % rows.count
    batch, head = group // rows.heads, group % rows.heads

    own: tuple[Expr, ...] = (Table(parts_of, batch),) if parts_of else ()

    def share(lse: Array, *count: int) -> Array:
        lse = np.where(np.arange(splits)[:, None] < count[0], lse, -np.inf) if count else lse
        top = lse.max()
        e = np.exp(lse - (top if np.isfinite(top) else 0))
        return e / (e.sum() or 1)

    def all_of(_: Array, lse: Array) -> Array:
        top = lse.max(initial=-np.inf)
        return np.full((1, 1), top + np.log(np.exp(lse - top).sum()) if np.isfinite(top) else top)

    def add(acc: Array, weights: Array, part: Array, first: int) -> Array:
        share = weights[first : first + ahead]
        return acc + (share * np.where(share > 0, part[: len(share)], 0)).sum(axis=0, keepdims=True)

    lse, acc = RegisterTile("lse", (splits, 1), "fp32"), RegisterTile("acc", (1, d), "fp32")
    part, out = RegisterTile("part", (ahead, d), "fp32"), RegisterTile("out", (1, d), p.out)
    lanes = ceil_div(splits, 32)
    needed = number < total
    if 0 in parts_of:
        needed = needed * (own[0] > 0)
    with k.role("warps", warps, 48) as r, r.when(needed):
        r.ldg(
            lse.whole, sums[0:splits, group, row], lanes, into="lse", vector_bytes=4, mix=overhead.mix(alu=20, imad=10)
        )  # type: ignore[misc]
        if lse_out:
            whole = RegisterTile("whole", (1, 1), "fp32")
            r.run("lg2", 1, dtype="fp32", dst=whole.whole, srcs=(lse.whole,), compute=all_of, after=("lse",))
            r.stg(lse_out[batch, head, row:1], whole.whole, 1, vector_bytes=4)  # type: ignore[misc]
        r.run(
            "ex2", lanes, dtype="fp32", dst=lse.whole, compute=share, indices=own, after=("lse",),
            mix=(("shfl", 10), ("fmnmx", 5 + lanes), ("fadd", 5 + lanes), ("rcp", 1), ("fmul", 2 * lanes)),
        )  # fmt: skip
        if scalar.instructions:
            overhead.chained(r, scalar, scalar.instructions * overhead.DEPENDENT_CYCLES)
        r.run("imad", ceil_div(d, 32), dtype="int32", dst=acc.whole, compute=np.zeros_like)
        trips = (own[0] + (ahead - 1)) // ahead if own else as_expr(ceil_div(splits, ahead))
        with r.loop("c", trips) as c:
            box = parts[c * ahead : ahead, group, row, :]  # type: ignore[misc]
            r.ldg(part.whole, box, ceil_div(ahead * d * 4, 512), into="part", mix=overhead.mix(alu=2 * ahead))
            r.run(
                "ffma", ceil_div(ahead * d, 32), dtype="fp32", dst=acc.whole, srcs=(lse.whole, part.whole), compute=add,
                indices=(c * ahead,), after=("part",),
            )  # fmt: skip
        r.run("cvt", ceil_div(d, 64), dtype=p.out, dst=out.whole, srcs=(acc.whole,), compute=_second)
        by_head = rows.packed and not rows.copied
        box = outputs[batch, 0, head * rows.count + row, 0:d] if by_head else outputs[batch, row, head, 0:d]  # type: ignore[misc]
        size = d * DTYPE_BYTES[p.out]
        vector = min(16, 1 << max(2, (size // WARP_SIZE).bit_length() - 1))
        r.stg(box, out.whole, ceil_div(size, WARP_SIZE * vector), vector_bytes=vector)
    return k.build()


def _second(_: Array, source: Array) -> Array:
    return source
