"""The kernel that adds pieces of k: grids that a profiler saw, loads on their way, results for any number of pieces."""

from __future__ import annotations

import csv
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch import load_arch
from scripts.lab.data import LAB
from sim.app.run import simulate
from sim.gpu.language import Kernel
from sim.gpu.language.program import walk
from workloads.gpu.gemm import splitk
from workloads.gpu.gemm.problem import problem
from workloads.ops import Gemm
from workloads.parse import parse

MOST_CTAS = 960
"""Of the library's grids; how it divides the rows of larger results is not known."""
KERNELS = LAB / "measured_kernels.csv"


def reduction(op: Gemm, pieces: int, machine: str = "h100-sxm") -> Kernel:
    p = problem(op)
    return splitk.reduction(p, load_arch(machine), splitk.parts(p, pieces))  # type: ignore[arg-type]


def test_its_grids_are_those_that_a_profiler_saw() -> None:
    with KERNELS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "splitKreduce_kernel<32, 16" in row["kernels"]]
    assert len(rows) > 50
    for row in rows:
        op = parse(f"gemm {row['shape']} dtype={row['dtype']}")
        assert isinstance(op, Gemm)
        kernel = reduction(op, 4)
        seen = tuple(int(x) for x in row["grid"].split(" + ")[-1].split("x"))
        if kernel.ctas > MOST_CTAS:  # there a thread has several results
            assert seen[0] == kernel.grid[0]
            assert seen[1] <= kernel.grid[1]
            continue
        assert kernel.grid == seen, row["shape"]
        assert 32 * kernel.warps == int(re.split("[x ]", row["block"].split(" + ")[-1])[0]) * 16


@pytest.mark.parametrize(
    ("pieces", "groups"),
    [
        (1, [1]),
        (2, [1, 1]),
        (3, [1, 2]),
        (4, [4]),
        (7, [4, 1, 2]),
        (8, [8]),
        (12, [8, 4]),
        (16, [8, 8]),
        (37, [8, 8, 8, 8, 4, 1]),
    ],
)
def test_loads_on_their_way_are_those_of_the_machine_code(pieces: int, groups: list[int]) -> None:
    assert splitk.groups(pieces) == groups
    loads = [op.count for op in walk(reduction(Gemm(m=40, n=70, k=4096, dtype="bf16"), pieces).roles[0].body)
             if op.opcode == "ldg"]  # fmt: skip
    assert loads == groups


@given(pieces=st.integers(1, 300))
def test_every_piece_is_fetched_once(pieces: int) -> None:
    assert sum(splitk.groups(pieces)) == pieces
    assert max(splitk.groups(pieces)) <= 8


@pytest.mark.parametrize("pieces", [2, 3, 7, 12, 16])
def test_the_sum_of_pieces_is_the_product(pieces: int) -> None:
    schedule = f"wgmma 64x16x64 stages 2 split {pieces} reduce"
    report = simulate(f"gemm m=19 n=40 k={64 * pieces} dtype=bf16 batch=2", "h100-sxm", schedule=schedule, check=True)
    check = report.record.check
    assert check is not None
    assert check.passed
