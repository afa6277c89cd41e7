"""Search with Optuna: the machine, shape or schedule that makes a metric best, under constraints that a person gives.

A space that the trials can cover is run as a whole. Of a larger one the search draws positions that it has not tried,
a fixed number at a time, so that its course depends on the seed alone: not on the number of workers, nor on what the
store held before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.load import load_arch
from sim.app.families.request import Request
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.study.axes import Axis, Base, Point, axes_of, point_at
from sim.app.study.case import Answer
from sim.app.study.choice import choice_of
from sim.app.study.executors import Executor, check_executor, make_executor
from sim.app.study.expressions import Constraint, Expression, check_names, machine_names
from sim.app.study.metrics import METRICS, MORE_IS_BETTER, known_metric, metrics
from sim.app.study.runner import Progress
from sim.app.study.store import ResultStore
from sim.app.study.sweep import Row, Sweep, choose, run_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH = 4
"""Runs that are asked for at a time; part of what determines the course of a search."""


_REPEATS = 20
"""Suggestions in a row that may repeat a position before the next new one is taken."""


@dataclass(frozen=True)
class Trial:
    """One position that was tried. broken: the constraints that it breaks; it ran only if the machine keeps its own."""

    row: Row
    values: Mapping[str, float]
    broken: Sequence[str]

    @property
    def feasible(self) -> bool:
        """Whether it ran and keeps every constraint."""
        return not self.broken and self.row.answer.report is not None


@dataclass(frozen=True)
class Optimum(Shown):
    """What a search found. best: feasible trials that no other beats, the first goal first; empty if there is none."""

    base: Base
    goals: Sequence[str]
    trials: Sequence[Trial]
    best: Sequence[Trial]

    def to_dict(self) -> dict[str, Any]:
        """`best` and `trials` as plain data."""

        def plain(trial: Trial) -> dict[str, Any]:
            shown = {
                "values": dict(trial.row.point.values),
                "metrics": dict(trial.values),
                "broken": list(trial.broken),
            }
            return shown | ({"reason": trial.row.reason} if trial.row.reason else {})

        return {
            "schema_version": "2.0",
            "workload": self.base.workload,
            "machine": self.base.archs[0],
            "choice": self.base.choice,
            **self.base.asked.to_dict(),
            "goals": list(self.goals),
            "best": [plain(trial) for trial in self.best],
            "trials": [plain(trial) for trial in self.trials],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Two goals: all runs and their front. One: the best so far over the number of runs."""
        from sim.app.study.plots import pareto_plot, search_plot

        if len(self.goals) == 2:
            rows = [trial.row for trial in self.trials if trial.feasible]
            return pareto_plot(Sweep(self.base, (), rows), self.goals[0], self.goals[1], ax)
        return search_plot(self, ax)

    def sections(self) -> list[Section]:
        """The best, then how the search went."""
        keys = list(dict.fromkeys(key for trial in self.best for key in trial.row.point.values))
        names = list(dict.fromkeys(name for trial in self.best for name in trial.values))
        rows = tuple(
            (
                *(trial.row.point.values[key] for key in keys),
                *(f"{trial.values[name]:.6g}" for name in names),
                str(trial.row.answer.report["schedule"]) if trial.row.answer.report else "",
            )
            for trial in self.best
        )
        broken = sum(bool(trial.broken) for trial in self.trials)
        refused = sum(bool(trial.row.reason) and not trial.broken for trial in self.trials)
        went = (("trials", str(len(self.trials))), ("breaking a constraint", str(broken)), ("not run", str(refused)))
        title = f"{self.base.title}: best by {' and '.join(self.goals)}"
        found = Section(
            title, rows or (("no position keeps every constraint",),), (*keys, *names, "schedule") if rows else ()
        )
        return [found, Section("Search", went)]


