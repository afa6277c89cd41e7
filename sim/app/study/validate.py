"""Simulated against measured: runs rows of the silicon schema, on all cores, and says how far off each group is.

Results of rows are kept in a file keyed by everything that a simulated time depends on, so an interrupted validation
goes on where it stopped, and a change of a machine or of the program runs again exactly what it touches.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import json
import multiprocessing
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.load import load_arch
from sim.app.fingerprint import code_hash
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from workloads.silicon import Row, environment_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALIDATION_VERSION = "1.0"
"""Version of the JSON that `Validation.to_dict` gives."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """What the simulator says about one row.

    schedule: of the kernel that was chosen. cycles: core-clock cycles of its kernels. time_ps: picoseconds in the row's
    scope; for `host` of the kernels alone, since the row states its own overhead. cpu_s: seconds of CPU that `validate`
    saw the simulation take, no part of the answer.
    """

    schedule: str
    cycles: int
    time_ps: int
    cpu_s: float = field(default=0.0, compare=False)


Simulate = Callable[[Row], RowResult]
"""Runs one row; InputError says why it cannot. It crosses process boundaries, so it is a function of a module."""

Fingerprint = Callable[[Row], str]
"""Text that changes whenever the simulated time of a row may change."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row with its result."""

    row: Row
    result: RowResult

    @property
    def predicted_us(self) -> float:
        """Simulated time in the row's scope, microseconds."""
        overhead = self.row.overhead_us if self.row.scope == "host" else 0.0
        return self.result.time_ps * 1e-6 + overhead

    @property
    def error(self) -> float:
        """Signed relative error: (simulated - measured) / measured."""
        return self.predicted_us / self.row.time_us - 1


@dataclass(frozen=True, slots=True)
class Missing:
    """A row without a result, and why."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Group:
    """Errors of the rows of one machine, operator, dtype and schedule, in per cent."""

    machine: str
    op: str
    dtype: str
    schedule: str
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
    skipped: Sequence[Missing]
    failed: Sequence[Missing]

    @property
    def groups(self) -> list[Group]:
        """One entry a machine, operator, dtype and schedule, in the order of their first row."""
        by_key: dict[tuple[str, str, str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            row = outcome.row
            by_key.setdefault((row.machine, row.op, row.dtype, row.schedule), []).append(outcome)
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
            points.setdefault(label, []).append((row.time_us, outcome.predicted_us))
        return predicted_against_measured(points, ax)

    def sections(self) -> list[Section]:
        """The groups, the worst row of each, and why rows are missing."""
        groups = tuple(
            (
                *(g.machine, g.op, g.dtype, g.schedule, str(g.rows)),
                *(f"{value:.1f} %" for value in (g.mape, g.median, g.worst)),
                f"{g.bias:+.1f} %",
                f"{g.cpu_s:.1f} s",
            )
            for g in self.groups
        )
        header = ("machine", "op", "dtype", "schedule", "rows", "MAPE", "median", "worst", "bias", "CPU")
        worst = tuple((f"{g.worst:.1f} %", g.worst_row) for g in self.groups)
        found = [
            Section(f"Simulated against measured: {len(self.outcomes)} rows, {self.cpu_s:.1f} CPU s", groups, header),
            Section("Worst row of each group", worst),
            Section(f"Skipped: {len(self.skipped)} rows", _reasons(self.skipped), ("rows", "reason")),
            Section(f"Failed: {len(self.failed)} rows", _reasons(self.failed), ("rows", "reason")),
        ]
        return [section for section in found if section.rows]


class Store:
    """Results of rows in a file of JSON lines, appended as they come; a line cut short is ignored."""

    def __init__(self, path: Path) -> None:
        """Opens the store at `path`, made if needed; InputError if that is impossible."""
        self._path = path
        self._results: dict[str, RowResult] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            if text and not text.endswith("\n"):
                with open(path, "a", encoding="utf-8") as file:
                    file.write("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--store {path}: cannot be used as a results file: {error}") from None
        for line in text.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                key = entry.pop("key")
                self._results[key] = RowResult(**entry)

    def get(self, key: str) -> RowResult | None:
        """The result under `key`, if there is one."""
        return self._results.get(key)

    def put(self, key: str, result: RowResult) -> None:
        """Keeps a result; it is on disk when this returns."""
        self._results[key] = result
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **asdict(result)}) + "\n")


def default_store() -> Path:
    """Results file in the user's cache directory."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "tilewave" / "validate.jsonl"


def select(
    rows: Iterable[Row],
    *,
    arch: Sequence[str] = (),
    op: Sequence[str] = (),
    dtype: Sequence[str] = (),
    source: Sequence[str] = (),
    schedule: Sequence[str] = (),
) -> list[Row]:
    """Rows whose columns have one of the given values; an empty filter takes all.

    InputError if no row has a value, with the nearest that there is.
    """
    chosen = list(rows)
    filters = {"machine": arch, "op": op, "dtype": dtype, "source": source, "schedule": schedule}
    for column, wanted in filters.items():
        present = sorted({getattr(row, column) for row in chosen})
        for value in wanted:
            if value not in present:
                near = difflib.get_close_matches(value, present, n=1, cutoff=0.0)
                hint = f"; nearest: {near[0]} (all: {', '.join(present)})" if near else ""
                raise InputError(f"no reference row has {column} {value}{hint}")
        if wanted:
            chosen = [row for row in chosen if getattr(row, column) in wanted]
    return chosen


