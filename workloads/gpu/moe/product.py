"""A product of the rows of each expert with that expert's weights, in Triton's tiles: a block of rows is one expert's.

Numbers of rows and experts are read by the kernel as the sorting has left them; which they are is known when the
program is written. What multiplies is in `warp_product` and `group_product`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES
from sim.gpu.language import Const, Expr, GlobalTensor, IntLike, RegisterTile, RoleBuilder, View, as_expr
from workloads.gpu import overhead
from workloads.gpu.gemm.problem import Operand, Problem, Weights, ceil_div, row_alignment
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.blocks import Blocks, Numbers, looked_up
from workloads.gpu.moe.config import MoeConfig
from workloads.gpu.overhead import Overhead
from workloads.ops import Gemm
from workloads.ops.base import Array
from workloads.ops.packed import DEPTH, PackedMatrices

NUMBER = RegisterTile("number", (1, 1), "int32")
"""Of rows with their padding, then of the block's expert."""


@dataclass(frozen=True)
class SortedRows:
    """What the sorting leaves. rows: their numbers in the order of blocks, None where nothing was sorted. experts: of
    the blocks, or of each row with a block a row of the tensor. padded: rows with their padding, None where the launch
    knows them. starts: first row of each expert, which only the sorting uses."""

    rows: GlobalTensor | None
    experts: GlobalTensor
    padded: GlobalTensor | None
    starts: GlobalTensor | None = None

    @property
    def tensors(self) -> tuple[GlobalTensor, ...]:
        """Those that are left by kernels of their own."""
        if self.rows is None:
            return () if self.padded is None else (self.padded,)
        return tuple(t for t in (self.rows, self.experts, self.padded, self.starts) if t is not None)

    def expert_of(self, m: Expr) -> View:
        """The number that a block's kernel reads."""
        return self.experts[0:1, m:1] if self.experts.shape[0] == 1 else self.experts[m:1, 0:1]  # type: ignore[misc]

    @classmethod
    def of(cls, blocks: Blocks, ids: GlobalTensor, experts: int) -> SortedRows:
        """The tensors. ids: choices of all tokens."""

        def numbers(name: str, count: int) -> GlobalTensor:
            return GlobalTensor(name, (1, count), "int32", (count, 1), "scratch")

        padded = numbers("padded", 1)
        if not blocks.sorted:
            return cls(None, in_a_row(ids), padded)
        starts = numbers("starts", ceil_div(experts, WARP_SIZE) * WARP_SIZE)
        return cls(numbers("rows", blocks.launched * blocks.size), numbers("experts", blocks.launched), padded, starts)


@dataclass(frozen=True)
class Tokens:
    """Rows of x as its kernels read them: a window of `group` rows, `spacing` tokens apart, from each token on.

    In front lies room for rows that a window leaves out at its end.
    """

    blocks: Blocks

    @property
    def margin(self) -> int:
        """Rows in front of the first token."""
        return self.blocks.spacing * self.blocks.group

    def tensor(self, dtype: str) -> GlobalTensor:
        """Windows by their first token, rows of a window, elements."""
        hidden, b = self.blocks.op.hidden, self.blocks
        shape = (self.blocks.op.tokens + self.margin, b.group, hidden)
        return GlobalTensor("x", shape, dtype, (hidden, b.spacing * hidden, 1), "input")

    def scales(self, groups: int) -> GlobalTensor:
        """The same of the tokens' scales, of which those of one group lie together."""
        b = self.blocks
        shape = (b.op.tokens + self.margin, b.group, groups)
        return GlobalTensor("sx", shape, "fp32", (1, b.spacing, b.op.tokens), "input")

    def stored(self, x: Array) -> Array:
        """x as the tensor shows it."""
        b = self.blocks
        beyond = b.spacing * (b.group - 1)
        padded = np.pad(np.asarray(x), ((self.margin, beyond), (0, 0)))
        found = np.lib.stride_tricks.sliding_window_view(padded, beyond + 1, axis=0)[:, :, :: b.spacing]
        return np.asarray(found[: b.op.tokens + self.margin].transpose(0, 2, 1))

    def windows(self, tensor: GlobalTensor, group: Expr, column: Expr, columns: int) -> View:
        """The rows of a whole group, counted over all blocks."""
        b = self.blocks
        tokens = b.tokens.reshape(-1, b.group)
        valid = (tokens >= 0).sum(axis=1)
        first = looked_up(np.maximum(tokens[:, 0], 0) + b.spacing * valid, group)
        return tensor[first:1, looked_up(b.group - valid, group) : b.group, column:columns]  # type: ignore[misc]

    def row(self, tensor: GlobalTensor, row: Expr, column: Expr, columns: int) -> View:
        """One row, counted over all blocks; nothing of one that is padded."""
        tokens = self.blocks.tokens.reshape(-1)
        places = np.where(tokens >= 0, tokens + self.margin, tensor.shape[0])
        return tensor[looked_up(places, row) : 1, 0:1, column:columns]  # type: ignore[misc]


