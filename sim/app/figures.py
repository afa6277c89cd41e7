"""Which unit reads which figure of a machine: the units of each family, and what they declare.

A unit is a module with `FIGURES`, the paths of the figures that it reads (`instructions`: the table). What lies above
the engines, reports and checks of requests, reads figures too; these are declared here. Tests hold the declarations
against what is really read (`arch.reads`) and against every preset.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from arch.families import family
from arch.leaves import documents, leaves, spec_class
from arch.preset_file import IDENTITY

APP = "sim.app"
"""The unit of reports and of checks of requests, by the prefix of its modules."""

KERNELS = "workloads"
"""The unit of limits that builders of programs keep to."""

LOADER = "arch"
"""The unit of figures that stand for others, which the loader fills in."""


def units(name: str) -> tuple[str, ...]:
    """Modules that are units of a family: those that it names, and of packages that it names all with `FIGURES`."""
    found: list[str] = []
    for unit in family(name).units:
        module = import_module(unit)
        below = [f"{unit}.{entry.name}" for entry in pkgutil.iter_modules(getattr(module, "__path__", ()))]
        found += [one for one in (unit, *below) if hasattr(import_module(one), "FIGURES")]
    return tuple(found)


@cache
def declared(machines: str) -> Mapping[str, frozenset[str]]:
    """What each unit of a family declares to read: paths by the name of its module."""
    found = {name: _of_family(machines, import_module(name).FIGURES) for name in units(machines)}
    return found | {name: frozenset(paths) for name, paths in family(machines).above.items()}


def _of_family(machines: str, paths: tuple[str, ...]) -> frozenset[str]:
    """Paths of a module that several families share, as this family calls them."""
    known, memories = leaves(spec_class(machines)), family(machines).memories
    found = []
    for path in paths:
        group, _, name = path.partition(".")
        names = [f"{memory}.{name}" for memory in memories] if group == "dram" else [path]
        found += [path for path in names if path in known or path == "instructions"]
    return frozenset(found)


def owners(machines: str, path: str) -> tuple[str, ...]:
    """Units that read a figure, or a column of an instruction row; none of what only documents or names."""
    if path in IDENTITY or documents(spec_class(machines), path) is not None:
        return ()
    name = "instructions" if path.startswith("instructions.") else path
    return tuple(unit for unit, paths in declared(machines).items() if name in paths)
