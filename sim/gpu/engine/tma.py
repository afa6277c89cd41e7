"""The TMA of an SM: boxes between global and shared memory, loads in one queue and stores in another.

A box is moved in chunks of lines with a gap between two, within a bound of lines on their way. A load ends with an
arrival of bytes on mbarriers, a store with the completion of its group.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.barriers import barrier_number
from sim.gpu.engine.boxes import Walk, locate_box
from sim.gpu.engine.expressions import evaluate
from sim.gpu.engine.global_memory import Stores
from sim.gpu.lower.tables import Col, Kind
from sim.gpu.units.accounting import account, issue_one
from sim.gpu.units.barriers import BarrierFigure, Mbarrier, arrive, peer
from sim.gpu.units.chip import CHUNK, Chip, Part
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import PHASE_SHIFT, Reason
from sim.gpu.units.l1 import AS_ASKED, fills, whole_sectors
from sim.gpu.units.port import (
    Port,
    ask_entries,
    count_reads,
    free_entry,
    port_read,
    port_receive,
    port_write,
    prefetch_lines,
    take_entry,
)
from sim.gpu.units.record import log_op
from sim.gpu.units.sectors import sector_mask
from sim.gpu.units.shared import SharedFigure, book_background
from sim.gpu.units.tree import FAR, PARKED, leaf_of, schedule
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp, park
from sim.memory.sets import count_sectors

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


GROUPS = 8  # of bulk stores of one warp that it may wait for
_SLACK = 16384  # ticks: how far ahead of its event a queue may book

FIGURES = ("tma.issue_gap", "tma.latency", "tma.max_in_flight", "tma.promotion", "tma.queue", "l1.line")


class Tma(IntEnum):
    """Columns of an SM's row."""

    NEXT_ENTRY = 13  # of the lines on their way: the entry that was taken longest ago
    DESCRIPTORS_READY = 16  # tick at which the tensor maps have arrived


class TmaQueue(IntEnum):
    """Columns of a queue's row."""

    HEAD = 0
    LENGTH = 1
    FREE = 2  # tick of its next line
    WIDTH = 3


class TmaBox(IntEnum):
    """Columns of a box in a queue."""

    WARP = 0
    OP = 1
    BASE = 2
    ROWS = 3
    ROW_BYTES = 4
    ROW_STRIDE = 5
    ROW = 6
    OFFSET = 7
    BARRIER = 8  # its number in the CTA, -1 for stores
    MASK = 9  # ranks that receive it, -1 for the CTA alone
    BYTES = 10
    ISSUED = 11
    DONE = 12  # latest completion of its lines
    GROUP = 13
    CTA = 14
    REDUCE = 15  # of a store
    PAIR = 15  # of a load: its bytes count on the mbarrier of the first CTA of the receiver's pair
    WIDTH = 16


class BulkGroups(IntEnum):
    """Columns of a warp's row: its groups of bulk stores."""

    BOXES_LEFT = 62  # given to the engine and not yet finished
    READ = 120  # by group: when its shared memory has been read
    VISIBLE = 128  # by group: when what it writes is visible
    LAST_READ = 162
    LAST_VISIBLE = 163
    COMMITTED = 164


