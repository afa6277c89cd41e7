"""The law of turning on representative cases, and that `scripts/lab/whatif_laws.py --turns` notices what breaks it."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "scripts" / "lab"

CASES = [
    ("softmax rows=256 cols=1024 dtype=fp16", "t4", "dram.bandwidth", 1.5),
    ("gemm m=1 n=1024 k=2048 dtype=fp16 tb=T", "h100-sxm", "dram.bandwidth", 1.25),
    ("gemm m=4 n=1024 k=1024 dtype=fp16 tb=T", "rtx-4090", "dram.bandwidth", 1.5),
    ("add n=524288 dtype=fp32", "v100-sxm2", "dram.bandwidth", 2.0),
    ("rmsnorm rows=512 cols=1024 dtype=fp32", "a100-sxm4-80gb", "l2.bandwidth", 2.0),
    ("copy_h2d bytes=4194304", "h200-sxm", "pcie.bandwidth", 1.1),
    ("gemm m=768 n=768 k=256", "v100-sxm2", "sm.count", 2.0),
    ("gemm m=256 n=512 k=512", "t4", "clock.boost", 1.25),
    ("gemm m=512 n=512 k=256", "a30", "tensor rate", 1.5),
    ("gemm m=4 n=512 k=1024", "tpu-v4", "dram.bandwidth", 1.25),
    ("gemm m=16 n=1024 k=1024", "tpu-v1", "dram.bandwidth", 1.5),
    ("gemm m=512 n=256 k=256", "tpu-v1", "pcie.bandwidth", 1.1),
    ("gemm m=1024 n=1024 k=1024", "tpu-v1", "array.rows", 2.0),
    ("gemm m=2048 n=512 k=256", "tpu-v3", "array.columns", 2.0),
    ("gemm m=512 n=512 k=512", "tpu-v2", "clock.boost", 1.25),
    ("gemm m=16 n=512 k=512", "sn40l", "hbm.bandwidth", 1.5),
    ("gemm m=16 n=512 k=512", "plasticine", "ddr.bandwidth", 1.25),
    ("gemm m=512 n=512 k=512", "plasticine", "clock.boost", 1.25),
    ("allreduce bytes=4194304 devices=4", "sn40l", "link.bandwidth", 1.5),
    ("gemm m=16 n=256 k=256", "gemmini", "dram.bandwidth", 1.5),
    ("gemm m=128 n=128 k=128", "gemmini", "clock.boost", 1.5),
]
"""Runs of each family that the figure bounds, as it is or scarce."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("turn_law")


@pytest.mark.parametrize(("workload", "arch", "figure", "factor"), CASES)
def test_what_bounds_a_run_moves_it(script: ModuleType, workload: str, arch: str, figure: str, factor: float) -> None:
    turned = script.examine(script.turn(workload, arch, figure, factor), ())
    assert turned.scarce
    assert turned.saved >= script.HALF * turned.in_proportion


def test_what_caps_a_figure_is_found_and_named(script: ModuleType) -> None:
    """A time between bursts that is set stays, and rows that a channel opens one after the other hold it as long."""
    work, held = "gemm m=1 n=7168 k=2048 dtype=bf16 tb=T", ("dram.t_ccd=1.62 ns",)
    case = script.turn(work, "a100-sxm4-80gb", "dram.bandwidth", 1.25, held)
    turned = script.examine(case, [("dram.t_rcd", False), ("dram.t_ccd", False)])
    assert turned.scarce
    assert not turned.moves
    assert (turned.cap, turned.named) == ("dram.t_ccd", True)


def test_cases_are_the_same_for_the_same_seed_and_differ_by_it(script: ModuleType) -> None:
    first, again, other = ([str(case) for case in islice(script.turns(seed), 20)] for seed in (1, 1, 2))
    assert first == again != other
