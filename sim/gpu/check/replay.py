"""The replay of one kernel's log: ops in the order of their times, each with the effects that its entry in OPS names.

Registers are read when an op is issued, memory at its T_READ, results appear at its T_DONE. A wait is passed when the
log says so, and the replay checks that it may be.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.check.accesses import Accesses, Agent, Touch, agent_of, use_registers
from sim.gpu.check.barriers import Barriers
from sim.gpu.check.contents import Array, blank, intersection, matrix, relative, rounded
from sim.gpu.check.findings import Violations, What, cycles
from sim.gpu.check.gates import Gate, MBarrierStage
from sim.gpu.check.happens_before import AGENTS, OWN, Clock
from sim.gpu.check.instances import Box, Instance, places
from sim.gpu.check.rings import Rings, judge_ends
from sim.gpu.check.tensor_memory import TensorMemory
from sim.gpu.check.warps import Step, Warp
from sim.gpu.language import GlobalTensor, Kernel, RegisterTile, walk
from sim.gpu.language.ops import CP_ASYNC, TCGEN05, Action, Space, Unit
from sim.gpu.units.events import Event

#: Order of what happens in one tick: what is complete comes before what is issued.
_COMPLETION, _ISSUE = 0, 1


class Replay:
    """The replay of one kernel; memory: arrays of its tensors, which it changes."""

    def __init__(
        self, kernel: Kernel, events: NDArray[np.int64], memory: dict[str, Array], violations: Violations
    ) -> None:
        self.kernel, self.memory, self.violations = kernel, memory, violations
        self.now = 0
        self._heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._shared: dict[tuple[int, str], Array] = {}
        self._places = places(kernel)
        self.barriers = Barriers(kernel, self._places, violations)
        self.accesses = Accesses(kernel, violations)
        self.rings = Rings(kernel)
        self.tensor_memory = TensorMemory(kernel, self.accesses, violations)
        self._warps = self._make_warps(events)

    def _make_warps(self, events: NDArray[np.int64]) -> list[Warp]:
        kernel = self.kernel
        keys = events[:, Event.CTA] * kernel.warps + events[:, Event.WARP]
        bounds = np.searchsorted(keys, np.arange(kernel.ctas * kernel.warps + 1))
        if bounds[0] != 0 or bounds[-1] != len(events):
            raise InputError(f"event log, kernel {kernel.name}: rows of CTAs or warps that the kernel does not have")
        rows = events.tolist()
        warps = []
        for place in self._places:
            clocks, local = self.barriers.clocks[place.cta]
            for number in range(kernel.warps):
                i = place.cta * kernel.warps + number
                own = rows[bounds[i] : bounds[i + 1]]
                warps.append(Warp(kernel, place, number, own, clocks, clocks.row(local, number)))
        return warps

    # --- the loop

    def run(self) -> None:
        """Replays all rows; memory holds what the kernel stored."""
        cancelled = self._cancelled()
        for warp in self._warps:
            if warp.place.cluster not in cancelled:
                self._next(warp, None)
        while self._heap:
            self.now, _, _, action = heapq.heappop(self._heap)
            action()
        for gate in self.barriers.gates():
            for _, _, text in gate.parked:
                self.violations.add(("never", text), f"{text}, which never happens ({gate.missing()})")
        self.tensor_memory.judge_end()
        judge_ends(self.barriers.mbarriers(), self.rings.judge(self.violations), self.violations)

    def _cancelled(self) -> set[int]:
        """Clusters that others have cancelled before they started, by the answers that warps have read."""
        ops = [op for role in self.kernel.roles for op in walk(role.body)]
        asked = [number for number, op in enumerate(ops) if op.spec.action is Action.READ_CANCELLED]
        rows = (row for warp in self._warps for row in warp.rows if row[Event.OP] in asked)
        return {row[Event.VALUE] for row in rows} if asked else set()

    def _at(self, time: int, order: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, order, self._sequence, action))

    def _next(self, warp: Warp, value: int | None) -> None:
        """Schedules the warp's next instance; `value` is what a `next_tile` returned."""
        try:
            instance = next(warp.program) if value is None else warp.program.send(value)
        except StopIteration:
            if warp.next_row != len(warp.rows):
                extra = warp.rows[warp.next_row]
                raise self._mismatch(warp, f"a row of op {extra[Event.OP]} follows the end of the program") from None
            self.barriers.leave(warp)
            return
        row = warp.match(instance.number)
        if row is None:
            found = "nothing" if warp.next_row == len(warp.rows) else f"op {warp.rows[warp.next_row][Event.OP]}"
            raise self._mismatch(
                warp, f"the program runs op {instance.number} ({instance.op.opcode}), the log has {found}"
            )
        self._at(row[Event.T_ISSUE], _ISSUE, lambda: self._issue(warp, instance, row))

    def _mismatch(self, warp: Warp, what: str) -> InputError:
        where = f"kernel {self.kernel.name}, CTA {warp.place.cta}, warp {warp.number} ({warp.role})"
        return InputError(f"event log, {where}, row {warp.next_row} of the warp: {what}")

    def _issue(self, warp: Warp, instance: Instance, row: list[int]) -> None:
        op, spec = instance.op, instance.op.spec
        times = row[Event.T_ISSUE], row[Event.T_DONE]
        what = What(op.opcode, instance.number, warp.role, warp.place.cta, warp.number, *times, op.line)
        step = Step(warp, instance, spec, row, what)
        self._wait_scoreboards(step)
        self.rings.note(step, self._targets(step))
        effect, end = AT_ISSUE.get(spec.action), AT_END.get(spec.action)
        if effect is not None:
            effect(self, step)
        if op.into:
            # A copy's says that its addresses have been read.
            released = row[Event.T_READ] if spec.group is CP_ASYNC else what.done
            warp.scoreboards[op.into] = max(warp.scoreboards.get(op.into, 0), released)
        if end is not None:
            self._at(what.done, _ISSUE, partial(end, self, step))
        else:
            self._next(warp, None)

    def _wait_scoreboards(self, step: Step) -> None:
        warp = step.warp
        for name in step.instance.op.after:
            done = warp.scoreboards.pop(name, 0)
            if done > step.what.issue:
                text = f"was issued before scoreboard {name} was released at cycle {cycles(done)}"
                self.violations.of(step.what, "scoreboard", text)
            warp.pending = [p for p in warp.pending if p.scoreboard != name]

    def _targets(self, step: Step) -> list[int]:
        """CTAs of the cluster that an op names; the warp's own if it names none."""
        place, mask = step.warp.place, step.instance.mask
        if mask is None:
            return [place.cta]
        return [cta for rank, cta in enumerate(place.peers) if mask >> rank & 1]

    # --- barriers, fences, groups: at their issue

    def _expect(self, step: Step) -> None:
        barrier = self.barriers.mbarrier(step.warp.place.cta, step)
        barrier.bytes += step.instance.value
        self.barriers.arrive(barrier, step.warp.clocks.release(step.warp.row), step.what)

    def _arrive(self, step: Step) -> None:
        warp = step.warp
        targets = [(cta, self.barriers.mbarrier(cta, step)) for cta in self._targets(step)]
        epoch, clock = warp.clocks.epoch(warp.row), warp.clocks.release(warp.row)
        for cta, barrier in targets:
            self.barriers.reach(warp, cta, warp.component(OWN), epoch, step.what)
            self.barriers.arrive(barrier, clock, step.what)

    def _arrive_after_group(self, step: Step) -> None:
        warp, what, group = step.warp, step.what, step.spec.group
        assert group is not None
        barriers = [self.barriers.mbarrier(cta, step) for cta in self._targets(step)]
        epoch, clock = warp.clocks.epoch(warp.row), warp.clocks.release(warp.row)
        for agent in (AGENTS[group].done, AGENTS[group].signalled):
            clock[warp.component(agent)] = warp.groups[group].issued
        for cta in self._targets(step):
            self.barriers.reach(warp, cta, warp.component(OWN), epoch, what)
        complete = warp.groups[group].done
        if complete > what.done:
            text = f"arrived before its warp's {group.name} were complete at cycle {cycles(complete)}"
            self.violations.of(what, "early", text)
        for barrier in barriers:
            self._at(what.done, _COMPLETION, partial(self.barriers.arrive, barrier, clock, what))

    def _join(self, step: Step) -> None:
        """Arrives at the barrier of the CTA or the cluster; notes to which turn of it that belongs."""
        count = self.kernel.cluster_size * self.kernel.warps if step.spec.cluster else step.instance.value
        meeting = self.barriers.meeting(step)
        if not meeting.fits(count):
            text = f"arrives for {count} warps, others at the same barrier for {meeting.expected}"
            self.violations.of(step.what, "warps", text)
        clock = step.warp.clocks.release(step.warp.row)
        step.warp.generation = meeting.arrive(clock, count, step.what.who)

    def _release(self, step: Step) -> None:
        self.barriers.semaphore(step).add(step.warp.clocks.release(step.warp.row), step.what.who)

    def _fence_proxy(self, step: Step) -> None:
        step.warp.clocks.fence(step.warp.row)

    def _fence_registers(self, step: Step) -> None:
        assert step.spec.group is not None
        step.warp.unfenced[step.spec.group] = set()

    def _commit(self, step: Step) -> None:
        assert step.spec.group is not None
        step.warp.groups[step.spec.group].commit()

    # --- waits: when the log says that they are over

    def _pass(self, step: Step, gate: Gate, ready: Callable[[], bool], learn: Callable[[], None], until: str) -> None:
        """Lets the warp go on as soon as it may, and says so if the log had it go on earlier."""

        def resume() -> None:
            if self.now > step.what.done:
                self.violations.of(step.what, "early", f"passed before {until}, at cycle {cycles(self.now)}")
            learn()
            self._next(step.warp, None)

        if ready():
            resume()
        else:
            gate.parked.append((ready, resume, f"{step.what} waits until {until}"))

    def _acquire(self, step: Step, clock: Clock) -> None:
        step.warp.clocks.acquire(step.warp.row, clock)

    def _await_phase(self, step: Step) -> None:
        barrier, phase = self.barriers.mbarrier(step.warp.place.cta, step), step.instance.phase
        name = step.instance.op.barrier.name if step.instance.op.barrier else ""

        def learn() -> None:
            if phase >= 0:
                self._acquire(step, barrier.clock(phase))
                if barrier.completed > phase + 1:
                    text = f"waits for phase {phase} when {name} has completed {barrier.completed}"
                    self.violations.of(step.what, "parity", text)

        until = f"phase {phase} of {name}[{step.instance.stage}] was complete"
        self._pass(step, barrier, lambda: barrier.completed > phase, learn, until)

    def _await_all(self, step: Step) -> None:
        meeting, generation = self.barriers.meeting(step), step.warp.generation
        self._pass(
            step,
            meeting,
            lambda: len(meeting.clocks) > generation,
            lambda: self._acquire(step, meeting.clocks[generation]),
            "all warps had arrived",
        )

    def _await_semaphore(self, step: Step) -> None:
        flag, value = self.barriers.semaphore(step), step.instance.value
        self._pass(
            step,
            flag,
            lambda: len(flag.clocks) >= value,
            lambda: self._acquire(step, flag.clocks[value - 1]) if value > 0 else None,
            f"semaphore {step.instance.stage} was {value}",
        )

    def _await_groups(self, step: Step) -> None:
        warp, group = step.warp, step.spec.group
        assert group is not None
        groups = warp.groups[group]
        epoch, read, done = groups.finished(step.instance.value) if group.closes else groups.all
        due = read if step.spec.until_read else done
        if due > step.what.done:
            self.violations.of(step.what, "early", f"passed before its groups were complete at cycle {cycles(due)}")
        agents = {AGENTS[group].read} if step.spec.until_read else {AGENTS[group].read, AGENTS[group].done}
        # One op of several warps: what is over for one of them is over for all.
        for row in warp.together(group):
            for agent in agents:
                warp.clocks.learn(warp.row, warp.clocks.component(row, agent), epoch)
        warp.pending = [p for p in warp.pending if p.group is not group or p.epoch > epoch]
        self._next(warp, None)

    def _take_tile(self, step: Step) -> None:
        self._next(step.warp, step.row[Event.VALUE])

    def _read_cancelled(self, step: Step) -> None:
        """Reads the answer of a request, of which the value is in the log."""
        agent = agent_of(step, step.what.issue, step.what.done)
        self.accesses.end(self.accesses.begin(step, step.warp.place.cta, step.instance.srcs[0], False, agent, None))
        self._next(step.warp, step.row[Event.VALUE])

    # --- tensor memory

    def _fence_before(self, step: Step) -> None:
        step.warp.clocks.fence_before(step.warp.row)

    def _fence_after(self, step: Step) -> None:
        step.warp.clocks.fence_after(step.warp.row)

    def _free(self, step: Step) -> None:
        self.tensor_memory.free(step)

    def _allocated(self, step: Step) -> None:
        """An allocation, of which the log says when it is over."""
        self.tensor_memory.allocate(step)
        self._next(step.warp, None)

    # --- data

    def _operate(self, step: Step) -> None:
        """Schedules the effects of an op with operands.

        Arithmetic on registers alone happens at the issue: the program's order is what a fixed latency keeps.
        """
        warp, spec, dst, srcs, what = step.warp, step.spec, step.instance.dst, step.instance.srcs, step.what
        if dst is None and not srcs:
            return
        issue, done = what.issue, max(what.done, what.issue)
        read = min(max(step.row[Event.T_READ], issue), done)
        if step.spec.unit is Unit.TCGEN05:
            self.tensor_memory.use(step)
        in_memory = any(not isinstance(b.buffer, RegisterTile) for b in (*srcs, *((dst,) if dst else ())))
        immediate = not (in_memory or step.instance.op.into or spec.group)
        agent = agent_of(step, read, done)
        use_registers(step, agent.epoch, immediate, self.violations)
        own = warp.place.cta
        values = [self._contents(warp, b, own) if isinstance(b.buffer, RegisterTile) else None for b in srcs]
        if immediate:
            self._put(step, own, values)
            return

        source, targets = self._ends(step, own)
        signalled = [self._pair(cta)[0] if step.instance.op.pair else cta for cta in targets]
        barriers = [self.barriers.mbarrier(cta, step) for cta in signalled] if spec.lands else [None] * len(targets)
        if step.instance.op.pair and not spec.lands:
            self._multiply_pair(step, agent, read, done)
            return
        reads = [self.accesses.begin(step, source, b, False, agent, barriers[0]) for b in srcs]
        writes = [
            self.accesses.begin(step, cta, dst, True, agent, barrier)
            for cta, barrier in zip(targets, barriers, strict=True)
            if dst is not None
        ]
        if agent.component == OWN:
            for cta in {source, *targets}:
                self.barriers.reach(warp, cta, warp.component(OWN), agent.epoch, what)
        moved = _OpInMemory(self, step, source, values, reads, targets, writes, signalled, barriers)
        for cta, touch in zip(targets, writes, strict=False):
            if touch.flight is not None:
                touch.flight.land = partial(moved.put, cta, touch)
        self._at(read, _COMPLETION, moved.take)
        self._at(done, _COMPLETION, moved.land)

    def _ends(self, step: Step, own: int) -> tuple[int, list[int]]:
        """The CTA in whose shared memory an op of CTA `own` reads, and those in which it writes. InputError where its
        mask names none."""
        remote = bool(step.instance.srcs) and Space.CLUSTER in step.spec.srcs[0]
        named = self._targets(step) if remote or Space.CLUSTER in step.spec.dst else [own]
        if not named:
            where = f"kernel {self.kernel.name}, {step.what.opcode} (op {step.what.number})"
            raise InputError(f"{where}: mask {step.instance.mask:#x} names no CTA of its cluster")
        return (named[0], [own]) if remote else (own, named)

    def _pair(self, cta: int) -> tuple[int, int]:
        """The CTAs of the pair of a CTA, the first one first."""
        place = self._places[cta]
        first = place.rank & ~1
        return place.peers[first], place.peers[first + 1]

    def _multiply_pair(self, step: Step, agent: Agent, read: int, done: int) -> None:
        """A product of both CTAs of a pair: each has its rows of the first operand, and half of the second's
        columns; or a copy in each of them."""
        warp, dst, srcs = step.warp, step.instance.dst, step.instance.srcs
        assert dst is not None
        pair = self._pair(warp.place.cta)
        if warp.place.cta != pair[0]:
            self.violations.of(step.what, "pair", "is issued by the second CTA of its pair; the first one issues it")
        for cta in pair:
            self.barriers.reach(warp, cta, warp.component(AGENTS[TCGEN05].done), agent.epoch, step.what)
        reads = [[self.accesses.begin(step, cta, b, False, agent, None) for b in srcs] for cta in pair]
        writes = [self.accesses.begin(step, cta, dst, True, agent, None) for cta in pair]
        values: list[list[Array]] = []

        def take() -> None:
            for cta, touches in zip(pair, reads, strict=True):
                poison = [touch.flight.poison if touch.flight else [] for touch in touches]
                values.append([self._contents(warp, b, cta, p) for b, p in zip(srcs, poison, strict=True)])
                for touch in touches:
                    self.accesses.end(touch)

        def land() -> None:
            if step.spec.accumulates:
                second = np.concatenate([found[1] for found in values], axis=1)
                values[:] = [[found[0], second, *found[2:]] for found in values]
            for cta, found, touch in zip(pair, values, writes, strict=True):
                self._put(step, cta, [*found])
                self.accesses.end(touch)

        self._at(read, _COMPLETION, take)
        self._at(done, _COMPLETION, land)

    def _memory(self, warp: Warp, box: Box, cta: int) -> Array:
        """The array (one stage of it) that a box lies in."""
        buffer = box.buffer
        if isinstance(buffer, GlobalTensor):
            return self.memory[buffer.name]
        if isinstance(buffer, RegisterTile):
            return warp.array(buffer)
        key = (cta, buffer.name)
        if key not in self._shared:
            self._shared[key] = blank((buffer.stages, *buffer.shape), buffer.dtype)
        return self._shared[key][box.stage]

    def _contents(self, warp: Warp, box: Box, cta: int, poison: list[Box] | None = None) -> Array:
        """The contents of a box as an op sees them: zero outside a global tensor, NaN where a write was in flight."""
        clipped = box.clipped()
        memory = self._memory(warp, box, cta)
        if clipped.shape == box.shape:
            values = memory[box.index].copy()
        else:
            values = np.zeros(box.shape, dtype=memory.dtype)
            values[relative(clipped, box)] = memory[clipped.index]
        for poisoned in poison or ():
            values[relative(intersection(poisoned, box), box)] = np.nan
        return matrix(values, box.transposed)

    def _put(self, step: Step, cta: int, values: list[Array | None]) -> None:
        """Writes `compute(old, *values)` to the destination, rounded to its format; NaN if the op has no meaning."""
        op, box = step.instance.op, step.instance.dst
        if box is None:
            return
        memory, clipped = self._memory(step.warp, box, cta), box.clipped()
        old = np.zeros(box.shape, dtype=memory.dtype)
        if not step.spec.accumulates or step.instance.value:
            old[relative(clipped, box)] = memory[clipped.index]
        if op.compute is None:
            result = np.full(box.shape, np.nan)
        else:
            operands = [v.astype(memory.dtype, copy=False) for v in values if v is not None]
            result = self._computed(step, matrix(old, box.transposed), operands)
        if box.transposed and result.ndim >= 2:
            result = np.swapaxes(result, -1, -2)
        if result.size != old.size:
            raise InputError(
                f"kernel {self.kernel.name}, {op.opcode} (op {step.instance.number}): the result has shape "
                f"{result.shape}, its destination {box.buffer.name} {box.shape}"
            )
        new = rounded(result.reshape(box.shape), box.buffer.dtype)
        memory[clipped.index] = new[relative(clipped, box)]

    def _computed(self, step: Step, old: Array, operands: list[Array]) -> Array:
        """What an op's meaning in NumPy gives; InputError, with its line, where that fails."""
        op = step.instance.op
        assert op.compute is not None
        try:
            return np.asarray(op.compute(old, *operands, *step.instance.indices))
        except Exception as error:  # somebody's function
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"kernel {self.kernel.name}, {op}: compute: {what}") from None