class TmaFigure(IntEnum):
    """Parameters of the TMA."""

    GAP = Part.TMA  # between two lines
    LATENCY = Part.TMA + 1  # beyond that of a plain load
    LINES_IN_FLIGHT = Part.TMA + 2
    QUEUE = Part.TMA + 3  # boxes of a queue
    FETCHED = Part.TMA + 4  # as `L1Figure.FILLS`: what the L2 fetches from DRAM for a load that misses


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`TmaFigure`; a chip without a TMA runs no op that needs one."""
    tma = spec.tma
    return {
        TmaFigure.GAP: cycles_to_ticks(tma.issue_gap_cycles if tma else 1),
        TmaFigure.LATENCY: cycles_to_ticks(tma.latency_cycles) if tma else 0,
        TmaFigure.LINES_IN_FLIGHT: tma.max_in_flight_bytes // spec.l1.line_bytes if tma else 1,
        TmaFigure.QUEUE: tma.queue if tma else 1,
        TmaFigure.FETCHED: fills(tma.promotion_bytes) if tma else AS_ASKED,
    }


# ---- ops of warps


@inner(inline=True)
def issue_load(p, prog, st, w, s, sm, t, pc):
    """A load of a box by warp `w`; returns the tick at which the warp goes on, perhaps with the same row."""
    code, warps = prog.code, st.warps
    bar = barrier_number(prog, st, w, pc)
    ranks = -1
    if code[pc, Col.MASK] >= 0:
        ranks = evaluate(prog, warps, st.stack, w, code[pc, Col.MASK])
    locate_box(prog, warps, st.stack, w, code[pc, Col.BOX])
    if not enqueue(p, st, w, code[pc, Col.OP], 0, bar, ranks, code[pc, Col.BYTES], code[pc, Col.VALUE], t):
        return await_room(p, st, w, sm, t)
    st.counters[Counter.GLOBAL_READ_BYTES] += warps[w, Walk.ROWS] * warps[w, Walk.ROW_BYTES]
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    return issue_one(p, st, w, s, t)


@inner(inline=True)
def issue_store(p, prog, st, w, s, sm, t, pc, kind):
    """A store or reduction of a box by warp `w`; returns the tick at which it goes on, perhaps with the same row."""
    code, warps = prog.code, st.warps
    locate_box(prog, warps, st.stack, w, code[pc, Col.BOX])
    reduce = 1 if kind == Kind.TMA_REDUCE else 0
    if not enqueue(p, st, w, code[pc, Col.OP], 1, -1, -1, code[pc, Col.BYTES], reduce, t):
        return await_room(p, st, w, p[Chip.SMS] + sm, t)
    warps[w, BulkGroups.BOXES_LEFT] += 1
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    return issue_one(p, st, w, s, t)


@inner(inline=True)
def await_room(p, st, w, q, t):
    """A full queue drains one box at a time: warp `w` looks again after the next event of its head."""
    tick = max(t + 64 * p[Chip.CYCLE], st.tma_queues[q, TmaQueue.FREE])
    account(st, w, tick, Reason.LG_THROTTLE)
    return tick


@inner
def enqueue(p, st, w, op, which, bar, mask, size_bytes, reduce, now):
    """Gives the box that warp `w` has located to a queue of its SM's TMA (0 loads, 1 stores).

    False: the queue is full.
    """
    sm = st.warps[w, Warp.SM]
    q = which * p[Chip.SMS] + sm
    n = st.tma_queues[q, TmaQueue.LENGTH]
    if n >= p[TmaFigure.QUEUE]:
        return False
    i = (st.tma_queues[q, TmaQueue.HEAD] + n) % p[TmaFigure.QUEUE]
    e = st.tma_boxes
    e[q, i, TmaBox.WARP] = w
    e[q, i, TmaBox.OP] = op
    for c in range(6):
        e[q, i, TmaBox.BASE + c] = st.warps[w, Walk.BASE + c]
    e[q, i, TmaBox.BARRIER] = bar
    e[q, i, TmaBox.MASK] = mask
    e[q, i, TmaBox.BYTES] = size_bytes
    e[q, i, TmaBox.ISSUED] = now
    e[q, i, TmaBox.DONE] = now
    e[q, i, TmaBox.GROUP] = st.warps[w, BulkGroups.COMMITTED]
    e[q, i, TmaBox.CTA] = st.warps[w, Warp.CTA]
    e[q, i, TmaBox.REDUCE] = reduce
    st.tma_queues[q, TmaQueue.LENGTH] = n + 1
    st.counters[Counter.TMA_BOXES] += 1
    if n == 0:
        begin = max(now, st.tma_queues[q, TmaQueue.FREE])
        if which == 0:
            begin = max(begin, st.sms[sm, Tma.DESCRIPTORS_READY])
        component = p[Chip.SMS] * p[Chip.WARPS_PER_SM] + q
        schedule(st, begin, 32, component, leaf_of(p, sm, p[Chip.WARPS_PER_SM] + which), sm)
    return True


@inner(inline=True)
def stores_pending(p, st, q, w, group):
    """Whether boxes of a group of warp `w`, or of one before it, wait in store queue `q`."""
    if st.warps[w, BulkGroups.BOXES_LEFT] > 0:
        for j in range(st.tma_queues[q, TmaQueue.LENGTH]):
            k = (st.tma_queues[q, TmaQueue.HEAD] + j) % p[TmaFigure.QUEUE]
            if st.tma_boxes[q, k, TmaBox.WARP] == w and st.tma_boxes[q, k, TmaBox.GROUP] <= group:
                return True
    return False


@inner(inline=True)
def group_done(st, w, group, reads):
    """When a group of bulk stores of warp `w` is complete. reads: when its shared memory has been read."""
    column = BulkGroups.READ if reads else BulkGroups.VISIBLE
    return st.warps[w, column + group % GROUPS]


@inner(inline=True)
def wait_bulk(p, prog, st, w, t, pc, kind, issued):
    """A wait for groups of bulk stores; returns the tick at which warp `w` goes on, PARKED if boxes are queued."""
    code, warps = prog.code, st.warps
    reads = kind == Kind.BULK_WAIT_READ
    group = warps[w, BulkGroups.COMMITTED] - 1 - code[pc, Col.VALUE]
    if group < 0:
        return t
    if stores_pending(p, st, p[Chip.SMS] + warps[w, Warp.SM], w, group):
        park(st, w, Block.BULK, 1 if reads else 0, group, code[pc, Col.OP], issued)
        return PARKED
    tick = group_done(st, w, group, reads)
    if tick > t:
        account(st, w, tick, Reason.TMA_STORE)
        t = tick
    return t


# ---- the queues


@inner(inline=True)
def find_receivers(p, st, sm, slot, mask):
    """SMs that receive a box, in the scratch row; returns their number."""
    receivers = st.stack
    if mask < 0:
        receivers[0] = sm
        return 1
    count = 0
    for rank in range(p[Chip.CLUSTER_SIZE]):
        if (mask >> rank) & 1:
            receivers[count] = st.ctas[slot, Cta.PEERS + rank] // p[Chip.CTAS_PER_SM]
            count += 1
    return count


@inner
def load_lines(p, prog, st, ms, mem, sm, t):
    """Up to CHUNK lines of the loads queued at the TMA of `sm`.

    Returns the tick of its next event, PARKED if the queue is empty.
    """
    boxes, sms = st.tma_boxes, st.sms
    q = sm
    i = st.tma_queues[q, TmaQueue.HEAD]
    base = boxes[q, i, TmaBox.BASE]
    rows = boxes[q, i, TmaBox.ROWS]
    stride = boxes[q, i, TmaBox.ROW_STRIDE]
    row_bytes = boxes[q, i, TmaBox.ROW_BYTES]
    row = boxes[q, i, TmaBox.ROW]
    offset = boxes[q, i, TmaBox.OFFSET]
    done = boxes[q, i, TmaBox.DONE]
    free = max(t, st.tma_queues[q, TmaQueue.FREE])
    count = find_receivers(p, st, sm, boxes[q, i, TmaBox.CTA], boxes[q, i, TmaBox.MASK])
    ask_entries(st.tma_in_flight, sms, sm, Tma.NEXT_ENTRY)
    prefetch_lines(p, st, ms, mem, sm, False, False, base, row, rows, stride, row_bytes, offset, FAR)
    lines = 0
    read = 0
    here = -1  # the line in progress, number `place` of those that have been located
    place = -1
    late = False
    begin = free
    while row < rows and lines < CHUNK:
        k = free_entry(st.tma_in_flight, st.tma_bounds, sms, sm, Tma.NEXT_ENTRY, free)
        begin = max(free, st.tma_in_flight[sm, k])
        if begin > t + _SLACK:
            late = True
            break
        address = base + row * stride + offset
        end = min(base + row * stride + row_bytes, ((address >> 7) + 1) << 7)
        sectors = sector_mask(address, end)
        begin = max(begin, sms[sm, Port.READ_FREE])
        if address >> 7 != here:
            here = address >> 7
            place += 1
        fetched = whole_sectors(p[TmaFigure.FETCHED], sectors)
        data = port_read(p, sms, st.gpcs, ms, mem, sm, t, begin, here, sectors, fetched, place, count == 1)
        read += count_sectors(sectors)
        latest = deliver(p, st, count, begin, data, sectors) + p[TmaFigure.LATENCY]
        take_entry(st.tma_in_flight, sms, sm, Tma.NEXT_ENTRY, k, latest)
        done = max(done, latest)
        free = begin + p[TmaFigure.GAP]
        offset += end - address
        if offset >= row_bytes:
            row += 1
            offset = 0
        lines += 1
    count_reads(st.counters, lines, read, read * count)
    st.tma_queues[q, TmaQueue.FREE] = free
    boxes[q, i, TmaBox.ROW] = row
    boxes[q, i, TmaBox.OFFSET] = offset
    boxes[q, i, TmaBox.DONE] = done
    if late:
        return begin
    if row < rows:
        return free
    complete_load(p, prog, st, q, i, done, t)
    return next_box(p, st, q, i, free)


@inner(inline=True)
def deliver(p, st, count, begin, data, sectors):
    """Delivery of a line to the SMs in the scratch row; returns when the last of them has it.

    It takes nothing from what reads shared memory: on an H100, wgmma of m64n64k16 reads the whole 128 B a cycle, and
    loads of 40 B a cycle beside it make it 3 % slower (docs/accuracy/gemm-hopper.md).
    """
    latest = data
    for j in range(count):
        latest = max(latest, port_receive(p, st.sms, st.stack[j], begin, data, sectors))
    return latest


@inner
def complete_load(p, prog, st, q, i, done, t):
    """Box `i` of load queue `q` is complete: bytes arrive on the barrier of each receiving CTA.

    Clipped parts are written as zeros, so all bytes count.
    """
    boxes = st.tma_boxes
    slot = boxes[q, i, TmaBox.CTA]
    bar = boxes[q, i, TmaBox.BARRIER]
    mask = boxes[q, i, TmaBox.MASK]
    size_bytes = boxes[q, i, TmaBox.BYTES]
    phase = st.mbarriers[slot * p[BarrierFigure.MBARRIERS] + bar, Mbarrier.PHASE]
    w, op, issued = boxes[q, i, TmaBox.WARP], boxes[q, i, TmaBox.OP], boxes[q, i, TmaBox.ISSUED]
    log_op(st.log, st, w, op, issued, done, done, (phase << PHASE_SHIFT) | bar)
    if boxes[q, i, TmaBox.PAIR] == 1:
        here = st.ctas[slot, Cta.RANK]
        for rank in range(p[Chip.CLUSTER_SIZE]):
            if (mask < 0 and rank == here) or (mask >= 0 and (mask >> rank) & 1):
                other = peer(st, slot, rank & ~1)
                if other >= 0:
                    arrive(p, prog, st, other, bar, 0, -size_bytes, done, t)
    elif mask < 0:
        arrive(p, prog, st, slot, bar, 0, -size_bytes, done, t)
    else:
        here = st.ctas[slot, Cta.RANK]
        for rank in range(p[Chip.CLUSTER_SIZE]):
            if (mask >> rank) & 1:
                other = slot if rank == here else peer(st, slot, rank)
                if other >= 0:
                    arrive(p, prog, st, other, bar, 0, -size_bytes, done, t)


@inner(inline=True)
def next_box(p, st, q, i, free):
    """Box `i` leaves queue `q`; returns the tick of the queue's next event, PARKED if it is empty."""
    st.tma_queues[q, TmaQueue.HEAD] = (i + 1) % p[TmaFigure.QUEUE]
    st.tma_queues[q, TmaQueue.LENGTH] -= 1
    return free if st.tma_queues[q, TmaQueue.LENGTH] > 0 else PARKED


