"""Columns of the engine's integer tables: rows of the state, parameters.

Kernels index plain 2-D int64 arrays by these names; one row holds everything that is touched together.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from sim.gpu.lower.tables import WarpVariables

# ---- state

N_READY = 32  # per warp: scoreboards, then tiles (last element ready), then tiles (first element ready)
REASON_BITS = 5
N_RING = 8  # groups of cp.async, wgmma, bulk stores in flight


class W(IntEnum):
    """Columns of a warp's row: eight to a host cache line, those first that most ops touch."""

    PC = 0
    ACCOUNTED = 1  # ticks accounted so far
    REASON = 2  # last waiting reason since the previous issue
    CTA = 3
    SM = 4
    SUB = 5
    LEFT = 6  # instructions left of the row in progress, 0 when none
    LEAF = 7  # in the tree of events
    ORDER = 8  # launch order of its CTA, for age
    ISSUED = 9  # sequence number of its last issue, of its sub-core
    BLOCK = 10  # what a parked warp waits for (Block)
    BLOCK_A = 11
    BLOCK_B = 12
    BLOCK_OP = 13  # op of the wait in progress, -1 if it is not logged
    SHARED_WRITTEN = 14  # when its latest shared-memory stores have been made
    STORES = 15  # latest acknowledgement of its stores
    BASE = 16
    ROWS = 17
    ROW_BYTES = 18
    ROW_STRIDE = 19
    ROW = 20
    OFFSET = 21
    T_ISSUE = 22
    T_DONE = 23
    READY = 24  # when what was issued into a slot can be used, << REASON_BITS, and why it is waited for (Reason)
    GIVEN = WarpVariables.CTA_X  # variables that it starts with: x, y, z and rank of its CTA, its number in its role
    WARP = 61  # number in its CTA
    TICKET = 62  # TMA tickets: copies given to the engine and not yet finished
    VARS = WarpVariables.FIRST
    WG_LEFT = 96  # ticks of its tensor core that its wgmma in flight still need
    WG_ASKED = 97  # ticks that all its wgmma have needed
    WG_ISSUED = 98  # wgmma ops so far
    WG_DONE = 99  # of these, over
    WG_LAST = 100  # latest completion of its wgmma
    WG_N = 101  # committed groups
    WG_AWAITED = 102  # one more than what may be left when a wait for wgmma in flight ends, 0 without one
    WG_BEHIND = 103  # ticks from then to the end of that wait
    WG_RING = 104  # ops issued when a group was committed
    CP_RING = 112
    BULK_RING = 120  # read done
    BULK_RING2 = 128  # visible
    WG_END = 136  # of an op, two columns each: ticks asked for up to its end
    WG_TICK = 137  # its latency behind the tensor core; once it is over, the tick of its completion
    WG_ROW = 152  # in the event log, if one is kept
    CP_LAST = 160
    CP_N = 161
    BULK_READ = 162
    BULK_DONE = 163
    BULK_N = 164
    TILES = 165  # next_tile calls
    WIDTH = 168


class Block(IntEnum):
    """What a parked warp waits for."""

    NONE = 0
    MBARRIER = 1
    BAR_SYNC = 2
    CLUSTER = 3
    FLAG = 4
    BULK = 5
    FETCH = 6


N_PIPES = 12  # room for pipes: whole vectors


class S(IntEnum):
    """Columns of a sub-core's row."""

    PIPE_FREE = 0
    DENSITY = 12
    CURSOR = 24  # slots accounted up to here
    IDLE = 25  # idle slot ticks inside the running ops that others may still use
    SEQUENCE = 26  # issues so far
    RESIDENT = 27
    LAST_WARP = 28
    ISSUE_FREE = 29
    REGISTER_END = 30  # until then vector instructions take a share of the register file
    REGISTER_RATE = 31  # that share, in 256ths
    OVERTAKEN_PIPE = 32  # one more than the pipe that a spread op holds, 0 none: older warps may issue in between
    OVERTAKEN_WARP = 33  # whose op it is
    OVERTAKEN_TILE = 34  # its result
    OVERTAKEN_LOG = 35  # its row in the event log
    HEAD_FREE = 36  # until then the pipe is busy with ops that have overtaken it
    WG_NOW = 37  # up to here the tensor core's time has been given to wgmma in flight
    WG_WARPS = 38  # warps that have some
    CONTENDERS = 39  # warps that wait for a pipe or issue slots
    FIRST = 40  # one more than the one of them that tries next, 0 none
    FIRST_KEY = 41  # of its event
    WG_WARP = 42  # warps that have wgmma in flight: from here on a column for each warp of the sub-core
    WIDTH = 42


