"""Depths of FIFOs that attention on streaming dataflow needs (arXiv 2404.16629), by vectors.

The pipelines of that paper over rows of N vectors, each unit a vector a cycle. Where a row's sum, or largest, is needed
before the row can go on, a FIFO beside it must hold the row: N vectors or it stands still, and two more (one at work on
either side) for the full rate. Divided at the end, and with sums that are scaled again whenever the largest grows,
nothing waits: a few vectors do, however long the row.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.rdu.program import Counter, Out, Output, Section
from tests.rdu.conftest import SILENT, SMALL, cycles, run

ROWS = 6


class Pipeline:
    """Units that take and give a vector a cycle, or a number at the end of each row."""

    def __init__(self, vectors: int) -> None:
        self.section, self.row, self.vectors = Section("attention", "vector"), Counter("row", ROWS), vectors

    def unit(self, name: str, column: bool = False, **inputs: tuple[Output, int]) -> Output:
        """A unit; inputs: with the depth of each FIFO in vectors."""
        shape = (1, 1) if column else (1, 32 * self.vectors)
        reads = {port: made.read(depth, vectors=True, stream=True) for port, (made, depth) in inputs.items()}
        out = Out(shape, "bf16", (self.row,))
        return self.section.timed(name, (self.row,), reads, out, interval_cycles=self.vectors)

    @property
    def cycles(self) -> float:
        """Of all rows, on a machine whose networks take no time."""
        return cycles(run(self.section, load_arch("sn40l", SMALL | SILENT)))


def naive(vectors: int, depth: int) -> Pipeline:
    """exp(s), its sum beside it, the quotient, the product with V."""
    p = Pipeline(vectors)
    s = p.unit("scores")
    e = p.unit("exponent", s=(s, 2))
    total = p.unit("row_sum", column=True, e=(e, 2))
    quotient = p.unit("divide", e=(e, depth), total=(total, 2))
    p.unit("values", column=True, p=(quotient, 2))
    return p


def shifted(vectors: int, depth: int) -> Pipeline:
    """The same with the row's largest subtracted first: a FIFO for the scores, and one for the exponentials."""
    p = Pipeline(vectors)
    s = p.unit("scores")
    top = p.unit("row_max", column=True, s=(s, 2))
    e = p.unit("exponent", s=(s, depth), top=(top, 2))
    total = p.unit("row_sum", column=True, e=(e, 2))
    quotient = p.unit("divide", e=(e, depth), total=(total, 2))
    p.unit("values", column=True, p=(quotient, 2))
    return p


def divided_last(vectors: int, depth: int) -> Pipeline:
    """The largest subtracted first, the division behind the product with V: one FIFO is left."""
    p = Pipeline(vectors)
    s = p.unit("scores")
    top = p.unit("row_max", column=True, s=(s, 2))
    e = p.unit("exponent", s=(s, depth), top=(top, 2))
    total = p.unit("row_sum", column=True, e=(e, 2))
    weighted = p.unit("values", column=True, e=(e, 2))
    p.unit("divide", column=True, weighted=(weighted, 2), total=(total, 2))
    return p


def running(vectors: int, depth: int) -> Pipeline:
    """Largest, sum and product run along the row and are scaled as they go; the division comes last."""
    p = Pipeline(vectors)
    s = p.unit("scores")
    e = p.unit("exponent", s=(s, depth))
    total = p.unit("row_sum", column=True, e=(e, depth))
    weighted = p.unit("values", column=True, e=(e, depth))
    p.unit("divide", column=True, weighted=(weighted, 2), total=(total, 2))
    return p


WAITING = [naive, shifted, divided_last]


@pytest.mark.parametrize("form", WAITING)
@pytest.mark.parametrize("vectors", [16, 64])
def test_a_fifo_of_less_than_a_row_stands_still(form: Callable[[int, int], Pipeline], vectors: int) -> None:
    with pytest.raises(InputError, match=rf"deadlocks: .*; depth {vectors} of"):
        _ = form(vectors, vectors - 1).cycles
    assert form(vectors, vectors).cycles > 0


@pytest.mark.parametrize("form", WAITING)
@pytest.mark.parametrize("vectors", [16, 64])
def test_the_full_rate_needs_a_row_and_two_vectors(form: Callable[[int, int], Pipeline], vectors: int) -> None:
    full = form(vectors, 4 * vectors).cycles
    # Each vector of the first unit at its rate, and what lies behind the last of them.
    assert 0 <= full - ROWS * vectors <= 2 * (vectors + 3)
    assert form(vectors, vectors + 2).cycles == full
    slower = form(vectors, vectors + 1).cycles
    # Without a place for the vector at work each row but the first begins a cycle later.
    assert slower == full + ROWS - 1


@pytest.mark.parametrize("vectors", [16, 64, 256])
def test_running_sums_need_two_vectors_however_long_the_row(vectors: int) -> None:
    """One vector through five units, the last of them a number a row."""
    assert running(vectors, 2).cycles == running(vectors, 4 * vectors).cycles == ROWS * vectors + 2 + vectors


def test_the_memory_of_a_row_grows_with_it_but_for_running_sums() -> None:
    def least(form: Callable[[int, int], Pipeline], vectors: int) -> int:
        full = form(vectors, 4 * vectors).cycles
        return next(depth for depth in (2, vectors + 1, vectors + 2) if _rate(form, vectors, depth) == full)

    assert [least(naive, n) for n in (8, 32, 128)] == [10, 34, 130]
    assert [least(running, n) for n in (8, 32, 128)] == [2, 2, 2]


def _rate(form: Callable[[int, int], Pipeline], vectors: int, depth: int) -> float:
    """Cycles; infinite for a pipeline that stands still."""
    try:
        return form(vectors, depth).cycles
    except InputError:
        return float("inf")
