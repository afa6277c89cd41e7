"""Which schedule the points of a study run: the best candidate of each (tune), one for all (hold), or that of `auto`.

A study that tunes compares machines at their best, and a schedule may change between two points. A study that holds
shows what the machine alone does, and simulates each point once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arch.errors import InputError
from sim.app.families import family_of
from sim.app.families.request import Request
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
        return replace(case, tune=True) if self.tune and "tune" in family_of(case.machine.family).options else case

    def of(self, points: Sequence[Point], run: Callable[[Sequence[Point]], Sequence[Answer]]) -> list[Point]:
        """The points with the schedules that they are to run. run: answers points; only what is held needs it."""
        if not self.hold:
            return [point if point.case is None else replace(point, case=self.tuned(point.case)) for point in points]
        held: dict[str, str] = {}
        made = []
        for point in points:
            case = point.case
            if case is not None:
                if case.machine.name not in held:
                    (answer,) = run([replace(point, case=self.tuned(case))])
                    if answer.report is not None:
                        held[case.machine.name] = answer.report["schedule"]
                if case.machine.name in held:
                    case = replace(case, schedule=held[case.machine.name], without=())
            made.append(replace(point, case=case))
        return made


def choice_of(hold: bool, tune: bool, keys: Sequence[str] = ()) -> Choice:
    """How a study chooses. InputError where a schedule that varies is to be held."""
    if hold and "schedule" in keys:
        raise InputError("--hold keeps one schedule over all points: leave it out, or --vary schedule=...")
    return Choice(hold, tune)


def changed(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether two reports are of different schedules; a run that there is not has none."""
    return before is not None and after is not None and before["schedule"] != after["schedule"]
