"""Where time goes: each tick of a resident warp to a state, each issue slot to a warp or to a reason for none."""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.chip import Chip
from sim.gpu.engine.events import Reason
from sim.gpu.engine.pipes import SubCore
from sim.gpu.engine.policies import note_wait
from sim.gpu.engine.record import trace_state
from sim.gpu.engine.warp import Warp


@inner(inline=True)
def account(st, w, tick, reason):
    """Books warp `w`'s time up to `tick` on `reason`."""
    begin = st.warps[w, Warp.ACCOUNTED]
    if tick > begin:
        trace_state(st.trace, st, w, reason, begin, tick)
        st.warp_states[reason] += tick - begin
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
