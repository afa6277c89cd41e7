"""A page that was written before, read again for a comparison: its report and the data of its timelines."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError
from sim.app.trace.interactive import Interactive

MOST_BYTES = 200 << 20
_DOCUMENT = re.compile(r'<pre class="document">(.*?)</pre>', re.DOTALL)
_NOTES = re.compile(
    r'<p class="note">(.*?)</p>\s*<div class="timeline">\s*<script type="application/json">(.*?)</script>', re.DOTALL
)


@dataclass(frozen=True)
class Earlier:
    """A run of which a page was kept. timelines: what is said above each, and what the script draws."""

    name: str
    report: Mapping[str, Any]
    timelines: Sequence[tuple[str, Interactive]]


def earlier(path: Path) -> Earlier:
    """Reads a page of `tilewave run --html`. InputError where it is none."""
    where = f"--baseline {path}"
    text = reading.text(path, where, MOST_BYTES)
    try:
        found = _DOCUMENT.search(text)
        if found is None:
            raise ValueError
        report = reading.document(html.unescape(found[1]), where)
        timelines = []
        for note, data in _NOTES.findall(text):
            timelines.append((html.unescape(note), Interactive.of(reading.document(data, where))))
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError(f"--baseline {path}: is no page of tilewave run ... --html FILE of this version") from None
    return Earlier(path.name, report, timelines)
