"""What tests of pictures share: what is wrong with a figure by its own layout, and how alike two pictures are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

WINDOW = 7
"""Side of the windows that are compared, in points of the small pictures."""
ALIKE = 0.85
"""Least mean likeness of windows: text that says other numbers keeps it, what has moved or is gone does not."""
_ROOM = 2.0
"""Points by which neighbours may touch."""


def faults(figure: Figure) -> list[str]:
    """What a reader would stumble over: clipped or crossing texts, a legend over data, ticks as powers, bars without
    any value."""
    FigureCanvasAgg(figure).draw()
    whole = figure.bbox
    texts = [(text, box) for text in _texts(figure) for box in (text.get_window_extent(),)]
    found = [
        f"clipped: {text.get_text()}"
        for text, box in texts
        if box.x0 < -_ROOM or box.y0 < -_ROOM or box.x1 > whole.width + _ROOM or box.y1 > whole.height + _ROOM
    ]
    for (one, a), (other, b) in combinations(texts, 2):
        if _crossing(a, b):
            found.append(f"over each other: {one.get_text()!r} and {other.get_text()!r}")
    found += [f"tick: {text.get_text()}" for text, _ in texts if "^{" in text.get_text()]
    for axes in _axes(figure):
        found += _faults_of(axes)
    return found


def _axes(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible()]


def _texts(figure: Figure) -> Iterator[Text]:
    """Everything that is written and seen; labels of ticks beyond the ends of their axis are not drawn."""
    unseen = set()
    for axis in (axis for axes in _axes(figure) for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                unseen |= {id(tick.label1), id(tick.label2)}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_visible() and text.get_text().strip() and id(text) not in unseen:
            yield text


def _crossing(a: Bbox, b: Bbox) -> bool:
    """Whether two boxes share more than their rims."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return width > _ROOM and height > _ROOM


def _faults_of(axes: Axes) -> Iterator[str]:
    legend = axes.get_legend()
    bars = [patch.get_window_extent() for held in axes.containers for patch in held.patches]  # type: ignore[attr-defined]
    if bars and not axes.texts:
        yield f"bars without values: {axes.get_title()}"
    if legend is None:
        return
    frame = legend.get_window_extent()
    if any(_crossing(frame, bar) for bar in bars):
        yield f"legend over bars: {axes.get_title()}"
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        if text.get_text() and _crossing(frame, text.get_window_extent()):
            yield f"legend over a word: {text.get_text()}"
    for line in axes.lines:
        points = line.get_transform().transform(np.column_stack([line.get_xdata(), line.get_ydata()]))
        if line.get_marker() not in ("None", "", None) and any(frame.contains(*point) for point in points):
            yield f"legend over points: {line.get_label()}"


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """Structural likeness of two pictures of one size (rows, columns, colours of 0 to 255), 1 for the same.

    The mean over windows of SSIM: means, contrasts and correlation of each window, of the worst colour.
    """
    return min(_ssim(one[..., c].astype(float), other[..., c].astype(float)) for c in range(3))


def _ssim(x: np.ndarray, y: np.ndarray) -> float:
    mean_x, mean_y = _windows(x), _windows(y)
    var_x, var_y = _windows(x * x) - mean_x**2, _windows(y * y) - mean_y**2
    both = _windows(x * y) - mean_x * mean_y
    low, middle = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    index = (2 * mean_x * mean_y + low) * (2 * both + middle)
    return float(np.mean(index / ((mean_x**2 + mean_y**2 + low) * (var_x + var_y + middle))))


def _windows(values: np.ndarray) -> np.ndarray:
    """Means over all windows."""
    sums = np.pad(values, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    w = WINDOW
    return (sums[w:, w:] - sums[:-w, w:] - sums[w:, :-w] + sums[:-w, :-w]) / w**2
