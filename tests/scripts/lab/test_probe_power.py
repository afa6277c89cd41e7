"""The script that measures power: its kernels' names and arguments, and a run on a GPU that is made up."""

import csv
import ctypes
import importlib.util
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "probe_power.py"
PROBES = SCRIPT.parents[2] / "workloads" / "silicon" / "lab" / "memory_probes.csv"
SMS = 132


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("probe_power", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["probe_power"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


probe = load()


def parameters() -> list[str]:
    """Parameters of every kernel: pointers and numbers of 64 bits."""
    text = re.search(r"#define ARGS(.*?)\n#define", Path(probe.SOURCE).read_text(), re.S)
    assert text is not None
    found: list[str] = []
    for part in text[1].replace("\\", " ").split(","):
        words = part.split()
        pointer = "*" in part
        assert pointer or words[0] == "ll"
        found.append("pointer" if pointer else "number")
    return found


class Array:
    """An array that the host and the device share."""

    def __init__(self, count: int, dtype: Any) -> None:
        self.values = np.zeros(count, dtype)
        self.shape = self.values.shape
        self.data = SimpleNamespace(ptr=self.values.ctypes.data)

    def set(self, values: Any) -> None:
        self.values[:] = values

    def get(self) -> Any:
        return self.values.copy()


class Memory:
    def __init__(self, size: int) -> None:
        self.values = np.zeros(size, np.uint8)
        self.ptr = self.values.ctypes.data


class Stream:
    current: Any = None

    def __init__(self, non_blocking: bool = False) -> None:
        self.until = 0.0

    def __enter__(self) -> None:
        Stream.current = self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def done(self) -> bool:
        return time.perf_counter() >= self.until

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.until - time.perf_counter()))


def words(address: int, count: int) -> Any:
    memory: Any = (ctypes.c_char * (8 * count)).from_address(address)
    return np.frombuffer(memory, np.uint64)


