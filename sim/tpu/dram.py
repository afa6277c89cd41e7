"""External memory of a TPU: transfers with rows, banks, refresh and turn-rounds, on the channels of `sim.memory`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from arch.tpu import TpuSpec
from sim.engine.clock import ps_to_ticks
from sim.memory.counters import MemoryCounter
from sim.memory.dram import lower_dram, new_dram_state
from sim.tpu.dram_kernel import Refresh, transfer

FIGURES = ("clock.boost", "dram.channels", "dram.refresh", "dram.t_refi", "dram.t_rfc")
"""Figures of a preset that this module reads, beside those of `sim.memory.dram`."""

UNIT_BYTES = 512
"""What goes to one channel before the next has its turn: the native access size of TPU v4i."""


def _places(channels: int) -> list[float]:
    """Places in the second half of an interval, spread evenly however many there are: those of fewer stay."""
    places = [0.5, 1.0]
    while len(places) < channels:
        ends = sorted(places)
        places += [(low + high) / 2 for low, high in pairwise(ends)]
    return places[:channels]


class ExternalMemory:
    """The memory of one machine in one run."""

    def __init__(self, spec: TpuSpec) -> None:
        dram, clock = spec.dram, spec.clock.boost_hz
        self._spec = lower_dram(dram, UNIT_BYTES, clock)
        together = dram.refresh == "all"
        interval, duration = (ps_to_ticks(ps, clock) if together else 0 for ps in (dram.t_refi_ps, dram.t_rfc_ps))
        if together:
            self._spec = self._spec._replace(rfc=0)
        # Channels are refreshed at different times, one more of them between two others.
        due = np.array([round(interval * place) for place in _places(dram.channels)], np.int64)
        self._refresh = Refresh(interval, duration, due)
        self._state = new_dram_state(self._spec)
        self._counters = np.zeros(len(MemoryCounter), np.int64)
        self.latency = self._spec.latency

    def read(self, tick: int, address: int, rows: int, row_bytes: int, pitch: int) -> int:
        """Tick at which the last data of a read that is asked for at `tick` are there."""
        return self._transfer(tick, address, rows, row_bytes, pitch, False)

    def write(self, tick: int, address: int, rows: int, row_bytes: int, pitch: int) -> int:
        """Tick at which the memory has taken the last data."""
        return self._transfer(tick, address, rows, row_bytes, pitch, True)

    def _transfer(self, tick: int, address: int, rows: int, row_bytes: int, pitch: int, write: bool) -> int:
        if row_bytes == pitch:
            rows, row_bytes = 1, rows * row_bytes
        return int(
            transfer(
                self._spec, self._state, self._counters, self._refresh, tick, address, rows, row_bytes, pitch,
                UNIT_BYTES, write,
            )
        )  # fmt: skip
