"""Where time goes: each tick of a resident warp to a state, each issue slot to a warp or to a reason for none, each
wait at a barrier to what the warp that came last did meanwhile."""

from enum import IntEnum

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.units.chip import Chip
from sim.gpu.units.events import Reason
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.policies import note_wait
from sim.gpu.units.record import trace_state
from sim.gpu.units.warp import Warp


class Since(IntEnum):
    """Columns of what a warp has done since its last barrier, a host cache line of uint32: ticks by `Reason`.

    It has issued for what they leave. A wait at a barrier begins them anew.
    """

    SLEEPING = 0  # in the place of issue
    WIDTH = 16
    LONGEST = (1 << 32) - 1  # ticks, which 17 million cycles without a barrier exceed


class Meeting(IntEnum):
    """Columns of a warp's row."""

    LEFT = 167  # when it left its last barrier, or started


class Late(IntEnum):
    """Columns of the scratch row while waits at a barrier are charged, behind what its last warp did by `Reason`."""

    MORE = 32  # by reason: what it has done more of than those that waited
    WAITED = 32 + len(Reason)  # ticks, for it


@inner(inline=True)
def account(st, w, tick, reason):
    """Books warp `w`'s time up to `tick` on `reason`."""
    begin = st.warps[w, Warp.ACCOUNTED]
    if tick > begin:
        trace_state(st.trace, st, w, reason, begin, tick)
        st.warp_states[reason] += tick - begin
        if st.since.shape[0] > 0:
            st.since[w, reason & (Since.WIDTH - 1)] += tick - begin
        st.warps[w, Warp.ACCOUNTED] = tick
        note_wait(st, w, tick, reason)
    st.warps[w, Warp.REASON] = reason


@inner(inline=True)
def issue_slots(st, w, s, t, busy, end):
    """Books `busy` issue-slot ticks of warp `w` on sub-core `s` within [t, end).

    Idle slots before it go to the warp's reason.
    """
    subs = st.sub_cores
    cursor = subs[s, SubCore.CURSOR]
    if t > cursor:
        st.issue_slots[st.warps[w, Warp.REASON]] += t - cursor
        cursor = t
        subs[s, SubCore.IDLE] = 0
    if end > cursor:
        st.issue_slots[Reason.MATH_PIPE_THROTTLE] += end - cursor
        subs[s, SubCore.IDLE] += end - cursor
        cursor = end
    idle = subs[s, SubCore.IDLE]
    take = min(idle, busy)
    st.issue_slots[Reason.MATH_PIPE_THROTTLE] -= take
    subs[s, SubCore.IDLE] = idle - take
    st.issue_slots[Reason.SELECTED] += busy
    subs[s, SubCore.CURSOR] = cursor + busy - take
    subs[s, SubCore.LAST_WARP] = w
    subs[s, SubCore.SEQUENCE] += 1
    st.warps[w, Warp.LAST_ISSUE] = subs[s, SubCore.SEQUENCE]


@inner(inline=True)
def issue_one(p, st, w, s, t):
    """Issues one control instruction; returns the tick after it."""
    cycle = p[Chip.CYCLE]
    issue_slots(st, w, s, t, cycle, t + cycle)
    st.warp_states[Reason.SELECTED] += cycle
    st.warps[w, Warp.ACCOUNTED] = t + cycle
    st.warps[w, Warp.REASON] = Reason.WAIT
    st.counters[Counter.INSTRUCTIONS] += 1
    st.counters[Counter.INST_OTHER] += 1
    return t + cycle


# ---- waits at barriers


@inner(inline=True)
def leave_barrier(st, w):
    """Warp `w` goes on behind a barrier, or starts: what it does is counted anew from the tick up to which its time is
    booked."""
    for k in range(Since.WIDTH):
        st.since[w, k] = 0
    st.warps[w, Meeting.LEFT] = st.warps[w, Warp.ACCOUNTED]


@inner(inline=True)
def issued_since(st, w):
    """Ticks for which warp `w` has issued since its last barrier."""
    issued = st.warps[w, Warp.ACCOUNTED] - st.warps[w, Meeting.LEFT]
    for k in range(Since.WIDTH):
        issued -= st.since[w, k]
    return issued


@inner
def note_last(st, w, latest):
    """Begins to charge the waits at a barrier: writes into the scratch row what warp `w`, the last one there, has done
    since its barrier before, by reason.

    It has arrived at tick `latest`, when its stores to shared memory had been made: it waited for an on-chip result.
    """
    last, arrived = st.stack, st.warps[w, Warp.ACCOUNTED]
    for k in range(1, Since.WIDTH):
        last[k] = st.since[w, k]
    last[Reason.SELECTED] = issued_since(st, w)
    last[Reason.SLEEPING] = st.since[w, Since.SLEEPING]
    last[Reason.SHORT_SCOREBOARD] += max(0, latest - arrived)
    for reason in range(Late.WAITED + 1):
        last[Late.MORE + reason] = 0
    if arrived - st.warps[w, Meeting.LEFT] > Since.LONGEST:
        for reason in range(Reason.NO_WARP):
            last[reason] = 0


@inner
def add_wait(st, w, latest, tick):
    """Adds the wait of warp `w` at a barrier until `tick`, whose last warp arrived at `latest`: what that one has done
    more of than warp `w`. What comes behind `latest` is the barrier's own."""
    arrived, last = st.warps[w, Warp.ACCOUNTED], st.stack
    if tick <= arrived:
        return
    wait = min(max(latest, arrived), tick) - arrived
    st.barrier_waits[Reason.BARRIER] += tick - arrived - wait
    if wait > 0:
        last[Late.WAITED] += wait
        for k in range(1, Since.WIDTH):
            last[Late.MORE + k] += max(0, last[k] - st.since[w, k])
        last[Late.MORE + Reason.SELECTED] += max(0, last[Reason.SELECTED] - issued_since(st, w))
        last[Late.MORE + Reason.SLEEPING] += max(0, last[Reason.SLEEPING] - st.since[w, Since.SLEEPING])


@inner
def charge_waits(st):
    """Charges what has been waited at a barrier for its last warp: to each reason its part of what that one has done
    more of than the others or, where that is nothing, of all that it has done."""
    last = st.stack
    waited, first, more = last[Late.WAITED], Late.MORE + 0, 0
    if waited == 0:
        return
    for reason in range(Reason.NO_WARP):
        more += last[first + reason]
    if more == 0:
        first = 0
        for reason in range(Reason.NO_WARP):
            more += last[reason]
    if more == 0:
        st.barrier_waits[Reason.BARRIER] += waited
        return
    scale = 0  # products of two numbers of 31 bits stay below 64
    while more >> scale >= 1 << 31:
        scale += 1
    whole = more >> scale
    seen = given = 0
    for reason in range(Reason.NO_WARP):
        part = last[first + reason]
        if part > 0:
            seen += part
            upto = seen
            if waited != more:
                upto = waited // whole * (seen >> scale) + waited % whole * (seen >> scale) // whole
            st.barrier_waits[reason] += upto - given
            given = upto
