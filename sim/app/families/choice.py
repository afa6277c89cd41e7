"""Which of an operator's candidates runs: the estimate first, then the simulation of those that it cannot tell apart.

An estimate states its error (`workloads.estimates`): a candidate whose estimate is within it of the best one may be
the fastest. `auto` simulates these until what all took is `DEAREST` times what the fastest takes alone, or as much as
a small problem costs; within the latter, it also simulates what the best estimate has without one of its mechanisms,
whatever the estimates say. What the estimate does not see is much the same for all that computes in one way, so the
best of each way comes first, and then the better estimate. Once choosing costs more than a small problem, nothing is
simulated that cannot be faster by `MISSED_PERCENT`, where estimates of its way say how short it can be at the least.
Tuning simulates every candidate. A candidate is given up as soon as it has taken longer than the fastest so far. What
a simulation costs is counted in events of the engine and not in seconds, so that every machine chooses alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from arch.errors import InputError
from sim.app.families.family import LateError, Plan, Ran
from sim.app.families.request import Progress, part
from sim.app.trace.window import TooMuchError
from workloads.estimates import excess_percent

DEAREST = 3
"""What choosing may cost: so many times the simulation of what is chosen."""
SMALL_EVENTS = 600_000
"""Events that choosing may take in any case: 0.2 s on one core, which does some three million a second."""
ALIKE_PERMILLE = 5
"""Within which two simulated times say nothing about which kernel is faster."""
MISSED_PERCENT = 2
"""By how much the chosen one may be slower than the best: what the choice is measured by (`scripts/whatif_laws.py`)."""


@dataclass(frozen=True)
class Kept:
    """What the simulation of a candidate gave, as it is remembered. cycles, device_ps: None of one that was given up.
    limit_ps: that it was given. events: of the engine."""

    events: int
    limit_ps: int | None = None
    cycles: int | None = None
    device_ps: int | None = None


class Memory(Protocol):
    """What simulations of a request's candidates gave, by schedule."""

    def get(self, schedule: str) -> Kept | None:
        """What one gave; None if that is not known."""

    def put(self, schedule: str, kept: Kept) -> None:
        """Remembers it."""


@dataclass(frozen=True)
class Timed:
    """A candidate whose simulation is remembered: enough to choose by."""

    cycles: int
    device_ps: int
    events: int

    @property
    def counts(self) -> Mapping[str, int]:
        """As `Ran.counts`."""
        return {"events": self.events}


@dataclass(frozen=True)
class Late:
    """A candidate that was given up. events: of the engine until then."""

    events: int

    @property
    def counts(self) -> Mapping[str, int]:
        """As `Ran.counts`."""
        return {"events": self.events}


@dataclass(frozen=True)
class Tried:
    """What became of candidates, by their number: those that have run, those that were refused, with the reason, and
    those that were given up, with the time in picoseconds than which they take longer. events: what all cost. simpler:
    numbers of those that lack a mechanism of the best one."""

    runs: Mapping[int, Ran | Timed]
    refused: Mapping[int, InputError] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    events: int = 0
    simpler: Collection[int] = ()

    @property
    def chosen(self) -> int:
        """Number of the fastest; of equals the one with the better estimate. One that lacks a mechanism must be faster
        than chance: nobody would write it for less."""
        fastest = self._fastest(self.runs)
        limit = self.runs[fastest].device_ps * (1000 + ALIKE_PERMILLE)
        whole = [number for number in self.runs if number not in self.simpler]
        alike = [number for number in whole if self.runs[number].device_ps * 1000 <= limit]
        return self._fastest(alike) if fastest in self.simpler and alike else fastest

    def _fastest(self, numbers: Collection[int]) -> int:
        return min(numbers, key=lambda number: self.runs[number].device_ps)

    @property
    def best(self) -> Ran:
        """What came of it."""
        best = self.runs[self.chosen]
        assert not isinstance(best, Timed)
        return best


def contenders(plan: Plan, tune: bool = False) -> list[int]:
    """Numbers of the candidates that may be the fastest by what the estimate says of itself, in the order of the list;
    all that are to be tuned. Where there is no choice, the one that runs.

    What the best one is without a mechanism stands last in the list, and comes where its estimate belongs.
    """
    numbers = range(len(plan.candidates))
    if tune or not plan.candidates:
        return list(numbers) or [0]
    estimates = [cycles for _, cycles in plan.candidates]
    limit = estimates[0] * (100 + plan.error_percent)
    near = [number for number in numbers if 100 * estimates[number] <= limit]
    levels = dict(zip(near, accumulate((estimates[number] for number in near), max), strict=True))
    return sorted(near, key=lambda number: estimates[number] if number in plan.simpler else levels[number])


