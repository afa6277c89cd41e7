"""A TPU's timeline: each unit with what its time went into, and the levels of the weight FIFOs."""

from __future__ import annotations

from collections.abc import Mapping

from arch.errors import InputError
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import TICKS_PER_CYCLE
from sim.tpu.machine import Result

_WORK = ("busy", "active", "accumulators", "vector", "vector_unit")
"""What a unit does; everything else it waits for."""


def program_timeline(facts: Mapping[str, str], result: Result, wanted: Wanted) -> Timeline:
    """A program that has run, recorded. facts: what was run. InputError for a window that holds nothing."""
    cycles = -(-result.ticks // TICKS_PER_CYCLE)
    found = Timeline(
        f"{facts['workload']} on {facts['machine']}",
        {
            **facts,
            "cycles": str(cycles),
            "time": "1 ns in this trace is 1 cycle; 0 is the first instruction sent by the host",
        },
    )
    root = found.track(f"{facts['machine']}: 1 ns = 1 cycle")
    for name, spans in result.spans.items():
        track = found.track(name, root)
        for cause, begin, end in spans:
            category = "work" if cause in _WORK else "stall"
            found.add(track, begin // TICKS_PER_CYCLE, end // TICKS_PER_CYCLE, cause, category)
    for array, levels in result.fifo_levels.items():
        track = found.counter(f"weight FIFO {array}", root, "tiles")
        at_once = dict(levels)  # of several changes at one tick the last holds
        for tick, level in at_once.items():
            found.sample(track, tick // TICKS_PER_CYCLE, level)
    part = found.within(wanted.first, wanted.last)
    if not part.slices:
        raise InputError(f"trace: nothing happens in this window; the program takes {cycles} cycles")
    return part
