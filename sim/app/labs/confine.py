"""Bounds around somebody's code: what it may take, and that nothing of it lives on.

Linux has what is needed; elsewhere the processes of an answer are ended by their session alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 8 << 30
"""Of memory, over all processes together."""

MOST_PROCESSES = 64
ANSWER_BYTES = 4 << 30
"""Of address space of one process with answers, beside what it starts with."""

TOO_LONG, TOO_MUCH = 124, 125
"""Exit codes of `supervise`."""

_POLL_S = 0.05
_FILES = 256
_PDEATHSIG, _DUMPABLE, _DROP, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
_CAPABILITIES = 64


class _Process(NamedTuple):
    parent: int
    size_bytes: int


def supervise(body: Callable[[], None], seconds: float) -> int:
    """Runs `body` in a process of its own; its exit code, `TOO_LONG` or `TOO_MUCH`. All that it has started ends with
    it, in whatever session: orphans come to this process, which is for nothing else."""
    _prctl(_SUBREAPER, 1)
    _prctl(_PDEATHSIG, signal.SIGTERM)
    _prctl(_DUMPABLE, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TOO_LONG))
    end = time.monotonic() + seconds
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _run_and_exit(body)
    try:
        while True:
            time.sleep(_POLL_S)
            while (ended := _waited()) is not None:
                if ended[0] == child:
                    return ended[1]
            below = _below(os.getpid())
            if len(below) > MOST_PROCESSES or sum(one.size_bytes for one in below.values()) > MOST_BYTES:
                return TOO_MUCH
            if time.monotonic() > end:
                return TOO_LONG
    finally:
        end_all(child)


def end_all(child: int) -> None:
    """Ends a child of this process, all that it has started, and all orphans that have come here from it."""
    for _ in range(1000):
        below = _below(os.getpid()) or {child: _Process(0, 0)}
        for stop in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: what is stopped starts nothing more
            for number in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(number, stop)
        while _waited() is not None:
            pass
        if not _below(os.getpid()):
            return
        time.sleep(0.01)


def _waited() -> tuple[int, int] | None:
    """A child that has ended, with its exit code; None where none has."""
    with contextlib.suppress(ChildProcessError):
        number, status = os.waitpid(-1, os.WNOHANG)
        return (number, os.waitstatus_to_exitcode(status)) if number else None
    return None


def _run_and_exit(body: Callable[[], None]) -> None:
    code = 1
    try:
        _prctl(_DUMPABLE, 0)  # nobody of this user reads its memory or opens its files
        body()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def give_up_rights(keep: int) -> None:
    """For a process that is about to run somebody's code: of its open files only `keep` stays, what it prints goes
    nowhere, it writes no file, takes so much memory and so many processes, and has no rights beyond its user's."""
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    os.closerange(3, keep)
    os.closerange(keep + 1, max(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, mode, closefd=False) for i, mode in enumerate(("r", "w", "w")))
    for capability in range(_CAPABILITIES):
        _prctl(_DROP, capability)
    _prctl(_NO_NEW_PRIVILEGES, 1)
    for kind, most in (
        (resource.RLIMIT_AS, _address_space() + ANSWER_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_NPROC, _of_user() + MOST_PROCESSES),
    ):
        highest = resource.getrlimit(kind)[1]
        most = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(kind, (most, most))


def _prctl(option: int, value: int) -> None:
    """Asks the kernel; where it knows nothing of it, or is another one, nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _below(top: int) -> dict[int, _Process]:
    """All processes that descend from one."""
    known = _processes()
    found: dict[int, _Process] = {}
    waiting = [top]
    while waiting:
        above = waiting.pop()
        new = {number: one for number, one in known.items() if one.parent == above and number not in found}
        found |= new
        waiting += new
    return found


def _processes() -> dict[int, _Process]:
    """Every process of the machine, as /proc has it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found[int(folder.name)] = _Process(int(fields[1]), int(fields[21]) * resource.getpagesize())
    return found


def _of_user() -> int:
    """Processes of this user."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += folder.stat().st_uid == os.getuid()
    return found


def _address_space() -> int:
    """Bytes of this process's address space."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0
