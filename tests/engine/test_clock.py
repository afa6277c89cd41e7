"""Conversions to ticks: rounding up for constraints, to the nearest for rates, exact for long times."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import clock


def test_constraints_round_up() -> None:
    assert clock.ps_to_ticks(1, 1_000_000_000) == 1
    assert clock.ns_to_ticks(1, 1_000_000_000) == 256
    assert clock.ns_to_ticks(13.75, 1_410_000_000) == 4964  # 4963.2
    assert clock.cycles_to_ticks(1.001) == 257


def test_rates_round_to_nearest_and_never_to_zero() -> None:
    assert clock.transfer_ticks(32, 64) == 128
    assert clock.transfer_ticks(32, 48) == 171  # 170.7
    assert clock.transfer_ticks(32, 96) == 85  # 85.3
    assert clock.transfer_ticks(1, 10**6) == 1


def test_bandwidth_is_exact() -> None:
    assert clock.bytes_per_cycle(3_350_000_000_000, 1_755_000_000) == Fraction(3_350_000, 1755)


@given(st.integers(0, 10**15), st.sampled_from([585_000_000, 1_410_000_000, 1_755_000_000, 1_980_000_000]))
def test_picoseconds_survive_the_round_trip(ps: int, clock_hz: int) -> None:
    tick_ps = Fraction(clock.PS_PER_S, clock_hz * clock.TICKS_PER_CYCLE)
    assert 0 <= clock.ticks_to_ps(clock.ps_to_ticks(ps, clock_hz), clock_hz) - ps <= tick_ps + 1


@pytest.mark.parametrize("ticks", [0, 1, 255, 256, 10**12])
def test_ticks_to_ps_is_monotonic(ticks: int) -> None:
    assert clock.ticks_to_ps(ticks + 1, 1_755_000_000) > clock.ticks_to_ps(ticks, 1_755_000_000)
