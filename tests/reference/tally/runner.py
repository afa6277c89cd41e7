"""How it runs a sum."""

from dataclasses import dataclass
from typing import Any, ClassVar

from arch.errors import InputError
from sim.app.families.family import CandidateRun, Subject
from sim.app.families.request import Progress, Request
from sim.app.report.record import KernelRecord, MachineFigures
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from workloads.estimates import error_percent
from workloads.ops import Operator
from workloads.registry import builder, chooser
from workloads.written import placed

from . import report

FIGURES = ("adder.width",)


class Tally:
    """The family."""

    options: tuple[str, ...] = ("schedule",)

    def plan(self, request: Request) -> "TallyPlan":
        """One candidate."""
        assert isinstance(request.asked, Operator)
        op = placed(request.asked, request.machine)
        chooser(op, request.machine)(op, request.machine)
        return TallyPlan(request, request.machine, op)

    def listing(self, request: Request, number: int = 0) -> str:
        """A line."""
        return "add\n"

    def row(self, row: Any) -> Request:
        """None."""
        raise InputError("no rows")

    def show_array(self, request: Request) -> Any:
        """None."""
        raise InputError("no array")

    def compile_kernels(self, *, check: bool = False) -> None:
        """Nothing to compile."""


@dataclass(frozen=True)
class TallyPlan:
    """A sum."""

    request: Request
    spec: Any
    op: Any

    ways: ClassVar[tuple[str, ...]] = ()
    simpler: ClassVar[tuple[int, ...]] = ()
    candidates: ClassVar[list[tuple[str, int]]] = []
    overview = Wanted()
    event_cost = ready_events = 1

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    @property
    def error_percent(self) -> int:
        """Of the estimate."""
        return error_percent(self.spec.family, self.op.word)

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Adds."""
        spec = self.spec
        cycles = builder(self.op.word, spec.family, "serial")(self.op, spec, None)
        time_ps = cycles * 10**12 // spec.clock.boost_hz
        figures = MachineFigures(
            name=spec.name, family=spec.family, view=report, boost_hz=spec.clock.boost_hz,
            peak_ops_per_s=int(spec.peak_flops("fp32")), bandwidths={"dram": 4 * spec.clock.boost_hz},
        )  # fmt: skip
        record = KernelRecord(
            "sum", "serial", cycles, spec.clock.boost_hz, time_ps,
            {"macs": self.op.macs, "events": cycles, "dram_read_bytes": 4 * self.op.n},
            {"adder": {"busy": cycles}}, spec.adder.width,
        )  # fmt: skip
        return CandidateRun(
            "serial", figures, [record], time_ps, time_ps, {"events": cycles},
            timeline=lambda: _timeline(self.request, cycles),
        )  # fmt: skip


def _timeline(request: Request, cycles: int) -> Timeline:
    """One slice."""
    found = Timeline(f"{request.asked}", {"cycles": str(cycles), "time": "1 ns is 1 cycle; 0 is the first number"})
    found.add(found.track("adder"), 0, cycles, "sum", "work")
    return found
