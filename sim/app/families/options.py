"""What can be asked of a run beside operator and machine, and what all families' runners share."""

from __future__ import annotations

import difflib
import resource
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from importlib import metadata
from typing import Any, Self

from arch.errors import InputError
from sim.app.report.record import SimulatorStats

Progress = Callable[[float], None]
"""Called with the share done, 0 to 1."""


@dataclass(frozen=True)
class Options:
    """Options of a run; `sim.app.run.simulate` says what they mean."""

    schedule: str = "auto"
    check: bool = False
    exact: bool = False
    l2: str = "cold"
    scope: str = "kernel"
    clock: str = "isolated"
    data: str = "normal"
    tune: bool = False
    program: str = ""

    def beyond(self, known: Collection[str]) -> list[str]:
        """Names of options that are not at their default and not in `known`."""
        return [f.name for f in fields(self) if f.name not in known and getattr(self, f.name) != f.default]

    def only(self, known: Collection[str]) -> Self:
        """With every option outside `known` at its default."""
        defaults: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name not in known}
        return replace(self, **defaults)


def one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    """InputError, with the nearest right word, if `value` is not one of `allowed`."""
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.0)[0]
        raise InputError(f"{option}={value}: must be one of {', '.join(allowed)}; did you mean {near}?")


def part(progress: Progress | None, i: int, count: int) -> Progress | None:
    """Progress of part `i` of `count` equal ones."""
    return None if progress is None else lambda share: progress((i + share) / count)


def version() -> str:
    """Version of the installed program; `0+unknown` where it is not installed."""
    try:
        return metadata.version("tilewave")
    except metadata.PackageNotFoundError:
        return "0+unknown"


class Cost:
    """What a simulation costs, counted from the moment at which this is made."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.perf_counter()

    def stats(self, events: int, **counts: int) -> SimulatorStats:
        """The cost so far. events, counts: what the engine counted."""
        unit = 1 if sys.platform == "darwin" else 1024
        return SimulatorStats(
            version=version(),
            events=events,
            cpu_s=time.process_time() - self._cpu_s,
            wall_s=time.perf_counter() - self._wall_s,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
            **counts,
        )
