"""Runs operators on dataflow machines: chooses a program, runs its sections, reports and checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.engine.clock import ticks_to_ps
from sim.rdu.engine import SectionResult, run_section
from sim.rdu.host import Launch, run_launches
from sim.rdu.interpret import interpret
from sim.rdu.listing import listing as program_listing
from sim.rdu.program import Program
from sim.report.record import Candidate, CheckResult, KernelRecord, RunRecord
from sim.runners.options import Cost, Options, Progress, one_of, part
from sim.runners.rdu_records import kernel_record, machine_figures
from workloads.ops import Operator
from workloads.rdu.select import Choice, build, choose

OPTIONS = ("schedule", "check", "scope", "tune")

SCOPES = ("kernel", "host")
TUNED = 6


@dataclass(frozen=True)
class ProgramRun:
    """A program that has run: the result of each section, and a record for each launch."""

    program: Program
    results: Mapping[int, SectionResult]
    records: Sequence[KernelRecord]
    time_ps: int

    @property
    def cycles(self) -> int:
        """Cycles of all launches."""
        return sum(record.cycles for record in self.records)


def run(asked: Operator, spec: RduSpec, options: Options, progress: Progress | None) -> RunRecord:
    """Simulates the chosen program, or the best few, and reports the fastest."""
    op = asked.with_defaults(spec.default_dtype)
    one_of("scope", options.scope, SCOPES)
    cost = Cost()
    choice = choose(op, spec, options.schedule)
    tried = choice.candidates[: TUNED if options.tune else 1]
    runs = [
        run_program(_program(op, spec, config), spec, part(progress, i, len(tried)))
        for i, (config, _) in enumerate(tried)
    ]
    best = min(range(len(runs)), key=lambda i: runs[i].time_ps)
    chosen = runs[best]
    outcome, notes = check_program(op, chosen) if options.check else (None, [])
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


def listing(asked: Operator, spec: RduSpec, schedule: str) -> str:
    """The program that `run` would run, as text with what each part takes."""
    op = asked.with_defaults(spec.default_dtype)
    return program_listing(_program(op, spec, choose(op, spec, schedule).config), spec)


def run_program(program: Program, spec: RduSpec, progress: Progress | None = None, *, log: bool = True) -> ProgramRun:
    """Runs each section once and plays its launches; calls that differ in addresses alone take the same time."""
    addresses = program.addresses()
    results: dict[int, SectionResult] = {}
    for i, call in enumerate(program.calls):
        if id(call.section) not in results:
            results[id(call.section)] = run_section(call.section, spec, addresses, log=log)
        if progress is not None:
            progress((i + 1) / len(program.calls))
    order = list(results)
    records: list[KernelRecord] = []
    launches: list[Launch] = []
    loaded = order[0]
    for call in program.calls:
        result = results[id(call.section)]
        again = None
        for _ in range(call.times):
            reconfigured = id(call.section) != loaded
            if reconfigured or again is None:
                record = kernel_record(result, spec, program, reconfigured=reconfigured)
            else:
                record = again
            again = record if not reconfigured else None
            loaded = id(call.section)
            records.append(record)
            launches.append(
                Launch(order.index(loaded), ticks_to_ps(result.ticks, spec.clock.boost_hz), call.prefetch_bytes)
            )
    timeline = run_launches(spec, launches, program.orchestration, configured=0)
    return ProgramRun(program, results, records, timeline.total_ps)


def check_program(
    op: Operator, done: ProgramRun, operands: Sequence[Any] | None = None
) -> tuple[CheckResult, list[str]]:
    """Replays the program with numbers and compares with NumPy; the result, and a sentence for each thing wrong."""
    program = done.program
    operands = op.inputs(seed=0) if operands is None else operands
    stored = [array for array, operand in zip(operands, op.operands, strict=True) if operand.stored]
    inputs = {}
    by_role = {role: [t for t in program.tensors if t.role == role] for role in ("input", "output")}
    names = {t.name: t for t in program.tensors}
    ordered = [names[o.name] for o in op.operands if o.name in names and o.stored]
    # Operands beyond the inputs are results that the operator adds to.
    targets = ordered if len(ordered) == len(stored) else [*by_role["input"], *by_role["output"]]
    for tensor, array in zip(targets, stored, strict=False):
        inputs[tensor.name] = np.broadcast_to(array.reshape(tensor.shape), (program.devices, *tensor.shape))
    for result in done.results.values():
        if len(result.log) < sum(stage.firings for stage in result.configuration.stages):
            raise InputError(f"check: {program.name} keeps no event log")
    replay = interpret(program, {key: result.log for key, result in done.results.items()}, inputs)
    outputs = [replay.outputs[tensor.name][0] for tensor in by_role["output"]]
    error = op.largest_error(outputs, *operands)
    passed = error <= op.tolerance and not replay.violations
    notes = [f"Check: {violation}." for violation in replay.violations]
    if not error <= op.tolerance:
        notes.append(f"Check: relative error {error:.2e}, rounding alone explains {op.tolerance:.2e}.")
    return CheckResult(passed, error if math.isfinite(error) else math.inf), notes


def _program(op: Operator, spec: RduSpec, config: Any) -> Program:
    """The program; InputError where its arrays do not fit a memory."""
    program = build(op, spec, config)
    memories = {"hbm": (spec.main_memory, "hbm" if spec.hbm else "ddr"), "ddr": (spec.ddr, "ddr")}
    for place, (memory, name) in memories.items():
        size = program.memory_bytes(place)  # type: ignore[arg-type]
        if size > memory.size_bytes:
            raise InputError(
                f"{op}: arrays take {BYTES.format(size)}, {spec.name} has {name}.size = "
                f"{BYTES.format(memory.size_bytes)}; a smaller problem or more devices fit"
            )
    return program


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
