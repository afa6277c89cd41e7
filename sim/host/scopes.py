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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from arch.gpu import GpuSpec
from sim.host.model import Copy, Host, Kernel, Process, Span, Stream

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


class Called(Protocol):
    """Something that the host calls: its name and, the same at each asking, what goes onto the stream."""

    @property
    def name(self) -> str:
        """Of the operator."""

    def commands(self) -> list[Kernel | Copy]:
        """Kernels and copies in their order."""


@dataclass(frozen=True)
class Replayed:
    """How a benchmark replays a graph: layers that one replay runs after each other, replays between its events."""

    layers: int
    replays: int


@dataclass(frozen=True)
class Call:
    """One operator as the host calls it, whose kernels' durations are known.

    kernels_ps: durations of the kernels that it launches, launch included. copy: what it copies instead.
    """

    name: str
    kernels_ps: tuple[int, ...] = ()
    copy: Copy | None = None

    def device_ps(self, spec: GpuSpec) -> int:
        """Device time as a profiler shows it."""
        return sum(self.kernels_ps) + (self.copy.duration_ps(spec) if self.copy else 0)

    def commands(self) -> list[Kernel | Copy]:
        """What goes onto the stream."""
        kernels: list[Kernel | Copy] = [Kernel(self.name, (duration_ps,)) for duration_ps in self.kernels_ps]
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
    spec: GpuSpec, calls: Sequence[Call], scope: str, form: str = "direct", replayed: Replayed | None = None
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


def call_times(host: Host, calls: Sequence[Called], form: str) -> list[CallTime]:
    """Runs the sequence once on an idle host: when each call was made and what its commands did."""
    stream = host.stream()
    found: list[CallTime] = []

    def program() -> Process:
        if form == "graph":
            yield from _issue(host, stream, calls, form)
            return
        for call in calls:
            called_ps = host.now_ps
            yield from _issue(host, stream, [call], form)
            found.append(CallTime(call.name, called_ps, host.now_ps - called_ps, ()))

    host.run(program())
    if form == "graph":  # the one launch is the first operator's
        found = [CallTime(call.name, 0, 0 if i else host.graph_call_ps, ()) for i, call in enumerate(calls)]
    spans = iter(stream.spans)
    counts = [len(call.commands()) for call in calls]
    return [
        CallTime(time.name, time.called_ps, time.host_ps, tuple(next(spans) for _ in range(count)))
        for time, count in zip(found, counts, strict=True)
    ]


def _issue(host: Host, stream: Stream, calls: Sequence[Called], form: str) -> Process:
    """The host program of one run of the sequence."""
    if form == "graph":
        yield from host.launch_graph(stream, [command for call in calls for command in call.commands()])
        return
    for call in calls:
        if form == "eager":
            yield from host.dispatch()
        for command in call.commands():
            if isinstance(command, Kernel):
                yield from host.launch(stream, command)
            else:
                yield from host.copy(stream, command.direction, command.size_bytes)


def _event_ps(spec: GpuSpec, calls: Sequence[Call], form: str) -> int:
    """Something long runs before, so that everything is queued when the first event is reached."""
    host = Host(spec)
    stream = host.stream()
    stamps = []

    def program() -> Process:
        launches = sum(len(call.commands()) for call in calls) + 2
        busy_ps = host.host_call_ps * launches + spec.launch.api_ps + spec.host.framework_overhead_ps * len(calls)
        yield from host.launch(stream, Kernel("before", (busy_ps,)))
        stamps.append(host.record(stream))
        yield from _issue(host, stream, calls, form)
        stamps.append(host.record(stream))

    host.run(program())
    return stamps[1].end_ps - stamps[0].end_ps


def _stream_ps(spec: GpuSpec, calls: Sequence[Call], form: str) -> int:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        for _ in range(_WARM_UP_CALLS + _TIMED_CALLS):
            yield from _issue(host, stream, calls, form)
        yield from host.synchronise(stream)

    host.run(program())
    return _mean_ps(stream)


def _mean_ps(stream: Stream) -> int:
    """Of a stream's timed sequences."""
    commands = len(stream.spans) // (_WARM_UP_CALLS + _TIMED_CALLS)
    ends = [span.end_ps for span in stream.spans[commands - 1 :: commands]]
    return (ends[-1] - ends[_WARM_UP_CALLS - 1]) // _TIMED_CALLS


def _graph_ps(spec: GpuSpec, calls: Sequence[Call]) -> int:
    """From sequence to sequence inside one graph."""
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        yield from _issue(host, stream, list(calls) * (_WARM_UP_CALLS + _TIMED_CALLS), "graph")
        yield from host.synchronise(stream)

    host.run(program())
    return _mean_ps(stream)


def _replayed_ps(spec: GpuSpec, calls: Sequence[Call], replayed: Replayed) -> int:
    """Between two events around some replays of a graph on an idle device."""
    host = Host(spec)
    stream = host.stream()
    stamps = []

    def program() -> Process:
        stamps.append(host.record(stream))
        for _ in range(replayed.replays):
            yield from _issue(host, stream, list(calls) * replayed.layers, "graph")
        stamps.append(host.record(stream))

    host.run(program())
    return (stamps[1].end_ps - stamps[0].end_ps) // (replayed.replays * replayed.layers)


def _host_ps(spec: GpuSpec, calls: Sequence[Call], form: str) -> int:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        yield from _issue(host, stream, calls, form)
        yield from host.synchronise(stream)

    return host.run(program())
