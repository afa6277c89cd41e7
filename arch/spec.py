"""What every description of a machine has: a name, figures in groups, and where each figure comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from arch.extensions import Registered
from arch.families import registered_family
from arch.policies import Policy
from arch.units import word

Count = Annotated[int, Field(gt=0, le=2**20)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Documents:
    """Marks a figure that is stated and that nothing reads: an override of it would answer wrongly and in silence.

    reason: why nothing reads it. instead: what to change for the effect that one might expect.
    """

    reason: str
    instead: str


class Group(BaseModel):
    """Base of every group of figures: frozen, unknown words refused, typed by people without the unit."""

    # Validators are built when they are first needed: a run needs those of one machine.
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=word, populate_by_name=True, defer_build=True
    )


@dataclass(frozen=True, slots=True)
class MachineFile:
    """Where a description comes from. sha256: of all figures of the file and its bases as they stand there."""

    name: str
    sha256: str


def labelled(name: str, overrides: Mapping[str, str]) -> str:
    """What a machine is called wherever it is named: its name and the figures that were changed."""
    changes = ", ".join(f"{path}={value}" for path, value in overrides.items())
    return f"{name} with {changes}" if changes else name


@cache
def _policies(kind: type[BaseModel]) -> Sequence[tuple[str, str, Policy]]:
    """Figures of a machine that name a policy: its group, its field, what it may be."""
    found = []
    for name, info in kind.model_fields.items():
        for group in get_args(info.annotation) or (info.annotation,):
            if isinstance(group, type) and issubclass(group, Group):
                fields = ((field, mark) for field, inner in group.model_fields.items() for mark in inner.metadata)
                found += [(name, field, mark) for field, mark in fields if isinstance(mark, Policy)]
    return tuple(found)


class MachineSpec(Group):
    """Base of the machines of all families, built by `arch.load.load_arch`."""

    name: str
    family: str
    title: str
    chip: str = ""
    notes: str = ""

    page: ClassVar[Callable[[MachineSpec], str]]
    """Makes an HTML table of the figures of a machine: `arch.show.as_html`, which `arch.load` puts here."""

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _overrides: dict[str, str] = PrivateAttr(default_factory=dict)
    _belonging: dict[str, str] = PrivateAttr(default_factory=dict)
    _implausible: tuple[str, ...] = PrivateAttr(default=())
    _file: MachineFile | None = PrivateAttr(default=None)
    _hashed: tuple[tuple[Any, ...], str] = PrivateAttr(default=((), ""))

    @property
    def sources(self) -> Mapping[str, str]:
        """Source of every figure, by path; figures set by the user say so."""
        return MappingProxyType(self._sources)

    @property
    def overrides(self) -> Mapping[str, str]:
        """Figures that were changed when the description was loaded, as they were typed, by path."""
        return MappingProxyType(self._overrides)

    @property
    def belonging(self) -> Mapping[str, str]:
        """Figures that went with those that were changed (`arch.belongs`), with their values, by path."""
        return MappingProxyType(self._belonging)

    @property
    def implausible(self) -> Sequence[str]:
        """Figures beyond what real machines have, each in words (`arch.plausible`)."""
        return self._implausible

    @property
    def file(self) -> MachineFile | None:
        """Where the description comes from; None for one that was made in Python."""
        return self._file

    @property
    def extensions(self) -> Mapping[str, Registered]:
        """What other packages have a part in the machine: its family, and policies by the path of the figure."""
        own = registered_family(self.family)
        found = {"family": own} if own else {}
        for name, field, policy in _policies(self.__class__):  # a stand-in's class is its target's
            if (other := policy.registered(getattr(getattr(self, name), field))) is not None:
                found[f"{word(name)}.{word(field)}"] = other
        return found

    @property
    def label(self) -> str:
        """The name with what was changed: `h100-sxm with sm.count=133`."""
        return labelled(self.name, self._overrides)

    @property
    def default_dtype(self) -> str:
        """Operand type used where a workload names none."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """The main figures in one line."""
        raise NotImplementedError

    def peak_flops(self, dtype: str) -> float:
        """Peak operations (2 a multiply-add) a second for operands of a type, as the data sheet counts them."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """The figures with their sources, for notebooks."""
        return type(self).page(self)

    def content_hash(self) -> str:
        """SHA-256 of the figures, the same in every process; title, chip, notes and sources do not count."""
        parts = tuple(getattr(self, name) for name in type(self).model_fields)
        # Remembered with what it is of: a changed copy takes over what its original remembers.
        if len(self._hashed[0]) != len(parts) or any(a is not b for a, b in zip(self._hashed[0], parts, strict=True)):
            self._hashed = parts, self._figures_hash()
        return self._hashed[1]

    def _figures_hash(self) -> str:
        figures = self.model_dump(mode="json", by_alias=True, exclude={"title", "chip", "notes"})
        figures |= {path: other.sha256 for path, other in self.extensions.items()}
        return hashlib.sha256(json.dumps(figures, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
