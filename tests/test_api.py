"""The library end to end on small shapes: what comes out, under which conditions, and what is refused."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest

from arch import InputError, list_archs, load_arch
from arch.gpu import GpuSpec
from sim import compare, simulate, simulate_row
from sim.app.families.gpu import check as gpu_check
from sim.app.families.gpu import steps
from sim.app.families.gpu.conditions import Conditions, conditions_of
from sim.app.families.gpu.runner import Gpu, operator_on
from sim.app.families.request import Bench
from sim.app.run import row_request, run
from sim.gpu.check.interpret import CheckResult as Replay
from sim.gpu.check.interpret import interpret as interpreted
from workloads.ops import Gemm
from workloads.silicon import Row, operator_of, read_rows

SCHEMA = json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text(encoding="utf-8"))
A100 = "a100-sxm4-80gb"
SMALL = "gemm m=256 n=256 k=256 dtype=bf16"
MMA = "mma 64x64x32 warp 32x32 stages 3"


def without_cost(report: Any) -> dict[str, Any]:
    """A report without what the simulation itself cost."""
    document: dict[str, Any] = report.to_dict()
    del document["simulator"]
    return document


@pytest.mark.parametrize(
    ("machine", "workload"),
    [
        ("h100-sxm", SMALL),
        (A100, SMALL),
        ("v100-sxm2", "gemm m=256 n=256 k=256 dtype=fp16"),
        ("t4", "gemm m=256 n=128 k=64 dtype=fp32"),
    ],
)
def test_a_report_says_what_the_operator_needed(machine: str, workload: str) -> None:
    report = simulate(workload, machine)
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    jsonschema.validate(document, SCHEMA)
    assert document["machine"] == machine
    assert document["workload"] == workload
    (kernel,) = document["kernels"]
    # These shapes are whole tiles: every multiply is one that the result needs.
    assert kernel["macs"] == document["macs"] == report.record.macs
    assert document["bytes"]["dram"]["read"] >= 256 * 64 * 2
    assert document["simulator"]["warp_instructions"] > 0
    for split in document["stalls"].values():
        assert sum(split.values()) == pytest.approx(1)
    spec = load_arch(machine)
    slots = sum(report.record.kernels[0].stalls["issue"].values())
    sub_cores = spec.sm.count * spec.sm.sub_cores
    assert sub_cores * (report.cycles - 1) <= slots <= sub_cores * report.cycles
    assert report.time_us * 1e-6 * report.figures.clock_hz == pytest.approx(report.cycles, rel=1e-3)
    assert 0 < document["percent_of_peak"] < 100


def test_text_and_objects_are_the_same_question() -> None:
    by_object = simulate(Gemm(m=256, n=256, k=256, dtype="bf16"), load_arch(A100))
    assert without_cost(by_object) == without_cost(simulate(SMALL, A100))


def test_default_dtype_is_the_machines() -> None:
    assert simulate("gemm m=64 n=64 k=64", A100).record.dtype == "bf16"
    assert simulate("gemm m=64 n=64 k=64", "t4").record.dtype == "fp16"


OPERANDS = 2 * 256 * 256 * 2
"""Bytes of A and B in `SMALL`."""


def test_a_warm_cache_reads_no_operands_from_dram() -> None:
    cold, warm = (simulate(SMALL, A100, l2=state) for state in ("cold", "warm"))
    assert cold.figures.counters["dram_read_bytes"] >= OPERANDS
    # The rest is code, which a launch reads anew.
    assert warm.figures.counters["dram_read_bytes"] <= cold.figures.counters["dram_read_bytes"] - OPERANDS
    assert warm.cycles < cold.cycles


def test_one_mechanism_to_leave_out_may_stand_alone() -> None:
    alone, listed, whole = (
        simulate(SMALL, "h100-sxm", without=asked).record.schedule for asked in ("tma", ["tma"], ())
    )
    assert alone == listed != whole


def test_operands_of_a_long_run_are_warm_without_running_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SETTLED_PS", 0)
    assert simulate(SMALL, A100, l2="warm").figures.counters["dram_read_bytes"] < OPERANDS // 4


def test_a_locked_clock_is_the_clock() -> None:
    report = simulate(SMALL, A100, clock="1 GHz")
    assert report.figures.clock_hz == pytest.approx(10**9, rel=1e-4)
    assert report.record.kernels[0].throttle_reason == "locked"


def test_nothing_holds_the_clock_of_a_small_kernel() -> None:
    spec = load_arch("h100-pcie")
    assert isinstance(spec, GpuSpec)
    assert spec.clock.tensor_hz < spec.clock.boost_hz
    report = simulate(SMALL, spec)
    assert report.figures.clock_hz == pytest.approx(spec.clock.boost_hz, rel=1e-4)
    assert report.record.kernels[0].throttle_reason is None


def test_scopes_cover_more_than_the_kernel() -> None:
    kernel, event, host = (simulate(SMALL, A100, scope=scope).time_us for scope in ("kernel", "event", "host"))
    assert kernel + 1 < event
    assert kernel + 1 < host


def test_overrides_of_the_machine_count() -> None:
    workload = "gemm m=512 n=512 k=512 dtype=bf16"
    slow = simulate(workload, A100, set=["dram.bandwidth=100 GB/s"])
    assert slow.cycles > 1.5 * simulate(workload, A100).cycles


def test_exact_issues_singly_and_counts_the_same() -> None:
    runs, exact = (simulate(SMALL, A100, schedule=MMA, exact=flag) for flag in (False, True))
    assert exact.cycles == pytest.approx(runs.cycles, rel=0.02)
    for name in ("macs", "warp_instructions", "smem_read_bytes", "l2_read_bytes"):
        assert exact.figures.counters[name] == runs.figures.counters[name], name


def test_tune_takes_the_fastest_and_reports_the_others() -> None:
    report = simulate(SMALL, "h100-sxm", tune=True)
    simulated = [c for c in report.record.candidates if c.simulated_cycles is not None]
    given_up = [c for c in report.record.candidates if c.given_up_ps is not None]
    assert len(simulated) + len(given_up) == len(report.record.candidates) > 2
    assert min(c.given_up_ps or 0 for c in given_up) >= report.record.time_ps
    (chosen,) = [c for c in simulated if c.chosen]
    assert chosen.schedule == report.record.schedule
    assert chosen.simulated_cycles == min(c.simulated_cycles or 0 for c in simulated) == report.cycles


def test_a_schedule_can_be_named_as_it_prints() -> None:
    report = simulate(SMALL, A100)
    assert simulate(SMALL, A100, schedule=report.record.schedule).cycles == report.cycles


def test_the_schedule_computes() -> None:
    report = simulate(SMALL, A100, schedule=MMA, check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    error = report.record.check.max_rel_error
    assert error is not None
    assert 0 < error < 1e-2
    assert without_cost(report)["cycles"] == simulate(SMALL, A100, schedule=MMA).cycles


@pytest.mark.parametrize(("wrong", "says"), [("value", "relative error"), ("race", "unordered")])
def test_a_wrong_result_and_a_violation_fail_the_check(monkeypatch: pytest.MonkeyPatch, wrong: str, says: str) -> None:
    def interpret(*arguments: Any) -> Replay:
        replay = original(*arguments)
        if wrong == "race":
            return Replay(replay.outputs, ["an unordered access"])
        outputs = {name: array.copy() for name, array in replay.outputs.items()}
        outputs["C"][0, 7, 9] = float("nan")
        return Replay(outputs, replay.violations)

    original = interpreted
    monkeypatch.setattr(gpu_check, "interpret", interpret)
    report = simulate("gemm m=64 n=64 k=64 dtype=bf16", A100, schedule=MMA, check=True)
    assert report.record.check is not None
    assert not report.record.check.passed
    assert any(says in note for note in report.record.notes)
    jsonschema.validate(json.loads(json.dumps(report.to_dict(), allow_nan=False)), SCHEMA)


def test_the_event_log_grows_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = "gemm m=64 n=64 k=64 dtype=bf16"
    monkeypatch.setattr(gpu_check, "_LOG_ROWS", 16)
    report = simulate(workload, A100, schedule=MMA, check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    monkeypatch.setattr(gpu_check, "_MAX_LOG_ROWS", 32)
    with pytest.raises(InputError, match="a smaller problem"):
        simulate(workload, A100, schedule=MMA, check=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workload": "gemm m=200000 n=200000 k=200000 dtype=fp16", "machine": "t4"}, "dram.size = 1[56]"),
        ({"machine": "h100"}, "unknown machine 'h100'"),
        ({"workload": "gem m=1 n=1 k=1"}, "did you mean gemm"),
        ({"l2": "hot"}, "l2=hot: must be one of cold, warm"),
        ({"scope": "kernels"}, "did you mean kernel"),
        ({"clock": "fast"}, "clock=fast"),
        ({"clock": "3 GHz"}, r"nearest: 1.41 GHz"),
        ({"data": "random"}, "data=random"),
        ({"schedule": "wgmma"}, "wgmma"),
        ({"schedule": "mna"}, "schedule=mna"),
        ({"set": ["sm.cont=3"]}, "sm.count"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str
) -> None:
    def run(*arguments: Any) -> None:
        raise AssertionError("ran")

    monkeypatch.setattr("sim.app.families.gpu.runner.run_steps", run)
    with pytest.raises(InputError, match=says) as caught:
        simulate(**{"workload": SMALL, "machine": A100, **options})
    assert "\n" not in str(caught.value)


def test_overrides_go_with_a_name() -> None:
    with pytest.raises(InputError, match="load_arch"):
        simulate(SMALL, load_arch(A100), set=["sm.count=10"])


def test_comparison_keeps_a_row_for_what_cannot_run() -> None:
    comparison = compare("gemm m=256 n=256 k=256 dtype=fp8 tb=T", [A100, "h100-sxm"])
    refused, ran = comparison.to_dict()["rows"]
    assert refused["machine"] == A100
    assert "fp8" in refused["reason"]
    jsonschema.validate(ran, SCHEMA)


def test_comparison_runs_each_schedule() -> None:
    comparison = compare(SMALL, [A100], ["mma", "simt"])
    kinds = [row["schedule"].split()[0] if "schedule" in row else "" for row in comparison.to_dict()["rows"]]
    assert kinds[0] == "mma"
    assert len(kinds) == 2


def row(**columns: Any) -> Row:
    """A small reference row."""
    plain = Row(A100, "gemm", "bf16", "m=256 n=256 k=256", "vendor", 9.0, "kernel", 0.0, "cold", "A", "none", "url")
    return dataclasses.replace(plain, **columns)


def test_a_row_runs_in_its_scope_and_state() -> None:
    kernel = simulate_row(row())
    assert kernel.cycles == simulate(SMALL, A100, clock="sustained").cycles
    assert simulate_row(row(scope="event")).time_ps > kernel.time_ps
    # A row of this scope states its own overhead, which is taken off its time.
    assert simulate_row(row(scope="host", overhead_us=4.0)) == kernel
    assert simulate_row(row(l2="warm")).time_ps < kernel.time_ps
    assert simulate_row(row(l2="mixed")) == kernel


def test_an_overwritten_l2_writes_back_what_memory_lacks() -> None:
    """The kernel's lines push out others, each of which was written to memory before, or is now."""

    def written(*figures: str) -> int:
        report = simulate("sum n=4194304 dtype=fp32", "h100-sxm", l2="dirty", set=figures)
        return sum(kernel.counters["dram_write_bytes"] for kernel in report.record.kernels)

    few, half, most = (written(f"l2.dirty_limit={limit}", "l2.clean_first=false") for limit in (0.07, 0.5, 1))
    assert few < 3 << 20 < half < most
    assert half - few > 4 << 20  # 16 MiB that are read push out lines of which up to half are dirty
    assert written() < half  # clean ones first


