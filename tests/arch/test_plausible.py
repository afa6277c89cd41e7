"""Plausible ranges of figures: shipped machines lie inside, slips of a unit outside, and reports say so."""

from __future__ import annotations

import json
from fractions import Fraction
from importlib import resources

import jsonschema
import pytest

from arch.families import families
from arch.leaves import leaves, spec_class
from arch.load import list_archs, load_arch
from arch.plausible import _OF_PATH
from sim.app.run import simulate


@pytest.mark.parametrize("machine", list_archs())
def test_shipped_machines_are_plausible(machine: str) -> None:
    assert list(load_arch(machine).implausible) == []


def test_every_range_is_of_a_figure_and_in_order() -> None:
    units = {path: leaf.unit for family in families() for path, leaf in leaves(spec_class(family)).items()}
    for path, ends in _OF_PATH.items():
        unit = units[path]
        low, high = (unit.parse(end) if unit else Fraction(end) for end in ends)
        assert low < high, path


@pytest.mark.parametrize(
    ("machine", "override", "words"),
    [
        ("h100-sxm", "clock.tensor=9.4e-07", "clock.tensor = 9.4e-07 is implausible; of real machines it is 0.3 to 1"),
        ("t4", "l2.hit_latency=90000 cycles", "l2.hit_latency = 90000 cycles is implausible; of real machines it is"),
        ("t4", "instructions.ffma.fp32.latency=90000 cycles", "instructions.ffma.fp32.latency = 90000 cycles is"),
        ("tpu-v1", "power.limit=75 mW", "power.limit = 75 mW is implausible; of real machines it is 1 W to 5000 W"),
        ("sn40l", "hbm.latency=300 us", "hbm.latency = 300 us is implausible; of real machines it is 10 ns to 2 us"),
    ],
)
def test_slips_are_named_with_the_range(machine: str, override: str, words: str) -> None:
    (found,) = load_arch(machine, [override]).implausible
    assert found.startswith(words)


def test_ten_times_a_figure_that_grows_with_chips_is_plausible() -> None:
    machine = load_arch("h100-sxm", ["sm.count=264", "l2.size=500 MiB", "dram.bandwidth=33 TB/s"])
    assert list(machine.implausible) == []


def test_a_report_warns_and_stays_by_the_schema() -> None:
    report = simulate("gemm m=64 n=64 k=64", "h100-sxm", set=["clock.tensor=9.4e-07"])
    document = report.to_dict()
    schema = json.loads((resources.files("sim.app.report") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    (words,) = document["figures_implausible"]
    assert words.startswith("clock.tensor = 9.4e-07 is implausible")
    assert f"Warning: {words}." in " ".join(str(report).split())
    assert "figures_implausible" not in simulate("gemm m=64 n=64 k=64", "h100-sxm").to_dict()
