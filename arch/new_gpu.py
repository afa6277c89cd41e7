"""What belongs together in a GPU that somebody thinks up: by wish, the figures that go with it.

Each wish scales what real parts scale with it. Memory interfaces, slices and banks follow their bandwidth by
`arch.belongs`, as in every machine file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from arch.leaves import leaves
from arch.units import BYTES, BYTES_PER_CYCLE, CYCLES, HERTZ, POWER

if TYPE_CHECKING:
    from arch.gpu import GpuSpec

SLICES = Fraction(3, 2)
"""By how much the size of an L2 slice may differ from the base's."""

Line = tuple[str, str, str]
"""A figure's path, its value as one types it, and why it is so."""


def sms(spec: GpuSpec, count: Fraction) -> Iterator[Line]:
    """SMs in as many GPCs of the size as they need; the board's power with them, since each SM may draw as before."""
    new, old = round(count), spec.sm.count
    yield "sm.count", str(new), "asked for"
    each = math.ceil(old / spec.gpc.count)
    if (gpcs := math.ceil(new / each)) != spec.gpc.count:
        yield "gpc.count", str(gpcs), f"GPCs of up to {each} SMs"
    if spec.gpc.single_tpcs:
        yield "gpc.single_tpcs", "0", "which TPCs a new chip lacks is not known"
    yield from _power(spec, Fraction(new, old), f"each of {new} SMs draws as one of {old}")


def tensor(spec: GpuSpec, rate: Fraction) -> Iterator[Line]:
    """Faster tensor cores: all their rows, and shared memory, from which they take operands."""
    for row in spec.instructions:
        if row.pipe == "tensor":
            for column, cycles in (("interval", row.interval_cycles), ("floor", row.floor_cycles)):
                if cycles:
                    path = f"instructions.{row.name}.{column}"
                    yield path, CYCLES.format(Fraction(repr(float(cycles))) / rate), f"tensor cores of {_times(rate)}"
    width = spec.shared.bandwidth_bytes_per_cycle * rate
    yield "shared.bandwidth", BYTES_PER_CYCLE.format(width), "operands of tensor cores come from shared memory"


def l2(spec: GpuSpec, size: Fraction) -> Iterator[Line]:
    """A size in whole sets of all slices: with another number of slices, each of which keeps its bandwidth, where that
    of the base has none; else the nearest size."""
    now, one_way = spec.l2.slices, spec.l2.ways * spec.l2.line_bytes
    step = 2 * spec.l2.partitions  # lines may alternate between two slices of a partition
    wanted = now * size / spec.l2.size_bytes
    fit = [slices for slices in range(step, 4 * now, step) if size % (slices * one_way) == 0]
    fit = [slices for slices in fit if 1 / SLICES <= slices / wanted <= SLICES]
    if size % (now * one_way) == 0 or not fit:
        nearest = max(1, round(size / (now * one_way))) * now * one_way
        held = f"nearest to {BYTES.format(size)} that {now} slices hold in whole sets"
        why = "asked for" if nearest == size else held
        yield "l2.size", BYTES.format(nearest), why
        return
    slices = min(fit, key=lambda count: (abs(math.log(count / wanted)), count))
    yield "l2.size", BYTES.format(size), "asked for"
    yield "l2.slices", str(slices), f"{BYTES.format(size)} are whole sets of so many; each as fast as before"
    ports = spec.port.gpc_bytes_per_cycle * Fraction(slices, now)
    yield "port.gpc", BYTES_PER_CYCLE.format(round(ports)), f"a GPC takes as much of each of {slices} slices"


def clock(spec: GpuSpec, boost: Fraction) -> Iterator[Line]:
    """The highest clock, and with it the one at which the highest voltage is needed."""
    ratio = boost / spec.clock.boost_hz
    yield "clock.boost", HERTZ.format(boost), "asked for"
    for name in ("max_clock", "reference_clock"):
        now = getattr(spec.power.voltage, f"{name}_hz")
        yield f"power.voltage.{name}", HERTZ.format(round(now * ratio)), "the same voltages at a clock that scales"


def energy(spec: GpuSpec, share: Fraction) -> Iterator[Line]:
    """Another node: the energy of every action, and what the chip draws without any."""
    for path, leaf in leaves(type(spec)).items():
        if path.startswith("power.energy."):
            value: Any = spec
            for attribute in leaf.attributes:
                value = getattr(value, attribute, None)
            if value and leaf.unit:
                yield path, leaf.unit.format(round(value * share)), f"a node of {_times(share)} the energy"
    yield "power.static", POWER.format(round(spec.power.static_mw * share)), f"a node of {_times(share)} the energy"


def power(spec: GpuSpec, limit: Fraction) -> Iterator[Line]:
    """The board's limit alone."""
    yield "power.limit", POWER.format(limit), "asked for"


def _power(spec: GpuSpec, ratio: Fraction, why: str) -> Iterator[Line]:
    for name in ("limit", "static"):
        yield f"power.{name}", POWER.format(round(getattr(spec.power, f"{name}_mw") * ratio)), why


def _times(ratio: Fraction) -> str:
    return f"{float(ratio):g} times"


def _figure(path: str) -> Callable[[GpuSpec, Fraction], Iterator[Line]]:
    """A wish that is one figure, with which `arch.belongs` takes along what belongs to it."""

    def wish(spec: GpuSpec, value: Fraction) -> Iterator[Line]:
        unit = leaves(type(spec))[path].unit
        yield path, unit.format(value) if unit else str(round(value)), "asked for"

    return wish


WISHES: Mapping[str, tuple[str, Callable[[GpuSpec, Fraction], Iterator[Line]]]] = {
    "sms": ("sm.count", sms),
    "tensor": ("", tensor),
    "l2": ("l2.size", l2),
    "l2-bandwidth": ("l2.bandwidth", _figure("l2.bandwidth")),
    "dram": ("dram.bandwidth", _figure("dram.bandwidth")),
    "dram-size": ("dram.size", _figure("dram.size")),
    "clock": ("clock.boost", clock),
    "energy": ("", energy),
    "power": ("power.limit", power),
    "link": ("link.bandwidth", _figure("link.bandwidth")),
}
"""By the wish's word: the figure that it states (none: only a factor is meant), and the rule. In the order in which
they are applied, each to the machine that those before it made."""
