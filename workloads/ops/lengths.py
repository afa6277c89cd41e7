"""Lengths of sequences that differ: as a list, from a file, or drawn at random."""

from __future__ import annotations

import re

import numpy as np

from arch import reading
from arch.errors import InputError

UNIFORM = re.compile(r"uniform_(\d{1,9})_(\d{1,9})")
EXPONENTIAL = re.compile(r"exponential_(\d{1,9})")
_NUMBERS = re.compile(r"\d{1,9}(?:[,\s]+\d{1,9})*[,\s]*")
LONGEST = 1 << 24


def listed(where: str, text: str) -> str:
    """The text itself; of a file its numbers with commas between, so that what it says is what is run."""
    if _NUMBERS.fullmatch(text) or UNIFORM.fullmatch(text) or EXPONENTIAL.fullmatch(text):
        return ",".join(re.findall(r"\d+", text)) if _NUMBERS.fullmatch(text) else text
    forms = "numbers with commas between, a file of numbers, uniform_LOW_HIGH or exponential_MEAN"
    try:
        found = reading.text(text, f"{where}={text}").strip()
    except InputError as error:
        raise InputError(f"{error}; must be {forms}") from None
    if not _NUMBERS.fullmatch(found):
        raise InputError(f"{where}={text}: the file must hold numbers alone, with commas, spaces or lines between")
    return ",".join(re.findall(r"\d+", found))


def lengths(where: str, text: str, sequences: int, seed: int) -> tuple[int, ...]:
    """A length for each sequence, from 1 on. text: as `listed` gives it."""
    rng = np.random.Generator(np.random.PCG64(seed))
    if match := UNIFORM.fullmatch(text):
        low, high = int(match[1]), int(match[2])
        if not 1 <= low <= high:
            raise InputError(f"{where}={text}: lowest and highest length, from 1 on, in this order")
        found = rng.integers(low, high + 1, size=sequences).tolist()
    elif match := EXPONENTIAL.fullmatch(text):
        found = (1 + rng.exponential(max(0, int(match[1]) - 1), size=sequences)).astype(int).tolist()
    else:
        found = [int(number) for number in text.split(",")]
        if len(found) != sequences:
            raise InputError(f"{where}: {len(found)} lengths; one for each of batch={sequences} is needed")
    if min(found) < 1 or max(found) > LONGEST:
        raise InputError(f"{where}={text}: lengths are from 1 to {LONGEST}")
    return tuple(found)
