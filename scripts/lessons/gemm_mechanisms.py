"""A multiply on Hopper without one of its mechanisms at a time: what each is worth.

Each line is another program, not a factor: without TMA a warp copies by cp.async, without wgmma warps multiply by
mma.sync, without warp specialization all warps load and multiply, without multicast each CTA fetches its own operands,
without ping-pong two warpgroups share a tile and nobody multiplies while it is stored.

Published is the rate of the vendor library for the same multiply (176.2 us for 4096 cubed, openxla/xla's table of
matmul times on H100).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, bars, legend_below, main, published_marks

from sim.app.report.report import Report
from sim.app.run import simulate
from workloads.ops import Gemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "h100-sxm"
LARGE = "wgmma 128x256x64 cluster 2x1 stages 4"
SHORT = "wgmma 128x128x64 cluster 2x1 stages 5 pingpong"
"""Kernels of the vendor-like choice for large multiplies, and one with ping-pong for short k."""
MEASURED_US = 176.2
SWITCHES: tuple[tuple[str, ...], ...] = (
    (),
    ("multicast",),
    ("warp_specialization",),
    ("tma",),
    ("tma", "warp_specialization"),
    ("wgmma",),
)


def run(side: int, k: int, schedule: str, without: Sequence[str]) -> Report:
    """bf16, an isolated kernel, as the published row."""
    op = Gemm(m=side, n=side, k=k, dtype="bf16")
    return simulate(op, MACHINE, schedule=schedule, without=without)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """TFLOPS of each program."""
    from matplotlib import pyplot

    side = 2048 if quick else 4096
    cases = [(f"{side} cubed", side, LARGE, without) for without in SWITCHES]
    cases += [("k = 512", 512, SHORT, without) for without in ((), ("pingpong",))]
    claims = []
    for what, k, schedule, without in cases:
        report = run(side, k, schedule, without)
        name = f"{what}{' without ' if without else ''}{' and '.join(without)}"
        remark = f"{100 * report.figures.share_of_peak:.0f} % of peak, {report.record.schedule}"
        measured = report.figures.flops / MEASURED_US * 1e-6 if k == 4096 and not without else None
        claims.append(Claim(name, report.tflops, "TFLOPS", measured, remark=remark))
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    marks = {claim.what: claim.published for claim in claims if claim.published}
    bars(axes, {claim.what: claim.simulated for claim in claims}, marks=marks, label="simulated")
    published_marks(axes, marks, "vendor library, published")
    axes.set(xlabel="TFLOPS", title=f"bf16 multiply on {MACHINE}")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
