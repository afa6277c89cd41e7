"""Waits at barriers: charged to what the last warp to arrive did more of than the one that waited, to the tick."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch.gpu import GpuSpec
from sim.gpu.engine.api import KernelResult
from sim.gpu.language import WARP, GlobalTensor, KernelBuilder, RegisterTile, RoleBuilder
from sim.gpu.units.events import Event
from tests.gpu.conftest import column, run

CYCLE = 256
VALUE = RegisterTile("value", (1, 32), "fp32")
X = GlobalTensor("x", (4096,), "fp32", (1,))
Body = Callable[[KernelBuilder, RoleBuilder], object]


def meet(spec: GpuSpec, *bodies: Body, both: Body | None = None, rounds: int = 1) -> KernelResult:
    """Warps that meet at a barrier: each does what its body says, behind what all of them do."""
    kernel = KernelBuilder("meeting", (1, 1, 1))
    with kernel.role("warps", warps=len(bodies), registers=64) as r, r.loop("i", rounds):
        if both is not None:
            both(kernel, r)
        for number, body in enumerate(bodies):
            with r.when(WARP.equals(number)):
                body(kernel, r)
        r.bar_sync(0, len(bodies))
    return run(spec, kernel.build(), X)


def waits(result: KernelResult) -> dict[str, int]:
    """Ticks by cause; they are all that warps waited."""
    found = {cause: ticks for cause, ticks in result.barrier_waits.items() if ticks}
    assert sum(found.values()) == result.warp_states["barrier"]
    return found


def own_time(spec: GpuSpec, warps: int = 2) -> int:
    """What a barrier takes of its warps when the last one is there."""
    return warps * (spec.sync.barrier_cycles + warps * spec.sync.barrier_per_warp_cycles) * CYCLE


def nothing(_: KernelBuilder, r: RoleBuilder) -> None:
    """Comes first."""


def arithmetic(count: int) -> Body:
    return lambda _, r: r.run("ffma", count, dst=VALUE.whole)


def global_load(_: KernelBuilder, r: RoleBuilder) -> None:
    r.ldg(VALUE.whole, X[0:32], 1, into="x", vector_bytes=4)
    r.run("ffma", 1, after=("x",))


def conflict(kernel: KernelBuilder, r: RoleBuilder) -> None:
    """A store of a column: 32 words of one bank."""
    tile = kernel.shared("tile", (32, 32), "fp32")
    r.sts(tile[0, :, 0:1].T, VALUE.whole, 1, vector_bytes=4)


def shared_load(kernel: KernelBuilder, r: RoleBuilder) -> None:
    r.lds(VALUE.whole, kernel.shared("row", (1, 32), "fp32").stage(), 1, vector_bytes=4)
    r.run("ffma", 1, srcs=(VALUE.whole,))


def test_arithmetic_of_the_last_warp(ampere: GpuSpec) -> None:
    """100 multiply-adds, one every two cycles: the other warp waits while they issue and while the pipe is busy."""
    found = waits(meet(ampere, arithmetic(100), nothing))
    assert found == {"selected": 100 * CYCLE, "math_pipe_throttle": 99 * CYCLE, "barrier": own_time(ampere)}
    fourfold = waits(meet(ampere, arithmetic(100), nothing, nothing, nothing))
    assert fourfold == {
        "selected": 300 * CYCLE, "math_pipe_throttle": 297 * CYCLE, "barrier": own_time(ampere, 4)
    }  # fmt: skip


def test_a_global_load_of_the_last_warp(ampere: GpuSpec) -> None:
    """Nobody else loads, so that all of the state is that warp's; the load takes its unit four cycles."""
    result = meet(ampere, nothing, global_load)
    loaded = result.warp_states["long_scoreboard"]
    assert loaded > 300 * CYCLE
    assert waits(result) == {
        "selected": 2 * CYCLE, "lg_throttle": 3 * CYCLE, "long_scoreboard": loaded, "barrier": own_time(ampere)
    }  # fmt: skip


def test_bank_conflicts_of_the_last_warp(ampere: GpuSpec) -> None:
    """A warp arrives when its store has been made: for it too, that is a result on the chip that is not there yet."""
    result = meet(ampere, conflict, nothing)
    (issued,), (made,) = column(result, 0, Event.T_ISSUE), column(result, 0, Event.T_DONE)
    assert made - issued > 32
    stored = int(made - issued - 2) * CYCLE  # behind the issue of the store and of the barrier
    assert waits(result) == {"selected": CYCLE, "short_scoreboard": 2 * stored, "barrier": own_time(ampere)}


def test_what_all_warps_do_is_no_cause(ampere: GpuSpec) -> None:
    """Both wait for a load as long; the one that multiplies behind it is waited for because it multiplies."""
    found = waits(meet(ampere, arithmetic(100), nothing, both=shared_load))
    assert found["selected"] + found["math_pipe_throttle"] >= 197 * CYCLE
    assert found.get("short_scoreboard", 0) + found.get("wait", 0) <= 2 * CYCLE


def test_a_wait_shorter_than_what_the_last_warp_did_has_its_parts(ampere: GpuSpec) -> None:
    """The other warp loads meanwhile: 98 cycles of issue and 99 of the pipe that it has not, for what it waits."""
    result = meet(ampere, arithmetic(100), shared_load)
    late, early = (column(result, 3, Event.T_ISSUE, warp)[0] for warp in (0, 1))
    waited = int(late - early) * CYCLE
    assert 0 < waited < 197 * CYCLE
    issue = waited * 98 // 197
    assert waits(result) == {"selected": issue, "math_pipe_throttle": waited - issue, "barrier": own_time(ampere)}


def test_each_meeting_counts_anew(ampere: GpuSpec) -> None:
    """The same warp is late five times; what it waited for in earlier rounds is none of this one's."""
    once, often = (waits(meet(ampere, arithmetic(50), nothing, rounds=rounds)) for rounds in (1, 5))
    assert often == {cause: 5 * ticks for cause, ticks in once.items()}


def test_who_only_arrives_is_charged_too(ampere: GpuSpec) -> None:
    """A producer that goes on, for which a consumer has waited."""
    kernel = KernelBuilder("handing", (1, 1, 1))
    with kernel.role("producer", warps=1, registers=64) as r:
        r.run("ffma", 100, dst=VALUE.whole)
        r.bar_arrive(0, 2)
        r.run("ffma", 100, dst=VALUE.whole)
    with kernel.role("consumer", warps=1, registers=64) as r:
        r.bar_sync(0, 2)
    found = waits(run(ampere, kernel.build(), X))
    own = own_time(ampere) // 2
    assert found == {"selected": 100 * CYCLE, "math_pipe_throttle": 99 * CYCLE, "barrier": own}


@pytest.mark.parametrize("count", [1 << 12, 3 << 21])
def test_long_waits_keep_their_parts(ampere: GpuSpec, count: int) -> None:
    """Up to 1.6 thousand million ticks, whose products exceed 64 bits."""
    found = waits(meet(ampere, arithmetic(count), shared_load))
    assert found["math_pipe_throttle"] == pytest.approx(found["selected"], rel=0.01)


def test_a_wait_of_more_than_32_bits_is_charged_to_the_barrier(ampere: GpuSpec) -> None:
    assert waits(meet(ampere, arithmetic(1 << 24), nothing)).keys() == {"barrier"}
