"""The units of a TPU as SimPy processes, joined by their queues: one event an instruction and unit.

Time is in ticks. Each unit accounts for every tick of the run: what it was busy with, or what it waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from arch.tpu import TpuSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.tpu.areas import Area, overlap, reads, writes
from sim.tpu.data import Memory
from sim.tpu.model import Timing, pooled_bytes
from sim.tpu.program import (
    VECTOR_UNIT,
    Activate,
    Halt,
    HostWork,
    Instruction,
    InterruptHost,
    MatrixMultiply,
    Nop,
    Program,
    ReadHostMemory,
    ReadWeights,
    Sync,
    Vector,
    WriteHostMemory,
    carriers,
    fetcher,
    units,
    wrong,
)

if TYPE_CHECKING:
    from sim.tpu.dram import ExternalMemory

FIGURES = (
    "activation.latency",
    "array.columns",
    "array.count",
    "array.dataflow",
    "array.issue_interval",
    "array.operands",
    "array.overlap_weights",
    "array.rows",
    "array.wide_interval",
    "control.buffer",
    "control.instruction",
    "control.issue",
    "control.queue",
    "control.sync",
    "pcie.latency",
    "unified_buffer.behind",
    "unified_buffer.latency",
    "vector.latency",
    "weight_fifo.depth",
)
"""Figures of a preset that this module reads."""

Process = Generator[simpy.Event, Any, None]

ALIGN = 4096
"""What is not weights starts at a multiple of it in a chip's own memory."""

ACTIVE, WEIGHT_STALL, WEIGHT_SHIFT = "active", "weight_stall", "weight_shift"
NON_MATRIX = (
    "drain",  # sums of the instruction before are on their way out of the array
    "activation",  # the activation unit reads accumulators on whose results the next layer depends
    "raw",  # an explicit synchronisation waits for what the activation unit writes
    "input",  # data from the host
    "output",  # results to the host: before new data may come, before more fit the buffer, or at the end
    "host",  # work of the host between two transfers
    "accumulators",  # the activation unit has not read accumulators yet that are needed again
    "unified_buffer",  # its port
    "instruction",  # no instruction has arrived
)
"""Closed list of what the matrix unit waits for besides weights."""


_SYNC_CAUSES = {"activation": "raw", "host_write": "output", "store": "output", "host": "host", "weights": "input"}
"""What the matrix unit waits for at a synchronisation, by the other unit; another array's sums drain."""

UNIT_CAUSES = (
    *("busy", "accumulators", "vector", "vector_unit"),  # working
    *("instruction", "finished", "fifo_full", "dram", "unified_buffer"),
    # waits for another unit
    *("matrix", "activation", "weights", "host_read", "host_write", "load", "store", "host"),
    "pipeline",  # results of the unit itself are on their way through its pipeline
)
"""Closed list of what other units spend their time on."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An interlock of the hardware: the `count`-th instruction of a unit must have ended. cause: of the wait."""

    unit: str
    count: int
    cause: str


@dataclass(frozen=True)
class Result:
    """What one run counted. accounts: by unit, ticks by cause, each unit's summing to `ticks`. events: instructions
    with their repetitions."""

    ticks: int
    array_ticks: int
    accounts: dict[str, dict[str, int]]
    counters: dict[str, int]
    instructions: int
    events: int
    spans: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    """By unit, (cause, begin, end) in ticks of all its time, where a log was asked for."""
    fifo_levels: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By array, (tick, tiles) whenever the number of its weight FIFO's slots in use changed, likewise."""


class Unit:
    """One unit: its queue, when its instructions started and ended, and what its time went into."""

    def __init__(self, env: simpy.Environment, name: str, depth: float) -> None:
        self.env = env
        self.name = name
        self.queue = simpy.Store(env, depth)
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.account: dict[str, int] = {}
        self.spans: list[tuple[str, int, int]] | None = None
        self._ended = env.event()
        self._since = 0

    def spend(self, cause: str, until: int | None = None) -> None:
        """Accounts for the time since the last call, up to now or to `until`."""
        end = int(self.env.now) if until is None else until
        if end > self._since:
            self.account[cause] = self.account.get(cause, 0) + end - self._since
            if self.spans is not None:
                self.spans.append((cause, self._since, end))
            self._since = end

    def spend_in_turn(self, marks: list[tuple[int, str]], rest: str) -> None:
        """Accounts for the time up to now: to each cause up to its tick, in the order given, then to `rest`."""
        for tick, cause in marks:
            self.spend(cause, min(tick, int(self.env.now)))
        self.spend(rest)

    def end(self, tick: int) -> None:
        """Notes at which tick an instruction ends; later ones of the unit end no earlier."""
        self.ends.append(max(tick, self.ends[-1] if self.ends else 0))
        self._ended.succeed()
        self._ended = self.env.event()

    def reached(self, count: int, extra: int = 0) -> Process:
        """Waits until `count` instructions have ended, `extra` ticks ago."""
        while len(self.ends) < count:
            yield self._ended
        if count and self.ends[count - 1] + extra > self.env.now:
            yield self.env.timeout(self.ends[count - 1] + extra - int(self.env.now))


