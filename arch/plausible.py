"""Ranges in which the figures of real machines lie. A figure outside of its range is allowed, and reports warn of it.

What a figure may be at all is declared with it (`arch.gpu`, `arch.tpu`, `arch.rdu`). The ranges here are wider than
what any shipped machine has, about ten times where a figure scales with the size of a chip, so that a what-if passes
and a slip of the unit does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from arch.spec import MachineSpec
from arch.units import (
    BYTES,
    BYTES_PER_CYCLE,
    BYTES_PER_S,
    CYCLES,
    ENERGY,
    ENERGY_PER_BYTE,
    ENERGY_PER_FLOP,
    HERTZ,
    POWER,
    TIME,
    VOLTAGE,
    Unit,
)

if TYPE_CHECKING:
    from arch.leaves import Leaf

Range = tuple[str, str]

_COUNT: Range = ("0", "1048576")
_OF_UNIT: Mapping[Unit, Range] = MappingProxyType(
    {
        BYTES: ("0 B", "16000 GB"),
        BYTES_PER_S: ("1 GB/s", "1000 TB/s"),
        BYTES_PER_CYCLE: ("0.5 B/clk", "20000 B/clk"),
        CYCLES: ("0 cycles", "5000 cycles"),
        HERTZ: ("1 MHz", "20 GHz"),
        TIME: ("0 ps", "1 ms"),
        POWER: ("1 W", "5000 W"),
        VOLTAGE: ("300 mV", "2 V"),
        ENERGY: ("0 fJ", "10 nJ"),
        ENERGY_PER_BYTE: ("0 fJ/B", "2000 pJ/B"),
        ENERGY_PER_FLOP: ("0 fJ/FLOP", "50 pJ/FLOP"),
    }
)
"""Of any figure of a unit."""

_OF_PATH: Mapping[str, Range] = MappingProxyType(
    {
        "clock.boost": ("100 MHz", "5 GHz"),
        "clock.tensor": ("0.3", "1"),
        "clock.undershoot": ("0.3", "1"),
        "clock.under_tensor": ("0.3", "1"),
        "power.burst": ("1", "3"),
        "sm.count": ("1", "1024"),
        "sm.sub_cores": ("1", "16"),
        "sm.max_warps": ("4", "256"),
        "sm.max_threads": ("128", "8192"),
        "sm.register_conflict": ("0 cycles", "16 cycles"),
        "sm.beside_wgmma_fma": ("0 cycles", "16 cycles"),
        "sm.beside_wgmma_alu": ("0 cycles", "32 cycles"),
        "sm.beside_wgmma_xu": ("0 cycles", "64 cycles"),
        "gpc.count": ("1", "64"),
        "devices": ("1", "1024"),
        "collectives.flagged_warp": ("0.01 GB/s", "100 GB/s"),
        "shared.banks": ("4", "256"),
        "shared.bandwidth": ("4 B/clk", "1024 B/clk"),
        "l1.size": ("1 KiB", "4 MiB"),
        "l1.bandwidth": ("4 B/clk", "1024 B/clk"),
        "l1.hit_latency": ("5 cycles", "300 cycles"),
        "l2.size": ("16 KiB", "1 GiB"),
        "l2.slices": ("1", "1024"),
        "l2.hit_latency": ("20 cycles", "2000 cycles"),
        "dram.size": ("1 MiB", "4000 GB"),
        "dram.overhead": ("0", "0.5"),
        "hbm.overhead": ("0", "0.5"),
        "ddr.overhead": ("0", "0.5"),
        "dram.latency": ("10 ns", "2 us"),
        "hbm.latency": ("10 ns", "2 us"),
        "ddr.latency": ("10 ns", "2 us"),
        "host.ops": ("1 GHz", "100000 GHz"),
        "host.turnaround": ("0 ps", "10 ms"),
        "launch.program_load": ("0 ps", "100 ms"),
    }
)
"""Of single figures, where the range of their unit says too little."""

_OF_COLUMN: Mapping[str, Range] = MappingProxyType(
    {"interval": ("0.1 cycles", "2048 cycles"), "latency": ("1 cycles", "2048 cycles")}
)
"""Of the rows of an instruction table."""


def implausible(spec: MachineSpec, figures: Mapping[str, Leaf]) -> list[str]:
    """Figures of a machine that lie outside of their plausible range, each in words. figures: that it can have."""
    found = []
    for path, leaf in figures.items():
        value: Any = spec
        for attribute in leaf.attributes:
            value = getattr(value, attribute, None)
        if type(value) is int or type(value) is float:
            ends = _OF_PATH.get(path) or (_OF_UNIT[leaf.unit] if leaf.unit else _COUNT)
            low, high = _parsed(ends, leaf.unit)
            if not low <= value <= high:
                found.append(_words(path, value, ends, leaf.unit))
    for column, ends in _OF_COLUMN.items():
        attribute, (low, high) = f"{column}_cycles", _parsed(ends, CYCLES)
        for row in getattr(spec, "instructions", ()):
            value = getattr(row, attribute)
            if value and not low <= value <= high:
                found.append(_words(f"instructions.{row.name}.{column}", value, ends, CYCLES))
    return found


def _words(path: str, value: float, ends: Range, unit: Unit | None) -> str:
    """What is wrong with a figure."""
    low, high = _parsed(ends, unit)
    shown, least, greatest = (unit.format(v) if unit else f"{float(v):g}" for v in (value, low, high))
    return f"{path} = {shown} is implausible; of real machines it is {least} to {greatest}"


@cache
def _parsed(ends: Range, unit: Unit | None) -> tuple[float, float]:
    low, high = (float(unit.parse(end) if unit else Fraction(end)) for end in ends)
    return low, high
