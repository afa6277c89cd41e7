"""Tile and wave quantisation: one more column of tiles and the multiply takes a second wave.

A100 with 108 SMs, tiles of 256x128: N = 1792 has 7 x 14 = 98 tiles, one wave; the next row and column of tiles make
8 x 15 = 120, two waves. Published for N = 1792 and 1793; the simulated step is at 1800, the next size whose rows are
whole 16-byte vectors, so that alignment plays no part (that is the lesson `alignment`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from sim.app.report import palette
from sim.app.report.report import Report
from sim.app.run import simulate
from workloads.ops import Gemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "a100-sxm4-40gb"
TILES = "mma 256x128x32 warp 64x64 cp.async stages 3"
LARGE_TILES = "256x128 tiles at every size"
AUTO = "what auto takes: the best by estimate, of near ones the best simulated"


def run(n: int, schedule: str) -> Report:
    """An n x n x n multiply."""
    return simulate(Gemm(m=n, n=n, k=n, dtype="fp16"), MACHINE, schedule=schedule)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Both sides of the step, and throughput by size."""
    from matplotlib import pyplot

    sizes = [1792, 1800] if quick else sorted({*range(1024, 3328, 128), 1792, 1800, 2688, 2696})
    curves = {LARGE_TILES: {n: run(n, TILES) for n in sizes}}
    if not quick:
        curves[AUTO] = {n: run(n, "auto") for n in sizes}
    before, after = (curves[LARGE_TILES][n] for n in (1792, 1800))
    tiles = [report.record.kernels[0].counters["ctas"] for report in (before, after)]
    waves = [-(-count // 108) for count in tiles]
    claims = [
        Claim("tiles at 1792", tiles[0], "", 98, 0),
        Claim("tiles in the next row and column", tiles[1], "", 120, 0),
        Claim("waves at 1792", waves[0], "", 1, 0),
        Claim("waves after the step", waves[1], "", 2, 0),
        Claim("time after the step over time before", after.time_us / before.time_us, "x",
              remark=f"{before.time_us:.1f} us, {after.time_us:.1f} us"),
        Claim("throughput before", before.tflops, "TFLOPS"),
        Claim("throughput after", after.tflops, "TFLOPS"),
    ]  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.set_prop_cycle(color=palette.SERIES)
    for name, reports in curves.items():
        axes.plot(list(reports), [report.tflops for report in reports.values()], "o-", markersize=3, label=name)
    axes.axvline(1796, color=palette.GUIDE, linewidth=0.8, linestyle="--")
    axes.annotate("98 tiles | 120 tiles", (1796, 0), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=8)
    axes.set(xlabel="M = N = K", ylabel="TFLOPS", ylim=(0, None), title=f"fp16 multiply on {MACHINE}")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
