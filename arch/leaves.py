"""Which figures a description of a machine has: each by the path that people type, with its unit and what reads it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from arch.families import family as machine_family
from arch.gpu import Instruction
from arch.spec import Documents, MachineSpec
from arch.units import Unit, word


def spec_class(family: str) -> type[MachineSpec]:
    """What describes machines of a family. Only the family that is asked for is imported."""
    found: type[MachineSpec] = machine_family(family).load("spec")
    return found


class Leaf(NamedTuple):
    """One figure that a spec can have: its field, the attributes that lead to it, its unit (None: count or word)."""

    field: FieldInfo
    attributes: tuple[str, ...]
    unit: Unit | None

    @property
    def documents(self) -> Documents | None:
        """Why nothing reads it, where it only documents."""
        return next((entry for entry in self.field.metadata if isinstance(entry, Documents)), None)


def has_instructions(model: type[BaseModel]) -> bool:
    """Say whether machines of a family have a table of instructions."""
    return "instructions" in model.model_fields


@cache
def leaves(model: type[BaseModel]) -> Mapping[str, Leaf]:
    """Return every figure of a spec by the path that people type; instruction rows are not among them."""
    found: dict[str, Leaf] = {}
    for attribute, info in model.model_fields.items():
        if attribute == "instructions":
            continue
        group = group_of(info.annotation)
        if group is None:
            found[word(attribute)] = Leaf(info, (attribute,), _unit(info))
        else:
            for path, leaf in leaves(group).items():
                found[f"{word(attribute)}.{path}"] = leaf._replace(attributes=(attribute, *leaf.attributes))
    return found


def documents(model: type[BaseModel], path: str) -> Documents | None:
    """Why nothing reads a figure of a spec, or a column of an instruction row; None where something does."""
    if path.startswith("instructions."):
        key, column = path.removeprefix("instructions.").rpartition(".")[::2]
        op, _, shape = [*key.split("."), "", ""][:3]
        return Instruction.documents(op, shape, column)
    return leaves(model)[path].documents


def group_of(annotation: Any) -> type[BaseModel] | None:
    """Return the group behind a field's annotation, also where it is optional, or None for a figure."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)), None)


def _unit(info: FieldInfo) -> Unit | None:
    candidates = [
        *info.metadata,
        *(entry for choice in get_args(info.annotation) for entry in getattr(choice, "__metadata__", ())),
    ]
    return next((entry for entry in candidates if isinstance(entry, Unit)), None)
