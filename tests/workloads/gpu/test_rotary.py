"""Rotary positions on GPUs: numbers against NumPy, what is moved, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from arch.errors import InputError
from sim import simulate
from workloads.ops import Rope


@pytest.mark.parametrize(
    ("machine", "keys"),
    [
        ("h100-sxm", "tokens=5 heads=4 kv_heads=2 head_dim=128 norm=1"),
        ("a100-sxm4-80gb", "tokens=3 heads=3 kv_heads=1 head_dim=80"),
        ("t4", "tokens=2 heads=2 kv_heads=2 head_dim=64 norm=1"),
    ],
)
def test_numbers_are_those_of_numpy(machine: str, keys: str) -> None:
    report = simulate(f"rope {keys} dtype=fp16", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_a_vector_is_turned_by_its_position_and_keeps_its_length() -> None:
    op = Rope(tokens=3, heads=1, kv_heads=1, head_dim=4, dtype="fp32")
    x, positions, angles = op.inputs()
    y = op.reference(x, positions, angles)
    assert y[0] == pytest.approx(x[0])  # position 0
    assert (y**2).sum(axis=2) == pytest.approx((x**2).sum(axis=2), rel=1e-5)
    # The first of each half of position 1 by one radian.
    first, second = x[1, 0, 0], x[1, 0, 2]
    assert y[1, 0, 0] == pytest.approx(first * np.cos(1) - second * np.sin(1), abs=1e-6)


def test_a_norm_in_front_costs_no_trip_through_memory() -> None:
    text = "rope tokens=2048 heads=32 kv_heads=8 head_dim=128 dtype=bf16"
    plain, normed = (simulate(f"{text} norm={norm}", "h100-sxm") for norm in "01")
    apart = simulate("rmsnorm rows=81920 cols=128 dtype=bf16", "h100-sxm")
    assert plain.figures.counters["l2_write_bytes"] == 2048 * 40 * 128 * 2
    assert normed.figures.device_ps < plain.figures.device_ps + apart.figures.device_ps / 2


@pytest.mark.parametrize(
    ("machine", "keys", "told"),
    [
        ("h100-sxm", "head_dim=65", "rope head_dim=65: must be even, nearest: 66"),
        ("h100-sxm", "head_dim=64 dtype=fp8", "dtype=fp8 is not available"),
        ("tpu-v4", "head_dim=64", "tpu-v4"),
    ],
)
def test_what_no_kernel_does_is_refused(machine: str, keys: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        simulate(f"rope tokens=4 heads=2 kv_heads=1 {keys}", machine)
