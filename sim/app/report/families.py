"""What a report says about one family of machines alone: a module `sim.app.report.<family>` each.

It has `STALL_TITLE` (heading of the stall stack), `SECTIONS` (makers of sections, after the memory chart),
`details(figures)` (the object that the schema names after the family; None values are left out), `bound(figures)` (the
sentence about the limiting unit) and `losses(figures)` (sentences about what else costs time).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def family(name: str) -> Any:
    """The module of a family."""
    return import_module(f"sim.app.report.{name}")
