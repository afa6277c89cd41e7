"""Blocked at t - 1, ready at t: every kind of dependency releases its warp at exactly the tick that the figures say."""

from __future__ import annotations

import heapq
import random

import numpy as np
import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.jit import kernel as jit_kernel
from sim.gpu.engine.state import SM_WIDTH
from sim.gpu.language import WARP, GlobalTensor, KernelBuilder, RegisterTile
from sim.gpu.units import port
from sim.gpu.units.events import Event
from sim.gpu.units.l1 import L1
from tests.gpu.conftest import column, cycles, run

VALUE = RegisterTile("value", (1, 32), "fp32")
OTHER = RegisterTile("other", (1, 32), "fp32")
X = GlobalTensor("x", (4096,), "fp32", (1,))


def one_warp(name: str = "test") -> KernelBuilder:
    return KernelBuilder(name, (1, 1, 1))


@pytest.mark.parametrize("opcode", ["ffma", "imad", "iadd", "ex2", "hfma2"])
@pytest.mark.parametrize("fill", [0, 1, 3, 4, 30])
def test_a_fixed_latency_holds_the_dependent_instruction_and_nothing_else(
    ampere: GpuSpec, opcode: str, fill: int
) -> None:
    """`fill` independent instructions of another pipe fit between the two before they delay the second."""
    row = next(r for r in ampere.instructions if r.op == opcode)
    filler = "iadd" if row.pipe != "alu" else "ffma"
    interval = next(r for r in ampere.instructions if r.op == filler).interval_cycles
    kernel = one_warp()
    with kernel.role("warp", warps=1, registers=32) as r:
        r.run(opcode, 1, dst=VALUE.whole)
        if fill:
            r.run(filler, fill, dst=OTHER.whole)
        r.run(opcode, 1, srcs=(VALUE.whole,))
    result = run(ampere, kernel.build())
    first, second = column(result, 0, Event.T_ISSUE)[0], column(result, 2 if fill else 1, Event.T_ISSUE)[0]
    # The filler starts one issue slot after the first instruction; its last instruction issues and the next may follow.
    assert second - first == max(row.latency_cycles, 1 + (fill - 1) * interval + 1 if fill else row.interval_cycles)


@pytest.mark.parametrize("wait", [True, False])
def test_a_scoreboard_releases_its_waiter_when_the_load_is_there(ampere: GpuSpec, wait: bool) -> None:
    kernel = one_warp()
    with kernel.role("warp", warps=1, registers=32) as r:
        r.ldg(VALUE.whole, X[0:32], 1, into="x", vector_bytes=4)
        r.run("ffma", 1, dst=OTHER.whole, after=("x",) if wait else ())
        r.run("ffma", 1, after=("x",))
    result = run(ampere, kernel.build(), X)
    load = column(result, 0, Event.T_DONE)[0]
    assert column(result, 0, Event.T_ISSUE)[0] + 300 < load
    if wait:
        assert column(result, 1, Event.T_ISSUE) == [load]
        assert column(result, 2, Event.T_ISSUE) == [load + 2]
    else:
        assert column(result, 1, Event.T_ISSUE)[0] < column(result, 0, Event.T_ISSUE)[0] + 8
        assert column(result, 2, Event.T_ISSUE) == [load]


def test_a_scoreboard_waits_for_the_slowest_of_its_loads(ampere: GpuSpec) -> None:
    """The first load misses everywhere, the second hits in L1 and returns before it."""
    kernel = one_warp()
    with kernel.role("warp", warps=1, registers=32) as r:
        r.ldg(VALUE.whole, X[0:32], 1, into="warm", vector_bytes=4)
        r.run("ffma", 1, after=("warm",))
        r.ldg(VALUE.whole, X[2048:32], 1, into="x", vector_bytes=4)
        r.ldg(OTHER.whole, X[0:32], 1, into="x", vector_bytes=4)
        r.run("ffma", 1, after=("x",))
    result = run(ampere, kernel.build(), X)
    slow, fast = column(result, 2, Event.T_DONE)[0], column(result, 3, Event.T_DONE)[0]
    assert fast + 100 < slow
    assert column(result, 4, Event.T_ISSUE) == [slow]


