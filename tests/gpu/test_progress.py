"""Progress of a run goes with the work that is done."""

from __future__ import annotations

import itertools

import pytest

from arch.load import load_arch
from sim import simulate
from workloads.gpu.select import choose
from workloads.parse import parse

SMALL = ("sm.count=4", "gpc.count=1")


@pytest.mark.parametrize(
    ("workload", "machine"),
    [
        ("gemm m=1024 n=1024 k=2048 dtype=bf16", "h100-sxm"),  # its CTAs stay until the last tile is done
        ("gemm m=512 n=512 k=512 dtype=fp32", "t4"),
        ("softmax rows=4096 cols=1024 dtype=fp16", "t4"),
    ],
)
def test_progress_grows_evenly_from_nothing_to_all(workload: str, machine: str) -> None:
    schedule = str(choose(parse(workload), load_arch(machine, SMALL)).config)
    shares: list[float] = []
    simulate(workload, machine, schedule=schedule, set=SMALL, progress=shares.append)
    assert len(shares) >= 5
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.3
    assert 0.7 < shares[-1] <= 1
    steps = [after - before for before, after in itertools.pairwise(shares)]
    assert max(steps) < 0.3
