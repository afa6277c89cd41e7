"""Which figures of a machine are read: a description that takes notes.

`recorded(spec)` stands in for a machine wherever one is read. What reads it sees the same figures; the notes say which
ones, and which module asked. Tests hold the declarations of units (`FIGURES`) against them.

`Remembered` keeps what is made of a machine, by a stand-in that notes which groups of figures went into it: another
machine in which these are the same is answered at once.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from types import FunctionType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from arch.gpu import Instruction
from arch.units import word

Notes = set[tuple[str, str]]
"""(path of the figure, name of the module that read it)."""


def recorded(spec: BaseModel) -> tuple[Any, Notes]:
    """A stand-in for `spec`, and the notes that it takes."""
    notes: Notes = set()
    return _Recorded(spec, "", notes), notes


class _StandIn:
    """Stands in for a group of figures, or a machine; `_read` gives the value of one of its fields."""

    def __init__(self, target: BaseModel) -> None:
        self.__dict__.update(_target=target)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what asks for the type of a machine finds that of the target
        return self.__dict__["_target"].__class__

    def _read(self, name: str) -> Any:
        raise NotImplementedError

    def _copied(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def _made(self, name: str, value: Any) -> Any:
        """The value of a cached property, which has just been made of what it reads."""
        return value

    def __getattr__(self, name: str) -> Any:
        target = self.__dict__["_target"]
        if name in ("model_copy", "__copy__", "__deepcopy__"):
            return self._copied
        if name == "content_hash":  # the name of the whole machine, which reads no figure
            return target.content_hash
        kind = target.__class__
        if name in kind.model_fields:
            return self._read(name)
        member = next((owner.__dict__[name] for owner in kind.__mro__ if name in owner.__dict__), None)
        inherited = any(name in owner.__dict__ for owner in BaseModel.__mro__)
        if isinstance(member, property) and not inherited:
            assert member.fget is not None
            return member.fget(self)
        if isinstance(member, cached_property):
            return self._made(name, member.func(self))
        if isinstance(member, FunctionType) and not inherited and not name.startswith("__"):
            return member.__get__(self)
        return getattr(target, name)

    def __eq__(self, other: object) -> bool:  # what is remembered of another machine hides no read of this one
        return self is other

    def __hash__(self) -> int:
        return hash(self.__dict__["_target"])


class _Recorded(_StandIn):
    """Stands in for one group of figures, at `path` of the machine."""

    def __init__(self, target: BaseModel, path: str, notes: Notes) -> None:
        super().__init__(target)
        self.__dict__.update(_path=path, _notes=notes)

    def _read(self, name: str) -> Any:
        target, path, notes = (self.__dict__[key] for key in ("_target", "_path", "_notes"))
        return _field(getattr(target, name), f"{path}{word(name)}", notes)

    def _copied(self, *args: Any, **options: Any) -> Any:
        target, path, notes = (self.__dict__[key] for key in ("_target", "_path", "_notes"))
        return _Recorded(_copy(target, *args, **options), path, notes)


class _Noted(_StandIn):
    """Stands in for a machine, and keeps what has been read of it: `parts`, by attribute."""

    def __init__(self, target: BaseModel) -> None:
        super().__init__(target)
        self.__dict__.update(_parts={})

    def _read(self, name: str) -> Any:
        value = self.__dict__["_parts"][name] = getattr(self.__dict__["_target"], name)
        return self._made(name, value)

    def _made(self, name: str, value: Any) -> Any:
        self.__dict__[name] = value  # the next read comes straight from here
        return value

    def _copied(self, *args: Any, **options: Any) -> Any:
        target = self.__dict__["_target"]
        for name in target.__class__.model_fields:
            self._read(name)
        return _copy(target, *args, **options)


T = TypeVar("T")


class Remembered(Generic[T]):
    """The last things that were made of machines, each with the parts of its machine that went into it."""

    def __init__(self, most: int) -> None:
        """most: things that are kept."""
        self._most = most
        self._kept: OrderedDict[tuple[Hashable, int], tuple[dict[str, Any], T]] = OrderedDict()
        self._made = 0
        self._lock = threading.Lock()

    def of(self, key: Hashable, spec: Any, make: Callable[[Any], T]) -> T:
        """What `make` makes of a machine; what it made for an equal key and equal parts that it read, where that is
        kept. It reads nothing else that may change and does not hand on the stand-in that it gets."""
        with self._lock:
            for at, (parts, made) in reversed(self._kept.items()):
                if at[0] == key and all(_same(getattr(spec, name), part) for name, part in parts.items()):
                    self._kept.move_to_end(at)
                    return made
        machine = _Noted(spec)
        made = make(machine)
        with self._lock:
            self._made += 1
            self._kept[key, self._made] = machine.__dict__["_parts"], made
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


def _same(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)


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
