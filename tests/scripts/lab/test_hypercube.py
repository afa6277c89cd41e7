"""The sweep of what is not known about SN40L: each figure once in each part of its range, in its own unit."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from arch.load import load_arch

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "rdu" / "hypercube.py"


@pytest.fixture(scope="module")
def hypercube() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hypercube", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hypercube"] = module
    spec.loader.exec_module(module)
    return module


def test_a_figure_is_drawn_in_its_unit(hypercube: ModuleType) -> None:
    drawn = [hypercube.drawn(text, 1.3) for text in ("20 us", "3 cycles", "12", "64 KiB", "1")]
    assert drawn == ["26.0 us", "4 cycles", "16", "84 KiB", "1"]


def test_each_figure_has_one_point_in_each_part_of_its_range(hypercube: ModuleType) -> None:
    made = hypercube.points({"launch.host": "10 us"}, 8, seed=1)
    values = sorted(float(overrides[0].partition("=")[2].split()[0]) for overrides in made)
    edges = [10 * 2 ** (2 * i / 8 - 1) for i in range(9)]
    assert all(low <= value <= high for low, value, high in zip(edges, values, edges[1:], strict=False))


def test_every_published_token_rate_has_its_model(hypercube: ModuleType) -> None:
    rated = {row.removeprefix("tokens_per_second_") for row in hypercube.published.known() if row.startswith("tokens")}
    assert rated == {model.removeprefix("llama3.1-") for model in hypercube.published.RATED} == {"8b", "70b", "405b"}


def test_every_point_is_a_machine(hypercube: ModuleType) -> None:
    figures = hypercube.assumed()
    assert len(figures) > 30
    assert not set(figures) & set(hypercube.HELD)
    for overrides in hypercube.points(figures, 4, seed=0):
        load_arch("sn40l", overrides)


def test_a_claim_holds_within_what_is_published(hypercube: ModuleType) -> None:
    known = {"range": {"low": "2", "high": "13"}, "value": {"low": "10", "high": "10"}}
    assert hypercube.holding("range", [1.9, 2, 13, 14], known) == 0.5
    assert hypercube.holding("value", [8.9, 9.1, 10.9, 11.1], known) == 0.5
