"""Gemmini: chooses a mapping for an operator, runs its tiles, and with numbers where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from arch.errors import InputError
from arch.gemmini import GemminiSpec
from arch.load import load_arch
from arch.units import BYTES
from sim.app.families.family import CandidateRun, Subject
from sim.app.families.gemmini import report
from sim.app.families.gemmini.report import GemminiRun
from sim.app.families.gemmini.trace import mapping_timeline
from sim.app.families.request import Progress, Request, one_of
from sim.app.report.levels import Level
from sim.app.report.record import CheckResult, KernelRecord, MachineFigures
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S
from sim.gemmini.listing import listing as program_listing
from sim.gemmini.machine import Result, simulate
from sim.gemmini.program import Program
from workloads.estimates import error_percent
from workloads.gemmini.check import product
from workloads.gemmini.estimate import work
from workloads.gemmini.gemm import OUT_BYTES
from workloads.gemmini.mapping import Mapped
from workloads.ops import Operator
from workloads.registry import build, chooser
from workloads.silicon import operator_of
from workloads.written import OwnProgram, placed

if TYPE_CHECKING:
    from sim.tpu.show import ArrayRun
    from workloads.silicon import Row

L2_STATES = ("cold", "warm")

_BUILD_EVENTS = 20_000
"""Events that take as long as making the tiles of a program."""


class Gemmini:
    """The family of Gemminis."""

    options: tuple[str, ...] = ("schedule", "check", "l2", "tune")

    def plan(self, request: Request) -> MappingPlan:
        """The mappings that could run an operator."""
        spec, op = _operator(request)
        one_of("l2", request.l2, L2_STATES)
        return MappingPlan(request, spec, op, chooser(op, spec)(op, spec, request.schedule))

    def listing(self, request: Request, number: int = 0) -> str:
        """The tiles of a mapping, as text."""
        plan = self.plan(request)
        return program_listing(build(plan.op, plan.spec, plan.mappings[number][0]))

    def row(self, row: Row) -> Request:
        """A row of reference data: its schedule is a mapping, its L2 as its source left it."""
        environment = row.environment
        if environment.left_out:
            raise InputError(f"rows of {row.source} are left out: {environment.left_out}")
        l2 = "cold" if row.cold_l2 else "warm"
        return Request(str(operator_of(row)), load_arch(row.machine, row.overrides), schedule=row.kind, l2=l2)

    def show_array(self, request: Request) -> ArrayRun:
        """InputError: its cells are not shown one by one."""
        raise InputError(f"show-array: {request.machine.name} shows no cells; tpu-v1 does")

    def compile_kernels(self, *, check: bool = False) -> None:
        """Compiles the loop: one small product."""
        spec = load_arch("gemmini")
        request = Request("gemm m=16 n=16 k=16", spec, schedule="ws")
        self.plan(request).run(0, None)


def _operator(request: Request) -> tuple[GemminiSpec, Operator]:
    """The machine, and the operator with its formats filled in."""
    spec, asked = request.machine, request.asked
    assert isinstance(spec, GemminiSpec)
    assert isinstance(asked, Operator)
    if isinstance(asked, OwnProgram):
        raise InputError(f"{asked}: {spec.name} runs no programs of one's own")
    return spec, placed(asked, spec)


@dataclass(frozen=True)
class MappingPlan:
    """An operator with its mappings and their estimated cycles, the best first."""

    request: Request
    spec: GemminiSpec
    op: Any
    mappings: Sequence[tuple[Mapped, int]]

    ways: ClassVar[tuple[str, ...]] = ()
    simpler: ClassVar[tuple[int, ...]] = ()
    overview = Wanted()
    event_cost, ready_events = 1, _BUILD_EVENTS

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    @cached_property
    def candidates(self) -> list[tuple[str, int]]:
        """The mappings as text, with their estimated cycles."""
        return [(str(mapping), cycles) for mapping, cycles in self.mappings]

    @property
    def error_percent(self) -> int:
        """What the estimate says of itself."""
        return error_percent(self.spec.family, self.op.word)

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs a mapping."""
        spec, mapping = self.spec, self.mappings[number][0]
        program = build(self.op, spec, mapping)
        if program.operand_bytes > spec.dram.size_bytes:
            needs, has = BYTES.format(program.operand_bytes), BYTES.format(spec.dram.size_bytes)
            raise InputError(f"{self.op}: operands and result take {needs}, {spec.name} has dram.size={has}")
        result = simulate(spec, program, warm=self.request.l2 == "warm", log=wanted is not None)
        record = _record(spec, self.op, program, result)
        return CandidateRun(
            schedule=program.schedule,
            machine=_figures(spec),
            kernels=[record],
            device_ps=record.time_ps,
            time_ps=record.time_ps,
            counts={"events": result.events},
            check=partial(_check, self.op, program) if self.request.check else None,
            timeline=partial(mapping_timeline, self._facts(program), result, wanted) if wanted else None,
            reads=lambda path: {"core.command": program.serial, "core.choice": program.choices > 0}.get(path, True),
        )

    def _facts(self, program: Program) -> dict[str, str]:
        """What a timeline says about the run."""
        return {"workload": str(self.request.asked), "machine": self.spec.label, "schedule": program.schedule}


