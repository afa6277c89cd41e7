"""Addresses spread evenly: exact division, balanced runs, power-of-two strides as good as random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.load import load_arch
from sim.engine.jit import kernel
from sim.memory.addresses import PAGE_SHIFT, channel_of, home_slice, index_of, set_of
from sim.memory.hashing import divide, mix, reciprocal, rotate
from sim.memory.model import MemorySpec, lower_memory

PRESETS = ["t4", "v100-sxm2", "a100-sxm4-80gb", "h100-sxm", "h200-sxm"]


@given(st.integers(0, 2**31 - 1), st.integers(1, 2**20))
def test_division_is_exact(x: int, divisor: int) -> None:
    multiplier, shift = reciprocal(divisor)
    assert divide(x, multiplier, shift) == x // divisor


@given(st.integers(0, 2**32 - 1))
def test_hash_is_the_same_jitted_and_plain(x: int) -> None:
    plain = getattr(mix, "py_func", mix)
    assert mix(x) == plain(x)
    assert 0 <= mix(x) < 2**32


@given(st.integers(0, 2**26), st.integers(1, 200))
def test_rotation_is_a_permutation(block: int, count: int) -> None:
    assert sorted(rotate(r, block, count) for r in range(count)) == list(range(count))


@kernel
def spread(spec, first, stride, slices, sets, channels):  # type: ignore[no-untyped-def]
    """Count lines first, first + stride, ... per slice, set (of slice 0's numbering) and channel."""
    for k in range(20_000):
        line = (first + k * stride) & 0x3FFFFFFF
        index = index_of(spec, line)
        home = home_slice(spec, line, index)
        slices[home] += 1
        sets[(set_of(spec, index, home) - home) // spec.slices] += 1
        channels[channel_of(spec, home, line) >> 32] += 1


def counts(spec: MemorySpec, stride: int) -> list[np.ndarray]:
    found = [np.zeros(n, np.int64) for n in (spec.slices, spec.sets, spec.dram.channels)]
    spread(spec, 12345, stride, *found)
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_whole_pages_are_balanced(name: str) -> None:
    """Each slice has as many lines of an aligned range of `slices` times 32 KiB, and each its own index and set."""
    machine = load_arch(name)
    spec = lower_memory(machine, machine.clock.boost_hz)
    lines = spec.slices << PAGE_SHIFT
    places = set()
    slices = np.zeros(spec.slices, np.int64)
    for line in range(3 * lines, 4 * lines, 1):
        index = int(index_of(spec, line))
        home = int(home_slice(spec, line, index))
        places.add((home, index))
        slices[home] += 1
    assert len(places) == lines
    assert (slices == 1 << PAGE_SHIFT).all()


@pytest.mark.parametrize("name", PRESETS)
def test_neighbours_scatter_as_if_drawn_at_random(name: str) -> None:
    """Groups of lines that stay together share slices as often as random ones: none is spared while others wait."""
    machine = load_arch(name)
    spec = lower_memory(machine, machine.clock.boost_hz)
    met = []
    for first in range(0, 64 << PAGE_SHIFT, 64):
        met.append(len({int(home_slice(spec, line, index_of(spec, line))) for line in range(first, first + 64)}))
    together = 1 << spec.interleave_shift
    seats = spec.slices >> spec.alternate
    expected = (spec.slices / seats) * seats * (1 - (1 - 1 / seats) ** (64 // together))
    assert np.mean(met) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("log_stride", range(1, 16))
def test_power_of_two_strides_spread_like_random_ones(name: str, log_stride: int) -> None:
    machine = load_arch(name)
    spec = lower_memory(machine, machine.clock.boost_hz)
    for found in counts(spec, 1 << log_stride):
        mean = found.sum() / len(found)
        # Random placement keeps each count within five standard deviations of the mean; a short stride is a run with
        # gaps, whose last lap over the sets may be a part: one block more for some of them.
        assert abs(found - mean).max() <= 5 * mean**0.5 + spec.slices / (1 << log_stride)
