"""Operators: what is computed, with the work that it needs and a NumPy reference. Nothing here knows a machine.

A new operator is a class below the decorator `operator`, in a module of this package or of `workloads.graphs`, or in
another package that names the class as an entry point of the group `tilewave.operators`, under the operator's word; its
fields are the keys of `workloads.parse`. The words are found by reading the sources. A module is imported when an
operator of it is asked for, so that a run pays for its own.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.extensions import OPERATORS, Registered, registered
from arch.near import hint
from workloads.ops.base import REGISTRY

if TYPE_CHECKING:
    from workloads.ops.attention import *
    from workloads.ops.attention_backward import *
    from workloads.ops.base import *
    from workloads.ops.base import Operator
    from workloads.ops.collectives import *
    from workloads.ops.contractions import *
    from workloads.ops.gemm import *
    from workloads.ops.gradients import *
    from workloads.ops.grouped_gemm import *
    from workloads.ops.lookups import *
    from workloads.ops.moe import *
    from workloads.ops.movement import *
    from workloads.ops.pointwise import *
    from workloads.ops.rowwise import *

_PACKAGES = ("ops", "graphs")
_HERE = Path(__file__).parents[1]
_DECLARED = re.compile(r'^@operator\(\s*"(\w+)"[^@]*?^@dataclass\(frozen=True\)\nclass (\w+)\(', re.MULTILINE)


def __getattr__(name: str) -> Any:
    """What a module with operators defines, which is imported on first use."""
    if name == "__all__":
        own = ("DATA_KINDS", "KINDS", "MAX_EXTENT", "Array", "Operand", "Operator", "operator", "operator_class")
        classes = [cls for module, cls in _declared().values() if module.startswith(__name__)]
        return sorted([*own, "operator_words", "random_array", "short_words", *classes])
    defined = re.compile(rf"^(?:class |def ){name}\b|^{name}(?:: .+)? = ", re.MULTILINE)
    for module, text in _sources().items():
        if not name.startswith("_") and defined.search(text):
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _sources() -> Mapping[str, str]:
    """By module, the text of those in which operators are declared."""
    paths = [path for package in _PACKAGES for path in sorted((_HERE / package).glob("[!_]*.py"))]
    return {f"workloads.{path.parent.name}.{path.stem}": path.read_text(encoding="utf-8") for path in paths}


@functools.cache
def _declared() -> Mapping[str, tuple[str, str]]:
    """By word of an operator, the module that declares it and the name of its class."""
    found = [(module, match) for module, text in _sources().items() for match in _DECLARED.finditer(text)]
    return {match[1]: (module, match[2]) for module, match in found}


def operator_words() -> tuple[str, ...]:
    """Words of all operators, without the short words of single pointwise functions."""
    return tuple(dict.fromkeys([*_declared(), *(entry.name for entry in registered(OPERATORS)), *REGISTRY]))


def short_words(word: str) -> Mapping[str, str]:
    """Fields that a short word stands for: `exp` is `pointwise chain=exp`."""
    return {"chain": word} if word in _functions() else {}


def operator_class(word: str) -> type[Operator]:
    """The operator called `word`; InputError names the nearest if there is none."""
    if word not in REGISTRY and word in _declared():
        importlib.import_module(_declared()[word][0])
    elif word not in REGISTRY and (entry := extension(word)):
        _load(entry)
    elif word in _functions():
        return operator_class("pointwise")
    if word in REGISTRY:
        return REGISTRY[word]
    known = operator_words()
    raise InputError(f"unknown operator {word}, one of {', '.join(known)}{hint(word, [*known, *_functions()])}")


def extension(word: str) -> Registered | None:
    """The entry point by which another package declares an operator; None for those that are here."""
    if word in _declared():
        return None
    return next((entry for entry in registered(OPERATORS) if entry.name == word), None)


def _load(entry: Registered) -> None:
    """Imports an operator of another package. InputError where that fails or two packages have the word."""
    where = f"operator {entry.name} of {entry.package or entry.value}"
    if entry.others:
        raise InputError(f"{where}: {' and '.join(entry.others)} declares it, too; uninstall all but one")
    try:
        found = entry.load()
    except Exception as error:  # somebody's module
        raise InputError(f"{where}: {entry.value}: {type(error).__name__}: {error}") from None
    if REGISTRY.get(entry.name) is not found:
        raise InputError(f'{where}: {entry.value} is not declared by @operator("{entry.name}")')


def _functions() -> Mapping[str, Any]:
    """Functions of `pointwise`, whose names are words by themselves."""
    from workloads.ops.pointwise import FUNCTIONS

    return FUNCTIONS
