"""GPUs: chooses kernels for an operator or the steps of a graph, has them run, and gives what a report needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from arch.reads import Remembered
from arch.units import BYTES
from sim.app.families.choice import decide
from sim.app.families.family import CandidateRun, SingleCandidatePlan, Subject
from sim.app.families.gpu.collective import SCHEDULES as LIBRARIES
from sim.app.families.gpu.collective import CollectivePlan
from sim.app.families.gpu.conditions import Conditions, conditions_of
from sim.app.families.gpu.graph import Offers, PlannedGraph, graph_listing, plan_graph
from sim.app.families.gpu.reads import took_part
from sim.app.families.gpu.records import machine_figures
from sim.app.families.gpu.sampled import Leave, sample_note
from sim.app.families.gpu.steps import OVERWRITTEN, Done, Limit, PlannedStep, StepsRun, Work, run_steps
from sim.app.families.request import Bench, Progress, Request, one_of
from sim.app.report.record import CheckResult, LeftOut, OperatorTime, StreamedOperators
from sim.app.report.text import bytes_text, time_text
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import TooMuchError, Wanted
from sim.engine.clock import PS_PER_S
from sim.engine.compiling import foreseen
from sim.gpu.engine.deadlock import DeadlockError
from sim.gpu.engine.own_loop import OwnLoopKernel
from sim.gpu.language import Program
from sim.gpu.lower.listing import listing as program_listing
from sim.host.scopes import SCOPES, GraphReplay
from sim.link.library import last_of
from sim.memory.model import LINE_BYTES
from workloads.estimates import error_percent
from workloads.gpu.figures import figures
from workloads.gpu.gemm.choose import extent
from workloads.gpu.select import choose, simpler
from workloads.graphs import Graph, GraphOperator
from workloads.libraries import words
from workloads.ops import AllReduce, Collective, CopyH2D, Gemm, Operator
from workloads.registry import builder, schedules
from workloads.written import OwnProgram, held_schedule, placed

if TYPE_CHECKING:
    from sim.app.families.gpu.trace_graph import Shown
    from sim.tpu.show import ArrayRun
    from workloads.silicon import Environment, Row

_COUNTS = ("events", "warp_instructions", "memory_lines")

_PROGRAMS = Remembered[Program](16)
"""Programs of the last operators: the points of a sweep that holds its schedule share one."""

_BUILD_EVENTS = 100_000
"""Events that take as long as writing and lowering a program."""


class Gpu:
    """The family of GPUs."""

    options: tuple[str, ...] = (
        *("schedule", "without", "check", "exact", "l2", "scope", "clock", "data", "tune", "pdl"),
        "measured_as",
    )

    def plan(self, request: Request) -> OperatorPlan | GraphPlan | CollectivePlan:
        """The kernels that could run an operator, or the steps of a graph."""
        spec = _spec(request)
        one_of("scope", request.scope, SCOPES)
        conditions = conditions_of(request, spec)
        if isinstance(request.asked, Collective):
            if request.pdl:
                raise InputError(f"pdl: {request.asked.word} starts when what is before it has ended; leave it out")
            return CollectivePlan(request, spec, request.asked.with_defaults(spec.default_dtype))
        if _is_graph(request.asked):
            planned = plan_graph(request, spec, _offers(request, spec, conditions), conditions.fetches_code)
            if request.pdl and planned.work.overlaps:
                raise InputError("pdl: beside kernels there are sums over devices; leave it out, or take overlap=0")
            return GraphPlan(request, spec, conditions, planned)
        op = operator_on(request.asked, spec)
        if isinstance(op, OwnProgram) and _is_compiled(op) and request.exact:
            raise InputError(f"exact: {op.program.name} is a compiled kernel, whose instructions always issue singly")
        return OperatorPlan(request, spec, conditions, op, *_configurations(request, op, spec))

    def listing(self, request: Request, number: int = 0) -> str:
        """The kernels as text with the cost of each instruction; of a graph, its steps."""
        spec = _spec(request)
        if isinstance(request.asked, Collective):
            raise InputError(f"listing: {request.asked.word} is a kernel of a library, not a program of the language")
        if _is_graph(request.asked):
            conditions = conditions_of(request, spec)
            return graph_listing(request, spec, _offers(request, spec, conditions), conditions.fetches_code)
        op = operator_on(request.asked, spec)
        if isinstance(op, OwnProgram) and _is_compiled(op):
            return _compiled_listing(op.program, spec)
        return program_listing(program_of(op, spec, _configurations(request, op, spec)[0][number][0]), spec)

    def row(self, row: Row) -> Request:
        """A row of reference data in its source's environment."""
        from workloads.silicon import operator_of

        environment = row.environment
        if environment.left_out:
            raise InputError(f"rows of {row.source} are left out: {environment.left_out}")
        if 2 * row.compared_us < row.time_us:
            raise InputError("more than half of the measured time is the host's overhead")
        spec = load_arch(row.machine, (*environment.figures, *row.overrides))
        op = operator_of(row)
        kinds = LIBRARIES if isinstance(op, Collective) else (*schedules(op.word, spec.family), *words(op.word))
        if not kinds:
            raise InputError(f"operator {op.word} has no schedule on {spec.name}")
        schedule = row.kind or row.schedule
        if schedule != "vendor" and schedule not in kinds:
            raise InputError(f"schedule {schedule} of {row.op} is not available; there are vendor, {', '.join(kinds)}")
        locked = row.core_mhz or environment.locked_clock_mhz
        return Request(
            str(op),
            spec,
            schedule=environment.kind_of(row.op, row.dtype) if schedule == "vendor" else schedule,
            # Layers that run in turn leave in the L2 what they share, and of their weights what fits.
            l2="warm" if row.scope == "graph" or not row.cold_l2 else environment.flush,
            # A `host` row states its own overhead, which is taken off the measured time.
            scope="kernel" if row.scope == "host" else environment.scopes.get(schedule, row.scope),
            clock=environment.clock,
            data=environment.data_of(row),
            bench=Bench(
                clock_hz=round(locked * 1_000_000) if locked else None,
                replayed=_replayed(environment) if row.scope == "graph" else None,
                cold_code=environment.code == "cold",
                linear_tiles=tuple(kind for kind, order in environment.raster.items() if order == "linear"),
                host_call_ps=_host_call_ps(environment, row, schedule, op),
                host_switch_call_ps=_host_call_ps(environment, row, f"{schedule} multimem", op),
                tiles=environment.tiles_of(row),
                library=True,
            ),
        )

    def show_array(self, request: Request) -> ArrayRun:
        """InputError: a GPU is no such array."""
        raise InputError(f"show-array: {request.machine.name} is no systolic array; tpu-v1 is one")

    def compile_kernels(self, *, check: bool = False) -> None:
        """Makes the compiled kernels ready for other processes by running something small."""
        ran = self.plan(Request("gemm m=64 n=64 k=64 dtype=fp16", load_arch("t4"), check=check)).run(0, None)
        if ran.check is not None:
            ran.check()


