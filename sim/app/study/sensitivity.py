"""What bounds this workload, answered by the machine itself: how much its time moves with every hardware figure.

Each figure is changed alone, down and up by the same share, and the workload runs again. Figures that count things or
that the geometry restricts move by the smallest step at or above that share which gives a valid machine. An elasticity
is given where the response is smooth: where it is not, it says nothing about another step.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arch.errors import InputError
from arch.leaves import leaves
from arch.load import load_arch
from arch.show import describe
from arch.units import CYCLES
from sim.app.families.request import Request
from sim.app.report.render import Shown
from sim.app.report.sections import Meter, Section
from sim.app.report.text import time_text
from sim.app.study.axes import Base, Point
from sim.app.study.choice import changed, choice_of
from sim.app.study.executors import Executor, check_executor, make_executor
from sim.app.study.runner import Progress
from sim.app.study.store import ResultStore
from sim.app.study.sweep import run_points
from workloads.parse import parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP = 0.1
"""Relative change of a figure."""

_STRETCH = (1.0, 1.25, 1.6, 2.5, 5.0, 10.0)
"""Multiples of the step that are tried until one gives a valid machine."""

_INSTRUCTION_COLUMNS = ("interval", "latency")

STEEP = 1.5
"""Elasticity beyond which a response is a cliff: time that a figure bounds moves in proportion to it."""

FELT = 0.01
"""Change of time below which a response is no cliff, however steep."""

SMOOTH = 0.5
"""Share of the larger elasticity by which those of both sides may differ in a smooth response."""

Response = Literal["smooth", "bend", "cliff", "one side"]
"""Of the time to a figure. smooth: alike on both sides; bend: another unit bounds it on one of them; cliff: it moves
more than in proportion, or the same way on both sides; one side: there is no valid machine on the other."""


@dataclass(frozen=True)
class Side:
    """One changed run: the figure's value as text, its relative change, and that of the time. switched: it ran another
    schedule than the unchanged machine."""

    value: str
    change: float
    time_ps: int
    time_change: float
    switched: bool = False

    def per(self, step: float) -> float:
        """Change of time for `step` of the figure: the change seen, scaled where the figure had to move by more."""
        return self.time_change * step / abs(self.change)

    @property
    def elasticity(self) -> float:
        """Relative change of time per relative change of the figure: 1 means in proportion, -1 inversely."""
        return math.log1p(self.time_change) / math.log1p(self.change)


@dataclass(frozen=True)
class Bar:
    """One figure with its sides; a side that gives no valid machine is None."""

    path: str
    value: str
    down: Side | None
    up: Side | None

    @property
    def swing(self) -> float:
        """Largest change of time per relative change of the figure; what bars are ranked by."""
        return max((abs(side.per(1.0)) for side in (self.down, self.up) if side), default=0.0)

    @property
    def response(self) -> Response:
        """How the time answers to the figure."""
        sides = [side for side in (self.down, self.up) if side]
        if any(abs(side.elasticity) > STEEP and abs(side.time_change) > FELT for side in sides):
            return "cliff"
        if len(sides) < 2:
            return "one side"
        changes = [side.time_change for side in sides]
        if min(map(abs, changes)) > FELT and min(changes) * max(changes) > 0:
            return "cliff"
        down, up = (side.elasticity for side in sides)
        return "smooth" if abs(down - up) <= SMOOTH * max(abs(down), abs(up)) else "bend"

    @property
    def elasticity(self) -> float | None:
        """The mean of both sides where the response is smooth, else None."""
        if self.response != "smooth" or self.down is None or self.up is None:
            return None
        return (self.down.elasticity + self.up.elasticity) / 2


@dataclass(frozen=True)
class Sensitivity(Shown):
    """Every figure of a machine by how much it moves a workload, the strongest first.

    skipped: figures without a valid value on either side, and why.
    """

    base: Base
    time_ps: int
    step: float
    bars: Sequence[Bar]
    skipped: Sequence[tuple[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """`figures` with value, elasticity and both sides, ranked; `skipped` with reasons."""

        def side(found: Side | None) -> dict[str, Any] | None:
            if found is None:
                return None
            return {
                "value": found.value,
                "change": found.change,
                "time_us": found.time_ps / 1e6,
                "time_change": found.time_change,
                "schedule_changed": found.switched,
            }

        return {
            "schema_version": "2.1",
            "workload": self.base.workload,
            "machine": self.base.archs[0],
            "choice": self.base.choice,
            **self.base.asked.to_dict(),
            "time_us": self.time_ps / 1e6,
            "step": self.step,
            "figures": [
                {
                    "path": b.path,
                    "value": b.value,
                    "response": b.response,
                    "elasticity": b.elasticity,
                    "down": side(b.down),
                    "up": side(b.up),
                }
                for b in self.bars
            ],
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the tornado chart."""
        from sim.app.study.plots import tornado

        return tornado(self, ax)

    def sections(self) -> list[Section]:
        """The ranking, then what does not move the time, then what could not be changed."""
        moving = [b for b in self.bars if b.swing > 0]
        most = max((b.swing for b in moving), default=1.0)
        rows = tuple((b.path, b.value, _side(b.down), _side(b.up), _response(b), Meter(b.swing / most)) for b in moving)
        groups: dict[str, list[str]] = {}
        for b in self.bars:
            if b.swing == 0:
                group, _, name = b.path.rpartition(".")
                groups.setdefault(group, []).append(name)
        still = tuple((group, ", ".join(names)) for group, names in groups.items())
        title = f"{self.base.title}: {time_text(self.time_ps)}; what moves it"
        if any(side and side.switched for b in moving for side in (b.down, b.up)):
            title += "; * another schedule"
        found = [
            Section(title, rows, ("figure", "value", "lower", "higher", "elasticity", ""))
            if rows
            else Section(title, (("no figure moves it",),)),
            Section("No change of time within these steps", still),
            Section("Not changed", tuple(self.skipped)),
        ]
        return [section for section in found if section.rows]


