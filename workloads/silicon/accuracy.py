"""How well each machine was validated: errors on the half of the measured rows on which nothing was calibrated.

`accuracy.csv` is written by `scripts/tables/accuracy.py` from `tilewave validate --half held --json`; nobody edits it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

ACCURACY_CSV = Path(__file__).with_name("accuracy.csv")

COLUMNS = ("machine", "op", "rows", "mape_percent", "bias_percent", "date")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of the rows of one machine and operator, in per cent. bias_percent: mean signed error, above 0 the
    simulator is too slow."""

    machine: str
    op: str
    rows: int
    mape_percent: float
    bias_percent: float
    date: str

    def __str__(self) -> str:
        """For people: `gemm 4.3 % (132 rows)`."""
        return f"{self.op} {self.mape_percent:.1f} % ({self.rows} {'row' if self.rows == 1 else 'rows'})"


def read_accuracy(path: Path = ACCURACY_CSV) -> dict[str, list[Accuracy]]:
    """Errors by machine, operators with most rows first; a machine without rows is not in it."""
    found: dict[str, list[Accuracy]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            mape, bias = float(row["mape_percent"]), float(row["bias_percent"])
            entry = Accuracy(row["machine"], row["op"], int(row["rows"]), mape, bias, row["date"])
            found.setdefault(entry.machine, []).append(entry)
    return {machine: sorted(entries, key=lambda entry: (-entry.rows, entry.op)) for machine, entries in found.items()}