# ---------------------------------------------------------------------------------------------- what was asked for


def _replayed(environment: Environment) -> GraphReplay | None:
    """How a source replays its graphs, where it says."""
    return GraphReplay(environment.layers, environment.replays) if environment.replays else None


def _host_call_ps(environment: Environment, row: Row, schedule: str, op: Operator | Graph) -> int:
    """For how long a source's host is busy with one call, where it says; of a collective the slowest host."""
    stated = environment.host_call_us
    call_us = stated.get(schedule, stated.get(f"{row.op} {row.dtype}", 0))
    if isinstance(op, Collective):
        call_us += last_of(op.gpus, environment.host_spread_us.get(schedule, 0))
    return round(1e6 * call_us)


def _spec(request: Request) -> GpuSpec:
    assert isinstance(request.machine, GpuSpec)
    return request.machine


def _is_graph(asked: Operator | Graph) -> bool:
    return isinstance(asked, Graph | GraphOperator | CopyH2D | AllReduce)


def _is_compiled(op: OwnProgram) -> bool:
    """Whether it is a launch of a compiled kernel."""
    return any(isinstance(kernel, OwnLoopKernel) for kernel in op.program.kernels)


def _compiled_listing(program: Program, spec: GpuSpec) -> str:
    """Compiled kernels as text, below what the launch gives them."""
    (kernel,) = program.kernels
    assert isinstance(kernel, OwnLoopKernel)
    grid = "x".join(map(str, kernel.grid))
    lines = [
        f"kernel {kernel.name} ({program.schedule}): grid {grid}, {kernel.warps} warps a CTA",
        f"  {kernel.launch_registers} registers a thread, {kernel.shared_bytes} B of shared memory, "
        f"{kernel.code_bytes} B of code",
        *kernel.listing(program.addresses(), spec),
    ]
    return "\n".join(lines) + "\n"


