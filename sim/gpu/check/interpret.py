"""The interpreter: replays an event log with numbers in the tiles, and says what the schedule computed and what it
did wrong.

Effects are applied in the order of the log's times. A buffer that is read with a write in flight gives NaN;
overwriting one that is being read, or with another write in flight, is a violation, and so is a barrier that was
passed before it was complete. Vector clocks (`sim.gpu.check.happens_before`) find in addition the accesses that only
lucky timing has ordered.

Rules of the language that are checked here:

- Shared memory and registers start as NaN; global tensors that are no inputs too. A global box is clipped at its
  tensor: outside it reads give zero and writes are dropped.
- Arithmetic on registers is ordered by the program. A load into registers that names a scoreboard (`into`) needs an
  op that waits for it (`after`); without `into` its destination is interlocked. Accumulators and register operands of
  wgmma belong to it until `wgmma_wait`, and registers used since the last `wgmma_fence` are not its to use.
- One warp's own synchronous accesses to memory keep their order. What goes through the asynchronous proxy (TMA,
  wgmma) needs `fence_async` after ordinary writes.
- mbarriers are initialised by the first warp of their CTA; everyone else needs a `bar_sync` or `cluster_sync` before
  using them. A CTA must outlive what its cluster sends to it, and its own bulk stores' reads of shared memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES, round_to
from arch.errors import InputError
from sim.gpu.check.gates import Flag, Gate, Groups, MBarrierStage, Rendezvous
from sim.gpu.check.happens_before import NEVER, Access, Agent, Clock, Clocks, History
from sim.gpu.check.instances import Box, Instance, Place, places, run_warp, warp_roles
from sim.gpu.check.mutants import WAITS
from sim.gpu.engine.events import EVENT_COLUMNS, Event
from sim.gpu.language import GlobalTensor, Kernel, Program, RegisterTile, walk

Array = NDArray[Any]
Key = tuple[int, str, int]  #: CTA (-1 for device memory), buffer, stage

WARPGROUP = 4  #: warps of a warpgroup

#: Ops whose effect on the warp comes when they are done: the program goes on from there.
_WAITS = frozenset((*WAITS, "next_tile"))
_ASYNC_PROXY = frozenset(("tma_load", "tma_store", "tma_reduce", "wgmma"))
_ATOMIC = frozenset(("red", "atom_add", "tma_reduce"))
#: Component that an access through the asynchronous proxy must know, by who wrote.
_FENCED = {Agent.WARP: Agent.FENCED, Agent.CP_ASYNC: Agent.CP_FENCED}


@dataclass(frozen=True)
class CheckResult:
    """What a replay found: output tensors (float arrays; NaN where nothing valid was stored) and violations, one line
    each."""

    outputs: dict[str, Array]
    violations: list[str]


def interpret(program: Program, events: NDArray[np.int64], inputs: Mapping[str, Array]) -> CheckResult:
    """Replays `events` (shape (rows, 8), columns `Event`) of `program` on `inputs` (tensor name to array of the
    tensor's shape).

    `inputs` must hold every tensor of role "input"; it may hold initial contents of others, which are NaN otherwise.
    Raises InputError for inputs that do not fit and for a log that is not one of this program.
    """
    events = np.asarray(events)
    if events.ndim != 2 or events.shape[1] != EVENT_COLUMNS:
        raise InputError(f"event log: shape {events.shape}; it must be (rows, {EVENT_COLUMNS})")
    memory = _device_memory(program, inputs)
    violations = _Violations()
    # One warp's rows in the order of issue; the log may come in any order.
    order = np.lexsort((events[:, Event.T_ISSUE], events[:, Event.WARP], events[:, Event.CTA], events[:, Event.KERNEL]))
    events = events[order]
    with np.errstate(all="ignore"):
        for number, kernel in enumerate(program.kernels):
            first, last = np.searchsorted(events[:, Event.KERNEL], (number, number + 1))
            _Replay(kernel, events[first:last], memory, violations).run()
    outputs = {t.name: memory[t.name].copy() for t in program.tensors if t.role == "output"}
    return CheckResult(outputs, violations.lines())


def _device_memory(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    tensors = {t.name: t for t in program.tensors}
    for name in inputs:
        if name not in tensors:
            raise InputError(f"inputs: {name} is no tensor of program {program.name}; it has {', '.join(tensors)}")
    memory = {}
    for tensor in program.tensors:
        if tensor.name in inputs:
            given = np.asarray(inputs[tensor.name])
            if given.shape != tensor.shape:
                raise InputError(f"inputs: {tensor.name} has shape {given.shape}; the program says {tensor.shape}")
            memory[tensor.name] = _rounded(given, tensor.dtype)
        elif tensor.alias:
            base = memory[tensor.alias]
            memory[tensor.name] = base.transpose(_as_it_lies(tensors[tensor.alias])).reshape(tensor.shape)
        elif tensor.role == "input":
            raise InputError(f"inputs: {tensor.name} is missing; program {program.name} reads it")
        else:
            order = _as_it_lies(tensor)
            blank = _blank(tuple(tensor.shape[i] for i in order), tensor.dtype)
            memory[tensor.name] = blank.transpose(np.argsort(order))
    return memory


def _as_it_lies(tensor: GlobalTensor) -> list[int]:
    """Dimensions of a tensor in the order in which memory holds them, the contiguous one last."""
    return sorted(range(len(tensor.shape)), key=lambda i: -tensor.strides[i])


def _storage(dtype: str) -> type[np.floating[Any]]:
    """The NumPy type whose values hold every value of `dtype` and NaN."""
    return np.float64 if dtype in ("fp64", "int32") else np.float32


def _blank(shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, np.nan, dtype=_storage(dtype))


def _rounded(values: Array, dtype: str) -> Array:
    if dtype == "fp32":
        return values.astype(np.float32)
    return round_to(values, dtype).astype(_storage(dtype))


class _Violations:
    """Violations, each kind between the same two ops once, with its first occurrence and their number."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], str] = {}
        self._count: dict[tuple[Any, ...], int] = {}

    def add(self, key: tuple[Any, ...], text: str) -> None:
        self._first.setdefault(key, text)
        self._count[key] = self._count.get(key, 0) + 1

    def lines(self) -> list[str]:
        return [
            text if self._count[key] == 1 else f"{text} (the first of {self._count[key]} such)"
            for key, text in self._first.items()
        ]


class _What(NamedTuple):
    """One executed op, as a violation names it."""

    opcode: str
    number: int
    role: str
    cta: int
    warp: int
    issue: int
    done: int

    def __str__(self) -> str:
        at = f"{self.issue}..{self.done}"
        return f"{self.role} {self.opcode} (op {self.number}, CTA {self.cta}, warp {self.warp}, ticks {at})"


class _Access(NamedTuple):
    """Who makes an op's accesses. kind: component of its warp, None for a TMA load, which has its barrier's; epoch:
    in that component."""

    kind: Agent | None
    epoch: int
    asynchronous: bool
    atomic: bool


@dataclass(slots=True, eq=False)
class _Flight:
    """A read or write of memory in progress. land: applies it early. poison: boxes that were being written when it
    began to read."""

    box: Box
    write: bool
    agent: _Access
    warp: _Warp
    what: _What
    land: Callable[[], None] | None = None
    poison: list[Box] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Touch:
    """One access of one box by one op: its entry among the flights and in the history, where it has them."""

    box: Box
    key: Key = (0, "", 0)
    flight: _Flight | None = None
    access: Access | None = None
    landed: bool = False


@dataclass(slots=True)
class _Pending:
    """Registers that an unfinished op of the same warp owns: a load's destination, or what a wgmma reads or writes."""

    box: Box
    write: bool
    scoreboard: str
    wgmma: int  # its number in the warp, 0 for a load
    done: int
    what: _What


class _Warp:
    """One warp in the replay: its program, its rows of the log, its registers and what it has in flight."""

    def __init__(
        self, kernel: Kernel, place: Place, number: int, rows: list[list[int]], clocks: Clocks, row: int
    ) -> None:
        self.place, self.number, self.clocks, self.row = place, number, clocks, row
        role, self.in_role = warp_roles(kernel)[number]
        self.role = role.name
        self.role_warps = role.warps
        self.program: Generator[Instance, int, None] = run_warp(kernel, place, number)
        self.rows, self.next_row = rows, 0
        self.registers: dict[str, Array] = {}
        self.pending: list[_Pending] = []
        self.scoreboards: dict[str, int] = {}  # name -> ticks at which its last signal is done
        self.fenced = False  # by a wgmma_fence, at all
        self.unfenced: set[str] = set()  # register tiles used since the last wgmma_fence
        self.cp, self.wgmma, self.bulk = Groups(), Groups(), Groups()
        self.generation = 0

    @property
    def clock(self) -> Clock:
        """What it knows now."""
        return self.clocks.of(self.row)

    def component(self, agent: Agent) -> int:
        """Its component for an agent."""
        return self.clocks.component(self.row, agent)

    def array(self, tile: RegisterTile) -> Array:
        """A register tile, NaN before it is written."""
        if tile.name not in self.registers:
            self.registers[tile.name] = _blank(tile.shape, tile.dtype)
        return self.registers[tile.name]

    def match(self, number: int) -> list[int] | None:
        """The log's row for the next instance, op `number`, or None; rows of one tick may be in any order."""
        rows, at = self.rows, self.next_row
        i = at
        while i < len(rows) and rows[i][Event.T_ISSUE] == rows[at][Event.T_ISSUE]:
            if rows[i][Event.OP] == number:
                rows[at], rows[i] = rows[i], rows[at]
                self.next_row += 1
                return rows[at]
            i += 1
        return None


_COMPLETION, _ISSUE = 0, 1


class _Replay:
    """The replay of one kernel."""

    def __init__(
        self, kernel: Kernel, events: NDArray[np.int64], memory: dict[str, Array], violations: _Violations
    ) -> None:
        self.kernel, self.memory, self.violations = kernel, memory, violations
        self.now = 0
        self._heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._ops = [op for role in kernel.roles for op in walk(role.body)]
        written = {op.dst.buffer.name for op in self._ops if op.dst and isinstance(op.dst.buffer, GlobalTensor)}
        read = {v.buffer.name for op in self._ops for v in op.srcs if isinstance(v.buffer, GlobalTensor)}
        read |= {op.dst.buffer.name for op in self._ops if op.dst and op.opcode in _ATOMIC}
        self._written, self._read_and_written = written, written & read
        self._flights: dict[Key, list[_Flight]] = {}
        self._histories: dict[Key, History] = {}
        self._shared: dict[tuple[int, str], Array] = {}
        self._places = places(kernel)
        self._clocks = self._make_clocks()
        self._first_stage, stages = {}, 0
        for barrier in kernel.barriers:
            self._first_stage[barrier.name] = stages
            stages += barrier.stages
        self._mbarriers: dict[tuple[int, str, int], MBarrierStage] = {}
        self._named: dict[tuple[int, int], Rendezvous] = {}
        self._clusters: dict[int, Rendezvous] = {}
        self._flags: dict[int, Flag] = {}
        self._sent: dict[int, dict[int, tuple[int, _What]]] = {}  # CTA -> component -> latest epoch sent to it by peers
        self._exits: dict[int, list[Clock]] = {}  # CTA -> clocks of its warps that have ended
        self._warps = self._make_warps(events)

    # --- set-up

    def _make_clocks(self) -> list[tuple[Clocks, int]]:
        """(clocks, number in them) of each CTA: one set for the grid if it has semaphores, else one a cluster."""
        kernel = self.kernel
        stages = sum(b.stages for b in kernel.barriers)
        if kernel.flags:
            whole = Clocks(kernel.ctas, kernel.warps, stages)
            return [(whole, p.cta) for p in self._places]
        clusters: dict[int, Clocks] = {}
        for place in self._places:
            if place.cluster not in clusters:
                clusters[place.cluster] = Clocks(kernel.cluster_size, kernel.warps, stages)
        return [(clusters[p.cluster], p.rank) for p in self._places]

    def _make_warps(self, events: NDArray[np.int64]) -> list[_Warp]:
        kernel = self.kernel
        keys = events[:, Event.CTA] * kernel.warps + events[:, Event.WARP]
        bounds = np.searchsorted(keys, np.arange(kernel.ctas * kernel.warps + 1))
        if bounds[0] != 0 or bounds[-1] != len(events):
            raise InputError(f"event log, kernel {kernel.name}: rows of CTAs or warps that the kernel does not have")
        rows = events.tolist()
        warps = []
        for place in self._places:
            clocks, local = self._clocks[place.cta]
            for number in range(kernel.warps):
                i = place.cta * kernel.warps + number
                own = rows[bounds[i] : bounds[i + 1]]
                warps.append(_Warp(kernel, place, number, own, clocks, clocks.row(local, number)))
        return warps

    # --- the loop

    def run(self) -> None:
        """Replays all rows; memory holds what the kernel stored."""
        for warp in self._warps:
            self._next(warp, None)
        while self._heap:
            self.now, _, _, action = heapq.heappop(self._heap)
            action()
        for gate in (*self._mbarriers.values(), *self._named.values(), *self._clusters.values(), *self._flags.values()):
            for _, _, text in gate.parked:
                self.violations.add(("never", text), f"{text}, which never happens")

    def _at(self, time: int, order: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, order, self._sequence, action))

    def _next(self, warp: _Warp, value: int | None) -> None:
        """Schedules the warp's next instance; `value` is what a `next_tile` returned."""
        try:
            instance = next(warp.program) if value is None else warp.program.send(value)
        except StopIteration:
            if warp.next_row != len(warp.rows):
                extra = warp.rows[warp.next_row]
                raise self._mismatch(warp, f"a row of op {extra[Event.OP]} follows the end of the program") from None
            self._exit(warp)
            return
        row = warp.match(instance.number)
        if row is None:
            found = "nothing" if warp.next_row == len(warp.rows) else f"op {warp.rows[warp.next_row][Event.OP]}"
            raise self._mismatch(
                warp, f"the program runs op {instance.number} ({instance.op.opcode}), the log has {found}"
            )
        self._at(row[Event.T_ISSUE], _ISSUE, lambda: self._issue(warp, instance, row))

    def _mismatch(self, warp: _Warp, what: str) -> InputError:
        where = f"kernel {self.kernel.name}, CTA {warp.place.cta}, warp {warp.number} ({warp.role})"
        return InputError(f"event log, {where}, row {warp.next_row} of the warp: {what}")

    def _violation(self, kind: str, what: _What, text: str, *other: int | str) -> None:
        key = (self.kernel.name, kind, what.number, *other)
        self.violations.add(key, f"kernel {self.kernel.name}: {what} {text}")

    def _issue(self, warp: _Warp, instance: Instance, row: list[int]) -> None:
        op = instance.op
        what = _What(
            op.opcode, instance.number, warp.role, warp.place.cta, warp.number, row[Event.T_ISSUE], row[Event.T_DONE]
        )
        self._wait_scoreboards(warp, instance, what)
        if op.dst is not None or op.srcs:
            self._data(warp, instance, row, what)
        else:
            self._signal(warp, instance, row, what)
        if op.into:
            warp.scoreboards[op.into] = max(warp.scoreboards.get(op.into, 0), row[Event.T_DONE])
        if op.opcode in _WAITS:
            self._at(row[Event.T_DONE], _ISSUE, lambda: self._pass(warp, instance, row, what))
        else:
            self._next(warp, None)

    def _wait_scoreboards(self, warp: _Warp, instance: Instance, what: _What) -> None:
        for name in instance.op.after:
            done = warp.scoreboards.pop(name, 0)
            if done > what.issue:
                self._violation("scoreboard", what, f"was issued before scoreboard {name} was released at {done}")
            warp.pending = [p for p in warp.pending if p.scoreboard != name]

    # --- barriers, fences, groups

    def _mbarrier(self, cta: int, instance: Instance, warp: _Warp, what: _What) -> MBarrierStage:
        """The mbarrier stage that `instance` uses in `cta`."""
        barrier = instance.op.barrier
        assert barrier is not None
        if not 0 <= instance.stage < barrier.stages:
            raise InputError(
                f"kernel {self.kernel.name}, {what}: stage {instance.stage} of barrier {barrier.name}; "
                f"it has stages 0 to {barrier.stages - 1}"
            )
        key = (cta, barrier.name, instance.stage)
        clocks, local = self._clocks[cta]
        if key not in self._mbarriers:
            component = clocks.barrier_component(local, self._first_stage[barrier.name] + instance.stage)
            self._mbarriers[key] = MBarrierStage(barrier.arrivals, component, clocks.blank())
        # The first warp initialises the barriers before its first release: whoever knows its epoch 1 may use them.
        if warp.clock[clocks.component(clocks.row(local, 0), Agent.WARP)] < 1:
            self._violation(
                "initialised",
                what,
                f"uses barrier {barrier.name} of CTA {cta}, whose initialisation is not ordered before it",
            )
        return self._mbarriers[key]

    def _targets(self, warp: _Warp, mask: int | None) -> list[int]:
        """CTAs of a cluster mask; the warp's own without one."""
        if mask is None:
            return [warp.place.cta]
        return [cta for rank, cta in enumerate(warp.place.peers) if mask >> rank & 1]

    def _signal(self, warp: _Warp, instance: Instance, row: list[int], what: _What) -> None:
        """What an op without data does at its issue."""
        opcode, clocks = instance.op.opcode, warp.clocks
        if opcode == "mbarrier_expect":
            barrier = self._mbarrier(warp.place.cta, instance, warp, what)
            barrier.bytes += instance.value
            self._arrive(barrier, clocks.release(warp.row), what)
        elif opcode == "mbarrier_arrive":
            barriers = [(cta, self._mbarrier(cta, instance, warp, what)) for cta in self._targets(warp, instance.mask)]
            epoch, clock = clocks.epoch(warp.row), clocks.release(warp.row)
            for cta, barrier in barriers:
                self._send(warp, cta, warp.component(Agent.WARP), epoch, what)
                self._arrive(barrier, clock, what)
        elif opcode == "cp_async_arrive":
            barrier = self._mbarrier(warp.place.cta, instance, warp, what)
            clock = clocks.release(warp.row)
            clock[warp.component(Agent.CP_ASYNC)] = warp.cp.issued
            if warp.cp.done > what.done:
                self._violation("early", what, f"arrived before its warp's cp.async were complete at {warp.cp.done}")
            self._at(row[Event.T_DONE], _COMPLETION, lambda: self._arrive(barrier, clock, what))
        elif opcode in ("bar_sync", "bar_arrive"):
            meeting = self._meeting(warp, instance)
            generation = meeting.arrive(clocks.release(warp.row), instance.value)
            if opcode == "bar_sync":
                warp.generation = generation
        elif opcode == "cluster_sync":
            meeting = self._meeting(warp, instance)
            warp.generation = meeting.arrive(clocks.release(warp.row), self.kernel.cluster_size * self.kernel.warps)
        elif opcode == "flag_add":
            self._flag(instance, what).add(clocks.release(warp.row))
        elif opcode == "fence_async":
            clocks.fence(warp.row)
        elif opcode == "wgmma_fence":
            warp.fenced = True
            warp.unfenced.clear()
        elif opcode == "wgmma_commit":
            warp.wgmma.commit()
        elif opcode == "cp_commit":
            warp.cp.commit()
        elif opcode == "bulk_commit":
            warp.bulk.commit()

    def _arrive(self, barrier: MBarrierStage, clock: Clock, what: _What) -> None:
        if not barrier.arrive(clock):
            self._violation("arrivals", what, f"arrives once too often: {barrier.missing()}")

    def _meeting(self, warp: _Warp, instance: Instance) -> Rendezvous:
        if instance.op.opcode == "cluster_sync":
            return self._clusters.setdefault(warp.place.cluster, Rendezvous(warp.clocks.blank()))
        return self._named.setdefault((warp.place.cta, instance.stage), Rendezvous(warp.clocks.blank()))

    def _flag(self, instance: Instance, what: _What) -> Flag:
        if not 0 <= instance.stage < self.kernel.flags:
            raise InputError(f"kernel {self.kernel.name}, {what}: semaphore {instance.stage} of {self.kernel.flags}")
        return self._flags.setdefault(instance.stage, Flag())

    def _pass(self, warp: _Warp, instance: Instance, row: list[int], what: _What) -> None:
        """A wait is over, says the log: checks that it may be, and lets the warp learn what it waited for."""
        opcode = instance.op.opcode

        def park(gate: Gate, ready: Callable[[], bool], learn: Callable[[], None], until: str) -> None:
            def resume() -> None:
                if self.now > what.done:
                    self._violation("early", what, f"passed before {until}, at {self.now}")
                learn()
                self._next(warp, None)

            if ready():
                resume()
            else:
                gate.parked.append((ready, resume, f"kernel {self.kernel.name}: {what} waits until {until}"))

        def acquire(clock: Clock) -> None:
            warp.clocks.acquire(warp.row, clock)

        if opcode == "mbarrier_wait":
            barrier, phase = self._mbarrier(warp.place.cta, instance, warp, what), instance.phase
            name = instance.op.barrier.name if instance.op.barrier else ""

            def learn_phase() -> None:
                if phase >= 0:
                    acquire(barrier.clock(phase))
                    if barrier.completed > phase + 1:
                        self._violation(
                            "parity", what, f"waits for phase {phase} when {name} has completed {barrier.completed}"
                        )

            until = f"phase {phase} of {name}[{instance.stage}] was complete"
            park(barrier, lambda: barrier.completed > phase, learn_phase, until)
        elif opcode in ("bar_sync", "cluster_sync"):
            meeting, generation = self._meeting(warp, instance), warp.generation
            park(
                meeting,
                lambda: len(meeting.clocks) > generation,
                lambda: acquire(meeting.clocks[generation]),
                "all warps had arrived",
            )
        elif opcode == "flag_wait":
            flag, value = self._flag(instance, what), instance.value
            park(
                flag,
                lambda: len(flag.clocks) >= value,
                lambda: acquire(flag.clocks[value - 1]) if value > 0 else None,
                f"semaphore {instance.stage} was {value}",
            )
        elif opcode == "next_tile":
            self._next(warp, row[Event.VALUE])
        else:
            self._finish_groups(warp, instance, what)
            self._next(warp, None)

    def _finish_groups(self, warp: _Warp, instance: Instance, what: _What) -> None:
        """cp_wait, wgmma_wait, bulk_wait, bulk_wait_read."""
        opcode, left = instance.op.opcode, instance.value
        groups = {"cp_wait": warp.cp, "wgmma_wait": warp.wgmma}.get(opcode, warp.bulk)
        epoch, read, done = groups.finished(left)
        due = read if opcode == "bulk_wait_read" else done
        if due > what.done:
            self._violation("early", what, f"passed before its groups were complete at {due}")
        learn = warp.clocks.learn
        if opcode == "cp_wait":
            learn(warp.row, warp.component(Agent.CP_ASYNC), epoch)
        elif opcode == "wgmma_wait":
            # wgmma is one instruction of the whole warpgroup: what is over for one of its warps is over for all.
            first = warp.row - warp.in_role % WARPGROUP
            size = min(WARPGROUP, warp.role_warps - (warp.in_role - warp.in_role % WARPGROUP))
            for peer in range(first, first + size):
                learn(warp.row, warp.clocks.component(peer, Agent.WGMMA), epoch)
            warp.pending = [p for p in warp.pending if not 0 < p.wgmma <= epoch]
        else:
            learn(warp.row, warp.component(Agent.BULK_READ), epoch)
            if opcode == "bulk_wait":
                learn(warp.row, warp.component(Agent.BULK_DONE), epoch)

    def _send(self, warp: _Warp, cta: int, component: int, epoch: int, what: _What) -> None:
        """Notes that a warp touches a peer's shared memory: that CTA must not end before."""
        if cta == warp.place.cta:
            return
        if len(self._exits.get(cta, ())) == self.kernel.warps:
            self._violation("exited", what, f"reaches CTA {cta} of its cluster, which has ended")
        self._sent.setdefault(cta, {})[component] = (epoch, what)

    def _exit(self, warp: _Warp) -> None:
        if warp.clock[warp.component(Agent.BULK_READ)] < warp.bulk.issued:
            self.violations.add(
                (self.kernel.name, "exit", warp.role),
                f"kernel {self.kernel.name}: {warp.role} (CTA {warp.place.cta}, warp {warp.number}) ends before its "
                "bulk stores have read shared memory",
            )
        ended = self._exits.setdefault(warp.place.cta, [])
        ended.append(warp.clock)
        if len(ended) == self.kernel.warps:
            known = np.maximum.reduce(ended)
            for component, (epoch, what) in self._sent.get(warp.place.cta, {}).items():
                if known[component] < epoch:
                    self._violation(
                        "exited", what, f"reaches CTA {warp.place.cta}, which may have ended: nothing orders it"
                    )

    # --- data

    def _data(self, warp: _Warp, instance: Instance, row: list[int], what: _What) -> None:
        """Schedules the effects of an op with operands: registers are read at its issue, memory at T_READ, results
        appear at T_DONE.

        Arithmetic on registers alone happens at the issue: the program's order is what a fixed latency keeps.
        """
        op, dst, srcs = instance.op, instance.dst, instance.srcs
        issue, done = what.issue, max(what.done, what.issue)
        read = min(max(row[Event.T_READ], issue), done)
        to_memory = dst is not None and not isinstance(dst.buffer, RegisterTile)
        immediate = not (
            to_memory or op.into or op.opcode == "wgmma" or any(not isinstance(b.buffer, RegisterTile) for b in srcs)
        )
        agent = self._agent(warp, instance, read, done)
        self._use_registers(warp, instance, what, agent.epoch, immediate)
        values = [
            self._take(warp, b, warp.place.cta, None) if isinstance(b.buffer, RegisterTile) else None for b in srcs
        ]
        if immediate:
            self._put(warp, instance, warp.place.cta, values)
            return

        source = self._targets(warp, instance.mask)[0] if op.opcode == "dsmem_ld" else warp.place.cta
        remote = op.opcode in ("tma_load", "dsmem_st")
        targets = self._targets(warp, instance.mask) if remote else [warp.place.cta]
        barriers = [self._mbarrier(c, instance, warp, what) for c in targets] if op.opcode == "tma_load" else []
        reads = [self._touch(warp, source, b, False, agent, barriers[:1], what) for b in srcs]
        writes = []
        if dst is not None:
            for i, cta in enumerate(targets):
                writes.append(self._touch(warp, cta, dst, True, agent, barriers[i : i + 1], what))
        if agent.kind is Agent.WARP:
            for cta in {source, *targets}:
                self._send(warp, cta, warp.component(Agent.WARP), agent.epoch, what)

        def take() -> None:
            for i, (box, touch) in enumerate(zip(srcs, reads, strict=True)):
                if values[i] is None:
                    values[i] = self._take(warp, box, source, touch.flight)
                self._close(touch)

        def put(cta: int, touch: _Touch) -> None:
            # A later read of the same warp may have asked for the result before (`_take`): it is written once.
            if not touch.landed:
                touch.landed = True
                self._put(warp, instance, cta, values)

        def land() -> None:
            for cta, touch in zip(targets, writes, strict=False):
                put(cta, touch)
                self._close(touch)
            for i, (cta, barrier) in enumerate(zip(targets, barriers, strict=False)):
                accesses = [t.access for t in (*writes[i : i + 1], *(reads if i == 0 else ())) if t.access]
                self._send(warp, cta, barrier.component, barrier.completed + 1, what)
                barrier.land(_size_bytes(writes[i].box), accesses)

        for cta, touch in zip(targets, writes, strict=False):
            if touch.flight is not None:
                touch.flight.land = partial(put, cta, touch)
        self._at(read, _COMPLETION, take)
        self._at(done, _COMPLETION, land)

    def _agent(self, warp: _Warp, instance: Instance, read: int, done: int) -> _Access:
        """Who makes the accesses of an op: the warp itself, or what runs beside it."""
        opcode = instance.op.opcode
        asynchronous = opcode in _ASYNC_PROXY
        atomic = opcode in _ATOMIC
        if opcode == "wgmma":
            return _Access(Agent.WGMMA, warp.wgmma.add(read, done), asynchronous, atomic)
        if opcode == "cp_async":
            return _Access(Agent.CP_ASYNC, warp.cp.add(read, done), asynchronous, atomic)
        if opcode in ("tma_store", "tma_reduce"):
            return _Access(Agent.BULK_DONE, warp.bulk.add(read, done), asynchronous, atomic)
        if opcode == "tma_load":
            return _Access(None, NEVER, asynchronous, atomic)
        return _Access(Agent.WARP, warp.clocks.epoch(warp.row), asynchronous, atomic)

    def _use_registers(self, warp: _Warp, instance: Instance, what: _What, epoch: int, immediate: bool) -> None:
        """Checks an op's register boxes against what unfinished ops of the warp own, and notes what it owns itself."""
        op, wgmma = instance.op, instance.op.opcode == "wgmma"
        boxes = [(b, False) for b in instance.srcs] + ([(instance.dst, True)] if instance.dst else [])
        mine = []
        for box, write in boxes:
            if not isinstance(box.buffer, RegisterTile):
                continue
            name = box.buffer.name
            for p in list(warp.pending):
                if p.box.buffer is not box.buffer or not p.box.overlaps(box) or not (write or p.write):
                    continue
                if wgmma and p.wgmma:
                    continue  # wgmma of one warp run in order
                if not p.scoreboard and not p.wgmma:
                    warp.pending.remove(p)
                    if p.done <= what.issue:
                        continue
                self._violation("registers", what, f"touches registers {box} that {p.what} still owns", p.what.number)
                if p.write:
                    warp.array(box.buffer)[_intersection(p.box, box).index] = np.nan
            if wgmma and (not warp.fenced or name in warp.unfenced):
                self._violation("fence", what, f"uses registers {name} that no wgmma_fence has ordered before it")
            if not wgmma:
                warp.unfenced.add(name)
            if wgmma or (write and not immediate):
                mine.append(_Pending(box, write, op.into, epoch if wgmma else 0, what.done, what))
        warp.pending += mine

    def _touch(
        self, warp: _Warp, cta: int, box: Box, write: bool, agent: _Access, barriers: list[MBarrierStage], what: _What
    ) -> _Touch:
        """Begins an access of memory: checks it against what is in flight and what is not ordered before it."""
        touch = _Touch(box)
        name = box.buffer.name
        in_global = isinstance(box.buffer, GlobalTensor)
        clipped = box.clipped()
        if isinstance(box.buffer, RegisterTile) or 0 in clipped.shape or (in_global and name not in self._written):
            return touch
        touch.key = (-1 if in_global else cta, name, box.stage)
        verb = "writes" if write else "reads"
        if not in_global or name in self._read_and_written:
            touch.flight = _Flight(clipped, write, agent, warp, what)
            flights = self._flights.setdefault(touch.key, [])
            for other in flights:
                if (
                    not (write or other.write)
                    or (agent.atomic and other.agent.atomic)
                    or (other.warp is warp and agent.kind is other.agent.kind is Agent.WARP)
                    or not other.box.overlaps(clipped)
                ):
                    continue
                doing = "being written" if other.write else "being read"
                self._violation(
                    "flight",
                    what,
                    f"{verb} {clipped} of CTA {cta} that is {doing} by {other.what}",
                    other.what.number,
                    name,
                )
                if other.write:
                    touch.flight.poison.append(other.box)
            flights.append(touch.flight)

        if agent.kind is None:
            component = proxied = barriers[0].component
        else:
            # A bulk store's two ends: its source is free once read, its destination is there once done.
            kind = Agent.BULK_READ if agent.kind is Agent.BULK_DONE and not in_global else agent.kind
            component = proxied = warp.component(kind)
            if write and not in_global and kind in _FENCED:
                proxied = warp.component(_FENCED[kind])
        touch.access = Access(clipped, write, agent.atomic, warp.clocks, component, proxied, agent.epoch, what)
        history = self._histories.setdefault(touch.key, History())
        proxy = agent.asynchronous and not in_global
        for prior in history.conflicts(touch.access, warp.clock, asynchronous=proxy):
            did = "written" if prior.write else "read"
            earlier = prior.what
            assert isinstance(earlier, _What)
            self._violation(
                "race",
                what,
                f"{verb} {clipped} of CTA {cta}, which is {did} by {earlier}: nothing orders the two",
                earlier.number,
                name,
            )
        return touch

    def _close(self, touch: _Touch) -> None:
        """Ends an access."""
        if touch.flight is not None:
            self._flights[touch.key].remove(touch.flight)
            touch.flight = None

    def _memory(self, warp: _Warp, box: Box, cta: int) -> Array:
        """The array (one stage of it) that a box lies in."""
        buffer = box.buffer
        if isinstance(buffer, GlobalTensor):
            return self.memory[buffer.name]
        if isinstance(buffer, RegisterTile):
            return warp.array(buffer)
        key = (cta, buffer.name)
        if key not in self._shared:
            self._shared[key] = _blank((buffer.stages, *buffer.shape), buffer.dtype)
        return self._shared[key][box.stage]

    def _take(self, warp: _Warp, box: Box, cta: int, flight: _Flight | None) -> Array:
        """The contents of a box as an op sees them: zero outside a global tensor, NaN where a write was in flight."""
        if flight is not None and flight.agent.kind is Agent.WARP:
            # A warp's own earlier stores are ahead of its loads in the load-store unit.
            for other in list(
                self._flights[(-1 if isinstance(box.buffer, GlobalTensor) else cta, box.buffer.name, box.stage)]
            ):
                if other is flight:
                    break
                mine = other.warp is warp and other.agent.kind is Agent.WARP
                if mine and other.land and other.box.overlaps(flight.box):
                    other.land()
        clipped = box.clipped()
        memory = self._memory(warp, box, cta)
        if clipped.shape == box.shape:
            values = memory[box.index].copy()
        else:
            values = np.zeros(box.shape, dtype=memory.dtype)
            values[_relative(clipped, box)] = memory[clipped.index]
        for poisoned in flight.poison if flight is not None else ():
            values[_relative(_intersection(poisoned, box), box)] = np.nan
        return _matrix(values, box.transposed)

    def _put(self, warp: _Warp, instance: Instance, cta: int, values: list[Array | None]) -> None:
        """Writes `compute(old, *values)` to the destination, rounded to its format; NaN if the op has no meaning."""
        op, box = instance.op, instance.dst
        if box is None:
            return
        memory, clipped = self._memory(warp, box, cta), box.clipped()
        old = np.zeros(box.shape, dtype=memory.dtype)
        if op.opcode not in ("mma", "wgmma") or instance.value:
            old[_relative(clipped, box)] = memory[clipped.index]
        if op.compute is None:
            result = np.full(box.shape, np.nan)
        else:
            operands = [v.astype(memory.dtype, copy=False) for v in values if v is not None]
            result = np.asarray(op.compute(_matrix(old, box.transposed), *operands, *instance.indices))
        if box.transposed and result.ndim >= 2:
            result = np.swapaxes(result, -1, -2)
        if result.size != old.size:
            raise InputError(
                f"kernel {self.kernel.name}, {op.opcode} (op {instance.number}): the result has shape {result.shape}, "
                f"its destination {box.buffer.name} {box.shape}"
            )
        rounded = _rounded(result.reshape(box.shape), box.buffer.dtype)
        memory[clipped.index] = rounded[_relative(clipped, box)]


def _size_bytes(box: Box) -> int:
    """Bytes of a box, not clipped: what a bulk copy counts on its barrier."""
    return DTYPE_BYTES[box.buffer.dtype] * int(np.prod(box.shape))


def _intersection(a: Box, b: Box) -> Box:
    lower = tuple(map(max, a.lower, b.lower))
    upper = tuple(map(min, a.upper, b.upper))
    return Box(a.buffer, a.stage, lower, upper)


def _relative(part: Box, whole: Box) -> tuple[slice, ...]:
    """Index of `part` in an array that holds `whole`."""
    return tuple(
        slice(a - origin, max(a, b) - origin) for a, b, origin in zip(part.lower, part.upper, whole.lower, strict=True)
    )


def _matrix(values: Array, transposed: bool) -> Array:
    """Values as `compute` gets them: leading extents of 1 dropped down to a matrix, the last two swapped if asked."""
    while values.ndim > 2 and values.shape[0] == 1:
        values = values[0]
    return np.swapaxes(values, -1, -2) if transposed else values
