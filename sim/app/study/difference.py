"""`tilewave diff`: two reports of runs, and what differs between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arch.errors import InputError
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.study.digest import Change, Digest, changes, shown

_ASKED = ("machine", "workload", "dtype", "schedule", "scope", "bound")


@dataclass(frozen=True)
class Difference(Shown):
    """What differs between two runs. asked: words that differ, as (name, old, new)."""

    names: Sequence[str]
    asked: Sequence[tuple[str, str, str]]
    moved: Sequence[Change]
    differs: bool

    def to_dict(self) -> dict[str, Any]:
        """`asked` and `moved` as plain data."""
        return {
            "schema_version": "1.0",
            "reports": list(self.names),
            "differs": self.differs,
            "asked": [dict(zip(("name", "old", "new"), row, strict=True)) for row in self.asked],
            "moved": [{**asdict(change), "relative": change.relative} for change in self.moved],
        }

    def sections(self) -> list[Section]:
        """What was asked, then what came out."""
        title = " -> ".join(self.names)
        if not self.asked and not self.moved:
            return [Section(title, (("no difference",),))]
        rows = shown(list(self.moved))
        found = [Section(title, tuple(self.asked)), Section("What moved", tuple(rows), ("", "old", "new", "change"))]
        return [section for section in found if section.rows]


def difference(old: Path, new: Path, tolerance: float = 0.0) -> Difference:
    """Compares two files written by `tilewave run --json`. InputError if one is none."""
    reports = [_read(path) for path in (old, new)]
    digests = []
    for path, report in zip((old, new), reports, strict=True):
        try:
            digests.append(Digest.of(report))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    words = [[str(report.get(name, "")) for name in _ASKED] for report in reports]
    asked = [(name, a, b) for name, a, b in zip(_ASKED, *words, strict=True) if a != b]
    moved = changes(*digests)
    differs = bool(asked and not tolerance) or any(change.beyond(tolerance) for change in moved)
    return Difference((str(old), str(new)), asked, moved, differs)


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
    if not isinstance(report, dict) or "cycles" not in report:
        raise InputError(f"{path}: is no report of one run; make it with tilewave run ... --json")
    return report
