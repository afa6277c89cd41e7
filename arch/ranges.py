"""Figures of which only a range is known: their sources begin with "range:" and their remarks say its ends."""

from __future__ import annotations

import re
from collections.abc import Mapping

from arch.errors import InputError
from arch.spec import MachineSpec

_RANGE = re.compile(r"range: [^;]*; ([\d.]+) to ([\d.]+)( \S+)?")


def ranges(spec: MachineSpec) -> Mapping[str, tuple[str, str]]:
    """By path, the ends of the range of each such figure, as they are typed. InputError where a machine has none."""
    found = {path: match for path, text in spec.sources.items() if (match := _RANGE.fullmatch(text))}
    if not found:
        raise InputError(f"ranges: {spec.name} has no figure of which only a range is known; rubin-announced has some")
    return {path: (match[1] + (match[3] or ""), match[2] + (match[3] or "")) for path, match in found.items()}
