"""`tilewave validate TRACE --arch A`: kernels of a profiler's trace beside those that are simulated.

What a trace ran is called in its order as one graph, so that caches hold what the calls before have left; equal calls
are simulated twice and the second one's time stands for those that follow. Collectives and copies run by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from arch.arguments import one_of
from arch.errors import InputError
from arch.families import family
from arch.load import load_arch
from sim.app.families.request import Progress, Request
from sim.app.report.render import Shown
from sim.app.report.report import Report
from sim.app.report.sections import Section
from sim.app.report.text import percent, time_text
from sim.app.run import request_of, run, simulate
from workloads.gpu.select import choose
from workloads.graphs.graph import Graph, GraphBuilder, Value
from workloads.graphs.kineto import Call, MeasuredTrace, read_trace
from workloads.graphs.meanings import Model, Node, Writer

SIMULATED = 2
"""How often equal calls are simulated at most."""
_NO_KERNEL = "no kernel here computes it"
KERNELS = ("best", "pytorch")
"""What is simulated: the fastest kernel that there is, or the one that PyTorch would run as far as it is known."""
_PYTORCH = {"attention": "flash2", "gemm": "cublas"} | dict.fromkeys(
    ("gather", "layernorm", "pointwise", "rmsnorm", "softmax", "sum"), "torch"
)
"""By operator, PyTorch's kernel."""


@dataclass(frozen=True)
class Pair:
    """Equal calls of a trace, with what was measured and what was simulated of all of them together. ours: the operator
    as text. kernels: names of those that were measured. schedule: what was simulated."""

    operator: str
    shapes: str
    ours: str
    calls: int
    measured_us: float
    simulated_us: float
    kernels: Sequence[str]
    schedule: str

    @property
    def difference_us(self) -> float:
        """Simulated less measured."""
        return self.simulated_us - self.measured_us


@dataclass(frozen=True)
class Unpaired:
    """Equal calls that nothing here stands beside, and why."""

    operator: str
    shapes: str
    calls: int
    measured_us: float
    kernels: Sequence[str]
    why: str


