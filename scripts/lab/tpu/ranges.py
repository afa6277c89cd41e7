#!/usr/bin/env python3
"""Counters of the TPU v1 paper's applications over all sets of layer sizes that fit what is published of each.

Writes `workloads/ops/counter_ranges.csv`, which reports of `inference` quote; a minute. `--app` runs one application
and prints its ranges without writing.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from arch.load import load_arch
from sim.app.run import simulate
from workloads.ops import networks
from workloads.ops.app_sets import COLUMNS, RANGES_CSV, sets

MACHINE = "tpu-v1"


def counted(app: str) -> tuple[int, dict[str, tuple[float, float]]]:
    """How many sets an application has, and the least and largest of each counter over them."""
    found: list[dict[str, float]] = []
    named = networks.APPS[app]
    every = sets(app)
    try:
        for net in every:
            networks.APPS[app] = lambda net=net: net
            found.append(simulate(f"inference app={app}", MACHINE).to_dict()["tpu"]["counters"])
    finally:
        networks.APPS[app] = named
    return len(every), {name: (min(c[name] for c in found), max(c[name] for c in found)) for name in found[0]}


def main() -> int:
    """Runs all sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", choices=tuple(networks.APPS), help="one application, printed")
    app = parser.parse_args().app
    sha256 = load_arch(MACHINE).content_hash()
    rows = []
    for name in (app,) if app else tuple(networks.APPS):
        count, ranges = counted(name)
        rows += [(name, counter, count, f"{low:.4f}", f"{high:.4f}", sha256) for counter, (low, high) in ranges.items()]
        print(*(" ".join(map(str, row[:5])) for row in rows if row[0] == name), sep="\n")
    if not app:
        with RANGES_CSV.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
