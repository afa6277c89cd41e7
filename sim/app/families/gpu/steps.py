"""Runs the steps of an operator or of a graph on one GPU: what the conditions ask for, then every kernel, timed.

An operator is a graph of one step. What is known of a kernel once it has ended is its record; its state, tens of
megabytes of it, goes at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import NamedTuple, Protocol

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.app.families.family import LateError
from sim.app.families.gpu.conditions import Conditions
from sim.app.families.gpu.records import collective_record, copy_record, kernel_record, memory_bytes, path_counters
from sim.app.families.gpu.repeats import Settling
from sim.app.families.gpu.sampled import Leave, Pace
from sim.app.families.request import Progress
from sim.app.report.record import GpuLaunch, KernelRecord
from sim.gpu.engine.api import Device, KernelResult, Launch
from sim.gpu.engine.beside import Beside, Region
from sim.gpu.engine.dependents import all_running, first_instruction
from sim.gpu.language import GlobalTensor, Program
from sim.gpu.language import Kernel as GpuKernel
from sim.gpu.lower.occupancy import room_left, room_of_cta
from sim.gpu.power.regulator import PowerRegulator
from sim.gpu.units.events import Window
from sim.host.model import Copy, Dependent, Host, Overlap
from sim.host.model import Kernel as HostKernel
from sim.host.scopes import FIRST, Call, CallTime, GraphReplay, Place, call_times, calls_ps
from sim.link import custom, nccl
from sim.link.collective import Send, fabric_of, fastest
from sim.link.library import CollectiveCost, Kind, Plan, Traffic, traffic
from sim.link.library import run as run_library
from sim.memory.model import LINE_BYTES, clean
from sim.memory.model import warm as warm_lines
from workloads.graphs import Repeat
from workloads.ops import AllReduce, Collective, CopyH2D, Operator

SETTLED_PS = 40 * PowerRegulator.WINDOW_PS
"""Work that is longer meets its sustained clock on its own; shorter work is repeated first."""

_SETTLING_RUNS = 8
"""How often short work is repeated at most until its clock stays, from when the regulator's average is full of it."""

OVERWRITTEN = 2
"""How often stores fill the L2 that is to be full of what something else has written."""

_FILLS = 4
"""How often what is warmed of one tensor may fill the L2."""

_PIECES = 256
"""Into how many a tensor is cut that is warmed abreast with others."""

_TURNS = 16
"""How many calls before this one have left something in the L2: half of a batch of measure_gpu.py, whose median call
is in its middle."""

_WEIGHTS = "B"
"""The operand of a product that each layer has of its own."""

_PARAMETERS = ("weight", "bias")
"""Operands of a norm that calls on other operands share: measure_gpu.py makes them once, for all sets."""

_WINDOWS_A_STEP = 8
"""Windows of the regulator between two turns of the host model."""


class CollectiveStep(NamedTuple):
    """A collective. time_ps: behind its launch. counters: of one device. sends: messages from its start on. ctas,
    start_ps, traffic: of its kernel, within a node; what comes before its messages, what it does to memory."""

    kind: Kind
    devices: int
    time_ps: int
    counters: Mapping[str, int]
    algorithm: str
    sends: tuple[Send, ...]
    ctas: int = 0
    start_ps: int = 0
    traffic: Traffic = Traffic(0, 0, 0)