class Function:
    """A kernel at 1.5 GHz whose warps do 1000 bodies each."""

    preferred_shared_memory_carveout = -1

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        kinds = ["pointer" if isinstance(a, np.uint64) else "number" for a in arguments]
        assert kinds == parameters()
        assert all(isinstance(a, (np.uint64, np.int64)) for a in arguments)
        stat, log, warm, total, inner, on, period, phase, _, log_max, _ = (int(a) for a in arguments[2:])
        warps = grid[0] * block[0] // 32
        assert 0 < warps <= SMS * 64
        assert 0 <= warm < total
        assert inner > 0
        assert on <= period
        assert phase * grid[0] <= period
        now = time.time_ns()
        words(stat, 4 * warps).reshape(-1, 4)[:] = [1000, (total - warm) * 3 // 2, total - warm, now + total]
        if log:
            entries = words(log, 1 + 2 * log_max)
            entries[0] = 11
            for i in range(11):
                entries[1 + 2 * i], entries[2 + 2 * i] = now + 20000 * i, 30000 * i
        Stream.current.until = time.perf_counter() + total * 1e-9


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy and NVML of a board that takes 300 W."""
    runtime = SimpleNamespace(
        getDeviceProperties=lambda _: {"name": b"GPU", "multiProcessorCount": SMS, "major": 9, "minor": 0},
        memcpy=lambda target, source, size, kind: ctypes.memmove(target, source, size),
        memset=lambda target, value, size: ctypes.memset(target, value, size),
        deviceSynchronize=lambda: None, driverGetVersion=lambda: 13000, getDeviceCount=lambda: 1,
        deviceGetPCIBusId=lambda _: "0000:01:00.0",
    )  # fmt: skip
    cupy = ModuleType("cupy")
    cupy.empty = Array  # type: ignore[attr-defined]
    cupy.RawModule = lambda path: SimpleNamespace(get_function=lambda name: Function())  # type: ignore[attr-defined]
    device = SimpleNamespace(use=lambda: None)
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime, Device=lambda _: device, Stream=Stream, alloc=Memory
    )
    nvml = ModuleType("pynvml")
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": lambda _: 1,
        "nvmlSystemGetDriverVersion": lambda: "1.0",
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: int(time.perf_counter() // 0.01 * 3000),
        "nvmlDeviceGetFieldValues": lambda *_: [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=300000))],
        "nvmlDeviceGetPowerUsage": lambda _: 299000,
        "nvmlDeviceGetClockInfo": lambda *_: 1500,
        "nvmlDeviceGetTemperature": lambda *_: 40,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700000,
    }
    for name, answer in answers.items():
        setattr(nvml, name, answer)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(probe, "BIG", 1 << 27)
    monkeypatch.setattr(probe, "compile_kernels", lambda target, arch: "nothing")


def test_columns_are_those_of_the_probes() -> None:
    with open(PROBES, newline="", encoding="utf-8") as file:
        assert next(csv.reader(file))[: len(probe.SCHEMA)] == list(probe.SCHEMA)


def test_every_kernel_is_in_the_source() -> None:
    text = Path(probe.SOURCE).read_text()
    names = set(re.findall(r"^(?:KERNEL|SAME|CHAINED|SHARED_\w+|GLOBAL_READ|MMA)\((\w+),", text, re.M))
    names |= {f"wgmma_{d}_{side}" for d in re.findall(r"^WGMMA\((\w+),", text, re.M) for side in ("ss", "rs")}
    assert names == set(probe.KERNELS)
    assert {c.kernel for c in probe.cases() if c.kernel} == set(probe.KERNELS)


def test_random_operands_fill_the_buffer() -> None:
    for values in {kernel.values for kernel in probe.KERNELS.values()}:
        assert len(probe.operands(np, values)) == probe.SMALL
    x, a, b = np.frombuffer(probe.operands(np, "inverse"), np.float32)[: 3 * 8192].reshape(3, -1)
    assert np.array_equal(x * a * b, x)
    assert list(probe.fp8_codes(np, np.array([0.0, 1.0, -2.0, 500.0, 0.002]))) == [0x00, 0x38, 0xC0, 0x7E, 0x01]


def test_power_of_a_counter() -> None:
    samples = [(0.0, 10.0), (0.1, 10.0), (0.2, 40.0), (0.3, 40.0), (0.4, 100.0), (0.45, 100.0)]
    assert probe.counter_power(samples) == pytest.approx(300.0)
    assert probe.intervals(samples) == pytest.approx([0.2])
    assert probe.counter_power(samples[:3]) is None


@pytest.mark.usefixtures("gpu")
def test_a_run_writes_rows_and_series(tmp_path: Path) -> None:
    out, series = tmp_path / "rows.csv", tmp_path / "series.csv"
    only = "^(idle_context|sensors|steady_ffma|ldg128_cg|wgmma_bf16_ss_beside_copy)/(random|none)"
    assert probe.main(["--quick", "--only", only, "--out", str(out), "--series", str(series)]) == 0
    with open(out, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {(row["op"], row["metric"]): float(row["value"]) for row in rows}
    assert found["steady_ffma", "power_counter"] == pytest.approx(300, rel=0.1)
    assert found["steady_ffma", "clock"] == pytest.approx(1500)
    assert found["steady_ffma", "work_rate"] == pytest.approx(SMS * 32 * 1000 * 256 * 32 / 0.1, rel=1e-3)
    assert ("ldg128_cg", "energy_gross") in found
    with open(series, newline="", encoding="utf-8") as file:
        times = [row for row in csv.DictReader(file) if row["clock_mhz"]]
    assert len(times) == 10
    assert {float(row["clock_mhz"]) for row in times} == {1500.0}


@pytest.mark.usefixtures("gpu")
def test_what_does_not_fit_the_time_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--out", str(tmp_path / "rows.csv"), "--series", str(tmp_path / "series.csv")]
    assert probe.main(["--only", "^ffma/zeros", "--time-limit", "0.5", *files]) == 2
    assert "left out" in capsys.readouterr().err


def test_without_cupy_it_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert probe.main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