def sensitivity(
    workload: str,
    arch: str,
    *,
    step: float = STEP,
    only: Sequence[str] = (),
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
) -> Sensitivity:
    """Runs a workload with every figure of a machine changed by `step`, down and up.

    only: patterns of figures (`dram.*`); default: all. hold: the schedule of the unchanged machine is kept, so that the
    machine alone changes; else each machine takes its own, the best of all candidates with tune. Other options as in
    `sweep`. Raises InputError before anything runs.
    """
    check_executor(executor, scheduler)
    if not 0 < step < 1:
        raise InputError(f"--step {step:g}: must lie between 0 and 1, such as 0.1")
    machine = load_arch(arch, set)
    text = str(parse(workload))

    def make(cases: Sequence[Request]) -> Executor:
        return make_executor(executor, workers=workers, scheduler=scheduler, cases=cases)

    choice = choice_of(hold, tune)
    base = choice.tuned(Request(text, machine, schedule, **options))
    ((first,), _) = run_points(
        [Point({}, base)], lambda n: make_executor("local", workers=1, scheduler=None, cases=n), store, None
    )
    if first.report is None:
        raise InputError(first.refused or first.failed)
    # The schedule that was taken has left out already what it is to do without.
    kept = replace(base, schedule=first.report["schedule"], without=(), tune=False) if hold else base
    figures = dict(_figures(machine))
    for pattern in only:
        if not fnmatch.filter(figures, pattern):
            raise InputError(f"--only {pattern}: no figure of {arch} has such a name; tilewave archs {arch} shows all")
    figures = {path: value for path, value in figures.items() if _wanted(path, only)}
    time_ps = round(first.report["time_us"] * 1e6)
    sides: dict[str, dict[int, Side]] = {}
    reasons: dict[str, str] = {}
    tries = {
        (path, sign): _neighbours(arch, set, path, value, sign * step)
        for path, value in figures.items()
        for sign in (-1, 1)
    }
    while tries:
        # Most machines are valid at the first step; the rest go on to longer ones together.
        asked = [(key, found) for key, steps in tries.items() if (found := _first_valid(key[0], steps, reasons))]
        points = [Point({path: n.text}, replace(kept, machine=n.machine)) for (path, _), n in asked]
        answers, _ = run_points(points, make, store, progress)
        left = {}
        for (key, neighbour), answer in zip(asked, answers, strict=True):
            path, sign = key
            if answer.report is None:
                reasons.setdefault(path, answer.refused or answer.failed)
                left[key] = tries[key]
                continue
            ps = round(answer.report["time_us"] * 1e6)
            sides.setdefault(path, {})[sign] = Side(
                neighbour.text, neighbour.change, ps, ps / time_ps - 1, changed(first.report, answer.report)
            )
        tries = left
    shown = {row.path: row.value for row in describe(machine)}
    bars = [
        Bar(path, shown.get(path, str(figures[path])), sides[path].get(-1), sides[path].get(1))
        for path in figures
        if path in sides
    ]
    skipped = [(path, reason) for path, reason in reasons.items() if path not in sides]
    bars.sort(key=lambda b: (-b.swing, b.path))
    return Sensitivity(Base(text, (arch,), tuple(set), schedule, options, choice.word), time_ps, step, bars, skipped)


