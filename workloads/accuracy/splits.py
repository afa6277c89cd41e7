"""Parts of all measurements: on which figures may be calibrated, and on which they are judged."""

from __future__ import annotations

import hashlib
from typing import Literal

Half = Literal["fitted", "held"]
"""What a shape belongs to: figures may be calibrated on its rows, or not."""

Split = Literal["fitted", "held", "sealed"]
"""`fitted`: figures may be calibrated on the row. `held`: it only judges. `sealed`: it only judges, and nobody looks at
it alone: no rule is read off it, and no page discusses it."""

SPLITS: tuple[Split, ...] = ("fitted", "held", "sealed")


def half(shape: str) -> Half:
    """The half that rows of a shape belong to: fitted where the first byte of its SHA-256 is even.

    shape: the column's text.
    """
    return "held" if _first_byte(shape.strip()) % 2 else "fitted"


def split(shape: str, source: str) -> Split:
    """The part of all measurements that a row belongs to: its half, but a third of the half that is not fitted is
    sealed, where the first byte of the SHA-256 of source and shape is a multiple of three.

    shape: the column's text.
    """
    found = half(shape)
    return "sealed" if found == "held" and _first_byte(f"{source} {shape.strip()}") % 3 == 0 else found


def _first_byte(text: str) -> int:
    return hashlib.sha256(text.encode()).digest()[0]