Effect = Callable[[Replay, Step], None]

#: What an op does when it is issued, and what it does at its T_DONE, where its warp has waited for it.
AT_ISSUE: Mapping[Action, Effect] = {
    Action.OPERATE: Replay._operate,
    Action.COMMIT_GROUP: Replay._commit,
    Action.FENCE_REGISTERS: Replay._fence_registers,
    Action.FENCE_PROXY: Replay._fence_proxy,
    Action.EXPECT_BYTES: Replay._expect,
    Action.ARRIVE: Replay._arrive,
    Action.ARRIVE_AFTER_GROUP: Replay._arrive_after_group,
    Action.MEET: Replay._join,
    Action.JOIN: Replay._join,
    Action.RELEASE: Replay._release,
    Action.FENCE_BEFORE: Replay._fence_before,
    Action.FENCE_AFTER: Replay._fence_after,
    Action.FREE: Replay._free,
}
AT_END: Mapping[Action, Effect] = {
    Action.AWAIT_PHASE: Replay._await_phase,
    Action.AWAIT_GROUPS: Replay._await_groups,
    Action.MEET: Replay._await_all,
    Action.AWAIT_JOINED: Replay._await_all,
    Action.ACQUIRE: Replay._await_semaphore,
    Action.NEXT_TILE: Replay._take_tile,
    Action.READ_CANCELLED: Replay._read_cancelled,
    Action.ALLOCATE: Replay._allocated,
}


