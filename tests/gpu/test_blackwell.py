"""Boards of Blackwell: the two dies' L2, and four power limits on one silicon."""

from __future__ import annotations

from functools import cache

import pytest

from arch.load import load_arch
from sim import simulate
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device
from sim.gpu.power.regulator import FixedClock
from sim.memory.addresses import home_slice, index_of
from sim.memory.model import lower_memory
from workloads.gpu import micro

B200 = load_arch("b200")
LINES = 8000


def _cycles_of_a_load(far: bool) -> float:
    """Cycles of a dependent load of a line whose home is near or far, which the other die has read before."""
    clock_hz = B200.clock.boost_hz
    memory = lower_memory(B200, clock_hz)
    first = next(iter(micro.chase_lines([0], LINES, 1).addresses().values())) >> 7
    scattered = [(i * 3571) % LINES for i in range(LINES)]  # coprime to the range
    homes = {line: home_slice(memory, first + line, index_of(memory, first + line)) for line in scattered}
    lines = [line for line in scattered if (homes[line] >= memory.slices_per_partition) == far]
    ticks = []
    for count in (400, 800):
        program = micro.chase_lines(lines[:count], LINES, B200.gpc.count - 1)
        device = Device(B200, regulator=FixedClock(clock_hz), cold_launch=False)
        results = [device.run(k, program.addresses(), launch_ps=0, drain_ps=0) for k in program.kernels]
        ticks.append(results[-1].ticks)
    return (ticks[1] - ticks[0]) / (400 * TICKS_PER_CYCLE)


def test_the_other_dies_l2_is_300_cycles_further() -> None:
    near, far = _cycles_of_a_load(far=False), _cycles_of_a_load(far=True)
    assert near == pytest.approx(295, rel=0.05)
    assert far - near == pytest.approx(300, abs=15)


@pytest.mark.parametrize(("board", "ratio"), [("gb200", 1.07), ("b300", 1.055), ("gb300", 1.26)])
def test_power_limits_set_the_clock_of_bf16_products(board: str, ratio: float) -> None:
    """Medians of one library's compute-bound products, relative to B200's (AIConfigurator)."""
    clocks = [_clock_mhz(name) for name in ("b200", board)]
    assert clocks[1] / clocks[0] == pytest.approx(ratio, rel=0.04)


@cache
def _clock_mhz(board: str) -> float:
    report = simulate(
        "gemm m=3072 n=3072 k=3072 dtype=bf16", board, clock="sustained", schedule="tcgen05 256x256x64 pair stages 6"
    )
    return report.cycles / report.time_us


def test_without_a_limit_the_boards_run_at_their_own_clocks() -> None:
    """What the ladder follows from: with limits that nothing reaches it is gone."""
    for board in ("b200", "gb300"):
        free = simulate("gemm m=1024 n=1024 k=1024 dtype=bf16", board, clock="sustained", set=["power.limit=4000 W"])
        spec = load_arch(board)
        assert free.cycles / free.time_us * 1e6 >= spec.clock.boost_hz * spec.clock.under_tensor * 0.99
