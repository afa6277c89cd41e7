"""A dataflow section's timeline: stages with their firings and what they waited for, and the levels of their buffers.

Each cycle of a stage has its reason, as in the report: its launch (`reconfiguration`), work, what it waited for before
a firing and in it, and nothing left to do. A buffer holds a token from the tick at which its data are there until the
reader has let go of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from arch.errors import InputError
from sim.app.report.record import KernelRecord
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.rdu.engine import SectionResult
from sim.rdu.layout import Channels, Kind, Log, Reason, Stages

MOST_FIRINGS = 1 << 20


def section_timeline(facts: Mapping[str, str], result: SectionResult, record: KernelRecord, wanted: Wanted) -> Timeline:
    """A section that has run. facts: what was run. record: of its first launch. InputError for a window that holds
    nothing."""
    name = result.configuration.section.name
    if len(result.log) > MOST_FIRINGS or not len(result.log):
        raise InputError(f"trace: section {name} has {len(result.log)} firings in its log; take a smaller problem")
    found = Timeline(
        f"{facts['workload']} on {facts['machine']}",
        {
            **facts,
            "section": name,
            "cycles": str(record.cycles),
            "time": "1 ns in this trace is 1 cycle; 0 is the section's launch",
        },
    )
    root = found.track(f"{facts['machine']}: 1 ns = 1 cycle")
    _Collector(found, result, record).collect(root)
    part = found.within(wanted.first, wanted.last)
    if not part.slices:
        raise InputError(f"trace: nothing happens in this window; section {name} takes {record.cycles} cycles")
    return part


class _Collector:
    """Brings a section's firings into a timeline."""

    def __init__(self, found: Timeline, result: SectionResult, record: KernelRecord) -> None:
        self.found, self.configuration, self.ticks = found, result.configuration, result.ticks
        self.tables = result.configuration.tables
        self.outside = record.cycles - -(-result.ticks // TICKS_PER_CYCLE)
        parts = record.launch_ps.items()
        self.launch = {f"{name}_cycles": ps * record.clock_hz // PS_PER_S for name, ps in parts}
        self.firings: dict[int, list[np.ndarray]] = defaultdict(list)
        for row in result.log:
            self.firings[int(row[Log.STAGE])].append(row)
        for rows in self.firings.values():
            rows.sort(key=lambda row: int(row[Log.FIRING]))

    def collect(self, root: int) -> None:
        """Fills in stages, then buffers."""
        ready: dict[int, list[int]] = {}  # by channel, when the data of each token are there
        freed: dict[int, list[int]] = {}
        for c, channel in enumerate(self.tables.channel):
            producer, consumer = int(channel[Channels.PRODUCER]), int(channel[Channels.CONSUMER])
            latency = int(channel[Channels.READY_LATENCY])
            first = [0] * self.configuration.channels[c].read.initial
            ready[c] = first + [
                int(r[Log.COMMIT]) + latency for r in self._moving(producer, int(channel[Channels.TOKEN_LEVEL]))
            ]
            freed[c] = [int(r[Log.END]) for r in self._moving(consumer, int(channel[Channels.READ_LEVEL]))]
        for number, stage in enumerate(self.configuration.stages):
            self._stage(self.found.track(f"{stage.name} ({self._where(number)})", root), number)
        group = self.found.track("buffers", root)
        for c, units_of in enumerate(self.configuration.channels):
            track = self.found.counter(units_of.read.name, group, f"tokens of {units_of.read.depth}")
            changes: dict[int, int] = defaultdict(int)
            for tick in ready[c]:
                changes[self._cycle(tick)] += 1
            for tick in freed[c]:
                changes[self._cycle(tick)] -= 1
            level = 0
            for cycle, change in sorted(changes.items()):
                level += change
                self.found.sample(track, cycle, level)

    def _where(self, number: int) -> str:
        """How many units a stage has, and in which tiles of dies they stand."""
        units, grid = self.configuration.pcus[number], self.configuration.grid
        tiles = sorted(set(grid.tile_of(units).tolist())) if self.configuration.costs[number].pcus else []
        if not (grid.tile_rows or grid.tile_columns) or not tiles:
            return f"{len(units)} units"
        return f"{len(units)} units in tile{'s' if len(tiles) > 1 else ''} {', '.join(map(str, tiles))}"

    def _moving(self, stage: int, level: int) -> list[np.ndarray]:
        """Firings of a stage after which a counter below `level` moves on."""
        at = int(self.tables.stage[stage, Stages.STARTS]) + 1
        return [row for row in self.firings[stage] if self.tables.starts[at + int(row[Log.FIRING])] < level]

    def _stage(self, track: int, number: int) -> None:
        """Its launch, its firings in order, what was waited for before and in each, and nothing after the last."""
        self.found.add(track, 0, self.outside, "reconfiguration", "stall", self.launch)
        free = 0
        for row in self.firings[number]:
            start, end, late = int(row[Log.START]), int(row[Log.END]), int(row[Log.LATE])
            firing = {"firing": int(row[Log.FIRING])}
            if start > free:
                self._piece(track, free, start - late, Reason(int(row[Log.WAITED])), firing)
                self._piece(track, start - late, start, Reason.NETWORK, firing)
            worked = start + int(row[Log.WORKED])
            memory = worked + int(row[Log.MEMORY])
            work = Reason.NETWORK if self.tables.stage[number, Stages.KIND] == Kind.COLLECTIVE else Reason.BUSY
            self.found.add(
                track, self._cycle(start), self._cycle(worked), f"firing {firing['firing']}", "work",
                {**firing, "reason": work.name.lower()},
            )  # fmt: skip
            self._piece(track, worked, memory, Reason.MEMORY, firing)
            without = memory + int(row[Log.HELD_INPUT])
            roomless = without + int(row[Log.HELD_ROOM])
            self._piece(track, memory, without, Reason.NO_INPUT, firing)
            self._piece(track, without, roomless, Reason.NO_ROOM, firing)
            self._piece(track, roomless, end, Reason.NETWORK, firing)
            free = end
        self._piece(track, free, self.ticks, Reason.IDLE, {})

    def _piece(self, track: int, begin: int, end: int, reason: Reason, args: Mapping[str, str | int]) -> None:
        """Time that went into something else than work."""
        if end > begin:
            self.found.add(track, self._cycle(begin), self._cycle(end), reason.name.lower(), "stall", args)

    def _cycle(self, tick: int) -> int:
        return self.outside + tick // TICKS_PER_CYCLE
