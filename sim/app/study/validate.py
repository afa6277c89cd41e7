"""Simulated against measured: a study over rows of the silicon schema, which says how far off each group is.

Each row asks for a run in its source's environment; its answers are kept as those of every study are, so that an
interrupted validation goes on where it stopped, and a change of a machine or of the program runs again exactly what it
touches.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.near import hint
from sim.app.families.request import Request
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.run import RowResult, row_request
from sim.app.study.case import Answer
from sim.app.study.executors import Executor, check_executor, make_executor
from sim.app.study.runner import Progress, run_cases
from sim.app.study.store import ResultStore
from workloads.silicon import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALIDATION_VERSION = "2.0"
"""Version of the JSON that `Validation.to_dict` gives."""

_Key = tuple[str, str, str, str, str]

Make = Callable[[Sequence[Request]], Executor]
"""Makes an executor for the runs that are not in the store."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row with its result."""

    row: Row
    result: RowResult

    @property
    def predicted_us(self) -> float:
        """Simulated time in the row's scope, in `host` that of the kernels alone; microseconds."""
        return self.result.time_ps * 1e-6

    @property
    def error(self) -> float:
        """Signed relative error: (simulated - measured) / measured."""
        return self.predicted_us / self.row.compared_us - 1


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A row without a result, and why."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Group:
    """Errors of the rows of one machine, operator, dtype, schedule and source, in per cent."""

    machine: str
    op: str
    dtype: str
    schedule: str
    source: str
    rows: int
    mape: float
    """Mean absolute percentage error."""
    median: float
    """Median of the absolute errors."""
    worst: float
    """Largest absolute error."""
    bias: float
    """Mean signed error: above 0 the simulator is too slow."""
    cpu_s: float = field(compare=False)
    """Seconds of CPU that its simulations took, whenever they ran."""
    worst_row: str


@dataclass(frozen=True)
class Validation(Shown):
    """All rows of one validation, in the order of the reference.

    skipped: rows that this version does not run. failed: rows on which the simulator broke, which is a bug of ours.
    """

    outcomes: Sequence[Outcome]
    skipped: Sequence[MissingRow]
    failed: Sequence[MissingRow]

    @property
    def groups(self) -> list[Group]:
        """One entry a machine, operator, dtype, schedule and source, in the order of their first row."""
        by_key: dict[_Key, list[Outcome]] = {}
        for outcome in self.outcomes:
            row = outcome.row
            by_key.setdefault((row.machine, row.op, row.dtype, row.schedule, row.source), []).append(outcome)
        return [_group(key, outcomes) for key, outcomes in by_key.items()]

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU that all simulations took, those of an earlier, interrupted validation included."""
        return _cpu_s(self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """`cpu_s`, `groups`, `rows`, `skipped` and `failed` as plain data."""
        return {
            "schema_version": VALIDATION_VERSION,
            "cpu_s": self.cpu_s,
            "groups": [asdict(group) for group in self.groups],
            "rows": [
                {
                    **outcome.row.as_dict(),
                    "split": outcome.row.split,
                    "compared_us": outcome.row.compared_us,
                    "simulated_schedule": outcome.result.schedule,
                    "simulated_cycles": outcome.result.cycles,
                    "simulated_us": outcome.predicted_us,
                    "error_percent": 100 * outcome.error,
                    "cpu_s": outcome.result.cpu_s,
                }
                for outcome in self.outcomes
            ],
            "skipped": [{**missing.row.as_dict(), "reason": missing.reason} for missing in self.skipped],
            "failed": [{**missing.row.as_dict(), "reason": missing.reason} for missing in self.failed],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws simulated over measured time, one colour a group."""
        from sim.app.report.plots import predicted_against_measured

        points: dict[str, list[tuple[float, float]]] = {}
        for outcome in self.outcomes:
            row = outcome.row
            label = f"{row.machine} {row.op} {row.dtype} {row.schedule}"
            points.setdefault(label, []).append((row.compared_us, outcome.predicted_us))
        return predicted_against_measured(points, ax)

    def sections(self) -> list[Section]:
        """The groups, the worst row of each, and why rows are missing."""
        groups = tuple(
            (
                *(g.machine, g.op, g.dtype, g.schedule, g.source, str(g.rows)),
                *(f"{value:.1f} %" for value in (g.mape, g.median, g.worst)),
                f"{g.bias:+.1f} %",
                f"{g.cpu_s:.1f} s",
            )
            for g in self.groups
        )
        header = ("machine", "op", "dtype", "schedule", "source", "rows", "MAPE", "median", "worst", "bias", "CPU")
        worst = tuple((f"{g.worst:.1f} %", g.worst_row) for g in self.groups)
        found = [
            Section(f"Simulated against measured: {len(self.outcomes)} rows, {self.cpu_s:.1f} CPU s", groups, header),
            Section("Worst row of each group", worst),
            Section(f"Skipped: {len(self.skipped)} rows", _reasons(self.skipped), ("rows", "reason")),
            Section(f"Failed: {len(self.failed)} rows", _reasons(self.failed), ("rows", "reason")),
        ]
        return [section for section in found if section.rows]


