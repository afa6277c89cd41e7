"""FlashAttention on two generations: what flash2 reaches on A100 and on H100, and what flash3 gets back.

Published: FlashAttention-2 reached about 70 % of peak on A100 and about 35 % on H100; FlashAttention-3 got back to 65 %
and above. The second half leaves out one mechanism of FlashAttention-3 at a time; each builds another program.

The reduced form has 8 heads of 2048 tokens, one wave of CTAs. Its shares of peak are lower than those of long
sequences, and are not compared with published ones. Ping-pong is worth nothing beside overlap in this model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, bars, legend_below, main, published_marks

from sim.app.report.report import Report
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = (
    ("flash2 on A100", "a100-sxm4-80gb", "flash2", 70.0),
    ("flash2 on H100", "h100-sxm", "flash2", 35.0),
    ("flash3 on H100", "h100-sxm", "flash3", 65.0),
)


SWITCHES = ("tma", "wgmma", "warp_specialization", "pingpong", "overlap")


def run(machine: str, schedule: str, quick: bool, without: Sequence[str] = ()) -> Report:
    """Forward attention, 16 heads of 128, not causal, in a benchmark's loop."""
    size = "batch=1 heads=8 seq=2048" if quick else "batch=1 heads=16 seq=8192"
    text = f"attention {size} head_dim=128 dtype=fp16 causal=0"
    return simulate(text, machine, schedule=schedule, clock="sustained", without=without)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Per cent of peak of each, then of flash3 without one mechanism."""
    from matplotlib import pyplot

    claims = []
    for name, machine, schedule, published in RUNS:
        report = run(machine, schedule, quick)
        share = 100 * report.figures.share_of_peak
        remark = f"{report.tflops:.0f} TFLOPS at {report.figures.clock_hz * 1e-9:.2f} GHz, {report.bound} bound"
        claims.append(Claim(name, share, "% of peak", None if quick else published, remark=remark))
    for switch in SWITCHES:
        report = run("h100-sxm", "flash3", quick, (switch,))
        remark = f"{report.tflops:.0f} TFLOPS, {report.record.schedule}"
        claims.append(Claim(f"flash3 without {switch}", 100 * report.figures.share_of_peak, "% of peak", remark=remark))
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    marks = {claim.what: claim.published for claim in claims if claim.published}
    bars(axes, {claim.what: claim.simulated for claim in claims}, marks=marks, label="simulated")
    published_marks(axes, marks)
    size = "8 heads of 2048 tokens (reduced)" if quick else "16 heads of 8192 tokens"
    axes.set(xlabel="per cent of peak", title=f"Attention forward, head dimension 128, fp16\n{size}")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
