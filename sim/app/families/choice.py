"""Which of an operator's candidates runs: the estimate first, then the simulation of those that it cannot tell apart.

An estimate states its error (`workloads.estimates`): a candidate whose estimate is within it of the best one may be
the fastest. What a small problem costs (`SMALL_COST`) is spent on simulating these to their ends, and what the best
estimate has without one of its mechanisms, whatever the estimates say. What the estimate does not see is much the same
for all that computes in one way, so the best of each way comes first, and then the better estimate.
Where one simulation alone is dear, candidates begin, and are left when a twelfth of their work is done (`PROBED`): what
they take at that pace and what their estimates say are wrong for different reasons, and the one for which the product
of both is least runs to its end. So choosing stays within `DEAREST_PERCENT` of what the chosen one costs. Where
runs do not tell their pace, being short or on other machines than GPUs, two run to their ends.
Where simulations show a larger error than the stated one, what could still be faster within the shown one follows, as
long as choosing may cost it.
Tuning simulates every candidate. A candidate is given up as soon as it has taken longer than the fastest so far, or
must by its pace. What a simulation costs is counted in events of the engine and lines of memory, not in seconds, so
that every machine chooses alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from arch.errors import InputError
from sim.app.families.family import CandidateRun, LateError, PacedPlan, Plan
from sim.app.families.request import Progress, part
from sim.app.trace.window import TooMuchError

DEAREST_PERCENT = 160
"""What choosing may cost in all, of the simulation of what is chosen."""
WHOLE_PERCENT = 200
"""The same where candidates do not tell their pace."""
SMALL_COST = 1_300_000
"""What choosing may cost in any case, in events of the engine: a quarter of a second on one core."""
LINES_AN_EVENT = 2
"""Lines of memory that take as long as an event. Of 190 simulations on ten GPUs an event took 0.17 us, a line 0.06 to
0.1."""
PROBED = 0.08
"""Share of its work after which a candidate is left. Of 60 random runs on 13 GPUs twice as much told no better."""
DEAR = SMALL_COST // 4
"""What a simulation costs that is left so; a cheaper one goes to its end, and so do its rivals."""
RIVALS = 2
"""Candidates that begin beside the first one: of those 60 runs a third and a fourth were chosen wrongly as often as
they were the best."""
LEAD_PERCENT = 1
"""By how much a rival must look faster than the first one, as far as its start can tell."""
ALIKE_PERMILLE = 5
"""Within which two simulated times say nothing about which kernel is faster."""
MISSED_PERCENT = 2
"""By how much the chosen one may be slower than the best, by which `scripts/lab/whatif_laws.py` measures the choice."""


@dataclass(frozen=True)
class RememberedRun:
    """What the simulation of a candidate gave, as it is remembered. cycles, device_ps: None of one that was left or
    given up. limit_ps: that it was given. counts: of the engine. share, pace_ps: as those of `Late`."""

    counts: Mapping[str, int]
    limit_ps: int | None = None
    cycles: int | None = None
    device_ps: int | None = None
    share: float = 0.0
    pace_ps: int = 0


class Memory(Protocol):
    """What simulations of a request's candidates gave, by schedule."""

    def get(self, schedule: str) -> RememberedRun | None:
        """What one gave; None if that is not known."""

    def put(self, schedule: str, kept: RememberedRun) -> None:
        """Remembers it."""


@dataclass(frozen=True)
class RememberedCandidate:
    """A candidate whose simulation is remembered: enough to choose by."""

    cycles: int
    device_ps: int
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Late:
    """A candidate that was given up, or left when a share of it was done. counts: of the engine until then. pace_ps:
    what one that was left takes in whole at its pace."""

    counts: Mapping[str, int]
    share: float = 0.0
    pace_ps: int = 0


@dataclass(frozen=True)
class Trials:
    """What became of candidates, by their number: those that have run, those that were refused, with the reason, those
    that were given up, with the time in picoseconds than which they take longer, and those that were left, with what
    they take at their pace. cost: of all. simpler: numbers of those that lack a mechanism of the best one."""

    runs: Mapping[int, CandidateRun | RememberedCandidate]
    refused: Mapping[int, InputError] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    paces: Mapping[int, int] = field(default_factory=dict)
    cost: int = 0
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
    def best(self) -> CandidateRun:
        """What came of it."""
        best = self.runs[self.chosen]
        assert not isinstance(best, RememberedCandidate)
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


