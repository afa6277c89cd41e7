"""Attention as its kernels see it: tensors, the blocks of keys that a tile of queries visits, online softmax.

Source of the algorithm: Dao, "FlashAttention-2" (arXiv 2307.08691) and Shah et al., "FlashAttention-3" (arXiv
2407.08608).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.language import Expr, GlobalTensor, IntLike, RegisterTile, RoleBuilder, Table, as_expr, maximum, minimum
from workloads.gpu import overhead
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.ops.attention import Attention

Array = NDArray[np.floating]

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
"""Columns of heads that kernels are made for. Other heads take the next of these: what lies behind their end is
neither loaded nor stored, but multiplied as zeros (HEADDIM_SWITCH in csrc/flash_attn/src/static_switch.h)."""
WIDEST = HEAD_DIMS[-1]
"""Of most kernels; a wider head leaves no registers for whole rows of outputs."""
WIDE_HEAD_DIMS = (512, 576)
"""Of keys in kernels whose CTAs share the columns of values, of which there are 512 then."""
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class AttentionProblem:
    """Tensors of an `Attention` with its number formats resolved; LSE holds the logarithm of each row's sum. table: of
    the pages in which K and V lie, if they do. new: keys and values that are written there before. seqlens: queries and
    keys of each sequence, where they differ. sequence: the one whose lengths `queries` and `keys` are."""

    op: Attention
    dtype: str
    out: str
    q: GlobalTensor
    k: GlobalTensor
    v: GlobalTensor
    o: GlobalTensor
    lse: GlobalTensor
    table: GlobalTensor | None = None
    new: tuple[GlobalTensor, ...] = ()
    seqlens: GlobalTensor | None = None
    sequence: Expr | None = None

    @property
    def operands(self) -> tuple[GlobalTensor, ...]:
        """What is read."""
        table = tuple(tensor for tensor in (self.table, self.seqlens) if tensor)
        if self.v is self.k:
            return (self.q, self.k, *table)
        return (self.q, *self.new, *table, self.k, self.v) if self.new else (self.q, self.k, self.v, *table)

    @property
    def tensors(self) -> tuple[GlobalTensor, ...]:
        """All of them, operands first."""
        return (*self.operands, self.o, self.lse)

    @property
    def causal(self) -> bool:
        """Whether a query sees no later key."""
        return self.op.causal == "1"

    @property
    def masked(self) -> bool:
        """Whether a query sees only a part of the keys."""
        return self.causal or self.op.window > 0

    @property
    def ragged(self) -> bool:
        """Whether lengths of sequences differ."""
        return self.ragged_q or self.ragged_k

    @property
    def ragged_q(self) -> bool:
        """Whether numbers of queries differ: then rows of all sequences follow each other."""
        return self.op.ragged and len(set(self.op.lengths_q)) > 1

    @property
    def ragged_k(self) -> bool:
        """Whether numbers of keys differ: then rows of all sequences follow each other, if not in pages."""
        return self.op.ragged and len(set(self.op.lengths_k)) > 1

    def at(self, sequence: IntLike) -> AttentionProblem:
        """The same with the lengths of one sequence."""
        return replace(self, sequence=as_expr(sequence)) if self.ragged else self

    @property
    def queries(self) -> IntLike:
        """Queries of the sequence."""
        if self.sequence is None or not self.ragged_q:
            return self.op.queries
        return Table(self.op.lengths_q, self.sequence)

    @property
    def keys(self) -> IntLike:
        """Keys of the sequence."""
        if self.sequence is None or not self.ragged_k:
            return self.op.keys
        return Table(self.op.lengths_k, self.sequence)

    def query_place(self, row: IntLike) -> tuple[IntLike, Expr]:
        """First two coordinates of query `row` of the sequence in Q and O; behind its end nothing is there."""
        assert self.sequence is not None
        if not self.ragged_q:
            return self.sequence, as_expr(row)
        return 0, _place(self.op.lengths_q, self.sequence, as_expr(row), as_expr(self.queries))

    def key_place(self, row: IntLike) -> tuple[IntLike, Expr]:
        """First two coordinates of key `row` of the sequence in K and V, which do not lie in pages."""
        assert self.sequence is not None
        if not self.ragged_k:
            return self.sequence, as_expr(row)
        return 0, _place(self.op.lengths_k, self.sequence, as_expr(row), as_expr(self.keys))

    def read_lengths(self, r: RoleBuilder) -> None:
        """Each thread reads the lengths of its sequence, and waits for them."""
        if self.seqlens is None or self.sequence is None:
            return
        r.op("ldg", 2, srcs=(self.seqlens[self.sequence, :],), into="lengths", vector_bytes=4)
        r.run(overhead.ALU, 12, dtype="int32", after=("lengths",))

    @property
    def shift(self) -> IntLike:
        """Key that query 0 stands at: the last query stands at the last key."""
        return self.keys - self.queries

    @property
    def head_dim(self) -> int:
        """Columns of a head of Q and K in a kernel."""
        return padded(self.op.head_dim)

    @property
    def value_dim(self) -> int:
        """Columns of a head of V and O in a kernel."""
        return padded(self.op.value_dim)

    @property
    def exponent_scale(self) -> float:
        """Factor of a score inside exp2."""
        return LOG2_E / math.sqrt(self.op.head_dim)

    def key_head(self, head: Expr) -> Expr:
        """Key head that query head `head` reads."""
        return head // (self.op.heads // self.op.key_heads)

    @property
    def together(self) -> bool:
        """Whether keys lie together, with values as wide as they are, as most kernels have it."""
        return not self.op.page and not self.ragged and self.op.value_dim == self.op.head_dim <= WIDEST

    @property
    def _ahead(self) -> int | None:
        """Keys after its own that a query sees; None for all."""
        if self.causal:
            return 0
        return self.op.window - 1 if self.op.window else None

    def seen(
        self, rows: NDArray[np.integer], columns: NDArray[np.integer], lengths: tuple[int, int] | None = None
    ) -> NDArray[np.bool_]:
        """Which of keys `columns` each of queries `rows` sees. lengths: queries and keys of the sequence, where they
        differ."""
        queries, keys = lengths or (self.op.queries, self.op.keys)
        own = rows[:, None] + (keys - queries)
        visible = np.broadcast_to(columns[None, :] < keys, (len(rows), len(columns)))
        if self._ahead is not None:
            visible = visible & (columns[None, :] <= own + self._ahead)
        if self.op.window:
            visible = visible & (columns[None, :] > own - self.op.window)
        return visible


def _place(lengths: tuple[int, ...], sequence: Expr, row: Expr, length: Expr) -> Expr:
    """Row of a sequence among those of all; behind its end one that does not exist."""
    starts = np.cumsum((0, *lengths))
    total = int(starts[-1])
    behind = 1 - (row < length)
    return Table(tuple(int(start) for start in starts[:-1]), sequence) + row + behind * (2 * total)


def problem(op: Attention) -> AttentionProblem:
    """The tensors of `op`. Raises InputError for a number format that is open."""
    full = op.with_defaults(op.chosen_dtype)
    dtype, out = str(full.dtype), str(full.out)
    appends = full.append == "1"
    found = {
        operand.name: _tensor(
            operand.name, operand.shape, operand.dtype, "output" if appends and operand.name in "kv" else "input"
        )
        for operand in full.operands
    }
    result = full.results[-1]
    o = _tensor(result.name, result.shape, result.dtype, "output")
    lse = _tensor("lse", (full.batch, full.heads, full.queries), "fp32", "scratch")
    k = found["k"]
    new = tuple(found[name] for name in ("k_new", "v_new") if name in found)
    return AttentionProblem(
        full, dtype, out, found["q"], k, found.get("v", k), o, lse, found.get("page_table"), new,
        found.get("seqlens"),
    )  # fmt: skip


def padded(head_dim: int) -> int:
    """Columns of a head in a kernel: the least of `HEAD_DIMS` that holds it, or its own number where none does."""
    return next((columns for columns in HEAD_DIMS if columns >= head_dim), head_dim)


def check_head(where: str, dtype: str, size: int, *, wide: tuple[int, ...] = (), other: str = "") -> None:
    """InputError for a head of `size` that kernels which keep rows of outputs in registers cannot take. wide: sizes
    beyond `WIDEST` that they can; other: what else to ask for."""
    vector = MAX_VECTOR_BYTES // DTYPE_BYTES[dtype]
    if size % vector == 0 and (size <= WIDEST or size in wide):
        return
    nearest = min((*range(vector, WIDEST + 1, vector), *wide), key=lambda d: (abs(d - size), -d))
    rule = f"multiples of {vector} elements, whole vectors of {MAX_VECTOR_BYTES} B, up to {WIDEST}"
    rule += "".join(f" or {size}" for size in wide)
    raise InputError(f"{where}: heads have {rule}, not {size}; nearest: {nearest}{other}")


def check_lengths(p: AttentionProblem, where: str, nearest: str) -> None:
    """InputError where keys lie in pages, or lengths differ, for kernels that know neither."""
    if p.op.page:
        raise InputError(f"{where}: this kernel reads keys that lie together; nearest: {nearest}, or page=0")
    if p.ragged:
        raise InputError(f"{where}: this kernel knows no lengths that differ; nearest: {nearest}")


def check_together(p: AttentionProblem, where: str, nearest: str, lengths: bool = False) -> None:
    """`check_lengths`, where lengths that differ may be known, and InputError for values that differ from keys in
    width."""
    if p.op.page or not lengths:
        check_lengths(p, where, nearest)
    if not p.op.value_dim == p.op.head_dim <= WIDEST:
        rule = f"values as wide as keys, of {WIDEST} elements at most"
        raise InputError(f"{where}: this kernel has {rule}; nearest: {nearest}")


def packed(p: AttentionProblem) -> AttentionProblem:
    """Query heads of one query that share a key head as rows of a tile, as published kernels for Hopper read them
    (`pack_gqa`); the same problem where there is nothing to pack."""
    op, group = p.op, p.op.heads // p.op.key_heads
    if op.queries > 1 or group == 1 or op.window:
        return p
    strides = (op.heads * op.head_dim, op.head_dim, group * op.head_dim, 1)
    shape = (op.batch, group, op.key_heads, op.head_dim)
    return replace(
        p,
        op=replace(op, heads=op.key_heads, seq=None, seq_q=group, seq_k=op.keys, causal="0"),
        q=GlobalTensor("q_groups", shape, p.dtype, strides, "scratch", alias=p.q.name),
        o=GlobalTensor("o_groups", shape, p.out, strides, "scratch", alias=p.o.name),
        lse=_tensor("lse", (op.batch, op.key_heads, group), "fp32", "scratch"),
    )


def _tensor(name: str, shape: tuple[int, ...], dtype: str, role: str) -> GlobalTensor:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(name, shape, dtype, strides, role)


@dataclass(frozen=True)
class Blocks:
    """Blocks of `block_n` keys that a tile of queries visits, from the last one backwards.

    end: one after the last. trips: all. The first is masked always; then come `tail` masked ones, where the tile's
    queries end, `whole` ones, and `head` masked ones, where their windows begin.
    """

    end: Expr
    trips: Expr
    tail: Expr
    whole: Expr
    head: Expr


def blocks(p: AttentionProblem, first_row: Expr, rows: int, block_n: int, last_row: Expr | None = None) -> Blocks:
    """Blocks of the tile of `rows` queries from `first_row` on, or of those up to `last_row`. A tile that sees nothing
    still visits one block."""
    begin: IntLike = 0
    end: IntLike = (p.keys + (block_n - 1)) // block_n
    own = first_row + p.shift
    unmasked_end: IntLike = end
    if p._ahead is not None:
        beyond = (
            own + (rows + p._ahead + block_n - 1) if last_row is None else last_row + (p.shift + p._ahead + block_n)
        )
        end = maximum(1, minimum(end, beyond // block_n))
        unmasked_end = maximum(0, (own + (p._ahead + 1)) // block_n)
    unmasked_begin: IntLike = 0
    if p.op.window:
        begin = minimum(end - 1, maximum(0, (own - (p.op.window - 1)) // block_n))
        # The last row's window begins inside the block before this one, or at this one's first key.
        last = own + (rows - 1) if last_row is None else last_row + p.shift
        unmasked_begin = maximum(0, (last + (block_n - p.op.window)) // block_n)
    begin, end = as_expr(begin), as_expr(end)
    rest = end - 1
    whole_end = maximum(begin, minimum(rest, unmasked_end)) if p._ahead is not None else rest
    whole_begin = minimum(whole_end, maximum(begin, unmasked_begin)) if p.op.window else begin
    return Blocks(end, end - begin, rest - whole_end, whole_end - whole_begin, whole_begin - begin)


def first_maximum(highest: Array, found: Array) -> Array:
    """The largest score of each row's first block of keys, which stays: what follows is scaled by it."""
    return np.where(np.isfinite(highest), highest, found.max(axis=1, keepdims=True))


