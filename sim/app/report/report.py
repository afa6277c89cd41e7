"""The report of one run: numbers by the published schema, text, HTML and pictures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sim.app.report.figures import Figures, Roof, level_bytes, shares
from sim.app.report.profile import profile
from sim.app.report.record import KernelRecord, RunRecord
from sim.app.report.render import Shown
from sim.app.report.sections import Section, sections_of
from sim.app.report.verdict import sentences

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA_VERSION = "2.3"
"""Version of schema.json; the first number changes when a key changes its meaning or goes (docs/report.md)."""


@dataclass(frozen=True)
class Report(Shown):
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
        """`compute`, a memory level, `overhead` or `latency`."""
        return self.figures.bound

    def to_dict(self) -> dict[str, Any]:
        """The report by schema.json: plain numbers, strings, lists and mappings."""
        run, figures = self.record, self.figures
        asked = replace(run.asked, conditions={**run.asked.conditions, "scope": run.scope})
        result: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "workload": run.workload,
            "machine": run.machine.name,
            "family": run.machine.family,
            **asked.to_dict(),
            "dtype": run.dtype,
            "schedule": run.schedule,
            "candidates": [_without_none(asdict(candidate)) for candidate in run.candidates],
            **({"estimate_error_percent": run.estimate_error_percent} if run.estimate_error_percent else {}),
            **_measured(figures, run.macs),
            "verdict": [said.to_dict() for said in sentences(self)],
            **({"accuracy": dict(run.trust.errors)} if run.trust and run.trust.errors else {}),
            **({"library": run.library.to_dict()} if run.library else {}),
            "kernels": [self._kernel_dict(kernel) for kernel in run.kernels],
        }
        if run.layers:
            result["layers"] = [
                {name: getattr(layer, name) for name in ("name", "workload", "schedule")} | _measured(own, layer.macs)
                for layer, own in Figures.of_layers(run)
            ]
        if run.left_out is not None:
            result["left_out"] = run.left_out.to_dict(run.macs, run.operand_bytes)
        if run.streamed is not None:
            result["streamed"] = run.streamed.to_dict(run.time_ps)
        if run.operators:
            result["profile"] = [entry.to_dict() for entry in profile(run)]
        if run.host_ps:
            result["host_us"] = {name: ps / 1e6 for name, ps in run.host_ps.items()}
        if run.check is not None:
            error = run.check.max_rel_error
            result["check"] = {
                "passed": run.check.passed,
                "max_rel_error": error if error is not None and math.isfinite(error) else None,
            }
        if run.notes:
            result["notes"] = list(run.notes)
        if run.simulator is not None:
            cpu_s, warp_instructions = run.simulator.cpu_s, run.simulator.warp_instructions
            rate = {"warp_instructions_per_cpu_s": warp_instructions / cpu_s} if cpu_s and warp_instructions else {}
            result["simulator"] = {**_without_none(asdict(run.simulator)), **rate}
        return result

    def _kernel_dict(self, kernel: KernelRecord) -> dict[str, Any]:
        """One kernel with the same keys."""
        figures = Figures.of_kernel(self.record, kernel)
        return {"name": kernel.name, "schedule": kernel.schedule, **_measured(figures, figures.flops // 2)}

    def plot_roofline(self, ax: Axes | None = None) -> Axes:
        """Draws the roofs over this run: of each memory level, by what moved on it, and of each pipe."""
        from sim.app.report.plots import roofs_of

        return roofs_of(self, ax)

    def plot_stalls(self, ax: Axes | None = None) -> Axes:
        """Draws what the cycles of one unit (of a GPU: warps) were spent on, one bar a kernel."""
        from sim.app.report.plots import stall_stack

        return stall_stack(self, ax)

    def plot_profile(self, ax: Axes | None = None) -> Axes:
        """Draws the device time of a graph by operator."""
        from sim.app.report.plots import time_by_operator

        return time_by_operator(self, ax)

    def plot_layers(self, ax: Axes | None = None) -> Axes:
        """Draws the time of each layer of a network."""
        from sim.app.report.plots import time_by_layer

        return time_by_layer(self, ax)

    def sections(self) -> list[Section]:
        """The report as tables, in Nsight Compute's order, and what bounds the run in words."""
        return sections_of(self)


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
        "stalls": {unit: shares(counts) for unit, counts in figures.stalls.items()},
        "on_device_us": figures.on_device_ps / 1e6,
        "roofs": [_roof_dict(roof) for roof in figures.roofs()] or None,
        "energy_j": figures.energy_j,
        "power_w": figures.power_w,
        figures.machine.family: _without_none(figures.machine.view.details(figures)),
    }
    return _without_none(result)


def _roof_dict(roof: Roof) -> dict[str, Any]:
    """A roof by schema.json."""
    over = {"ops_per_byte": roof.intensity} if roof.intensity else {}
    return {"unit": roof.name, "tflops": roof.ops_per_s * 1e-12, **over}


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    """What a machine or a run lacks is absent, not zero."""
    return {key: value for key, value in mapping.items() if value is not None}
