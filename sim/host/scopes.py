"""What a benchmark's clock covers: the time of operators by scope, measured on the host model as benchmarks measure.

- `kernel`: device time of kernels and copies alone, as a profiler adds it up; command processing included.
- `event`: between two device events around the calls on a busy stream: the kernels and their hand-overs.
- `stream`: mean of back-to-back calls; what the host can hide is hidden, up to the launch gap.
- `graph`: mean of many in one CUDA graph, from kernel to kernel; where a benchmark says how it replays its graph, mean
  of what lies between events around these replays on an idle device.
- `host`: host clock around calls and synchronise on an idle device.

An operator, or a sequence of them, is called in one of three ways (`FORMS`): `direct` from a program that launches
kernels itself, `eager` by a framework that dispatches each operator, `graph` as one graph launch of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import simpy

from arch.gpu import GpuSpec
from sim.host.model import Copy, Dependent, Host, Kernel, Node, Process, Span, Stream

FIGURES = (
    "host.framework_overhead",
    "launch.api",
)
"""Figures of a preset that this module reads."""

SCOPES = ("kernel", "event", "stream", "graph", "host")
REPEATED = ("stream", "graph")
"""Scopes whose time is the mean of many calls."""

FORMS = ("direct", "eager", "graph")

_WARM_UP_CALLS = 4
_TIMED_CALLS = 4


class Place(NamedTuple):
    """The stream of a call, and the numbers of calls before it, of other streams, that it waits for."""

    stream: int = 0
    after: tuple[int, ...] = ()


FIRST = Place()
"""The first stream, after what is before in it."""


class HostCall(Protocol):
    """Something that the host calls: its name and, the same at each asking, what goes onto the stream."""

    @property
    def name(self) -> str:
        """Of the operator."""

    @property
    def place(self) -> Place:
        """Where its commands stand."""

    def commands(self) -> list[Kernel | Copy]:
        """Kernels and copies in their order."""


@dataclass(frozen=True)
class GraphReplay:
    """How a benchmark replays a graph: layers that one replay runs after each other, replays between its events."""

    layers: int
    replays: int


@dataclass(frozen=True)
class Call:
    """One operator as the host calls it, whose kernels' durations are known.

    kernels_ps: durations of the kernels that it launches, launch included. copy: what it copies instead. Kernels of
    another stream than the first run beside the first one's. dependents: of kernels under programmatic dependent
    launch, one a kernel.
    """

    name: str
    kernels_ps: tuple[int, ...] = ()
    copy: Copy | None = None
    place: Place = FIRST
    dependents: tuple[Dependent, ...] = ()

    def device_ps(self, spec: GpuSpec) -> int:
        """Device time as a profiler shows it."""
        return sum(self.kernels_ps) + (self.copy.duration_ps(spec) if self.copy else 0)

    def commands(self) -> list[Kernel | Copy]:
        """What goes onto the stream."""
        needs = int(self.place.stream > 0)
        dependents = self.dependents or (None,) * len(self.kernels_ps)
        kernels: list[Kernel | Copy] = [
            Kernel(self.name, (duration_ps,), needs, dependent=dependent)
            for duration_ps, dependent in zip(self.kernels_ps, dependents, strict=True)
        ]
        return [*kernels, self.copy] if self.copy else kernels


@dataclass(frozen=True)
class CallTime:
    """One call on a busy host and stream, picoseconds since the sequence's first.

    host_ps: for how long it kept the host's thread. spans: its commands.
    """

    name: str
    called_ps: int
    host_ps: int
    spans: tuple[Span, ...]


def scope_ps(spec: GpuSpec, durations_ps: Sequence[int], scope: str) -> int:
    """Time of one operator whose kernels take `durations_ps` (launch included), in one of `SCOPES`; picoseconds."""
    return calls_ps(spec, [Call("operator", tuple(durations_ps))], scope)


def calls_ps(
    spec: GpuSpec, calls: Sequence[Call], scope: str, form: str = "direct", replayed: GraphReplay | None = None
) -> int:
    """Time of a sequence of operators, in one of `SCOPES`, called in one of `FORMS`; picoseconds.

    replayed: `graph`: how the benchmark does it, each layer being one such sequence.
    """
    match scope:
        case "kernel":
            return sum(call.device_ps(spec) for call in calls)
        case "event":
            return _event_ps(spec, calls, form)
        case "stream":
            return _stream_ps(spec, calls, form)
        case "graph":
            return _graph_ps(spec, calls) if replayed is None else _replayed_ps(spec, calls, replayed)
        case "host":
            return _host_ps(spec, calls, form)
        case _:
            raise ValueError(f"scope {scope}: must be one of {', '.join(SCOPES)}")


def call_times(host: Host, calls: Sequence[HostCall], form: str) -> list[CallTime]:
    """Runs the sequence once on an idle host: when each call was made and what its commands did."""
    issue = _Issue(host, calls)
    found: list[CallTime] = []

    def program() -> Process:
        if form == "graph":
            yield from issue.sequence(form)
            return
        for number, call in enumerate(calls):
            called_ps = host.now_ps
            yield from issue.call(number, form)
            found.append(CallTime(call.name, called_ps, host.now_ps - called_ps, ()))

    host.run(program())
    if form == "graph":  # the one launch is the first operator's
        found = [CallTime(call.name, 0, 0 if i else host.graph_call_ps, ()) for i, call in enumerate(calls)]
    spans = {number: iter(stream.spans) for number, stream in issue.streams.items()}
    return [
        CallTime(
            time.name, time.called_ps, time.host_ps, tuple(next(spans[call.place.stream]) for _ in call.commands())
        )
        for time, call in zip(found, calls, strict=True)
    ]


class _Issue:
    """The host program of a sequence, which may be run several times on the same streams."""

    def __init__(self, host: Host, calls: Sequence[HostCall]) -> None:
        self.host, self.calls = host, calls
        self.streams = {n: host.stream() for n in sorted({0, *(call.place.stream for call in calls)})}
        self.stream = self.streams[0]
        """The first one, whose end is the sequence's."""
        self.ends: dict[int, simpy.Event] = {}

    def sequence(self, form: str, times: int = 1) -> Process:
        """The whole sequence; times: of a graph, how often it is in the one launch."""
        if form == "graph":
            yield from self.host.launch_chains(self._nodes(times))
            return
        for number in range(len(self.calls)):
            yield from self.call(number, form)

    def call(self, number: int, form: str) -> Process:
        """One operator."""
        host, call = self.host, self.calls[number]
        stream = self.streams[call.place.stream]
        if form == "eager":
            yield from host.dispatch()
        after = [self.ends[other] for other in call.place.after]
        for command in call.commands():
            if isinstance(command, Kernel):
                yield from host.launch(stream, command, after)
            else:
                yield from host.copy(stream, command.direction, command.size_bytes)
        self.ends[number] = stream.last

    def _nodes(self, times: int) -> Iterator[Node]:
        """The sequence's commands as one graph."""
        count = 0
        for _ in range(times):
            last: dict[int, int] = {}
            for number, call in enumerate(self.calls):
                after = [last[other] for other in call.place.after]
                for command in call.commands():
                    yield Node(self.streams[call.place.stream], command, after)
                    count += 1
                last[number] = count - 1


