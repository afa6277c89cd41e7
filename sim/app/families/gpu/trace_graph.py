"""The timeline of a graph of operators on a GPU, of a copy or a collective: host, stream, links, inside kernels.

Kernels may run at different clocks, so that the common axis is time, in cycles of the boost clock. Host, stream, copies
and messages are those of the whole run; what happens inside SMs is recorded in the window that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.app.families.gpu.trace import ROWS, check_units, sample_cycles
from sim.app.families.gpu.trace_kernel import Collector
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.gpu.engine.api import KernelResult, Launch
from sim.gpu.language import Kernel
from sim.gpu.units.events import Window
from sim.host.model import Host, Span
from sim.host.scopes import CallTime
from sim.link.collective import Send
from workloads.ops import CopyH2D, Operator


@dataclass(frozen=True)
class Shown:
    """A step of the graph that has run. schedule, results: of its kernels. sends: messages of a collective. stream: the
    number of its stream."""

    op: Operator
    label: str
    schedule: str
    results: Sequence[KernelResult]
    sends: Sequence[Send] = ()
    stream: int = 0


def _listed(numbers: Sequence[str]) -> str:
    """`0 to 7`, or one by one where some are left out."""
    together = int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers)
    return f"{numbers[0]} to {numbers[-1]}" if together and len(numbers) > 1 else ", ".join(numbers)


class Axis:
    """Ticks of one kernel, whose clock may change, as time. origin_ps: its launch; clocks: as in `Launch`."""

    def __init__(self, origin_ps: int, clocks: Sequence[tuple[int, int]], boost_hz: int) -> None:
        self.origin_ps, self.boost_hz = origin_ps, boost_hz
        self.pieces: list[tuple[int, int, int]] = []  # first tick, ps since the launch, Hz
        tick = 0
        for (begin_ps, hz), (end_ps, _) in pairwise([*clocks, clocks[-1]]):
            self.pieces.append((tick, begin_ps, hz))
            tick += (end_ps - begin_ps) * hz * TICKS_PER_CYCLE // PS_PER_S

    def cycle(self, tick: int) -> int:
        """Cycles of the boost clock since the host's first call."""
        first, begin_ps, hz = next(piece for piece in reversed(self.pieces) if piece[0] <= tick or piece[0] == 0)
        ps = self.origin_ps + begin_ps + (tick - first) * PS_PER_S // (hz * TICKS_PER_CYCLE)
        return ps * self.boost_hz // PS_PER_S

    def tick(self, ps: int) -> int:
        """The tick at a time of the host's clock, by what is known of the kernel's."""
        since_ps = max(ps - self.origin_ps, 0)
        first, begin_ps, hz = next(piece for piece in reversed(self.pieces) if piece[1] <= since_ps)
        return first + (since_ps - begin_ps) * hz * TICKS_PER_CYCLE // PS_PER_S