@dataclass(frozen=True)
class Part:
    """What is simulated of a product. picked: numbers of the blocks; launched: blocks of the grid; tiles_n: tiles
    along the columns; stands_for: tiles of the launch, 0 where these are all."""

    picked: Numbers
    launched: int
    tiles_n: int
    stands_for: int = 0

    @classmethod
    def whole(cls, blocks: Blocks, tiles_n: int) -> Part:
        """All of it."""
        return cls(blocks.taken, blocks.launched, tiles_n)


@dataclass(frozen=True)
class GroupedProduct:
    """c = a w[expert]^T, a block of rows an expert.

    a: tokens, or a tensor that lies block by block. part: what is simulated of it. weights: of the rows, by which the
    epilogue multiplies. packed: how w is stored where it has fewer bits than a. scales: of w, where it has some;
    scales_a: of a, where both have some by block.
    """

    name: str
    blocks: Blocks
    sorted: SortedRows
    a: GlobalTensor
    w: GlobalTensor
    c: GlobalTensor
    part: Part
    tokens: Tokens | None = None
    weights: GlobalTensor | None = None
    packed: PackedMatrices | None = None
    scales: GlobalTensor | None = None
    scales_a: GlobalTensor | None = None

    @property
    def dtype(self) -> str:
        """Number format in which is multiplied."""
        return self.a.dtype

    def numbers(self, config: MoeConfig) -> int:
        """Rows of which a thread copies a part in a step, and of which it stores one."""
        moved = (config.warps * WARP_SIZE * vector for vector in (row_alignment(self.a), row_alignment(self.c)))
        sizes = (self.blocks.size * n * DTYPE_BYTES[self.dtype] for n in (config.block_k, config.block_n))
        least = ceil_div(self.blocks.size, WARP_SIZE)
        return max(least, sum(ceil_div(size, span) for size, span in zip(sizes, moved, strict=True)))

    def problem(self, config: MoeConfig) -> Problem:
        """As a product of all blocks."""
        b, dtype, stored = self.blocks, self.dtype, self.packed
        rows, columns, depth = self.part.launched * b.size, self.part.tiles_n * config.block_n, self.a.shape[2]
        a = Operand(self.a, rows, True)
        if stored is None:
            gemm = Gemm(m=rows, n=columns, k=depth, tb="T", dtype=dtype).with_defaults(dtype)
            return Problem(gemm, dtype, self.c.dtype, str(gemm.acc), a, Operand(self.w, columns, True), self.c)
        whole = stored.blocks(depth) * DEPTH
        gemm = Gemm(m=rows, n=columns, k=whole, dtype=dtype, weights=stored.form, group=stored.group)
        gemm, w = gemm.with_defaults(dtype), Weights(self.w, columns, True, stored.bits)
        return Problem(gemm, dtype, self.c.dtype, str(gemm.acc), a, w, self.c, group_scales=self.scales)


