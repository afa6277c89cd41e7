"""When a launch has come so far that programmatic dependent launch cares, in ticks, after it has ended.

A kernel under it waits (`griddepcontrol.wait`) before its first instruction and lets the next one launch at once after
that (`griddepcontrol.launch_dependents`), the earliest at which any kernel may follow it. What comes before the first
instruction is its prologue: launch of the CTA, set-up, code and tensor maps that are fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.gpu.engine.fetch import FetchFigure
from sim.gpu.units.cta import CtaFigure, Grid

if TYPE_CHECKING:
    from sim.gpu.engine.api import Launch


def first_instruction(launch: Launch) -> int:
    """The first instruction of the first CTA; where code is cold, not before a GPC has all of it."""
    placed = launch.start_tick + int(launch.p[CtaFigure.LAUNCH_LATENCY])
    if not launch.p[FetchFigure.CODE_LINES]:
        return placed
    ready = launch.state.code_ready
    whole = ready[(ready > 0).all(axis=1)]
    return max(placed, int(whole.max(axis=1).min()))


def all_running(launch: Launch) -> int:
    """The first instruction of the CTA that was launched last."""
    handed = int(launch.state.chip[Grid.LAUNCH_FREE] - launch.p[CtaFigure.INTERVAL])
    return max(first_instruction(launch), handed + int(launch.p[CtaFigure.LAUNCH_LATENCY]))
