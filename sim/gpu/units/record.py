"""What a launch records: executed ops in the event log, states of warps in the trace (`sim.gpu.units.events`).

Functions take the state's `log` or `trace` as their first argument. Where that is None the compiler prunes what
`is not None` guards, so that a launch that records nothing has no code for it.
"""

from enum import IntEnum

from sim.engine.jit import inner
from sim.gpu.units.cta import Cta
from sim.gpu.units.warp import Warp


class Recorder(IntEnum):
    """Columns of the chip's row: what has been recorded, and the window of ticks and SMs within which rows are kept."""

    LOG_ROWS = 8
    TRACE_ROWS = 9
    FROM = 10
    TO = 11
    FIRST_SM = 12
    LAST_SM = 13


@inner
def seen(st, w, begin, end):
    """Whether what warp `w` does within [begin, end] lies in the window of ticks and SMs that is recorded."""
    chip = st.chip
    sm = st.warps[w, Warp.SM]
    in_time = begin <= chip[Recorder.TO] and end >= chip[Recorder.FROM]
    return in_time and chip[Recorder.FIRST_SM] <= sm and sm <= chip[Recorder.LAST_SM]


@inner
def add_trace(trace, st, w, state, begin, end):
    """One row of the trace, if it lies in the window."""
    if not seen(st, w, begin, end):
        return
    n = st.chip[Recorder.TRACE_ROWS]
    st.chip[Recorder.TRACE_ROWS] = n + 1
    if n < trace.shape[0]:
        trace[n, 0] = w
        trace[n, 1] = st.ctas[st.warps[w, Warp.CTA], Cta.LINEAR]
        trace[n, 2] = st.warps[w, Warp.NUMBER]
        trace[n, 3] = state
        trace[n, 4] = begin
        trace[n, 5] = end


@inner(inline=True)
def trace_state(trace, st, w, state, begin, end):
    """One row of the trace (`sim.gpu.units.events.TraceRow`), where one is kept."""
    if trace is not None and trace.shape[0] > 0:
        add_trace(trace, st, w, state, begin, end)


@inner
def add_log(log, st, w, op, t0, t1, t2, value):
    """One row of the event log, if it lies in the window; its number, -1 outside."""
    if not seen(st, w, t0, t2):
        return -1
    n = st.chip[Recorder.LOG_ROWS]
    st.chip[Recorder.LOG_ROWS] = n + 1
    if n < log.shape[0]:
        log[n, 0] = 0
        log[n, 1] = st.ctas[st.warps[w, Warp.CTA], Cta.LINEAR]
        log[n, 2] = st.warps[w, Warp.NUMBER]
        log[n, 3] = op
        log[n, 4] = t0
        log[n, 5] = t1
        log[n, 6] = t2
        log[n, 7] = value
    return n


@inner(inline=True)
def log_op(log, st, w, op, t0, t1, t2, value):
    """One row of the event log (`sim.gpu.units.events.Event`), if one is kept; the kernel's number is filled in later.

    Returns the row's number, -1 without one.
    """
    if log is not None:
        return add_log(log, st, w, op, t0, t1, t2, value)
    return -1


@inner(inline=True)
def log_end(log, row, read, done):
    """Writes the times of an op that was logged before they were known."""
    if log is not None and 0 <= row < log.shape[0]:
        log[row, 5] = read
        log[row, 6] = done


@inner(inline=True)
def log_put_off(log, row, ticks):
    """Moves the end of a run that has been logged."""
    if log is not None and 0 <= row < log.shape[0]:
        log[row, 5] += ticks
        log[row, 6] += ticks