class T(IntEnum):
    """Columns of a warp that waits for a pipe or issue slots of its sub-core."""

    TICK = 0  # when it tries again, at the earliest
    WARP = 1
    PIPE = 2
    RANK = 3  # what the policy ranks it by
    REASON = 4  # why it has not tried before
    LEAF = 5
    TRIED = 6  # whether it has found no room
    WIDTH = 7


class M(IntEnum):
    """Columns of an SM's row."""

    SHARED_FREE = 0
    BACKGROUND_FREE = 1  # wgmma and TMA traffic on the shared-memory array
    READ_FREE = 2
    RECEIVE_FREE = 3
    WRITE_FREE = 4
    LSU_FREE = 5
    PARTITION = 6
    GPC = 7
    FREE_CTAS = 8
    NEWEST = 9  # launch order of its newest CTA
    TMA_HEAD = 13  # entry of `in_flight` that was taken longest ago
    WARM = 14  # 0 cold, 1 fetching, 2: its instruction cache holds the kernel
    LAUNCH_FREE = 15
    DESCRIPTORS = 16  # tick at which the TMA descriptors have arrived
    FETCHED = 17  # instruction lines asked for so far
    MISS_HEAD = 18  # entry of the miss queue that was taken longest ago
    STORE_HEAD = 19  # entry of the store queue that was taken longest ago
    WIDTH = 24


class C(IntEnum):
    """Columns of a CTA slot's row."""

    ACTIVE = 0
    X = 1
    Y = 2
    Z = 3
    RANK = 4
    LEFT = 5  # warps that have not exited
    FIRST_WARP = 6
    LINEAR = 7
    SYNC_COUNT = 8  # warps arrived at cluster_sync (kept at rank 0)
    SYNC_TIME = 9
    TILES = 10  # tiles fetched
    END = 11
    CLUSTER = 12  # number of its cluster in the launch
    TILE_RING = 16  # value, time
    PEERS = 32
    WIDTH = 48


class B(IntEnum):
    """Columns of an mbarrier's row."""

    PENDING = 0
    BYTES = 1
    PHASE = 2  # phases completed
    TIME = 3  # latest arrival of the current phase
    DONE = 4  # when the last phase completed
    WAITERS = 5
    WIDTH = 6


class Q(IntEnum):
    """Columns of an entry in a TMA queue."""

    WARP = 0
    OP = 1
    BASE = 2
    ROWS = 3
    ROW_BYTES = 4
    ROW_STRIDE = 5
    ROW = 6
    OFFSET = 7
    BAR = 8  # barrier's number in the CTA, -1 for stores
    MASK = 9
    BYTES = 10
    T_ISSUE = 11
    T_READ = 12
    T_DONE = 13
    GROUP = 14
    CTA = 15
    SEQ = 16  # the CTA's launch order, so that a reused slot is told apart
    REDUCE = 17
    WIDTH = 18


TMA_QUEUE = 64


class X(IntEnum):
    """Scalars of the engine."""

    NEW = 1  # an event has been announced
    NEXT_CLUSTER = 2
    LIVE = 3
    LOG = 4
    LAST_STORE = 6
    TILE_COUNTER = 7
    NOW = 8
    END = 9
    ORDER = 10
    FLAG_WAITERS = 11
    LIMIT = 12  # earliest key of the other components
    SM = 13  # of the warp in progress
    STARTED = 14
    SM_LIMIT = 15  # earliest key of the other components of its SM
    TRACE = 16
    FROM = 17  # window of what is recorded in log and trace: ticks, SMs
    TO = 18
    FIRST_SM = 19
    LAST_SM = 20
    LAUNCH_FREE = 21  # tick until which the CTA scheduler is busy
    WIDTH = 22


TRACE_BEGIN, TRACE_END = -1, -2  # states of a warp in the trace besides its reasons: it starts, it ends


class Reason(IntEnum):
    """Why a warp did not issue (Nsight Compute's warp states) or an issue slot stayed empty."""

    SELECTED = 0
    WAIT = 1
    MATH_PIPE_THROTTLE = 2
    MIO_THROTTLE = 3
    LG_THROTTLE = 4
    SHORT_SCOREBOARD = 5
    LONG_SCOREBOARD = 6
    BARRIER = 7
    MBARRIER = 8
    GMMA = 9
    TMA_STORE = 10
    CP_ASYNC = 11
    NOT_SELECTED = 12
    MEMBAR = 13
    CLUSTER_BARRIER = 14
    NO_INSTRUCTION = 15
    SLEEPING = 16
    NO_WARP = 17


