"""Pictures of studies: lines, heat maps, Pareto fronts, tornado charts. Import only where one is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from arch.errors import InputError
from sim.app.report import palette
from sim.app.report.plots import as_it_is, below, coloured, picture_title
from sim.app.study.axes import numeric
from sim.app.study.choice import changed
from sim.app.study.metrics import METRICS, MORE_IS_BETTER, known_metric

if TYPE_CHECKING:
    from sim.app.study.history import History
    from sim.app.study.optimize import Optimum
    from sim.app.study.sensitivity import Sensitivity
    from sim.app.study.sweep import Row, Sweep

_WIDE_RANGE = 8
"""A numeric axis whose largest value is so many times its smallest is drawn logarithmically."""
_MOST_LINES = 12
_MOST_TICKS = 10
_SEEN = 0.001
"""Change of time from which a bar says its value."""
_MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of what bounds a point, in the order in which they appear."""
_FROM_ZERO = ("time_us", "cycles", "energy_j", "power_w")
"""Metrics whose linear axis starts at zero, so that heights compare."""


def sweep_plot(sweep: Sweep, metric: str, kind: str = "auto", ax: Axes | None = None) -> Axes:
    """A metric over the varied keys: one numeric key is the x axis of a line, two are the sides of a heat map.

    `auto` takes a heat map where exactly two keys were varied and both have more than `_MOST_LINES` ** 0.5 values.
    """
    known_metric(metric)
    rows = [row for row in sweep.rows if row.metric(metric) is not None]
    if not rows:
        raise InputError(f"no run has {metric}: nothing to draw")
    # Keys that went together carry the same information: the first of them stands for all.
    keys: list[str] = []
    for key in sweep.keys:
        labels = _labels(sweep, key)
        if len(set(labels)) > 1 and not any(_same_partition(labels, _labels(sweep, k)) for k in keys):
            keys.append(key)
    if not keys:
        raise InputError("nothing was varied: a plot needs at least one key with two values")
    sizes = [len(set(_labels(sweep, key))) for key in keys]
    if kind == "auto":
        kind = "heat" if len(keys) == 2 and min(sizes) > 3 else "line"
    if kind == "heat":
        if len(keys) != 2:
            raise InputError(f"a heat map needs two varied keys, not {len(keys)} ({', '.join(keys)})")
        return _heat(sweep, rows, keys, metric, ax)
    return _lines(sweep, rows, keys, metric, ax)


def pareto_plot(sweep: Sweep, x: str, y: str, ax: Axes | None = None) -> Axes:
    """All runs by two metrics, and the front of those that no other beats in both."""
    ax = ax or plt.subplots(figsize=(6.5, 4.5), layout="constrained")[1]
    front = sweep.pareto(x, y)
    if not front:
        raise InputError(f"no run has both {x} and {y}: nothing to draw")
    rows = [row for row in sweep.rows if row.metric(x) is not None and row.metric(y) is not None]
    ax.plot(
        [_value(r, x) for r in rows], [_value(r, y) for r in rows], "o",
        color=palette.IDLE, markeredgecolor=palette.GUIDE, label="all runs",
    )  # fmt: skip
    points = [(_value(r, x), _value(r, y)) for r in front]
    ax.step(*zip(*points, strict=True), where="post", color=palette.of_series(1), linewidth=1)
    ax.plot(*zip(*points, strict=True), "o", color=palette.of_series(1), label="no run is better in both")
    for row, point in zip(front[:_MOST_LINES], points, strict=False):
        label = ", ".join(f"{key} {value}" for key, value in row.point.values.items())
        ax.annotate(label, point, textcoords="offset points", xytext=(5, 4), fontsize="x-small")
    better = {name: "higher" if name in MORE_IS_BETTER else "lower" for name in (x, y)}
    ax.set(xlabel=f"{METRICS.get(x, x)} ({better[x]} is better)", ylabel=f"{METRICS.get(y, y)} ({better[y]} is better)")
    ax.set_title(picture_title(sweep.base.title), fontsize="medium")
    ax.grid(visible=True, alpha=0.2)
    ax.legend(fontsize="small")
    return ax


