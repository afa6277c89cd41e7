"""What the L2 writes back and when: by hand, and against DRAM's counters on an H100 (`probe_write_back.cu`)."""

from typing import Any

import pytest
from numba.core import config

from scripts.lab.write_back import measured, simulated
from sim.engine.clock import TICKS_PER_CYCLE
from sim.memory.addresses import home_slice, index_of, set_of
from sim.memory.counters import MemoryCounter
from sim.memory.l2 import l2_read, l2_write
from sim.memory.model import MemorySpec, MemoryState, dirty_sectors, lower_memory, new_memory_state
from sim.memory.sets import VALID
from tests.memory.machines import CLOCK_HZ, tiny


def build(**l2: float | bool | int) -> tuple[MemorySpec, MemoryState, list[int]]:
    """One partition, sets of four ways; lines of the first line's set."""
    figures: dict[str, Any] = {"partitions": 1, "local_copies": False, "dirty_limit": 0.5, "clean_first": True}
    spec = lower_memory(tiny(**(figures | l2)), CLOCK_HZ)

    def place(line: int) -> int:
        index = index_of(spec, line)
        return int(set_of(spec, index, home_slice(spec, line, index)))

    return spec, new_memory_state(spec), [line for line in range(1 << 14) if place(line) == place(0)]


def written(state: MemoryState) -> int:
    """Lines sent to DRAM."""
    return int(state.counters[MemoryCounter.L2_WRITE_BACK_SECTORS]) // 4


def hits(spec: MemorySpec, state: MemoryState, line: int) -> bool:
    """Whether a line is there, which it is afterwards."""
    before = int(state.counters[MemoryCounter.L2_READ_HIT_SECTORS])
    l2_read(spec, state, 10**6, 0, line, 1)
    return int(state.counters[MemoryCounter.L2_READ_HIT_SECTORS]) > before


def test_a_store_beyond_the_limit_sends_the_oldest_dirty_line_to_dram_and_keeps_it() -> None:
    spec, state, lines = build()
    for number, line in enumerate(lines[:4]):
        l2_write(spec, state, 0, 0, line, VALID, VALID)
        assert written(state) == max(0, number - 1)
        assert dirty_sectors(state) == 4 * min(2, number + 1)
    assert all(hits(spec, state, line) for line in lines[:4])
    l2_write(spec, state, 10**6, 0, lines[3], VALID, VALID)
    assert written(state) == 2  # dirty before, so no more are
    l2_write(spec, state, 10**6, 0, lines[0], VALID, VALID)
    assert written(state) == 3  # clean before


def test_a_line_that_comes_in_at_the_limit_cleans_one_too() -> None:
    spec, state, lines = build()
    for line in lines[:2]:
        l2_write(spec, state, 0, 0, line, VALID, VALID)
    l2_read(spec, state, 10**5, 0, lines[2], VALID)
    assert (written(state), dirty_sectors(state)) == (1, 4)
    l2_read(spec, state, 2 * 10**5, 0, lines[3], VALID)
    assert (written(state), dirty_sectors(state)) == (1, 4)


@pytest.mark.parametrize("clean_first", [True, False])
def test_a_line_takes_the_room_of_a_clean_one_though_a_dirty_one_is_older(clean_first: bool) -> None:
    spec, state, lines = build(dirty_limit=1.0, clean_first=clean_first)
    l2_write(spec, state, 0, 0, lines[0], VALID, VALID)
    for line in lines[1:5]:
        l2_read(spec, state, 10**5, 0, line, VALID)
    assert hits(spec, state, lines[0]) == clean_first


def test_an_older_dirty_line_is_cleaned_by_every_second_newcomer() -> None:
    cleaned = 0
    newcomers = range(40, 240)
    spec, _, lines = build(dirty_limit=1.0)
    for newcomer in newcomers:
        state = new_memory_state(spec)
        l2_write(spec, state, 0, 0, lines[0], VALID, VALID)
        for line in (*lines[1:4], lines[newcomer]):
            l2_read(spec, state, 10**5, 0, line, VALID)
        cleaned += written(state)
    assert cleaned == pytest.approx(len(newcomers) / 2, rel=0.2)


def test_a_line_that_is_cleaned_holds_up_its_writer_when_the_write_buffer_is_full() -> None:
    slow = {"write_batch": 8, "bandwidth_bytes_per_s": 8 * 1.0 * CLOCK_HZ}
    spec = lower_memory(tiny(dram=slow, partitions=1, local_copies=False, dirty_limit=0.0, ways=16), CLOCK_HZ)
    state = new_memory_state(spec)
    answer = 0
    for line in range(spec.slices * spec.sets * spec.ways // 4):  # there is room for all of them
        answer = max(answer, int(l2_write(spec, state, 0, 0, line, VALID, VALID)))
    assert state.counters[MemoryCounter.L2_EVICTIONS] == 0
    assert written(state) > 50
    assert answer > written(state) // spec.dram.channels // 2 * 128 * TICKS_PER_CYCLE


def test_a_write_leaves_a_copy_in_its_own_partition() -> None:
    spec = lower_memory(tiny(partitions=2, local_copies=True), CLOCK_HZ)
    line = next(
        line for line in range(200) if home_slice(spec, line, index_of(spec, line)) >= spec.slices_per_partition
    )
    for full, latency in ((VALID, spec.hit_latency), (0, spec.far_latency)):
        state = new_memory_state(spec)
        l2_write(spec, state, 0, 0, line, VALID, full)
        assert l2_read(spec, state, 10**6, 0, line, 1) == 10**6 + latency
        # Its home has what is dirty, and a write there drops the copy.
        assert l2_read(spec, state, 2 * 10**6, 1, line, 1) == 2 * 10**6 + spec.hit_latency
        l2_write(spec, state, 3 * 10**6, 1, line, VALID, VALID)
        assert l2_read(spec, state, 4 * 10**6, 0, line, 1) == 4 * 10**6 + spec.far_latency


@pytest.mark.skipif(bool(getattr(config, "DISABLE_JIT", 0)), reason="millions of requests: compiled only")
@pytest.mark.parametrize(
    "program",
    [
        *("write A 22", "write A 32", "copy B C 32", "write A 8; read B 32", "write A 16; read B 24"),
        *("write A 24; read B 8", "write A 24; read B 40", "write A 32; read A 32"),
        *("write A 28; read C 16; read A 28", "write A 40; read C 16; read A 40"),
        *("read B 28; read C 16; read B 28", "read B 44; read B 44; read B 44; read B 44"),
        "write A 40; write A 40; write A 40; write A 40",
    ],
)
def test_the_l2_of_an_h100_moves_what_was_counted(program: str) -> None:
    """Of all programs of the table the largest differences are in docs/accuracy/memory.md."""
    found, counted = simulated(program), measured()[program]
    assert found.read == pytest.approx(counted.read, rel=0.04, abs=1.5)
    assert found.written == pytest.approx(counted.written, rel=0.25, abs=1.5)


def test_what_was_counted_does_not_depend_on_a_wait() -> None:
    """An L2 that idles writes nothing back, which is why no calendar does in the model."""
    table = {name: count.written for name, count in measured().items()}
    waits = {name: mib for name, mib in table.items() if "; wait" in name and name.count(";") == 1}
    assert len(waits) == 25
    for name, mib in waits.items():
        assert mib == pytest.approx(table[name.split("; wait")[0]], abs=0.3)
