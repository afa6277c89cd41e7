"""Stores on their way are bounded: a kernel that only stores keeps the pace of memory from the beginning."""

from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine import Device
from sim.memory.counters import MemoryCounter
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
