"""Keys and values as kernels copy them to shared memory: from sequences that lie together, or from a cache in pages.

A thread that copies from pages first reads its page's place in the table of pages (`block_table` of the published
kernels), then copies: the copy waits for the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from arch.errors import InputError
from sim.gpu.language import Expr, GlobalTensor, IntLike, RoleBuilder, Table, View, as_expr
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import AttentionProblem, width
from workloads.gpu.attention.flash2 import BLOCK_COLUMNS, Blocked
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div

PAGE_ROWS = 16
"""Pages have multiples of so many keys, so that those of a thread lie in one (csrc/flash_attn/flash_api.cpp)."""
FEW_ROWS = 8
"""Keys of which a box is copied whole, also where a sequence ends in it."""


def check_pages(p: AttentionProblem, where: str) -> None:
    """InputError for pages that threads would straddle."""
    if p.op.page % PAGE_ROWS:
        nearest = max(PAGE_ROWS, p.op.page // PAGE_ROWS * PAGE_ROWS)
        raise InputError(f"{where}: a page has a multiple of {PAGE_ROWS} keys, not {p.op.page}; nearest: {nearest}")


@dataclass(frozen=True)
class KeyCopies:
    """Copies of `rows` keys or values at a time by one warp, by cp.async; blocks begin at multiples of `rows`.

    rows: of a warp. columns: of a box, where `whole` boxes of the tile are not of BLOCK_COLUMNS.
    """

    p: AttentionProblem
    rows: int
    columns: int = BLOCK_COLUMNS

    @property
    def piece(self) -> int:
        """Keys of a box, which lies in one page. Where lengths differ, so few that little is read behind an end."""
        if self.p.ragged_k:
            return math.gcd(self.rows, self.p.op.page or PAGE_ROWS, PAGE_ROWS)
        if not self.p.op.page:
            return self.rows
        piece = math.gcd(self.rows, self.p.op.page)
        return piece if piece > PAGE_ROWS or self.p.op.keys % piece == 0 else math.gcd(piece, FEW_ROWS)

    @cached_property
    def _places(self) -> tuple[int, ...]:
        """The page of each piece of each sequence; behind a sequence's end a page that does not exist."""
        op = self.p.op
        each = op.page // self.piece
        return tuple(
            int(op.page_table[batch, piece // each]) if piece < ceil_div(keys, self.piece) else op.all_pages
            for batch, keys in enumerate(op.lengths_k)
            for piece in range(self._row)
        )

    @property
    def _row(self) -> int:
        """Pieces of a sequence in `_places`: with those of a block that is longer than what is left of it."""
        return ceil_div(self.p.op.keys, self.piece) + 512 // self.piece

    def block(self, r: RoleBuilder, batch: Expr, first: Expr) -> tuple[Expr, Expr]:
        """Page and row of it where a block of keys begins that lies in one page: the warp waits for the table."""
        table, op = self.p.table, self.p.op
        assert table is not None
        r.op("ldg", 1, srcs=(table[batch, first // op.page : 1],), into="place", vector_bytes=4)  # type: ignore[misc]
        r.run(overhead.ALU, 4, dtype="int32", after=("place",), mix=overhead.mix(imad=2))
        pages = op.page_table.shape[1]
        places = tuple(int(page) for page in op.page_table.ravel())
        return Table(places, batch * pages + first // op.page), first % op.page

    def copy(
        self, r: RoleBuilder, to: Blocked, tensor: GlobalTensor, batch: Expr, first: Expr, at: IntLike, head: Expr,
        *, stage: IntLike = 0, alu: int = 0, column: IntLike = 0,
    ) -> None:  # fmt: skip
        """Rows `first + at` and on of a sequence, from `column` on, to rows `at` and on of a tile. alu: instructions
        beside each copy."""

        def place(tile_row: IntLike, rows: int) -> Callable[[int], View]:
            return lambda at: to.view(tile_row, rows, at, min(self.columns, to.columns), stage)

        def source(index: IntLike, row: IntLike, rows: int) -> Callable[[int], View]:
            columns = min(self.columns, to.columns)
            return lambda at: tensor[index, row:rows, head, column + at : columns]  # type: ignore[misc]

        if self.p.table is None and self.p.ragged_k:
            for begin in range(0, self.rows, self.piece):
                index, row = self.p.at(batch).key_place(first + at + begin)
                self._boxes(r, to, place(at + begin, self.piece), source(index, row, self.piece), self.piece, alu)
            return
        if self.p.table is None:
            self._boxes(r, to, place(at, self.rows), source(batch, first + at, self.rows), self.rows, alu)
            return
        op, piece = self.p.op, self.piece
        pages = max(1, self.rows // op.page)
        places = self.p.table[batch, (first + at) // op.page : pages]  # type: ignore[misc]
        # Whose values the addresses below have (`_places`): the load alone, which keeps them waiting.
        r.op("ldg", 1, srcs=(places,), into="place", vector_bytes=4, mix=overhead.mix(alu=4, imad=2))
        left = op.keys % piece if piece > FEW_ROWS and not self.p.ragged_k else 0
        for begin in range(0, self.rows, piece):
            row = first + at + begin
            index = Table(self._places, as_expr(batch * self._row + row // piece))
            whole = source(index, row % op.page, piece)
            if not left:
                self._boxes(r, to, place(at + begin, piece), whole, piece, alu)
                continue
            ends = row.equals(op.keys - left)
            with r.when(1 - ends):
                self._boxes(r, to, place(at + begin, piece), whole, piece, alu)
            with r.when(ends):
                self._boxes(r, to, place(at + begin, left), source(index, row % op.page, left), left, alu)
                absent = source(op.all_pages, 0, piece - left)
                self._boxes(r, to, place(at + begin + left, piece - left), absent, piece - left, alu)

    def _boxes(
        self, r: RoleBuilder, to: Blocked, target: Callable[[int], View], source: Callable[[int], View], rows: int,
        alu: int,
    ) -> None:  # fmt: skip
        columns = min(self.columns, to.columns)
        count = ceil_div(rows * columns * width(self.p), 32 * MAX_VECTOR_BYTES)
        after = ("place",) if self.p.table else ()
        for column in range(0, to.blocks * to.columns, columns):
            r.cp_async(target(column), source(column), count, after=after, mix=overhead.mix(alu=alu * count))
