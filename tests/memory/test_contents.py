"""Contents of the L2 against a plain-Python twin, conservation of sectors, every mode of the compiler, determinism."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.memory.addresses import PAGE_SHIFT, home_slice, index_of, set_of
from sim.memory.counters import MemoryCounter
from sim.memory.dram import CHANNEL_WORDS, PENDING_ATOMS, PENDING_WRITES
from sim.memory.l2 import l2_read, l2_reduce, l2_write
from sim.memory.model import (
    MemorySpec,
    MemoryState,
    dirty_sectors,
    flush,
    lower_memory,
    new_memory_state,
    resident_lines,
    settle,
    warm,
)
from sim.memory.sets import VALID
from tests.memory.machines import CLOCK_HZ, tiny
from tests.memory.twin import CacheTwin

MACHINES: dict[str, dict[str, Any]] = {
    "one partition": {"partitions": 1, "local_copies": False},
    "copies": {"partitions": 2, "local_copies": True},
    "no copies": {"partitions": 2, "local_copies": False},
    "odd geometry": {"partitions": 2, "local_copies": True, "slices": 6, "ways": 6, "sets": 3},
    "all may be dirty": {"partitions": 2, "local_copies": True, "dirty_limit": 1.0, "clean_first": False},
    "one may be dirty": {"partitions": 1, "local_copies": False, "ways": 16, "sets": 2, "dirty_limit": 0.0},
}
SPECS = {name: lower_memory(tiny(**l2), CLOCK_HZ) for name, l2 in MACHINES.items()}

requests = st.lists(
    st.tuples(
        st.sampled_from(["read", "write", "reduce"]),
        st.integers(0, 1),
        st.integers(0, 200) | st.integers(2**31 - 200, 2**31 - 1),
        st.integers(1, VALID),
        st.integers(0, VALID),
    ),
    max_size=400,
)


def members(mask: int) -> set[int]:
    return {sector for sector in range(4) if mask >> sector & 1}


def run(spec: MemorySpec, state: MemoryState, steps: list[tuple[str, int, int, int, int]]) -> list[int]:
    """Answers of a list of requests, issued ten cycles apart."""
    answers = []
    for k, (kind, partition, line, sectors, full) in enumerate(steps):
        t, partition = k * 2560, partition % spec.partitions
        if kind == "read":
            answers.append(int(l2_read(spec, state, t, partition, line, sectors)))
        elif kind == "write":
            answers.append(int(l2_write(spec, state, t, partition, line, sectors, sectors & full)))
        else:
            answers.append(int(l2_reduce(spec, state, t, partition, line, sectors)))
    return answers


def compared_with_twin(name: str, steps: list[tuple[str, int, int, int, int]]) -> dict[str, int]:
    """Counters of the L2 after some requests, which must be those of the twin."""
    spec = SPECS[name]

    def home(line: int) -> int:
        return int(home_slice(spec, line, index_of(spec, line)))

    def index(line: int, slice_index: int) -> int:
        return int(set_of(spec, index_of(spec, line), slice_index)) // spec.slices

    state = new_memory_state(spec)
    run(spec, state, steps)
    shape = spec.partitions, spec.slices, spec.ways, bool(spec.local_copies), spec.dirty_limit
    twin = CacheTwin(home, index, *shape, bool(spec.clean_first), lambda line: bool(line * 0x9E3779B1 >> 28 & 1))
    for kind, partition, line, sectors, full in steps:
        if kind == "read":
            twin.read(partition % spec.partitions, line, members(sectors))
        else:
            twin.write(partition % spec.partitions, line, members(sectors), members(full), kind == "reduce")
    counts = {c.name: int(state.counters[c]) for c in MemoryCounter}
    expected = {name: twin.counts[name] for name in counts if name.startswith("L2") and "MERGED" not in name}
    assert {name: counts[name] for name in expected} == expected
    assert counts["DRAM_READ_BYTES"] == 32 * twin.counts["DRAM_READ_SECTORS"]
    assert counts["DRAM_WRITE_BYTES"] == 32 * counts["L2_WRITE_BACK_SECTORS"]
    assert counts["L2_READ_SECTORS"] == counts["L2_READ_HIT_SECTORS"] + counts["L2_READ_MISS_SECTORS"]
    assert (resident_lines(state), dirty_sectors(state)) == (twin.lines(), twin.dirty())
    return counts


@pytest.mark.parametrize("name", MACHINES)
@given(steps=requests)
@settings(max_examples=60)
def test_contents_match_the_twin(name: str, steps: list[tuple[str, int, int, int, int]]) -> None:
    compared_with_twin(name, steps)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", range(5))
def test_evictions_match_the_twin(name: str, seed: int) -> None:
    """Twice the capacity, some lines far more often than others: what is replaced shows in what is found again."""
    spec, rng = SPECS[name], np.random.default_rng(seed)
    capacity = spec.slices * spec.sets * spec.ways
    lines = np.minimum(rng.integers(2 * capacity, size=3000), rng.integers(2 * capacity, size=3000))
    kinds = ("read", "read", "write", "reduce")
    steps = [
        (kinds[int(rng.integers(4))], int(rng.integers(2)), int(line), int(rng.integers(1, 16)), int(rng.integers(16)))
        for line in lines
    ]
    counts = compared_with_twin(name, steps)
    assert counts["L2_EVICTIONS"] > 300
    assert counts["L2_WRITE_BACK_SECTORS"] > 300
    assert counts["L2_READ_HIT_SECTORS"] > 300


@given(steps=requests)
@settings(max_examples=30)
def test_no_answer_beats_the_unloaded_latency(steps: list[tuple[str, int, int, int, int]]) -> None:
    spec = SPECS["copies"]
    for k, answer in enumerate(run(spec, new_memory_state(spec), steps)):
        assert answer >= k * 2560 + spec.hit_latency


def trace() -> list[tuple[str, int, int, int, int]]:
    rng = np.random.default_rng(7)
    kinds = ["read", "read", "write", "reduce"]
    return [
        (
            kinds[int(rng.integers(4))],
            int(rng.integers(2)),
            int(rng.integers(300)),
            int(rng.integers(1, 16)),
            int(rng.integers(16)),
        )
        for _ in range(1500)
    ]


SCRIPT = """
from tests.memory.test_contents import *
spec = SPECS["copies"]
state = new_memory_state(spec)
print(run(spec, state, trace()), state.counters.tolist())
"""


@pytest.mark.parametrize(
    "mode", ["NUMBA_DISABLE_JIT", "PYTHONHASHSEED", pytest.param("NUMBA_BOUNDSCHECK", marks=pytest.mark.slow)]
)
def test_same_answers_in_a_fresh_process_and_in_every_mode(mode: str) -> None:
    spec = SPECS["copies"]
    state = new_memory_state(spec)
    expected = f"{run(spec, state, trace())} {state.counters.tolist()}"
    root = Path(__file__).resolve().parents[2]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    environment |= {mode: "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("name", MACHINES)
def test_a_page_as_large_as_the_capacity_fits_exactly(name: str) -> None:
    copies = 2 if MACHINES[name]["local_copies"] else 1
    spec = lower_memory(tiny(**MACHINES[name] | {"ways": 4, "sets": copies << PAGE_SHIFT - 2}), CLOCK_HZ)
    state, lines = new_memory_state(spec), spec.slices << PAGE_SHIFT
    warm(spec, state, 0, lines)
    assert resident_lines(state) == spec.slices * spec.sets * spec.ways
    run(spec, state, [("read", p, line, VALID, 0) for line in range(lines) for p in range(spec.partitions)])
    assert state.counters[MemoryCounter.L2_READ_MISS_SECTORS] == 0


def test_warm_costs_no_time_and_counts_nothing() -> None:
    spec = SPECS["copies"]
    state = new_memory_state(spec)
    warm(spec, state, 0, 20, dirty=True)
    assert dirty_sectors(state) > 60  # all, but where a set has more lines than may be dirty
    assert not state.counters.any()
    assert l2_read(spec, state, 0, 1, 0, 1) in (spec.hit_latency, spec.far_latency)


def test_what_filled_a_dirty_cache_has_left_no_writes_waiting() -> None:
    """A cache that was filled long before: a channel's batch is not full because of it when the run begins."""
    spec = SPECS["one partition"]
    state = new_memory_state(spec)
    for line in range(2 * spec.ways * spec.sets * spec.slices):
        l2_write(spec, state, 0, 0, line, VALID, VALID)
    assert state.dram.channel.reshape(-1, CHANNEL_WORDS)[:, PENDING_WRITES].any()
    warm(spec, state, 0, 2 * spec.ways * spec.sets * spec.slices, dirty=True)
    assert not state.dram.channel.reshape(-1, CHANNEL_WORDS)[:, [PENDING_ATOMS, PENDING_WRITES]].any()


def test_flush_empties_and_settle_keeps() -> None:
    spec = SPECS["one partition"]
    state = new_memory_state(spec)
    cold = l2_read(spec, state, 10_000, 0, 5, VALID)
    settle(state)
    assert l2_read(spec, state, 0, 0, 5, 1) == spec.hit_latency
    flush(spec, state)
    settle(state)
    assert resident_lines(state) == 0
    assert l2_read(spec, state, 10_000, 0, 5, VALID) == cold