def decide(plan: Plan, tune: bool = False, progress: Progress | None = None, memory: Memory | None = None) -> Trials:
    """Simulates candidates as far as choosing is worth it; InputError where none fits the machine.

    Candidates that do not fit are passed over, beyond the contenders if need be. What `memory` knows is not simulated
    again, but for what is chosen; it counts as if it were, so that the choice is the same with and without it.
    """
    wanted = contenders(plan, tune)
    count = len(wanted) if tune else min(len(wanted), 2)
    search = _Search(plan, memory if len(wanted) > 1 else None, progress, count)
    order = list(_order(plan, wanted, tune))
    if len(wanted) > 1 and not tune and isinstance(plan, PacedPlan):
        search.begin(order, wanted)
    for number in search.by_pace(order):
        if search.runs and not tune:
            if not search.affords(number, wanted):
                break
            if search.dear and not search.distinct(number):
                continue
        search.simulate(number)
    search.memory = memory
    while not tune and (overlooked := search.overlooked(wanted)) is not None:
        search.simulate(overlooked)
    runs = search.runs
    if not runs:
        raise next(iter(search.refused.values()))
    paces = {number: pace_ps for number, pace_ps in search.paces.items() if number not in {*runs, *search.late}}
    tried = Trials(runs, search.refused, search.late, paces, search.cost, plan.simpler)
    if isinstance(runs[tried.chosen], RememberedCandidate):
        runs[tried.chosen] = plan.run(tried.chosen, progress)
    return tried


def settled(plan: Plan, ran: CandidateRun) -> bool:
    """Whether the run of the only contender shows no error within which another candidate could be faster."""
    search = _Search(plan, None, None, 1, {0: ran}, costs={0: cost_of(plan, ran)})
    return search.overlooked([0]) is None


