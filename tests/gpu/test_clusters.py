"""Clusters of every size that a machine allows, up to 16 CTAs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arch.dtypes import round_to
from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.language import CLUSTER_RANK, KernelBuilder, Op, Program, RegisterTile
from sim.gpu.units.events import Event
from tests.gpu.conftest import column, cycles, run
from tests.gpu.kernels import numbers, wgmma_gemm


def gemm(cluster: int) -> Program:
    """A GEMM whose clusters multicast B, a part from each CTA, and arrive on the mbarriers of all of them."""
    program = wgmma_gemm(128 * cluster, 128, 192, cluster=cluster)
    return replace(program, kernels=(replace(program.kernels[0], launch_registers=168),))


@pytest.mark.parametrize("cluster", [4, 8, 16])
def test_multicast_and_arrivals_reach_every_cta(cluster: int) -> None:
    program = gemm(cluster)
    device = Device(load_arch("h100-sxm", {"sm.count": 18, "gpc.count": 1, "gpc.single_tpcs": 0}), log=True)
    result = device.run(program.kernels[0], program.addresses())
    assert result.events is not None
    a, b = numbers(128 * cluster, 192), numbers(192, 128, seed=1)
    checked = interpret(program, result.events, {"a": a, "b": b})
    assert checked.violations == []
    np.testing.assert_array_equal(checked.outputs["c"], round_to(a @ b, "bf16"))
    assert {int(cta) for cta in result.events[:, Event.CTA]} == set(range(cluster))
    # Each of the steps brings A to its own CTA and B, read once, to all of them.
    own, together = 128 * 64 * 2, 64 * 128 * 2
    assert result.counters["port_receive_bytes"] == 3 * cluster * (own + together)
    assert result.counters["port_read_bytes"] < 3 * (cluster * own + together) + 64 * 1024


def test_a_softmax_row_is_shared_by_sixteen_ctas() -> None:
    report = simulate(
        "softmax rows=2 cols=40000 dtype=fp16", "h100-sxm", schedule="cluster warps 8 rows 1 cluster 16", check=True
    )
    assert report.to_dict()["check"]["passed"]


def test_more_ctas_than_a_machine_has_are_refused() -> None:
    machine = load_arch("h100-sxm", {"dsmem.max_cluster": 8})
    with pytest.raises(InputError, match="clusters of 2 to 8 CTAs"):
        simulate("softmax rows=2 cols=40000 dtype=fp16", machine, schedule="cluster warps 8 rows 1 cluster 16")
    with pytest.raises(InputError, match="has clusters of 16 CTAs; h100-sxm allows 8"):
        Device(machine).build(gemm(16).kernels[0], gemm(16).addresses())


def scatter(stores: int, ctas: int = 2) -> Program:
    """Each CTA of a cluster stores to a tile of its own in that of rank 0: 32 lanes, 16 B each."""
    builder = KernelBuilder("scatter", (ctas, 1, 1), (ctas, 1, 1))
    tile, value = builder.shared("tile", (32, 4), "fp32", ctas), RegisterTile("value", (32, 4), "fp32")
    with builder.role("warps", warps=1, registers=32) as r:
        r.cluster_sync()
        with r.when(1 - CLUSTER_RANK.equals(0)):
            r.dsmem_st(tile.stage(CLUSTER_RANK), value.whole, stores, rank=0)
        r.cluster_sync()
    return Program("scatter", (), (builder.build(),), "test")


def gather(loads: int) -> Program:
    """Each CTA of a cluster of two reads a tile of the first one: 32 lanes, 16 B each."""
    builder = KernelBuilder("gather", (2, 1, 1), (2, 1, 1))
    tile, value = builder.shared("tile", (32, 4), "fp32"), RegisterTile("value", (32, 4), "fp32")
    with builder.role("warps", warps=4, registers=32) as r:
        r.cluster_sync()
        r.dsmem_ld(value.whole, tile.stage(), loads, rank=0, into="loads")
        r.run("ffma", 1, srcs=(value.whole,), after=("loads",))
        r.cluster_sync()
    return Program("gather", (), (builder.build(),), "test")


@pytest.mark.parametrize("rate", [8, 16])
def test_loads_from_another_sm_take_the_networks_rate(rate: int) -> None:
    machine = load_arch("h100-sxm", {"sm.count": 4, "gpc.count": 1, "dsmem.read": f"{rate} B/clk"})
    few, more = (cycles(run(machine, gather(loads))) for loads in (16, 32))
    assert more - few == pytest.approx(16 * 4 * 512 / rate, rel=0.01)  # loads, warps, bytes


@pytest.mark.parametrize("senders", [1, 3])
@pytest.mark.parametrize("rate", [8, 16])
def test_stores_to_another_sm_share_its_port(rate: int, senders: int) -> None:
    """All that a cluster sends to one of its CTAs arrives at that CTA's rate, whoever sends it."""
    machine = load_arch("h100-sxm", {"sm.count": 4, "gpc.count": 1, "dsmem.write": f"{rate} B/clk"})
    few, more = (cycles(run(machine, scatter(stores, 1 + senders))) for stores in (64, 128))
    assert more - few == pytest.approx(64 * senders * 512 / rate, rel=0.01)  # stores, warps, bytes


