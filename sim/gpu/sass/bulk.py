"""The TMA, mbarriers and clusters of compiled kernels: UTMALDG, UTMASTG, UTMAREDG, UBLKCP, UBLKRED, their groups,
SYNCS, UCGABAR; the units are those of the engine.

Arguments as in `lanes`. An mbarrier is known by its address in shared memory, from the first SYNCS.EXCH on; the engine
knows it by its place in `x.mbarriers`.
"""

import numpy as np

from sim.engine.jit import inner
from sim.engine.search import lowest_bit
from sim.gpu.counters import Counter
from sim.gpu.engine.boxes import Walk
from sim.gpu.engine.tma import BulkGroups, TmaFigure, TmaQueue, enqueue, group_done, stores_pending
from sim.gpu.sass.bulk_cluster import copy_in_cluster
from sim.gpu.sass.lanes import write_predicate
from sim.gpu.sass.memory import blame, locate
from sim.gpu.sass.tables import (
    ALL_LANES,
    LANES,
    RANK_SHIFT,
    Bulk,
    Cell,
    FaultKind,
    Launched,
    Map,
    Meeting,
    Scalar,
    Sync,
    Unit,
)
from sim.gpu.units.barriers import BarrierFigure, Mbarrier, arrive, peer
from sim.gpu.units.chip import Chip
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.tree import FAR
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp, park

_BULK_BYTES = 16
"""Unit of size and alignment of UBLKCP and UBLKRED."""
_COUNT_BITS = 0xFFFFF
"""Of an mbarrier's count, as SYNCS.EXCH writes it: its complement, from bit 1 on."""


@inner(inline=True)
def _loads(x, row):
    """Whether the TMA reads device memory for an instruction."""
    unit = x.code[row, Cell.UNIT]
    return unit == Unit.UTMALDG or (unit == Unit.UBLKCP and x.code[row, Cell.OPERATION] == Bulk.FROM_DEVICE)


@inner(inline=True)
def queue_room(p, x, st, sm, row, t):
    """Tick from which the TMA's queue for loads or stores has a place, as far as is known."""
    q = sm if _loads(x, row) else p[Chip.SMS] + sm
    if st.tma_queues[q, TmaQueue.LENGTH] < p[TmaFigure.QUEUE]:
        return 0
    return max(t + 64 * p[Chip.CYCLE], st.tma_queues[q, TmaQueue.FREE])


@inner
def move_box(p, x, st, w, t, row):
    """UTMALDG, UTMASTG, UTMAREDG: gives the box that its registers name to the TMA."""
    code, scalars, walk = x.code, x.scalars, st.warps
    loads = code[row, Cell.UNIT] == Unit.UTMALDG
    first = Scalar.UNIFORM + code[row, Cell.SOURCE_UNIFORM]
    pointer = Scalar.UNIFORM + code[row, Cell.ADDRESS_UNIFORM]
    address = scalars[w, pointer] | scalars[w, pointer + 1] << 32
    found = -1
    for k in range(x.maps.shape[0]):
        if x.maps[k, Map.ADDRESS] == address:
            found = k
    if found < 0:
        blame(x, st, w, row, FaultKind.MAP, 0, address)
        return
    dims = code[row, Cell.DIMS]
    element = x.maps[found, Map.ELEMENT]
    base, rows, row_bytes, stride, size = x.maps[found, Map.BASE], 1, 0, 0, element
    for d in range(dims):
        shape, pitch, box = (
            x.maps[found, Map.DIMENSION + 3 * d],
            x.maps[found, Map.DIMENSION + 3 * d + 1],
            x.maps[found, Map.DIMENSION + 3 * d + 2],
        )
        at = (scalars[w, first + (2 if loads else 1) + d] ^ 0x80000000) - 0x80000000
        low = max(at, 0)
        count = max(0, min(at + box, shape) - low)
        base += low * pitch
        size *= box
        if d == 0:
            row_bytes = count * element
        elif box > 1:
            rows, stride = count, pitch
        elif count == 0:
            rows = 0
    if row_bytes == 0:
        rows = 0
    own = st.ctas[walk[w, Warp.CTA], Cta.RANK]
    rank, shared = _place_of(p, scalars[w, first], own)
    ranks = -1 if rank == own else 1 << rank
    if code[row, Cell.RANKS] >= 0:
        ranks = scalars[w, Scalar.UNIFORM + code[row, Cell.RANKS]] >> 16 & 0xFFFF
    inside = shared >= x.launch[Launched.SHARED_BEGIN] and shared + size <= x.launch[Launched.SHARED_END]
    if not inside or rank >= p[Chip.CLUSTER_SIZE]:
        blame(x, st, w, row, FaultKind.SHARED, 0, scalars[w, first])
    bar = -1
    if loads:
        bar = _barrier_at(x, st, w, row, _place_of(p, scalars[w, first + 1], own)[1])
        if bar < 0:
            return
    walk[w, Walk.BASE], walk[w, Walk.ROWS], walk[w, Walk.ROW_BYTES] = base, rows, row_bytes
    walk[w, Walk.ROW_STRIDE], walk[w, Walk.ROW], walk[w, Walk.OFFSET] = stride, 0, 0
    enqueue(p, st, w, row, 0 if loads else 1, bar, ranks, size, 1 if code[row, Cell.UNIT] == Unit.UTMAREDG else 0, t)
    if loads:
        st.counters[Counter.GLOBAL_READ_BYTES] += rows * row_bytes
    else:
        walk[w, BulkGroups.BOXES_LEFT] += 1


