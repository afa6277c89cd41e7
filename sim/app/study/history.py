"""`tilewave history`: what a case's recorded numbers were, from commit to commit of the lock file."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
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
from sim.app.study import lockfile
from sim.app.study.lockfile import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COMMITS = 1000
_GIT_SECONDS = 60
_HERE = "here"

_SETTINGS = (
    *("log.showSignature=false", "gpg.program=false", "gpg.ssh.program=false", "gpg.x509.program=false"),
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.sshCommand=false", "core.askPass=false"),
    *("core.pager=cat", "core.editor=false", "diff.external=", "credential.helper=", "i18n.logOutputEncoding=UTF-8"),
    *("log.mailmap=false", "log.follow=false", "fetch.recurseSubmodules=false"),
)
"""Over those of a folder's own configuration, which could name programs."""

_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0",
                "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}  # fmt: skip
"""All that Git finds of its own in the environment: nothing is fetched, nobody asked, nothing written."""

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
        rows, before = [], None
        for record in self.records:
            digest = record.entry.digest
            change = f"{100 * (digest.cycles / before - 1):+.3f} %" if before else ""
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
    log = _git(lock, "log", *shown, f"--max-count={last}", "--format=%h%x09%cI%x09%s", "--", lock.name)
    known: set[str] = set()
    texts = [(line.split("\t", 2), None) for line in reversed(log.splitlines())]
    for (commit, date, subject), _ in texts:
        _take(found, known, name, commit, date, subject, _git(lock, "cat-file", "blob", f"{commit}:./{lock.name}"))
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


def _git(lock: Path, *words: str) -> str:
    """What Git says about the folder of a file. Whatever its configuration names, which may be somebody else's, no
    program is run and nothing is fetched."""
    command = ["git", "--no-pager", *(word for setting in _SETTINGS for word in ("-c", setting)), *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        with tempfile.TemporaryFile() as said, subprocess.Popen(
            command, cwd=lock.parent.resolve(), env=kept | _ENVIRONMENT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=said,
        ) as git:  # fmt: skip
            end = threading.Timer(_GIT_SECONDS, git.kill)
            end.start()
            try:
                assert git.stdout is not None
                found = reading.unpacked(git.stdout, f"{lock}: Git", reading.MOST_BYTES)
            except InputError:
                git.kill()
                raise
            finally:
                end.cancel()
            git.wait()
            said.seek(0)
            reason = said.read(1000).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{lock}: Git cannot be asked: {error}") from None
    if git.returncode:
        raise InputError(f"{lock}: Git: {(reason.strip().splitlines() or ['failed'])[0]}")
    return found.decode("utf-8", errors="replace")
