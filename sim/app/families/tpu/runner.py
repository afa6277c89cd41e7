"""TPUs: builds the program of an operator, runs the machine, the array alone, and with numbers where asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

from arch import reading
from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.app.families.family import NO_REFERENCE, CandidateRun, Subject
from sim.app.families.request import Progress, Request, one_of
from sim.app.families.tpu import report
from sim.app.families.tpu.report import TpuRun
from sim.app.families.tpu.trace import program_timeline
from sim.app.report.levels import Level
from sim.app.report.record import CheckResult, KernelRecord, MachineFigures
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.tpu.assembly import assemble, disassemble
from sim.tpu.data import Memory
from sim.tpu.floats import FloatMemory
from sim.tpu.machine import ACTIVE, Machine, Result
from sim.tpu.program import Instruction, InterruptHost, Program
from sim.tpu.verify import verify
from workloads.estimates import error_percent
from workloads.graphs.inference import Inference
from workloads.ops import Gemm, Matvec, Operator
from workloads.ops.app_sets import ranges
from workloads.tpu.choose import Config, build, candidates
from workloads.tpu.gemm import matrices
from workloads.written import OwnProgram, held_schedule, placed

if TYPE_CHECKING:
    from sim.tpu.show import ArrayRun
    from workloads.silicon import Row

SCOPES = ("kernel", "host", "array")
"""`kernel`: from the first instruction to the last result in host memory; `host`: with interrupt and driver; `array`:
of the array alone, whose neighbours never make it wait, as SCALE-Sim counts."""

_WHAT_IF = "A what-if: TPU v1 has no vector unit."
_NO_LIMIT = 2**40
"""Rows or bytes of what the array alone never waits for."""
_EVENT_COST = 300
"""Events of the compiled engine of GPUs that take as long as one of this family's, some 50 us."""
_BUILD_EVENTS = 5_000
"""Events of a compiled engine that take as long as writing and verifying a program."""


class Tpu:
    """The family of TPUs."""

    options: tuple[str, ...] = ("schedule", "check", "scope", "tune", "program")

    def plan(self, request: Request) -> ProgramPlan:
        """The programs that could run an operator."""
        one_of("scope", request.scope, SCOPES)
        spec, op = _operator(request)
        return ProgramPlan(request, spec, op, _configurations(request, op, spec))

    def listing(self, request: Request, number: int = 0) -> str:
        """The program as assembly text."""
        spec, op = _operator(request)
        return disassemble(program_of(op, spec, _configurations(request, op, spec)[number][0]).instructions)

    def row(self, row: Row) -> Request:
        """InputError: nobody has published times of these machines by the row."""
        raise InputError(f"{row.machine}: rows of measured times cannot be run on machines of family tpu")

    def show_array(self, request: Request) -> ArrayRun:
        """A product on the array cell by cell, with small whole numbers as operands."""
        from sim.tpu.show import array_run  # only this needs numba, whose import takes longer than most runs

        spec, op = _operator(request)
        if not isinstance(op, Gemm | Matvec) or op.dtype != "int8":
            raise InputError(f"show-array: {request.asked}: shows gemm and matvec of int8")
        a, b = matrices(op, spec, op.inputs(seed=0, data="integers"))
        if a.shape[0] > 1:
            raise InputError(f"show-array: {request.asked}: shows one product, batch must be 1")
        cells = f"{spec.array.rows} x {spec.array.columns} cells ({spec.array.dataflow})"
        return array_run(f"{request.asked} on {spec.label}, {cells}", spec, a[0], b[0])

    def compile_kernels(self, *, check: bool = False) -> None:
        """Nothing that a run needs is compiled."""


def _operator(request: Request) -> tuple[TpuSpec, Operator]:
    """The machine, and the operator with its formats filled in."""
    spec, asked = request.machine, request.asked
    assert isinstance(spec, TpuSpec)
    assert isinstance(asked, Operator)
    return spec, placed(asked, spec)


def _configurations(request: Request, op: Operator, spec: TpuSpec) -> Sequence[tuple[Config | str, int]]:
    """The programs that could run, with their estimated cycles, the best first."""
    if isinstance(op, OwnProgram):
        return [(held_schedule(op, request.schedule), 0)]
    # A search costs little beside a run; mappings of convolutions that it finds may not fit, and are for tuning.
    found = candidates(op, spec, request.schedule, request.tune or isinstance(op, Gemm | Matvec))
    # A part of an array is used because tiles of weights are fetched whole; the array alone fetches nothing.
    whole = ((), (spec.array.rows, spec.array.columns))
    alone = [pair for pair in found if pair[0].tile in whole] if request.scope == "array" else []
    return alone or found


def _hands_over(program: Program) -> bool:
    """Whether a program ends where the host has the next batch ready, so that the turnaround is in its time already."""
    return bool(program.instructions) and program.instructions[-1] == InterruptHost()