def exponentials(factor: float, found: Array, highest: Array) -> Array:
    """Weights of a block's scores; 0 where a row has seen no key. factor: of scores, in powers of two."""
    return np.exp2(factor * (found - np.where(np.isfinite(highest), highest, 0)))


class OnlineSoftmax:
    """Softmax of one warp's rows, block of keys by block: NumPy meaning and instructions.

    rows: of the warp, `stride` queries apart (0: they are heads of one query), or `group` of each query. A thread holds
    rows * block_n / 32 scores of `lines` rows of the tile; four threads share a row. sums_each_block: they add up their
    sums in each block, not only at the end. compares: comparisons for a masked score.
    """

    def __init__(
        self, p: AttentionProblem, rows: int, block_n: int, head_dim: int, stride: int = 1, *,
        sums_each_block: bool = False, group: int = 1, compares: Fraction = Fraction(1),
    ) -> None:  # fmt: skip
        self.p, self.rows, self.block_n, self.head_dim, self.stride = p, rows, block_n, head_dim, stride
        self.group = group
        self.sums_each_block, self.compares = sums_each_block, compares
        self.scores = RegisterTile("scores", (rows, block_n), "fp32")
        self.weights = RegisterTile("weights", (rows, block_n), p.dtype)
        self.acc = RegisterTile("acc", (rows, head_dim), "fp32")
        self.top = RegisterTile("top", (rows, 1), "fp32")
        self.new_top = RegisterTile("new_top", (rows, 1), "fp32")
        self.total = RegisterTile("total", (rows, 1), "fp32")
        self.scale = RegisterTile("scale", (rows, 1), "fp32")

    @property
    def values(self) -> int:
        """Scores of a thread, one instruction each."""
        return self.rows * self.block_n // 32

    @property
    def lines(self) -> int:
        """Rows of a thread: eight threads' rows times four threads a row."""
        return self.rows // 8

    def mask(self, r: RoleBuilder, row: Expr, column: Expr) -> None:
        """Scores of keys that a query does not see become minus infinity: a select each, and comparisons."""

        def compute(scores: Array, first_row: int, first_column: int, *lengths: int) -> Array:
            rows = (first_row + self.stride * np.arange(self.rows)) // self.group
            own = (lengths[0], lengths[1]) if lengths else None
            seen = self.p.seen(rows, first_column + np.arange(self.block_n), own)
            return np.where(seen, scores, -np.inf)

        own = (as_expr(self.p.queries), as_expr(self.p.keys)) if self.p.ragged else ()
        r.run(
            "sel", self.values, dtype="int32", dst=self.scores.whole, compute=compute, indices=(row, column, *own),
            mix=(("setp", int(self.compares * self.values)),),
        )  # fmt: skip

    def block(self, r: RoleBuilder, *, first: bool) -> None:
        """Row maxima, the factor that old sums are rescaled by, weights exp2(score - maximum) and their sums."""
        self.maxima(r, first=first)
        self.weigh(r, first=first)

    def maxima(self, r: RoleBuilder, *, first: bool, between: Callable[[], None] | None = None) -> None:
        """Row maxima of a thread. between: what compiled code has between those of its first row, each of which waits
        for the one before, and the others."""
        n, lines = self.values, self.lines

        def maxima(_: Array, scores: Array, top: Array | None = None) -> Array:
            highest = scores.max(axis=1, keepdims=True)
            return highest if top is None else np.maximum(top, highest)

        count = n - (lines if first else 0)
        srcs = (self.scores.whole, *(() if first else (self.top.whole,)))
        row = count // lines if between else 0
        if between:
            r.run(
                "fmnmx", row, dtype="fp32", dst=self.new_top.whole, srcs=srcs, compute=maxima, chain=row, nominal=True
            )
            between()
            srcs = (self.scores.whole, self.new_top.whole)
        r.run(
            "fmnmx", count - row, dtype="fp32", dst=self.new_top.whole, srcs=srcs, compute=maxima,
            nominal=between is not None,
        )  # fmt: skip

    def weigh(self, r: RoleBuilder, *, first: bool) -> None:
        """What follows the maxima of a thread."""
        factor, n, lines = self.p.exponent_scale, self.values, self.lines

        def weights(scores: Array, top: Array) -> Array:
            # A row that has seen no key yet keeps weights of 0.
            return np.exp2(factor * (scores - np.where(np.isfinite(top), top, 0)))

        def rescale(_: Array, top: Array, new_top: Array) -> Array:
            return np.exp2(factor * (top - np.where(np.isfinite(new_top), new_top, 0)))

        def add(total: Array, weights: Array, scale: Array | None = None) -> Array:
            rows = weights.sum(axis=1, keepdims=True)
            return rows if scale is None else total * scale + rows

        top, new_top, total = self.top.whole, self.new_top.whole, self.total.whole
        scores, scale = self.scores.whole, self.scale.whole
        # The four threads of a row agree on its maximum.
        r.run("shfl", 2 * lines, dst=new_top, srcs=(new_top,), compute=_same, mix=(("fmnmx", 2 * lines),))
        if not first:
            r.run(
                "ex2", lines, dtype="fp32", dst=scale, srcs=(top, new_top), compute=rescale,
                mix=(("fmul", 2 * lines),),
            )  # fmt: skip
        r.run("imad", lines, dtype="int32", dst=top, srcs=(new_top,), compute=_first)
        r.run("ex2", n, dtype="fp32", dst=scores, srcs=(new_top,), compute=weights, mix=(("ffma", n),))
        # The sums of a row follow each other, those of its other rows go between; the first one takes the old sum.
        r.run(
            "fadd", n, dtype="fp32", dst=total, srcs=(scores, *(() if first else (scale,))), compute=add,
            chain=n // lines, mix=(("ffma", lines),),
        )  # fmt: skip
        if self.sums_each_block:
            self._add_up(r)

    def _add_up(self, r: RoleBuilder) -> None:
        """The four threads of a row add up their sums."""
        total = self.total.whole
        r.run("shfl", 2 * self.lines, dst=total, srcs=(total,), compute=_same, mix=(("fadd", 2 * self.lines),))

    def convert(self, r: RoleBuilder) -> None:
        """Weights in the operands' format, two an instruction."""
        r.run(
            "cvt", self.values // 2, dtype=self.p.dtype, dst=self.weights.whole, srcs=(self.scores.whole,),
            compute=_first,
        )  # fmt: skip

    def rescale(self, r: RoleBuilder) -> None:
        """What has been added up so far moves to the new maximum."""
        r.run(
            "fmul", self.rows * self.head_dim // 32, dtype="fp32", dst=self.acc.whole, srcs=(self.scale.whole,),
            compute=lambda acc, scale: acc * scale,
        )  # fmt: skip

    def start(self, r: RoleBuilder) -> None:
        """No key has been seen yet."""
        for tile, value in ((self.acc, 0.0), (self.total, 0.0), (self.top, -np.inf)):
            r.run(
                "imad", ceil_div(tile.shape[0] * tile.shape[1], 32), dtype="int32", dst=tile.whole,
                compute=lambda old, value=value: np.full_like(old, value),
            )  # fmt: skip

    def finish(self, r: RoleBuilder, empty: float = np.inf) -> None:
        """Sums over the four threads of a row, division of the outputs by them; `total` becomes the row's LSE, `empty`
        where it has seen no key."""
        factor = self.p.exponent_scale / LOG2_E

        def inverse(_: Array, total: Array) -> Array:
            return 1 / np.where(total > 0, total, 1)

        def logarithm(total: Array, top: Array) -> Array:
            return np.where(total > 0, factor * top + np.log(total), empty)

        total, lines = self.total.whole, self.lines
        if not self.sums_each_block:
            self._add_up(r)
        r.run("rcp", lines, dtype="fp32", dst=self.scale.whole, srcs=(total,), compute=inverse, mix=(("setp", lines),))
        self.rescale(r)
        r.run(
            "lg2", lines, dtype="fp32", dst=total, srcs=(self.top.whole,), compute=logarithm,
            mix=(("ffma", lines), ("fmul", 2 * lines)),
        )  # fmt: skip
        if self.p.out != "fp32":
            r.run("cvt", self.rows * self.head_dim // 64, dtype=self.p.out)


def _first(_: Array, source: Array) -> Array:
    return source


def _same(value: Array, *_: Array) -> Array:
    return value


def width(p: AttentionProblem) -> int:
    """Bytes of an element of Q, K and V."""
    return DTYPE_BYTES[p.dtype]
