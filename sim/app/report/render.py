"""Sections as plain text and as HTML. Plain text is all ASCII and never wider than its cells."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence

from sim.app.report.sections import Section

TEXT_WIDTH = 100


class Shown:
    """Base of what is shown as sections: text for `print`, tables for notebooks."""

    def sections(self) -> list[Section]:
        """What is shown, in order."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The sections as text."""
        return as_text(self.sections())

    def _repr_html_(self) -> str:
        """The sections for notebooks."""
        return as_html(self.sections())


def as_text(sections: Sequence[Section]) -> str:
    """Sections one below the other, cells aligned in columns."""
    return "\n\n".join("\n".join([section.title, *_text_rows(section)]) for section in sections)


def as_html(sections: Sequence[Section]) -> str:
    """The same for a notebook: one table a section."""
    return "".join(f"<h4>{html.escape(s.title)}</h4>{_html_table(s)}" for s in sections)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, columns padded; cells that start with a digit are aligned at their right end."""
    columns = list(zip(*rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if c[:1].isdigit() else c.ljust(w) for c, w in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return lines


def _text_rows(section: Section) -> list[str]:
    """The lines below a title: rows of one cell are wrapped as sentences, of two aligned at the second."""
    if all(len(row) == 1 for row in section.rows):
        return [line for (sentence,) in section.rows for line in _wrap(sentence)]
    if all(len(row) == 2 for row in section.rows):
        width = max(len(name) for name, _ in section.rows)
        return [f"  {name.ljust(width)}  {value}" for name, value in section.rows]
    table = [section.header, *section.rows] if section.header else list(section.rows)
    return ["  " + line for line in aligned(table)]


def _wrap(sentence: str) -> list[str]:
    """Lines of a sentence; names of files and schedules stay whole."""
    indent = "  "
    return textwrap.wrap(
        sentence,
        TEXT_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _html_table(section: Section) -> str:
    """One table; every cell is escaped."""
    lines = [("th", section.header)] if section.header else []
    lines += [("td", row) for row in section.rows]
    body = "".join(
        "<tr>" + "".join(f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in lines
    )
    return f"<table>{body}</table>"
