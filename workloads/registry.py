"""Who computes an operator on a family of machines: one decorator registers (operator, family, kind).

A kind of schedule names the function that builds its programs, `build(op, spec, config) -> Program`. One more word
stands beside the kinds of an operator: `AUTO`, the function that ranks its configurations.

What is registered is found by reading the sources of the package that a family names (`kernels`): the decorator's words
stand there as texts. A module is imported when one of its functions is asked for, so that a run pays for the kernels
that it chooses. The module of an operator of another package registers its kernels, or imports what does.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from arch.errors import InputError
from arch.families import family as machine_family
from arch.near import hint

F = TypeVar("F", bound=Callable[..., Any])

AUTO = "auto"
"""A word that is no kind: who ranks the configurations of an operator."""

_DECORATOR = re.compile(r'^@register\(((?:\s*"[^"\n]+",?)+)\s*\)', re.MULTILINE)

_registered: dict[tuple[str, str, str], Callable[..., Any]] = {}


def register(operator: str, family: str, *kinds: str) -> Callable[[F], F]:
    """Decorator: registers a function under (operator word, machine family, kind), for one kind or several.

    All words are written as texts where the decorator stands, which is how they are found.
    """

    def add(function: F) -> F:
        for kind in kinds:
            _registered[operator, family, kind] = function
        return function

    return add


@functools.cache
def index(family: str) -> Mapping[tuple[str, str], str]:
    """By operator and kind, the module that registers it on a family of machines."""
    found: dict[tuple[str, str], str] = {}
    package = machine_family(family).kernels
    for folder in map(Path, importlib.import_module(package).__path__ if package else ()):
        for path in sorted(folder.rglob("*.py")):
            for match in _DECORATOR.finditer(path.read_text(encoding="utf-8")):
                operator, of, *kinds = re.findall(r'"([^"]+)"', match[1])
                if of == family:
                    module = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
                    found |= {(operator, kind): module for kind in kinds}
    return found


def _known(family: str) -> set[tuple[str, str]]:
    """Operators and kinds on a family: those of `index`, and what other packages have registered so far."""
    return {*index(family), *((operator, kind) for operator, of, kind in _registered if of == family)}


def operators(family: str) -> tuple[str, ...]:
    """Words of the operators that a family can run, in alphabetical order."""
    return tuple(sorted({operator for operator, kind in _known(family) if kind == AUTO}))


def schedules(operator: str, family: str) -> tuple[str, ...]:
    """Kinds of schedules of an operator on a family, in alphabetical order."""
    return tuple(sorted(k for o, k in _known(family) if o == operator and k != AUTO))


def registered(operator: str, family: str, kind: str) -> Callable[..., Any] | None:
    """The function that is registered under the three words, its module imported; None if there is none."""
    if module := index(family).get((operator, kind)):
        importlib.import_module(module)
    return _registered.get((operator, family, kind))


def chooser(op: Any, spec: Any) -> Callable[..., Any]:
    """Who ranks the configurations of an operator on a machine; InputError, with those that there are, if nobody."""
    found = registered(op.word, spec.family, AUTO)
    if found is None:
        known = ", ".join(operators(spec.family))
        raise InputError(f"operator {op.word} has no schedule on {spec.name}; available: {known}")
    return found


def builder(operator: str, family: str, schedule: str) -> Callable[..., Any]:
    """The builder of a schedule; InputError with the nearest name if there is none."""
    found = registered(operator, family, schedule)
    if found is not None and schedule != AUTO:
        return found
    names = schedules(operator, family)
    if not names:
        raise InputError(f"operator {operator} has no schedule on machines of family {family}")
    near = hint(schedule, names)
    raise InputError(f"schedule={schedule}: {operator} has {', '.join(names)} on {family}{near}")


def build(op: Any, spec: Any, config: Any) -> Any:
    """The program of `op` on the machine `spec`; `config.schedule` names the builder."""
    return builder(op.word, spec.family, config.schedule)(op, spec, config)
