"""One warp in the replay: its program, its rows of the log, its registers and what it has in flight."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from sim.gpu.check.contents import Array, blank
from sim.gpu.check.findings import What
from sim.gpu.check.gates import Groups
from sim.gpu.check.happens_before import Clock, Clocks
from sim.gpu.check.instances import Box, Instance, Place, run_warp, warp_roles
from sim.gpu.language import Kernel, RegisterTile
from sim.gpu.language.ops import GROUPS, Group, OpSpec
from sim.gpu.units.events import Event


@dataclass(slots=True)
class PendingOp:
    """Registers that an unfinished op of the same warp owns: a load's destination, or operands of an asynchronous op.

    group, epoch: of the asynchronous op, its number among those of its warp; None and 0 for a load.
    """

    box: Box
    write: bool
    scoreboard: str
    group: Group | None
    epoch: int
    done: int
    what: What


class Warp:
    """One warp of the launch; row: its row in `clocks`."""

    def __init__(
        self, kernel: Kernel, place: Place, number: int, rows: list[list[int]], clocks: Clocks, row: int
    ) -> None:
        self.place, self.number, self.clocks, self.row = place, number, clocks, row
        role, self.in_role = warp_roles(kernel)[number]
        self.role = role.name
        self.role_warps = role.warps
        self.program: Generator[Instance, int, None] = run_warp(kernel, place, number)
        self.rows, self.next_row = rows, 0
        self.registers: dict[str, Array] = {}
        self.pending: list[PendingOp] = []
        self.scoreboards: dict[str, int] = {}  # name -> ticks at which its last signal is done
        # Register tiles used since the group's last register fence; a group without entry had none.
        self.unfenced: dict[Group, set[str]] = {}
        self.groups = {group: Groups() for group in GROUPS}
        self.generation = 0  # of the barrier that it waits at

    @property
    def clock(self) -> Clock:
        """What it knows now."""
        return self.clocks.of(self.row)

    def component(self, agent: int) -> int:
        """Its component for an agent."""
        return self.clocks.component(self.row, agent)

    def together(self, group: Group) -> range:
        """Clock rows of the warps that execute an op of `group` together with this one, itself included."""
        first = self.in_role - self.in_role % group.warps
        size = min(group.warps, self.role_warps - first)
        return range(self.row - self.in_role + first, self.row - self.in_role + first + size)

    def array(self, tile: RegisterTile) -> Array:
        """A register tile, NaN before it is written."""
        if tile.name not in self.registers:
            self.registers[tile.name] = blank(tile.shape, tile.dtype)
        return self.registers[tile.name]

    def match(self, number: int) -> list[int] | None:
        """The log's row for the next instance, op `number`, or None; rows of one tick may be in any order."""
        rows, at = self.rows, self.next_row
        i = at
        while i < len(rows) and rows[i][Event.T_ISSUE] == rows[at][Event.T_ISSUE]:
            if rows[i][Event.OP] == number:
                rows[at], rows[i] = rows[i], rows[at]
                self.next_row += 1
                return rows[at]
            i += 1
        return None


class Step(NamedTuple):
    """One op that a warp executes: what the language knows of it, and its row of the log."""

    warp: Warp
    instance: Instance
    spec: OpSpec
    row: list[int]
    what: What
