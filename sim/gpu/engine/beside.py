"""A kernel of another stream beside those that the engine runs: a collective, whose time its links set.

Each of its CTAs holds an SM, for it leaves no registers (NCCL is compiled for 96 registers a thread and has up to 640
threads a CTA: 61,440 of an SM's 65,536; that kernels of serving frameworks leave no room either is assumed). SMs are
held from its start, or from the start of a kernel that comes later, until its end; CTAs that wait go there then.

What it has moved is read and written at the L2 and DRAM that kernels use, every `STEP_CYCLES`: as if it came in bursts
that short. Answers that come after its end, by more than memory takes when idle, make it longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.gpu.units.cta import CtaSlots
from sim.memory.counters import MemoryCounter
from sim.memory.l2 import read_lines, write_lines
from sim.memory.sets import VALID

if TYPE_CHECKING:
    from sim.gpu.engine.api import Device, Launch

STEP_CYCLES = 64
"""A limit of the simulation: a burst keeps a slice of the L2 for a few cycles, and DRAM answers in hundreds."""


class Region(NamedTuple):
    """Lines that are moved one after the other, again from the first behind the last. total: that are moved in all.
    written: written, not read."""

    first: int
    lines: int
    total: int
    written: bool = False


class Beside:
    """A collective of `ctas` CTAs that takes `time_ps` from its start, of which the last `moving_ps` move `regions`.

    counters: of the memory system, what it has added. late_ps: by how much its last answers come after its end.
    """

    def __init__(self, ctas: int, time_ps: int, moving_ps: int, regions: Sequence[Region]) -> None:
        self.ctas, self.time_ps, self.moving_ps, self.regions = ctas, time_ps, moving_ps, regions
        self.begin_ps = self.late_ps = 0
        self.counters = np.zeros(len(MemoryCounter), np.int64)
        self._moved = [0] * len(regions)

    @property
    def end_ps(self) -> int:
        """When it is over, on the clock of `begin_ps`."""
        return self.begin_ps + self.time_ps + self.late_ps

    def move(self, device: Device, clock_hz: int, tick: int, until_ps: int) -> np.ndarray:
        """Moves at `tick` what is due until `until_ps`; what that has added to the counters of the memory system."""
        memory, spec = device.memory, device.memory_spec(clock_hz)
        before = memory.counters.copy()
        since_ps = until_ps - (self.begin_ps + self.time_ps - self.moving_ps)
        last = tick
        for number, region in enumerate(self.regions):
            due = region.total if since_ps >= self.moving_ps else max(0, region.total * since_ps // self.moving_ps)
            for partition in range(spec.partitions):
                # Half of a burst by CTAs of each half of the chip.
                upto = self._moved[number] + (due - self._moved[number]) // (spec.partitions - partition)
                while self._moved[number] < upto:
                    at = self._moved[number] % region.lines
                    count = min(upto - self._moved[number], region.lines - at)
                    if region.written:
                        answer = write_lines(spec, memory, tick, 0, partition, region.first + at, count)
                    else:
                        answer = read_lines(spec, memory, tick, 0, partition, region.first + at, count, VALID)
                    last = max(last, int(answer))
                    self._moved[number] += count
        added = memory.counters - before
        self.counters += added
        waited = last - tick - spec.far_latency - spec.dram.latency
        if waited > 0:
            answered_ps = until_ps + waited * PS_PER_S // (TICKS_PER_CYCLE * clock_hz)
            self.late_ps = max(self.late_ps, answered_ps - self.begin_ps - self.time_ps)
        return np.asarray(added)


class Held:
    """SMs without work of a launch, which a collective beside it holds, as many as it has CTAs where there are.

    added: what the collective has added to the counters of the memory system while this kernel ran.
    """

    def __init__(self, beside: Beside, launch: Launch) -> None:
        self.beside, self.launch = beside, launch
        self.added = np.zeros(len(MemoryCounter), np.int64)
        self._sms = launch.idle_sms()[: beside.ctas]
        launch.state.sms[self._sms, CtaSlots.FREE] = 0

    @property
    def over(self) -> bool:
        """Whether it has handed them back."""
        return not len(self._sms)

    def step(self, tick: int) -> None:
        """What the collective has moved until a tick of the launch; hands SMs back if it has ended."""
        launch, beside = self.launch, self.beside
        now_ps = launch.now_ps(tick)
        self.added += beside.move(launch.device, launch.clock_hz, tick, now_ps)
        if now_ps >= beside.end_ps:
            launch.state.sms[self._sms, CtaSlots.FREE] = launch.occupancy.ctas
            self._sms = self._sms[:0]