def shared(op: AllReduce | Collective, spec: GpuSpec, library: str) -> CollectiveStep:
    """A collective as a library runs it within a node; beyond one, messages over links and network alone.

    library: one of `sim.app.families.gpu.collective.SCHEDULES`. InputError for more devices than the machine can have.
    """
    kind: Kind = "all_reduce" if isinstance(op, AllReduce) else op.word  # type: ignore[assignment]
    devices, size = (op.devices, op.bytes) if isinstance(op, AllReduce) else (op.gpus, op.size_bytes)
    if devices > nccl.MOST_DEVICES:
        if spec.node is None:
            most = nccl.MOST_DEVICES
            raise InputError(f"devices={devices}: {spec.name} has no network beyond a node of {most}; nearest: {most}")
        if kind == "alltoall":
            raise InputError(f"devices={devices}: {kind} is modelled within a node of {nccl.MOST_DEVICES} alone")
        outcome = fastest(fabric_of(spec, devices), kind, size)
        sent = {"link_write_bytes": outcome.sent_bytes // devices}
        return CollectiveStep(kind, devices, outcome.time_ps, sent, outcome.algorithm, outcome.sends)
    made = custom.plan(spec, library, devices, size) if library in custom.LIBRARIES and kind == "all_reduce" else None
    if made is None:
        ways = nccl.estimates(spec, kind, devices, size)
        way = next(way for way in ways if way.algorithm != "tree")
        made = nccl.plan(spec, kind, devices, size, way.algorithm, way.protocol)
        library = "nccl"
    ended = _ended(made)
    algorithm, moved = f"{library} {made.algorithm} {made.wire.protocol}", traffic(made, ended.sent_bytes)
    counters = path_counters(spec, devices, ended)
    return CollectiveStep(
        kind, devices, ended.time_ps, counters, algorithm, ended.sends, made.channels, made.start_ps, moved
    )


@cache
def _ended(made: Plan) -> CollectiveCost:
    return run_library(made)


@dataclass(frozen=True)
class PlannedStep:
    """A step before it runs. program: None of a copy and of a collective. addresses: of the program's tensors.
    estimate_ps: rough time. label: what a profile calls it; empty of an operator alone. shared: of a collective.
    place: its stream. regions: of a collective beside kernels, what it moves in memory."""

    op: Operator
    program: Program | None
    addresses: Mapping[str, int]
    estimate_ps: int = 0
    label: str = ""
    shared: CollectiveStep | None = None
    place: Place = FIRST
    regions: tuple[Region, ...] = ()

    @property
    def kernels(self) -> Sequence[GpuKernel | None]:
        """What goes onto the stream, in order; None for a copy or a collective."""
        return self.program.kernels if self.program else (None,)

    @property
    def schedule(self) -> str:
        """How it runs; empty of a copy."""
        return self.program.schedule if self.program else self.shared.algorithm if self.shared else ""

    @property
    def copy(self) -> Copy | None:
        """The copy that it is."""
        return Copy("h2d", self.op.bytes) if isinstance(self.op, CopyH2D) else None


@dataclass(frozen=True)
class Work:
    """What runs on one stream. calling: how the host calls it, one of `sim.host.scopes.FORMS`. repeats: layers of which
    some may be counted."""

    steps: Sequence[PlannedStep]
    calling: str
    repeats: Sequence[Repeat] = ()

    @property
    def overlaps(self) -> bool:
        """Whether collectives run beside kernels."""
        return any(step.place.stream for step in self.steps)

    @property
    def estimate_ps(self) -> int:
        """Rough time of all steps."""
        return sum(step.estimate_ps for step in self.steps)


@dataclass(frozen=True)
class Done:
    """A step that has run. results, records: of its kernels in order; of a copy or a collective one record. moved_ps:
    its time. dependents: of its kernels under programmatic dependent launch; overlaps: what came of these. number: of
    the step."""

    planned: PlannedStep
    moved_ps: int = 0
    results: list[KernelResult] = field(default_factory=list)
    records: list[KernelRecord] = field(default_factory=list)
    dependents: list[Dependent] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    number: int = 0

    @property
    def time_ps(self) -> int:
        """Device time of its kernels."""
        return sum(record.time_ps for record in self.records)

    def call(self) -> Call:
        """What the host calls for it."""
        label = self.planned.label or self.planned.op.word
        if copy := self.planned.copy:
            return Call(label, (), copy)
        times = tuple(result.time_ps for result in self.results) or (self.records[0].time_ps,)
        return Call(label, times, place=self.planned.place, dependents=tuple(self.dependents))


@dataclass(frozen=True)
class StepsRun:
    """Steps that have run once, and when each was called. notes: which layers were counted as others."""

    done: Sequence[Done]
    times: Sequence[CallTime]
    notes: Sequence[str] = ()

    @property
    def records(self) -> list[KernelRecord]:
        """Of all kernels, copies and collectives in order."""
        return [record for entry in self.done for record in entry.records]

    @property
    def time_ps(self) -> int:
        """Device time; what runs beside something else counts once."""
        return sum(record.time_ps - record.beside_ps for record in self.records)

    def scope_ps(self, spec: GpuSpec, scope: str, calling: str, replayed: GraphReplay | None = None) -> int:
        """Time in one of `sim.host.scopes.SCOPES`, called in one of its forms; see `sim.host.scopes.calls_ps`."""
        if scope == "kernel":
            return self.time_ps
        return calls_ps(spec, [entry.call() for entry in self.done], scope, calling, replayed)


class Limit(NamedTuple):
    """How far steps go. ps: time of their kernels. leave: when the first one is left."""

    ps: int | None = None
    leave: Leave | None = None


class Recorder(Protocol):
    """Who wants to know what happens inside kernels. number: of what goes onto the stream, in order. origin_ps: the
    kernel's launch, on the host's clock."""

    def window(self, number: int, origin_ps: int, clock_hz: int, estimate_ps: int) -> Window | None:
        """What the kernel that starts now is to record, None for nothing."""

    def advanced(self, origin_ps: int, launch: Launch) -> None:
        """The kernel's clock may have changed."""

    def ended(self, origin_ps: int, launch: Launch) -> None:
        """The kernel has its result; its state goes after this."""


def run_steps(
    work: Work,
    spec: GpuSpec,
    conditions: Conditions,
    progress: Progress | None = None,
    recorder: Recorder | None = None,
    limit: Limit | None = None,
) -> StepsRun:
    """Runs all steps once, timed, after what the conditions ask for. LateError beyond the limit."""
    device = Device(
        spec, regulator=conditions.regulator(spec), exact=conditions.exact, cold_launch=conditions.cold_code,
        data=conditions.data,
    )  # fmt: skip
    runner = _Runner(work, device, conditions)
    # Long work meets the clock of a busy chip on its own, and leaves in the L2 what it touched last.
    warm, short = conditions.l2 == "warm", work.estimate_ps < SETTLED_PS
    # Replays follow each other: none finds an idle chip but the first, which benchmarks do not time.
    settles = conditions.clock == "sustained" or conditions.replayed
    if short and settles:
        runner.settle()
    elif short and warm:
        runner.launch()
        device.regulator = conditions.regulator(spec)
    elif warm:
        runner.warm(work.steps)
    else:
        runner.flush()
    if warm and conditions.replayed and conditions.replayed.layers > 1:
        runner.take_turns(conditions.replayed.layers)
    if limit and short and (settles or warm):
        limit = Limit(limit.ps)  # most of the work is done
    try:
        return runner.launch(progress, recorder, limit)
    finally:
        device.drop()


class _Runner:
    """Work on one device."""

    def __init__(self, work: Work, device: Device, conditions: Conditions) -> None:
        self.work, self.device, self.conditions = work, device, conditions
        self.spec = device.spec

    # ---- what the conditions ask for

    def settle(self) -> None:
        """Repeats short work until its clock stays: the chip has been busy with it for long.

        A clock that stays says nothing before the regulator's average is full of this work, unless the work could not
        exceed the limit even without the time between its kernels.
        """
        regulator, runs = self.device.regulator, 0
        assert isinstance(regulator, PowerRegulator)
        while runs < _SETTLING_RUNS:
            before_hz = regulator.clock_hz
            records = self.launch().records
            if self.conditions.l2 != "warm":
                self.flush()
            light = _busy_mw(records) <= regulator.limit_mw
            if regulator.clock_hz == before_hz and (light or regulator.full):
                return
            runs += regulator.full

    def flush(self) -> None:
        """Empties the L2, or fills it with lines that something else has written, with what the same work has touched
        of other operands, or with its own operands."""
        self.device.flush_l2()
        if self.conditions.l2 == "turns":
            self.turn()
        if self.conditions.l2 == "uploaded":
            self.upload()
        if self.conditions.l2 != "dirty":
            return
        ends = [
            step.addresses[tensor.name] + tensor.size_bytes
            for step in self.work.steps
            if step.program
            for tensor in step.program.tensors
        ]
        first = 1 + max(ends, default=0) // LINE_BYTES
        spec = self.device.memory_spec(self.device.regulator.clock_hz)
        warm_lines(spec, self.device.memory, first, OVERWRITTEN * self.spec.l2.size_bytes // LINE_BYTES, dirty=True)

    def turn(self) -> None:
        """Leaves in the L2 what calls before this one do, each of which has operands and results of its own. A line
        that one SM alone reads has a copy in its partition, and not in all."""
        spec = self.device.memory_spec(self.device.regulator.clock_hz)
        steps = [(step, step.program.tensors) for step in self.work.steps if step.program]
        ends = [step.addresses[tensor.name] + tensor.size_bytes for step, tensors in steps for tensor in tensors]
        room = self.spec.l2.size_bytes // LINE_BYTES
        span = 1 + max(ends, default=0) // LINE_BYTES
        own = [
            (tensor, step.addresses[tensor.name] // LINE_BYTES, -(-tensor.size_bytes // LINE_BYTES))
            for step, tensors in steps
            for tensor in sorted(tensors, key=lambda tensor: tensor.role != "input")
        ]
        lines = sum(count for _, _, count in own)
        abreast = len(steps) == 1 and steps[0][0].op.abreast and len(steps[0][0].kernels) == 1
        for turn in range(min(_TURNS, -(-room // max(lines, 1))), 0, -1):
            # Scratch memory is taken anew, and found where it was.
            touched = [
                _Lines(first + (0 if _same_in_all(tensor) else turn * span), count, tensor.role != "input")
                for tensor, first, count in own
            ]
            touched = [_last(part, room) for part in touched]
            for number, part in enumerate(_abreast(touched) if abreast else touched):
                partition = number // len(touched) % self.spec.l2.partitions if abreast else None
                warm_lines(spec, self.device.memory, part.first, part.lines, dirty=part.written, partition=partition)

    def upload(self) -> None:
        """Leaves in the L2 what copies of the operands from the host wrote last. Each line is in its home partition
        alone. DRAM has it too: a link of tens of GB/s leaves the channels time to write it back."""
        spec = self.device.memory_spec(self.device.regulator.clock_hz)._replace(local_copies=0)
        inputs = [
            (step.addresses[tensor.name] // LINE_BYTES, -(-tensor.size_bytes // LINE_BYTES))
            for step in self.work.steps
            for tensor in (step.program.tensors if step.program else ())
            if tensor.role == "input"
        ]
        for first, lines in inputs:
            warm_lines(spec, self.device.memory, first, lines, dirty=True)
        clean(self.device.memory)

    def warm(self, steps: Sequence[PlannedStep]) -> None:
        """Leaves in the caches what a run of some steps would: code, the tensors that were touched last, of a step what
        it wrote."""
        for kernel in (kernel for step in steps for kernel in step.kernels if kernel is not None):
            self.device.hold_code(kernel)
        spec = self.device.memory_spec(self.device.regulator.clock_hz)
        touched: list[list[_Lines]] = []  # by step, the last one first
        lines = 0
        for step in reversed(steps):
            tensors = step.program.tensors if step.program else ()
            own = []
            for tensor in sorted(tensors, key=lambda t: t.role != "input"):
                first = step.addresses[tensor.name] // LINE_BYTES
                last = (step.addresses[tensor.name] + tensor.size_bytes - 1) // LINE_BYTES
                # Of a tensor that fills the L2 many times only the end has stayed.
                first = max(first, last - _FILLS * self.spec.l2.size_bytes // LINE_BYTES)
                own.append(_Lines(first, last - first + 1, tensor.role != "input"))
                lines += last - first + 1
            abreast = step.op.abreast and len(step.kernels) == 1
            touched.append(_abreast(own) if abreast else own)
            if lines * LINE_BYTES > 2 * self.spec.l2.size_bytes:
                break
        for own in reversed(touched):
            for part in own:
                warm_lines(spec, self.device.memory, part.first, part.lines, dirty=part.written)

    def take_turns(self, layers: int) -> None:
        """Leaves in the L2 what layers before this one do, which share activations but have weights of their own."""
        spec = self.device.memory_spec(self.device.regulator.clock_hz)
        tensors = [
            (t, step.addresses[t.name]) for step in self.work.steps if step.program for t in step.program.tensors
        ]
        end = max((address + tensor.size_bytes for tensor, address in tensors), default=0)
        weights = sum(tensor.size_bytes for tensor, _ in tensors if tensor.name == _WEIGHTS)
        # Older layers than those that fill it twice have left nothing.
        turns = min(layers, 2 + 2 * self.spec.l2.size_bytes // max(weights, 1))
        for turn in range(layers - turns, layers):
            for tensor, address in tensors:
                own = end + turn * (weights + LINE_BYTES) if turn and tensor.name == _WEIGHTS else address
                lines = -(-tensor.size_bytes // LINE_BYTES)
                warm_lines(spec, self.device.memory, own // LINE_BYTES, lines, dirty=tensor.role != "input")

    # ---- the run

    def launch(
        self, progress: Progress | None = None, recorder: Recorder | None = None, limit: Limit | None = None
    ) -> StepsRun:
        """All steps on one stream of the host model, which advances the device window by window; the L2 stays as it is
        from kernel to kernel."""
        run = _StreamRun(self, progress, recorder, limit or Limit())
        times = call_times(run.host, run.calls(), self.work.calling)
        if self.work.overlaps:
            _note_beside(run.done, times)
        elif any(entry.dependents for entry in run.done):
            _note_early(run.done, times)
        return StepsRun(run.done, times, [repeat.note for repeat in run.repeats if repeat.note])


def _busy_mw(records: Sequence[KernelRecord]) -> int:
    """Mean power of kernels over the time in which they work, in mW (fJ/ps); launches come on top of that."""
    busy_ps = sum(record.time_ps - sum(record.launch_ps.values()) for record in records)
    return sum(record.energy_fj for record in records) // max(busy_ps, 1)


def _note_beside(done: Sequence[Done], times: Sequence[CallTime]) -> None:
    """Writes into the records of collectives for how long kernels ran beside them."""
    streams = [entry.planned.place.stream for entry in done]
    kernels = [span for stream, time in zip(streams, times, strict=True) if not stream for span in time.spans]
    for entry, stream, time in zip(done, streams, times, strict=True):
        if stream:
            (record,), (own,) = entry.records, time.spans
            common = (min(own.end_ps, span.end_ps) - max(own.start_ps, span.start_ps) for span in kernels)
            entry.records[0] = dataclasses.replace(record, beside_ps=sum(max(0, ps) for ps in common))


def _note_early(done: Sequence[Done], times: Sequence[CallTime]) -> None:
    """Writes into the records of kernels for how long they were there before the one before them ended."""
    end_ps = 0
    for entry, time in zip(done, times, strict=True):
        for i, span in enumerate(time.spans):
            early_ps = max(0, end_ps - span.start_ps)
            entry.records[i] = dataclasses.replace(entry.records[i], beside_ps=early_ps)
            end_ps = span.end_ps


class _Lines(NamedTuple):
    """Neighbouring lines of a tensor, read or written."""

    first: int
    lines: int
    written: bool


def _same_in_all(tensor: GlobalTensor) -> bool:
    """Whether calls on operands of their own have a tensor in common."""
    return tensor.role == "scratch" or (tensor.role == "input" and tensor.name in _PARAMETERS)


def _last(part: _Lines, room: int) -> _Lines:
    """Of lines that fill the L2 many times the last ones."""
    kept = min(part.lines, _FILLS * room)
    return _Lines(part.first + part.lines - kept, kept, part.written)


def _abreast(tensors: Sequence[_Lines]) -> list[_Lines]:
    """The lines of tensors that a kernel walks together, in the order in which it touches them."""
    found = []
    for piece in range(_PIECES):
        for first, lines, written in tensors:
            start, end = (lines * number // _PIECES for number in (piece, piece + 1))
            if end > start:
                found.append(_Lines(first + start, end - start, written))
    return found


@dataclass(frozen=True)
class _RunningStep:
    """A step as the host calls it while it runs."""

    name: str
    issued: list[HostKernel | Copy]
    place: Place

    def commands(self) -> list[HostKernel | Copy]:
        """What goes onto the stream."""
        return self.issued


class _StreamRun:
    """One run of all steps on a stream."""

    def __init__(self, runner: _Runner, progress: Progress | None, recorder: Recorder | None, limit: Limit) -> None:
        self.work, self.device, self.conditions = runner.work, runner.device, runner.conditions
        self.spec, self.progress, self.recorder, self.limit = runner.spec, progress, recorder, limit
        self.host = Host(self.spec)
        self.device.beside = None
        self.running: Launch | None = None
        self.done = [self._entry(number, step) for number, step in enumerate(self.work.steps)]
        self.total = sum(max(step.op.flops, 1) for step in self.work.steps)
        self.runner = runner
        self.repeats = [] if self.conditions.exact or self.work.overlaps else self._repeats()
        self.stale: Sequence[PlannedStep] = ()  # the steps that were counted last, whose lines the L2 does not hold

    def _repeats(self) -> list[Settling]:
        """Layers that repeat, each with the bytes that are touched before it; 0 where its kernels are not yet those of
        the last one."""
        found = []
        for repeat in self.work.repeats:
            layers = [[self.work.steps[i] for i in repeat.layer(number)] for number in range(repeat.times)]
            seen: dict[int, int] = {}  # by address, bytes of tensors
            before = []
            for layer in layers:
                alike = all(mine.program is other.program for mine, other in zip(layer, layers[-1], strict=True))
                before.append(sum(seen.values()) if alike else 0)
                for step in layer:
                    for tensor in step.program.tensors if step.program else ():
                        seen[step.addresses[tensor.name]] = tensor.size_bytes
            layer = layers[-1]
            moved = sum(tensor.size_bytes for step in layer if step.program for tensor in step.program.tensors)
            found.append(Settling(repeat, self.done, before, moved))
        return found

    def _entry(self, number: int, step: PlannedStep) -> Done:
        """A step that is to run; of what moves beside kernels all is known."""
        if step.shared:
            return Done(step, self.spec.launch.kernel_ps + step.shared.time_ps, number=number)
        return Done(step, step.copy.duration_ps(self.spec) if step.copy else 0, number=number)

    def calls(self) -> list[_RunningStep]:
        """What the host calls, in order."""
        calls: list[_RunningStep] = []
        number = before = 0
        for entry in self.done:
            step = entry.planned
            calls.append(_RunningStep(step.label, self._commands(entry, number, before), step.place))
            number += len(calls[-1].issued)
            before += max(step.op.flops, 1) if step.program else 0
        return calls

    def _commands(self, entry: Done, number: int, before: int) -> list[HostKernel | Copy]:
        step = entry.planned
        if done := step.shared:
            if step.place.stream:
                return [HostKernel(done.kind, self._beside(entry, done), needs=done.ctas)]
            name = f"{step.label}: {done.algorithm} over {done.devices}"
            record = collective_record(name, done.algorithm, done.counters, entry.moved_ps, self.spec)
            entry.records.append(record)
            return [HostKernel(done.kind, (entry.moved_ps,))]
        if copy := step.copy:
            entry.records.append(copy_record(step.label, copy, entry.moved_ps, self.spec))
            return [copy]
        assert step.program is not None
        room = self._room if self.work.overlaps else None
        kernels = step.program.kernels
        if any(self._is_early(kernel) for kernel in kernels):
            entry.dependents.extend(self._dependent(entry, kernel, i) for i, kernel in enumerate(kernels))
        return [
            HostKernel(kernel.name, self._kernel(entry, kernel, number + i, before), room=room, dependent=dependent)
            for i, (kernel, dependent) in enumerate(zip_longest(kernels, entry.dependents))
        ]

    def _is_early(self, kernel: GpuKernel) -> bool:
        """Whether a kernel may start before the one before it has ended."""
        return self.conditions.pdl or (self.conditions.dependents and kernel.dependent and not self.work.overlaps)

    def _dependent(self, entry: Done, kernel: GpuKernel, number: int) -> Dependent:
        """A kernel of a step with programmatic dependent launches."""
        takes = room_of_cta(kernel, self.spec) if self._is_early(kernel) else None
        return Dependent(takes, lambda: entry.overlaps[number])

    def _room(self) -> int:
        """SMs that the kernel that runs leaves to others."""
        return self.running.room if self.running else 0

    def _beside(self, entry: Done, done: CollectiveStep) -> Iterator[int]:
        """Runs a collective beside kernels and makes its record."""
        step, before_ps = entry.planned, self.spec.launch.kernel_ps
        beside = Beside(done.ctas, done.time_ps, done.time_ps - done.start_ps, step.regions)
        beside.begin_ps = self.host.now_ps
        self.device.beside = beside
        if self.running:
            self.running.hold(beside)
        while self.host.now_ps < beside.end_ps:
            yield before_ps + beside.end_ps - beside.begin_ps
        self.device.beside = None
        beside.move(self.device, self.device.regulator.clock_hz, 0, beside.end_ps)
        name = f"{step.label}: {done.algorithm} over {done.devices}"
        time_ps = before_ps + beside.end_ps - beside.begin_ps
        record = collective_record(name, done.algorithm, done.counters, time_ps, self.spec)
        counters = {**record.counters, **memory_bytes(beside.counters)}
        entry.records.append(dataclasses.replace(record, counters=counters, own=GpuLaunch((done.ctas, 1, 1))))

    def _kernel(self, entry: Done, kernel: GpuKernel, number: int, before: int) -> Iterator[int]:
        """Runs a kernel and makes its record. before: work of the steps before its own."""
        step, recorder = entry.planned, self.recorder
        assert step.program is not None
        if (source := self._source(entry)) is not None:
            yield _count(entry, source)
            return
        if step.op.dtype is not None:
            self.device.energy.set_tensor_dtype(step.op.dtype)
        origin_ps = self.host.now_ps - self.spec.launch.kernel_ps
        if recorder is not None:
            clock_hz = self.device.regulator.clock_hz
            self.device.window = recorder.window(number, origin_ps, clock_hz, step.estimate_ps)
        launch = self.device.build(kernel, step.addresses, origin_ps=origin_ps)
        self.running = launch
        time_ps, left, pace = 0, (0.0, 0), Pace(launch)
        left_ps, macs = self._left_ps(), step.op.macs if len(step.program.kernels) == 1 else 0
        for window, time_ps in enumerate(launch.windows(limit_ps=left_ps)):
            pace.note(time_ps)
            if left_ps is not None and pace.beyond(left_ps, macs):
                launch.late = True
            left = pace.left(self.limit.leave) if self.limit.leave else (0.0, 0)
            if launch.late or left[1]:
                break
            if recorder is not None:
                recorder.advanced(origin_ps, launch)
            if window % (1 if self.work.overlaps else _WINDOWS_A_STEP) == 0:
                if self.progress is not None:
                    done = _share_done(entry, launch)
                    self.progress((before + done * max(step.op.flops, 1)) / self.total)
                yield time_ps
        if launch.late or left[1]:
            counts = self._counts(launch)
            launch.drop()
            raise LateError(counts, *left)
        self.running = None
        if entry.dependents:
            entry.overlaps.append(overlap := _overlap(launch))
            origin_ps = self.host.begun_ps(overlap) - self.spec.launch.kernel_ps
        launch.result = pace.whole(launch.result)
        time_ps = launch.result.time_ps
        reason = throttle_reason(self.spec, self.conditions, launch.result)
        record = kernel_record(launch, launch.result, step.program.schedule, reason)
        name = f"{step.label}: {record.name}" if step.label else record.name
        entry.records.append(dataclasses.replace(record, name=name))
        if recorder is not None:
            recorder.ended(origin_ps, launch)
        entry.results.append(launch.result)
        launch.drop()
        yield time_ps

    def _source(self, entry: Done) -> Done | None:
        """The step of an equal layer as which one is counted; None for one that is simulated, in an L2 that holds what
        was counted before it."""
        for settling in self.repeats:
            repeat = settling.repeat
            if entry.number not in repeat.all:
                continue
            layer, position = divmod(entry.number - repeat.first, repeat.steps)
            if settling.counts(layer, self.spec, self.device.regulator):
                self.stale = [self.work.steps[number] for number in repeat.layer(layer)]
                return self.done[repeat.layer(settling.source(layer))[position]]
        if self.stale:
            self.runner.warm(self.stale)
            self.stale = ()
        return None

    def _left_ps(self) -> int | None:
        """How long the next kernel may take."""
        if self.limit.ps is None:
            return None
        return self.limit.ps - sum(record.time_ps for done in self.done for record in done.records)

    def _counts(self, launch: Launch) -> dict[str, int]:
        """What the engine has counted until now, in a launch that does not go on."""
        records = [record.counters for done in self.done for record in done.records]
        return {name: count + sum(one[name] for one in records) for name, count in launch.counts.items()}


def _count(entry: Done, source: Done) -> int:
    """Counts the next kernel of a step as the same one of another step; its time."""
    number = len(entry.results)
    entry.records.append(source.records[number])
    entry.results.append(source.results[number])
    if entry.dependents:
        entry.overlaps.append(source.overlaps[number])
    return source.results[number].time_ps


def _overlap(launch: Launch) -> Overlap:
    """What a kernel that has ended lets others overlap."""
    spec, end_ps = launch.device.spec, launch.result.time_ps
    return Overlap(
        prologue_ps=launch.since_launch_ps(first_instruction(launch)) - spec.launch.kernel_ps,
        trigger_ps=end_ps - launch.since_launch_ps(all_running(launch)),
        exit_ps=end_ps - launch.since_launch_ps(launch.last_warp_tick),
        leaves=room_left(launch.kernel, spec),
    )


def _share_done(entry: Done, launch: Launch) -> float:
    """Share of a step that is done while one of its kernels runs: by the CTAs that have ended, or by what has been
    multiplied, whichever is more. CTAs that take one tile after the other all end at the end."""
    step = entry.planned
    ctas = (len(entry.results) + launch.share_done) / len(step.kernels)
    before = sum(result.counters["macs_tensor"] + result.counters["macs_vector"] for result in entry.results)
    macs = (before + launch.macs_done) / step.op.macs if step.op.macs else 0.0
    return min(max(ctas, macs), 1.0)


def throttle_reason(spec: GpuSpec, conditions: Conditions, result: KernelResult) -> str | None:
    """Why the clock was below boost."""
    highest_hz = max(hz for _, hz in result.clocks)
    if conditions.clock == "locked":
        return "locked" if highest_hz < spec.clock.boost_hz else None
    start_hz = min(conditions.clock_hz or spec.clock.boost_hz, spec.clock.boost_hz)
    if result.clock_hz < 0.99 * start_hz:
        # Without a limit of power, tensor cores alone keep it at their pace.
        lowest_hz = min(hz for _, hz in result.clocks)
        return "power" if lowest_hz < min(start_hz, spec.clock.under_tensor_hz) - spec.clock.step_hz else "tensor"
    return "locked" if start_hz < spec.clock.boost_hz else None