@inner
def copy_bulk(p, x, st, w, t, row):
    """UBLKCP, UBLKRED: gives bytes that lie side by side to the TMA, between device memory and the CTA's shared memory;
    loads also to other CTAs of the cluster."""
    code, scalars, walk = x.code, x.scalars, st.warps
    size = (scalars[w, Scalar.UNIFORM + code[row, Cell.RANKS]] & 0xFFFF) * _BULK_BYTES
    if code[row, Cell.OPERATION] == Bulk.IN_CLUSTER:
        copy_in_cluster(p, x, st, w, t, row, size)
        return
    loads = _loads(x, row)
    place = Scalar.UNIFORM + (code[row, Cell.SOURCE_UNIFORM] if loads else code[row, Cell.ADDRESS_UNIFORM])
    device = Scalar.UNIFORM + (code[row, Cell.ADDRESS_UNIFORM] if loads else code[row, Cell.SOURCE_UNIFORM])
    address = scalars[w, device] | scalars[w, device + 1] << 32
    own = st.ctas[walk[w, Warp.CTA], Cta.RANK]
    rank, shared = _place_of(p, scalars[w, place], own)
    inside = False
    for k in range(x.ranges.shape[0]):
        inside |= (address >= x.ranges[k, 0]) & (address + size <= x.ranges[k, 1])
    if not inside:
        blame(x, st, w, row, FaultKind.OUTSIDE, 0, address)
    if (address | shared) & (_BULK_BYTES - 1) != 0:
        blame(x, st, w, row, FaultKind.MISALIGNED, 0, address if address & (_BULK_BYTES - 1) != 0 else shared)
    held = shared >= x.launch[Launched.SHARED_BEGIN] and shared + size <= x.launch[Launched.SHARED_END]
    if not held or rank >= p[Chip.CLUSTER_SIZE]:
        blame(x, st, w, row, FaultKind.SHARED, 0, scalars[w, place])
    ranks = -1 if rank == own else 1 << rank
    if code[row, Cell.COUNT] != 0:
        ranks = scalars[w, Scalar.UNIFORM + code[row, Cell.RANKS]] >> 16 & 0xFFFF
    bar = -1
    if loads:
        bar = _barrier_at(x, st, w, row, _place_of(p, scalars[w, place + 1], own)[1])
        if bar < 0:
            return
    walk[w, Walk.BASE], walk[w, Walk.ROWS], walk[w, Walk.ROW_BYTES] = address, 1, size
    walk[w, Walk.ROW_STRIDE], walk[w, Walk.ROW], walk[w, Walk.OFFSET] = 0, 0, 0
    enqueue(p, st, w, row, 0 if loads else 1, bar, ranks, size, 1 if code[row, Cell.UNIT] == Unit.UBLKRED else 0, t)
    if loads:
        st.counters[Counter.GLOBAL_READ_BYTES] += size
    else:
        walk[w, BulkGroups.BOXES_LEFT] += 1


