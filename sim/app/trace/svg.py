"""A timeline as one SVG picture, for paper: a row a track, coloured by what it shows. The script has the details."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sim.app.report import palette
from sim.app.trace.timeline import Sample, Slice, Timeline

WIDTH, LABELS = 1160, 300
ROW, COUNTER, GAP = 13, 26, 3

MOST_SLICES = 6000
"""A picture with more would be slow to look at."""

WAITS = ("stall", "gap", "launch")
"""Kinds of slices in which nothing is done."""
_NAMED = ("host", "kernel", "copy")
"""Kinds of slices whose name stands on them, as far as it has room, and that are set apart from their neighbours."""
_LETTER = 5.4


def svg(found: Timeline) -> str:
    """The picture; what is on a track and its parents stands at the left. Slices of a colour are one shape."""
    first, last = found.span
    rows = rows_of(found)
    reasons = sorted({s.name for s in found.slices if s.category in WAITS})
    colours = {name: palette.of_state(name) for name in reasons}
    scale = (WIDTH - LABELS) / max(last - first, 1)
    parts: list[str] = []
    y = 24
    for track, label in rows:
        counter = found.tracks[track].counter
        height = COUNTER if counter else ROW
        parts.append(f'<text x="{LABELS - 8}" y="{y + height - 3}" text-anchor="end">{escape(label)}</text>')
        if counter:
            samples = sorted((s for s in found.samples if s.track == track), key=lambda s: s.at)
            parts.append(_area(samples, found.tracks[track].unit, first, last, scale, y))
        else:
            pieces = [piece for piece in found.slices if piece.track == track]
            parts += _shapes([p for p in pieces if p.category not in _NAMED], colours, first, scale, y)
            parts += [_named(p, colours, first, scale, y) for p in pieces if p.category in _NAMED]
        y += height + GAP
    axis = "".join(
        f'<text x="{LABELS + (WIDTH - LABELS) * i / 5:.0f}" y="14" text-anchor="{"end" if i == 5 else "middle"}">'
        f"{round(first + (last - first) * i / 5):,}</text>"
        for i in range(6)
    )
    legend = "".join(
        f'<span class="key"><i style="background:{palette.css(colour)}"></i>{escape(name.replace("_", " "))}</span>'
        for name, colour in [("issue, multiply, work", palette.WORK), *colours.items()]
    )
    return (
        f'<div class="legend">{legend}</div><svg viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" '
        f'aria-label="timeline, cycles {first} to {last}">{axis}{"".join(parts)}</svg>'
    )


def shown_part(found: Timeline, most: int = MOST_SLICES) -> Timeline:
    """The timeline, or as long a part of its middle as a picture of `most` slices can show."""
    first, last = found.span
    while len(found.slices) > most and last - first > 1:
        quarter = (last - first) // 4
        first, last = first + quarter, last - quarter
        found = found.within(first, last)
    return found


def rows_of(found: Timeline) -> list[tuple[int, str]]:
    """Tracks with anything on them, groups together, and their labels: the last two names of the path."""
    used = {s.track for s in found.slices} | {s.track for s in found.samples}

    def order(track: int) -> tuple[int, ...]:
        parent = found.tracks[track].parent
        return (*(order(parent) if parent is not None else ()), track)

    return [(track, " / ".join(found.path(track).split(" / ")[1:][-2:])) for track in sorted(used, key=order)]


def _shapes(pieces: Sequence[Slice], colours: dict[str, str], first: int, scale: float, y: int) -> list[str]:
    """Slices of a row, those of one colour together."""
    paths: dict[str, list[str]] = {}
    for piece in pieces:
        x, width = _place(piece, first, scale)
        colour = colours.get(piece.name, palette.WORK)
        paths.setdefault(colour, []).append(f"M{x:.1f} {y}h{width:.1f}v{ROW}h-{width:.1f}z")
    return [f'<path fill="{colour}" d="{"".join(found)}"/>' for colour, found in paths.items()]


def _place(piece: Slice, first: int, scale: float) -> tuple[float, float]:
    """Where a slice begins, and how wide it is."""
    begin = max(piece.begin, first)
    return LABELS + (begin - first) * scale, max((piece.end - begin) * scale, 0.4)


def _named(piece: Slice, colours: dict[str, str], first: int, scale: float, y: int) -> str:
    """A slice with its name, as far as it has room, set apart from its neighbours."""
    x, width = _place(piece, first, scale)
    shape = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{colours.get(piece.name, palette.WORK)}"'
    name = piece.name.rpartition("::")[2][: int((width - 4) / _LETTER)] if width > 4 * _LETTER else ""
    text = f'<text class="on" x="{x + 2:.1f}" y="{y + ROW - 3}">{escape(name)}</text>' if name else ""
    return f'<rect {shape} stroke="#fff" stroke-width="0.6"/>{text}'


def _area(samples: Sequence[Sample], unit: str, first: int, last: int, scale: float, y: int) -> str:
    """A counter as steps over its row, from 0 to its largest value."""
    most = max((s.value for s in samples), default=0) or 1
    points = [f"{LABELS},{y + COUNTER}"]
    at: float = y + COUNTER
    for sample in samples:
        x = LABELS + (max(sample.at, first) - first) * scale
        points.append(f"{x:.1f},{at:.1f}")
        at = y + COUNTER - round(COUNTER * sample.value / most, 1)
        points.append(f"{x:.1f},{at:.1f}")
    end = LABELS + (last - first) * scale
    points += [f"{end:.1f},{at:.1f}", f"{end:.1f},{y + COUNTER}"]
    tip = f"<title>up to {most:.4g} {escape(unit)}</title>"
    return f'<polygon points="{" ".join(points)}" fill="{palette.AREA}">{tip}</polygon>'
