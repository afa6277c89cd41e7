"""Three families: what a machine reaches of its peak, and over how many kinds of work.

One GEMM, softmax, attention and GELU on a GPU, TPU v1 and SN40L: the share of its own roofline that each reaches,
what an operation of the GEMM costs in energy (how efficient; mind the years and the formats between them), and the
share of these operators that it can run at all (how programmable).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from arch.errors import InputError
from sim.app.report import palette
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINES = ("h100-sxm", "sn40l", "tpu-v1")
WORK = {
    "gemm": "gemm m=4096 n=4096 k=4096",
    "softmax": "softmax rows=16384 cols=2048",
    "attention": "attention batch=1 heads=32 seq=2048 head_dim=128",
    "gelu": "gelu n=33554432",
}
QUICK = {
    "gemm": "gemm m=1024 n=1024 k=1024",
    "gelu": "gelu n=1048576",
}


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Share of its roof that each machine reaches by operator; `none` where it has no form for an operator."""
    from matplotlib import pyplot

    work = QUICK if quick else WORK
    shares: dict[str, dict[str, float]] = {machine: {} for machine in MACHINES}
    joules = dict.fromkeys(MACHINES, 0.0)
    claims = []
    for machine in MACHINES:
        for name, text in work.items():
            try:
                figures = simulate(text, machine).figures
            except InputError:
                continue
            roof = min(figures.machine.peak_ops_per_s, figures.intensity * figures.external_bytes_per_s)
            shares[machine][name] = figures.ops_per_s / roof
            if name == "gemm":
                joules[machine] = figures.joules_per_op or 0.0
                claims.append(Claim(f"{machine}, energy of the GEMM", 1e12 * joules[machine], "pJ/op"))
            claims.append(Claim(f"{machine}, {name}", 100 * shares[machine][name], "% of its roof"))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for i, machine in enumerate(MACHINES):
        places = [list(work).index(name) + 0.25 * (i - 1) for name in shares[machine]]
        colour = palette.of_series(i)
        drawn = left.bar(places, [100 * share for share in shares[machine].values()], 0.25, label=machine, color=colour)
        left.bar_label(drawn, fmt="%.0f", padding=2, fontsize=7)
        for place, name in enumerate(work):
            if name not in shares[machine]:
                left.annotate("none", (place + 0.25 * (i - 1), 1), ha="center", fontsize=7, color=colour, rotation=90)
        if joules[machine]:
            reached = 100 * len(shares[machine]) / len(work)
            right.plot(reached, 1e-9 / joules[machine], "o", markersize=10, color=colour)
    left.set_xticks(range(len(work)), list(work))
    left.set(ylabel="% of its own roof", title="efficiency by operator", xlim=(-0.5, len(work) - 0.5), ylim=(0, 108))
    right.set(xlabel="operators that it runs, %", ylabel="GEMM: operations a nanojoule", xlim=(0, 105))
    right.set_ylim(0, 1.1 * right.get_ylim()[1])
    right.set_title("efficiency against programmability")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__, lesson))
