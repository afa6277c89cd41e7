"""The report of one run: numbers by the published schema, text, HTML and pictures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sim.report.figures import Figures, hit_rates, level_bytes, shares, total
from sim.report.record import KernelRecord, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA_VERSION = "1.0"
"""Version of schema.json; the first number changes when a key changes its meaning or goes."""


@dataclass(frozen=True)
class Report:
    """What one operator did on one machine. `print(report)` reads in Nsight Compute's order."""

    record: RunRecord

    @cached_property
    def figures(self) -> Figures:
        """The ratios of the whole run."""
        return Figures.of_run(self.record)

    @property
    def cycles(self) -> int:
        """Core-clock cycles of all kernels."""
        return self.figures.cycles

    @property
    def time_us(self) -> float:
        """Time in the record's scope, microseconds."""
        return self.figures.time_ps / 1e6

    @property
    def tflops(self) -> float:
        """Operations of the operator a second, in 10**12."""
        return self.figures.ops_per_s * 1e-12

    @property
    def bound(self) -> str:
        """`compute`, `dram`, `l2`, `overhead` or `latency`."""
        return self.figures.bound

    def to_dict(self) -> dict[str, Any]:
        """The report by schema.json: plain numbers, strings, lists and mappings."""
        run, figures = self.record, self.figures
        result: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "machine": run.machine.name,
            "family": run.machine.family,
            "workload": run.workload,
            "dtype": run.dtype,
            "schedule": run.schedule,
            "candidates": [_without_none(asdict(candidate)) for candidate in run.candidates],
            "scope": run.scope,
            **_measured(figures, run.macs),
            "kernels": [self._kernel_dict(kernel) for kernel in run.kernels],
        }
        if run.host_ps:
            result["host_us"] = {name: ps / 1e6 for name, ps in run.host_ps.items()}
        if run.check is not None:
            error = run.check.max_rel_error
            result["check"] = {"passed": run.check.passed, "max_rel_error": error if math.isfinite(error) else None}
        if run.notes:
            result["notes"] = list(run.notes)
        if run.simulator is not None:
            cpu_s = run.simulator.cpu_s
            rate = {"warp_instructions_per_cpu_s": run.simulator.warp_instructions / cpu_s} if cpu_s else {}
            result["simulator"] = {**asdict(run.simulator), **rate}
        return result

    def _kernel_dict(self, kernel: KernelRecord) -> dict[str, Any]:
        """One kernel with the same keys."""
        figures = Figures.of_kernel(self.record, kernel)
        return {"name": kernel.name, "schedule": kernel.schedule, **_measured(figures, figures.flops // 2)}

    def plot_roofline(self, ax: Axes | None = None) -> Axes:
        """Draws the machine's roofline and this run on it (operations per byte of external memory)."""
        from sim.report.plots import roofline

        return roofline([self], ax)

    def plot_stalls(self, ax: Axes | None = None) -> Axes:
        """Draws the stack of warp states, one bar a kernel."""
        from sim.report.plots import stall_stack

        return stall_stack(self, ax)

    def __str__(self) -> str:
        """The report as text."""
        from sim.report.render import as_text
        from sim.report.sections import sections_of

        return as_text(sections_of(self))

    def _repr_html_(self) -> str:
        """The report for notebooks."""
        from sim.report.render import as_html
        from sim.report.sections import sections_of

        return as_html(sections_of(self))


def _measured(figures: Figures, macs: int) -> dict[str, Any]:
    """The keys that a run and each of its kernels share."""
    result = {
        "cycles": figures.cycles,
        "clock_hz": figures.clock_hz,
        "time_us": figures.time_ps / 1e6,
        "flops": figures.flops,
        "macs": macs,
        "tflops": figures.ops_per_s * 1e-12,
        "percent_of_peak": 100 * figures.share_of_peak,
        "bound": figures.bound,
        "bytes": level_bytes(figures.counters),
        "stalls": {
            unit: shares(counts)
            for unit, counts in (
                ("warps", total(k.warp_state_cycles for k in figures.kernels)),
                ("issue", total(k.issue_slots for k in figures.kernels)),
            )
            if any(counts.values())
        },
        "energy_j": figures.energy_j,
        "power_w": figures.power_w,
        figures.machine.family: _family(figures),
    }
    return _without_none(result)


def _family(figures: Figures) -> dict[str, Any]:
    """What only a GPU has. Of several kernels, launch shape and occupancy are those of the longest."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    return _without_none(
        {
            "grid": list(kernel.grid),
            "cluster": list(kernel.cluster),
            "waves": kernel.waves_milli / 1000,
            "tail_fraction": kernel.tail_cycles / kernel.cycles,
            "occupancy": occupancy_dict(kernel),
            "hit_rates": hit_rates(figures.counters),
            "speed_of_light": figures.speed_of_light(),
            "intensity": figures.intensity,
            "launch_us": {name: ps / 1e6 for name, ps in total(k.launch_ps for k in figures.kernels).items()},
            "counters": dict(figures.counters),
            "throttle_reason": kernel.throttle_reason,
        }
    )


def occupancy_dict(kernel: KernelRecord) -> dict[str, Any] | None:
    """Residency of a kernel: what fits, what limits it, what was achieved on average."""
    if kernel.occupancy is None:
        return None
    occupancy = kernel.occupancy
    result = {
        "ctas_per_sm": occupancy.ctas_per_sm,
        "warps_per_sm": occupancy.warps_per_sm,
        "max_warps_per_sm": occupancy.max_warps_per_sm,
        "limiter": occupancy.limiter,
    }
    if occupancy.achieved_warps_milli:
        return {**result, "achieved": occupancy.achieved_warps_milli / 1000}
    return result


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    """What a machine or a run lacks is absent, not zero."""
    return {key: value for key, value in mapping.items() if value is not None}
