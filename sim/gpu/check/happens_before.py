"""Happens-before: which accesses of a launch are ordered by its barriers, whatever the timing was.

Vector clocks over warps and over what runs beside them. A warp has components for its own accesses and for those that
it fenced for the asynchronous proxy; and for each group of asynchronous ops (`GROUPS`) one for their ends, one for
their reads where these can be awaited alone, and one for those that it fenced where they need it. Groups that access
tensor memory have two more: of the ends that the warp has fenced before it signalled (a commit does that by itself),
and of those behind which somebody who has learned of them has fenced his own accesses. Each stage of an mbarrier has
one, counted in phases: a TMA load is known to have landed by whoever knows that the phase of its bytes is complete. A
wait joins the clock of what it waits for; an access that conflicts with an earlier one must know that one's component
up to its epoch.

Source: Flanagan and Freund, "FastTrack" (PLDI 2009) for epochs; NVIDIA PTX ISA, "Memory Consistency Model" and "Async
proxy" for the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.gpu.check.instances import Box
from sim.gpu.language import GlobalTensor
from sim.gpu.language.ops import GROUPS, Group

Clock = NDArray[np.int32]

#: Epoch of a copy that has not landed: no clock reaches it.
NEVER = np.iinfo(np.int32).max

#: Elements of one bucket of a global tensor's history, per dimension of the last two.
_BUCKET = 64


#: Components of one warp in a vector clock: its own accesses, and those that it fenced.
OWN, OWN_FENCED = 0, 1


class GroupAgents(NamedTuple):
    """Components of one warp for its asynchronous ops of one group: their ends, their reads, those that it fenced; of
    tensor memory, those that may be signalled, and those that accesses may follow."""

    done: int
    read: int
    fenced: int
    signalled: int
    followed: int


def _agents() -> tuple[dict[Group, GroupAgents], int]:
    """(components of each group, components in all); a group has those apart that can be known apart."""
    agents, free = {}, OWN_FENCED + 1
    for group in GROUPS:
        done = read = fenced = free
        free += 1
        if group.reads_first:
            read, free = free, free + 1
        if not group.asynchronous_proxy:
            fenced, free = free, free + 1
        signalled = followed = done
        if group.tensor_memory:
            signalled, followed, free = free, free + 1, free + 2
        agents[group] = GroupAgents(done, read, fenced, signalled, followed)
    return agents, free


AGENTS, N_AGENTS = _agents()
_OF_TENSOR_MEMORY = [agents for group, agents in AGENTS.items() if group.tensor_memory]


@dataclass(slots=True, eq=False)
class Access:
    """One access of a box: the component and epoch that a later conflicting access must know.

    domain: the clocks that its component belongs to. proxy_component: the component to be known by an access through
    the asynchronous proxy, or by an op on tensor memory. what: printed for a person (op, CTA, warp, times).
    """

    box: Box
    write: bool
    atomic: bool
    domain: Clocks
    component: int
    proxy_component: int
    epoch: int
    what: object


class Clocks:
    """Vector clocks of `ctas` CTAs that can synchronise with each other, of `warps` warps and `barriers` mbarrier
    stages each."""

    def __init__(self, ctas: int, warps: int, barriers: int) -> None:
        self._warps, self._barriers = warps, barriers
        self._first_barrier = ctas * warps * N_AGENTS
        size = self._first_barrier + ctas * barriers
        self._clock = np.zeros((ctas * warps, size), dtype=np.int32)
        for w in range(ctas * warps):
            self._clock[w, w * N_AGENTS] = 1
        self._size = size

    def row(self, cta: int, warp: int) -> int:
        """Row of a warp; `cta` counts within these clocks."""
        return cta * self._warps + warp

    def component(self, row: int, agent: int) -> int:
        """Component of a warp's agent."""
        return row * N_AGENTS + agent

    def barrier_component(self, cta: int, barrier: int) -> int:
        """Component of one mbarrier stage."""
        return self._first_barrier + cta * self._barriers + barrier

    def of(self, row: int) -> Clock:
        """What the warp knows now (a view)."""
        return self._clock[row]

    def blank(self) -> Clock:
        """A clock that knows nothing."""
        return np.zeros(self._size, dtype=np.int32)

    def epoch(self, row: int) -> int:
        """The warp's current epoch."""
        return int(self._clock[row, row * N_AGENTS])

    def release(self, row: int) -> Clock:
        """What the warp knows, for others to acquire; later accesses of the warp are not part of it."""
        out = self._clock[row].copy()
        self._clock[row, row * N_AGENTS] += 1
        return out

    def acquire(self, row: int, clock: Clock) -> None:
        """The warp learns `clock`."""
        np.maximum(self._clock[row], clock, out=self._clock[row])

    def learn(self, row: int, component: int, epoch: int) -> None:
        """The warp learns one component up to `epoch`."""
        self._clock[row, component] = max(int(self._clock[row, component]), epoch)

    def fence(self, row: int) -> None:
        """fence.proxy.async: orders the warp's writes and finished copies for the asynchronous proxy, and those of
        other warps that it knows of: the fence may stand on either side of what orders the two."""
        clock = self._clock[row]
        known = clock[: self._first_barrier].reshape(-1, N_AGENTS)
        known[:, OWN_FENCED] = np.maximum(known[:, OWN_FENCED], known[:, OWN])
        for agents in AGENTS.values():
            known[:, agents.fenced] = np.maximum(known[:, agents.fenced], known[:, agents.done])
        clock[row * N_AGENTS + OWN] += 1

    def fence_before(self, row: int) -> None:
        """tcgen05.fence::before_thread_sync: what the warp has waited for may be signalled."""
        own = self._clock[row][row * N_AGENTS : (row + 1) * N_AGENTS]
        for agents in _OF_TENSOR_MEMORY:
            own[agents.signalled] = max(own[agents.signalled], own[agents.done])

    def fence_after(self, row: int) -> None:
        """tcgen05.fence::after_thread_sync: the warp's next accesses follow what it has learned was signalled."""
        known = self._clock[row][: self._first_barrier].reshape(-1, N_AGENTS)
        for agents in _OF_TENSOR_MEMORY:
            known[:, agents.followed] = np.maximum(known[:, agents.followed], known[:, agents.signalled])


