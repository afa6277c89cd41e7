"""The event log: what the engine tells the interpreter, one int64 row of eight columns per executed op.

An op with count n is one row. Rows come in any order; control flow (`Loop`, `Assign`) is not logged. Times are ticks
of the core clock on one axis for all kernels of a program.
"""

from __future__ import annotations

from enum import IntEnum


class Event(IntEnum):
    """Columns of the event log, an int64 array of shape (rows, 8)."""

    KERNEL = 0  #: index in `program.kernels`
    CTA = 1  #: x + grid_x * (y + grid_y * z)
    WARP = 2  #: number in the CTA, roles in the order of their declaration
    OP = 3  #: index in `for role in kernel.roles: for op in walk(role.body)`
    T_ISSUE = 4  #: ticks; the op leaves the warp (a barrier: the warp arrives)
    T_READ = 5  #: ticks; its sources have been read (wgmma, TMA store: the shared memory)
    T_DONE = 6  #: ticks; its result is visible: landed in every destination, written, barrier passed
    VALUE = 7  #: what `next_tile` returned, else 0


EVENT_COLUMNS = len(Event)
