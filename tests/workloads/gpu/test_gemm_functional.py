"""Every GEMM schedule computes what NumPy does, in a random legal order of execution, without a violation."""

from __future__ import annotations

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.check.interpret import interpret
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


@pytest.fixture(scope="module")
def machines() -> dict[str, GpuSpec]:
    return {name: load_arch(name) for name in ("b200", "h100-sxm", "a100-sxm4-80gb", "v100-sxm2", "t4")}


def gemm(dtype: str, m: int, n: int, k: int, layout: str = "NN", **keys: int | str) -> Gemm:
    return Gemm(m=m, n=n, k=k, ta=layout[0], tb=layout[1], dtype=dtype, **keys)  # type: ignore[arg-type]


WGMMA: list[tuple[Gemm, WgmmaConfig]] = [
    (gemm("bf16", 256, 256, 256), WgmmaConfig(128, 128, 64, stages=3)),
    (gemm("bf16", 200, 136, 200, "NT"), WgmmaConfig(128, 128, 64, 2, 1, 3)),
    (gemm("fp16", 300, 264, 136), WgmmaConfig(128, 64, 64, 2, 2, 2)),
    (gemm("fp16", 264, 72, 136, "TN"), WgmmaConfig(64, 64, 64, 4, 1, 3)),
    (gemm("bf16", 200, 56, 136, "NT"), WgmmaConfig(64, 56, 64, 4, 1, 3)),
    (gemm("bf16", 24, 264, 136, "NT"), WgmmaConfig(64, 8, 64, 2, 4, 3, swap=True)),
    (gemm("bf16", 256, 264, 64), WgmmaConfig(256, 64, 64, stages=2)),
    (gemm("bf16", 200, 136, 200, "TN", batch=2), WgmmaConfig(64, 64, 64, stages=3, pingpong=True)),
    (gemm("bf16", 256, 128, 128, "TT"), WgmmaConfig(64, 32, 64, 1, 2, 3, pingpong=True)),
    (gemm("bf16", 24, 200, 72), WgmmaConfig(64, 24, 64, stages=3, swap=True)),
    (gemm("tf32", 128, 96, 72, "NT"), WgmmaConfig(128, 32, 32, stages=3)),
    (gemm("tf32", 128, 96, 72, "NN"), WgmmaConfig(128, 32, 32, stages=3, swap=True)),
    (gemm("fp8", 128, 96, 144, "NT"), WgmmaConfig(128, 32, 128, stages=3)),
    (gemm("fp8", 200, 136, 400, "NT"), WgmmaConfig(128, 136, 128, 2, 1, 3, promote=True)),
    (gemm("fp8", 128, 96, 528, "NN"), WgmmaConfig(64, 96, 128, stages=2, pingpong=True, swap=True, promote=True)),
    (gemm("fp8", 72, 48, 1040, "NT"), WgmmaConfig(64, 48, 128, stages=3, promote=True, split=3, reduce=True)),
    (gemm("int8", 128, 96, 144, "NN"), WgmmaConfig(64, 32, 128, stages=3, swap=True)),
    (gemm("bf16", 128, 100, 128, "NT"), WgmmaConfig(64, 64, 64, stages=3)),
    (gemm("bf16", 128, 64, 512), WgmmaConfig(64, 64, 64, stages=3, split=3)),
    (gemm("bf16", 128, 264, 512), WgmmaConfig(64, 64, 64, 1, 2, 3, stream_k=True)),
    (gemm("bf16", 128, 128, 256), WgmmaConfig(64, 64, 64, stages=2, persistent=False)),
    (gemm("bf16", 200, 136, 264, "TN", batch=2), WgmmaConfig(64, 64, 64, stages=3, pingpong=True, tma=False)),
    (gemm("bf16", 128, 128, 512, "NT"), WgmmaConfig(128, 64, 64, stages=5, stream_k=True, tma=False)),
    (gemm("fp16", 264, 136, 264), WgmmaConfig(128, 64, 64, 2, 1, 3, specialized=False)),
    (gemm("tf32", 128, 96, 104, "NN"), WgmmaConfig(64, 32, 32, stages=2, swap=True, specialized=False)),
    (gemm("bf16", 200, 136, 264, "TN", batch=2), WgmmaConfig(128, 64, 64, stages=3, tma=False, specialized=False)),
    (gemm("fp16", 128, 72, 40), WgmmaConfig(64, 24, 64, stages=5, swap=True, tma=False, specialized=False)),
    (gemm("fp16", 128, 72, 80, "NT"), WgmmaConfig(128, 8, 64, stages=4, tma=False, specialized=False)),
    (gemm("fp16", 64, 72, 80), WgmmaConfig(64, 8, 64, stages=4, tma=False)),
    (gemm("tf32", 128, 96, 100, "NT"), WgmmaConfig(256, 32, 32, stages=4, tma=False, specialized=False)),
    (gemm("bf16", 128, 264, 512), WgmmaConfig(64, 64, 64, stages=4, stream_k=True, tma=False, specialized=False)),
    (gemm("fp8", 128, 96, 1040, "NT"), WgmmaConfig(64, 64, 128, stages=3, split=3, tma=False, specialized=False)),
    (gemm("bf16", 200, 400, 136, "NT"), WgmmaConfig(192, 192, 64, 2, 1, 2, columns=True)),
    (gemm("bf16", 264, 200, 136, "TN"), WgmmaConfig(256, 104, 64, stages=2, swap=True)),
    (gemm("bf16", 400, 80, 512), WgmmaConfig(128, 80, 64, stages=2, columns=True, swap=True, split=3)),
    (gemm("fp16", 400, 144, 264), WgmmaConfig(64, 144, 64, 1, 2, 3, columns=True, stream_k=True)),
    (gemm("bf16", 200, 136, 264, "NT"), WgmmaConfig(192, 80, 64, stages=3, columns=True, tma=False)),
    (gemm("bf16", 72, 24, 1024), WgmmaConfig(64, 24, 64, stages=3, split=8)),
    (gemm("fp8", 200, 272, 400, "NT", batch=2, scale="block"), WgmmaConfig(128, 128, 128, 1, 2, 3)),
    (gemm("fp8", 70, 96, 256, "NT", scale="block"), WgmmaConfig(64, 32, 128, 2, 1, stages=2)),
    (gemm("fp8", 128, 128, 1024, "NT", scale="block"), WgmmaConfig(128, 64, 128, stages=2, split=3)),
]
TCGEN05: list[tuple[Gemm, Tcgen05Config]] = [
    (gemm("bf16", 200, 136, 200, "NT"), Tcgen05Config(128, 64, 64, stages=3)),
    (gemm("fp16", 512, 128, 136, "TN", batch=2), Tcgen05Config(256, 64, 64, pair=True, stages=2)),
    (gemm("bf16", 24, 264, 136, "NT"), Tcgen05Config(128, 32, 64, stages=2, swap=True)),
    (gemm("fp8", 300, 100, 400, "NT"), Tcgen05Config(256, 96, 128, pair=True, stages=2, buffers=1)),
    (gemm("int8", 128, 96, 144, "NN"), Tcgen05Config(128, 48, 128, stages=2)),
    (gemm("tf32", 264, 24, 72, "TT"), Tcgen05Config(128, 16, 32, stages=3)),
    (gemm("bf16", 520, 136, 136), Tcgen05Config(256, 64, 64, pair=True, stages=2, clc=True)),
    (gemm("bf16", 200, 130, 136, "NT", out="fp32"), Tcgen05Config(128, 32, 64, stages=2, clc=True, swap=True)),
    (gemm("nvfp4", 300, 200, 544, "NT"), Tcgen05Config(256, 96, 256, pair=True, stages=2)),
    (gemm("mxfp4", 130, 264, 288, "NT"), Tcgen05Config(128, 64, 256, stages=2, swap=True)),
    (gemm("mxfp8", 300, 136, 160, "NT", batch=2), Tcgen05Config(128, 128, 128, stages=2)),
    (gemm("blockfp8", 300, 200, 672, "NT"), Tcgen05Config(256, 96, 128, pair=True, stages=2)),
    (gemm("blockfp8", 40, 264, 1184, "NT"), Tcgen05Config(128, 32, 128, stages=3, swap=True, split=3)),
    (gemm("bf16", 300, 64, 512, "NT"), Tcgen05Config(256, 64, 64, pair=True, stages=2, split=3)),
    (gemm("fp8", 300, 200, 400, "NT", scale="block"), Tcgen05Config(128, 96, 128, stages=2)),
    (gemm("fp8", 300, 200, 400, "NT", scale="block"), Tcgen05Config(256, 128, 128, pair=True, stages=2, buffers=4)),
    (gemm("fp8", 40, 264, 272, "NT", scale="block"), Tcgen05Config(128, 32, 128, stages=3, swap=True)),
    (
        gemm("fp8", 72, 520, 400, "NT", scale="block", batch=2),
        Tcgen05Config(256, 96, 128, pair=True, stages=2, swap=True, clc=True),
    ),
    (gemm("fp8", 70, 128, 1024, "NT", scale="block"), Tcgen05Config(128, 80, 128, stages=2, split=3)),
]
MMA: list[tuple[str, Gemm, MmaConfig]] = [
    ("a100-sxm4-80gb", gemm("fp16", 128, 128, 128), MmaConfig(64, 64, 32, 32, 32, 3, "cp.async")),
    ("a100-sxm4-80gb", gemm("bf16", 100, 136, 200, "NT"), MmaConfig(64, 64, 32, 32, 32, 4, "cp.async")),
    ("a100-sxm4-80gb", gemm("tf32", 100, 68, 100, "TN"), MmaConfig(64, 64, 32, 32, 32, 3, "cp.async")),
    ("a100-sxm4-80gb", gemm("int8", 64, 64, 200, "NT"), MmaConfig(64, 64, 64, 32, 32, 3, "cp.async")),
    ("a100-sxm4-80gb", gemm("int8", 64, 64, 200, "TN"), MmaConfig(64, 64, 64, 32, 32, 3, "cp.async")),
    ("a100-sxm4-80gb", gemm("bf16", 65, 67, 99), MmaConfig(64, 64, 32, 32, 32, 2, "ldg")),
    ("a100-sxm4-80gb", gemm("bf16", 65, 72, 500, batch=2), MmaConfig(64, 64, 32, 32, 32, 3, "cp.async", split=3)),
    ("a100-sxm4-80gb", gemm("bf16", 65, 72, 512), MmaConfig(64, 64, 32, 32, 32, 3, "cp.async", stream_k=True)),
    ("a100-sxm4-80gb", gemm("bf16", 200, 136, 136, "NT"), MmaConfig(160, 96, 32, 80, 48, 3, "cp.async")),
    ("a100-sxm4-80gb", gemm("fp16", 16, 72, 1000, "NT"), MmaConfig(16, 64, 64, 16, 16, 3, "cp.async", split=5)),
    ("a100-sxm4-80gb", gemm("fp16", 64, 64, 64, out="fp32"), MmaConfig(64, 64, 32, 32, 32, 3, "cp.async")),
    ("a100-sxm4-80gb", gemm("fp16", 100, 136, 200), TritonConfig(64, 32, 32, 32, 32, 5, "cp.async")),
    ("a100-sxm4-80gb", gemm("bf16", 200, 1000, 72, "TN"), TritonConfig(64, 128, 32, 32, 64, 4, "cp.async")),
    *(
        ("a100-sxm4-80gb", gemm("fp64", 70, 66, 50, a + b), MmaConfig(64, 32, 16, 32, 32, 3, "cp.async"))
        for a in "NT"
        for b in "NT"
    ),
    ("h100-sxm", gemm("fp64", 100, 72, 96, "NT", batch=2), MmaConfig(64, 64, 16, 32, 32, 3, "cp.async")),
    ("h100-sxm", gemm("bf16", 128, 72, 96, "TT"), MmaConfig(64, 64, 64, 32, 32, 3, "cp.async")),
    ("t4", gemm("fp16", 65, 72, 100), MmaConfig(64, 64, 32, 32, 32)),
    ("t4", gemm("int8", 65, 72, 100, "NT"), MmaConfig(64, 64, 64, 32, 32)),
    ("t4", gemm("fp16", 64, 64, 320, "TT"), MmaConfig(64, 64, 32, 32, 32, split=4)),
    ("v100-sxm2", gemm("fp16", 65, 72, 100, "TN"), MmaConfig(64, 64, 32, 32, 32)),
    ("v100-sxm2", gemm("fp16", 128, 64, 100, "NT"), MmaConfig(64, 64, 32, 64, 32)),
    ("v100-sxm2", gemm("fp16", 128, 64, 320, acc="fp16"), MmaConfig(64, 64, 32, 32, 32, split=2)),
    ("v100-sxm2", gemm("fp16", 65, 72, 100, beta="1"), MmaConfig(64, 64, 32, 64, 32)),
    ("t4", gemm("fp16", 64, 64, 320, "TT", acc="fp16", beta="1"), MmaConfig(64, 64, 32, 32, 32, split=4)),
    ("v100-sxm2", gemm("fp16", 65, 72, 200, beta="1", batch=2), MmaConfig(64, 64, 32, 32, 32, split=3, reduce=True)),
    ("a100-sxm4-80gb", gemm("bf16", 17, 67, 777, "NT"), MmaConfig(16, 16, 128, 16, 16, split=6, reduce=True)),
]
SIMT: list[tuple[str, Gemm, SimtConfig]] = [
    *(("t4", gemm("fp32", 130, 66, 20, a + b), SimtConfig(64, 64, 8, 32, 32)) for a in "NT" for b in "NT"),
    ("v100-sxm2", gemm("fp32", 130, 66, 20, batch=2), SimtConfig(128, 64, 8, 32, 32)),
    ("v100-sxm2", gemm("fp16", 130, 66, 20, acc="fp16"), SimtConfig(64, 64, 8, 32, 32)),
    ("t4", gemm("int8", 130, 68, 64), SimtConfig(64, 64, 32, 32, 32)),
    ("t4", gemm("fp32", 130, 66, 20, beta="1"), SimtConfig(64, 64, 8, 32, 32)),
    ("a100-sxm4-80gb", gemm("fp32", 128, 64, 20, "TN"), SimtConfig(64, 64, 8, 32, 32, 3, "cp.async", split=2)),
    ("h100-sxm", gemm("fp32", 64, 64, 100), SimtConfig(64, 64, 8, 32, 32, stream_k=True)),
    ("t4", gemm("fp32", 33, 66, 40), SimtConfig(32, 32, 8, 16, 16, split=5, reduce=True)),
]
GEMV: list[tuple[str, Gemm, GemvConfig]] = [
    *(("a100-sxm4-80gb", gemm("fp16", 1, 264, 200, a + b, batch=2), GemvConfig(4, 4, 2)) for a in "NT" for b in "NT"),
    *(("h100-sxm", gemm("fp32", 200, 1, 77, a + b), GemvConfig(4, 4, 2)) for a in "NT" for b in "NT"),
    ("t4", gemm("int8", 1, 264, 200, "NT"), GemvConfig(4, 4, 2)),
]
CASES: list[tuple[str, Gemm, Config]] = [
    *(("b200", op, c) for op, c in TCGEN05),
    *(("h100-sxm", op, c) for op, c in WGMMA),
    *MMA,
    *SIMT,
    *GEMV,
]


def _identity(case: tuple[str, Gemm, Config]) -> str:
    machine, op, config = case
    return f"{machine}: {op}: {config}"


@pytest.mark.parametrize("case", CASES, ids=_identity)
def test_computes_what_numpy_does(case: tuple[str, Gemm, Config], machines: dict[str, GpuSpec]) -> None:
    machine, op, config = case
    program = build(op, machines[machine], config)
    operands = op.inputs(seed=1, data="integers")
    names = ("A", "B", "SA", "SB") if op.blockwise or op.in_blocks else ("A", "B", "C")
    result = interpret(program, execute(program, seed=2), dict(zip(names, operands, strict=False)))
    assert result.violations == []
    # Small integers add up without rounding, so that only the last conversion may round.
    assert op.relative_error(result.outputs["C"], *operands) == 0
