"""Epilogues and scales by row: numbers against NumPy, what they cost, what is refused."""

import numpy as np
import pytest

from arch.errors import InputError
from sim import simulate
from workloads.ops import Gemm

H100, A100 = "h100-sxm", "a100-sxm4-80gb"

CASES = [
    (H100, "m=136 n=72 k=96 dtype=bf16 epilogue=bias+gelu", "auto"),
    (H100, "m=40 n=200 k=96 dtype=bf16 epilogue=bias+silu+add", "wgmma 64x64x64 stages 3 swap"),
    (H100, "m=130 n=136 k=256 dtype=fp8 tb=T scale=row epilogue=bias", "wgmma 128x96x128 cluster 2x1 stages 3"),
    (H100, "m=130 n=136 k=256 dtype=fp8 tb=T scale=block epilogue=bias+relu", "auto"),
    (H100, "m=64 n=50 k=64 dtype=int8 tb=T scale=row", "wgmma 64x64x128 stages 2"),
    (H100, "m=96 n=144 k=96 dtype=bf16 epilogue=bias+scale out=fp8", "wgmma 64x48x64 stages 3 split 2"),
    (A100, "m=100 n=136 k=96 dtype=bf16 epilogue=bias+relu+add batch=2", "mma 64x64x32 warp 32x32 split 2"),
    ("t4", "m=66 n=70 k=64 dtype=int8 tb=T scale=row epilogue=gelu_tanh out=fp32", "auto"),
    ("v100-sxm2", "m=66 n=70 k=64 dtype=fp32 epilogue=bias+sigmoid", "auto"),
]


@pytest.mark.parametrize(("machine", "keys", "schedule"), CASES, ids=[keys for _, keys, _ in CASES])
def test_numbers_are_those_of_numpy(machine: str, keys: str, schedule: str) -> None:
    report = simulate(f"gemm {keys}", machine, schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_the_reference_is_the_definition() -> None:
    op = Gemm(m=3, n=4, k=5, dtype="int8", tb="T", scale="row", epilogue="bias+relu+add", out="fp32").with_defaults(
        "int8"
    )
    a, b, sa, sb, bias, residual = op.inputs()
    assert [operand.name for operand in op.operands] == ["a", "b", "sa", "sb", "bias0", "add2"]
    sums = a[0].astype(np.int64) @ b[0].astype(np.int64).T
    expected = np.maximum(sums * np.outer(sa[0], sb[0]) + bias, 0) + residual[0]
    np.testing.assert_allclose(op.reference(a, b, sa, sb, bias, residual)[0], expected, rtol=1e-6)
    assert op.relative_error(expected[None], a, b, sa, sb, bias, residual) < op.tolerance
    assert op.relative_error(expected[None] + 10 * np.abs(sums).max(), a, b, sa, sb, bias, residual) > op.tolerance


def test_a_fused_function_costs_less_than_a_kernel_of_its_own() -> None:
    text, schedule = "gemm m=2048 n=2048 k=512 dtype=bf16", "wgmma 128x128x64 stages 4"
    plain, fused = (simulate(f"{text} {more}", H100, schedule=schedule) for more in ("", "epilogue=bias+gelu+add"))
    alone = simulate("pointwise n=4M chain=bias+gelu+add cols=2048 dtype=bf16", H100)
    assert plain.figures.device_ps < fused.figures.device_ps < plain.figures.device_ps + alone.figures.device_ps
    moved = fused.figures.counters["dram_read_bytes"] - plain.figures.counters["dram_read_bytes"]
    assert moved == pytest.approx(2 * 2048 * 2048 + 2 * 2048, rel=0.02)
    assert fused.figures.counters["fma_busy_cycles"] > plain.figures.counters["fma_busy_cycles"]


@pytest.mark.parametrize(
    ("machine", "keys", "told"),
    [
        (H100, "dtype=bf16 epilogue=bias+gelo", "gelo is no function of it; one of bias, .*gelu"),
        (H100, "dtype=bf16 epilogue=bias+", "nothing is no function"),
        (H100, "dtype=bf16 scale=row", "bf16 operands have no scales; nearest: dtype=fp8"),
        (H100, "dtype=fp8 tb=T scale=row beta=1", "with scale=row nothing is added to C"),
        (A100, "dtype=bf16 epilogue=bias beta=1", "nearest: epilogue=add"),
        (A100, "dtype=fp64 epilogue=relu", "epilogues compute in fp32, the sums are fp64"),
        ("tpu-v1", "dtype=int8 scale=row out=int8", "tpu-v1 has neither scales, epilogues nor packed weights"),
        ("sn40l", "dtype=bf16 epilogue=relu", "sn40l has neither scales, epilogues nor packed weights"),
    ],
)
def test_what_no_kernel_does_is_refused(machine: str, keys: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        simulate(f"gemm m=64 n=64 k=64 {keys}", machine)
