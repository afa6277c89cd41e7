"""The measuring script: what it would measure, its rows, and a run on the CPU where PyTorch is installed."""

import csv
import importlib.util
import io
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from arch.load import list_archs
from sim.app.study.validate import validate
from workloads.registry import schedules as kernels
from workloads.silicon import Row, environment_of, operator_of, read_rows
from workloads.silicon.rows import COLUMNS

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "measure_gpu.py"

SMALL = ("gemm m=64 n=48 k=32 tb=T", "softmax rows=8 cols=64", "add n=256", "sum n=256", "log n=64")


def load() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("measure_gpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_gpu"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


measure = load()


class FakeBench:
    """Rows without a device: the n-th case takes n microseconds."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self.deadline_s = time.monotonic() + limit_s
        self.count = 0

    def rows(self, case: Any, l2: str, scope: str) -> list[dict[str, Any]]:
        self.count += 1
        return [
            dict(zip(measure.SCHEMA, ("t4", case.op, case.dtype, case.shape, "vendor", self.count, scope, 0, l2, "A",
                                      "measure_gpu", ""), strict=True), samples=3)
        ]  # fmt: skip


def test_columns_are_those_of_the_schema() -> None:
    assert COLUMNS == measure.SCHEMA


def test_every_known_device_has_a_machine_description() -> None:
    assert set(measure.PRESETS.values()) <= set(list_archs())
    assert measure.machine_of("NVIDIA Rig 9000") == "nvidia-rig-9000"


def test_rows_are_read_and_simulated_as_they_are(tmp_path: Path) -> None:
    cases = measure.cases_of(["gemm m=64 n=64 k=64 tb=T", "gemm m=64 n=64 k=32"], [], ["fp16", "fp32"])
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        assert measure.write_rows(FakeBench(), cases, ["cold", "warm"], "event", file) == 8
    rows = read_rows(path)
    assert [row.time_us for row in rows] == list(range(1, 9))
    assert [row.l2 for row in rows[:2]] == ["cold", "warm"]
    assert environment_of(rows[0].source).statistic.startswith("median")
    validation = validate(rows[:1], workers=1)
    assert len(validation.outcomes) == 1


@pytest.mark.parametrize("text", measure.DEFAULT_SET)
def test_workloads_mean_the_same_here_and_there(text: str) -> None:
    case = measure.parse_case(text, "fp16")
    row = Row("t4", case.op, case.dtype, case.shape, "vendor", 1.0, "event", 0.0, "cold", "A", "measure_gpu", "")
    # Weights of norms, one row of thousands, are the only tensors that the script does not count.
    assert operator_of(row).with_defaults("fp16").operand_bytes == pytest.approx(case.size_bytes, rel=1e-3)


def test_sizes_by_hand() -> None:
    size = lambda text, dtype="fp32": measure.parse_case(text, dtype).size_bytes  # noqa: E731
    assert size("add n=100") == 1200
    assert size("softmax rows=3 cols=5", "bf16") == 60
    assert size("sum n=7") == 32
    assert size("attention batch=2 heads=4 kv_heads=1 seq=8 head_dim=16", "fp16") == 2 * 2 * 8 * 16 * (4 + 1 + 1 + 4)


def test_cold_sets_exceed_the_l2_or_serve_one_batch() -> None:
    case = measure.parse_case("copy n=1048576", "fp32")
    l2_bytes = 40 * 2**20
    sets = measure.rotation(case, "cold", l2_bytes, 2**30)
    assert (sets - 1) * case.size_bytes >= measure.ROTATION * l2_bytes
    assert measure.rotation(measure.parse_case("copy n=64", "fp32"), "cold", l2_bytes, 2**30) == measure.CALLS
    assert measure.rotation(case, "warm", l2_bytes, 2**30) == 1
    with pytest.raises(measure.Refusal, match=r"copy n=1048576 fp32 cold needs 0\.\d GiB, --memory-limit is 0\.1 GiB"):
        measure.rotation(case, "cold", l2_bytes, 2**27)


def test_fp8_has_results_of_two_bytes() -> None:
    case = measure.parse_case("gemm m=16 n=32 k=64 tb=T", "fp8")
    assert case.formats == ("fp8", "fp8", "bf16")
    assert case.size_bytes == 16 * 64 + 64 * 32 + 2 * 16 * 32
    row = Row("h100-sxm", "gemm", "fp8", case.shape, "vendor", 1.0, "event", 0.0, "cold", "A", "measure_gpu", "")
    assert operator_of(row).with_defaults("fp16").operand_bytes == case.size_bytes


def kernel(name: str, begin: float, duration: float, **more: Any) -> dict[str, Any]:
    args = {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 96, "shared memory": 1024}
    return {"cat": "kernel", "name": name, "ts": begin, "dur": duration, "args": {**args, **more}}


def test_kernels_of_a_trace_by_call() -> None:
    trace = {
        "traceEvents": [
            kernel("reduce", 9.0, 0.5, grid=[1, 1, 1]),
            kernel("gemm", 5.0, 3.0),
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0, "dur": 1.0},
            {"cat": "gpu_memset", "name": "Memset (Device)", "ts": 1.0, "dur": 0.25, "args": {}},
            kernel("gemm", 2.0, 2.0),
            {"cat": "gpu_memset", "name": "Memset (Device)", "ts": 4.5, "dur": 0.25, "args": {}},
            kernel("reduce", 4.0, 0.25),
        ]
    }
    times, launch = measure.kernels_of(trace, 2)
    assert times == [2.5, 3.75]
    assert launch["kernels"] == "Memset (Device) + gemm + reduce"
    assert launch["grid"] == " + 4x1x1 + 1x1x1"
    assert launch["registers"] == " + 96 + 96"
    with pytest.raises(measure.Refusal, match="the profiler saw 6 kernels of 4 calls"):
        measure.kernels_of(trace, 4)
    with pytest.raises(measure.Refusal, match="the profiler saw 0 kernels of 4 calls"):
        measure.kernels_of({}, 4)


class FakeEvent:
    """An event of a stream on which a replay takes 12 microseconds."""

    replays = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.replays

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 0.012 * (end.at - self.at)


class FakeGraph:
    """A graph that counts its replays."""

    def replay(self) -> None:
        FakeEvent.replays += 1


def test_a_graph_is_the_mean_over_its_layers_after_three_replays() -> None:
    torch = ModuleType("torch")
    torch.cuda = ModuleType("cuda")  # type: ignore[attr-defined]
    torch.cuda.Event, torch.cuda.synchronize = FakeEvent, lambda: None  # type: ignore[attr-defined]
    FakeEvent.replays = 0
    assert measure.graph_batch(torch, FakeGraph(), 4, 6) == [pytest.approx(3.0)]
    assert FakeEvent.replays == 9


def test_the_core_clock_is_that_of_one_sm() -> None:
    clock = measure.CoreClock.__new__(measure.CoreClock)
    clock.readings_mhz = []
    for marks in ([[1000, 5000, 7], [3000, 8000, 7]], [[1000, 5000, 7], [3000, 8000, 8]], [[5, 0, 7], [5, 8, 7]]):
        clock._marks = type("Marks", (), {"tolist": lambda self, marks=marks: marks})()
        clock.read()
    assert clock.readings_mhz == [1500]


def test_workloads_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("add n=64 dtype=fp32\n\n  gemm m=64 n=64 k=0 \n")
    assert measure.main(["--workloads", str(path), "--device", "cpu"]) == 2
    assert "gemm k=0: must be a whole number of at least 1" in capsys.readouterr().err
    assert measure.main(["--workloads", str(tmp_path / "none.txt"), "--device", "cpu"]) == 2
    assert "none.txt: cannot be read: No such file" in capsys.readouterr().err


def test_percentiles() -> None:
    assert measure.percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert measure.percentile([4.0, 0.0], 0.25) == 1
    assert measure.percentile([5.0], 0.9) == 5


def test_time_limit_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    cases = measure.cases_of(SMALL, [], ["fp32"])
    file = io.StringIO()
    assert measure.write_rows(FakeBench(limit_s=-1.0), cases, ["cold"], "event", file) == 0
    assert file.getvalue().count("\n") == 1
    assert "5 of 5 cases are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gemmm m=1"], "unknown operator 'gemmm', one of gemm, softmax"),
        (["gemm m=64 n=64"], "gemm m=64 n=64: k missing"),
        (["gemm m=64 n=64 k=0"], "gemm k=0: must be a whole number of at least 1"),
        (["gemm m=64 n=64 q=1"], "unknown key 'q', one of m, n, k"),
        (["softmax rows=4 cols=4 dtype=tf32"], "dtype tf32 must be one of fp32, fp16, bf16"),
        (["attention batch=1 heads=1 seq_q=1 seq_k=8 head_dim=64 causal=1"], "make seq_q and seq_k equal"),
        (["gemm m=16 n=16 k=16", "--dtype", "fp8"], "PyTorch multiplies fp8 with tb=T, ta=N and without batch only"),
        (["add n=8", "--op", "gemm"], "no workload is left"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main([*arguments, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert measure.main(["add n=8"]) == 2
    assert "PyTorch is not installed" in capsys.readouterr().err


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = ModuleType("torch")
    torch.cuda, torch.version = ModuleType("cuda"), ModuleType("version")  # type: ignore[attr-defined]
    torch.cuda.is_available = lambda: False  # type: ignore[attr-defined]
    torch.version.cuda, torch.__version__ = None, "2.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert measure.main(["add n=8"]) == 2
    assert "PyTorch 2.0 (built with no CUDA) finds no CUDA device" in capsys.readouterr().err


def test_it_runs_alone(tmp_path: Path) -> None:
    """A copy of the one file works where the project is not installed."""
    copy = tmp_path / "measure_gpu.py"
    copy.write_bytes(SCRIPT.read_bytes())
    done = subprocess.run(
        [sys.executable, "-I", str(copy), "--help"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "--time-limit" in done.stdout


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("echo 560.35, 1980, 1980, 2619, 512.1, 700.00, [N/A]", {"clocks.sm": "1980", "temperature.gpu": "[N/A]"}),
        ("echo 560.35, 1980", {}),
        ("echo no devices were found; exit 6", {}),
    ],
)
def test_the_card_is_read_while_it_is_kept_busy(
    answer: str, found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nsleep 0.1\n{answer}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    calls: list[float] = []

    def keep_busy() -> None:
        calls.append(time.monotonic())
        time.sleep(0.01)

    card = measure.read_card("GPU-1", keep_busy)
    assert found.items() <= card.items()
    assert bool(card) == bool(found)
    assert len(calls) > 3
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert measure.read_card("GPU-1", keep_busy) == {}


def test_every_measured_row_has_a_kernel_here_or_a_reason() -> None:
    reasons = {"transpose": "schedule torch of transpose is not available", "attention": "schedule cudnn of attention"}
    for case in measure.cases_of([], [], ["fp16"]):
        schedules = {"gemm": ("vendor",), "attention": tuple(measure.ATTENTION_SCHEDULES)}.get(case.op, ("torch",))
        for schedule in schedules:
            row = Row(
                "h100-sxm", case.op, case.dtype, case.shape, schedule, 1, "event", 0, "cold", "A", "measure_gpu", ""
            )
            word = operator_of(row).word
            known = schedule == "vendor" or schedule in kernels(word, "gpu")
            assert known or f"schedule {schedule} of {case.op}" in reasons.get(case.op, "")


def test_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: the calls themselves are not tried")
    out = tmp_path / "rows.csv"
    arguments = [*SMALL, "--device", "cpu", "--machine", "t4", "--dtype", "fp32", "--case-time", "0.001"]
    assert measure.main([*arguments, "--out", str(out)]) == 0
    rows = read_rows(out)
    assert [(row.op, row.l2) for row in rows] == [
        (text.split()[0], l2) for text in SMALL for l2 in ("cold", "warm")
    ]  # fmt: skip
    assert {(row.machine, row.scope) for row in rows} == {("t4", "host")}
    with open(out, newline="", encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    assert int(first["samples"]) >= measure.CALLS
    assert float(first["p10_us"]) <= float(first["time_us"]) <= float(first["p90_us"])
    assert first["torch"]
    assert measure.main([*arguments, "--out", str(out)]) == 2
    assert "the file exists" in capsys.readouterr().err


def test_on_the_cpu_every_operation_runs() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the calls themselves are not tried")
    device = torch.device("cpu")
    for op, keys in measure.KEYS.items():
        given = " ".join(f"{key}=16" for key, default in keys.items() if default is None)
        case = measure.parse_case(f"{op} {given}" + (" seq=16" if op == "attention" else ""), "fp32")
        call = measure.operation(torch, device, case, "unfused")
        tensors = [torch.randn(shape).abs() for shape in case.extents]
        result = call(tensors)
        assert tuple(result.shape) in {case.extents[-1], case.extents[-1][1:], ()}, op
