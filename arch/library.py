"""The machine files that ship: a file a board, which builds on a file of its chip; and how names find files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from arch.errors import InputError
from arch.near import hint
from arch.preset_file import PresetFile, read

PRESETS = Path(__file__).parent / "presets"
"""Machines: a file a board."""

CHIPS = Path(__file__).parent / "chips"
"""What boards build on: a file a chip, and one on which the chips of a vendor build."""

_MOST_BASES = 16
"""Machine files that build on each other; one that names itself by ever other paths would go on for ever."""


def list_archs() -> list[str]:
    """Return the names of the presets, sorted."""
    return _names(PRESETS)


def list_chips() -> list[str]:
    """Return the names of the chips on which machine files may build, sorted."""
    return _names(CHIPS)


def find(name: str) -> Path:
    """Return the file of a machine, a preset's name or a path; raises InputError for what is neither."""
    if _is_path(name):
        return Path(name)
    known = list_archs()
    if name in known:
        return PRESETS / f"{name}.yaml"
    if name in list_chips():
        raise InputError(f"{name!r} is what boards build on, not a machine; {_either(_machines_on(name))}")
    raise InputError(f"unknown machine {name!r}{_suggestion(name, known)} (all: {', '.join(known)})")


def chain(path: Path) -> list[PresetFile]:
    """Return a file and its bases, the root base first; raises InputError where one cannot be read."""
    seen: list[Path] = []
    files: list[PresetFile] = []
    while True:
        if path in seen:
            raise InputError(
                f"{path.name}: base leads back to itself: {' -> '.join(step.stem for step in [*seen, path])}"
            )
        if len(seen) >= _MOST_BASES:
            raise InputError(f"{path.name}: base: more than {_MOST_BASES} machine files build on each other")
        seen.append(path)
        files.append(_read_shipped(path) if path.parent in (PRESETS, CHIPS) else read(path))
        base = files[-1].base
        if base is None:
            return files[::-1]
        try:
            path = _find_base(base, path.parent)
        except InputError as error:
            raise InputError(f"{path.name}: base: {error}") from None


def _names(folder: Path) -> list[str]:
    return sorted(name.removesuffix(".yaml") for name in os.listdir(folder) if name.endswith(".yaml"))


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _find_base(name: str, folder: Path) -> Path:
    """The file on which one in `folder` builds: a chip, a machine or a path."""
    if _is_path(name):
        return folder / name
    known = dict.fromkeys(list_chips(), CHIPS) | dict.fromkeys(list_archs(), PRESETS)
    if name not in known:
        near = hint(name, known, "; nearest: {}")
        raise InputError(f"unknown chip or machine {name!r}{near} (all: {', '.join(known)})")
    return known[name] / f"{name}.yaml"


def _suggestion(name: str, known: list[str]) -> str:
    """What a name that is no machine can mean: those that have it as a word, else the nearest one."""
    meant = [machine for machine in known if name.lower() in _words(machine)]
    if len(meant) > 1:
        return f"; {_either(meant)}"
    return f"; nearest: {meant[0]}" if meant else hint(name.lower(), known, "; nearest: {}")


def _either(machines: list[str]) -> str:
    return f"it can mean {', '.join(machines[:-1])} or {machines[-1]}" if len(machines) > 1 else f"take {machines[0]}"


def _words(machine: str) -> set[str]:
    """Words of a preset's name and title."""
    title = _read_shipped(PRESETS / f"{machine}.yaml").figures["title"].text
    return set(re.findall(r"\w+", f"{machine} {title}".lower()))


def _machines_on(chip: str) -> list[str]:
    """Machines that build on a chip; those of other silicon that only take its figures over are none."""
    part_of = _read_shipped(CHIPS / f"{chip}.yaml")
    files = {machine: chain(PRESETS / f"{machine}.yaml") for machine in list_archs()}
    return [
        machine
        for machine, found in files.items()
        if part_of in found and not any(file.nearest for file in found[found.index(part_of) + 1 :])
    ]


@cache
def _read_shipped(path: Path) -> PresetFile:
    return replace(read(path), shipped=True)
