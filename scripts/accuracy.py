#!/usr/bin/env python3
"""Writes what `tilewave archs` says of each machine's accuracy, from a validation of the rows that were held back.

    tilewave validate --half held --json > held.json
    python scripts/accuracy.py held.json

Rows of the half on which figures may be calibrated are refused. Several files are joined: a long validation can be run
machine by machine.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads.silicon.accuracy import ACCURACY_CSV, COLUMNS


def table(rows: Iterable[Mapping[str, Any]], date: str) -> list[dict[str, str]]:
    """One line a machine and operator, of a validation's `rows`. ValueError for a row of the fitted half."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["half"] != "held":
            raise ValueError(f"{row['machine']} {row['op']} {row['shape']} is of the half that may be calibrated on")
        errors.setdefault((row["machine"], row["op"]), []).append(row["error_percent"])
    return [
        {
            "machine": machine,
            "op": op,
            "rows": str(len(found)),
            "mape_percent": f"{sum(map(abs, found)) / len(found):.1f}",
            "bias_percent": f"{sum(found) / len(found):+.1f}",
            "date": date,
        }
        for (machine, op), found in sorted(errors.items())
    ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("json", nargs="+", type=Path, help="of `tilewave validate --half held --json`")
    parser.add_argument("--out", type=Path, default=ACCURACY_CSV)
    options = parser.parse_args()
    rows = [row for path in options.json for row in json.loads(path.read_text())["rows"]]
    try:
        lines = table(rows, datetime.datetime.now(datetime.UTC).date().isoformat())
    except ValueError as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
