"""Runs operators on GPUs: chooses kernels, launches them on the host model, reports and checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from arch.units import BYTES, HERTZ
from sim.app.families.gpu_records import kernel_record, machine_figures
from sim.app.families.options import Cost, Options, Progress, one_of, part
from sim.app.report.record import Candidate, CheckResult, RunRecord
from sim.app.report.sections import bytes_text
from sim.app.study.validate import RowResult
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device, KernelResult, Launch
from sim.gpu.engine.events import EVENT_COLUMNS, Event, Window
from sim.gpu.language import Kernel as GpuKernel
from sim.gpu.language import Program
from sim.gpu.lower.listing import listing as program_listing
from sim.gpu.power.regulator import FixedClock, PowerRegulator, Regulator
from sim.host.model import Host, Process
from sim.host.model import Kernel as HostKernel
from sim.host.scopes import SCOPES, scope_ps
from sim.memory.model import LINE_BYTES, clean
from sim.memory.model import warm as warm_lines
from workloads.gpu.gemm.threadblock import ThreadblockConfig
from workloads.gpu.select import Choice, choose
from workloads.graphs import Graph, GraphOperator
from workloads.ops import AllReduce, CopyH2D, Gemm, Operator
from workloads.registry import build, schedules
from workloads.silicon import Row, environment_of, operator_of

OPTIONS = ("schedule", "check", "exact", "l2", "scope", "clock", "data", "tune")

L2_STATES = ("cold", "warm", "dirty")
CLOCKS = ("isolated", "sustained")
DATA = ("normal", "uniform", "zeros")

TUNED = 4
"""Candidates that `tune` simulates, the best by estimate."""

_WINDOW_PS = PowerRegulator.WINDOW_PS
SETTLED_PS = 40 * _WINDOW_PS
"""A kernel that is longer meets its sustained clock on its own; a shorter one is repeated first."""
_SETTLING_RUNS = 8
_WINDOWS_A_STEP = 8  # windows of the regulator between two turns of the host model

_LOG_ROWS = 1 << 18
_MAX_LOG_ROWS = 1 << 23
"""Event log of a check: 64 bytes a row, 512 MiB at most."""


@dataclass(frozen=True)
class Conditions:
    """Under which a run happens. l2: `cold` is empty, `dirty` full of lines that something else has written, `warm` as
    an earlier run leaves it. dirty_milli: thousandths of the lines of a dirty L2 that DRAM does not have yet. clock_hz:
    locked there; limit_mw: board limit where it is not the preset's. cold_code: kernels fetch their instructions."""

    l2: str = "cold"
    clock: str = "isolated"
    clock_hz: int | None = None
    limit_mw: int | None = None
    data: str = "normal"
    exact: bool = False
    dirty_milli: int = 1000
    cold_code: bool = True

    def regulator(self, spec: GpuSpec) -> Regulator:
        """A fresh regulator; all return every few microseconds, so that progress shows and Ctrl-C is heard."""
        if self.clock == "locked":
            assert self.clock_hz is not None
            return FixedClock(self.clock_hz, _WINDOW_PS)
        sustained = self.clock == "sustained"
        return PowerRegulator(spec, sustained=sustained, limit_mw=self.limit_mw, highest_hz=self.clock_hz)


@dataclass(frozen=True)
class ProgramRun:
    """A program that has run: one launch and one result a kernel."""

    program: Program
    launches: Sequence[Launch]
    results: Sequence[KernelResult]

    @property
    def time_ps(self) -> int:
        """Device time of its kernels."""
        return sum(result.time_ps for result in self.results)


