"""Arguments of people's own programs: whole numbers, names, words, shapes; what is none is refused in one line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.near import hint

MOST = (1 << 40) - 1
"""Of what has no limit of its own: no extent or count of any machine comes near it, and products of two fit int64."""


def shown(value: object) -> str:
    """A value in a message: short, on one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


def whole(where: str, value: object, least: int = 0, most: int = MOST) -> int:
    """A whole number from `least` to `most`, NumPy's taken for Python's. where: names the argument."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise InputError(f"{where}={shown(value)}: must be a whole number from {least} to {most}")
    return int(value)


def wholes(where: str, values: object, least: int = 0, most: int = MOST, count: int | None = None) -> tuple[int, ...]:
    """A tuple of such numbers, `count` of them if given."""
    items = sequence(where, values)
    if count is not None and len(items) != count:
        raise InputError(f"{where}={shown(values)}: must be {count} whole numbers from {least} to {most}")
    return tuple(whole(f"{where}[{i}]", item, least, most) for i, item in enumerate(items))


def three(where: str, values: object, most: int = MOST) -> tuple[int, int, int]:
    """Three whole numbers of at least 1: x, y, z."""
    x, y, z = wholes(where, values, 1, most, 3)
    return x, y, z


def sequence(where: str, values: object) -> tuple[Any, ...]:
    """The items of a tuple, list or array."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{where}={shown(values)}: must be a tuple")
    return tuple(values)


def finite(where: str, value: Any, least: float = -math.inf) -> float:
    """A number that is neither NaN nor infinite."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not -1e300 <= value <= 1e300 or value < least:
        raise InputError(f"{where}={shown(value)}: must be a finite number" + f" from {least}" * math.isfinite(least))
    return float(value)


def name(where: str, value: object) -> str:
    """A name: printable text on one line, not empty."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{where}={shown(value)}: must be a name")
    return value


def one_of(where: str, value: object, known: Iterable[Any]) -> Any:
    """One of some words or numbers."""
    words = list(known)
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value not in words:
        near = hint(value, [word for word in words if isinstance(word, str)]) if isinstance(value, str) else ""
        raise InputError(f"{where}={shown(value)}: must be one of {', '.join(map(str, words))}{near}")
    return words[words.index(value)]
