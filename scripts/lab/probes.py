"""Writes the table of micro-benchmarks into docs/accuracy/memory.md.

scripts/lab/microbench.py --json > probes.json
scripts/docs tables probes probes.json [--page FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.tables.place import DOCS, printed, put, today

PAGE = DOCS / "accuracy" / "memory.md"


def table(rows: Sequence[Mapping[str, Any]], made: str) -> str:
    """One line a probe and machine, without rows that contradict other sources. made: when and with which version."""
    counted = [row for row in rows if not row["contradicted_by"]]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in counted:
        groups[row["probe"], row["machine"]].append(row["deviation_percent"])
    inside = sum(row["within"] for row in counted)
    lines = [
        f"{made}: {inside} of {len(counted)} rows are within their limits. Errors in per cent of the measured value;",
        "of bandwidths a negative one means that the simulation is too slow.",
        "",
        "| probe | machine | rows | mean absolute error | least | most |",
        "|---|---|---|---|---|---|",
    ]
    for (probe, machine), found in sorted(groups.items()):
        mean = statistics.fmean(map(abs, found))
        lines.append(f"| {probe} | {machine} | {len(found)} | {mean:.1f} | {min(found):+.1f} | {max(found):+.1f} |")
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("results", type=Path, metavar="FILE")


def write(options: argparse.Namespace) -> int:
    """Writes the table."""
    take = lambda rows: table(rows, today())  # noqa: E731
    put(options.page, "probes", printed(options.results, "scripts/lab/microbench.py --json", take))
    return 0