def test_an_overwritten_l2_has_no_room_left_and_keeps_what_came_last() -> None:
    """Twice its size is written, so that the share of lines that stay dirty is that of a long stream of stores."""
    runs = [simulate("add n=1048576", "h100-sxm", l2=l2).record.kernels[0].counters for l2 in ("cold", "dirty")]
    assert runs[0]["l2_evictions"] == 0
    read_and_written = 3 * (1 << 20) * 2 // 128
    assert runs[1]["l2_evictions"] >= read_and_written


def test_calls_that_take_turns_write_back_what_those_before_left() -> None:
    """Calls on operands of their own leave results in the L2, which this one pushes out; an empty L2 keeps its own."""

    def run(text: str, l2: str) -> tuple[int, int]:
        record = simulate(text, "a100-sxm4-80gb", l2=l2).record
        return record.time_ps, record.kernels[0].counters["dram_write_bytes"]

    # 24 MiB of operands and results a call: two calls fill 40 MiB, and a third of what they leave is dirty.
    (cold_ps, kept), (turns_ps, written) = (run("add n=4194304", l2) for l2 in ("cold", "turns"))
    assert kept < 1 << 20
    assert 4 << 20 < written < 10 << 20
    assert turns_ps > cold_ps
    # 16 small calls do not fill it.
    assert run("add n=65536", "turns")[1] == run("add n=65536", "cold")[1]


