"""In words: what bounds a run, and what would move it. Every sentence quotes the figure that it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.app.report.families import family
from sim.app.report.figures import Figures
from sim.app.report.sections import percent, time_text, words

if TYPE_CHECKING:
    from sim.app.report.report import Report

WORTH_A_WORD = 0.05
"""Losses below this share of the time are not mentioned."""


def sentences(report: Report) -> list[str]:
    """One to a handful of sentences."""
    figures = report.figures
    own = family(figures.machine.family)
    return [own.bound(figures), *own.losses(figures), *_losses(figures)]


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
