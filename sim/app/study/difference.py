"""`tilewave diff`: two reports of runs, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError, what_is_wrong
from sim.app.report.asked import Asked, title_of
from sim.app.report.render import Shown
from sim.app.report.report import SCHEMA_VERSION
from sim.app.report.schedules import Switch, switches
from sim.app.report.sections import Section
from sim.app.study.digest import Change, Digest, changes, shown

_AS_IN_FILE = "as in its file"


@dataclass(frozen=True)
class Difference(Shown):
    """What differs between two runs. names: of the files; titles: of the runs. asked: words that differ, as (name, old,
    new). switched: operators whose schedules differ."""

    names: Sequence[str]
    titles: Sequence[str]
    asked: Sequence[tuple[str, str, str]]
    moved: Sequence[Change]
    differs: bool
    switched: Sequence[Switch] = ()

    def to_dict(self) -> dict[str, Any]:
        """`asked` and `moved` as plain data."""
        return {
            "schema_version": "2.1",
            "reports": list(self.names),
            "titles": list(self.titles),
            "differs": self.differs,
            "asked": [dict(zip(("name", "old", "new"), row, strict=True)) for row in self.asked],
            "schedules": [switch._asdict() for switch in self.switched],
            "moved": [{**asdict(change), "relative": change.relative} for change in self.moved],
        }

    def sections(self) -> list[Section]:
        """What was asked, then what came out."""
        title = " -> ".join(f"{name}: {title}" for name, title in zip(self.names, self.titles, strict=True))
        if not self.asked and not self.moved and not self.switched:
            return [Section(title, (("no difference",),))]
        rows = shown(list(self.moved))
        found = [
            Section(title, tuple(self.asked)),
            switched_section(self.switched),
            Section("What moved", tuple(rows), ("", "old", "new", "change")),
        ]
        return [section for section in found if section.rows]


def difference(old: Path, new: Path, tolerance: float = 0.0) -> Difference:
    """Compares two files written by `tilewave run --json`. InputError if one is none."""
    return between((str(old), str(new)), (_read(old), _read(new)), tolerance)


def between(names: tuple[str, str], reports: Sequence[Mapping[str, Any]], tolerance: float = 0.0) -> Difference:
    """Compares two reports by schema.json. names: what they are called. InputError if one is none."""
    digests, words, titles = [], [], []
    for name, report in zip(names, reports, strict=True):
        try:
            digests.append(Digest.of(report))
            words.append(_words(report))
            titles.append(title_of(report))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{name}: is no report by the schema: {what_is_wrong(error)}") from None
    changed = {path for report in reports for path in report["overrides"]}
    absent = {name: _AS_IN_FILE if name in changed else "" for side in words for name in side}
    pairs = ((name, words[0].get(name, none), words[1].get(name, none)) for name, none in absent.items())
    asked = [(name, a, b) for name, a, b in pairs if a != b]
    moved = changes(*digests)
    # Of an operator alone it stands among the words.
    switched = [switch for switch in switches(*reports) if switch.operator != reports[0]["workload"]]
    differs = bool((asked or switched) and not tolerance) or any(change.beyond(tolerance) for change in moved)
    return Difference(names, titles, asked, moved, differs, switched)


def switched_section(switched: Sequence[Switch]) -> Section:
    """Operators of two runs whose schedules differ: what moved may be the choice, and not the machine."""
    return Section("Operators that run another schedule", tuple(switched), ("operator", "old", "new"))


def _words(report: Mapping[str, Any]) -> dict[str, str]:
    """What was asked of a run and which way it took, by name."""
    asked = replace(Asked.of(report), versions={})
    first, last = ("machine", "workload", "dtype"), ("schedule", "bound")
    return {**{k: str(report[k]) for k in first}, **asked.words, **{k: str(report[k]) for k in last}}


def _read(path: Path) -> dict[str, Any]:
    report = reading.document(reading.text(path), str(path))
    if not isinstance(report, dict) or "cycles" not in report:
        raise InputError(f"{path}: is no report of one run; make it with tilewave run ... --json")
    has = str(report.get("schema_version", "none"))
    if has.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise InputError(
            f"{path}: has schema {has}, this version reads {SCHEMA_VERSION}; make it again with tilewave run ... --json"
        )
    return report
