"""Every wait of the GEMM kernels matters: leaving one out is noticed, or it is listed here with the reason why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arch.load import load_arch
from sim.gpu.language import Program
from workloads.gpu.gemm.choose import Config
from workloads.gpu.gemm.gemv import GemvConfig
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.tcgen05 import Tcgen05Config
from workloads.gpu.gemm.triton import TritonConfig
from workloads.gpu.gemm.wgmma import WgmmaConfig
from workloads.ops import Gemm
from workloads.registry import build

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

FENCE = "no register that wgmma reads or writes is touched by anything else between two k steps"
FIRST = "the next barrier orders the copies; the compiler places one before the last loads as well"
ODD = "a tile has three subtiles, before which all stores are waited for: only the third one finds its buffer in use"
TURN = "keeps the two warpgroups from multiplying at the same time, which is slower but not wrong"

SMALL = {"sm.count": 2, "gpc.count": 1}
TINY = {"sm.count": 1, "gpc.count": 1}

Case = tuple[str, dict[str, int], Gemm, Config, dict[str, str]]
CASES: dict[str, Case] = {
    "cooperative": (
        "h100-sxm", SMALL, Gemm(m=256, n=128, k=192, dtype="bf16"), WgmmaConfig(128, 128, 64, stages=2),
        {"consumer/18 wgmma_fence": FENCE},
    ),
    "cluster": (
        "h100-sxm", SMALL, Gemm(m=256, n=256, k=192, dtype="bf16"), WgmmaConfig(64, 128, 64, 2, 1, 2),
        {"consumer/19 wgmma_fence": FENCE},
    ),
    "columns": (
        "h100-sxm", TINY, Gemm(m=128, n=176, k=192, dtype="bf16"), WgmmaConfig(64, 176, 64, stages=2, columns=True),
        {
            f"consumer{i}/{op}": why
            for i in (0, 1)
            for op, why in (("18 wgmma_fence", FENCE), ("29 bulk_wait_read", ODD))
        },
    ),
    "pingpong": (
        "h100-sxm", SMALL, Gemm(m=256, n=256, k=192, dtype="bf16"), WgmmaConfig(64, 128, 64, stages=2, pingpong=True),
        {
            f"consumer{i}/{op}": why
            for i in (0, 1)
            for op, why in (("12 mbarrier_wait", TURN), ("19 wgmma_fence", FENCE))
        },
    ),
    "operand through registers": (
        "h100-sxm", SMALL, Gemm(m=128, n=128, k=128, dtype="tf32"), WgmmaConfig(64, 128, 32, stages=2, swap=True), {},
    ),
    "scales by block": (
        "h100-sxm", SMALL, Gemm(m=128, n=128, k=512, tb="T", dtype="fp8", scale="block"),
        WgmmaConfig(64, 128, 128, stages=2), {},
    ),
    "products added step by step": (
        "h100-sxm", SMALL, Gemm(m=128, n=128, k=512, tb="T", dtype="fp8"),
        WgmmaConfig(64, 128, 128, stages=2, promote=True), {},
    ),
    "scales by block, rows of C not aligned": (
        "h100-sxm", SMALL, Gemm(m=256, n=100, k=256, tb="T", dtype="fp8", scale="block"),
        WgmmaConfig(64, 128, 128, stages=2), {},
    ),
    "scales by block, tiles in two blocks of columns": (
        "h100-sxm", TINY, Gemm(m=64, n=192, k=256, tb="T", dtype="fp8", scale="block"),
        WgmmaConfig(64, 96, 128, stages=2, flat=True), {},
    ),
    "wgmma split": (
        "h100-sxm", SMALL, Gemm(m=128, n=128, k=512, dtype="bf16"), WgmmaConfig(128, 128, 64, stages=2, split=2),
        {"consumer/18 wgmma_fence": FENCE},
    ),
    "wgmma without TMA": (
        "h100-sxm", SMALL, Gemm(m=128, n=128, k=320, dtype="bf16"), WgmmaConfig(128, 128, 64, stages=3, tma=False),
        {"consumer/18 wgmma_fence": FENCE},
    ),
    "wgmma unspecialized": (
        "h100-sxm", SMALL, Gemm(m=256, n=256, k=192, dtype="bf16"),
        WgmmaConfig(128, 128, 64, 2, 1, 2, specialized=False), {"warps/24 wgmma_fence": FENCE},
    ),
    "wgmma multistage": (
        "h100-sxm", TINY, Gemm(m=128, n=192, k=320, dtype="bf16"),
        WgmmaConfig(128, 64, 64, stages=3, tma=False, specialized=False), {"warps/28 wgmma_fence": FENCE},
    ),
    "tensor memory": (
        "b200", SMALL, Gemm(m=640, n=128, k=192, dtype="bf16"), Tcgen05Config(128, 128, 64, stages=2, buffers=1), {},
    ),
    "tensor memory of pairs": (
        "b200", SMALL, Gemm(m=768, n=64, k=192, dtype="bf16"),
        Tcgen05Config(256, 64, 64, pair=True, stages=2, buffers=1), {},
    ),
    "tensor memory, pairs and launch control": (
        "b200", SMALL, Gemm(m=2048, n=64, k=192, dtype="bf16"),
        Tcgen05Config(256, 64, 64, pair=True, stages=2, buffers=1, clc=True), {},
    ),
    "tensor memory and scales by block": (
        "b200", SMALL, Gemm(m=384, n=64, k=256, tb="T", dtype="fp8", scale="block"),
        Tcgen05Config(128, 64, 128, stages=1, buffers=1), {},
    ),
    "tensor memory of pairs and scales by block": (
        "b200", SMALL, Gemm(m=64, n=512, k=256, tb="T", dtype="fp8", scale="block"),
        Tcgen05Config(256, 64, 128, pair=True, stages=1, buffers=1, swap=True), {},
    ),
    "cp.async": (
        "a100-sxm4-80gb", {}, Gemm(m=64, n=64, k=192, dtype="fp16"), MmaConfig(64, 32, 32, 32, 16, 3, "cp.async"), {},
    ),
    "cp.async split": (
        "a100-sxm4-80gb", {}, Gemm(m=64, n=64, k=1152, dtype="fp16"),
        MmaConfig(64, 32, 32, 32, 16, 3, "cp.async", split=6), {},
    ),
    "cp.async stream-K": (
        "a100-sxm4-80gb", TINY, Gemm(m=384, n=128, k=192, dtype="fp16"),
        MmaConfig(128, 128, 32, 64, 64, 3, "cp.async", stream_k=True), {},
    ),
    "triton": (
        "a100-sxm4-80gb", {}, Gemm(m=64, n=128, k=192, dtype="fp16"),
        TritonConfig(64, 128, 32, 32, 64, 4, "cp.async"),
        {"warps/14 bar_sync": FIRST},
    ),
    "ldg": ("t4", {}, Gemm(m=64, n=64, k=96, dtype="fp16"), MmaConfig(64, 32, 32, 32, 16), {}),
    "simt": ("t4", {}, Gemm(m=64, n=64, k=32, dtype="fp32"), SimtConfig(64, 32, 8, 32, 16), {}),
    "gemv along rows": ("t4", {}, Gemm(m=1, n=64, k=32, dtype="fp32"), GemvConfig(2, 2, 2), {}),
    "gemv along k": ("t4", {}, Gemm(m=1, n=64, k=300, tb="T", dtype="fp32"), GemvConfig(2, 2, 2), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_wait_matters(name: str) -> None:
    machine, overrides, op, config, redundant = CASES[name]
    program = build(op, load_arch(machine, overrides), config)
    operands = op.inputs(seed=1, data="integers")
    inputs = dict(zip(("A", "B", "SA", "SB"), operands, strict=False))
    expected = {"C": op.reference(*operands)}

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    def simulate(mutant: Program) -> NDArray[np.int64]:
        return execute(mutant, seed=2)

    excused = {f"{program.kernels[0].name}/{what}": why for what, why in redundant.items()}
    assert assert_mutants_caught(case, simulate, excused) > 0
