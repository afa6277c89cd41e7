"""Which schedule the points of a study run: the best candidate of each (tune), one for all (hold), or that of `auto`.

A study that tunes compares machines at their best, and a schedule may change between two points. A study that holds
shows what the machine alone does, and simulates each point once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arch.errors import InputError
from sim.app.families.family import runner_of
from sim.app.families.request import Request
from sim.app.report.schedules import switches, taken
from sim.app.study.axes import Point
from sim.app.study.case import Answer


@dataclass(frozen=True)
class Choice:
    """How schedules are chosen. hold: one for all points, that of the first which runs, on each machine; tune:
    candidates of a point (with hold, of the first one) are simulated."""

    hold: bool = False
    tune: bool = True

    @property
    def word(self) -> str:
        """What a study's title says; nothing where each point runs what `auto` takes."""
        return "schedule held" if self.hold else "each point tuned" if self.tune else ""

    def tuned(self, case: Request) -> Request:
        """The case with its candidates simulated, where its machine has a choice."""
        return replace(case, tune=True) if self.tune and "tune" in runner_of(case.machine.family).options else case

    def of(self, points: Sequence[Point], run: Callable[[Sequence[Point]], Sequence[Answer]]) -> list[Point]:
        """The points with the schedules that they are to run. run: answers points; only what is held needs it."""
        if not self.hold:
            return [point if point.case is None else replace(point, case=self.tuned(point.case)) for point in points]
        held: dict[str, dict[str, Any]] = {}
        made = []
        for point in points:
            case = point.case
            if case is not None:
                if case.machine.name not in held:
                    (answer,) = run([replace(point, case=self.tuned(case))])
                    if answer.report is not None:
                        held[case.machine.name] = _held(answer.report, case)
                if case.machine.name in held:
                    case = replace(case, **held[case.machine.name])
            made.append(replace(point, case=case))
        return made


def _held(report: Mapping[str, Any], case: Request) -> dict[str, Any]:
    """What a request says to run as a report did: an operator's schedule; of a graph its form, of a network what was
    asked, and the schedules of their operators."""
    if "profile" not in report and "layers" not in report:
        return {"schedule": report["schedule"], "without": ()}
    schedules = {op: text for found in taken(report).values() for op, text in found.items() if text}
    form = report["schedule"].partition(":")[0] if "profile" in report else case.schedule
    return {"schedule": form, "without": (), "held": tuple(schedules.items())}


def choice_of(hold: bool, tune: bool, keys: Sequence[str] = ()) -> Choice:
    """How a study chooses. InputError where a schedule that varies is to be held."""
    if hold and "schedule" in keys:
        raise InputError("--hold keeps one schedule over all points: leave it out, or --vary schedule=...")
    return Choice(hold, tune)


def changed(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether two reports are of different schedules, or operators in them; a run that there is not has none."""
    if before is None or after is None:
        return False
    return before["schedule"] != after["schedule"] or bool(switches(before, after))
