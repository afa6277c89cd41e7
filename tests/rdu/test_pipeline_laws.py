"""Closed forms of pipelines, exactly; and departures from them where a resource is shared, slow or too small."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from arch.rdu import RduSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.banks import bank_conflict
from sim.rdu.cost import stage_cost
from sim.rdu.layout import Log, Network, Reason
from sim.rdu.program import Counter, Out, Section, Tensor, record
from tests.rdu.conftest import SILENT, SMALL, cycles, pipeline, run


@given(st.lists(st.integers(64, 900), min_size=1, max_size=6), st.integers(1, 30), st.integers(0, 50))
def test_metapipeline_takes_fill_then_the_slowest_stage_then_drain(times: list[int], tokens: int, latency: int) -> None:
    spec = load_arch("sn40l", SMALL | SILENT)
    section, _ = pipeline(times, tokens, depth=2 + (latency > 0), latency=latency)
    expected = sum(times) + len(times) * latency + (tokens - 1) * max(times)
    assert cycles(run(section, spec)) == expected


@given(st.integers(64, 900), st.integers(64, 900), st.integers(1, 20))
def test_single_buffers_make_stages_take_turns(first: int, second: int, tokens: int) -> None:
    spec = load_arch("sn40l", SMALL | SILENT)
    section, _ = pipeline([first, second], tokens, depth=1)
    assert cycles(run(section, spec)) == tokens * (first + second)


def test_a_slot_is_taken_again_when_its_reader_is_done(silent: RduSpec) -> None:
    """The reader holds the first slot from 300 to 800; the writer, free at 600 with the other slot full, waits."""
    section, _ = pipeline([300, 500], 4, depth=2)
    result = run(section, silent)
    starts = result.log[result.log[:, Log.STAGE] == 0][:, Log.START] // TICKS_PER_CYCLE
    assert starts.tolist() == [0, 300, 800, 1300]


def test_hops_and_memory_units_add_to_the_fill_alone(small: RduSpec, silent: RduSpec) -> None:
    section, _ = pipeline([100, 100, 100], 50, 3)
    short, long = (pipeline([100, 100, 100], n, 3)[0] for n in (1, 50))
    assert cycles(run(section, small)) > cycles(run(section, silent))
    assert cycles(run(long, small)) - cycles(run(short, small)) == pytest.approx(49 * 100, abs=2)


def test_unequal_times_of_one_stage_are_absorbed_by_deeper_buffers(silent: RduSpec) -> None:
    """A producer that works in bursts (four short firings, then a long wait) needs room for a burst."""

    def build(depth: int) -> Section:
        section, i, j = Section("bursts"), Counter("i", 12), Counter("j", 4)
        slow = section.timed("slow", (i,), {}, Out((32, 32), "bf16", (i,)), interval_cycles=800)
        burst = section.timed("burst", (i, j), {"x": slow}, Out((32, 32), "bf16", (i, j)), interval_cycles=40)
        section.timed(
            "steady", (i, j), {"x": burst.read(depth, pmus=2)}, Out((32, 32), "bf16", (i, j)), interval_cycles=200
        )
        return section

    shallow, deep = cycles(run(build(1), silent)), cycles(run(build(4), silent))
    assert deep == 800 + 40 + 48 * 200
    assert shallow == deep + 47 * 40  # each token's 40 cycles come on top, but for the first


def test_a_loop_nest_holds_the_outer_token(silent: RduSpec) -> None:
    section, m, n = Section("nest"), Counter("m", 5), Counter("n", 7)
    outer = section.timed("outer", (m,), {}, Out((32, 32), "bf16", (m,)), interval_cycles=300)
    inner = section.timed("inner", (m, n), {}, Out((32, 32), "bf16", (m, n)), interval_cycles=50)
    out = Out((32, 32), "bf16", (m,))
    section.timed("use", (m, n), {"a": outer.read(pmus=2), "b": inner.read(pmus=2)}, out, interval_cycles=60)
    result = run(section, silent)
    assert cycles(result) == 300 + 5 * 7 * 60
    starts = result.log[result.log[:, Log.STAGE] == 0][:, Log.START] // TICKS_PER_CYCLE
    # With two buffers the third outer token waits until the first has been used seven times.
    assert starts.tolist() == [0, 300, 300 + 420, 300 + 840, 300 + 1260]


def test_a_token_outside_of_all_loops_is_waited_for_and_taken_once(silent: RduSpec) -> None:
    section, n = Section("once"), Counter("n", 7)
    once = section.timed("once", (), {}, Out((32, 32), "bf16", ()), interval_cycles=300)
    section.timed("use", (n,), {"a": once.read(pmus=2)}, Out((32, 32), "bf16", (n,)), interval_cycles=60)
    result = run(section, silent)
    assert cycles(result) == 300 + 7 * 60
    starts = result.log[result.log[:, Log.STAGE] == 1][:, Log.START] // TICKS_PER_CYCLE
    assert starts.tolist() == [300 + 60 * k for k in range(7)]


def test_every_tick_of_a_stage_has_one_reason(small: RduSpec) -> None:
    section, _ = pipeline([100, 300, 50], 20)
    result = run(section, small)
    assert (result.reasons.sum(axis=1) == result.ticks).all()
    assert (result.reasons >= 0).all()
    shares = result.reasons / result.ticks
    assert shares[1, Reason.BUSY] > 0.95
    assert shares[0, Reason.NO_ROOM] > 0.5
    assert shares[2, Reason.NO_INPUT] > 0.7
    assert result.reasons[1, Reason.BUSY] == 20 * 300 * TICKS_PER_CYCLE


def test_a_slow_bank_slows_its_reader_and_is_called_memory(silent: RduSpec) -> None:
    def build(stride: int) -> Section:
        section, i = Section("banks"), Counter("i", 40)
        x = section.timed("make", (i,), {}, Out((32, 32), "bf16", (i,)), interval_cycles=40)
        section.timed("use", (i,), {"x": x.read(stride=stride, pmus=1)}, Out((1, 1), "bf16", (i,)), interval_cycles=40)
        return section

    # 2 KiB through one PMU of 64 B/clk are 32 cycles; a stride of 32 B sends every lane to one of two of 16 banks.
    assert cycles(run(build(1), silent)) == 40 + 40 * 40
    slow = run(build(16), silent)
    assert cycles(slow) == 40 + 40 * 32 * 16
    assert slow.reasons[1, Reason.MEMORY] == 40 * (32 * 16 - 40) * TICKS_PER_CYCLE


def test_more_or_wider_banks_never_slow_a_strided_read() -> None:
    """Narrower banks hold a word together, wider ones give two of a row at once; a word takes an address of its own."""
    out = Out((64, 64), "fp32", ())

    def factor(stride: int, banks: int, bandwidth: int = 64, transposed: bool = False) -> int:
        spec = load_arch("plasticine", {"pmu.banks": banks, "pmu.bandwidth": f"{bandwidth} B/clk", "pmu.addresses": 64})
        section = Section("banks")
        made = section.timed("make", (), {}, out, interval_cycles=40)
        return bank_conflict(made.read(stride=stride, transposed=transposed), spec)

    assert [factor(1, banks) for banks in (4, 16, 64)] == [1, 1, 1]
    assert [factor(16, banks) for banks in (4, 8, 16, 32, 64)] == [16] * 5
    assert [factor(4, banks) for banks in (8, 16, 32)] == [4, 4, 4]
    assert [factor(3, banks) for banks in (4, 8, 16)] == [3, 2, 1]
    assert factor(5, 16, 128) == 2 * factor(5, 16, 64)  # 32 words from 16 banks, all of other rows: as long as before
    assert factor(1, 16, transposed=True) == factor(64, 16) == 16


def test_a_shared_link_slows_both_users_and_is_called_network() -> None:
    """Two streams of 64 KiB a token through a mesh of two rows, one narrow and one wide."""

    def build() -> Section:
        section, i = Section("links"), Counter("i", 20)
        for name in ("a", "b"):
            out = Out((64, 512), "bf16", (i,))
            x = section.timed(f"make_{name}", (i,), {}, out, interval_cycles=64)
            section.stage(
                f"use_{name}", (i,), {"x": x.read(pmus=2)}, lambda x: x + 1.0, Out((64, 512), "bf16", (i,)), row_par=8
            )
        return section

    wide, narrow = (load_arch("sn40l", SMALL | SILENT | {"mesh.vector": f"{w} B/clk"}) for w in (4096, 64))
    fast, slow = run(build(), wide), run(build(), narrow)
    assert slow.reasons[:, Reason.NETWORK].sum() > 0
    assert fast.reasons[:, Reason.NETWORK].sum() == 0
    assert slow.link_wait_ticks[Network.VECTOR] > 0
    assert slow.ticks > fast.ticks


def _fork(depth: int, chunks: int = 16) -> Section:
    """exp -> (sum over a row, FIFO) -> divide: the FIFO must hold a row."""
    section, row, j = Section("fork"), Counter("row", 4), Counter("j", chunks)
    e = section.timed("exp", (row, j), {}, Out((1, 32), "bf16", (row, j)), interval_cycles=32)
    total = section.timed("sum", (row, j), {"e": e}, Out((1, 1), "fp32", (row,)), interval_cycles=32)
    section.timed(
        "divide", (row, j), {"e": e.read(depth, stream=True), "total": total}, Out((1, 32), "bf16", (row, j)),
        interval_cycles=32,
    )  # fmt: skip
    return section


def test_a_fifo_that_does_not_hold_the_row_deadlocks_and_is_named(silent: RduSpec) -> None:
    with pytest.raises(InputError, match=r"deadlocks: full: exp -> divide \(depth 15\).*depth 16 of exp -> divide"):
        run(_fork(15), silent)
    just = run(_fork(16), silent)
    full_rate = 4 * 16 * 32 + 2 * 16 * 32
    assert cycles(just) > cycles(run(_fork(32), silent))
    assert cycles(run(_fork(40), silent)) <= full_rate


def test_a_deadlock_in_several_places_names_a_depth_for_each(silent: RduSpec) -> None:
    """Two forks, one behind the other: each FIFO must hold a row, and the second is stuck once the first is not."""
    section = _fork(12)
    row, j = section.stages[2].over
    e = section.stages[2].outputs["out"]
    total = section.timed("sum2", (row, j), {"e": e}, Out((1, 1), "fp32", (row,)), interval_cycles=32)
    last = section.timed(
        "last", (row, j), {"e": e.read(14, stream=True), "total": total}, Out((1, 32), "bf16", (row, j)),
        interval_cycles=32,
    )  # fmt: skip
    with pytest.raises(
        InputError,
        match=r"full: exp -> divide \(depth 12\).*; depth 16 of exp -> divide and 16 of divide -> last let it",
    ):
        run(section, silent)
    reads = [section.stages[2].reads["e"], last.stage.reads["e"]]
    assert [read.depth for read in reads] == [12, 14]
    for read in reads:
        read.depth = 16
    run(section, silent)


def test_a_circle_without_tokens_says_that_depth_is_no_remedy(silent: RduSpec) -> None:
    section, i = Section("circle"), Counter("i", 4)
    first = Tensor("first", (1, 32), "bf16")
    out = Out((1, 32), "bf16", (i,))
    loop = section.loop(first, out)
    made = section.timed("a", (i,), {"x": loop.read()}, out, interval_cycles=10)
    section.close(loop, made)
    section.channels[0].initial = 0
    with pytest.raises(InputError, match="no depth lets it run: each of these waits for a token of another"):
        run(section, silent)


def test_too_many_memory_units_asked_for_says_how_many_fit(small: RduSpec) -> None:
    section, i = Section("spread"), Counter("i", 4)
    x = section.timed("x", (i,), {}, Out((32, 32), "bf16", (i,)), interval_cycles=10)
    section.timed("y", (i,), {"x": x.read(pmus=40)}, Out((32, 32), "bf16", (i,)), interval_cycles=10)
    with pytest.raises(InputError, match=r"needs 40 PMUs .* most, 40, in x -> y .*: pmus=32 fits"):
        run(section, small)
    section.channels[0].pmus = 32
    run(section, small)


def test_what_does_not_fit_says_what_would(small: RduSpec) -> None:
    section, i = Section("big"), Counter("i", 4)
    tensor = Tensor("x", (4, 4096, 4096), "bf16")
    x = section.load("load", tensor, (i, 0, 0), (1, 4096, 4096), (i,), shape=(4096, 4096))
    section.stage("relu", (i,), {"x": x}, lambda x: x.maximum(0.0), Out((4096, 4096), "bf16", (i,)), row_par=40)
    with pytest.raises(
        InputError, match=r"needs 40 PCUs, sn40l has pcu.count = 32; most, 40, in relu: .* = 32 instead"
    ):
        run(section, small)
    section.stages[1].row_par = section.stages[1].simd_par = 32
    with pytest.raises(InputError, match=r"needs 128 PMUs .*pmu.count = 32 of 512 KiB; most, 128, in load -> relu"):
        run(section, small)


def test_runs_are_repeatable_and_resumable(small: RduSpec) -> None:
    from sim.rdu.engine import build

    section, _ = pipeline([100, 300, 50], 20)
    whole = run(section, small)
    parts = build(section, small, {})
    reached = list(parts.windows(1000 * TICKS_PER_CYCLE))
    assert len(reached) > 3
    assert parts.result.ticks == whole.ticks == reached[-1]
    assert np.array_equal(parts.result.log, whole.log)


@pytest.mark.parametrize(("streams", "units"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_streams_beyond_the_ports_of_a_unit_enter_at_units_behind_it(small: RduSpec, streams: int, units: int) -> None:
    """Three inputs each, one of them for what the unit before hands on: two more streams a unit."""
    section, i = Section("ports"), Counter("i", 2)
    tile = Out((32, 32), "bf16", (i,))
    inputs = {f"x{n}": section.timed(f"x{n}", (i,), {}, tile, interval_cycles=50) for n in range(streams)}
    stage = section.stage("add", (i,), inputs, lambda **x: sum(list(x.values())[1:], x["x0"]), tile, row_par=1).stage
    cost = stage_cost(stage, small)
    assert cost.pcus == units
    each = small.pcu.stages + small.pcu.latency_cycles
    assert cost.latency_cycles in (units * (each + small.mesh.hop_cycles), each)
    narrow = load_arch("sn40l", SMALL | {"pcu.vector_inputs": 1})
    if streams > 1:
        with pytest.raises(InputError, match=f"add reads {streams} vector streams.*pcu.vector_inputs = 1"):
            stage_cost(stage, narrow)
    else:
        assert stage_cost(stage, narrow).pcus == 1


def test_a_body_that_returns_a_tuple_is_told_what_it_must_return() -> None:
    right = r'body: returns a tuple; expected tiles by name, {"out": ..., "total": ...}'
    with pytest.raises(InputError, match=re.escape(right)):
        record(lambda x, total: (x, x + total), {"x": (4, 4)}, {"total": (4, 4)}, ["out"])
