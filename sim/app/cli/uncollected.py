"""Imports without the collection of garbage, which takes a seventh of what a first result costs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """What is made here, which is modules, stays until the end of the process: it is never looked through for garbage.

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
