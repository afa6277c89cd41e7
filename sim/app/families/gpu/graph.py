"""Plans a graph of operators for a GPU: kernels and addresses of its steps, in the form that is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.units import BYTES
from sim.app.families.gpu.steps import Planned, Shared, Work, shared
from sim.app.families.request import Request, one_of
from sim.app.report.text import bytes_text
from sim.gpu.engine.api import HeldCode
from sim.gpu.engine.beside import Region
from sim.gpu.language import Kernel, Program
from sim.host.scopes import Place
from sim.link.nccl import CHANNEL_BUFFER_BYTES
from sim.memory.model import LINE_BYTES
from workloads.gpu.figures import cold_ps
from workloads.graphs import Graph, GraphBuilder, GraphOperator, Step, Value
from workloads.ops import AllReduce, Collective, CopyH2D, Operator
from workloads.registry import build

FORMS = {
    "eager": (False, "eager"),
    "graph": (False, "graph"),
    "fused": (True, "eager"),
    "fused_graph": (True, "graph"),
}
"""Schedules of a graph: whether neighbouring element-by-element operators are one kernel, and how the host calls it."""

_SUMS = {False: "nccl", True: "vllm"}
"""Whose kernels sum over devices: those of the framework, or those that a serving framework brings along."""


@dataclass(frozen=True)
class PlannedGraph:
    """A graph on a machine, in one of `FORMS`, before it runs."""

    graph: Graph
    form: str
    work: Work

    def __str__(self) -> str:
        """What a report calls the schedule."""
        steps = self.work.steps
        kernels = sum(len(step.kernels) for step in steps)
        devices = self.graph.devices
        together = f" on each of {devices} devices" if devices > 1 else ""
        return f"{self.form}: {len(steps)} operators, {kernels} kernels and copies{together}"


Offers = Callable[[Operator], Sequence[tuple[Any, int]]]
"""The configurations that an operator can have, each with its estimated time in picoseconds, the best first."""


class _Picks:
    """Who chooses an operator's configuration: the best estimate, less what a kernel saves of which the steps before
    have left the code in the instruction caches. cold: kernels fetch their code when they first run."""

    def __init__(self, spec: GpuSpec, offers: Offers, cold: bool) -> None:
        self._spec, self._offers, self._cold = spec, offers, cold
        self._held = HeldCode(spec.sm.instruction_cache_bytes)
        self._ran: dict[tuple[str, str], Sequence[Kernel]] = {}

    def __call__(self, op: Operator) -> tuple[Any, int]:
        """The configuration of the next step, with its estimate."""
        offers = self._offers(op)
        saved = [self._saved(self._ran.get((op.word, str(config)), ())) for config, _ in offers]
        return min(zip(offers, saved, strict=True), key=lambda entry: entry[0][1] - entry[1])[0]

    def _saved(self, kernels: Sequence[Kernel]) -> int:
        return sum(cold_ps(self._spec, kernel.code_bytes) for kernel in kernels if self._cold and kernel in self._held)

    def run(self, op: Operator, config: Any, kernels: Sequence[Kernel]) -> None:
        """A step runs these kernels."""
        self._ran[op.word, str(config)] = kernels
        for kernel in kernels:
            self._held.hold(kernel)


def plan_graph(request: Request, spec: GpuSpec, offers: Offers, cold: bool) -> PlannedGraph:
    """Kernels and addresses of all steps; InputError where one cannot run or they do not fit the device memory. cold:
    kernels fetch their code when they first run."""
    graph, form = _graph_in_form(request, spec)
    addresses, end = graph.addresses()
    library, pick = _SUMS[FORMS[form][0]], _Picks(spec, offers, cold)
    steps = [
        dataclasses.replace(_planned(graph, step, spec, addresses, end, pick, library), place=Place(step.stream, waits))
        for step, waits in zip(graph.steps, graph.waits, strict=True)
    ]
    return PlannedGraph(graph, form, Work(steps, FORMS[form][1]))


def graph_listing(request: Request, spec: GpuSpec, offers: Offers, cold: bool) -> str:
    """The steps of a graph with the kernels and addresses of each; a kernel's own program is its operator's listing."""
    planned = plan_graph(request, spec, offers, cold)
    graph = planned.graph
    addresses, _ = graph.addresses()

    def place(values: Sequence[Value]) -> str:
        return ", ".join(f"{value.buffer}@{addresses[value.buffer] + value.offset_bytes:#x}" for value in values)

    lines = [f"graph {graph} on {spec.name}, {planned.form}: {len(graph.steps)} operators"]
    for step, entry in zip(graph.steps, planned.work.steps, strict=True):
        lines.append(f"  {step.label}: {step.op} ({entry.schedule or 'copy over PCIe'})")
        lines.append(f"    {place(step.operands) or 'host'} -> {place(step.results)}")
    return "\n".join(lines) + "\n"


def _graph_in_form(request: Request, spec: GpuSpec) -> tuple[Graph, str]:
    """The graph that is asked for, and the form in which the host calls it."""
    form = "eager" if request.schedule == "auto" else request.schedule
    one_of("schedule", form, tuple(FORMS))
    asked = request.asked
    if request.without:
        raise InputError(f"without: {asked} is a graph, whose operators are whole; leave a mechanism out of one alone")
    if isinstance(asked, Graph):
        return asked, form
    return _graph(asked.with_defaults(spec.default_dtype), FORMS[form][0]), form


def _graph(op: Operator, fused: bool) -> Graph:
    """The graph that an operator is; of a copy, the copy alone."""
    if isinstance(op, GraphOperator):
        return op.graph(fused)
    builder = GraphBuilder(op.word)
    if isinstance(op, AllReduce):
        x = builder.tensor("x", op.results[0].shape[0], op.chosen_dtype)
        return builder.build(builder.all_reduce(op.word, x, op.devices))
    return builder.build(*builder.calls(op.word, op))


def _planned(
    graph: Graph, step: Step, spec: GpuSpec, addresses: dict[str, int], end: int, pick: _Picks, library: str
) -> Planned:
    """A step with its program; scratch begins at `end`. library: whose kernels sum over devices."""
    if isinstance(step.op, CopyH2D):
        return Planned(step.op, None, {}, label=step.label)
    if isinstance(step.op, AllReduce | Collective):
        made = shared(step.op, spec, library)
        regions = _regions(step, made, spec, addresses, end) if step.stream else ()
        return Planned(step.op, None, {}, label=step.label, shared=made, regions=regions)
    config, estimate_ps = pick(step.op)
    program = build(step.op, spec, config)
    pick.run(step.op, config, program.kernels)
    placed, step_end = _place(step, program, addresses, end)
    if step_end > spec.dram.size_bytes:
        raise InputError(
            f"{graph.name}: tensors and scratch take {bytes_text(step_end)} at {step.label}, {spec.name} has "
            f"dram.size = {BYTES.format(spec.dram.size_bytes)}; smaller batches or a larger machine fit"
        )
    return Planned(step.op, program, placed, estimate_ps, step.label)


def _regions(step: Step, made: Shared, spec: GpuSpec, addresses: dict[str, int], end: int) -> tuple[Region, ...]:
    """What a collective beside kernels moves in memory; its buffer begins at `end`. InputError beyond a node."""
    if not made.ctas:
        raise InputError(f"overlap=1: {step.op} leaves the node, whose collectives alone run beside kernels; overlap=0")

    def region(value: Value, size_bytes: int, *, written: bool) -> Region:
        first, last = (addresses[value.buffer] + value.offset_bytes + n for n in (0, value.size_bytes - 1))
        lines = last // LINE_BYTES - first // LINE_BYTES + 1
        return Region(first // LINE_BYTES, lines, size_bytes // LINE_BYTES, written)

    moved = made.traffic
    found = [
        region(step.operands[0], moved.read_bytes, written=False),
        region(step.results[0], moved.written_bytes, written=True),
    ]
    if landed := moved.landed_bytes // LINE_BYTES:
        lines = min(landed, made.ctas * CHANNEL_BUFFER_BYTES // LINE_BYTES)
        found += [Region(-(-end // LINE_BYTES), lines, landed, written) for written in (True, False)]
    return tuple(found)


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