@pytest.mark.parametrize("exact", [False, True])
def test_a_sender_is_held_up_by_the_network(exact: bool) -> None:
    """A store issues once the queue of its SM has room: what is booked ahead of it is bounded."""
    machine = load_arch("h100-sxm", {"sm.count": 4, "gpc.count": 1, "dsmem.write": "8 B/clk"})
    builder = KernelBuilder("many", (2, 1, 1), (2, 1, 1))
    tile, value = builder.shared("tile", (32, 4), "fp32"), RegisterTile("value", (32, 4), "fp32")
    with builder.role("warps", warps=1, registers=32) as r:
        r.cluster_sync()
        with r.when(CLUSTER_RANK), r.loop("i", 40):
            r.dsmem_st(tile.stage(), value.whole, 1, rank=0)
        r.cluster_sync()
    program = Program("many", (), (builder.build(),), "test")
    issued = column(run(machine, program, exact=exact), 1, Event.T_ISSUE, cta=1)
    assert len(issued) == 40
    steady = issued[-1] - issued[20]
    assert steady == pytest.approx(19 * 512 / 8, rel=0.02)


def test_a_barrier_of_the_cluster_waits_for_stores_in_it() -> None:
    """Twice the latency of the network, twice the time until the barrier lets anybody go on."""
    short, long = (
        cycles(run(load_arch("h100-sxm", {"sm.count": 4, "gpc.count": 1, "dsmem.latency": f"{n} cycles"}), scatter(1)))
        for n in (1000, 2000)
    )
    assert long - short == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("stores", [False, True])
def test_the_array_of_the_sm_that_is_reached_is_busy_too(stores: bool) -> None:
    """Products whose operands come from shared memory wait where another SM is at the same array."""

    def kernel(remote: int) -> Program:
        builder = KernelBuilder("busy", (2, 1, 1), (2, 1, 1))
        tile, value = builder.shared("tile", (32, 4), "fp32", 2), RegisterTile("value", (32, 4), "fp32")
        a, acc = RegisterTile("a", (32, 4), "fp32"), RegisterTile("acc", (32, 4), "fp32")
        with builder.role("warps", warps=4, registers=64) as r:
            r.cluster_sync()
            with r.when(CLUSTER_RANK):
                if stores:
                    r.dsmem_st(tile.stage(1), value.whole, remote, rank=0)
                else:
                    r.dsmem_ld(value.whole, tile.stage(), remote, rank=0)
            with r.when(1 - CLUSTER_RANK), r.loop("i", 50):
                loads = (Op("lds", 20, srcs=(tile.stage(),)),)
                r.run("ffma", 8, dtype="fp32", dst=acc.whole, srcs=(a.whole, tile.stage()), loads=loads)
            r.cluster_sync()
        return Program("busy", (), (builder.build(),), "test")

    machine = load_arch(
        "h100-sxm", {"sm.count": 4, "gpc.count": 1, "dsmem.write": "128 B/clk", "dsmem.read": "128 B/clk"}
    )
    ends = [max(column(run(machine, kernel(n)), 2, Event.T_ISSUE, warp=w)[-1] for w in range(4)) for n in (1, 201)]
    assert ends[1] - ends[0] == pytest.approx(200 * 4 * 4, rel=0.1)
