"""A sample of measured rows that no figure was calibrated on: simulated times stay as near as they are.

Tolerances are today's errors, rounded up, and 3 per cent: a change that makes a row worse shows here, one that makes
rows better lowers them. All rows: `tilewave validate`.
"""

import csv
from pathlib import Path

import pytest

from sim.app.run import simulate_row
from workloads.silicon import Row, read_rows
from workloads.silicon.rows import TABLES

COLUMNS = ("machine", "op", "dtype", "shape", "schedule", "source")

with Path(__file__).with_name("silicon_sample.csv").open(newline="", encoding="utf-8") as _file:
    SAMPLE = {tuple(row[c] for c in COLUMNS): float(row["tolerance_percent"]) for row in csv.DictReader(_file)}


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, ...], Row]:
    found = [row for table in TABLES for row in read_rows(table)]
    return {tuple(getattr(row, c) for c in COLUMNS): row for row in found}


@pytest.mark.parametrize("key", SAMPLE, ids=lambda key: " ".join(key))
def test_a_held_row_is_as_near_as_it_was(key: tuple[str, ...], rows: dict[tuple[str, ...], Row]) -> None:
    row = rows[key]
    assert row.half == "held"
    error = simulate_row(row).time_ps * 1e-6 / row.compared_us - 1
    assert 100 * abs(error) <= SAMPLE[key], f"{100 * error:+.1f} %"
