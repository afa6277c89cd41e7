"""Three regimes: a unary operator repeated r times on each element, fused, from memory bound to compute bound.

Published (horace.io/brrr_intro.html: A100, fp32, x * 2 repeated): run time flat up to about r = 32 to 64, then linear;
0.2 TFLOPS at r = 1; a plateau at half of 19.5 TFLOPS, because a multiply without an add uses half of what the pipes can
do. The third regime, overhead, is what small tensors are in: the same operator on a few elements.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main, plain_log

from sim.app.report import palette
from sim.app.report.report import Report
from sim.app.run import simulate
from workloads.ops import Pointwise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "a100-sxm4-40gb"


def run(elements: int, repeat: int, **options: str) -> Report:
    """`repeat` multiplications of each element, in one kernel."""
    return simulate(Pointwise(n=elements, chain="scale", repeat=repeat, dtype="fp32"), MACHINE, **options)  # type: ignore[arg-type]


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Run time and throughput by r, and what bounds each run."""
    from matplotlib import pyplot

    elements = 1 << (22 if quick else 26)
    repeats = (1, 64, 512) if quick else (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512)
    curve = {repeat: run(elements, repeat) for repeat in repeats}
    last, first = curve[repeats[-1]], curve[1]
    small = run(1 << 10, 1, scope="stream")
    # The bend: where the rising line of the plateau meets the flat part.
    bend = first.time_us / (last.time_us / repeats[-1])
    claims = [
        Claim("throughput at r = 1", first.tflops, "TFLOPS", None if quick else 0.2, None,
              f"{first.bound} bound; 0.2 is rounded: the data sheet's 1.555 TB/s allow 0.194"),
        Claim("plateau", last.tflops, "TFLOPS", 19.5 / 2, 0.05, f"{last.bound} bound"),
        Claim("flat up to r", bend, "", said="about 32 to 64"),
        Claim("time at r = 32 over r = 1", curve[32].time_us / first.time_us, "x", 1.0, 0.05)
        if 32 in curve else Claim("time at r = 64 over r = 1", curve[64].time_us / first.time_us, "x"),
        Claim("1024 elements, r = 1", small.time_us, "us", remark=f"{small.bound} bound: back-to-back calls"),
    ]  # fmt: skip
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for name, axes in (("ms", left), ("TFLOPS", right)):
        values = [r.time_us / 1e3 if name == "ms" else r.tflops for r in curve.values()]
        axes.loglog(list(curve), values, color=palette.IDLE, base=2)
        powers = [repeat for repeat in curve if repeat & (repeat - 1) == 0]
        axes.set_xticks(powers, [str(repeat) for repeat in powers])
        plain_log(axes, "y")
        for bound in dict.fromkeys(report.bound for report in curve.values()):
            points = [(r, v) for (r, report), v in zip(curve.items(), values, strict=True) if report.bound == bound]
            axes.plot(*zip(*points, strict=True), "o", color=palette.of_bound(bound), label=f"{bound} bound")
        axes.set(xlabel="multiplications of each element", ylabel=name)
    right.axhline(9.75, color=palette.GUIDE, linestyle="--", linewidth=0.8, label="half of 19.5 TFLOPS")
    legend_below(figure)
    figure.suptitle(f"{elements >> 20} Mi fp32 elements on {MACHINE}")
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
