"""Figures that are the name of a policy: which names a machine may have there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from arch.extensions import Registered, registered
from arch.near import hint


@dataclass(frozen=True)
class Policy:
    """Marks a figure that is the name of a policy: one that ships, or one that is registered in a group."""

    group: str
    shipped: Sequence[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Text that is a known name."""
        return core_schema.no_info_after_validator_function(self.known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """For editors: the names that are known here."""
        return {"type": "string", "enum": self.names}

    @property
    def names(self) -> list[str]:
        """Names that there are, those that ship first."""
        return [*self.shipped, *(other.name for other in registered(self.group) if other.name not in self.shipped)]

    def known(self, name: str) -> str:
        """The name. ValueError, which lists all, for one that there is not, and for one that several packages have."""
        if name in self.shipped:
            return name
        other = self.registered(name)
        if other is None:
            raise ValueError(f"must be one of {', '.join(self.names)}{hint(name, self.names, '; nearest: {}')}")
        if other.others:
            packages = ", ".join([other.package, *other.others])
            raise ValueError(f"several packages register it ({packages}); uninstall all but one of them")
        return name

    def registered(self, name: str) -> Registered | None:
        """What another package registers by a name; None of what ships, and of what there is not."""
        if name in self.shipped:
            return None
        return next((other for other in registered(self.group) if other.name == name), None)
