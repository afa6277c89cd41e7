"""A collective beside kernels: the SMs that it holds, the bandwidth that it takes, and what it leaves in the counts."""

from __future__ import annotations

import numpy as np
import pytest

from arch.load import load_arch
from sim.gpu.engine.api import Device, KernelResult, Launch
from sim.gpu.engine.beside import Beside, Region
from sim.gpu.language import CTA_X, WARP, GlobalTensor, Kernel, KernelBuilder, RegisterTile
from sim.memory.counters import MemoryCounter

SPEC = load_arch("h100-sxm")
US = 1_000_000
ROWS = 1 << 14
X = GlobalTensor("x", (ROWS, 1024), "fp16", (1024, 1))
FAR = (1 << 30) // 128
"""A line that no kernel touches."""


def adding(ctas: int, steps: int = 100) -> Kernel:
    """CTAs that fill an SM each, and multiply."""
    k = KernelBuilder("adding", (ctas, 1, 1))
    with k.role("warps", 8, 255) as r, r.loop("i", steps):
        r.run("ffma", 64, dtype="fp32")
    return k.build()


def streaming() -> Kernel:
    """Reads all of `X` once: nothing but memory sets its time."""
    k = KernelBuilder("streaming", (ROWS // 16, 1, 1))
    tile = RegisterTile("x", (2, 1024), "fp16")
    with k.role("warps", 8, 64) as r:
        r.ldg(tile.whole, X[CTA_X * 16 + WARP * 2 : 2, :], into="x")
        r.run("ffma", 64, dtype="fp32", after=("x",))
    return k.build()


def launched(kernel: Kernel, beside: Beside | None) -> tuple[Launch, KernelResult]:
    device = Device(SPEC)
    device.beside = beside
    launch = device.build(kernel, {"x": 0})
    for _ in launch.windows():
        pass
    return launch, launch.result


@pytest.mark.parametrize("ctas", [1, 16, 24])
def test_a_collective_holds_an_sm_a_cta_until_it_ends(ctas: int) -> None:
    launch, result = launched(adding(600), Beside(ctas, 10**12, 10**12, ()))
    worked = np.count_nonzero(launch.last_cta_ticks())
    assert worked == SPEC.sm.count - ctas
    alone = launched(adding(600), None)[1]
    # As many rounds as the SMs that are left need.
    rounds = [-(-600 // sms) for sms in (SPEC.sm.count - ctas, SPEC.sm.count)]
    assert result.ticks / alone.ticks == pytest.approx(rounds[0] / rounds[1], rel=0.05)


def test_its_sms_go_to_ctas_that_wait_when_it_ends() -> None:
    alone = launched(adding(264, 1000), None)[1]
    half_ps = alone.time_ps // 4
    launch, result = launched(adding(264, 1000), Beside(16, half_ps, half_ps, ()))
    assert np.count_nonzero(launch.last_cta_ticks()) == SPEC.sm.count
    assert alone.ticks < result.ticks < 1.6 * alone.ticks


def test_a_kernel_without_any_sm_waits_for_the_end() -> None:
    alone = launched(adding(132), None)[1]
    launch, result = launched(adding(132), Beside(132, 20 * US, 20 * US, ()))
    began_ps = launch.start_tick * 10**12 // (256 * SPEC.clock.boost_hz)
    assert result.time_ps == pytest.approx(20 * US + alone.time_ps - began_ps, abs=US // 5)


def traffic(total: int, time_ps: int = 10 * US) -> Beside:
    lines = total // 2
    return Beside(1, time_ps, time_ps, (Region(FAR, lines, lines), Region(2 * FAR, lines, lines, True)))


def test_what_it_moves_takes_bandwidth_and_counts_as_its_own() -> None:
    kernel = streaming()
    beside = traffic(200_000, 20 * US)
    alone, held, crowded = (launched(kernel, b)[1] for b in (None, Beside(1, 20 * US, 20 * US, ()), beside))
    # One SM fewer is felt little, 1.28 TB/s of others' lines are.
    assert held.time_ps < 1.03 * alone.time_ps < crowded.time_ps
    assert crowded.counters["l1_read_sectors"] == alone.counters["l1_read_sectors"]
    for count in ("l2_read_sectors", "dram_read_bytes"):
        assert crowded.memory[count] == pytest.approx(alone.memory[count], rel=0.01)


def test_every_line_of_it_is_moved_once_whatever_runs() -> None:
    beside, device = traffic(20_000), Device(SPEC)
    device.beside = beside
    for origin_ps in (0, 3 * US, 7 * US):  # kernels of 2 us and gaps between them
        device.build(adding(1, 10), {}, origin_ps=origin_ps).run()
    beside.move(device, SPEC.clock.boost_hz, 0, beside.end_ps)
    assert beside.counters[MemoryCounter.L2_READ_SECTORS] == 4 * 10_000
    assert beside.counters[MemoryCounter.L2_WRITE_SECTORS] == 4 * 10_000


def test_a_memory_that_cannot_keep_up_makes_it_longer() -> None:
    fast, slow = traffic(800_000, 10 * US), traffic(4_000, 10 * US)
    for beside in (fast, slow):
        launched(adding(132, 1000), beside)
    assert slow.late_ps < US // 10
    # Reads of 51 MB in 10 us are 5 TB/s, of 3.35.
    assert fast.late_ps > 2 * US


def test_a_kernel_that_runs_lets_it_in_where_it_leaves_sms() -> None:
    device = Device(SPEC)
    launch = device.build(adding(100), {})
    launch.advance(1)
    assert launch.room == SPEC.sm.count - 100
    full = device.build(adding(200), {})
    full.advance(1)
    assert full.room == 0
