"""Addresses spread evenly: exact division, balanced runs, power-of-two strides as good as random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.load import load_arch
from sim.engine.jit import kernel
from sim.memory.hashing import divide, mix, reciprocal, rotate
from sim.memory.kernel import block_of, channel_of, home_slice, set_of
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
        block = block_of(spec, line)
        home = home_slice(spec, line, block)
        slices[home] += 1
        sets[(set_of(spec, block, home) - home) // spec.slices] += 1
        channels[channel_of(spec, home, block) >> 32] += 1


def counts(spec: MemorySpec, stride: int) -> list[np.ndarray]:
    found = [np.zeros(n, np.int64) for n in (spec.slices, spec.sets, spec.dram.channels)]
    spread(spec, 12345, stride, *found)
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_runs_are_balanced(name: str) -> None:
    machine = load_arch(name)
    spec = lower_memory(machine, machine.clock.boost_hz)
    slices, _, channels = counts(spec, 1)
    assert slices.max() - slices.min() <= 2
    # A channel sees every slice's lines block after block: at most one block's worth of difference at both ends.
    assert channels.max() - channels.min() <= 2 * max(1, spec.slices // spec.dram.channels)


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


@pytest.mark.parametrize("name", PRESETS)
def test_a_line_has_a_place_of_its_own_in_its_channel(name: str) -> None:
    machine = load_arch(name)
    spec = lower_memory(machine, machine.clock.boost_hz)
    places = set()
    for line in range(5000):
        block = int(block_of(spec, line))
        places.add(int(channel_of(spec, home_slice(spec, line, block), block)))
    assert len(places) == 5000