class History:
    """Accesses of one stage of a shared tile, or of a global tensor, that a later access can still conflict with."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, ...], list[Access]] = {}

    def conflicts(
        self,
        access: Access,
        clock: Clock,
        *,
        asynchronous: bool,
        own: frozenset[int] = frozenset(),
        in_order: bool = False,
    ) -> Iterator[Access]:
        """Earlier accesses that conflict with `access` and that `clock` does not order before it; then remembers it.

        own: components whose ends suffice, since their warp has waited for them. in_order: it follows those of its own
        component by itself.
        """
        found: list[Access] = []
        for key in _buckets(access.box):
            bucket = self._buckets.setdefault(key, [])
            keep = []
            for prior in bucket:
                proxied = asynchronous and prior.component not in own
                component = prior.proxy_component if proxied else prior.component
                behind = in_order and prior.component == access.component
                ordered = prior.domain is access.domain and (behind or bool(clock[component] >= prior.epoch))
                if (
                    not ordered
                    and (access.write or prior.write)
                    and not (access.atomic and prior.atomic)
                    and prior.box.overlaps(access.box)
                    and all(prior is not f for f in found)
                ):
                    found.append(prior)
                # Whoever is ordered after a write is ordered after all that this write was ordered after.
                superseded = (ordered and access.write and not access.atomic) or (
                    not access.write
                    and not prior.write
                    and prior.domain is access.domain
                    and prior.component == access.component
                    and prior.epoch <= access.epoch
                )
                if not (superseded and access.box.contains(prior.box)):
                    keep.append(prior)
            keep.append(access)
            self._buckets[key] = keep
        yield from found


def _buckets(box: Box) -> Iterator[tuple[int, ...]]:
    if not isinstance(box.buffer, GlobalTensor):
        yield ()
        return
    lower, upper = box.lower[-2:], box.upper[-2:]
    spans = [range(a // _BUCKET, -(-b // _BUCKET)) for a, b in zip(lower, upper, strict=True)]
    yield from product(*[range(a, b) for a, b in zip(box.lower[:-2], box.upper[:-2], strict=True)], *spans)
