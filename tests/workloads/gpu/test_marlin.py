"""Products with weights of 4 and 8 bits: numbers against NumPy, what is moved, what is refused."""

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from workloads.gpu.gemm.choose import choose
from workloads.ops import Gemm

A100 = "a100-sxm4-80gb"

CASES = [
    (A100, "m=20 n=300 k=256 dtype=fp16 weights=int4", "auto"),
    (A100, "m=16 n=256 k=512 dtype=bf16 weights=int4 group=64", "marlin 16x256x64 warp 16x32 stages 4 split 3"),
    (A100, "m=70 n=200 k=192 dtype=fp16 weights=int8 group=192", "marlin 64x128x64 warp 64x32 stages 4 stream-k"),
    (A100, "m=16 n=256 k=256 dtype=bf16 weights=mxfp4", "marlin 16x128x64 warp 16x32 stages 4"),
    ("h100-sxm", "m=30 n=136 k=128 dtype=bf16 weights=nvfp4", "auto"),
    ("h100-sxm", "m=70 n=136 k=320 dtype=bf16 weights=int8 group=64 epilogue=bias+silu", "auto"),
]


@pytest.mark.parametrize(("machine", "keys", "schedule"), CASES, ids=[keys for _, keys, _ in CASES])
def test_numbers_are_those_of_numpy(machine: str, keys: str, schedule: str) -> None:
    report = simulate(f"gemm {keys}", machine, schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    assert report.record.schedule.startswith("marlin")


def test_bytes_hold_two_values_the_lower_first() -> None:
    op = Gemm(m=2, n=1, k=64, dtype="fp16", weights="int4", group=64)
    stored = np.zeros((1, 1, 32))
    stored[0, 0, 1] = 0x21
    values = op.packed.elements(stored)[0, 0]
    assert values[:4].tolist() == [0, 0, 1, 2]
    assert op.packed.elements(np.array([[[-1.0]]])).tolist() == [[[-1, -1]]]
    a = np.zeros((1, 2, 64))
    a[0, :, 2:4] = [[1, 0], [1, 10]]
    assert op.reference(a, stored, np.full((1, 1), 0.5)).ravel().tolist() == [0.5, 10.5]


def test_half_the_bytes_take_less_time_where_memory_holds_a_product() -> None:
    times = {}
    for weights, share in (("same", 2.0), ("int8", 1.0), ("int4", 0.5)):
        report = simulate(f"gemm m=16 n=4096 k=4096 dtype=fp16 weights={weights}", A100)
        times[weights] = report.figures.device_ps
        read = report.figures.counters["dram_read_bytes"]
        assert read == pytest.approx(share * 4096 * 4096, rel=0.08)
    assert times["int4"] < times["int8"] < times["same"]


def test_dequantisation_is_work_of_the_vector_pipes() -> None:
    text, schedule = "gemm m=64 n=1024 k=1024 dtype=fp16", "64x128x64 warp 64x32 cp.async stages 4"
    plain = simulate(text, A100, schedule=f"mma {schedule}").figures.counters
    fused = simulate(f"{text} weights=int4", A100, schedule=f"marlin {schedule}").figures.counters
    assert fused["macs"] >= plain["macs"]
    assert fused["fma_busy_cycles"] > 2 * plain["fma_busy_cycles"]


@pytest.mark.parametrize(
    ("machine", "keys", "told"),
    [
        (A100, "dtype=int8 weights=int4", "int8 operands; nearest: dtype=fp16"),
        (A100, "dtype=fp16 weights=int4 tb=T", "takes ta=N tb=N"),
        (A100, "dtype=fp16 weights=int4 group=100", "must be 16, 32 or a multiple of 64, nearest: 128"),
        (A100, "k=100 dtype=fp16 weights=int4", "k=100: must be a multiple of 64, nearest: 128"),
        ("t4", "dtype=fp16 weights=int8", "t4 needs cp.async"),
        ("tpu-v1", "dtype=bf16 weights=int8", "tpu-v1"),
        ("sn40l", "dtype=bf16 weights=int8", "sn40l has neither scales"),
    ],
)
def test_what_no_kernel_does_is_refused(machine: str, keys: str, told: str) -> None:
    given = dict(word.split("=") for word in f"m=64 n=64 k=128 {keys}".split())
    with pytest.raises(InputError, match=told):
        simulate("gemm " + " ".join(f"{key}={value}" for key, value in given.items()), machine)


def test_schedules_and_weights_go_together() -> None:
    spec = load_arch(A100)
    whole, packed = Gemm(m=64, n=64, k=128, dtype="fp16"), Gemm(m=64, n=64, k=128, dtype="fp16", weights="int4")
    with pytest.raises(InputError, match="its weights have 4 or 8 bits"):
        choose(whole, spec, "marlin")
    for schedule in ("mma 64x64x32 warp 32x32", "simt 64x64x16"):
        with pytest.raises(InputError, match="weights=int4 is not available; nearest: marlin"):
            choose(packed, spec, schedule)
    assert {config.schedule for config, _ in choose(packed, spec).candidates} == {"marlin"}
