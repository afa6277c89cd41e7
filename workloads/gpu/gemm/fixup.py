"""Sums of one output tile over several CTAs.

Partial sums go through a scratch tensor, a flag a tile counts the warps that have stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from arch.dtypes import DTYPE_BYTES
from sim.gpu.language import Const, Expr, GlobalTensor, IntLike, RegisterTile, RoleBuilder, View
from workloads.gpu.gemm.plan import Plan, Unit
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, add, ceil_div

FETCH_REGISTERS = 64
"""Registers of a thread that hold fetched partial sums at most: what the main loop's operands leave beside the sums."""
THREAD_REGISTERS = 192
"""Registers of a thread for its own sums and fetched ones together."""
ADDS = {"fp32": ("fadd", 1), "int32": ("iadd", 1), "fp16": ("hfma2", 2)}
"""By accumulator: what adds two of them, and how many a lane adds at once."""


def scratch(plan: Plan, ctas_per_worker: int, tile_m: int, tile_n: int, dtype: str) -> GlobalTensor | None:
    """Room for one partial tile a CTA; None where no tile is shared."""
    if not plan.shared_tiles:
        return None
    shape = (plan.workers * ctas_per_worker, tile_m, tile_n)
    return GlobalTensor("partials", shape, dtype, (tile_m * tile_n, tile_n, 1), "scratch")


@dataclass(frozen=True)
class Piece:
    """A warp's accumulator and the place of its first element in the CTA's tile."""

    acc: RegisterTile
    row: IntLike
    col: IntLike


@dataclass(frozen=True)
class Fixup:
    """How the warps of a CTA exchange partial sums.

    partials: scratch of shape (slots, tile_m, tile_n). slot: of this CTA. slots_per_worker: CTAs a worker. flag:
    index of the unit's flag. warps: that store a part of the tile in each CTA. ready: scoreboards of the
    accumulators.
    """

    partials: GlobalTensor
    slot: Expr
    slots_per_worker: int
    flag: Expr
    warps: int
    ready: tuple[str, ...] = ()

    def store(self, r: RoleBuilder, unit: Unit, pieces: Sequence[Piece]) -> None:
        """A part that does not start at k = 0: this warp's sums to scratch, then the flag."""
        with r.when(1 - unit.owner):
            for p in pieces:
                box = self._box(self.slot, p, 0, p.acc.shape[1])
                count = _vectors(p.acc.shape[0] * p.acc.shape[1], p.acc.dtype)
                r.stg(box, p.acc.whole, count, vector_bytes=MAX_VECTOR_BYTES, after=self.ready)
            r.flag_add(self.flag)

    def add(self, r: RoleBuilder, unit: Unit, pieces: Sequence[Piece]) -> None:
        """The owner waits for the workers that follow and adds what they have stored."""
        with r.when(unit.peers > 0):
            r.flag_wait(self.flag, unit.peers * self.warps)
        shapes = [p.acc.shape for p in pieces]
        batch = fetched_columns(shapes) // max(cols for _, cols in shapes)
        if batch > 1:
            with r.loop("peers", unit.peers // batch) as i:
                self._fetch(
                    r, [self.slot + (i * batch + (j + 1)) * self.slots_per_worker for j in range(batch)], pieces
                )
        done = unit.peers // batch * batch if batch > 1 else 0
        with r.loop("peer", unit.peers - done, 1) as peer:
            self._fetch(r, [self.slot + (done + peer) * self.slots_per_worker], pieces)

    def _fetch(self, r: RoleBuilder, slots: Sequence[Expr], pieces: Sequence[Piece]) -> None:
        """Partial sums of some workers, all on their way before the first is added."""
        room = fetched_columns([p.acc.shape for p in pieces])
        for p in pieces:
            rows, cols = p.acc.shape
            part = RegisterTile("part", (rows, room), p.acc.dtype)
            opcode, lane_adds = ADDS[p.acc.dtype]
            for c in range(0, cols, room):
                width = min(room, cols - c)
                views = [part[:, j * width : width] for j in range(len(slots))]  # type: ignore[misc]
                count = _vectors(rows * width, p.acc.dtype)
                for slot, view in zip(slots, views, strict=True):
                    r.ldg(view, self._box(slot, p, c, width), count, into="part", vector_bytes=MAX_VECTOR_BYTES)
                for number, view in enumerate(views):  # the first waits for all of them
                    r.run(
                        opcode, ceil_div(rows * width, 32 * lane_adds), dtype=p.acc.dtype, dst=p.acc[:, c:width],
                        srcs=(view,), compute=add, after=() if number else ("part", *self.ready),
                    )  # fmt: skip

    def _box(self, slot: Expr, p: Piece, col: int, width: int) -> View:
        return self.partials[slot, p.row : p.acc.shape[0], p.col + col : width]  # type: ignore[misc]


def fetched_columns(shapes: Sequence[tuple[int, ...]]) -> int:
    """Columns of partial sums that a warp has on their way at once; shapes: of its accumulators, with equal rows."""
    rows = shapes[0][0]
    own = sum(a * b for a, b in shapes) // 32
    return max(16, min(FETCH_REGISTERS, THREAD_REGISTERS - own)) * 32 // rows


def fetches(shapes: Sequence[tuple[int, ...]], peers: int) -> int:
    """Times that an owner waits for partial sums of `peers` workers; shapes: of a warp's accumulators."""
    room, cols = fetched_columns(shapes), shapes[0][1]
    batch = max(1, room // cols)
    return len(shapes) * ceil_div(cols, room) * (peers // batch + peers % batch)


def owner_only(r: RoleBuilder, unit: Unit) -> AbstractContextManager[None]:
    """Guard of what only a tile's owner does; none where every piece is a whole tile."""
    return nullcontext() if unit.owner == Const(1) else r.when(unit.owner)


def _vectors(elements: int, dtype: str) -> int:
    return ceil_div(elements * DTYPE_BYTES[dtype], 32 * MAX_VECTOR_BYTES)
