"""Loads, stores and reductions of warps on global memory, and the requests of cp.async: one queue an SM."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.boxes import Walk, locate_box
from sim.gpu.lower.tables import Col, Kind
from sim.gpu.units.accounting import account, issue_slots
from sim.gpu.units.chip import CHUNK, Chip, Part
from sim.gpu.units.cp_async import CpAsyncFigure, CpAsyncGroups
from sim.gpu.units.events import Reason
from sim.gpu.units.l1 import AS_ASKED, L1, READY_SHIFT, SECTORS, L1Figure, find_line, whole_sectors, write_line
from sim.gpu.units.pipes import part, slot_free
from sim.gpu.units.port import (
    Port,
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
from sim.gpu.units.shared import SharedFigure, book_copies
from sim.gpu.units.warp import Warp, add_ready, set_tile
from sim.memory.sets import count_sectors

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


FIGURES = ("l1.queue",)


SECTOR_BYTES = 32


class LoadStore(IntEnum):
    """Columns of an SM's row: its load/store unit."""

    FREE = 5  # when what it has in hand is done
    NEXT_STORE = 19  # entry of the store queue that was taken longest ago
    STORE_FREE = 23  # when that entry is free: its row comes from far away


class Stores(IntEnum):
    """Columns of the chip's row."""

    LAST = 26  # latest acknowledgement of a store


