"""A timeline as data for the page's script: slices, counters, maps, and lines of the program at which warps wait."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sim.app.report import palette
from sim.app.trace.svg import WAITS, rows_of
from sim.app.trace.timeline import HeatMap, Timeline

LINE = "line"
"""The argument of a slice that says which line of the program it belongs to."""
MOST_LINES = 12
"""That the page's table shows."""
_LEVELS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Cells of a map, from nothing to its largest value."""


@dataclass(frozen=True)
class WaitingLine:
    """A line of the program. number: in the data of the timeline. cycles: of warps that waited there. share: of all
    waiting. mostly: the state in which they waited most."""

    number: int
    line: str
    cycles: int
    share: float
    mostly: str


@dataclass(frozen=True)
class Interactive:
    """What the page's script draws. data: JSON that may stand in a script element. lines: at which warps waited, the
    longest first. maps: names of its maps."""

    data: Markup
    lines: Sequence[WaitingLine]
    maps: Sequence[str] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Interactive:
        """Of the data of a timeline; KeyError, TypeError, IndexError or ValueError where it is none."""
        data = {**data, "peaks": _peaks(data)}
        shown = in_script(json.dumps(data, separators=(",", ":"), allow_nan=False))
        return cls(shown, _waiting(data), [f"{one['name']}: {one['unit']}" for one in data["maps"]])


class _Numbers(dict[str, int]):
    """Strings by the order in which they first appear."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def interactive(found: Timeline) -> Interactive:
    """The data of a timeline."""
    names, details, lines = _Numbers(), _Numbers(), _Numbers()
    rows = rows_of(found)
    place = {track: number for number, (track, _) in enumerate(rows)}
    colours: dict[str, str] = {}
    slices = []
    for piece in sorted(found.slices, key=lambda s: (s.track, s.begin)):
        name = piece.name.rpartition("::")[2].replace("_", " ")
        colours.setdefault(name, palette.of_state(piece.name) if piece.category in WAITS else palette.WORK)
        line = str(piece.args.get(LINE, ""))
        more = ", ".join(f"{key} {value}" for key, value in piece.args.items() if key != LINE)
        number = lines[line] if line else -1
        slices.append([place[piece.track], piece.begin, piece.end, names[name], details[more], number])
    samples = [[place[s.track], s.at, float(f"{s.value:.5g}")] for s in sorted(found.samples, key=lambda s: s.at)]
    first, last = found.span
    data: dict[str, Any] = {
        "first": first,
        "last": max(last, first + 1),
        "area": palette.AREA,
        "idle": palette.IDLE,
        "idle_on_dark": palette.IDLE_ON_DARK,
        "tracks": [
            {"label": own.name if own.counter else label, "path": found.path(track)}
            | {"counter": own.counter, "unit": own.unit}
            for track, label in rows
            for own in (found.tracks[track],)
        ],
        "names": list(names),
        "colours": [colours[name] for name in names],
        "inks": [palette.text_on(colours[name]) for name in names],
        "details": list(details),
        "lines": list(lines),
        "slices": slices,
        "samples": samples,
        "maps": [_map(one) for one in found.maps],
    }  # fmt: skip
    return Interactive.of(data)


def _map(one: HeatMap) -> dict[str, Any]:
    """A map, a letter a cell: its share of the largest value."""
    most = max((max(row) for row in one.values), default=0) or 1
    last = len(_LEVELS) - 1
    cells = ["".join(_LEVELS[-(-value * last // most)] for value in row) for row in one.values]
    return {"name": one.name, "unit": one.unit, "most": most, "at": list(one.at), "cells": cells}


def _peaks(data: Mapping[str, Any]) -> list[float]:
    """The largest sample of each track, 0 of one without any: the scale of its counter."""
    found = [0.0] * len(data["tracks"])
    for track, _, value in data["samples"]:
        found[track] = max(found[track], value)
    return found


def in_script(text: str) -> Markup:
    """JSON for a script element, which nothing in it can end."""
    return Markup(text.replace("<", "\\u003c"))


def _waiting(data: Mapping[str, Any]) -> list[WaitingLine]:
    """The lines at which warps waited longest."""
    waited: dict[int, Counter[str]] = defaultdict(Counter)
    for _, begin, end, name, _, line in data["slices"]:
        if line >= 0 and data["colours"][name] != palette.WORK:
            waited[line][data["names"][name]] += end - begin
    whole = sum(states.total() for states in waited.values()) or 1
    found = [
        WaitingLine(line, data["lines"][line], cycles, cycles / whole, states.most_common(1)[0][0])
        for line, states in waited.items()
        for cycles in (states.total(),)
    ]
    return sorted(found, key=lambda entry: (-entry.cycles, entry.line))
