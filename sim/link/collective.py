"""Collectives over devices joined by links, in SimPy: one process a device, one egress port each; picoseconds.

The same code serves GPUs (NVLink behind a switch: every pair is one link apart) and dataflow sockets. Devices of
different nodes talk over the nodes' network. A message holds its sender's port for its bytes and arrives a latency
later. Ring: each device passes parts on to its neighbour; one-shot: each sends all it has to each.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from arch.errors import InputError
from sim.engine.clock import PS_PER_S

Array = NDArray[Any]
Process = Generator[simpy.Event, Any, None]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter"]
Algorithm = Literal["ring", "one_shot"]

KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter")
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "one_shot")


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


class Send(NamedTuple):
    """One message: it held its sender's port from begin_ps to end_ps and was there at arrival_ps."""

    source: int
    target: int
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
    return min((collective(fabric, kind, a, size_bytes) for a in ALGORITHMS), key=lambda outcome: outcome.time_ps)


def collective(
    fabric: Fabric, kind: Kind, algorithm: Algorithm, size_bytes: int, values: Sequence[Array] = ()
) -> Outcome:
    """Runs one collective. values: one array a device, to be carried along (all_gather: its own part)."""
    return _Run(fabric, kind, algorithm, size_bytes, values).run()


class _Run:
    """One collective: inboxes, ports and what each device holds, part by part."""

    def __init__(
        self, fabric: Fabric, kind: Kind, algorithm: Algorithm, size_bytes: int, values: Sequence[Array]
    ) -> None:
        self.fabric, self.kind, self.algorithm, self.size = fabric, kind, algorithm, size_bytes
        self.env = simpy.Environment()
        p = fabric.devices
        self.ports = [simpy.Resource(self.env) for _ in range(p)]
        self.inboxes = [simpy.Store(self.env) for _ in range(p)]
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
            device = self._ring if self.algorithm == "ring" else self._one_shot
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

    def _send(self, source: int, target: int, part: int, size: int) -> Process:
        """Sends a part (-1: all) through the source's port."""
        f = self.fabric
        across = f.per_node and source // f.per_node != target // f.per_node
        bandwidth = f.node_bandwidth_bytes_per_s if across else f.bandwidth_bytes_per_s
        latency = f.node_latency_ps if across else f.latency_ps
        content = [np.copy(x) if self.carries and x is not None else x for x in self.parts[source]]
        with self.ports[source].request() as turn:
            yield turn
            busy = -(-size * PS_PER_S // bandwidth)
            begin = int(self.env.now)
            self.sends.append(Send(source, target, size, begin, begin + busy, begin + busy + latency))
            self.port_ps[source] += busy
            yield self.env.timeout(busy)
        self.env.process(self._arrive(target, latency, (part, content if part < 0 else content[part])))

    def _arrive(self, target: int, latency: int, message: tuple[int, Any]) -> Process:
        yield self.env.timeout(latency)
        yield self.inboxes[target].put(message)

    def _ring(self, d: int) -> Process:
        p = self.fabric.devices
        if self.kind != "all_gather":
            for step in range(p - 1):
                part = (d - step - 1) % p
                yield from self._send(d, (d + 1) % p, part, self._bytes(part))
                part, value = yield self.inboxes[d].get()
                self.parts[d][part] = self.parts[d][part] + value
        if self.kind != "reduce_scatter":
            for step in range(p - 1):
                part = (d - step) % p
                yield from self._send(d, (d + 1) % p, part, self._bytes(part))
                part, value = yield self.inboxes[d].get()
                self.parts[d][part] = value

    def _one_shot(self, d: int) -> Process:
        p = self.fabric.devices
        sends = [self.env.process(self._send_one_shot(d, (d + i) % p)) for i in range(1, p)]
        arrived = []
        for _ in range(p - 1):
            message = yield self.inboxes[d].get()
            arrived.append(message)
        yield self.env.all_of(sends)
        for part, value in arrived:
            for index in range(p) if part < 0 else [part]:
                incoming = value[index] if part < 0 else value
                if self.kind == "all_gather":
                    if incoming is not None and part == index:
                        self.parts[d][index] = incoming
                else:
                    self.parts[d][index] = self.parts[d][index] + incoming

    def _send_one_shot(self, d: int, target: int) -> Process:
        match self.kind:
            case "all_reduce":
                yield from self._send(d, target, -1, self.size)
            case "all_gather":
                yield from self._send(d, target, d, self._bytes(d))
            case _:
                yield from self._send(d, target, target, self._bytes(target))
