"""Plans a graph of operators for a GPU: kernels and addresses of its steps, in the form that is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.units import BYTES
from sim.app.families.gpu.steps import CollectiveStep, PlannedStep, Work, shared
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
        self.spec, self._cold = spec, cold
        self._offers = cache(lambda op: [(*offer, (op.word, str(offer[0]))) for offer in offers(op)])
        self._built = cache(lambda op, config: build(op, spec, config))
        self._held = HeldCode(spec.sm.instruction_cache_bytes)
        self._ran: dict[tuple[str, str], Sequence[Kernel]] = {}

    def next(self, op: Operator) -> tuple[Program, int]:
        """The program of the next step, which equal ones share, with its estimate."""
        config, estimate_ps, name = min(self._offers(op), key=lambda offer: offer[1] - self._saved(offer[2]))
        program: Program = self._built(op, config)
        self._ran[name] = program.kernels
        for kernel in program.kernels:
            self._held.hold(kernel)
        return program, estimate_ps

    def refuses(self, op: Operator) -> bool:
        """Whether no kernel here computes an operator, for which its bytes can stand: it multiplies no matrices."""
        if op.macs or isinstance(op, CopyH2D | AllReduce | Collective):
            return False
        try:
            return not self._offers(op)
        except InputError:
            return True

    def _saved(self, name: tuple[str, str]) -> int:
        kernels = self._ran.get(name, ()) if self._cold else ()
        return sum(cold_ps(self.spec, kernel.code_bytes) for kernel in kernels if kernel in self._held)


def plan_graph(request: Request, spec: GpuSpec, offers: Offers, cold: bool) -> PlannedGraph:
    """Kernels and addresses of all steps; InputError where one cannot run or they do not fit the device memory. cold:
    kernels fetch their code when they first run."""
    graph, form = _graph_in_form(request, spec)
    picks = _Picks(spec, offers, cold)
    if graph.others == "stream":
        graph = graph.streaming(picks.refuses)
    addresses, end = graph.addresses()
    sums = cache(lambda op: shared(op, spec, _SUMS[FORMS[form][0]]))
    steps = [
        dataclasses.replace(_planned(graph, step, picks, sums, addresses, end), place=Place(step.stream, waits))
        for step, waits in zip(graph.steps, graph.waits, strict=True)
    ]
    return PlannedGraph(graph, form, Work(steps, FORMS[form][1], graph.repeats))


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
    graph: Graph, step: Step, picks: _Picks, sums: Callable[[Any], CollectiveStep], addresses: dict[str, int], end: int
) -> PlannedStep:
    """A step with its program; scratch begins at `end`. sums: how a library sums over devices."""
    spec = picks.spec
    if isinstance(step.op, CopyH2D):
        return PlannedStep(step.op, None, {}, label=step.label)
    if isinstance(step.op, AllReduce | Collective):
        made = sums(step.op)
        regions = _regions(step, made, spec, addresses, end) if step.stream else ()
        return PlannedStep(step.op, None, {}, label=step.label, shared=made, regions=regions)
    program, estimate_ps = picks.next(step.op)
    placed, step_end = _place(step, program, addresses, end)
    if step_end > spec.dram.size_bytes:
        raise InputError(
            f"{graph.name}: tensors and scratch take {bytes_text(step_end)} at {step.label}, {spec.name} has "
            f"dram.size = {BYTES.format(spec.dram.size_bytes)}; smaller batches or a larger machine fit"
        )
    return PlannedStep(step.op, program, placed, estimate_ps, step.label)


def _regions(
    step: Step, made: CollectiveStep, spec: GpuSpec, addresses: dict[str, int], end: int
) -> tuple[Region, ...]:
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
