"""A product of 4096 cubed on B200, mechanism by mechanism: what each is worth, and where power ends it.

From one stage of operands and sums in tensor memory to pairs of CTAs that store beside the next tile: each line is
another program. Then the last one with one mechanism less. The clock is what the power limit allows for long.

Published is the last of twelve public kernels, which reach 256 to 1,326 TFLOPS.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lesson import Claim, bars, legend_below, main, published_marks
from matplotlib.figure import Figure

from sim.app.report import palette
from sim.app.run import simulate

LAST, PUBLISHED_LAST = "tcgen05 256x192x64 pair stages 7 clc", 1326.0
LADDER = {
    "tensor memory, 128x128, one stage": "tcgen05 128x128x64 stages 1 buffers 1",
    "tiles of 128x256": "tcgen05 128x256x64 stages 1 buffers 1",
    "two stages": "tcgen05 128x256x64 stages 2 buffers 1",
    "four stages": "tcgen05 128x256x64 stages 4 buffers 1",
    "stores beside the next tile": "tcgen05 128x256x64 stages 4",
    "pairs of CTAs, 256x256, six stages": "tcgen05 256x256x64 pair stages 6",
    "256x192, seven stages, launch control": LAST,
}
"""Each with what it has more than the one before."""
SWITCHES = {
    "without launch control": "clc",
    "without stores beside the next tile": "overlap",
    "without pairs": "pairs",
    "without tensor memory (mma.sync)": "tensor_memory",
}


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """TFLOPS of each program, how busy its tensor cores are, and its clock."""
    text = f"gemm m=4096 n=4096 k={512 if quick else 4096} dtype=bf16"
    programs: list[tuple[str, str, Sequence[str]]] = []
    programs += [(name, schedule, ()) for name, schedule in list(LADDER.items())[:: 3 if quick else 1]]
    programs += [(name, LAST, (switch,)) for name, switch in SWITCHES.items()]
    marks = {} if quick else {list(LADDER)[-1]: PUBLISHED_LAST}
    rates, busy, clocks, claims = {}, {}, {}, []
    for name, schedule, without in programs:
        report = simulate(text, "b200", schedule=schedule, without=without, clock="sustained")
        rates[name] = report.tflops
        busy[name] = 100 * report.figures.speed_of_light()["tensor pipe"]
        clocks[name] = report.figures.clock_hz * 1e-9
        remark = f"tensor cores busy {busy[name]:.0f} % at {clocks[name]:.2f} GHz, {report.record.schedule}"
        claims.append(Claim(name, report.tflops, "TFLOPS", marks.get(name), remark=remark))
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    colors = [palette.of_series(int(bool(without))) for _, _, without in programs]
    for axes, values, form in zip(panels, (rates, busy, clocks), ("{:.0f}", "{:.0f}", "{:.2f}"), strict=True):
        bars(axes, values, form=form, color=colors)
        axes.margins(x=0.2)
    published_marks(panels[0], marks, "last of a public ladder, published")
    panels[0].set(xlabel="TFLOPS", title="One more at a time, then one less")
    panels[1].set(xlabel="per cent of the cycles", title="Tensor cores busy", yticks=[])
    panels[2].set(xlabel="GHz", title="Clock that 1000 W allow", yticks=[])
    figure.suptitle(f"{text} on b200")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
