"""Launches around sections, in SimPy: configuration, arguments, execution, prefetch from DDR; int64 picoseconds.

A kernel is three commands: program load (only when another configuration is on the chip), argument load, execute. The
host gives them one kernel at a time and hears of its end, or an AGCU works through a static schedule. Sockets that
share a kernel begin together: what one sends to another must find it configured. Arrays that a section needs from DDR
are copied to HBM by a process of its own, which runs ahead while other sections compute, as far as the room set aside
in HBM lets it; the copy takes its share of HBM's bandwidth from them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.engine.clock import PS_PER_S
from sim.link.collective import collective, fabric_of

FIGURES = (
    "ddr.bandwidth",
    "ddr.latency",
    "hbm.bandwidth",
    "launch.argument_load",
    "launch.execute",
    "launch.hardware",
    "launch.host",
    "launch.program_load",
)
"""Figures of a preset that this module reads."""

Process = Generator[simpy.Event, Any, None]

PARTS = ("orchestration", "prefetch", "program_load", "argument_load", "synchronisation", "execute", "execution")
"""What a launch's time is spent on, in its order; `prefetch` is what was waited for."""


@dataclass(frozen=True)
class Launch:
    """One kernel call: what is configured, for how long it runs, what must be in HBM before."""

    configuration: int
    """Number of the section: launches of the same one need no program load."""
    time_ps: int
    """Execution alone on the chip."""
    prefetch_bytes: int = 0
    memory_ps: int = 0
    """Of `time_ps`, what the section's bytes keep external memory busy."""


@dataclass
class Timeline:
    """Where the time of a program went; picoseconds."""

    total_ps: int = 0
    launches: list[dict[str, int]] = field(default_factory=list)
    """By launch, time by part."""
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """(configuration, start, end) of each execution."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) of each copy from DDR."""

    @property
    def parts(self) -> dict[str, int]:
        """Time of all launches by part; sums to the total."""
        return {part: sum(launch.get(part, 0) for launch in self.launches) for part in PARTS}


def copy_ps(spec: RduSpec, size_bytes: int) -> int:
    """Time of a copy from DDR to HBM: its latency, then the slower of the two memories."""
    rate = min(spec.ddr.bandwidth_bytes_per_s, spec.main_memory.bandwidth_bytes_per_s)
    return spec.ddr.latency_ps + size_bytes * PS_PER_S // rate


def synchronisation_ps(spec: RduSpec, devices: int) -> int:
    """Until every socket knows that all others have their configuration: a message without bytes to each."""
    return collective(fabric_of(spec, devices), "all_reduce", "one_shot", 0).time_ps if devices > 1 else 0


def run_launches(
    spec: RduSpec,
    launches: Sequence[Launch],
    orchestration: str,
    *,
    configured: int | None = None,
    devices: int = 1,
    room_bytes: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Timeline:
    """Plays launches one after the other.

    configured: the section that is on the chip at the start. devices: sockets that run each launch together.
    room_bytes: of HBM, for what is copied ahead (default: without bound); a launch's share is free when it has ended.
    """
    most = max((launch.prefetch_bytes for launch in launches), default=0)
    if room_bytes is not None and most > room_bytes:
        raise InputError(
            f"prefetch: a launch needs {BYTES.format(most)} from DDR, {BYTES.format(room_bytes)} of HBM are free for it"
        )
    return _Sequence(spec, launches, orchestration, configured, devices, room_bytes, progress).run()


class _Sequence:
    """Two processes: launches in their order, and copies that run ahead of them."""

    def __init__(
        self,
        spec: RduSpec,
        launches: Sequence[Launch],
        orchestration: str,
        configured: int | None,
        devices: int,
        room_bytes: int | None,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.spec, self.launches, self.loaded, self.progress = spec, launches, configured, progress
        self.command_ps = spec.launch.host_ps if orchestration == "host" else spec.launch.hardware_ps
        self.synchronisation_ps = synchronisation_ps(spec, devices)
        self.env = simpy.Environment()
        self.timeline = Timeline()
        self.ready = [self.env.event() for _ in launches]
        room = sum(launch.prefetch_bytes for launch in launches) if room_bytes is None else room_bytes
        self.room = simpy.Container(self.env, max(room, 1), max(room, 1))
        self.copying = False
        self.changed = self.env.event()

    def run(self) -> Timeline:
        """Plays them all."""
        self.env.process(self._prefetch())
        self.env.run(self.env.process(self._launch_all()))
        self.timeline.total_ps = int(self.env.now)
        return self.timeline

    def _prefetch(self) -> Process:
        for launch, event in zip(self.launches, self.ready, strict=True):
            if launch.prefetch_bytes:
                yield self.room.get(launch.prefetch_bytes)
                self._switch(copying=True)
                start = int(self.env.now)
                yield self.env.timeout(copy_ps(self.spec, launch.prefetch_bytes))
                self.timeline.copies.append((start, int(self.env.now)))
                self._switch(copying=False)
            event.succeed()

    def _switch(self, *, copying: bool) -> None:
        """A copy begins or ends: what executes finds another bandwidth."""
        self.copying = copying
        self.changed.succeed()
        self.changed = self.env.event()

    def _launch_all(self) -> Process:
        times = self.spec.launch
        for i, launch in enumerate(self.launches):
            parts: dict[str, int] = {}
            self.timeline.launches.append(parts)
            yield from self._timed(parts, "orchestration", self.env.timeout(self.command_ps))
            yield from self._timed(parts, "prefetch", self.ready[i])
            if launch.configuration != self.loaded:
                yield from self._timed(parts, "program_load", self.env.timeout(times.program_load_ps))
                self.loaded = launch.configuration
            yield from self._timed(parts, "argument_load", self.env.timeout(times.argument_load_ps))
            yield from self._timed(parts, "synchronisation", self.env.timeout(self.synchronisation_ps))
            yield from self._timed(parts, "execute", self.env.timeout(times.execute_ps))
            start = int(self.env.now)
            yield from self._timed(parts, "execution", self.env.process(self._execute(launch)))
            self.timeline.spans.append((launch.configuration, start, int(self.env.now)))
            if launch.prefetch_bytes:
                yield self.room.put(launch.prefetch_bytes)
            if self.progress is not None:
                self.progress((i + 1) / len(self.launches))

    def _timed(self, parts: dict[str, int], part: str, event: simpy.Event) -> Process:
        before = int(self.env.now)
        yield event
        parts[part] = int(self.env.now) - before

    def _execute(self, launch: Launch) -> Process:
        """A section's execution, slower while a copy leaves it less of HBM's bandwidth than it needs."""
        left = launch.time_ps
        while left:
            needs = self._slowed(launch, left) if self.copying else left
            begun, changed = int(self.env.now), self.changed
            end = self.env.timeout(needs)
            yield end | changed
            elapsed = int(self.env.now) - begun
            left = 0 if elapsed >= needs else left - left * elapsed // needs

    def _slowed(self, launch: Launch, left: int) -> int:
        """Time for what is `left` of an execution while a copy writes to HBM."""
        whole = self.spec.main_memory.bandwidth_bytes_per_s
        free = whole - min(whole - 1, self.spec.ddr.bandwidth_bytes_per_s)
        return max(left, left * launch.memory_ps * whole // (max(launch.time_ps, 1) * free))
