"""Reading a what-if: hold the schedule to see the machine, tune to see its best; steps are no slopes.

A product of 128 tiles on H100, whose 132 SMs take them in one wave. With the schedule held, fewer SMs than tiles need a
second wave: the time jumps, and between the jumps it stands still. With each machine's own choice other tiles fill the
SMs that there are. An elasticity, by how many per cent the time moves with one per cent of a figure, says something
where both directions agree; where they do not, there is a cliff.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from sim.app.report.palette import GUIDE, SERIES, of_series
from sim.app.report.report import Report
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE, TILES = "h100-sxm", 128
WORKLOAD = "gemm m=2048 n=1024 k=512 dtype=bf16"
HELD = "wgmma 128x128x64 stages 6"
STEP = 0.125
FIGURES = {
    "clock.boost": (1.980, "GHz"),
    "dram.bandwidth": (3.352, "TB/s"),
    "l2.bandwidth": (64, "B/clk"),
    "sm.count": (132, ""),
}
"""Figures of the right-hand picture, as the preset has them, with the unit in which they are typed."""


def run(schedule: str, path: str, value: float, unit: str = "") -> Report:
    """The product with one figure changed."""
    return simulate(WORKLOAD, MACHINE, schedule=schedule, set=[f"{path}={value:g} {unit}".strip()])


def slopes(path: str) -> tuple[float, float]:
    """Per cent of time for a per cent of a figure, downwards and upwards, with the schedule held."""
    value, unit = FIGURES[path]
    values = [value * (1 + side * STEP) for side in (-1, 0, 1)]
    if not unit:
        values = [round(v) for v in values]
    low, here, high = (run(HELD, path, v, unit).time_us for v in values)
    return (
        math.log(here / low) / math.log(values[1] / values[0]),
        math.log(high / here) / math.log(values[2] / values[1]),
    )


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Time over the number of SMs, held and chosen anew, and elasticities of four figures."""
    from matplotlib import pyplot

    counts = [64, 104, 120, 128, 132] if quick else [*range(56, 128, 8), 128, 132, 144, 160, 192, 264]
    held = {count: run(HELD, "sm.count", count).time_us for count in counts}
    own = {count: run("auto", "sm.count", count).time_us for count in counts}
    sides = {path: slopes(path) for path in FIGURES}
    claims = [
        Claim("held, 120 over 128 SMs", held[120] / held[128], "x", remark="two waves instead of one"),
        Claim("held, 104 over 120 SMs", held[104] / held[120], "x", remark="two waves both times"),
        Claim("held, 132 over 128 SMs", held[132] / held[128], "x", remark="four SMs have nothing to do"),
        Claim("own choice over held, 120 SMs", own[120] / held[120], "x", remark="other tiles"),
        Claim("own choice over held, 132 SMs", own[132] / held[132], "x"),
        Claim("own choice, 120 over 128 SMs", own[120] / own[128], "x"),
        *(
            Claim(f"{path}, {side}", slope, "% for 1 %")
            for path, pair in sides.items()
            for side, slope in zip(("downwards", "upwards"), pair, strict=True)
        ),
    ]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    left.set_prop_cycle(color=SERIES)
    left.plot(list(held), list(held.values()), "o-", markersize=3, drawstyle="steps-post", label=f"held: {HELD}")
    left.plot(list(own), list(own.values()), "s--", markersize=3, label="each machine's own choice")
    left.axvline(TILES, color=GUIDE, linewidth=0.8, linestyle=":", label="as many SMs as tiles")
    left.set(xlabel="sm.count", ylabel="us", ylim=(0, None), title=f"{WORKLOAD}\non {MACHINE}")
    for shift, number, name in ((-0.2, 0, f"{100 * STEP:g} % less"), (0.2, 1, f"{100 * STEP:g} % more")):
        slopes_there = [pair[number] for pair in sides.values()]
        drawn = right.bar(
            [i + shift for i in range(len(sides))], slopes_there, 0.4, color=of_series(2 + number), label=name
        )
        right.bar_label(drawn, [f"{round(slope, 2) + 0:.2f}" for slope in slopes_there], padding=2, fontsize=7)
    right.axhline(0, color=GUIDE, linewidth=0.8)
    right.set_xticks(range(len(sides)), list(sides), fontsize="small")
    right.set(ylabel="% of time for 1 % of the figure", title="elasticity, schedule held")
    right.margins(y=0.1)
    right.set_ylim(top=max(0.2, right.get_ylim()[1]))
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
