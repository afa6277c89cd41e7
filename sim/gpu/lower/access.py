"""Where a kernel meets bank conflicts, and where it asks for sectors of which it does not use all, by line of its
source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from sim.gpu.language import Const, Kernel, Loop, Op, Statement
from sim.gpu.lower.tables import Box, Col, GpuProgram, Kind

_SECTOR_BYTES = 32
_GLOBAL = frozenset(map(int, (Kind.LDG, Kind.STG, Kind.RED, Kind.CP_ASYNC)))


@dataclass(frozen=True, slots=True)
class AccessLine:
    """What a line of a program asks of memory in a whole launch; loops whose length depends on data count once.

    conflict_ticks: of shared memory, for bank conflicts. requests: warp instructions on global memory, which move
    `sector_bytes` of whole sectors for `used_bytes`.
    """

    line: str
    conflict_ticks: int = 0
    requests: int = 0
    sector_bytes: int = 0
    used_bytes: int = 0


def access_lines(kernel: Kernel, program: GpuProgram) -> list[AccessLine]:
    """All lines of a lowered kernel that access memory with conflicts or use a part of their sectors."""
    rows = {row[Col.OP]: row for row in program.code.tolist()}
    boxes = program.boxes.tolist()
    found: dict[str, AccessLine] = {}
    number = 0
    for role in kernel.roles:
        for op, times in _executed(role.body, role.warps * kernel.ctas):
            row = rows[number]
            number += 1
            if not row[Col.CONFLICTS] and row[Col.KIND] not in _GLOBAL:
                continue
            one = _of_row(op.line, row, boxes, times)
            if one.conflict_ticks or one.used_bytes < one.sector_bytes:
                found[op.line] = _sum(found.get(op.line, AccessLine(op.line)), one)
    return list(found.values())


def _executed(body: Sequence[Statement], times: int) -> Iterator[tuple[Op, int]]:
    """The ops of a body in order, and how often all warps together execute each."""
    for statement in body:
        if isinstance(statement, Op):
            yield statement, times
        elif isinstance(statement, Loop):
            trips = statement.trips.value if isinstance(statement.trips, Const) and not statement.again else 1
            yield from _executed(statement.body, times * trips)


def _of_row(line: str, row: Sequence[int], boxes: Sequence[Sequence[int]], times: int) -> AccessLine:
    """What the lowered row of an op asks for in all."""
    conflicts = row[Col.CONFLICTS] * (row[Col.COUNT] if row[Col.KIND] == Kind.SHARED else 1)
    if row[Col.KIND] not in _GLOBAL:
        return AccessLine(line, conflicts * times)
    box = boxes[row[Col.BOX]]
    extents = [box[Box.EXPR0 + 4 * d + 3] for d in range(box[Box.DIMS])]
    row_bytes = extents.pop(box[Box.COL_DIM]) * box[Box.ELEMENT]
    lines = times * prod(extents)
    sectors = -(-row_bytes // _SECTOR_BYTES)
    return AccessLine(line, 0, times * row[Col.COUNT], lines * sectors * _SECTOR_BYTES, lines * row_bytes)


def _sum(one: AccessLine, other: AccessLine) -> AccessLine:
    """Both together."""
    return AccessLine(
        one.line,
        one.conflict_ticks + other.conflict_ticks,
        one.requests + other.requests,
        one.sector_bytes + other.sector_bytes,
        one.used_bytes + other.used_bytes,
    )
