"""A server that batches continuously: a step decodes one token of every running sequence, or prefills prompts, or both.

Clients are closed loops: each sends its next request as soon as the one before is answered. A request is admitted when
the cache has room for it to its last token, so that none is thrown out again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sim.app.serving.deployment import Deployment
from sim.app.serving.steps import Chunk, Step, StepCost

ROUNDS = 4
"""Requests of each client. The first, which begins with all others, and the last, which ends alone, are not counted."""


@dataclass
class _Request:
    """One request. left: tokens of its prompt that no step has prefilled yet."""

    arrival_s: float
    isl: int
    osl: int
    left: int
    first_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Of the cache, when it ends."""
        return self.isl + self.osl


class Answer(NamedTuple):
    """Seconds from a request to its first token, and to each later one."""

    ttft_s: float
    tpot_s: float | None


class Totals(NamedTuple):
    """What one copy has done so far. tokens: of answers. energy_j: of one device. prefill_s: of steps with prompts.
    decoded: tokens by steps of decoding, which are `steps`."""

    now_s: float = 0.0
    tokens: int = 0
    energy_j: float = 0.0
    prefill_s: float = 0.0
    steps: int = 0
    decoded: int = 0

    def since(self, before: Totals) -> Totals:
        """What has been done after another moment."""
        return Totals(
            self.now_s - before.now_s, self.tokens - before.tokens, self.energy_j - before.energy_j,
            self.prefill_s - before.prefill_s, self.steps - before.steps, self.decoded - before.decoded,
        )  # fmt: skip


class ServedRequests(NamedTuple):
    """What was counted: answers, and what was done while they came."""

    answers: Sequence[Answer]
    done: Totals

    @property
    def ttft_s(self) -> float:
        """Mean seconds to the first token."""
        return fmean(answer.ttft_s for answer in self.answers)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds a token behind the first; None where answers have one token."""
        found = [answer.tpot_s for answer in self.answers if answer.tpot_s is not None]
        return fmean(found) if found else None


class Server:
    """One copy of the model with its clients. take: what a step takes. room: tokens that the cache holds."""

    def __init__(self, deployment: Deployment, take: Callable[[Step], StepCost], room: int) -> None:
        self.deployment, self._take, self._room = deployment, take, room
        self._waiting: deque[_Request] = deque()
        self._prefilling: deque[_Request] = deque()
        self._ending: list[tuple[int, int, _Request]] = []  # by the step of decoding in which they end
        self._used = self._keys = self._issued = 0
        self._rng = np.random.Generator(np.random.PCG64(0))
        self._done = Totals()
        self._answers: list[Answer] = []

    def run(self) -> ServedRequests:
        """Serves `ROUNDS` requests of each client."""
        clients = self.deployment.clients
        for _ in range(clients):
            self._arrive()
        begin = self._until(clients)
        counted = len(self._answers)
        end = self._until((ROUNDS - 1) * clients)
        return ServedRequests(self._answers[counted:], end.since(begin))

    def _until(self, answers: int) -> Totals:
        while len(self._answers) < answers:
            self._step()
        return self._done

    def _arrive(self) -> None:
        """A client sends a request."""
        isl, osl = self._drawn(self.deployment.isl), self._drawn(self.deployment.osl)
        self._waiting.append(_Request(self._done.now_s, isl, osl, isl))

    def _drawn(self, mean: int) -> int:
        """A length within the spread."""
        away = mean * self.deployment.spread // 100
        return int(self._rng.integers(mean - away, mean + away + 1)) if away else mean

    def _step(self) -> None:
        """The next step, and what comes of it."""
        running = len(self._ending)
        alone = self.deployment.prefill == "alone"
        chunks, whole = self._chunks(self.deployment.budget - (0 if alone else running))
        decode = 0 if alone and chunks else running
        step = Step(decode, self._keys if decode else 0, chunks)
        taken = self._take(step)
        now_s, tokens, energy_j, prefill_s, steps, decoded = self._done
        time_s = taken.time_s + 1e-6 * self.deployment.host
        self._done = Totals(
            now_s + time_s, tokens + decode + len(whole), energy_j + taken.energy_j,
            prefill_s + time_s * bool(chunks), steps + bool(decode), decoded + decode,
        )  # fmt: skip
        if decode:
            self._keys += decode
            while self._ending and self._ending[0][0] == self._done.steps:
                self._answered(heapq.heappop(self._ending)[2])
        for request in whole:
            self._first_token(request)

    def _chunks(self, budget: int) -> tuple[tuple[Chunk, ...], list[_Request]]:
        """Tokens of prompts for the next step, in the order in which they came, and the prompts that end in it."""
        chunks, whole = list[Chunk](), list[_Request]()
        while budget > 0 and (self._prefilling or self._admitted()):
            request = self._prefilling[0]
            tokens = min(budget, request.left)
            chunks.append(Chunk(tokens, request.isl - request.left))
            request.left -= tokens
            budget -= tokens
            if not request.left:
                whole.append(self._prefilling.popleft())
        return tuple(chunks), whole

    def _admitted(self) -> bool:
        """Whether the next waiting request has room in the cache, which it then takes."""
        if not self._waiting or self._used + self._waiting[0].tokens > self._room:
            return False
        request = self._waiting.popleft()
        self._used += request.tokens
        self._prefilling.append(request)
        return True

    def _first_token(self, request: _Request) -> None:
        """A prompt's last step gives the first token of the answer."""
        request.first_s = self._done.now_s
        if request.osl == 1:
            self._answered(request)
            return
        self._keys += request.isl + 1
        self._issued += 1
        heapq.heappush(self._ending, (self._done.steps + request.osl - 1, self._issued, request))

    def _answered(self, request: _Request) -> None:
        """A request ends, and its client sends the next one."""
        self._used -= request.tokens
        later = request.osl - 1
        self._keys -= request.tokens if later else 0
        tpot_s = (self._done.now_s - request.first_s) / later if later else None
        self._answers.append(Answer(request.first_s - request.arrival_s, tpot_s))
        self._arrive()
