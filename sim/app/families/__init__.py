"""How an operator becomes a run on a machine: what is computed meets how time passes, one module a family.

A module `sim.app.families.<family>` has:

- `OPTIONS`: names of the options of `Options` that mean something on its machines,
- `run(asked, spec, options, progress) -> RunRecord`,
- `listing(asked, spec, schedule) -> str`: the program as text,
- `row(row) -> RowResult`: one row of reference data, where there are measurements of the family.

All raise InputError before anything runs. `asked` is the operator as it was asked for: number formats may be open.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def runner(family: str) -> Any:
    """The module that runs operators on machines of a family."""
    return import_module(f"sim.app.families.{family}")
