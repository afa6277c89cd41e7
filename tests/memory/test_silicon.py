"""What micro-benchmarks see: latency by footprint, bandwidth of saturating streams, row locality, merging."""

import numpy as np
import pytest
from numba.core import config

from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import kernel
from sim.memory.addresses import PAGE_SHIFT
from sim.memory.counters import MemoryCounter
from sim.memory.l2 import l2_read, l2_write
from sim.memory.model import MemorySpec, MemoryState, lower_memory, new_memory_state, warm
from sim.memory.sets import VALID

pytestmark = pytest.mark.skipif(bool(getattr(config, "DISABLE_JIT", 0)), reason="millions of requests: compiled only")

SIXTEEN_LINES = 16


@kernel
def chase(spec, state, order, laps):  # type: ignore[no-untyped-def]
    """Dependent loads of 8 B every 64 B by an SM of partition 0, so of two sectors a line; ticks of the last lap."""
    t, start = 0, 0
    for _ in range(laps):
        start = t
        for element in order:
            t = l2_read(spec, state, t, 0, element >> 1, 1 << 2 * (element & 1))
    return t - start


@kernel
def stream(spec, state, sms, chunks, window, reads, writes, answers):  # type: ignore[no-untyped-def]
    """Every SM streams chunks of 16 lines, `window` chunks in flight; `reads` and `writes` of 0 or 1 arrays.

    answers: int64 [sms * window], zeros. Returns the tick of the last answer.
    """
    last = 0
    for chunk in range(chunks):
        for sm in range(sms):
            slot = sm * window + chunk % window
            t = answers[slot]
            first = (chunk * sms + sm) * 16
            partition = sm % spec.partitions
            end = t
            for k in range(16):
                if reads:
                    end = max(end, l2_read(spec, state, t, partition, first + k, 15))
                if writes:
                    end = max(end, l2_write(spec, state, t, partition, first + k + (1 << 24), 15, 15))
            answers[slot] = end
            last = max(last, end)
    return last


def machine(name: str, clock_hz: int | None = None) -> tuple[MemorySpec, MemoryState, int]:
    spec = load_arch(name)
    lowered = lower_memory(spec, clock_hz or spec.clock.boost_hz)
    return lowered, new_memory_state(lowered), spec.sm.count


def chase_cycles(name: str, mib: float, laps: int, clock_hz: int | None = None) -> float:
    spec, state, _ = machine(name, clock_hz)
    order = np.random.default_rng(1).permutation(int(mib * 16384))
    return float(chase(spec, state, order, laps)) / len(order) / TICKS_PER_CYCLE