def operator_on(asked: Operator | Graph, spec: GpuSpec) -> Operator:
    """The operator with its formats filled in; InputError where it does not fit the machine's memory."""
    assert not isinstance(asked, Graph)
    op = placed(asked, spec)
    if op.operand_bytes > spec.dram.size_bytes:
        raise InputError(
            f"{op}: operands and result take {bytes_text(op.operand_bytes)}, {spec.name} has dram.size = "
            f"{BYTES.format(spec.dram.size_bytes)}; a smaller problem, a narrower dtype or a larger machine fits"
        )
    return op


def _configurations(request: Request, op: Operator, spec: GpuSpec) -> tuple[list[tuple[Any, int]], tuple[int, ...]]:
    """The kernels that could run, with their estimated times in picoseconds, the best first; then numbers of those that
    are the best one without a mechanism. Libraries, which measured rows are of, have none of these."""
    if isinstance(op, OwnProgram):
        return [(held_schedule(op, request.schedule, request.without), 0)], ()
    if request.bench.tiles:
        from workloads.gpu.conv.implicit import of_library
        from workloads.ops import Conv2d

        assert isinstance(op, Conv2d)
        return of_library(op, spec, request.bench.tiles), ()
    found = choose(op, spec, request.schedule, request.without).candidates
    if linear := request.bench.linear_tiles:
        found = [
            (replace(config, group=1) if config.schedule in linear else config, time_ps) for config, time_ps in found
        ]
    if request.schedule != "auto" or request.without or request.bench.library:
        return found, ()
    if request.scope == "kernel" and any(getattr(config, "reduce", False) for config, _ in found):
        found = _launched_apart(found, spec)
    others = dict(simpler(op, spec, found[0][0]))
    found = [*found, *(other for other in others.items() if other[0] not in dict(found))]
    return found, tuple(number for number, (config, _) in enumerate(found) if config in others)


def _launched_apart(found: list[tuple[Any, int]], spec: GpuSpec) -> list[tuple[Any, int]]:
    """Where kernels are timed one by one, a second one that adds the parts of a product takes what a launch takes, and
    not the gap of kernels that follow each other, which its estimate has."""
    f = figures(spec)
    more_ps = f.fixed_ps - f.gap_ps + f.start * PS_PER_S // f.clock_hz
    timed = ((config, ps + (more_ps if getattr(config, "reduce", False) else 0)) for config, ps in found)
    return sorted(timed, key=lambda item: item[1])


def program_of(op: Operator, spec: GpuSpec, config: Any) -> Program:
    """The program; InputError where operands, results and scratch together do not fit the device memory."""
    if isinstance(op, OwnProgram):
        program: Program = op.program
    else:
        make = builder(op.word, spec.family, config.schedule)
        program = _PROGRAMS.of((make, op, config), spec, lambda machine: make(op, machine, config))
    addresses = program.addresses()
    end = max((addresses[tensor.name] + tensor.size_bytes for tensor in program.tensors), default=0)
    if end > spec.dram.size_bytes:
        raise InputError(
            f"{op} with {program.schedule}: tensors and scratch take {bytes_text(end)}, {spec.name} has "
            f"dram.size = {BYTES.format(spec.dram.size_bytes)}"
        )
    return program


# ---------------------------------------------------------------------------------------------- plans


