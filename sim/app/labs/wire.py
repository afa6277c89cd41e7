"""What goes between a grader and the process that has the answers: numbers, texts, arrays, programs; never code.

A value is packed as JSON. Objects of the tile and the dataflow language go as their fields; a function stays where it
is and goes as its number. What is unpacked is made anew of plain numbers and texts by this side's own classes, so that
nothing on the other side can give it a comparison, an attribute or a method of its own.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from arch import reading
from arch.errors import InputError
from sim.gpu.language import expressions, program, ring, tensors
from sim.rdu import program as dataflow

MOST_BYTES = 64 << 20
"""Of one message."""

_LARGEST = 10**300
_NUMBERS = "biuf"


@dataclasses.dataclass(frozen=True)
class Run:
    """A report that the other side makes by itself: of a workload on a machine."""

    workload: str
    machine: str


class Other:
    """What is no kind of thing that an answer can be; its class has its name."""


CLASSES: Mapping[str, type] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for module in (expressions, program, ring, tensors, dataflow)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
    and (dataclasses.is_dataclass(kind) or kind is dataflow.Section or issubclass(kind, enum.Enum))
} | {"Run": Run}  # fmt: skip
_NAMES = {kind: name for name, kind in CLASSES.items()}


def _fields(kind: type) -> tuple[str, ...]:
    """What an object of a class consists of."""
    if kind is dataflow.Section:
        return ("name", "grain", "stages")
    return tuple(field.name for field in dataclasses.fields(kind))


class Packer:
    """Packs values. functions: those that it has met, by their numbers."""

    def __init__(self) -> None:
        self.functions: list[Callable[..., Any]] = []

    def packed(self, value: Any) -> Any:
        """A document of a value."""
        objects: list[Any] = []
        return {"value": self._one(value, objects, {}), "objects": objects}

    def _one(self, value: Any, objects: list[Any], places: dict[int, int]) -> Any:
        def one(part: Any) -> Any:
            return self._one(part, objects, places)

        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int or isinstance(value, np.bool_ | np.integer):
            return int(value) if abs(int(value)) < _LARGEST else {"other": "int"}
        if kind is float or isinstance(value, np.floating):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if value is ...:
            return {"not": "answered"}
        if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
            content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
            return {"array": content, "dtype": value.dtype.str, "shape": list(value.shape)}
        if kind in (tuple, list):
            return {kind.__name__: [one(part) for part in value]}
        if isinstance(value, Mapping):
            return {"dict": [[one(key), one(part)] for key, part in value.items()]}
        if isinstance(value, enum.Enum) and kind in _NAMES:
            return {"enum": _NAMES[kind], "name": value.name}
        if kind in _NAMES:
            if id(value) not in places:
                places[id(value)] = len(objects)
                objects.append(None)
                fields = {name: one(getattr(value, name)) for name in _fields(kind)}
                objects[places[id(value)]] = {"class": _NAMES[kind], "fields": fields}
            return {"object": places[id(value)]}
        if callable(value):
            self.functions.append(value)
            return {"function": len(self.functions) - 1}
        return {"other": kind.__name__}


def unpacked(document: Any, function: Callable[[int], Callable[..., Any]]) -> Any:
    """The value of a document. function: what stands for the other side's by its number. ValueError for none."""
    made: list[Any] = [object.__new__(CLASSES[part["class"]]) for part in document["objects"]]

    def one(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((word, content), *_) = part.items()
        match word:
            case "float":
                return float(content)
            case "not":
                return ...
            case "array":
                dtype = np.dtype(part["dtype"])
                if dtype.kind not in _NUMBERS:
                    raise ValueError(f"{dtype} are no numbers")
                return np.frombuffer(base64.b64decode(content), dtype).reshape(part["shape"]).copy()
            case "tuple":
                return tuple(map(one, content))
            case "list":
                return list(map(one, content))
            case "dict":
                return {one(key): one(value) for key, value in content}
            case "enum":
                return CLASSES[content][part["name"]]  # type: ignore[index]
            case "object":
                return made[content]
            case "function":
                return function(int(content))
            case "other":
                return type(str(content)[:40], (Other,), {})()
        raise ValueError(f"{word} is nothing that is sent")

    for target, part in zip(made, document["objects"], strict=True):
        for name in _fields(type(target)):
            object.__setattr__(target, name, one(part["fields"][name]))
    return one(document["value"])


def read(line: bytes) -> Any:
    """The document of a message; ValueError where it is none."""
    try:
        return reading.document(line, "the process that has the answers")
    except InputError as error:
        raise ValueError(str(error)) from None