class GraphRecorder:
    """Has the kernels in the window record, and brings their rows into the timeline as soon as each ends.

    facts: what was run. kernels: what goes onto the stream, None for a copy or a collective. InputError for a kernel or
    SMs that are not there.
    """

    FAR_PS = 1 << 50

    def __init__(
        self, facts: Mapping[str, str], kernels: Sequence[Kernel | None], spec: GpuSpec, wanted: Wanted
    ) -> None:
        check_units(wanted, spec)
        self.workload = facts["workload"]
        inside = [str(number) for number, kernel in enumerate(kernels) if kernel is not None]
        if wanted.kernel is not None and str(wanted.kernel) not in inside:
            have = f"the kernels of {self.workload} are {_listed(inside)}" if inside else ""
            raise InputError(f"--kernel {wanted.kernel}: {have or f'{self.workload} has no kernel with SM tracks'}")
        hz = spec.clock.boost_hz
        axis = f"1 ns in this trace is 1 cycle of the boost clock ({hz / 1e6:g} MHz); 0 is the host's first call"
        self.found = Timeline(f"{self.workload} on {spec.label}", {**facts, "time": axis})
        self.host = self.found.track("host, stream and links: 1 ns = 1 cycle of the boost clock")
        self.root = self.found.track(spec.label)
        self.spec, self.wanted, self.has_kernels = spec, wanted, bool(inside)
        self.rows = 0

    def timeline(self, graph: str, calling: str, steps: Iterable[Shown], times: Sequence[CallTime]) -> Timeline:
        """The whole run; InputError if the window holds nothing. calling: how the host called it."""
        whole = _Outside(self.found, self.host, self.spec, graph, calling, list(steps), times).collect()
        self.found.facts["cycles"] = str(whole)
        if self.has_kernels and not self.rows:
            raise InputError(
                f"trace: nothing happens on these SMs in this window; {self.workload} takes {whole} cycles"
            )
        return self.found

    def _window_ps(self, origin_ps: int) -> tuple[int, int]:
        """First and last time, on the host's clock: since its first call, or since the launch of the one kernel."""
        base = 0 if self.wanted.kernel is None else origin_ps
        first, last = (None if c is None else base + _ps(c, self.spec) for c in (self.wanted.first, self.wanted.last))
        return first or 0, self.FAR_PS if last is None else last

    def window(self, number: int, origin_ps: int, clock_hz: int, estimate_ps: int) -> Window | None:
        """What the kernel that starts now records."""
        first_ps, last_ps = self._window_ps(origin_ps)
        if self.wanted.kernel not in (None, number) or origin_ps >= last_ps:
            return None
        axis = Axis(origin_ps, [(0, clock_hz)], self.spec.clock.boost_hz)
        return Window(
            axis.tick(first_ps),
            axis.tick(last_ps),
            self.wanted.first_unit,
            self.wanted.last_unit,
            ROWS - self.rows,
            sample_ticks=TICKS_PER_CYCLE * sample_cycles(self.wanted, estimate_ps, self.spec),
        )

    def advanced(self, origin_ps: int, launch: Launch) -> None:
        """Keeps the window in its place on the axis when the kernel's clock changes."""
        axis = Axis(origin_ps, launch.clocks, self.spec.clock.boost_hz)
        first_ps, last_ps = self._window_ps(origin_ps)
        launch.record_within(axis.tick(first_ps), axis.tick(last_ps))

    def ended(self, origin_ps: int, launch: Launch) -> None:
        """Draws what the kernel has recorded, and lets go of it."""
        result = launch.result
        if result.events is None or result.trace is None:
            return
        axis = Axis(origin_ps, launch.clocks, self.spec.clock.boost_hz)
        if len(result.events) or len(result.trace):
            Collector(self.found, self.root, self.spec, launch, result, axis.cycle, alone=False).collect()
        self.rows += max(len(result.events), len(result.trace))
        result.events = result.trace = None


