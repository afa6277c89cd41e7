"""Sections by `rich`: plain text of stable width, tables fitted to a terminal. Imported only where one is printed."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arch.printable import printable
from sim.app.report.sections import BAR_WIDTH, Cell, Meter, Section

TEXT_WIDTH = 100
"""Columns of a line of sentences, on wide terminals too."""

_INDENT = 2
_UNLIMITED = 100_000
_MOST_TURNED = 6
"""A wide table of so many rows is turned on a narrow terminal: its rows stand side by side."""

Draw = Callable[[Cell], RenderableType]


def plain(sections: Sequence[Section]) -> str:
    """Text without colours, whose width depends on the cells alone."""
    console = Console(file=io.StringIO(), width=_UNLIMITED, color_system=None, force_terminal=False, _environ={})
    return _printed(console, (_body(_table(s.rows, s.header, s.numeric, _written), s) for s in sections), sections)


def on_terminal(sections: Sequence[Section], console: Console | None = None) -> str:
    """Text for the terminal that stdout is: not wider, and with colours if it has them (NO_COLOR is heeded)."""
    console = console or Console(highlight=False)
    return _printed(console, (_body(_fitted(s, console), s) for s in sections), sections)


def _text(words: str, style: str = "") -> Text:
    """Words as they are, line for line, but for codes that a terminal would obey."""
    return Text("\n".join(map(printable, words.split("\n"))), style=style)


def _printed(console: Console, bodies: Iterable[RenderableType], sections: Sequence[Section]) -> str:
    """Titles and what stands below them, with gaps between sections; nothing at the ends of lines."""
    with console.capture() as capture:
        for number, (section, body) in enumerate(zip(sections, bodies, strict=True)):
            title = [_text(section.title, style="bold")] if section.title else []
            console.print(*([Text()] if number else []), *title, body, sep="\n")
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _body(table: RenderableType, section: Section) -> RenderableType:
    """A section's sentences or its table; what stands below a title is set in."""
    if section.sentences:
        table = Constrain(Group(*map(_text, section.sentences)), TEXT_WIDTH - _INDENT)
    return Padding(table, (0, 0, 0, _INDENT if section.title else 0), expand=False)


def _fitted(section: Section, console: Console) -> RenderableType:
    """A table as wide as the terminal at most: as it is, turned, with wrapped cells, or as one block a row."""
    width = console.width - _INDENT
    unlimited = console.options.update(width=_UNLIMITED)
    table = _table(section.rows, section.header, section.numeric, _drawn)
    size = Measurement.get(console, unlimited, table)
    if size.maximum <= width or not section.header:
        return table
    if len(section.rows) <= _MOST_TURNED:
        names, *columns = zip(section.header, *section.rows, strict=True)
        turned = _table(columns, names, (False,) * len(names), _drawn)
        if Measurement.get(console, unlimited, turned).maximum <= width:
            return turned
    if size.minimum <= width:
        return table
    blocks = (_block(section.header, row) for row in section.rows)
    return Group(*itertools.islice(itertools.chain.from_iterable((Text(), block) for block in blocks), 1, None))


def _table(rows: Sequence[Sequence[Cell]], header: Sequence[Cell], numeric: Sequence[bool], draw: Draw) -> Table:
    """Columns two spaces apart; those of numbers at their right end."""
    table = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, right in enumerate(numeric):
        name = str(header[number]) if header else ""
        table.add_column(_text(name), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*map(draw, row))
    return table


def _block(header: Sequence[str], row: Sequence[Cell]) -> RenderableType:
    """One row of a table, a line a cell."""
    named = [pair for pair in zip(header, row, strict=True) if str(pair[1])]
    return _table(named, (), (False, False), _drawn)


def _written(cell: Cell) -> RenderableType:
    """A cell of plain text."""
    return _text(str(cell))


def _drawn(cell: Cell) -> RenderableType:
    """A cell of a terminal."""
    if isinstance(cell, Meter):
        bar = ProgressBar(1, min(cell.share, 1.0), style="bright_black", complete_style="blue", finished_style="blue")
        return Constrain(bar, BAR_WIDTH)
    return _text(cell)
