#!/usr/bin/env python3
"""Writes the table of micro-benchmarks into docs/accuracy/memory.md.

scripts/microbench.py --json > probes.json
scripts/probe_table.py probes.json [--page FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arch.errors import InputError
from scripts.validation_tables import replaced
from sim.app.cost import version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy" / "memory.md"
BEGIN, END = "<!-- table of micro-benchmarks: scripts/probe_table.py -->", "<!-- end of table -->"


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 for wrong input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        rows = json.loads(options.results.read_text(encoding="utf-8"))
        text = table(rows, f"{datetime.now(UTC):%Y-%m-%d}, tilewave {version()}")
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(replaced(page, text, BEGIN, END), encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"probe_table: {options.results}: not what scripts/microbench.py --json prints: {error!r}", file=sys.stderr
        )
        return 2
    except InputError as error:
        print(f"probe_table: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
