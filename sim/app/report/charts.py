"""Roofline and stall stack of a page, as SVG whose marks say their numbers when one points at them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from sim.app.report import palette
from sim.app.report.figures import Figures, Roof, shares
from sim.app.report.sections import SMALLEST_ROOF
from sim.app.report.text import bytes_text, ops_text, percent, words

if TYPE_CHECKING:
    from sim.app.report.report import Report

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 44
BAR, BAR_GAP = 26, 14
MOST_KERNELS = 12
"""Bars of a stall stack."""
FAR_ROOFS = 4
"""Roofs of arithmetic that are so many times as high as the lowest are left out of a picture."""
_LETTER = 6.2


def drawn_roofs(figures: Figures) -> tuple[list[Roof], float]:
    """The roofs that a picture has room for, the lowest first, and the height at which slopes end."""
    roofs = [roof for roof in figures.roofs() if roof.ops_per_s * SMALLEST_ROOF <= figures.ops_per_s]
    flat = [roof.ops_per_s for roof in roofs if not roof.bytes_per_s]
    peak = min(flat) if flat else max((roof.ops_per_s for roof in roofs), default=0.0)
    return [roof for roof in roofs if roof.bytes_per_s or roof.ops_per_s <= FAR_ROOFS * peak], peak


class _Axes:
    """Two logarithmic axes. x, y: least and most of each."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x, self.y = x, y

    def at_x(self, value: float) -> float:
        """Place of a value along the picture's width."""
        return LEFT + (WIDTH - LEFT - RIGHT) * _part(value, *self.x)

    def at_y(self, value: float) -> float:
        """Place of a value along its height, from above."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - _part(value, *self.y))

    def drawn(self, below: str, beside: str) -> Iterator[str]:
        """Ruled lines with their numbers, and what the axes are."""
        for value in _decades(*self.x):
            x = self.at_x(value)
            yield f'<path class="rule" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
            yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{value:g}</text>'
        for value in _decades(*self.y):
            y = self.at_y(value)
            yield f'<path class="rule" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        yield f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(below)}</text>'
        middle = (TOP + HEIGHT - BOTTOM) / 2
        yield (
            f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
            f"{escape(beside)}</text>"
        )


def roofline_svg(report: Report) -> str:
    """The roofs over a run: a slope and a point for each memory level, a line for each kind of arithmetic.

    Empty where a run has no operations.
    """
    figures, dtype = report.figures, report.record.dtype
    roofs, peak = drawn_roofs(figures)
    if not roofs:
        return ""
    reached = figures.ops_per_s
    ends = [value for roof in roofs if roof.bytes_per_s for value in (roof.intensity, peak / roof.bytes_per_s)] or [1.0]
    axes = _Axes(
        (min(ends) / 4, max(ends) * 4), (min(reached, roofs[0].ops_per_s) * 1e-12 / 8, peak * 1e-12 * FAR_ROOFS * 1.5)
    )
    parts = list(axes.drawn("operations a byte of what moved on each level", f"T{_unit(dtype)}"))
    parts.append(f'<path class="reached" d="M{LEFT} {axes.at_y(reached * 1e-12):.1f}H{WIDTH - RIGHT}"/>')
    for i, roof in enumerate(roofs):
        parts += _roof(axes, roof, i, peak, reached, dtype)
    keys = _keys([(words(roof.name), palette.of_series(i)) for i, roof in enumerate(roofs)], HEIGHT)
    return _svg("roofline", keys[-1][1] + 4, [*parts, *(text for text, _ in keys)])


def _roof(axes: _Axes, roof: Roof, number: int, peak: float, reached: float, dtype: str) -> Iterator[str]:
    """A roof and where the run stands below it."""
    colour, name = palette.of_series(number), words(roof.name)
    holds = "; the lowest roof, which holds" if number == 0 else ""
    limit = f"{name}: at most {ops_text(roof.ops_per_s, dtype)}, {percent(reached / roof.ops_per_s)} reached{holds}"
    low, high = axes.x
    ridge = min(max(peak / roof.bytes_per_s, low), high) if roof.bytes_per_s else low
    begin = (low * roof.bytes_per_s if roof.bytes_per_s else roof.ops_per_s) * 1e-12
    end = (peak if roof.bytes_per_s else roof.ops_per_s) * 1e-12
    path = f"M{axes.at_x(low):.1f} {axes.at_y(begin):.1f}L{axes.at_x(ridge):.1f} {axes.at_y(end):.1f}"
    path += f"H{axes.at_x(high):.1f}"
    dashes = "" if roof.bytes_per_s else ' stroke-dasharray="6 4"'
    width = 1.5 if number else 3
    yield _mark(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}', limit)
    if roof.bytes_per_s:
        moved = f"{name}: {roof.intensity:.4g} operations a byte at {bytes_text(round(roof.bytes_per_s))}/s; {limit}"
        x, y = axes.at_x(roof.intensity), axes.at_y(reached * 1e-12)
        yield _mark(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"', moved)


def stalls_svg(report: Report) -> str:
    """What the first unit's cycles were spent on, one bar a kernel, the longest kernels first where there are many.
    Empty where none were counted."""
    unit = next(iter(report.figures.stalls), "")
    kernels = [k for k in report.record.kernels if any(k.stalls.get(unit, {}).values())]
    chosen = sorted(range(len(kernels)), key=lambda i: -kernels[i].time_ps)[:MOST_KERNELS]
    parts: list[str] = []
    y = TOP
    for i in sorted(chosen):
        split = shares(kernels[i].stalls[unit])
        whole = sum(kernels[i].stalls[unit].values())
        parts.append(f'<text x="{LEFT}" y="{y + 10}">{escape(kernels[i].name[:72])}</text>')
        parts += _bar(split, whole, y + 15)
        y += BAR + 15 + BAR_GAP
    names = dict.fromkeys(name for i in sorted(chosen) for name in shares(kernels[i].stalls[unit]))
    keys = _keys([(words(name), palette.of_state(name)) for name in names], y)
    parts += [text for text, _ in keys]
    return _svg(f"where cycles went: {words(unit)}", keys[-1][1] + 10, parts) if keys else ""


def _bar(split: dict[str, float], whole: int, y: float) -> Iterator[str]:
    x, room = float(LEFT), WIDTH - LEFT - RIGHT
    for name, share in split.items():
        colour = palette.of_state(name)
        fill = palette.css(colour)
        width = share * room
        tip = f"{words(name)}: {percent(share)} of {whole:,} cycles"
        yield _mark(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" style="fill:{fill}"', tip)
        if width > 6 * _LETTER:
            yield (
                f'<text class="on" x="{x + width / 2:.1f}" y="{y + BAR / 2 + 4:.0f}" text-anchor="middle" '
                f'style="fill:{palette.text_on(colour)}">{100 * share:.0f} %</text>'
            )
        x += width


def _keys(names: Sequence[tuple[str, str]], y: float) -> list[tuple[str, float]]:
    """The legend of names and their colours, in lines: each entry with the height at which it ends."""
    found: list[tuple[str, float]] = []
    x = float(LEFT)
    for label, colour in names:
        wide = 20 + _LETTER * len(label)
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 18
        box = f'<rect x="{x:.0f}" y="{y}" width="11" height="11" style="fill:{palette.css(colour)}"/>'
        found.append((f'{box}<text x="{x + 15:.0f}" y="{y + 10}">{escape(label)}</text>', y + 16))
        x += wide + 10
    return found


def _mark(element: str, tip: str) -> str:
    """A part of a picture that says something when it is pointed at, or reached by the keyboard."""
    text = escape(tip)
    return f'{element} class="mark" tabindex="0" data-tip="{text}"><title>{text}</title></{element[1:].split()[0]}>'


def _svg(name: str, height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}">{body}</svg>'


def _unit(dtype: str) -> str:
    return "OPS" if dtype.startswith("int") else "FLOPS"


def _part(value: float, low: float, high: float) -> float:
    """Where a value lies between two, by its logarithm, within both."""
    return min(max(math.log(value / low) / math.log(high / low), 0.0), 1.0)


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten between two values, with what is between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    values = (step * 10.0**power for power in range(first, last + 1) for step in steps)
    return [value for value in values if low <= value <= high]