@dataclass
class _Search:
    """The candidates of a plan while they are simulated one by one. count: how many will run, about. costs: by number,
    in events. paces, wholes: of those that were left, in picoseconds, and what the whole of one costs, once it began.
    """

    plan: Plan
    memory: Memory | None
    progress: Progress | None
    count: int
    runs: dict[int, CandidateRun | RememberedCandidate] = field(default_factory=dict)
    refused: dict[int, InputError] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    costs: dict[int, int] = field(default_factory=dict)
    paces: dict[int, int] = field(default_factory=dict)
    wholes: dict[int, int] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """What all simulations cost."""
        return sum(self.costs.values())

    @property
    def dear(self) -> bool:
        """Whether choosing costs more than a small problem, or will."""
        return bool(self.paces) or self.cost > SMALL_COST

    @property
    def fastest(self) -> int:
        """Number of the fastest so far."""
        return min(self.runs, key=lambda number: self.runs[number].device_ps)

    def begin(self, order: Sequence[int], wanted: Collection[int]) -> None:
        """Begins the first candidate that fits the machine, if it has rivals; where all of it is dear, these, too, as
        far as the whole of one is affordable after them."""
        first, *others = order
        rivals = [number for number in others if number in wanted and self.distinct(number)]
        if rivals and not all(_alike(self.plan, number, first) for number in rivals):
            self._try(first, part(self.progress, 0, 1), DEAR)
        for number in rivals:
            one, whole = max(self.costs.values(), default=0), min(self.wholes.values(), default=0)
            most = max(SMALL_COST, whole * DEAREST_PERCENT // 100)
            if self.runs or len(self.paces) > RIVALS or self.cost + one + whole > most:
                break
            if self.distinct(number):
                self._try(number, None, 0 if self.paces else DEAR)

    def by_pace(self, order: Sequence[int]) -> list[int]:
        """Candidates that are left to simulate, those that have begun first: the likeliest to be the fastest."""
        first = next(iter(self.paces), None)
        estimates = [cycles for _, cycles in self.plan.candidates]

        def likely(number: int) -> int:
            behind = 0 if number == first else LEAD_PERCENT
            return self.paces[number] * estimates[number] * (100 + behind)

        begun = sorted(self.paces, key=likely)
        rest = (number for number in order if number not in {*begun, *self.runs, *self.refused})
        return [*begun, *rest]

    def simulate(self, number: int) -> None:
        """Simulates a candidate until it takes longer than the fastest; one that does not fit is refused."""
        self._try(number, self._shown(), None)

    def _shown(self) -> Progress | None:
        """The progress of the whole of a candidate: where others have begun, that of the first one."""
        progress, done = self.progress, len(self.runs) + len(self.late)
        if not self.paces:
            return part(progress, min(done, self.count - 1), self.count)
        if done or progress is None:
            return None
        return lambda share: progress(PROBED + (1 - PROBED) * share)

    def _try(self, number: int, progress: Progress | None, dear: int | None) -> None:
        """A candidate in whole, or its beginning where it costs more than `dear`."""
        limit_ps = self.runs[self.fastest].device_ps if self.runs else None
        try:
            ran = _simulated(self.plan, number, progress, limit_ps, self.memory, dear)
        except TooMuchError:
            raise
        except InputError as error:
            self.refused[number] = error
            return
        cost = counted_cost(ran.counts, self.plan.event_cost)  # what has begun is ready
        self.costs[number] = self.costs.get(number, self.plan.ready_events) + cost
        if not isinstance(ran, Late):
            self.runs[number] = ran
        elif ran.pace_ps:
            self.paces[number] = ran.pace_ps
            self.wholes[number] = round(counted_cost(ran.counts, self.plan.event_cost) / ran.share)
        else:
            self.late[number] = limit_ps or 0

    def affords(self, number: int, wanted: Collection[int]) -> bool:
        """Whether one more candidate, as dear as the dearest so far, stays within what choosing may cost."""
        most = SMALL_COST
        if number in wanted:
            percent = DEAREST_PERCENT if self.paces else WHOLE_PERCENT
            most = max(most, self.costs[self.fastest] * percent // 100)
        elif number not in self.plan.simpler:
            return False
        return self.cost + max(self.costs.values()) <= most

    def distinct(self, number: int) -> bool:
        """Whether a candidate lacks no mechanism, and no other one of its way with the same estimate has begun."""
        plan = self.plan
        return number not in plan.simpler and not any(_alike(plan, number, one) for one in self.costs if one != number)

    def overlooked(self, wanted: Collection[int]) -> int | None:
        """The candidate beyond the stated error that is likeliest to beat the fastest by `MISSED_PERCENT` within the
        error that simulations have shown, if they have shown a larger one and choosing may cost as much.

        Within it, a candidate takes what its estimate says, or as little of it as the one that took least of its own.
        """
        estimates = [cycles for _, cycles in self.plan.candidates]
        known = {*wanted, *self.costs, *self.refused, *(self.plan.simpler if self.dear else ())}
        beyond = [number for number in range(len(estimates)) if number not in known]
        if not beyond or not self.runs:
            return None
        number = min(beyond, key=lambda number: estimates[number])
        shown = [(1, 1), *((ran.cycles, estimates[known]) for known, ran in self.runs.items())]
        fastest = self.runs[self.fastest].cycles
        could = any((100 + MISSED_PERCENT) * estimates[number] * took < 100 * fastest * of for took, of in shown)
        return number if could and self.affords(number, [number]) else None


def _simulated(
    plan: Plan, number: int, progress: Progress | None, limit_ps: int | None, memory: Memory | None, dear: int | None
) -> CandidateRun | RememberedCandidate | Late:
    """A candidate's simulation under a limit, or what is remembered of it: only what would be the same again. dear: of
    one that is left at its pace where it costs more; None of a whole one."""
    schedule = plan.candidates[number][0] if plan.candidates else ""
    name = schedule if dear is None else f"{schedule}, left beyond {dear}"
    kept = memory.get(name) if memory else None
    if kept is not None and kept.device_ps is not None and kept.cycles is not None:
        if limit_ps is None or kept.device_ps <= limit_ps or kept.limit_ps == limit_ps:
            return RememberedCandidate(kept.cycles, kept.device_ps, kept.counts)
    elif kept is not None and kept.limit_ps == limit_ps:
        return Late(kept.counts, kept.share, kept.pace_ps)
    try:
        if dear is None:
            ran = plan.run(number, progress, limit_ps=limit_ps)
        else:
            assert isinstance(plan, PacedPlan)
            ran = plan.begin(number, progress, PROBED, dear)
    except LateError as error:
        if memory:
            memory.put(name, RememberedRun(error.counts, limit_ps, None, None, error.share, error.pace_ps))
        return Late(error.counts, error.share, error.pace_ps)
    if memory:
        memory.put(name, RememberedRun(dict(ran.counts), limit_ps, ran.cycles, ran.device_ps))
    return ran


def cost_of(plan: Plan, ran: CandidateRun | RememberedCandidate | Late) -> int:
    """What simulating a candidate cost, in events of the compiled engine of GPUs."""
    return counted_cost(ran.counts, plan.event_cost) + plan.ready_events


def counted_cost(counts: Mapping[str, int], event_cost: int = 1) -> int:
    """What a simulation costs that has counted so much."""
    return counts.get("events", 0) * event_cost + counts.get("memory_lines", 0) // LINES_AN_EVENT


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
