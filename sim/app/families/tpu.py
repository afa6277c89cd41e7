"""Runs operators on TPUs: builds the program, runs the machine, the array alone, and with numbers where asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.app.families.options import Cost, Options, Progress, one_of
from sim.app.report.record import Candidate, CheckResult, KernelRecord, MachineFigures, RunRecord
from sim.app.report.tpu import TpuRun
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.tpu.assembly import assemble, disassemble
from sim.tpu.data import Memory
from sim.tpu.machine import ACTIVE, Machine, Result
from sim.tpu.program import Instruction, Program
from sim.tpu.verify import verify
from workloads.ops import Gemm, Matvec, Operator
from workloads.registry import build
from workloads.tpu.choose import Config, candidates
from workloads.tpu.gemm import matrices

if TYPE_CHECKING:
    from sim.tpu.show import ArrayRun

OPTIONS = ("schedule", "check", "scope", "program")
SCOPES = ("kernel", "host")
"""`kernel`: from the first instruction to the last result in host memory; `host`: with interrupt and driver."""

_NO_LIMIT = 2**40
"""Rows or bytes of what the array alone never waits for."""


def run(asked: Operator, spec: TpuSpec, options: Options, progress: Progress | None) -> RunRecord:
    """Simulates the candidate with the best estimate."""
    one_of("scope", options.scope, SCOPES)
    op, choice = choose_on(asked, spec, options.schedule)
    cost = Cost()
    config, _ = choice[0]
    program = program_of(op, spec, config, options.program)
    memory = None
    if options.check:
        memory = Memory(spec, program)
        operands = op.inputs(seed=0)
        program.fill(memory, operands)
    result = Machine(spec, program, memory, progress=progress).run()
    alone = _alone(spec, program) if options.program else array_cycles(op, spec, config)
    record = _kernel(spec, program, result, alone)
    time_ps = record.time_ps + (spec.host.turnaround_ps if options.scope == "host" else 0)
    outcome, failures = (None, []) if memory is None else _check(op, program, memory, operands)
    return RunRecord(
        machine=machine_figures(spec, str(op.dtype)),
        workload=str(asked),
        dtype=str(op.dtype),
        flops=op.flops,
        macs=op.macs,
        operand_bytes=op.operand_bytes,
        schedule=program.schedule,
        kernels=[record],
        scope=options.scope,
        time_ps=time_ps,
        candidates=[Candidate(str(c), e, record.cycles if c == config else None, c == config) for c, e in choice],
        host_ps={"host": time_ps - record.time_ps} if time_ps > record.time_ps else {},
        check=outcome,
        simulator=cost.stats(events=result.events, instructions=result.instructions),
        notes=[*program.notes, *failures, *(["A what-if: TPU v1 has no vector unit."] if spec.vector else [])],
    )


def program_of(op: Operator, spec: TpuSpec, config: Config, path: str = "") -> Program:
    """The verified program of a candidate, or with its instructions replaced by those of a file."""
    program: Program = build(op, spec, config)
    if path:
        notes = (*program.notes, f"The program is that of {path}.")
        program = replace(program, instructions=_read(path), notes=notes)
    verify(program, spec)
    return program


def listing(asked: Operator, spec: TpuSpec, schedule: str) -> str:
    """The program as assembly text."""
    op, choice = choose_on(asked, spec, schedule)
    program: Program = build(op, spec, choice[0][0])
    return disassemble(program.instructions)


def show_array(asked: Operator, spec: TpuSpec) -> ArrayRun:
    """A product on the array cell by cell, with small whole numbers as operands."""
    from sim.tpu.show import array_run  # only this needs numba, whose import takes longer than most runs

    op = asked.with_defaults(spec.default_dtype)
    if not isinstance(op, Gemm | Matvec) or op.dtype != "int8":
        raise InputError(f"show-array: {asked}: shows gemm and matvec of int8")
    a, b = matrices(op, spec, op.inputs(seed=0, data="integers"))
    if a.shape[0] > 1:
        raise InputError(f"show-array: {asked}: shows one product, batch must be 1")
    title = f"{asked} on {spec.name}, {spec.array.rows} x {spec.array.columns} cells ({spec.array.dataflow})"
    return array_run(title, spec, a[0], b[0])


def array_cycles(op: Operator, spec: TpuSpec, config: Config) -> int:
    """Cycles of the array alone: nothing around it takes time, accumulators and buffers are as large as it likes."""
    ideal = spec.model_copy(
        update={
            "accumulators": spec.accumulators.model_copy(update={"rows": _NO_LIMIT}),
            "unified_buffer": spec.unified_buffer.model_copy(update={"size_bytes": _NO_LIMIT}),
        }
    )
    program: Program = build(op, ideal, config)
    return _alone(ideal, program)


def _alone(spec: TpuSpec, program: Program) -> int:
    """Cycles until the last sum has left the array, where only the array takes time."""
    return -(-Machine(spec, program, alone=True).run().array_ticks // TICKS_PER_CYCLE)


def _read(path: str) -> list[Instruction]:
    """The instructions of a file; InputError with the file where it cannot be read or assembled."""
    try:
        return assemble(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"program {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except InputError as error:
        raise InputError(f"program {path} {error}") from None


def machine_figures(spec: TpuSpec, dtype: str) -> MachineFigures:
    """What a report divides by, for operands of type `dtype`."""
    port = spec.unified_buffer.bandwidth_bytes_per_cycle * spec.clock.boost_hz
    return MachineFigures(
        name=spec.name,
        family=spec.family,
        boost_hz=spec.clock.boost_hz,
        peak_ops_per_s=int(spec.peak_flops(dtype)),
        bandwidths={
            "unified_buffer": int(port),
            "dram": spec.dram.bandwidth_bytes_per_s,
            "pcie": spec.pcie.bandwidth_bytes_per_s,
        },
        duplex=("unified_buffer", "pcie"),
        clocked=("unified_buffer",),
        power_limit_mw=spec.power.limit_mw,
        instances={"matrix": spec.array.count, "activation": 1},
        spec=spec.model_dump(mode="json", by_alias=True),
    )


def choose_on(asked: Operator, spec: TpuSpec, schedule: str) -> tuple[Operator, list[tuple[Config, int]]]:
    """The operator with its formats filled in, and its candidates with their estimates, the best first."""
    op: Operator = asked.with_defaults(spec.default_dtype)
    return op, candidates(op, spec, schedule)


def _kernel(spec: TpuSpec, program: Program, result: Result, array: int) -> KernelRecord:
    """The record of a run; energy is what each action costs, and static power for as long as it took."""
    cycles = -(-result.ticks // TICKS_PER_CYCLE)
    time_ps = -(-result.ticks * PS_PER_S // (TICKS_PER_CYCLE * spec.clock.boost_hz))
    counts = result.counters
    matrix = _summed(account for name, account in result.accounts.items() if name.startswith("matrix"))
    units = {"matrix": matrix} | {n: a for n, a in result.accounts.items() if not n.startswith("matrix")}
    activation = result.accounts["activation"]
    busy = sum(activation.get(cause, 0) for cause in ("accumulators", "vector", "vector_unit"))
    moved = {name: count for name, count in counts.items() if name.endswith("_bytes")}
    cell_cycles = spec.tile_bytes * TICKS_PER_CYCLE
    return KernelRecord(
        name=program.name,
        schedule=program.schedule,
        cycles=cycles,
        clock_hz=spec.clock.boost_hz,
        time_ps=time_ps,
        counters={
            "macs": counts["macs"],
            "events": result.events,
            "instructions": result.instructions,
            "matrix_busy_cycles": matrix.get(ACTIVE, 0) // TICKS_PER_CYCLE,
            "activation_busy_cycles": busy // TICKS_PER_CYCLE,
            **moved,
        },
        stalls={name: _cycles(account) for name, account in units.items()},
        own=TpuRun(
            array_cycles=array,
            useful_cycles=counts["useful_ticks"] // cell_cycles,
            active_cycles=counts["cell_ticks"] // cell_cycles,
            raw_stall_cycles=counts["raw_stall_ticks"] // TICKS_PER_CYCLE,
            input_stall_cycles=counts["input_stall_ticks"] // TICKS_PER_CYCLE,
        ),
        energy_fj=energy_fj(spec, counts, time_ps),
    )


def energy_fj(spec: TpuSpec, counts: Mapping[str, int], time_ps: int) -> int:
    """Energy of a run: cells that multiplied, bytes that moved, and static power."""
    each = spec.power.energy
    cells = counts["cell_ticks"] // TICKS_PER_CYCLE

    def moved(level: str) -> int:
        return sum(counts.get(f"{level}_{side}_bytes", 0) for side in ("read", "write"))

    return (
        cells * each.mac_fj
        + moved("unified_buffer") * each.buffer_fj_per_byte
        + moved("dram") * each.dram_fj_per_byte
        + moved("pcie") * each.pcie_fj_per_byte
        + spec.power.static_mw * time_ps  # 1 mW for 1 ps is 1 fJ
    )


def _check(op: Operator, program: Program, memory: Memory, operands: tuple) -> tuple[CheckResult, list[str]]:
    """Compares what has come out with NumPy: bit for bit, on quantised data where the schedule quantises."""
    found = program.results(memory)
    if program.reference is None:
        error, allowed = op.largest_error(found, *operands), op.tolerance
    else:
        expected = program.reference(operands)
        error, allowed = max(float(abs(f - e).max()) for f, e in zip(found, expected, strict=True)), 0.0
    passed = error <= allowed
    notes = [] if passed else [f"Check: error {error:.2e}, {allowed:.2e} is allowed."]
    return CheckResult(passed, error if math.isfinite(error) else math.inf), notes


def _summed(accounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums of counts by name."""
    total: dict[str, int] = {}
    for account in accounts:
        for cause, ticks in account.items():
            total[cause] = total.get(cause, 0) + ticks
    return total


def _cycles(account: Mapping[str, int]) -> dict[str, int]:
    """Whole cycles whose sum is that of the ticks: parts still add up to their whole."""
    found, seen = {}, 0
    for name, ticks in account.items():
        found[name] = (seen + ticks) // TICKS_PER_CYCLE - seen // TICKS_PER_CYCLE
        seen += ticks
    return found
