"""A board as if nobody had measured it: figures that were calibrated on its own rows come from its chip, from what all
GPUs share, or from the standard of its memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from arch.dram_standards import with_standards
from arch.library import chain, find
from arch.preset_file import Figure, PresetFile, source_text

CALIBRATED = "calibrated"


class LeftOut(NamedTuple):
    """taken: overrides by which its own calibrated figures come from elsewhere. kept: paths of those of which nothing
    else says a value."""

    taken: tuple[str, ...]
    kept: tuple[str, ...]


def left_out(machine: str, sources: Collection[str]) -> LeftOut:
    """A preset without what was calibrated on its own rows. sources: those that have rows of it."""
    files = chain(find(machine))
    names = {source.split()[0].lower() for source in sources} | {machine}
    table: dict[str, str] = {}
    own: dict[str, Figure] = {}
    for file in map(with_standards, files):
        table |= file.sources
        for path, figure in file.figures.items():
            own.pop(path, None)
            text = source_text(figure, table, path).lower() if figure.source else ""
            if CALIBRATED in text and any(name in text for name in names):
                own[path] = figure
    others = _merged(_without(file, own) for file in files)
    taken = tuple(f"{path}={others[path].text}" for path in sorted(own) if path in others)
    return LeftOut(taken, tuple(path for path in sorted(own) if path not in others))


def _without(file: PresetFile, own: dict[str, Figure]) -> PresetFile:
    figures = {path: figure for path, figure in file.figures.items() if own.get(path) is not figure}
    return with_standards(replace(file, figures=figures))


def _merged(files: Iterable[PresetFile]) -> dict[str, Figure]:
    merged: dict[str, Figure] = {}
    for file in files:
        merged |= file.figures
    return merged