def test_calls_of_a_norm_share_its_weights() -> None:
    def read(l2: str) -> int:
        text = "rmsnorm rows=16 cols=8192 dtype=bf16"
        return simulate(text, "h100-sxm", l2=l2, schedule="torch").record.kernels[0].counters["dram_read_bytes"]

    assert read("cold") - read("turns") == 2 * 8192


def test_operands_that_the_host_has_just_copied_are_in_the_l2_and_in_dram() -> None:
    def run(text: str, l2: str) -> tuple[int, Mapping[str, int]]:
        record = simulate(text, "a100-sxm4-80gb", l2=l2).record
        return record.time_ps, record.kernels[0].counters

    (cold_ps, cold), (copied_ps, copied) = (run("add n=2097152", l2) for l2 in ("cold", "uploaded"))
    assert cold["dram_read_bytes"] >= 8 << 20
    assert copied["dram_read_bytes"] < 4096, "code alone"
    assert copied_ps < cold_ps
    # 32 MiB of operands fit an L2 of 40 MiB, until 16 MiB of results push out half of them.
    assert run("add n=8388608", "uploaded")[1]["dram_read_bytes"] < 20 << 20
    # Of 64 MiB the end has stayed, and is nearly gone before it is read. DRAM has it: nothing more is written back.
    cold, copied = (run("add n=16777216", l2)[1] for l2 in ("cold", "uploaded"))
    assert copied["dram_read_bytes"] > 50 << 20
    assert copied["dram_write_bytes"] == pytest.approx(cold["dram_write_bytes"], rel=0.01)