@inner
def store_lines(p, st, ms, mem, sm, t):
    """Up to CHUNK lines of the stores queued at the TMA of `sm`.

    Returns the tick of its next event, PARKED if the queue is empty.
    """
    boxes, sms = st.tma_boxes, st.sms
    q = p[Chip.SMS] + sm
    i = st.tma_queues[q, TmaQueue.HEAD]
    base = boxes[q, i, TmaBox.BASE]
    rows = boxes[q, i, TmaBox.ROWS]
    stride = boxes[q, i, TmaBox.ROW_STRIDE]
    row_bytes = boxes[q, i, TmaBox.ROW_BYTES]
    row = boxes[q, i, TmaBox.ROW]
    offset = boxes[q, i, TmaBox.OFFSET]
    done = boxes[q, i, TmaBox.DONE]
    reduce = boxes[q, i, TmaBox.REDUCE] != 0
    free = max(t, st.tma_queues[q, TmaQueue.FREE])
    prefetch_lines(p, st, ms, mem, sm, False, True, base, row, rows, stride, row_bytes, offset, FAR)
    lines = 0
    here = -1  # as in `load_lines`
    place = -1
    while row < rows and lines < CHUNK:
        begin = max(free, sms[sm, Port.WRITE_FREE])
        if begin > t + _SLACK:
            break
        address = base + row * stride + offset
        end = min(base + row * stride + row_bytes, ((address >> 7) + 1) << 7)
        book_background(st, sm, t, p[SharedFigure.WAVEFRONT])
        if address >> 7 != here:
            here = address >> 7
            place += 1
        done = max(done, port_write(p, sms, st.counters, ms, mem, sm, begin, address, end, reduce, place))
        st.counters[Counter.GLOBAL_WRITE_BYTES] += end - address
        free = begin + p[TmaFigure.GAP]
        offset += end - address
        if offset >= row_bytes:
            row += 1
            offset = 0
        lines += 1
    st.tma_queues[q, TmaQueue.FREE] = free
    boxes[q, i, TmaBox.ROW] = row
    boxes[q, i, TmaBox.OFFSET] = offset
    boxes[q, i, TmaBox.DONE] = done
    if row < rows:
        return max(free, sms[sm, Port.WRITE_FREE])
    tick = next_box(p, st, q, i, free)
    complete_store(p, st, q, i, free + p[TmaFigure.LATENCY], done, t)
    return tick


