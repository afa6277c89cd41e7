"""CTAs of a cluster: when they begin, meet, and hear from each other."""

from __future__ import annotations

import pytest

from arch.load import load_arch
from sim.gpu.language import CTA_X, WARP, KernelBuilder, RegisterTile
from sim.gpu.units.events import Event
from tests.gpu.conftest import column, run

SMALL: dict[str, str | int | float] = {"sm.count": 2, "gpc.count": 1, "launch.cta_interval": "0 ns"}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ctas_of_a_cluster_begin_after_their_launch_like_any_others(size: int) -> None:
    """Each SM takes its launch latency and the chip hands CTAs out one by one, whether they form a cluster or not."""
    begun = []
    for cluster in (1, size):
        kernel = KernelBuilder("begin", (size, 1, 1), (cluster, 1, 1))
        with kernel.role("warp", warps=1, registers=32) as r:
            r.run("ffma", 1)
        figures = {**SMALL, "sm.count": 8, "launch.cta_interval": "10 ns", "clock.boost": "1 GHz"}
        spec = load_arch("h100-sxm", figures)
        result = run(spec, kernel.build())
        begun.append([column(result, 0, Event.T_ISSUE, cta=cta)[0] for cta in range(size)])
    assert begun[0] == begun[1] == [spec.sm.cta_launch_cycles + 10 * cta for cta in range(size)]


@pytest.mark.parametrize("latency", [50, 190])
@pytest.mark.parametrize("late", [0, 1])
def test_a_cluster_goes_on_a_latency_after_its_last_warp(latency: int, late: int) -> None:
    """Whichever CTA comes last: all go on at the same tick, one cycle and the barrier's latency behind it."""
    kernel = KernelBuilder("meet", (2, 1, 1), (2, 1, 1))
    with kernel.role("warps", warps=2, registers=32) as r:
        with r.when((CTA_X * 2 + WARP).equals(2 * late + 1)):
            r.run("ffma", 300)
        r.cluster_sync()
        r.run("ffma", 1)
    result = run(load_arch("h100-sxm", {**SMALL, "sync.cluster_sync": f"{latency} cycles"}), kernel.build())
    where = [(cta, warp) for cta in (0, 1) for warp in (0, 1)]
    last = max(column(result, 1, Event.T_ISSUE, warp, cta)[0] for cta, warp in where)
    for cta, warp in where:
        assert column(result, 2, Event.T_ISSUE, warp, cta) == [last + 1 + latency]


@pytest.mark.parametrize("remote", [0, 1])
def test_an_arrival_at_another_cta_takes_the_networks_latency(remote: int) -> None:
    """CTA 0 arrives on the barrier of one of both CTAs, which waits for it."""
    kernel = KernelBuilder("remote", (2, 1, 1), (2, 1, 1))
    barrier = kernel.mbarrier("barrier", 1, 1)
    with kernel.role("waits", warps=1, registers=32) as r, r.when(CTA_X.equals(remote)):
        r.mbarrier_wait(barrier, 0, 0)
        r.run("ffma", 1)
    with kernel.role("arrives", warps=1, registers=32) as r, r.when(CTA_X.equals(0)):
        r.run("ffma", 400)
        r.mbarrier_arrive(barrier, 0, cluster=1 << remote)
    spec = load_arch("h100-sxm", SMALL)
    result = run(spec, kernel.build())
    arrived = column(result, 3, Event.T_ISSUE, 1, 0)[0]
    goes_on = column(result, 1, Event.T_ISSUE, 0, remote)[0]
    assert spec.dsmem is not None
    assert spec.sync.mbarrier_wait_cycles is not None
    assert spec.sync.mbarrier_arrive_cycles is not None
    way = spec.dsmem.latency_cycles if remote else spec.sync.mbarrier_arrive_cycles
    assert goes_on == arrived + way + spec.sync.mbarrier_wait_cycles


def test_a_phase_ends_with_the_arrival_that_takes_effect_last() -> None:
    """An arrival from the other CTA is on its way while one of the own CTA, made later, has come."""
    kernel = KernelBuilder("two", (2, 1, 1), (2, 1, 1))
    barrier = kernel.mbarrier("barrier", 1, 2)
    with kernel.role("waits", warps=1, registers=32) as r, r.when(CTA_X.equals(0)):
        r.mbarrier_wait(barrier, 0, 0)
    with kernel.role("arrives", warps=1, registers=32) as r:
        with r.when(CTA_X.equals(0)):
            for _ in range(3):  # the engine handles this warp's arrival after the other's, as hardware does
                r.run("ffma", 20)
                r.bar_sync(1, 1)
        r.mbarrier_arrive(barrier, 0, cluster=1)
    spec = load_arch("h100-sxm", SMALL)
    result = run(spec, kernel.build())
    own, other = (column(result, 7, Event.T_ISSUE, 1, cta)[0] for cta in (0, 1))
    assert spec.dsmem is not None
    assert spec.sync.mbarrier_arrive_cycles is not None
    assert spec.sync.mbarrier_wait_cycles is not None
    assert other < own < own + spec.sync.mbarrier_arrive_cycles < other + spec.dsmem.latency_cycles
    done = other + spec.dsmem.latency_cycles + spec.sync.mbarrier_wait_cycles
    assert column(result, 0, Event.T_DONE) == [done]


def test_a_cluster_waits_for_stores_to_shared_memory_before_it() -> None:
    kernel = KernelBuilder("stores", (2, 1, 1), (2, 1, 1))
    tile, value = kernel.shared("tile", (32, 32), "fp32"), RegisterTile("value", (1, 32), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        with r.when(CTA_X.equals(0)):
            r.sts(tile[0, 0:32, 0:1].T, value.whole, 40, vector_bytes=4)  # all in one bank
        r.cluster_sync()
    spec = load_arch("h100-sxm", SMALL)
    result = run(spec, kernel.build())
    made = column(result, 0, Event.T_DONE)[0]
    assert spec.sync.cluster_sync_cycles is not None
    assert made > column(result, 1, Event.T_ISSUE)[0] + 1
    for cta in (0, 1):
        assert column(result, 1, Event.T_DONE, 0, cta) == [made + spec.sync.cluster_sync_cycles]


@pytest.mark.parametrize("latency", [0, 43, 50])
def test_a_wait_for_what_is_over_asks_shared_memory(latency: int) -> None:
    """A phase that was complete long ago, or never used, is waited for as long as its word takes to come."""
    kernel = KernelBuilder("over", (1, 1, 1))
    barrier = kernel.mbarrier("barrier", 2, 1)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.mbarrier_arrive(barrier, 0)
        r.run("ffma", 400)
        r.mbarrier_wait(barrier, 0, 0)
        r.run("ffma", 1)
        r.mbarrier_wait(barrier, 1, -1)
        r.run("ffma", 1)
    result = run(load_arch("h100-sxm", {**SMALL, "sync.mbarrier_wait": f"{latency} cycles"}), kernel.build())
    for wait, after in ((2, 3), (4, 5)):
        asked, goes_on = (column(result, op, Event.T_ISSUE, 0, 0)[0] for op in (wait, after))
        assert goes_on == asked + max(1, latency)
