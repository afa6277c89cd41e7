"""Launches of which an even sample of the CTAs is simulated: the rest goes on at the pace of the sample's middle.

A kernel that stands for more CTAs than its grid has (`Kernel.stands_for`) is long, and its CTAs are alike. The pace is
taken where neither the first wave nor the tail shows; what the sample counts is scaled by its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from sim.app.families.choice import counted_cost
from sim.engine.clock import ps_to_ticks
from sim.gpu.engine.api import KernelResult, Launch
from sim.gpu.language import Kernel

SPANS = 4
"""Parts of the time that a launch may take over which its pace is taken."""
LEAST_WINDOWS = 5
"""Windows of the regulator that such a part has at the least: a shorter launch has no pace."""
SETTLED = 1.02
"""By how much a pace may have risen over half a span."""
STEADY = (0.1, 0.9)
"""Share of a sample's work between which its pace is taken."""


MOST_LEFT = 0.4
"""Share of its work after which a launch that is to be left goes on to its end."""


class Leave(NamedTuple):
    """When a launch is left, to be judged by its pace: at a share of its work, if simulating all of it costs more than
    `dear`. macs: that it multiplies, those of cut-off tiles included; 0: its work are its CTAs. rounds: of tiles; 0:
    those of its CTAs."""

    share: float
    dear: int
    macs: int
    rounds: float = 0.0


def sample_note(kernel: Kernel) -> str:
    """What a report says of a kernel of which a sample is simulated; empty of others."""
    if kernel.stands_for <= kernel.ctas:
        return ""
    simulated = f"{kernel.ctas} of {kernel.stands_for} CTAs are simulated"
    return f"Of {kernel.name}, which is long, {simulated}; the rest goes on at their pace."


class Pace:
    """How far a launch was when. Work is what it multiplies; of kernels without products, CTAs that have ended."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._seen: list[tuple[int, int, float]] = [(0, 0, 0.0)]
        self._from = 0  # where the last span began
        self._paces: list[float] = []  # work a picosecond in the spans so far

    def note(self, time_ps: int) -> None:
        """The launch has come to `time_ps`."""
        self._seen.append((time_ps, self.launch.macs_done, self.launch.share_done))

    def beyond(self, limit_ps: int, macs: int) -> bool:
        """Whether the launch takes longer than `limit_ps` even if it goes on as fast as it ever was over a quarter of
        that; not before its pace has settled. macs: what it multiplies at least; 0: not known, its CTAs count."""
        time_ps, done, share = self._seen[-1]
        span_ps = limit_ps // SPANS
        if time_ps < span_ps or self.launch.kernel.stands_for > self.launch.kernel.ctas:
            return False
        while self._seen[self._from + 1][0] <= time_ps - span_ps:
            self._from += 1
        before_ps, before, share_before = self._seen[self._from]
        left, more = (macs - done, done - before) if macs and done else (1 - share, share - share_before)
        self._paces.append(more / (time_ps - before_ps))
        if len(self._seen) - self._from < LEAST_WINDOWS or len(self._paces) < (len(self._seen) - self._from) // 2:
            return False
        earlier, best = self._paces[-((len(self._seen) - self._from) // 2)], max(self._paces)
        settled = 0 < self._paces[-1] <= SETTLED * earlier
        return settled and share < 1 and time_ps + left / best > limit_ps

    def left(self, leave: Leave) -> tuple[float, int]:
        """Share of its work that is done, and picoseconds that the launch takes at its pace, once it is left. 0 before,
        where all of it is cheap, and where much of it was done before anybody looked."""
        kernel, macs = self.launch.kernel, leave.macs
        done = [(at, multiplied / macs if macs else ended) for at, multiplied, ended in self._seen]
        rounds = leave.rounds or kernel.ctas / (self.launch.device.spec.sm.count * self.launch.occupancy.ctas)
        # Of CTAs on their way half is done, as they have begun one after the other.
        begun = 0.0 if macs else min(1.0, 1 / rounds) / 2
        share = done[-1][1] + begun
        if done[-1][1] < leave.share or share > MOST_LEFT or kernel.stands_for > kernel.ctas:
            return 0.0, 0
        if counted_cost(self.launch.counts) <= leave.dear * share:
            return 0.0, 0
        first = leave.share / 4
        begin_ps, end_ps = (_when(done, part, done[-1][0]) for part in (first, leave.share))
        if not macs:
            return share, round(end_ps / (leave.share + begun))
        # As many rounds as it has; what came before the first quarter is not steady. Where an SM has several CTAs,
        # those of the last round have it to themselves: between as slow as before and as fast as all of its together.
        resident = self.launch.occupancy.ctas
        slowest, fastest = ceil(rounds), ceil(rounds * resident) / resident
        whole = (slowest + fastest) / 2 / rounds if rounds > 1 else 1
        return share, round(begin_ps + (whole - first) * (end_ps - begin_ps) / (leave.share - first))

    def whole(self, result: KernelResult) -> KernelResult:
        """What the whole launch takes and counts; the result itself where it is no sample."""
        kernel = self.launch.kernel
        if kernel.stands_for <= kernel.ctas:
            return result
        times = kernel.stands_for / kernel.ctas
        more_ps = round((times - 1) * self._steady_ps(result.time_ps))
        ticks = result.ticks + ps_to_ticks(more_ps, result.clock_hz)
        return replace(
            result,
            ticks=ticks,
            time_ps=result.time_ps + more_ps,
            energy_fj=round(result.energy_fj * (result.time_ps + more_ps) / result.time_ps),
            counters={**_scaled(result.counters, times), "events": result.counters["events"]},
            memory=_scaled(result.memory, times),
            warp_states=_scaled(result.warp_states, times),
            barrier_waits=_scaled(result.barrier_waits, times),
            issue_slots=_stretched(result.issue_slots, ticks, result.ticks),
        )

    def _steady_ps(self, time_ps: int) -> float:
        """Time of the sample's work at its steady pace."""
        total = self._seen[-1][1]
        done = [(at, macs / total if total else share) for at, macs, share in self._seen]
        first, last = (_when(done, share, time_ps) for share in STEADY)
        return (last - first) / (STEADY[1] - STEADY[0])


def _when(done: list[tuple[int, float]], share: float, end_ps: int) -> float:
    """Time at which a share was done, between what was noted."""
    before = done[0]
    for at in done[1:]:
        if at[1] >= share:
            return before[0] + (at[0] - before[0]) * (share - before[1]) / (at[1] - before[1])
        before = at
    return float(end_ps)


def _scaled(counts: Mapping[str, int], times: float) -> dict[str, int]:
    return {name: round(count * times) for name, count in counts.items()}


def _stretched(slots: Mapping[str, int], ticks: int, before: int) -> dict[str, int]:
    """Slots of a longer time, which still add up to all of them."""
    found = {name: count * ticks // before for name, count in slots.items()}
    largest = max(found, key=lambda name: found[name])
    found[largest] += sum(slots.values()) // before * ticks - sum(found.values())
    return found