@inner
def complete_store(p, st, q, i, read, done, t):
    """Box `i` of store queue `q` has been read from shared memory and is written; who waits for its group goes on."""
    boxes, warps = st.tma_boxes, st.warps
    w = boxes[q, i, TmaBox.WARP]
    st.chip[Stores.LAST] = max(st.chip[Stores.LAST], done)
    warps[w, Warp.STORES_DONE] = max(warps[w, Warp.STORES_DONE], done)
    warps[w, BulkGroups.BOXES_LEFT] -= 1
    # A group is complete when it and all before it are: running maxima.
    group = boxes[q, i, TmaBox.GROUP] % GROUPS
    warps[w, BulkGroups.LAST_READ] = max(warps[w, BulkGroups.LAST_READ], read)
    warps[w, BulkGroups.LAST_VISIBLE] = max(warps[w, BulkGroups.LAST_VISIBLE], done)
    warps[w, BulkGroups.READ + group] = warps[w, BulkGroups.LAST_READ]
    warps[w, BulkGroups.VISIBLE + group] = warps[w, BulkGroups.LAST_VISIBLE]
    log_op(st.log, st, w, boxes[q, i, TmaBox.OP], boxes[q, i, TmaBox.ISSUED], read, done, 0)
    if warps[w, Warp.BLOCK] == Block.BULK:
        # It waits for all groups up to BLOCK_VALUE; stores of one warp finish in order.
        awaited = warps[w, Warp.BLOCK_VALUE]
        if not stores_pending(p, st, q, w, awaited):
            wake(p, st, w, group_done(st, w, awaited, warps[w, Warp.BLOCK_WHAT] == 1), Reason.TMA_STORE, t)