def validate(
    rows: Sequence[Row],
    simulate: Simulate,
    *,
    store: Path | None = None,
    workers: int | None = None,
    fingerprint: Fingerprint | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Simulates every row and compares.

    rows: see `workloads.silicon.read_rows` and `select`. store: results file; None keeps nothing. workers: processes,
    all cores by default; 1 stays in this process. progress: called with the numbers of rows done and of all rows. The
    result does not depend on `workers`, nor on what `store` held before.
    """
    keys = [_key(row, fingerprint or default_fingerprint) for row in rows]
    kept = None if store is None else Store(store)
    answers: dict[str, RowResult | Missing] = {}
    todo: dict[str, Row] = {}
    for key, row in zip(keys, rows, strict=True):
        known = kept.get(key) if kept else None
        if known is not None:
            answers[key] = known
        else:
            todo.setdefault(key, row)
    # The longest measured first, so that no core is left with a long row at the end.
    order = sorted(todo, key=lambda key: -todo[key].time_us)
    failed: set[str] = set()
    with contextlib.closing(_answers({key: todo[key] for key in order}, simulate, workers)) as found_answers:
        for key, answer, broke in found_answers:
            answers[key] = answer
            if broke:
                failed.add(key)
            if kept and isinstance(answer, RowResult):
                kept.put(key, answer)
            if progress:
                progress(sum(k in answers for k in keys), len(keys))
    outcomes: list[Outcome] = []
    skipped: list[Missing] = []
    broken: list[Missing] = []
    for key, row in zip(keys, rows, strict=True):
        found = answers[key]
        if isinstance(found, RowResult):
            outcomes.append(Outcome(row, found))
        else:
            (broken if key in failed else skipped).append(Missing(row, found.reason))
    return Validation(outcomes, skipped, broken)


def default_fingerprint(row: Row) -> str:
    """Hash of the machine's description and of every source file that a simulated time can depend on."""
    return _machine_hash(row.machine) + code_hash()


def _answers(
    todo: Mapping[str, Row], simulate: Simulate, workers: int | None
) -> Generator[tuple[str, RowResult | Missing, bool], None, None]:
    """Key, answer and whether the simulator broke, for every row, in the order in which they finish."""
    count = min(workers or os.cpu_count() or 1, len(todo))
    if count <= 1:
        for key, row in todo.items():
            yield key, *_outcome(row, functools.partial(_timed, simulate, row))
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_end_on_interrupt)
    try:
        futures: dict[Future[RowResult], str] = {pool.submit(_timed, simulate, row): key for key, row in todo.items()}
        for future in as_completed(futures):
            key = futures[future]
            yield key, *_outcome(todo[key], future.result)
    except BaseException:  # the reader has stopped: a row in progress may take minutes more
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _timed(simulate: Simulate, row: Row) -> RowResult:
    """The result with the CPU time of this process that it took."""
    start_s = time.process_time()
    result = simulate(row)
    return replace(result, cpu_s=time.process_time() - start_s)


def _end_on_interrupt() -> None:
    """In a worker: Ctrl-C on the terminal reaches every process; this one ends in silence, the first one reports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _outcome(row: Row, get: Callable[[], RowResult]) -> tuple[RowResult | Missing, bool]:
    """The result, or why there is none, and whether that is a bug."""
    try:
        return get(), False
    except InputError as error:
        return Missing(row, str(error)), False
    except Exception as error:  # one broken row must not cost the others; it is listed as failed
        return Missing(row, f"{type(error).__name__}: {error}"), True


def _key(row: Row, fingerprint: Fingerprint) -> str:
    """Hash of all that the simulated time of a row depends on; measured time and quality are not part of it."""
    asked = [row.machine, row.op, row.dtype, row.shape, row.schedule, row.kind, row.scope, row.l2]
    environment = environment_of(row.source).model_dump_json()
    return hashlib.sha256(json.dumps([asked, environment, fingerprint(row)]).encode()).hexdigest()


@functools.cache
def _machine_hash(machine: str) -> str:
    """Hash of a machine's validated description; of a machine that cannot be loaded, of its name."""
    try:
        content = load_arch(machine).model_dump_json()
    except InputError:
        content = machine
    return hashlib.sha256(content.encode()).hexdigest()


def _group(key: tuple[str, str, str, str], outcomes: Sequence[Outcome]) -> Group:
    """Error figures of one group, in per cent."""
    signed = [100 * outcome.error for outcome in outcomes]
    absolute = [abs(error) for error in signed]
    worst = max(outcomes, key=lambda outcome: abs(outcome.error))
    text = f"{worst.row.shape}: measured {worst.row.time_us:g} us, simulated {worst.predicted_us:.4g} us"
    return Group(
        *key,
        rows=len(outcomes),
        mape=statistics.fmean(absolute),
        median=statistics.median(absolute),
        worst=max(absolute),
        bias=statistics.fmean(signed),
        cpu_s=_cpu_s(outcomes),
        worst_row=f"{' '.join(key)} {text}, {worst.result.schedule} ({worst.row.source})",
    )


def _cpu_s(outcomes: Iterable[Outcome]) -> float:
    """CPU seconds of their simulations; rows that ask the same share one."""
    return sum({id(outcome.result): outcome.result.cpu_s for outcome in outcomes}.values())


def _reasons(missing: Iterable[Missing]) -> tuple[tuple[str, str], ...]:
    """How many rows miss for each reason, most frequent first."""
    return tuple((str(count), reason) for reason, count in Counter(m.reason for m in missing).most_common())