def test_a_row_runs_in_its_sources_environment() -> None:
    def conditions(row: Row) -> Conditions:
        request = Gpu().row(row)
        assert isinstance(request.machine, GpuSpec)
        return conditions_of(request, request.machine)

    overwritten = row(source="triton_docs_a100")
    assert conditions(row(source="measure_gpu", machine="h100-sxm")) == Conditions("turns", "isolated", cold_code=False)
    assert conditions(overwritten) == Conditions("dirty", "isolated", cold_code=False)
    burst = row(source="llmcompass_isca24")
    assert conditions(burst) == Conditions("cold", "isolated", cold_code=False)
    assert conditions(row(source="xla_matmul_table", l2="mixed")) == Conditions("uploaded", "isolated")
    repeated = conditions(row(source="cudnn_frontend_bench"))
    assert repeated == Conditions("dirty", "isolated", cold_code=False)
    result = simulate_row(burst)
    assert (result.cycles - 1) / result.time_ps <= 1_410_000_000 / 10**12


def test_set_up_is_of_kernels_whose_code_is_cold_and_warm_code_is_not_fetched() -> None:
    setup_us = load_arch("h100-sxm").launch.setup_ps * 1e-6
    for workload in (SMALL, "rmsnorm rows=16 cols=128 dtype=bf16"):
        for scope, us in (("kernel", setup_us), ("event", setup_us), ("stream", 0), ("graph", 0)):
            (kernel,) = simulate(workload, "h100-sxm", scope=scope).to_dict()["kernels"]
            assert kernel["gpu"]["launch_us"]["setup"] == pytest.approx(us)
    norm = row(op="rmsnorm", shape="rows=16 cols=128", schedule="fused", dtype="bf16", source="cudnn_frontend_bench")
    asked = replace(row_request(norm), clock="isolated", l2="cold")
    warm, cold = (run(replace(asked, bench=Bench(cold_code=fetched))).time_ps for fetched in (False, True))
    assert warm + 100_000 < cold


def test_rows_that_cannot_run_say_why() -> None:
    for columns, says in (
        ({"schedule": "custom"}, "custom"),
        ({"machine": "b20"}, "b20"),
        ({"op": "allreduce", "shape": "bytes=64 devices=2"}, "allreduce"),
    ):
        with pytest.raises(InputError, match=says):
            simulate_row(row(**columns))


def test_every_packaged_row_is_a_question_that_can_be_asked() -> None:
    # Column-major sources, accumulators and machines are resolved without running.
    specs = {name: load_arch(name) for name in list_archs()}
    for packaged in read_rows():
        if packaged.op == "gemm" and packaged.machine in specs:
            operator = operator_on(operator_of(packaged), specs[packaged.machine])
            assert operator.macs > 0
