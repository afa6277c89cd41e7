"""Why a warp waited: each cause alone, booked on its own reason for exactly as long as the warp stood still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch.load import load_arch
from sim.gpu.engine.api import Device, KernelResult
from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, RegisterTile, RoleBuilder
from sim.gpu.units.events import Event
from tests.gpu.conftest import column, run

VALUE, OTHER = RegisterTile("value", (1, 32), "fp32"), RegisterTile("other", (1, 32), "fp32")
X = GlobalTensor("x", (4096,), "fp32", (1,))
SMALL: dict[str, str | int | float] = {"sm.count": 2, "gpc.count": 1, "launch.cta_interval": "0 ns"}

WORKING = ("selected",)


def alone(machine: str, write: Callable[[KernelBuilder, RoleBuilder], object]) -> KernelResult:
    """A kernel of one warp."""
    kernel = KernelBuilder("alone", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=64) as r:
        write(kernel, r)
    return run(load_arch(machine, SMALL), kernel.build(), X)


def stood_still(result: KernelResult, before: int, after: int) -> float:
    """Ticks between the issue of op `before`, which takes one cycle, and that of op `after`."""
    return (column(result, after, Event.T_ISSUE)[0] - column(result, before, Event.T_ISSUE)[0] - 1) * 256


def waited(result: KernelResult) -> dict[str, int]:
    """Ticks by reason, without those in which warps issued."""
    return {reason: ticks for reason, ticks in result.warp_states.items() if ticks and reason not in WORKING}


def dependent_arithmetic(_: KernelBuilder, r: RoleBuilder) -> None:
    r.run("ffma", 1, dst=VALUE.whole)
    r.run("iadd", 1, srcs=(VALUE.whole,))


def busy_pipe(_: KernelBuilder, r: RoleBuilder) -> None:
    r.run("ex2", 1, dtype="fp32", dst=VALUE.whole)
    r.run("ex2", 1, dtype="fp32", dst=OTHER.whole)


def shared_load(kernel: KernelBuilder, r: RoleBuilder) -> None:
    r.lds(VALUE.whole, kernel.shared("tile", (1, 32), "fp32").stage(), 1, vector_bytes=4)
    r.run("ffma", 1, srcs=(VALUE.whole,))


def global_load(_: KernelBuilder, r: RoleBuilder) -> None:
    r.ldg(VALUE.whole, X[0:32], 1, into="x", vector_bytes=4)
    r.run("ffma", 1, after=("x",))


def copy(kernel: KernelBuilder, r: RoleBuilder) -> None:
    r.cp_async(kernel.shared("tile", (32,), "fp32").stage(), X[0:32], 1)
    r.cp_commit()
    r.cp_wait(0)
    r.run("ffma", 1)


def shared_store(kernel: KernelBuilder, r: RoleBuilder) -> None:
    r.sts(kernel.shared("tile", (1, 32), "fp32").stage(), VALUE.whole, 1, vector_bytes=4)
    r.fence_async()
    r.run("ffma", 1)


@pytest.mark.parametrize(
    ("machine", "write", "reason"),
    [
        ("a100-sxm4-80gb", dependent_arithmetic, "wait"),
        ("a100-sxm4-80gb", busy_pipe, "math_pipe_throttle"),
        ("a100-sxm4-80gb", shared_load, "short_scoreboard"),
        ("a100-sxm4-80gb", global_load, "long_scoreboard"),
        ("a100-sxm4-80gb", copy, "cp_async"),
        ("h100-sxm", shared_store, "membar"),
    ],
)
def test_a_lone_warp_waits_for_one_reason(
    machine: str, write: Callable[[KernelBuilder, RoleBuilder], object], reason: str
) -> None:
    result = alone(machine, write)
    events = result.events
    assert events is not None
    last = int(events[:, Event.OP].max())
    still = stood_still(result, 0, last) - 256 * (result.counters["instructions"] - 2)
    # The way of an address to the unit of global memory is busy for some cycles.
    held = 256 * (load_arch(machine).sm.address_interval_cycles - 1) if write in (global_load, copy) else 0
    assert waited(result) == {reason: still - held} | ({"lg_throttle": held} if held else {})


def test_a_queue_that_is_full_holds_up_its_own_unit_alone() -> None:
    """Loads from shared memory wait for their array (MIO), those from global memory for their unit (LG)."""
    queues = {"shared.queue": "8 cycles", "l1.queue": "8 cycles"}
    kernel = KernelBuilder("shared", (1, 1, 1))
    tile, value = kernel.shared("tile", (32, 8), "fp32"), RegisterTile("column", (1, 32), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r, r.loop("i", 16):
        r.lds(value.whole, tile[0, :, 0:1].T, 2, into="loads", vector_bytes=4)  # 8 wavefronts each
    shared = waited(run(load_arch("a100-sxm4-80gb", {**SMALL, **queues}), kernel.build()))
    assert shared.keys() <= {"mio_throttle", "math_pipe_throttle", "wait"}
    # 32 loads take the array 256 cycles; the last ones are in its queue when the warp ends.
    assert 0.6 < shared["mio_throttle"] / (256 * 256) < 1

    kernel = KernelBuilder("global", (1, 1, 1))
    rows = GlobalTensor("x", (32 * 32, 32), "fp32", (32, 1))
    with kernel.role("warp", warps=1, registers=32) as r, r.loop("i", 16) as i:
        r.ldg(RegisterTile("column", (32, 1), "fp32").whole, rows[32 * i : 32, 0:1], 1, into="x", vector_bytes=4)
    machine = load_arch("a100-sxm4-80gb", {**SMALL, **queues})
    lines = waited(run(machine, kernel.build(), rows))
    assert lines.keys() <= {"lg_throttle", "wait"}
    # 16 loads of 32 lines each, a line a cycle or slower.
    assert lines["lg_throttle"] > 0.8 * 16 * 32 * 256


def test_warps_that_meet_wait_for_a_barrier() -> None:
    kernel = KernelBuilder("meet", (1, 1, 1))
    with kernel.role("warps", warps=2, registers=32) as r:
        with r.when(WARP.equals(1)):
            r.run("ffma", 100, dst=VALUE.whole)
        r.bar_sync(0, 2)
    machine = load_arch("a100-sxm4-80gb", SMALL)
    result = run(machine, kernel.build())
    found = waited(result)
    ends = [column(result, 1, Event.T_DONE, warp)[0] - column(result, 1, Event.T_ISSUE, warp)[0] for warp in (0, 1)]
    assert found["barrier"] == (sum(ends) - 2) * 256  # their issue itself
    assert found.keys() <= {"barrier", "math_pipe_throttle"}


@pytest.mark.parametrize("kind", ["mbarrier", "gmma", "tma_store"])
def test_asynchronous_units_have_reasons_of_their_own(kind: str) -> None:
    kernel = KernelBuilder("asynchronous", (1, 1, 1))
    tile = kernel.shared("tile", (1024,), "fp32")
    a, b = kernel.shared("a", (64, 16), "bf16"), kernel.shared("b", (16, 256), "bf16")
    full, acc = kernel.mbarrier("full", 1, 1), RegisterTile("acc", (16, 256), "fp32")
    with kernel.role("warp", warps=4 if kind == "gmma" else 1, registers=168) as r:
        if kind == "mbarrier":
            r.mbarrier_expect(full, 0, 4096)
            r.tma_load(tile.stage(), X[0:1024], full, 0)
            r.mbarrier_wait(full, 0, 0)
        elif kind == "gmma":
            r.wgmma(acc.whole, a[0, WARP * 16 : 16, :], b.stage(), shape="m64n256k16", dtype="bf16", count=1)
            r.wgmma_commit()
            r.wgmma_wait(0)
        else:
            r.tma_store(X[0:1024], tile.stage())
            r.bulk_commit()
            r.bulk_wait(0)
    result = run(load_arch("h100-sxm", SMALL), kernel.build(), X)
    took = column(result, 2, Event.T_DONE)[0] - column(result, 2, Event.T_ISSUE)[0] - 1
    assert took > 100
    assert waited(result)[kind] == took * 256 * (4 if kind == "gmma" else 1)
    assert waited(result).keys() <= {kind, "wait"}


def test_ctas_of_a_cluster_wait_for_each_other_and_for_flags() -> None:
    machine = load_arch("h100-sxm", SMALL)
    kernel = KernelBuilder("cluster", (2, 1, 1), (2, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        with r.when(CTA_X.equals(1)):
            r.run("ffma", 100, dst=VALUE.whole)
        r.cluster_sync()
    result = run(machine, kernel.build())
    assert machine.sync.cluster_sync_cycles is not None
    arrived = [column(result, 1, Event.T_ISSUE, cta=cta)[0] + 1 for cta in (0, 1)]
    done = max(arrived) + machine.sync.cluster_sync_cycles
    assert waited(result)["cluster_barrier"] == sum(done - one for one in arrived) * 256

    kernel = KernelBuilder("flags", (2, 1, 1), flags=1)
    with kernel.role("warp", warps=1, registers=32) as r:
        with r.when(CTA_X.equals(0)):
            r.run("ffma", 2000, dst=VALUE.whole)
            r.stg(X[0:32], VALUE.whole, 1, vector_bytes=4)
            r.flag_add(0)
        with r.when(CTA_X.equals(1)):
            r.flag_wait(0, 1)
    result = run(machine, kernel.build(), X)
    stored = column(result, 1, Event.T_DONE)[0] - column(result, 2, Event.T_ISSUE)[0] - 1
    slept = column(result, 3, Event.T_DONE, cta=1)[0] - column(result, 3, Event.T_ISSUE, cta=1)[0] - 1
    assert waited(result)["membar"] == stored * 256
    assert waited(result)["sleeping"] == slept * 256
    assert slept > 2000


def test_a_warp_that_could_issue_but_does_not_is_not_selected() -> None:
    """A run takes every issue slot of its sub-core; a second warp, for another pipe, waits for its end."""
    kernel = KernelBuilder("slots", (1, 1, 1))
    with kernel.role("warps", warps=5, registers=32) as r:
        with r.when(WARP.equals(0)):
            r.run("ffma", 200, mix=(("iadd", 200),), dst=VALUE.whole)
        with r.when(WARP.equals(4)):
            r.run("ex2", 1, dtype="fp32", dst=OTHER.whole)
    result = run(load_arch("a100-sxm4-80gb", SMALL), kernel.build())
    first, second = column(result, 0, Event.T_ISSUE)[0], column(result, 1, Event.T_ISSUE, warp=4)[0]
    assert second - first == 400
    assert waited(result)["not_selected"] == 400 * 256
    assert waited(result).keys() <= {"not_selected", "math_pipe_throttle"}


def test_warps_wait_for_their_code_on_a_cold_launch() -> None:
    kernel = KernelBuilder("cold", (1, 1, 1), code_bytes=4096)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.run("ffma", 1)
    machine = load_arch("a100-sxm4-80gb", SMALL)
    cold, warm = (Device(machine, cold_launch=is_cold).run(kernel.build(), {}) for is_cold in (True, False))
    assert "no_instruction" not in waited(warm)
    assert waited(cold)["no_instruction"] > 256 * machine.l2.hit_latency_cycles
    assert waited(cold).keys() == {"no_instruction"} | waited(warm).keys()
    assert cold.issue_slots["no_instruction"] > 256 * machine.l2.hit_latency_cycles
    assert cold.issue_slots["barrier"] == 0
