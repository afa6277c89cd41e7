"""Cycle counts of small runs, exactly as they are: a change of the model shows here, and is accepted on purpose.

`pytest tests/test_golden.py --golden-update` writes the file anew; its diff belongs into the change that caused it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.api import simulate

FILE = Path(__file__).parent / "golden" / "cycles.json"
CASES: tuple[tuple[str, str, str], ...] = (
    ("h100-sxm", "gemm m=512 n=512 k=512 dtype=bf16", "auto"),
    ("h100-sxm", "gemm m=1024 n=768 k=256 dtype=bf16", "wgmma 128x128x64 cluster 2x1 stages 4 pingpong"),
    ("h100-sxm", "gemm m=304 n=208 k=112 dtype=fp8", "auto"),
    ("h100-sxm", "gemm m=512 n=512 k=512 dtype=tf32", "auto"),
    ("h200-sxm", "gemm m=512 n=512 k=512 dtype=bf16", "auto"),
    ("h100-sxm", "attention batch=2 heads=4 seq=512 head_dim=128 dtype=fp16", "flash3"),
    ("h100-sxm", "attention batch=2 heads=4 seq=512 head_dim=64 causal=1 dtype=bf16", "flash3"),
    ("a100-sxm4-80gb", "attention batch=2 heads=4 seq=512 head_dim=128 causal=1 dtype=fp16", "flash2"),
    ("h100-pcie", "gemm m=256 n=512 k=512 dtype=fp16", "mma"),
    ("a100-sxm4-80gb", "gemm m=512 n=512 k=512 dtype=bf16", "auto"),
    ("a100-sxm4-80gb", "gemm m=384 n=384 k=384 dtype=fp32", "simt"),
    ("a100-sxm4-40gb", "gemm m=1 n=4096 k=512 dtype=fp16", "gemv"),
    ("v100-sxm2", "gemm m=512 n=256 k=256 dtype=fp16", "auto"),
    ("t4", "gemm m=256 n=256 k=256 dtype=fp16 ta=T", "auto"),
    ("t4", "gemm m=256 n=256 k=256 dtype=fp32", "auto"),
    ("t4", "gemm m=256 n=256 k=256 dtype=int8", "auto"),
)


def test_cycles_are_those_on_record(request: pytest.FixtureRequest) -> None:
    cycles = {
        f"{arch} | {workload} | {schedule}": simulate(workload, arch, schedule=schedule).cycles
        for arch, workload, schedule in CASES
    }
    if request.config.getoption("--golden-update"):
        FILE.write_text(json.dumps(cycles, indent=1) + "\n")
    assert cycles == json.loads(FILE.read_text())
