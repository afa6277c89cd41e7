"""A dataflow section's timeline: stages with their firings and what they waited for, and the levels of their buffers.

A wait that ends when a token arrives is `no_input`, any other `no_room`. A buffer holds a token from the tick at which
its reader can take it until the reader has let go of it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from arch.errors import InputError
from arch.rdu import RduSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.engine import SectionResult
from sim.rdu.layout import L, Q, S
from sim.runners import rdu
from sim.runners.options import Options, Progress, version
from sim.trace.timeline import Timeline
from sim.trace.window import Wanted
from workloads.ops import AllReduce, CopyH2D, Operator

MOST_FIRINGS = 1 << 20


def trace(
    asked: Operator, spec: RduSpec, options: Options, wanted: Wanted, progress: Progress | None = None
) -> Timeline:
    """Runs an operator and records one of its sections. InputError for a window that holds nothing."""
    if isinstance(asked, CopyH2D | AllReduce):
        raise InputError(f"{asked}: alone on {spec.name} it is one transfer, without a timeline")
    done = rdu.chosen_run(asked, spec, options.schedule, progress)
    results = list(done.results.values())
    number = wanted.kernel or 0
    if number >= len(results):
        raise InputError(f"--kernel {number}: {done.program.name} has sections 0 to {len(results) - 1}")
    result = results[number]
    section = result.configuration.section
    if len(result.log) > MOST_FIRINGS or not len(result.log):
        raise InputError(
            f"trace: section {section.name} has {len(result.log)} firings in its log; take a smaller problem"
        )
    cycles = -(-result.ticks // TICKS_PER_CYCLE)
    found = Timeline(
        f"{asked} on {spec.name}",
        {
            "workload": str(asked),
            "machine": spec.name,
            "schedule": done.program.schedule,
            "section": section.name,
            "cycles": str(cycles),
            "time": "1 ns in this trace is 1 cycle; 0 is the section's first start after its configuration",
            "simulator": f"tilewave {version()}",
        },
    )
    root = found.track(f"{spec.name}: 1 ns = 1 cycle")
    _Collector(found, result).collect(root)
    part = found.within(wanted.first, wanted.last)
    if not part.slices:
        raise InputError(f"trace: nothing happens in this window; section {section.name} takes {cycles} cycles")
    return part


class _Collector:
    """Brings a section's firings into a timeline."""

    def __init__(self, found: Timeline, result: SectionResult) -> None:
        self.found, self.configuration = found, result.configuration
        self.tables = result.configuration.tables
        self.firings: dict[int, list[np.ndarray]] = defaultdict(list)
        for row in result.log:
            self.firings[int(row[L.STAGE])].append(row)
        for rows in self.firings.values():
            rows.sort(key=lambda row: int(row[L.FIRING]))

    def collect(self, root: int) -> None:
        """Fills in stages, then buffers."""
        ready: dict[int, list[int]] = {}  # by channel, when each token can be taken
        freed: dict[int, list[int]] = {}
        for c, channel in enumerate(self.tables.channel):
            producer, consumer = int(channel[Q.PRODUCER]), int(channel[Q.CONSUMER])
            latency = int(channel[Q.READY_LATENCY])
            first = [0] * self.configuration.channels[c].read.initial
            ready[c] = first + [int(r[L.COMMIT]) + latency for r in self._moving(producer, int(channel[Q.TOKEN_LEVEL]))]
            freed[c] = [int(r[L.END]) for r in self._moving(consumer, int(channel[Q.READ_LEVEL]))]
        for number, stage in enumerate(self.configuration.stages):
            units = len(self.configuration.pcus[number])
            self._stage(self.found.track(f"{stage.name} ({units} units)", root), number, ready)
        group = self.found.track("buffers", root)
        for c, units_of in enumerate(self.configuration.channels):
            track = self.found.counter(units_of.read.name, group, f"tokens of {units_of.read.depth}")
            changes: dict[int, int] = defaultdict(int)
            for tick in ready[c]:
                changes[tick // TICKS_PER_CYCLE] += 1
            for tick in freed[c]:
                changes[tick // TICKS_PER_CYCLE] -= 1
            level = 0
            for cycle, change in sorted(changes.items()):
                level += change
                self.found.sample(track, cycle, level)

    def _moving(self, stage: int, level: int) -> list[np.ndarray]:
        """Firings of a stage after which a counter below `level` moves on."""
        at = int(self.tables.stage[stage, S.STARTS]) + 1
        return [row for row in self.firings[stage] if self.tables.starts[at + int(row[L.FIRING])] < level]

    def _stage(self, track: int, number: int, ready: dict[int, list[int]]) -> None:
        """Firings one after the other, and between them what was waited for."""
        row = self.tables.stage[number]
        inputs = [int(c) for c in self.tables.ports[row[S.INPUTS] : row[S.INPUTS_END]]]
        taken = dict.fromkeys(inputs, -1)
        free = 0
        for firing in self.firings[number]:
            f, start, end = int(firing[L.FIRING]), int(firing[L.START]), int(firing[L.END])
            awaited = False
            for c in inputs:
                if f == 0 or self.tables.starts[int(row[S.STARTS]) + f] < self.tables.channel[c, Q.READ_LEVEL]:
                    taken[c] += 1
                awaited |= 0 <= taken[c] < len(ready[c]) and ready[c][taken[c]] == start
            if start > free:
                name = "no_input" if awaited else "no_room"
                self.found.add(track, free // TICKS_PER_CYCLE, start // TICKS_PER_CYCLE, name, "stall")
            self.found.add(
                track, start // TICKS_PER_CYCLE, end // TICKS_PER_CYCLE, f"firing {f}", "work", {"firing": f}
            )
            free = end
