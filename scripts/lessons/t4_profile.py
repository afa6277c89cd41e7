"""The T4 profile: one PyTorch profile of operators on 8192 x 8192 fp32 matrices, and what bounds each.

Published: device times of mm, mul_ by a scalar, pow, fill_ and sum of all; in words: sqrt, sin, sigmoid, log10 and pow
take what a scalar multiplication takes, a sum half of it, adding two matrices 1.5 times; reading a matrix once at the
advertised 0.32 TB/s takes 0.839 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, bars, legend_below, main, published_marks

from sim.app.report import palette
from sim.app.report.profile import profile
from sim.app.report.render import as_text
from sim.app.report.report import Report
from sim.app.report.sections import profile_section
from sim.app.run import simulate
from workloads.graphs import Graph, GraphBuilder
from workloads.ops import Gemm, Pointwise, Sum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "t4"
DTYPE = "fp32"
PUBLISHED_MS = {"mm": 230.208, "mul_": 2.184, "pow": 2.167, "fill_": 1.141, "sum": 0.992}
SAME_AS_SCALE = ("sqrt", "sin", "sigmoid", "log10", "pow")
LIMIT = 0.10


def graph(size: int, multiply: bool) -> Graph:
    """The profiled program: every operator once, on matrices of size x size."""
    g = GraphBuilder(f"T4 profile, {size} x {size} {DTYPE}")
    n = size * size

    def pointwise(chain: str) -> Pointwise:
        return Pointwise(n=n, chain=chain, dtype=DTYPE).with_defaults(DTYPE)

    x = g.call("fill_", pointwise("fill"))
    if multiply:
        y = g.tensor("y", n, DTYPE)
        g.call("mm", Gemm(m=size, n=size, k=size, dtype=DTYPE).with_defaults(DTYPE), x, y)
    g.call("mul_", pointwise("scale"), x, into=x)
    g.call("sum", Sum(n=n, dtype=DTYPE).with_defaults(DTYPE), x)
    for chain in SAME_AS_SCALE:
        g.call(chain, pointwise(chain), x)
    g.call("add", pointwise("add"), x, g.call("copy", pointwise("copy"), x))
    return g.build()


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """All operators, each beside its published time."""
    size = 2048 if quick else 8192
    report = simulate(graph(size, multiply=not quick), MACHINE, clock="sustained" if not quick else "isolated")
    print(as_text([profile_section(report.record)]), file=sys.stderr)
    ms = {entry.name: entry.device_ps * 1e-9 for entry in profile(report.record)}
    scale = ms["mul_"]
    claims = [
        Claim(name, ms[name], "ms", None if quick else value, LIMIT, _bound(report, name))
        for name, value in PUBLISHED_MS.items()
        if name in ms
    ]
    if quick:  # a quarter of them would stay in the L2: the limits below are about large ones
        return claims, _picture(ms, size, {})
    claims += [Claim(f"{name} over mul_", ms[name] / scale, "x", 1.0, LIMIT) for name in SAME_AS_SCALE]
    claims += [
        Claim("sum over mul_", ms["sum"] / scale, "x", said="half of it; the profile's own times: 0.454"),
        Claim("add over mul_", ms["add"] / scale, "x", 1.5, LIMIT),
        Claim("one reading at 0.32 TB/s", size * size * 4 / 0.32e12 * 1e3, "ms", 0.839, 0.01,
              f"sum reaches {100 * size * size * 4 / 0.32e12 / (ms['sum'] * 1e-3):.0f} % of it"),
    ]  # fmt: skip
    return claims, _picture(ms, size, PUBLISHED_MS)


def _bound(report: Report, name: str) -> str:
    """What bounds an operator, and its arithmetic intensity."""
    kernels = [k for k in report.to_dict()["kernels"] if k["name"].startswith(f"{name}:")]
    moved = sum(sum(k["bytes"]["dram"].values()) for k in kernels)
    flops = sum(operator.flops for operator in report.record.operators if operator.name == name)
    longest = max(kernels, key=lambda k: k["time_us"])
    return f"{longest['bound']} bound, {flops / moved:.3g} operations a byte"


def _picture(ms: dict[str, float], size: int, published: dict[str, float]) -> Figure:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    names = sorted((name for name in ms if name != "mm"), key=lambda name: ms[name])
    marks = {name: published[name] for name in names if name in published}
    bars(axes, {name: ms[name] for name in names}, marks=marks, label="simulated")
    published_marks(axes, marks)
    reading = size * size * 4 / 0.32e12 * 1e3
    axes.axvline(reading, color=palette.GUIDE, linestyle="--", linewidth=0.8, label="one reading at 0.32 TB/s")
    beside = f" (mm: {ms['mm']:.0f} ms)" if "mm" in ms else ""
    axes.set(xlabel="ms", title=f"Operators on {MACHINE}, {DTYPE}, {size} x {size}{beside}")
    legend_below(figure)
    return figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
