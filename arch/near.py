"""What somebody may have meant who typed a name that there is not; nothing where no name is alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIKE = 0.6
"""Share of equal characters from which a name can be a slip of another: `wall` is none of `stream` (0.2)."""

_SHORTEST_START = 3
"""Characters of a name from which it can be the start of another: `seq` of `sequence`."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return which of the known names is most like another one; None where none is alike."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=_ALIKE)
    if close:
        return close[0]
    begun = [other for other in names if _starts(name, other) or _starts(other, name)]
    return difflib.get_close_matches(name, begun, n=1, cutoff=0.0)[0] if begun else None


def hint(name: str, known: Iterable[str], words: str = "; did you mean {}?") -> str:
    """Return the end of a message that names the nearest of the known names; empty where none is alike."""
    near = nearest(name, known)
    return words.format(near) if near else ""


def _starts(name: str, longer: str) -> bool:
    return len(name) >= _SHORTEST_START and longer.startswith(name)
