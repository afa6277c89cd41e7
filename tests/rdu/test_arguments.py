"""Arguments of dataflow programs: what is no number, no format or has no end is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from arch.errors import InputError
from sim.rdu.program import Call, Carry, Counter, Out, Program, Section, Tensor, walk

ROW = Counter("row", 4)


def _loaded(**given: Any) -> Any:
    row = Counter("row", 4)
    section = Section("s")
    out = section.load("in", Tensor("x", (4, 8), "bf16"), (row, 0), (1, 8), (row,))
    section.store("out", Tensor("y", (4, 8), "bf16", "output"), (row, 0), out.read(**given), (row,))


def _again(ahead: int = 0, *, apart: bool = False) -> Program:
    """A section that stores the tile of an array from which it has loaded one, `ahead` rows before. apart: what it
    stores comes from elsewhere."""
    row, section, x = Counter("row", 4), Section("s"), Tensor("x", (8, 8), "bf16")
    out = section.load("in", x, (row * 1 + ahead, 0), (1, 8), (row,))
    if apart:
        section.store("other", Tensor("z", (4, 8), "bf16", "output"), (row, 0), out, (row,))
        out = section.load("more", Tensor("y", (4, 8), "bf16"), (row, 0), (1, 8), (row,))
    section.store("out", x, (row, 0), out, (row,))
    return Program("p", (Call(section),), "by hand")


NONSENSE: dict[str, tuple[Callable[[], Any], str]] = {
    "trips": (lambda: Counter("k", 2.5), "counter k: trips=2.5: must be a whole number from 1"),  # type: ignore[arg-type]
    "endless": (lambda: walk((Counter("a", 10**6), Counter("b", 10**6))), "takes at least 1000000000000 steps"),
    "extent": (lambda: Tensor("x", (4, -8), "bf16"), r"shape\[1\]=-8"),
    "format": (lambda: Tensor("x", (4, 8), "zz"), "tensor x: dtype=zz: unknown number format"),
    "place": (lambda: Tensor("x", (4, 8), "bf16", place="hbn"), "did you mean hbm"),  # type: ignore[arg-type]
    "output": (lambda: Out((0, 8), "bf16", ()), r"output: shape\[0\]=0"),
    "depth": (lambda: _loaded(depth=float("nan")), "in -> out: depth=nan"),
    "memory units": (lambda: _loaded(pmus=-3), "in -> out: pmus=-3"),
    "step": (lambda: Counter("k", 2) * float("nan"), "counter k: step=nan"),  # type: ignore[operator]
    "origin": (lambda: Counter("k", 2) * 4 + "x", "index: what is added='x'"),  # type: ignore[operator]
    "carry": (lambda: Carry((1, 8), "x", ()), "carry: initial='x'"),  # type: ignore[arg-type]
    "twice": (lambda: Out((1,), "bf16", (ROW, ROW)), "output: over=.*: must be counters, each once"),
    "call": (lambda: Call(3), "call: section=3"),  # type: ignore[arg-type]
    "calls": (lambda: Program("p", (), "by hand"), "program p: calls=.*at least one"),
    "stride": (lambda: _loaded(stride=0), "in -> out: stride=0"),
    "race": (lambda: _again(4), "section s: in loads what out stores, and no channel orders them"),
    "race of one tile": (lambda: _again(apart=True), "in loads what out stores, and no channel orders them"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused_where_it_is_written(case: str) -> None:
    make, message = NONSENSE[case]
    with pytest.raises(InputError, match=message):
        make()


def test_a_tile_may_be_stored_where_it_was_loaded() -> None:
    """The store waits for the load's token."""
    assert _again().tensors[0].name == "x"