@dataclass
class _Array:
    """What belongs to one array: FIFO slots, tiles on their way, and permission to shift the next one in."""

    slots: simpy.Store
    fifo: simpy.Store
    allow: simpy.Store
    shadow: simpy.Store
    tile: int = 0
    last_sum: int = 0
    """Tick at which its last sum so far has left."""
    levels: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Calendar:
    """A resource that serves requests in their order."""

    free: int = 0
    busy: int = 0

    def book(self, now: int, ticks: int) -> int:
        """The tick at which a request of `ticks` starts."""
        start = max(now, self.free)
        self.free = start + ticks
        self.busy += ticks
        return start


@dataclass
class _Counts:
    """Counters of a run that no unit's account holds."""

    macs: int = 0
    useful_ticks: int = 0
    cell_ticks: int = 0
    raw_ticks: int = 0
    input_ticks: int = 0
    moved: dict[str, int] = field(default_factory=dict)

    def move(self, level: str, size: int) -> None:
        """Counts bytes, `level` with its direction."""
        self.moved[level] = self.moved.get(level, 0) + size


def _external_memory(spec: TpuSpec) -> ExternalMemory:
    """The memory of a run; the array alone has none, and so does not wait for numba's import."""
    from sim.tpu.dram import ExternalMemory

    return ExternalMemory(spec)


