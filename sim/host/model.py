"""One host thread, streams, and the device that serves them, in SimPy: int64 picoseconds on one axis.

What happens to a launch, and which figure of the machine it costs:

- the host thread is busy for the call (`Host.host_call_ps`), and the command reaches the device `launch.api` after the
  call began; launching a graph takes `host.graph_launch` of the thread, and its commands follow; an eager framework
  keeps the thread busy for `host.framework_overhead` an operator before it calls;
- the device's front end processes it for `launch.kernel`, one command at a time; it works ahead by one kernel, so that
  on a busy stream this hides behind the kernel before;
- its CTAs start when that is done, and when the kernel before it in its stream has ended and been handed over: minimal
  kernels of a stream then start `launch.gap_stream` apart, those of one graph `launch.gap_graph` apart, and
  the first of a graph `launch.gap_replay` after what is before it in the stream, and `launch.gap_replay_more` later
  if the graph has more than `launch.replay_ready` kernels;
- its execution is its duration less `launch.kernel`, which the duration includes;
- with programmatic dependent launch (`Dependent`) it is handed over from the trigger of the kernel before: when all
  CTAs of that run, if it has room beside them, else when the last of them has ended. What its CTAs do before they wait
  for the data, its prologue, overlaps the rest of the kernel before, whose end with its memory flush ends the wait.

An event (a time stamp) waits for the work before it and takes `launch.event`, and the front end does not work ahead
past it. A copy pays the PCIe link's latency once and then its bandwidth; each direction has an engine of its own.
Kernels of different streams run one at a time, in the order in which they became ready, but for those that run
beside others (collectives): they start as soon as the one that runs leaves them room, or has ended. A command may wait
for commands of other streams.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

from arch.errors import InputError
from arch.gpu import GpuSpec

FIGURES = (
    "host.framework_overhead",
    "host.graph_launch",
    "launch.api",
    "launch.drain",
    "launch.event",
    "launch.gap_graph",
    "launch.gap_replay",
    "launch.gap_replay_more",
    "launch.gap_stream",
    "launch.kernel",
    "launch.release_graph",
    "launch.release_stream",
    "launch.replay_ready",
    "pcie.bandwidth",
    "pcie.latency",
)
"""Figures of a preset that this module reads."""

PS_PER_S = 10**12
DIRECTIONS = ("h2d", "d2h")

Process = Generator[simpy.Event, Any, None]


class Overlap(NamedTuple):
    """What a kernel that has ended let others overlap, picoseconds. prologue_ps: from the launch of its CTAs to their
    wait for the kernel before. trigger_ps: from when all its CTAs ran to its end. exit_ps: from its last CTA's end to
    its own. leaves: of each resource of an SM, what its CTAs left."""

    prologue_ps: int
    trigger_ps: int
    exit_ps: int
    leaves: Sequence[int]


class Dependent(NamedTuple):
    """A kernel under programmatic dependent launch. takes: of each resource of an SM, what one of its CTAs needs; None:
    it starts when the kernel before has ended, and lets the next one start before it has. overlap: asked when it has
    ended."""

    takes: Sequence[int] | None
    overlap: Callable[[], Overlap]

    def after(self, before: Overlap) -> int:
        """How long before the end of the kernel before it may be launched, picoseconds."""
        assert self.takes is not None
        room = all(takes <= left for takes, left in zip(self.takes, before.leaves, strict=True))
        return before.trigger_ps if room else before.exit_ps


@dataclass
class Kernel:
    """A kernel as the host sees it.

    work: picoseconds since its launch at which its simulation returned, rising, the last one being its duration
    (`launch.kernel` included); an iterator is asked only when the device gets there, so that an engine can be advanced
    in quanta. needs: SMs, of a kernel that runs beside those of other streams; 0: it has the device to itself. room:
    SMs that it leaves to such kernels now; None: none. dependent: None: it starts when the kernel before has ended.
    """

    name: str
    work: Iterable[int]
    needs: int = 0
    room: Callable[[], int] | None = None
    dependent: Dependent | None = None


@dataclass(frozen=True)
class Copy:
    """A copy over PCIe, `h2d` or `d2h`, between pinned memory of the host and the device."""

    direction: str
    size_bytes: int

    def __post_init__(self) -> None:
        """Checks both."""
        if self.direction not in DIRECTIONS:
            raise InputError(f"copy direction {self.direction}: must be one of {', '.join(DIRECTIONS)}")
        if self.size_bytes < 1:
            raise InputError(f"copy of {self.size_bytes} bytes: must be at least 1")

    @property
    def name(self) -> str:
        """What its span is called."""
        return f"copy_{self.direction}"

    def duration_ps(self, spec: GpuSpec) -> int:
        """From its start to its end, on a free link."""
        return spec.pcie.latency_ps + -(-self.size_bytes * PS_PER_S // spec.pcie.bandwidth_bytes_per_s)


class Node(NamedTuple):
    """A command of a graph. after: numbers of nodes before it, of other streams, that it waits for."""

    stream: Stream
    command: Kernel | Copy
    after: Sequence[int] = ()


@dataclass
class Span:
    """When one command was called by the host, started and ended on the device, in picoseconds; -1: not yet."""

    name: str
    called_ps: int
    start_ps: int = -1
    end_ps: int = -1


@dataclass
class _Command:
    """One entry of a stream's queue. gap_ps: start to start of minimal kernels; release_ps: how long after the end of
    the kernel before a dependent one goes on; done fires at its end. after: what has to end before it, of other
    streams. ready_ps: when the front end had processed it. first: it begins a graph."""

    span: Span
    done: simpy.Event
    kernel: Kernel | None = None
    gap_ps: int = 0
    release_ps: int = 0
    copy: Copy | None = None
    arrives_ps: int = 0
    after: Sequence[simpy.Event] = ()
    ready_ps: int = 0
    first: bool = False


@dataclass
class Stream:
    """A queue of commands that run in order. Made by `Host.stream`; `spans` are those of its commands so far; `last`
    fires at the end of the last one."""

    name: str
    queue: simpy.Store
    ready: simpy.Store
    last: simpy.Event
    spans: list[Span] = field(default_factory=list)


class Host:
    """A host thread with its streams on one device."""

    def __init__(self, spec: GpuSpec) -> None:
        self.spec = spec
        self.env = simpy.Environment()
        self._front_end = simpy.Resource(self.env)
        self._device = simpy.Resource(self.env)
        self._running: Kernel | None = None
        self.placed_ps = self.released_ps = 0
        """Since when the CTAs of the dependent kernel that runs now may have been there, and from when on they work."""
        self._went_on = self.env.event()
        self._copies = {direction: simpy.Resource(self.env) for direction in DIRECTIONS}
        self._streams = 0

    @property
    def host_call_ps(self) -> int:
        """For how long one launch call keeps the thread; a slower host would show as a longer gap on its stream."""
        launch = self.spec.launch
        return min(launch.api_ps, launch.gap_stream_ps)

    @property
    def graph_call_ps(self) -> int:
        """For how long the launch of a graph keeps the thread."""
        return max(self.spec.host.graph_launch_ps, self.host_call_ps)

    @property
    def now_ps(self) -> int:
        """The host thread's clock."""
        return int(self.env.now)

    def stream(self) -> Stream:
        """A new stream."""
        self._streams += 1
        # One kernel ahead: the front end blocks on the second.
        ready = simpy.Store(self.env, capacity=1)
        stream = Stream(f"stream {self._streams}", simpy.Store(self.env), ready, self.env.event().succeed())
        self.env.process(self._process_commands(stream))
        self.env.process(self._execute(stream))
        return stream

    # ---- what a host program yields from

    def dispatch(self) -> Process:
        """What an eager framework does for one operator before it launches anything."""
        yield self.env.timeout(self.spec.host.framework_overhead_ps)

    def launch(self, stream: Stream, kernel: Kernel, after: Sequence[simpy.Event] = ()) -> Process:
        """Calls a kernel on a stream; the thread goes on when the call returns. after: ends of other streams' commands
        that it waits for."""
        launch = self.spec.launch
        gap_ps, release_ps = launch.gap_stream_ps, launch.release_stream_ps or 0
        self._put(stream, kernel.name, kernel=kernel, gap_ps=gap_ps, release_ps=release_ps, after=after)
        yield self.env.timeout(self.host_call_ps)

    def launch_graph(self, stream: Stream, nodes: Iterable[Kernel | Copy]) -> Process:
        """Calls a graph, a chain of dependent kernels and copies, in one launch."""
        yield from self.launch_chains(Node(stream, node) for node in nodes)

    def launch_chains(self, nodes: Iterable[Node]) -> Process:
        """Calls a graph in one launch: a chain of kernels and copies a stream, which may wait for each other."""
        yield self.env.timeout(self.graph_call_ps - self.host_call_ps)
        nodes = list(nodes)
        gap_ps = self.spec.launch.gap_replay_ps
        if sum(isinstance(node.command, Kernel) for node in nodes) > self.spec.launch.replay_ready:
            gap_ps += self.spec.launch.gap_replay_more_ps
        done: list[simpy.Event] = []
        for stream, command, after in nodes:
            waits = [done[number] for number in after]
            if isinstance(command, Kernel):
                release_ps = self.spec.launch.release_graph_ps or 0
                put = self._put(
                    stream, command.name, kernel=command, gap_ps=gap_ps, release_ps=release_ps, after=waits,
                    first=not done,
                )  # fmt: skip
            else:
                put = self._put(stream, command.name, copy=command, after=waits)
            done.append(put.done)
            gap_ps = self.spec.launch.gap_graph_ps
        yield self.env.timeout(self.host_call_ps)

    def record(self, stream: Stream, name: str = "event") -> Span:
        """Puts an event on a stream, at no cost for the thread; its span's `end_ps` is the time stamp."""
        return self._put(stream, name).span

    def copy(self, stream: Stream, direction: str, size_bytes: int) -> Process:
        """Calls an asynchronous copy, `h2d` or `d2h`."""
        copy = Copy(direction, size_bytes)
        self._put(stream, copy.name, copy=copy)
        yield self.env.timeout(self.host_call_ps)

    def synchronise(self, stream: Stream) -> Process:
        """Waits until the stream is idle; the word comes over the link to the host."""
        yield stream.last
        yield self.env.timeout(self.spec.pcie.latency_ps)

    def run(self, program: Process) -> int:
        """Runs a host program to its end and the device until it is idle; picoseconds of the program's end."""
        process = self.env.process(program)
        self.env.run(process)
        end_ps = self.now_ps
        self.env.run()
        return end_ps

    # ---- the device

    def _put(
        self,
        stream: Stream,
        name: str,
        *,
        kernel: Kernel | None = None,
        gap_ps: int = 0,
        release_ps: int = 0,
        copy: Copy | None = None,
        after: Sequence[simpy.Event] = (),
        first: bool = False,
    ) -> _Command:
        span, arrives_ps = Span(name, self.now_ps), self.now_ps + self.spec.launch.api_ps
        command = _Command(span, self.env.event(), kernel, gap_ps, release_ps, copy, arrives_ps, after, first=first)
        stream.queue.put(command)
        stream.spans.append(span)
        stream.last = command.done
        return command

    def _process_commands(self, stream: Stream) -> Process:
        """The front end's side of a stream: processes commands in order and hands them on."""
        while True:
            command: _Command = yield stream.queue.get()
            if command.arrives_ps > self.now_ps:
                yield self.env.timeout(command.arrives_ps - self.now_ps)
            if command.kernel is not None:
                with self._front_end.request() as turn:
                    yield turn
                    yield self.env.timeout(self.spec.launch.kernel_ps)
            command.ready_ps = self.now_ps
            yield stream.ready.put(command)
            if command.kernel is None and command.copy is None:
                yield command.done

    def _execute(self, stream: Stream) -> Process:
        """The execution side: one command after the other."""
        free_ps = None  # end of the work that the next kernel depends on
        before: Overlap | None = None  # what the kernel before lets a dependent one overlap
        while True:
            command: _Command = yield stream.ready.get()
            dependent = command.kernel.dependent if command.kernel and not (command.after or command.first) else None
            early = dependent if dependent and dependent.takes is not None else None
            for other in command.after:
                if not other.processed:
                    yield other
                    free_ps = self.now_ps
            if command.kernel is not None:
                hand_over_ps = max(command.gap_ps - self.spec.launch.drain_ps, 0)
                if early and before and free_ps is not None:
                    placed_ps = free_ps - early.after(before) + hand_over_ps
                    release_ps = min(command.release_ps, hand_over_ps)
                    yield from self._run_dependent(command, early, max(placed_ps, command.ready_ps), release_ps)
                else:
                    if free_ps is not None:
                        yield self.env.timeout(max(free_ps + hand_over_ps - self.now_ps, 0))
                    yield from self._take_turn(command.span, command.kernel)
            elif command.copy is not None:
                yield from self._run_copy(command.span, command.copy)
            else:
                command.span.start_ps = self.now_ps
            command.span.end_ps = self.now_ps
            if command.kernel is None and command.copy is None:
                yield self.env.timeout(self.spec.launch.event_ps)
            free_ps = self.now_ps
            before = command.kernel.dependent.overlap() if command.kernel and command.kernel.dependent else None
            command.done.succeed()

    def _take_turn(self, span: Span, kernel: Kernel) -> Process:
        """Runs a kernel when the device is free; one that is beside others, when the one that runs leaves it room."""
        if kernel.needs:
            while (other := self._running) and (other.room is None or other.room() < kernel.needs):
                yield self._went_on
            yield from self._run_kernel(span, kernel)
            return
        with self._device.request() as turn:
            yield turn
            self._running = kernel
            yield from self._run_kernel(span, kernel)
            self._running = None
            self._tell()

    def _run_dependent(self, command: _Command, dependent: Dependent, placed_ps: int, release_ps: int) -> Process:
        """Runs a kernel whose CTAs may have been there since `placed_ps` and waited for the one before, which has ended
        now; `release_ps` later they go on. Its span begins with the prologue that just fits. Nothing else has the
        device before its end is known."""
        assert command.kernel is not None
        asked_ps = self.now_ps
        with self._device.request() as turn:
            yield turn
            self._running = command.kernel
            self.placed_ps = placed_ps if self.now_ps == asked_ps else max(placed_ps, self.now_ps)
            self.released_ps = self.now_ps + release_ps
            *_, elapsed_ps = command.kernel.work
            command.span.start_ps = self.begun_ps(dependent.overlap())
            end_ps = command.span.start_ps + elapsed_ps - self.spec.launch.kernel_ps
            yield self.env.timeout(end_ps - self.now_ps)
            self._running = None
            self._tell()

    def begun_ps(self, own: Overlap) -> int:
        """When a dependent kernel begins its prologue, at the latest for its first instruction after the wait."""
        return max(self.placed_ps, self.released_ps - own.prologue_ps)

    def _tell(self) -> None:
        """A kernel has gone on or has ended: whoever waits for room may look."""
        went_on, self._went_on = self._went_on, self.env.event()
        went_on.succeed()

    def _run_kernel(self, span: Span, kernel: Kernel) -> Process:
        """Lets the time of a kernel pass, from the start of its CTAs."""
        span.start_ps = self.now_ps
        launch_ps = span.start_ps - self.spec.launch.kernel_ps
        for elapsed_ps in kernel.work:
            yield self.env.timeout(max(launch_ps + elapsed_ps - self.now_ps, 0))
            if kernel.room is not None:
                self._tell()

    def _run_copy(self, span: Span, copy: Copy) -> Process:
        with self._copies[copy.direction].request() as turn:
            yield turn
            span.start_ps = self.now_ps
            yield self.env.timeout(copy.duration_ps(self.spec))
