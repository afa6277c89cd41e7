"""Runs operators on dataflow machines: chooses a program, runs its sections, reports and checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.app.families.options import Cost, Options, Progress, one_of, part
from sim.app.families.rdu_program import ProgramFile
from sim.app.families.rdu_records import kernel_record, machine_figures
from sim.app.report.record import Candidate, CheckResult, KernelRecord, RduSection, RunRecord
from sim.app.report.sections import bytes_text
from sim.engine.clock import PS_PER_S, ticks_to_ps
from sim.link.collective import collective, fabric_of
from sim.rdu.cut import Cut, fit
from sim.rdu.engine import SectionResult, run_section
from sim.rdu.host import Launch, run_launches
from sim.rdu.interpret import Replay, interpret
from sim.rdu.listing import listing as program_listing
from sim.rdu.program import Program
from workloads.graphs.llama import Llama
from workloads.ops import AllReduce, CopyH2D, Operator
from workloads.rdu import llama_reference
from workloads.rdu.select import Choice, build, choose

OPTIONS = ("schedule", "check", "scope", "tune", "program")

SCOPES = ("kernel", "host")
TUNED = 6


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


def run(asked: Operator, spec: RduSpec, options: Options, progress: Progress | None) -> RunRecord:
    """Simulates the chosen program, or the best few, and reports the fastest."""
    op = asked.with_defaults(spec.default_dtype)
    one_of("scope", options.scope, SCOPES)
    cost = Cost()
    if isinstance(op, AllReduce):
        return _all_reduce(op, spec, str(asked), options, cost)
    if isinstance(op, CopyH2D):
        return _copy(op, spec, str(asked), options, cost)
    choice = _choice(op, spec, options.schedule, options.program)
    wanted = TUNED if options.tune else 1
    runs: list[ProgramRun] = []
    refused: list[tuple[str, InputError]] = []
    tried = []
    for config, estimate in choice.candidates:
        try:
            runs.append(run_program(build(op, spec, config), spec, part(progress, len(runs), wanted)))
        except InputError as error:
            refused.append((str(config), error))
            continue
        tried.append((config, estimate))
        if len(runs) == wanted:
            break
    if not runs:
        raise refused[0][1]
    choice = Choice([*tried, *(c for c in choice.candidates if c not in tried)])
    best = min(range(len(runs)), key=lambda i: runs[i].time_ps)
    chosen = runs[best]
    outcome, notes = check_program(op, chosen) if options.check else (None, [])
    notes += [f"{cut}." for cut in chosen.cuts]
    notes += [f"The schedule {name} was left out: {error}." for name, error in refused]
    time_ps = chosen.time_ps
    host_ps = {}
    if options.scope == "host":
        host_ps = {"host": spec.launch.host_ps + spec.launch.program_load_ps}
        time_ps += sum(host_ps.values())
    return RunRecord(
        machine=machine_figures(spec, str(op.dtype), chosen.program.devices),
        workload=str(asked),
        dtype=str(op.dtype),
        flops=op.flops,
        macs=op.macs,
        operand_bytes=op.operand_bytes,
        schedule=chosen.program.schedule,
        kernels=chosen.records,
        scope=options.scope,
        time_ps=time_ps,
        candidates=_candidates(choice, runs, best),
        host_ps=host_ps,
        check=outcome,
        simulator=cost.stats(events=sum(record.counters["events"] for record in chosen.records)),
        notes=notes,
    )


def _choice(op: Operator, spec: RduSpec, schedule: str, program: str) -> Choice:
    """The candidates, or the program of a file alone."""
    return Choice([(ProgramFile(program), 0)]) if program else choose(op, spec, schedule)


def chosen_run(
    asked: Operator, spec: RduSpec, schedule: str, progress: Progress | None, program: str = ""
) -> ProgramRun:
    """The run of the best candidate by estimate that the machine takes, as `run` without `tune` reports it."""
    op = asked.with_defaults(spec.default_dtype)
    first: InputError | None = None
    for config, _ in _choice(op, spec, schedule, program).candidates:
        try:
            return run_program(build(op, spec, config), spec, progress)
        except InputError as error:
            first = first or error
    raise first or InputError(f"{asked} has no schedule on {spec.name}")


def _all_reduce(op: AllReduce, spec: RduSpec, asked: str, options: Options, cost: Cost) -> RunRecord:
    """A collective alone: the links' time, with numbers carried by the same messages in check mode."""
    fabric = fabric_of(spec, op.devices)
    if options.schedule != "auto":
        one_of("schedule", options.schedule, fabric.algorithms)
    ways = fabric.algorithms if options.schedule == "auto" else (options.schedule,)
    outcomes = [collective(fabric, "all_reduce", way, op.bytes) for way in ways]  # type: ignore[arg-type]
    best = min(outcomes, key=lambda outcome: outcome.time_ps)
    check = None
    if options.check:
        operands = op.inputs(seed=0)
        sums = collective(fabric, "all_reduce", best.algorithm, op.bytes, list(operands[0])).values
        errors = [op.largest_error([round_to(total, str(op.dtype))], *operands) for total in sums]
        check = CheckResult(max(errors) <= op.tolerance, max(errors))
    kernel = _transfer(spec, "all_reduce", best.algorithm, best.time_ps, {"link_write_bytes": best.sent_bytes})
    kernel = replace(kernel, energy_fj=best.sent_bytes * spec.power.energy.link_fj_per_byte)
    return RunRecord(
        machine=machine_figures(spec, str(op.dtype), op.devices),
        workload=asked,
        dtype=str(op.dtype),
        flops=op.flops,
        macs=op.macs,
        operand_bytes=op.operand_bytes,
        schedule=f"{best.algorithm} over {op.devices} devices",
        kernels=[kernel],
        scope=options.scope,
        time_ps=best.time_ps,
        check=check,
        simulator=cost.stats(events=0),
    )


def _copy(op: CopyH2D, spec: RduSpec, asked: str, options: Options, cost: Cost) -> RunRecord:
    """A copy over PCIe: the link's latency once, then its bandwidth."""
    time_ps = spec.host.latency_ps + -(-op.bytes * PS_PER_S // spec.host.bandwidth_bytes_per_s)
    return RunRecord(
        machine=machine_figures(spec, spec.default_dtype),
        workload=asked,
        dtype=op.dtype or "int8",
        flops=op.flops,
        macs=op.macs,
        operand_bytes=op.operand_bytes,
        schedule="pcie",
        kernels=[_transfer(spec, "copy_h2d", "pcie", time_ps, {"pcie_read_bytes": op.bytes})],
        scope=options.scope,
        time_ps=time_ps,
        simulator=cost.stats(events=0),
    )


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


def listing(asked: Operator, spec: RduSpec, schedule: str) -> str:
    """The program that `run` would run, as text with what each part takes."""
    op = asked.with_defaults(spec.default_dtype)
    return program_listing(fit(build(op, spec, choose(op, spec, schedule).config), spec)[0], spec)


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


def _candidates(choice: Choice, runs: Sequence[ProgramRun], best: int) -> list[Candidate]:
    return [
        Candidate(
            schedule=str(config),
            estimate_cycles=estimate,
            simulated_cycles=runs[i].cycles if i < len(runs) else None,
            chosen=i == best,
        )
        for i, (config, estimate) in enumerate(choice.candidates)
    ]