def optimize(
    workload: str,
    arch: str,
    vary: Sequence[Sequence[str] | str],
    *,
    goals: Sequence[str] = ("time_us",),
    define: Sequence[str] = (),
    subject_to: Sequence[str] = (),
    trials: int = 40,
    seed: int = 0,
    set: Sequence[str] = (),
    schedule: str = "auto",
    hold: bool = False,
    tune: bool = True,
    store: Path | ResultStore | None = None,
    workers: int | None = None,
    executor: str = "local",
    scheduler: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Optimum:
    """Searches the declared ranges for the best run.

    vary: as in `sweep`; each is one parameter of the search, its values in order. hold, tune: as in `sweep`. goals: one
    or two metrics (numbers of a report, or names from `define`); what is better follows the metric. define:
    `NAME=EXPRESSION`, such as an area or a power proxy (`sim.app.study.expressions`). subject_to: `A <= B`; one that
    names figures of the machine alone is checked before a run, and saves it. Raises InputError before anything runs.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("optimize needs Optuna; pip install 'tilewave[optimize]'") from None
    check_executor(executor, scheduler)
    axes_words = [[words] if isinstance(words, str) else list(words) for words in vary]
    base, axes = axes_of(Base(workload, (arch,), tuple(set), schedule, options), axes_words)
    if not axes:
        raise InputError("--vary is needed: what may be changed, such as --vary sm.count=66:264:6")
    problem = _Problem.of(base, goals, define, subject_to)
    choice = choice_of(hold, tune, [key for axis in axes for key in axis.keys])
    base = replace(base, choice=choice.word)
    if trials < 1:
        raise InputError(f"--trials {trials}: must be at least 1")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed {seed}: must be from 0 to {2**32 - 1}")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
    study = optuna.create_study(directions=["minimize"] * len(goals), sampler=sampler)
    search = _Search(axes, trials, study)

    def make(cases: Sequence[Request]) -> Executor:
        return make_executor(executor, workers=workers, scheduler=scheduler, cases=cases)

    done: list[Trial] = []
    held: list[Point] = choose([point_at(base, axes, [0] * len(axes))], choice, store) if hold else []
    if held and held[0].case is not None:
        left = {name: value for name, value in options.items() if name != "without"}
        base = replace(base, schedule=held[0].case.schedule, options=left)
    while places := search.next(len(done)):
        found = [point_at(base, axes, place) for place in places]
        if not hold:
            found = choose(found, choice, store)
        kept = [problem.allows(point) for point in found]
        ran = iter(run_points([point for point, fine in zip(found, kept, strict=True) if fine], make, store, None)[0])
        for place, point, fine in zip(places, found, kept, strict=True):
            result = problem.judge(point, next(ran) if fine else Answer(refused="breaks a constraint"))
            done.append(result)
            search.tell(place, problem.costs(result), problem.excess(result))
        if progress:
            progress(len(done), search.most)
    if all(trial.row.point.case is None for trial in done):
        raise InputError(done[0].row.reason)
    return Optimum(base, goals, done, problem.best(done))


class _Search:
    """Which positions are tried: all where `trials` cover them, else what Optuna suggests, none of them twice."""

    def __init__(self, axes: Sequence[Axis], trials: int, study: Any) -> None:
        self.sizes = [len(axis.values) for axis in axes]
        self.whole = math.prod(self.sizes) <= trials
        self.most = math.prod(self.sizes) if self.whole else trials
        self.study = study
        self.asked: dict[tuple[int, ...], Any] = {}
        self.known: dict[tuple[int, ...], tuple[list[float] | None, Mapping[str, float]]] = {}

    def next(self, done: int) -> list[tuple[int, ...]]:
        """The positions that run next, after `done` others; none at the end."""
        if self.whole:
            return list(itertools.product(*map(range, self.sizes))) if not done else []
        return [self._suggested() for _ in range(min(BATCH, self.most - done))]

    def _suggested(self) -> tuple[int, ...]:
        for _ in range(_REPEATS):
            trial = self.study.ask()
            place = tuple(trial.suggest_int(str(i), 0, size - 1) for i, size in enumerate(self.sizes))
            if place not in self.asked:
                self.asked[place] = trial
                return place
            self._tell(trial, *self.known.get(place, (None, {})))
        rest = itertools.product(*map(range, self.sizes))  # the search has settled: what is left, in order
        place = next(place for place in rest if place not in self.asked)
        self.asked[place] = None
        return place

    def tell(self, place: tuple[int, ...], costs: list[float] | None, excess: Mapping[str, float]) -> None:
        """What a position costs, and by how much it breaks each constraint."""
        self.known[place] = costs, excess
        if self.asked.get(place) is not None:
            self._tell(self.asked[place], costs, excess)

    def _tell(self, trial: Any, costs: list[float] | None, excess: Mapping[str, float]) -> None:
        # A run without numbers counts as one that breaks a constraint; of those Optuna ignores the values.
        trial.set_constraint("ran", 0.0 if costs else 1.0)
        for constraint, by in excess.items():
            trial.set_constraint(constraint, by)
        self.study.tell(trial, costs or [0.0] * len(self.study.directions))


@dataclass(frozen=True)
class _Problem:
    """What is wanted, parsed."""

    goals: Sequence[str]
    defined: Mapping[str, Expression]
    constraints: Sequence[Constraint]
    machine_only: Sequence[Constraint]

    @classmethod
    def of(cls, base: Base, goals: Sequence[str], define: Sequence[str], subject_to: Sequence[str]) -> _Problem:
        figures = machine_names(load_arch(base.archs[0]))
        known: dict[str, Any] = {**figures, **METRICS}
        on_machine = dict.fromkeys(figures, True)
        defined: dict[str, Expression] = {}
        for text in define:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals or not name.isidentifier():
                raise InputError(f"--define {text!r}: write it as NAME=EXPRESSION, such as 'area=sm.count * 4.2'")
            if name in known:
                raise InputError(f"--define {text!r}: {name} already has a meaning; take another name")
            defined[name] = Expression.parse(value, "--define")
            check_names(defined[name], known, "--define")
            known[name] = True
            on_machine[name] = all(on_machine.get(n, False) for n in defined[name].names)
        constraints = [Constraint.parse(text, "--subject-to") for text in subject_to]
        for constraint in constraints:
            check_names(constraint, known, "--subject-to")
        if not 1 <= len(goals) <= 2:
            raise InputError(f"--goal: one or two metrics, not {len(goals)}")
        for goal in goals:
            if goal not in defined:
                known_metric(goal)
        early = [c for c in constraints if all(on_machine.get(name, False) for name in c.names)]
        return cls(goals, defined, constraints, early)

    def names(self, point: Point, answer: Answer | None) -> dict[str, float]:
        """Everything that expressions may name, as far as it is known."""
        found = dict(machine_names(point.case.machine)) if point.case else {}
        if answer is not None and answer.report is not None:
            found |= {k: float(v) for k, v in metrics(answer.report).items()}
        for name, expression in self.defined.items():
            if all(n in found for n in expression.names):
                found[name] = expression.value(found)
        return found

    def allows(self, point: Point) -> bool:
        """Whether the machine alone keeps its constraints."""
        if point.case is None:
            return False
        names = self.names(point, None)
        return all(constraint.excess(names) <= 0 for constraint in self.machine_only)

    def judge(self, point: Point, answer: Answer) -> Trial:
        """The trial with its numbers and the constraints that it breaks."""
        names = self.names(point, answer)
        broken = [c.text for c in self.constraints if all(n in names for n in c.names) and c.excess(names) > 0]
        shown = dict.fromkeys([*self.goals, *self.defined])
        row = Row(point, Answer(refused=point.reason) if point.case is None else answer)
        return Trial(row, {name: names[name] for name in shown if name in names}, broken)

    def costs(self, trial: Trial) -> list[float] | None:
        """What the search minimises; None where a run has no such numbers."""
        if trial.row.answer.report is None or any(goal not in trial.values for goal in self.goals):
            return None
        return [-trial.values[g] if g in MORE_IS_BETTER else trial.values[g] for g in self.goals]

    def excess(self, trial: Trial) -> dict[str, float]:
        """By how much each constraint is broken, as far as that is known."""
        names = self.names(trial.row.point, trial.row.answer)
        return {c.text: c.excess(names) for c in self.constraints if all(n in names for n in c.names)}

    def best(self, trials: Sequence[Trial]) -> list[Trial]:
        """Feasible trials that no other beats, each position once."""
        ranked = sorted(
            ((tuple(found), i) for i, t in enumerate(trials) if t.feasible and (found := self.costs(t)) is not None)
        )
        front: list[Trial] = []
        least = math.inf
        for costs, i in ranked:
            if not front or (len(costs) == 2 and costs[1] < least):
                front.append(trials[i])
                least = costs[-1]
        return front