class P(IntEnum):
    """Machine and launch figures of one kernel.

    Indices into the parameter array (ticks unless the name says otherwise).
    """

    SMS = 0
    SUB_CORES = 1
    WARPS_PER_SM = 2
    CTAS_PER_SM = 3
    WARPS_PER_CTA = 4
    REGISTERS_PER_CTA = 5
    SHARED_PER_CTA = 6
    GRID_X = 7
    GRID_Y = 8
    GRID_Z = 9
    CLUSTER_X = 10
    CLUSTER_Y = 11
    CLUSTER_Z = 12
    CLUSTERS = 13
    BARRIERS = 14
    MAX_RUN = 15  # instructions a run issues in one event; 1 is `--exact`
    POLICY = 16  # 0 gto, 1 lrr, 2 oldest
    CYCLE = 17  # ticks
    READ_TICKS = 18  # ticks a 32 B sector on the unicast read path of an SM
    RECEIVE_TICKS = 19
    WRITE_TICKS = 20
    GPC_TICKS = 21
    L1_SETS = 22
    L1_WAYS = 23
    L1_HIT = 24
    L1_SECTOR_TICKS = 25  # ticks a 32 B sector on the data path of the L1
    MISS_QUEUE = 26
    NEAR_LATENCY = 27
    TMA_GAP = 28
    TMA_LATENCY = 29
    TMA_IN_FLIGHT = 30
    CP_ASYNC_LATENCY = 31
    SHARED_TICKS = 32  # ticks a 128 B wavefront
    MIO_QUEUE = 33  # ticks of queued shared-memory work an SM accepts
    LG_QUEUE = 34
    BARRIER_LATENCY = 35
    BARRIER_PER_WARP = 36
    ARRIVE_LATENCY = 37
    WAIT_LATENCY = 38
    CLUSTER_LATENCY = 39
    ATOMIC_LATENCY = 40
    WGMMA_IN_FLIGHT = 41  # instructions of one warp
    CTA_LAUNCH = 42
    LAUNCH_START = 43
    CODE_LINES = 44
    CODE_BASE = 45
    FETCH_LINES = 46  # instruction lines fetched ahead in one go
    DESCRIPTORS = 47
    FLAGS = 48
    REMOTE_ARRIVE = 49  # until an arrival on another CTA's mbarrier is seen there
    WARP_LAUNCH = 50  # between the first instructions of two CTAs of an SM, a warp
    TREE_SMS = 51  # SMs that the event tree has room for, a power of two
    TREE_LEVELS = 52  # levels of the event tree below an SM
    LOOKAHEAD = 53  # ticks that a warp may be ahead of other SMs
    L1_SET_MULTIPLIER = 54  # to divide by L1_SETS (`sim.memory.hashing.divide`)
    L1_SET_SHIFT = 55
    CTA_INTERVAL = 56  # between two CTAs of the chip
    SLACK = 57  # ticks that a request to memory may be ahead of other events of its SM
    L1_REPLACEMENT = 58  # a policy of `sim.memory.replacement`
    WIDTH = 59


class GpuState(NamedTuple):
    """Everything that changes while a kernel runs."""

    due: np.ndarray  # tournament tree of event keys: node i has children 2 i and 2 i + 1, leaves are components by SM
    x: np.ndarray
    warps: np.ndarray
    subs: np.ndarray
    contenders: np.ndarray  # (sub-cores, warps, T.WIDTH): who waits for a pipe or issue slots
    sms: np.ndarray
    gpcs: np.ndarray
    ctas: np.ndarray
    bars: np.ndarray
    named: np.ndarray  # (cta slots, 16, 2): arrived, latest time
    queues: np.ndarray  # (2 * sms, TMA_QUEUE, Q.WIDTH): loads, then stores
    queue_at: np.ndarray  # (2 * sms, 3): head, length, free tick
    in_flight: np.ndarray  # (sms, entries) completion ticks of TMA lines
    misses: np.ndarray  # (sms, entries) completion ticks of L1 misses
    stores: np.ndarray  # (sms, entries) ticks at which stores are acknowledged
    l1_tags: np.ndarray  # (sms * sets * TAGS,) int32
    l1_lines: np.ndarray  # (sms * sets, ways): mask of valid sectors, ready tick from bit 4
    l1_order: np.ndarray  # (sms * sets,): words of `sim.memory.replacement`
    l1_ahead: np.ndarray  # (lines of a chunk,): sets of those that are looked up next
    flags: np.ndarray  # (flags, 2): value, latest time
    flag_waiters: np.ndarray
    code_ready: np.ndarray  # (gpcs, code lines): tick at which a GPC's instruction cache holds it, 0 not asked for
    stack: np.ndarray
    counters: np.ndarray
    warp_states: np.ndarray
    slots: np.ndarray
    # None in a launch that records nothing: `advance` is compiled for it without what records.
    log: np.ndarray | None  # rows of `sim.gpu.engine.events.Event`
    trace: np.ndarray | None  # rows of `sim.gpu.engine.events.TraceRow`, none for executed ops alone