@dataclass(frozen=True)
class ProgramPlan:
    """An operator with its candidates. configurations: with their estimated cycles, the best first."""

    request: Request
    spec: TpuSpec
    op: Operator
    configurations: Sequence[tuple[Config | str, int]]

    ways: ClassVar[tuple[str, ...]] = ()
    simpler: ClassVar[tuple[int, ...]] = ()
    overview = Wanted()
    event_cost: ClassVar[int] = _EVENT_COST

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
        """Writing and verifying a program."""
        return _BUILD_EVENTS

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs a candidate, with numbers where a check is asked for."""
        request, spec, op = self.request, self.spec, self.op
        config = self.configurations[number][0]
        if request.scope == "array":
            return self._array(config, wanted)
        program = program_of(op, spec, config, request.program)
        memory = None
        if request.check:
            memory = FloatMemory(spec, program) if spec.floats else Memory(spec, program)
            operands = op.inputs(seed=0)
            program.fill(memory, operands)
        result = Machine(spec, program, memory, progress=progress, log=wanted is not None).run()
        replaced = request.program or isinstance(op, OwnProgram)
        alone = _alone(spec, program) if replaced else array_cycles(op, spec, config)
        record = _kernel(spec, program, result, alone)
        record = replace(
            record,
            transfer_ps=record.time_ps - _untransferred_ps(spec, program),
            own=replace(record.own, ranges=_ranges(spec, op, bool(request.program))),
        )
        host_ps = spec.host.turnaround_ps if request.scope == "host" and not _hands_over(program) else 0
        called = host_ps > 0 or any(isinstance(step, InterruptHost) for step in program.instructions)
        return CandidateRun(
            schedule=program.schedule,
            machine=machine_figures(spec, str(op.dtype)),
            kernels=[record],
            device_ps=record.time_ps,
            time_ps=record.time_ps + host_ps,
            counts={"events": result.events, "instructions": result.instructions},
            host_ps={"host": host_ps} if host_ps else {},
            notes=[*program.notes, *([_WHAT_IF] if spec.vector and not spec.floats else [])],
            check=partial(_check, op, program, memory, operands) if memory is not None else None,
            timeline=partial(program_timeline, self._facts(program), result, wanted) if wanted else None,
            reads=lambda path: _reads(spec, path, called),
        )

    def _array(self, config: Config | str, wanted: Wanted | None) -> CandidateRun:
        """The array of a candidate alone. InputError where numbers or a program of one's own are asked for."""
        for name in ("check", "program"):
            if getattr(self.request, name):
                raise InputError(f"scope=array: the array alone moves no numbers, from no listing; leave out {name}")
        if isinstance(self.op, OwnProgram):
            raise InputError(f"scope=array: {self.op} is a program for this machine's buffers; take scope=kernel")
        spec = _unlimited(self.spec)
        program: Program = build(self.op, spec, _unblocked(config))
        result = Machine(spec, program, alone=True, log=wanted is not None).run()
        record = _kernel(spec, program, result, -(-result.array_ticks // TICKS_PER_CYCLE))
        figures = machine_figures(spec, str(self.op.dtype))
        return CandidateRun(
            schedule=program.schedule,
            machine=replace(figures, free=(*figures.bandwidths, *figures.instances.keys() - {"matrix"}, "host")),
            kernels=[record],
            device_ps=record.time_ps,
            time_ps=record.time_ps,
            counts={"events": result.events, "instructions": result.instructions},
            notes=["The array alone: memories, host and activation unit take no time."],
            timeline=partial(program_timeline, self._facts(program), result, wanted) if wanted else None,
            reads=lambda path: path.partition(".")[0] in ("array", "clock"),
        )

    def _facts(self, program: Program) -> dict[str, str]:
        """What a timeline says about the run."""
        return {"workload": str(self.request.asked), "machine": self.spec.label, "schedule": program.schedule}


def program_of(op: Operator, spec: TpuSpec, config: Config | str, path: str = "") -> Program:
    """The verified program of a candidate, or with its instructions replaced by those of a file."""
    program: Program = op.program if isinstance(op, OwnProgram) else build(op, spec, config)
    if path:
        notes = (*program.notes, f"The program is that of {path}.")
        program = replace(program, instructions=_read(path), notes=notes)
    verify(program, spec)
    return program


def array_cycles(op: Operator, spec: TpuSpec, config: Config | str) -> int:
    """Cycles of the array alone: nothing around it takes time, accumulators and buffers are as large as it likes."""
    ideal = _unlimited(spec)
    program: Program = build(op, ideal, _unblocked(config))
    return _alone(ideal, program)


def _unblocked(config: Config | str) -> Config | str:
    """A mapping whose one block are all rows."""
    return config if isinstance(config, str) else replace(config, m=0, n=0, order="mnk", held=0)


def _unlimited(spec: TpuSpec) -> TpuSpec:
    """The machine with accumulators and a unified buffer as large as a program likes."""
    return spec.model_copy(
        update={
            "accumulators": spec.accumulators.model_copy(update={"rows": _NO_LIMIT}),
            "unified_buffer": spec.unified_buffer.model_copy(update={"size_bytes": _NO_LIMIT}),
        }
    )


def _ranges(spec: TpuSpec, op: Operator, replaced: bool) -> Mapping[str, tuple[float, float]]:
    """Of an application as published, its counters over all sets of layer sizes that fit."""
    if not isinstance(op, Inference) or replaced or op.examples != op.network.batch:
        return {}
    return ranges(op.app, spec.content_hash())


def _reads(spec: TpuSpec, path: str, called: bool) -> bool:
    """Whether a figure can have had a part in a run; called: whether the host was."""
    group = path.partition(".")[0]
    return called if group == "host" else group != "pcie" or spec.unified_buffer.behind == "host"


def _untransferred_ps(spec: TpuSpec, program: Program) -> int:
    """Time of a program whose data are between host and device at once."""
    at_once = spec.pcie.model_copy(update={"bandwidth_bytes_per_s": _NO_LIMIT * PS_PER_S, "latency_ps": 0})
    result = Machine(spec.model_copy(update={"pcie": at_once}), program).run()
    return _time_ps(spec, result)


def _time_ps(spec: TpuSpec, result: Result) -> int:
    return -(-result.ticks * PS_PER_S // (TICKS_PER_CYCLE * spec.clock.boost_hz))


def _alone(spec: TpuSpec, program: Program) -> int:
    """Cycles until the last sum has left the array, where only the array takes time."""
    return -(-Machine(spec, program, alone=True).run().array_ticks // TICKS_PER_CYCLE)


def _read(path: str) -> list[Instruction]:
    """The instructions of a file; InputError with the file where it cannot be read or assembled."""
    written = reading.text(path, f"program {path}")
    try:
        return assemble(written)
    except InputError as error:
        raise InputError(f"program {path} {error}") from None


def machine_figures(spec: TpuSpec, dtype: str) -> MachineFigures:
    """What a report divides by, for operands of type `dtype`."""
    port = spec.unified_buffer.bandwidth_bytes_per_cycle * spec.clock.boost_hz
    return MachineFigures(
        name=spec.name,
        family=spec.family,
        view=report,
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
        instances={"matrix": spec.array.count, "activation": 1, "weights": spec.array.count},
        spec=spec.model_dump(mode="json", by_alias=True),
    )


def _kernel(spec: TpuSpec, program: Program, result: Result, array: int) -> KernelRecord:
    """The record of a run; energy is what each action costs, and static power for as long as it took."""
    cycles = -(-result.ticks // TICKS_PER_CYCLE)
    time_ps = _time_ps(spec, result)
    counts = result.counters
    kinds = dict.fromkeys(name.rstrip("0123456789") for name in result.accounts)
    units = {
        kind: _summed(account for name, account in result.accounts.items() if name.rstrip("0123456789") == kind)
        for kind in kinds
    }
    matrix = units["matrix"]
    activation = result.accounts["activation"]
    busy = sum(activation.get(cause, 0) for cause in ("accumulators", "vector", "vector_unit"))
    moved = {name: count for name, count in counts.items() if name.endswith("_bytes")}
    cell_cycles = spec.cells * TICKS_PER_CYCLE
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
            host_cycles=result.accounts["host"].get("busy", 0) // TICKS_PER_CYCLE,
            loops=program.loops,
            levels=_levels(spec, counts),
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
    if isinstance(op, OwnProgram) and not op.compared:
        return CheckResult(True, None), [NO_REFERENCE]
    if program.reference is None:
        error, allowed = op.largest_error(found, *operands), op.tolerance
    else:
        expected = program.reference(operands)
        error, allowed = max((float(abs(f - e).max()) for f, e in zip(found, expected, strict=True)), default=0.0), 0.0
    passed = error <= allowed
    notes = [] if passed else [f"Check: error {error:.2e}, {allowed:.2e} is allowed."]
    return CheckResult(passed, error if math.isfinite(error) else math.inf), notes


def _levels(spec: TpuSpec, counts: Mapping[str, int]) -> list[Level]:
    """Traffic by memory, from the array outwards; weights pass their FIFO on the way from DRAM."""
    array = spec.array
    sizes = {
        "accumulators": 4 * spec.accumulators.rows * array.columns * array.count,
        "unified_buffer": spec.unified_buffer.size_bytes,
        "dram": spec.dram.size_bytes,
        "pcie": 0,
    }
    names = {"unified_buffer": "unified buffer", "dram": "DRAM", "pcie": "host memory"}
    found = [
        Level(names.get(name, name), size, counts.get(f"{name}_read_bytes", 0), counts.get(f"{name}_write_bytes", 0))
        for name, size in sizes.items()
    ]
    return [level for level in found if level.read_bytes or level.written_bytes]


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
