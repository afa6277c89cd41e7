"""Collectives as libraries run them: kernels whose channels pass chunks on through flagged buffers, in SimPy.

A channel is one CTA of a device's kernel. All channels do the same at the same time, so that one of them stands for
all, with its share of the device's port. It handles one message after the other: it waits until a message is there,
is busy for its bytes (through the port, and where the message ends here by copying it) and for announcing it, and its
neighbour sees it one latency of the protocol later. Senders store into the memory of their neighbour's result, so that
what only arrives is there already.

- `ring`: parts go round, n - 1 steps to add them up, n - 1 to hand them out. Flagged values are taken out of a buffer
  in the loop that hands them on, and after the last step by themselves. Else only the part that ends at a device is
  copied there; channels are out of step after their first round, and copies of some lie beside sends of others.
- `nvls`: devices copy a part into a buffer that the switch knows, each adds up its share by reading through the switch
  and writes it to all through the switch, then all copy it out; three groups of warps, one part behind the other.
- `multimem`: the sum through the switch alone, in a buffer that it knows: each thread reads a word of its device's
  share and writes the sum, one after the other, between two barriers.
- `pairwise`: each device has a message for each other one, all at once, in parts over some channels.
- `one_shot`: after a barrier each device reads what all others have and adds it up; a second barrier ends it.
- `two_shot`: after a barrier each adds up a share, after a second one, behind a fence, it reads the others' shares.
  A thread loads what it adds from all at once; the others' shares it loads one after the other, since a compiler may
  not move a load before the store of the one before.
- `push`: each device stores what it has, flags among the values, into a buffer of every other one, which adds it up.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from sim.engine.clock import PS_PER_S
from sim.link.collective import Send

Array = NDArray[Any]
Process = Generator[simpy.Event, Any, None]
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
Algorithm = Literal["ring", "nvls", "multimem", "pairwise", "one_shot", "two_shot", "push"]

KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


class Wire(NamedTuple):
    """How a protocol moves a message. Bandwidths are of payload, bytes a second; latency in ps.

    port: of a device's port. channel: of one channel's CTA, inside the device (of `pairwise`: of the warps that send a
    message). slices: parts of a message that are announced one by one. post_ps: for how long that keeps a CTA; 0 where
    flags lie among the values. read_ps: of a load from another device, from its request to its answer; it takes as long
    until all have what a CTA has stored. asked_bytes_per_s: of what a device gets from a switch that adds up, beside
    the others' requests for what it has.
    """

    protocol: str
    latency_ps: int
    port_bytes_per_s: int
    channel_bytes_per_s: int
    slices: int = 1
    post_ps: int = 0
    read_ps: int = 0
    asked_bytes_per_s: int = 0


class Plan(NamedTuple):
    """A collective as a library runs it.

    start_ps: of the kernel beside its messages, of the device that begins last. chunk_bytes: the largest message of a
    channel (of `nvls`: of all channels of a device together; of `multimem`: what all threads of all devices add up at
    once; of `pairwise`: a channel's part of a message; of shots: what all threads load at once from one other device).
    """

    kind: Kind
    algorithm: Algorithm
    devices: int
    size_bytes: int
    wire: Wire
    channels: int
    chunk_bytes: int
    start_ps: int

    def __str__(self) -> str:
        return f"{self.algorithm} {self.wire.protocol} channels {self.channels}"


class CollectiveCost(NamedTuple):
    """What a collective took. port_ps, copied_ps: for how long a device's port was busy, and its channels (of `nvls`,
    the warps that copy out) with copies inside it. sent_bytes: through the port of one device. values: result by
    device. sends: what each device's port carried."""

    time_ps: int
    port_ps: int
    copied_ps: int
    sent_bytes: int
    values: tuple[Array, ...] = ()
    sends: tuple[Send, ...] = ()


class Traffic(NamedTuple):
    """Bytes of one device's memory that a collective moves, by its own kernel or by others'.

    read: of its values. written: of its results. landed: written to a buffer, and read from there.
    """

    read_bytes: int
    written_bytes: int
    landed_bytes: int


def traffic(plan: Plan, sent_bytes: int) -> Traffic:
    """What a collective does to the memory of a device. sent_bytes: of payload, by one device.

    What a neighbour stores lands in a buffer, with its flags; what others read they read in place. For the switch
    values are copied to a buffer, which it reads and to which it writes, and from there to the result.
    """
    size, flagged = plan.size_bytes, _BYTES_OF_A_FLAGGED.get(plan.wire.protocol, 1.0)
    if plan.algorithm in ("nvls", "multimem"):
        return Traffic(size, size, size)
    if plan.algorithm in ("one_shot", "two_shot"):
        return Traffic(size + sent_bytes, size, 0)
    own = size // plan.devices if plan.kind == "all_gather" else size
    return Traffic(own, size, round(sent_bytes * flagged))


