"""The port of an SM to the L2: lines read, received and written, and the places of requests on their way."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from sim.engine.buffers import filled
from sim.engine.clock import cycles_to_ticks, transfer_ticks
from sim.engine.jit import inner
from sim.engine.prefetch import prefetch
from sim.engine.search import TICKS, find_due
from sim.gpu.counters import Counter
from sim.gpu.units.chip import CHUNK, Part
from sim.gpu.units.l1 import locate_in_l1
from sim.gpu.units.sectors import full_mask, sector_mask
from sim.gpu.units.tree import FAR
from sim.memory.ahead import ASKED, LINE, l2_prefetch, l2_prefetch_changes, whole_vectors
from sim.memory.coalescer import find_waiting, hold, join
from sim.memory.l2 import l2_change_ahead, l2_read_ahead
from sim.memory.sets import count_sectors

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


FIGURES = (
    "port.read",
    "port.receive",
    "port.write",
    "port.gpc",
    "l2.hit_latency",
    "l2.partitions",
    "gpc.count",
    "sm.per_tpc",
    "sm.count",
)


class Port(IntEnum):
    """Columns of an SM's row: its links to the L2."""

    READ_FREE = 2
    RECEIVE_FREE = 3
    WRITE_FREE = 4
    PARTITION = 6
    GPC = 7


class PortFigure(IntEnum):
    """Parameters of the port, in ticks a sector of 32 B."""

    READ_SECTOR = Part.PORT  # on the unicast read path of an SM
    RECEIVE_SECTOR = Part.PORT + 1
    WRITE_SECTOR = Part.PORT + 2
    L2_LATENCY = Part.PORT + 3  # of a hit


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`PortFigure`."""
    return {
        PortFigure.READ_SECTOR: transfer_ticks(32, spec.port.read_bytes_per_cycle),
        PortFigure.RECEIVE_SECTOR: transfer_ticks(32, spec.port.receive_bytes_per_cycle),
        PortFigure.WRITE_SECTOR: transfer_ticks(32, spec.port.write_bytes_per_cycle),
        PortFigure.L2_LATENCY: cycles_to_ticks(spec.l2.hit_latency_cycles),
    }


def gpc_ports(spec: GpuSpec) -> tuple[float, int]:
    """Bytes a cycle of the crossbar's port of one GPC, at the clock of the L2, and how many GPCs there are."""
    return spec.port.gpc_bytes_per_cycle, spec.gpc.count


def locate_ports(spec: GpuSpec, sms: np.ndarray) -> None:
    """Writes which GPC each SM belongs to, and which partition of the L2 is near it."""
    gpc = np.repeat(np.arange(spec.gpc.count), spec.sms_per_gpc)
    sms[:, Port.GPC] = gpc
    sms[:, Port.PARTITION] = gpc * spec.l2.partitions // spec.gpc.count


@inner(inline=True)
def port_read(p, sms, gpcs, ms, mem, sm, now, t, line, mask, fetched, k, alone):
    """A line read from SM `sm` at tick `t` through its unicast read path; returns the tick at which the data leaves
    the crossbar. fetched: the sectors that the L2 fetches if it lacks one of `mask`, these included. k: the line's
    number among those that `prefetch_lines` has located. alone: whether it is for one SM.

    now: tick of the event in progress. What SMs share is booked from it, so that a request ahead of time leaves no
    hole before it. The request itself takes the place of a sector on the path that stores leave by, and its turn among
    the requests of all SMs. `count_reads` counts what an event has read.
    """
    n = count_sectors(mask)
    sms[sm, Port.WRITE_FREE] = max(sms[sm, Port.WRITE_FREE], now) + p[PortFigure.WRITE_SECTOR]
    begin = max(t, sms[sm, Port.READ_FREE])
    sms[sm, Port.READ_FREE] = begin + n * p[PortFigure.READ_SECTOR]
    gpc = sms[sm, Port.GPC]
    coalesces = alone and ms.coalesced > 0
    asked = mem.ahead[ASKED, k]
    if coalesces:
        place = find_waiting(ms, mem, begin, asked, gpc, line, mask)
        if place >= 0:
            return join(ms, mem, place, begin, mask)
    free = max(now, gpcs[gpc])
    gpcs[gpc] = free + (n * ms.gpc_sectors >> 4)
    port = max(begin, free)
    if ms.requests > 0:
        last = gpcs.shape[0] - 1
        taken = max(now << 4, gpcs[last])
        gpcs[last] = taken + ms.requests
        port = max(port, taken >> 4)
    answer = l2_read_ahead(ms, mem, port, sms[sm, Port.PARTITION], line, mask, fetched, k)
    if coalesces:
        hold(ms, mem, asked, gpc, line, mask, answer)
    return answer


@inner(inline=True)
def count_reads(counters, lines, sectors, received):
    """Counts lines that `port_read` has read, their sectors, and sectors that `port_receive` has delivered."""
    counters[Counter.LINES] += lines
    counters[Counter.PORT_READ_BYTES] += 32 * sectors
    counters[Counter.PORT_RECEIVE_BYTES] += 32 * received


