"""Validation with made-up simulators: errors by hand, scopes, resumption, processes, skipped and failed rows."""

import dataclasses
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.families.request import Request
from sim.app.fingerprint import code_hash
from sim.app.run import RowResult, row_request, simulate_row
from sim.app.study import case as case_module
from sim.app.study.case import Answer
from sim.app.study.executors import Inline, Processes, Work
from sim.app.study.store import ResultStore
from sim.app.study.validate import Outcome, Validation, select, validate
from sim.host.scopes import GraphReplay
from tests.study.work import answer_of
from workloads.accuracy.splits import SPLITS, split
from workloads.parse import parse
from workloads.silicon import Row, environment_of, packaged_rows, read_rows
from workloads.silicon.rows import COLUMNS

ROW = Row("h100-sxm", "gemm", "bf16", "m=64 n=64 k=64", "vendor", 100.0, "kernel", 0.0, "cold", "A", "here", "url")


def rows_of(sizes: Iterable[int] = (), **columns: list[Any]) -> list[Row]:
    """Rows that differ in the given columns. sizes: m of each."""
    if sizes := list(sizes):
        columns["shape"] = [f"m={m} n=1 k=1" for m in sizes]
    lists = [[(name, value) for value in values] for name, values in columns.items()]
    return [dataclasses.replace(ROW, **dict(pairs)) for pairs in zip(*lists, strict=True)]


def proportional(request: Request) -> Answer:
    """A simulator that takes m microseconds and does not run softmax."""
    op = parse(str(request.workload))
    if op.word != "gemm":
        return Answer(refused=f"operator {op.word} is not available in this version", code=code_hash())
    size: int = op.m  # type: ignore[attr-defined]
    if size == 13:
        return Answer(failed="ZeroDivisionError: a bug", code=code_hash())
    report = answer_of(request).report
    assert report is not None
    figures = {"schedule": "wgmma", "cycles": 1000 * size, "time_us": float(size)}
    return Answer({**report, **figures}, code=code_hash())


def validated(rows: Sequence[Row], work: Work = proportional, store: Path | None = None, **options: Any) -> Validation:
    """A validation in this process."""
    if store is None:
        return validate(rows, make=lambda _: Inline(work), **options)
    with ResultStore(store) as opened:
        return validate(rows, make=lambda _: Inline(work), store=opened, **options)


def test_groups_by_hand() -> None:
    rows = rows_of([110, 70, 100, 300], dtype=["bf16", "bf16", "bf16", "tf32"])
    validation = validated(rows)
    first, second = validation.groups
    assert (first.machine, first.op, first.dtype, first.schedule, first.rows) == (
        "h100-sxm",
        "gemm",
        "bf16",
        "vendor",
        3,
    )
    assert first.mape == pytest.approx(40 / 3)
    assert first.median == pytest.approx(10)
    assert first.worst == pytest.approx(30)
    assert first.bias == pytest.approx(-20 / 3)
    assert "m=70" in first.worst_row
    assert second.mape == pytest.approx(200)


def test_the_hosts_overhead_is_taken_off_what_was_measured() -> None:
    result = RowResult("mma", 1, 66 * 10**6)
    host = dataclasses.replace(ROW, scope="host", overhead_us=40.0)
    assert Outcome(host, result).error == pytest.approx(66 / 60 - 1)
    assert Outcome(dataclasses.replace(host, scope="event"), result).error == pytest.approx(66 / 100 - 1)


def test_a_row_that_is_mostly_overhead_is_not_compared() -> None:
    rows = rows_of(overhead_us=[49.0, 51.0], scope=["host", "host"])
    validation = validated(rows)
    assert [outcome.row for outcome in validation.outcomes] == rows[:1]
    assert [(m.row, m.reason) for m in validation.skipped] == [
        (rows[1], "more than half of the measured time is the host's overhead")
    ]


