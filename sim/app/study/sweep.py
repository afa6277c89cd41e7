"""What-if: one workload over many machines, shapes and schedules, as a table with one row a run."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.load import load_arch
from arch.ranges import ranges as ranges_of
from sim.app.families.request import Request
from sim.app.fingerprint import code_hash
from sim.app.report.asked import Asked
from sim.app.report.render import Shown
from sim.app.report.schedules import Switch, switches
from sim.app.report.sections import Section, left_out_text, streamed_text
from sim.app.report.text import percent, time_text
from sim.app.study.axes import Base, Point, axes_of, numeric, points
from sim.app.study.case import Answer, key_of
from sim.app.study.choice import Choice, changed, choice_of
from sim.app.study.executors import Executor, check_executor, make_executor
from sim.app.study.metrics import MORE_IS_BETTER, known_metric, metrics
from sim.app.study.runner import Progress, run_cases
from sim.app.study.store import ResultStore, default_store, opened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SWEEP_VERSION = "2.3"
"""Version of the JSON that `Sweep.to_dict` gives."""

KINDS = ("auto", "line", "heat")
"""Kinds of plots of a sweep, besides the Pareto front."""

_RANGED = ("time_us", "tflops", "energy_j")
"""Metrics of an answer that is a range."""
_SHOWN_ROWS = 200
"""Rows that text and HTML show; files hold all."""


@dataclass(frozen=True)
class Row:
    """One run: what was varied, and what came of it."""

    point: Point
    answer: Answer

    @property
    def reason(self) -> str:
        """Why there is no result; empty if there is one."""
        return self.answer.refused or self.answer.failed

    def metric(self, name: str) -> float | None:
        """A number of the report; None if the run has none of that name."""
        value = None if self.answer.report is None else metrics(self.answer.report).get(name)
        return None if isinstance(value, str) else value


@dataclass(frozen=True)
class Sweep(Shown):
    """The rows of a sweep, in the order of its axes (the last one fastest). kept: how many came from the store. points:
    how many the study has, of which the rows may be a sample. ranged: figures that were set to both ends of the range
    in which they may lie."""

    base: Base
    keys: Sequence[str]
    rows: Sequence[Row]
    kept: int = 0
    points: int = 0
    ranged: tuple[str, ...] = ()

    @property
    def failed(self) -> list[Row]:
        """Rows on which the simulator broke, which is a bug of ours."""
        return [row for row in self.rows if row.answer.failed]

    @cached_property
    def _before(self) -> list[Mapping[str, Any] | None]:
        """By row, the report of the row before it on the last axis; None where it is the first there."""
        last = self.rows[-1].point.values if self.rows else {}
        found: list[Mapping[str, Any] | None] = []
        before = None
        moves = [key for key in last if len({row.point.values.get(key) for row in self.rows}) > 1][-1:]
        for row in self.rows:
            same = before is not None and all(
                row.point.values.get(key) == value for key, value in before.point.values.items() if key not in moves
            )
            found.append(before.answer.report if before and same else None)
            before = row
        return found

    @cached_property
    def switched(self) -> list[bool]:
        """By row, whether it runs another schedule than the row before it on the last axis, or an operator of it."""
        return [changed(before, row.answer.report) for before, row in zip(self._before, self.rows, strict=True)]

    @cached_property
    def switches(self) -> list[tuple[Switch, ...]]:
        """By row, the operators that run another schedule than in the row before it on the last axis."""
        return [switches(before, row.answer.report) for before, row in zip(self._before, self.rows, strict=True)]

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """One flat mapping a run: varied keys (numbers in the unit that the column's name carries), then metrics."""
        found = [self._flat(row) for row in self.rows]
        for record, switched in zip(found, self.switched, strict=True):
            if "schedule" in record:
                record["schedule_changed"] = switched
        return found

    @cached_property
    def columns(self) -> list[str]:
        """Columns of the table; those that no run has are absent."""
        return list(dict.fromkeys(name for record in self.table for name in record))

    def melted(self) -> list[dict[str, Any]]:
        """The table with one row a run and metric: `run`, the varied keys, `metric`, `value`."""
        found = []
        for i, (row, record) in enumerate(zip(self.rows, self.table, strict=True)):
            asked = {"run": i, **self._asked(row)}
            for name, value in record.items():
                if name not in asked and isinstance(value, int | float):
                    found.append({**asked, "metric": name, "value": value})
        return found

    def write(self, path: Path, *, melt: bool = False) -> None:
        """Writes the table as CSV or Parquet, by the end of the name."""
        records = self.melted() if melt else self.table
        columns = list(dict.fromkeys(name for record in records for name in record))
        if path.suffix == ".parquet":
            _write_parquet(path, records, columns)
            return
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({name: _cell(value) for name, value in record.items()} for record in records)

    def to_dict(self) -> dict[str, Any]:
        """`rows`: the varied keys as typed, and the report (schema.json) or the reason."""
        rows = [
            {
                "values": dict(row.point.values),
                "schedule_changed": switched,
                "schedules": [switch._asdict() for switch in switches],
                "report": row.answer.report,
            }
            if row.answer.report is not None
            else {"values": dict(row.point.values), "reason": row.reason}
            for row, switched, switches in zip(self.rows, self.switched, self.switches, strict=True)
        ]
        asked = {"workload": self.base.workload, **self.base.asked.to_dict(), "choice": self.base.choice}
        return {
            "schema_version": SWEEP_VERSION,
            **asked,
            "choice": self.base.choice,
            "keys": list(self.keys),
            "rows": rows,
            **({"ranges": {name: list(ends) for name, ends in self._ends().items()}} if self.ranged else {}),
        }

    def _ends(self) -> dict[str, tuple[float, float]]:
        """Least and greatest of what a reader asks of an answer, over all runs."""
        values = {name: [v for row in self.rows if (v := row.metric(name)) is not None] for name in _RANGED}
        return {name: (min(found), max(found)) for name, found in values.items() if found}

    def plot(self, metric: str = "time_us", *, kind: str = "auto", ax: Axes | None = None) -> Axes:
        """Draws a metric over what was varied: `line`, `heat`, or what fits (`auto`)."""
        from sim.app.study.plots import sweep_plot

        return sweep_plot(self, metric, kind, ax)

    def plot_pareto(self, x: str = "time_us", y: str = "energy_j", ax: Axes | None = None) -> Axes:
        """Draws two metrics of all runs and the front of those that no other run beats in both."""
        from sim.app.study.plots import pareto_plot

        return pareto_plot(self, x, y, ax)

    def pareto(self, x: str = "time_us", y: str = "energy_j") -> list[Row]:
        """Runs that no other run beats in both metrics, the best in `x` first."""
        for name in (x, y):
            known_metric(name)
        costs = []
        for i, row in enumerate(self.rows):
            pair = [row.metric(name) for name in (x, y)]
            if None not in pair:
                cost = tuple(-float(v) if n in MORE_IS_BETTER else float(v) for n, v in zip((x, y), pair, strict=True))  # type: ignore[arg-type]
                costs.append((cost, i))
        front: list[Row] = []
        best = math.inf
        for cost, i in sorted(costs):
            if cost[1] < best:
                best = cost[1]
                front.append(self.rows[i])
        return front

    def pareto_section(self, x: str, y: str) -> Section:
        """The runs that no other run beats in both metrics, as a table."""
        rows = tuple(
            (*(f"{row.metric(name):.6g}" for name in (x, y)), *(row.point.values.get(key, "") for key in self.keys))
            for row in self.pareto(x, y)
        )
        return Section(f"Best in {x} and {y}", rows, (x, y, *self.keys))

    def sections(self) -> list[Section]:
        """The table in people's units, and why rows are missing."""
        ran = [pair for pair in zip(self.rows, self.switched, strict=True) if pair[0].answer.report is not None]
        rows = tuple(_cells(row, self.keys, switched) for row, switched in ran[:_SHOWN_ROWS])
        title = f"{self.base.title}: {len(ran)} of {len(self.rows)} runs"
        if len(ran) > _SHOWN_ROWS:
            title += f" (the first {_SHOWN_ROWS}; write all with --csv FILE)"
        missing = [
            (", ".join(f"{k}={v}" for k, v in row.point.values.items()), row.reason) for row in self.rows if row.reason
        ]
        if any(switched for _, switched in ran):
            title += "; * another schedule than the row above"
        reports = [row.answer.report for row, _ in ran if row.answer.report is not None]
        texts = dict.fromkeys(left_out_text(one["left_out"]) for one in reports if "left_out" in one)
        streamed = dict.fromkeys(streamed_text(one["streamed"]) for one in reports if "streamed" in one)
        ends = tuple((name, f"{low:.4g} to {high:.4g}") for name, (low, high) in self._ends().items() if self.ranged)
        found = [
            Section(f"Answers over the ranges of {', '.join(self.ranged)}", ends),
            Section(title, rows, (*self.keys, *_HEADER)),
            Section("Left out", tuple((text,) for text in texts)),
            Section("Streamed", tuple((text,) for text in streamed)),
            Section("Operators that run another schedule than in the row above", self._switch_rows(), _SWITCH_HEADER),
            Section(f"Not run: {len(missing)}", tuple(missing)),
        ]
        return [section for section in found if section.rows]

    def _switch_rows(self) -> tuple[tuple[str, ...], ...]:
        """Operators of graphs and networks; the schedule of an operator alone stands in its row."""
        return tuple(
            (", ".join(f"{key}={value}" for key, value in row.point.values.items()), *switch)
            for row, found in zip(self.rows, self.switches, strict=True)
            for switch in found
            if row.answer.report is not None and switch.operator != row.answer.report["workload"]
        )[:_SHOWN_ROWS]

    def _asked(self, row: Row) -> dict[str, Any]:
        report = row.answer.report
        if report is None:
            fixed = {"workload": self.base.workload}
        else:
            fixed = {name: report[name] for name in ("machine", "workload", "dtype", "schedule", "bound")}
            fixed |= {"asked": "; ".join(_asked_words(report))}
        return {**fixed, **dict(numeric(key, value, self.base) for key, value in row.point.values.items())}

    def _flat(self, row: Row) -> dict[str, Any]:
        record = self._asked(row)
        if row.answer.report is not None:
            record |= metrics(row.answer.report)
            assert row.point.case is not None
            record |= {"result": key_of(row.point.case)[:16], "code": code_hash()[:16]}
        if row.reason:
            record["reason"] = row.reason
        return record


def _asked_words(report: Mapping[str, Any]) -> list[str]:
    """What else was asked of a run, in one cell: changed figures, schedule, unusual conditions."""
    asked = Asked.of(report)
    changes = [f"{path}={value}" for path, value in asked.overrides.items()]
    return [*changes, f"schedule {asked.schedule}", *asked.unusual]


def sweep(
    workload: str,
    arch: Sequence[str] | str = (),
    vary: Sequence[Sequence[str] | str] = (),
    *,
    set: Sequence[str] = (),
    schedule: str = "auto",
    hold: bool = False,
    tune: bool = True,
    store: Path | ResultStore | None = None,
    workers: int | None = None,
    executor: str = "local",
    scheduler: str | None = None,
    shard: str = "",
    sample: int = 0,
    ranges: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Runs a workload over every combination of the axes.

    vary: one entry an axis, `KEY=VALUES` (`sim.app.study.axes`) or several of them that go together. hold: every point
    runs the schedule of the first on its machine; tune: each runs the best of its candidates; neither: what `auto`
    takes. store: results file, default in the user's cache; a result that is there is not simulated again. workers:
    processes, all cores by default; 1 stays in this process. executor: `local`, or `dask` with the `scheduler`'s
    address. shard: `2/8` runs the second of eight parts of the points, each with a store of its own, which
    `ResultStore.take` joins. sample: at most so many of the points, evenly apart; 0 for all. ranges: each figure of
    which the machine says a range alone is an axis with both its ends. options: as in `simulate`.
    Raises InputError before anything runs, and where no machine can run any of it.
    """
    check_executor(executor, scheduler)
    archs = (arch,) if isinstance(arch, str) else tuple(arch)
    axes_words = [[words] if isinstance(words, str) else list(words) for words in vary]
    ranged = ranges_of(load_arch(_only(archs), set)) if ranges else {}
    axes_words += [[f"{path}={low},{high}"] for path, (low, high) in ranged.items()]
    base, axes = axes_of(Base(workload, archs, tuple(set), schedule, options), axes_words)
    choice = choice_of(hold, tune, [key for axis in axes for key in axis.keys])
    base = replace(base, choice=choice.word)
    found = points(base, axes)

    def make(cases: Sequence[Request]) -> Executor:
        return make_executor(executor, workers=workers, scheduler=scheduler, cases=cases)

    found = _part(choose(found, choice, store), shard)
    whole = len(found)
    if 0 < sample < whole:
        found = [found[(2 * i + 1) * whole // (2 * sample)] for i in range(sample)]
    answers, kept = run_points(found, make, store, progress)
    if all(answer.refused for answer in answers):
        raise InputError(answers[0].refused)
    keys = list(dict.fromkeys(key for point in found for key in point.values))
    return Sweep(base, keys, [Row(*pair) for pair in zip(found, answers, strict=True)], kept, whole, tuple(ranged))


def _only(archs: Sequence[str]) -> str:
    if len(archs) != 1:
        raise InputError("--ranges: needs one machine, such as --arch rubin-announced")
    return archs[0]


def _part(found: list[Point], shard: str) -> list[Point]:
    """Every Nth point of a study, from the Ith on, for `I/N`; neighbours cost alike, so that parts do, too."""
    if not shard:
        return found
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", shard)
    if not match or int(match[1]) > int(match[2]):
        raise InputError(f"--shard {shard}: must be I/N with I from 1 to N, such as 2/8")
    number, count = int(match[1]), int(match[2])
    if not found[number - 1 :: count]:
        raise InputError(f"--shard {shard}: the study has {len(found)} points only; nearest: 1/{len(found)}")
    return found[number - 1 :: count]


def choose(found: Sequence[Point], choice: Choice, store: Path | ResultStore | None) -> list[Point]:
    """The points with the schedules that they are to run; what is held is found in this process."""

    def here(cases: Sequence[Request]) -> Executor:
        return make_executor("local", workers=1, scheduler=None, cases=cases)

    return choice.of(found, lambda some: run_points(some, here, store, None)[0])


def run_points(
    found: Sequence[Point],
    make: Callable[[Sequence[Request]], Executor],
    store: Path | ResultStore | None,
    progress: Progress | None,
) -> tuple[list[Answer], int]:
    """The answers of points, and how many of them were in the store."""
    cases = [point.case for point in found if point.case is not None]
    simulated = 0

    def count(done: int, of: int) -> None:
        nonlocal simulated
        simulated = of
        if progress:
            progress(done, of)

    if isinstance(store, ResultStore):
        ran = iter(run_cases(cases, make, store=store, progress=count))
    else:
        with opened(store or default_store()) as kept:
            ran = iter(run_cases(cases, make, store=kept, progress=count))
    answers = [Answer(refused=point.reason) if point.case is None else next(ran) for point in found]
    return answers, len({key_of(case) for case in cases}) - simulated


def _cell(value: Any) -> Any:
    """A value for CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front of it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _write_parquet(path: Path, records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow; pip install 'tilewave[parquet]', or write .csv") from None
    table = pyarrow.table({name: [record.get(name) for record in records] for name in columns})
    pyarrow.parquet.write_table(table, path)


_SWITCH_HEADER = ("run", "operator", "above", "here")
_HEADER = ("time", "cycles", "TFLOPS", "of peak", "bound", "energy", "schedule")


def _cells(row: Row, keys: Sequence[str], switched: bool) -> tuple[str, ...]:
    """One row as text. switched: it runs another schedule than the row before it."""
    report = row.answer.report
    assert report is not None
    return (
        *(row.point.values.get(key, "") for key in keys),
        time_text(round(report["time_us"] * 1e6)),
        f"{report['cycles']:,}",
        f"{report['tflops']:.1f}",
        percent(report["percent_of_peak"] / 100),
        report["bound"],
        f"{report['energy_j'] * 1000:.3g} mJ" if "energy_j" in report else "",
        f"{'* ' if switched else ''}{report['schedule']}",
    )