def select(
    rows: Iterable[Row],
    *,
    arch: Sequence[str] = (),
    op: Sequence[str] = (),
    dtype: Sequence[str] = (),
    source: Sequence[str] = (),
    schedule: Sequence[str] = (),
    split: Sequence[str] = (),
) -> list[Row]:
    """Rows whose columns have one of the given values; an empty filter takes all.

    split: `fitted`, on which figures may be calibrated, `held` or `sealed` (`workloads.accuracy.splits`).
    InputError if no row has a value, with the nearest that there is.
    """
    chosen = list(rows)
    filters = {"machine": arch, "op": op, "dtype": dtype, "source": source, "schedule": schedule, "split": split}
    for column, wanted in filters.items():
        present = sorted({getattr(row, column) for row in chosen})
        for value in wanted:
            if value not in present:
                known = f" (all: {', '.join(present)})" if present else ""
                near = hint(value, present, "; nearest: {}")
                raise InputError(f"no reference row has {column} {value}{near}{known}")
        if wanted:
            chosen = [row for row in chosen if getattr(row, column) in wanted]
    return chosen


def validate(
    rows: Sequence[Row],
    *,
    store: ResultStore | None = None,
    workers: int | None = None,
    executor: str = "local",
    scheduler: str | None = None,
    make: Make | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Simulates every row and compares.

    rows: see `workloads.silicon.read_rows` and `select`. store: of results; None keeps nothing. workers: processes, all
    cores by default; 1 stays in this process. executor: `local`, or `dask` with the `scheduler`'s address. make: an
    executor in their place. progress: called with the numbers of runs done and to do. The result does not depend on who
    runs it, nor on what `store` held before.
    """
    check_executor(executor, scheduler)
    make = make or (lambda cases: make_executor(executor, workers=workers, scheduler=scheduler, cases=cases))
    asked: dict[int, Request] = {}
    missing: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            asked[number] = row_request(row)
        except InputError as error:
            missing[number] = str(error)
    # The longest measured first, so that no core is left with a long row at the end.
    order = sorted(asked, key=lambda number: -rows[number].time_us)
    ran = run_cases([asked[number] for number in order], make, store=store, progress=progress)
    answers = dict(zip(order, ran, strict=True))
    results = {id(answer): _result(answer) for answer in ran if answer.report is not None}  # one a run, not one a row
    outcomes: list[Outcome] = []
    skipped: list[MissingRow] = []
    failed: list[MissingRow] = []
    for number, row in enumerate(rows):
        answer = answers.get(number) or Answer(refused=missing[number])
        if answer.report is not None:
            outcomes.append(Outcome(row, results[id(answer)]))
        elif answer.failed:
            failed.append(MissingRow(row, answer.failed))
        else:
            skipped.append(MissingRow(row, answer.refused))
    return Validation(outcomes, skipped, failed)


def _result(answer: Answer) -> RowResult:
    """What a report says about a row."""
    report = answer.report
    assert report is not None
    return RowResult(report["schedule"], report["cycles"], round(report["time_us"] * 1e6), answer.cpu_s)


def _group(key: _Key, outcomes: Sequence[Outcome]) -> Group:
    """Error figures of one group, in per cent."""
    signed = [100 * outcome.error for outcome in outcomes]
    absolute = [abs(error) for error in signed]
    worst = max(outcomes, key=lambda outcome: abs(outcome.error))
    text = f"{worst.row.shape}: measured {worst.row.compared_us:g} us, simulated {worst.predicted_us:.4g} us"
    return Group(
        *key,
        rows=len(outcomes),
        mape=statistics.fmean(absolute),
        median=statistics.median(absolute),
        worst=max(absolute),
        bias=statistics.fmean(signed),
        cpu_s=_cpu_s(outcomes),
        worst_row=f"{' '.join(key[:-1])} {text}, {worst.result.schedule} ({worst.row.source})",
    )


def _cpu_s(outcomes: Iterable[Outcome]) -> float:
    """CPU seconds of their simulations; rows that ask the same share one."""
    return sum({id(outcome.result): outcome.result.cpu_s for outcome in outcomes}.values())


def _reasons(missing: Iterable[MissingRow]) -> tuple[tuple[str, str], ...]:
    """How many rows miss for each reason, most frequent first."""
    return tuple((str(count), reason) for reason, count in Counter(m.reason for m in missing).most_common())
