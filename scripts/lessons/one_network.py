"""One network, three machines: where the time of AlexNet's convolutions goes on a GPU, a TPU v1 and an SN40L.

Each layer runs by itself, one image. Left the time of each layer, right the share of its own peak that each machine
reaches. All three are far below their peaks, and for different reasons: the report's own words stand in the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from sim.app.report import palette
from sim.app.report.figures import Figures
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINES = ("h100-sxm", "sn40l", "tpu-v1")
NETWORK, QUICK = "network file=alexnet", "network file=alexnet_part"
WIDTH = 0.27


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Time and share of the peak by layer and machine."""
    from matplotlib import pyplot

    claims: list[Claim] = []
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    names: list[str] = []
    for i, machine in enumerate(MACHINES):
        report = simulate(QUICK if quick else NETWORK, machine)
        layers = Figures.of_layers(report.record)
        names = [layer.name for layer, _ in layers]
        times = [figures.time_ps / 1e6 for _, figures in layers]
        shares = [100 * figures.share_of_peak for _, figures in layers]
        places = [place + WIDTH * (i - 1) for place in range(len(names))]
        colour = palette.of_series(i)
        label = f"{machine}, {report.record.dtype}: {report.time_us:.0f} us"
        drawn = left.bar(places, times, WIDTH, label=label, color=colour)
        left.bar_label(drawn, fmt="%.0f", padding=2, fontsize=7)
        drawn = right.bar(places, shares, WIDTH, color=colour)
        right.bar_label(drawn, fmt="%.1f", padding=2, fontsize=7)
        claims.append(Claim(f"{machine}, all layers", report.time_us, "us", remark=f"bound: {report.bound}"))
        claims += [
            Claim(f"{machine}, {name}", share, "% of its peak", remark=f"bound: {figures.bound}")
            for name, share, (_, figures) in zip(names, shares, layers, strict=True)
        ]
    for axes, title in ((left, "time of a layer, us"), (right, "share of the machine's own peak, %")):
        axes.set_xticks(range(len(names)), names)
        axes.set_title(title)
        axes.margins(y=0.12)
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__, lesson))
