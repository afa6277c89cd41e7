"""Runs a GPU program in a legal order with random latencies and writes the event log: the engine's functional twin.

It knows no machine. Every op takes a random time; barriers, groups, scoreboards and semaphores block as the language
says; all CTAs of a kernel are resident at once. The same seed gives the same log.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sim.gpu.check.instances import Instance, Place, places, run_warp, warp_roles
from sim.gpu.language import GlobalTensor, Kernel, Program, RegisterTile, SharedTile, walk
from sim.gpu.language.ops import GROUPS, Action, Group

#: These wait until the warp's own loads and stores have been performed, as the memory model says of what releases.
_RELEASES = (
    Action.MEET,
    Action.JOIN,
    Action.ARRIVE,
    Action.EXPECT_BYTES,
    Action.RELEASE,
    Action.FENCE_PROXY,
)


class Deadlock(RuntimeError):
    """Nothing can happen any more; the message says what each warp waits for."""


def execute(program: Program, seed: int = 0, latency: int = 60) -> NDArray[np.int64]:
    """The event log, shape (rows, 8), of one random legal execution; `latency`: longest time of an op in ticks."""
    rng = np.random.default_rng(seed)
    rows: list[list[int]] = []
    start = 0
    for number, kernel in enumerate(program.kernels):
        start = _Launch(kernel, number, start, rng, latency, rows).run() + 1
    log = np.array(rows, dtype=np.int64).reshape(-1, 8)
    return log[rng.permutation(len(log))]


@dataclass(eq=False)
class _Warp:
    place: Place
    number: int
    role: str
    in_role: int
    program: Generator[Instance, int, None]
    instance: Instance | None = None
    issued: int = 0
    outstanding: Counter[str] = field(default_factory=Counter)
    performed: int = 0  # ticks at which its own loads and stores are performed
    registers: int = 0  # ticks at which loads without scoreboard are there
    # By group: (read, done) ticks of the ops of the open one, and of those that are closed.
    open: dict[Group, list[tuple[int, int]]] = field(default_factory=lambda: {g: [] for g in GROUPS})
    closed: dict[Group, list[tuple[int, int]]] = field(default_factory=lambda: {g: [] for g in GROUPS})
    latest: Counter[Group] = field(default_factory=Counter)  # done ticks of the last of all
    joined: int = 0  # ops of several warps that it has come to
    tiles: int = 0
    generation: int = 0  # of the barrier at which it arrived without waiting


@dataclass
class _Phase:
    arrivals: int
    pending: int
    bytes: int = 0
    completed: int = 0


class _Launch:
    def __init__(
        self, kernel: Kernel, number: int, start: int, rng: np.random.Generator, latency: int, rows: list[list[int]]
    ) -> None:
        self.kernel, self.number, self.rng, self.latency, self.rows = kernel, number, rng, latency, rows
        self.sizes = {role.name: role.warps for role in kernel.roles}
        self.now, self.last, self._sequence = start, start, 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.parked: list[tuple[_Warp, Callable[[], bool], str]] = []
        self.phases = {
            (cta, b.name, stage): _Phase(b.arrivals, b.arrivals)
            for cta in range(kernel.ctas)
            for b in kernel.barriers
            for stage in range(b.stages)
        }
        self.meetings: dict[tuple[bool, int, int], list[int]] = {}  # key -> [generation, arrived]
        self.together: dict[tuple[int, str, int, int], list[int]] = {}  # warps and number -> [warps there, done ticks]
        self.free: Counter[tuple[int, str, int]] = Counter()
        self.flags: Counter[int] = Counter()
        self.tiles: dict[int, list[int]] = {}
        self.next_tile = 0
        ops = [op for role in kernel.roles for op in walk(role.body)]
        clusters = kernel.ctas // kernel.cluster_size
        asks = any(op.spec.action is Action.READ_CANCELLED for op in ops)
        self.waiting = list(range(min(2, clusters), clusters)) if asks else []  # clusters that have not started
        self.answers: dict[int, list[int]] = {}

    def run(self) -> int:
        """Runs to the end; the tick of the last effect."""
        for place in places(self.kernel):
            if place.cluster in self.waiting:
                continue
            for number, (role, in_role) in enumerate(warp_roles(self.kernel)):
                program = run_warp(self.kernel, place, number)
                warp = _Warp(place, number, role.name, in_role, program)
                warp.instance = next(program, None)
                self.at(self.now + self.delay(), partial(self.step, warp))
        while self.heap:
            self.now, _, action = heapq.heappop(self.heap)
            self.last = max(self.last, self.now)
            action()
            free = [p for p in self.parked if p[1]()]
            self.parked = [p for p in self.parked if p not in free]
            for warp, _, _ in free:
                self.step(warp, resumed=True)
        if self.parked:
            waiting = "; ".join(
                f"CTA {w.place.cta} warp {w.number} ({w.role}) waits for {what}" for w, _, what in self.parked
            )
            raise Deadlock(f"kernel {self.kernel.name}: {waiting}")
        return self.last

    def at(self, time: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self.heap, (time, self._sequence, action))

    def delay(self) -> int:
        return int(self.rng.integers(1, self.latency + 1))

    def step(self, warp: _Warp, resumed: bool = False) -> None:
        """The warp's next op: issue it, or find out what it waits for."""
        instance = warp.instance
        if instance is None:
            return
        op = instance.op
        if not resumed:
            if any(warp.outstanding[name] for name in op.after):
                self.parked.append(
                    (warp, lambda: not any(warp.outstanding[n] for n in op.after), f"scoreboards {op.after}")
                )
                # Once free, it starts again from here.
                warp.issued = -1
                return
            due = max(warp.registers, warp.performed if op.spec.action in _RELEASES else 0)
            if due > self.now:
                self.at(due, lambda: self.step(warp))
                return
        elif warp.issued == -1:
            warp.issued = 0
            self.at(self.now, lambda: self.step(warp))
            return
        if not resumed:
            warp.issued = self.now
            condition = self.issue(warp, instance)
            if condition is not None and not condition[0]():
                self.parked.append((warp, *condition))
                return
            if condition is not None:
                self.passed(warp, instance)
            return
        self.passed(warp, instance)

    def passed(self, warp: _Warp, instance: Instance) -> None:
        """A wait is over."""
        if instance.op.spec.action is Action.OPERATE:
            self.issue(warp, instance, resumed=True)
            return
        value = 0
        if instance.op.spec.action is Action.NEXT_TILE:
            tiles = self.tiles.setdefault(warp.place.cta, [])
            if len(tiles) == warp.tiles:
                tiles.append(self.next_tile)
                self.next_tile += 1
            value = tiles[warp.tiles]
            warp.tiles += 1
        if instance.op.spec.action is Action.READ_CANCELLED:
            known = self.answers.get(warp.place.cta, [])
            value = known[warp.tiles] if warp.tiles < len(known) else -1
            warp.tiles += 1
        self.log(warp, instance, warp.issued, warp.issued, self.now, value)
        self.advance(warp, value)

    def advance(self, warp: _Warp, value: int = 0) -> None:
        try:
            warp.instance = warp.program.send(value)
        except StopIteration:
            warp.instance = None
            return
        self.at(self.now + int(self.rng.integers(1, 4)), lambda: self.step(warp))

    def log(self, warp: _Warp, instance: Instance, issue: int, read: int, done: int, value: int = 0) -> None:
        self.rows.append([self.number, warp.place.cta, warp.number, instance.number, issue, read, done, value])

    def phase(self, cta: int, instance: Instance) -> _Phase:
        assert instance.op.barrier is not None
        return self.phases[cta, instance.op.barrier.name, instance.stage]

    def arrive(self, phase: _Phase) -> None:
        phase.pending = max(0, phase.pending - 1)
        self.settle(phase)

    @staticmethod
    def settle(phase: _Phase) -> None:
        if phase.pending == 0 and phase.bytes == 0:
            phase.completed += 1
            phase.pending = phase.arrivals

    def targets(self, warp: _Warp, mask: int | None) -> list[int]:
        if mask is None:
            return [warp.place.cta]
        return [cta for rank, cta in enumerate(warp.place.peers) if mask >> rank & 1]

    @staticmethod
    def companions(warp: _Warp, group: Group) -> tuple[int, str, int]:
        """The warps that execute an op of `group` together with this one."""
        return warp.place.cta, warp.role, warp.in_role // group.warps

    def issue(self, warp: _Warp, instance: Instance, resumed: bool = False) -> tuple[Callable[[], bool], str] | None:
        """Does what the op does at its issue. A wait returns its condition; others are logged and the warp goes on."""
        op, spec, now = instance.op, instance.op.spec, self.now
        read = done = now
        match spec.action:
            case Action.OPERATE if spec.group and spec.group.warps > 1 and not resumed:
                return self.join(warp, spec.group)
            case Action.OPERATE if instance.op.views:
                read, done = self.data(warp, instance)
            case Action.AWAIT_PHASE:
                phase = self.phase(warp.place.cta, instance)
                assert op.barrier is not None
                what = f"phase {instance.phase} of {op.barrier.name}[{instance.stage}]"
                return (lambda: phase.completed > instance.phase), what
            case Action.MEET:
                meeting = self.meeting(warp, instance)
                generation = meeting[0]
                self.meet(meeting, instance)
                count = self.expected(instance)
                number = 0 if spec.cluster else instance.stage
                return (lambda: meeting[0] > generation), f"{op.opcode} {number} of {count} warps"
            case Action.JOIN:
                meeting = self.meeting(warp, instance)
                warp.generation = meeting[0]
                self.meet(meeting, instance)
            case Action.AWAIT_JOINED:
                meeting, generation = self.meeting(warp, instance), warp.generation
                return (lambda: meeting[0] > generation), f"{op.opcode} of {self.expected(instance)} warps"
            case Action.ACQUIRE:
                return (lambda: self.flags[instance.stage] >= instance.value), f"semaphore {instance.stage}"
            case Action.READ_CANCELLED:
                return (lambda: True), "an answer"
            case Action.NEXT_TILE:
                return (lambda: True), "next tile"
            case Action.AWAIT_GROUPS:
                assert spec.group is not None
                closed = warp.closed[spec.group]
                ends = [group[0 if spec.until_read else 1] for group in closed]
                due = max(ends[: max(0, len(ends) - instance.value)], default=now)
                if not spec.group.closes:
                    due = max(now, warp.latest[spec.group])
                if due > now:
                    self.at(due, lambda: None)
                return (lambda: self.now >= due), f"{op.opcode} {instance.value}"
            case Action.COMMIT_GROUP:
                assert spec.group is not None
                members = warp.open[spec.group]
                warp.closed[spec.group].append(
                    (max((r for r, _ in members), default=now), max((d for _, d in members), default=now))
                )
                members.clear()
            case Action.ARRIVE:
                done = now + self.delay()
                for cta in self.targets(warp, instance.mask):
                    self.at(done, partial(self.arrive, self.phase(cta, instance)))
            case Action.EXPECT_BYTES:
                expecting = self.phase(warp.place.cta, instance)
                expecting.bytes += instance.value
                self.arrive(expecting)
            case Action.ARRIVE_AFTER_GROUP:
                assert spec.group is not None
                done = max(warp.latest[spec.group], now)
                for cta in self.targets(warp, instance.mask):
                    self.at(done, partial(self.arrive, self.phase(cta, instance)))
            case Action.RELEASE:
                done = now + self.delay()
                self.at(done, lambda: self.flags.update([instance.stage]))
        if op.into:
            warp.outstanding[op.into] += 1
            self.at(done, lambda: warp.outstanding.subtract([op.into]))
        self.last = max(self.last, done)
        self.log(warp, instance, now, read, done)
        self.advance(warp)
        return None

    def join(self, warp: _Warp, group: Group) -> tuple[Callable[[], bool], str]:
        """Comes to an op of several warps; it begins when all are there."""
        companions = self.companions(warp, group)
        together = self.together.setdefault((*companions, warp.joined), [0, 0])
        warp.joined += 1
        together[0] += 1
        size = min(group.warps, self.sizes[warp.role] - group.warps * companions[2])
        if together[0] == size:
            # One instruction of all of them: it ends for all at once, after the one before.
            together[1] = max(self.now, self.free[companions]) + self.delay()
            self.free[companions] = together[1]
        return (lambda: together[0] == size), "the other warps of its warpgroup"

    def expected(self, instance: Instance) -> int:
        """Warps that a barrier waits for."""
        return self.kernel.cluster_size * self.kernel.warps if instance.op.spec.cluster else instance.value

    def meeting(self, warp: _Warp, instance: Instance) -> list[int]:
        """[generation, arrived] of the barrier of the cluster or, by its number, of the CTA."""
        cluster = instance.op.spec.cluster
        place = warp.place.cluster if cluster else warp.place.cta
        return self.meetings.setdefault((cluster, place, 0 if cluster else instance.stage), [0, 0])

    def meet(self, meeting: list[int], instance: Instance) -> None:
        """One more warp at a barrier."""
        meeting[1] += 1
        if meeting[1] == self.expected(instance):
            meeting[:] = [meeting[0] + 1, 0]

    def data(self, warp: _Warp, instance: Instance) -> tuple[int, int]:
        """(read, done) ticks of an op with operands."""
        op, now = instance.op, self.now
        read = now + self.delay()
        done = read + self.delay()
        if op.spec.lands:
            assert op.dst is not None
            size = op.dst.size_bytes
            found = self.waiting.pop(0) if op.opcode == "try_cancel" and self.waiting else -1
            for cta in self.targets(warp, instance.mask):
                if op.opcode == "try_cancel":
                    self.answers.setdefault(cta, []).append(found)
                peers = warp.place.peers
                phase = self.phase(peers[peers.index(cta) & ~1] if op.pair else cta, instance)

                def land(phase: _Phase = phase) -> None:
                    phase.bytes -= size
                    self.settle(phase)

                self.at(done, land)
        elif op.spec.group is not None:
            group = op.spec.group
            if group.warps > 1:
                done = read = self.together[*self.companions(warp, group), warp.joined - 1][1]
            if group.in_order:
                read = max(read, warp.latest[group])
                done = max(done, read)
            warp.open[group].append((read, done))
            warp.latest[group] = max(warp.latest[group], done)
        elif any(isinstance(b.buffer, SharedTile | GlobalTensor) for b in (*instance.srcs, instance.dst) if b):
            # The load-store unit keeps one warp's order.
            read = max(read, warp.performed)
            done = max(done, read)
            loads = instance.dst is not None and isinstance(instance.dst.buffer, RegisterTile)
            warp.performed = max(warp.performed, read if loads else done)
            if loads and not op.into:
                warp.registers = max(warp.registers, done)
        return read, done
