"""The program as a library, and its one pipeline: a request becomes candidates, a run, a record, a report.

`simulate` runs one operator or graph on one machine, `compare` one on several, `simulate_row` a row of reference data;
`trace` records what happens when. What a family of machines does with an operator is in `sim.app.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.load import load_arch
from arch.spec import MachineSpec
from sim.app.asked import asked_of
from sim.app.cost import Cost, version
from sim.app.families.choice import Memory, Trials, contenders, decide, settled
from sim.app.families.family import CandidateRun, Plan, Runner, runner_of
from sim.app.families.request import Progress, Request, part
from sim.app.families.stepwise import StepwisePlan, runs_stepwise
from sim.app.report.asked import titled
from sim.app.report.compare import Comparison, Unsupported
from sim.app.report.record import Candidate, RunRecord
from sim.app.report.report import Report
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import TooMuchError, Wanted
from sim.app.trust import trust
from workloads.graphs import Graph
from workloads.ops import Operator
from workloads.parse import parse
from workloads.written import ProgramFile, given

if TYPE_CHECKING:
    from sim.gpu.language import Program as GpuProgram
    from sim.rdu.program import Program as RduProgram
    from sim.tpu.program import Program as TpuProgram
    from sim.tpu.show import ArrayRun
    from workloads.silicon import Row

    Workload = Operator | Graph | GpuProgram | RduProgram | TpuProgram | str


@dataclass(frozen=True, slots=True)
class RowResult:
    """What the simulator says about a row of reference data.

    schedule: of the kernel that was chosen. cycles: core-clock cycles of its kernels. time_ps: picoseconds in the row's
    scope; for `host` of the kernels alone, since the row states its own overhead. cpu_s: seconds of CPU that the
    simulation took, no part of the answer.
    """

    schedule: str
    cycles: int
    time_ps: int
    cpu_s: float = field(default=0.0, compare=False)


# ---------------------------------------------------------------------------------------------------- for callers


def simulate(
    workload: Workload,
    machine: MachineSpec | str,
    *,
    schedule: str = "auto",
    set: Sequence[str] = (),
    check: bool = False,
    exact: bool = False,
    l2: str = "cold",
    scope: str = "kernel",
    clock: str = "isolated",
    data: str = "normal",
    tune: bool = False,
    without: Sequence[str] = (),
    program: str = "",
    pdl: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Simulates one operator, or one graph of operators, on one machine.

    workload: an operator, its text (`gemm m=4096 n=4096 k=4096 dtype=bf16`), a graph (`workloads.graphs`), what
    `torch.export.export` gives, a program of one's own, or the text that makes it (`my_kernel.py:gemm m=512`, which
    executes the file). machine: a description, or a preset's name or file. schedule: `auto`, a kind (`wgmma`, `mma`,
    ...) or a whole configuration
    as reports print it; of graphs `eager`, `graph`, `fused`, `fused_graph`. set: overrides of the machine,
    `path=value`. check: replay the schedule with numbers and compare with NumPy. exact: every instruction issues
    singly. l2: `cold`, `warm` after an untimed run, `dirty`, full of what something else wrote, `turns`, of what calls
    on other operands left, or `uploaded`, of operands copied from the host. scope: what the time covers
    (`sim.host.scopes`). clock: `isolated` (the chip was idle before), `sustained` (it was busy for long), or a locked
    clock such as `1.41 GHz`, at which the power limit does not act. data: operands for the power model.
    program: a file with the program to run instead, as `program_listing` prints it (TPUs). tune: simulate the best few
    candidates and take the fastest. pdl: programmatic dependent launch: the start of a kernel overlaps the end of the
    one before. without: mechanisms that the kernel is to do without, which gives another program
    (`workloads.gpu.select.MECHANISMS`).
    progress: called with the share done, 0 to 1.
    Raises InputError before anything runs, also for an option that means nothing on the machine.
    """
    asked = request_of(
        workload, machine, set, schedule=schedule, without=without, check=check, exact=exact, l2=l2, scope=scope,
        clock=clock, data=data, tune=tune, program=program, pdl=pdl,
    )  # fmt: skip
    return Report(run(asked, progress))


