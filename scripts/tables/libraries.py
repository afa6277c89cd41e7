"""Writes what libraries take into docs/workloads.md, from workloads/libraries.

scripts/docs tables libraries
"""

from __future__ import annotations

import argparse

from scripts.tables.place import DOCS, put
from workloads.libraries import shown_figures, shown_tables, taken

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


def tables() -> str:
    """Tables of their kernels."""
    lines = ["| release | table | columns | rows | source | remark |", "|---|---|---|---|---|---|"]
    for row in shown_tables():
        lines.append(f"| `{row.release}` | `{row.table}` | {' | '.join(row[2:])} |")
    return "\n".join(lines)


def write(options: argparse.Namespace) -> int:
    """Puts the three on the page."""
    put(options.page, "libraries", rules())
    put(options.page, "figures of libraries", figures())
    put(options.page, "tables of libraries", tables())
    return 0
