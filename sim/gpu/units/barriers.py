"""Barriers: mbarriers in shared memory, named barriers of a CTA, the barrier of a cluster.

Warps that wait at mbarriers and for their cluster are parked, and woken here; at a named barrier each front end keeps
who waits, and wakes them when the last one comes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.units.accounting import note_last
from sim.gpu.units.chip import Chip, Part
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp

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


# ---- named barriers, clusters


@inner
def arrive_named(p, st, w, slot, number, expected, t):
    """An arrival of warp `w` at a named barrier of the CTA in slot `slot`. With the last of `expected` warps it returns
    the tick at which those that wait go on, else -1.

    The barrier orders shared memory: a warp has arrived when its stores have been made. The waits can be charged then
    (`add_wait`), for which the tick of the last arrival stays in the barrier's row.
    """
    barrier = st.named_barriers[slot, number]
    barrier[NamedBarrier.ARRIVED] += 1
    latest = max(t, st.warps[w, Warp.SHARED_WRITTEN])
    if barrier[NamedBarrier.ARRIVED] == 1 or latest > barrier[NamedBarrier.LATEST]:
        barrier[NamedBarrier.LATEST] = latest
        barrier[NamedBarrier.LAST] = w
    if barrier[NamedBarrier.ARRIVED] < expected:
        return -1
    latest = barrier[NamedBarrier.LATEST]
    note_last(st, barrier[NamedBarrier.LAST], latest)
    barrier[NamedBarrier.ARRIVED] = 0
    return latest + p[BarrierFigure.SYNC_LATENCY] + expected * p[BarrierFigure.SYNC_PER_WARP]


@inner
def arrive_in_cluster(p, st, w, root, t):
    """An arrival of warp `w` at the barrier of its cluster, which the CTA in slot `root` keeps; the last one wakes the
    others."""
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
