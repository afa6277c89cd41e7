"""Numbers that people type, before anything makes them numbers: bounds on their length, so that none takes for ever."""

MOST_DIGITS = 18
"""Of a whole number: it fits int64."""

_MOST_EXPONENT = 30
"""Power of ten of a number: no figure in any base unit needs more."""


def whole_number(text: str) -> int | None:
    """The number that ASCII digits write, up to 18 of them; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def within_range(number: str) -> bool:
    """Whether a number in decimal notation is short enough to be written out exactly."""
    exponent = number.lower().partition("e")[2] or "0"
    return len(number) <= 100 and len(exponent) <= 4 and abs(int(exponent)) <= _MOST_EXPONENT
