"""`--html`: one file with the whole report: sections, roofline, stall stack, timeline, sources. It needs no network."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.show import describe
from sim.app.report.render import as_html
from sim.app.report.report import Report
from sim.app.report.sections import BAR_WIDTH, Section, sections_of
from sim.app.trace.svg import shown_part, svg
from sim.app.trace.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
       color: #1c1e21; background: #fff; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
h4 { margin: 1rem 0 .2rem; }
p.lead { color: #555; margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .12rem .9rem .12rem 0; vertical-align: top; border-bottom: 1px solid #8883; white-space: nowrap; }
.bar { display: block; width: 12rem; height: .7em; margin-top: .35em; background: #8883; }
.bar i { display: block; height: 100%; background: #4e79a7; }
.columns { columns: 2 30rem; column-gap: 2.5rem; } .columns > div { break-inside: avoid; }
.columns > div { overflow-x: auto; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; }
.pictures img { background: #fff; max-width: 100%; height: auto; }
.scroll { overflow-x: auto; } svg text { font: 10px system-ui, sans-serif; fill: currentColor; }
svg text.on { font-size: 9px; fill: #fff; pointer-events: none; }
.legend { margin: .4rem 0; } .key { margin-right: 1rem; white-space: nowrap; }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
details { margin-top: .5rem; } summary { cursor: pointer; } pre { overflow-x: auto; font-size: 12px; }
@media (prefers-color-scheme: dark) { body { color: #e4e6ea; background: #17191c; } p.lead { color: #aaa; } }
"""


_BAR = re.compile(rf"<td[^>]*>(?=[#.]{{{BAR_WIDTH}}}<)(#*)\.*</td>")


def page(report: Report, machine: Any, timeline: Callable[[], Timeline]) -> str:
    """The page. machine: the description that ran. timeline: records one; where it refuses, the page says why."""
    run = report.record
    head, *sections = sections_of(report)
    words = [section for section in sections if all(len(row) == 1 for row in section.rows)]
    tables = [section for section in sections if section not in words]
    body = [
        f"<h1>{escape(head.title)}</h1>",
        f'<p class="lead">{escape(machine.title)}; schedule {escape(run.schedule)}</p>',
        _section("Result", _table(Section("", head.rows))),
        *(_section(s.title, "".join(f"<p>{escape(row[0])}</p>" for row in s.rows)) for s in words),
        _section("Pictures", f'<div class="pictures">{_pictures(report)}</div>'),
        _section("Figures", '<div class="columns">' + "".join(f"<div>{_table(s)}</div>" for s in tables) + "</div>"),
        _section("Timeline", _timeline(timeline)),
        _section("Where the machine's figures come from", _sources(machine)),
        _section("The report as JSON", _document(report)),
    ]
    title = escape(head.title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _table(section: Section) -> str:
    """A section as a table; its bars of characters become bars."""
    table = as_html([section]).removeprefix("<h4></h4>")
    return _BAR.sub(
        lambda bar: f'<td><span class="bar"><i style="width:{100 * len(bar[1]) // BAR_WIDTH}%"></i></span></td>', table
    )


def _pictures(report: Report) -> str:
    draws = [("roofline", report.plot_roofline)]
    draws.append(("profile", report.plot_profile) if report.record.operators else ("stall stack", report.plot_stalls))
    return "".join(f'<img alt="{name}" src="{_picture(draw)}">' for name, draw in draws)


def _picture(draw: Callable[[Axes], Axes]) -> str:
    """A picture as a data URL; the same bytes for the same report."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 4.2), layout="constrained")
    canvas = FigureCanvasSVG(figure)
    draw(figure.subplots())
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "tilewave"}):
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _timeline(record: Callable[[], Timeline]) -> str:
    try:
        found = record()
    except InputError as error:
        return f"<p>None: {escape(str(error))}.</p>"
    pictures = [shown_part(found.below(root)) for root in found.roots]
    return "".join(_drawn(part, root) for part, root in zip(pictures, found.roots, strict=True) if part.slices)


def _drawn(part: Timeline, root: int) -> str:
    """The picture of what lies below a track, and which cycles it shows."""
    first, last = part.span
    unit, origin = part.facts["time"].split("; ")
    which = unit.partition("cycle")[2]  # of which clock, where that has to be said
    whole = int(part.facts["cycles"])
    note = f"{part.tracks[root].name.split(':')[0]}: cycles{which} {first:,} to {last:,} of {whole:,}; {origin}"
    return f'<p>{escape(note)}. Point at a piece for its details.</p><div class="scroll">{svg(part)}</div>'


def _sources(machine: Any) -> str:
    rows = tuple((row.path, row.value, row.source) for row in describe(machine))
    return f"<details><summary>{len(rows)} figures</summary>{_table(Section('', rows))}</details>"


def _document(report: Report) -> str:
    text = escape(json.dumps(report.to_dict(), indent=1, allow_nan=False))
    return f"<details><summary>schema {report.to_dict()['schema_version']}</summary><pre>{text}</pre></details>"
