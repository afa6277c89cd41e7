"""What two runs are compared by: cycles, time, the main counters, stall reasons; and how they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from arch.errors import InputError, what_is_wrong
from sim.app.report.text import change_text

_DETAIL = ("inst_", "events")
"""Counters, by the beginning of their name, that only repeat in detail what others say."""

MOST_PERCENT = 1000
"""Of a unit's time; more is no share but a damaged file."""

MOST_STALLS, MOST_COUNTERS = 6, 10
"""Changes of each kind that text shows, the largest first."""


@dataclass(frozen=True)
class Digest:
    """One run. stalls: per cent of the unit's time by `unit.reason`, to a hundredth of a thousandth.

    clock_hz, energy_fj: mean core clock and energy; None where a machine has none.
    """

    cycles: int
    time_ps: int
    schedule: str
    counters: Mapping[str, int] = field(default_factory=dict)
    stalls: Mapping[str, float] = field(default_factory=dict)
    clock_hz: int | None = None
    energy_fj: int | None = None

    def __post_init__(self) -> None:
        """TypeError for what a damaged file has in the place of a number or a text."""
        whole = {"cycles": self.cycles, "time_ps": self.time_ps, **self.counters}
        whole |= {name: value for name in ("clock_hz", "energy_fj") if (value := getattr(self, name)) is not None}
        for name, value in whole.items():
            if type(value) is not int or abs(value) >= 1 << 63:
                raise TypeError(f"{name} = {str(value)[:40]!r} is no whole number")
        for name, share in self.stalls.items():
            if type(share) not in (int, float) or not abs(share) <= MOST_PERCENT:
                raise TypeError(f"{name} = {str(share)[:40]!r} is no share")
        if not isinstance(self.schedule, str):
            raise TypeError(f"schedule = {str(self.schedule)[:40]!r} is no text")

    @property
    def brief(self) -> Digest:
        """Without counters and stall reasons."""
        return replace(self, counters={}, stalls={})

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Digest:
        """Of a report by schema.json. InputError if that is none."""
        try:
            counters = dict(report.get(report["family"], {}).get("counters", {}))
            for level, sides in report.get("bytes", {}).items():
                counters |= {f"{level}_{side}_bytes": count for side, count in sides.items()}
            counters.setdefault("macs", report["macs"])
            return cls(
                cycles=report["cycles"],
                time_ps=round(report["time_us"] * 1e6),
                schedule=report["schedule"],
                counters={
                    name: count
                    for name, count in sorted(counters.items())
                    if isinstance(count, int) and count and not name.startswith(_DETAIL)
                },
                stalls={
                    f"{unit}.{reason}": percent
                    for unit, shares in sorted(report.get("stalls", {}).items())
                    for reason, share in sorted(shares.items())
                    if (percent := round(100 * share, 5))
                },
                clock_hz=report.get("clock_hz"),
                energy_fj=round(report["energy_j"] * 1e15) if "energy_j" in report else None,
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(
                f"no report of one run: {what_is_wrong(error)}; make it with tilewave run --json"
            ) from None


@dataclass(frozen=True)
class Change:
    """One number that moved.

    kind: `cycles`, `time`, `clock`, `energy`, `counter` or `stall` (in per cent of the unit's time).
    """

    kind: str
    name: str
    old: float
    new: float

    @property
    def relative(self) -> float:
        """Change over the old value; over 1 where that is zero."""
        return (self.new - self.old) / (abs(self.old) or 1)

    def beyond(self, tolerance: float) -> bool:
        """Whether it exceeds a tolerance: relative, or for stall reasons in points of 100 %."""
        size = abs(self.new - self.old) / 100 if self.kind == "stall" else abs(self.relative)
        return size > tolerance

    @property
    def seen(self) -> bool:
        """Whether its text shows that it moved."""
        _, old, new, _ = self.cells
        return old != new

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name, old, new and change as text."""
        if self.kind == "stall":
            return self.name, f"{self.old:.2f} %", f"{self.new:.2f} %", f"{self.new - self.old:+.2f} points"
        if self.kind == "time":
            return self.name, f"{self.old / 1e6:,.3f} us", f"{self.new / 1e6:,.3f} us", change_text(self.old, self.new)
        if self.kind == "clock":
            return (
                self.name,
                f"{self.old / 1e6:,.1f} MHz",
                f"{self.new / 1e6:,.1f} MHz",
                change_text(self.old, self.new),
            )
        if self.kind == "energy":
            old, new = f"{self.old / 1e9:,.3f} uJ", f"{self.new / 1e9:,.3f} uJ"
            return self.name, old, new, change_text(self.old, self.new)
        return self.name, f"{self.old:,.0f}", f"{self.new:,.0f}", change_text(self.old, self.new)


def changes(old: Digest, new: Digest) -> list[Change]:
    """Everything that moved: cycles, time, clock, energy, stall reasons and counters, the last two with their largest
    change first. An energy that only one of them has has not moved."""
    found = []
    for kind, field_name in (("cycles", "cycles"), ("time", "time_ps"), ("clock", "clock_hz"), ("energy", "energy_fj")):
        before, after = getattr(old, field_name), getattr(new, field_name)
        if before is not None and after is not None and before != after:
            found.append(Change(kind, kind, before, after))
    stalls = _moved("stall", old.stalls, new.stalls)
    counters = _moved("counter", old.counters, new.counters)
    found += sorted(stalls, key=lambda c: (-abs(c.new - c.old), c.name))
    found += sorted(counters, key=lambda c: (-abs(c.relative), c.name))
    return found


def shown(found: list[Change]) -> list[tuple[str, str, str, str]]:
    """The changes as rows of text, small ones summed up. A mean clock that rounds to what it was stands there alone or
    not at all."""
    rows = [
        change.cells
        for change in found
        if change.kind not in ("stall", "counter") and (change.kind != "clock" or change.seen or len(found) == 1)
    ]
    for kind, most in (("stall", MOST_STALLS), ("counter", MOST_COUNTERS)):
        of_kind = [change for change in found if change.kind == kind]
        rows += [change.cells for change in of_kind[:most]]
        if len(of_kind) > most:
            rows.append((f"and {len(of_kind) - most} smaller changes of {kind}s", "", "", ""))
    return rows


def _moved(kind: str, old: Mapping[str, float], new: Mapping[str, float]) -> list[Change]:
    names = dict.fromkeys([*old, *new])
    pairs = ((name, old.get(name, 0), new.get(name, 0)) for name in names)
    return [Change(kind, name, a, b) for name, a, b in pairs if a != b]