class LoadStoreFigure(IntEnum):
    """Parameters of the load/store unit."""

    QUEUE = Part.LOAD_STORE  # ticks of queued work that an SM accepts


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`LoadStoreFigure`."""
    return {LoadStoreFigure.QUEUE: cycles_to_ticks(spec.l1.queue_cycles)}


@inner(inline=True)
def move(p, prog, st, ms, mem, w, s, sm, now, t, pc, kind):
    """LDG, STG, RED and cp.async: as many instructions of row `pc` as fit one event. Returns the tick at which to
    come back.

    now: tick from which what SMs share is booked. When the row is finished the program counter moves on; else the warp
    comes back for the rest.
    """
    code, warps, sms = prog.code, st.warps, st.sms
    total = code[pc, Col.COUNT]
    free = slot_free(p, st.sub_cores, s, t)
    if free > t:
        account(st, w, free, Reason.NOT_SELECTED)
        return free
    if warps[w, Warp.LEFT] == 0:
        locate_box(prog, warps, st.stack, w, code[pc, Col.BOX])
        warps[w, Warp.LEFT] = total
        warps[w, Warp.OP_ISSUED] = t
        warps[w, Walk.DONE] = t
    busy = sms[sm, LoadStore.FREE]
    changes = kind == Kind.STG or kind == Kind.RED
    if changes:
        # No more stores are on their way than entries: memory that takes no more stops the warps.
        busy = max(busy, sms[sm, Port.WRITE_FREE], sms[sm, LoadStore.STORE_FREE])
    elif kind == Kind.CP_ASYNC:
        # A copy holds no registers, so that nothing but the misses on their way bounds how many are.
        entry = free_entry(st.l1_misses, st.l1_bounds, sms, sm, L1.NEXT_MISS, t)
        busy = max(busy, st.l1_misses[sm, entry])
    queue = p[LoadStoreFigure.QUEUE]
    if busy > t + queue:
        account(st, w, busy - queue, Reason.LG_THROTTLE)
        return busy - queue
    left = warps[w, Warp.LEFT]
    n = move_lines(p, st, ms, mem, w, sm, now, t, kind, changes, total)
    cycle = p[Chip.CYCLE]
    slots = part(code[pc, Col.ISSUE], total - left, n, total)
    busy = slots * cycle
    after = t + max(busy, n * code[pc, Col.INTERVAL])
    issue_slots(st, w, s, t, busy, t + busy)
    st.warp_states[Reason.SELECTED] += busy
    warps[w, Warp.ACCOUNTED] = t + busy
    account(st, w, after, Reason.LG_THROTTLE)
    st.counters[Counter.INSTRUCTIONS] += slots
    st.counters[Counter.INST_GLOBAL] += n
    st.counters[Counter.INST_OTHER] += slots - n
    warps[w, Warp.LEFT] = left - n
    if left == n:
        finish_move(st, code, w, pc, kind, after)
    return after


@inner(inline=True)
def share_of(rows, row_bytes, total):
    """Bytes of a (clipped) box that one of `total` instructions moves. Along a row 32 threads take whole sectors, those
    of the last instruction fewer."""
    share = (rows * row_bytes + total - 1) // total
    return (share + SECTOR_BYTES - 1) & -SECTOR_BYTES if share <= row_bytes else share


@inner(inline=True)
def move_lines(p, st, ms, mem, w, sm, now, t, kind, changes, total):
    """Walks on over the box of warp `w`, a share for each of `total` instructions; returns how many have been done."""
    warps, sms = st.warps, st.sms
    cycle = p[Chip.CYCLE]
    cached = kind == Kind.LDG or kind == Kind.STG  # in the L1
    loads = kind == Kind.LDG or kind == Kind.CP_ASYNC
    fetches = p[CpAsyncFigure.FETCHED] if kind == Kind.CP_ASYNC else AS_ASKED
    left = warps[w, Warp.LEFT]
    row_bytes = warps[w, Walk.ROW_BYTES]
    rows = warps[w, Walk.ROWS]
    share = share_of(rows, row_bytes, total)
    n = 0
    lines = 0
    # What the event counts, in sectors but for bytes and lines: asked of the L1, found there, brought by the port.
    asked, hit, brought, brought_lines, moved_bytes = 0, 0, 0, 0, 0
    lsu = max(sms[sm, LoadStore.FREE], t)
    sector_ticks = p[L1Figure.SECTOR]
    done = warps[w, Walk.DONE]
    row = warps[w, Walk.ROW]
    offset = warps[w, Walk.OFFSET]
    stride = warps[w, Walk.ROW_STRIDE]
    base = warps[w, Walk.BASE]
    here = -1  # the line in progress, number k of the `ahead` that have been located
    k = 0
    ahead = 0
    while n < left and lines < CHUNK:
        moved = 0
        n += 1
        touched = 0
        while row < rows and moved < share:
            address = base + row * stride + offset
            end = min(base + row * stride + row_bytes, ((address >> 7) + 1) << 7)
            end = min(end, address + share - moved)
            line = address >> 7
            if line != here:
                here = line
                k += 1
                if k >= ahead:
                    rest = (left - n + 1) * share - moved
                    ahead = prefetch_lines(
                        p, st, ms, mem, sm, cached, changes, base, row, rows, stride, row_bytes, offset, rest
                    )
                    k = 0
            mask = sector_mask(address, end)
            sectors = count_sectors(mask)
            touched += 1
            at = lsu
            lsu += max(cycle, sectors * sector_ticks)
            moved_bytes += end - address
            if loads:
                missing, data = load_line(p, st, ms, mem, sm, now, t, kind, at, line, mask, fetches, k)
                if kind == Kind.LDG:
                    asked += sectors
                if missing != 0:
                    brought += count_sectors(missing)
                    brought_lines += 1
                else:
                    hit += sectors
            else:
                data = store_line(p, st, ms, mem, sm, kind, at, address, end, k)
            done = max(done, data)
            moved += end - address
            offset += end - address
            if offset >= row_bytes:
                row += 1
                offset = 0
        lines += max(touched, 1)
        if touched == 0:  # wholly outside the tensor: predicated off
            lsu += cycle
    warps[w, Walk.ROW] = row
    warps[w, Walk.OFFSET] = offset
    warps[w, Walk.DONE] = done
    sms[sm, LoadStore.FREE] = lsu
    st.counters[Counter.GLOBAL_READ_BYTES if loads else Counter.GLOBAL_WRITE_BYTES] += moved_bytes
    st.counters[Counter.L1_READ_SECTORS] += asked
    st.counters[Counter.L1_HIT_SECTORS] += hit
    count_reads(st.counters, brought_lines, brought, brought)
    return n


@inner(inline=True)
def load_line(p, st, ms, mem, sm, now, t, kind, at, line, mask, fetches, k):
    """A load of sectors of one line. Returns the mask of those that the L1 did not hold, and when all are there.

    fetches: what the L2 fetches for a mask of which it lacks sectors, as `L1Figure.FILLS`.
    """
    sms = st.sms
    data = at
    missing = mask
    cache_set = 0
    way = 0
    word = 0
    if kind == Kind.LDG:
        cache_set = st.l1_ahead[k]
        way = find_line(st, p[L1Figure.REPLACEMENT], p[L1Figure.WAYS], cache_set, line)
        word = st.l1_lines[cache_set, way]
        missing = whole_sectors(p[L1Figure.FILLS], mask) & ~word
        data = word >> READY_SHIFT
    if missing == 0:
        return missing, max(data, at + p[L1Figure.HIT_LATENCY])
    entry = free_entry(st.l1_misses, st.l1_bounds, sms, sm, L1.NEXT_MISS, at)
    begin = max(at, st.l1_misses[sm, entry])
    fetched = whole_sectors(fetches, missing)
    answer = port_read(p, sms, st.gpcs, ms, mem, sm, now, begin, line, missing, fetched, k, True)
    answer = port_receive(p, sms, sm, begin, answer, missing)
    if kind == Kind.CP_ASYNC:
        answer += p[CpAsyncFigure.LATENCY]
        book_copies(st, sm, t, p[SharedFigure.WAVEFRONT])
    take_entry(st.l1_misses, sms, sm, L1.NEXT_MISS, entry, answer)
    data = max(data, answer)
    if kind == Kind.LDG:
        st.l1_lines[cache_set, way] = (data << READY_SHIFT) | (word & SECTORS) | missing
    return missing, data


@inner(inline=True)
def store_line(p, st, ms, mem, sm, kind, at, address, end, k):
    """A store or reduction on [address, end) of one line; returns the tick of its acknowledgement."""
    reduces = kind == Kind.RED
    if not reduces:
        policy, ways, table = p[L1Figure.REPLACEMENT], p[L1Figure.WAYS], p[L1Figure.FILLS]
        write_line(st, policy, ways, table, st.l1_ahead[k], address, end, at)
    answer = port_write(p, st.sms, st.counters, ms, mem, sm, at, address, end, reduces, k)
    take_store(st, sm, answer)
    return answer


@inner(inline=True)
def take_store(st, sm, tick):
    """A store takes the next entry of its SM's queue until a tick, that of its acknowledgement."""
    take_entry(st.stores, st.sms, sm, LoadStore.NEXT_STORE, st.sms[sm, LoadStore.NEXT_STORE], tick)
    st.sms[sm, LoadStore.STORE_FREE] = st.stores[sm, st.sms[sm, LoadStore.NEXT_STORE]]


