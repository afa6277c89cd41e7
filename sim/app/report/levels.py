"""Traffic of a mapping by level of memory, as mapping tools print it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.app.report.sections import Section
from sim.app.report.text import bytes_text


@dataclass(frozen=True, slots=True)
class Level:
    """A memory of the mapping. size_bytes: 0 where it has no bound. read, written: bytes in all. largest_bytes: that a
    tile holds there; 0: not counted."""

    name: str
    size_bytes: int
    read_bytes: int
    written_bytes: int
    largest_bytes: int = 0


def summed(kernels: Sequence[Sequence[Level]]) -> list[Level]:
    """Traffic of all kernels by level, which all of them have."""
    return [
        Level(
            parts[0].name,
            parts[0].size_bytes,
            sum(part.read_bytes for part in parts),
            sum(part.written_bytes for part in parts),
            max(part.largest_bytes for part in parts),
        )
        for parts in zip(*kernels, strict=True)
    ]


def traffic(levels: Sequence[Level]) -> dict[str, dict[str, int]]:
    """As a report holds it."""
    return {level.name: {"read_bytes": level.read_bytes, "written_bytes": level.written_bytes} for level in levels}


def table(title: str, levels: Sequence[Level], macs: float) -> Section:
    """Levels from the array outwards, for people."""
    rows = [
        (
            level.name,
            bytes_text(level.size_bytes) if level.size_bytes else "",
            bytes_text(level.read_bytes),
            bytes_text(level.written_bytes),
            f"{macs / max(1, level.read_bytes):.1f}",
            f"{bytes_text(level.largest_bytes)} a tile" if level.largest_bytes else "",
        )
        for level in levels
    ]
    return Section(title, tuple(rows), ("level", "size", "read", "written", "MACs a byte read", "holds"))
