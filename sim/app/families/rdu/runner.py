"""Dataflow machines: chooses a program for an operator, runs its sections, and gives what a report needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.app.families.family import NO_REFERENCE, CandidateRun, SingleCandidatePlan, Subject
from sim.app.families.rdu.records import kernel_record, machine_figures
from sim.app.families.rdu.trace import section_timeline
from sim.app.families.request import Progress, Request, one_of
from sim.app.report.record import CheckResult, KernelRecord, MachineFigures, RduSection
from sim.app.report.text import bytes_text
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S, ticks_to_ps
from sim.link.collective import Outcome, collective, fabric_of
from sim.rdu.cut import Cut, fit
from sim.rdu.engine import SectionResult, run_section
from sim.rdu.host import Launch, run_launches
from sim.rdu.interpret import Replay, interpret
from sim.rdu.listing import listing as program_listing
from sim.rdu.program import Program
from workloads.estimates import error_percent
from workloads.graphs.llama import Llama
from workloads.ops import AllReduce, CopyH2D, Operator
from workloads.rdu import llama_reference
from workloads.rdu.select import build, choose
from workloads.written import OwnProgram, held_schedule, placed

if TYPE_CHECKING:
    from sim.tpu.show import ArrayRun
    from workloads.silicon import Row

SCOPES = ("kernel", "host")

_EVENT_COST = 2
"""Events of the compiled engine of GPUs that take as long as one of this family's, with what prepares it."""
_BUILD_EVENTS = 10_000
"""Events that take as long as writing a program and what else comes before its units are placed."""


class Rdu:
    """The family of dataflow machines."""

    options: tuple[str, ...] = ("schedule", "check", "scope", "tune")

    def plan(self, request: Request) -> ProgramPlan | AllReducePlan | CopyPlan:
        """The programs that could run an operator, or a transfer alone."""
        spec, op = _operator(request)
        one_of("scope", request.scope, SCOPES)
        if isinstance(op, AllReduce):
            return AllReducePlan(request, spec, op)
        if isinstance(op, CopyH2D):
            return CopyPlan(request, spec, op)
        return ProgramPlan(request, spec, op, _configurations(request, op, spec))

    def listing(self, request: Request, number: int = 0) -> str:
        """The program that would run, as text with what each part takes."""
        spec, op = _operator(request)
        return program_listing(fit(_program(op, spec, _configurations(request, op, spec)[number][0]), spec)[0], spec)

    def row(self, row: Row) -> Request:
        """InputError: nobody has published times of these machines by the row."""
        raise InputError(f"{row.machine}: rows of measured times cannot be run on machines of family rdu")

    def show_array(self, request: Request) -> ArrayRun:
        """InputError: a dataflow machine is no such array."""
        raise InputError(f"show-array: {request.machine.name} is no systolic array; tpu-v1 is one")

    def compile_kernels(self, *, check: bool = False) -> None:
        """Little is compiled here."""


def _operator(request: Request) -> tuple[RduSpec, Operator]:
    """The machine, and the operator with its formats filled in."""
    spec, asked = request.machine, request.asked
    assert isinstance(spec, RduSpec)
    assert isinstance(asked, Operator)
    return spec, placed(asked, spec)


def _configurations(request: Request, op: Operator, spec: RduSpec) -> Sequence[tuple[Any, int]]:
    """The programs that could run, with their estimated cycles, the best first."""
    if isinstance(op, OwnProgram):
        return [(held_schedule(op, request.schedule), 0)]
    return choose(op, spec, request.schedule).candidates


def _program(op: Operator, spec: RduSpec, config: Any) -> Program:
    return op.program if isinstance(op, OwnProgram) else build(op, spec, config)


