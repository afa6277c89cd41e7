"""What simulations of the measured rows gave: `results.csv`, from which every statement on accuracy is made.

`scripts/accuracy` writes it; nobody edits it. A test simulates a row of each group again, so that it cannot be older
than the cycles it speaks of.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from workloads.accuracy.splits import split

RESULTS_CSV = Path(__file__).with_name("results.csv")

STATED_CSV = Path(__file__).with_name("stated.csv")
"""Rows whose source's environment has settings that were inferred, simulated without these."""

LEFT_OUT_CSV = Path(__file__).with_name("left_out.csv")
"""Rows of boards whose own calibrated figures come from elsewhere (`left_out.py`)."""

Group = tuple[str, str, str, str, str]
"""Machine, operator, number format, schedule, source."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measured row beside its simulation.

    machine to l2: the row's. measured_us: what a simulated time is compared with (`Row.compared_us`), microseconds.
    simulated_us: in the row's scope, microseconds; 0 where it did not run. kernel: the schedule that ran, or why none
    did. cpu_s: seconds of CPU that it took. day: on which it ran.
    """

    machine: str
    op: str
    dtype: str
    schedule: str
    kind: str
    source: str
    shape: str
    scope: str
    l2: str
    measured_us: float
    simulated_us: float
    kernel: str
    cpu_s: float
    day: str

    @property
    def ran(self) -> bool:
        """Whether it has a simulated time."""
        return self.simulated_us > 0

    @property
    def error_percent(self) -> float:
        """Simulated less measured time, in per cent of the measured one."""
        return 100 * (self.simulated_us / self.measured_us - 1)

    @property
    def split(self) -> str:
        """`fitted`, `held` or `sealed`."""
        return split(self.shape, self.source)

    @property
    def group(self) -> Group:
        """The group in whose line of the tables it is counted."""
        return (self.machine, self.op, self.dtype, self.schedule, self.source)

    @property
    def key(self) -> tuple[str | float, ...]:
        """What tells rows apart."""
        return (*self.group, self.kind, self.shape, self.scope, self.l2, self.measured_us)


COLUMNS = tuple(field.name for field in fields(Result))


@functools.cache
def read_results(path: Path = RESULTS_CSV) -> tuple[Result, ...]:
    """All results, in the file's order."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        return tuple(_result(line) for line in lines)


def _result(line: Mapping[str, str]) -> Result:
    cells: dict[str, Any] = {name: float(line[name]) if name in _NUMBERS else line[name] for name in COLUMNS}
    return Result(**cells)


_NUMBERS = ("measured_us", "simulated_us", "cpu_s")


def write_results(results: Iterable[Result], path: Path = RESULTS_CSV) -> None:
    """Writes the file, sorted by group, shape and time."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(
            [f"{cell:g}" if name == "cpu_s" else cell for name, cell in zip(COLUMNS, astuple(result), strict=True)]
            for result in sorted(results, key=lambda result: result.key)
        )
    read_results.cache_clear()


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some rows in per cent of their measured times. bias: above 0, simulations are too slow. worst: the
    signed error of the row that is farthest off."""

    rows: int
    mean: float
    median: float
    bias: float
    worst: float

    @classmethod
    def of(cls, results: Iterable[Result]) -> Errors | None:
        """Of those that ran; None where none did."""
        signed = sorted(result.error_percent for result in results if result.ran)
        if not signed:
            return None
        absolute = sorted(map(abs, signed))
        middle = len(absolute) // 2
        median = absolute[middle] if len(absolute) % 2 else (absolute[middle - 1] + absolute[middle]) / 2
        return cls(
            len(signed), sum(absolute) / len(signed), median, math.fsum(signed) / len(signed), max(signed, key=abs)
        )


class Judges(tuple[Result, ...]):
    """Results that answers are remembered for: told apart by which they are, since to hash thousands takes longer than
    an answer."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@functools.cache
def judges() -> Judges:
    """The held results that ran, by which reports say how far they can be trusted."""
    return Judges(result for result in read_results() if result.ran and result.split == "held")
