"""The way out of an SM: stores in flight are bounded, requests of loads share the path that stores leave by, and the L1
keeps the lines that its SM writes."""

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device
from sim.gpu.language import GlobalTensor, KernelBuilder, RegisterTile
from sim.gpu.units.events import Event
from sim.memory.counters import MemoryCounter
from tests.gpu.conftest import column, run
from workloads.gpu import micro
from workloads.gpu.select import choose
from workloads.ops import Pointwise
from workloads.registry import build

LINE_BYTES = 128


def test_stores_do_not_run_ahead_of_memory() -> None:
    machine = load_arch("t4")
    op = Pointwise(n=1 << 22, chain="fill", dtype="fp32").with_defaults("fp32")  # four times the L2
    program = build(op, machine, choose(op, machine).config)
    device = Device(machine)
    launch = device.build(program.kernels[0], program.addresses())
    us = machine.clock.boost_hz // 1_000_000 * TICKS_PER_CYCLE
    written = []
    for number in range(1, 40):
        if launch.advance(number * us) < 0:
            break
        written.append(int(device.memory.counters[MemoryCounter.DRAM_WRITE_BYTES]))
    # What has been handed to memory is what its buses carry in that time, and what may be on its way.
    in_flight = machine.sm.count * machine.l1.miss_queue * LINE_BYTES
    rate = machine.dram.bandwidth_bytes_per_s
    for number, done in enumerate(written, start=1):
        assert done <= rate * number // 1_000_000 + in_flight
    assert written[-1] > machine.l2.size_bytes


def test_a_read_request_takes_the_place_of_a_sector_on_the_way_out() -> None:
    """Where the way out is the bottleneck, a line costs 4 sectors if it is stored and 5 if it is loaded before."""
    machine = load_arch("a100-sxm4-80gb", {"port.write": "2 B/clk"})

    def cycles_a_line(op: str) -> float:
        def ticks(ctas: int) -> int:
            program = micro.stream(op, machine, 512, ctas)
            return Device(machine, cold_launch=False).run(program.kernels[0], program.addresses()).ticks

        lines = 20 * 512 * 8 // LINE_BYTES
        return (ticks(40 * machine.sm.count) - ticks(20 * machine.sm.count)) / (lines * TICKS_PER_CYCLE)

    sector = 32 / 2
    assert cycles_a_line("init") == pytest.approx(4 * sector, rel=0.02)
    assert cycles_a_line("scale") == pytest.approx(5 * sector, rel=0.02)


VALUE = RegisterTile("value", (1, 32), "fp32")
X = GlobalTensor("x", (1 << 16,), "fp32", (1,))


@pytest.mark.parametrize(
    ("first", "length", "found"), [(0, 32, True), (8, 8, False), (0, 31, False)], ids=["whole", "a sector", "short"]
)
def test_a_line_that_is_written_is_found_in_the_l1(ampere: GpuSpec, first: int, length: int, found: bool) -> None:
    """Sectors written whole are valid; those that are not are fetched."""
    kernel = KernelBuilder("test", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        r.stg(X[first:length], VALUE.whole, 1, vector_bytes=4)
        r.ldg(VALUE.whole, X[0:32], 1, into="x", vector_bytes=4)
    result = run(ampere, kernel.build(), X)
    took = column(result, 1, Event.T_DONE)[0] - column(result, 1, Event.T_ISSUE)[0]
    if found:
        assert took == ampere.l1.hit_latency_cycles
    else:
        assert took > ampere.l2.hit_latency_cycles


@pytest.mark.parametrize("share", [0.5, 1.25])
def test_lines_that_are_written_displace_others_from_the_l1(ampere: GpuSpec, share: float) -> None:
    """A line is loaded, a share of the L1's capacity stored elsewhere, and the line loaded again."""
    lines = int(share * ampere.l1.size_bytes) // LINE_BYTES
    kernel = KernelBuilder("test", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        r.ldg(VALUE.whole, X[0:32], 1, into="x", vector_bytes=4)
        r.run("ffma", 1, after=("x",))
        with r.loop("i", lines) as i:
            r.stg(X[32 * (i + 1) : 32], VALUE.whole, 1, vector_bytes=4)
        r.ldg(VALUE.whole, X[0:32], 1, into="y", vector_bytes=4)
    result = run(ampere, kernel.build(), X)
    took = column(result, 3, Event.T_DONE)[0] - column(result, 3, Event.T_ISSUE)[0]
    assert (took > ampere.l2.hit_latency_cycles) == (share > 1)


@pytest.mark.parametrize(("policy", "found"), [("lru", False), ("srrip", True)])
def test_a_line_that_was_hit_outlives_a_scan_where_the_l1_predicts(policy: str, found: bool) -> None:
    """A line is loaded twice, 1.25 times the L1's capacity stored elsewhere, and the line loaded again."""
    machine = load_arch("a100-sxm4-80gb", {"l1.replacement": policy})
    lines = int(1.25 * machine.l1.size_bytes) // LINE_BYTES
    kernel = KernelBuilder("test", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        for name in ("x", "y"):
            r.ldg(VALUE.whole, X[0:32], 1, into=name, vector_bytes=4)
            r.run("ffma", 1, after=(name,))
        with r.loop("i", lines) as i:
            r.stg(X[32 * (i + 1) : 32], VALUE.whole, 1, vector_bytes=4)
        r.ldg(VALUE.whole, X[0:32], 1, into="z", vector_bytes=4)
    result = run(machine, kernel.build(), X)
    took = column(result, 5, Event.T_DONE)[0] - column(result, 5, Event.T_ISSUE)[0]
    assert (took == machine.l1.hit_latency_cycles) == found
