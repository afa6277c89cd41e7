"""Bytes that the TMA brings from the shared memory of a CTA to that of another one of its cluster: UBLKCP.S.S,
UBLKRED.S.S.

Arguments as in `bulk`. Lines wait in the TMA's queue of stores, since they are read from shared memory. They take the
arrays of both SMs and the network at the SM that they go to, as stores of warps in the cluster do, and an mbarrier of
the CTA that they go to counts their bytes. Assumed: the latency is that of such stores beyond the TMA's own.
"""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.boxes import Walk
from sim.gpu.engine.tma import TmaBox, TmaFigure, TmaQueue, enqueue, next_box
from sim.gpu.sass.memory import blame
from sim.gpu.sass.tables import RANK_SHIFT, Bulk, Cell, FaultKind, Launched, Scalar, Unit
from sim.gpu.units.barriers import BarrierFigure, Mbarrier, arrive, peer
from sim.gpu.units.chip import CHUNK, Chip
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import PHASE_SHIFT
from sim.gpu.units.record import log_op
from sim.gpu.units.shared import SharedFigure, book_background, book_network
from sim.gpu.units.tree import FAR
from sim.gpu.units.warp import Warp

_LINE = 128
_SECTOR = 32
_NO_GROUP = FAR
"""Of a box in the queue: no wait for groups of stores waits for it."""


@inner
def copy_in_cluster(p, x, st, w, t, row, size):
    """Gives bytes of the own CTA's shared memory, bound for that of a CTA of the cluster, to the TMA."""
    code, scalars, warps = x.code, x.scalars, st.warps
    to = scalars[w, Scalar.UNIFORM + code[row, Cell.SOURCE_UNIFORM]]
    bar_at = scalars[w, Scalar.UNIFORM + code[row, Cell.SOURCE_UNIFORM] + 1]
    source = scalars[w, Scalar.UNIFORM + code[row, Cell.ADDRESS_UNIFORM]]
    slot = warps[w, Warp.CTA]
    own = st.ctas[slot, Cta.RANK]
    place = (1 << RANK_SHIFT) - 1
    rank = to >> RANK_SHIFT
    low, high = x.launch[Launched.SHARED_BEGIN], x.launch[Launched.SHARED_END] - size
    for address in (to, source):
        if address & place < low or address & place > high or address >> RANK_SHIFT >= p[Chip.CLUSTER_SIZE]:
            blame(x, st, w, row, FaultKind.SHARED, 0, address)
        if address & 15 != 0:
            blame(x, st, w, row, FaultKind.MISALIGNED, 0, address)
    if source >> RANK_SHIFT != own:
        blame(x, st, w, row, FaultKind.SHARED, 0, source)
    bar = -1
    for k in range(x.mbarriers.shape[0]):
        if x.mbarriers[k] == bar_at & place:
            bar = k
    if bar < 0 or bar_at >> RANK_SHIFT != rank:
        blame(x, st, w, row, FaultKind.MBARRIER, 0, bar_at)
        return
    if rank != own and rank < p[Chip.CLUSTER_SIZE] and peer(st, slot, rank) < 0:
        blame(x, st, w, row, FaultKind.ENDED, 0, to)
    warps[w, Walk.BASE], warps[w, Walk.ROWS], warps[w, Walk.ROW_BYTES] = source & place, 1, size
    warps[w, Walk.ROW_STRIDE], warps[w, Walk.ROW], warps[w, Walk.OFFSET] = 0, 0, 0
    changes = 1 if code[row, Cell.UNIT] == Unit.UBLKRED else 0
    enqueue(p, st, w, row, 1, bar, rank, size, changes, t)
    q = p[Chip.SMS] + warps[w, Warp.SM]
    last = (st.tma_queues[q, TmaQueue.HEAD] + st.tma_queues[q, TmaQueue.LENGTH] - 1) % p[TmaFigure.QUEUE]
    st.tma_boxes[q, last, TmaBox.GROUP] = _NO_GROUP


@inner(inline=True)
def is_in_cluster(p, x, st, sm):
    """Whether the first box of an SM's queue of stores goes to a CTA of the cluster."""
    q = p[Chip.SMS] + sm
    row = st.tma_boxes[q, st.tma_queues[q, TmaQueue.HEAD], TmaBox.OP]
    unit = x.code[row, Cell.UNIT]
    return (unit == Unit.UBLKCP or unit == Unit.UBLKRED) and x.code[row, Cell.OPERATION] == Bulk.IN_CLUSTER


@inner
def bring_lines(p, x, st, sm, t):
    """Up to CHUNK lines of the first box of an SM's queue of stores, to a CTA of the cluster. Returns the tick of the
    queue's next event, PARKED if it is empty."""
    boxes = st.tma_boxes
    q = p[Chip.SMS] + sm
    i = st.tma_queues[q, TmaQueue.HEAD]
    row, size, offset = boxes[q, i, TmaBox.OP], boxes[q, i, TmaBox.BYTES], boxes[q, i, TmaBox.OFFSET]
    base, changes = boxes[q, i, TmaBox.BASE], boxes[q, i, TmaBox.REDUCE]
    slot, rank = boxes[q, i, TmaBox.CTA], boxes[q, i, TmaBox.MASK]
    other = slot if rank == st.ctas[slot, Cta.RANK] else peer(st, slot, rank)
    if other < 0:  # it has ended since
        blame(x, st, boxes[q, i, TmaBox.WARP], row, FaultKind.ENDED, 0, rank << RANK_SHIFT)
        return next_box(p, st, q, i, t)
    there = st.warps[st.ctas[other, Cta.FIRST_WARP], Warp.SM]
    free, done = max(t, st.tma_queues[q, TmaQueue.FREE]), boxes[q, i, TmaBox.DONE]
    lines = 0
    while offset < size and lines < CHUNK:
        count = min(size, ((base + offset) // _LINE + 1) * _LINE - base) - offset
        sectors = (count + _SECTOR - 1) // _SECTOR
        book_background(st, sm, t, p[SharedFigure.WAVEFRONT])
        book_background(st, there, t, (1 + changes) * p[SharedFigure.WAVEFRONT])  # read and written
        through = book_network(st, there, free, sectors * x.code[row, Cell.NETWORK])
        done = max(done, through + x.code[row, Cell.OWN_LATENCY] + p[TmaFigure.LATENCY])
        free = max(free + p[TmaFigure.GAP], through)
        offset += count
        lines += 1
    st.tma_queues[q, TmaQueue.FREE] = free
    boxes[q, i, TmaBox.OFFSET], boxes[q, i, TmaBox.DONE] = offset, done
    if offset < size:
        return free
    bar = boxes[q, i, TmaBox.BARRIER]
    phase = st.mbarriers[other * p[BarrierFigure.MBARRIERS] + bar, Mbarrier.PHASE]
    log_op(
        st.log, st, boxes[q, i, TmaBox.WARP], row, boxes[q, i, TmaBox.ISSUED], free, done, phase << PHASE_SHIFT | bar
    )
    arrive(p, x, st, other, bar, 0, -size, done, t)
    st.counters[Counter.SHARED_READ_BYTES] += size
    st.counters[Counter.SHARED_WRITE_BYTES] += size
    return next_box(p, st, q, i, free)
