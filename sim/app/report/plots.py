"""Pictures of reports. matplotlib is imported here and nowhere else; import this module only where one is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter
from matplotlib.transforms import ScaledTranslation

from sim.app.report import palette
from sim.app.report.asked import titled
from sim.app.report.charts import FAR_ROOFS, drawn_roofs
from sim.app.report.figures import Figures, shares
from sim.app.report.profile import profile
from sim.app.report.sections import SMALLEST_STALL
from sim.app.report.text import ops_text, words

if TYPE_CHECKING:
    from sim.app.report.report import Report


TITLE_WIDTH = 48
"""Letters of a title's line, as many as stand above a picture."""
_LEGEND_INCHES = 0.45
"""Of a legend below its axis: the room for the numbers and the word between."""
_LEGEND_WIDTH = 30
_MOST_TICKS = 20
"""Layers that are named beside a picture."""
_LABELLED = 0.06
"""Share of a bar that has room for its value."""


def picture_title(text: str, width: int = TITLE_WIDTH) -> str:
    """A title broken into lines that stay inside the picture."""
    return as_it_is("\n".join(textwrap.wrap(text, width, break_on_hyphens=False)))


def as_it_is(text: str) -> str:
    """A text for matplotlib, which would take what stands between dollar signs for a formula."""
    return text.replace("$", r"\$")


def coloured(ax: Axes) -> Axes:
    """The axes, with the project's colours for what is compared on them."""
    ax.set_prop_cycle(color=palette.SERIES)
    return ax


def _workload(reports: Sequence[Report]) -> str:
    """What the reports have in common, and what is unusual about any of them."""
    unusual = dict.fromkeys(words for report in reports for words in report.record.asked.unusual)
    return titled(reports[0].record.workload, list(unusual))