@dataclass
class _OpInMemory:
    """What an op with operands in memory does once they are read, and once its results are there.

    source: CTA in whose shared memory it reads. values: contents of its operands, None until they are read. reads,
    writes: its accesses. targets: CTAs in which it writes. signalled: those whose mbarriers hear of it, in `barriers`.
    """

    replay: Replay
    step: Step
    source: int
    values: list[Array | None]
    reads: list[Touch]
    targets: list[int]
    writes: list[Touch]
    signalled: list[int]
    barriers: Sequence[MBarrierStage | None]

    def take(self) -> None:
        """Reads the operands."""
        replay, warp = self.replay, self.step.warp
        for i, (box, touch) in enumerate(zip(self.step.instance.srcs, self.reads, strict=True)):
            if self.values[i] is None:
                replay.accesses.land_own_stores(touch)
                poison = touch.flight.poison if touch.flight else []
                self.values[i] = replay._contents(warp, box, self.source, poison)
            replay.accesses.end(touch)

    def put(self, cta: int, touch: Touch) -> None:
        """Writes the result. A later read of the same warp may have asked for it before: it is written once."""
        if not touch.landed:
            touch.landed = True
            self.replay._put(self.step, cta, self.values)

    def land(self) -> None:
        """Writes all results, and tells the mbarriers."""
        accesses, barriers = self.replay.accesses, self.replay.barriers
        for cta, touch in zip(self.targets, self.writes, strict=False):
            self.put(cta, touch)
            accesses.end(touch)
        for i, (cta, barrier) in enumerate(zip(self.signalled, self.barriers, strict=True)):
            if barrier is None:
                continue
            heard = [t.access for t in (*self.writes[i : i + 1], *(self.reads if i == 0 else ())) if t.access]
            barriers.reach(self.step.warp, cta, barrier.component, barrier.completed + 1, self.step.what)
            barrier.land(_size_bytes(self.writes[i].box), heard)


def _size_bytes(box: Box) -> int:
    """Bytes of a box, not clipped: what a bulk copy counts on its barrier."""
    return DTYPE_BYTES[box.buffer.dtype] * int(np.prod(box.shape))