@jit_kernel
def _start(entries, bounds, sms, t):  # type: ignore[no-untyped-def]
    """The entry that a request of SM 1 takes, and when it starts."""
    k = port.free_entry(entries, bounds, sms, 1, L1.NEXT_MISS, t)
    return k, max(t, entries[1, k])


@jit_kernel
def _take(entries, sms, k, tick):  # type: ignore[no-untyped-def]
    port.take_entry(entries, sms, 1, L1.NEXT_MISS, k, tick)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 300])
def test_the_next_line_takes_the_entry_that_is_free_first(size: int) -> None:
    """Requests start as if a heap held the ticks at which entries become free, in whatever order answers come."""
    random.seed(size)
    entries = port.new_entries(2, size)
    bounds = port.new_bounds(entries)
    other, sms, model = entries[0].copy(), np.zeros((2, SM_WIDTH), dtype=np.int64), [0] * size
    tick, waited = 0, 0
    for _ in range(2000):
        tick += random.randrange(20)
        k, begin = _start(entries, bounds, sms, tick)
        assert begin == max(tick, model[0])
        waited += begin > tick
        tick = begin
        done = tick + random.randrange(20 * size)
        _take(entries, sms, k, done)
        heapq.heapreplace(model, done)
    assert waited
    np.testing.assert_array_equal(entries[0], other)


