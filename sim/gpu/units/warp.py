"""Warps: their row, what they wait for, and when what they have issued can be used."""

from enum import IntEnum

from sim.engine.jit import inner
from sim.engine.search import lowest_bit
from sim.gpu.lower.tables import N_SCOREBOARDS, N_TILES
from sim.gpu.units.tree import schedule

REASON_BITS = 5  # of a word that holds a tick and the reason for waiting until then


class Warp(IntEnum):
    """Columns of a warp's row: eight to a host cache line, those first that most ops touch.

    Other units own the rest: `WarpVariables`, `Walk`, `TensorWarp`, `TensorMemoryWarp`, `CpAsyncGroups`, `BulkGroups`,
    `TileWarp`.
    """

    PROGRAM_COUNTER = 0
    ACCOUNTED = 1  # ticks accounted so far
    REASON = 2  # last waiting reason since the previous issue
    CTA = 3
    SM = 4
    SUB_CORE = 5
    LEFT = 6  # instructions left of the row in progress, 0 when none
    LEAF = 7  # in the tree of events
    LAUNCH_ORDER = 8  # of its CTA, for age
    LAST_ISSUE = 9  # sequence number of its last issue, of its sub-core
    BLOCK = 10  # what a parked warp waits for (Block)
    BLOCK_WHAT = 11
    BLOCK_VALUE = 12
    BLOCK_OP = 13  # op of the wait in progress, -1 if it is not logged
    SHARED_WRITTEN = 14  # when its latest shared-memory stores have been made
    STORES_DONE = 15  # latest acknowledgement of its stores
    OP_ISSUED = 22  # when the op in progress has been issued
    READY = 24  # when what was issued into a slot can be used, << REASON_BITS, and why it is waited for (Reason);
    # slots: scoreboards, last elements of register tiles, their first elements
    NUMBER = 61  # in its CTA
    WIDTH = 176


class Block(IntEnum):
    """What a parked warp waits for."""

    NONE = 0
    MBARRIER = 1
    BAR_SYNC = 2
    CLUSTER = 3
    FLAG = 4
    BULK = 5
    FETCH = 6
    TENSOR_MEMORY = 7


@inner(inline=True)
def schedule_warp(st, tick, priority, w):
    """Announces an event of warp `w`."""
    schedule(st, tick, priority, w, st.warps[w, Warp.LEAF], st.warps[w, Warp.SM])


@inner(inline=True)
def park(st, w, block, a, b, op, issued):
    """Notes what warp `w` waits for; whoever provides it calls `wake`."""
    st.warps[w, Warp.BLOCK] = block
    st.warps[w, Warp.BLOCK_WHAT] = a
    st.warps[w, Warp.BLOCK_VALUE] = b
    st.warps[w, Warp.BLOCK_OP] = op
    st.warps[w, Warp.OP_ISSUED] = issued


@inner(inline=True)
def operands_ready(st, w, mask, t):
    """Tick, `t` or later, at which the slots of `mask` are ready for warp `w`, and the reason for waiting so long."""
    need = t
    why = 0
    while mask != 0:
        i = lowest_bit(mask)
        mask &= mask - 1
        ready = st.warps[w, Warp.READY + i]
        if ready >> REASON_BITS > need:
            need = ready >> REASON_BITS
            why = ready & ((1 << REASON_BITS) - 1)
    return need, why


@inner(inline=True)
def set_ready(st, w, slot, tick, reason):
    """Ready slot `slot`: when what was issued last into it can be used."""
    st.warps[w, Warp.READY + slot] = tick << REASON_BITS | reason


@inner(inline=True)
def add_ready(st, w, slot, tick, reason):
    """Scoreboard `slot` counts what is in flight.

    It is ready when the last of several ops has completed, in whatever order.
    """
    if tick > st.warps[w, Warp.READY + slot] >> REASON_BITS:
        set_ready(st, w, slot, tick, reason)


@inner(inline=True)
def set_tile(st, w, tile, first, last, reason):
    """Register tile `tile`: when its first and its last element can be read."""
    set_ready(st, w, N_SCOREBOARDS + tile, last, reason)
    set_ready(st, w, N_SCOREBOARDS + N_TILES + tile, first, reason)
