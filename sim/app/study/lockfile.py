"""`cycles.lock`: recorded runs in a file that people read, merge and commit. TOML, one block a case, sorted."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.errors import InputError
from sim.app.fingerprint import code_hash
from sim.app.study.digest import Digest
from sim.app.study.toml_file import read_toml

NAME = "cycles.lock"
FORMAT = 2
"""2: clock and energy, stalls to a hundredth of a thousandth."""

_OPTIONAL = ("clock_hz", "energy_fj")
_HEAD = (
    "# Recorded by tilewave, which compares runs with it; its --update options write it. Commit it, do not edit it.\n"
)


@dataclass(frozen=True)
class Entry:
    """One recorded run: what was asked, the hash of the machine's figures, what came out.

    kernels: hash of the program that recorded it; it says nothing about what came out, so it is not compared.
    """

    arch: str
    workload: str
    machine: str
    digest: Digest
    kernels: str = field(default="", compare=False)


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
    from sim.app.families.options import version

    return Lock(version())


def read(path: Path, *, replaced: bool = False) -> Lock:
    """The lock at `path`; InputError if it cannot be read. replaced: one of an earlier format counts as empty, since
    it is about to be recorded again."""
    data = read_toml(path, "record it again with --update")
    if replaced and data.get("format") in range(1, FORMAT):
        return Lock()
    if data.get("format") != FORMAT:
        raise InputError(
            f"{path}: has format {data.get('format')}, this version reads {FORMAT}; record it again with --update"
        )
    try:
        entries = {name: _entry(block) for name, block in data.get("case", {}).items()}
        return Lock(data["version"], entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: is damaged ({type(error).__name__} {error}); record it again with --update"
        ) from None


def write(path: Path, lock: Lock) -> None:
    """Replaces the file as a whole, or leaves it as it was; InputError if it cannot be written."""
    lines = [_HEAD, f"format = {FORMAT}\n", f"version = {_text(lock.version)}\n"]
    for name in sorted(lock.entries):
        entry = lock.entries[name]
        digest = entry.digest
        lines.append(f"\n[case.{_text(name)}]\n")
        for key in ("arch", "workload", "machine", "kernels"):
            lines.append(f"{key} = {_text(getattr(entry, key))}\n")
        lines += [
            f"schedule = {_text(digest.schedule)}\n",
            f"cycles = {digest.cycles}\n",
            f"time_ps = {digest.time_ps}\n",
        ]
        lines += [f"{key} = {value}\n" for key in _OPTIONAL if (value := getattr(digest, key)) is not None]
        lines += [f"counters.{_key(key)} = {count}\n" for key, count in digest.counters.items()]
        lines += [f"stalls.{_key(key)} = {percent:.5f}\n" for key, percent in digest.stalls.items()]
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(lines)
            os.chmod(temporary, path.stat().st_mode if path.exists() else 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _entry(block: Mapping[str, Any]) -> Entry:
    stalls = {
        f"{unit}.{reason}": share
        for unit, reasons in block.get("stalls", {}).items()
        for reason, share in reasons.items()
    }
    optional = {key: block.get(key) for key in _OPTIONAL}
    digest = Digest(block["cycles"], block["time_ps"], block["schedule"], block.get("counters", {}), stalls, **optional)
    arch, workload, machine, kernels = (block[key] for key in ("arch", "workload", "machine", "kernels"))
    if not all(isinstance(word, str) for word in (arch, workload, machine, kernels)):
        raise TypeError("arch, workload, machine and kernels are texts")
    return Entry(arch, workload, machine, digest, kernels)


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are a part of TOML's, which wants one more."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    """A dotted TOML key, parts in quotes where they need them."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else _text(part) for part in name.split("."))