@inner
def wait_stores(p, x, st, w, t, row):
    """A wait until the stores of all groups but a few have read shared memory; the tick, FAR where that is not known
    yet."""
    warps = st.warps
    group = warps[w, BulkGroups.COMMITTED] - 1 - x.code[row, Cell.COUNT]
    if group < 0:
        return t
    if stores_pending(p, st, p[Chip.SMS] + warps[w, Warp.SM], w, group):
        _park(x, st, w, t, Block.BULK, 1, group, Reason.TMA_STORE)
        return FAR
    return max(t, group_done(st, w, group, True))


@inner(inline=True)
def _place_of(p, address, own):
    """The rank of the CTA that an address in shared memory names, and the place in its shared memory. own: of the CTA
    that uses the address, for launches without clusters."""
    if p[Chip.CLUSTER_SIZE] == 1:
        return own, address
    return address >> RANK_SHIFT, address & ((1 << RANK_SHIFT) - 1)


@inner(inline=True)
def _park(x, st, w, t, block, what, value, reason):
    """Warp `w` waits for an event of another unit."""
    park(st, w, block, what, value, -1, t)
    x.scalars[w, Scalar.PARKED] = st.warps[w, Warp.ACCOUNTED] + 1
    x.scalars[w, Scalar.PARKED_REASON] = reason


@inner(inline=True)
def _barrier_at(x, st, w, row, address):
    """The mbarrier at a shared address; -1, with blame, where none has been set up."""
    for k in range(x.mbarriers.shape[0]):
        if x.mbarriers[k] == address:
            return k
    blame(x, st, w, row, FaultKind.MBARRIER, 0, address)
    return -1


@inner
def synchronise(p, x, st, w, t, end, row, mask):
    """SYNCS: sets up an mbarrier, arrives there, or waits for a phase; the tick at which warp `w` goes on, FAR where
    that is not known yet."""
    code = x.code
    operation = code[row, Cell.OPERATION]
    if mask == 0:
        return end
    locate(x, w, row)
    while mask != 0:  # lanes that name another mbarrier come after
        lane, lanes = lowest_bit(mask), 0
        address = x.addresses[0, lane]
        for k in range(lane, LANES):
            if (mask >> k) & 1 and x.addresses[0, k] == address:
                lanes += 1
                mask ^= 1 << k
        rank, place = _place_of(p, address, st.ctas[st.warps[w, Warp.CTA], Cta.RANK])
        if operation == Sync.SETUP:
            _set_up(p, x, st, w, row, place)
            return end
        bar = _barrier_at(x, st, w, row, place)
        if bar < 0 or operation == Sync.NOTE:
            return end
        value = np.int64(0)
        if code[row, Cell.SOURCE] >= 0:
            value = np.int64(x.registers[w, code[row, Cell.SOURCE], lane])
        if operation == Sync.AWAIT:
            return _await_phase(p, x, st, w, t, end, row, bar, value >> 31)
        if rank >= p[Chip.CLUSTER_SIZE]:
            blame(x, st, w, row, FaultKind.SHARED, lane, address)
            return end
        _arrive_at(p, x, st, w, t, row, bar, rank, lanes, value)
    return end


@inner(inline=True)
def _arrive_at(p, x, st, w, t, row, bar, rank, lanes, value):
    """Arrivals of some lanes on an mbarrier of the CTA with a rank in the cluster, if that has not ended."""
    code = x.code
    slot = st.warps[w, Warp.CTA]
    other = slot if rank == st.ctas[slot, Cta.RANK] else -1
    if other < 0:
        other = peer(st, slot, rank)
    if other < 0:
        return
    made = max(t, st.warps[w, Warp.SHARED_WRITTEN])
    size = value * lanes * code[row, Cell.BYTES]
    if other != slot:
        made = max(made, t + p[BarrierFigure.REMOTE_ARRIVE_LATENCY])
    elif size == 0:
        made = max(made, t + p[BarrierFigure.ARRIVE_LATENCY])
    arrivals = lanes * (value if code[row, Cell.COUNT] < 0 else code[row, Cell.COUNT])
    arrive(p, x, st, other, bar, arrivals, size, made, t)


