"""The start of a run: modules are imported without what only takes time meanwhile."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections.abc import Iterator

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""Read by the library with which NumPy multiplies matrices, when it is loaded."""


def open_streams() -> None:
    """What was closed when the program began (`>&-`) leads nowhere, as if it had been sent to /dev/null: Python has no
    object for it, and the next file that is opened would take its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDWR)
            if place != number:
                os.dup2(place, number)
                os.close(place)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # letters that its encoding lacks


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """What is made here, which is modules, stays until the end of the process: it is never looked through for garbage,
    which takes a fifth of a first result.

    Once in a process: what a second command leaves behind could be garbage of the first.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def no_matrices() -> Iterator[None]:
    """For a run that multiplies no matrices: the library that would starts no thread for each core, which takes a tenth
    of a first result on two cores. What somebody has set is left as it is."""
    if _BLAS_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]
