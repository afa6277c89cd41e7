"""The interpreter's rules, each shown by the smallest log that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.dtypes import FORMATS, round_to
from arch.errors import InputError
from arch.load import load_arch
from sim.gpu.check.interpret import CheckResult, interpret
from sim.gpu.check.mutants import mutants
from sim.gpu.engine.api import Device
from sim.gpu.language import (
    CTA_X,
    WARP,
    GlobalTensor,
    KernelBuilder,
    Op,
    Program,
    RegisterTile,
    RoleBuilder,
    Var,
)
from sim.gpu.units.events import Event
from tests.gpu.kernels import (
    butterfly,
    dynamic_copy,
    matrix,
    mma_gemm,
    numbers,
    split_sum,
    tma_copy,
    two_kernels,
    wgmma_gemm,
)
from tests.reference.gpu_executor import Deadlock, execute

# ------------------------------------------------------------------------------------------- programs that are right


@settings(max_examples=12)
@given(
    m=st.integers(1, 300),
    n=st.integers(8, 200),
    k=st.integers(1, 300),
    stages=st.integers(1, 4),
    dtype=st.sampled_from(["bf16", "fp16", "fp8", "int8"]),
    seed=st.integers(0, 99),
)
def test_wgmma_gemm_of_any_shape(m: int, n: int, k: int, stages: int, dtype: str, seed: int) -> None:
    out = "int32" if dtype == "int8" else "fp32"
    program = wgmma_gemm(m, n, k, stages=stages, dtype=dtype, out=out)
    a, b = numbers(m, k), numbers(k, n, seed=1)
    result = interpret(program, execute(program, seed), {"a": a, "b": b})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["c"], a @ b)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_multicast_reaches_every_cta_of_the_cluster(cluster: int) -> None:
    program = wgmma_gemm(512, 128, 192, cluster=cluster)
    a, b = numbers(512, 192), numbers(192, 128, seed=1)
    result = interpret(program, execute(program), {"a": a, "b": b})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["c"], round_to(a @ b, "bf16"))


@settings(max_examples=12)
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 150),
    k=st.integers(1, 150),
    stages=st.integers(2, 4),
    transposed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_mma_gemm_of_any_shape(m: int, n: int, k: int, stages: int, transposed: bool, seed: int) -> None:
    program = mma_gemm(m, n, k, stages, transposed)
    a, b = numbers(m, k), numbers(k, n, seed=1)
    result = interpret(program, execute(program, seed), {"a": a, "b": b})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["c"], a @ b)


@pytest.mark.parametrize("rows", [1, 31, 32, 200])
def test_boxes_are_clipped_at_their_tensor(rows: int) -> None:
    program = tma_copy(rows=rows)
    x = numbers(rows, 64)
    result = interpret(program, execute(program), {"x": x})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["y"], x)


def test_semaphores_atomics_kernels_dynamic_tiles_and_shuffles() -> None:
    for program, function in (
        (split_sum(), lambda x: 2 * x.sum(axis=0, keepdims=True)),
        (two_kernels(), lambda x: 2 * x),
        (dynamic_copy(tiles=9), lambda x: x),
        (butterfly(), lambda x: np.full_like(x, x.sum())),
    ):
        x = numbers(*program.tensors[0].shape)
        result = interpret(program, execute(program, seed=3), {"x": x})
        assert result.violations == []
        np.testing.assert_array_equal(result.outputs["y"], function(x))


def test_rows_may_come_in_any_order() -> None:
    program = mma_gemm()
    a, b = numbers(96, 96), numbers(96, 64, seed=1)
    log = execute(program)
    results = [interpret(program, log[order], {"a": a, "b": b}) for order in (slice(None), slice(None, None, -1))]
    assert all(not r.violations for r in results)
    np.testing.assert_array_equal(results[0].outputs["c"], results[1].outputs["c"])


# ------------------------------------------------------------------------------------- two warps, one tile, by hand

WRITE, BARRIER, READ, STORE = range(4)
VALUE = RegisterTile("value", (1, 8), "fp32")


def handover(dtype: str = "fp32", readers_count: int = 2) -> Program:
    """Warp 0 puts a row into shared memory, both meet, warp 1 takes it and stores it."""
    x, y = matrix("x", 1, 8, dtype), matrix("y", 1, 8, dtype, "output")
    kernel = KernelBuilder("handover", (1, 1, 1))
    tile = kernel.shared("tile", (1, 8), dtype)
    value = RegisterTile("value", (1, 8), dtype)
    with kernel.role("writer", 1, 32) as w:
        w.ldg(value.whole, x[:, :], 1, into="x")
        w.sts(tile.stage(), value.whole, 1, after=("x",))
        w.bar_sync(0, 2)
    with kernel.role("reader", 1, 32) as r:
        r.bar_sync(0, readers_count)
        r.lds(value.whole, tile.stage(), 1)
        r.stg(y[:, :], value.whole, 1)
    for number in range(2, readers_count):  # a CTA has the warps that meet
        with kernel.role(f"idle{number}", 1, 32):
            pass
    return Program("handover", (x, y), (kernel.build(),), "hand")


#: One row an op: kernel, CTA, warp, op, issue, read, done, value.
HANDOVER = [
    [0, 0, 0, 0, 10, 20, 30, 0],
    [0, 0, 0, 1, 30, 31, 40, 0],
    [0, 0, 0, 2, 41, 41, 50, 0],
    [0, 0, 1, 3, 12, 12, 50, 0],
    [0, 0, 1, 4, 51, 55, 60, 0],
    [0, 0, 1, 5, 61, 62, 70, 0],
]
X = np.arange(8.0).reshape(1, 8)


def replay(changes: dict[int, dict[Event, int]], program: Program | None = None) -> CheckResult:
    """The handover with some times changed; `changes` by op."""
    log = np.array(HANDOVER, dtype=np.int64)
    for op, columns in changes.items():
        for column, value in columns.items():
            log[log[:, Event.OP] == op, column] = value
    return interpret(program or handover(), log, {"x": X})


def test_the_handover_works() -> None:
    result = replay({})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["y"], X)


def test_reading_with_a_write_in_flight_gives_nan() -> None:
    result = replay({1: {Event.T_DONE: 52}})
    assert np.isnan(result.outputs["y"]).all()
    assert len(result.violations) == 1
    text = result.violations[0]
    times = "op 4, CTA 0, warp 1, cycles 0.2..0.23)"
    for word in ("kernel handover", "reader lds (test_interpret.py:", times, "tile stage 0 [0..1, 0..8]"):
        assert word in text
    assert "that is being written by writer sts (test_interpret.py:" in text
    assert text.endswith("op 1, CTA 0, warp 0, cycles 0.12..0.2)")


def test_integers_have_a_poison_too() -> None:
    assert np.isnan(replay({1: {Event.T_DONE: 52}}, handover("int8")).outputs["y"]).all()
    np.testing.assert_array_equal(replay({}, handover("int8")).outputs["y"], X)


def test_a_write_that_is_just_done_is_there() -> None:
    result = replay({1: {Event.T_DONE: 51}})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["y"], X)


def test_a_barrier_passed_too_early_is_seen() -> None:
    result = replay({3: {Event.T_DONE: 20}, 4: {Event.T_ISSUE: 51}})
    assert len(result.violations) == 1
    assert "op 3, CTA 0, warp 1, cycles 0.05..0.08) passed before all warps had arrived" in result.violations[0]


def test_warps_that_meet_expect_as_many() -> None:
    result = replay({}, handover(readers_count=3))
    assert len(result.violations) == 1
    assert "writer bar_sync (test_interpret.py:" in result.violations[0]
    assert "arrives for 2 warps, others at the same barrier for 3" in result.violations[0]


def test_a_consumer_issued_before_its_scoreboard_is_seen() -> None:
    result = replay({1: {Event.T_ISSUE: 29}})
    assert any("was issued before scoreboard x was released at cycle 0.12" in v for v in result.violations)


def test_an_interlocked_load_must_be_done_before_its_registers_are_used() -> None:
    result = replay({5: {Event.T_ISSUE: 59}})
    assert any("touches registers value [0..1, 0..8] that reader lds" in v for v in result.violations)
    assert np.isnan(result.outputs["y"]).all()


def test_overwriting_what_is_being_read_is_seen() -> None:
    x, y = matrix("x", 1, 8, "fp32"), matrix("y", 1, 8, "fp32", "output")
    kernel = KernelBuilder("overwrite", (1, 1, 1))
    tile = kernel.shared("tile", (1, 8), "fp32")
    with kernel.role("reader", 1, 32) as r:
        r.sts(tile.stage(), VALUE.whole, 1)
        r.lds(VALUE.whole, tile.stage(), 1)
        r.bar_sync(0, 2)
        r.stg(y[:, :], VALUE.whole, 1)
    with kernel.role("writer", 1, 32) as w:
        w.bar_sync(0, 2)
        w.sts(tile.stage(), VALUE.whole, 1)
    program = Program("overwrite", (x, y), (kernel.build(),), "hand")
    log = [
        [0, 0, 0, 0, 10, 11, 20, 0],
        [0, 0, 0, 1, 11, 60, 70, 0],
        [0, 0, 0, 2, 12, 12, 40, 0],
        [0, 0, 0, 3, 71, 72, 80, 0],
        [0, 0, 1, 4, 30, 30, 40, 0],
        [0, 0, 1, 5, 41, 42, 50, 0],
    ]
    result = interpret(program, np.array(log), {"x": X})
    assert len(result.violations) == 1
    assert "writes tile stage 0 [0..1, 0..8] of CTA 0 that is being read by reader lds" in result.violations[0]


def test_a_warps_own_stores_and_loads_keep_their_order() -> None:
    """The load is issued and has read before the store is visible to others: it sees the store all the same."""
    x, y = matrix("x", 1, 8, "fp32"), matrix("y", 1, 8, "fp32", "output")
    kernel = KernelBuilder("own", (1, 1, 1))
    tile = kernel.shared("tile", (1, 8), "fp32")
    other = RegisterTile("other", (1, 8), "fp32")
    with kernel.role("one", 1, 32) as r:
        r.ldg(VALUE.whole, x[:, :], 1, into="x")
        r.sts(tile.stage(), VALUE.whole, 1, after=("x",))
        r.lds(other.whole, tile.stage(), 1)
        r.stg(y[:, :], other.whole, 1)
    program = Program("own", (x, y), (kernel.build(),), "hand")
    log = [
        [0, 0, 0, 0, 0, 5, 9, 0],
        [0, 0, 0, 1, 10, 11, 40, 0],
        [0, 0, 0, 2, 12, 20, 30, 0],
        [0, 0, 0, 3, 31, 32, 50, 0],
    ]
    result = interpret(program, np.array(log), {"x": X})
    assert result.violations == []
    np.testing.assert_array_equal(result.outputs["y"], X)


def test_a_stream_reads_its_shared_operands_to_its_end() -> None:
    """Multiplies fed from shared memory: a store to what they read must wait for the last of them."""
    y = matrix("y", 1, 8, "fp32", "output")
    kernel = KernelBuilder("stream", (1, 1, 1))
    tile = kernel.shared("tile", (1, 8), "fp32")
    acc = RegisterTile("acc", (1, 8), "fp32")
    with kernel.role("one", 2, 32) as r:
        r.run("iadd", dst=acc.whole, compute=np.zeros_like)
        with r.when(WARP.equals(0)):
            r.sts(tile.stage(), acc.whole, 1)
        r.bar_sync(0, 2)
        with r.when(WARP.equals(0)):
            loads = (Op("lds", 1, srcs=(tile.stage(),)),)
            r.run("ffma", 8, dst=acc.whole, srcs=(tile.stage(),), loads=loads, compute=lambda old, x: old + x + 1)
            r.stg(y[:, :], acc.whole, 1)
        with r.when(WARP.equals(1)):
            r.sts(tile.stage(), acc.whole, 1)
    program = Program("stream", (y,), (kernel.build(),), "hand")

    def log(store: int) -> list[list[int]]:
        return [
            [0, 0, 0, 0, 0, 0, 1, 0],
            [0, 0, 0, 1, 2, 3, 4, 0],
            [0, 0, 0, 2, 5, 5, 9, 0],
            [0, 0, 0, 3, 10, 30, 34, 0],
            [0, 0, 0, 4, 35, 36, 50, 0],
            [0, 0, 1, 0, 0, 0, 1, 0],
            [0, 0, 1, 2, 5, 5, 9, 0],
            [0, 0, 1, 5, store, store + 1, store + 4, 0],
        ]

    for store, expected in ((29, ["flight", "race"]), (31, ["race"])):
        result = interpret(program, np.array(log(store)), {})
        assert [("being read" in v, "nothing orders" in v) for v in result.violations] == [
            (kind == "flight", kind == "race") for kind in expected
        ]
    np.testing.assert_array_equal(result.outputs["y"], np.ones((1, 8)))


# ------------------------------------------------------------------------------------- one rule, one small program


def small(write: Callable[[RoleBuilder, KernelBuilder], None], *, ctas: int = 1, warps: int = 1) -> CheckResult:
    """Runs a one-role kernel on x and y of shape (4, 8) and replays it."""
    x, y = matrix("x", 4, 8, "fp32"), matrix("y", 4, 8, "fp32", "output")
    kernel = KernelBuilder("small", (ctas, 1, 1))
    with kernel.role("role", warps, 32) as r:
        r.tensors = (x, y)  # type: ignore[attr-defined]
        write(r, kernel)
    program = Program("small", (x, y), (kernel.build(),), "hand")
    return interpret(program, execute(program), {"x": numbers(4, 8)})


def _y(r: RoleBuilder) -> GlobalTensor:
    return r.tensors[1]  # type: ignore[attr-defined]


def _x(r: RoleBuilder) -> GlobalTensor:
    return r.tensors[0]  # type: ignore[attr-defined]


TILE = RegisterTile("tile", (4, 8), "fp32")


def test_what_was_never_written_is_nan() -> None:
    def shared(r: RoleBuilder, k: KernelBuilder) -> None:
        r.lds(TILE.whole, k.shared("s", (4, 8), "fp32").stage(), 1)
        r.stg(_y(r)[:, :], TILE.whole, 1)

    assert np.isnan(small(shared).outputs["y"]).all()
    assert np.isnan(small(lambda r, k: r.stg(_y(r)[:, :], TILE.whole, 1)).outputs["y"]).all()
    assert np.isnan(small(lambda r, k: r.run("alu", 1)).outputs["y"]).all()


def test_an_op_without_a_meaning_leaves_nan() -> None:
    def opaque(r: RoleBuilder, k: KernelBuilder) -> None:
        r.ldg(TILE.whole, _x(r)[:, :], 1, into="x")
        r.run("alu", 1, dst=TILE[0:2, :], srcs=(TILE[0:2, :],), after=("x",))
        r.stg(_y(r)[:, :], TILE.whole, 1)

    y = small(opaque).outputs["y"]
    assert np.isnan(y[:2]).all()
    np.testing.assert_array_equal(y[2:], numbers(4, 8)[2:])


def test_two_ctas_that_write_the_same_place_race() -> None:
    def both(r: RoleBuilder, k: KernelBuilder) -> None:
        r.ldg(TILE.whole, _x(r)[:, :], 1, into="x")
        r.stg(_y(r)[:, :], TILE.whole, 1, after=("x",))

    result = small(both, ctas=2)
    assert len(result.violations) == 1
    assert "which is written by role stg" in result.violations[0]
    assert "nothing orders the two" in result.violations[0]

    def apart(r: RoleBuilder, k: KernelBuilder) -> None:
        r.ldg(TILE[0:2, :], _x(r)[CTA_X * 2 : 2, :], 1, into="x")
        r.stg(_y(r)[CTA_X * 2 : 2, :], TILE[0:2, :], 1, after=("x",))

    assert small(apart, ctas=2).violations == []


def test_barriers_need_an_initialisation_that_is_ordered() -> None:
    def arrive(r: RoleBuilder, k: KernelBuilder) -> None:
        barrier = k.mbarrier("b", 1, 2)
        r.mbarrier_arrive(barrier, 0)

    result = small(arrive, warps=2)
    assert len(result.violations) == 1
    assert "uses barrier b of CTA 0, whose initialisation is not ordered before it" in result.violations[0]

    def after_sync(r: RoleBuilder, k: KernelBuilder) -> None:
        barrier = k.mbarrier("b", 1, 2)
        r.bar_sync(0, 2)
        r.mbarrier_arrive(barrier, 0)

    assert small(after_sync, warps=2).violations == []


def test_one_arrival_too_many_is_seen() -> None:
    """The phase waits for bytes that never come: a second arrival has no place in it."""

    def twice(r: RoleBuilder, k: KernelBuilder) -> None:
        barrier = k.mbarrier("b", 1, 1)
        r.mbarrier_expect(barrier, 0, 64)
        r.mbarrier_arrive(barrier, 0)

    result = small(twice)
    assert "arrives once too often: 0 arrivals and 64 bytes missing in phase 0" in result.violations[0]


def test_a_wait_two_phases_late_cannot_tell_by_parity() -> None:
    def late(r: RoleBuilder, k: KernelBuilder) -> None:
        barrier = k.mbarrier("b", 1, 1)
        r.mbarrier_arrive(barrier, 0)
        r.mbarrier_arrive(barrier, 0)
        r.mbarrier_wait(barrier, 0, 1)
        r.mbarrier_wait(barrier, 0, 0)

    result = small(late)
    assert len(result.violations) == 1
    assert "waits for phase 0 when b has completed 2" in result.violations[0]


def test_a_negative_phase_is_complete() -> None:
    assert small(lambda r, k: r.mbarrier_wait(k.mbarrier("b", 1, 1), 0, -1)).violations == []


def test_results_are_rounded_to_the_format_of_where_they_go() -> None:
    x = matrix("x", 1, 8, "fp32")
    y = matrix("y", 1, 8, "bf16", "output")
    kernel = KernelBuilder("round", (1, 1, 1))
    source, narrow = RegisterTile("source", (1, 8), "fp32"), RegisterTile("narrow", (1, 8), "fp8")
    with kernel.role("role", 1, 32) as r:
        r.ldg(source.whole, x[:, :], 1, into="x")
        r.run("cvt", 1, dst=narrow.whole, srcs=(source.whole,), compute=lambda _, v: v, after=("x",))
        r.stg(y[:, :], narrow.whole, 1)
    program = Program("round", (x, y), (kernel.build(),), "hand")
    values = np.array([[0.1, -1.06, 17.0, 449.0, -1e9, 1e-9, 0.0, 3.0]])
    result = interpret(program, execute(program), {"x": values})
    np.testing.assert_array_equal(result.outputs["y"], [[0.1015625, -1.0, 16.0, 448.0, -448.0, 0.0, 0.0, 3.0]])


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.sampled_from(sorted(FORMATS)),
)
def test_rounding_is_to_a_nearest_value_of_the_format(values: list[float], dtype: str) -> None:
    exact = np.array(values)
    rounded = round_to(exact, dtype)
    np.testing.assert_array_equal(round_to(rounded, dtype), rounded)
    small = np.abs(exact) < 100
    fmt = FORMATS[dtype]
    if fmt.signed:
        np.testing.assert_array_equal(round_to(-exact, dtype)[small], -rounded[small])
    inside = (exact < fmt.largest) & (exact >= fmt.least) & (np.abs(exact) >= 2.0**fmt.min_exponent)
    inside &= dtype != "bool"
    relative = 2.0**-fmt.significand_bits if fmt.significand_bits else 0.5
    error = np.abs(rounded - exact)[inside]
    assert (error <= relative * np.maximum(np.abs(exact)[inside], 1 if relative == 0.5 else 0)).all()
    assert np.isnan(round_to(np.array([np.nan]), dtype)).all()


# ------------------------------------------------------------------------------------------------------- wrong input


def test_inputs_must_fit() -> None:
    program = tma_copy()
    log = execute(program)
    with pytest.raises(InputError, match="inputs: x is missing"):
        interpret(program, log, {})
    with pytest.raises(InputError, match=r"inputs: x has shape \(3, 3\); the program says \(200, 64\)"):
        interpret(program, log, {"x": np.zeros((3, 3))})
    with pytest.raises(InputError, match="inputs: z is no tensor of program copy; it has x, y"):
        interpret(program, log, {"x": np.zeros((200, 64)), "z": np.zeros(1)})
    with pytest.raises(InputError, match=r"shape \(3, 7\); it must be \(rows, 8\)"):
        interpret(program, log[:3, :7], {"x": np.zeros((200, 64))})


def test_a_log_of_another_program_is_refused() -> None:
    for change, message in (
        (lambda log: log[log[:, Event.OP] != 1], "the program runs op 1"),
        (lambda log: log[:-1], "the log has nothing"),
        (lambda log: np.vstack([log, [0, 0, 0, 0, 999, 999, 999, 0]]), "follows the end of the program"),
        (lambda log: np.vstack([log, [0, 7, 0, 0, 1, 1, 1, 0]]), "CTAs or warps that the kernel does not have"),
    ):
        log = np.array(HANDOVER, dtype=np.int64)
        with pytest.raises(InputError, match=message):
            interpret(handover(), change(log), {"x": X})


def test_a_result_of_the_wrong_size_names_its_op() -> None:
    def crooked(r: RoleBuilder, k: KernelBuilder) -> None:
        r.run("alu", 1, dst=TILE.whole, compute=lambda old: old[:2])

    with pytest.raises(InputError, match=r"kernel small, alu \(op 0\): the result has shape \(2, 8\)"):
        small(crooked)


# ------------------------------------------------------------------------------------------------ reference executor


def test_a_deadlock_says_what_each_warp_waits_for() -> None:
    kernel = KernelBuilder("stuck", (1, 1, 1))
    barrier = kernel.mbarrier("never", 2, 1)
    with kernel.role("a", 1, 32) as r:
        r.mbarrier_wait(barrier, 1, 3)
    with kernel.role("b", 1, 32) as r:
        r.bar_sync(5, 2)
    program = Program("stuck", (), (kernel.build(),), "hand")
    with pytest.raises(Deadlock) as stuck:
        execute(program)
    assert "CTA 0 warp 0 (a) waits for phase 3 of never[1]" in str(stuck.value)
    assert "CTA 0 warp 1 (b) waits for bar_sync 5 of 2 warps" in str(stuck.value)


def test_a_seed_gives_one_log() -> None:
    program = wgmma_gemm(128, 128, 128)
    np.testing.assert_array_equal(execute(program, 5), execute(program, 5))
    assert not np.array_equal(execute(program, 5), execute(program, 6))


def test_an_arrival_without_waiting_counts_and_a_loop_runs_while_its_condition_holds() -> None:
    x = GlobalTensor("x", (4,), "fp32", strides=(1,), role="output")
    tile = RegisterTile("tile", (1,), "fp32")
    builder = KernelBuilder("turns", grid=(1, 1, 1))
    shared = builder.shared("shared", (4,), "fp32")
    with builder.role("first", warps=1, registers=32) as w:
        w.assign("i", 0)
        with w.loop_while(Var("i") < 4):
            w.run("iadd", 1, dst=tile.whole, compute=lambda _, i: np.array([10.0 * i]), indices=(Var("i"),))
            w.sts(shared[0, Var("i") : 1], tile.whole, 1, vector_bytes=4)
            w.assign("i", Var("i") + 1)
        w.bar_arrive(1, 2)
    with builder.role("second", warps=1, registers=32) as w:
        row = RegisterTile("row", (4,), "fp32")
        w.bar_sync(1, 2)
        w.lds(row.whole, shared.stage(), 1, vector_bytes=4)
        w.stg(x[:], row.whole, 1, vector_bytes=4)
    program = Program("turns", (x,), (builder.build(),), "")
    logged = Device(load_arch("t4"), log=True).run(program.kernels[0], program.addresses()).events
    assert logged is not None
    for events in (execute(program, seed=3), logged):
        check = interpret(program, events, {})
        assert check.violations == []
        np.testing.assert_array_equal(check.outputs["x"], [0, 10, 20, 30])
    (without,) = [m for what, m in mutants(program) if "bar_sync" in what]
    assert interpret(without, execute(without, seed=3), {}).violations


def test_a_wait_that_never_ends_says_who_has_arrived() -> None:
    """Two of three arrivals come: the finding names them with their lines, and what is missing."""
    kernel = KernelBuilder("short", (1, 1, 1))
    barrier = kernel.mbarrier("ready", 1, 3)
    with kernel.role("warps", warps=2, registers=32) as r:
        r.bar_sync(0, 2)
        r.mbarrier_arrive(barrier, 0)
        r.mbarrier_wait(barrier, 0, 0)
    program = Program("short", (), (kernel.build(),), "by hand")
    rows = [[0, 0, warp, op, 10 * op, 10 * op, 10 * op + 5, 0] for warp in (0, 1) for op in (0, 1, 2)]
    (first, second) = interpret(program, np.array(rows, dtype=np.int64), {}).violations
    for text in (first, second):
        assert "which never happens (1 arrivals and 0 bytes missing in phase 0; arrived: warps warp 0 at" in text
        assert text.count("test_interpret.py:") == 3  # the wait, and both arrivals