def test_no_row_is_dropped_in_silence() -> None:
    rows = rows_of(
        shape=["m=100 n=1 k=1", "rows=1 cols=1", "m=13 n=1 k=1", "rows=2 cols=1"],
        op=["gemm", "softmax", "gemm", "softmax"],
    )
    validation = validated(rows)
    assert [outcome.row for outcome in validation.outcomes] == [rows[0]]
    assert [missing.row for missing in validation.skipped] == [rows[1], rows[3]]
    assert [missing.reason for missing in validation.failed] == ["ZeroDivisionError: a bug"]
    text = str(validation)
    assert "Skipped: 2 rows" in text
    assert "operator softmax is not available" in text
    assert "Failed: 1 rows" in text
    document = json.loads(json.dumps(validation.to_dict()))
    assert [len(document[key]) for key in ("groups", "rows", "skipped", "failed")] == [1, 1, 2, 1]
    keys = {"machine", "op", "dtype", "schedule", "source", "rows", "mape", "median", "worst", "bias"}
    assert keys < set(document["groups"][0])


def test_processes_and_one_process_agree() -> None:
    rows = rows_of([110, 80, 13, 7], op=["gemm", "gemm", "gemm", "add"])
    assert validate(rows, make=lambda _: Processes(2, proportional)) == validated(rows)


def counting(calls: list[str], stop_at: int | None = None) -> Work:
    """A simulator that notes its calls and is interrupted at one of them."""

    def simulate(request: Request) -> Answer:
        calls.append(str(request.workload))
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return proportional(request)

    return simulate