def operator_work(op: Operator, program: Program, estimate_ps: int) -> Work:
    """An operator's kernels as the one step of a graph, launched by a program that calls them directly."""
    step = PlannedStep(op, program, program.addresses(), estimate_ps)
    return Work((step,), "direct")


@dataclass(frozen=True)
class OperatorPlan:
    """An operator with its candidates. configurations: with their estimated times in picoseconds, the best first;
    simpler: numbers of those that are the best one without a mechanism."""

    request: Request
    spec: GpuSpec
    conditions: Conditions
    op: Operator
    configurations: Sequence[tuple[Any, int]]
    simpler: tuple[int, ...] = ()

    overview = Wanted()
    event_cost: ClassVar[int] = 1

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    @cached_property
    def candidates(self) -> list[tuple[str, int]]:
        """The configurations as text, with their estimated cycles."""
        hz = self.spec.clock.tensor_hz
        return [(str(config), estimate_ps * hz // PS_PER_S) for config, estimate_ps in self.configurations]

    @property
    def ways(self) -> list[str]:
        """Of a product: what multiplies, and whether TMA brings the operands."""
        if not isinstance(self.op, Gemm):
            return []
        return [f"{config.schedule} {getattr(config, 'tma', '')}" for config, _ in self.configurations]

    @property
    def error_percent(self) -> int:
        """What the estimate says of itself."""
        return error_percent(self.spec.family, self.op.word)

    @property
    def ready_events(self) -> int:
        """Writing and lowering a program, and filling an L2 that is to be dirty."""
        filled = OVERWRITTEN * self.spec.l2.size_bytes // LINE_BYTES if self.conditions.l2 == "dirty" else 0
        return _BUILD_EVENTS + filled // 2

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs a candidate; what is wanted is recorded in one of its kernels."""
        return self._limited(number, progress, wanted, Limit(limit_ps))

    def begin(self, number: int, progress: Progress | None, share: float, dear: int) -> CandidateRun:
        """Runs a candidate; one that costs more is left when a share of it is done, unless it is short work that is
        repeated before it is timed."""
        macs, rounds = self.op.macs, 0.0
        if isinstance(self.op, Gemm):
            macs, rounds = extent(self.op, self.spec, self.configurations[number][0])
        return self._limited(number, progress, None, Limit(None, Leave(share, dear, macs, rounds)))

    def _limited(self, number: int, progress: Progress | None, wanted: Wanted | None, limit: Limit) -> CandidateRun:
        config, estimate_ps = self.configurations[number]
        program = program_of(self.op, self.spec, config)
        work = operator_work(self.op, program, estimate_ps)
        try:
            with foreseen(partial(self._foreseen, number)):
                return self._run(work, program, progress, wanted, limit)
        except DeadlockError as error:
            if isinstance(self.op, OwnProgram):
                raise InputError(str(error)) from None
            raise

    def _foreseen(self, number: int) -> str:
        """What is known of a candidate before it runs."""
        config, estimate_ps = self.configurations[number]
        found, subject = machine_figures(self.spec, str(self.op.dtype)), self.subject
        memory_s = subject.operand_bytes / self.spec.dram.bandwidth_bytes_per_s
        compute_s = (subject.flops or 0) / found.peak_ops_per_s
        roof, least_s = max((("memory", memory_s), ("arithmetic", compute_s)), key=lambda bound: bound[1])
        least = f"{self.op} on {self.spec.name} takes at least {time_text(round(1e12 * least_s))} ({roof})"
        return f"{least}, {time_text(estimate_ps)} by estimate ({config})" if estimate_ps else least

    def _run(
        self, work: Work, program: Program, progress: Progress | None, wanted: Wanted | None, limit: Limit
    ) -> CandidateRun:
        if wanted is None:
            return self._ran(work, run_steps(work, self.spec, self.conditions, progress, limit=limit))
        from sim.app.families.gpu.trace import KernelRecorder  # what is recorded alone needs it

        facts = _facts(self.request, program.schedule)
        recorder = KernelRecorder(facts, program, work.steps[0].estimate_ps, self.spec, wanted)
        try:
            done = run_steps(work, self.spec, self.conditions, progress, recorder)
        except MemoryError as error:
            raise TooMuchError(f"trace: {error}; a shorter --window or fewer --sm") from None
        return replace(self._ran(work, done), timeline=recorder.timeline)

    def _ran(self, work: Work, done: StepsRun) -> CandidateRun:
        (step,) = work.steps
        assert step.program is not None
        return _ran(self.request, self.spec, self.conditions, work, done, str(self.op.dtype), step.program.schedule)


def _offers(request: Request, spec: GpuSpec, conditions: Conditions) -> Offers:
    """What the operators of a graph choose from: what is held, all with their estimates, or each tuned alone."""

    if request.held:
        return lambda op: choose(op, spec, request.holding(op).schedule).candidates[:1]

    @cache
    def tuned(op: Operator) -> Sequence[tuple[Any, int]]:
        plan = OperatorPlan(request, spec, conditions, op, choose(op, spec).candidates)
        return [plan.configurations[decide(plan, tune=True).chosen]]

    return tuned if request.tune else lambda op: choose(op, spec).candidates


@dataclass(frozen=True)
class GraphPlan(SingleCandidatePlan):
    """A graph with the kernels of its steps."""

    request: Request
    spec: GpuSpec
    conditions: Conditions
    planned: PlannedGraph

    candidates = ()

    @property
    def subject(self) -> Subject:
        """What is computed."""
        graph = self.planned.graph
        return Subject.of_steps(graph.steps, self.spec.default_dtype, graph.lasting_bytes)

    @cached_property
    def overview(self) -> Wanted:  # type: ignore[override]
        """The inside of the kernel that takes longest by estimate."""
        steps = self.planned.work.steps
        longest = max(range(len(steps)), key=lambda i: steps[i].estimate_ps)
        before = sum(len(step.kernels) for step in steps[:longest])
        return Wanted(kernel=before if steps[longest].program else None)

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs all steps; what is wanted is recorded inside kernels, the rest of the timeline is of the whole run."""
        work = self.planned.work
        if wanted is None:
            return self._ran(run_steps(work, self.spec, self.conditions, progress, limit=Limit(limit_ps)))
        from sim.app.families.gpu.trace_graph import GraphRecorder

        kernels = [kernel for step in work.steps for kernel in step.kernels]
        if wanted != self.overview:
            work = replace(work, repeats=())  # what is wanted may lie in any layer
        recorder = GraphRecorder(_facts(self.request, str(self.planned)), kernels, self.spec, wanted)
        try:
            done = run_steps(work, self.spec, self.conditions, progress, recorder)
        except MemoryError as error:
            raise TooMuchError(f"trace: {error}; a shorter --window, one --kernel or fewer --sm") from None

        def timeline() -> Timeline:
            return recorder.timeline(str(self.planned.graph), work.calling, map(self._shown, done.done), done.times)

        return replace(self._ran(done), timeline=timeline)

    def _ran(self, done: StepsRun) -> CandidateRun:
        work, dtype = self.planned.work, self.subject.dtype
        found = _ran(self.request, self.spec, self.conditions, work, done, dtype, str(self.planned))
        operators = [
            OperatorTime(
                step.label,
                step.kind,
                str(step.op),
                time.host_ps,
                len(entry.records),
                sum(record.time_ps for record in entry.records),
                step.op.flops,
                entry.planned.schedule,
                step.op.operand_bytes if step.stands_in else 0,
            )
            for step, entry, time in zip(self.planned.graph.steps, done.done, done.times, strict=True)
        ]
        unread = self.planned.graph.unread
        moved = sum(unread.elements.values()) * unread.element_bytes
        left_out = LeftOut(unread.calls, 0, moved, unread.unsized) if unread.calls else None
        notes = [*found.notes, *self.planned.graph.notes]
        return replace(found, operators=operators, streamed=_streamed(operators), left_out=left_out, notes=notes)

    def _shown(self, entry: Done) -> Shown:
        """A step as a timeline shows it."""
        from sim.app.families.gpu.trace_graph import Shown

        step = entry.planned
        sends = step.shared.sends if step.shared else ()
        return Shown(step.op, step.label, step.schedule, entry.results, sends, step.place.stream)


def _facts(request: Request, schedule: str) -> dict[str, str]:
    """What a reader of a timeline must know of what ran."""
    return {"workload": str(request.asked), "machine": request.machine.label, "schedule": schedule}


def _streamed(operators: Sequence[OperatorTime]) -> StreamedOperators | None:
    """What copies of their bytes stand for."""
    own = [operator for operator in operators if operator.streamed_bytes]
    calls = dict(sorted(Counter(operator.name for operator in own).items()))
    moved, time_ps = (sum(getattr(one, name) for one in own) for name in ("streamed_bytes", "device_ps"))
    return StreamedOperators(calls, moved, time_ps) if calls else None


def _streams(spec: GpuSpec, work: Work, done: StepsRun) -> list[str]:
    """What the second stream did, if there is one."""
    if not work.overlaps:
        return []
    taken = max(step.shared.ctas for step in work.steps if step.shared and step.place.stream)
    sums = [record for entry in done.done if entry.planned.place.stream for record in entry.records]
    sums_ps, beside_ps = sum(record.time_ps for record in sums), sum(record.beside_ps for record in sums)
    return [
        f"Stream 1: kernels, {(done.time_ps - sums_ps + beside_ps) / 1e6:.1f} us. Stream 2: sums over devices, "
        f"{sums_ps / 1e6:.1f} us, {beside_ps / 1e6:.1f} us of it beside kernels, on {min(taken, spec.sm.count)} of "
        f"{spec.sm.count} SMs."
    ]


def _early(conditions: Conditions, done: StepsRun) -> list[str]:
    """What programmatic dependent launch did, if it was asked for."""
    if not conditions.pdl:
        return []
    early = [record.beside_ps for record in done.records if record.beside_ps]
    return [
        f"Programmatic dependent launch: within one call, {len(early)} of {len(done.records)} kernels begin before the "
        f"one before them has ended, {sum(early) / 1e6:.2f} us in all."
    ]


def _checked(steps: Sequence[PlannedStep], spec: GpuSpec, conditions: Conditions) -> tuple[CheckResult, list[str]]:
    """`check_steps`. What replays programs is imported where one is: other runs have their first result earlier."""
    from sim.app.families.gpu.check import check_steps

    return check_steps(steps, spec, conditions)


def _stand_in(request: Request, schedule: str) -> list[str]:
    """A sentence where kernels were asked for by the name of a library that shows nobody what they are."""
    asked = request.asked
    if request.schedule != "cudnn" or not isinstance(asked, Operator) or asked.word != "attention":
        return []
    return [f"Nothing public says which kernels cuDNN has for it: {schedule} stands for them, the fastest known here."]


def _ran(
    request: Request, spec: GpuSpec, conditions: Conditions, work: Work, done: StepsRun, dtype: str, schedule: str
) -> CandidateRun:
    """What came of steps that have run."""
    records = done.records
    time_ps = done.scope_ps(spec, request.scope, work.calling, conditions.replayed)
    if request.scope in ("stream", "event"):
        time_ps = max(time_ps, request.bench.host_call_ps)
    rest_ps = time_ps - done.time_ps
    took = cache(lambda: took_part(work, spec, conditions, request.scope))
    return CandidateRun(
        schedule=schedule,
        machine=machine_figures(spec, dtype),
        kernels=records,
        device_ps=done.time_ps,
        time_ps=time_ps,
        # The counts are those of the timed run.
        counts={name: sum(record.counters.get(name, 0) for record in records) for name in _COUNTS},
        host_ps={"host": rest_ps} if rest_ps > 0 else {},
        check=partial(_checked, work.steps, spec, conditions) if request.check else None,
        reads=lambda path: took().reads(path),
        notes=[
            *_stand_in(request, schedule),
            *done.notes,
            *_streams(spec, work, done),
            *_early(conditions, done),
            *dict.fromkeys(note for entry in done.done for r in entry.results if (note := sample_note(r.kernel))),
            *dict.fromkeys(note for step in work.steps if step.program is not None for note in step.program.notes),
        ],
    )
