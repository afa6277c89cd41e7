"""Which figures of a machine are read: a description that takes notes.

`recorded(spec)` stands in for a machine wherever one is read. What reads it sees the same figures; the notes say which
ones, and which module asked. Tests hold the declarations of units (`FIGURES`) against them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType
from typing import Any

from pydantic import BaseModel

from arch.gpu import Instruction
from arch.units import word

Notes = set[tuple[str, str]]
"""(path of the figure, name of the module that read it)."""


def recorded(spec: BaseModel) -> tuple[Any, Notes]:
    """A stand-in for `spec`, and the notes that it takes."""
    notes: Notes = set()
    return _Recorded(spec, "", notes), notes


class _Recorded:
    """Stands in for one group of figures, at `path` of the machine."""

    def __init__(self, target: BaseModel, path: str, notes: Notes) -> None:
        self.__dict__.update(_target=target, _path=path, _notes=notes)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what asks for the type of a machine finds that of the target
        return type(self.__dict__["_target"])

    def __getattr__(self, name: str) -> Any:
        target, path, notes = (self.__dict__[key] for key in ("_target", "_path", "_notes"))
        if name in ("model_copy", "__copy__", "__deepcopy__"):
            return lambda *args, **kwargs: _Recorded(_copy(target, *args, **kwargs), path, notes)
        kind = type(target)
        if name in kind.model_fields:
            return _field(getattr(target, name), f"{path}{word(name)}", notes)
        member = next((owner.__dict__[name] for owner in kind.__mro__ if name in owner.__dict__), None)
        inherited = any(name in owner.__dict__ for owner in BaseModel.__mro__)
        if isinstance(member, property) and not inherited:
            assert member.fget is not None
            return member.fget(self)
        if isinstance(member, cached_property):
            return member.func(self)
        if isinstance(member, FunctionType) and not inherited and not name.startswith("__"):
            return member.__get__(self)
        return getattr(target, name)

    def __hash__(self) -> int:
        return hash(self.__dict__["_target"])

    def __eq__(self, other: object) -> bool:  # what is remembered of another machine hides no read of this one
        return self is other


def _field(value: Any, path: str, notes: Notes) -> Any:
    if isinstance(value, BaseModel):
        return _Recorded(value, f"{path}.", notes)
    if isinstance(value, tuple) and value and isinstance(value[0], Instruction):
        return tuple(_Recorded(row, f"{path}.{row.name}.", notes) for row in value)
    if value is not None:
        notes.add((path, _asker()))
    return value


def _copy(target: BaseModel, *, update: dict[str, Any] | None = None, **options: Any) -> BaseModel:
    plain = {
        name: value.__dict__["_target"] if isinstance(value, _Recorded) else value
        for name, value in (update or {}).items()
    }
    return target.model_copy(update=plain, **options)


def _asker() -> str:
    """The module that reads: the first one on the stack outside this package."""
    return next(name for name in _callers() if not name.startswith("arch."))


def _callers() -> Iterator[str]:
    frame = sys._getframe(2)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", ""))
        assert frame.f_back is not None
        frame = frame.f_back