@inner
def finish_move(st, code, w, pc, kind, after):
    """All instructions of row `pc` have issued: who waits for them, their row in the event log, the next row."""
    warps, chip = st.warps, st.chip
    done = warps[w, Walk.DONE]
    read = done
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    if kind == Kind.LDG:
        if code[pc, Col.SLOT] >= 0:
            add_ready(st, w, code[pc, Col.SLOT], done, Reason.LONG_SCOREBOARD)
        if code[pc, Col.TILE] >= 0:
            set_tile(st, w, code[pc, Col.TILE], done, done, Reason.LONG_SCOREBOARD)
    elif kind == Kind.CP_ASYNC:
        warps[w, CpAsyncGroups.LAST] = max(warps[w, CpAsyncGroups.LAST], done)
        if code[pc, Col.SLOT] >= 0:  # released when its addresses have been read
            read = st.sms[warps[w, Warp.SM], LoadStore.FREE]
            add_ready(st, w, code[pc, Col.SLOT], read, Reason.LONG_SCOREBOARD)
    else:
        warps[w, Warp.STORES_DONE] = max(warps[w, Warp.STORES_DONE], done)
        chip[Stores.LAST] = max(chip[Stores.LAST], done)
        read = after
    log_op(st.log, st, w, code[pc, Col.OP], warps[w, Warp.OP_ISSUED], read, done, 0)
