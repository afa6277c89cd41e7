"""Accesses of memory in the replay: what is in flight, what is ordered before what, and whose registers are whose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sim.gpu.check.contents import intersection
from sim.gpu.check.findings import Violations, What
from sim.gpu.check.gates import MBarrierStage
from sim.gpu.check.happens_before import AGENTS, NEVER, OWN, OWN_FENCED, Access, History
from sim.gpu.check.instances import Box
from sim.gpu.check.warps import PendingOp, Step, Warp
from sim.gpu.language import GlobalTensor, Kernel, RegisterTile, TensorTile, walk
from sim.gpu.language.ops import TENSOR_LOADS, TENSOR_STORES, Action

Key = tuple[int, str, int]  #: CTA (-1 for device memory), buffer, stage

#: Component that an access through the asynchronous proxy must know, by who wrote.
_FENCED = {OWN: OWN_FENCED} | {a.done: a.fenced for a in AGENTS.values() if a.fenced != a.done}
#: Component of the reads of an asynchronous op, by that of its end.
_READ = {a.done: a.read for a in AGENTS.values()}
#: Component that an op on tensor memory must know of an earlier one there, by that of its end.
_FOLLOWED = {a.done: a.followed for group, a in AGENTS.items() if group.tensor_memory}
_AWAITED = [AGENTS[group].done for group in (TENSOR_LOADS, TENSOR_STORES)]


class Agent(NamedTuple):
    """Who makes an op's accesses. component: of its warp, None for what lands on an mbarrier, which has the barrier's;
    epoch: in that component. in_order: those of one warp take effect in their order."""

    component: int | None
    epoch: int
    asynchronous: bool
    atomic: bool
    in_order: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """A read or write of memory in progress. land: applies it early. poison: boxes that were being written when it
    began to read; of tensor memory, where `box` is in columns, all that it reads (`whole`)."""

    box: Box
    write: bool
    agent: Agent
    warp: Warp
    what: What
    land: Callable[[], None] | None = None
    poison: list[Box] = field(default_factory=list)
    whole: Box | None = None


@dataclass(slots=True, eq=False)
class Touch:
    """One access of one box by one op: its entry among the flights and in the history, where it has them."""

    box: Box
    key: Key = (0, "", 0)
    flight: Flight | None = None
    access: Access | None = None
    landed: bool = False


def agent_of(step: Step, read: int, done: int) -> Agent:
    """Who makes the accesses of an op: the warp itself, or what runs beside it. read, done: ticks."""
    spec, warp = step.spec, step.warp
    if spec.group is not None:
        epoch = warp.groups[spec.group].add(read, done)
        return Agent(AGENTS[spec.group].done, epoch, spec.asynchronous_proxy, spec.atomic, spec.group.in_order)
    if spec.lands:
        return Agent(None, NEVER, spec.asynchronous_proxy, spec.atomic)
    return Agent(OWN, warp.clocks.epoch(warp.row), spec.asynchronous_proxy, spec.atomic, True)


def _in_columns(box: Box) -> Box:
    """A box of a tile in tensor memory as rows and bytes of its columns, which other tiles may have too."""
    assert isinstance(box.buffer, TensorTile)
    tile, first, last = box.buffer.place(box.stage, box.lower[1], box.upper[1])
    return Box(tile, 0, (box.lower[0], first), (box.upper[0], last))


class Accesses:
    """Every access of one launch that a later one can conflict with."""

    def __init__(self, kernel: Kernel, violations: Violations) -> None:
        self._violations = violations
        ops = [op for role in kernel.roles for op in walk(role.body) if op.spec.action is Action.OPERATE]
        written = {op.dst.buffer.name for op in ops if op.dst and isinstance(op.dst.buffer, GlobalTensor)}
        read = {v.buffer.name for op in ops for v in op.srcs if isinstance(v.buffer, GlobalTensor)}
        read |= {op.dst.buffer.name for op in ops if op.dst and op.spec.atomic}
        self._written, self._read_and_written = written, written & read
        self._flights: dict[Key, list[Flight]] = {}
        self._histories: dict[Key, History] = {}

    def begin(self, step: Step, cta: int, box: Box, write: bool, agent: Agent, barrier: MBarrierStage | None) -> Touch:
        """Begins an access of memory: checks it against what is in flight and what is not ordered before it.

        barrier: what it lands on, for an agent without a component.
        """
        touch = Touch(box)
        name = box.buffer.name
        in_global = isinstance(box.buffer, GlobalTensor)
        clipped = box.clipped()
        if isinstance(box.buffer, RegisterTile) or 0 in clipped.shape or (in_global and name not in self._written):
            return touch
        touch.key = (-1 if in_global else cta, name, box.stage)
        if isinstance(box.buffer, TensorTile):
            clipped = _in_columns(clipped)
            touch.key = (cta, clipped.buffer.name, 0)
        if not in_global or name in self._read_and_written:
            touch.flight = Flight(clipped, write, agent, step.warp, step.what)
            if isinstance(box.buffer, TensorTile):
                touch.flight.whole = box
            self._take_off(touch.key, touch.flight, cta)

        if agent.component is None:
            assert barrier is not None
            component = proxied = barrier.component
        else:
            # A bulk store's two ends: its source is free once read, its destination is there once done.
            end = agent.component if write else _READ.get(agent.component, agent.component)
            component = proxied = step.warp.component(end)
            if isinstance(box.buffer, TensorTile):
                proxied = step.warp.component(_FOLLOWED.get(end, end))
            elif write and not in_global and end in _FENCED:
                proxied = step.warp.component(_FENCED[end])
        touch.access = Access(
            clipped, write, agent.atomic, step.warp.clocks, component, proxied, agent.epoch, step.what
        )  # fmt: skip
        history = self._histories.setdefault(touch.key, History())
        tensor = isinstance(box.buffer, TensorTile)
        # Who frees tensor memory has to know that what used it is over.
        proxy = step.spec.action is Action.OPERATE if tensor else agent.asynchronous and not in_global
        own = frozenset(step.warp.component(done) for done in _AWAITED) if tensor else frozenset()
        verb = "writes" if write else "reads"
        for prior in history.conflicts(
            touch.access, step.warp.clock, asynchronous=proxy, own=own, in_order=tensor and agent.in_order
        ):
            did = "written" if prior.write else "read"
            earlier = prior.what
            assert isinstance(earlier, What)
            self._violations.of(
                step.what,
                "race",
                f"{verb} {clipped} of CTA {cta}, which is {did} by {earlier}: nothing orders the two",
                earlier.number,
                name,
            )
        return touch

    def _take_off(self, key: Key, flight: Flight, cta: int) -> None:
        """One more access in flight, checked against the others of its tile."""
        flights = self._flights.setdefault(key, [])
        for other in flights:
            if (
                not (flight.write or other.write)
                or (flight.agent.atomic and other.agent.atomic)
                or (
                    other.warp is flight.warp
                    and flight.agent.in_order
                    and flight.agent.component == other.agent.component
                )
                or not other.box.overlaps(flight.box)
            ):
                continue
            verb, doing = "writes" if flight.write else "reads", "written" if other.write else "read"
            self._violations.of(
                flight.what,
                "flight",
                f"{verb} {flight.box} of CTA {cta} that is being {doing} by {other.what}",
                other.what.number,
                flight.box.buffer.name,
            )
            if other.write:
                flight.poison.append(flight.whole or other.box)
        flights.append(flight)

    def land_own_stores(self, touch: Touch) -> None:
        """Before a warp's own load: its earlier stores are ahead of it in the load/store unit."""
        flight = touch.flight
        if flight is None or not flight.agent.in_order:
            return
        for other in list(self._flights[touch.key]):
            if other is flight:
                break
            mine = other.warp is flight.warp and other.agent.component == flight.agent.component
            if mine and other.land and other.box.overlaps(flight.box):
                other.land()

    def end(self, touch: Touch) -> None:
        """Ends an access."""
        if touch.flight is not None:
            self._flights[touch.key].remove(touch.flight)
            touch.flight = None


