"""Runs the cases of a study: what the store has is taken from there, the rest is simulated, once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from arch.errors import InputError
from sim.app.families.request import Request
from sim.app.fingerprint import code_hash
from sim.app.study.case import Answer, code_of, key_of
from sim.app.study.executors import Executor
from sim.app.study.store import CLAIM_S, ResultStore

ATTEMPTS = 2
"""How often a case that runs alone may lose its process before it counts as failed."""

_LOOK_S = 0.25
"""How often a study looks whether another one has finished a case that both need."""

WRITE_S = 1.0
"""How often a study writes what it has made."""

MOST_AT_ONCE = 64
"""Cases that a study takes for itself at once."""

_WAIT_S = 1.0
"""How long a study waits for an answer before it sees to its claims, its workers and the progress shown."""

Progress = Callable[[int, int], None]


def run_cases(
    cases: Sequence[Request],
    executor: Callable[[Sequence[Request]], Executor],
    *,
    store: ResultStore | None = None,
    progress: Progress | None = None,
) -> list[Answer]:
    """The answer of every case, in order.

    executor: makes one for the cases to simulate; not called if there are none. progress: called with the
    numbers of cases simulated and to be simulated. Results do not depend on either, nor on what the store held.
    """
    keys = [key_of(case) for case in cases]
    answers: dict[str, Answer] = {}
    todo: dict[str, Request] = {}
    for key, case in zip(keys, cases, strict=True):
        if key in answers or key in todo:
            continue
        known = _known(key, store)
        if known is None:
            todo[key] = case
        else:
            answers[key] = known
    if todo:
        made = executor(list(todo.values()))
        with contextlib.ExitStack() as stack:
            stack.push(lambda kind, *_: made.close(abort=kind is not None))
            shelf = _Shelf(store)
            stack.callback(shelf.write)
            _simulate(todo, made, shelf, answers, progress)
    return [answers[key] for key in keys]


@dataclass
class _Shelf:
    """What a study takes from a store and gives to it, in transactions about a second apart: a killed process loses
    what it had made since the last one. claimed: keys that are this study's. made, done: answers to keep, and keys that
    need none. pace: keys to claim at once, twice as many where those before were done within a second.
    """

    store: ResultStore | None
    claimed: deque[str] = field(default_factory=deque)
    made: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    pace: int = 1
    claimed_s: float = field(default_factory=time.monotonic)
    written_s: float = field(default_factory=time.monotonic)
    renewed_s: float = field(default_factory=time.monotonic)

    def next(self, waiting: deque[str], elsewhere: deque[str]) -> str:
        """A key to work on; empty if there is none. Others of those that wait may move to those that are elsewhere."""
        while waiting and not self.claimed:
            now_s = time.monotonic()
            self.pace = min(2 * self.pace, MOST_AT_ONCE) if now_s - self.claimed_s < WRITE_S else 1
            self.claimed_s = now_s
            some = [waiting.popleft() for _ in range(min(self.pace, len(waiting)))]
            free = self.store.claim_all(some) if self.store else some
            self.claimed.extend(free)
            elsewhere.extend(key for key in some if key not in free)
        return self.claimed.popleft() if self.claimed else ""

    def keep(self, key: str, answer: Answer, request: Request) -> None:
        """Stores a report; a refusal costs nothing to find again, and a failure may have passed by then."""
        if answer.code not in (code_of(request), code_hash()):
            raise InputError(
                "a worker runs another version of tilewave, or of a package with policies of its own; install the same "
                "ones everywhere"
            )
        if answer.report is not None:
            self.made.append((key, request.machine.family, answer.document))
        else:
            self.done.append(key)

    def attend(self, running: Iterable[str]) -> None:
        """Writes what is due, and keeps claims from lapsing."""
        now_s = time.monotonic()
        if now_s - self.written_s > WRITE_S:
            self.write()
        if self.store and now_s - self.renewed_s > CLAIM_S / 4:
            self.store.renew([*running, *self.claimed])
            self.renewed_s = now_s

    def write(self) -> None:
        """Gives what has been made to the store."""
        if self.store and (self.made or self.done):
            self.store.put_all(self.made, self.done)
        self.made, self.done, self.written_s = [], [], time.monotonic()


def _simulate(
    todo: dict[str, Request],
    executor: Executor,
    shelf: _Shelf,
    answers: dict[str, Answer],
    progress: Progress | None,
) -> None:
    """Fills in the answers of `todo`."""
    waiting = deque(todo)
    elsewhere: deque[str] = deque()  # another study is at work on these
    suspects: deque[str] = deque()  # these were running when a process died; they run alone, so that the cause shows
    running: dict[Future[Answer], str] = {}
    alone = ""  # the suspect that runs with nothing beside it
    lost: Counter[str] = Counter()
    before = len(answers)
    while waiting or elsewhere or suspects or running or shelf.claimed:
        if progress:
            progress(len(answers) - before, len(todo))
        if not (waiting or elsewhere or running or shelf.claimed):
            alone = suspects.popleft()
            waiting.append(alone)
        while len(running) < executor.capacity and (key := shelf.next(waiting, elsewhere)):
            known = _known(key, shelf.store)  # once the claim is ours, nobody can finish it unseen
            if known is not None:
                shelf.done.append(key)
                answers[key] = known
            else:
                running[executor.submit(todo[key])] = key
        alone = "" if alone in elsewhere else alone
        if not running:
            time.sleep(_LOOK_S if elsewhere else 0)
        done = wait(running, timeout=_WAIT_S, return_when=FIRST_COMPLETED).done
        if any(_broken(future) for future in done):
            done = wait(running).done  # the pool is dead as a whole
            executor.restart()
        for future in done:
            key = running.pop(future)
            answer = _answer(future)
            if answer is None:
                lost[key] += key == alone
                if lost[key] < ATTEMPTS:
                    suspects.append(key)
                    continue
                answer = Answer(failed=f"its process died {ATTEMPTS} times", code=code_hash())
            shelf.keep(key, answer, todo[key])
            answers[key] = answer
        if not done:
            executor.check()
        shelf.attend(running.values())
        if not waiting:
            waiting, elsewhere = elsewhere, waiting
    if progress:
        progress(len(todo), len(todo))


def _known(key: str, store: ResultStore | None) -> Answer | None:
    """What the store has under a key, if that can be used."""
    document = store.get(key) if store else None
    if store is None or document is None:
        return None
    answer = Answer.kept(document)
    if answer is None:
        store.distrust(key, "does not follow the schema of reports")
    return answer


def _broken(future: Future[Answer]) -> bool:
    return not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)


def _answer(future: Future[Answer]) -> Answer | None:
    """What a future holds; None if its worker died."""
    try:
        return future.result()
    except (CancelledError, BrokenProcessPool):
        return None
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # Dask: several workers died with it
            return Answer(failed=f"its worker died: {error}", code=code_hash())
        return Answer(failed=f"{type(error).__name__}: {error}", code=code_hash())