@dataclass(frozen=True)
class TraceComparison(Shown):
    """A trace beside a machine. pairs: the largest difference first; unpaired: the longest first."""

    trace: str
    device: str
    machine: str
    pairs: Sequence[Pair]
    unpaired: Sequence[Unpaired]

    @property
    def paired_us(self) -> float:
        """Measured device time of all pairs."""
        return sum(pair.measured_us for pair in self.pairs)

    @property
    def measured_us(self) -> float:
        """Measured device time of the trace."""
        return self.paired_us + sum(one.measured_us for one in self.unpaired)

    @property
    def paired_share(self) -> float:
        """Share of the device time that is paired."""
        return self.paired_us / self.measured_us if self.measured_us else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Pairs and what is unpaired as plain data."""
        return {
            "schema_version": "1.0",
            "trace": self.trace,
            "device": self.device,
            "machine": self.machine,
            "measured_us": self.measured_us,
            "paired_share": self.paired_share,
            "simulated_us": sum(pair.simulated_us for pair in self.pairs),
            "pairs": [{**asdict(pair), "difference_us": pair.difference_us} for pair in self.pairs],
            "unpaired": [asdict(one) for one in self.unpaired],
        }

    def sections(self) -> list[Section]:
        """The whole, what differs most, and what is unpaired."""
        simulated = sum(pair.simulated_us for pair in self.pairs)
        head = [("measured on", self.device)] if self.device else []
        kernels = sum(len(pair.kernels) for pair in self.pairs)
        head += [
            ("measured", f"{_us(self.measured_us)} of device time"),
            ("paired", f"{percent(self.paired_share)} of it, {kernels} kinds of kernels"),
            ("simulated", f"{_us(simulated)} for the {_us(self.paired_us)} that are paired{_off(simulated, self)}"),
        ]
        pairs = tuple(
            (pair.operator, pair.ours, str(pair.calls), _us(pair.measured_us), _us(pair.simulated_us),
             f"{pair.difference_us:+.2f} us", _short(pair.kernels), pair.schedule)
            for pair in self.pairs
        )  # fmt: skip
        unpaired = tuple(
            (one.operator, one.shapes, str(one.calls), _us(one.measured_us), one.why, _short(one.kernels))
            for one in self.unpaired
        )
        names = ("operator", "here", "calls", "measured", "simulated", "difference", "its kernel", "schedule here")
        found = [
            Section(f"{self.trace} beside {self.machine}", tuple(head)),
            Section("Where the microseconds went, the largest difference first", pairs, names),
            Section("Unpaired", unpaired, ("operator", "shapes", "calls", "measured", "why", "its kernel")),
        ]
        return [section for section in found if section.rows]


def _us(value: float) -> str:
    return time_text(round(value * 1e6))


def _off(simulated: float, found: TraceComparison) -> str:
    if not found.paired_us:
        return ""
    off = simulated / found.paired_us - 1
    return f", {percent(abs(off))} {'more' if off > 0 else 'less'}"


def _short(kernels: Sequence[str]) -> str:
    name = kernels[0].removeprefix("void ").replace("(anonymous namespace)::", "").partition("(")[0].strip()
    more = f" and {len(kernels) - 1} more" if len(kernels) > 1 else ""
    return (name if len(name) <= 48 else f"{name[:45]}...") + more


def compare_trace(
    path: Path, machine: str, set: Sequence[str] = (), clock: str = "isolated", kernels: str = "best",
    progress: Progress | None = None,
) -> TraceComparison:  # fmt: skip
    """Each kernel of a trace beside what is simulated for its operator and shapes.

    path: JSON of torch.profiler, perhaps gzipped. machine, set, clock: as of `simulate`. kernels: one of `KERNELS`.
    InputError for what is no such trace.
    """
    one_of("kernels", kernels, KERNELS)
    if not (its := family(load_arch(machine, set).family)).compiled_kernels:
        raise InputError(f"trace {path}: is of GPUs, {machine} is of family {its.name}; h100-sxm is one")
    trace = read_trace(path)
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in trace.calls:
        groups.setdefault(_kind(trace, call), []).append(call)
    how = {"set": set, "clock": clock}
    ran = _simulated(trace, machine, {**how, "kernels": kernels}, progress)
    pairs, unpaired = [], []
    for kind, calls in groups.items():
        first, measured = calls[0], sum(call.measured_us for call in calls)
        names = tuple(dict.fromkeys(name for call in calls for name in call.kernels))
        found = ran.get(kind) or (_alone(first.workload, machine, how) if first.workload else first.why)
        if isinstance(found, str):
            unpaired.append(Unpaired(first.label, first.shapes, len(calls), measured, names, found))
            continue
        times = [us for us, _, _ in found]
        simulated = sum(times[: len(calls)]) + times[-1] * max(0, len(calls) - len(times))
        ours, schedule = found[0][1:]
        pairs.append(Pair(first.label, first.shapes, ours, len(calls), measured, simulated, names, schedule))
    return TraceComparison(
        trace.name,
        trace.device,
        machine,
        sorted(pairs, key=lambda pair: -abs(pair.difference_us)),
        sorted(unpaired, key=lambda one: -one.measured_us),
    )


def _kind(trace: MeasuredTrace, call: Call) -> tuple[Any, ...]:
    """What equal calls share."""

    def of(node: Node) -> tuple[Any, ...]:
        tensors = [trace.tensors[name] for name in (*node.inputs, *node.outputs)]
        links = [link.function for link in node.keys.get("links", ())]
        keys = {key: value for key, value in node.keys.items() if key != "links"}
        return (
            node.meaning,
            str(keys),
            *links,
            *((tensor.shape, tensor.dtype, tensor.turned, tensor.order) for tensor in tensors),
        )

    return (call.label, call.workload, call.why, *map(of, call.nodes), call.shapes if not call.nodes else "")


Simulated = list[tuple[float, str, str]] | str
"""Microseconds, operator and schedule of each call that was simulated; or why none was."""


def _simulated(
    trace: MeasuredTrace, machine: str, how: Mapping[str, Any], progress: Progress | None
) -> dict[tuple[Any, ...], Simulated]:
    """What a graph of the trace's calls takes, by kind of calls."""
    g = GraphBuilder(trace.name, "stream")
    writer = _Continued(Model(trace.name, trace.tensors, (), ()), g)
    spans: list[tuple[tuple[Any, ...], int]] = []
    for call in trace.calls:
        kind = _kind(trace, call)
        if not call.nodes or sum(kind == other for other, _ in spans) == SIMULATED:
            continue
        writer.call(call)
        spans.append((kind, writer.steps))
    if not writer.steps:
        return {}
    request = request_of(writer.built(), machine, how["set"], clock=how["clock"])
    if how["kernels"] == "pytorch":
        request = replace(request, held=_of_pytorch(request))
    report = Report(run(request, progress))
    found: dict[tuple[Any, ...], Simulated] = {}
    begin = 0
    for kind, end in spans:
        own, begin = report.record.operators[begin:end], end
        if not own or any(operator.streamed_bytes for operator in own):
            found[kind] = _NO_KERNEL
            continue
        ours, schedule = (" + ".join(dict.fromkeys(getattr(one, n) for one in own)) for n in ("workload", "schedule"))
        times = found.setdefault(kind, [])
        if isinstance(times, list):
            times.append((sum(one.device_ps for one in own) / 1e6, ours, schedule))
    return found


def _of_pytorch(request: Request) -> tuple[tuple[str, str], ...]:
    """PyTorch's kernels of a graph's operators; `auto` where none is known."""
    assert isinstance(request.asked, Graph)
    found = {}
    for op in {step.op for step in request.asked.steps}:
        schedule = _PYTORCH.get(op.word, "auto")
        try:
            choose(op, request.machine, schedule)  # type: ignore[arg-type]
        except InputError:
            schedule = "auto"
        found[str(op)] = schedule
    return tuple(found.items())


class _Continued(Writer):
    """Writes calls of a trace, which does not say whose result one reads: the latest tensor of that size and format."""

    def __init__(self, model: Model, g: GraphBuilder) -> None:
        super().__init__(model, g)
        self._latest: dict[tuple[int, str], Value] = {}
        self._last: Value | None = None

    @property
    def steps(self) -> int:
        """Steps so far."""
        return len(self.g)

    def call(self, call: Call) -> None:
        """Writes the nodes of a call."""
        made = {name for node in call.nodes for name in node.outputs}
        for name in dict.fromkeys(name for node in call.nodes for name in node.inputs):
            tensor = self.tensor(name)
            if name not in made and (latest := self._latest.get((tensor.size, tensor.dtype))) is not None:
                self.values[name] = latest
        for node in call.nodes:
            self.add(node)
        for name in call.nodes[-1].outputs:
            if name in self.values:
                self._last = self.values[name]
                self._latest[self._last.size, self._last.dtype] = self._last

    def built(self) -> Any:
        """The graph."""
        assert self._last is not None
        return self.g.build(self._last)


def _alone(workload: str, machine: str, how: Mapping[str, Any]) -> Simulated:
    """An operator by itself, or why it does not run."""
    try:
        report = simulate(workload, machine, set=how["set"], clock=how["clock"])
    except InputError as error:
        return str(error)
    return [(report.time_us, workload, report.record.schedule)]