def _figures(spec: GemminiSpec) -> MachineFigures:
    """What a report divides by."""
    bus = int(spec.dma.bus_bytes_per_cycle * spec.clock.boost_hz)
    return MachineFigures(
        name=spec.name,
        family=spec.family,
        view=report,
        boost_hz=spec.clock.boost_hz,
        peak_ops_per_s=int(spec.peak_flops("int8")),
        bandwidths={"l2": bus, "dram": spec.dram.bandwidth_bytes_per_s},
        duplex=("l2",),
        clocked=("l2",),
        instances={"array": 1},
        spec=spec.model_dump(mode="json", by_alias=True),
    )


def _record(spec: GemminiSpec, op: Any, program: Program, result: Result) -> KernelRecord:
    """The record of a run."""
    clock = spec.clock.boost_hz
    return KernelRecord(
        name=program.name,
        schedule=program.schedule,
        cycles=result.cycles,
        clock_hz=clock,
        time_ps=-(-result.cycles * PS_PER_S // clock),
        counters={
            "macs": op.macs,
            "events": result.events,
            "array_busy_cycles": result.accounts["array"]["active"],
            **result.counters,
        },
        stalls=result.accounts,
        own=GemminiRun(len(program.tiles), _levels(spec, op, program, result)),
    )


def _levels(spec: GemminiSpec, op: Any, program: Program, result: Result) -> list[Level]:
    """Traffic by level, from the array outwards."""
    done, block = work(spec, program, OUT_BYTES[str(op.out)]), spec.array.size
    loaded = done.image + done.weights
    sums = int(done.sums.sum()) * 4 * block
    counts = result.counters
    return [
        Level("accumulators", spec.accumulator.size_bytes, sums + int(done.results.sum()), sums),
        Level(
            "scratchpad",
            spec.scratchpad.size_bytes,
            int((done.rows + done.fresh * block).sum()) * block,
            int(loaded.sum()),
            largest_bytes=int(loaded.max()),
        ),
        Level("L2", spec.l2.size_bytes, counts["l2_read_bytes"], counts["l2_write_bytes"]),
        Level("DRAM", spec.dram.size_bytes, counts["dram_read_bytes"], counts["dram_write_bytes"]),
    ]


def _check(op: Any, program: Program) -> tuple[CheckResult, list[str]]:
    """Adds up what each tile computes and compares with the operator."""
    whole = replace(op, out="int32")
    operands = whole.inputs(seed=0)
    error = whole.largest_error([product(op, program, *operands)], *operands)
    exact = bool(np.isfinite(error)) and error <= whole.tolerance
    return CheckResult(exact, error), []
