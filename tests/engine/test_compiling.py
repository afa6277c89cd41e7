"""What numba leaves out while a kernel is compiled: results and errors stay, and other functions get all of it."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba import literal_unroll
from numba.core import base, config, errors, event, types
from numba.core.compiler import Compiler
from numba.core.errors import NumbaError
from numba.core.typing.context import BaseContext

from sim.engine import compiling, jit
from sim.engine.compiling import quick
from sim.engine.passes import passes

pytestmark = pytest.mark.skipif(bool(getattr(config, "DISABLE_JIT", 0)), reason="needs compiled code")

REPLACED = (
    (types.BaseFunction, "get_call_type"),
    (BaseContext, "resolve_value_type"),
    (base.BaseContext, "get_function"),
    (base.BaseContext, "get_abi_sizeof"),
    (event, "install_timer"),
    (type(errors.termcolor()), "errmsg"),
)


def now() -> list[Any]:
    """What stands in numba's places."""
    return [vars(owner).get(name) for owner, name in REPLACED]


@jit.inner
def last_digit(x: int) -> int:
    """A part."""
    return x % 10


@jit.kernel
def digits(x: int) -> int:
    """A kernel that Python and other kernels call: its sum of digits."""
    total = 0
    while x > 0:
        total += last_digit(x)
        x //= 10
    return total


@jit.kernel
def twice(values: Any) -> int:
    """A kernel that calls a kernel for each element of an array."""
    total = 0
    for i in range(len(values)):
        total += digits(values[i])
    return total


def test_numba_is_as_before_behind_a_compile_and_behind_an_error() -> None:
    before = now()
    with quick():
        within = now()
        with quick():
            assert now() == within
        assert now() == within
    assert all(old is not new for old, new in zip(before, within, strict=True))
    assert now() == before
    with pytest.raises(RuntimeError), quick():
        raise RuntimeError
    assert now() == before


def test_a_long_compile_begins_with_what_is_known_before(capsys: pytest.CaptureFixture[str]) -> None:
    with compiling.foreseen(lambda: "at least 3 us"), quick():
        compiling.say_compiling("compiling it, once")
    with quick():
        compiling.say_compiling("compiling it, once")
    once = "tilewave: compiling it, once"
    assert capsys.readouterr().err.splitlines() == [once, "tilewave: until then: at least 3 us", once]


def test_a_kernel_that_kernels_call_is_a_part_there_and_has_an_entry_when_python_calls_it() -> None:
    assert twice(np.array([12, 305])) == 3 + 8
    compiled: Any = digits
    assert not compiled.signatures
    assert digits(999) == 27
    assert len(compiled.signatures) == 1


def test_what_several_parts_call_is_linked_once() -> None:
    @jit.inner
    def half(x: float) -> float:
        return x / 2

    @jit.inner
    def up(x: float) -> float:
        return half(x) + 1

    @jit.inner
    def down(x: float) -> float:
        return half(x) - 1

    @jit.kernel
    def both(x: float) -> float:
        return up(x) * down(x)

    assert both(6.0) == 8.0


@pytest.mark.parametrize(
    ("function", "plain"),
    [
        (lambda x: x + 1, True),
        (lambda x: [y for y in x], False),  # noqa: C416  (a function of its own, until Python 3.12)
        (lambda x: (lambda y: y + x)(1), False),
        (lambda x: literal_unroll(x), False),
    ],
)
def test_a_function_with_what_a_pass_is_for_gets_all_passes(function: Callable[..., Any], plain: bool) -> None:
    class Manager:
        """A list of passes."""

        pipeline_name = "nopython"

    asked: list[Any] = []
    whole: Any = [Manager()]

    def numbas() -> list[Any]:
        asked.append(function)
        return whole

    if plain:
        assert passes(numbas, function) is not whole
    else:
        assert passes(numbas, function) is whole


def test_closures_and_tuples_of_several_types_compile() -> None:
    @jit.kernel
    def adds(x: int) -> int:
        def more(y: int) -> int:
            return x + y

        return more(1) + more(2)

    @jit.kernel
    def sums(pair: Any) -> float:
        total = 0.0
        for value in literal_unroll(pair):
            total += value
        return total

    assert adds(10) == 23
    assert sums((1, 2.5)) == 3.5


def test_errors_say_where_they_are() -> None:
    @jit.kernel
    def wrong(x: Any) -> Any:
        return x.nothing

    with pytest.raises(NumbaError, match="Unknown attribute 'nothing' of type int64"):
        wrong(1)


def test_functions_of_other_programs_keep_their_passes_and_timers() -> None:
    digits(12)

    @numba.njit
    def theirs(x: Any) -> Any:
        return [y + 1 for y in x]

    assert theirs((1, 2)) == [2, 3]
    (signature,) = theirs.signatures
    assert "timers" in theirs.get_metadata(signature)
    assert Compiler.define_pipelines is not jit._PartCompiler.define_pipelines


def test_a_long_compile_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter(range(0, 10_000, 6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    monkeypatch.setattr(compiling, "FUNCTIONS", 4)
    counted = compiling._Counted("compiling the engine")
    for _ in range(4):
        counted.on_end(None)  # every second one is more than ten seconds after the line before
    assert capsys.readouterr().err.splitlines() == [
        "tilewave: compiling the engine: 50 %", "tilewave: compiling the engine: 99 %",
    ]  # fmt: skip