def tornado(found: Sensitivity, ax: Axes | None = None, most: int = 20) -> Axes:
    """Change of time for each figure's step down and, below it, up; the figure that matters most on top. A cliff is
    hatched, and shows what its own, perhaps larger, step did."""
    bars = [bar for bar in found.bars if bar.swing > 0][:most]
    ax = ax or plt.subplots(figsize=(8, 1.5 + 0.3 * max(len(bars), 1)), layout="constrained")[1]
    named: set[str] = set()
    for i, bar in enumerate(bars):
        for side, number, word in ((bar.down, 0, "lower"), (bar.up, 1, "higher")):
            if side is not None:
                cliff = bar.response == "cliff"
                moved = side.time_change if cliff else side.per(found.step)
                label = f"figure {word}" if word not in named else None
                named.add(word)
                drawn = ax.barh(
                    i + 0.4 * number - 0.2, 100 * moved, 0.4, color=palette.of_series(number), label=label,
                    hatch="///" if cliff else None, edgecolor="white",
                )  # fmt: skip
                if abs(moved) >= _SEEN:
                    ax.bar_label(drawn, [f"{100 * moved:+.2g}"], padding=2, fontsize="xx-small")
    names = [f"{bar.path} = {bar.value}{' (cliff)' if bar.response == 'cliff' else ''}" for bar in bars]
    ax.set_yticks(range(len(bars)), names, fontsize="small")
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.axvline(0, color=palette.GUIDE, linewidth=0.8)
    ax.set(xlabel=f"change of time for {100 * found.step:g} % of the figure, %")
    ax.set_title(picture_title(found.base.title), fontsize="medium")
    if bars:
        ax.legend(fontsize="small", **below(ax), ncols=2)
    else:
        ax.text(0.5, 0.5, "no figure moves the time", transform=ax.transAxes, ha="center")
    return ax


