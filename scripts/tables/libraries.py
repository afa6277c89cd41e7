"""Writes what libraries take into docs/workloads.md, from workloads/libraries.

scripts/docs tables libraries
"""

from __future__ import annotations

import argparse

from scripts.tables.place import DOCS, put
from workloads.libraries import shown_figures, taken

PAGE = DOCS / "workloads.md"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing beside the page."""


def rules() -> str:
    """The rules of all libraries."""
    lines = ["| `--schedule` | operator, where | takes | source |", "|---|---|---|---|"]
    for rule in taken():
        names = ", ".join(f"`{name}`" for name in rule.schedule.split(", "))
        lines.append(f"| {names} | {rule.where} | `{rule.takes}` | {rule.source} |")
    return "\n".join(lines)


def figures() -> str:
    """Their figures."""
    lines = ["| release | figure | value | source | remark |", "|---|---|---|---|---|"]
    for name, key, value, source, remark in shown_figures():
        lines.append(f"| `{name}` | `{key}` | {value} | {source} | {remark} |")
    return "\n".join(lines)


def write(options: argparse.Namespace) -> int:
    """Puts both tables on the page."""
    put(options.page, "libraries", rules())
    put(options.page, "figures of libraries", figures())
    return 0
