"""Validation with made-up simulators: errors by hand, scopes, resumption, processes, skipped and failed rows."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from arch.errors import InputError
from sim.app.study.validate import Outcome, RowResult, Store, default_fingerprint, select, validate
from workloads.silicon import Row, read_rows

ROW = Row("h100-sxm", "gemm", "bf16", "m=1 n=1 k=1", "vendor", 100.0, "kernel", 0.0, "cold", "A", "here", "url")


def rows_of(**columns: list[object]) -> list[Row]:
    """Rows that differ in the given columns."""
    lists = [[(name, value) for value in values] for name, values in columns.items()]
    return [dataclasses.replace(ROW, **dict(pairs)) for pairs in zip(*lists, strict=True)]  # type: ignore[arg-type]


def proportional(row: Row) -> RowResult:
    """A simulator that takes m microseconds."""
    size = int(row.shape.split()[0].removeprefix("m="))
    if row.op != "gemm":
        raise InputError(f"operator {row.op} is not available in this version")
    if size == 13:
        raise ZeroDivisionError("a bug")
    return RowResult("wgmma", 1000 * size, size * 10**6)


def same(row: Row) -> str:
    """A fingerprint of a program that never changes."""
    return "1"


def test_groups_by_hand() -> None:
    rows = rows_of(shape=["m=110", "m=80", "m=100", "m=300"], dtype=["bf16", "bf16", "bf16", "tf32"])
    validation = validate(rows, proportional, workers=1, fingerprint=same)
    first, second = validation.groups
    assert (first.machine, first.op, first.dtype, first.schedule, first.rows) == (
        "h100-sxm",
        "gemm",
        "bf16",
        "vendor",
        3,
    )
    assert first.mape == pytest.approx(10)
    assert first.median == pytest.approx(10)
    assert first.worst == pytest.approx(20)
    assert first.bias == pytest.approx(-10 / 3)
    assert "m=80" in first.worst_row
    assert second.mape == pytest.approx(200)


def test_overhead_counts_in_host_scope_only() -> None:
    result = RowResult("mma", 1, 60 * 10**6)
    host = dataclasses.replace(ROW, scope="host", overhead_us=40.0)
    assert Outcome(host, result).predicted_us == pytest.approx(100)
    assert Outcome(host, result).error == pytest.approx(0)
    assert Outcome(dataclasses.replace(host, scope="event"), result).predicted_us == pytest.approx(60)


def test_no_row_is_dropped_in_silence() -> None:
    rows = rows_of(shape=["m=100", "m=1", "m=13", "m=2"], op=["gemm", "softmax", "gemm", "softmax"])
    validation = validate(rows, proportional, workers=1, fingerprint=same)
    assert [outcome.row for outcome in validation.outcomes] == [rows[0]]
    assert [missing.row for missing in validation.skipped] == [rows[1], rows[3]]
    assert [missing.reason for missing in validation.failed] == ["ZeroDivisionError: a bug"]
    text = str(validation)
    assert "Skipped: 2 rows" in text
    assert "operator softmax is not available" in text
    assert "Failed: 1 rows" in text
    document = json.loads(json.dumps(validation.to_dict()))
    assert [len(document[key]) for key in ("groups", "rows", "skipped", "failed")] == [1, 1, 2, 1]
    keys = {"machine", "op", "dtype", "schedule", "rows", "mape", "median", "worst", "bias"}
    assert keys < set(document["groups"][0])


def test_processes_and_one_process_agree() -> None:
    rows = rows_of(shape=["m=110", "m=80", "m=13", "m=7"], op=["gemm", "gemm", "gemm", "add"])
    assert validate(rows, proportional, workers=2, fingerprint=same) == validate(
        rows, proportional, workers=1, fingerprint=same
    )


def counting(calls: list[Row], stop_at: int | None = None) -> Callable[[Row], RowResult]:
    """A simulator that notes its calls and is interrupted at one of them."""

    def simulate(row: Row) -> RowResult:
        calls.append(row)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return proportional(row)

    return simulate


def test_an_interruption_costs_only_the_row_that_ran(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "results.jsonl"
    rows = rows_of(shape=[f"m={m}" for m in range(1, 6)])
    calls: list[Row] = []
    with pytest.raises(KeyboardInterrupt):
        validate(rows, counting(calls, stop_at=3), workers=1, store=store, fingerprint=same)
    with open(store, "a", encoding="utf-8") as file:
        file.write('{"key": "cut sh')
    again: list[Row] = []
    resumed = validate(rows, counting(again), workers=1, store=store, fingerprint=same)
    assert again == calls[2:] + rows[3:]
    assert resumed == validate(rows, proportional, workers=1, fingerprint=same)
    third: list[Row] = []
    assert validate(rows, counting(third), workers=1, store=store, fingerprint=same) == resumed
    assert third == []


def test_stored_results_are_for_the_same_question_only(tmp_path: Path) -> None:
    store = tmp_path / "results.jsonl"
    validate([ROW], proportional, workers=1, store=store, fingerprint=same)

    def ran(row: Row, fingerprint: Callable[[Row], str] = same) -> bool:
        calls: list[Row] = []
        validate([row], counting(calls), workers=1, store=store, fingerprint=fingerprint)
        return bool(calls)

    assert not ran(dataclasses.replace(ROW, time_us=7.0, quality="C", url="elsewhere"))
    changes = {"machine": "t4", "dtype": "fp16", "shape": "m=2", "scope": "event", "l2": "warm", "schedule": "triton"}
    for column, value in changes.items():
        assert ran(dataclasses.replace(ROW, **{column: value})), column  # type: ignore[arg-type]
    assert ran(dataclasses.replace(ROW, source="xla_matmul_table")), "another environment"
    assert ran(ROW, lambda row: "2"), "another program"


def test_equal_questions_are_simulated_once() -> None:
    calls: list[Row] = []
    rows = rows_of(time_us=[90.0, 100.0, 110.0])
    validation = validate(rows, counting(calls), workers=1, fingerprint=same)
    assert len(calls) == 1
    assert len(validation.outcomes) == 3


def busy(row: Row) -> RowResult:
    """A simulator that takes some CPU time."""
    end_s = time.process_time() + 0.02
    while time.process_time() < end_s:
        pass
    return proportional(row)


def test_cpu_time_is_reported_once_a_simulation_and_survives_an_interruption(tmp_path: Path) -> None:
    rows = rows_of(shape=["m=1", "m=1", "m=2"], dtype=["bf16", "bf16", "tf32"])
    first = validate(rows, busy, workers=2, store=tmp_path / "results.jsonl", fingerprint=same)
    each = [outcome.result.cpu_s for outcome in first.outcomes]
    assert min(each) >= 0.02
    assert each[0] == each[1]
    assert first.cpu_s == pytest.approx(each[0] + each[2])
    assert [group.cpu_s for group in first.groups] == [each[0], each[2]]
    resumed = validate(rows, counting([], stop_at=1), workers=1, store=tmp_path / "results.jsonl", fingerprint=same)
    assert resumed.to_dict() == first.to_dict()
    assert resumed.to_dict()["cpu_s"] == first.cpu_s
    assert f"3 rows, {first.cpu_s:.1f} CPU s" in str(resumed)


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    rows = rows_of(shape=["m=1", "m=2", "m=2"])
    validate(rows, proportional, workers=1, fingerprint=same, progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (3, 3)
    assert len(seen) == 2


def test_fingerprint_follows_the_machine() -> None:
    t4, other = dataclasses.replace(ROW, machine="no-such-machine"), ROW
    assert default_fingerprint(ROW) == default_fingerprint(other)
    assert default_fingerprint(ROW) != default_fingerprint(t4)


def test_select_filters_and_names_the_nearest() -> None:
    rows = read_rows()
    chosen = select(rows, arch=["h100-sxm"], op=["gemm"], dtype=["bf16"], source=["xla_matmul_table"])
    assert chosen
    assert {(row.machine, row.op, row.dtype, row.source) for row in chosen} == {
        ("h100-sxm", "gemm", "bf16", "xla_matmul_table")
    }
    assert select(rows) == rows
    with pytest.raises(InputError, match=r"machine h100-sxn; nearest: h100-sxm"):
        select(rows, arch=["h100-sxn"])


def test_store_that_cannot_be_used_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        Store(tmp_path / "file" / "below")


def test_picture_has_a_group_each() -> None:
    import matplotlib

    matplotlib.use("Agg")
    rows = rows_of(shape=["m=110", "m=80"], dtype=["bf16", "tf32"])
    axes = validate(rows, proportional, workers=1, fingerprint=same).plot()
    labels = [line.get_label() for line in axes.lines if line.get_marker() == "."]
    assert labels == ["h100-sxm gemm bf16 vendor", "h100-sxm gemm tf32 vendor"]
