"""Kinds of measurement: environments and runs have their settings; what was inferred can be left out."""

from __future__ import annotations

import json

import pytest

from arch.errors import InputError
from scripts.accuracy import only_stated
from sim.app.cli import arguments, main
from sim.app.cli.arguments import Parser
from sim.app.measured import bench_as
from sim.app.run import row_request
from sim.host.scopes import GraphReplay
from workloads.silicon import Environment, environment_of, packaged_rows
from workloads.silicon.measurements import measurements

ROWS = packaged_rows()
SAID = {"statistic": "made up", "evidence": "made up"}


def test_an_environment_has_the_settings_of_its_kind_beside_its_own() -> None:
    kind = Environment.read({"as": "serving-graph", **SAID})
    assert (kind.clock, kind.layers, kind.replays) == ("isolated", 6, 6)
    assert Environment.read({"as": "serving-graph", "layers": 2, **SAID}).layers == 2
    for name in measurements():
        assert Environment.read({"as": name, **SAID}).measured_as == name
    assert {environment_of(row.source).measured_as for row in ROWS} >= set(measurements())


def test_without_what_was_inferred_the_kind_decides() -> None:
    said = {"as": "do-bench", "clock": "sustained", "acc": {"fp16": "fp16"}, "inferred": ["clock"], **SAID}
    stated = Environment.read(said).as_stated
    assert (stated.clock, stated.flush, stated.acc) == ("isolated", "dirty", {"fp16": "fp16"})
    with pytest.raises(InputError, match="inferred: clok is no setting of it; did you mean clock"):
        Environment.read(said | {"inferred": ["clok"]})


def test_rows_lose_what_was_inferred_of_their_source() -> None:
    row = next(row for row in ROWS if (row.source, row.op) == ("triton_docs_a100", "softmax") and row.kind == "torch")
    assert (row.machine, row.as_stated.machine, row.as_stated.kind) == ("a100-pcie-80gb", "a100-sxm4-80gb", "")
    library = next(row for row in ROWS if row.source == "xla_matmul_table")
    assert row_request(library).schedule.startswith("cublas")
    assert row_request(library.as_stated).schedule == "auto"
    assert [row.source for row in only_stated([row, library])] == [row.source, library.source]
    assert not only_stated(row for row in ROWS if row.source == "measure_gpu")


def test_what_is_typed_goes_before_the_kind() -> None:
    parser = Parser(allow_abbrev=False)
    commands = parser.add_subparsers(parser_class=Parser)
    run = commands.add_parser("run")
    arguments.add_conditions(run)
    arguments.add_scope(run)
    arguments.add_measured(run)
    options = arguments.parse(parser, ["run", "--l2", "cold", "--as", "serving-graph"])
    assert (options.l2, options.scope, options.clock) == ("cold", "graph", "isolated")
    assert arguments.parse(parser, ["run", "--as", "loop"]).l2 == "warm"
    assert all(name in run.format_help() for name in measurements())
    with pytest.raises(InputError, match=r"as loops: no kind of measurement, .*did you mean loop"):
        arguments.parse(parser, ["run", "--as", "loops"])


def test_a_run_is_as_a_row_of_such_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gemm", "m=64", "n=256", "k=256", "tb=T", "dtype=bf16", "--arch", "h100-sxm"]
    found = {}
    for name in ("serving-graph", "call-graph", "profiler"):
        assert main(["run", *words, "--as", name, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    assert found["serving-graph"]["measured_as"] == "serving-graph"
    assert found["serving-graph"]["conditions"] == found["call-graph"]["conditions"]
    assert found["serving-graph"]["time_us"] != found["call-graph"]["time_us"]
    assert found["profiler"]["conditions"]["l2"] == "dirty"
    assert bench_as("serving-graph", "graph").replayed == GraphReplay(6, 6)
    assert bench_as("serving-graph", "kernel").replayed is None
    assert not bench_as("profiler", "kernel").cold_code
    assert main(["run", "gemm", "m=8", "n=8", "k=8", "--arch", "tpu-v1", "--as", "loop"]) == 2
    assert "measured_as=loop: means nothing on tpu-v1" in capsys.readouterr().err
