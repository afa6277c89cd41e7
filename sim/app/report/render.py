"""Sections for people: plain text, tables fitted to a terminal, HTML for notebooks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from sim.app.report.sections import Section


class Shown:
    """Base of what is shown as sections: text for `print`, tables for terminals and notebooks."""

    def sections(self) -> list[Section]:
        """What is shown, in order."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The sections as plain text, the same everywhere."""
        return as_text(self.sections())

    def _repr_html_(self) -> str:
        """The sections for notebooks."""
        return as_html(self.sections())


def show(sections: Sequence[Section]) -> None:
    """Prints sections: on a terminal fitted to its width and in colour, elsewhere as plain text."""
    if sys.stdout.isatty():
        from sim.app.report.console import on_terminal

        print(on_terminal(sections))
    else:
        print(as_text(sections))


def as_text(sections: Sequence[Section]) -> str:
    """Sections one below the other, cells aligned in columns: all ASCII, never wider than its cells."""
    from sim.app.report.console import plain

    return plain(sections)


def as_html(sections: Sequence[Section]) -> str:
    """The same for a notebook: one table a section."""
    from sim.app.report.html import rendered

    return rendered("sections.html", sections=sections)
