"""docs/cookbook.md stays true: its programs compute what they say, and what it says of their cycles comes about."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.app.run import simulate
from sim.gpu.language import Program

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recipes() -> dict[str, Callable[..., Program]]:
    """The functions of the page."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/cookbook.md", "exec"), names)
    return names


SMALL = [
    ("softmax", {"rows": 64, "cols": 128}, "t4"),
    ("row_sums", {"rows": 64, "cols": 128}, "t4"),
    ("turn", {"n": 64}, "t4"),
    ("turn", {"n": 64, "pad": 4}, "t4"),
    ("split_k", {"m": 64, "n": 64, "k": 256, "splits": 2}, "a100-sxm4-80gb"),
    ("split_k", {"m": 64, "n": 64, "k": 128, "splits": 1}, "a100-sxm4-80gb"),
    ("doubled", {"rows": 256, "stages": 1}, "h100-sxm"),
    ("doubled", {"rows": 256, "stages": 4}, "h100-sxm"),
]


@pytest.mark.parametrize(("name", "sizes", "machine"), SMALL)
def test_a_recipe_computes_what_it_says(
    name: str, sizes: dict[str, int], machine: str, recipes: dict[str, Callable[..., Program]]
) -> None:
    report = simulate(recipes[name](**sizes), machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_what_the_page_says_of_cycles(recipes: dict[str, Callable[..., Program]]) -> None:
    def cycles(name: str, machine: str, **sizes: int) -> int:
        return simulate(recipes[name](**sizes), machine).cycles

    tree, chain = (cycles("row_sums", "a100-sxm4-80gb", rows=432, cols=1024, serial=s) for s in (0, 1))
    assert tree < chain
    whole, cut = (cycles("split_k", "a100-sxm4-80gb", m=128, n=64, k=4096, splits=s) for s in (1, 8))
    assert cut < 0.6 * whole
    one, four = (cycles("doubled", "h100-sxm", rows=8192, stages=s) for s in (1, 4))
    assert four < 0.9 * one


def test_a_bank_conflict_shows_in_the_report(recipes: dict[str, Callable[..., Program]]) -> None:
    bad, good = (simulate(recipes["turn"](n=1024, pad=pad), "a100-sxm4-80gb") for pad in (0, 4))
    assert bad.cycles > 1.2 * good.cycles
    first = bad.to_dict()["verdict"][0]["text"]
    line = 1 + next(i for i, text in enumerate(_block("turn").splitlines()) if "r.lds(" in text)
    assert f"cookbook.md:{line}" in str(bad)
    assert re.match(rf"Bank conflicts .* of the time, all at cookbook.md:{line}: ", first)
    assert "Another schedule" not in str(bad)
    assert "Bank" not in str(good.to_dict()["verdict"])


def _block(name: str) -> str:
    """The block of the page that defines a recipe."""
    return next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"def {name}(" in block)
