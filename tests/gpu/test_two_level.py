"""The two-level warp scheduler: an active set that takes turns, and a queue of warps behind it."""

from __future__ import annotations

import itertools

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.engine.api import KernelResult
from sim.gpu.language import WARP, GlobalTensor, KernelBuilder, Program, RegisterTile
from sim.gpu.units.events import Event
from tests.gpu.conftest import column, cycles, run

FFMA = 256
SUB_CORES = 4
both_modes = pytest.mark.parametrize("exact", [False, True], ids=["runs", "single issue"])


def machine(scheduler: str, active: int = 4) -> GpuSpec:
    one_sm: dict[str, str | int | float] = {"sm.count": 1, "gpc.count": 1, "launch.cta_interval": "0 ns"}
    return load_arch("a100-sxm4-80gb", {**one_sm, "sm.scheduler": scheduler, "sm.active_warps": active})


def work(warps: int = 4, trips: int = 1) -> Program:
    """`warps` a sub-core compute, load what no cache holds, compute with it: ops 0, 1 and 2."""
    x, value = GlobalTensor("x", (1 << 20,), "fp32", (1,)), RegisterTile("value", (128,), "fp32")
    kernel = KernelBuilder("work", (1, 1, 1))
    with kernel.role("warps", warps=SUB_CORES * warps, registers=32) as r, r.loop("i", trips) as i:
        r.run("ffma", FFMA)
        r.ldg(value.whole, x[(i * 64 + WARP) * 1024 : 128], 1, into="x")
        r.run("ffma", FFMA, srcs=(value.whole,), after=("x",))
    return Program("work", (x,), (kernel.build(),), "test")


def loads(result: KernelResult, warps: int = 4) -> list[float]:
    """When the warps of sub-core 0 issue their loads, in the order of warps."""
    return [column(result, 1, Event.T_ISSUE, warp=SUB_CORES * i)[0] for i in range(warps)]


@both_modes
def test_a_set_that_holds_all_warps_is_loose_round_robin(exact: bool) -> None:
    """Up to the loads they are one. Warps that come back from a load queue for the set, so that turns may differ."""
    found, expected = (run(machine(name, 16), work(), exact=exact) for name in ("two_level", "lrr"))
    assert found.ticks == expected.ticks
    assert found.counters["instructions"] == expected.counters["instructions"]
    found, expected = (run(machine(name, 16), work(trips=3), exact=exact) for name in ("two_level", "lrr"))
    assert found.ticks == pytest.approx(expected.ticks, rel=0.002)


@both_modes
def test_the_active_set_reaches_its_loads_before_others_begin(exact: bool) -> None:
    """Round robin brings all warps to their loads at once; the set brings its own there, then lets others in."""
    spec = machine("two_level", 2)
    alone = FFMA * spec.instruction("ffma", "fp32").cadence_cycles
    turns, levels = (loads(run(other, work(), exact=exact)) for other in (machine("lrr"), spec))
    begin = column(run(spec, work(), exact=exact), 0, Event.T_ISSUE)[0]
    assert max(turns) - min(turns) < alone / 8
    assert turns[0] - begin == pytest.approx(4 * alone, rel=0.05)
    assert [load - begin for load in levels[:2]] == pytest.approx([2 * alone, 2 * alone], rel=0.05)
    assert [load - begin for load in levels[2:]] == pytest.approx([4 * alone, 4 * alone], rel=0.05)


@both_modes
def test_who_waits_for_memory_leaves_its_place_to_the_next(exact: bool) -> None:
    result = run(machine("two_level", 1), work(), exact=exact)
    begins = [column(result, 0, Event.T_DONE, warp=SUB_CORES * i)[0] for i in range(4)]
    alone = FFMA * machine("two_level").instruction("ffma", "fp32").cadence_cycles
    apart = [after - before for before, after in itertools.pairwise(begins)]
    assert apart == pytest.approx([alone] * 3, rel=0.05)
    assert loads(result) == sorted(loads(result))


@both_modes
def test_loads_at_different_times_hide_latency_that_round_robin_shows(exact: bool) -> None:
    """The published reason for two levels: warps that reach their long waits together have nobody to hide them."""
    turns, levels = (run(machine(name, 1), work(trips=4), exact=exact) for name in ("lrr", "two_level"))
    assert cycles(levels) < 0.95 * cycles(turns)
    assert levels.counters["instructions"] == turns.counters["instructions"]


@both_modes
def test_a_small_set_leaves_no_slot_empty_that_others_could_use(exact: bool) -> None:
    """Warps behind the set issue where it cannot: nothing is lost where nobody waits for long."""

    def compute(scheduler: str) -> float:
        kernel = KernelBuilder("compute", (1, 1, 1))
        with kernel.role("warps", warps=32, registers=32) as r:
            r.run("ffma", FFMA)
        return cycles(run(machine(scheduler, 1), Program("compute", (), (kernel.build(),), "test"), exact=exact))

    assert compute("two_level") == pytest.approx(compute("lrr"), rel=0.01)
