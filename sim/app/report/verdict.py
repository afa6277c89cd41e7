"""In words: what bounds a run, and what would move it. Every sentence quotes the figure that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sim.app.report.families import family
from sim.app.report.figures import Figures
from sim.app.report.sections import percent, time_text, words

if TYPE_CHECKING:
    from sim.app.report.report import Report

WORTH_A_WORD = 0.05
"""Losses below this share of the time are not mentioned."""


MOVES = 0.2
"""A memory that is busy for this share of the time, though it does not bound it, is worth a word: what is given is how
much twice its bandwidth can save."""

MEMORIES = {"dram": "External memory", "l2": "The L2", "pcie": "The link to the host"}
"""Levels whose bandwidth is a figure of the machine, as sentences begin."""


IDLE_MEMORY = 0.5
"""A memory that is busy for a smaller share of the time hides behind arithmetic that bounds a run: more bandwidth gives
nothing."""


def no_bandwidth(share: float) -> str:
    """What a sentence about busy arithmetic says of a memory that is busy for this share of the time."""
    if share < IDLE_MEMORY:
        return "more memory bandwidth would not."
    return f"memory is busy for {percent(share)}, too: more bandwidth would move it less."


def faster_chip(figures: Figures) -> str:
    """What a faster chip gives where launches and the host bound a run: no more than the rest of the time."""
    rest = 1 - figures.overhead_ps / figures.time_ps
    return f"the fastest chip would save no more than the other {percent(rest)}."


def at_most(busy: Mapping[str, float]) -> list[str]:
    """Sentences about memories, by the share of the time for which they move data."""
    return [
        f"{MEMORIES[level]} moves data for {percent(share)} of the time; twice its bandwidth saves at most half of it."
        for level, share in sorted(busy.items(), key=lambda entry: -entry[1])
        if share >= MOVES
    ]


def sentences(report: Report) -> list[str]:
    """One to a handful of sentences."""
    figures = report.figures
    own = family(figures.machine.family)
    return [own.bound(figures, report.record.candidates), *own.losses(figures), *_losses(figures)]


def _losses(figures: Figures) -> list[str]:
    """Sentences about what else costs time on any machine."""
    found = []
    clock = figures.clock_hz / figures.machine.boost_hz
    if clock < 1 - WORTH_A_WORD:
        kernel = max(figures.kernels, key=lambda k: k.time_ps)
        reason = f" ({words(kernel.throttle_reason)})" if kernel.throttle_reason else ""
        found.append(f"The clock is {percent(1 - clock)} below boost{reason}; at boost the same cycles take less time.")
    overhead = figures.overhead_ps / figures.time_ps
    if figures.bound != "overhead" and overhead >= WORTH_A_WORD:
        found.append(f"Launch and host are {percent(overhead)} of the time ({time_text(figures.overhead_ps)}).")
    return found
