"""Which part of a run is traced: cycles and units, as people type them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from arch.errors import InputError


@dataclass(frozen=True)
class Wanted:
    """A part of one kernel. first, last: cycles since its launch; last None: to its end. units: of a GPU, SMs.
    kernel: None is the first one; of a graph, all, and cycles are then those since the host's first call."""

    first: int = 0
    last: int | None = None
    first_unit: int = 0
    last_unit: int = 0
    kernel: int | None = None


def parse_range(option: str, text: str) -> tuple[int, int | None]:
    """`3`, `3:7`, `3:`, `:7` as first and last, both included."""
    match = re.fullmatch(r"([0-9]{0,18})(:?)([0-9]{0,18})", text.replace("_", ""))
    if match is None or not any(match.groups()):
        raise InputError(f"{option} {text[:60]}: write it as FIRST:LAST, such as 0:20000, or as one number")
    first = int(match[1] or 0)
    last = int(match[3]) if match[3] else None if match[2] else first
    if last is not None and last < first:
        raise InputError(f"{option} {text}: runs backwards; write {last}:{first}")
    return first, last


class TooMuchError(InputError):
    """More happens in the part that is wanted than a recording holds."""