class _Outside:
    """Host thread, stream, copies and messages of the whole run."""

    def __init__(
        self,
        found: Timeline,
        root: int,
        spec: GpuSpec,
        graph: str,
        calling: str,
        steps: Sequence[Shown],
        times: Sequence[CallTime],
    ) -> None:
        self.found, self.root, self.spec = found, root, spec
        self.graph, self.calling, self.steps, self.times = graph, calling, steps, times
        self.launched: dict[int, int] = {}  # flow of each launch, by the number of its command

    def collect(self) -> int:
        """Fills in everything; the cycle at which the last command ends."""
        self._host()
        self._stream()
        return max(self._cycle(span.end_ps) for time in self.times for span in time.spans)

    def _cycle(self, ps: int) -> int:
        return ps * self.spec.clock.boost_hz // PS_PER_S

    def _host(self) -> None:
        """Operators as the host calls them, and what each call consists of."""
        operators = self.found.track("host thread: operators", self.root)
        calls = self.found.track("host thread: calls", self.root)
        call_ps = Host(self.spec).host_call_ps
        number = 0
        for step, time in zip(self.steps, self.times, strict=True):
            if self.calling == "graph":
                if number == 0:
                    self._add(operators, 0, call_ps, f"launch of {self.graph}", "host")
                    self.launched[0] = self.found.flow()
                    self._add(calls, 0, call_ps, "graph launch", "host", flows=(self.launched[0],))
                number += len(time.spans)
                continue
            args: dict[str, str | int] = {"operator": str(step.op), "kernels": len(time.spans)}
            self._add(operators, time.called_ps, time.called_ps + time.host_ps, step.label, "host", args)
            if time.spans[0].called_ps > time.called_ps:
                self._add(calls, time.called_ps, time.spans[0].called_ps, "framework", "host")
            for span in time.spans:
                self.launched[number] = self.found.flow()
                flows = (self.launched[number],)
                self._add(calls, span.called_ps, span.called_ps + call_ps, f"launch {span.name}", "host", flows=flows)
                number += 1

    def _stream(self) -> None:
        """Kernels and copies on the device, and between them what the stream waited for."""
        tracks = {n: self.found.track(f"stream {n + 1}", self.root) for n in sorted({s.stream for s in self.steps})}
        free = dict.fromkeys(tracks, 0)
        number = 0
        for step, time in zip(self.steps, self.times, strict=True):
            kernels, stream, free_ps = iter(step.results), tracks[step.stream], free[step.stream]
            for span in time.spans:
                arrives_ps = span.called_ps + self.spec.launch.api_ps
                self._gap(stream, free_ps, min(arrives_ps, span.start_ps), "waits for the host")
                self._gap(stream, max(free_ps, arrives_ps), span.start_ps, "launch")
                args = {"number": number, "operator": step.label, **self._about(step, kernels)}
                if span.start_ps < free_ps:  # under programmatic dependent launch; a track shows one after the other
                    args["overlap_cycles"] = self._cycle(free_ps - span.start_ps)
                flows = (self.launched[number],) if number in self.launched else ()
                self._add(stream, max(free_ps, span.start_ps), span.end_ps, span.name, "kernel", args, flows)
                self._links(step, span)
                free_ps = free[step.stream] = span.end_ps
                number += 1

    def _gap(self, track: int, begin_ps: int, end_ps: int, name: str) -> None:
        if end_ps > begin_ps:
            self._add(track, begin_ps, end_ps, name, "gap")

    @staticmethod
    def _about(step: Shown, kernels: Iterator[KernelResult]) -> dict[str, str | int]:
        """What to say about one command."""
        result = next(kernels, None)
        if result is None:
            return {"operation": str(step.op)}
        return {
            "schedule": step.schedule,
            "ctas": result.kernel.ctas,
            "cycles": -(-result.ticks // TICKS_PER_CYCLE),
            "clock_hz": result.clock_hz,
        }

    def _links(self, step: Shown, span: Span) -> None:
        """What a copy or a collective moves over which link."""
        if isinstance(step.op, CopyH2D):
            track = self.found.child("PCIe, host to device", self.root)
            self._add(track, span.start_ps, span.end_ps, span.name, "copy", {"bytes": step.op.bytes})
        elif step.sends:
            group = self.found.child("links", self.root)
            for send in sorted(step.sends, key=lambda send: (send.source, send.begin_ps)):
                track = self.found.child(f"device {send.source}", group)
                begin_ps, end_ps = span.start_ps + send.begin_ps, span.start_ps + send.end_ps
                args = {"bytes": send.size_bytes, "latency_cycles": self._cycle(send.arrival_ps - send.end_ps)}
                name = "to all" if send.target is None else f"to device {send.target}"
                self._add(track, begin_ps, end_ps, name, "copy", args)

    def _add(
        self,
        track: int,
        begin_ps: int,
        end_ps: int,
        name: str,
        category: str,
        args: Mapping[str, str | int] | None = None,
        flows: tuple[int, ...] = (),
    ) -> None:
        self.found.add(track, self._cycle(begin_ps), self._cycle(end_ps), name, category, args, flows)


def _ps(cycles: int, spec: GpuSpec) -> int:
    """Time of cycles of the boost clock."""
    return cycles * PS_PER_S // spec.clock.boost_hz
