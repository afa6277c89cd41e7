"""What the engine says that it did computes the product and breaks no rule: its own log, replayed with numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arch.dtypes import round_to
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.language import Program
from sim.gpu.units.events import Event
from tests.gpu.kernels import Array, numbers
from workloads.gpu.gemm import threadblock, wgmma
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.wgmma import WgmmaConfig
from workloads.ops import Gemm

Case = tuple[Callable[..., Program], Gemm, str, Any]

#: Two SMs and small tiles, so that CTAs take several tiles and buffers go round more than once.
CASES: dict[str, Case] = {
    "wgmma cooperative": (
        wgmma.build,
        Gemm(m=256, n=200, k=320, dtype="bf16"),
        "h100-sxm",
        WgmmaConfig(128, 64, 64, stages=3),
    ),
    "wgmma cluster": (
        wgmma.build,
        Gemm(m=512, n=64, k=320, dtype="bf16"),
        "h100-sxm",
        WgmmaConfig(128, 64, 64, cluster_m=2, stages=3),
    ),
    "wgmma ping-pong": (
        wgmma.build,
        Gemm(m=192, n=192, k=256, dtype="bf16"),
        "h100-sxm",
        WgmmaConfig(64, 64, 64, pingpong=True, stages=3),
    ),
    "wgmma split-k": (
        wgmma.build,
        Gemm(m=128, n=128, k=512, dtype="bf16"),
        "h100-sxm",
        WgmmaConfig(128, 128, 64, split=2, stages=3),
    ),
    "wgmma split-k by two kernels": (
        wgmma.build,
        Gemm(m=128, n=128, k=512, dtype="bf16"),
        "h100-sxm",
        WgmmaConfig(128, 128, 64, split=2, reduce=True, stages=3),
    ),
    "wgmma split-k by two kernels, swapped": (
        wgmma.build,
        Gemm(m=20, n=68, k=640, dtype="bf16", tb="T"),
        "h100-sxm",
        WgmmaConfig(64, 24, 64, split=3, reduce=True, swap=True, stages=3),
    ),
    "wgmma stream-k": (
        wgmma.build,
        Gemm(m=384, n=64, k=512, dtype="bf16"),
        "h100-sxm",
        WgmmaConfig(128, 64, 64, stream_k=True, stages=3),
    ),
    "wgmma through registers": (
        wgmma.build,
        Gemm(m=128, n=128, k=640, dtype="fp8", ta="T", tb="T"),
        "h100-sxm",
        WgmmaConfig(128, 128, 128, stages=3),
    ),
    "mma cp.async": (
        threadblock.build,
        Gemm(m=100, n=72, k=192, dtype="bf16"),
        "a100-sxm4-80gb",
        MmaConfig(64, 64, 32, 32, 32, stages=3, copy="cp.async"),
    ),
    "mma stream-k": (
        threadblock.build,
        Gemm(m=448, n=128, k=192, dtype="bf16"),
        "a100-sxm4-80gb",
        MmaConfig(64, 64, 32, 32, 32, stages=3, copy="cp.async", stream_k=True),
    ),
    "mma ldg on T4": (threadblock.build, Gemm(m=64, n=64, k=128, dtype="fp16"), "t4", MmaConfig(64, 64, 32, 32, 32)),
    "mma ldg on V100": (
        threadblock.build,
        Gemm(m=64, n=64, k=128, dtype="fp16"),
        "v100-sxm2",
        MmaConfig(64, 64, 32, 32, 32),
    ),
    "simt": (threadblock.build, Gemm(m=64, n=64, k=64, dtype="fp32"), "a100-sxm4-80gb", SimtConfig(64, 64, 8, 32, 32)),
}


def build(case: str) -> tuple[Program, dict[str, Array], dict[str, Array]]:
    """(program, inputs, expected output): small integers, so that every order of summation is exact."""
    make, op, machine, config = CASES[case]
    program = make(op, _machine(machine), config)
    a, b = numbers(*op.a_shape), numbers(*op.b_shape, seed=1)
    output = next(t for t in program.tensors if t.role == "output")
    product = (a.swapaxes(1, 2) if op.ta == "T" else a) @ (b.swapaxes(1, 2) if op.tb == "T" else b)
    return program, {"A": a, "B": b}, {output.name: round_to(product, output.dtype)}


def _machine(name: str) -> GpuSpec:
    return load_arch(name, ["gpc.count=1", "sm.count=2"])


def engine_log(program: Program, machine: str) -> Array:
    """The engine's own event log of a program."""
    device = Device(_machine(machine), log=True)
    logs, ticks = [], 0
    for number, kernel in enumerate(program.kernels):
        result = device.run(kernel, program.addresses())
        assert result.events is not None
        events = result.events
        events[:, Event.KERNEL] = number
        events[:, Event.T_ISSUE : Event.T_DONE + 1] += ticks
        ticks += result.ticks
        logs.append(events)
    return np.concatenate(logs)


@pytest.mark.parametrize("case", CASES)
def test_what_the_engine_simulates_computes_the_product(case: str) -> None:
    program, inputs, expected = build(case)
    result = interpret(program, engine_log(program, CASES[case][2]), inputs)
    assert result.violations == []
    for name, value in expected.items():
        np.testing.assert_array_equal(result.outputs[name], value)
