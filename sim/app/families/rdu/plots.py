"""Pictures of a section on a dataflow machine. Import this module only where one is drawn."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb, to_rgba
from matplotlib.patches import Patch

from sim.app.report import palette
from sim.app.report.record import RduSection
from sim.app.report.text import words

_SHOWN_STAGES = 24
_HEAT = LinearSegmentedColormap.from_list("busy", [palette.IDLE, "#a9cfa6", palette.WORK, "#1f5f2a"])


def placement(section: RduSection, ax: Axes | None = None) -> Axes:
    """The grid: PCUs by the share of cycles in which they were busy, PMUs with buffers blue, the rest light; borders of
    tiles dotted."""
    ax = ax or plt.subplots(figsize=(6, 5), layout="constrained")[1]
    rows, columns = section.grid
    image = np.ones((rows, columns, 3)) * 0.97
    for buffer in section.buffers:
        for row, column in buffer.units:
            image[row, column] = to_rgb(palette.AREA)
    labels = []
    for stage in section.stages:
        whole = max(sum(stage.cycles.values()), 1)
        busy = stage.cycles.get("busy", 0) / whole
        for row, column in stage.units:
            image[row, column] = _HEAT(busy)[:3]
        if stage.units:
            where = np.mean(stage.units, axis=0)
            labels.append((len(stage.units), where[1], where[0], stage.name))
    ax.imshow(image, interpolation="nearest", aspect="auto")
    if section.tiles is not None:
        for row in section.tiles.rows:
            ax.axhline(row - 0.5, color="0.3", lw=0.8, ls=":")
        for column in section.tiles.columns:
            ax.axvline(column - 0.5, color="0.3", lw=0.8, ls=":")
    shown = sorted(sorted(labels, reverse=True)[:12], key=lambda label: label[1])
    for number, (_, x, _, name) in enumerate(shown):  # one below the other, so that narrow neighbours stay apart
        ax.text(
            np.clip(x, 0.1 * columns, 0.9 * columns),
            (number + 0.5) * rows / len(shown),
            name,
            ha="center",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "alpha": 0.75, "lw": 0},
        )
    scale = plt.cm.ScalarMappable(cmap=_HEAT)
    scale.set_clim(0, 100)
    ax.figure.colorbar(scale, ax=ax, label="PCU busy, % of cycles", shrink=0.8)
    ax.legend(
        handles=[Patch(color=palette.AREA, label="PMU with a buffer"), Patch(color="0.97", label="unused")],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.08),
        ncols=2,
        fontsize="small",
        frameon=False,
    )
    ax.set(title=f"{section.name}: {section.pcus} PCUs, {section.pmus} PMUs", xlabel="column", ylabel="row")
    return ax


def timeline(section: RduSection, ax: Axes | None = None, cycles: tuple[int, int] | None = None) -> Axes:
    """When each stage fired, one bar a firing, alternating in shade as a double buffer's halves do."""
    ax = ax or plt.subplots(figsize=(9, 4), layout="constrained")[1]
    stages = list(section.stages)[:_SHOWN_STAGES]
    end = max((row[2] for row in section.log), default=1)
    first, last = cycles or (0, end if len(section.log) < 400 else _window(section, end))
    for number, _ in enumerate(stages):
        bars = [(s, e - s) for stage, s, e in section.log if stage == number and e > first and s < last]
        shades = [to_rgba(palette.of_series(number)), to_rgba(palette.of_series(number), 0.45)]
        ax.broken_barh(bars, (number - 0.4, 0.8), facecolors=[shades[i % 2] for i in range(len(bars))])
    ax.set_yticks(range(len(stages)), [words(stage.name) for stage in stages])
    ax.invert_yaxis()
    ax.set(xlim=(first, last), xlabel="cycle", title=f"{section.name}: firings of each stage")
    ax.grid(visible=True, axis="x", alpha=0.2)
    return ax


def _window(section: RduSection, end: int) -> int:
    """As many cycles from the start as hold some hundred firings."""
    starts = sorted(row[1] for row in section.log)
    return min(end, 2 * starts[min(len(starts) - 1, 80)])
