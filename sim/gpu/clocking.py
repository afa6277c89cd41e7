"""The core clock while kernels run: a fixed clock, or a regulator that holds the board's power limit.

A regulator is asked at the end of each window, with the energy spent in it, for the clock of the next; its state lives across kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arch.gpu import GpuSpec
from sim.gpu.energy import EnergyModel


class Regulator(Protocol):
    """What the engine asks."""

    clock_hz: int
    window_ps: int  # 0: never asked in the middle of a kernel

    def step(self, window_ps: int, energy_fj: int) -> int:
        """Clock in Hz after a window of `window_ps` that spent `energy_fj` at the current clock."""
        ...


@dataclass
class FixedClock:
    """A locked clock."""

    clock_hz: int
    window_ps: int = 0

    def step(self, window_ps: int, energy_fj: int) -> int:
        """The same clock."""
        return self.clock_hz


class PowerRegulator:
    """The board's power limit on a chip with a fast regulator.

    sustained: the chip has been busy for long (a benchmark's loop), so the clock follows the limit from the first window on. Otherwise
    the kernel starts on an idle chip: it runs at `clock.tensor` until `clock.onset`, then undershoots, and is on its sustained level
    after `clock.recovery`; a kernel whose power stays below the limit never leaves the starting clock.
    """

    WINDOW_PS = 5_000_000  # 5 us: a few windows within the published onset of 55 us

    def __init__(self, spec: GpuSpec, *, sustained: bool, limit_mw: int | None = None, locked_hz: int | None = None) -> None:
        self.spec, self.sustained = spec, sustained
        self.limit_mw = limit_mw or spec.power.limit_mw
        self.start_hz = min(locked_hz or spec.clock.tensor_hz, spec.clock.boost_hz)
        self.model = EnergyModel(spec, "normal")
        self.clock_hz = self.start_hz
        self.window_ps = self.WINDOW_PS
        self.elapsed_ps = 0
        self.level_hz = self.start_hz

    def step(self, window_ps: int, energy_fj: int) -> int:
        """See `Regulator.step`; an idle window brings an isolated chip back to its starting clock."""
        self.elapsed_ps += window_ps
        if energy_fj > 0 and window_ps > 0:
            level = self.model.sustained_hz(self.clock_hz, window_ps, energy_fj, self.limit_mw, self.start_hz)
            # Half of the way each window: power in one window swings with waves and tails.
            self.level_hz = (self.level_hz + level) // 2
        clock = self.spec.clock
        if self.sustained:
            self.clock_hz = self.level_hz
        elif self.elapsed_ps < clock.onset_ps:
            self.clock_hz = self.start_hz
        elif self.elapsed_ps < clock.recovery_ps and self.level_hz < self.start_hz:
            self.clock_hz = int(self.level_hz * int(clock.undershoot * 1000)) // 1000
        else:
            self.clock_hz = self.level_hz
        # Steps of 15 MHz, as the hardware's clock table has them.
        self.clock_hz = max(self.clock_hz // 15_000_000 * 15_000_000, 210_000_000)
        return self.clock_hz
