"""The picture of a deployment's curve. Import only where it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from arch.errors import InputError
from sim.app.report import palette
from sim.app.report.plots import below, coloured, picture_title

if TYPE_CHECKING:
    from sim.app.serving.curve import Curve


def curve_plot(curve: Curve, ax: Axes | None = None) -> Axes:
    """Tokens a second of a GPU over tokens a second that a client sees; up and to the right is better."""
    ax = coloured(ax or plt.subplots(figsize=(7, 4.8), layout="constrained")[1])
    rows = [row for row in curve.rows if row.tokens_per_s_user]
    if not rows:
        raise InputError("no point of the curve has tokens behind the first: nothing to draw")
    labels = list(dict.fromkeys(row.label for row in rows))
    for number, label in enumerate(labels):
        own = [
            (row.tokens_per_s_user or 0.0, row.tokens_per_s_gpu, row.concurrency) for row in rows if row.label == label
        ]
        x, y, _ = zip(*own, strict=True)
        ax.plot(x, y, "o-", color=palette.of_series(number), label=label, markersize=4)
        for place in own:
            ax.annotate(f"{place[2]}", place[:2], textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    ax.set(xlabel="tokens a second that a client sees (points: clients)", ylabel="tokens a second of a GPU")
    ax.margins(0.1)
    ax.set(xlim=(0, None), ylim=(0, None))
    ax.set_title(picture_title(curve.title), fontsize="medium")
    ax.grid(visible=True, alpha=0.2)
    ax.legend(fontsize="small", **(below(ax) if len(labels) > 4 else {}))
    return ax
