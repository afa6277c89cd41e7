"""DRAM standards as tables: a file a standard, with its organisation and timing constraints and their sources.

A machine names one (`dram: {standard: hbm3}`), whose figures then hold where that name stands: they replace what the
machine's base says of them, and what the same file (or the same overrides) or a later one states beats them one by one.
Size, bandwidth, channels and what the controller does stay the machine's own. To add a standard: a file in `arch/dram`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from arch.errors import InputError
from arch.near import hint
from arch.preset_file import Figure, PresetFile, read

FOLDER = Path(__file__).parent / "dram"

_KEY = "standard"


def list_standards() -> list[str]:
    """Return the names of the standards, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def read_standard(name: str) -> PresetFile:
    """Return the table of a standard, what it takes over from its base included; ids of sources carry its name."""
    file = read(FOLDER / f"{name}.yaml")
    figures = {path: replace(figure, source=_id(name, figure.source)) for path, figure in file.figures.items()}
    sources = {_id(name, source): text for source, text in file.sources.items()}
    if file.base is None:
        return PresetFile(sources=sources, figures=figures)
    base = read_standard(file.base)
    return PresetFile(sources=base.sources | sources, figures=base.figures | figures)


def with_standards(file: PresetFile) -> PresetFile:
    """Return figures with those of the standards that they name, which they beat where they state the same one.

    Raises InputError for a standard that there is not.
    """
    figures: dict[str, Figure] = {}
    sources: dict[str, str] = {}
    for path, figure in file.figures.items():
        group, _, key = path.rpartition(".")
        if key == _KEY:
            table = _named(path, figure)
            # The name first: a family without standards refuses that word, not one of the table's.
            figures |= {path: figure} | {f"{group}.{name}": entry for name, entry in table.figures.items()}
            sources |= table.sources
    return replace(file, sources=sources | file.sources, figures=figures | file.figures)


def _named(path: str, figure: Figure) -> PresetFile:
    name, known = str(figure.text), list_standards()
    if name not in known:
        near = hint(name.lower(), known, "; nearest: {}")
        raise InputError(f"{figure.where}: {path} = {name}: is no DRAM standard{near} (all: {', '.join(known)})")
    return read_standard(name)


def _id(standard: str, source: str) -> str:
    return f"{standard}: {source}"
