"""Ops of the tile language on barriers (`sim.gpu.units.barriers`)."""

from sim.engine.jit import inner
from sim.gpu.engine.expressions import evaluate
from sim.gpu.lower.tables import Col, Kind
from sim.gpu.units.accounting import account, add_wait, charge_waits, issue_one, leave_barrier
from sim.gpu.units.barriers import (
    BarrierFigure,
    ClusterBarrier,
    ClusterWarp,
    Mbarrier,
    NamedBarrier,
    arrive,
    arrive_in_cluster,
    arrive_named,
    peer,
)
from sim.gpu.units.chip import Chip
from sim.gpu.units.cp_async import CpAsyncGroups
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import PHASE_SHIFT, Reason
from sim.gpu.units.record import log_op
from sim.gpu.units.tree import PARKED
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp, park

# ---- mbarriers


@inner(inline=True)
def barrier_number(prog, st, w, pc):
    """The mbarrier that row `pc` names, in its CTA."""
    return prog.code[pc, Col.BAR] + evaluate(prog, st.warps, st.stack, w, prog.code[pc, Col.STAGE])


@inner(inline=True)
def wait_phase(p, prog, st, w, s, t, pc):
    """A wait for a phase of an mbarrier; returns the tick at which the warp goes on, PARKED if it has not completed."""
    code, warps = prog.code, st.warps
    b = barrier_number(prog, st, w, pc)
    phase = evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
    row = warps[w, Warp.CTA] * p[BarrierFigure.MBARRIERS] + b
    issued = t
    t = issue_one(p, st, w, s, t)
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    done = st.mbarriers[row, Mbarrier.DONE] + p[BarrierFigure.WAIT_LATENCY]
    if st.mbarriers[row, Mbarrier.PHASE] <= phase:
        st.mbarriers[row, Mbarrier.WAITERS] += 1
        park(st, w, Block.MBARRIER, b, phase, code[pc, Col.OP], issued)
        return PARKED
    ready = issued + p[BarrierFigure.WAIT_LATENCY]
    if st.mbarriers[row, Mbarrier.PHASE] == phase + 1:
        ready = max(ready, done)
    if ready > t:
        t = ready
        account(st, w, t, Reason.MBARRIER)
    log_op(st.log, st, w, code[pc, Col.OP], issued, t, t, (phase << PHASE_SHIFT) | b)
    return t


@inner(inline=True)
def arrive_or_expect(p, prog, st, w, s, t, pc, kind):
    """An arrival on an mbarrier, with bytes to expect or on those of other CTAs; returns the tick after it."""
    code, warps = prog.code, st.warps
    slot = warps[w, Warp.CTA]
    b = barrier_number(prog, st, w, pc)
    t = issue_one(p, st, w, s, t)
    log_op(st.log, st, w, code[pc, Col.OP], t, t, t, 0)
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    made = warps[w, Warp.SHARED_WRITTEN]  # an arrival releases: its warp's stores come before it
    if kind == Kind.MBAR_EXPECT:
        size_bytes = evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
        arrive(p, prog, st, slot, b, 1, size_bytes, max(t, made), t)
    elif code[pc, Col.MASK] < 0:
        arrive(p, prog, st, slot, b, 1, 0, max(t + p[BarrierFigure.ARRIVE_LATENCY], made), t)
    else:
        ranks = evaluate(prog, warps, st.stack, w, code[pc, Col.MASK])
        for rank in range(p[Chip.CLUSTER_SIZE]):
            if (ranks >> rank) & 1:
                other = peer(st, slot, rank)
                if other == slot:
                    arrive(p, prog, st, slot, b, 1, 0, max(t + p[BarrierFigure.ARRIVE_LATENCY], made), t)
                elif other >= 0:
                    arrive(p, prog, st, other, b, 1, 0, max(t + p[BarrierFigure.REMOTE_ARRIVE_LATENCY], made), t)
    return t


@inner(inline=True)
def arrive_behind_copies(p, prog, st, w, t, pc):
    """An arrival on an mbarrier when the copies of warp `w` so far are done; returns the tick of the arrival."""
    done = max(t, st.warps[w, CpAsyncGroups.LAST]) + p[BarrierFigure.ARRIVE_LATENCY]
    arrive(p, prog, st, st.warps[w, Warp.CTA], barrier_number(prog, st, w, pc), 1, 0, done, t)
    return done


# ---- named barriers, clusters


@inner(inline=True)
def meet(p, prog, st, w, t, pc, kind, issued):
    """bar.sync and bar.arrive; returns the tick at which the warp goes on, PARKED if it has to wait for others."""
    code, warps = prog.code, st.warps
    slot = warps[w, Warp.CTA]
    b = evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
    tick = arrive_named(p, st, w, slot, b, code[pc, Col.VALUE], t)
    if tick < 0:
        if kind == Kind.BAR_ARRIVE:
            leave_barrier(st, w)
            return t
        park(st, w, Block.BAR_SYNC, b, 0, code[pc, Col.OP], issued)
        return PARKED
    latest = st.named_barriers[slot, b, NamedBarrier.LATEST]
    first = st.ctas[slot, Cta.FIRST_WARP]
    for other in range(first, first + p[Chip.WARPS_PER_CTA]):
        if warps[other, Warp.BLOCK] == Block.BAR_SYNC and warps[other, Warp.BLOCK_WHAT] == b:
            add_wait(st, other, latest, tick)
            wake(p, st, other, tick, Reason.BARRIER, t)
            leave_barrier(st, other)
    if kind == Kind.BAR_SYNC:
        add_wait(st, w, latest, tick)
        account(st, w, tick, Reason.BARRIER)
        t = tick
    charge_waits(st)
    leave_barrier(st, w)
    return t


@inner(inline=True)
def meet_cluster(p, prog, st, w, t, pc, kind, issued):
    """The barrier of a cluster: arrives at it, waits for it, or both; returns the tick at which the warp goes on,
    PARKED if it has to wait for others."""
    warps, ctas = st.warps, st.ctas
    root = ctas[warps[w, Warp.CTA], Cta.PEERS]
    if kind != Kind.CLUSTER_WAIT:
        arrive_in_cluster(p, st, w, root, t)
        if kind == Kind.CLUSTER_ARRIVE:
            return t
    if ctas[root, ClusterBarrier.PHASE] == warps[w, ClusterWarp.PHASE]:
        park(st, w, Block.CLUSTER, 0, 0, prog.code[pc, Col.OP], issued)
        return PARKED
    tick = max(t, ctas[root, ClusterBarrier.DONE])
    account(st, w, tick, Reason.CLUSTER_BARRIER)
    return tick