@dataclass(frozen=True)
class ProgramRun:
    """A program that has run: the result of each section, and a record for each launch."""

    program: Program
    results: Mapping[int, SectionResult]
    records: Sequence[KernelRecord]
    time_ps: int
    cuts: Sequence[Cut] = ()
    """Sections that did not fit as they were written."""

    @property
    def cycles(self) -> int:
        """Cycles of all launches."""
        return sum(record.cycles for record in self.records)

    @property
    def events(self) -> int:
        """Of the engine in all launches, and those that take as long as placing each section once."""
        placing = sum(result.configuration.placing_events for result in self.results.values())
        return placing + sum(record.counters["events"] for record in self.records)

    def first_launch(self, result: SectionResult) -> KernelRecord:
        """The record of a section's first launch."""
        number = 0
        for call in self.program.calls:
            if self.results[id(call.section)] is result:
                break
            number += call.times
        return self.records[number]


@dataclass(frozen=True)
class ProgramPlan:
    """An operator with its candidates. configurations: with their estimated cycles, the best first."""

    request: Request
    spec: RduSpec
    op: Operator
    configurations: Sequence[tuple[Any, int]]

    ways: ClassVar[tuple[str, ...]] = ()
    simpler: ClassVar[tuple[int, ...]] = ()
    event_cost: ClassVar[int] = _EVENT_COST
    overview = Wanted()

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    @cached_property
    def candidates(self) -> list[tuple[str, int]]:
        """The configurations as text, with their estimated cycles."""
        return [(str(config), cycles) for config, cycles in self.configurations]

    @property
    def error_percent(self) -> int:
        """What the estimate says of itself."""
        return error_percent(self.spec.family, self.op.word)

    @property
    def ready_events(self) -> int:
        """Writing the program; what placing it takes is counted with its events."""
        return _BUILD_EVENTS

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs a candidate; its sections are always recorded."""
        request, spec = self.request, self.spec
        done = run_program(_program(self.op, spec, self.configurations[number][0]), spec, progress)
        time_ps, host_ps = done.time_ps, {}
        if request.scope == "host":
            host_ps = {"host": spec.launch.host_ps + spec.launch.program_load_ps}
            time_ps += sum(host_ps.values())
        return CandidateRun(
            schedule=done.program.schedule,
            machine=machine_figures(spec, str(self.op.dtype), done.program.devices),
            kernels=done.records,
            device_ps=done.time_ps,
            time_ps=time_ps,
            counts={"events": done.events},
            host_ps=host_ps,
            notes=[f"{cut}." for cut in done.cuts],
            check=partial(check_program, self.op, done) if request.check else None,
            timeline=partial(self._timeline, done, wanted) if wanted else None,
            reads=lambda path: done.program.devices > 1 or path.partition(".")[0] not in ("link", "node"),
        )

    def _timeline(self, done: ProgramRun, wanted: Wanted) -> Timeline:
        results = list(done.results.values())
        number = wanted.kernel or 0
        if number >= len(results):
            raise InputError(f"--kernel {number}: {done.program.name} has sections 0 to {len(results) - 1}")
        facts = {"workload": str(self.request.asked), "machine": self.spec.label, "schedule": done.program.schedule}
        return section_timeline(facts, results[number], done.first_launch(results[number]), wanted)


@dataclass(frozen=True)
class AllReducePlan(SingleCandidatePlan):
    """A collective alone: the links' time, with numbers carried by the same messages in check mode."""

    request: Request
    spec: RduSpec
    op: AllReduce

    candidates = ()

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    @cached_property
    def best(self) -> Outcome:
        """The fastest of the algorithms that are asked for."""
        fabric, schedule = fabric_of(self.spec, self.op.devices), self.request.schedule
        if schedule != "auto":
            one_of("schedule", schedule, fabric.algorithms)
        ways = fabric.algorithms if schedule == "auto" else (schedule,)
        outcomes = [collective(fabric, "all_reduce", way, self.op.bytes) for way in ways]  # type: ignore[arg-type]
        return min(outcomes, key=lambda outcome: outcome.time_ps)

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Sends the messages."""
        best, spec, devices = self.best, self.spec, self.op.devices
        kernel = _transfer(spec, "all_reduce", best.algorithm, best.time_ps, {"link_write_bytes": best.sent_bytes})
        kernel = replace(kernel, energy_fj=best.sent_bytes * spec.power.energy.link_fj_per_byte)
        figures = machine_figures(spec, str(self.op.dtype), devices)
        ran = _moved(self.request, spec, figures, kernel, f"{best.algorithm} over {devices} devices")
        return replace(ran, check=self._check if self.request.check else None)

    def _check(self) -> tuple[CheckResult, list[str]]:
        op = self.op
        operands = op.inputs(seed=0)
        fabric = fabric_of(self.spec, op.devices)
        sums = collective(fabric, "all_reduce", self.best.algorithm, op.bytes, list(operands[0])).values
        error = max(op.largest_error([round_to(total, str(op.dtype))], *operands) for total in sums)
        return CheckResult(error <= op.tolerance, error), []


@dataclass(frozen=True)
class CopyPlan(SingleCandidatePlan):
    """A copy over PCIe: the link's latency once, then its bandwidth."""

    request: Request
    spec: RduSpec
    op: CopyH2D

    candidates = ()

    @property
    def subject(self) -> Subject:
        """What is moved."""
        return replace(Subject.of(self.op), dtype=self.op.dtype or "int8")

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Copies."""
        host = self.spec.host
        time_ps = host.latency_ps + -(-self.op.bytes * PS_PER_S // host.bandwidth_bytes_per_s)
        kernel = _transfer(self.spec, "copy_h2d", "pcie", time_ps, {"pcie_read_bytes": self.op.bytes})
        kernel = replace(kernel, transfer_ps=time_ps)
        return _moved(self.request, self.spec, machine_figures(self.spec, self.spec.default_dtype), kernel, "pcie")


def _moved(
    request: Request, spec: RduSpec, figures: MachineFigures, kernel: KernelRecord, schedule: str
) -> CandidateRun:
    """What came of a transfer alone."""

    def timeline() -> Timeline:
        raise InputError(f"{request.asked}: alone on {spec.name} it is one transfer, without a timeline")

    return CandidateRun(schedule, figures, [kernel], kernel.time_ps, kernel.time_ps, {"events": 0}, timeline=timeline)


def _transfer(spec: RduSpec, name: str, schedule: str, time_ps: int, counted: Mapping[str, int]) -> KernelRecord:
    """What moves beside the chip: cycles are those that its clock counts meanwhile."""
    hz = spec.clock.boost_hz
    grid = (spec.mesh.rows, spec.columns)
    return KernelRecord(
        name=name,
        schedule=schedule,
        cycles=time_ps * hz // PS_PER_S,
        clock_hz=hz,
        time_ps=time_ps,
        counters={**counted, "events": 0},
        own=RduSection(name, (), (), grid, 0, spec.pcu.count, 0, spec.pmu.count, 0, {}),
    )


def run_program(program: Program, spec: RduSpec, progress: Progress | None = None, *, log: bool = True) -> ProgramRun:
    """Runs each section once and plays its launches; calls that differ in addresses alone take the same time.

    Sections that do not fit the machine are cut. InputError where that does not help, or arrays do not fit a memory.
    """
    program, cuts = fit(program, spec)
    _check_memories(program, spec)
    addresses = program.addresses()
    results: dict[int, SectionResult] = {}
    for i, call in enumerate(program.calls):
        if id(call.section) not in results:
            results[id(call.section)] = run_section(call.section, spec, addresses, log=log)
        if progress is not None:
            progress((i + 1) / len(program.calls))
    return play_launches(program, results, spec, cuts)


def play_launches(
    program: Program, results: Mapping[int, SectionResult], spec: RduSpec, cuts: Sequence[Cut] = ()
) -> ProgramRun:
    """The launches of a program whose sections have run, on a machine that may launch otherwise."""
    order = list(results)
    launches = [
        _launch(results[id(call.section)], spec, order.index(id(call.section)), call.prefetch_bytes)
        for call in program.calls
        for _ in range(call.times)
    ]
    timeline = run_launches(
        spec,
        launches,
        program.orchestration,
        configured=0,
        devices=program.devices,
        room_bytes=program.prefetch_room_bytes,
    )
    made: dict[tuple[Any, ...], KernelRecord] = {}
    records = []
    for launch, parts in zip(launches, timeline.launches, strict=True):
        key = (launch, *parts.items())
        if key not in made:
            result = results[order[launch.configuration]]
            made[key] = kernel_record(result, spec, program, parts, prefetch_bytes=launch.prefetch_bytes)
        records.append(made[key])
    return ProgramRun(program, results, records, timeline.total_ps, cuts)


def _launch(result: SectionResult, spec: RduSpec, configuration: int, prefetch_bytes: int) -> Launch:
    """A launch of a section that has run."""
    moved = result.read_bytes["hbm"] + result.write_bytes["hbm"]  # the main memory, also where that is DDR
    memory_ps = moved * PS_PER_S // spec.main_memory.bandwidth_bytes_per_s
    return Launch(configuration, ticks_to_ps(result.ticks, spec.clock.boost_hz), prefetch_bytes, memory_ps)


def check_program(op: Operator, done: ProgramRun) -> tuple[CheckResult, list[str]]:
    """Replays the program with numbers and compares with NumPy; the result, and a sentence for each thing wrong."""
    program = done.program
    if isinstance(op, Llama):
        inputs = llama_reference.operands(op, program)
        replay = _replay(done, inputs)
        errors = []
        for name, wanted in llama_reference.expected(op, inputs).items():
            shown = replay.outputs[name]
            if name == "y":  # the last layers, on any device
                shown, wanted = shown[:1], wanted[:, -shown.shape[1] :]
            errors.append(float(np.nan_to_num(np.abs(shown - wanted).max() / np.abs(wanted).max(), nan=np.inf)))
        return _outcome(max(errors), llama_reference.TOLERANCE, replay)
    operands = op.inputs(seed=0)
    names = {tensor.name: tensor for tensor in program.tensors}
    inputs = {}
    for operand, array in zip(op.operands, operands, strict=True):
        # An operand that is not read under its own name is the result, which the operator adds to.
        tensor = names.get(operand.name) or next(t for t in program.tensors if t.role == "output")
        inputs[tensor.name] = np.broadcast_to(array.reshape(tensor.shape), (program.devices, *tensor.shape))
    replay = _replay(done, inputs)
    if isinstance(op, OwnProgram) and not op.compared:
        notes = [NO_REFERENCE, *(f"Check: {violation}." for violation in replay.violations)]
        return CheckResult(not replay.violations, None), notes
    error = op.largest_error([replay.outputs[t.name][0] for t in program.tensors if t.role == "output"], *operands)
    return _outcome(error, op.tolerance, replay)


def _replay(done: ProgramRun, inputs: Mapping[str, Any]) -> Replay:
    return interpret(done.program, {key: result.log for key, result in done.results.items()}, inputs)


def _outcome(error: float, tolerance: float, replay: Replay) -> tuple[CheckResult, list[str]]:
    notes = [f"Check: {violation}." for violation in replay.violations]
    if not error <= tolerance:
        notes.append(f"Check: relative error {error:.2e}, rounding alone explains {tolerance:.2e}.")
    passed = error <= tolerance and not replay.violations
    return CheckResult(passed, error if math.isfinite(error) else math.inf), notes


def _check_memories(program: Program, spec: RduSpec) -> None:
    """InputError where the arrays do not fit a memory."""
    memories = {"hbm": (spec.main_memory, "hbm" if spec.hbm else "ddr"), "ddr": (spec.ddr, "ddr")}
    for place, (memory, name) in memories.items():
        size = program.memory_bytes(place)  # type: ignore[arg-type]
        if size > memory.size_bytes:
            raise InputError(
                f"{program.name}: arrays take {bytes_text(size)}, {spec.name} has {name}.size = "
                f"{BYTES.format(memory.size_bytes)}; a smaller problem or more devices fit"
            )
