"""Runs a graph of operators on a GPU: its kernels one after the other on one device, in the form that is asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.units import BYTES
from sim.app.families import gpu
from sim.app.families.gpu_records import kernel_record, machine_figures
from sim.app.families.options import Cost, Options, Progress, one_of
from sim.app.report.record import CheckResult, GpuLaunch, KernelRecord, OperatorTime, RunRecord
from sim.app.report.sections import bytes_text
from sim.engine.clock import PS_PER_S
from sim.gpu.engine.api import Device, KernelResult, Launch
from sim.gpu.engine.events import Window
from sim.gpu.language import Kernel as GpuKernel
from sim.gpu.language import Program
from sim.host.model import Copy, Host
from sim.host.model import Kernel as HostKernel
from sim.host.scopes import SCOPES, Call, CallTime, call_times, calls_ps
from sim.link.collective import Outcome, fabric_of, fastest
from sim.memory.model import LINE_BYTES
from sim.memory.model import warm as warm_lines
from workloads.gpu.select import choose
from workloads.graphs import Graph, GraphBuilder, GraphOperator, Step, Value
from workloads.ops import AllReduce, CopyH2D, Operator
from workloads.registry import build

FORMS = {
    "eager": (False, "eager"),
    "graph": (False, "graph"),
    "fused": (True, "eager"),
    "fused_graph": (True, "graph"),
}
"""Schedules of a graph: whether neighbouring element-by-element operators are one kernel, and how the host calls it."""

_SETTLING_RUNS = 4


@dataclass(frozen=True)
class Planned:
    """A step with its program (None: a copy), the address of each of the program's tensors, and its rough time."""

    step: Step
    program: Program | None
    addresses: dict[str, int]
    estimate_ps: int = 0


@dataclass(frozen=True)
class Done:
    """A step that has run: its kernels' launches and results, or the time of its copy."""

    planned: Planned
    launches: list[Launch]
    copy_ps: int = 0

    @property
    def results(self) -> list[KernelResult]:
        """Of its kernels, in order."""
        return [launch.result for launch in self.launches]


@dataclass(frozen=True)
class PlannedGraph:
    """A graph on a machine, in one of `FORMS`, before it runs."""

    graph: Graph
    form: str
    conditions: gpu.Conditions
    steps: list[Planned]

    @property
    def calling(self) -> str:
        """How the host calls it: one of `sim.host.scopes.FORMS`."""
        return FORMS[self.form][1]

    @property
    def kernels(self) -> list[GpuKernel | None]:
        """What goes onto the stream, in order; None for a copy or a collective."""
        return [kernel for step in self.steps for kernel in (step.program.kernels if step.program else (None,))]

    def __str__(self) -> str:
        """What a report calls the schedule."""
        return f"{self.form}: {len(self.steps)} operators, {len(self.kernels)} kernels and copies"


class Recorder(Protocol):
    """Who wants to know what happens inside kernels. number: in `PlannedGraph.kernels`. origin_ps: the kernel's launch,
    on the host's clock."""

    def window(self, number: int, origin_ps: int, clock_hz: int, estimate_ps: int) -> Window | None:
        """What the kernel that starts now is to record, None for nothing."""

    def advanced(self, origin_ps: int, launch: Launch) -> None:
        """The kernel's clock may have changed."""

    def ended(self, origin_ps: int, launch: Launch) -> None:
        """The kernel has its result."""


def run(asked: Operator | Graph, spec: GpuSpec, options: Options, progress: Progress | None) -> RunRecord:
    """Simulates every kernel once, in order, on one device, then the host that calls them.

    asked: a graph, an operator that is one, or a copy from the host.
    """
    one_of("scope", options.scope, SCOPES)
    if options.tune:
        raise InputError(f"tune: {asked} is a graph, whose operators take their best estimate; tune them one by one")
    cost = Cost()
    planned = prepare(asked, spec, options)
    graph, conditions, dtype = planned.graph, planned.conditions, _dtype(planned.graph, spec)
    done, times = run_graph(planned, spec, progress)
    time_ps = calls_ps(spec, [_call(entry) for entry in done], options.scope, planned.calling)
    records = [_records(entry, spec, conditions) for entry in done]
    operators = [
        _operator_time(entry.planned.step, found, time.host_ps)
        for entry, found, time in zip(done, records, times, strict=True)
    ]
    kernels = [record for found in records for record in found]
    outcome, notes = _check(planned.steps, spec, conditions) if options.check else (None, [])
    counts = {
        name: sum(record.counters.get(name, 0) for record in kernels)
        for name in ("events", "warp_instructions", "memory_lines")
    }
    rest = time_ps - sum(record.time_ps for record in kernels)
    return RunRecord(
        machine=machine_figures(spec, dtype),
        workload=str(asked),
        dtype=dtype,
        flops=graph.flops,
        macs=graph.macs,
        operand_bytes=graph.lasting_bytes,
        schedule=str(planned),
        kernels=kernels,
        scope=options.scope,
        time_ps=time_ps,
        host_ps={"host": rest} if rest > 0 else {},
        check=outcome,
        simulator=cost.stats(**counts),
        operators=operators,
        notes=notes,
    )