def test_a_dependent_shared_load_takes_the_latency_of_the_table(ampere: GpuSpec) -> None:
    kernel = one_warp()
    tile = kernel.shared("tile", (1, 32), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.lds(VALUE.whole, tile.stage(), 1, vector_bytes=4)
        r.run("ffma", 1, srcs=(VALUE.whole,))
    result = run(ampere, kernel.build())
    latency = ampere.instruction("lds", "b32").latency_cycles
    assert column(result, 1, Event.T_ISSUE)[0] - column(result, 0, Event.T_ISSUE)[0] == latency


@pytest.mark.parametrize("shape", ["m16n8k16", "m16n8k8"])
def test_a_dependent_mma_waits_for_its_accumulator_an_independent_one_for_the_pipe(ampere: GpuSpec, shape: str) -> None:
    row = ampere.instruction("mma", "fp16", shape)
    depth = int(shape.partition("k")[2])
    a, b = RegisterTile("a", (16, depth), "fp16"), RegisterTile("b", (depth, 8), "fp16")
    accumulators = [RegisterTile(f"acc{i}", (16, 8), "fp32") for i in range(2)]
    kernel = one_warp()
    with kernel.role("warp", warps=1, registers=64) as r:
        for acc in (accumulators[0], accumulators[0], accumulators[1]):
            r.mma(acc.whole, a.whole, b.whole, shape=shape, dtype="fp16", count=1)
    result = run(ampere, kernel.build())
    first, dependent, independent = (column(result, op, Event.T_ISSUE)[0] for op in range(3))
    assert dependent - first == pytest.approx(row.latency_cycles, abs=1 / 256)
    assert independent - dependent == row.interval_cycles


@pytest.mark.parametrize("warps", [2, 4, 8])
def test_bar_sync_releases_everybody_after_the_last_arrival(ampere: GpuSpec, warps: int) -> None:
    kernel = one_warp()
    with kernel.role("warps", warps=warps, registers=32) as r:
        with r.when(WARP.equals(warps - 1)):
            r.run("ffma", 100)
        r.bar_sync(0, warps)
        r.run("ffma", 1)
    result = run(ampere, kernel.build())
    last = max(column(result, 1, Event.T_ISSUE, warp)[0] for warp in range(warps)) + 1  # the arrival itself issues
    release = last + ampere.sync.barrier_cycles + warps * ampere.sync.barrier_per_warp_cycles
    # Warps of one sub-core go on one after the other.
    interval = ampere.instruction("ffma", "fp32").interval_cycles
    released = sorted(column(result, 2, Event.T_ISSUE, warp)[0] for warp in range(warps))
    assert released == sorted(release + (warp // 4) * interval for warp in range(warps))


@pytest.mark.parametrize("count", [1, 2, 16])
def test_a_run_is_done_a_latency_after_its_last_instruction(ampere: GpuSpec, count: int) -> None:
    row = ampere.instruction("ffma", "fp32")
    kernel = one_warp()
    with kernel.role("warp", warps=1, registers=32) as r:
        r.run("ffma", count, dst=VALUE.whole)
    result = run(ampere, kernel.build())
    took = column(result, 0, Event.T_DONE)[0] - column(result, 0, Event.T_ISSUE)[0]
    assert took == (count - 1) * row.interval_cycles + row.latency_cycles


@pytest.mark.parametrize("stores", [1, 40])
def test_a_barrier_waits_for_the_stores_before_it(ampere: GpuSpec, stores: int) -> None:
    kernel = one_warp()
    tile = kernel.shared("tile", (32, 32), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.sts(tile[0, 0:32, 0:1].T, VALUE.whole, stores, vector_bytes=4)  # all in one bank
        r.bar_sync(0, 1)
    result = run(ampere, kernel.build())
    made, arrived = column(result, 0, Event.T_DONE)[0], column(result, 1, Event.T_ISSUE)[0] + 1
    assert made > arrived
    cost = ampere.sync.barrier_cycles + ampere.sync.barrier_per_warp_cycles
    assert column(result, 1, Event.T_DONE) == [made + cost]


@pytest.mark.parametrize("arrivals", [1, 2, 3])
def test_every_phase_of_an_mbarrier_needs_all_its_arrivals(hopper: GpuSpec, arrivals: int) -> None:
    """Warps that arrive twice each, 100 instructions apart from each other: phases end with the last of them."""
    kernel = one_warp()
    barrier = kernel.mbarrier("barrier", 1, arrivals)
    with kernel.role("waits", warps=1, registers=32) as r:
        for phase in range(2):
            r.mbarrier_wait(barrier, 0, phase)
    with kernel.role("arrives", warps=arrivals, registers=32) as r, r.loop("i", 2):
        with r.loop("j", WARP + 1):
            r.run("ffma", 100)
        r.mbarrier_arrive(barrier, 0)
    result = run(hopper, kernel.build())
    resume, arrive = hopper.sync.mbarrier_wait_cycles, hopper.sync.mbarrier_arrive_cycles
    assert resume is not None
    assert arrive is not None
    arrived = [column(result, 3, Event.T_ISSUE, 1 + warp) for warp in range(arrivals)]
    # In the order of time, each arrival counts for the phase that is open then.
    order = sorted(tick for ticks in arrived for tick in ticks)
    for phase in range(2):
        last = order[(phase + 1) * arrivals - 1]
        assert column(result, phase, Event.T_DONE) == [last + arrive + resume]


@pytest.mark.parametrize("late", ["arrival", "wait"])
def test_an_mbarrier_wait_ends_with_the_phase(hopper: GpuSpec, late: str) -> None:
    """Whoever comes late: a wait that finds its phase complete asks shared memory."""
    kernel = one_warp()
    barrier = kernel.mbarrier("barrier", 1, 1)
    delay = {"arrival": 0, "wait": 1}[late]
    with kernel.role("arrives", warps=1, registers=32) as r:
        r.run("ffma", 200 if delay == 0 else 1)
        r.mbarrier_arrive(barrier, 0)
    with kernel.role("waits", warps=1, registers=32) as r:
        r.run("ffma", 200 if delay == 1 else 1)
        r.mbarrier_wait(barrier, 0, 0)
        r.run("ffma", 1)
    result = run(hopper, kernel.build())
    arrive, resume = hopper.sync.mbarrier_arrive_cycles, hopper.sync.mbarrier_wait_cycles
    assert arrive is not None
    assert resume is not None
    arrived = column(result, 1, Event.T_ISSUE)[0] + arrive
    waits = column(result, 3, Event.T_ISSUE, warp=1)[0]
    goes_on = column(result, 4, Event.T_ISSUE, warp=1)[0]
    if late == "arrival":
        assert waits < arrived
        assert goes_on == arrived + resume
    else:
        assert waits > arrived + resume
        assert goes_on == waits + resume


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma_wait_ends_with_the_last_group_but_those_left(hopper: GpuSpec, n: int) -> None:
    shape = f"m64n{n}k16"
    row = hopper.instruction("wgmma", "bf16", shape)
    kernel = one_warp()
    a, b = kernel.shared("a", (64, 16), "bf16"), kernel.shared("b", (16, n), "bf16")
    acc = RegisterTile("acc", (16, n), "fp32")
    with kernel.role("warpgroup", warps=4, registers=168) as r:
        for _ in range(2):
            r.wgmma(acc.whole, a[0, WARP * 16 : 16, :], b.stage(), shape=shape, dtype="bf16", count=1)
            r.wgmma_commit()
        r.wgmma_wait(1)
        r.run("ffma", 1)
        r.wgmma_wait(0)
        r.run("ffma", 1)
    result = run(hopper, kernel.build())
    start = column(result, 0, Event.T_ISSUE)[0]
    first, second = start + row.latency_cycles, start + row.interval_cycles + row.latency_cycles
    assert column(result, 5, Event.T_ISSUE) == [first]
    assert column(result, 7, Event.T_ISSUE) == [max(second, first + 2)]


def two_warpgroups(hopper: GpuSpec, counts: tuple[int, int], lag: int) -> tuple[list[float], list[float], list[float]]:
    """Two warpgroups, the second `lag` integer instructions later, issue `counts` wgmma m64n128k16 each.

    Returns the cycles at which each issues its first and goes on after its last, and at which its wait ends.
    """
    kernel = one_warp()
    a, b = kernel.shared("a", (64, 16), "bf16"), kernel.shared("b", (16, 128), "bf16")
    acc = RegisterTile("acc", (16, 128), "fp32")
    for group, count in enumerate(counts):
        with kernel.role(f"warpgroup{group}", warps=4, registers=168) as r:
            r.run("imad", 1 + group * lag, dtype="int32")
            view = a[0, WARP * 16 : 16, :]
            r.wgmma(acc.whole, view, b.stage(), shape="m64n128k16", dtype="bf16", count=count, accumulate=0)
            r.wgmma_commit()
            r.wgmma_wait(0)
    result = run(hopper, kernel.build())
    starts, goes_on = ([column(result, 4 * g + i, Event.T_ISSUE, warp=4 * g)[0] for g in (0, 1)] for i in (1, 2))
    return starts, goes_on, [column(result, 4 * g + 3, Event.T_DONE, warp=4 * g)[0] for g in (0, 1)]


@pytest.mark.parametrize("counts", [(8, 8), (4, 12), (1, 9)])
@pytest.mark.parametrize("lag", [0, 40, 150])
def test_the_tensor_core_alternates_between_warps(hopper: GpuSpec, counts: tuple[int, int], lag: int) -> None:
    """From when both have wgmma in flight each gets every second instruction; what one leaves the other gets whole."""
    row = hopper.instruction("wgmma", "bf16", "m64n128k16")
    interval, tail = row.interval_cycles, row.latency_cycles - row.interval_cycles
    starts, _, ends = two_warpgroups(hopper, counts, lag)
    work = [count * interval for count in counts]
    alone = min(work[0], starts[1] - starts[0])  # of the first, before the second comes
    left = [work[0] - alone, work[1]]
    first = starts[1] if left[0] else starts[0] + work[0]
    shared = 2 * min(left)
    expected = [first + (shared if left[g] == min(left) else shared + max(left) - min(left)) for g in (0, 1)]
    if not left[0]:
        expected = [starts[0] + work[0], max(starts[1], starts[0] + work[0]) + work[1]]
    # Within the roundings of shares: a cycle.
    assert ends == pytest.approx([tick + tail for tick in expected], abs=1)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_wgmma_waits_to_issue_until_the_tensor_core_has_taken_those_before(hopper: GpuSpec, count: int) -> None:
    row, held = hopper.instruction("wgmma", "bf16", "m64n128k16"), hopper.sm.wgmma_in_flight
    assert held is not None
    starts, goes_on, _ = two_warpgroups(hopper, (count, 1), 3000)
    assert goes_on[0] == starts[0] + max(count, (count - held) * row.interval_cycles)


def products(count: int, from_registers: bool = False) -> KernelBuilder:
    """A warpgroup that issues `count` wgmma m64n64k16 and waits for them."""
    kernel = KernelBuilder("products", (1, 1, 1))
    a, b = kernel.shared("a", (64, 16), "bf16"), kernel.shared("b", (16, 64), "bf16")
    acc, fragment = RegisterTile("acc", (16, 64), "fp32"), RegisterTile("fragment", (16, 16), "bf16")
    with kernel.role("warpgroup", warps=4, registers=168) as r:
        left = fragment.whole if from_registers else a[0, WARP * 16 : 16, :]
        r.wgmma(acc.whole, left, b.stage(), shape="m64n64k16", dtype="bf16", count=count)
        r.wgmma_commit()
        r.wgmma_wait(0)
    return kernel


BESIDE = 64
LAG = 100
"""Instructions beside wgmma, and steps after which they begin."""


def time_beside(taken: dict[str, int], opcodes: tuple[str, ...], wgmma: int, *, named: bool = True) -> float:
    """Cycles that warpgroups take for `BESIDE` instructions each, of `opcodes`, beside another with so many wgmma.

    taken: `sm.beside_wgmma_*` by pipe, else 0. named: whether they work on registers of the language.
    """
    figures = {f"sm.beside_wgmma_{pipe}": f"{taken.get(pipe, 0)} cycles" for pipe in ("fma", "alu", "xu")}
    kernel = products(wgmma)
    for number, opcode in enumerate(opcodes):
        value = RegisterTile("value", (16, 128), "fp32")
        with kernel.role(f"vector{number}", warps=4, registers=64) as r:
            r.run("iadd", LAG, dtype="int32", chain=LAG)
            r.run(opcode, BESIDE, dtype="fp32", dst=value.whole if named else None, compute=lambda old: old)
            r.run("iadd", 1, dtype="int32")
    result = run(load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 2, **figures}), kernel.build())
    marks = ((3 + 3 * number, 4 * number + 4) for number in range(len(opcodes)))
    begun, over = zip(
        *([column(result, first + op, Event.T_ISSUE, warp=warp)[0] for op in (1, 2)] for first, warp in marks),
        strict=True,
    )
    return max(over) - min(begun)


@pytest.mark.parametrize(("opcode", "pipe", "interval"), [("ffma", "fma", 1), ("fmnmx", "alu", 2), ("ex2", "xu", 8)])
def test_wgmma_let_vector_instructions_at_the_register_file_one_at_a_time(
    opcode: str, pipe: str, interval: int
) -> None:
    alone = BESIDE * interval
    assert time_beside({pipe: 12}, (opcode,), 1) == pytest.approx(alone, abs=interval)
    assert time_beside({}, (opcode,), 60) == pytest.approx(alone, abs=interval)
    assert time_beside({pipe: 12}, (opcode,), 60) == pytest.approx(BESIDE * 12, abs=12)
    # Arithmetic of addresses has registers of its own.
    assert time_beside({pipe: 12}, (opcode,), 60, named=False) == pytest.approx(alone, abs=interval)


def test_warps_of_a_sub_core_share_what_wgmma_leave_of_the_register_file() -> None:
    assert time_beside({"fma": 5, "xu": 9}, ("ffma", "ex2"), 60) == pytest.approx(BESIDE * 14, rel=0.02)


def test_vector_instructions_go_on_at_their_pace_when_the_wgmma_are_over() -> None:
    """The more wgmma, the later: each of 32 cycles holds up 32 / 12 instructions for ten cycles more than their two."""
    few, more = (time_beside({"alu": 12}, ("fmnmx",), wgmma) for wgmma in (20, 26))
    interval = load_arch("h100-sxm").instruction("wgmma", "bf16", "m64n64k16").interval_cycles
    assert BESIDE * 2 < few < more < BESIDE * 12
    assert more - few == pytest.approx(6 * interval * 10 / 12, rel=0.1)


@pytest.mark.parametrize("from_registers", [False, True])
@pytest.mark.parametrize("rate", [16, 32, 128])
def test_operands_of_wgmma_come_at_the_bandwidth_of_shared_memory(rate: int, from_registers: bool) -> None:
    """B of 16 x 64 and, unless registers hold it, A of 64 x 16: once for the warpgroup, however fast products are."""
    spec = load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 2, "shared.bandwidth": f"{rate} B/clk"})
    few, more = (cycles(run(spec, products(n, from_registers).build())) for n in (8, 40))
    operand_bytes = 2 * (16 * 64 + (0 if from_registers else 64 * 16))
    interval = spec.instruction("wgmma", "bf16", "m64n64k16").interval_cycles
    assert (more - few) / 32 == pytest.approx(max(operand_bytes / rate, interval), rel=0.01)