@inner(inline=True)
def port_receive(p, sms, sm, t_request, t_data, mask):
    """Delivery of a line into SM `sm`.

    The receive port delivers in the order of arrival, so its work is booked from the request.
    """
    n = count_sectors(mask)
    arrival = t_request + p[PortFigure.L2_LATENCY] - 4 * p[PortFigure.RECEIVE_SECTOR]
    free = max(sms[sm, Port.RECEIVE_FREE], arrival) + n * p[PortFigure.RECEIVE_SECTOR]
    sms[sm, Port.RECEIVE_FREE] = free
    return max(t_data, free)


@inner(inline=True)
def port_write(p, sms, counters, ms, mem, sm, t, address, end, reduce, k):
    """[address, end) of one line written (or reduced) from SM `sm`; returns the tick of its acknowledgement. k: the
    line's number among those that `prefetch_lines` has located."""
    mask = sector_mask(address, end)
    n = count_sectors(mask)
    begin = max(t, sms[sm, Port.WRITE_FREE])
    sms[sm, Port.WRITE_FREE] = begin + n * p[PortFigure.WRITE_SECTOR]
    counters[Counter.PORT_WRITE_BYTES] += 32 * n
    counters[Counter.LINES] += 1
    full = full_mask(address, end)
    return l2_change_ahead(ms, mem, begin, sms[sm, Port.PARTITION], address >> 7, mask, full, reduce, k)


def new_entries(sms: int, count: int) -> np.ndarray:
    """Free entries, `count` for each SM; rows are whole vectors, of which the rest is never free."""
    entries = filled((sms, -(-count // TICKS) * TICKS), np.int64, 0)
    entries[:, count:] = FAR
    return entries


def new_bounds(entries: np.ndarray) -> np.ndarray:
    """Of each block of TICKS entries a tick that none of them is before; rows are whole vectors, as theirs."""
    blocks = entries.shape[1] // TICKS
    bounds = filled((entries.shape[0], -(-blocks // TICKS) * TICKS), np.int64, 0)
    bounds[:, blocks:] = FAR
    return bounds


@inner
def earliest(entries, bounds, sm):
    """Index of the entry of SM `sm` that becomes free first.

    Entries are taken for longer and longer, so that a bound holds until its block is looked at again.
    """
    size, blocks = entries.shape[1], bounds.shape[1]
    while True:
        least = FAR
        for k in range(blocks):
            least = min(least, bounds[sm, k])
        k = 0
        place = find_due(bounds, sm * blocks, least)
        while place < 0:
            k += TICKS
            place = find_due(bounds, sm * blocks + k, least)
        first = (k + place) * TICKS
        bound = FAR
        for i in range(first, first + TICKS):
            bound = min(bound, entries[sm, i])
        if bound == least:
            return first + find_due(entries, sm * size + first, least)
        bounds[sm, k + place] = bound


@inner(inline=True)
def free_entry(entries, bounds, sms, sm, column, t):
    """Index of an entry that is free at tick t or, where none is, of the one that becomes free first.

    Answers come back in any order, so that one that waits for DRAM holds up no others. Entries are taken in turn, and
    searched where the next one is still taken.
    """
    k = sms[sm, column]
    return k if entries[sm, k] <= t else earliest(entries, bounds, sm)


@inner(inline=True)
def ask_entries(entries, sms, sm, column):
    """Asks the host for the entries that the next CHUNK lines take in turn."""
    first = sm * entries.shape[1] + sms[sm, column]
    prefetch(entries, first)
    prefetch(entries, first + CHUNK // 2)
    prefetch(entries, first + CHUNK - 1)


@inner(inline=True)
def take_entry(entries, sms, sm, column, k, tick):
    """Takes entry `k` until a tick."""
    entries[sm, k] = tick
    following = sms[sm, column] + 1
    sms[sm, column] = following if following < entries.shape[1] else 0


@inner
def prefetch_lines(p, st, ms, mem, sm, l1, changes, base, row, rows, stride, row_bytes, offset, size_bytes):
    """Locates the lines that the walk over a box meets next: about `size_bytes`, at most a chunk. Returns their number.

    Parts of one line that the walk meets in a row count once. l1: whether they are looked up in the L1, too.
    changes: whether they are written.
    """
    n = 0
    line = (base + row * stride + offset) >> 7
    length = min(size_bytes, row_bytes - offset)
    step = 0
    last = -1
    if stride & 127 == 0 and (base & 127) + row_bytes <= 128:  # a line a row
        step = stride >> 7
        n = min(CHUNK, rows - row)
    elif length == size_bytes or length > CHUNK << 7 or row == rows - 1:  # neighbours
        step = 1
        n = min(CHUNK, ((base + row * stride + offset + length - 1) >> 7) - line + 1)
    if n > 0:
        for k in range(whole_vectors(n)):
            mem.ahead[LINE, k] = line + k * step
        size_bytes = 0
    while n < CHUNK and row < rows and size_bytes > 0:
        address = base + row * stride + offset
        if address >> 7 != last:
            last = address >> 7
            mem.ahead[LINE, n] = last
            n += 1
        length = min((((address >> 7) + 1) << 7) - address, row_bytes - offset)
        size_bytes -= length
        offset += length
        if offset >= row_bytes:
            row += 1
            offset = 0
    partition = st.sms[sm, Port.PARTITION]
    if changes:
        l2_prefetch_changes(ms, mem, partition, n)
    else:
        l2_prefetch(ms, mem, partition, n)
    if l1:
        locate_in_l1(p, st, sm, mem.ahead, n)
    return n