def prepare(asked: Operator | Graph, spec: GpuSpec, options: Options) -> PlannedGraph:
    """The graph that is asked for, planned; InputError where it or an option does not fit."""
    form = "eager" if options.schedule == "auto" else options.schedule
    one_of("schedule", form, tuple(FORMS))
    conditions = gpu.conditions_asked(spec, options)
    graph = asked if isinstance(asked, Graph) else _graph(asked.with_defaults(spec.default_dtype), FORMS[form][0])
    return PlannedGraph(graph, form, conditions, plan(graph, spec))


def run_graph(
    graph: PlannedGraph, spec: GpuSpec, progress: Progress | None, recorder: Recorder | None = None
) -> tuple[list[Done], list[CallTime]]:
    """Runs a graph once, called in its form, after what the conditions ask for: steps, and when each was called."""
    planned, conditions, calling = graph.steps, graph.conditions, graph.calling
    device = Device(spec, regulator=conditions.regulator(spec), exact=conditions.exact, data=conditions.data)
    # A long graph meets its sustained clock on its own, and leaves in the L2 what it touched last.
    warm, short = conditions.l2 == "warm", sum(entry.estimate_ps for entry in planned) < gpu.SETTLED_PS
    if short and conditions.clock == "sustained":
        _settle(planned, device, calling, warm)
    elif short and warm:
        _launch(planned, device, calling)
        device.regulator = conditions.regulator(spec)
    elif warm:
        _warm(planned, device)
    return _launch(planned, device, calling, progress, recorder)


def _graph(op: Operator, fused: bool) -> Graph:
    """The graph that an operator is; of a copy, the copy alone."""
    if isinstance(op, GraphOperator):
        return op.graph(fused)
    builder = GraphBuilder(op.word)
    if isinstance(op, AllReduce):
        x = builder.tensor("x", op.results[0].shape[0], op.chosen_dtype)
        return builder.build(builder.all_reduce(op.word, x, op.devices))
    return builder.build(*builder.calls(op.word, op))


def _operator_time(step: Step, kernels: Sequence[KernelRecord], host_ps: int) -> OperatorTime:
    """One line of the profile."""
    device_ps = sum(record.time_ps for record in kernels)
    return OperatorTime(step.label, step.kind, str(step.op), host_ps, len(kernels), device_ps, step.op.flops)


def plan(graph: Graph, spec: GpuSpec) -> list[Planned]:
    """Kernels and addresses of all steps; InputError where one cannot run or they do not fit the device memory."""
    addresses, end = graph.addresses()
    planned = []
    for step in graph.steps:
        if isinstance(step.op, CopyH2D | AllReduce):
            planned.append(Planned(step, None, {}))
            continue
        config, estimate_ps = choose(step.op, spec).candidates[0]
        program = build(step.op, spec, config)
        placed, step_end = _place(step, program, addresses, end)
        if step_end > spec.dram.size_bytes:
            raise InputError(
                f"{graph.name}: tensors and scratch take {bytes_text(step_end)} at {step.label}, {spec.name} has "
                f"dram.size = {BYTES.format(spec.dram.size_bytes)}; smaller batches or a larger machine fit"
            )
        planned.append(Planned(step, program, placed, estimate_ps))
    return planned


