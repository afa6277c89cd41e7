"""Writes what `tilewave archs` says of each machine's accuracy, from a validation of the rows that were held back.

    tilewave validate --half held --json > held.json
    scripts/docs tables accuracy held.json [MORE.json ...] [--keep]

Rows of the half on which figures may be calibrated are refused. Several files are joined: a long validation can be run
machine by machine. With --keep, a machine's operator of which the files have no row keeps its line. The first table of
README.md gets the same errors, of groups of five rows and more.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from arch.errors import InputError
from scripts.tables.place import DOCS, printed, put, today
from workloads.silicon.accuracy import ACCURACY_CSV, COLUMNS

PAGE = DOCS.parent / "README.md"
FEWEST = 5
"""Rows of a group below which README does not quote its error."""


def table(rows: Iterable[Mapping[str, Any]], date: str) -> list[dict[str, str]]:
    """One line a machine and operator, of a validation's `rows`. InputError for a row of the fitted half."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["half"] != "held":
            raise InputError(f"{row['machine']} {row['op']} {row['shape']} is of the half that may be calibrated on")
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


def quoted(lines: Iterable[Mapping[str, str]]) -> str:
    """The table as one sentence, by operator."""
    found = sorted(
        (line for line in lines if int(line["rows"]) >= FEWEST), key=lambda line: (line["op"], line["machine"])
    )
    by_op = [
        f"{op} " + ", ".join(f"{float(line['mape_percent']):.0f} % ({line['machine']})" for line in of_op)
        for op, of_op in groupby(found, key=lambda line: line["op"])
    ]
    return f"{max((line['date'] for line in found), default='never')}: {'; '.join(by_op)}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("json", nargs="+", type=Path, help="of `tilewave validate --half held --json`")
    parser.add_argument("--out", type=Path, default=ACCURACY_CSV)
    parser.add_argument("--keep", action="store_true", help="keep lines of operators that the files do not have")


def write(options: argparse.Namespace) -> int:
    """Writes the file, and the sentence on the page."""
    day = today().partition(",")[0]
    rows = [
        row
        for path in options.json
        for row in printed(path, "tilewave validate --json", lambda document: list(document["rows"]))
    ]
    lines = table(rows, day)
    if options.keep:
        with options.out.open(newline="", encoding="utf-8") as file:
            kept = {(line["machine"], line["op"]): line for line in csv.DictReader(file)}
        lines = [line for _, line in sorted((kept | {(line["machine"], line["op"]): line for line in lines}).items())]
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    put(options.page, "accuracy", quoted(lines))
    return 0
