"""Which schedule each operator of a run took, and for which operators two runs took different ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Switch(NamedTuple):
    """An operator that runs another schedule in one run than in another. operator: as text, behind the name of its
    layer or of its call in a profile."""

    operator: str
    old: str
    new: str


def taken(report: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By name of a layer of a network or of a call in a graph's profile, schedules by operator as text. An operator
    that ran alone has no name. report: by schema.json."""
    if "layers" in report:
        return {layer["name"]: {layer["workload"]: layer["schedule"]} for layer in report["layers"]}
    if "profile" in report:
        return {
            entry["operator"]: {one["workload"]: one["schedule"] for one in entry.get("schedules", ())}
            for entry in report["profile"]
        }
    return {"": {report["workload"]: report["schedule"]}}


def named(report: Mapping[str, Any]) -> dict[str, str]:
    """The same in one mapping, whose keys are what `Switch` calls an operator."""
    return {
        f"{name}: {operator}" if name else operator: schedule
        for name, schedules in taken(report).items()
        for operator, schedule in schedules.items()
    }


def switches(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> tuple[Switch, ...]:
    """Operators that both reports have, with different schedules; a run that there is not has none."""
    if old is None or new is None:
        return ()
    before = named(old)
    return tuple(
        Switch(operator, before[operator], schedule)
        for operator, schedule in named(new).items()
        if before.get(operator, schedule) != schedule
    )