def test_an_interruption_costs_only_the_row_that_ran(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "results.sqlite"
    rows = rows_of(range(1, 6))
    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        validated(rows, counting(calls, stop_at=3), store)
    again: list[str] = []
    resumed = validated(rows, counting(again), store)
    assert again == [calls[2], *(str(row_request(row).workload) for row in rows[3:])]
    assert resumed == validated(rows)
    third: list[str] = []
    assert validated(rows, counting(third), store) == resumed
    assert third == []


def test_stored_results_are_for_the_same_question_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "results.sqlite"
    row = dataclasses.replace(ROW, shape="m=1 n=1 k=1")
    validated([row], store=store)

    def ran(row: Row) -> bool:
        calls: list[str] = []
        validated([row], counting(calls), store)
        return bool(calls)

    assert not ran(dataclasses.replace(row, time_us=7.0, quality="C", url="elsewhere"))
    shape = "m=2 n=1 k=1"
    changes = {
        "machine": "t4", "dtype": "fp16", "shape": shape, "scope": "event", "l2": "warm", "schedule": "triton"
    }  # fmt: skip
    for column, value in changes.items():
        assert ran(dataclasses.replace(row, **{column: value})), column  # type: ignore[arg-type]
    assert ran(dataclasses.replace(row, source="xla_matmul_table")), "another environment"
    replayed = dataclasses.replace(row, source="aiconfigurator_vllm", scope="graph")
    assert ran(replayed), "another scope and replays"
    assert not ran(replayed)
    monkeypatch.setattr(case_module, "code_hash", lambda: "f" * 64)
    monkeypatch.setattr("tests.test_validate.code_hash", lambda: "f" * 64)
    monkeypatch.setattr("sim.app.study.runner.code_hash", lambda: "f" * 64)
    assert ran(row), "another program"


def test_equal_questions_are_simulated_once() -> None:
    calls: list[str] = []
    validation = validated(rows_of(time_us=[90.0, 100.0, 110.0]), counting(calls))
    assert len(calls) == 1
    assert len(validation.outcomes) == 3


def timed(request: Request) -> Answer:
    """A simulator that says what it cost."""
    return dataclasses.replace(proportional(request), cpu_s=0.25)


def test_cpu_time_is_reported_once_a_simulation_and_survives_an_interruption(tmp_path: Path) -> None:
    rows = rows_of([1, 1, 2], dtype=["bf16", "bf16", "tf32"])
    first = validated(rows, timed, tmp_path / "results.sqlite")
    assert [outcome.result.cpu_s for outcome in first.outcomes] == [0.25] * 3
    assert first.cpu_s == 0.5
    assert [group.cpu_s for group in first.groups] == [0.25, 0.25]
    resumed = validated(rows, counting([], stop_at=1), tmp_path / "results.sqlite")
    assert resumed.to_dict() == first.to_dict()
    assert resumed.to_dict()["cpu_s"] == first.cpu_s
    assert "3 rows, 0.5 CPU s" in str(resumed)


def test_a_simulation_says_what_cpu_time_it_took() -> None:
    start_s = time.process_time()
    answer = case_module.run_case(row_request(dataclasses.replace(ROW, machine="t4", dtype="fp16")))
    assert 0 < answer.cpu_s <= time.process_time() - start_s
    assert answer.report is not None
    assert "simulator" not in answer.report


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    validated(rows_of([1, 2, 2]), progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (2, 2)


def test_select_filters_and_names_the_nearest() -> None:
    rows = read_rows()
    chosen = select(rows, arch=["h100-sxm"], op=["gemm"], dtype=["bf16"], source=["xla_matmul_table"])
    assert chosen
    assert {(row.machine, row.op, row.dtype, row.source) for row in chosen} == {
        ("h100-sxm", "gemm", "bf16", "xla_matmul_table")
    }
    assert select(rows) == rows
    parts = [select(rows, split=[name]) for name in SPLITS]
    assert sorted(str(row) for part in parts for row in part) == sorted(map(str, rows))
    with pytest.raises(InputError, match=r"machine h100-sxn; nearest: h100-sxm"):
        select(rows, arch=["h100-sxn"])


def test_a_row_is_fitted_by_its_shape_alone_and_sealed_by_its_source_too() -> None:
    shapes = [f"m={m} n=64 k=64" for m in (1, 2, 3, 4, 5, 64)]
    byte = lambda text: hashlib.sha256(text.encode()).digest()[0]  # noqa: E731
    for shape in shapes:
        other = "held" if byte(f"x {shape}") % 3 else "sealed"
        assert split(shape, "x") == ("fitted" if byte(shape) % 2 == 0 else other)
        assert (split(shape, "y") == "fitted") == (split(shape, "x") == "fitted")
    assert split(" m=64 n=64 k=64 ", ROW.source) == split("m=64 n=64 k=64", ROW.source) == ROW.split
    counts = Counter(row.split for row in packaged_rows())
    assert 0.4 < counts["fitted"] / counts.total() < 0.6
    assert 0.25 < counts["sealed"] / (counts["held"] + counts["sealed"]) < 0.42


def test_rows_run_at_the_clock_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    header = f"{','.join(COLUMNS)},core_mhz\n"
    line = "h100-sxm,gemm,bf16,m=64 n=64 k=64,vendor,5,event,0,cold,A,measure_gpu,"
    path.write_text(f"{header}{line},1410\n{line},\n")
    clocks = [row_request(row).bench.clock_hz for row in read_rows(path, measured_clock=True)]
    assert clocks == [1_410_000_000, None]
    assert [row_request(row).bench.clock_hz for row in read_rows(path)] == [None, None]
    (row,) = read_rows(path, measured_clock=True)[:1]
    slow, fast = (simulate_row(dataclasses.replace(row, core_mhz=mhz)).time_ps for mhz in (700, 1400))
    assert slow > 1.25 * fast
    path.write_text(f"{header}{line},fast\n")
    with pytest.raises(InputError, match="core_mhz=fast: must be a number of MHz, at least 0"):
        read_rows(path, measured_clock=True)
    path.write_text(f"{','.join(COLUMNS)}\n{line}\n")
    with pytest.raises(InputError, match="column core_mhz is missing"):
        read_rows(path, measured_clock=True)
    assert main(["validate", "--measured-clock"]) == 2


def test_groups_are_told_apart_by_source() -> None:
    groups = validated(rows_of([110, 70], source=["here", "there"])).groups
    assert [(group.source, group.rows) for group in groups] == [("here", 1), ("there", 1)]


def test_picture_has_a_group_each() -> None:
    import matplotlib

    matplotlib.use("Agg")
    rows = rows_of([110, 80], dtype=["bf16", "tf32"])
    axes = validated(rows).plot()
    labels = [line.get_label() for line in axes.lines if line.get_marker() == "."]
    assert labels == ["h100-sxm gemm bf16 vendor", "h100-sxm gemm tf32 vendor"]


SOURCES: dict[str, dict[str, Any]] = {
    "locked": {"clock": "isolated", "locked_clock_mhz": 1200},
    "unlocked": {"clock": "isolated"},
    "old library": {"clock": "sustained", "kind": {"fp16": "mma"}, "raster": {"mma": "linear"}},
    "graph of one": {"clock": "isolated", "replays": 100},
    "graph of layers": {"clock": "isolated", "replays": 100, "layers": 6},
    "two kernels": {"clock": "isolated", "left_out": "its times hold a second kernel"},
    "flushed": {"clock": "isolated", "flush": "dirty", "data": "zeros", "code": "warm"},
}
"""Environments of made-up sources, each with something of its own."""


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sources say about how they measured."""
    from workloads.silicon.rows import Environment

    stated = {"statistic": "made up", "evidence": "made up"}
    known = {name: Environment(**stated, **fields) for name, fields in SOURCES.items()}
    for module in ("workloads.silicon", "workloads.silicon.rows"):
        monkeypatch.setattr(f"{module}.environment_of", known.__getitem__)


@pytest.mark.usefixtures("sources")
def test_a_row_is_run_as_its_source_measured() -> None:
    def request(source: str, **columns: Any) -> Request:
        return row_request(dataclasses.replace(ROW, machine="a100-sxm4-80gb", dtype="fp16", source=source, **columns))

    assert request("locked").bench.clock_hz == 1_200_000_000
    assert request("unlocked").bench.clock_hz is None
    old = request("old library")
    assert (old.schedule, old.bench.linear_tiles) == ("mma", ("mma",))
    assert request("old library", schedule="triton").schedule == "triton"
    flushed = request("flushed")
    assert (flushed.l2, flushed.data) == ("dirty", "zeros")
    assert not flushed.bench.cold_code
    assert request("flushed", l2="warm").l2 == "warm"
    assert request("flushed", scope="host", overhead_us=3.0).scope == "kernel"
    replayed = request("graph of layers", scope="graph", l2="mixed")
    assert (replayed.scope, replayed.l2, replayed.bench.replayed) == ("graph", "warm", GraphReplay(6, 100))
    assert request("graph of layers").bench.replayed is None
    assert request("locked", scope="graph").bench.replayed is None
    with pytest.raises(InputError, match="two kernels are left out: its times hold a second kernel"):
        request("two kernels")


@pytest.mark.usefixtures("sources")
def test_what_a_source_states_moves_the_time() -> None:
    def time_us(source: str, **columns: Any) -> float:
        asked = {"machine": "a100-sxm4-80gb", "dtype": "fp16", "shape": "m=512 n=512 k=512", **columns}
        return simulate_row(dataclasses.replace(ROW, source=source, **asked)).time_ps / 1e6

    small = {"scope": "graph", "l2": "mixed", "shape": "m=16 n=2048 k=4096 tb=T"}
    inside, alone, in_turn = (time_us(source, **small) for source in ("locked", "graph of one", "graph of layers"))
    # 17 MB of weights stay in 40 MB of L2, six times as much does not.
    assert in_turn > 1.1 * inside
    # Replays of a single product wait for the host.
    assert alone > load_arch("a100-sxm4-80gb").host.graph_launch_ps * 1e-6  # type: ignore[attr-defined]
    assert time_us("locked") > 1.05 * time_us("unlocked")
    old = simulate_row(dataclasses.replace(ROW, source="old library", dtype="fp16", shape="m=256 n=256 k=256"))
    new = simulate_row(dataclasses.replace(ROW, source="unlocked", dtype="fp16", shape="m=256 n=256 k=256"))
    assert (old.schedule.split()[0], new.schedule.split()[0]) == ("mma", "wgmma")


def test_a_source_may_have_measured_another_machine_than_its_rows_name() -> None:
    rows = [row for row in packaged_rows() if row.source == "triton_docs_a100"]
    assert {row.machine for row in rows} == {environment_of("triton_docs_a100").machine} == {"a100-pcie-80gb"}