@inner(inline=True)
def _await_phase(p, x, st, w, t, end, row, bar, parity):
    """A wait for the phase of a parity, or (without patience) a look at it."""
    code, bars = x.code, st.mbarriers
    at = st.warps[w, Warp.CTA] * p[BarrierFigure.MBARRIERS] + bar
    passed = (bars[at, Mbarrier.PHASE] & 1) != parity
    waits = code[row, Cell.COUNT] != 0
    write_predicate(x, w, code[row, Cell.PREDICATE0], ALL_LANES if passed or waits else 0, ALL_LANES, LANES)
    if passed:
        done = bars[at, Mbarrier.DONE] + p[BarrierFigure.WAIT_LATENCY]
        return max(end, done)
    if not waits:
        return end
    bars[at, Mbarrier.WAITERS] += 1
    _park(x, st, w, t, Block.MBARRIER, bar, bars[at, Mbarrier.PHASE], Reason.MBARRIER)
    return FAR


@inner
def _set_up(p, x, st, w, row, address):
    """An mbarrier begins, with the count that a pair of uniform registers gives."""
    bar = -1
    for k in range(x.mbarriers.shape[0] - 1, -1, -1):
        if x.mbarriers[k] == address or x.mbarriers[k] < 0:
            bar = k
    for k in range(x.mbarriers.shape[0]):
        if x.mbarriers[k] == address:
            bar = k
    if bar < 0:
        blame(x, st, w, row, FaultKind.MBARRIER, 0, address)
        return
    low = x.scalars[w, Scalar.UNIFORM + x.code[row, Cell.SOURCE_UNIFORM]]
    count = (_COUNT_BITS + 1 - (low >> 1 & _COUNT_BITS)) & _COUNT_BITS
    x.mbarriers[bar] = address
    x.barrier_arrivals[bar] = count
    at = st.warps[w, Warp.CTA] * p[BarrierFigure.MBARRIERS] + bar
    for c in range(Mbarrier.WIDTH):
        st.mbarriers[at, c] = 0
    st.mbarriers[at, Mbarrier.PENDING] = count


# ---- the barrier of a cluster


@inner
def arrive_at_cluster(p, x, st, w, t):
    """UCGABAR_ARV: warp `w` arrives, its stores to shared memory having been made."""
    slot = st.warps[w, Warp.CTA]
    cluster = st.ctas[slot, Cta.CLUSTER]
    x.scalars[w, Scalar.CLUSTER_PHASE] = x.clusters[cluster, Meeting.PHASE]
    x.clusters[cluster, Meeting.ARRIVED] += 1
    latest = max(t, st.warps[w, Warp.SHARED_WRITTEN])
    x.clusters[cluster, Meeting.LATEST] = max(x.clusters[cluster, Meeting.LATEST], latest)
    meet_in_cluster(p, x, st, slot, t, 0)


@inner
def meet_in_cluster(p, x, st, slot, t, leaving):
    """Completes the phase of a cluster's barrier at which all its warps have arrived, but those that have ended.
    leaving: warps that are about to end."""
    meeting = x.clusters[st.ctas[slot, Cta.CLUSTER]]
    left = -leaving
    for rank in range(p[Chip.CLUSTER_SIZE]):
        other = peer(st, slot, rank)
        left += st.ctas[other, Cta.LEFT] if other >= 0 else 0
    if meeting[Meeting.ARRIVED] == 0 or meeting[Meeting.ARRIVED] < left:
        return
    tick = meeting[Meeting.LATEST] + p[BarrierFigure.CLUSTER_LATENCY]
    meeting[Meeting.ARRIVED], meeting[Meeting.LATEST], meeting[Meeting.DONE] = 0, 0, tick
    meeting[Meeting.PHASE] += 1
    for rank in range(p[Chip.CLUSTER_SIZE]):
        other = peer(st, slot, rank)
        if other >= 0:
            first = st.ctas[other, Cta.FIRST_WARP]
            for w in range(first, first + p[Chip.WARPS_PER_CTA]):
                if st.warps[w, Warp.BLOCK] == Block.CLUSTER:
                    wake(p, st, w, tick, Reason.CLUSTER_BARRIER, t)


@inner
def wait_for_cluster(x, st, w, t, end):
    """UCGABAR_WAIT: the tick at which warp `w` goes on, FAR where that is not known yet."""
    meeting = x.clusters[st.ctas[st.warps[w, Warp.CTA], Cta.CLUSTER]]
    if meeting[Meeting.PHASE] > x.scalars[w, Scalar.CLUSTER_PHASE]:
        return max(end, meeting[Meeting.DONE])
    _park(x, st, w, t, Block.CLUSTER, 0, 0, Reason.CLUSTER_BARRIER)
    return FAR
