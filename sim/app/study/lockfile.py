"""`cycles.lock`: recorded runs in a file that people read, merge and commit. TOML, one block a case, sorted."""

from __future__ import annotations

import contextlib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Item, KeyType, SingleKey

from arch import reading
from arch.errors import InputError, what_is_wrong
from sim.app.fingerprint import code_hash
from sim.app.study.digest import Digest
from sim.app.study.toml_file import read_toml
from sim.app.whole_file import replacing

NAME = "cycles.lock"
FORMAT = 2
"""2: clock and energy, stalls to a hundredth of a thousandth."""

_OPTIONAL = ("clock_hz", "energy_fj")
_Path = tuple[str, ...]
_HEADER, _END = (), ("",)
"""Places of comments that stand beside a block's header and at its end."""
_HEAD = (
    "# Recorded by tilewave, which compares runs with it; its --update options write it. Commit it, do not edit it.\n"
)


def beside(lock: Path) -> contextlib.AbstractContextManager[None]:
    """Within it, files that a workload names are those of a lock's folder, whatever folder the process was started in:
    a lock is the same for everybody who has its folder. For the whole process: the current folder is another one."""
    return contextlib.chdir(lock.resolve().parent)


@dataclass(frozen=True)
class Entry:
    """One recorded run: what was asked, the hash of the machine's figures, what came out.

    kernels: hash of the program that recorded it; it says nothing about what came out, so it is not compared. program:
    hash of the file that made the kernels, where the workload is a program of one's own.
    """

    arch: str
    workload: str
    machine: str
    digest: Digest
    kernels: str = field(default="", compare=False)
    program: str = ""


@dataclass(frozen=True)
class Lock:
    """A lock file's contents. version: of the program that wrote it."""

    version: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)


def kernels() -> str:
    """Hash of this version's kernels and of all else that a number depends on, as entries hold it."""
    return code_hash()[:16]


def here() -> Lock:
    """An empty lock of this version of the program."""
    from sim.app.cost import version

    return Lock(version())


