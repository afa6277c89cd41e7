"""Warps that are parked: who provides what they wait for wakes them."""

from sim.engine.jit import inner
from sim.gpu.units.accounting import account
from sim.gpu.units.events import PHASE_SHIFT
from sim.gpu.units.policies import priority_of, rank_of
from sim.gpu.units.record import add_log
from sim.gpu.units.warp import Block, Warp, schedule_warp


@inner(inline=True)
def log_woken(log, st, w, tick):
    """The row of the op that warp `w` was parked at, which ends at `tick`."""
    if log is not None and st.warps[w, Warp.BLOCK_OP] >= 0:
        value = 0
        if st.warps[w, Warp.BLOCK] == Block.MBARRIER:
            value = (st.warps[w, Warp.BLOCK_VALUE] << PHASE_SHIFT) | st.warps[w, Warp.BLOCK_WHAT]
        add_log(log, st, w, st.warps[w, Warp.BLOCK_OP], st.warps[w, Warp.OP_ISSUED], tick, tick, value)


@inner(inline=True)
def wake(p, st, w, tick, reason, now):
    """Puts parked warp `w` back: it goes on at `tick`, its wait is booked on `reason`."""
    tick = max(tick, now)
    log_woken(st.log, st, w, tick)
    st.warps[w, Warp.BLOCK] = Block.NONE
    account(st, w, tick, reason)
    s, sm = st.warps[w, Warp.SUB_CORE], st.warps[w, Warp.SM]
    schedule_warp(st, tick, priority_of(p, st, s, sm, w, rank_of(p, st, w)), w)
