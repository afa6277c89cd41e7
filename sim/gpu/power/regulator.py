"""The core clock while kernels run: a fixed clock, or a regulator that holds the board's power limit.

A regulator is asked at the end of each window, with the energy spent in it, for the clock of the next; its state
lives across kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arch.gpu import GpuSpec
from sim.gpu.power.average import WINDOW_PS, MovingAverage
from sim.gpu.power.energy import EnergyModel, Spent

FIGURES = (
    "clock.boost",
    "clock.lowest",
    "clock.onset",
    "clock.recovery",
    "clock.step",
    "clock.under_tensor",
    "clock.undershoot",
    "power.burst",
    "power.limit",
    "power.window",
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
    """A limit holds for the power of the last `power.window` on average: a shorter burst may exceed it.

    At the end of each window the regulator takes the highest clock at which the work of that time would meet the limit.
    On a chip that was idle before it acts after `clock.onset`, first with an undershoot, from `clock.recovery` on
    exactly; on a chip that has been busy (`busy`: a benchmark's replays, or for long: `sustained`) from the start. A
    kernel that stays below it runs at `clock.boost`, or at `clock.under_tensor` of it after a window in which tensor
    cores worked, whatever they draw.

    The limit is the board's on a chip that has been busy for long. Before, it is `power.burst` times as much: the
    board's average takes tens of milliseconds to be reached.
    """

    WINDOW_PS = 2_000_000  # 2 us: fine against the published onset of 55 us

    def __init__(self, spec: GpuSpec, *, sustained: bool, busy: bool = False, highest_hz: int | None = None) -> None:
        self.spec, self.busy = spec, sustained or busy
        board_mw = spec.power.limit_mw
        self.limit_mw = board_mw if sustained else round(board_mw * spec.power.burst)
        self.highest_hz = min(highest_hz or spec.clock.boost_hz, spec.clock.boost_hz)
        self.tensor_hz = spec.clock.under_tensor_hz
        self.model = EnergyModel(spec)
        self.clock_hz = self.highest_hz
        self.window_ps = self.WINDOW_PS
        self.elapsed_ps = 0
        self.average = MovingAverage.empty(spec.power.window_ps)

    @property
    def full(self) -> bool:
        """Whether it has seen work for as long as its average is."""
        return bool(self.average.sums[WINDOW_PS] >= self.average.length_ps)

    def step(self, spent: Spent) -> int:
        """See `Regulator.step`."""
        if not spent.window_ps:
            return self.clock_hz
        self.elapsed_ps += spent.window_ps
        self.average = self.average.with_place()
        held_hz = self.model.held_hz(self.average, spent, self.clock_hz, self.limit_mw, self.highest_hz)
        clock = self.spec.clock
        level = self.highest_hz
        if self.busy or self.elapsed_ps >= clock.onset_ps:
            level = held_hz
            if not self.busy and self.elapsed_ps < clock.recovery_ps and level < self.highest_hz:
                level = level * round(clock.undershoot * 1000) // 1000
        self.clock_hz = max(level // clock.step_hz * clock.step_hz, clock.lowest_hz)
        if spent.tensor:
            self.clock_hz = min(self.clock_hz, self.tensor_hz)
        return self.clock_hz
