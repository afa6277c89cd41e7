"""Ranks the configurations of an `@triton.autotune` list by simulation, where Triton needs a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.spec import MachineSpec
from sim.app.families.request import Progress, part
from sim.app.report.render import Shown
from sim.app.report.report import SCHEMA_VERSION, Report
from sim.app.report.sections import Section
from sim.app.report.text import time_text, words
from sim.app.run import request_of, run

if TYPE_CHECKING:
    from workloads.triton_kernels import TritonLaunch


@dataclass(frozen=True)
class RankedConfiguration:
    """A configuration with what it takes, or why it does not run. configuration: constants, warps and stages."""

    configuration: dict[str, Any]
    report: Report | None
    reason: str = ""


@dataclass(frozen=True)
class Ranking(Shown):
    """Configurations of a kernel, the fastest first, those that do not run last."""

    workload: str
    machine: str
    rows: Sequence[RankedConfiguration]

    @property
    def best(self) -> RankedConfiguration:
        """The fastest."""
        return self.rows[0]

    def sections(self) -> list[Section]:
        """The table, then what does not run."""
        names = list(self.rows[0].configuration)
        ran = [row for row in self.rows if row.report is not None]
        header = ("", *names, "time", "cycles", "to the best", "CTAs an SM", "limited by")
        cells = tuple(self._cells(place, row) for place, row in enumerate(ran, start=1))
        found = [Section(f"{self.workload} on {self.machine}: {len(self.rows)} configurations", cells, header)]
        refused = tuple((_words(row.configuration), row.reason) for row in self.rows if row.report is None)
        return [*found, Section("Not run", refused)] if refused else found

    def to_dict(self) -> dict[str, Any]:
        """`rows`: a configuration each with its time and its report (schema.json), or the reason why there is none."""
        rows = [
            {
                "configuration": row.configuration,
                **({"report": row.report.to_dict()} if row.report else {"reason": row.reason}),
            }
            for row in self.rows
        ]
        return {
            "schema_version": SCHEMA_VERSION, "workload": self.workload, "machine": self.machine, "rows": rows,
        }  # fmt: skip

    def _cells(self, place: int, row: RankedConfiguration) -> tuple[str, ...]:
        assert row.report is not None
        assert self.best.report is not None
        record, best = row.report.record, self.best.report.record
        (kernel,) = record.kernels
        own: Any = kernel.own
        return (
            str(place),
            *(str(value) for value in row.configuration.values()),
            time_text(record.time_ps),
            f"{kernel.cycles:,}",
            f"{record.time_ps / best.time_ps:.3f} x",
            str(own.occupancy.ctas_per_sm),
            words(own.occupancy.limiter),
        )


def autotune(
    kernel: TritonLaunch, machine: MachineSpec | str, *, progress: Progress | None = None, **options: Any
) -> Ranking:
    """Simulates a Triton kernel with every configuration of its `@triton.autotune` list; options as of `simulate`.

    Raises InputError for a kernel without a list, and where no configuration runs.
    """
    launches = kernel.configurations()
    found = []
    for i, launch in enumerate(launches):
        configuration = {
            **{name: value for name, value in launch.constants if name not in dict(kernel.constants)},
            "warps": launch.num_warps,
            "stages": launch.num_stages,
            **({"ctas": launch.num_ctas} if any(one.num_ctas > 1 for one in launches) else {}),
        }
        try:
            report = Report(run(request_of(launch, machine, **options), part(progress, i, len(launches))))
        except InputError as error:
            found.append(RankedConfiguration(configuration, None, str(error)))
            continue
        found.append(RankedConfiguration(configuration, report))
    ran = sorted((row for row in found if row.report), key=lambda row: row.report.record.time_ps if row.report else 0)
    if not ran:
        raise InputError(f"no configuration runs; the first: {found[0].reason}")
    refused = [row for row in found if row.report is None]
    name = machine if isinstance(machine, str) else machine.name
    return Ranking(f"{kernel.path}:{kernel.function}", name, [*ran, *refused])


def _words(configuration: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in configuration.items())
