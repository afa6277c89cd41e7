"""Writes the tables of errors into docs/validation.md.

    tilewave validate --json > results.json
    scripts/docs tables errors results.json [MORE.json ...] [--keep] [--page FILE]

Each file is what `tilewave validate --json` prints; a row that several hold counts as in the last. The tables say
when and with which version they were made. With --keep, a group of which the files have no row keeps its line, with
the day on which it was run, and so do a group's half and rows that did not run.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from scripts.tables.place import DOCS, printed, put, standing, today

PAGE = DOCS / "validation.md"
GROUP = ("machine", "op", "dtype", "schedule", "source")
_KINDS = ("rows", "skipped", "failed")
_ROW = (*GROUP, "shape", "time_us", "scope", "l2")


def read(paths: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows by what came of them: `rows`, `skipped`, `failed`."""
    found: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for path in paths:
        document = printed(path, "tilewave validate --json", lambda found: {kind: found[kind] for kind in _KINDS})
        for kind in _KINDS:
            seen: Counter[tuple[Any, ...]] = Counter()
            for row in document[kind]:
                key = tuple(row[column] for column in _ROW)
                found[(*key, seen[key])] = (kind, row)
                seen[key] += 1
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
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


def kept(page: str) -> tuple[dict[tuple[str, ...], list[str]], dict[tuple[str, str], str]]:
    """Of the tables that a page has: the cells of each group behind its name, and how many rows of a source did not run
    for a reason. A page without tables has none."""
    groups: dict[tuple[str, ...], list[str]] = {}
    missing: dict[tuple[str, str], str] = {}
    for line in standing(page, "errors").splitlines():
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        if re.fullmatch(r"\d{4}-\d\d-\d\d", cells[-1]):
            groups[tuple(cells[: len(GROUP)])] = cells[len(GROUP) :]
        elif cells[0].isdigit():
            missing[cells[1], cells[2]] = cells[0]
    return groups, missing


def tables(results: dict[str, list[dict[str, Any]]], made: str, page: str = "") -> str:
    """The tables as Markdown. made: the day and the version. page: what has lines of other groups to keep."""
    groups: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: {"held": [], "fitted": []})
    for row in results["rows"]:
        groups[tuple(row[column] for column in GROUP)][row["half"]].append(row)
    lines = [
        f"{made}. Errors in per cent of the measured time: mean of the absolute, median, bias, worst; of the half",
        "that figures are judged on (held) and of the one that they may be calibrated on (fitted). The last column",
        "is the day on which a group was run.",
        "",
        "| machine | operator | format | schedule | source | held | mean | median | bias | worst "
        "| fitted | mean | median | bias | worst | run |",
        "|" + "---|" * 16,
    ]
    cells, missing = kept(page)
    for key, halves in groups.items():
        old = cells.get(key, [""] * 11)
        held = _cells(halves["held"]) if halves["held"] else old[:5]
        fitted = _cells(halves["fitted"]) if halves["fitted"] else old[5:10]
        cells[key] = [*held, *fitted, made.partition(",")[0]]
    lines += [f"| {' | '.join([*key, *cells[key]])} |" for key in sorted(cells)]
    refused = Counter((row["source"], row["reason"]) for row in [*results["skipped"], *results["failed"]])
    missing.update({key: str(count) for key, count in refused.items()})
    if missing:
        lines += ["", "| rows that did not run | source | reason |", "|---|---|---|"]
        lines += [f"| {count} | {source} | {reason} |" for (source, reason), count in sorted(missing.items())]
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("results", nargs="+", metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep the lines of groups that the files have no row of")


def write(options: argparse.Namespace) -> int:
    """Writes the tables."""
    page = options.page.read_text(encoding="utf-8") if options.keep else ""
    put(options.page, "errors", tables(read(options.results), today(), page))
    return 0
