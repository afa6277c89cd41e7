"""What a benchmark's clock covers: the time of one operator by scope, measured on the host model as benchmarks measure.

- `kernel`: device time of its kernels alone, as a profiler adds it up; command processing included.
- `event`: between two device events around the call on a busy stream: the kernels and their hand-overs.
- `stream`: mean of back-to-back calls; what the host can hide is hidden, up to the launch gap.
- `host`: host clock around call and synchronise on an idle device.
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.gpu import GpuSpec
from sim.host.model import Host, Kernel, Process

SCOPES = ("kernel", "event", "stream", "host")

_WARM_UP_CALLS = 4
_TIMED_CALLS = 4


def scope_ps(spec: GpuSpec, durations_ps: Sequence[int], scope: str) -> int:
    """Time of one operator whose kernels take `durations_ps` (launch included), in one of `SCOPES`; picoseconds."""
    match scope:
        case "kernel":
            return sum(durations_ps)
        case "event":
            return _event_ps(spec, durations_ps)
        case "stream":
            return _stream_ps(spec, durations_ps)
        case "host":
            return _host_ps(spec, durations_ps)
        case _:
            raise ValueError(f"scope {scope}: must be one of {', '.join(SCOPES)}")


def _calls(host: Host, durations_ps: Sequence[int]) -> list[Kernel]:
    return [Kernel(f"kernel {i}", (duration,)) for i, duration in enumerate(durations_ps)]


def _event_ps(spec: GpuSpec, durations_ps: Sequence[int]) -> int:
    """Something long runs before, so that everything is queued when the first event is reached."""
    host = Host(spec)
    stream = host.stream()
    stamps = []

    def program() -> Process:
        busy_ps = host.host_call_ps * (len(durations_ps) + 2) + spec.launch.api_ps
        yield from host.launch(stream, Kernel("before", (busy_ps,)))
        stamps.append(host.record(stream))
        for kernel in _calls(host, durations_ps):
            yield from host.launch(stream, kernel)
        stamps.append(host.record(stream))

    host.run(program())
    return stamps[1].end_ps - stamps[0].end_ps


def _stream_ps(spec: GpuSpec, durations_ps: Sequence[int]) -> int:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        for _ in range(_WARM_UP_CALLS + _TIMED_CALLS):
            for kernel in _calls(host, durations_ps):
                yield from host.launch(stream, kernel)
        yield from host.synchronise(stream)

    host.run(program())
    ends = [span.end_ps for span in stream.spans[len(durations_ps) - 1 :: len(durations_ps)]]
    return (ends[-1] - ends[_WARM_UP_CALLS - 1]) // _TIMED_CALLS


def _host_ps(spec: GpuSpec, durations_ps: Sequence[int]) -> int:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        for kernel in _calls(host, durations_ps):
            yield from host.launch(stream, kernel)
        yield from host.synchronise(stream)

    return host.run(program())
