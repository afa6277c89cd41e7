"""A Gemmini's timeline: its queues of loads, products and stores, and the tiles that are at work, two at a time."""

from __future__ import annotations

from collections.abc import Mapping

from arch.errors import InputError
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.gemmini.machine import QUEUES, Result

_WORK = ("busy", "active")
"""What a queue does; everything else it waits for."""

_HALVES = 2
"""Of the scratchpad, which tiles take in turn."""


def mapping_timeline(facts: Mapping[str, str], result: Result, wanted: Wanted) -> Timeline:
    """A mapping that has run, recorded. facts: what was run. InputError for a window that holds nothing."""
    found = Timeline(
        f"{facts['workload']} on {facts['machine']}",
        {
            **facts,
            "cycles": str(result.cycles),
            "time": "1 ns in this trace is 1 cycle; 0 is when the core starts the first tile",
        },
    )
    root = found.track(f"{facts['machine']}: 1 ns = 1 cycle")
    halves = [found.track(f"tiles, half {half}", root) for half in range(_HALVES)]
    free = [0] * _HALVES
    for number, (begin, end) in enumerate(result.tiles):
        half = number % _HALVES
        begin = max(begin, free[half])  # the last command of the tile before may be sent in the same cycle
        free[half] = max(begin, end)
        if free[half] > begin:
            found.add(halves[half], begin, free[half], f"tile {number}", "work")
    tracks = {name: found.track(name, root) for name in QUEUES}
    for span in result.spans:
        category = "work" if span.cause in _WORK else "stall"
        found.add(tracks[span.queue], span.begin, span.end, span.cause, category, {"tile": span.tile})
    left = max((span.end for span in result.spans if span.queue == "array"), default=0)
    found.add(tracks["array"], left, result.cycles, "drain", "stall")
    part = found.within(wanted.first, wanted.last)
    if not part.slices:
        raise InputError(f"trace: nothing happens in this window; the mapping takes {result.cycles} cycles")
    return part
