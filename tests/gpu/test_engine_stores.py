"""The way out of an SM: stores in flight are bounded, and requests of loads share the path that stores leave by."""

import pytest

from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine import Device
from sim.memory.counters import MemoryCounter
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
