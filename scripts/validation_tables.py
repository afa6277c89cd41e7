#!/usr/bin/env python3
"""Writes the tables of errors into docs/validation.md.

    tilewave validate --json > results.json
    scripts/validation_tables.py results.json [MORE.json ...] [--page FILE]

Each file is what `tilewave validate --json` prints; a row that several hold counts as in the last. The tables replace
what stands between the two markers of the page, and say when and with which version they were made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arch.errors import InputError
from sim.app.cost import version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "validation.md"
BEGIN, END = "<!-- tables of errors: scripts/validation_tables.py -->", "<!-- end of tables -->"
GROUP = ("machine", "op", "dtype", "schedule", "source")
_ROW = (*GROUP, "shape", "time_us", "scope", "l2")


def read(paths: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows by what came of them: `rows`, `skipped`, `failed`."""
    found: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for path in paths:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            for kind in ("rows", "skipped", "failed"):
                seen: Counter[tuple[Any, ...]] = Counter()
                for row in document[kind]:
                    key = tuple(row[column] for column in _ROW)
                    found[(*key, seen[key])] = (kind, row)
                    seen[key] += 1
        except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not what tilewave validate --json prints: {error}") from None
    by_kind: dict[str, list[dict[str, Any]]] = {"rows": [], "skipped": [], "failed": []}
    for kind, row in found.values():
        by_kind[kind].append(row)
    return by_kind


def _cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Number, mean absolute error, median, bias and worst of some rows; empty without one."""
    if not rows:
        return ["", "", "", "", ""]
    signed = [row["error_percent"] for row in rows]
    absolute = [abs(error) for error in signed]
    worst = max(signed, key=abs)
    mean, bias = statistics.fmean(absolute), statistics.fmean(signed)
    return [str(len(rows)), f"{mean:.1f}", f"{statistics.median(absolute):.1f}", f"{bias:+.1f}", f"{worst:+.0f}"]


def tables(results: dict[str, list[dict[str, Any]]], made: str) -> str:
    """The tables as Markdown. made: when and with which version."""
    groups: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: {"held": [], "fitted": []})
    for row in results["rows"]:
        groups[tuple(row[column] for column in GROUP)][row["half"]].append(row)
    lines = [
        f"{made}. Errors in per cent of the measured time: mean of the absolute, median, bias, worst; of the half",
        "that figures are judged on (held) and of the one that they may be calibrated on (fitted).",
        "",
        "| machine | operator | format | schedule | source | held | mean | median | bias | worst "
        "| fitted | mean | median | bias | worst |",
        "|" + "---|" * 15,
    ]
    for key in sorted(groups):
        halves = groups[key]
        lines.append(f"| {' | '.join([*key, *_cells(halves['held']), *_cells(halves['fitted'])])} |")
    missing = Counter((row["source"], row["reason"]) for row in [*results["skipped"], *results["failed"]])
    if missing:
        lines += ["", "| rows that did not run | source | reason |", "|---|---|---|"]
        lines += [f"| {count} | {source} | {reason} |" for (source, reason), count in sorted(missing.items())]
    return "\n".join(lines)


def replaced(page: str, text: str, begins: str = BEGIN, ends: str = END) -> str:
    """The page with other tables between two lines; InputError where it has no place for them."""
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise InputError(f"the page has no lines {begins} and {ends}, between which the tables go")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 for wrong input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", metavar="FILE")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        text = tables(read(options.results), f"{datetime.now(UTC):%Y-%m-%d}, tilewave {version()}")
        options.page.write_text(replaced(options.page.read_text(encoding="utf-8"), text), encoding="utf-8")
    except InputError as error:
        print(f"validation_tables: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
