"""Operators of graphs and networks whose schedules differ between runs are named, and can be held."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sim import compare, simulate
from sim.app.report.schedules import Switch, switches
from sim.app.study.difference import between
from sim.app.study.sweep import Sweep, sweep

LAYER = "bert_layer batch=1 seq=128 hidden=128 heads=2 ffn=512"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switches") / "store.db"


@pytest.fixture(scope="module")
def free(store: Path) -> Sweep:
    """A layer on an H100 and on one of 32 SMs, for which larger tiles are estimated to be better."""
    return run(store, hold=False)


def run(store: Path, hold: bool, vary: str = "sm.count=132,32", workload: str = LAYER) -> Sweep:
    return sweep(workload, "h100-sxm", [vary], hold=hold, tune=False, workers=1, store=store)


def reports(found: Sweep) -> list[Any]:
    return [row.answer.report for row in found.rows]


def kernels(report: Any) -> list[str]:
    return [kernel["schedule"] for kernel in report["kernels"]]


def test_two_runs_of_a_graph_name_each_operator_that_switched(free: Sweep) -> None:
    old, new = reports(free)
    schema = json.loads((resources.files("sim.app.report") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(simulate("bert_layer batch=1 seq=8 hidden=8 heads=1 ffn=8", "t4").to_dict(), schema)
    found = between(("a", "b"), (old, new))
    assert found.to_dict()["schedules"]
    for switch in found.switched:
        assert switch.operator.startswith(("aten::mm: gemm m=128", "aten::bmm: gemm m=128"))
        assert switch.old in kernels(old)
        assert switch.new in kernels(new)
        assert switch.old != switch.new
    text = str(found)
    assert "Operators that run another schedule" in text
    assert all(switch.new in text for switch in found.switched)
    assert not between(("a", "b"), (old, old)).switched


def test_a_sweep_names_them_and_what_is_held_does_not_switch(free: Sweep, store: Path) -> None:
    old, new = reports(free)
    assert free.switched == [False, True]
    assert free.switches == [(), switches(old, new)]
    assert free.to_dict()["rows"][1]["schedules"][0]["operator"] in str(free)
    held = run(store, hold=True)
    assert held.switches == [(), ()]
    assert [kernels(report) for report in reports(held)] == [kernels(old)] * 2
    assert set(reports(held)[1]["schedules_held"].values()) == {text for text in kernels(old) if text}
    assert "operators held" in between(("a", "b"), (old, reports(held)[1])).titles[1]


def test_schedules_are_held_of_the_same_operators_alone(store: Path) -> None:
    found = run(store, hold=True, vary="seq=128,64")
    assert "held schedules: there is none of gemm m=64" in found.rows[1].reason
    assert found.rows[1].reason.endswith("hold them over figures of the machine alone")


def test_layers_of_a_network_switch_and_are_held_too(store: Path) -> None:
    layers = store.with_name("two.csv")
    layers.write_text("Layer,M,N,K,\nfirst,128,256,128,\nsecond,128,64,128,\n")
    free, held = (run(store, hold, workload=f"network file={layers}") for hold in (False, True))
    assert free.switches[1]
    assert all(switch.operator.startswith(("first: gemm m=128", "second: gemm")) for switch in free.switches[1])
    assert held.switches[1] == ()


def test_machines_beside_each_other_have_a_column_each() -> None:
    found = compare("bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64", ["h100-sxm", "a100-sxm4-80gb"])
    (section,) = [section for section in found.sections() if section.title == "Operators that run another schedule"]
    assert section.header == ("operator", "h100-sxm eager", "a100-sxm4-80gb eager")
    assert any(str(row[1]).startswith("wgmma") and str(row[2]).startswith("mma") for row in map(list, section.rows))


def test_an_operator_alone_is_named_once() -> None:
    report = {"workload": "gemm m=1 n=1 k=1", "schedule": "simt"}
    assert switches(report, {**report, "schedule": "mma"}) == (Switch("gemm m=1 n=1 k=1", "simt", "mma"),)
    assert switches(report, {"workload": "sum n=4", "schedule": "fused"}) == ()
    assert switches(None, report) == ()


def test_half_as_much_again_of_memory_is_no_slower_and_what_switched_is_said() -> None:
    """Two products of a decode step changed their schedule in silence, and the step took 2.7 % longer."""
    decode = "llama model=llama3.1-70b phase=decode seq=4096 tp=8"
    old, new = (simulate(decode, "h100-sxm", set=figures) for figures in ((), ("dram.bandwidth=5.028 TB/s",)))
    assert new.time_us < 0.95 * old.time_us
    found = between(("old", "new"), (old.to_dict(), new.to_dict()))
    differ = {
        o.workload for o, n in zip(old.record.operators, new.record.operators, strict=True) if o.schedule != n.schedule
    }
    assert {switch.operator.partition(": ")[2] for switch in found.switched} == differ
