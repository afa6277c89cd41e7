"""Expressions, views and kernels of the tile language."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from sim.gpu.check.instances import places, run_warp
from sim.gpu.language import (
    BUILTIN_VARS,
    CTA_X,
    Const,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Op,
    RegisterTile,
    RoleBuilder,
    Var,
    as_expr,
    evaluate,
    maximum,
    minimum,
    table,
    walk,
)
from sim.gpu.language.rules import check_kernel
from tests.gpu.kernels import matrix, tma_copy

ENV = {"cta_x": 5, "warp": 3, "k": 11}
VALUES = (7, -2, 0, 40)

Pair = tuple[IntLike, str]


def _combine(children: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    """An expression of the language beside the same in Python's own words."""
    two = st.tuples(children, children)
    small = st.integers(1, 9)

    def infix(op: str) -> st.SearchStrategy[Pair]:
        return two.map(lambda p: (eval(f"a {op} b", {"a": p[0][0], "b": p[1][0]}), f"({p[0][1]} {op} {p[1][1]})"))

    def by_constant(op: str) -> st.SearchStrategy[Pair]:
        pair = st.tuples(children, small)
        return pair.map(lambda p: (eval(f"a {op} b", {"a": p[0][0], "b": p[1]}), f"({p[0][1]} {op} {p[1]})"))

    def comparison(op: str) -> st.SearchStrategy[Pair]:
        return two.map(
            lambda p: (eval(f"a {op} b", {"a": as_expr(p[0][0]), "b": p[1][0]}), f"int({p[0][1]} {op} {p[1][1]})")
        )

    return st.one_of(
        *[infix(op) for op in ("+", "-", "*", "^")],
        *[by_constant(op) for op in ("//", "%", "<<", "&")],
        *[comparison(op) for op in ("<", "<=", ">", ">=")],
        two.map(lambda p: (minimum(p[0][0], p[1][0]), f"min({p[0][1]}, {p[1][1]})")),
        two.map(lambda p: (maximum(p[0][0], p[1][0]), f"max({p[0][1]}, {p[1][1]})")),
        two.map(lambda p: (as_expr(p[0][0]).equals(p[1][0]), f"int({p[0][1]} == {p[1][1]})")),
        children.map(lambda p: (table(VALUES, as_expr(p[0]) % len(VALUES)), f"VALUES[{p[1]} % {len(VALUES)}]")),
    )


LEAVES = st.one_of(
    st.integers(-20, 20).map(lambda n: (n, str(n))),
    st.sampled_from(sorted(ENV)).map(lambda name: (Var(name), name)),
)


@given(st.recursive(LEAVES, _combine, max_leaves=12))
def test_an_expression_means_what_python_means(pair: Pair) -> None:
    expression, python = pair
    assert evaluate(as_expr(expression), ENV) == eval(python, {**ENV, "VALUES": VALUES})


def test_constants_are_folded() -> None:
    assert (Const(3) * 4 + 2).__class__ is Const
    assert CTA_X + 0 is CTA_X
    assert CTA_X * 1 is CTA_X
    assert Const(0) == CTA_X * 0
    assert Const(0) == CTA_X % 1


