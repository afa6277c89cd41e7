"""`--html`: one file with the whole report: sections, roofline, stall stack, timeline, sources. It needs no network."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from arch.errors import InputError
from arch.show import describe
from sim.app.report import palette
from sim.app.report.charts import roofline_svg, stalls_svg
from sim.app.report.html import rendered
from sim.app.report.report import Report
from sim.app.report.sections import Section
from sim.app.trace.earlier import Earlier
from sim.app.trace.interactive import MOST_LINES, Interactive, interactive
from sim.app.trace.svg import shown_part, svg
from sim.app.trace.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEAST_SHARE = 0.005
"""Of all waiting, that stands beside a line of the listing."""

MOST_LISTED = 600
"""Lines of a listing that a page has."""

MOST_SLICES = 30_000
"""Of a timeline that the page's script draws; the picture for paper shows its middle."""


@dataclass(frozen=True)
class Drawn:
    """A timeline on the page. note: which cycles it shows. printed: the picture for paper; empty of an earlier run."""

    note: str
    shown: Interactive | None = None
    printed: str = ""


def page(
    report: Report,
    machine: Any,
    timeline: Callable[[], Timeline],
    before: Earlier | None = None,
    compared: Sequence[Section] = (),
    listing: str = "",
) -> str:
    """The page. machine: the description that ran. timeline: records one; where it refuses, the page says why.

    before: an earlier run, whose timelines stand beside those of this one. compared: what differs from it. listing: the
    program with the cost of each line.
    """
    head, *sections = report.sections()
    document = report.to_dict()
    drawn = _timelines(timeline)
    earlier = [Drawn(f"{before.name}: {note}", shown) for note, shown in before.timelines] if before else []
    return rendered(
        "page.html",
        title=head.title,
        lead=f"{machine.title}; schedule {report.record.schedule}",
        result=head,
        words=[section for section in sections if section.sentences],
        tables=[section for section in sections if not section.sentences],
        charts=[Markup(chart) for chart in (roofline_svg(report), stalls_svg(report)) if chart],
        pictures=_pictures(report),
        timelines=list(zip_longest(drawn, earlier)),
        listing=_listed(listing, drawn),
        most_lines=MOST_LINES,
        before=before.name if before else "",
        compared=compared,
        sources=Section("", tuple((row.path, row.value, row.source) for row in describe(machine))),
        schema=document["schema_version"],
        document=json.dumps(document, indent=1, allow_nan=False),
    )


@dataclass(frozen=True)
class Picture:
    """A picture as data URLs, on white paper and for a dark scheme."""

    name: str
    light: str
    dark: str


_FONTS = ["DejaVu Sans", "sans-serif"]
"""Letters of the pictures stay letters, which readers draw: their shapes would be most of a page."""

_DARK: Any = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), palette.DARK_PAPER),
    **dict.fromkeys(
        ("text.color", "axes.titlecolor", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
        palette.DARK_INK,
    ),
}


def _pictures(report: Report) -> list[Picture]:
    """Where the time of a graph or a network went, by its parts."""
    if report.record.layers:
        name, draw = "layers", report.plot_layers
    elif report.record.operators:
        name, draw = "profile", report.plot_profile
    else:
        return []
    return [Picture(name, _url(_picture(draw, {})), _url(_on_dark(_picture(draw, _DARK))))]


_OP = re.compile(r"^ +(\d+)  ")
"""How a line of a listing begins that is an op."""


def _listed(listing: str, drawn: Sequence[Drawn]) -> list[tuple[str, str]]:
    """Lines of a listing, each with the share of all waiting of the recorded warps that was for it.

    Ops are numbered within each kernel, so that waits stand only beside a program of one.
    """
    lines = listing.splitlines()
    shown = [entry for one in drawn if one.shown for entry in one.shown.lines]
    waits = {
        entry.line.partition(":")[0]: f"{100 * entry.share:.0f} %" for entry in shown if entry.share >= LEAST_SHARE
    }
    single = sum(line.startswith("kernel ") for line in lines) == 1
    found = []
    for line in lines[:MOST_LISTED]:
        number = _OP.match(line)
        found.append((waits.get(f"op {number[1]}", "") if number and single else "", line))
    more = len(lines) - MOST_LISTED
    return [*found, ("", f"... {more:,} more lines: --listing prints all")] if more > 0 else found


def _on_dark(picture: str) -> str:
    return picture.replace(palette.IDLE, palette.IDLE_ON_DARK)


def _url(picture: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.encode()).decode()


def _picture(draw: Callable[[Axes], Axes], style: Any) -> str:
    """A picture as SVG; the same letters for the same report."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "tilewave", "svg.fonttype": "none", "font.family": _FONTS, **style}):
        figure = Figure(figsize=(6.2, 4.2), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        draw(figure.subplots())
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    return buffer.getvalue().decode()


def _timelines(record: Callable[[], Timeline]) -> list[Drawn]:
    """What was recorded below each root; a sentence, where there is nothing."""
    try:
        found = record()
    except InputError as error:
        return [Drawn(f"None: {error}.")]
    drawn = []
    for root in found.roots:
        part = shown_part(found.below(root), MOST_SLICES)
        if part.slices:
            drawn.append(Drawn(_note(part, root), interactive(part), Markup(svg(shown_part(part)))))
    return drawn


def _note(part: Timeline, root: int) -> str:
    """Which cycles the picture of what lies below a track shows."""
    first, last = part.span
    unit, origin = part.facts["time"].split("; ")
    which = unit.partition("cycle")[2]  # of which clock, where that has to be said
    whole = int(part.facts["cycles"])
    name = part.tracks[root].name.split(":")[0]
    return f"{name}: cycles{which} {first:,} to {last:,} of {whole:,}; {origin}."