def _event_ps(spec: GpuSpec, calls: Sequence[Call], form: str) -> int:
    """Something long runs before, so that everything is queued when the first event is reached."""
    host = Host(spec)
    issue = _Issue(host, calls)
    stream = issue.stream
    stamps = []

    def program() -> Process:
        launches = sum(len(call.commands()) for call in calls) + 2
        busy_ps = host.host_call_ps * launches + spec.launch.api_ps + spec.host.framework_overhead_ps * len(calls)
        yield from host.launch(stream, Kernel("before", (busy_ps,)))
        stamps.append(host.record(stream))
        yield from issue.sequence(form)
        stamps.append(host.record(stream))

    host.run(program())
    return stamps[1].end_ps - stamps[0].end_ps


def _stream_ps(spec: GpuSpec, calls: Sequence[Call], form: str) -> int:
    host = Host(spec)
    issue = _Issue(host, calls)

    def program() -> Process:
        for _ in range(_WARM_UP_CALLS + _TIMED_CALLS):
            yield from issue.sequence(form)
        yield from host.synchronise(issue.stream)

    host.run(program())
    return _mean_ps(issue.stream)


def _mean_ps(stream: Stream) -> int:
    """Of a stream's timed sequences."""
    commands = len(stream.spans) // (_WARM_UP_CALLS + _TIMED_CALLS)
    ends = [span.end_ps for span in stream.spans[commands - 1 :: commands]]
    return (ends[-1] - ends[_WARM_UP_CALLS - 1]) // _TIMED_CALLS


def _graph_ps(spec: GpuSpec, calls: Sequence[Call]) -> int:
    """From sequence to sequence inside one graph."""
    host = Host(spec)
    issue = _Issue(host, calls)

    def program() -> Process:
        yield from issue.sequence("graph", _WARM_UP_CALLS + _TIMED_CALLS)
        yield from host.synchronise(issue.stream)

    host.run(program())
    return _mean_ps(issue.stream)


def _replayed_ps(spec: GpuSpec, calls: Sequence[Call], replayed: GraphReplay) -> int:
    """Between two events around some replays of a graph on an idle device."""
    host = Host(spec)
    issue = _Issue(host, calls)
    stream = issue.stream
    stamps = []

    def program() -> Process:
        stamps.append(host.record(stream))
        for _ in range(replayed.replays):
            yield from issue.sequence("graph", replayed.layers)
        stamps.append(host.record(stream))

    host.run(program())
    return (stamps[1].end_ps - stamps[0].end_ps) // (replayed.replays * replayed.layers)


def _host_ps(spec: GpuSpec, calls: Sequence[Call], form: str) -> int:
    host = Host(spec)
    issue = _Issue(host, calls)

    def program() -> Process:
        yield from issue.sequence(form)
        yield from host.synchronise(issue.stream)

    return host.run(program())
