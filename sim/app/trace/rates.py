"""Rates of a chip's units over time, from counters that the engine books when something is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

POWER_CYCLES = 512
"""The shortest time over which power is a mean: energy is booked when an operation issues, and many take longer."""


def served(asked: Sequence[int], spans: Sequence[int], most: float) -> Iterator[float]:
    """What a unit serves in a tick, by interval: what is asked for beyond its peak waits for the next interval.

    asked: by interval. spans: their lengths in ticks. most: the unit's peak in a tick. What the last interval leaves
    is its own, so that the sum stays what was asked for.
    """
    waiting = 0.0
    for i, (count, span) in enumerate(zip(asked, spans, strict=True)):
        waiting += count
        now = waiting if i == len(spans) - 1 else min(waiting, most * span)
        waiting -= now
        yield now / span


def coarser(ticks: Sequence[int], least: int) -> list[int]:
    """Numbers of those ticks, in order, that lie at least `least` apart; the first and the last are among them."""
    chosen = [0]
    for i, tick in enumerate(ticks[:-1]):
        if tick - ticks[chosen[-1]] >= least and ticks[-1] - tick >= least:
            chosen.append(i)
    return [*chosen, len(ticks) - 1] if len(ticks) > 1 else chosen[: len(ticks)]
