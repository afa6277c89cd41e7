"""One workload on several machines: a table, a common roofline, and a reason where a machine cannot run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.app.report.asked import titled
from sim.app.report.record import RunRecord
from sim.app.report.render import Shown
from sim.app.report.report import SCHEMA_VERSION, Report
from sim.app.report.schedules import named
from sim.app.report.sections import Section, left_out_text, streamed_text, verdict
from sim.app.report.text import bytes_text, ghz_text, percent, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A machine that cannot run the workload, and why."""

    machine: str
    reason: str


@dataclass(frozen=True)
class Comparison(Shown):
    """Rows of a comparison in the order in which machines were named."""

    workload: str
    rows: Sequence[Report | Unsupported]

    @property
    def reports(self) -> list[Report]:
        """The rows that ran."""
        return [row for row in self.rows if isinstance(row, Report)]

    @property
    def title(self) -> str:
        """The workload, and what is unusual about any of the runs."""
        return titled(self.workload, list(dict.fromkeys(u for r in self.reports for u in r.record.asked.unusual)))

    def to_dict(self) -> dict[str, Any]:
        """`rows`: a report (schema.json) each, or machine and reason."""
        rows = [
            row.to_dict() if isinstance(row, Report) else {"machine": row.machine, "reason": row.reason}
            for row in self.rows
        ]
        return {"schema_version": SCHEMA_VERSION, "workload": self.workload, "rows": rows}

    def plot_roofline(self, ax: Axes | None = None) -> Axes:
        """All machines on one roofline, operations per byte of external memory."""
        from sim.app.report.plots import roofline

        return roofline(self.reports, ax)

    def _layers(self) -> Section:
        """The layers of a network, a column a machine; no rows for other workloads."""
        reports = [report for report in self.reports if report.record.layers]
        columns = [[time_text(layer.time_ps) for layer in report.record.layers] for report in reports]
        names = [layer.name for layer in reports[0].record.layers] if reports else []
        labels = (f"{r.record.machine_label} {r.record.dtype}" for r in reports)
        return Section("Layers", tuple(zip(names, *columns, strict=True)), ("layer", *labels))

    def _schedules(self) -> Section:
        """Operators of graphs and networks that do not run the same schedule in all rows, a column a row; the schedule
        of an operator alone stands in the table."""
        reports = [report for report in self.reports if report.record.layers or report.record.operators]
        taken = [named(report.to_dict()) for report in reports]
        names = dict.fromkeys(name for schedules in taken for name in schedules)
        rows = tuple(
            (name, *(schedules.get(name, "") for schedules in taken))
            for name in names
            if len({schedules[name] for schedules in taken if name in schedules}) > 1
        )
        labels = (f"{r.record.machine_label} {r.record.schedule.partition(':')[0]}" for r in reports)
        return Section("Operators that run another schedule", rows, ("operator", *labels))

    def _trust(self) -> Section:
        """What is known of each machine's time, and of ratios between machines."""
        said = [(report.record.machine_label, report.record.trust) for report in self.reports if report.record.trust]
        lines = [f"{label}: {line}" for label, trust in said for line in trust.sentences if line != trust.ratios]
        ratios = dict.fromkeys(trust.ratios for _, trust in said if trust.ratios)
        return Section("How far to trust it", tuple((line,) for line in [*lines, *ratios]))

    def sections(self) -> list[Section]:
        """The table, then what bounds each machine, in words."""
        found = [
            Section(self.title, tuple(_cells(report) for report in self.reports), _HEADER),
            Section("What each time contains", tuple(_contents(report) for report in self.reports), _CONTENTS),
            Section("Left out", tuple(_left_out(report.record) for report in self.reports if report.record.left_out)),
            Section("Streamed", tuple(_streamed(report.record) for report in self.reports if report.record.streamed)),
        ]
        for report in self.reports:
            said = verdict(report)
            found.append(Section(f"{said.title}: {report.record.machine_label}", said.rows))
        found += [self._layers(), self._schedules(), self._trust()]
        refused = tuple((row.machine, row.reason) for row in self.rows if isinstance(row, Unsupported))
        return [section for section in (*found, Section("Not run", refused)) if section.rows]


_HEADER = (
    *("machine", "dtype", "time", "cycles", "clock", "TFLOPS", "of peak", "bound"),
    *("ops/byte", "ridge", "external", "energy", "pJ/op", "schedule"),
)


def _streamed(run: RunRecord) -> tuple[str, str]:
    """What of the workload takes as long as its bytes on a machine."""
    assert run.streamed is not None
    return run.machine_label, streamed_text(run.streamed.to_dict(run.time_ps))


def _left_out(run: RunRecord) -> tuple[str, str]:
    """What of the workload takes no time on a machine."""
    assert run.left_out is not None
    return run.machine_label, left_out_text(run.left_out.to_dict(run.macs, run.operand_bytes))


def _part(ps: int) -> str:
    return time_text(ps) if ps else "none"


_CONTENTS = ("machine", "scope", "launches", "host transfers", "outside kernels", "without transfers", "energy without")


def _contents(report: Report) -> tuple[str, ...]:
    """What a machine's time is made of, and what its energy leaves out."""
    run, figures = report.record, report.figures
    return (
        run.machine_label,
        run.scope,
        _part(figures.launch_ps),
        _part(figures.transfer_ps),
        _part(figures.time_ps - figures.device_ps),
        time_text(figures.on_device_ps),
        "" if figures.energy_j is None else run.machine.view.ENERGY_WITHOUT,
    )


def _cells(report: Report) -> tuple[str, ...]:
    """One row of the table."""
    run, figures = report.record, report.figures
    return (
        run.machine_label,
        run.dtype,
        time_text(figures.time_ps),
        f"{figures.cycles:,}",
        ghz_text(figures.clock_hz),
        f"{report.tflops:.1f}",
        percent(figures.share_of_peak),
        figures.bound,
        f"{figures.intensity:.1f}",
        f"{figures.ridge:.1f}",
        bytes_text(figures.external_bytes),
        "" if figures.energy_j is None else f"{figures.energy_j * 1000:.3g} mJ",
        "" if figures.joules_per_op is None else f"{figures.joules_per_op * 1e12:.3g}",
        run.schedule,
    )
