"""Which of an operator's candidates runs: the estimate first, then the simulation of those that it cannot tell apart.

An estimate states its error (`workloads.estimates`): a candidate whose estimate is within it of the best one may be
the fastest. `auto` simulates these until what all took is `DEAREST` times what the fastest takes alone, or as much as
a small problem costs; within the latter, it also simulates what the best estimate has without one of its mechanisms,
whatever the estimates say. What the estimate does not see is much the same for all that computes in one way, so the
best of each way comes first, and then the better estimate. Once choosing costs more than a small problem, nothing is
simulated that lacks a mechanism, that has the estimate of another one of its way, or that cannot be faster by
`MISSED_PERCENT`, where estimates of its way say how short it can be at the least.
Where simulations show a larger error than the stated one, what could still be faster within the shown one follows, as
long as choosing may cost it.
Tuning simulates every candidate. A candidate is given up as soon as it has taken longer than the fastest so far, or
must by its pace. What a simulation costs is counted in events of the engine and not in seconds, so that every machine
chooses alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from arch.errors import InputError
from sim.app.families.family import LateError, Plan, Ran
from sim.app.families.request import Progress, part
from sim.app.trace.window import TooMuchError
from workloads.estimates import excess_percent

DEAREST = 2
"""What choosing may cost: so many times the simulation of what is chosen."""
SMALL_EVENTS = 600_000
"""Events that choosing may take in any case: 0.2 s on one core, which does some three million a second."""
ALIKE_PERMILLE = 5
"""Within which two simulated times say nothing about which kernel is faster."""
MISSED_PERCENT = 2
"""By how much the chosen one may be slower than the best, by which `scripts/lab/whatif_laws.py` measures the choice."""


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
    wanted = contenders(plan, tune)
    search = _Search(plan, memory if len(wanted) > 1 else None, progress, _expected(plan, wanted, tune))
    for number in _order(plan, wanted, tune):
        if search.runs and not tune:
            if not search.affords(number, wanted):
                break
            if search.events > SMALL_EVENTS and not search.may_be_faster(number):
                continue
        search.simulate(number)
    search.memory = memory
    while not tune and (overlooked := search.overlooked(wanted)) is not None:
        search.simulate(overlooked)
    runs = search.runs
    if not runs:
        raise next(iter(search.refused.values()))
    tried = Tried(runs, search.refused, search.late, search.events, plan.simpler)
    if isinstance(runs[tried.chosen], Timed):
        runs[tried.chosen] = plan.run(tried.chosen, progress)
    return tried


def _expected(plan: Plan, wanted: Sequence[int], tune: bool) -> int:
    """How many candidates will run, about."""
    if tune:
        return len(wanted)
    best = plan.candidates[wanted[0]][1] if plan.candidates else 0
    rivals = [number for number in wanted[1:] if _may_be_faster(plan, number, best)]
    return min(1 + len(rivals), DEAREST)


def settled(plan: Plan, ran: Ran) -> bool:
    """Whether the run of the only contender shows no error within which another candidate could be faster."""
    search = _Search(plan, None, None, 1, {0: ran}, costs={0: cost_of(plan, ran)})
    return search.overlooked([0]) is None


@dataclass
class _Search:
    """The candidates of a plan while they are simulated one by one. count: how many will run, about. costs: in events,
    by number."""

    plan: Plan
    memory: Memory | None
    progress: Progress | None
    count: int
    runs: dict[int, Ran | Timed] = field(default_factory=dict)
    refused: dict[int, InputError] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    costs: dict[int, int] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """What all simulations cost."""
        return sum(self.costs.values())

    @property
    def fastest(self) -> int:
        """Number of the fastest so far."""
        return min(self.runs, key=lambda number: self.runs[number].device_ps)

    def simulate(self, number: int) -> None:
        """Simulates a candidate until it takes longer than the fastest; one that does not fit is refused."""
        limit_ps = self.runs[self.fastest].device_ps if self.runs else None
        share = part(self.progress, min(len(self.costs), self.count - 1), self.count)
        try:
            ran = _simulated(self.plan, number, share, limit_ps, self.memory)
        except TooMuchError:
            raise
        except InputError as error:
            self.refused[number] = error
            return
        self.costs[number] = cost_of(self.plan, ran)
        if isinstance(ran, Late):
            self.late[number] = limit_ps or 0
        else:
            self.runs[number] = ran

    def affords(self, number: int, wanted: Collection[int]) -> bool:
        """Whether one more candidate, as dear as the dearest so far, stays within what choosing may cost."""
        most = SMALL_EVENTS
        if number in wanted:
            most = max(most, DEAREST * self.costs[self.fastest])
        elif number not in self.plan.simpler:
            return False
        return self.events + max(self.costs.values()) <= most

    def may_be_faster(self, number: int) -> bool:
        """Whether a candidate may beat the fastest so far: it lacks no mechanism, no other one of its way with the same
        estimate has run, and estimates of its way do not exclude it."""
        plan = self.plan
        if number in plan.simpler or any(_alike(plan, number, other) for other in self.costs):
            return False
        return _may_be_faster(plan, number, min(ran.cycles for ran in self.runs.values()))

    def overlooked(self, wanted: Collection[int]) -> int | None:
        """The candidate beyond the stated error that is likeliest to beat the fastest by `MISSED_PERCENT` within the
        error that simulations have shown, if they have shown a larger one and choosing may cost as much.

        Within it, a candidate takes what its estimate says, or as little of it as the one that took least of its own.
        """
        estimates = [cycles for _, cycles in self.plan.candidates]
        beyond = [n for n in range(len(estimates)) if n not in wanted and n not in self.costs and n not in self.refused]
        if not beyond or not self.runs:
            return None
        number = min(beyond, key=lambda number: estimates[number])
        shown = [(1, 1), *((ran.cycles, estimates[known]) for known, ran in self.runs.items())]
        fastest = self.runs[self.fastest].cycles
        could = any((100 + MISSED_PERCENT) * estimates[number] * took < 100 * fastest * of for took, of in shown)
        return number if could and self.affords(number, [number]) else None


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
    """What simulating a candidate cost, in events of the compiled engine of GPUs."""
    return ran.counts.get("events", 0) * plan.event_cost + plan.ready_events


def _order(plan: Plan, wanted: list[int], tune: bool) -> Iterator[int]:
    """Of the contenders the best of each way, then the others; what is simpler than the best of them, the rest."""
    ways = () if tune else plan.ways
    heads = {ways[number]: number for number in reversed(wanted)} if ways else {}
    best = sorted(heads.values(), key=wanted.index)
    first = dict.fromkeys([*best, *wanted, *plan.simpler])
    yield from first
    yield from (number for number in range(len(plan.candidates)) if number not in first)


def _alike(plan: Plan, number: int, other: int) -> bool:
    """Whether estimates do not tell two candidates apart at all, such as a tile and its transpose."""
    same_way = plan.ways and plan.ways[number] == plan.ways[other]
    return bool(same_way) and plan.candidates[number][1] == plan.candidates[other][1]


def _may_be_faster(plan: Plan, number: int, cycles: int) -> bool:
    """Whether a candidate may take over `MISSED_PERCENT` less than so many cycles, by what estimates of its way say."""
    excess = excess_percent(plan.ways[number]) if plan.ways else None
    estimate = plan.candidates[number][1]
    return excess is None or estimate * 100 / (100 + excess) * (100 + MISSED_PERCENT) < 100 * cycles
