"""Numbers that people type, before anything makes them numbers: bounds on their length, so that none takes for ever."""

from __future__ import annotations

import re

MOST_DIGITS = 18
"""Of a whole number: it fits int64."""

_MOST_EXPONENT = 30
"""Power of ten of a number: no figure in any base unit needs more."""

_PREFIXES = ("", "k", "M", "G")
_INT64_BITS = 63
_COUNT = re.compile(rf"(?P<number>[0-9]{{1,{MOST_DIGITS}}})(?:\*\*(?P<power>[0-9]{{1,3}})|(?P<prefix>[kMG]))?")


def whole_number(text: str) -> int | None:
    """The number that ASCII digits write, up to 18 of them; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def whole_size(text: str) -> int | None:
    """The whole number of at least 0 that people write for a size: `4096`, `4_096`, `4k` (k, M, G are powers of 1024),
    `2**12`. None for anything else, and beyond int64."""
    match = _COUNT.fullmatch(text.replace("_", ""))
    if match is None:
        return None
    number, power, prefix = int(match["number"]), match["power"], match["prefix"]
    if power and number > 1 and int(power) >= _INT64_BITS:
        return None
    value = number ** (int(power) if power else 1) * 1024 ** (_PREFIXES.index(prefix) if prefix else 0)
    return value if value < 10**MOST_DIGITS else None


def within_range(number: str) -> bool:
    """Whether a number in decimal notation is short enough to be written out exactly."""
    exponent = number.lower().partition("e")[2] or "0"
    return len(number) <= 100 and len(exponent) <= 4 and abs(int(exponent)) <= _MOST_EXPONENT