_BYTES_OF_A_FLAGGED = {"LL": 2.0, "LL128": 128 / 120}
"""Stored for each byte of payload: flags beside words of 4 bytes, and in lines of 120."""


def last_of(devices: int, spread_ps: float) -> float:
    """How much later the last of some devices begins than they do on average; their starts have a standard deviation.

    The largest of n draws of a normal distribution lies so many standard deviations above its mean (G. Blom, 1958).
    """
    return spread_ps * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def run(plan: Plan, values: Sequence[Array] = ()) -> CollectiveCost:
    """Runs a collective to its end. values: one array a device, to be carried along (all_gather: its own part)."""
    return _RUNS[plan.algorithm](plan, values).run()


class _Run:
    """One collective on all devices."""

    def __init__(self, plan: Plan, values: Sequence[Array]) -> None:
        self.plan, self.values = plan, values
        self.env = simpy.Environment()
        self.port_ps = self.copied_ps = 0
        """Of the first device; all do the same."""
        self.sent_bytes = 0
        self.sends: list[Send] = []

    def run(self) -> CollectiveCost:
        """All devices to their end."""
        devices = range(self.plan.devices)
        self.env.run(self.env.all_of([self.env.process(self.device(d)) for d in devices]))
        results = tuple(self.result(d) for d in devices) if self.values else ()
        return CollectiveCost(
            self.plan.start_ps + int(self.env.now),
            self.port_ps,
            self.copied_ps,
            self.sent_bytes,
            results,
            tuple(self.sends),
        )

    def device(self, d: int) -> Process:
        """What one device does."""
        raise NotImplementedError

    def result(self, d: int) -> Array:
        """What one device ends with."""
        raise NotImplementedError

    def busy_ps(self, d: int, size_bytes: int) -> int:
        """For how long all channels together are busy with bytes that go through the port."""
        return self._busy(d, size_bytes, -(-size_bytes * PS_PER_S // self.plan.wire.port_bytes_per_s))

    def summed_ps(self, d: int, size_bytes: int) -> int:
        """For how long a device's port is busy when a switch adds up bytes of all devices, a share for each.

        The direction that ends last is the one to the device: others' requests for all of its values and the sums that
        the switch writes to it, and the answers to its own requests.
        """
        wire, own = self.plan.wire, -(-size_bytes // self.plan.devices)
        asked_ps = -(-size_bytes * PS_PER_S // wire.asked_bytes_per_s)
        return self._busy(d, size_bytes + own, asked_ps - (-own * PS_PER_S // wire.port_bytes_per_s))

    def _busy(self, d: int, size_bytes: int, busy_ps: int) -> int:
        if d == 0:
            self.port_ps += busy_ps
            self.sent_bytes += size_bytes
        begin_ps = self.plan.start_ps + int(self.env.now)
        end_ps = begin_ps + busy_ps
        self.sends.append(Send(d, self.target(d), size_bytes, begin_ps, end_ps, end_ps + self.plan.wire.latency_ps))
        return busy_ps

    def target(self, d: int) -> int | None:
        """Where a device sends; None: to or from all others."""
        return None

    def copy_ps(self, size_bytes: int) -> int:
        """For how long all channels together copy bytes inside the device."""
        return -(-size_bytes * PS_PER_S // (self.plan.channels * self.plan.wire.channel_bytes_per_s))


class _Ring(_Run):
    """Messages to the next device, and what each device holds, part by part."""

    def __init__(self, plan: Plan, values: Sequence[Array]) -> None:
        super().__init__(plan, values)
        p = plan.devices
        self.inboxes = [simpy.Store(self.env) for _ in range(p)]
        if plan.kind == "all_gather":
            self.parts = [{d: values[d] if values else 0} for d in range(p)]
        else:
            self.parts = [
                dict(enumerate(np.array_split(values[d].reshape(-1), p) if values else [0] * p)) for d in range(p)
            ]

    def device(self, d: int) -> Process:
        """Rounds over chunks; in each the parts go round."""
        plan, p = self.plan, self.plan.devices
        part = -(-plan.size_bytes // p)
        chunk = min(part, plan.chunk_bytes * plan.channels)
        adds = plan.kind != "all_gather"
        steps = (p - 1) * (2 if plan.kind == "all_reduce" else 1)
        for first in range(0, part, chunk):
            size = min(chunk, part - first)
            last_round = first + chunk >= part
            for step in range(steps + 1):
                handled = self._handled(step, steps, size, first == 0)
                yield from self._step(d, step, steps, size, handled, adds and step < p, last_round)

    def _handled(self, step: int, steps: int, size: int, first_round: bool) -> tuple[int, int]:
        """Bytes that a CTA moves at its own rate in a step: beside what the port takes, and copied before it.

        A neighbour has stored what only arrives in its place already. Flagged messages are in a buffer.
        A CTA that only adds flagged words to its own and hands them on is as fast as the port.
        """
        ends_here = {"all_reduce": self.plan.devices - 1, "all_gather": 0}.get(self.plan.kind, steps)
        if not self.plan.wire.post_ps:
            adds_words = self.plan.wire.protocol == "LL" and step < ends_here
            return (0 if adds_words else size), (size if step == steps else 0)
        if step != ends_here:
            return size, 0
        return size, size if first_round else self._not_beside(size, steps)

    def _not_beside(self, size: int, steps: int) -> int:
        """Of a copy, what a CTA has no time for while the port is busy with what all channels send in a round."""
        wire = self.plan.wire
        channels_bytes_per_s = self.plan.channels * wire.channel_bytes_per_s
        idle = max(0, channels_bytes_per_s - wire.port_bytes_per_s) * steps * size // wire.port_bytes_per_s
        return max(0, size - idle)

    def _step(
        self, d: int, step: int, steps: int, size: int, handled: tuple[int, int], add: bool, carry: bool
    ) -> Process:
        """Takes what came, unless it is the first step, and passes it on, unless it is the last."""
        plan, p = self.plan, self.plan.devices
        # Where all parts are added up, device d ends the reduction with part d, and hands it out from there.
        index = (d - step - (plan.kind != "all_gather")) % p
        for n in range(plan.wire.slices):
            share, beside, before = (
                x * (n + 1) // plan.wire.slices - x * n // plan.wire.slices for x in (size, *handled)
            )
            if step:
                message = yield self.inboxes[d].get()
                if carry and n == plan.wire.slices - 1 and self.values:
                    self.parts[d][index] = self.parts[d][index] + message if add else message
            if d == 0:
                self.copied_ps += self.copy_ps(before) + (self.copy_ps(beside) if step < steps else 0)
            yield self.env.timeout(self.copy_ps(before))
            if step == steps:
                continue
            yield self.env.timeout(max(self.busy_ps(d, share), self.copy_ps(beside)) + plan.wire.post_ps)
            self.env.process(self._arrive((d + 1) % p, self.parts[d].get(index)))

    def _arrive(self, target: int, message: Any) -> Process:
        yield self.env.timeout(self.plan.wire.latency_ps)
        yield self.inboxes[target].put(message)

    def target(self, d: int) -> int | None:
        """The next device."""
        return (d + 1) % self.plan.devices

    def result(self, d: int) -> Array:
        """Its part of a reduce-scatter, else all parts."""
        if self.plan.kind == "reduce_scatter":
            return np.asarray(self.parts[d][d])
        return np.concatenate([np.ravel(self.parts[d][part]) for part in range(self.plan.devices)])


class _Switch(_Run):
    """Parts through a switch that adds and spreads; all devices do the same, so that one stands for all. A warp of each
    group announces a part while the others are at the next one."""

    def device(self, d: int) -> Process:
        """Three groups of warps, one part behind the other."""
        chunks, size = [], self.plan.size_bytes
        self.copied_ps = self.copy_ps(size)
        while size:
            chunks.append(min(size, self.plan.chunk_bytes))
            size -= chunks[-1]
        copied, spread = simpy.Store(self.env), simpy.Store(self.env)
        yield self.env.all_of(
            [
                self.env.process(self._stage(chunks, None, copied, self.copy_ps)),
                self.env.process(self._stage(chunks, copied, spread, lambda size: self.summed_ps(d, size))),
                self.env.process(self._stage(chunks, spread, None, self._in_turn_ps)),
            ]
        )

    def _in_turn_ps(self, size: int) -> int:
        """Of copies of the shares, one device's after the other's, each behind its flag."""
        return self.copy_ps(size) + self.plan.devices * self.plan.wire.latency_ps

    def _stage(self, chunks: Sequence[int], before: Any, after: Any, busy: Any) -> Process:
        """One group of warps: takes a part when the group before has announced it."""
        for size in chunks:
            if before is not None:
                arrives_ps = yield before.get()
                yield self.env.timeout(max(0, arrives_ps - int(self.env.now)))
            yield self.env.timeout(busy(size))
            if after is not None:
                yield after.put(int(self.env.now) + self.plan.wire.post_ps + self.plan.wire.latency_ps)

    def result(self, d: int) -> Array:
        """The sum that the switch made."""
        return np.asarray(np.sum(self.values, axis=0))


class _Pairwise(_Run):
    """A message for each other device, all at once; what stays is copied meanwhile."""

    def device(self, d: int) -> Process:
        """Messages share the port, and each has warps of its own in its channels. Where parts are announced, one goes
        through a buffer alone: the first before the port is busy, or the last after it."""
        plan, p = self.plan, self.plan.devices
        sent_ps = self.busy_ps(d, plan.size_bytes // p * (p - 1))
        alone_ps = -(-plan.chunk_bytes * PS_PER_S // plan.wire.channel_bytes_per_s)
        moved_ps = sent_ps + alone_ps if plan.wire.post_ps else max(sent_ps, alone_ps)
        # The sender announces what is there, the receiver what it has taken.
        yield self.env.timeout(2 * (plan.wire.latency_ps + plan.wire.post_ps) + moved_ps)

    def result(self, d: int) -> Array:
        """What each device has for this one."""
        return np.concatenate([np.array_split(v.reshape(-1), self.plan.devices)[d] for v in self.values])


class _Shots(_Run):
    """Barriers through flags, and what is read from the others between them."""

    def __init__(self, plan: Plan, values: Sequence[Array]) -> None:
        super().__init__(plan, values)
        self.waiting = 0
        self.gate = self.env.event()

    def device(self, d: int) -> Process:
        """One shot reads all of every other device, two shots a share of each, twice."""
        plan, p, hop_ps = self.plan, self.plan.devices, self.plan.wire.latency_ps
        if plan.algorithm == "push":
            yield self.env.timeout(self.busy_ps(d, plan.size_bytes * (p - 1)) + hop_ps)
            return
        once, read_ps = plan.algorithm == "one_shot", plan.wire.read_ps
        size = plan.size_bytes if once else plan.size_bytes // p
        for shot, loads in enumerate((1,) if once else (1, p - 1)):
            if shot:
                yield self.env.timeout(read_ps)
            yield from self.barrier()
            loops = -(-size // plan.chunk_bytes)
            yield self.env.timeout(max(read_ps + self.busy_ps(d, size * (p - 1)), loops * loads * read_ps))
        if once:
            yield from self.barrier()

    def barrier(self) -> Process:
        """Everybody's flag has reached everybody."""
        self.waiting += 1
        if self.waiting == self.plan.devices:
            self.waiting, gate, self.gate = 0, self.gate, self.env.event()
            gate.succeed()
            yield self.env.timeout(self.plan.wire.latency_ps)
            return
        yield self.gate
        yield self.env.timeout(self.plan.wire.latency_ps)

    def result(self, d: int) -> Array:
        """The sum, made in the order of the devices on each of them."""
        return np.asarray(np.sum(self.values, axis=0))


class _Multimem(_Shots):
    """Threads add up words through the switch, one after the other, between two barriers."""

    def device(self, d: int) -> Process:
        """Rounds in which every thread has one word."""
        plan, answer_ps = self.plan, self.plan.wire.read_ps
        yield from self._swap()
        yield self.env.timeout(answer_ps)
        for first in range(0, plan.size_bytes, plan.chunk_bytes):
            size = min(plan.chunk_bytes, plan.size_bytes - first)
            yield self.env.timeout(max(answer_ps, self.summed_ps(d, size)))
        # The last stores are acknowledged before a flag is set behind them.
        yield self.env.timeout(answer_ps)
        yield from self._swap()

    def _swap(self) -> Process:
        """A barrier whose flags are set by compare-and-swap, which has to come back."""
        yield from self.barrier()
        yield self.env.timeout(self.plan.wire.latency_ps)


_RUNS: dict[Algorithm, type[_Run]] = {
    "ring": _Ring,
    "nvls": _Switch,
    "multimem": _Multimem,
    "pairwise": _Pairwise,
    "one_shot": _Shots,
    "two_shot": _Shots,
    "push": _Shots,
}
