"""What writers of tables share: a table's place on a page, the day and version, and what commands printed as JSON.

A page keeps a table between `<!-- table NAME: scripts/docs tables COMMAND -->` and `<!-- end of table -->`, or, where
text follows the first comment on its line, a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from arch.errors import InputError
from sim.app.cost import version

DOCS = Path(__file__).resolve().parents[2] / "docs"
END = "<!-- end of table -->"
T = TypeVar("T")


def begin(name: str, command: str = "") -> str:
    """The comment before a table. command: what writes it, where that is not the table's own name."""
    return f"<!-- table {name}: scripts/docs tables {command or name} -->"


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- table {re.escape(name)}: [^\n]*? -->\n?)(.*?)({re.escape(END)})", re.DOTALL)


def standing(page: str, name: str) -> str:
    """What a page has in a table's place; empty where it has no such place."""
    found = _place(name).search(page)
    return found[2] if found else ""


def put(path: Path, name: str, text: str) -> None:
    """Replaces a table of a page. InputError, and the page as it was, where it has no place for the table."""
    page = path.read_text(encoding="utf-8")
    if not _place(name).search(page):
        raise InputError(f"{path} has no line {begin(name)} with {END} behind it, between which the table goes")

    def changed(found: re.Match[str]) -> str:
        inline = not found[1].endswith("\n")
        return f"{found[1]}{text}{found[3]}" if inline else f"{found[1]}\n{text}\n\n{found[3]}"

    path.write_text(_place(name).sub(changed, page), encoding="utf-8")


def today() -> str:
    """The day, and the version that made a table."""
    return f"{datetime.now(UTC):%Y-%m-%d}, tilewave {version()}"


def printed(path: str | Path, printed_by: str, take: Callable[[Any], T]) -> T:
    """What `take` finds in a JSON file. InputError where the file is not what the command `printed_by` prints."""
    try:
        return take(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not what {printed_by} prints: {error!r}") from None
