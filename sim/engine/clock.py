"""Time in a kernel: int64 ticks of the core clock, and how figures in other units become ticks.

Rounding: what must not happen earlier than a figure says (a latency, a timing constraint) rounds up; a rate (ticks a
byte, a burst) rounds to the nearest tick, at least one, so that long streams neither gain nor lose. All arithmetic is
on integers and exact fractions: the same figures give the same ticks everywhere.
"""

from fractions import Fraction
from functools import lru_cache

TICKS_PER_CYCLE = 256
"""Ticks in one cycle of the core clock."""

PS_PER_S = 10**12
"""Picoseconds in a second."""


@lru_cache(1 << 12)
def cycles_to_ticks(cycles: int | float | Fraction) -> int:
    """Ticks of a number of core cycles, rounded up."""
    return _ceil(Fraction(cycles) * TICKS_PER_CYCLE)


def ps_to_ticks(ps: int, clock_hz: int) -> int:
    """Ticks of a time in picoseconds at a core clock in Hz, rounded up."""
    return -(-ps * clock_hz * TICKS_PER_CYCLE // PS_PER_S)


def ns_to_ticks(ns: int | float | Fraction, clock_hz: int) -> int:
    """Ticks of a time in nanoseconds at a core clock in Hz; the time is first rounded to whole picoseconds."""
    return ps_to_ticks(_nearest(Fraction(ns) * 1000), clock_hz)


def ticks_to_ps(ticks: int, clock_hz: int) -> int:
    """Picoseconds of a number of ticks at a core clock in Hz, rounded to the nearest."""
    return _nearest(Fraction(ticks * PS_PER_S, clock_hz * TICKS_PER_CYCLE))


@lru_cache(1 << 12)
def transfer_ticks(size_bytes: int, bytes_per_cycle: int | float | Fraction) -> int:
    """Ticks that a transfer occupies a resource of a given rate in bytes a core cycle: the nearest, at least one."""
    return max(1, _nearest(Fraction(size_bytes) * TICKS_PER_CYCLE / Fraction(bytes_per_cycle)))


def bytes_per_cycle(bytes_per_s: int | float | Fraction, clock_hz: int) -> Fraction:
    """A bandwidth in bytes a second as bytes a core cycle, exact."""
    return Fraction(bytes_per_s) / clock_hz


def _nearest(value: Fraction) -> int:
    """The nearest integer, halves up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
