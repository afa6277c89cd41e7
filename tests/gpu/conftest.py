"""Machines and launches that the engine's tests share: few SMs, no launch cost, code in the caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device, KernelResult
from sim.gpu.language import GlobalTensor, Kernel, Program
from sim.gpu.units.events import Event

Runner = Callable[..., KernelResult]


@pytest.fixture(scope="session")
def hopper() -> GpuSpec:
    """An H100 SXM with 2 SMs in 2 GPCs, whose scheduler hands out CTAs at once."""
    return load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 2, "launch.cta_interval": "0 ns"})


@pytest.fixture(scope="session")
def ampere() -> GpuSpec:
    """An A100 with 2 SMs in 2 GPCs, whose scheduler hands out CTAs at once."""
    return load_arch("a100-sxm4-80gb", {"sm.count": 2, "gpc.count": 2, "launch.cta_interval": "0 ns"})


@pytest.fixture(scope="session")
def volta() -> GpuSpec:
    """A V100 with 2 SMs in 2 GPCs."""
    return load_arch("v100-sxm2", {"sm.count": 2, "gpc.count": 2})


def run(
    spec: GpuSpec,
    program: Kernel | Program,
    *tensors: GlobalTensor,
    exact: bool = False,
    addresses: Mapping[str, int] | None = None,
) -> KernelResult:
    """Runs a kernel (or a program's only kernel) alone on a fresh chip; its result with the event log."""
    if isinstance(program, Kernel):
        program = Program("test", tensors, (program,), "test")
    device = Device(spec, exact=exact, log=True, cold_launch=False)
    (kernel,) = program.kernels
    return device.run(kernel, program.addresses(), launch_ps=0, drain_ps=0)


def cycles(result: KernelResult) -> float:
    """Cycles of a kernel."""
    return result.ticks / TICKS_PER_CYCLE


def column(result: KernelResult, op: int, what: Event, warp: int = 0, cta: int = 0) -> list[float]:
    """Cycles (or values) of one column of the rows of op number `op` of a warp, in the order of issue."""
    events = result.events
    assert events is not None
    rows = events[(events[:, Event.OP] == op) & (events[:, Event.WARP] == warp) & (events[:, Event.CTA] == cta)]
    rows = rows[np.argsort(rows[:, Event.T_ISSUE], kind="stable")]
    scale = 1 if what == Event.VALUE else TICKS_PER_CYCLE
    return [int(value) / scale for value in rows[:, what]]
