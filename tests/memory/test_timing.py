"""Blocked at t - 1, ready at t: every latency and every bandwidth of the L2 and of the link."""

from typing import Any

import pytest

from arch.errors import InputError
from sim.engine.clock import TICKS_PER_CYCLE
from sim.memory.addresses import home_slice, index_of
from sim.memory.counters import MemoryCounter
from sim.memory.l2 import l2_read, l2_reduce, l2_write
from sim.memory.model import MemorySpec, MemoryState, lower_memory, new_memory_state, warm
from sim.memory.sets import VALID
from tests.memory.machines import CLOCK_HZ, tiny


def build(**changes: Any) -> tuple[MemorySpec, MemoryState]:
    spec = lower_memory(tiny(**changes), CLOCK_HZ)
    return spec, new_memory_state(spec)


def lines_of_slice(spec: MemorySpec, slice_index: int, count: int) -> list[int]:
    found = [line for line in range(4096) if home_slice(spec, line, index_of(spec, line)) == slice_index]
    return found[:count]


def miss_latency(spec: MemorySpec) -> int:
    return spec.hit_latency + spec.dram.latency + spec.dram.rcd


def test_unloaded_latencies() -> None:
    spec, state = build(hit_latency_cycles=200, far_latency_cycles=150)
    near, far = lines_of_slice(spec, 0, 1)[0], lines_of_slice(spec, 4, 1)[0]
    cycle = TICKS_PER_CYCLE
    assert l2_read(spec, state, 0, 0, near, 1) == miss_latency(spec)
    assert l2_read(spec, state, 10**6, 0, near, 1) == 10**6 + 200 * cycle
    assert l2_read(spec, state, 2 * 10**6, 0, far, 1) == 2 * 10**6 + miss_latency(spec) + 150 * cycle
    assert l2_read(spec, state, 3 * 10**6, 0, far, 1) == 3 * 10**6 + 200 * cycle  # the copy
    other = lines_of_slice(spec, 4, 2)[1]
    l2_read(spec, state, 4 * 10**6, 1, other, 1)
    assert l2_read(spec, state, 5 * 10**6, 0, other, 1) == 5 * 10**6 + 350 * cycle  # the home of the other partition


def test_without_copies_a_far_line_stays_far() -> None:
    spec, state = build(local_copies=False)
    far = lines_of_slice(spec, 4, 1)[0]
    l2_read(spec, state, 0, 0, far, VALID)
    assert l2_read(spec, state, 10**6, 0, far, 1) == 10**6 + spec.far_latency


def test_hit_on_a_line_in_flight_waits_for_it() -> None:
    spec, state = build()
    ready = l2_read(spec, state, 0, 0, lines_of_slice(spec, 0, 1)[0], 1)
    line = lines_of_slice(spec, 0, 1)[0]
    blocked, free = ready - spec.hit_latency - 1, ready - spec.hit_latency
    assert l2_read(spec, state, blocked, 0, line, 1) == ready
    assert state.counters[MemoryCounter.L2_MERGED_SECTORS] == 1
    state.read_free[:] = 0
    assert l2_read(spec, state, free, 0, line, 1) == ready
    assert state.counters[MemoryCounter.L2_MERGED_SECTORS] == 1


def test_lines_in_flight_are_known_when_a_set_counts_from_a_later_tick() -> None:
    """A set's ticks have 31 bits: a line that comes behind their end moves their beginning, and loses no other."""
    spec, state = build(sets=1)
    first, second = lines_of_slice(spec, 0, 2)
    late = (1 << 31) - 2 * miss_latency(spec)
    answer = l2_read(spec, state, late, 0, first, 0b0001)
    assert l2_read(spec, state, late + 2 * miss_latency(spec), 0, second, 0b0001) >= 1 << 31
    state.read_free[:] = 0
    again = l2_read(spec, state, answer - spec.hit_latency - 1, 0, first, 0b0001)
    assert again == answer
    much_later = 1 << 33
    assert l2_read(spec, state, much_later, 0, first, 0b0001) == much_later + spec.hit_latency


@pytest.mark.parametrize("sectors", [1, 3, VALID])
def test_slice_port_serves_reads_at_its_bandwidth(sectors: int) -> None:
    spec, state = build(bandwidth_bytes_per_cycle=64.0)
    warm(spec, state, 0, 64)
    first, second = lines_of_slice(spec, 0, 2)
    n = bin(sectors).count("1")
    busy = n * TICKS_PER_CYCLE // 2
    assert l2_read(spec, state, 0, 0, first, sectors) == spec.hit_latency + busy - TICKS_PER_CYCLE // 2
    assert l2_read(spec, state, busy - 1, 0, second, 1) == busy + spec.hit_latency
    state.read_free[:] = busy
    assert l2_read(spec, state, busy, 0, second, 1) == busy + spec.hit_latency


def test_slices_do_not_hold_up_each_other() -> None:
    spec, state = build()
    warm(spec, state, 0, 64)
    for slice_index in range(4):
        assert l2_read(spec, state, 0, 0, lines_of_slice(spec, slice_index, 1)[0], 1) == spec.hit_latency


def test_slice_port_serves_writes_at_its_bandwidth() -> None:
    spec, state = build(write_bandwidth_bytes_per_cycle=32.0)
    warm(spec, state, 0, 64)
    first, second = lines_of_slice(spec, 0, 2)
    busy = 4 * TICKS_PER_CYCLE
    assert l2_write(spec, state, 0, 0, first, VALID, VALID) == spec.hit_latency + 3 * TICKS_PER_CYCLE
    assert l2_write(spec, state, busy - 1, 0, second, 1, 1) == busy + spec.hit_latency
    assert l2_write(spec, state, busy + 256, 0, second, 1, 1) == busy + 256 + spec.hit_latency


