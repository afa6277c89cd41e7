"""Which of an operator's candidates runs: the estimate first, then the simulation of those that it cannot tell apart.

An estimate states its error (`workloads.estimates`): a candidate whose estimate is within it of the best one may be the
fastest. `auto` simulates these, the best estimate first, until what all took is `DEAREST` times what the fastest takes
alone, or as much as a small problem costs. Tuning simulates every candidate. What a simulation costs is counted in
events of the engine and not in seconds, so that every machine chooses alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arch.errors import InputError
from sim.app.families.family import Plan, Ran
from sim.app.families.request import Progress, part
from sim.app.trace.window import TooMuchError

DEAREST = 3
"""What choosing may cost: so many times the simulation of what is chosen."""
SMALL_EVENTS = 400_000
"""Events that choosing may take in any case: 0.2 s on one core."""
BUILD_EVENTS = 10_000
"""Events that take as long as writing and lowering a program."""


@dataclass(frozen=True)
class Tried:
    """Candidates that have run, by their number, and those that were refused, with the reason."""

    runs: dict[int, Ran]
    refused: dict[int, InputError]

    @property
    def chosen(self) -> int:
        """Number of the fastest; of equals the one with the better estimate."""
        return min(self.runs, key=lambda number: self.runs[number].device_ps)

    @property
    def best(self) -> Ran:
        """What came of it."""
        return self.runs[self.chosen]


def contenders(plan: Plan, tune: bool = False) -> list[int]:
    """Numbers of the candidates that may be the fastest by what the estimate says of itself; all that are to be tuned.

    Where there is no choice, the one that runs.
    """
    numbers = range(len(plan.candidates))
    if tune or not plan.candidates:
        return list(numbers) or [0]
    limit = plan.candidates[0][1] * (100 + plan.error_percent)
    return [number for number in numbers if 100 * plan.candidates[number][1] <= limit]


def decide(plan: Plan, tune: bool = False, progress: Progress | None = None) -> Tried:
    """Simulates candidates as far as choosing is worth it; InputError where none fits the machine.

    Candidates that do not fit are passed over, beyond the contenders if need be.
    """
    runs: dict[int, Ran] = {}
    refused: dict[int, InputError] = {}
    wanted = contenders(plan, tune)
    for number in _order(plan, wanted):
        if runs and (number not in wanted or not (tune or _worth_it(runs))):
            break
        try:
            runs[number] = plan.run(number, part(progress, min(len(runs), len(wanted) - 1), len(wanted)))
        except TooMuchError:
            raise
        except InputError as error:
            refused[number] = error
    if not runs:
        raise next(iter(refused.values()))
    return Tried(runs, refused)


def _order(plan: Plan, wanted: list[int]) -> Iterator[int]:
    yield from wanted
    yield from range(len(wanted), len(plan.candidates))


def _worth_it(runs: dict[int, Ran]) -> bool:
    """Whether one more candidate, as dear as the dearest so far, stays within what choosing may cost."""
    costs = {number: ran.counts.get("events", 0) + BUILD_EVENTS for number, ran in runs.items()}
    fastest = min(runs, key=lambda number: runs[number].device_ps)
    return sum(costs.values()) + max(costs.values()) <= max(SMALL_EVENTS, DEAREST * costs[fastest])
