"""The core clock while kernels run: a fixed clock, or a regulator that holds the board's power limit.

A regulator is asked at the end of each window, with the energy spent in it, for the clock of the next; its state
lives across kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arch.gpu import GpuSpec
from sim.gpu.power.energy import EnergyModel, Spent

FIGURES = (
    "clock.boost",
    "clock.lowest",
    "clock.onset",
    "clock.recovery",
    "clock.step",
    "clock.undershoot",
    "power.limit",
)
"""Figures of a preset that this module reads."""


class Regulator(Protocol):
    """What the engine asks."""

    clock_hz: int
    window_ps: int  # 0: never asked in the middle of a kernel

    def step(self, spent: Spent) -> int:
        """Clock in Hz after a window that spent `spent` at the current clock."""
        ...


@dataclass
class FixedClock:
    """A locked clock."""

    clock_hz: int
    window_ps: int = 0

    def step(self, spent: Spent) -> int:
        """The same clock."""
        return self.clock_hz


class PowerRegulator:
    """The board's power limit on a chip with a fast regulator.

    On a chip that was idle before (`sustained` false) it acts after `clock.onset`, first with an undershoot, from
    `clock.recovery` on exactly; on a chip that has been busy for long (a benchmark's loop) from the start. A kernel
    that stays below it runs at `clock.boost`.
    """

    WINDOW_PS = 2_000_000  # 2 us: fine against the published onset of 55 us

    def __init__(
        self, spec: GpuSpec, *, sustained: bool, limit_mw: int | None = None, highest_hz: int | None = None
    ) -> None:
        self.spec, self.sustained = spec, sustained
        self.limit_mw = limit_mw or spec.power.limit_mw
        self.highest_hz = min(highest_hz or spec.clock.boost_hz, spec.clock.boost_hz)
        self.model = EnergyModel(spec)
        self.clock_hz = self.highest_hz
        self.window_ps = self.WINDOW_PS
        self.elapsed_ps = 0

    def step(self, spent: Spent) -> int:
        """See `Regulator.step`."""
        self.elapsed_ps += spent.window_ps
        if spent.window_ps < self.WINDOW_PS:
            return self.clock_hz
        clock = self.spec.clock
        level = self.highest_hz
        if self.sustained or self.elapsed_ps >= clock.onset_ps:
            level = self.model.sustained_hz(self.clock_hz, spent, self.limit_mw, self.highest_hz)
            if not self.sustained and self.elapsed_ps < clock.recovery_ps and level < self.highest_hz:
                level = level * round(clock.undershoot * 1000) // 1000
        # Half of the way up: power swings from window to window with waves and tails; down at once.
        level = min(level, (self.clock_hz + level) // 2) if level > self.clock_hz else level
        self.clock_hz = max(level // clock.step_hz * clock.step_hz, clock.lowest_hz)
        return self.clock_hz
