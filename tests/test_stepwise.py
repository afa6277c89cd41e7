"""Graphs on families without a plan of their own: step by step, with everything that a report of a graph has."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
from sim.app.run import compare, program_listing
from workloads.graphs import GraphBuilder, GraphOperator
from workloads.parse import parse

BERT = "bert_layer batch=1 seq=64 hidden=128 heads=2 ffn=256"
LLAMA = "llama model=tiny seq=64 layers=2"
RUNS = {
    "tpu-v1": f"{BERT} dtype=int8 others=host",
    "tpu-v4": f"{LLAMA} others=count",
    "gemmini": f"{BERT} dtype=int8 others=count",
    "sn40l": f"{BERT} others=count",
}
OWN = '''
from workloads.graphs import GraphBuilder
from workloads.parse import parse

def pair(n: int, others: str = "refuse"):
    """Two products, and what is between them."""
    g = GraphBuilder("pair", others)
    multiply = parse(f"gemm m={n} n={n} k={n} out=int8").with_defaults("int8")
    x, w = (g.tensor(name, n * n, "int8") for name in "xw")
    y = g.call("first", multiply, x, w)
    y = g.call("relu", parse(f"relu n={n * n}").with_defaults("int8"), y)
    return g.build(g.call("second", multiply, y, w))
'''


def valid(report: dict[str, Any]) -> None:
    jsonschema.validate(report, json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text()))


@pytest.mark.parametrize("machine", RUNS)
def test_the_total_is_the_sum_of_the_steps_and_of_what_the_host_computes(machine: str) -> None:
    report = simulate(RUNS[machine], machine)
    found = report.to_dict()
    if machine != "tpu-v1":  # whose attention alone has more input stalls than cycles
        valid(found)
    alone = 0.0
    for entry in found["profile"]:
        for step in entry["schedules"]:
            if step["schedule"]:
                alone += step["calls"] * simulate(step["workload"], machine).time_us
    host = sum(found.get("host_us", {}).values())
    assert found["time_us"] == pytest.approx(alone + host, rel=1e-9)
    assert found["time_us"] - host == pytest.approx(sum(entry["device_us"] for entry in found["profile"]), rel=1e-9)
    assert "mm" in found["profile"][0]["operator"] or found["profile"][0]["kind"] == "contraction"
    assert any("no two run at once" in note for note in found["notes"])
    assert ("left_out" in found) == ("count" in RUNS[machine])
    assert "Profile" in str(report)


def test_what_cannot_run_is_named_at_once_with_what_would_help() -> None:
    with pytest.raises(InputError) as refused:
        simulate(BERT, "tpu-v1")
    for part in (
        "gemm (4): tpu-v1 multiplies int8 and int16, not bf16",
        "attention (1): tpu-v1 does attention in int8",
        "has no pointwise (4), layernorm (2)",
        "dtype=int8 is a format of tpu-v1; others=count leaves such operators out, others=host",
    ):
        assert part in str(refused.value)
    with pytest.raises(InputError, match="sn40l has no host that computes, tpu-v1 has one"):
        simulate(f"{BERT} others=host", "sn40l")
    with pytest.raises(InputError, match=r"gemm.*: gemmini multiplies int8"):
        simulate(f"{BERT} others=count dtype=bf16", "gemmini")  # nothing would be left


def test_the_host_computes_what_the_machine_cannot() -> None:
    counted, computed = (simulate(f"{BERT} dtype=int8 others={how}", "tpu-v1").to_dict() for how in ("count", "host"))
    norms = [entry for entry in computed["profile"] if entry["operator"] == "aten::native_layer_norm"]
    assert [(entry["calls"], entry["kernels"], entry["bound"]) for entry in norms] == [(2, 0, "host")]
    assert norms[0]["host_us"] == pytest.approx(computed["host_us"]["aten::native_layer_norm"])
    assert counted["time_us"] == pytest.approx(computed["time_us"] - sum(computed["host_us"].values()))
    assert counted["left_out"]["operators"]["aten::native_layer_norm"] == 2


def test_weights_are_stored_as_the_machine_reads_them_and_activations_are_not() -> None:
    found = simulate(RUNS["gemmini"], "gemmini").to_dict()
    assert "Weights of 4 products are stored transposed, as gemmini reads them." in found["notes"]
    assert found["left_out"]["operators"]["aten::bmm"] == 1  # keys are no weights
    assert 0 < found["left_out"]["mac_share"] < 0.1


def test_a_graph_of_ones_own_runs_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    words = ["own.py:pair", "n=64", "others=count"]
    assert main(["run", *words, "--arch", "gemmini", "--json", "--html", "page.html"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["operator"], entry["calls"]) for entry in found["profile"]] == [("first", 1), ("second", 1)]
    valid(found)
    assert found["workload_file"]["name"] == "own.py"
    assert "second" in Path("page.html").read_text()
    assert main(["compare", *words, "--arch", "gemmini", "tpu-v1"]) == 0
    assert "tpu-v1" in capsys.readouterr().out
    assert main(["sweep", *words, "--arch", "tpu-v1", "--vary", "n=64,128", "--workers", "1"]) == 0
    assert main(["run", *words, "--arch", "tpu-v1", "--profile"]) == 0
    assert "second" in capsys.readouterr().out
    assert main(["trace", *words, "--arch", "tpu-v1", "-o", "out.pftrace"]) == 0
    assert Path("out.pftrace").stat().st_size > 0
    assert main(["run", "own.py:pair", "n=64", "--arch", "tpu-v1"]) == 2
    assert "pair: does not run on tpu-v1: has no pointwise (1); others=count" in capsys.readouterr().err


def test_every_family_runs_any_graph_step_by_step_when_asked() -> None:
    fused, steps = (simulate(LLAMA, "sn40l", schedule=schedule).to_dict() for schedule in ("auto", "steps"))
    assert "profile" not in fused
    assert steps["schedule"] == "steps: 26 of 26 operators, 9 distinct"
    assert any("9 of 26 steps differ" in note for note in steps["notes"])
    assert "load" in program_listing("llama model=tiny seq=64", "sn40l", schedule="steps")
    rows = compare("llama model=tiny seq=64 others=count", ["sn40l", "tpu-v4"]).to_dict()["rows"]
    assert [row["machine"] for row in rows if "time_us" in row] == ["sn40l", "tpu-v4"]


def test_eight_bits_are_of_products() -> None:
    op = parse(f"{BERT} dtype=int8").with_defaults("bf16")
    assert isinstance(op, GraphOperator)
    steps = op.graph(fused=True).steps
    assert {step.op.dtype for step in steps if step.op.word in ("gemm", "attention")} == {"int8"}
    assert {step.op.dtype for step in steps if step.op.word in ("layernorm",)} == {"bf16"}
    assert sum(step.label == "aten::to" for step in steps) == 12
    assert parse(BERT).with_defaults("int8").dtype == "bf16"  # of integers only who asks for them


def test_others_are_one_of_four() -> None:
    with pytest.raises(InputError, match=r"graph mine others='hots': must be one of refuse, count, host, stream.*host"):
        GraphBuilder("mine", "hots")
