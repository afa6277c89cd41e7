"""What the engine tells others: the event log and the trace, and why warps wait.

The event log is one int64 row of eight columns per executed op, which the interpreter walks by.

An op with count n is one row. Rows come in any order; control flow (`Loop`, `Assign`) is not logged. Times are ticks
of the core clock on one axis for all kernels of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Event(IntEnum):
    """Columns of the event log, an int64 array of shape (rows, 8)."""

    KERNEL = 0  #: index in `program.kernels`
    CTA = 1  #: x + grid_x * (y + grid_y * z)
    WARP = 2  #: number in the CTA, roles in the order of their declaration
    OP = 3  #: index in `for role in kernel.roles: for op in walk(role.body)`
    T_ISSUE = 4  #: ticks; the op leaves the warp (a barrier: the warp arrives)
    T_READ = 5  #: ticks; its sources have been read (asynchronous products, bulk stores: the shared memory)
    T_DONE = 6  #: ticks; its result is visible: landed in every destination, written, barrier passed
    VALUE = 7  #: what `next_tile` returned; of TMA loads and mbarrier waits phase << 16 | barrier of the CTA; else 0


EVENT_COLUMNS = len(Event)


PHASE_SHIFT = 16  # of an mbarrier's phase above its number, in `Event.VALUE`


class Reason(IntEnum):
    """Why a warp did not issue (Nsight Compute's warp states) or an issue slot stayed empty."""

    SELECTED = 0
    WAIT = 1
    MATH_PIPE_THROTTLE = 2
    MIO_THROTTLE = 3
    LG_THROTTLE = 4
    SHORT_SCOREBOARD = 5
    LONG_SCOREBOARD = 6
    BARRIER = 7
    MBARRIER = 8
    GMMA = 9
    TMA_STORE = 10
    CP_ASYNC = 11
    NOT_SELECTED = 12
    MEMBAR = 13
    CLUSTER_BARRIER = 14
    NO_INSTRUCTION = 15
    SLEEPING = 16
    NO_WARP = 17


TRACE_BEGIN, TRACE_END = -1, -2  # states of a warp in the trace besides its reasons: it starts, it ends


class TraceRow(IntEnum):
    """Columns of the trace, an int64 array of shape (rows, 6): when warps were in which state.

    Ticks of a warp's residency that no row covers are those in which it issued.
    """

    SLOT = 0  #: the warp's place on the chip: SM * warps an SM + place on the SM
    CTA = 1
    WARP = 2
    STATE = 3  #: `Reason`; TRACE_BEGIN and TRACE_END where the warp starts and ends
    BEGIN = 4  #: ticks
    END = 5


TRACE_COLUMNS = len(TraceRow)


@dataclass(frozen=True, slots=True)
class Window:
    """What a launch records: events within [from_tick, to_tick] on SMs first_sm to last_sm, at most `rows` of a kind.

    trace: warp states too, not only executed ops. sample_ticks: distance of samples of the counters within the
    window, 0 for none.
    """

    from_tick: int
    to_tick: int
    first_sm: int
    last_sm: int
    rows: int
    trace: bool = True
    sample_ticks: int = 0
