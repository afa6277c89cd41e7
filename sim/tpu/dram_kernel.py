"""How a transfer passes through a TPU's external memory: requests to the channels of `sim.memory`, unit by unit."""

from typing import NamedTuple

from numpy.typing import NDArray

from sim.engine.jit import kernel
from sim.memory.dram import BUS_FREE, CHANNEL_WORDS
from sim.memory.dram_kernel import dram_read, dram_write

_ROTATION = 40503
"""2**16 over the golden ratio, odd."""


class Refresh(NamedTuple):
    """Refresh of all banks of a channel at once; times in ticks, 0: banks are refreshed one by one.

    due: by channel, the tick of its next refresh.
    """

    interval: int
    duration: int
    due: NDArray


@kernel
def _refresh(refresh, state, channel, t):
    """Holds a channel's bus for the refreshes that have come due by tick t or while the bus is booked."""
    word = channel * CHANNEL_WORDS + BUS_FREE
    while max(t, state.channel[word]) >= refresh.due[channel]:
        state.channel[word] = max(state.channel[word], refresh.due[channel]) + refresh.duration
        refresh.due[channel] += refresh.interval


@kernel
def transfer(spec, state, counters, refresh, t, first, rows, row_bytes, pitch, unit_bytes, write):
    """Requests of `rows` rows of `row_bytes` from byte `first` on, `pitch` apart, all made at tick t.

    Units of `unit_bytes` go to the channels in turn. Returns the tick at which the last answer is back, or at which the
    last write has been taken.
    """
    end = t
    for row in range(rows):
        start = first + row * pitch
        stop = start + row_bytes
        for unit in range(start // unit_bytes, (stop + unit_bytes - 1) // unit_bytes):
            part = min(stop, (unit + 1) * unit_bytes) - max(start, unit * unit_bytes)
            atoms = (part + spec.atom_bytes - 1) // spec.atom_bytes
            inside = unit // spec.channels
            # Each round of the channels begins elsewhere, or a pitch of many units would meet few channels.
            channel = (unit + (inside * _ROTATION >> 16)) % spec.channels
            if refresh.interval > 0:
                _refresh(refresh, state, channel, t)
            if write:
                done = dram_write(spec, state, counters, t, channel, inside, atoms)
            else:
                done = dram_read(spec, state, counters, t, channel, inside, atoms)
            end = max(end, done)
    return end