def test_rates_are_in_cycles_of_a_clock_of_their_own() -> None:
    core: dict[str, Any] = {
        "bandwidth_bytes_per_cycle": 64.0,
        "write_bandwidth_bytes_per_cycle": 32.0,
        "link_bandwidth_bytes_per_cycle": 16.0,
    }
    machine = tiny(**core, clock_hz=CLOCK_HZ // 2)
    for clock_hz, ratio in ((CLOCK_HZ, 2), (CLOCK_HZ // 2, 1), (CLOCK_HZ // 4, 0.5)):
        spec = lower_memory(machine, clock_hz, 128.0)
        cycle = ratio * TICKS_PER_CYCLE
        assert (spec.read_sector, spec.write_sector, spec.link_sector) == (cycle / 2, cycle, 2 * cycle)
        assert spec.gpc_sectors == 16 * cycle / 4
    same = lower_memory(tiny(**core), CLOCK_HZ)
    assert (same.read_sector, same.write_sector, same.gpc_sectors) == (TICKS_PER_CYCLE / 2, TICKS_PER_CYCLE, 0)


def test_link_carries_each_direction_at_its_bandwidth() -> None:
    spec, state = build(link_bandwidth_bytes_per_cycle=16.0, local_copies=False)
    first, second, back = (lines_of_slice(spec, slice_index, 1)[0] for slice_index in (4, 5, 0))
    for line in (first, second, back):
        warm(spec, state, line, 1)
    sector = 2 * TICKS_PER_CYCLE
    assert l2_read(spec, state, 0, 0, first, VALID) == spec.far_latency + 3 * sector
    assert l2_read(spec, state, 4 * sector - 1, 0, second, 1) == 4 * sector + spec.far_latency
    assert l2_read(spec, state, 0, 1, back, 1) == spec.far_latency  # the other direction is free
    assert l2_read(spec, state, 6 * sector, 0, second, 1) == 6 * sector + spec.far_latency
    assert state.counters[MemoryCounter.L2_LINK_BYTES] == 32 * 7


def test_writing_drops_the_copy_of_the_other_partition() -> None:
    spec, state = build()
    line = lines_of_slice(spec, 4, 1)[0]
    warm(spec, state, line, 1)
    assert l2_write(spec, state, 0, 1, line, VALID, VALID) == spec.hit_latency + 3 * spec.write_sector
    assert l2_read(spec, state, 10**6, 0, line, 1) == 10**6 + spec.far_latency
    assert state.counters[MemoryCounter.L2_INVALIDATIONS] == 1


def test_partial_write_fetches_in_the_background_and_a_reader_waits() -> None:
    spec, state = build()
    line = lines_of_slice(spec, 0, 1)[0]
    assert l2_write(spec, state, 0, 0, line, 1, 0) == spec.hit_latency
    assert l2_read(spec, state, 1, 0, line, 1) == miss_latency(spec)
    assert state.counters[MemoryCounter.L2_FETCH_SECTORS] == 1


def test_full_write_needs_no_fetch() -> None:
    spec, state = build()
    line = lines_of_slice(spec, 0, 1)[0]
    l2_write(spec, state, 0, 0, line, VALID, VALID)
    assert l2_read(spec, state, 10**5, 0, line, VALID) == 10**5 + spec.hit_latency + 3 * spec.read_sector
    assert state.counters[MemoryCounter.DRAM_READ_BYTES] == 0


def test_atomics_wait_for_content_and_then_only_for_the_port() -> None:
    spec, state = build()
    line = lines_of_slice(spec, 0, 1)[0]
    assert l2_reduce(spec, state, 0, 0, line, 1) == miss_latency(spec)
    t = 10**6
    assert l2_reduce(spec, state, t, 0, line, 1) == t + spec.hit_latency
    assert l2_reduce(spec, state, t, 0, line, 1) == t + spec.hit_latency + spec.write_sector


def test_dirty_evictions_hold_up_writers_when_the_write_buffer_is_full() -> None:
    batch = 8
    spec, state = build(dram={"write_batch": batch, "bandwidth_bytes_per_s": 8 * 1.0 * CLOCK_HZ})
    lines = lines_of_slice(spec, 0, spec.sets * spec.ways + 200)
    answers = [l2_write(spec, state, 0, 0, line, VALID, VALID) for line in lines]
    drained = state.counters[MemoryCounter.DRAM_WRITE_BYTES] - 3 * batch * 32
    assert state.counters[MemoryCounter.L2_WRITE_BACK_SECTORS] >= 4 * 190
    assert drained > 100 * 128
    # 1 byte a cycle: what exceeds the buffers has gone over the bus before the last writer is through.
    assert answers[-1] >= drained * TICKS_PER_CYCLE
    # The slice's port waits with it: a write that needs no room, on a line that is there, comes after them all.
    assert l2_write(spec, state, 0, 0, lines[-1], 1, 1) > answers[-1]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ways": 40}, "l2.ways=40"),
        ({"line_bytes": 64}, "l2.line=64"),
        ({"dram": {"atom_bytes": 16}}, "dram.atom=16"),
        ({"dram": {"row_bytes": 200}}, "dram.row=200"),
    ],
)
def test_geometry_that_the_model_cannot_take_is_an_input_error(change: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word) as error:
        build(**change)
    assert "\n" not in str(error.value)
