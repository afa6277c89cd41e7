"""Decoupled access and execute: a stream's addresses run ahead of the data, a linked list's cannot.

The same rows of 64 bytes are read on SN40L: as a stream by an address generator that knows where the next tile lies,
and along a list in which every row says where the next one is. The stream pays the latency of memory once, the list for
every row. A list whose rows were first brought to memory units pays their latency and the mesh's instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main, plain_log

from arch.load import load_arch
from sim.app.families.rdu.runner import run_program
from sim.app.report import palette
from sim.rdu.layout import Log
from workloads.rdu.access import chase, stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "sn40l"


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Cycles a row of both, and when their rows arrived."""
    from matplotlib import pyplot

    spec = load_arch(MACHINE)
    count = 512 if quick else 4096
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.set_prop_cycle(color=palette.SERIES)
    rows = {}
    programs = {
        "stream": stream(count),
        "linked list": chase(count),
        "linked list in PMUs": chase(count, on_chip=True),
    }
    for name, program in programs.items():
        (result,) = run_program(program, spec).results.values()
        fetch = next(i for i, stage in enumerate(program.calls[0].section.stages) if stage.name == "fetch")
        log = result.log[result.log[:, Log.STAGE] == fetch]
        arrived = sorted(log[:, Log.COMMIT] / 256)
        rows[name] = result.ticks / 256 / count
        axes.plot(arrived, [(i + 1) * count / len(arrived) for i in range(len(arrived))], label=name)
    axes.set(xlabel="cycle (logarithmic)", ylabel="rows that have arrived", title=f"the same rows on {MACHINE}")
    plain_log(axes, "x")
    legend_below(figure)
    latency = spec.hbm.latency_ps * spec.clock.boost_hz / 1e12
    claims = [
        Claim("cycles a row, stream", rows["stream"], "cycles"),
        Claim("cycles a row, linked list", rows["linked list"], "cycles", remark=f"memory answers in {latency:.0f}"),
        Claim("cycles a row, linked list in PMUs", rows["linked list in PMUs"], "cycles"),
        Claim("list against stream", rows["linked list"] / rows["stream"], "x"),
    ]
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__, lesson))