def below(ax: Axes) -> dict[str, Any]:
    """Where a legend stands that covers nothing: below the axis, its numbers and its word."""
    down = ScaledTranslation(0, -_LEGEND_INCHES, ax.figure.dpi_scale_trans)
    return {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": ax.transAxes + down}


def roofs_of(report: Report, ax: Axes | None = None) -> Axes:
    """The roofs over one run: a slope and a point for each memory level, over operations a byte of what moved on it,
    and a line for each kind of arithmetic. The lowest, which holds, is thick."""
    figures = report.figures
    roofs, peak = drawn_roofs(figures)
    ax = coloured(ax or plt.subplots(figsize=(7, 4.5), layout="constrained")[1])
    ax.set_title(picture_title(report.record.title), fontsize="medium")
    ax.set(xlabel="operations a byte of what moved on each level", ylabel=_unit([report]))
    if not roofs:
        ax.text(0.5, 0.5, "no operations, no roof", ha="center", transform=ax.transAxes)
        return ax
    reached = figures.ops_per_s
    ends = [value for roof in roofs if roof.bytes_per_s for value in (roof.intensity, peak / roof.bytes_per_s)] or [1.0]
    x = np.geomspace(min(ends) / 4, max(ends) * 4, 200)
    colours = [palette.SERIES[i % len(palette.SERIES)] for i in range(len(roofs))]
    for i, roof in enumerate(roofs):
        text = f"{words(roof.name)}: {ops_text(roof.ops_per_s, report.record.dtype)}{', holds' if i == 0 else ''}"
        height = np.minimum(x * roof.bytes_per_s, peak) if roof.bytes_per_s else np.full_like(x, roof.ops_per_s)
        style = {
            "color": colours[i],
            "linewidth": 2.5 if i == 0 else 1.0,
            "linestyle": "-" if roof.bytes_per_s else "--",
        }
        ax.loglog(x, height * 1e-12, label=text, **style)
        if roof.bytes_per_s:
            ax.plot(roof.intensity, reached * 1e-12, "o", color=colours[i])
    ax.axhline(reached * 1e-12, color=palette.GUIDE, linewidth=0.8, linestyle=":")
    ax.set_ylim(min(reached, roofs[0].ops_per_s) * 1e-12 / 8, peak * 1e-12 * FAR_ROOFS * 1.5)
    _log_axes(ax)
    title = f"roofs (the run reaches {ops_text(reached, report.record.dtype)})"
    ax.legend(fontsize="small", title=title, title_fontsize="small", **below(ax), ncols=2)
    return ax


def _unit(reports: Sequence[Report]) -> str:
    return "TOPS" if all(report.record.dtype.startswith("int") for report in reports) else "TFLOPS"


def _log_axes(ax: Axes) -> None:
    """Plain numbers beside logarithmic axes."""
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    ax.grid(visible=True, alpha=0.2)


def roofline(reports: Sequence[Report], ax: Axes | None = None) -> Axes:
    """Rooflines of all machines and a point a report: TFLOPS over operations per byte of external memory. A bar above
    a point is the roof that holds it, where that is another unit's."""
    ax = coloured(ax or plt.subplots(figsize=(6, 4), layout="constrained")[1])
    intensities = [report.figures.intensity for report in reports]
    ridges = [report.figures.ridge for report in reports]
    shown = [value for value in (*intensities, *ridges) if value > 0]  # a copy has no operations, and no place here
    x = np.geomspace(min(shown) / 8, max(shown) * 8, 200)
    for report in reports:
        machine, figures = report.record.machine, report.figures
        roof = np.minimum(machine.peak_ops_per_s, x * figures.external_bytes_per_s) * 1e-12
        (line,) = ax.loglog(
            x, roof, label=picture_title(f"{report.record.machine_label} {report.record.dtype}", _LEGEND_WIDTH)
        )
        ax.plot(figures.intensity, figures.ops_per_s * 1e-12, "o", color=line.get_color())
        held = next(iter(figures.roofs()), None)
        if held is not None and held.name != "compute" and held.name not in machine.external:
            at = (figures.intensity, held.ops_per_s * 1e-12)
            ax.plot(*at, "_", color=line.get_color(), markersize=14)
            ax.annotate(
                words(held.name), at, (8, 0), textcoords="offset points", color=line.get_color(), fontsize="x-small",
                va="center",
            )  # fmt: skip
    ax.set(xlabel="operations a byte of external memory", ylabel=_unit(reports))
    ax.set_title(picture_title(_workload(reports)), fontsize="medium")
    _log_axes(ax)
    ax.legend()
    return ax


def stall_stack(report: Report, ax: Axes | None = None) -> Axes:
    """What the first unit's cycles were spent on (of a GPU: its warps'), one bar a kernel.

    Reasons below `SMALLEST_STALL` everywhere are `other`.
    """
    ax = coloured(ax or plt.subplots(figsize=(6, 4), layout="constrained")[1])
    unit = next(iter(report.figures.stalls), "")
    kernels = [kernel for kernel in report.record.kernels if any(kernel.stalls.get(unit, {}).values())]
    splits = [shares(kernel.stalls[unit]) for kernel in kernels]
    states = list(dict.fromkeys(s for split in splits for s, share in split.items() if share >= SMALLEST_STALL))
    left = np.zeros(len(kernels))
    for state in states:
        width = np.array([split.get(state, 0.0) for split in splits])
        colour = palette.of_state(state)
        drawn = ax.barh(range(len(kernels)), width, 0.5, left=left, label=words(state), color=colour)
        shown = [f"{100 * share:.0f} %" if share >= _LABELLED else "" for share in width]
        ax.bar_label(drawn, shown, label_type="center", fontsize="x-small", color=palette.text_on(colour))
        left += width
    if len(kernels) and left.min() < 1:
        ax.barh(range(len(kernels)), 1 - left, 0.5, left=left, label="other", color=palette.IDLE)
    what = f"where cycles went: {words(unit)}" if unit else "no stalls counted"
    title = picture_title(f"{what}, {report.record.title}")
    ax.set(xlabel=f"share of cycles ({words(unit)})", xlim=(0, 1), ylim=(-1, len(kernels)))
    ax.set_title(title, fontsize="medium")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.set_yticks(range(len(kernels)), [f"kernel {i}" for i in range(len(kernels))])
    if states:
        ax.legend(fontsize="small", **below(ax), ncols=3)
    return ax


def time_by_operator(report: Report, ax: Axes | None = None) -> Axes:
    """Device time of a graph by operator, one bar each, coloured by class."""
    ax = coloured(ax or plt.subplots(figsize=(6, 4), layout="constrained")[1])
    entries = profile(report.record)[::-1]
    kinds = list(dict.fromkeys(operator.kind for operator in report.record.operators))
    for kind in kinds:
        chosen = [(i, entry) for i, entry in enumerate(entries) if entry.kind == kind]
        times = [entry.device_ps * 1e-6 for _, entry in chosen]
        drawn = ax.barh([i for i, _ in chosen], times, label=kind)
        ax.bar_label(drawn, [f"{time:.3g}" for time in times], padding=3, fontsize="x-small")
    ax.margins(x=0.12)
    ax.set_yticks(range(len(entries)), [f"{entry.name} ({entry.calls})" for entry in entries])
    ax.set(xlabel="device time, us")
    ax.set_title(picture_title(f"operators, {report.record.title}"), fontsize="medium")
    ax.legend(fontsize="small", **below(ax), ncols=3)
    return ax


def time_by_layer(report: Report, ax: Axes | None = None) -> Axes:
    """Time of each layer of a network from top to bottom, coloured by what bounds it."""
    ax = ax or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    layers = [(layer, figures.bound) for layer, figures in Figures.of_layers(report.record)]
    for bound in dict.fromkeys(bound for _, bound in layers):
        chosen = [(i, layer) for i, (layer, by) in enumerate(layers) if by == bound]
        times = [layer.time_ps * 1e-6 for _, layer in chosen]
        drawn = ax.barh([i for i, _ in chosen], times, label=words(bound), color=palette.of_bound(bound))
        if len(layers) <= _MOST_TICKS:
            ax.bar_label(drawn, [f"{time:.3g}" for time in times], padding=3, fontsize="x-small")
    ax.margins(x=0.12)
    step = -(-len(layers) // _MOST_TICKS)
    ax.set_yticks(range(0, len(layers), step), [as_it_is(layer.name) for layer, _ in layers[::step]], fontsize="small")
    ax.invert_yaxis()
    ax.set(xlabel="time, us")
    ax.set_title(picture_title(f"layers, {report.record.title}"), fontsize="medium")
    ax.legend(fontsize="small", title="bound by", title_fontsize="small", **below(ax), ncols=4)
    return ax


def predicted_against_measured(points: Mapping[str, Sequence[tuple[float, float]]], ax: Axes | None = None) -> Axes:
    """Simulated over measured time in microseconds, one colour a group, with lines at equality and at 10 % off."""
    ax = coloured(ax or plt.subplots(figsize=(6, 6), layout="constrained")[1])
    for label, pairs in points.items():
        measured, predicted = zip(*pairs, strict=True)
        ax.loglog(measured, predicted, ".", label=label, alpha=0.7)
    if points:
        times = [time for pairs in points.values() for pair in pairs for time in pair]
        span = np.array([min(times) / 1.5, max(times) * 1.5])
        for factor, style in ((1.0, "-"), (1.1, ":"), (1 / 1.1, ":")):
            ax.plot(span, span * factor, style, color=palette.GUIDE, linewidth=0.8)
        ax.legend(fontsize="small")
        _log_axes(ax)
    ax.set(xlabel="measured, us", ylabel="simulated, us", aspect="equal")
    return ax