@dataclass(frozen=True)
class Tile:
    """A tile of the result, once its kernel knows its block. m, n: its place; valid: rows of the block; expert: whose
    weights it takes; even: 1 where tokens of its rows lie evenly apart."""

    g: GroupedProduct
    m: Expr
    n: Expr
    valid: Expr
    expert: Expr
    even: Expr

    @classmethod
    def read(cls, r: RoleBuilder, g: GroupedProduct, m: Expr, n: Expr, config: MoeConfig) -> Tile:
        """What the kernel loads and works out for a block that has rows."""
        b = g.blocks
        if len(g.part.picked) < len(b.taken):
            m = r.assign("block", looked_up(g.part.picked, m))
        row_numbers, expert = RegisterTile("row_numbers", (1, b.size), "int32"), NUMBER
        overhead.chained(r, overhead.EXPERTS_ROUTE, overhead.EXPERTS_ROUTE_CYCLES)
        loads = 0
        if g.sorted.rows is not None:
            box = g.sorted.rows[0:1, m * b.size : b.size]  # type: ignore[misc]
            loads = g.numbers(config)
            r.ldg(row_numbers.whole, box, loads, into="rows", vector_bytes=4)
        r.ldg(expert.whole, g.sorted.expert_of(m), 1, into="expert", vector_bytes=4)
        Overhead(0).plus(overhead.EXPERTS_PER_ROW_NUMBER, loads).write(r)
        r.run("iadd", 2, dtype="int32", after=("rows", "expert") if g.sorted.rows is not None else ("expert",))
        even: Expr = Const(1)
        if g.tokens and not b.even(b.group).all():
            even = r.assign("even", looked_up(b.even(b.group), m))
        valid = r.assign("valid", looked_up(b.valid, m))
        return cls(g, m, n, valid, r.assign("expert", looked_up(np.maximum(b.experts, 0), m)), even)

    def rows_of_a(self, row: IntLike, rows: int, at: Expr, columns: int) -> View:
        """`rows` rows of the block from `row` on, of tokens at most a group's; the block is even."""
        return self.rows_of(self.g.a, row, rows, at, columns)

    def rows_of(self, tensor: GlobalTensor, row: IntLike, rows: int, at: Expr, columns: int) -> View:
        """The same of a tensor that lies as the first operand does."""
        g, b = self.g, self.g.blocks
        if g.tokens is None:
            return tensor[self.m, b.size - self.valid + row : rows, at:columns]  # type: ignore[misc]
        row = as_expr(row)
        view = g.tokens.windows(tensor, self.m * (b.size // b.group) + row // b.group, at, columns)
        first, inside, _ = view.offsets
        return tensor[first:1, inside + row % b.group : rows, at:columns]  # type: ignore[misc]

    def token_of(self, row: Expr, at: Expr, columns: int) -> View:
        """One row of the block, a token."""
        return self.token_in(self.g.a, row, at, columns)

    def token_in(self, tensor: GlobalTensor, row: Expr, at: Expr, columns: int) -> View:
        """The same of a tensor that lies as the tokens do."""
        assert self.g.tokens is not None
        return self.g.tokens.row(tensor, self.m * self.g.blocks.size + row, at, columns)

    def rows_of_w(self, row: IntLike, rows: int, at: Expr, columns: int) -> View:
        """Rows of the expert's weights, counted over all tiles."""
        return self.g.w[self.expert, row:rows, at:columns]  # type: ignore[misc]

    def rows_of_c(self, row: IntLike, rows: int, col: IntLike, cols: int) -> View:
        """Rows of the block in the result."""
        return self.g.c[self.m, self.g.blocks.size - self.valid + row : rows, col:cols]  # type: ignore[misc]

    def weigh(self, r: RoleBuilder, rows: int, accumulators: int) -> None:
        """The epilogue's product with the rows' weights, where it has some: as many as a warp has rows, from those of
        the block's first token on, stand for them."""
        if self.g.weights is None:
            return
        topk = self.g.weights.shape[1]
        held = RegisterTile("weights", (ceil_div(rows, topk), topk), "fp32")
        token = looked_up(np.maximum(self.g.blocks.flat[:, 0], 0) // topk, self.m)
        box = self.g.weights[token : ceil_div(rows, topk), 0:topk]  # type: ignore[misc]
        r.ldg(held.whole, box, into="w", vector_bytes=4)
        r.run("fmul", accumulators, dtype="fp32", after=("w",))

    def store_zeros(self, r: RoleBuilder, row: Expr, rows: int, col: Expr, cols: int) -> None:
        """A warp's part of a block whose expert is on another device."""
        dtype = self.g.c.dtype
        zeros = RegisterTile("acc", (rows, cols), "fp32")
        r.run("iadd", 1, dtype="int32", dst=zeros.whole, compute=np.zeros_like, nominal=True)
        vector = min(row_alignment(self.g.c), cols * DTYPE_BYTES[dtype])
        count = ceil_div(rows * cols * DTYPE_BYTES[dtype], WARP_SIZE * vector)
        overhead.EXPERTS_ZEROS.plus(overhead.EXPERTS_PER_ZEROS, count).write(r)
        r.stg(self.rows_of_c(row, rows, col, cols), zeros.whole, count, vector_bytes=vector)


def write_tile(
    r: RoleBuilder, g: GroupedProduct, m: Expr, n: Expr, config: MoeConfig,
    compute: Callable[[Tile], None], clear: Callable[[Tile], None],
) -> None:  # fmt: skip
    """What a CTA does with its tile: nothing beyond the last block, zeros for experts of other devices."""
    picked = g.part.picked
    if g.sorted.padded is not None:
        r.ldg(NUMBER.whole, g.sorted.padded[0:1, 0:1], 1, into="padded", vector_bytes=4)  # type: ignore[misc]
    overhead.chained(r, overhead.EXPERTS_PLACE, overhead.EXPERTS_PLACE_CYCLES)
    if g.sorted.padded is not None:
        r.run("iadd", 1, dtype="int32", after=("padded",))
    guard = nullcontext() if len(picked) == g.part.launched else r.when(m < len(picked))
    with guard:
        tile = Tile.read(r, g, m, n, config)
        here = g.blocks.experts[picked] >= 0
        if here.all():
            compute(tile)
        elif not here.any():
            clear(tile)
        else:
            local = looked_up(g.blocks.experts >= 0, tile.m)
            with r.when(local):
                compute(tile)
            with r.when(local.equals(0)):
                clear(tile)


def write_setup(r: RoleBuilder, rows: int, weights: int) -> None:
    """What a warp does between the branch and the loop. rows, weights: its copy instructions of a step."""
    cost = overhead.EXPERTS_SETUP.plus(overhead.EXPERTS_PER_ROWS, rows).plus(overhead.EXPERTS_PER_WEIGHTS, weights)
    overhead.chained(r, cost, overhead.EXPERTS_SETUP_CYCLES + weights * overhead.EXPERTS_PER_WEIGHTS_CYCLES)


def epilogue(accumulators: int, tenths: int) -> Overhead:
    """What a warp does after the loop beside conversions and stores, so many tenths of an instruction for each of a
    thread's accumulators."""
    return overhead.EXPERTS_EPILOGUE.plus(Overhead(alu=1), accumulators * tenths // 10)


def in_a_row(ids: GlobalTensor) -> GlobalTensor:
    """Choices of all tokens, one after the other."""
    flat = ids.shape[0] * ids.shape[1]
    return GlobalTensor("choices", (1, flat), ids.dtype, (flat, 1), "scratch", alias=ids.name)
