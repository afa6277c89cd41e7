"""What keeps a program from the peak: its own counters, and the same with one limit after another taken away.

    python scripts/lab/rdu/limits.py

For each program and change: cycles of the launch, share of the peak (of the machine as published), what the PCUs'
cycles went into, and how busy the busiest link of the vector network is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from arch.load import load_arch
from sim.app.run import simulate

ATTENTION = "attention batch=1 heads=8 seq=4096 head_dim=128"
GEMM = "gemm m=1024 n=1024 k=1024"
WIDE = ("mesh.vector=1024 B/clk", "mesh.credits=128")
"""Eight times the width of a link."""
LINKS = (*WIDE, "dies.bandwidth=64 TB/s", "dies.latency=0 ns", "tiles.bandwidth=1024 B/clk", "tiles.latency=0 cycles")
"""The same, and nothing between tiles and dies."""
TILES: Mapping[str, Sequence[str]] = {
    "as it is": (),
    "a die is one tile": ("tiles.rows=1", "tiles.columns=1"),
    "borders of tiles half as wide": ("tiles.bandwidth=64 B/clk",),
    "borders of tiles of 8 cycles": ("tiles.latency=8 cycles",),
}

WORK: Sequence[tuple[str, str, str, Mapping[str, Sequence[str]]]] = (
    (
        "sn40l",
        ATTENTION,
        "streaming 256x384 heads 2",
        {
            "as it is": (),
            "a border between dies as wide as the mesh": ("dies.bandwidth=8.2 TB/s",),
            "links without limit": LINKS,
        },
    ),
    (
        "sn40l",
        ATTENTION,
        "streaming 256x384 heads 1 pipelines 2",
        {
            "as it is": (),
            "links without limit": LINKS,
            "links and columns of units without limit": (*LINKS, "mesh.rows=8", "agcu.count=16"),
            "the same by vectors": (),
        },
    ),
    *(
        ("sn40l", text, schedule, TILES)
        for text, schedule in (
            ("gemm m=4096 n=4096 k=4096", "auto"),
            (ATTENTION, "streaming 256x384 heads 1 pipelines 2"),
            ("softmax rows=4096 cols=2048", "streaming 512 rows"),
        )
    ),
    (
        "plasticine",
        GEMM,
        "metapipeline 8x256x1024 par 8x8 over n",
        {
            "as it is": (),
            "links without limit": WIDE,
            "links and memory without limit": (*WIDE, "ddr.bandwidth=1600 GB/s"),
        },
    ),
    (
        "plasticine",
        GEMM,
        "auto",
        {
            "an FMA for each lane and stage": ("pcu.systolic=1",),
            "the same, memory without limit": ("pcu.systolic=1", "ddr.bandwidth=1600 GB/s"),
        },
    ),
)


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False).parse_args()  # type: ignore[union-attr]
    for machine, text, schedule, changes in WORK:
        print(f"{text} on {machine}, {schedule}")
        for name, overrides in changes.items():
            asked = f"{schedule} by vectors" if "by vectors" in name else schedule
            report = simulate(text, load_arch(machine, list(overrides)), schedule=asked)
            kernel = report.record.kernels[0]
            spent = kernel.stalls["pcus"]
            whole = sum(spent.values())
            shares = ", ".join(f"{reason} {100 * n / whole:.0f} %" for reason, n in spent.items() if n > whole / 100)
            link = 100 * kernel.own.networks["vector"][0]  # type: ignore[union-attr]
            peak = 100 * report.figures.share_of_peak
            print(f"  {name:<44}{report.cycles:>9}{peak:>6.1f} %  link {link:.0f} %  {shares}", end="")
            print(f"  ({kernel.schedule})", flush=True)


if __name__ == "__main__":
    main()
