"""Overhead bound: doubling the batch costs next to nothing, and graphs and fusion cure it.

Published: a sequence of operators is overhead bound where doubling the batch raises its time by 10 % or less; launches
and the framework take the time. Here: a BERT-large encoder layer on short sequences, forward, called eagerly, as a
graph, and fused, by batch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main, plain_log

from sim.app.report import palette
from sim.app.report.report import Report
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "a100-sxm4-80gb"
FORMS = ("eager", "graph", "fused", "fused_graph")


def run(batch: int, form: str) -> Report:
    """The layer, back to back."""
    return simulate(f"bert_layer batch={batch} seq=32 dtype=fp16", MACHINE, schedule=form, scope="stream")


def _beside_work(report: Report) -> str:
    """How much of the time no kernel works."""
    return f"{100 * report.figures.overhead_ps / report.figures.time_ps:.0f} % of the time for launches and the host"


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Time by batch and form."""
    from matplotlib import pyplot

    batches = (1, 2) if quick else (1, 2, 4, 8, 16, 32, 64)
    curves = {
        form: {batch: run(batch, form) for batch in (batches[:1] if quick and form != "eager" else batches)}
        for form in FORMS
    }
    eager = curves["eager"]
    claims = [
        Claim("time at batch 2 over batch 1, eager", eager[2].time_us / eager[1].time_us, "x",
              remark=_beside_work(eager[1]), said="1.1 or less")
    ]  # fmt: skip
    claims += [
        Claim(f"batch 1, {form}", curve[1].time_us, "us", remark=_beside_work(curve[1]))
        for form, curve in curves.items()
    ]
    if not quick:
        claims.append(
            Claim("time at batch 64 over batch 32, eager", eager[64].time_us / eager[32].time_us, "x",
                  remark=_beside_work(eager[64]))
        )  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.set_prop_cycle(color=palette.SERIES)
    for form, curve in curves.items():
        axes.loglog(list(curve), [report.time_us for report in curve.values()], "o-", base=2, label=form)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    plain_log(axes, "y")
    axes.set(xlabel="batch", ylabel="us a layer", title=f"BERT-large layer, 32 tokens, fp16, on {MACHINE}")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