class Machine:
    """One run of a program. memory: numbers are moved as well; alone: only the array takes time; log: keeps spans."""

    def __init__(
        self,
        spec: TpuSpec,
        program: Program,
        memory: Memory | None = None,
        alone: bool = False,
        progress: Callable[[float], None] | None = None,
        log: bool = False,
    ) -> None:
        self.spec = spec = program.part(spec)
        self._log = log
        self.program = program
        self.memory = memory
        self.timing = Timing(spec, alone)
        self.env = simpy.Environment(0)
        depth = float("inf") if alone else spec.control.queue
        self.units = {name: Unit(self.env, name, depth) for name in units(spec)}
        self._inbound, self._outbound = carriers(spec)
        for unit in self.units.values() if log else ():
            unit.spans = []
        self.arrays = [self._array() for _ in range(spec.array.count)]
        self.read_port, self.write_port = Calendar(), Calendar()
        self._dram = None if alone else _external_memory(spec)
        self._activations_at = -(-program.weight_bytes // ALIGN) * ALIGN
        """Where in the chip's own memory what is not weights begins, on machines that have it there."""
        self.counts = _Counts()
        self._progress = progress
        self._activation_read = 0
        """Tick until which the activation unit reads accumulators."""

    def run(self) -> Result:
        """Runs the program to its end."""
        env = self.env
        for name, unit in self.units.items():
            if name.startswith("matrix"):
                number = int(name.removeprefix("matrix"))
                env.process(self._shifter(number))
                env.process(self._matrix(number, unit))
        env.process(self._serve("activation", self._activate))
        for number in range(self.spec.array.count):
            env.process(self._weights(fetcher(number)))
        env.process(self._serve(self._inbound, self._read_host))
        env.process(self._serve(self._outbound, self._write_host))
        env.process(self._serve("host", self._call_host))
        env.process(self._dispatch())
        env.run()
        self._refuse_deadlock()
        ticks = max([int(env.now), *(unit.ends[-1] for unit in self.units.values() if unit.ends)])
        for name, unit in self.units.items():
            if name.startswith("matrix"):
                unit.spend("drain", min(ticks, unit.ends[-1] if unit.ends else 0))
                unit.spend("activation", min(ticks, self._activation_read))
                unit.spend("output", ticks)
            unit.spend("finished", ticks)
        return Result(
            ticks=ticks,
            array_ticks=max(array.last_sum for array in self.arrays),
            accounts={name: unit.account for name, unit in self.units.items()},
            counters=self._counters(),
            instructions=len(self.program.instructions),
            events=sum(getattr(step, "repeat", 1) for step in self.program.instructions),
            spans={name: unit.spans for name, unit in self.units.items() if unit.spans is not None},
            fifo_levels={i: array.levels for i, array in enumerate(self.arrays)} if self._log else {},
        )

    def _refuse_deadlock(self) -> None:
        """InputError for the first instruction that never ended."""
        seen = dict.fromkeys(self.units, 0)
        for number, i in enumerate(self.program.instructions):
            if not i.unit or isinstance(i, Sync):
                continue
            seen[i.unit] += 1
            if seen[i.unit] > len(self.units[i.unit].ends):
                raise wrong(number, i, "never ends: it waits for something that the program starts later or never")

    def _counters(self) -> dict[str, int]:
        counts = self.counts
        return {
            "macs": counts.macs,
            "useful_ticks": counts.useful_ticks,
            "cell_ticks": counts.cell_ticks,
            "raw_stall_ticks": counts.raw_ticks,
            "input_stall_ticks": counts.input_ticks,
            "read_port_ticks": self.read_port.busy,
            "write_port_ticks": self.write_port.busy,
            **counts.moved,
        }

    def _array(self) -> _Array:
        env = self.env
        depth = self.spec.weight_fifo.depth
        slots = simpy.Store(env)
        slots.items.extend([True] * depth)
        array = _Array(slots, simpy.Store(env), simpy.Store(env), simpy.Store(env))
        if self.spec.array.overlap_weights:
            array.allow.items.append(True)
        return array

    # ---- control ----

    def _dispatch(self) -> Process:
        """Sends instructions to the units' queues, in order, as they arrive from the host and as queues have room."""
        env, control, timing = self.env, self.spec.control, self.timing
        # A machine with its operands in its own memory has its program there, too, and fetches it ahead.
        sends = self.spec.unified_buffer.behind == "host"
        arrival = timing.pcie(control.instruction_bytes) if sends else 0
        latency = timing.picoseconds(self.spec.pcie.latency_ps) if sends else 0
        issue = timing.latency(control.issue_cycles)
        issued: list[int] = []
        sent = 0
        count = len(self.program.instructions)
        for number, (instruction, waits) in enumerate(zip(self.program.instructions, self._interlocks(), strict=True)):
            # The host sends ahead until the instruction buffer is full.
            room = issued[number - control.buffer] if number >= control.buffer else 0
            sent = max(sent, room) + arrival
            ready = max(sent + latency, (issued[-1] + issue) if issued else 0)
            if ready > env.now:
                yield env.timeout(ready - int(env.now))
            if isinstance(instruction, Halt):
                return
            if not isinstance(instruction, Nop):
                yield self.units[instruction.unit].queue.put((instruction, waits))
            issued.append(int(env.now))
            if self._progress is not None:
                self._progress(number / count)

    def _interlocks(self) -> Iterator[tuple[Wait, ...]]:
        """For each instruction, which others the hardware lets end before it starts: users of the same accumulators,
        writers of what the activation unit reads again, and for a `Sync` all that the program gave the other unit."""
        given = dict.fromkeys(self.units, 0)
        rows = 1 + max(
            (i.acc + i.rows for i in self.program.instructions if isinstance(i, MatrixMultiply | Activate)), default=0
        )
        written = np.zeros((len(self.arrays), rows), dtype=np.int64)
        read = np.zeros((len(self.arrays), rows), dtype=np.int64)
        flying: deque[tuple[int, Area]] = deque()
        for i in self.program.instructions:
            if isinstance(i, Sync):
                cause = i.after.rstrip("0123456789")
                yield (Wait(i.after, given[i.after], cause),)
                continue
            if not i.unit:
                yield ()
                continue
            given[i.unit] += 1
            if isinstance(i, MatrixMultiply):
                area = slice(i.acc, i.acc + i.rows)
                yield (Wait("activation", int(read[i.array, area].max()), "accumulators"),)
                written[i.array, area] = given[i.unit]
            elif isinstance(i, Activate):
                area = slice(i.acc, i.acc + i.rows)
                yield (Wait(f"matrix{i.array}", int(written[i.array, area].max()), "matrix"),)
                read[i.array, area] = given[i.unit]
                flying.extend((given[i.unit], made) for made in writes(i))
            elif isinstance(i, Vector):
                yield self._pipeline(i, flying)
                flying.extend((given[i.unit], made) for made in writes(i))
            else:
                yield ()

    def _pipeline(self, i: Vector, flying: deque[tuple[int, Area]]) -> tuple[Wait, ...]:
        """The wait for the last instruction of the unit itself that writes what `i` reads. flying: what instructions
        write, by number; those that have ended are forgotten."""
        ends = self.units[i.unit].ends
        while flying and flying[0][0] <= len(ends) and ends[flying[0][0] - 1] <= self.env.now:
            flying.popleft()
        needed = reads(i)
        last = max((number for number, made in flying if any(overlap(made, area) for area in needed)), default=0)
        return (Wait(i.unit, last, "pipeline"),) if last else ()

    def _serve(self, name: str, run: Callable[[Any], Process]) -> Process:
        """A unit that runs one instruction after the other; `run` ends it."""
        unit = self.units[name]
        while True:
            instruction, waits = yield unit.queue.get()
            unit.spend("instruction")
            for wait in waits:
                extra = self._sync_ticks(instruction)
                yield from self.units[wait.unit].reached(wait.count, extra)
                unit.spend(wait.cause)
            if not isinstance(instruction, Sync):
                unit.starts.append(int(self.env.now))
                yield from run(instruction)

    def _sync_ticks(self, instruction: Instruction) -> int:
        """Ticks that an explicit synchronisation costs after the end of what it waits for."""
        return self.timing.latency(self.spec.control.sync_cycles) if isinstance(instruction, Sync) else 0

    # ---- weights ----

    def _weights(self, name: str) -> Process:
        """Fetches an array's tiles into its FIFO, one after the other. The next is asked for when the last data of the
        one before are a latency away, so that the memory's channels always have requests."""
        env, unit = self.env, self.units[name]
        size = self.spec.tile_bytes
        while True:
            instruction, waits = yield unit.queue.get()
            unit.spend("instruction")
            for wait in waits:
                yield from self.units[wait.unit].reached(wait.count, self._sync_ticks(instruction))
                unit.spend(wait.cause)
            if isinstance(instruction, Sync):
                continue
            assert isinstance(instruction, ReadWeights)
            unit.starts.append(int(env.now))
            array = self.arrays[instruction.array]
            for step in range(instruction.repeat):
                yield array.slots.get()
                self._note_level(array)
                unit.spend("fifo_full")
                address = instruction.address + step * size
                ready = self._read_dram(address, 1, size, size)
                array.fifo.put((ready, address))
                ahead = max(0, ready - 2 * self._latency - int(env.now))
                if ahead:
                    yield env.timeout(ahead)
                unit.spend("busy")
            unit.end(int(env.now))

    @property
    def _latency(self) -> int:
        """Ticks of an idle external memory."""
        return 0 if self._dram is None else self._dram.latency

    def _read_dram(self, address: int, rows: int, row_bytes: int, pitch: int) -> int:
        """Asks external memory for rows; the tick at which the last of them is there."""
        self.counts.move("dram_read_bytes", rows * row_bytes)
        now = int(self.env.now)
        return now if self._dram is None else self._dram.read(now, address, rows, row_bytes, pitch)

    def _write_dram(self, address: int, rows: int, row_bytes: int, pitch: int) -> int:
        """Gives external memory rows; the tick at which it has taken the last of them."""
        self.counts.move("dram_write_bytes", rows * row_bytes)
        now = int(self.env.now)
        return now if self._dram is None else self._dram.write(now, address, rows, row_bytes, pitch)

    def _shifter(self, number: int) -> Process:
        """Shifts tiles from the FIFO into the array's second set of weight registers."""
        env, array = self.env, self.arrays[number]
        stationary = self.spec.array.dataflow != "os"
        while True:
            if stationary:
                yield array.allow.get()
            arrival, address = yield array.fifo.get()
            if arrival > env.now:
                yield env.timeout(arrival - int(env.now))
            start = int(env.now)
            if stationary:
                yield env.timeout(self.timing.cycles(self.spec.array.rows))
                array.slots.put(True)
                self._note_level(array)
            array.shadow.put((start, address))

    def _note_level(self, array: _Array) -> None:
        """Notes how many slots of an array's weight FIFO hold a tile, or wait for one."""
        if self._log:
            array.levels.append((int(self.env.now), self.spec.weight_fifo.depth - len(array.slots.items)))

    # ---- matrix unit ----

    def _matrix(self, number: int, unit: Unit) -> Process:
        array = self.arrays[number]
        while True:
            instruction, waits = yield unit.queue.get()
            unit.spend("instruction")
            for wait in waits:
                if isinstance(instruction, Sync):
                    yield from self.units[wait.unit].reached(wait.count, self._sync_ticks(instruction))
                    self._spend_sync(unit, wait)
                else:
                    yield from self.units[wait.unit].reached(wait.count)
                    self._spend_accumulators(unit, wait)
            if isinstance(instruction, MatrixMultiply):
                unit.starts.append(int(self.env.now))
                for step in range(instruction.repeat):
                    yield from self._multiply(array, unit, instruction, step)
                unit.end(array.last_sum)

    def _multiply(self, array: _Array, unit: Unit, i: MatrixMultiply, step: int) -> Process:
        """One repetition: waits for its tile, streams, and leaves the sums on their way out."""
        env, timing, spec = self.env, self.timing, self.spec
        overlap, outputs_stay = spec.array.overlap_weights, spec.array.dataflow == "os"
        if i.switch:
            fresh = not outputs_stay or not (step or i.accumulate)
            if not overlap and fresh and array.last_sum > env.now:
                yield env.timeout(array.last_sum - int(env.now))
                unit.spend("drain")
            if not overlap and not outputs_stay:
                array.allow.put(True)
            start, array.tile = yield array.shadow.get()
            unit.spend(WEIGHT_STALL, start)
            unit.spend(WEIGHT_SHIFT)
        depth, steps = timing.depth(i, step), timing.steps(i, step)
        size = i.rows * depth * (i.bits // 8)
        port = timing.port(size)
        begin = self.read_port.book(int(env.now), port)
        if begin > env.now:
            yield env.timeout(begin - int(env.now))
            unit.spend("unified_buffer")
        if i.switch and overlap and not outputs_stay:
            array.allow.put(True)
        rows = timing.cycles(max(steps * spec.row_cycles(i.bits), spec.array.issue_interval_cycles))
        yield env.timeout(rows)
        unit.spend(ACTIVE)
        if port > rows:
            yield env.timeout(port - rows)
            unit.spend("unified_buffer")
        if i.switch and outputs_stay:
            array.slots.put(True)
            self._note_level(array)
        counts = self.counts
        array.last_sum = int(env.now) + timing.latency(spec.unified_buffer.latency_cycles) + timing.skew
        counts.macs += i.rows * depth * i.columns
        counts.useful_ticks += i.rows * depth * i.columns * spec.row_cycles(i.bits) * TICKS_PER_CYCLE
        counts.cell_ticks += rows * spec.array.rows * spec.array.columns
        counts.move("unified_buffer_read_bytes", size)
        counts.move("accumulators_write_bytes", 4 * i.rows * i.columns)
        if self.memory is not None:
            self.memory.multiply(i, step, array.tile)

    def _spend_accumulators(self, unit: Unit, wait: Wait) -> None:
        """Accounts for a wait until accumulators have been read: their reader may itself have waited for results ahead
        of it to leave for the host."""
        activation, host = self.units["activation"], self.units[self._outbound]
        begun = activation.starts[wait.count - 1] if wait.count else 0
        left = host.ends[-1] + self.timing.latency(self.spec.control.sync_cycles) if host.ends else 0
        unit.spend_in_turn([(min(begun, left), "output")], wait.cause)

    def _spend_sync(self, unit: Unit, wait: Wait) -> None:
        """Accounts for a synchronisation of the matrix unit, and counts input stalls and read-after-write stalls: these
        are the whole wait for what the activation unit writes, from the way of the last sums out of the array on."""
        before = dict(unit.account)
        host = self.units["host"]
        marks = [(unit.ends[-1] if unit.ends else 0, "drain"), (self._activation_read, "activation")]
        if wait.unit == self._inbound:
            begun = self.units[self._inbound].starts[wait.count - 1] if wait.count else 0
            output = self.units[self._outbound].ends[-1] if self.units[self._outbound].ends else 0
            marks += [(min(begun, output), "output"), (begun if host.ends else 0, "host")]
            unit.spend_in_turn(marks, "input")
        else:
            unit.spend_in_turn(marks, _SYNC_CAUSES.get(wait.unit, "drain"))
        if wait.unit == "activation":
            self.counts.raw_ticks += sum(unit.account.values()) - sum(before.values())
        self.counts.input_ticks += unit.account.get("input", 0) - before.get("input", 0)

    # ---- activation unit ----

    def _activate(self, i: Activate | Vector) -> Process:
        env, unit, timing = self.env, self.units["activation"], self.timing
        latency = self.spec.activation.latency_cycles
        if isinstance(i, Activate):
            written = i.rows * i.columns * (i.bits // 8)
            ticks = timing.activation(i.rows * self.spec.array.columns)
            self._activation_read = int(env.now) + max(ticks, timing.port(written))
            self.counts.move("accumulators_read_bytes", 4 * i.rows * i.columns)
            cause = "accumulators"
        else:
            size = i.rows * i.columns * (i.bits // 8)
            two = i.op in ("add", "multiply")
            read = i.rows * pooled_bytes(i.image, i.columns, i.bits) if i.op == "max_pool" else size * (1 + two)
            written = 0 if i.op in ("row_max", "exp_sum") else i.rows * i.columns * ((i.out_bits or i.bits) // 8)
            if i.op in VECTOR_UNIT:
                ticks, cause = timing.vector(i), "vector_unit"
                assert self.spec.vector is not None
                latency = self.spec.vector.latency_cycles
            else:
                # One path joins the activation unit to the buffer: operands and results take turns.
                ticks, cause = timing.port(read + written), "vector"
            yield from self._port(self.read_port, unit, read)
            self.counts.move("unified_buffer_read_bytes", read)
        yield from self._port(self.write_port, unit, written)
        ticks = max(ticks, timing.port(written))
        if ticks:
            yield env.timeout(ticks)
        unit.spend(cause)
        self.counts.move("unified_buffer_write_bytes", written)
        if self.memory is not None:
            self.memory.activate(i) if isinstance(i, Activate) else self.memory.vector(i)
        unit.end(int(env.now) + timing.latency(latency))

    def _port(self, port: Calendar, unit: Unit, size: int) -> Process:
        """Waits for a port of the unified buffer and books it."""
        start = port.book(int(self.env.now), self.timing.port(size))
        if start > self.env.now:
            yield self.env.timeout(start - int(self.env.now))
            unit.spend("unified_buffer")

    # ---- host ----

    def _read_host(self, i: ReadHostMemory) -> Process:
        env, unit, timing = self.env, self.units[self._inbound], self.timing
        size = i.rows * i.row_bytes
        taken = 0
        if i.weights:
            taken = self._write_dram(i.address, i.rows, i.row_bytes, i.pitch)
        else:
            yield from self._port(self.write_port, unit, size)
            self.counts.move("unified_buffer_write_bytes", size)
        if self._inbound == "load":
            address = self._activations_at + i.host
            left = self._read_dram(address, i.rows, i.row_bytes, i.host_pitch) - int(env.now)
            latency = min(2 * self._latency, left)
            busy = left - latency
        else:
            self.counts.move("pcie_read_bytes", size)
            # Weight memory takes data while the link brings more.
            busy = max(timing.pcie(size), taken - int(env.now))
            latency = timing.picoseconds(self.spec.pcie.latency_ps)
        if busy:
            yield env.timeout(busy)
        unit.spend("busy")
        if self.memory is not None:
            self.memory.read_host(i)
        unit.end(int(env.now) + latency)

    def _write_host(self, i: WriteHostMemory) -> Process:
        env, unit, timing = self.env, self.units[self._outbound], self.timing
        size = i.rows * i.row_bytes
        yield from self._port(self.read_port, unit, size)
        self.counts.move("unified_buffer_read_bytes", size)
        if self._outbound == "store":
            # Memory takes reads first: those that are asked for at this tick, too, are booked before.
            yield env.timeout(0)
            taken = self._write_dram(self._activations_at + i.host, i.rows, i.row_bytes, i.host_pitch)
            busy, latency = taken - int(env.now), self._latency
        else:
            self.counts.move("pcie_write_bytes", size)
            busy, latency = timing.pcie(size), timing.picoseconds(self.spec.pcie.latency_ps)
        if busy:
            yield env.timeout(busy)
        unit.spend("busy")
        if self.memory is not None:
            self.memory.write_host(i)
        unit.end(int(env.now) + latency)

    def _call_host(self, i: InterruptHost) -> Process:
        env, unit = self.env, self.units["host"]
        work = self.program.host_work.get(i.work, HostWork(0, 0, lambda _: None))
        ticks = self.timing.host_work(work.bytes_moved, work.ops)
        if ticks:
            yield env.timeout(ticks)
        unit.spend("busy")
        if self.memory is not None:
            self.memory.call_host(work)
        unit.end(int(env.now))
