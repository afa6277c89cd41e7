"""The array's cycles against the closed forms of other tools, exactly. The forms are here and nowhere else."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.load import load_arch
from sim.app.families.tpu.runner import array_cycles
from sim.tpu.pe import PeArray
from workloads.ops import Gemm
from workloads.tpu.choose import Config

TABLE = Path(__file__).parent / "scalesim_gemm.csv"


def rows() -> list[dict[str, str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def unit_level(m: int, n: int, k: int, **figures: object) -> int:
    """`tpu.array_cycles` of a product on an array."""
    spec = load_arch("tpu-v1", {f"array.{name}": str(value) for name, value in figures.items()})
    return array_cycles(Gemm(m=m, n=n, k=k).with_defaults("int8"), spec, Config("tiled"))


def folds(m: int, n: int, k: int, rows: int, columns: int, dataflow: str) -> tuple[int, int]:
    """Folds of SCALE-Sim, and cycles of each."""
    if dataflow == "os":
        return -(-m // rows) * -(-n // columns), rows + columns + k - 2
    if dataflow == "is":
        m, n = n, m
    return -(-k // rows) * -(-n // columns), 2 * rows + columns + m - 2


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(row.values()))
def test_scalesim_without_overlap(row: dict[str, str]) -> None:
    height, width = map(int, row["array"].split("x"))
    m, n, k = (int(row[name]) for name in "MNK")
    count, cycles = folds(m, n, k, height, width, row["dataflow"])
    # SCALE-Sim prints the index of its last cycle, counted from 0: one less than the cycles.
    assert int(row["cycles"]) - int(row["stall_cycles"]) == count * cycles - 1 == int(row["closed_form_cycles"])
    found = unit_level(m, n, k, rows=height, columns=width, dataflow=row["dataflow"], overlap_weights="false")
    assert found == count * cycles


def test_scalesim_row_that_took_too_long_to_run() -> None:
    found = unit_level(2048, 2048, 2048, rows=32, columns=32, overlap_weights="false")
    assert found - 1 == 8_773_631


@given(
    m=st.integers(1, 300), n=st.integers(1, 200), k=st.integers(1, 200), height=st.integers(1, 64),
    width=st.integers(1, 64), least=st.sampled_from([1, 4]),
)  # fmt: skip
@settings(max_examples=40)
def test_onnxim_issue_interval(m: int, n: int, k: int, height: int, width: int, least: int) -> None:
    """Tile operations that carry a weight preload follow each other after max(rows, least, H) cycles."""
    tiles = -(-k // height) * -(-n // width)
    interval = max(m, least, height)
    law = height + (tiles - 1) * interval + max(m, least) + height + width - 2
    found = unit_level(m, n, k, rows=height, columns=width, issue_interval=f"{least} cycles")
    assert found == law


@given(
    m=st.integers(1, 24), n=st.integers(1, 20), k=st.integers(1, 20), height=st.integers(1, 7),
    width=st.integers(1, 7), dataflow=st.sampled_from(["ws", "os", "is"]), overlap=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=80)
def test_the_cells_agree_with_the_unit_level_cycle_for_cycle(
    m: int, n: int, k: int, height: int, width: int, dataflow: str, overlap: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-128, 128, (m, k)), rng.integers(-128, 128, (k, n))
    cells = PeArray(a, b, height, width, dataflow, overlap).run()
    assert (cells.product == a @ b).all()
    switch = str(overlap).lower()
    found = unit_level(m, n, k, rows=height, columns=width, dataflow=dataflow, overlap_weights=switch)
    assert cells.cycles == found


@given(m=st.integers(1, 20), n=st.integers(1, 9), k=st.integers(1, 12), overlap=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_sixteen_bit_activations_take_two_passes(m: int, n: int, k: int, overlap: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-32768, 32768, (m, k)), rng.integers(-128, 128, (k, n))
    cells = PeArray(a, b, 4, 3, "ws", overlap, bits=16).run()
    assert (cells.product == (a @ b).astype(np.int32)).all()
    spec = load_arch("tpu-v1", {"array.rows": 4, "array.columns": 3, "array.overlap_weights": str(overlap).lower()})
    op = Gemm(m=m, n=n, k=k).with_defaults("int8")
    assert cells.cycles == array_cycles(op, spec, Config("tiled", wide=True))


def test_sums_wrap_as_32_bit_registers_do() -> None:
    a, b = np.full((1, 200_000), 127), np.full((200_000, 1), 127)
    cells = PeArray(a, b, 64, 1).run()
    assert int(cells.product[0, 0]) == (127 * 127 * 200_000 + 2**31) % 2**32 - 2**31
