"""What is kept between runs (programs, tables, buffers, the compiled loop's types) changes no result."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from arch.gpu import GpuSpec
from arch.load import list_archs, load_arch
from arch.reads import Remembered
from sim import simulate
from sim.app.families.gpu import runner
from sim.engine import buffers
from sim.gpu.engine import api
from sim.gpu.engine.api import Device
from sim.gpu.units.events import Window
from workloads.gpu import micro

GPUS = [name for name in list_archs() if isinstance(load_arch(name), GpuSpec)]


def _report(workload: str, override: str) -> dict[str, Any]:
    found = simulate(workload, "t4", schedule="auto", set=[override], l2="warm").to_dict()
    del found["simulator"]
    return found


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_PROGRAMS", Remembered(16))
    monkeypatch.setattr(api, "_LOWERED", Remembered(16))
    monkeypatch.setattr(buffers, "_kept", type(buffers._kept)())
    monkeypatch.setattr(buffers, "_addresses", {})


def test_a_point_of_a_sweep_is_what_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        (workload, override)
        for workload in ("gemm m=128 n=128 k=64 dtype=fp16", "softmax rows=64 cols=256 dtype=fp16")
        for override in ("l2.hit_latency=200 cycles", "sm.count=20", "l2.hit_latency=300 cycles", "shared.banks=16")
    ]
    alone = []
    for point in points:
        _forget(monkeypatch)
        alone.append(_report(*point))
    _forget(monkeypatch)
    assert [_report(*point) for point in points] == alone
    assert len({str(report["cycles"]) for report in alone}) > 4


def test_a_launch_that_was_dropped_leaves_its_memory_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget(monkeypatch)
    device, kernel = Device(load_arch("t4")), micro.null(1).kernels[0]
    launch = device.build(kernel, {})
    fresh = [array.copy() for array in launch.state if array is not None]
    result = launch.run()
    places = {array.ctypes.data for array in launch.state if array is not None}
    launch.drop()
    assert buffers.kept_bytes() > 0
    again = device.build(kernel, {})
    now = [array for array in again.state if array is not None]
    assert {array.ctypes.data for array in now} == places
    for before, after in zip(fresh, now, strict=True):
        np.testing.assert_array_equal(before, after)
    assert result.counters["ctas"] == 1  # a result holds no view of what was dropped
    with pytest.raises(AttributeError):
        _ = launch.state


def test_a_device_that_was_dropped_leaves_its_l2_to_the_next_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget(monkeypatch)
    spec = load_arch("t4")
    device = Device(spec)
    fresh = device.memory.lines.copy()
    place = device.memory.lines.ctypes.data
    device.memory.lines[:] = 99
    device.drop()
    again = Device(spec)
    assert again.memory.lines.ctypes.data == place
    np.testing.assert_array_equal(again.memory.lines, fresh)


def _types(name: str, window: Window | None) -> tuple[Any, ...]:
    device = Device(load_arch(name), window=window)
    launch = device.build(micro.null(1).kernels[0], {})
    arguments = (launch.p, launch.program, launch.state, launch._memory_spec, device.memory, 0)
    return tuple(map(numba.typeof, arguments))


@pytest.mark.parametrize(
    "window", [None, Window(0, 1000, 0, 0, 16, trace=False), Window(0, 1000, 0, 0, 16, trace=True)]
)
def test_the_loop_has_one_version_for_all_machines(window: Window | None) -> None:
    assert len({_types(name, window) for name in GPUS}) == 1


def test_the_loop_has_a_version_of_its_own_where_it_records() -> None:
    with_states, without = (Window(0, 1000, 0, 0, 16, trace=trace) for trace in (True, False))
    assert _types("t4", with_states) == _types("t4", without) != _types("t4", None)