@pytest.mark.parametrize("divide", [lambda e: e // 0, lambda e: e % 0, lambda e: e // -2])
def test_a_divisor_must_be_positive(divide: object) -> None:
    with pytest.raises(InputError, match="divisor must be a positive integer"):
        divide(CTA_X)  # type: ignore[operator]


def test_printed_as_written() -> None:
    assert str((CTA_X + 1) * 2 % 3) == "(((cta_x + 1) * 2) % 3)"
    assert str(minimum(CTA_X, 4)) == "min(cta_x, 4)"
    x = matrix("x", 8, 8, "fp16")
    assert str(x[CTA_X:4, :].T) == "x[cta_x:4, 0:8].T"


def test_a_view_needs_one_index_a_dimension() -> None:
    x = matrix("x", 8, 8, "fp16")
    with pytest.raises(InputError, match="1 indices for 2 dimensions"):
        x[0:4]
    with pytest.raises(InputError, match="step"):
        x[0:4:2, :]


def test_kernel_refuses_what_it_does_not_declare() -> None:
    other = KernelBuilder("other", (1, 1, 1))
    tile = other.shared("tile", (8, 8), "fp16")
    barrier = other.mbarrier("full", 1, 1)
    k = KernelBuilder("k", (1, 1, 1))
    with k.role("r", 1, 32) as r:
        r.lds(RegisterTile("v", (8, 8), "fp16").whole, tile.stage(), 1)
    with pytest.raises(InputError, match="shared tile tile is not declared"):
        k.build()
    k = KernelBuilder("k", (1, 1, 1))
    with k.role("r", 1, 32) as r:
        r.mbarrier_wait(barrier, 0, 0)
    with pytest.raises(InputError, match="barrier full is not declared"):
        k.build()
    k = KernelBuilder("k", (1, 1, 1))
    with k.role("r", 1, 32) as r:
        r.run("ffma", 1, after=("load",))
    with pytest.raises(InputError, match="waits for scoreboard load, which no op signals"):
        k.build()
    with pytest.raises(InputError, match="not a multiple of its cluster"):
        _role_of(KernelBuilder("k", (3, 1, 1), (2, 1, 1))).build()
    with pytest.raises(InputError, match="warps=33: must be a whole number from 1 to 32"):
        _role_of(KernelBuilder("k", (1, 1, 1)), warps=33).build()


def test_wgmma_needs_whole_warpgroups() -> None:
    k = KernelBuilder("k", (1, 1, 1))
    tile = k.shared("tile", (64, 64), "bf16")
    acc = RegisterTile("acc", (16, 64), "fp32")
    with k.role("producer", 1, 32) as r:
        r.run("alu", 1)
    with k.role("consumer", 4, 32) as r:
        r.wgmma(acc.whole, tile[0, 0:16, :], tile.stage(), shape="m64n64k16", dtype="bf16", count=4)
    with pytest.raises(InputError, match=r"role consumer, .*wgmma: needs whole warpgroups.*has warps 1 to 4"):
        k.build()


def test_a_kernel_has_roles_and_no_name_twice() -> None:
    with pytest.raises(InputError, match="kernel k has no role"):
        KernelBuilder("k", (1, 1, 1)).build()
    k = KernelBuilder("k", (1, 1, 1))
    k.shared("tile", (8, 8), "fp16")
    k.shared("tile", (8, 16), "fp16")
    with pytest.raises(InputError, match="two shared tiles are named tile; each needs a name of its own"):
        _role_of(k).build()


def _role_of(builder: KernelBuilder, warps: int = 1) -> KernelBuilder:
    with builder.role("r", warps, 32) as r:
        r.run("ffma", 1)
    return builder


def _trace(builder: KernelBuilder, cta: int = 0, warp: int = 0) -> list[tuple[int, int]]:
    """(op number, stage) of each instance of one warp."""
    kernel = builder.build()
    return [(i.number, i.stage) for i in run_warp(kernel, places(kernel)[cta], warp)]


def test_loops_guards_and_counters() -> None:
    k = KernelBuilder("k", (2, 1, 1))
    with k.role("first", 1, 32) as r:
        r.bar_sync(9, 2)
    with k.role("second", 1, 32) as r:
        count = r.assign("count", 10)
        with r.loop("i", 3, start=4, step=-2) as i:
            r.flag_add(i)
            with r.loop("j", maximum(i, 0) // 2) as j:
                r.flag_add(100 + 10 * i + j)
            r.assign("count", count + 1)
        with r.when(CTA_X.equals(1)):
            r.flag_add(count)
        r.flag_add(count * 2)
    assert _trace(k, cta=0, warp=0) == [(0, 9)]
    inner = [(1, 4), (2, 140), (2, 141), (1, 2), (2, 120), (1, 0)]
    assert _trace(k, cta=0, warp=1) == [*inner, (4, 26)]
    assert _trace(k, cta=1, warp=1) == [*inner, (3, 13), (4, 26)]


def test_places_of_clusters() -> None:
    k = _role_of(KernelBuilder("k", (4, 4, 1), (2, 2, 1))).build()
    at = places(k)
    assert [p.cta for p in at] == list(range(16))
    assert at[6].coordinates == (2, 1, 0)
    assert at[6].peers == (2, 3, 6, 7)
    assert (at[6].rank, at[6].cluster) == (2, 1)
    assert at[13].peers == (8, 9, 12, 13)
    assert (at[13].rank, at[13].cluster) == (3, 2)


def test_boxes_of_tiles_are_checked_where_they_are_used() -> None:
    k = KernelBuilder("k", (1, 1, 1))
    tile = k.shared("tile", (8, 8), "fp16", stages=2)
    with k.role("r", 1, 32) as r, r.loop("i", 4) as i:
        r.lds(RegisterTile("v", (8, 8), "fp16").whole, tile.stage(i), 1)
    with pytest.raises(InputError, match=r"kernel k, role r, lds: stage 2 of tile; it has stages 0 to 1"):
        _trace(k)
    k = KernelBuilder("k", (1, 1, 1))
    with k.role("r", 1, 32) as r, r.loop("i", 4) as i:
        r.run("alu", 1, srcs=(RegisterTile("v", (8, 8), "fp16")[i * 4 : 4, :],))
    with pytest.raises(InputError, match=r"leaves its tile of shape \(8, 8\)"):
        _trace(k)


def test_a_variable_must_be_set_before_use() -> None:
    k = KernelBuilder("k", (1, 1, 1))
    with k.role("r", 1, 32) as r:
        r.flag_add(Var("nowhere"))
    with pytest.raises(InputError, match="variable 'nowhere' is used before it is set"):
        _trace(k)


def test_every_warp_has_the_builtin_variables() -> None:
    k = KernelBuilder("k", (4, 1, 1), (2, 1, 1))
    with k.role("first", 1, 32) as r:
        r.run("alu", 1)
    with k.role("second", 2, 32) as r:
        for name in BUILTIN_VARS:
            r.flag_add(Var(name))
    assert _trace(k, cta=3, warp=2) == [(1, 3), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_addresses_are_aligned_and_disjoint() -> None:
    program = tma_copy()
    addresses = program.addresses()
    x, _ = program.tensors
    assert addresses["x"] % x.align_bytes == 0
    assert addresses["y"] >= addresses["x"] + x.size_bytes


def test_shared_bytes_counts_alignment_and_barriers() -> None:
    k = KernelBuilder("k", (1, 1, 1))
    k.shared("small", (3, 5), "int8")
    k.shared("swizzled", (8, 64), "bf16", stages=2, swizzle_bytes=128)
    k.mbarrier("full", 2, 1)
    assert _role_of(k).build().shared_bytes == 1024 + 2 * 1024 + 16


def test_a_ring_counts_steps() -> None:
    """Step 7 of three stages is the third turn of stage 1; its first turn finds the stage empty."""
    kernel = KernelBuilder("k", (1, 1, 1))
    ring = kernel.ring(3, producers=2, consumers=4, name="k_")
    with kernel.role("all", 1, 32) as r:
        for step in (1, 7):
            ring.acquire(r, step, 64)
            ring.fill(r, step)
            ring.wait(r, step)
            ring.release(r, step)
    built = kernel.build()
    assert [(b.name, b.stages, b.arrivals) for b in built.barriers] == [("k_full", 3, 2), ("k_empty", 3, 4)]
    found = [
        (op.opcode, op.barrier.name, *(None if e is None else evaluate(e, {}) for e in (op.stage, op.phase)))
        for op in walk(built.roles[0].body)
        if op.barrier is not None
    ]
    turn = [
        ("mbarrier_wait", "k_empty", 1, -1),
        ("mbarrier_expect", "k_full", 1, None),
        ("mbarrier_arrive", "k_full", 1, None),
        ("mbarrier_wait", "k_full", 1, 0),
        ("mbarrier_arrive", "k_empty", 1, None),
    ]
    later = [(op, name, stage, None if phase is None else phase + 2) for op, name, stage, phase in turn]
    assert found == [*turn, *later]


def test_a_kernel_written_against_the_old_names_builds() -> None:
    """`sim.gpu.program` stays for one release."""
    from sim.gpu import program as old

    x = old.GlobalTensor("x", (64, 64), "fp32", strides=(64, 1))
    kernel = old.KernelBuilder("copy", grid=(1, 1, 1))
    tile = kernel.shared("tile", (8, 64), "fp32", 2)
    value = old.RegisterTile("value", (8, 64), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.lds(value.whole, tile.stage(0), 4)
        r.stg(x[0:8, :], value.whole, 4)
    built = kernel.build()
    assert isinstance(built, Kernel)
    assert old.Program("copy", (x,), (built,), "by hand").addresses()["x"] > 0
    assert (old.Kernel, old.walk, old.CTA_X) == (Kernel, walk, CTA_X)


# ------------------------------------------------------------------------------------ what an op costs and what it does


def counted(write: Callable[[RoleBuilder], None]) -> int:
    """Warp instructions of the one op that `write` appends."""
    kernel = KernelBuilder("counted", (1, 1, 1))
    with kernel.role("warps", warps=4, registers=64) as role:
        write(role)
    (op,) = kernel.build().roles[0].body
    assert isinstance(op, Op)
    return op.count


X = GlobalTensor("x", (64, 64), "fp16", (64, 1))
ROW, SQUARE = RegisterTile("row", (1, 64), "fp16"), RegisterTile("square", (16, 16), "fp16")
SUM = RegisterTile("sum", (16, 8), "fp32")


@pytest.mark.parametrize(
    ("write", "count"),
    [
        (lambda r, **c: r.ldg(SQUARE.whole, X[0:16, 0:16], into="x", **c), 1),
        (lambda r, **c: r.ldg(SQUARE.whole, X[0:16, 0:16], into="x", vector_bytes=4, **c), 4),
        (lambda r, **c: r.stg(X[0:64, 0:64], SQUARE.whole, vector_bytes=2, **c), 128),
        (lambda r, **c: r.run("fmul", dst=SQUARE.whole, srcs=(SQUARE.whole,), compute=lambda _, x: x, **c), 8),
        (lambda r, **c: r.mma(SUM.whole, SQUARE.whole, SQUARE[:, 0:8], shape="m16n8k8", dtype="fp16", **c), 2),
        (lambda r, **c: r.mma(SUM.whole, SQUARE.whole, SQUARE[0:8, :].T, shape="m16n8k8", dtype="fp16", **c), 2),
    ],
)
def test_counts_follow_from_the_views_and_fewer_are_refused(write: Any, count: int) -> None:
    """Arithmetic may be packed, two elements a lane; bytes and products may not."""
    assert counted(write) == count
    assert counted(lambda r: write(r, count=3 * count)) == 3 * count
    packed = count // 2 if count == 8 else count
    assert counted(lambda r: write(r, count=packed)) == packed
    if packed > 1:
        with pytest.raises(InputError, match=rf"count={packed - 1}: .*, which takes {packed}"):
            counted(lambda r: write(r, count=packed - 1))


def test_threads_that_share_a_vector_need_more_loads() -> None:
    kernel = KernelBuilder("shared", (1, 1, 1))
    tile = kernel.shared("tile", (1, 64), "fp16")
    with kernel.role("warps", warps=1, registers=64) as role:
        role.lds(ROW.whole, tile.stage(), sharers=8)
        with pytest.raises(InputError, match="128 B at 512 B an instruction, 8 threads a vector, which takes 2"):
            role.lds(ROW.whole, tile.stage(), 1, sharers=8)
    (op,) = kernel.build().roles[0].body
    assert isinstance(op, Op)
    assert op.count == 2


def test_numpys_numbers_of_warps_are_taken_for_pythons() -> None:
    kernel = tma_copy().kernels[0]
    roles = tuple(dataclasses.replace(role, warps=np.int32(role.warps)) for role in kernel.roles)  # type: ignore[arg-type]
    same = dataclasses.replace(kernel, roles=roles)
    check_kernel(same)
    assert type(same.warps) is int
    assert same.warps == kernel.warps
