"""What reaches outside is refused before it runs, or as soon as it happens: indices, divisors, lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from arch import limits
from arch.errors import InputError
from arch.load import load_arch
from sim.gpu.engine.api import Device
from sim.gpu.language import (
    CLUSTER_RANK,
    CTA_X,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    KernelBuilder,
    MBarrier,
    Program,
    RegisterTile,
    RoleBuilder,
    SharedTile,
    Var,
    maximum,
    minimum,
    table,
)
from sim.gpu.language.expressions import evaluate
from sim.gpu.lower.kernel import lower_kernel
from sim.gpu.lower.ranges import ANY, Known, Range, range_of

H100 = load_arch("h100-sxm")
X = GlobalTensor("x", (1024, 64), "fp32", strides=(64, 1))
ACC = RegisterTile("acc", (8, 64), "fp32")


class Parts:
    """A kernel of four CTAs in clusters of two, and what its op may name."""

    def __init__(self) -> None:
        self.k = KernelBuilder("k", grid=(4, 1, 1), cluster=(2, 1, 1), flags=3)
        self.bars = self.k.mbarrier("full", 4, 1)
        self.tile = self.k.shared("tile", (16, 64), "fp32", 2)


Write = Callable[[RoleBuilder, Parts], Any]


def kernel(write: Write, warps: int = 4) -> Any:
    parts = Parts()
    with parts.k.role("r", warps, 64) as r:
        write(r, parts)
    return parts.k.build()


def _loop(r: RoleBuilder, trips: Any, write: Callable[[Expr], Any]) -> None:
    with r.loop("i", trips) as i:
        write(i)


def _when(r: RoleBuilder, condition: Any, write: Callable[[], Any]) -> None:
    with r.when(condition):
        write()


OUTSIDE: dict[str, tuple[Write, str]] = {
    "flag": (lambda r, p: r.flag_add(CTA_X * 10**7 + 10**9), r"flag_add: flag .* is 1000000000 to 1030000000.*0 to 2"),
    "flag that waits": (lambda r, p: r.flag_wait(CTA_X, 1), "flag cta_x is 0 to 3; allowed are 0 to 2"),
    "barrier": (
        lambda r, p: r.bar_sync(CTA_X * 10**6 + 20, 4),
        "barrier .* is 20 to 3000020; allowed are 0 to 15",
    ),
    "barrier by warp": (lambda r, p: r.bar_arrive(WARP * 8, 4), "named barrier .* is 0 to 24"),
    "stage": (lambda r, p: r.mbarrier_arrive(p.bars, CTA_X * 10**6 + 10**6), "stage of mbarrier full .*0 to 3"),
    "negative": (lambda r, p: r.mbarrier_arrive(p.bars, CTA_X - 1), "is -1 to 2; allowed are 0 to 3"),
    "table": (lambda r, p: r.assign("v", table((1, 2), CTA_X * 10**6)), "index of a table .* is 0 to 3000000"),
    "divisor": (lambda r, p: r.assign("v", 5 // CTA_X), "divisor cta_x is 0 to 3"),
    "modulo of what is 0": (lambda r, p: r.assign("v", 5 % (CTA_X - CTA_X)), "divisor .* is 0; allowed are 1"),
    "shift": (lambda r, p: r.assign("v", Const(1) << (CTA_X * 40)), "shift .* is 0 to 120; allowed are 0 to 62"),
    "int64": (lambda r, p: r.assign("v", CTA_X * 2**40 * 2**40), "does not fit 64 bits"),
    "loop": (lambda r, p: _loop(r, 5, lambda i: r.mbarrier_arrive(p.bars, i)), "stage .* i is 0 to 4"),
    "loop of a CTA": (lambda r, p: _loop(r, CTA_X, lambda i: r.flag_add(i + 9)), "flag .* is 9 to 11"),
    "bytes": (lambda r, p: r.mbarrier_expect(p.bars, 0, CTA_X * -8), "bytes expected .* is -24 to 0"),
    "mask": (lambda r, p: r.mbarrier_arrive(p.bars, 0, CTA_X * 4), "mask of the cluster's CTAs .* is 0 to 12"),
    "rank": (lambda r, p: r.dsmem_st(p.tile[0, 0:8, :], ACC.whole, 16, CLUSTER_RANK + 1), "mask .* is 2 to 4"),
    "rows of a tile": (
        lambda r, p: r.sts(p.tile[0, WARP * 8 : 8, :], ACC.whole),
        "of tile .* is 0 to 24.*0 to 8",
    ),
    "stage of a tile": (lambda r, p: r.sts(p.tile[CTA_X, 0:8, :], ACC.whole), "stage of tile cta_x is 0 to 3"),
    "far from a tensor": (lambda r, p: r.stg(X[CTA_X * 10**7 : 8, :], ACC.whole), "offset of x in dimension 0"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_leaves_its_range_is_refused_when_it_is_lowered(case: str) -> None:
    write, message = OUTSIDE[case]
    with pytest.raises(InputError, match=rf"kernel k, role r.*{message}"):
        lower_kernel(kernel(write), {"x": 0}, H100)


INSIDE: dict[str, Write] = {
    "a guard": lambda r, p: _when(r, CTA_X < 3, lambda: r.flag_add(CTA_X)),
    "two guards": lambda r, p: _when(r, (CTA_X > 1) & (CTA_X < 3), lambda: r.bar_sync(CTA_X * 7, 4)),
    "what cancels": lambda r, p: r.flag_add(CTA_X - CTA_X // 2 * 2),
    "a remainder": lambda r, p: _loop(r, 100, lambda i: r.mbarrier_arrive(p.bars, i % 4)),
    "a table": lambda r, p: r.flag_add(table((2, 0, 1, 2), CTA_X)),
    "a body that has no trip": lambda r, p: _when(r, CTA_X > 3, lambda: r.flag_add(10**9)),
    "a divisor behind a guard": lambda r, p: _when(r, CTA_X > 0, lambda: r.assign("v", 8 // CTA_X)),
    "the edge of a tensor": lambda r, p: r.stg(X[1020 + CTA_X * 8 : 8, :], ACC.whole),
}


@pytest.mark.parametrize("case", INSIDE)
def test_what_stays_within_its_range_is_lowered_without_checks(case: str) -> None:
    program = lower_kernel(kernel(INSIDE[case]), {"x": 0}, H100)
    assert program.limits.tolist() == [[0, 0]]


def _counted(r: RoleBuilder, step: int, use: Callable[[Expr], Any]) -> None:
    """A counter whose range nobody knows: doubled and more in a loop."""
    count = r.assign("count", 0)
    with r.loop("i", 6):
        use(count)
        r.assign("count", (count * count + step) * (count < 40))


RUNNING: dict[str, tuple[Write, str]] = {
    "flag": (lambda r, p: _counted(r, 2, r.flag_add), "flag_add: flag count is 6 while it runs; allowed are 0 to 2"),
    "barrier": (lambda r, p: _counted(r, 4, lambda n: r.bar_sync(n, 4)), "named barrier count is 20 while it runs"),
    "table": (lambda r, p: _counted(r, 2, lambda n: r.assign("v", table((1, 2, 3), n))), "index of a table count is 6"),
    "divisor": (lambda r, p: _counted(r, 2, lambda n: r.assign("v", 5 % (37 - n))), "divisor .* is -1 while it runs"),
    "tile": (lambda r, p: r.flag_add(r.next_tile("tile")), "flag tile is 3 while it runs; allowed are 0 to 2"),
}


@pytest.mark.parametrize("case", RUNNING)
def test_what_no_range_says_is_checked_while_it_runs(case: str) -> None:
    write, message = RUNNING[case]
    with pytest.raises(InputError, match=message):
        Device(H100).run(kernel(write), {"x": 1 << 21})


def test_ranges_hold_all_values() -> None:
    """Each operator on each pair of small ranges: no value lies outside of what is said of it."""
    a, b = Var("a"), Var("b")
    for op in (
        a + b,
        a - b,
        a * b,
        a // maximum(b, 1),
        a % maximum(b, 1),
        minimum(a, b),
        a < b,
        a.equals(b),
        a ^ b,
        a & b,
    ):
        for low, high, other, end in ((-3, 2, -2, 3), (0, 5, 1, 4), (-6, -2, 2, 3), (3, 3, 3, 3), (1, 6, 0, 2)):
            known = Known({"a": Range(low, high), "b": Range(other, end)}, frozenset())
            found = range_of(op, known)
            values = [evaluate(op, {"a": x, "b": y}) for x in range(low, high + 1) for y in range(other, end + 1)]
            assert found.low <= min(values) <= max(values) <= found.high, (str(op), known)
    assert range_of(a * a * a, Known({"a": Range(0, 1 << 40)}, frozenset())) == ANY


def _endless(r: RoleBuilder, p: Parts) -> None:
    count = r.assign("count", 0)
    with r.loop_while(count < 5):
        r.assign("count", count * 1)


def _forever(r: RoleBuilder, p: Parts) -> None:
    with r.loop_while(1):
        r.run("ffma", 1, dtype="fp32")


def test_what_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "5000")
    with pytest.raises(InputError, match=r"loop_while\(1\) never ends"):
        lower_kernel(kernel(_forever), {}, H100)
    with pytest.raises(InputError, match=r"has not ended after 5000 steps.*TILEWAVE_STEPS=N"):
        Device(H100).run(kernel(_endless), {})
    long = kernel(lambda r, p: _loop(r, 10**6, lambda i: r.run("ffma", 1, dtype="fp32")))
    with pytest.raises(InputError, match=r"takes at least 16000016 steps.*the limit is 5000"):
        lower_kernel(long, {}, H100)
    monkeypatch.setenv(limits.VARIABLE, "20M")
    lower_kernel(long, {}, H100)
    monkeypatch.setenv(limits.VARIABLE, "many")
    with pytest.raises(InputError, match="TILEWAVE_STEPS=many: must be a whole number"):
        lower_kernel(long, {}, H100)


def _written(write: Write) -> Callable[[], Any]:
    return lambda: kernel(write)


NAN = float("nan")
NONSENSE: dict[str, tuple[Callable[[], Any], str]] = {
    "groups": (_written(lambda r, p: r.wgmma_wait(-1)), "wgmma_wait: -1 groups left"),
    "groups of NaN": (_written(lambda r, p: r.cp_wait(NAN)), "expression nan"),  # type: ignore[arg-type]
    "registers": (_written(lambda r, p: r.setmaxnreg(304)), "304 registers: must be a multiple of 8 from 24 to 256"),
    "registers of a role": (lambda: KernelBuilder("k", (1, 1, 1)).role("r", 1, NAN).__enter__(), "registers=nan"),  # type: ignore[arg-type]
    "warps of a barrier": (_written(lambda r, p: r.bar_sync(0, 9)), "9 warps: a CTA has 4"),
    "count": (_written(lambda r, p: r.run("ffma", True)), "count=True: must be a whole number"),
    "field": (_written(lambda r, p: r.run("ffma", 1, vector_byte=4)), "has no vector_byte; did you mean vector_bytes"),
    "format of an op": (_written(lambda r, p: r.run("ffma", 1, dtype="fp23")), "fp23.*did you mean fp"),
    "sources": (_written(lambda r, p: r.op("wgmma", 1, dst=ACC.whole, srcs=(ACC.whole,))), "needs 2 sources, not 1"),
    "number": (lambda: CTA_X * 10**30, "does not fit 64 bits"),
    "real number": (lambda: CTA_X + 0.5, "0.5: must be a whole number"),  # type: ignore[operator]
    "trips": (_written(lambda r, p: _loop(r, 2**70, lambda i: None)), "an integer of 71 bits: does not fit"),
    "truth": (lambda: 1 if CTA_X > 2 else 0, "has no value yet"),
    "Python's minimum": (lambda: min(CTA_X, 3), "has no value yet"),  # type: ignore[type-var]
    "depth": (lambda: sum((Var(f"v{i}") for i in range(300)), start=CTA_X), "200 inside each other"),
    "empty table": (lambda: table((), CTA_X), "has 0 values"),
    "format": (lambda: GlobalTensor("x", (8, 8), "zz", strides=(8, 1)), "tensor x.*zz"),
    "strides": (
        lambda: GlobalTensor("x", (8, 8), "fp32", strides=(1,)),
        r"strides=\(1,\): must have a stride",
    ),
    "role of a tensor": (lambda: GlobalTensor("x", (8,), "fp32", strides=(1,), role="outptu"), "did you mean output"),
    "extent": (lambda: SharedTile("s", (8, -8), "fp32"), r"shape\[1\]=-8"),
    "swizzle": (lambda: SharedTile("s", (8, 8), "fp32", 1, 77), "swizzle_bytes=77: must be one of 0, 32, 64, 128"),
    "stages": (lambda: SharedTile("s", (8, 8), "fp32", 10**20), "stages=an integer of 67 bits"),
    "arrivals": (lambda: MBarrier("full", 4, -1), "arrivals=-1"),
    "arrivals beyond hardware": (lambda: MBarrier("full", 4, 10**9), "arrivals=1000000000"),
    "box": (lambda: ACC[0:9, :], r"does not fit its shape \(8, 64\)"),
    "grid": (lambda: KernelBuilder("k", (0, 1, 1)), r"grid\[0\]=0"),
    "grid of two": (lambda: KernelBuilder("k", (4, 4)), "must be 3 whole numbers"),  # type: ignore[arg-type]
    "name": (lambda: KernelBuilder("", (1, 1, 1)), "must be a name"),
    "program": (lambda: Program("p", (X, X), (), "s"), "two tensors are named x"),
    "no kernels": (lambda: Program("p", (X,), (), "s"), "has no kernel"),
    "tolerance": (lambda: Program("p", (X,), (kernel(lambda r, p: None),), "s", tolerance=NAN), "tolerance=nan"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused_when_it_is_written(case: str) -> None:
    make, message = NONSENSE[case]
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
