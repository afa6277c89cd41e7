"""Rows to 8 bits on GPUs: numbers against NumPy, what is moved, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from arch.errors import InputError
from sim import simulate
from workloads.ops import Quantize

H100 = "h100-sxm"


@pytest.mark.parametrize(
    ("keys", "schedule"),
    [
        ("rows=5 cols=300 dtype=bf16", "auto"),
        ("rows=7 cols=384 scale=group dtype=bf16", "auto"),
        ("rows=30 cols=64 scale=group group=32 dtype=fp16", "auto"),
        ("rows=9 cols=64 dtype=fp32 out=int8", "auto"),
        ("rows=3 cols=2500 dtype=fp16", "swept warps 8 rows 1 elements 8"),
        ("rows=12 cols=1000 dtype=bf16 scale=tensor", "auto"),
        ("rows=3 cols=5000 dtype=bf16 scale=tensor out=fp8_e5m2", "swept"),
    ],
)
def test_numbers_are_those_of_numpy(keys: str, schedule: str) -> None:
    report = simulate(f"quantize {keys}", H100, schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_a_group_has_the_scale_that_makes_its_largest_element_the_largest_number() -> None:
    op = Quantize(rows=2, cols=4, scale="group", group=2, dtype="fp32")
    y, scales = op.references(np.array([[448.0, -1.0, 0.0, 0.0], [2.0, -896.0, 44.8, 0.1]]))
    assert scales == pytest.approx(np.array([[1.0, 2.0], [0.0, 0.1]]))
    assert y.tolist() == [[448.0, -1.0, 0.0, 0.0], [1.0, -448.0, 448.0, 1.0]]


def test_a_scale_that_is_given_leaves_out_the_reduction() -> None:
    given, found = (
        simulate(
            f"quantize rows=512 cols=4096 scale={scale} dtype=bf16", H100, schedule="swept warps 8 rows 1 elements 8"
        )
        for scale in ("tensor", "token")
    )
    assert given.figures.counters["warp_instructions"] < 0.7 * found.figures.counters["warp_instructions"]
    assert given.figures.counters["l2_write_bytes"] == 512 * 4096
    assert found.figures.counters["l2_write_bytes"] >= 512 * 4096 + 512 * 4


@pytest.mark.parametrize(
    ("machine", "keys", "told"),
    [
        (H100, "cols=100 scale=group", "cols=100: must be a multiple of group=128, nearest: 128"),
        (H100, "cols=128 out=bf16", "quantize out=bf16: one of fp8, fp8_e5m2, int8"),
        ("a100-sxm4-80gb", "cols=128", "has no instruction that converts fp8"),
        ("tpu-v4", "cols=128", "tpu-v4"),
    ],
)
def test_what_no_kernel_does_is_refused(machine: str, keys: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        simulate(f"quantize rows=4 {keys} dtype=bf16", machine)
