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
from sim.gpu.language import GlobalTensor, Kernel, Program, RegisterTile, SharedTile

#: These wait until the warp's own loads and stores have been performed, as the memory model says of what releases.
_RELEASES = {"bar_sync", "bar_arrive", "cluster_sync", "mbarrier_arrive", "mbarrier_expect", "flag_add", "fence_async"}


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
    wgmma: list[int] = field(default_factory=list)  # done ticks of the open group
    cp: list[int] = field(default_factory=list)
    bulk: list[tuple[int, int]] = field(default_factory=list)
    wgmma_groups: list[int] = field(default_factory=list)
    cp_groups: list[int] = field(default_factory=list)
    bulk_groups: list[tuple[int, int]] = field(default_factory=list)
    joined: int = 0  # wgmma that it has come to
    cp_last: int = 0
    tiles: int = 0


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
        self.meetings: dict[tuple[str, int, int], list[int]] = {}  # key -> [generation, arrived]
        self.wgmma: dict[tuple[int, str, int, int], list[int]] = {}  # warpgroup and number -> [warps there, done ticks]
        self.wgmma_free: Counter[tuple[int, str, int]] = Counter()
        self.flags: Counter[int] = Counter()
        self.tiles: dict[int, list[int]] = {}
        self.next_tile = 0

    def run(self) -> int:
        """Runs to the end; the tick of the last effect."""
        for place in places(self.kernel):
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
            due = max(warp.registers, warp.performed if op.opcode in _RELEASES else 0)
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
        if instance.op.opcode == "wgmma":
            self.issue(warp, instance, resumed=True)
            return
        value = 0
        if instance.op.opcode == "next_tile":
            tiles = self.tiles.setdefault(warp.place.cta, [])
            if len(tiles) == warp.tiles:
                tiles.append(self.next_tile)
                self.next_tile += 1
            value = tiles[warp.tiles]
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
    def warpgroup(warp: _Warp) -> tuple[int, str, int]:
        return warp.place.cta, warp.role, warp.in_role // 4

    def issue(self, warp: _Warp, instance: Instance, resumed: bool = False) -> tuple[Callable[[], bool], str] | None:
        """Does what the op does at its issue. A wait returns its condition; others are logged and the warp goes on."""
        op, now = instance.op, self.now
        opcode = op.opcode
        read = done = now
        if opcode == "wgmma" and not resumed:
            group = self.warpgroup(warp)
            together = self.wgmma.setdefault((*group, warp.joined), [0, 0])
            warp.joined += 1
            together[0] += 1
            size = min(4, self.sizes[warp.role] - 4 * group[2])
            if together[0] == size:
                # One instruction of four warps: it ends for all of them at once, after the one before.
                together[1] = max(now, self.wgmma_free[group]) + self.delay()
                self.wgmma_free[group] = together[1]
            return (lambda: together[0] == size), "the other warps of its warpgroup"
        if opcode == "mbarrier_wait":
            phase = self.phase(warp.place.cta, instance)
            assert op.barrier is not None
            what = f"phase {instance.phase} of {op.barrier.name}[{instance.stage}]"
            return (lambda: phase.completed > instance.phase), what
        if opcode in ("bar_sync", "cluster_sync"):
            cluster = opcode == "cluster_sync"
            key = (opcode, warp.place.cluster if cluster else warp.place.cta, 0 if cluster else instance.stage)
            count = self.kernel.cluster_size * self.kernel.warps if cluster else instance.value
            meeting = self.meetings.setdefault(key, [0, 0])
            generation = meeting[0]
            meeting[1] += 1
            if meeting[1] == count:
                meeting[:] = [generation + 1, 0]
            return (lambda: meeting[0] > generation), f"{opcode} {key[2]} of {count} warps"
        if opcode == "flag_wait":
            return (lambda: self.flags[instance.stage] >= instance.value), f"semaphore {instance.stage}"
        if opcode == "next_tile":
            return (lambda: True), "next tile"
        if opcode in ("wgmma_wait", "cp_wait", "bulk_wait", "bulk_wait_read"):
            left = instance.value
            if opcode == "wgmma_wait":
                dues = warp.wgmma_groups
            elif opcode == "cp_wait":
                dues = warp.cp_groups
            else:
                dues = [g[0 if opcode == "bulk_wait_read" else 1] for g in warp.bulk_groups]
            due = max(dues[: max(0, len(dues) - left)], default=now)
            if due > now:
                self.at(due, lambda: None)
            return (lambda: self.now >= due), f"{opcode} {left}"
        if opcode == "wgmma_commit":
            warp.wgmma_groups.append(max(warp.wgmma, default=now))
            warp.wgmma.clear()
        elif opcode == "cp_commit":
            warp.cp_groups.append(max(warp.cp, default=now))
            warp.cp.clear()
        elif opcode == "bulk_commit":
            warp.bulk_groups.append(
                (max((r for r, _ in warp.bulk), default=now), max((d for _, d in warp.bulk), default=now))
            )
            warp.bulk.clear()
        elif opcode == "mbarrier_arrive":
            done = now + self.delay()
            for cta in self.targets(warp, instance.mask):
                self.at(done, partial(self.arrive, self.phase(cta, instance)))
        elif opcode == "mbarrier_expect":
            phase = self.phase(warp.place.cta, instance)
            phase.bytes += instance.value
            self.arrive(phase)
        elif opcode == "bar_arrive":
            meeting = self.meetings.setdefault(("bar_sync", warp.place.cta, instance.stage), [0, 0])
            meeting[1] += 1
            if meeting[1] == instance.value:
                meeting[:] = [meeting[0] + 1, 0]
        elif opcode == "cp_async_arrive":
            done = max(warp.cp_last, now)
            self.at(done, partial(self.arrive, self.phase(warp.place.cta, instance)))
        elif opcode == "flag_add":
            done = now + self.delay()
            self.at(done, lambda: self.flags.update([instance.stage]))
        elif op.dst is not None or op.srcs:
            read, done = self.data(warp, instance)
        if op.into:
            warp.outstanding[op.into] += 1
            self.at(done, lambda: warp.outstanding.subtract([op.into]))
        self.last = max(self.last, done)
        self.log(warp, instance, now, read, done)
        self.advance(warp)
        return None

    def data(self, warp: _Warp, instance: Instance) -> tuple[int, int]:
        """(read, done) ticks of an op with operands."""
        op, now = instance.op, self.now
        read = now + self.delay()
        done = read + self.delay()
        if op.opcode == "tma_load":
            assert op.dst is not None
            size = op.dst.size_bytes
            for cta in self.targets(warp, instance.mask):
                phase = self.phase(cta, instance)

                def land(phase: _Phase = phase) -> None:
                    phase.bytes -= size
                    self.settle(phase)

                self.at(done, land)
        elif op.opcode in ("tma_store", "tma_reduce"):
            warp.bulk.append((read, done))
        elif op.opcode == "cp_async":
            warp.cp.append(done)
            warp.cp_last = max(warp.cp_last, done)
        elif op.opcode == "wgmma":
            done = read = self.wgmma[*self.warpgroup(warp), warp.joined - 1][1]
            warp.wgmma.append(done)
        elif any(isinstance(b.buffer, SharedTile | GlobalTensor) for b in (*instance.srcs, instance.dst) if b):
            # The load-store unit keeps one warp's order.
            read = max(read, warp.performed)
            done = max(done, read)
            loads = instance.dst is not None and isinstance(instance.dst.buffer, RegisterTile)
            warp.performed = max(warp.performed, read if loads else done)
            if loads and not op.into:
                warp.registers = max(warp.registers, done)
        return read, done