def compare(
    workload: Workload,
    machines: Sequence[MachineSpec | str],
    schedules: Sequence[str] = ("auto",),
    *,
    set: Sequence[str] = (),
    l2: str = "cold",
    scope: str = "kernel",
    clock: str = "isolated",
    data: str = "normal",
    tune: bool = False,
    exact: bool = False,
    check: bool = False,
    without: Sequence[str] = (),
    pdl: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Simulates one operator on several machines, with each schedule; options as in `simulate`.

    A machine that cannot run it, or lacks a figure that `set` overrides, is a row with the reason; an option that means
    nothing on a machine is noted in its report. Raises InputError for an unknown machine or operator.
    """
    specs, workload = _machines(machines, set), _workload(workload)
    rows: list[Report | Unsupported] = []
    pairs = [(spec, schedule) for spec in specs for schedule in schedules]
    for i, (spec, schedule) in enumerate(pairs):
        if isinstance(spec, Unsupported):
            rows.append(spec)
            continue
        asked = Request(workload, spec, schedule, without, check, exact, l2, scope, clock, data, tune, pdl=pdl)
        known = runner_of(spec.family).options
        try:
            record = run(asked.only(known), part(progress, i, len(pairs)))
        except InputError as error:
            rows.append(Unsupported(spec.name, str(error)))
            continue
        notes = [f"The option {name} means nothing on {spec.name}." for name in asked.beyond(known)]
        rows.append(Report(replace(record, notes=[*record.notes, *notes])))
    return Comparison(str(parse(workload) if isinstance(workload, str) else workload), rows)


def simulate_row(row: Row) -> RowResult:
    """Simulates a row of reference data in its source's environment. Raises InputError where it cannot be run."""
    record = run(row_request(row))
    return RowResult(record.schedule, sum(kernel.cycles for kernel in record.kernels), record.time_ps)


def request_of(workload: Workload, machine: MachineSpec | str, set: Sequence[str] = (), **options: Any) -> Request:
    """The run that `simulate` makes of its arguments. Raises InputError for a machine or an override that is none."""
    return Request(_workload(workload), _machine(machine, set), **options)


def row_request(row: Row) -> Request:
    """The run that a row of reference data asks for. Raises InputError where it cannot be asked."""
    return runner_of(load_arch(row.machine).family).row(row)


def program_listing(
    workload: Workload,
    machine: MachineSpec | str,
    *,
    schedule: str = "auto",
    set: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:
    """The program that `simulate` would run, as text with the cost of each instruction."""
    asked = request_of(workload, machine, set, schedule=schedule, without=without)
    plan = _plan(asked)
    if isinstance(plan, StepwisePlan):
        return plan.listing()
    return _runner(asked).listing(asked, decide(plan).chosen if len(plan.candidates) > 1 else 0)


def listing_of(request: Request, schedule: str) -> str:
    """The program of a run as text, by the schedule that it took; empty where its family has none."""
    try:
        asked = request if isinstance(request.asked, ProgramFile) else replace(request, schedule=schedule)
        plan = _plan(asked)
        return plan.listing() if isinstance(plan, StepwisePlan) else _runner(asked).listing(asked, 0)
    except InputError:
        return ""


def show_array(workload: Workload, machine: MachineSpec | str, *, set: Sequence[str] = ()) -> ArrayRun:
    """What every cell of a systolic array holds in every cycle of a small product."""
    asked = request_of(workload, machine, set)
    return _runner(asked).show_array(asked)


def trace(
    workload: Workload,
    machine: MachineSpec | str,
    wanted: Wanted | None = None,
    *,
    schedule: str = "auto",
    set: Sequence[str] = (),
    without: Sequence[str] = (),
    l2: str = "cold",
    clock: str = "isolated",
    data: str = "normal",
    exact: bool = False,
    program: str = "",
    progress: Progress | None = None,
) -> Timeline:
    """Runs an operator and records a part of it.

    wanted: cycles, units and kernel; default: all of the first kernel on the first SM. The rest is as in `simulate`.
    Raises InputError before anything runs, and for a part that holds nothing or too much.
    """
    asked = request_of(
        workload, machine, set, schedule=schedule, without=without, exact=exact, l2=l2, clock=clock, data=data,
        program=program,
    )  # fmt: skip
    plan, part_wanted = _plan(asked), wanted or Wanted()
    tried = _sole(plan, progress, part_wanted) if _alone(plan) else None
    return _timeline(asked, tried.best if tried else plan.run(decide(plan).chosen, progress, part_wanted))


# ---------------------------------------------------------------------------------------------------- the pipeline


def run(request: Request, progress: Progress | None = None, memory: Memory | None = None) -> RunRecord:
    """Runs what is asked for, with the candidates that may be the best, and records the fastest. memory: of what
    simulations of its candidates gave before."""
    cost, plan = Cost(), _plan(request)
    return _record(request, plan, decide(plan, request.tune, progress, memory), cost)


def run_recorded(request: Request, progress: Progress | None = None) -> tuple[RunRecord, Callable[[], Timeline]]:
    """As `run`, and the timeline of the part that says most on one page; it raises InputError where there is none.

    One simulation gives both, unless candidates are compared first or more happens than a recording holds.
    """
    cost, plan = Cost(), _plan(request)
    alone, refused = _alone(plan, request.tune), None
    tried = None
    if alone:
        try:
            tried = _sole(plan, progress, plan.overview)
        except TooMuchError as error:
            refused = error
    found = tried or decide(plan, request.tune, progress)

    def timeline() -> Timeline:
        if refused:
            raise refused
        return _timeline(request, found.best if tried else plan.run(found.chosen, None, plan.overview))

    return _record(request, plan, found, cost), timeline


def _plan(request: Request) -> Plan:
    """The family's own plan, or the one that runs the steps of a graph one by one."""
    request = _made(request)
    runner = _runner(request)
    return StepwisePlan.of(request, runner) if runs_stepwise(request) else runner.plan(request)


def _made(request: Request) -> Request:
    """The request for what somebody's function makes: a program, or a graph."""
    asked = request.asked
    if isinstance(asked, ProgramFile) and not asked.compiled:
        return replace(request, workload=asked.on(request.machine))
    return request


def _alone(plan: Plan, tune: bool = False) -> bool:
    """Whether nothing is compared."""
    return len(contenders(plan, tune)) == 1


def _sole(plan: Plan, progress: Progress | None, wanted: Wanted) -> Trials | None:
    """The run of the only contender, recorded; None where it does not fit the machine, or shows that another candidate
    could be faster."""
    try:
        ran = plan.run(0, progress, wanted)
        return Trials({0: ran}) if settled(plan, ran) else None
    except TooMuchError:
        raise
    except InputError:
        return None


def _record(request: Request, plan: Plan, tried: Trials, cost: Cost) -> RunRecord:
    """What a report shows."""
    ran, subject = tried.best, plan.subject
    check, found = ran.check() if ran.check else (None, [])
    left_out = [
        f"The schedule {plan.candidates[number][0]} was left out: {error}." for number, error in tried.refused.items()
    ]
    counted = sum(kernel.counters.get("macs", 0) for kernel in ran.kernels)
    record = RunRecord(
        machine=ran.machine,
        workload=str(request.asked),
        dtype=subject.dtype,
        flops=2 * counted if subject.flops is None else subject.flops,
        macs=counted if subject.macs is None else subject.macs,
        operand_bytes=subject.operand_bytes,
        schedule=ran.schedule,
        kernels=ran.kernels,
        asked=replace(
            asked_of(request, _runner(request).options),
            unread=[path for path in request.machine.overrides if not ran.reads(path)],
        ),
        scope=request.scope,
        time_ps=ran.time_ps,
        candidates=_candidates(plan, tried),
        estimate_error_percent=plan.error_percent if len(plan.candidates) > 1 else 0,
        host_ps=ran.host_ps,
        check=check,
        simulator=cost.stats(**ran.counts),
        operators=ran.operators,
        layers=ran.layers,
        left_out=ran.left_out,
        streamed=ran.streamed,
        notes=[*ran.notes, *_belonging(request.machine), *found, *left_out],
    )
    return replace(record, trust=trust(record))


def _belonging(machine: MachineSpec) -> list[str]:
    """A sentence where figures went with those that were changed."""
    went = [f"{path} = {value} ({machine.sources[path]})" for path, value in machine.belonging.items()]
    return [f"Changed, too, for it was not set: {', '.join(went)}."] if went else []


def _candidates(plan: Plan, tried: Trials) -> list[Candidate]:
    """What was considered: what ran to its end, was given up or left, then the rest, in the order of the estimate."""
    simulated = [*tried.runs, *tried.late, *tried.paces]
    rest = [number for number in range(len(plan.candidates)) if number not in simulated]
    return [
        Candidate(
            schedule=plan.candidates[number][0],
            estimate_cycles=plan.candidates[number][1],
            simulated_cycles=tried.runs[number].cycles if number in tried.runs else None,
            given_up_ps=tried.late.get(number),
            pace_ps=tried.paces.get(number),
            chosen=number == tried.chosen,
        )
        for number in [*simulated, *rest]
        if plan.candidates
    ]


def _timeline(request: Request, ran: CandidateRun) -> Timeline:
    """What was recorded, with all that was asked and the versions of the programs that did it."""
    assert ran.timeline is not None
    found, asked = ran.timeline(), asked_of(request, _runner(request).options)
    found.title = titled(f"{request.asked} on {request.machine.label}", asked.unusual)
    found.facts |= asked.words | {"simulator": f"tilewave {version()}"}
    return found


def _runner(request: Request) -> Runner:
    """The family of the machine; InputError for an option that means nothing there."""
    runner = runner_of(request.machine.family)
    for name in sorted(request.beyond(runner.options), key=lambda name: name != "measured_as"):
        raise InputError(f"{name}={getattr(request, name)}: means nothing on {request.machine.name}, leave it out")
    return runner


def _machines(machines: Sequence[MachineSpec | str], overrides: Sequence[str]) -> list[MachineSpec | Unsupported]:
    """The machines of a comparison; one that lacks an overridden figure which another has is a reason."""
    found: list[MachineSpec | Unsupported] = []
    errors = []
    for machine in machines:
        plain = _machine(machine, ())
        try:
            found.append(_machine(machine, overrides))
        except InputError as error:
            errors.append(error)
            found.append(Unsupported(plain.name, str(error)))
    if len(errors) == len(found):
        raise errors[0]
    return found


def _workload(workload: Workload) -> Operator | Graph | str:
    """What a request holds; InputError for an object that is no workload."""
    if isinstance(workload, Operator | Graph | str):
        return workload
    if hasattr(workload, "graph_signature"):  # an exported program of PyTorch
        from workloads.graphs.torch_graph import read_exported

        return read_exported(workload)
    return given(workload)


def _machine(machine: MachineSpec | str, overrides: Sequence[str]) -> MachineSpec:
    if isinstance(machine, str):
        spec: MachineSpec = load_arch(machine, overrides)
        return spec
    if overrides:
        right = f"load_arch({machine.name!r}, {list(overrides)})"
        raise InputError(f"set: overrides go with a machine's name; make the description with {right}")
    return machine