def run(asked: Operator | Graph, spec: GpuSpec, options: Options, progress: Progress | None) -> RunRecord:
    """Simulates the chosen candidate, or the best few, and reports the fastest."""
    if isinstance(asked, Graph | GraphOperator | CopyH2D | AllReduce):
        from sim.app.families import gpu_graph

        return gpu_graph.run(asked, spec, options, progress)
    op = operator_on(asked, spec)
    one_of("scope", options.scope, SCOPES)
    conditions = conditions_asked(spec, options)
    cost = Cost()
    choice = choose(op, spec, options.schedule)
    tried = choice.candidates[: TUNED if options.tune else 1]
    runs: list[ProgramRun] = []
    for i, (config, estimate_ps) in enumerate(tried):
        program = program_of(op, spec, config)
        runs.append(run_program(program, spec, conditions, estimate_ps, str(op.dtype), part(progress, i, len(tried))))
    best = min(range(len(runs)), key=lambda i: runs[i].time_ps)
    chosen = runs[best]
    records = [
        kernel_record(launch, result, chosen.program.schedule, throttle_reason(spec, conditions, result))
        for launch, result in zip(chosen.launches, chosen.results, strict=True)
    ]
    time_ps = scope_ps(spec, [record.time_ps for record in records], options.scope)
    outcome, notes = check(op, spec, chosen.program, conditions) if options.check else (None, [])
    # The counts are those of the timed run.
    counts = {
        name: sum(record.counters[name] for record in records)
        for name in ("events", "warp_instructions", "memory_lines")
    }
    return RunRecord(
        machine=machine_figures(spec, str(op.dtype)),
        workload=str(asked),
        dtype=str(op.dtype),
        flops=op.flops,
        macs=op.macs,
        operand_bytes=op.operand_bytes,
        schedule=chosen.program.schedule,
        kernels=records,
        scope=options.scope,
        time_ps=time_ps,
        candidates=_candidates(choice, spec, runs, best),
        host_ps={"host": rest} if (rest := time_ps - chosen.time_ps) > 0 else {},
        check=outcome,
        simulator=cost.stats(**counts),
        notes=notes,
    )


def listing(asked: Operator, spec: GpuSpec, schedule: str) -> str:
    """The program that `run` would run, as text with the cost of each instruction."""
    if isinstance(asked, GraphOperator | CopyH2D | AllReduce):
        from sim.app.families import gpu_graph

        return gpu_graph.listing(asked, spec, schedule)
    op = operator_on(asked, spec)
    return program_listing(program_of(op, spec, choose(op, spec, schedule).config), spec)


