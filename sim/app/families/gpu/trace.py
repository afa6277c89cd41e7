"""The timeline of an operator on a GPU: one of its kernels, inside and as a whole. Graphs are in `trace_graph`."""

from __future__ import annotations

from collections.abc import Mapping

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.app.families.gpu.trace_kernel import Collector
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.gpu.engine.api import Launch
from sim.gpu.language import Program
from sim.gpu.units.events import Window

ROWS = 1 << 21
"""Most rows of a kind: 128 MiB of events, 96 MiB of states."""

SAMPLES = 400
"""Samples of the counters in a window, at most."""

LEAST_SAMPLE_CYCLES = 8


class KernelRecorder:
    """Has one kernel of a program record, and makes its timeline when it ends.

    facts: what was run. InputError for a kernel or SMs that are not there.
    """

    def __init__(
        self, facts: Mapping[str, str], program: Program, estimate_ps: int, spec: GpuSpec, wanted: Wanted
    ) -> None:
        check_units(wanted, spec)
        self.number = wanted.kernel or 0
        if self.number >= len(program.kernels):
            raise InputError(f"--kernel {self.number}: {program.name} has kernels 0 to {len(program.kernels) - 1}")
        self.facts, self.spec = facts, spec
        self._window = Window(
            wanted.first * TICKS_PER_CYCLE,
            1 << 50 if wanted.last is None else wanted.last * TICKS_PER_CYCLE,
            wanted.first_unit,
            wanted.last_unit,
            ROWS,
            sample_ticks=TICKS_PER_CYCLE * sample_cycles(wanted, estimate_ps, spec),
        )
        self._found: Timeline | None = None
        self._nothing = ""

    def window(self, number: int, origin_ps: int, clock_hz: int, estimate_ps: int) -> Window | None:
        """What the kernel that starts now records."""
        return self._window if number == self.number else None

    def advanced(self, origin_ps: int, launch: Launch) -> None:
        """Ticks of the window are the kernel's own, whatever its clock."""

    def ended(self, origin_ps: int, launch: Launch) -> None:
        """Draws what the kernel has recorded."""
        result = launch.result
        if result.events is None or result.trace is None:
            return
        cycles = -(-result.ticks // TICKS_PER_CYCLE)
        if not len(result.events) and not len(result.trace):
            self._nothing = f"trace: nothing happens in this window; kernel {result.kernel.name} takes {cycles} cycles"
            return
        self._found = found = Timeline(
            f"{self.facts['workload']} on {self.facts['machine']}",
            {
                **self.facts,
                "kernel": result.kernel.name,
                "cycles": str(cycles),
                "time": "1 ns in this trace is 1 core cycle; 0 is the kernel's launch",
                "clock_hz": str(result.clock_hz),
            },
        )
        root = found.track(f"{self.spec.label}: 1 ns = 1 core cycle")
        _whole(found, root, launch)
        Collector(found, root, self.spec, launch, result, lambda tick: tick // TICKS_PER_CYCLE, alone=True).collect()
        result.events = result.trace = None

    def timeline(self) -> Timeline:
        """What was recorded; InputError if that is nothing."""
        if self._found is None:
            raise InputError(self._nothing)
        return self._found


def check_units(wanted: Wanted, spec: GpuSpec) -> None:
    """InputError for SMs that the machine does not have."""
    if not wanted.first_unit <= wanted.last_unit < spec.sm.count:
        raise InputError(f"--sm {wanted.first_unit}:{wanted.last_unit}: {spec.name} has SMs 0 to {spec.sm.count - 1}")


def _whole(found: Timeline, root: int, launch: Launch) -> None:
    """The kernel as a whole, with the parts before its first CTA and after its last."""
    track, kernel = found.track("kernel", root), launch.kernel
    begin = launch.start_tick // TICKS_PER_CYCLE
    end = -(-launch.result.ticks // TICKS_PER_CYCLE)
    drain = launch.last_warp_tick // TICKS_PER_CYCLE
    found.add(track, 0, begin, "launch", "launch")
    found.add(track, begin, drain, kernel.name, "kernel", {"ctas": kernel.ctas})
    found.add(track, drain, end, "drain", "launch")


def sample_cycles(wanted: Wanted, estimate_ps: int, spec: GpuSpec) -> int:
    """Distance of the samples: some hundred in the window."""
    whole = estimate_ps * spec.clock.boost_hz // PS_PER_S
    cycles = (wanted.last if wanted.last is not None else max(whole, wanted.first)) - wanted.first
    return max(LEAST_SAMPLE_CYCLES, cycles // SAMPLES)
