"""Writes the warps of a timeline in Kanata's log format (version 4), which Konata draws as a pipeline diagram.

A row is something that a warp issued, from the stall before it on: lane 0 has its stages, lane 1 the stall's reason.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from arch.errors import InputError
from sim.app.trace.timeline import Slice, Timeline

HEADER = "Kanata\t0004"

MOST_ROWS = 100_000


def write(found: Timeline, path: Path) -> None:
    """Writes the file. InputError for a timeline without warps, or with too many instructions to look at."""
    pieces: dict[int, list[Slice]] = defaultdict(list)
    for piece in found.slices:
        if piece.category in ("stall", "issue"):
            pieces[piece.track].append(piece)
    rows = [
        row for thread, track in enumerate(sorted(pieces)) for row in _rows(thread, found.path(track), pieces[track])
    ]
    if not rows:
        raise InputError(f"{path}: nothing in this trace issues instructions; Kanata shows warps of GPUs")
    if len(rows) > MOST_ROWS:
        raise InputError(f"{path}: {len(rows)} instructions, at most {MOST_ROWS}; a shorter --window or fewer --sm")
    events: list[tuple[int, int, int, str]] = []  # cycle, order within it, row, text
    for number, (begin, issue, end, thread, label, detail, reason) in enumerate(sorted(rows)):
        events.append((begin, 1, number, f"I\t{number}\t{number}\t{thread}"))
        events.append((begin, 2, number, f"L\t{number}\t0\t{label}"))
        events.append((begin, 3, number, f"L\t{number}\t1\t{detail}"))
        if issue > begin:
            events.append((begin, 4, number, f"S\t{number}\t0\tWt"))
            events.append((begin, 5, number, f"S\t{number}\t1\t{reason}"))
            events.append((issue, 0, number, f"E\t{number}\t1\t{reason}"))
        events.append((issue, 4, number, f"S\t{number}\t0\tIs"))
        events.append((end, 6, number, f"E\t{number}\t0\tIs"))
        events.append((end, 7, number, f"R\t{number}\t{number}\t0"))
    events.sort()
    lines = [HEADER]
    now: int | None = None
    for at, _, _, text in events:
        if now is None:
            lines.append(f"C=\t{at}")
        elif at > now:
            lines.append(f"C\t{at - now}")
        now = at
        lines.append(text)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(thread: int, where: str, pieces: list[Slice]) -> list[tuple[int, int, int, int, str, str, str]]:
    """(begin of the stall, issue, end, thread, label, detail, reason) of everything that one warp issued."""
    found = []
    begin, reason = None, ""
    for piece in sorted(pieces, key=lambda p: (p.begin, p.end)):
        if piece.category == "stall":
            begin = piece.begin if begin is None else begin
            reason = piece.name
        else:
            start = piece.begin if begin is None else begin
            detail = f"{where}, CTA {piece.args.get('CTA', '')}" + (f", waited: {reason}" if reason else "")
            found.append((start, piece.begin, piece.end, thread, piece.name, detail, reason))
            begin, reason = None, ""
    return found
