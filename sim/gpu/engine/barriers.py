"""Barriers: mbarriers in shared memory, named barriers of a CTA, the barrier of a cluster."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.engine.expressions import evaluate
from sim.gpu.engine.scheduler import wake
from sim.gpu.lower.tables import Col, Kind
from sim.gpu.units.accounting import account, add_wait, charge_waits, issue_one, leave_barrier, note_last
from sim.gpu.units.chip import Chip, Part
from sim.gpu.units.cp_async import CpAsyncGroups
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import PHASE_SHIFT, Reason
from sim.gpu.units.record import log_op
from sim.gpu.units.tree import PARKED
from sim.gpu.units.warp import Block, Warp, park

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


FIGURES = (
    "sync.barrier",
    "sync.barrier_per_warp",
    "sync.named_barriers",
    "sync.mbarrier_arrive",
    "sync.mbarrier_wait",
    "sync.cluster_sync",
    "dsmem.latency",
)


class Mbarrier(IntEnum):
    """Columns of an mbarrier's row."""

    PENDING = 0
    BYTES = 1
    PHASE = 2  # phases completed
    LATEST = 3  # arrival of the current phase
    DONE = 4  # when the last phase completed
    WAITERS = 5
    WIDTH = 6


class NamedBarrier(IntEnum):
    """Columns of a named barrier's row."""

    ARRIVED = 0
    LATEST = 1  # arrival
    LAST = 2  # the warp whose that is
    WIDTH = 3


class ClusterBarrier(IntEnum):
    """Columns of a CTA's row: of that with rank 0 for its cluster."""

    ARRIVED = 8  # warps
    LATEST = 9  # arrival
    PHASE = 13  # phases completed
    DONE = 14  # when the last phase completed


class ClusterWarp(IntEnum):
    """Columns of a warp's row."""

    PHASE = 166  # of its cluster's barrier, at which it has arrived


