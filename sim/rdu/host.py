"""Launches around sections, in SimPy: configuration, arguments, execution, prefetch from DDR; int64 picoseconds.

A kernel is three commands: program load (only when another configuration is on the chip), argument load, execute. The
host gives them one kernel at a time and hears of its end, or an AGCU works through a static schedule. Tensors that a
section needs from DDR are copied to HBM by a process of its own, which runs ahead while other sections compute.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from arch.rdu import RduSpec
from sim.engine.clock import PS_PER_S

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Launch:
    """One kernel call: what is configured, for how long it runs, what must be in HBM before."""

    configuration: int
    """Number of the section: launches of the same one need no program load."""
    time_ps: int
    prefetch_bytes: int = 0


@dataclass
class Timeline:
    """Where the time of a program went; picoseconds."""

    total_ps: int = 0
    parts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("execution", "program_load", "argument_load", "execute", "orchestration", "prefetch"), 0
        )
    )
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """(configuration, start, end) of each execution."""


def run_launches(
    spec: RduSpec,
    launches: Sequence[Launch],
    orchestration: str,
    *,
    configured: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Timeline:
    """Plays launches one after the other. configured: the section that is on the chip at the start."""
    env = simpy.Environment()
    timeline = Timeline()
    ready = [env.event() for _ in launches]
    memory = spec.ddr

    def prefetch() -> Process:
        for launch, event in zip(launches, ready, strict=True):
            if launch.prefetch_bytes:
                yield env.timeout(memory.latency_ps + launch.prefetch_bytes * PS_PER_S // memory.bandwidth_bytes_per_s)
            event.succeed()

    def wait(part: str, time_ps: int) -> Process:
        timeline.parts[part] += time_ps
        yield env.timeout(time_ps)

    def sequence() -> Process:
        loaded = configured
        command_ps = spec.launch.host_ps if orchestration == "host" else spec.launch.hardware_ps
        for i, launch in enumerate(launches):
            yield from wait("orchestration", command_ps)
            before = int(env.now)
            yield ready[i]
            timeline.parts["prefetch"] += int(env.now) - before
            if launch.configuration != loaded:
                yield from wait("program_load", spec.launch.program_load_ps)
                loaded = launch.configuration
            yield from wait("argument_load", spec.launch.argument_load_ps)
            yield from wait("execute", spec.launch.execute_ps)
            start = int(env.now)
            yield from wait("execution", launch.time_ps)
            timeline.spans.append((launch.configuration, start, int(env.now)))
            if progress is not None:
                progress((i + 1) / len(launches))

    env.process(prefetch())
    env.run(env.process(sequence()))
    timeline.total_ps = int(env.now)
    return timeline