def row(row: Row) -> RowResult:
    """Simulates a row of reference data in its source's environment."""
    environment = environment_of(row.source)
    rate = environment.dram_bandwidth_tb_s
    spec = load_arch(row.machine, [f"dram.bandwidth={rate} TB/s"] if rate else [])
    op = operator_on(operator_of(row), spec)
    kinds = schedules(op.word, spec.family)
    schedule = row.kind or row.schedule
    if schedule != "vendor" and schedule not in kinds:
        raise InputError(f"schedule {schedule} of {row.op} is not available; there are vendor, {', '.join(kinds)}")
    conditions = conditions_of(row)
    vendor = environment.kind.get(row.dtype, "auto")
    choice = choose(op, spec, vendor if schedule == "vendor" else schedule)
    config, estimate_ps = choice.candidates[0]
    if environment.raster.get(row.dtype) == "linear" and isinstance(config, ThreadblockConfig):
        config = replace(config, group=1)
    run = run_program(program_of(op, spec, config), spec, conditions, estimate_ps, str(op.dtype), None)
    # A `host` row states its own overhead, which is added to the kernels' time.
    scope = "kernel" if row.scope == "host" else row.scope
    time_ps = scope_ps(spec, [result.time_ps for result in run.results], scope)
    cycles = sum(-(-result.ticks // TICKS_PER_CYCLE) for result in run.results)
    return RowResult(run.program.schedule, cycles, time_ps)


def conditions_of(row: Row) -> Conditions:
    """What a row's source states about how it measured."""
    environment = environment_of(row.source)
    return Conditions(
        l2=environment.flush if row.cold_l2 else "warm",
        clock=environment.clock,
        clock_hz=round(environment.locked_clock_mhz * 1_000_000) if environment.locked_clock_mhz else None,
        limit_mw=round(environment.power_limit_w * 1000) if environment.power_limit_w else None,
        data=environment.data_of(row.dtype),
        dirty_milli=round(1000 * environment.dirty_share),
        cold_code=environment.code == "cold",
    )


def compile_kernels(*, check: bool = False) -> None:
    """Makes the compiled kernels ready for other processes, those of check mode too, by running something small."""
    run(Gemm(m=64, n=64, k=64, dtype="fp16"), load_arch("t4"), Options(check=check), None)


# ---------------------------------------------------------------------------------------------- what was asked for


def operator_on(asked: Operator, spec: GpuSpec) -> Operator:
    """The operator with its formats filled in; InputError where it does not fit the machine's memory."""
    op = asked.with_defaults(spec.default_dtype)
    if op.operand_bytes > spec.dram.size_bytes:
        raise InputError(
            f"{op}: operands and result take {bytes_text(op.operand_bytes)}, {spec.name} has dram.size = "
            f"{BYTES.format(spec.dram.size_bytes)}; a smaller problem, a narrower dtype or a larger machine fits"
        )
    return op


def conditions_asked(spec: GpuSpec, options: Options) -> Conditions:
    """What the options ask for."""
    l2, clock, data, exact = options.l2, options.clock, options.data, options.exact
    one_of("l2", l2, L2_STATES)
    one_of("data", data, DATA)
    if clock in CLOCKS:
        return Conditions(l2, clock, None, None, data, exact)
    try:
        clock_hz = round(HERTZ.parse(clock))
    except ValueError:
        raise InputError(f"clock={clock}: must be {', '.join(CLOCKS)} or a clock such as 1.41 GHz") from None
    lowest, highest = 100_000_000, spec.clock.boost_hz
    if not lowest <= clock_hz <= highest:
        nearest = HERTZ.format(min(max(clock_hz, lowest), highest))
        limits = f"{HERTZ.format(lowest)} to {HERTZ.format(highest)}"
        raise InputError(f"clock={clock}: {spec.name} takes {limits}, nearest: {nearest}")
    return Conditions(l2, "locked", clock_hz, None, data, exact)


def program_of(op: Operator, spec: GpuSpec, config: Any) -> Program:
    """The program; InputError where operands, results and scratch together do not fit the device memory."""
    program: Program = build(op, spec, config)
    addresses = program.addresses()
    end = max(addresses[tensor.name] + tensor.size_bytes for tensor in program.tensors)
    if end > spec.dram.size_bytes:
        raise InputError(
            f"{op} with {program.schedule}: tensors and scratch take {bytes_text(end)}, {spec.name} has "
            f"dram.size = {BYTES.format(spec.dram.size_bytes)}"
        )
    return program


# ---------------------------------------------------------------------------------------------------- running


def run_program(
    program: Program,
    spec: GpuSpec,
    conditions: Conditions,
    estimate_ps: int,
    dtype: str,
    progress: Progress | None,
    window: Window | None = None,
) -> ProgramRun:
    """Runs all kernels once, timed, after what the conditions ask for.

    estimate_ps: rough time of the program. window: what the timed kernels record.
    """
    device = Device(
        spec, regulator=conditions.regulator(spec), exact=conditions.exact, cold_launch=conditions.cold_code,
        data=conditions.data,
    )  # fmt: skip
    device.energy.set_tensor_dtype(dtype)
    warm, short = conditions.l2 == "warm", estimate_ps < SETTLED_PS
    if short and conditions.clock == "sustained":
        _repeat_until_settled(program, device, conditions)
    elif short and warm:
        _launch(program, device, None)
        device.regulator = conditions.regulator(spec)
    elif warm:
        _warm(program, device)
    else:
        _flush(program, device, conditions)
    device.window = window
    return _launch(program, device, progress)


def _repeat_until_settled(program: Program, device: Device, conditions: Conditions) -> None:
    """Repeats a short program until its clock stays: the chip has been busy with it for long."""
    for _ in range(_SETTLING_RUNS):
        before_hz = device.regulator.clock_hz
        _launch(program, device, None)
        if conditions.l2 != "warm":
            _flush(program, device, conditions)
        if device.regulator.clock_hz == before_hz:
            return


def _flush(program: Program, device: Device, conditions: Conditions) -> None:
    """Empties the L2, or fills it with lines that something else has written and that DRAM does not have yet."""
    device.flush_l2()
    if conditions.l2 == "dirty":
        spec = device.memory_spec(device.regulator.clock_hz)
        addresses = program.addresses()
        first = 1 + max((addresses[t.name] + t.size_bytes) // LINE_BYTES for t in program.tensors)
        warm_lines(spec, device.memory, first, device.spec.l2.size_bytes // LINE_BYTES, dirty=True)
        clean(device.memory, 1000 - conditions.dirty_milli)


def _warm(program: Program, device: Device) -> None:
    """Leaves in the L2 what a run before would: operands, then what it wrote last."""
    addresses = program.addresses()
    spec = device.memory_spec(device.regulator.clock_hz)
    for tensor in sorted(program.tensors, key=lambda t: t.role != "input"):
        first = addresses[tensor.name] // LINE_BYTES
        last = (addresses[tensor.name] + tensor.size_bytes - 1) // LINE_BYTES
        warm_lines(spec, device.memory, first, last - first + 1, dirty=tensor.role != "input")


def _launch(program: Program, device: Device, progress: Progress | None) -> ProgramRun:
    """The program's kernels on one stream of the host model, which advances the device window by window."""
    addresses = program.addresses()
    launches: list[Launch] = []
    host = Host(device.spec)
    stream = host.stream()

    def work(i: int, kernel: GpuKernel) -> Iterator[int]:
        launch = device.build(kernel, addresses)
        launches.append(launch)
        for number, time_ps in enumerate(launch.windows()):
            if number % _WINDOWS_A_STEP == 0:
                if progress is not None:
                    progress((i + launch.share_done) / len(program.kernels))
                yield time_ps
        yield time_ps

    def calls() -> Process:
        for i, kernel in enumerate(program.kernels):
            yield from host.launch(stream, HostKernel(kernel.name, work(i, kernel)))
        yield from host.synchronise(stream)

    host.run(calls())
    return ProgramRun(program, launches, [launch.result for launch in launches])


# ---------------------------------------------------------------------------------------------------- reporting


def throttle_reason(spec: GpuSpec, conditions: Conditions, result: KernelResult) -> str | None:
    """Why the clock was below boost."""
    highest_hz = max(hz for _, hz in result.clocks)
    if conditions.clock == "locked":
        return "locked" if highest_hz < spec.clock.boost_hz else None
    start_hz = min(conditions.clock_hz or spec.clock.tensor_hz, spec.clock.boost_hz)
    if result.clock_hz < 0.99 * start_hz:
        return "power" if conditions.clock == "sustained" else "regulator"
    if conditions.clock_hz:
        return "locked"
    return "tensor_clock" if start_hz < spec.clock.boost_hz else None


def _candidates(choice: Choice, spec: GpuSpec, runs: Sequence[ProgramRun], best: int) -> list[Candidate]:
    """What was considered, in the order of the estimate; simulated ones with what came out."""
    simulated = [sum(-(-result.ticks // TICKS_PER_CYCLE) for result in run.results) for run in runs]
    return [
        Candidate(
            schedule=str(config),
            estimate_cycles=estimate_ps * spec.clock.tensor_hz // PS_PER_S,
            simulated_cycles=simulated[i] if i < len(simulated) else None,
            chosen=i == best,
        )
        for i, (config, estimate_ps) in enumerate(choice.candidates)
    ]


# ---------------------------------------------------------------------------------------------------- checking


def check(op: Operator, spec: GpuSpec, program: Program, conditions: Conditions) -> tuple[CheckResult, list[str]]:
    """Replays the schedule with numbers and compares with NumPy; the result, and a sentence for each thing wrong."""
    operands = op.inputs(seed=0)
    by_role = {role: [t for t in program.tensors if t.role == role] for role in ("input", "output")}
    # Operands beyond the inputs are results that the operator adds to.
    inputs = {
        tensor.name: array.reshape(tensor.shape)
        for tensor, array in zip([*by_role["input"], *by_role["output"]], operands, strict=False)
    }
    replay = interpret(program, _events(program, spec, conditions), inputs)
    error = op.largest_error([replay.outputs[tensor.name] for tensor in by_role["output"]], *operands)
    passed = error <= op.tolerance and not replay.violations
    notes = [f"Check: {violation}." for violation in replay.violations]
    if not error <= op.tolerance:
        notes.append(f"Check: relative error {error:.2e}, rounding alone explains {op.tolerance:.2e}.")
    return CheckResult(passed, error if math.isfinite(error) else math.inf), notes


def _events(program: Program, spec: GpuSpec, conditions: Conditions) -> np.ndarray:
    """The event log of all kernels of a program, shape (rows, 8); InputError if it would be too large."""
    rows = _LOG_ROWS
    while True:
        device = Device(spec, regulator=conditions.regulator(spec), exact=conditions.exact, log=True)
        logs = []
        needed = 0
        for number, kernel in enumerate(program.kernels):
            launch = device.build(kernel, program.addresses())
            launch.state = launch.state._replace(log=np.zeros((rows, EVENT_COLUMNS), dtype=np.int64))
            try:
                events = launch.run().events
            except MemoryError:
                needed = max(needed, launch.log_rows_needed)
                continue
            assert events is not None
            events[:, Event.KERNEL] = number
            logs.append(events)
        if not needed:
            return np.concatenate(logs)
        if needed > _MAX_LOG_ROWS:
            raise InputError(
                f"check: {program.name} with {program.schedule} logs {needed} events, more than the {_MAX_LOG_ROWS} "
                f"that fit in {BYTES.format(64 * _MAX_LOG_ROWS)}; a smaller problem runs the same code"
            )
        rows = needed
