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

CHUNK_COLUMNS = 32
"""Columns that an owner fetches at once: bounds the registers of the partial sum."""
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
        with r.loop("peer", unit.peers, 1) as peer:
            slot = self.slot + peer * self.slots_per_worker
            for p in pieces:
                rows, cols = p.acc.shape
                width = min(CHUNK_COLUMNS, cols)
                part = RegisterTile("part", (rows, width), p.acc.dtype)
                opcode, lane_adds = ADDS[p.acc.dtype]
                for c in range(0, cols, width):
                    count = _vectors(rows * width, p.acc.dtype)
                    box = self._box(slot, p, c, width)
                    r.ldg(part.whole, box, count, into="part", vector_bytes=MAX_VECTOR_BYTES)
                    r.run(
                        opcode, ceil_div(rows * width, 32 * lane_adds), dtype=p.acc.dtype,
                        dst=p.acc[:, c:width], srcs=(part.whole,), compute=add, after=("part", *self.ready),
                    )  # fmt: skip

    def _box(self, slot: Expr, p: Piece, col: int, width: int) -> View:
        return self.partials[slot, p.row : p.acc.shape[0], p.col + col : width]  # type: ignore[misc]


def owner_only(r: RoleBuilder, unit: Unit) -> AbstractContextManager[None]:
    """Guard of what only a tile's owner does; none where every piece is a whole tile."""
    return nullcontext() if unit.owner == Const(1) else r.when(unit.owner)


def _vectors(elements: int, dtype: str) -> int:
    return ceil_div(elements * DTYPE_BYTES[dtype], 32 * MAX_VECTOR_BYTES)
