"""Collectives over devices joined by links, in SimPy: one process a device, one egress port each; picoseconds.

The same code serves GPUs (NVLink behind a switch: every pair is one link apart) and dataflow sockets. Devices of
different nodes talk over the nodes' network. A message holds its sender's port for its bytes and arrives a latency
later. Ring: each device passes parts on to its neighbour; one-shot: each sends all it has to each; hierarchical: inside
the nodes each device collects its share, exchanges it with its peers in other nodes, and hands it round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from arch.errors import InputError
from sim.engine.clock import PS_PER_S

FIGURES = (
    "link.bandwidth",
    "link.latency",
    "node.bandwidth",
    "node.devices",
    "node.latency",
)
"""Figures of a preset that this module reads."""

Array = NDArray[Any]
Process = Generator[simpy.Event, Any, None]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter"]
Algorithm = Literal["ring", "one_shot", "hierarchical"]

KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter")
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "one_shot", "hierarchical")
MOST_DEVICES = 256
"""Every message between two devices is an event, and carries the state of its sender."""


class Fabric(NamedTuple):
    """Devices and what joins them; bandwidths of one direction, bytes a second, latencies in ps."""

    devices: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    per_node: int = 0
    """Devices of a node; 0: all."""
    node_bandwidth_bytes_per_s: int = 0
    """Of one device to another node."""
    node_latency_ps: int = 0

    @property
    def nodes(self) -> int:
        """Enclosures over which the devices are spread."""
        return self.devices // self.per_node if self.per_node else 1

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """Those that make a difference: without several nodes there is no hierarchy."""
        return ALGORITHMS if self.nodes > 1 else ("ring", "one_shot")


class Send(NamedTuple):
    """One message: it held its sender's port from begin_ps to end_ps and was there at arrival_ps. target None: all."""

    source: int
    target: int | None
    size_bytes: int
    begin_ps: int
    end_ps: int
    arrival_ps: int


@dataclass(frozen=True)
class Outcome:
    """What a collective took. port_ps: for how long the busiest device's port sent; values: result by device."""

    time_ps: int
    port_ps: int
    sent_bytes: int
    """By all devices together."""
    algorithm: Algorithm
    values: tuple[Array, ...] = ()
    sends: tuple[Send, ...] = ()


def fabric_of(spec: Any, devices: int) -> Fabric:
    """The links of a machine between `devices` of it; InputError where it has none."""
    if devices > 1 and spec.link is None:
        raise InputError(f"devices={devices}: {spec.name} has no links to other devices; nearest: 1")
    if devices > MOST_DEVICES:
        raise InputError(f"devices={devices}: the model takes {MOST_DEVICES}")
    if devices == 1:
        return Fabric(1, 1, 0)
    node = getattr(spec, "node", None)
    link = (devices, spec.link.bandwidth_bytes_per_s, spec.link.latency_ps)
    if node is None or devices <= node.devices:
        return Fabric(*link)
    if devices % node.devices:
        below = devices // node.devices * node.devices
        raise InputError(
            f"devices={devices}: nodes of {spec.name} have {node.devices}; nearest: {below} or {below + node.devices}"
        )
    return Fabric(*link, node.devices, node.bandwidth_bytes_per_s, node.latency_ps)


@cache
def fastest(fabric: Fabric, kind: Kind, size_bytes: int) -> Outcome:
    """The faster algorithm for a buffer of `size_bytes` on each device (all_gather: of the whole result)."""
    return min(
        (collective(fabric, kind, a, size_bytes) for a in fabric.algorithms), key=lambda outcome: outcome.time_ps
    )


def collective(
    fabric: Fabric, kind: Kind, algorithm: Algorithm, size_bytes: int, values: Sequence[Array] = ()
) -> Outcome:
    """Runs one collective. values: one array a device, to be carried along (all_gather: its own part)."""
    return _Run(fabric, kind, algorithm, size_bytes, values).run()


_PHASES = 3
"""Of the hierarchical algorithm; messages of a later one may overtake."""