def history_plot(found: History, metric: str = "cycles", ax: Axes | None = None) -> Axes:
    """A recorded number from commit to commit, with the change beside each step."""
    ax = coloured(ax or plt.subplots(figsize=(8, 4), layout="constrained")[1])
    values = [(record.commit, value) for record in found.records if (value := record.metric(metric)) is not None]
    if not values:
        raise InputError(f"{found.name}: {metric} was never recorded")
    places, heights = range(len(values)), [value for _, value in values]
    ax.step(places, heights, where="post", color=palette.of_series(0))
    ax.plot(places, heights, "o", color=palette.of_series(0))
    few = len(values) <= _MOST_LINES
    for i in range(1, len(values)) if few else ():
        change = 100 * (heights[i] / heights[i - 1] - 1) if heights[i - 1] else 0.0
        ax.annotate(f"{change:+.2f} %", (i, heights[i]), textcoords="offset points", xytext=(5, 5), fontsize="x-small")
    ax.margins(x=0.1)
    every = max(1, len(values) // _MOST_TICKS)
    ax.set_xticks(list(places)[::every], [commit for commit, _ in values][::every], rotation=45, fontsize="x-small")
    ax.set(ylabel={"cycles": "cycles", "time_us": "us", "energy_j": "J"}[metric], ylim=(0, 1.15 * max(heights)))
    ax.set_title(picture_title(f"{metric} of {found.name}, by commit"), fontsize="medium")
    ax.grid(visible=True, axis="y", alpha=0.2)
    return ax


def search_plot(found: Optimum, ax: Axes | None = None) -> Axes:
    """The goal of every run, and the best so far that keeps the constraints."""
    ax = ax or plt.subplots(figsize=(6.5, 4), layout="constrained")[1]
    goal = found.goals[0]
    sign = -1 if goal in MORE_IS_BETTER else 1
    best: list[tuple[int, float]] = []
    kinds = ((True, palette.of_series(0), "keeps the constraints"), (False, palette.IDLE, "breaks one"))
    for fine, colour, label in kinds:
        dots = [(i, t.values[goal]) for i, t in enumerate(found.trials) if t.feasible == fine and goal in t.values]
        if dots:
            ax.plot(*zip(*dots, strict=True), "o", color=colour, markeredgecolor=palette.GUIDE, label=label)
        for i, value in dots if fine else ():
            if not best or sign * value < sign * best[-1][1]:
                best.append((i, value))
    if best:
        best.append((len(found.trials) - 1, best[-1][1]))
        ax.step(*zip(*best, strict=True), where="post", color=palette.of_series(1), label="best so far")
    ax.set(xlabel="run", ylabel=METRICS.get(goal, goal))
    ax.set_title(picture_title(found.base.title), fontsize="medium")
    ax.grid(visible=True, alpha=0.2)
    if ax.lines:
        ax.legend(fontsize="small")
    return ax


def _labels(sweep: Sweep, key: str) -> list[str]:
    return [row.point.values.get(key, "") for row in sweep.rows]


def _same_partition(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether two keys always change together."""
    return len(set(a)) == len(set(b)) == len(set(zip(a, b, strict=True)))


def _value(row: Row, metric: str) -> float:
    value = row.metric(metric)
    assert value is not None
    return value


def _scale(sweep: Sweep, key: str) -> tuple[str, dict[str, float] | None]:
    """A key's label, and its values as numbers; None where they are words."""
    texts = dict.fromkeys(_labels(sweep, key))
    found: dict[str, float] = {}
    name = key
    for text in texts:
        name, value = numeric(key, text, sweep.base)
        if isinstance(value, str):
            return key, None
        found[text] = float(value)
    return name, found


def _lines(sweep: Sweep, rows: Sequence[Row], keys: Sequence[str], metric: str, ax: Axes | None) -> Axes:
    """The numeric key with most values is the x axis; each combination of the others is a line."""
    ax = coloured(ax or plt.subplots(figsize=(7, 4.5), layout="constrained")[1])
    scales = {key: _scale(sweep, key) for key in keys}
    numeric_keys = [key for key in keys if scales[key][1] is not None]
    if not numeric_keys:
        return _bars(sweep, rows, keys, metric, ax)
    x_key = max(numeric_keys, key=lambda key: len(scales[key][1] or ()))
    name, values = scales[x_key]
    assert values is not None
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        label = as_it_is(", ".join(f"{key} {row.point.values[key]}" for key in keys if key != x_key))
        groups.setdefault(label, []).append((values[row.point.values[x_key]], row))
    if len(groups) > _MOST_LINES:
        raise InputError(
            f"{len(groups)} lines are too many for one plot, at most {_MOST_LINES}: vary fewer keys, or draw a heat map"
        )
    regimes: dict[str, str] = {}
    switches = False
    for label, pairs in groups.items():
        pairs.sort(key=lambda pair: pair[0])
        (line,) = ax.plot([x for x, _ in pairs], [_value(row, metric) for _, row in pairs], "-", label=label)
        points: dict[str, list[tuple[float, float, Any]]] = {}
        before: Row | None = None
        for x, row in pairs:
            bound = str(row.answer.report["bound"]) if row.answer.report else ""
            mark = regimes.setdefault(bound, _MARKERS[len(regimes) % len(_MARKERS)])
            switched = before is not None and changed(before.answer.report, row.answer.report)
            switches = switches or switched
            points.setdefault(mark, []).append((x, _value(row, metric), "white" if switched else line.get_color()))
            before = row
        for mark, found in points.items():
            x_of, y_of, faces = zip(*found, strict=True)
            ax.scatter(x_of, y_of, marker=mark, c=list(faces), edgecolors=line.get_color(), zorder=3)
    _scale_axis(ax, "x", sorted(values.values()), values)
    _scale_axis(ax, "y", [_value(row, metric) for row in rows])
    if ax.get_yscale() == "linear" and metric in _FROM_ZERO:
        highest = float(ax.dataLim.y1)
        ax.set_ylim(0, 1.05 * highest if 0 < highest < math.inf else None)  # the topmost marker whole
    # Values as they were typed carry their unit; plain numbers have that of the column's name.
    ax.set(xlabel=x_key if len(values) <= _MOST_TICKS else name, ylabel=METRICS.get(metric, metric))
    ax.set_title(picture_title(_titled(sweep)), fontsize="medium")
    ax.grid(visible=True, alpha=0.2)
    plain: Any = {"color": palette.GUIDE, "linestyle": ""}
    marks = [Line2D([], [], **plain, marker=mark, label=f"bound: {b}") for b, mark in regimes.items()]
    if switches:
        marks.append(Line2D([], [], **plain, marker="o", markerfacecolor="white", label="another schedule"))
    lines = list(ax.get_lines()) if len(groups) > 1 else []
    ax.legend(handles=[*lines, *marks], fontsize="small")
    return ax


def _titled(sweep: Sweep) -> str:
    """The title of a picture, which names its machines."""
    archs = sweep.base.archs
    return sweep.base.title if len(archs) < 2 or len(archs) > 4 else f"{sweep.base.title} on {', '.join(archs)}"


def _bars(sweep: Sweep, rows: Sequence[Row], keys: Sequence[str], metric: str, ax: Axes) -> Axes:
    """Words only: one bar a run."""
    labels = [", ".join(row.point.values[key] for key in keys) for row in rows]
    ax.barh(labels, [_value(row, metric) for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel=METRICS.get(metric, metric))
    ax.set_title(picture_title(sweep.base.title), fontsize="medium")
    return ax


def _scale_axis(ax: Axes, side: str, values: Sequence[float], texts: Mapping[str, float] | None = None) -> None:
    """Logarithmic where the range is wide; ticks at the values themselves where they are few, as they were typed."""
    axis: Axis = ax.xaxis if side == "x" else ax.yaxis
    if min(values) > 0 and max(values) >= _WIDE_RANGE * min(values):
        ax.set(**{f"{side}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    if texts and len(texts) <= _MOST_TICKS:
        axis.set_ticks(list(texts.values()), list(map(as_it_is, texts)))


def _heat(sweep: Sweep, rows: Sequence[Row], keys: Sequence[str], metric: str, ax: Axes | None) -> Axes:
    """Two keys as sides; cells without a result stay empty."""
    ax = ax or plt.subplots(figsize=(7, 5), layout="constrained")[1]
    sides: list[list[str]] = []
    for key in keys:
        texts, (_, values) = list(dict.fromkeys(_labels(sweep, key))), _scale(sweep, key)
        sides.append(sorted(texts, key=lambda text: values[text]) if values else texts)
    grid = np.full((len(sides[0]), len(sides[1])), np.nan)
    for row in rows:
        at = tuple(side.index(row.point.values[key]) for side, key in zip(sides, keys, strict=True))
        grid[at] = _value(row, metric)
    shown = [value for value in grid.ravel().tolist() if not np.isnan(value)]
    wide = min(shown) > 0 and max(shown) >= _WIDE_RANGE * min(shown)
    image = ax.imshow(grid, origin="lower", aspect="auto", norm="log" if wide else "linear", cmap="viridis")
    ax.set_xticks(range(len(sides[1])), list(map(as_it_is, sides[1])), rotation=30, ha="right", fontsize="small")
    ax.set_yticks(range(len(sides[0])), list(map(as_it_is, sides[0])), fontsize="small")
    if grid.size <= 100:
        middle = np.sqrt(min(shown) * max(shown)) if wide else (min(shown) + max(shown)) / 2
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                colour = "black" if value > middle else "white"
                ax.text(j, i, f"{value:.3g}", ha="center", va="center", color=colour, fontsize="x-small")
    figure: Any = ax.figure
    bar = figure.colorbar(image, ax=ax, label=METRICS.get(metric, metric))
    if wide:
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel=keys[1], ylabel=keys[0])
    ax.set_title(picture_title(sweep.base.title), fontsize="medium")
    return ax
