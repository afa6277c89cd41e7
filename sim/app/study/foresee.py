"""How long a sweep will take, from a few of its points: these are simulated, and their results are kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.study.sweep import Sweep

SAMPLE = 5
"""Points that are tried."""


@dataclass(frozen=True)
class Foreseen(Shown):
    """What a sweep of `points` will cost. seconds: of CPU that each of the points took that were tried and were in no
    store. workers: processes that would share the work."""

    points: int
    seconds: Sequence[float]
    workers: int

    @property
    def core_s(self) -> float:
        """Seconds of one core that all points take; 0 where all that were tried were in the store."""
        return self.points * sum(self.seconds) / len(self.seconds) if self.seconds else 0.0

    def sections(self) -> list[Section]:
        """The estimate in lines."""
        if not self.seconds:
            return [Section("What it will take", (("points", f"{self.points:,}; those tried are in the store"),))]
        each = f"{min(self.seconds):.2g} to {max(self.seconds):.2g} s of a core each, {len(self.seconds)} tried"
        shared = _time(self.core_s / self.workers)
        rows = (
            ("points", f"{self.points:,}: {each}"),
            ("on one core", _time(self.core_s)),
            ("here", f"{shared} with {self.workers} workers" if self.workers > 1 else f"{shared} with one worker"),
            ("a job of eight", f"{_time(self.core_s / 8)} on one core each (--shard I/8)"),
        )
        return [Section("What it will take", rows)]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"points": self.points, "tried_s": list(self.seconds), "core_s": self.core_s, "workers": self.workers}


def foresee(run: Callable[..., Sweep], workers: int | None) -> Foreseen:
    """Has `run`, a sweep without the words below, try a few points in this process, and times each."""
    ends: list[tuple[int, float]] = []
    found = run(sample=SAMPLE, workers=1, progress=lambda done, _: ends.append((done, time.process_time())))
    seconds = [after - before for (first, before), (last, after) in pairwise(ends) if last > first]
    return Foreseen(found.points, seconds, workers or os.cpu_count() or 1)


def _time(seconds: float) -> str:
    """A time with two digits, in the unit that suits it."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} s"