class BarrierFigure(IntEnum):
    """Parameters of barriers."""

    MBARRIERS = Part.BARRIERS  # of a CTA
    SYNC_LATENCY = Part.BARRIERS + 1
    SYNC_PER_WARP = Part.BARRIERS + 2
    ARRIVE_LATENCY = Part.BARRIERS + 3
    REMOTE_ARRIVE_LATENCY = Part.BARRIERS + 4  # until an arrival on another CTA's mbarrier is seen there
    WAIT_LATENCY = Part.BARRIERS + 5
    CLUSTER_LATENCY = Part.BARRIERS + 6
    NAMED = Part.BARRIERS + 7  # named barriers of a CTA


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`BarrierFigure`."""
    sync = spec.sync
    return {
        BarrierFigure.MBARRIERS: max(1, sum(b.stages for b in launch.kernel.barriers)),
        BarrierFigure.SYNC_LATENCY: cycles_to_ticks(sync.barrier_cycles),
        BarrierFigure.SYNC_PER_WARP: cycles_to_ticks(sync.barrier_per_warp_cycles),
        BarrierFigure.ARRIVE_LATENCY: cycles_to_ticks(sync.mbarrier_arrive_cycles or 0),
        BarrierFigure.REMOTE_ARRIVE_LATENCY: cycles_to_ticks(spec.dsmem.latency_cycles) if spec.dsmem else 0,
        BarrierFigure.WAIT_LATENCY: cycles_to_ticks(sync.mbarrier_wait_cycles or 0),
        BarrierFigure.CLUSTER_LATENCY: cycles_to_ticks(sync.cluster_sync_cycles or 0),
        BarrierFigure.NAMED: sync.named_barriers,
    }


# ---- mbarriers


@inner(inline=True)
def barrier_number(prog, st, w, pc):
    """The mbarrier that row `pc` names, in its CTA."""
    return prog.code[pc, Col.BAR] + evaluate(prog, st.warps, st.stack, w, prog.code[pc, Col.STAGE])


@inner
def complete_phase(p, prog, st, slot, b, now):
    """Completes the phase of mbarrier `b` of CTA slot `slot` and wakes who waits for it."""
    row = slot * p[BarrierFigure.MBARRIERS] + b
    bars = st.mbarriers
    bars[row, Mbarrier.PHASE] += 1
    bars[row, Mbarrier.DONE] = bars[row, Mbarrier.LATEST]
    bars[row, Mbarrier.LATEST] = 0
    bars[row, Mbarrier.PENDING] = prog.barrier_arrivals[b]
    if bars[row, Mbarrier.WAITERS] == 0:
        return
    first = st.ctas[slot, Cta.FIRST_WARP]
    for w in range(first, first + p[Chip.WARPS_PER_CTA]):
        waits = st.warps[w, Warp.BLOCK] == Block.MBARRIER and st.warps[w, Warp.BLOCK_WHAT] == b
        if waits and bars[row, Mbarrier.PHASE] > st.warps[w, Warp.BLOCK_VALUE]:
            bars[row, Mbarrier.WAITERS] -= 1
            wake(p, st, w, bars[row, Mbarrier.DONE] + p[BarrierFigure.WAIT_LATENCY], Reason.MBARRIER, now)


@inner(inline=True)
def arrive(p, prog, st, slot, b, arrivals, size_bytes, tick, now):
    """`arrivals` arrivals and a change of the outstanding bytes of an mbarrier, effective at `tick`."""
    row = slot * p[BarrierFigure.MBARRIERS] + b
    bars = st.mbarriers
    bars[row, Mbarrier.PENDING] -= arrivals
    bars[row, Mbarrier.BYTES] += size_bytes
    bars[row, Mbarrier.LATEST] = max(bars[row, Mbarrier.LATEST], tick)
    if bars[row, Mbarrier.PENDING] == 0 and bars[row, Mbarrier.BYTES] == 0:
        complete_phase(p, prog, st, slot, b, now)


@inner(inline=True)
def peer(st, slot, rank):
    """CTA slot of cluster rank `rank` as seen from `slot`, or -1 where that CTA has ended."""
    other = st.ctas[slot, Cta.PEERS + rank]
    if st.ctas[other, Cta.ACTIVE] == 1 and st.ctas[other, Cta.CLUSTER] == st.ctas[slot, Cta.CLUSTER]:
        return other
    return -1


@inner(inline=True)
def reset_barriers(p, prog, st, slot):
    """The barriers of a CTA slot as a new CTA finds them."""
    for b in range(p[BarrierFigure.MBARRIERS]):
        row = slot * p[BarrierFigure.MBARRIERS] + b
        for c in range(Mbarrier.WIDTH):
            st.mbarriers[row, c] = 0
        st.mbarriers[row, Mbarrier.PENDING] = prog.barrier_arrivals[b]
    for b in range(p[BarrierFigure.NAMED]):
        st.named_barriers[slot, b, NamedBarrier.ARRIVED] = 0
        st.named_barriers[slot, b, NamedBarrier.LATEST] = 0


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
    code, warps, named = prog.code, st.warps, st.named_barriers
    slot = warps[w, Warp.CTA]
    b = evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
    expected = code[pc, Col.VALUE]
    named[slot, b, NamedBarrier.ARRIVED] += 1
    # The barrier orders shared memory: a warp has arrived when its stores have been made.
    latest = max(t, warps[w, Warp.SHARED_WRITTEN])
    if latest > named[slot, b, NamedBarrier.LATEST]:
        named[slot, b, NamedBarrier.LATEST] = latest
        named[slot, b, NamedBarrier.LAST] = w
    if named[slot, b, NamedBarrier.ARRIVED] < expected:
        if kind == Kind.BAR_ARRIVE:
            leave_barrier(st, w)
            return t
        park(st, w, Block.BAR_SYNC, b, 0, code[pc, Col.OP], issued)
        return PARKED
    latest = named[slot, b, NamedBarrier.LATEST]
    note_last(st, named[slot, b, NamedBarrier.LAST], latest)
    tick = latest + p[BarrierFigure.SYNC_LATENCY] + expected * p[BarrierFigure.SYNC_PER_WARP]
    named[slot, b, NamedBarrier.ARRIVED] = 0
    named[slot, b, NamedBarrier.LATEST] = 0
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


@inner
def arrive_in_cluster(p, st, w, root, t):
    """An arrival of warp `w` at the barrier of its cluster, which the CTA in slot `root` keeps; the last one wakes who
    waits."""
    warps, ctas = st.warps, st.ctas
    warps[w, ClusterWarp.PHASE] = ctas[root, ClusterBarrier.PHASE]
    ctas[root, ClusterBarrier.ARRIVED] += 1
    # The barrier orders shared memory of the whole cluster: a warp has arrived when its stores have been made.
    latest = max(ctas[root, ClusterBarrier.LATEST], max(t, warps[w, Warp.SHARED_WRITTEN]))
    ctas[root, ClusterBarrier.LATEST] = latest
    if ctas[root, ClusterBarrier.ARRIVED] < p[Chip.CLUSTER_SIZE] * p[Chip.WARPS_PER_CTA]:
        return
    tick = latest + p[BarrierFigure.CLUSTER_LATENCY]
    ctas[root, ClusterBarrier.ARRIVED] = 0
    ctas[root, ClusterBarrier.LATEST] = 0
    ctas[root, ClusterBarrier.PHASE] += 1
    ctas[root, ClusterBarrier.DONE] = tick
    for rank in range(p[Chip.CLUSTER_SIZE]):
        first = ctas[ctas[root, Cta.PEERS + rank], Cta.FIRST_WARP]
        for other in range(first, first + p[Chip.WARPS_PER_CTA]):
            if other != w and warps[other, Warp.BLOCK] == Block.CLUSTER:
                wake(p, st, other, tick, Reason.CLUSTER_BARRIER, t)
