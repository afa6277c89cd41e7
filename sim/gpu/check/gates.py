"""Barriers as the interpreter replays them: who arrived, which phases are complete, what a wait learns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.gpu.check.happens_before import Access, Clock


class Groups:
    """Committed groups of one warp's asynchronous ops; epochs count the ops from 1."""

    def __init__(self) -> None:
        self.issued = 0
        self.read = self.done = 0  # ticks: latest of all issued
        self._closed: list[tuple[int, int, int]] = []

    def add(self, read: int, done: int) -> int:
        """One more op; its epoch."""
        self.issued += 1
        self.read, self.done = max(self.read, read), max(self.done, done)
        return self.issued

    def commit(self) -> None:
        """Closes the group."""
        self._closed.append((self.issued, self.read, self.done))

    @property
    def all(self) -> tuple[int, int, int]:
        """As `finished`, of all of them."""
        return self.issued, self.read, self.done

    def finished(self, left: int) -> tuple[int, int, int]:
        """(epoch, read ticks, done ticks) of the newest group that is finished when at most `left` are pending."""
        n = len(self._closed) - left
        return self._closed[n - 1] if n > 0 else (0, 0, 0)


class Gate:
    """What warps wait at: a list of parked warps, each with the condition that lets it go."""

    def __init__(self) -> None:
        self.parked: list[tuple[Callable[[], bool], Callable[[], None], str]] = []
        self.arrived: list[str] = []
        """Who has arrived at what is not complete yet."""

    def missing(self) -> str:
        """What it waits for, and who has come."""
        return f"arrived: {', '.join(self.arrived) or 'nobody'}"

    def wake(self) -> None:
        """Lets all go whose condition holds now."""
        ready = [p for p in self.parked if p[0]()]
        self.parked = [p for p in self.parked if p not in ready]
        for _, resume, _ in ready:
            resume()


class MBarrierStage(Gate):
    """One stage of an mbarrier of one CTA."""

    def __init__(self, arrivals: int, component: int, blank: Clock) -> None:
        super().__init__()
        self.arrivals, self.component = arrivals, component
        self.pending, self.bytes, self.completed = arrivals, 0, 0
        self._clock = blank
        self._clocks: list[Clock] = []
        self._landed: list[Access] = []

    def arrive(self, clock: Clock, who: str) -> bool:
        """One arrival; False if the phase expects none."""
        if self.pending == 0:
            return False
        self.arrived.append(who)
        np.maximum(self._clock, clock, out=self._clock)
        self.pending -= 1
        self.settle()
        return True

    def land(self, size_bytes: int, accesses: list[Access]) -> None:
        """Bytes of a bulk copy: whoever sees this phase complete knows its accesses."""
        for access in accesses:
            access.epoch = self.completed + 1
        self.bytes -= size_bytes
        self.settle()

    def settle(self) -> None:
        """Completes the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.completed += 1
            self.pending, self.arrived = self.arrivals, []
            self._clock[self.component] = self.completed
            # A later phase continues the release sequence of the earlier ones, so its clock includes theirs.
            self._clocks.append(self._clock.copy())
            self.wake()

    def clock(self, phase: int) -> Clock:
        """What a wait for `phase` learns."""
        return self._clocks[phase]

    def missing(self) -> str:
        """What the current phase waits for, and who has come."""
        short = f"{self.pending} arrivals and {self.bytes} bytes missing in phase {self.completed}"
        return f"{short}; {super().missing()}"


class Rendezvous(Gate):
    """A barrier that `count` warps pass together, again and again: bar.sync and barrier.cluster."""

    def __init__(self, blank: Clock) -> None:
        super().__init__()
        self._blank = blank
        self._clock, self._count = blank.copy(), 0
        self.expected = 0
        self.clocks: list[Clock] = []

    def fits(self, count: int) -> bool:
        """Whether those who have arrived in this generation expect as many warps as somebody who is about to."""
        if self._count == 0:
            self.expected = count
        return self.expected == count

    def arrive(self, clock: Clock, count: int, who: str) -> int:
        """One arrival of `count`; the generation that it belongs to."""
        self.arrived.append(who)
        generation = len(self.clocks)
        np.maximum(self._clock, clock, out=self._clock)
        self._count += 1
        if self._count == count:
            self.clocks.append(self._clock)
            self._clock, self._count, self.arrived = self._blank.copy(), 0, []
            self.wake()
        return generation


class Flag(Gate):
    """A global semaphore: the clock after each increment."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks: list[Clock] = []

    def add(self, clock: Clock, who: str) -> None:
        """One increment."""
        self.arrived.append(who)
        self.clocks.append(np.maximum(self.clocks[-1], clock) if self.clocks else clock)
        self.wake()