def _figures(machine: Any) -> Iterator[tuple[str, int | float]]:
    """Every number of a description above zero, by path, instruction rows included."""
    for path, leaf in leaves(machine.__class__).items():
        value: Any = machine
        for attribute in leaf.attributes:
            value = getattr(value, attribute, None)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            yield path, value
    for row in getattr(machine, "instructions", ()):
        for column in _INSTRUCTION_COLUMNS:
            value = getattr(row, f"{column}_cycles")
            if value > 0:
                yield f"instructions.{row.name}.{column}", value


def _wanted(path: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatch.fnmatch(path, pattern) for pattern in only)


@dataclass(frozen=True)
class _Neighbour:
    """A machine with one figure moved. change: how far it really moved."""

    text: str
    change: float
    machine: Any


def _first_valid(path: str, steps: Iterator[_Neighbour | str], reasons: dict[str, str]) -> _Neighbour | None:
    """The next neighbour that can be described; what is wrong with those before it is noted."""
    for found in steps:
        if isinstance(found, _Neighbour):
            return found
        reasons.setdefault(path, found)
    return None


def _neighbours(
    arch: str, overrides: Sequence[str], path: str, value: int | float, change: float
) -> Iterator[_Neighbour | str]:
    """Machines with the figure moved by `change`, then by more and more; or why there is none."""
    leaf = leaves(load_arch(arch, overrides).__class__).get(path)
    unit = leaf.unit if leaf else CYCLES if path.startswith("instructions.") else None
    whole = isinstance(value, int)
    tried = {value}
    for stretch in _STRETCH:
        factor = 1 + change * stretch
        if factor <= 0:
            break
        moved: int | float = value * factor
        if whole:
            moved = math.floor(moved) if change < 0 else math.ceil(moved)
        else:
            moved = float(f"{moved:.6g}")
        if moved in tried or moved <= 0:
            continue
        tried.add(moved)
        text = unit.format(Fraction(repr(moved))) if unit else str(moved)
        try:
            yield _Neighbour(text, float(moved / value - 1), load_arch(arch, [*overrides, f"{path}={text}"]))
        except InputError as error:
            yield str(error)


def _side(side: Side | None) -> str:
    if side is None:
        return ""
    return f"{100 * side.change:+.3g} %: {100 * side.time_change:+.2f} %{' *' if side.switched else ''}"


def _response(bar: Bar) -> str:
    return bar.response if bar.elasticity is None else f"{bar.elasticity:+.3f}"