def use_registers(step: Step, epoch: int, immediate: bool, violations: Violations) -> None:
    """Checks an op's register boxes against what unfinished ops of the warp own, and notes what it owns itself.

    epoch: of an asynchronous op. immediate: it is done when it is issued.
    """
    warp, instance, what, spec = step.warp, step.instance, step.what, step.spec
    group = spec.group if spec.owns_registers else None
    boxes = [(b, False) for b in instance.srcs] + ([(instance.dst, True)] if instance.dst else [])
    mine = []
    for box, write in boxes:
        if not isinstance(box.buffer, RegisterTile):
            continue
        name = box.buffer.name
        for p in list(warp.pending):
            if p.box.buffer is not box.buffer or not p.box.overlaps(box) or not (write or p.write):
                continue
            if group is not None and p.group is group:
                continue  # those of one warp run in order
            if not p.scoreboard and p.group is None:
                warp.pending.remove(p)
                if p.done <= what.issue:
                    continue
            violations.of(what, "registers", f"touches registers {box} that {p.what} still owns", p.what.number)
            if p.write:
                warp.array(box.buffer)[intersection(p.box, box).index] = np.nan
        if group is not None and group.register_fence and name in warp.unfenced.get(group, {name}):
            violations.of(what, "fence", f"uses registers {name} that no {group.name}_fence has ordered before it")
        for fenced, names in warp.unfenced.items():
            if fenced is not group:
                names.add(name)
        if group is not None or (write and not immediate):
            mine.append(PendingOp(box, write, instance.op.into, group, epoch if group else 0, what.done, what))
    warp.pending += mine
