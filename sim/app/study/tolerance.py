"""How much a recorded run may change: one share for everything, or one for each kind of number, or for a single one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arch.errors import InputError
from arch.near import hint
from sim.app.study.digest import Change

KINDS = ("cycles", "time", "clock", "energy", "counters", "stalls")
"""What a tolerance can be stated for; beside these, any counter or stall reason by its name in the lock."""

_OF_KIND = {"counter": "counters", "stall": "stalls"}


@dataclass(frozen=True)
class Tolerance:
    """Shares that are accepted: relative changes, and for stall reasons points of 100 %.

    default: for what no other one is stated. of: by kind, or by the name of one counter or stall reason.
    """

    default: float = 0.0
    of: Mapping[str, float] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether nothing at all may change."""
        return not self.default and not any(self.of.values())

    def accepts(self, change: Change) -> bool:
        """Whether a change is within what is stated for it."""
        kind = _OF_KIND.get(change.kind, change.kind)
        return not change.beyond(self.of.get(change.name, self.of.get(kind, self.default)))


def tolerance_of(value: Any, where: str) -> Tolerance:
    """`0.01`, `"1 %"`, or a table such as `{cycles = 0, energy = "2 %", default = "1 %"}`; InputError for others."""
    if not isinstance(value, Mapping):
        return Tolerance(_share(value, where))
    shares = {name: _share(share, f"{where}: {name}") for name, share in value.items()}
    for name in shares:
        if name not in (*KINDS, "default") and "_" not in name and "." not in name:
            known = (*KINDS, "default")
            raise InputError(
                f"{where}: tolerance of {name!r}: one of {', '.join(known)}, or a counter or stall reason as the lock "
                f"names it, such as dram_read_bytes or warps.barrier{hint(name, known)}"
            )
    return Tolerance(shares.pop("default", 0.0), shares)


def _share(value: Any, where: str) -> float:
    """A share, as a number or as `1 %`."""
    try:
        share = float(value.removesuffix("%")) / 100 if isinstance(value, str) else float(value)
    except (TypeError, ValueError, AttributeError):
        share = -1.0
    if not 0 <= share < 1:
        raise InputError(f"{where}: tolerance = {value!r}: must be a share such as 0.01 or '1 %'")
    return share
