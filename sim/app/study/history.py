"""`tilewave history`: what a case's recorded numbers were, from commit to commit of the lock file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch import reading
from arch.errors import InputError
from arch.near import hint
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.report.text import change_text
from sim.app.study import lockfile
from sim.app.study.git import blob, git
from sim.app.study.lockfile import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COMMITS = 1000
_HERE = "here"

METRICS = {"cycles": "cycles", "time_us": "us", "energy_j": "J"}
"""What is drawn, with its unit."""


@dataclass(frozen=True)
class Record:
    """The lock's entry for a case since one commit. commit: its short hash, `here` for the working copy."""

    commit: str
    date: str
    subject: str
    entry: Entry

    def metric(self, name: str) -> float | None:
        """One of `METRICS`; None where it was not recorded."""
        digest = self.entry.digest
        if name == "energy_j":
            return None if digest.energy_fj is None else digest.energy_fj * 1e-15
        return digest.cycles if name == "cycles" else digest.time_ps * 1e-6


@dataclass(frozen=True)
class History(Shown):
    """The records of one case that differ from the one before, the oldest first."""

    name: str
    records: Sequence[Record]

    def sections(self) -> list[Section]:
        """A line a record, with its change."""
        rows, before = [], 0
        for record in self.records:
            digest = record.entry.digest
            change = change_text(before, digest.cycles)
            rows.append(
                (record.date[:10], record.commit, f"{digest.cycles:,}", change, digest.schedule, record.subject)
            )
            before = digest.cycles
        return [Section(f"History of {self.name}", tuple(rows), ("date", "commit", "cycles", "", "schedule", "why"))]

    def to_dict(self) -> dict[str, Any]:
        """The records as plain data."""
        return {
            "name": self.name,
            "records": [
                {
                    "commit": record.commit,
                    "date": record.date,
                    "subject": record.subject,
                    "schedule": record.entry.digest.schedule,
                    **{name: record.metric(name) for name in METRICS},
                }
                for record in self.records
            ],
        }

    def plot(self, metric: str = "cycles", ax: Axes | None = None) -> Axes:
        """A metric over the commits that moved the case, each named."""
        from sim.app.study.plots import history_plot

        return history_plot(self, metric, ax)


def history(lock: Path, name: str, last: int = MOST_COMMITS) -> History:
    """What the lock file at `lock` recorded for a case in its latest `last` commits, and in the working copy.

    InputError where the file is in no Git repository, or no such case was ever recorded.
    """
    found: list[Record] = []
    shown = ("--no-show-signature", "--no-ext-diff", "--no-textconv", "--no-color", "--no-notes", "--no-decorate")
    log = git(lock, "log", *shown, f"--max-count={last}", "--format=%h%x09%cI%x09%s", "--", lock.name)
    known: set[str] = set()
    texts = [(line.split("\t", 2), None) for line in reversed(log.splitlines())]
    for (commit, date, subject), _ in texts:
        _take(found, known, name, commit, date, subject, blob(lock, commit))
    if lock.exists():
        _take(found, known, name, _HERE, "", "the working copy", reading.text(lock))
    if not found:
        raise InputError(f"{lock}: never recorded a case {name}{hint(name, sorted(known), '; nearest: {}')}")
    return History(name, found)


def _take(found: list[Record], known: set[str], name: str, commit: str, date: str, subject: str, text: str) -> None:
    """Adds the entry of a version of the file, if there is one that says something new."""
    for block in re.split(r"^(?=\[case\.)", text, flags=re.MULTILINE)[1:]:
        try:
            (found_name,) = tomllib.loads(block.partition("\n")[0])["case"]
        except (ValueError, RecursionError):
            continue
        known.add(found_name)
        if found_name != name:
            continue
        try:
            entry = lockfile.only_entry(block)[1]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return  # of an earlier format, or damaged
        if not found or found[-1].entry != entry:
            found.append(Record(commit, date, subject, entry))
