"""Where the cases of a study run: in this process, in processes of this machine, or on a Dask cluster.

An executor has `capacity` (cases to have in flight), `submit(case)` that gives a future, `restart()` after its workers
died, `check()` that raises InputError if nobody is left to work, and `close(abort)`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Protocol

from arch.errors import InputError
from sim.app.families.family import runner_of
from sim.app.families.request import Request
from sim.app.study.case import Answer, run_case

EXECUTORS = ("local", "dask")

DASK_WORKERS_WITHIN_S = 30.0
"""How long a cluster may be without workers."""

DASK_ANSWERS_WITHIN_S = 10.0
"""How long a scheduler may take to answer."""

Work = Callable[[Request], Answer]


class Executor(Protocol):
    """What the runner of a study needs; see the module's text."""

    capacity: int

    def submit(self, case: Request) -> Future[Answer]:
        """Starts a case."""

    def restart(self) -> None:
        """Replaces workers that have died."""

    def check(self) -> None:
        """Raises InputError if nobody is left to work."""

    def close(self, *, abort: bool = False) -> None:
        """Ends the workers; with `abort` in the middle of what they do."""


class Inline:
    """Runs each case at once in this process."""

    capacity = 1

    def __init__(self, work: Work = run_case) -> None:
        self._work = work

    def submit(self, case: Request) -> Future[Answer]:
        """Runs the case."""
        future: Future[Answer] = Future()
        future.set_result(self._work(case))
        return future

    def restart(self) -> None:
        """Nothing that could have died."""

    def check(self) -> None:
        """This process is here."""

    def close(self, *, abort: bool = False) -> None:
        """Nothing to end."""


class Processes:
    """Processes of this machine, started afresh (spawn), so that they hold nothing of this one."""

    def __init__(self, workers: int, work: Work = run_case) -> None:
        self.capacity = workers
        self._work = work
        self._others = set(multiprocessing.active_children())
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.capacity, mp_context=spawn, initializer=_begin_worker)

    def submit(self, case: Request) -> Future[Answer]:
        """Hands a case to the pool; one that has died meanwhile says so through the future."""
        try:
            return self._pool.submit(self._work, case)
        except BrokenProcessPool as error:
            future: Future[Answer] = Future()
            future.set_exception(error)
            return future

    def restart(self) -> None:
        """A pool one of whose processes died takes no more work: starts another."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._start()

    def check(self) -> None:
        """The pool reports dead workers through its futures."""

    def close(self, *, abort: bool = False) -> None:
        """Waits for the processes to end, or ends them."""
        if abort:  # a case in progress may take minutes more
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


class Dask:
    """Workers of a Dask cluster. The scheduler starts a case anew elsewhere when its worker dies."""

    def __init__(self, address: str, work: Work = run_case) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise InputError("--executor dask: Dask is not installed; pip install 'tilewave[dask]'") from None
        self._address, self._work = address, work
        try:
            self._client = Client(address, timeout=DASK_ANSWERS_WITHIN_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"--scheduler {address}: no Dask scheduler answers there ({error})") from None
        self._seen_s = time.monotonic()
        while not self._threads():
            self.check()
            time.sleep(0.1)
        # A second case a thread, so that none waits for its next one.
        self.capacity = 2 * self._threads()
        self._pool: Any = self._client.get_executor(pure=False)

    def _threads(self) -> int:
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return sum(worker["nthreads"] for worker in workers)

    def submit(self, case: Request) -> Future[Answer]:
        """Hands a case to the cluster."""
        future: Future[Answer] = self._pool.submit(self._work, case)
        return future

    def restart(self) -> None:
        """The scheduler has already given the work to others."""

    def check(self) -> None:
        """InputError if the cluster has been without workers for long."""
        now_s = time.monotonic()
        if self._threads():
            self._seen_s = now_s
        elif now_s - self._seen_s > DASK_WORKERS_WITHIN_S:
            raise InputError(
                f"--scheduler {self._address}: the cluster has had no workers for {now_s - self._seen_s:.0f} s"
            )

    def close(self, *, abort: bool = False) -> None:
        """Leaves the cluster; cases in flight are forgotten there."""
        self._pool.shutdown(wait=not abort)
        self._client.close()


def check_executor(name: str, scheduler: str | None) -> None:
    """InputError where the options do not go together."""
    if name not in EXECUTORS:
        raise InputError(f"--executor {name}: must be one of {', '.join(EXECUTORS)}")
    if name == "dask" and scheduler is None:
        raise InputError("--executor dask needs --scheduler ADDRESS, such as tcp://10.0.0.1:8786")
    if name != "dask" and scheduler is not None:
        raise InputError("--scheduler goes with --executor dask")


def make_executor(name: str, *, workers: int | None, scheduler: str | None, cases: Sequence[Request]) -> Executor:
    """The executor that a person asked for; `cases`: those that it will run."""
    check_executor(name, scheduler)
    if scheduler is not None:
        return Dask(scheduler)
    count = min(workers or os.cpu_count() or 1, len(cases))
    if count <= 1:
        return Inline()
    for name in sorted({case.machine.family for case in cases}):
        # Once here, not once in every process.
        runner_of(name).compile_kernels(check=any(c.check for c in cases if c.machine.family == name))
    return Processes(count)


def _begin_worker() -> None:
    """In a worker: it ends with its parent, whatever ended that, and on Ctrl-C.

    Ctrl-C on the terminal reaches every process; this one ends in silence, the first one reports.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent says nothing to its pool: its end of this process's sentinel closes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
