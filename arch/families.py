"""Families of machines: what one brings, and how families are found. Nothing lists them.

A family is a folder below `sim/app/families` whose `__init__.py` defines `FAMILY`, or what another package registers
under the family's name by an entry point of the group `tilewave.families`. A `Family` names what it brings by text,
`module:name`, so that finding families imports no engine.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from arch.errors import InputError
from arch.extensions import FAMILIES, Registered, registered
from arch.near import hint

HOME = "sim.app.families"
"""Package whose folders are families."""


@dataclass(frozen=True)
class Family:
    """What a family of machines brings. Texts such as `arch.gpu:GpuSpec` name an object of a module.

    name: the word after `family:` in machine files.
    spec: class that describes its machines, a `MachineSpec`.
    kernels: package whose modules register builders of its programs (`workloads.registry`); empty: none.
    runner: class that runs requests on them, a `sim.app.families.family.Runner`.
    example: a machine of it, which examples take.
    program: class of programs of one's own; empty where its machines run none.
    check_program: function that refuses such a program before it runs, by InputError; empty: all are taken.
    compiled_kernels: whether its machines run compiled kernels and traces of them.
    belongs: by primary figure, the function that says which figures go with it (`arch.belongs`).
    new_machine: rules of what belongs together in a machine that somebody thinks up, by wish (`arch.new_machine`);
        empty: there are none.
    units: modules, and packages of modules, that declare in `FIGURES` the figures that they read.
    above: figures that are read by what lies above the engines, by the package that reads them.
    memories: what its machines call their external memories.
    without_kernels: operators that its host or its links run, so that they have no schedules.
    graph_forms: mapping whose keys are how its machines run a graph of operators, as `--schedule` has it; empty: none.
    estimate_errors: in per cent, of the estimates that rank the candidates of an operator (`workloads.estimates`).
    others_error: that of all other operators.
    host: how its host computes operators of a graph that its machines cannot run, a `sim.app.families.family.Host`;
        empty: it computes none.
    """

    name: str
    spec: str
    kernels: str
    runner: str
    example: str
    program: str = ""
    check_program: str = ""
    compiled_kernels: bool = False
    belongs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    new_machine: str = ""
    units: tuple[str, ...] = ()
    above: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    memories: tuple[str, ...] = ("dram",)
    without_kernels: tuple[str, ...] = ()
    graph_forms: str = ""
    estimate_errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    others_error: int = 0
    host: str = ""

    def load(self, what: str) -> Any:
        """The object that the field `what` names. Its module is imported."""
        return load(getattr(self, what))


def load(text: str) -> Any:
    """The object that `module:name` names. Its module is imported."""
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


@cache
def _names() -> Mapping[str, Registered | None]:
    """Names of all families in alphabetical order, with the entry point of those that other packages have."""
    home = import_module(HOME)
    folders = {entry.name: None for entry in pkgutil.iter_modules(home.__path__) if entry.ispkg}
    others = {entry.name: entry for entry in registered(FAMILIES)}
    return MappingProxyType(dict(sorted({**others, **folders}.items())))


@cache
def family(name: str) -> Family:
    """The family of a name. InputError, with the nearest name, where there is none, and for what is no family."""
    if name not in _names():
        near = hint(name, _names(), "; nearest: {}")
        raise InputError(f"family {name!r} is unknown, one of {', '.join(_names())}{near}")
    entry = _names()[name]
    if entry is None:
        found = import_module(f"{HOME}.{name}").FAMILY
    else:
        try:
            found = entry.load()
        except Exception as error:  # whatever another package does when it is imported
            raise InputError(f"family {name} of {entry.package}: {type(error).__name__}: {error}") from None
    if not isinstance(found, Family) or found.name != name:
        raise InputError(f"family {name}: {found!r} is no Family of this name")
    return found


def families() -> Mapping[str, Family]:
    """All families by name, in alphabetical order. One that another package fails to give is left out: to ask for it by
    name says why."""
    found = {}
    for name in _names():
        with suppress(InputError):
            found[name] = family(name)
    return found


def registered_family(name: str) -> Registered | None:
    """Where another package registers a family; None for one that ships."""
    return _names().get(name)
