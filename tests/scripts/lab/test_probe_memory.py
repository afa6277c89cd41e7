"""The probe of memories and launches: its launches against the kernels' signatures, its rows and its options."""

import csv
import ctypes
import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "probe_memory.py"
SMS = 132


def load() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("probe_memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["probe_memory"] = module
    spec.loader.exec_module(module)
    return module


probe_memory = load()


class FakeArray:
    """An array of the device that knows its size only."""

    def __init__(self, size: int, dtype: str) -> None:
        self.size, self.dtype, self.itemsize = size, dtype, np.dtype(dtype).itemsize
        self.data = SimpleNamespace(ptr=0x1000)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return FakeArray(len(range(*key.indices(self.size))), self.dtype)
        return 64

    def view(self, dtype: str) -> "FakeArray":
        return FakeArray(self.size * self.itemsize // np.dtype(dtype).itemsize, dtype)


def as_numbers(array: FakeArray) -> Any:
    """Rising times, or pairs of an SM and a cluster."""
    count = np.arange(array.size)
    return (count // 2 % SMS).astype("uint32") if array.dtype == "uint32" else (count * 100 + 1000).astype("uint64")


class FakeStream:
    """A stream that holds nothing."""

    ptr = 77

    def __init__(self, non_blocking: bool) -> None:
        self.capturing = False

    def use(self) -> None: ...

    def synchronize(self) -> None:
        assert not self.capturing

    def begin_capture(self) -> None:
        self.capturing = True

    def end_capture(self) -> Any:
        self.capturing = False
        return SimpleNamespace(launch=lambda stream: None)


def fake_cupy() -> Any:
    """As much of CuPy as the script uses."""
    runtime = SimpleNamespace(
        deviceGetAttribute=lambda *_: SMS, memsetAsync=lambda *_: None, memset=lambda *_: None,
        memGetInfo=lambda: (1 << 36, 1 << 36), deviceSynchronize=lambda: None,
    )  # fmt: skip
    event = SimpleNamespace(record=lambda stream: None)
    cuda = SimpleNamespace(Stream=FakeStream, Event=lambda: event, runtime=runtime, get_elapsed_time=lambda a, b: 0.5,
                           alloc=lambda size: SimpleNamespace(ptr=1 << 32))  # fmt: skip
    return SimpleNamespace(cuda=cuda, zeros=FakeArray, asnumpy=as_numbers,
                           asarray=lambda values: FakeArray(len(values), str(values.dtype)))  # fmt: skip


class FakeDriver:
    """A driver that notes what is launched."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.launched: list[tuple[str, int, int, int]] = []

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        return 0

    def cuModuleGetFunction(self, pointer: Any, module: Any, name: bytes) -> int:
        self.names.append(name.decode())
        pointer._obj.value = len(self.names)
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        assert value <= 227 * 1024
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: Any) -> int:
        c = config._obj
        cluster = c.attributes[0].value[0] if c.count and c.attributes[0].id == probe_memory.CLUSTER_ATTRIBUTE else 1
        assert c.grid[0] % cluster == 0
        assert 1 <= c.block[0] <= 1024
        assert c.stream == FakeStream.ptr
        self.launched.append((self.names[function.value - 1], c.grid[0], c.block[0], c.shared))
        return 0


def run_all(path: Path, quick: bool = True) -> tuple[FakeDriver, int]:
    """Every measurement on the fake device; the launches and how many measurements failed."""
    driver = FakeDriver()
    gpu = probe_memory.Gpu(fake_cupy(), driver, b"", probe_memory.signatures(probe_memory.source_text()))
    options = SimpleNamespace(out=str(path), quick=quick)
    info = {"device": "H100", "driver": "1", "cuda": "13.0", "date": "2026-01-01"}
    probe = probe_memory.Probe(gpu, options, info, time.monotonic() + 600)
    failed = sum(probe_memory.run_group(probe, group, tasks) for group, tasks in probe_memory.TASKS.items())
    return driver, failed


def test_every_launch_fits_its_kernel(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    driver, failed = run_all(path)
    assert failed == 0
    types = probe_memory.signatures(probe_memory.source_text())
    unused = set(types) - set(driver.names)
    assert not unused - {"read_u2", "random_write"}
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) > 500
    assert all(len(row) == len(probe_memory.SCHEMA) + len(probe_memory.EXTRA) for row in rows)


def test_columns_are_those_of_the_memory_probes() -> None:
    known = SCRIPT.parents[2] / "workloads" / "silicon" / "lab" / "memory_probes.csv"
    assert known.open(encoding="utf-8").readline().strip().split(",") == list(probe_memory.SCHEMA)


def test_signatures_follow_the_source() -> None:
    types = probe_memory.signatures(probe_memory.source_text())
    assert types["wait_cycles"] == [ctypes.c_longlong]
    assert types["code_64k"] == [ctypes.c_uint64, ctypes.c_int, ctypes.c_float]
    assert types["wg_bf16_256_ss"] == [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
    assert "NAME" not in types


def test_wrong_number_of_arguments_is_noticed() -> None:
    gpu = probe_memory.Gpu(fake_cupy(), FakeDriver(), b"", probe_memory.signatures(probe_memory.source_text()))
    with pytest.raises(TypeError, match="null_a takes 1 arguments"):
        gpu.prepare("null_a", 1, 32)


def test_time_that_is_over_skips_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = probe_memory.Gpu(fake_cupy(), FakeDriver(), b"", probe_memory.signatures(probe_memory.source_text()))
    options = SimpleNamespace(out=str(tmp_path / "rows.csv"), quick=True)
    probe = probe_memory.Probe(gpu, options, {}, time.monotonic() - 1)
    assert probe_memory.run_group(probe, "sm", probe_memory.TASKS["sm"]) == 0
    assert "out of time in sm.ops; skipped: sm.mma, sm.barriers" in capsys.readouterr().out


def test_refuses_politely_and_lists() -> None:
    listed = subprocess.run([sys.executable, str(SCRIPT), "--list", "--only", "l2"], capture_output=True, text=True)
    assert listed.stdout.split() == ["l2.latency", "l2.bandwidth", "l2.gpcs", "l2.capacity", "l2.atomics"]
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", "/nowhere/x.csv"], capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    done = subprocess.run([sys.executable, str(SCRIPT), "--only", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