def _place(step: Step, program: Program, addresses: dict[str, int], free: int) -> tuple[dict[str, int], int]:
    """Address of each tensor of a step's program, and the end of all; scratch begins at `free`."""

    def at(value: Value) -> int:
        return addresses[value.buffer] + value.offset_bytes

    places = {"input": [at(value) for value in step.operands], "output": [at(value) for value in step.results]}
    placed, end = {}, free
    for tensor in program.tensors:
        if places.get(tensor.role):
            placed[tensor.name] = places[tensor.role].pop(0)
            continue
        if tensor.role == "input":
            raise ValueError(f"{step.label}: the program of {step.op} has more inputs than the operator")
        end = -(-end // tensor.align_bytes) * tensor.align_bytes
        placed[tensor.name] = end
        end += tensor.size_bytes
    return placed, end


def _dtype(graph: Graph, spec: GpuSpec) -> str:
    """The number format of most of a graph's operations; where there are none, of its first operator."""
    counts: dict[str, int] = {}
    for step in graph.steps:
        dtype = step.op.dtype
        if dtype is not None:
            counts[dtype] = counts.get(dtype, 0) + step.op.flops
    return max(counts, key=lambda name: counts[name], default=spec.default_dtype)


# ---------------------------------------------------------------------------------------------------- running


def _settle(planned: list[Planned], device: Device, calling: str, warm: bool) -> None:
    """Repeats the graph until its clock stays: the chip has been busy with it for long."""
    for _ in range(_SETTLING_RUNS):
        before_hz = device.regulator.clock_hz
        _launch(planned, device, calling)
        if not warm:
            device.flush_l2()
        if device.regulator.clock_hz == before_hz:
            return


def _warm(planned: list[Planned], device: Device) -> None:
    """Leaves in the L2 what a run of the graph before would: the last tensors that were touched."""
    spec = device.memory_spec(device.regulator.clock_hz)
    touched: list[tuple[int, int, bool]] = []  # first line, lines, written; the last touched first
    lines = 0
    for entry in reversed(planned):
        if entry.program is None:
            continue
        for tensor in sorted(entry.program.tensors, key=lambda t: t.role == "input"):
            first = entry.addresses[tensor.name] // LINE_BYTES
            last = (entry.addresses[tensor.name] + tensor.size_bytes - 1) // LINE_BYTES
            touched.append((first, last - first + 1, tensor.role != "input"))
            lines += last - first + 1
        if lines * LINE_BYTES > 2 * device.spec.l2.size_bytes:
            break
    for first, count, written in reversed(touched):
        warm_lines(spec, device.memory, first, count, dirty=written)


def listing(asked: Operator | Graph, spec: GpuSpec, schedule: str) -> str:
    """The steps of a graph with the kernels and addresses of each; a kernel's own program is its operator's listing."""
    form = "eager" if schedule == "auto" else schedule
    one_of("schedule", form, tuple(FORMS))
    graph = asked if isinstance(asked, Graph) else _graph(asked.with_defaults(spec.default_dtype), FORMS[form][0])
    addresses, _ = graph.addresses()

    def place(values: Sequence[Value]) -> str:
        return ", ".join(f"{value.buffer}@{addresses[value.buffer] + value.offset_bytes:#x}" for value in values)

    lines = [f"graph {graph} on {spec.name}, {form}: {len(graph.steps)} operators"]
    for entry in plan(graph, spec):
        step = entry.step
        schedule = entry.program.schedule if entry.program else "copy over PCIe"
        lines.append(f"  {step.label}: {step.op} ({schedule})")
        lines.append(f"    {place(step.operands) or 'host'} -> {place(step.results)}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Issued:
    """A step as the host calls it while it runs."""

    name: str
    issued: list[HostKernel | Copy]

    def commands(self) -> list[HostKernel | Copy]:
        """What goes onto the stream."""
        return self.issued


def _launch(
    planned: list[Planned],
    device: Device,
    calling: str,
    progress: Progress | None = None,
    recorder: Recorder | None = None,
) -> tuple[list[Done], list[CallTime]]:
    """All steps on one stream of the host model, which advances the device window by window; the L2 stays as it is
    from kernel to kernel."""
    spec = device.spec
    host = Host(spec)
    done = [Done(entry, [], _moved_ps(entry, spec)) for entry in planned]
    total = sum(max(entry.step.op.flops, 1) for entry in planned)

    def work(entry: Done, kernel: GpuKernel, number: int, before: int, share: float) -> Iterator[int]:
        step = entry.planned.step
        if step.op.dtype is not None:
            device.energy.set_tensor_dtype(step.op.dtype)
        # Only the first kernel finds an idle device that has to be set up.
        first = all(not other.launches for other in done)
        launch_ps = None if first else spec.launch.kernel_ps
        origin_ps = host.now_ps - spec.launch.kernel_ps
        if recorder is not None:
            estimate_ps = entry.planned.estimate_ps
            device.window = recorder.window(number, origin_ps, device.regulator.clock_hz, estimate_ps)
        launch = device.build(kernel, entry.planned.addresses, launch_ps=launch_ps)
        entry.launches.append(launch)
        for time_ps in launch.windows():
            if recorder is not None:
                recorder.advanced(origin_ps, launch)
            if progress is not None:
                progress((before + (share + launch.share_done) * max(step.op.flops, 1)) / total)
            yield time_ps
        if recorder is not None:
            recorder.ended(origin_ps, launch)

    def commands(entry: Done, number: int, before: int) -> list[HostKernel | Copy]:
        program = entry.planned.program
        if isinstance(entry.planned.step.op, AllReduce):
            return [HostKernel("all_reduce", (entry.copy_ps,))]
        if program is None:
            return [_copy(entry.planned)]
        count = len(program.kernels)
        return [
            HostKernel(kernel.name, work(entry, kernel, number + i, before, i / count))
            for i, kernel in enumerate(program.kernels)
        ]

    calls: list[_Issued] = []
    number = before = 0
    for entry in done:
        calls.append(_Issued(entry.planned.step.label, commands(entry, number, before)))
        number += len(calls[-1].issued)
        before += max(entry.planned.step.op.flops, 1) if entry.planned.program else 0
    return done, call_times(host, calls, calling)


def _copy(entry: Planned) -> Copy:
    op = entry.step.op
    assert isinstance(op, CopyH2D)
    return Copy("h2d", op.bytes)


def _moved_ps(entry: Planned, spec: GpuSpec) -> int:
    """Time of a copy, or of a collective's kernel with its launch; 0 of what computes."""
    op = entry.step.op
    if isinstance(op, AllReduce):
        return spec.launch.kernel_ps + collective_of(op, spec).time_ps
    return _copy(entry).duration_ps(spec) if entry.program is None else 0


def collective_of(op: AllReduce, spec: GpuSpec) -> Outcome:
    """What a collective takes on the links of the machine."""
    return fastest(fabric_of(spec, op.devices), "all_reduce", op.bytes)


def _call(entry: Done) -> Call:
    """What the host calls for a step."""
    if isinstance(entry.planned.step.op, AllReduce):
        return Call(entry.planned.step.label, (entry.copy_ps,))
    copy = _copy(entry.planned) if entry.planned.program is None else None
    return Call(entry.planned.step.label, tuple(result.time_ps for result in entry.results), copy)


# ---------------------------------------------------------------------------------------------------- reporting


def _records(entry: Done, spec: GpuSpec, conditions: gpu.Conditions) -> list[KernelRecord]:
    """One record a kernel, named after the operator too."""
    step, program = entry.planned.step, entry.planned.program
    if isinstance(step.op, AllReduce):
        return [_collective_record(entry, step.op, spec)]
    if program is None:
        return [_copy_record(entry, spec)]
    return [
        dataclasses.replace(record, name=f"{step.label}: {record.name}")
        for launch in entry.launches
        for record in [
            kernel_record(launch, launch.result, program.schedule, gpu.throttle_reason(spec, conditions, launch.result))
        ]
    ]


def _copy_record(entry: Done, spec: GpuSpec) -> KernelRecord:
    """A copy beside kernels: cycles are those that the core's clock would count meanwhile."""
    copy = _copy(entry.planned)
    return KernelRecord(
        name=f"{entry.planned.step.label}: {copy.name}",
        schedule="pcie",
        cycles=entry.copy_ps * spec.clock.boost_hz // PS_PER_S,
        clock_hz=spec.clock.boost_hz,
        time_ps=entry.copy_ps,
        counters={"pcie_read_bytes": copy.size_bytes},
        own=GpuLaunch((1, 1, 1)),
    )


def _collective_record(entry: Done, op: AllReduce, spec: GpuSpec) -> KernelRecord:
    """A collective of one device: cycles are those that the core's clock would count meanwhile."""
    outcome = collective_of(op, spec)
    return KernelRecord(
        name=f"{entry.planned.step.label}: {outcome.algorithm} over {op.devices}",
        schedule=outcome.algorithm,
        cycles=entry.copy_ps * spec.clock.boost_hz // PS_PER_S,
        clock_hz=spec.clock.boost_hz,
        time_ps=entry.copy_ps,
        counters={"link_write_bytes": outcome.sent_bytes // op.devices},
        own=GpuLaunch((1, 1, 1)),
        launch_ps={"command": spec.launch.kernel_ps},
    )


def _check(planned: list[Planned], spec: GpuSpec, conditions: gpu.Conditions) -> tuple[CheckResult, list[str]]:
    """Checks every operator of the graph on its own; the worst."""
    passed, worst, notes = True, 0.0, []
    for entry in planned:
        if entry.program is None:
            continue
        outcome, found = gpu.check(entry.step.op, spec, entry.program, conditions)
        passed = passed and outcome.passed
        worst = max(worst, outcome.max_rel_error if math.isfinite(outcome.max_rel_error) else math.inf)
        notes += [f"{entry.step.label}: {note}" for note in found]
    return CheckResult(passed, worst), notes