class _Run:
    """One collective: inboxes, ports and what each device holds, part by part."""

    def __init__(
        self, fabric: Fabric, kind: Kind, algorithm: Algorithm, size_bytes: int, values: Sequence[Array]
    ) -> None:
        self.fabric, self.kind, self.algorithm, self.size = fabric, kind, algorithm, size_bytes
        self.env = simpy.Environment()
        p = fabric.devices
        self.ports = [simpy.Resource(self.env) for _ in range(p)]
        self.inboxes = [[simpy.Store(self.env) for _ in range(p)] for _ in range(_PHASES)]
        self.port_ps = [0] * p
        self.sends: list[Send] = []
        if not values:
            self.parts: list[list[Any]] = [[0] * p for _ in range(p)]
        elif kind == "all_gather":
            self.parts = [[values[d] if part == d else None for part in range(p)] for d in range(p)]
        else:
            self.parts = [list(np.array_split(values[d].reshape(-1), p)) for d in range(p)]
        self.carries = bool(values)

    def run(self) -> Outcome:
        """Runs it to its end."""
        p = self.fabric.devices
        if p > 1:
            device = {"ring": self._ring, "one_shot": self._one_shot, "hierarchical": self._hierarchical}[
                self.algorithm
            ]
            done = [self.env.process(device(d)) for d in range(p)]
            self.env.run(self.env.all_of(done))
        sent = sum(send.size_bytes for send in self.sends)
        sends = tuple(self.sends)
        return Outcome(int(self.env.now), max(self.port_ps), sent, self.algorithm, self._values(), sends)

    def _values(self) -> tuple[Array, ...]:
        if not self.carries:
            return ()
        if self.kind == "reduce_scatter":
            return tuple(self.parts[d][d] for d in range(self.fabric.devices))
        return tuple(np.concatenate([np.ravel(part) for part in parts]) for parts in self.parts)

    def _bytes(self, part: int) -> int:
        p = self.fabric.devices
        return self.size * (part + 1) // p - self.size * part // p

    def _send(self, source: int, target: int, parts: Sequence[int], phase: int = 0) -> Process:
        """Sends parts through the source's port."""
        f = self.fabric
        across = f.per_node and source // f.per_node != target // f.per_node
        bandwidth = f.node_bandwidth_bytes_per_s if across else f.bandwidth_bytes_per_s
        latency = f.node_latency_ps if across else f.latency_ps
        content = {part: np.copy(self.parts[source][part]) if self.carries else 0 for part in parts}
        size = sum(self._bytes(part) for part in parts)
        with self.ports[source].request() as turn:
            yield turn
            busy = -(-size * PS_PER_S // bandwidth)
            begin = int(self.env.now)
            self.sends.append(Send(source, target, size, begin, begin + busy, begin + busy + latency))
            self.port_ps[source] += busy
            yield self.env.timeout(busy)
        self.env.process(self._arrive(self.inboxes[phase][target], latency, content))

    def _arrive(self, inbox: simpy.Store, latency: int, message: dict[int, Any]) -> Process:
        yield self.env.timeout(latency)
        yield inbox.put(message)

    def _exchange(self, d: int, to: Mapping[int, Sequence[int]], *, add: bool, phase: int = 0) -> Process:
        """Sends parts to others, hears from as many, and adds what comes (or takes it as it is)."""
        sends = [self.env.process(self._send(d, target, parts, phase)) for target, parts in to.items()]
        arrived = []
        for _ in to:
            message = yield self.inboxes[phase][d].get()
            arrived.append(message)
        yield self.env.all_of(sends)
        for message in arrived:
            for part, value in message.items():
                self.parts[d][part] = self.parts[d][part] + value if add else value

    def _ring(self, d: int) -> Process:
        p = self.fabric.devices
        if self.kind != "all_gather":
            for step in range(p - 1):
                yield from self._pass_on(d, (d - step - 1) % p, add=True)
        if self.kind != "reduce_scatter":
            for step in range(p - 1):
                yield from self._pass_on(d, (d - step) % p, add=False)

    def _pass_on(self, d: int, part: int, *, add: bool) -> Process:
        yield from self._send(d, (d + 1) % self.fabric.devices, [part])
        message = yield self.inboxes[0][d].get()
        for index, value in message.items():
            self.parts[d][index] = self.parts[d][index] + value if add else value

    def _one_shot(self, d: int) -> Process:
        p = self.fabric.devices
        others = [(d + i) % p for i in range(1, p)]
        parts = {"all_reduce": lambda _: range(p), "all_gather": lambda _: [d], "reduce_scatter": lambda t: [t]}
        to = {target: parts[self.kind](target) for target in others}
        yield from self._exchange(d, to, add=self.kind != "all_gather")

    def _hierarchical(self, d: int) -> Process:
        """A device's share are the parts of its peers, which have its place in the other nodes, and its own."""
        each, nodes = self.fabric.per_node, self.fabric.nodes
        first, place = d - d % each, d % each
        inside = [first + (place + i) % each for i in range(1, each)]
        peers = [(d + i * each) % self.fabric.devices for i in range(1, nodes)]
        share = range(place, self.fabric.devices, each)
        if self.kind != "all_gather":
            shares = {target: range(target % each, self.fabric.devices, each) for target in inside}
            yield from self._exchange(d, shares, add=True)
        across = {"all_reduce": lambda _: share, "all_gather": lambda _: [d], "reduce_scatter": lambda t: [t]}
        to = {target: across[self.kind](target) for target in peers}
        yield from self._exchange(d, to, add=self.kind != "all_gather", phase=1)
        if self.kind != "reduce_scatter":
            yield from self._exchange(d, dict.fromkeys(inside, share), add=False, phase=2)