def decide(plan: Plan, tune: bool = False, progress: Progress | None = None, memory: Memory | None = None) -> Tried:
    """Simulates candidates as far as choosing is worth it; InputError where none fits the machine.

    Candidates that do not fit are passed over, beyond the contenders if need be. What `memory` knows is not simulated
    again, but for what is chosen; it counts as if it were, so that the choice is the same with and without it.
    """
    runs: dict[int, Ran | Timed] = {}
    refused: dict[int, InputError] = {}
    late: dict[int, int] = {}
    costs: dict[int, int] = {}
    wanted = contenders(plan, tune)
    estimates, ways = [cycles for _, cycles in plan.candidates], plan.ways or [""] * len(plan.candidates)
    rivals = [number for number in wanted[1:] if _may_be_faster(ways[number], estimates[number], estimates[wanted[0]])]
    count = len(wanted) if tune else min(1 + len(rivals), DEAREST)  # that will run, about
    for number in _order(plan, wanted, tune):
        if runs and not tune:
            if not _wanted(plan, number, wanted, runs, costs):
                break
            fastest = min(ran.cycles for ran in runs.values())
            if sum(costs.values()) > SMALL_EVENTS and not _may_be_faster(ways[number], estimates[number], fastest):
                continue
        limit_ps = min((ran.device_ps for ran in runs.values()), default=None)
        share = part(progress, min(len(costs), count - 1), count)
        try:
            ran = _simulated(plan, number, share, limit_ps, memory if len(wanted) > 1 else None)
        except TooMuchError:
            raise
        except InputError as error:
            refused[number] = error
            continue
        costs[number] = cost_of(plan, ran)
        if isinstance(ran, Late):
            late[number] = limit_ps or 0
        else:
            runs[number] = ran
    if not runs:
        raise next(iter(refused.values()))
    tried = Tried(runs, refused, late, sum(costs.values()), plan.simpler)
    if isinstance(runs[tried.chosen], Timed):
        runs[tried.chosen] = plan.run(tried.chosen, progress)
    return tried


def _simulated(
    plan: Plan, number: int, progress: Progress | None, limit_ps: int | None, memory: Memory | None
) -> Ran | Timed | Late:
    """A candidate's simulation under a limit, or what is remembered of it: only what would be the same again."""
    schedule = plan.candidates[number][0] if plan.candidates else ""
    kept = memory.get(schedule) if memory else None
    if kept is not None and kept.device_ps is not None and kept.cycles is not None:
        if limit_ps is None or kept.device_ps <= limit_ps or kept.limit_ps == limit_ps:
            return Timed(kept.cycles, kept.device_ps, kept.events)
    elif kept is not None and kept.limit_ps == limit_ps:
        return Late(kept.events)
    try:
        ran = plan.run(number, progress, limit_ps=limit_ps)
    except LateError as error:
        if memory:
            memory.put(schedule, Kept(error.events, limit_ps))
        return Late(error.events)
    if memory:
        memory.put(schedule, Kept(ran.counts.get("events", 0), limit_ps, ran.cycles, ran.device_ps))
    return ran


def cost_of(plan: Plan, ran: Ran | Timed | Late) -> int:
    """What simulating a candidate cost, in events."""
    return ran.counts.get("events", 0) + plan.ready_events


def _order(plan: Plan, wanted: list[int], tune: bool) -> Iterator[int]:
    """Of the contenders the best of each way, then the others; what is simpler than the best of them, the rest."""
    ways = () if tune else plan.ways
    heads = {ways[number]: number for number in reversed(wanted)} if ways else {}
    best = sorted(heads.values(), key=wanted.index)
    first = dict.fromkeys([*best, *wanted, *plan.simpler])
    yield from first
    yield from (number for number in range(len(plan.candidates)) if number not in first)


def _may_be_faster(way: str, estimate: int, cycles: int) -> bool:
    """Whether what computes in a way may take over `MISSED_PERCENT` less than what takes so many cycles."""
    excess = excess_percent(way)
    return excess is None or estimate * 100 / (100 + excess) * (100 + MISSED_PERCENT) < 100 * cycles


def _wanted(
    plan: Plan, number: int, wanted: list[int], runs: Mapping[int, Ran | Timed], costs: Mapping[int, int]
) -> bool:
    """Whether one more candidate, as dear as the dearest so far, stays within what choosing may cost."""
    most = SMALL_EVENTS
    if number in wanted:
        fastest = min(runs, key=lambda number: runs[number].device_ps)
        most = max(most, DEAREST * costs[fastest])
    elif number not in plan.simpler:
        return False
    return sum(costs.values()) + max(costs.values()) <= most