def products_end(hopper: GpuSpec, boxes: int) -> tuple[float, float]:
    """Cycles in which 300 wgmma m64n64k16, whose operands take the whole of shared memory's bandwidth, are done, and at
    which the last of `boxes` of 8 KiB has landed that another warp loads beside them."""
    kernel = products(300)
    tile, full = kernel.shared("tile", (2048,), "fp32"), kernel.mbarrier("full", 1, 1)
    with kernel.role("loader", warps=1, registers=32) as r:
        for i in range(boxes):
            r.mbarrier_expect(full, 0, 8192)
            r.tma_load(tile.stage(), X[2048 * i : 2048], full, 0)
            r.mbarrier_wait(full, 0, i)
    result = run(hopper, kernel.build(), X)
    issued, done = column(result, 0, Event.T_ISSUE)[0], column(result, 2, Event.T_DONE)[0]
    landed = column(result, 3 * boxes, Event.T_DONE, warp=4)[0] if boxes else 0.0
    return done - issued, landed - issued


def test_what_the_tma_brings_takes_nothing_from_wgmma(hopper: GpuSpec) -> None:
    """On an H100, wgmma m64n64k16 takes 32.1 cycles alone and 33.0 beside loads of 40 B a cycle."""
    alone, _ = products_end(hopper, 0)
    beside, landed = products_end(hopper, 6)
    assert alone >= 300 * 32
    assert landed < beside
    assert beside == alone