def read(path: Path, *, replaced: bool = False) -> Lock:
    """The lock at `path`; InputError if it cannot be read. replaced: one of an earlier format counts as empty, since
    it is about to be recorded again."""
    data = read_toml(path, "record it again with --update")
    if replaced and data.get("format") in range(1, FORMAT):
        return Lock()
    if isinstance(data.get("format"), int) and data["format"] > FORMAT:
        newer = f"has format {data['format']}, of a newer tilewave"
        raise InputError(f"{path}: {newer}; upgrade tilewave (this one reads {FORMAT})")
    if data.get("format") != FORMAT:
        raise InputError(
            f"{path}: has format {data.get('format')}, this version reads {FORMAT}; record it again with --update"
        )
    try:
        entries = {name: _entry(block) for name, block in data.get("case", {}).items()}
        return Lock(data["version"], entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({what_is_wrong(error)}); record it again with --update") from None


def write(path: Path, lock: Lock) -> None:
    """Replaces the file as a whole, or leaves it as it was; InputError if it cannot be written.

    The blocks of runs that are recorded as they are now stay byte for byte, and people's comments stay everywhere.
    """
    head, blocks = _parts(path)
    parts = [_head(head, lock.version)]
    for name in sorted(lock.entries):
        entry, block = lock.entries[name], blocks.get(name, "")
        parts.append(block if block and only_entry(block) == (name, entry) else _block(name, entry, block))
    try:
        with replacing(path) as part:
            part.write_text("".join(parts), encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _parts(path: Path) -> tuple[str, dict[str, str]]:
    """What stands above the first case, and the text of each case with the comments directly above it, by name.

    Nothing of a file that is absent, damaged, or of another format: it is written anew.
    """
    try:
        read(path)
        text = reading.text(path)
    except InputError:
        return "", {}
    lines = re.split(r"(?<=\n)", text)  # not at what else Python takes for the end of a line
    starts = [_start(lines, number) for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    bounds = [*starts, len(lines)]
    try:
        blocks = ["".join(lines[a:b]) for a, b in itertools.pairwise(bounds)]
        return "".join(lines[: bounds[0]]), {only_entry(block)[0]: block for block in blocks}
    except (tomllib.TOMLDecodeError, KeyError, ValueError):
        return "", {}


def _start(lines: Sequence[str], header: int) -> int:
    """The line at which the block of a header begins: comments without a gap above it, and the gap above those."""
    start = header
    while start and lines[start - 1].startswith("#"):
        start -= 1
    while start and not lines[start - 1].strip():
        start -= 1
    return start


def only_entry(block: str) -> tuple[str, Entry]:
    """Name and entry of the one case in a text."""
    ((name, case),) = tomllib.loads(block)["case"].items()
    return name, _entry(case)


def _head(before: str, version: str) -> str:
    """What stands above the first case, with the comments that stood there."""
    head = tomlkit.parse(before or _HEAD)
    head["format"], head["version"] = FORMAT, version
    return tomlkit.dumps(head)


def _block(name: str, entry: Entry, before: str) -> str:
    """The text of one case, with the comments of the text that it replaces."""
    above, beside = _comments(before)
    leading = before[: _header(before)] if before else "\n"
    lines = [f"{leading}[case.{SingleKey(name, KeyType.Basic).as_string()}]{beside.get(_HEADER, '')}"]
    for path, value in _values(entry):
        lines += above.pop(path, ())
        lines.append(f"{tomlkit.key(path).as_string()} = {value.as_string()}{beside.get(path, '')}")
    lines += [text for texts in above.values() for text in texts]  # of values that are gone, and at the end
    return "".join(f"{line}\n" for line in lines)


def _comments(block: str) -> tuple[dict[_Path, list[str]], dict[_Path, str]]:
    """The comments below a block's header: on lines of their own, by the value that follows, and beside values."""
    above: dict[_Path, list[str]] = {}
    beside: dict[_Path, str] = {}
    waiting: list[str] = []
    for line in block[_header(block) :].split("\n"):
        if line.strip().startswith("#"):
            waiting.append(line.strip())
        elif line.strip():
            path: _Path = ()
            item: Any = tomlkit.parse(line)
            while isinstance(item, Mapping) and item:
                ((key, item),) = item.items()
                path = (*path, key)
            if comment := item.trivia.comment:
                beside[_HEADER if isinstance(item, Mapping) else path] = f"  {comment}"
            above[path], waiting = waiting, []
    above[_END] = waiting
    return above, beside


def _header(block: str) -> int:
    """Where in a block the line `[case.NAME]` begins; 0 if it is empty."""
    found = re.search(r"^[ \t]*\[", block, re.MULTILINE)
    return found.start() if found else 0


def _values(entry: Entry) -> Iterator[tuple[_Path, Item]]:
    """What a lock holds of a run, in its order, by key."""
    digest = entry.digest
    for key in ("arch", "workload", "machine", "kernels", *(("program",) if entry.program else ())):
        yield (key,), tomlkit.item(getattr(entry, key))
    yield ("schedule",), tomlkit.item(digest.schedule)
    for key in ("cycles", "time_ps", *_OPTIONAL):
        if (value := getattr(digest, key)) is not None:
            yield (key,), tomlkit.item(value)
    for key, count in digest.counters.items():
        yield ("counters", *key.split(".")), tomlkit.item(count)
    for key, percent in digest.stalls.items():
        yield ("stalls", *key.split(".")), tomlkit.value(f"{percent:.5f}")


def _entry(block: Mapping[str, Any]) -> Entry:
    stalls = {
        f"{unit}.{reason}": share
        for unit, reasons in block.get("stalls", {}).items()
        for reason, share in reasons.items()
    }
    optional = {key: block.get(key) for key in _OPTIONAL}
    digest = Digest(block["cycles"], block["time_ps"], block["schedule"], block.get("counters", {}), stalls, **optional)
    texts = {key: block[key] for key in ("arch", "workload", "machine", "kernels")} | {
        "program": block.get("program", "")
    }
    if not all(isinstance(word, str) for word in texts.values()):
        raise TypeError(f"{', '.join(texts)} are texts")
    return Entry(digest=digest, **texts)
