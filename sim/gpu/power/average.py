"""What the regulator works out at the end of each window, compiled: a moving average, and the clock that it allows.

Core energy is kept at the reference voltage, so that windows at different clocks can be added. All is in int64, up to
9 kJ in femtojoules; products that would not fit are divided first and multiplied afterwards, exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.engine.jit import inner, kernel

CORE_FJ, MEMORY_FJ, STATIC_FJ, WINDOW_PS, CYCLES = range(5)
"""Columns of a window, and of the sums over the windows that count; cycles in millionths."""

HZ, MHZ, SQUARED = range(3)
"""Columns of a table of clocks, lowest first: voltage squared in square millivolts."""

_FIRST, _COUNT = range(2)


class MovingAverage(NamedTuple):
    """Windows of the last `length_ps`, whole ones; less at the beginning."""

    length_ps: int
    sums: np.ndarray  # int64[5]
    windows: np.ndarray  # int64[places, 5]: a ring
    place: np.ndarray  # int64[2]: of the first window, and how many there are

    @staticmethod
    def empty(length_ps: int, places: int = 64) -> MovingAverage:
        """An average over nothing, with places for some windows."""
        width = CYCLES + 1
        return MovingAverage(
            length_ps, np.zeros(width, np.int64), np.zeros((places, width), np.int64), np.zeros(2, np.int64)
        )

    def with_place(self) -> MovingAverage:
        """The same average, with a place for one window more."""
        places = len(self.windows)
        if self.place[_COUNT] < places:
            return self
        more = MovingAverage.empty(self.length_ps, 2 * places)
        more.windows[:places] = np.roll(self.windows, -self.place[_FIRST], axis=0)
        more.place[_COUNT] = places
        more.sums[:] = self.sums
        return more


@inner(inline=True)
def scaled(value, times, parts):
    """value * times // parts, of numbers that are not negative, without an overflow on the way."""
    return value // parts * times + value % parts * times // parts


@inner
def count_window(average, core_fj, memory_fj, static_fj, window_ps, mhz):
    """Takes a window in, and drops those that are over. core_fj: at the reference voltage."""
    sums, windows, place = average.sums, average.windows, average.place
    places = windows.shape[0]
    last = windows[(place[_FIRST] + place[_COUNT]) % places]
    last[CORE_FJ], last[MEMORY_FJ], last[STATIC_FJ] = core_fj, memory_fj, static_fj
    last[WINDOW_PS], last[CYCLES] = window_ps, window_ps * mhz
    place[_COUNT] += 1
    for column in range(CYCLES + 1):
        sums[column] += last[column]
    while True:
        first = windows[place[_FIRST]]
        if sums[WINDOW_PS] - first[WINDOW_PS] < average.length_ps:
            break
        for column in range(CYCLES + 1):
            sums[column] -= first[column]
        place[_FIRST] = (place[_FIRST] + 1) % places
        place[_COUNT] -= 1


@kernel
def highest_within(clocks, core_fj, memory_fj, most_fj, mhz, squared):
    """The highest of `clocks` at which work of `core_fj` and `memory_fj`, done at `mhz`, needs less than `most_fj`; the
    lowest where none does. Its time scales with the clock, core energy with voltage squared, given at `squared`."""
    low, high = 0, len(clocks)
    while high - low > 1:
        middle = (low + high) // 2
        if scaled(scaled(core_fj, clocks[middle, SQUARED], squared) + memory_fj, clocks[middle, MHZ], mhz) < most_fj:
            low = middle
        else:
            high = middle
    return clocks[low, HZ]


@kernel
def held_hz(average, clocks, limit_mw, core_fj, memory_fj, static_fj, window_ps, mhz, squared, reference_squared):
    """The clock at which the average's work meets a limit, after a window more.

    The window went at `mhz` with the voltage whose square is `squared`; it has to have a place in the average.
    """
    core_fj = scaled(core_fj, reference_squared, squared)
    count_window(average, core_fj, memory_fj, static_fj, window_ps, mhz)
    sums = average.sums
    most_fj = (limit_mw + 1) * sums[WINDOW_PS] - sums[STATIC_FJ]
    mean_mhz = sums[CYCLES] // max(sums[WINDOW_PS], 1)
    return highest_within(clocks, sums[CORE_FJ], sums[MEMORY_FJ], most_fj, mean_mhz, reference_squared)