def test_cp_async_wait_ends_with_the_group(ampere: GpuSpec) -> None:
    kernel = one_warp()
    tile = kernel.shared("tile", (2, 128), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        for i in range(2):
            r.cp_async(tile[0, i, :], X[2048 * i : 128], 1)
            r.cp_commit()
        r.cp_wait(1)
        r.run("ffma", 1)
        r.cp_wait(0)
        r.run("ffma", 1)
    result = run(ampere, kernel.build(), X)
    done = [column(result, op, Event.T_DONE)[0] for op in (0, 2)]
    assert column(result, 5, Event.T_ISSUE) == [done[0]]
    assert column(result, 7, Event.T_ISSUE) == [max(done[1], done[0] + 2)]  # groups complete in order


def test_a_scoreboard_of_copies_says_when_their_addresses_have_been_read(ampere: GpuSpec) -> None:
    """The unit of global memory takes a line a cycle; the data come much later."""
    rows = GlobalTensor("rows", (64, 1024), "fp32", (1024, 1))
    kernel = one_warp()
    tile = kernel.shared("tile", (64, 8), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.cp_async(tile.stage(), rows[0:64, 0:8], 4, into="pointers")
        r.run("iadd", 1, dtype="int32", after=("pointers",))
    result = run(ampere, kernel.build(), rows)
    [begin], [end] = (column(result, 0, at) for at in (Event.T_ISSUE, Event.T_DONE))
    [onward] = column(result, 1, Event.T_ISSUE)
    assert onward == begin + 64
    assert end > onward + 300
    assert result.warp_states["long_scoreboard"] > 0


@pytest.mark.parametrize("read", [True, False])
def test_bulk_wait_ends_when_the_source_is_read_or_the_store_is_done(hopper: GpuSpec, read: bool) -> None:
    kernel = one_warp()
    tile = kernel.shared("tile", (1024,), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.tma_store(X[0:1024], tile.stage())
        r.bulk_commit()
        r.bulk_wait(0, read=read)
        r.run("ffma", 1)
    result = run(hopper, kernel.build(), X)
    has_read, is_done = column(result, 0, Event.T_READ)[0], column(result, 0, Event.T_DONE)[0]
    assert has_read < is_done
    assert column(result, 3, Event.T_ISSUE) == [has_read if read else is_done]


def test_a_tma_load_completes_on_its_barrier_by_bytes(hopper: GpuSpec) -> None:
    kernel = one_warp()
    tile = kernel.shared("tile", (1024,), "fp32")
    full = kernel.mbarrier("full", 1, 1)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.mbarrier_expect(full, 0, 4096)
        r.tma_load(tile.stage(), X[0:1024], full, 0)
        r.mbarrier_wait(full, 0, 0)
        r.run("ffma", 1)
    result = run(hopper, kernel.build(), X)
    landed, resume = column(result, 1, Event.T_DONE)[0], hopper.sync.mbarrier_wait_cycles
    assert resume is not None
    assert column(result, 3, Event.T_ISSUE) == [landed + resume]


def _tma_lands(spec: GpuSpec, **figures: float) -> float:
    """Cycle at which a box of 32 lines has landed, on a machine whose TMA has other figures."""
    assert spec.tma is not None
    kernel = one_warp()
    tile = kernel.shared("tile", (1024,), "fp32")
    full = kernel.mbarrier("full", 1, 1)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.mbarrier_expect(full, 0, 4096)
        r.tma_load(tile.stage(), X[0:1024], full, 0)
        r.mbarrier_wait(full, 0, 0)
    other = spec.model_copy(update={"tma": spec.tma.model_copy(update=figures)})
    return float(column(run(other, kernel.build(), X), 1, Event.T_DONE)[0])


def test_the_latency_of_the_tma_comes_on_top_of_memory(hopper: GpuSpec) -> None:
    assert hopper.tma is not None
    later = hopper.tma.latency_cycles + 77
    assert _tma_lands(hopper, latency_cycles=later) - _tma_lands(hopper) == 77


def test_the_tma_asks_for_a_line_every_gap(hopper: GpuSpec) -> None:
    wide, wider = (_tma_lands(hopper, issue_gap_cycles=gap) for gap in (200, 300))
    assert wider - wide == pytest.approx(31 * 100, abs=200)  # DRAM answers at other moments


def test_the_tma_waits_for_a_free_entry(hopper: GpuSpec) -> None:
    """One line at a time: each waits for the one before it."""
    one, all_at_once = (_tma_lands(hopper, max_in_flight_bytes=size) for size in (128, 1 << 16))
    assert one > 31 * hopper.l2.hit_latency_cycles > 3 * all_at_once


def test_a_store_ends_the_kernel_when_memory_has_it(ampere: GpuSpec) -> None:
    """The last warp exits at once; the kernel ends with the acknowledgement."""
    kernel = one_warp()
    with kernel.role("warp", warps=1, registers=32) as r:
        r.stg(X[0:32], VALUE.whole, 1, vector_bytes=4)
    result = run(ampere, kernel.build(), X)
    assert result.ticks / 256 == column(result, 0, Event.T_DONE)[0]
    assert column(result, 0, Event.T_DONE)[0] - column(result, 0, Event.T_ISSUE)[0] >= ampere.l2.hit_latency_cycles
