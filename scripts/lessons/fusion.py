"""Fusion: cos(cos(x)) as two kernels moves four numbers an element, as one it moves two and takes half the time.

Published as such in horace.io/brrr_intro.html.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, bars, main

from sim.app.run import simulate
from workloads.ops import Pointwise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "a100-sxm4-40gb"


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Bytes and time of both."""
    from matplotlib import pyplot

    # The smaller machine's L2 is small beside a small problem too.
    machine, elements = ("t4", 1 << 22) if quick else (MACHINE, 1 << 27)
    reports = {
        name: simulate(Pointwise(n=elements, chain="cos+cos", fused=fused, dtype="fp32"), machine)
        for name, fused in (("unfused", "0"), ("fused", "1"))
    }
    moved = {name: sum(report.to_dict()["bytes"]["dram"].values()) / (4 * elements) for name, report in reports.items()}
    ratio = reports["fused"].time_us / reports["unfused"].time_us
    claims = [
        Claim("numbers an element, unfused", moved["unfused"], "", 4, 0.10),
        Claim("numbers an element, fused", moved["fused"], "", 2, 0.10),
        Claim("time fused over unfused", ratio, "x", 0.5, 0.10, reports["fused"].bound + " bound"),
    ]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
    bars(left, moved, across=False)
    left.set(ylabel="numbers moved an element")
    bars(right, {name: report.time_us / 1e3 for name, report in reports.items()}, across=False)
    right.set(ylabel="ms")
    figure.suptitle(f"cos(cos(x)), {elements >> 20} Mi fp32 elements on {machine}")
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
