"""CI regression: the cases of `tilewave.toml` against the runs recorded in `cycles.lock`."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError
from arch.load import load_arch
from arch.near import hint
from sim.app.families.request import OPTION_DEFAULTS, Request
from sim.app.study import lockfile
from sim.app.study.case import Answer
from sim.app.study.digest import Change, Digest, changes
from sim.app.study.executors import make_executor
from sim.app.study.git import blob
from sim.app.study.lockfile import Entry, Lock
from sim.app.study.runner import Progress, run_cases
from sim.app.study.store import ResultStore
from sim.app.study.tolerance import Tolerance, tolerance_of
from sim.app.study.toml_file import read_toml
from workloads.parse import parse

CONFIG = "tilewave.toml"

SAME, CHANGED, NEW, GONE, REFUSED, FAILED = "same", "changed", "new", "gone", "refused", "failed"
"""Outcomes of a case; the last two have no result."""

_OPTIONS = {name: value for name, value in OPTION_DEFAULTS.items() if name not in ("check", "program")}
_CASE_KEYS = ("name", "arch", "workload", "set", "tolerance", "record", *_OPTIONS)
_LISTS = ("arch", "set", "without")
"""Keys that take one text or several."""
_KEYS = ("case", "tolerance", "record")

RECORDS = ("all", "cycles")
"""What a lock keeps of a case: all that is compared, or cycles, time, clock, energy and schedule alone."""


@dataclass(frozen=True)
class Wanted:
    """One case of a configuration. line: in the file, of its `[[case]]`. record: one of `RECORDS`."""

    name: str
    arch: str
    case: Request
    tolerance: Tolerance
    line: int
    record: str


@dataclass(frozen=True)
class Outcome:
    """What came of one case. moved: every number that differs, tolerated or not. notes: what else changed. cpu_s:
    seconds of CPU that the simulation took, whenever that was."""

    name: str
    status: str
    wanted: Wanted | None = None
    old: Entry | None = None
    new: Entry | None = None
    moved: Sequence[Change] = ()
    notes: Sequence[str] = ()
    reason: str = ""
    cpu_s: float = 0.0


@dataclass(frozen=True)
class CheckRun:
    """All outcomes, in the order of the configuration, then what is recorded but no longer asked for."""

    config: Path
    lock: Path
    outcomes: Sequence[Outcome] = field(default_factory=list)
    updated: bool = False
    against: str = ""
    """The commit whose lock was compared with; empty: the lock beside the configuration."""

    @property
    def exit_code(self) -> int:
        """0 fine (or recorded), 1 a difference or a broken simulator, 2 a case that cannot be run."""
        found = {outcome.status for outcome in self.outcomes}
        if REFUSED in found:
            return 2
        fine = {SAME, NEW} if self.against else {SAME}
        if FAILED in found or (not self.updated and found - fine):
            return 1
        return 0


def read_config(path: Path, tolerance: float | None = None) -> list[Wanted]:
    """The cases of a configuration; InputError, with file, case and key, for anything wrong. Machines are loaded."""
    data = read_toml(path, "put it right, or name another file with --config FILE")
    _known(data, _KEYS, str(path))
    blocks = data.get("case", [])
    if not isinstance(blocks, list) or not blocks:
        raise InputError(f"{path}: has no [[case]] with name, arch and workload")
    given = None if tolerance is None else Tolerance(tolerance)
    common = given or tolerance_of(data.get("tolerance", 0), str(path))
    record = _record(data.get("record", RECORDS[0]), str(path))
    written = reading.text(path).splitlines()
    lines = [i for i, line in enumerate(written, 1) if line.split("#")[0].strip() == "[[case]]"]
    if len(lines) != len(blocks):
        lines = [1] * len(blocks)
    found: dict[str, Wanted] = {}
    for line, block in zip(lines, blocks, strict=True):
        for wanted in _cases(block, path, line, common, given, record):
            if wanted.name in found:
                raise InputError(f"{path} line {line}: the name {wanted.name!r} is given twice")
            found[wanted.name] = wanted
    return list(found.values())


def check(
    config: Path,
    *,
    names: Sequence[str] = (),
    update: bool = False,
    against: str = "",
    tolerance: float | None = None,
    store: ResultStore | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CheckRun:
    """Runs the cases (those that a pattern in `names` fits) and compares them with the lock beside the configuration.

    against: a commit, whose lock is compared with instead; what it does not have is new, and no difference.
    update: records them instead; an unchanged lock is not touched, and nothing is recorded if a case has no result.
    tolerance: overrides those of the file. Raises InputError before anything runs.
    """
    wanted = read_config(config, tolerance)
    chosen = [w for w in wanted if not names or any(fnmatch.fnmatch(w.name, pattern) for pattern in names)]
    if not chosen:
        near = hint(names[0], [w.name for w in wanted], "; nearest: {}")
        raise InputError(f"{config}: no case has the name {names[0]}{near}")
    path = config.with_name(lockfile.NAME)
    if against and update:
        raise InputError("--against: goes without --update, which records what is there now")
    if not update and not against and not path.exists():
        raise InputError(f"{path}: there is none yet; tilewave check --update records it")
    recorded = _recorded(path, against, replaced=update and not names)
    make = partial(make_executor, "local", workers=workers, scheduler=None)
    with lockfile.beside(path):
        answers = run_cases([w.case for w in chosen], lambda cases: make(cases=cases), store=store, progress=progress)
        outcomes = [_outcome(w, answer, recorded) for w, answer in zip(chosen, answers, strict=True)]
    if not names:
        kept = {w.name for w in wanted}
        outcomes += [Outcome(name, GONE, old=e) for name, e in recorded.entries.items() if name not in kept]
    found = CheckRun(config, path, outcomes, against=against)
    if not update or any(outcome.status in (REFUSED, FAILED) for outcome in outcomes):
        return found
    if any(outcome.old != outcome.new for outcome in outcomes):
        entries = {name: entry for name, entry in recorded.entries.items() if names}
        # What is the same stays as it was recorded, so that a merge meets only what changed.
        entries |= {o.name: o.old if o.old == o.new else o.new for o in outcomes if o.new}
        lockfile.write(path, replace(lockfile.here(), entries=entries))
    return replace(found, updated=True)


def _recorded(path: Path, against: str, *, replaced: bool) -> Lock:
    """The lock at `path`, or as a commit has it; an empty one where there is none."""
    if not against:
        return lockfile.read(path, replaced=replaced) if path.exists() else Lock()
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder) / path.name
        then.write_text(blob(path, against), encoding="utf-8")
        return lockfile.read(then)


def entry_of(arch: str, machine: Any, workload: str, report: Mapping[str, Any]) -> Entry:
    """What a lock records of a run."""
    program = report.get("workload_file", {}).get("hash", "")[:16]
    return Entry(arch, workload, machine.content_hash()[:16], Digest.of(report), lockfile.kernels(), program)


def compared(name: str, old: Entry, new: Entry, tolerance: Tolerance) -> Outcome:
    """Two runs of one case."""
    moved = changes(old.digest, new.digest)
    asked = [
        f"{what}: {before} -> {after}"
        for what, before, after in (
            ("workload", old.workload, new.workload),
            ("machine", old.arch, new.arch),
            ("schedule", old.digest.schedule, new.digest.schedule),
        )
        if before != after
    ]
    differs = bool(asked and tolerance.exact) or not all(map(tolerance.accepts, moved))
    causes = []
    if differs and old.machine != new.machine:
        causes.append(f"figures of the machine: {old.machine} -> {new.machine}")
    if differs and old.program != new.program:
        causes.append(f"the workload's file: {old.program or 'none'} -> {new.program or 'none'}")
    if differs and old.kernels != new.kernels:
        causes.append(f"simulator: {old.kernels} -> {new.kernels}")
    return Outcome(name, CHANGED if differs else SAME, None, old, new, moved, [*asked, *causes])


def _outcome(wanted: Wanted, answer: Answer, recorded: Lock) -> Outcome:
    if answer.report is None:
        status = REFUSED if answer.refused else FAILED
        return Outcome(wanted.name, status, wanted, reason=answer.refused or answer.failed)
    new = entry_of(wanted.arch, wanted.case.machine, str(wanted.case.workload), answer.report)
    old = recorded.entries.get(wanted.name)
    if wanted.record == "cycles":
        new = replace(new, digest=new.digest.brief)
    if old is None:
        return Outcome(wanted.name, NEW, wanted, new=new, cpu_s=answer.cpu_s)
    known = replace(old, digest=old.digest.brief) if wanted.record == "cycles" else old
    return replace(compared(wanted.name, known, new, wanted.tolerance), wanted=wanted, old=old, cpu_s=answer.cpu_s)


def _cases(block: Any, path: Path, line: int, common: Tolerance, given: Tolerance | None, record: str) -> list[Wanted]:
    """The cases of one `[[case]]`: one for each machine that it names."""
    where = f"{path} line {line}"
    if not isinstance(block, dict):
        raise InputError(f"{where}: a case is a table: [[case]] with name, arch and workload")
    _known(block, _CASE_KEYS, where)
    for key in ("name", "arch", "workload"):
        if key not in block:
            raise InputError(f"{where}: {key} is missing; a case has name, arch and workload")
    for key, value in block.items():
        right = bool if isinstance(_OPTIONS.get(key), bool) else (str, list) if key in _LISTS else str
        if key != "tolerance" and not isinstance(value, right):
            raise InputError(f"{where}: {key} = {value!r}: must be {'true or false' if right is bool else 'text'}")
        if isinstance(value, list) and not (value and all(isinstance(item, str) and item for item in value)):
            raise InputError(f"{where}: {key} = {value!r}: must be text or a list of texts")
    for key in ("name", "arch", "schedule"):
        if not str(block.get(key, "")).isprintable():
            raise InputError(f"{where}: {key} = {block[key]!a}: has a control character")
    record = _record(block.get("record", record), where)
    several = isinstance(block["arch"], list)
    archs = _several(block["arch"])
    overrides = _several(block.get("set", []))
    stated = block.get("tolerance") if given is None else None
    tolerance = common if stated is None else tolerance_of(stated, where)
    options: dict[str, Any] = {
        key: _several(block[key]) if key in _LISTS else block[key] for key in _OPTIONS if key in block
    }
    found = []
    try:
        with lockfile.beside(path):
            workload = str(parse(block["workload"]))
        for arch in archs:
            # A machine's file is named from where the configuration lies.
            place = str(path.parent / arch) if arch.endswith((".yaml", ".yml")) else arch
            machine = load_arch(place, overrides)
            with lockfile.beside(path):
                case = Request(workload, machine, **options)
            name = f"{block['name']} {arch}" if several else block["name"]
            found.append(Wanted(name, arch, case, tolerance, line, record))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return found


def _record(value: Any, where: str) -> str:
    """What a lock is to keep, as a file says it."""
    if value not in RECORDS:
        raise InputError(f"{where}: record = {value!r}: one of {', '.join(RECORDS)}")
    return str(value)


def _several(value: str | list[str]) -> tuple[str, ...]:
    """One text, or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            near = hint(key, keys, "; nearest: {}")
            raise InputError(f"{where}: unknown key {key!r}, one of {', '.join(keys)}{near}")
