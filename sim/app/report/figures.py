"""Ratios of a run: pure functions of what an engine counted. Everything that a report shows is computed here, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from sim.app.report.record import KernelRecord, LayerTime, MachineFigures, RunRecord

LEVELS = (
    *("accumulators", "unified_buffer", "pmu", "smem", "dsmem", "l1", "l2"),
    *("dram", "hbm", "ddr", "link", "pcie"),
)
"""Memory levels of all families in the order of a memory chart: from the units outwards."""

LATENCY_BOUND_BELOW = 0.6
"""Where no unit reaches this share of its peak the run waits on latencies (Nsight Compute, Speed Of Light section)."""

HELD_FROM = 0.05
"""A clock that is below boost by less is not said to be held."""

POWER_SAVES = 0.15
"""The board's limit of power bounds a run only if it holds the clock below boost by this share."""

OVERHEAD_BOUND_FROM = 0.5
"""Where launches and the host take at least this share of the time, they bound the run."""


def total(mappings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum of mappings key by key, in the order in which keys first appear."""
    result: Counter[str] = Counter()
    for mapping in mappings:
        result.update(mapping)
    return dict(result)


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Each count as a share of their sum, largest first; counts of 0 are left out."""
    whole = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: count / whole for name, count in ordered if count}


def level_bytes(counters: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Bytes read and written by memory level; a level that was not counted is absent."""
    found: dict[str, dict[str, int]] = {}
    for level in LEVELS:
        sides = {side: counters[key] for side in ("read", "write") if (key := f"{level}_{side}_bytes") in counters}
        if sides:
            found[level] = sides
    return found


def hit_rates(counters: Mapping[str, int]) -> dict[str, float]:
    """Share of look-ups that hit, by cache level and for DRAM rows; levels without look-ups are absent."""
    rates = {}
    for level in ("l1", "l2", "dram_row"):
        hits = counters.get(f"{level}_hits", 0)
        looked_up = hits + counters.get(f"{level}_misses", 0)
        if looked_up:
            rates[level] = hits / looked_up
    return rates


@dataclass(frozen=True, slots=True)
class Roof:
    """What one unit lets a run reach: operations a second at which it would be busy all the time.

    bytes_per_s, intensity: of a memory level, its bandwidth at the clock that ran, and operations a byte that moved on
    it; 0 of arithmetic, whose roof is flat.
    """

    name: str
    ops_per_s: float
    bytes_per_s: float = 0.0
    intensity: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a report says about one kernel, or about several run one after the other.

    time_ps: in the record's scope. device_ps: of the kernels alone. External memory is what the machine names so, or
    the operands' own bytes where no traffic to it was counted.
    """

    machine: MachineFigures
    kernels: tuple[KernelRecord, ...]
    flops: int
    time_ps: int
    external_bytes: int
    counters: Mapping[str, int]

    @classmethod
    def of_run(cls, run: RunRecord) -> Figures:
        """Figures of a whole run."""
        kernels = tuple(run.kernels)
        counters = total(k.counters for k in kernels)
        time_ps = run.time_ps or sum(k.time_ps for k in kernels)
        external = _external(run.machine, counters, run.operand_bytes)
        return cls(run.machine, kernels, run.flops, time_ps, external, counters)

    @classmethod
    def of_kernel(cls, run: RunRecord, kernel: KernelRecord) -> Figures:
        """Figures of one of its kernels; operations are those that it executed, padding included."""
        flops = 2 * kernel.counters["macs"] if "macs" in kernel.counters else run.flops if len(run.kernels) == 1 else 0
        external = _external(run.machine, kernel.counters, run.operand_bytes)
        return cls(run.machine, (replace(kernel, beside_ps=0),), flops, kernel.time_ps, external, kernel.counters)

    @classmethod
    def of_layers(cls, run: RunRecord) -> list[tuple[LayerTime, Figures]]:
        """The layers of a network, each with figures of its own."""
        kernels, found = iter(run.kernels), []
        for layer in run.layers:
            own = tuple(islice(kernels, layer.kernels))
            counters = total(k.counters for k in own)
            external = _external(run.machine, counters, layer.operand_bytes)
            found.append((layer, cls(run.machine, own, 2 * layer.macs, layer.time_ps, external, counters)))
        return found

    @property
    def cycles(self) -> int:
        """Core-clock cycles of all kernels; those that run beside each other count once."""
        return sum(k.alone_cycles for k in self.kernels)

    @property
    def device_ps(self) -> int:
        """Time of the kernels alone, picoseconds; those that run beside each other count once."""
        return sum(k.time_ps - k.beside_ps for k in self.kernels)

    @property
    def clock_hz(self) -> int:
        """Mean core clock, weighted by cycles."""
        return sum(k.clock_hz * k.alone_cycles for k in self.kernels) // max(self.cycles, 1)

    @property
    def ops_per_s(self) -> float:
        """Operations of the operator a second of the scope's time."""
        return self.flops / (self.time_ps * 1e-12)

    @property
    def share_of_peak(self) -> float:
        """`ops_per_s` over the data sheet's peak."""
        return self.ops_per_s / self.machine.peak_ops_per_s

    @property
    def intensity(self) -> float:
        """Operations per byte of external memory; 0 of a program that moves none."""
        return self.flops / self.external_bytes if self.external_bytes else 0.0

    @property
    def ridge(self) -> float:
        """Operations per byte at which the machine's two roofs meet."""
        return self.machine.peak_ops_per_s / self.external_bytes_per_s

    @property
    def external_bytes_per_s(self) -> int:
        """Bandwidth of external memory, all its levels together."""
        return sum(self.machine.bandwidths[level] for level in self.machine.external)

    @property
    def joules_per_op(self) -> float | None:
        """Energy of one operation; None where no energy was counted."""
        return None if self.energy_j is None or not self.flops else self.energy_j / self.flops

    @property
    def stalls(self) -> dict[str, dict[str, int]]:
        """Cycles of all kernels by unit and by what they were spent on; units without any are left out."""
        units = dict.fromkeys(unit for k in self.kernels for unit in k.stalls)
        summed = {unit: total(k.stalls[unit] for k in self.kernels if unit in k.stalls) for unit in units}
        return {unit: counts for unit, counts in summed.items() if any(counts.values())}

    @property
    def energy_j(self) -> float | None:
        """Energy of the kernels in joules; None where it was not counted."""
        energy_fj = sum(k.energy_fj for k in self.kernels)
        return energy_fj * 1e-15 if energy_fj else None

    @property
    def power_w(self) -> float | None:
        """Mean power while the kernels ran, watts."""
        return None if self.energy_j is None else self.energy_j / (self.device_ps * 1e-12)

    @property
    def overhead_ps(self) -> int:
        """Time that is not work of a kernel: what the scope adds, and the kernels' own launch parts."""
        return self.time_ps - self.device_ps + self.launch_ps

    @property
    def launch_ps(self) -> int:
        """Time of the kernels' own launch parts, picoseconds."""
        return sum(total(k.launch_ps for k in self.kernels).values())

    @property
    def transfer_ps(self) -> int:
        """Time that goes to moving data between host and device, picoseconds."""
        return sum(k.transfer_ps for k in self.kernels)

    @property
    def on_device_ps(self) -> int:
        """Time of the kernels without host transfers, picoseconds: what all families of machines have alike."""
        return self.device_ps - self.transfer_ps

    def running(self, share: float) -> float:
        """A share of the kernels' time as one of that in which they run, launches apart."""
        return share * self.device_ps / max(self.device_ps - self.launch_ps, 1)

    def speed_of_light(self) -> dict[str, float]:
        """Share of its peak that each unit reached while kernels ran: compute at the mean clock, memories, pipes."""
        device_s = self.device_ps * 1e-12
        clock_ratio = self.clock_hz / self.machine.boost_hz
        peak_ratio = self.clock_hz / (self.machine.peak_hz or self.machine.boost_hz)
        found = {"compute": self.flops / (self.machine.peak_ops_per_s * peak_ratio * device_s)}
        moved = self._moved()
        free = self.machine.free
        for level in reversed(LEVELS):
            if level in moved and level in self.machine.bandwidths and level not in free:
                found[level] = moved[level] / (self._bandwidth(level, clock_ratio) * device_s)
        for pipe, count in self.machine.instances.items():
            busy = self.counters.get(f"{pipe}_busy_cycles", 0)
            if busy and pipe not in free:
                found[pipe if pipe in LEVELS else f"{pipe} pipe"] = busy / (count * self.cycles)
        if "host" in self.stalls and "host" not in free:  # the host works between transfers, as a unit of its own
            found["host"] = self.stalls["host"].get("busy", 0) / sum(self.stalls["host"].values())
        return found

    def roofs(self) -> list[Roof]:
        """The roofs over the run, the lowest first: of its arithmetic, each memory level and each pipe.

        A pipe's is what the run's own mix of instructions lets it reach: softmax has that of the special-function pipe.
        That of a memory whose port's time was counted, too: bank conflicts take time, a word for many lanes little.
        """
        rate, clock_ratio = self.flops / (self.device_ps * 1e-12), self.clock_hz / self.machine.boost_hz
        moved, found = self._moved(), []
        for name, share in self.speed_of_light().items():
            if not share or not rate:
                continue
            if name in moved and name in self.machine.bandwidths:
                found.append(Roof(name, rate / share, self._bandwidth(name, clock_ratio), self.flops / moved[name]))
            else:
                found.append(Roof(name, rate / share))
        return sorted(found, key=lambda roof: roof.ops_per_s)

    def _moved(self) -> dict[str, int]:
        """Bytes by level, of duplex levels those of the busier direction."""
        return {
            level: max(sides.values()) if level in self.machine.duplex else sum(sides.values())
            for level, sides in level_bytes(self.counters).items()
        }

    def _bandwidth(self, level: str, clock_ratio: float) -> float:
        return self.machine.bandwidths[level] * (clock_ratio if level in self.machine.clocked else 1.0)

    @property
    def bound(self) -> str:
        """`compute`, a memory level, `overhead`, `power` or `latency`: what holds the run back."""
        if set(self.machine.bandwidths) <= set(self.machine.free):
            return "compute"  # nothing but arithmetic takes time
        if self.overhead_ps >= OVERHEAD_BOUND_FROM * self.time_ps:
            return "overhead"
        reached = self.speed_of_light()
        busiest_pipe = max((v for name, v in reached.items() if name.endswith(" pipe")), default=0.0)
        units = {name: share for name, share in reached.items() if not name.endswith(" pipe")}
        units["compute"] = max(units["compute"], busiest_pipe)
        if units["compute"] >= LATENCY_BOUND_BELOW:
            # Operands stream beside the multiplies that they are for: what both wait for is the pipe.
            units.pop("smem", None)
        unit = max(units, key=lambda name: units[name])
        if units["compute"] < LATENCY_BOUND_BELOW and self._saved_by_power(units):
            return "power"
        return unit if units[unit] >= LATENCY_BOUND_BELOW else "latency"

    @property
    def held_by_power(self) -> bool:
        """Whether the board's limit of power kept the clock of the longest kernel below boost."""
        kernel = max(self.kernels, key=lambda k: k.time_ps)
        return kernel.throttle_reason == "power" and self.clock_hz < (1 - HELD_FROM) * self.machine.boost_hz

    def _saved_by_power(self, units: Mapping[str, float]) -> bool:
        """Whether a higher limit saves time: power holds the clock, and no unit with a clock of its own is busy."""
        machine = self.machine
        apart = [units.get(level, 0.0) for level in machine.bandwidths if level not in machine.clocked]
        held = self.held_by_power and self.clock_hz <= (1 - POWER_SAVES) * machine.boost_hz
        return held and max(apart, default=0.0) < LATENCY_BOUND_BELOW


def _external(machine: MachineFigures, counters: Mapping[str, int], operand_bytes: int) -> int:
    """Bytes of external memory: counted traffic, else the operands touched once."""
    moved = level_bytes(counters)
    return sum(sum(moved[level].values()) for level in machine.external if level in moved) or operand_bytes
