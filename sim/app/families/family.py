"""What a family of machines is to everything above: one object that implements `Runner`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from arch.families import family
from sim.app.families.request import Progress, Request
from sim.app.report.record import (
    CheckResult,
    KernelRecord,
    LayerTime,
    LeftOut,
    MachineFigures,
    OperatorTime,
    StreamedOperators,
)
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from workloads.graphs import Step
from workloads.ops import Operator
from workloads.written import OwnProgram

if TYPE_CHECKING:
    from sim.tpu.show import ArrayRun
    from workloads.silicon import Row


NO_REFERENCE = "Check: the program has no reference; the rules of its schedule alone were judged."


class LateError(Exception):
    """A run was given up: it takes longer than the limit that it was given; or left, as was asked. counts: of the
    engine until then. share, pace_ps: of its work when it was left, and what the whole takes at its pace; 0 if it was
    given up."""

    def __init__(self, counts: Mapping[str, int], share: float = 0.0, pace_ps: int = 0) -> None:
        super().__init__(counts, share, pace_ps)  # SimPy makes the exception anew of its arguments
        self.counts, self.share, self.pace_ps = counts, share, pace_ps


@dataclass(frozen=True)
class Subject:
    """What is computed, with its number formats filled in. operand_bytes: of operands and results, each once. flops,
    macs: None of a program of one's own, whose run counts what it multiplies."""

    dtype: str
    flops: int | None
    macs: int | None
    operand_bytes: int

    @classmethod
    def of(cls, op: Operator) -> Subject:
        """An operator, or a program in its place."""
        own = isinstance(op, OwnProgram)
        return cls(str(op.dtype), None if own else op.flops, None if own else op.macs, op.operand_bytes)

    @classmethod
    def of_steps(cls, steps: Sequence[Step], default_dtype: str, operand_bytes: int | None = None) -> Subject:
        """Steps of a graph. Their format is that of most operations; where there are none, of the first operator.
        operand_bytes: default: of each step by itself."""
        counts: dict[str, int] = {}
        for step in steps:
            if step.op.dtype is not None:
                counts[step.op.dtype] = counts.get(step.op.dtype, 0) + step.op.flops
        dtype = max(counts, key=lambda name: counts[name], default=default_dtype)
        if operand_bytes is None:
            operand_bytes = sum(step.op.operand_bytes for step in steps)
        return cls(dtype, sum(step.op.flops for step in steps), sum(step.op.macs for step in steps), operand_bytes)


@dataclass(frozen=True)
class CandidateRun:
    """What came of one candidate.

    device_ps: time of its kernels, by which candidates are compared. time_ps: time in the scope that was asked for.
    host_ps: time outside kernels by cause. counts: what the engine counted, for the cost of the run. check: compares
    with NumPy where that was asked for; its result, and a sentence for each thing wrong. timeline: what was recorded;
    InputError where that is nothing. reads: whether a figure of the machine, by its path, took part in the run.
    """

    schedule: str
    machine: MachineFigures
    kernels: Sequence[KernelRecord]
    device_ps: int
    time_ps: int
    counts: Mapping[str, int]
    host_ps: Mapping[str, int] = field(default_factory=dict)
    operators: Sequence[OperatorTime] = ()
    layers: Sequence[LayerTime] = ()
    left_out: LeftOut | None = None
    streamed: StreamedOperators | None = None
    notes: Sequence[str] = ()
    check: Callable[[], tuple[CheckResult, list[str]]] | None = None
    timeline: Callable[[], Timeline] | None = None
    reads: Callable[[str], bool] = lambda _: True

    @property
    def cycles(self) -> int:
        """Of all kernels."""
        return sum(kernel.cycles for kernel in self.kernels)


Ran = CandidateRun
"""What families of other packages called it until 0.1; goes with the next release."""


class Host(NamedTuple):
    """What the host of a family's machines can do for a graph.

    figures: of the machine, on which its time depends. calls_ps: picoseconds of some calls on a machine, of the bytes
    that they move, their operations, the exponentials among these, and how many calls there are.
    """

    figures: tuple[str, ...]
    calls_ps: Callable[[Any, int, int, int, int], int]


class Plan(Protocol):
    """What a request becomes on a machine before anything runs: the programs that could run."""

    @property
    def subject(self) -> Subject:
        """What is computed."""

    @property
    def candidates(self) -> Sequence[tuple[str, int]]:
        """Schedules as they are typed, with their estimated cycles, the best first; none where there is no choice."""

    @property
    def ways(self) -> Sequence[str]:
        """How each candidate computes: those of one way share what the estimate does not see. None: all are alike."""

    @property
    def simpler(self) -> Collection[int]:
        """Numbers of the candidates that are the best one without a mechanism."""

    @property
    def error_percent(self) -> int:
        """By how much the estimate of the fastest candidate may lie above the best one."""

    @property
    def event_cost(self) -> int:
        """What one event of its runs costs, in events of the compiled engine of GPUs."""

    @property
    def ready_events(self) -> int:
        """What it costs to make a candidate ready to run, as events of the engine that take as long."""

    @property
    def overview(self) -> Wanted:
        """The part of the run that says most on one page."""

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs a candidate, and records what is wanted. InputError where it does not fit the machine; a run whose
        kernels take longer than `limit_ps` may end with LateError."""


@runtime_checkable
class PacedPlan(Protocol):
    """A plan whose candidates tell how fast they are before they end."""

    def begin(self, number: int, progress: Progress | None, share: float, dear: int) -> CandidateRun:
        """Runs a candidate. One that costs more than `dear` (`choice.counted_cost`) may be left when a share of its
        work is done: LateError, with its pace."""


class SingleCandidatePlan:
    """What plans have in common that simulate no candidates to choose among them."""

    ways: ClassVar[tuple[str, ...]] = ()
    simpler: ClassVar[tuple[int, ...]] = ()
    error_percent = ready_events = 0
    event_cost = 1
    overview = Wanted()


class Runner(Protocol):
    """What runs requests on machines of a family. options: names of those of a request that mean something there."""

    options: tuple[str, ...]

    def plan(self, request: Request) -> Plan:
        """The programs that could run, the best first; InputError before anything runs."""

    def listing(self, request: Request, number: int = 0) -> str:
        """The program of a candidate, as text."""

    def row(self, row: Row) -> Request:
        """A row of reference data in its source's environment; InputError where it cannot be asked."""

    def show_array(self, request: Request) -> ArrayRun:
        """What every cell of an array holds in every cycle of a small product; InputError without such an array."""

    def compile_kernels(self, *, check: bool = False) -> None:
        """Makes compiled kernels ready for other processes, those of check mode too."""


def runner_of(name: str) -> Runner:
    """What runs requests on machines of a family. Only the family that is asked for is imported."""
    found: Runner = family(name).load("runner")()
    return found
