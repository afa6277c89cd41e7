"""Runs the cases of a study: what the store has is taken from there, the rest is simulated, once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool

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
            _simulate(todo, made, store, answers, progress)
    return [answers[key] for key in keys]


def _simulate(
    todo: dict[str, Request],
    executor: Executor,
    store: ResultStore | None,
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
    renewed_s = time.monotonic()
    while waiting or elsewhere or suspects or running:
        if progress:
            progress(len(answers) - before, len(todo))
        if not (waiting or elsewhere or running):
            alone = suspects.popleft()
            waiting.append(alone)
        while waiting and len(running) < executor.capacity:
            key = waiting.popleft()
            if store and not store.claim(key):
                elsewhere.append(key)
                alone = ""
                continue
            known = _known(key, store)  # once the claim is ours, nobody can finish it unseen
            if store and known is not None:
                store.release(key)
                answers[key] = known
            else:
                running[executor.submit(todo[key])] = key
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
            _keep(key, answer, store, code_of(todo[key]))
            answers[key] = answer
        if not done:
            executor.check()
        if store and time.monotonic() - renewed_s > CLAIM_S / 4:
            store.renew(running.values())
            renewed_s = time.monotonic()
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


def _keep(key: str, answer: Answer, store: ResultStore | None, code: str) -> None:
    """Stores a report; a refusal costs nothing to find again, and a failure may have passed by then. code: what must
    have answered."""
    if answer.code not in (code, code_hash()):
        raise InputError(
            "a worker runs another version of tilewave, or of a package with policies of its own; install the same "
            "ones everywhere"
        )
    if store is None:
        return
    if answer.report is not None:
        store.put(key, answer.document)
    else:
        store.release(key)


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