@pytest.mark.parametrize(
    ("mib", "measured"),
    [(2.0, 215.0), (5.6, 215.1), (6.2, 265.1), (6.82, 354.5), (7.5, 395.8), (8.25, 412.7), (9.08, 424.9)],
)
def test_v100_chase_by_footprint(mib: float, measured: float) -> None:
    """gpu-benches, V100 at 1380 MHz: beyond capacity a line survives if its other half is visited soon enough."""
    assert chase_cycles("v100-sxm2", mib, 12, 1_380_000_000) == pytest.approx(measured, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clock_hz"), [("a100-sxm4-40gb", 1_410_000_000), ("h100-pcie", 1_755_000_000)])
def test_two_partitions_give_three_plateaus(name: str, clock_hz: int) -> None:
    """Below half the capacity near hits; up to the capacity half far hits and half near DRAM; beyond, DRAM."""
    spec, _, _ = machine(name, clock_hz)
    capacity = spec.slices * spec.sets * spec.ways / 8192
    near = chase_cycles(name, 0.48 * capacity, 2, clock_hz)
    plateau = chase_cycles(name, 0.9 * capacity, 4, clock_hz)
    beyond = chase_cycles(name, 3 * capacity, 2, clock_hz)
    dram = spec.dram.latency + spec.dram.rcd
    far = spec.far_latency - spec.hit_latency
    assert near * TICKS_PER_CYCLE == spec.hit_latency
    assert plateau * TICKS_PER_CYCLE == pytest.approx(spec.hit_latency + (far + dram) / 2, rel=0.03)
    assert beyond * TICKS_PER_CYCLE == pytest.approx(spec.hit_latency + far / 2 + dram, rel=0.03)


@pytest.mark.parametrize("name", ["t4", "v100-sxm2", "a100-sxm4-80gb", "h100-sxm"])
def test_saturating_read_stream_fills_the_data_buses(name: str) -> None:
    spec, state, sms = machine(name)
    window = 16
    end = stream(spec, state, sms, 160, window, 1, 0, np.zeros(sms * window, np.int64))
    lines = sms * 160 * SIXTEEN_LINES
    peak = spec.dram.channels * spec.dram.atom_bytes / spec.dram.burst
    assert 0.91 <= lines * 128 / end / peak <= 1.0
    assert state.counters[MemoryCounter.DRAM_READ_BYTES] == lines * 128
    hits = state.counters[MemoryCounter.DRAM_ROW_HITS]
    assert hits / lines > 0.8


@pytest.mark.parametrize("name", ["v100-sxm2", "h100-sxm"])
def test_copy_pays_for_turning_the_bus(name: str) -> None:
    spec, state, sms = machine(name)
    window = 16
    warm(spec, state, 1 << 28, spec.slices * spec.sets * spec.ways, dirty=True)
    end = stream(spec, state, sms, 160, window, 1, 1, np.zeros(sms * window, np.int64))
    moved = state.counters[MemoryCounter.DRAM_READ_BYTES] + state.counters[MemoryCounter.DRAM_WRITE_BYTES]
    peak = spec.dram.channels * spec.dram.atom_bytes / spec.dram.burst
    batch = spec.dram.write_batch * spec.dram.burst
    turning = 2 * batch / (2 * batch + spec.dram.wtr + spec.dram.rtw)
    assert moved / end / peak == pytest.approx(turning, rel=0.08)


@pytest.mark.parametrize("name", ["v100-sxm2", "a100-sxm4-80gb", "h100-sxm"])
def test_near_hits_reach_the_slices_bandwidth(name: str) -> None:
    spec, state, _ = machine(name)
    count = spec.slices << PAGE_SHIFT
    warm(spec, state, 0, count)
    if spec.partitions == 2:
        # Each partition reads what it holds, home or copy.
        end = max(l2_read(spec, state, 0, partition, line, VALID) for line in range(count) for partition in range(2))
        lines = 2 * count
    else:
        end = max(l2_read(spec, state, 0, 0, line, VALID) for line in range(count))
        lines = count
    peak = spec.slices * 32 / spec.read_sector
    assert lines * 128 / (end - spec.hit_latency) / peak == pytest.approx(1, abs=0.03)


def test_rows_are_local_to_addresses() -> None:
    """A run of lines hits open rows, lines 64 KiB apart do not."""
    rates = []
    for stride in (1, 512):
        spec, state, _ = machine("v100-sxm2")
        for k in range(4096):
            l2_read(spec, state, k * 16, 0, k * stride, VALID)
        rates.append(int(state.counters[MemoryCounter.DRAM_ROW_HITS]) / 4096)
    assert rates[0] > 0.8
    assert rates[1] < 0.05


def test_many_readers_of_one_line_cost_one_fetch() -> None:
    spec, state, sms = machine("h100-sxm")
    answers = {int(l2_read(spec, state, sm, sm % 2, 77, VALID)) for sm in range(sms)}
    assert state.counters[MemoryCounter.DRAM_READ_BYTES] == 128
    assert state.counters[MemoryCounter.L2_READ_MISS_SECTORS] == 4
    assert state.counters[MemoryCounter.L2_MERGED_SECTORS] > 4 * (sms // 2)
    assert len(answers) <= 3 + sms // 2


@pytest.mark.parametrize("bandwidth_share", [0.5, 2.0])
def test_stream_scales_with_the_memory_clock_alone(bandwidth_share: float) -> None:
    base = load_arch("v100-sxm2")
    faster = base.model_copy(
        update={
            "dram": base.dram.model_copy(
                update={"bandwidth_bytes_per_s": base.dram.bandwidth_bytes_per_s * bandwidth_share}
            )
        }
    )
    ends = []
    for spec in (base, faster):
        lowered = lower_memory(spec, base.clock.boost_hz)
        ends.append(stream(lowered, new_memory_state(lowered), 80, 60, 8, 1, 0, np.zeros(640, np.int64)))
    assert ends[0] / ends[1] == pytest.approx(bandwidth_share, rel=0.08)
