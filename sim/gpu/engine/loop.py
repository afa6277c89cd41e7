"""The GPU engine: warps, sub-cores, shared memory, TMA, barriers and the CTA scheduler of a whole chip.

Everything here is compiled. Times are int64 ticks. Each warp and each TMA queue has at most one event; its
key is (tick, priority, component), so that simultaneous events have one order. A warp's event runs ops until the warp
waits for something that has not been booked yet (it is parked and woken by whoever books it) or until another component
is due first. The keys are the leaves of a tournament tree, in which each SM is a subtree.

What records a run takes the state's `log` or `trace` as its first argument. Where that is None the compiler prunes what
`is not None` guards, so that a launch that records nothing has no code for it.
"""

from sim.engine.jit import inner, kernel
from sim.engine.prefetch import prefetch
from sim.engine.search import TAGS, find_tag, lowest_bit
from sim.gpu.counters import Counter
from sim.gpu.engine.layout import (
    N_PIPES,
    N_RING,
    REASON_BITS,
    TMA_QUEUE,
    TRACE_BEGIN,
    TRACE_END,
    B,
    Block,
    C,
    M,
    P,
    Q,
    Reason,
    S,
    T,
    W,
    X,
)
from sim.gpu.lower.tables import N_SCOREBOARDS, N_TILES, N_VECTOR_PIPES, Affine, Box, Col, Kind, Operator, Pipe
from sim.memory.hashing import divide, product
from sim.memory.kernel import (
    AHEAD,
    LINE,
    count_sectors,
    l2_change_ahead,
    l2_prefetch,
    l2_prefetch_changes,
    l2_read_ahead,
)
from sim.memory.replacement import fill, touch, victim

ID_BITS = 16
TIME_SHIFT = ID_BITS + 6  # six bits of priority
ID_MASK = (1 << ID_BITS) - 1
FAR = 1 << 62
NEVER = (1 << 63) - 1  # key of a component without an event
CHUNK = AHEAD  # lines a long transfer issues in one event
PARKED = -1
PHASE_SHIFT = 16  # of an mbarrier's phase above its number, in the event log
SCHEDULED = -2  # the event of the component in progress has been announced
CHIP_KINDS = (
    1 << Kind.EXIT
    | 1 << Kind.LDG
    | 1 << Kind.STG
    | 1 << Kind.RED
    | 1 << Kind.CP_ASYNC
    | 1 << Kind.CLUSTER_SYNC
    | 1 << Kind.NEXT_TILE
    | 1 << Kind.FLAG_ADD
    | 1 << Kind.FLAG_WAIT
)  # ops that keep the order of time on the whole chip
AHEAD_KINDS = 1 << Kind.LDG | 1 << Kind.STG  # of these, those that may be `P.SLACK` ahead of any other event
FULL = 240  # 256ths of the issue slots: ops that take more leave nothing to others
TMA_SLACK = 16384  # ticks: how far ahead of its event a TMA queue may book
BACKLOG = 131072  # ticks: how far ahead of its event a memory instruction may book issue slots
L1_SECTORS = 0xF
L1_READY_SHIFT = 4  # a line's word in L1: mask of the valid sectors, ready tick above it

# ---- events


@inner(inline=True)
def _set_due(due, leaf, key):
    """Sets the event of the component at `leaf`; each node above holds the least key below it."""
    due[leaf] = key
    node = leaf
    while node > 1:
        key = min(key, due[node ^ 1])
        node >>= 1
        due[node] = key


@inner(inline=True)
def _leaf(p, sm, number):
    """Leaf of component `number` of an SM: its warps, the TMA's two queues, the code fetch."""
    return ((p[P.TREE_SMS] + sm) << p[P.TREE_LEVELS]) + number


@inner(inline=True)
def _announce(st, key, leaf, sm):
    """Announces the event with a key."""
    x = st.x
    _set_due(st.due, leaf, key)
    x[X.NEW] = 1
    x[X.LIMIT] = min(x[X.LIMIT], key)
    if sm == x[X.SM]:
        x[X.SM_LIMIT] = min(x[X.SM_LIMIT], key)


@inner(inline=True)
def _schedule(st, tick, priority, component, leaf, sm):
    """Announces an event of a component."""
    _announce(st, (tick << TIME_SHIFT) | (priority << ID_BITS) | component, leaf, sm)


@inner(inline=True)
def _prefetch_warp(st, w):
    """Asks the host's caches for the parts of a warp's row that its next event touches."""
    row = w * W.WIDTH
    prefetch(st.warps, row)
    prefetch(st.warps, row + W.ORDER)
    prefetch(st.warps, row + W.BASE)
    prefetch(st.warps, row + W.READY)
    prefetch(st.warps, row + W.READY + N_SCOREBOARDS)
    prefetch(st.warps, row + W.GIVEN)
    prefetch(st.warps, row + W.VARS)


@inner(inline=True)
def _schedule_warp(st, tick, priority, w):
    """Announces an event of warp `w`."""
    _schedule(st, tick, priority, w, st.warps[w, W.LEAF], st.warps[w, W.SM])


# ---- expressions


@inner(inline=True)
def _evaluate(prog, warps, stack, w, e):
    """Value of expression `e` for warp `w`."""
    affine = prog.affine
    terms = affine[e, Affine.TERMS]
    if terms < 0:
        return _run_bytecode(prog.expr, prog.expr_at, prog.tables, warps, stack, w, e)
    value = affine[e, Affine.CONST]
    for i in range(terms):
        value += affine[e, Affine.FACTOR0 + 2 * i] * warps[w, affine[e, Affine.COLUMN0 + 2 * i]]
    return value


@inner
def _run_bytecode(expr, expr_at, tables, warps, stack, w, e):
    """`_evaluate` of what is not affine."""
    n = 0
    r = 0  # top of the stack
    for i in range(expr_at[e], expr_at[e + 1]):
        op = expr[i, 0]
        arg = expr[i, 1]
        if op == Operator.CONST:
            stack[n] = r
            n += 1
            r = arg
        elif op == Operator.VARIABLE:
            stack[n] = r
            n += 1
            r = warps[w, arg]
        elif op == Operator.TABLE:
            r = tables[arg + r]
        else:
            n -= 1
            a = stack[n]
            b = r
            if op == Operator.ADD:
                r = a + b
            elif op == Operator.SUB:
                r = a - b
            elif op == Operator.MUL:
                r = a * b
            elif op == Operator.DIV:
                r = a // b
            elif op == Operator.MOD:
                r = a % b
            elif op == Operator.XOR:
                r = a ^ b
            elif op == Operator.AND:
                r = a & b
            elif op == Operator.SHL:
                r = a << b
            elif op == Operator.LT:
                r = 1 if a < b else 0
            elif op == Operator.EQ:
                r = 1 if a == b else 0
            elif op == Operator.MIN:
                r = min(a, b)
            else:  # Operator.MAX
                r = max(a, b)
    return r


@inner(inline=True)
def _locate_box(prog, warps, stack, w, box):
    """Resolves a box of a global tensor for warp `w` and starts its walk: address, rows, bytes a row, stride.

    Clipped at the tensor's edges.
    """
    boxes = prog.boxes
    rows = 1
    row_stride = 0
    row_bytes = 0
    address = boxes[box, Box.BASE]
    element = boxes[box, Box.ELEMENT]
    for d in range(boxes[box, Box.DIMS]):
        at = Box.EXPR0 + 4 * d
        offset = _evaluate(prog, warps, stack, w, boxes[box, at])
        stride = boxes[box, at + 1]
        shape = boxes[box, at + 2]
        extent = boxes[box, at + 3]
        lo = max(offset, 0)
        n = min(offset + extent, shape) - lo
        if n < 0:
            n = 0
        address += lo * stride
        if d == boxes[box, Box.COL_DIM]:
            row_bytes = n * element
        elif d == boxes[box, Box.ROW_DIM]:
            rows = n
            row_stride = stride
        elif n == 0:
            rows = 0
    if row_bytes == 0:
        rows = 0
    if rows > 1 and row_stride == row_bytes:  # dense: one long row
        row_bytes *= rows
        rows = 1
    warps[w, W.BASE] = address
    warps[w, W.ROWS] = rows
    warps[w, W.ROW_BYTES] = row_bytes
    warps[w, W.ROW_STRIDE] = row_stride
    warps[w, W.ROW] = 0
    warps[w, W.OFFSET] = 0


@inner(inline=True)
def _sector_mask(address, end):
    """Mask of the 32 B sectors of one line that [address, end) touches; the line is that of `address`."""
    first = (address >> 5) & 3
    last = ((end - 1) >> 5) & 3
    return ((1 << (last + 1)) - 1) & ~((1 << first) - 1)


@inner(inline=True)
def _full_mask(address, end):
    """Mask of the sectors of one line of which [address, end) covers every byte."""
    first = ((address + 31) >> 5) - ((address >> 7) << 2)
    last = (end >> 5) - ((address >> 7) << 2)
    return ((1 << last) - 1) & ~((1 << first) - 1) if last > first else 0


# ---- accounting


@inner
def _seen(st, w, begin, end):
    """Whether what warp `w` does within [begin, end] lies in the window of ticks and SMs that is recorded."""
    x = st.x
    sm = st.warps[w, W.SM]
    return begin <= x[X.TO] and end >= x[X.FROM] and x[X.FIRST_SM] <= sm and sm <= x[X.LAST_SM]


@inner
def _add_trace(trace, st, w, state, begin, end):
    """One row of the trace, if it lies in the window."""
    if not _seen(st, w, begin, end):
        return
    n = st.x[X.TRACE]
    st.x[X.TRACE] = n + 1
    if n < trace.shape[0]:
        trace[n, 0] = w
        trace[n, 1] = st.ctas[st.warps[w, W.CTA], C.LINEAR]
        trace[n, 2] = st.warps[w, W.WARP]
        trace[n, 3] = state
        trace[n, 4] = begin
        trace[n, 5] = end


@inner(inline=True)
def _trace(trace, st, w, state, begin, end):
    """One row of the trace (`sim.gpu.engine.events.TraceRow`), where one is kept."""
    if trace is not None and trace.shape[0] > 0:
        _add_trace(trace, st, w, state, begin, end)


@inner(inline=True)
def _account(st, w, tick, reason):
    """Books warp `w`'s time up to `tick` on `reason`."""
    begin = st.warps[w, W.ACCOUNTED]
    if tick > begin:
        _trace(st.trace, st, w, reason, begin, tick)
        st.warp_states[reason] += tick - begin
        st.warps[w, W.ACCOUNTED] = tick
    st.warps[w, W.REASON] = reason


@inner(inline=True)
def _issue_slots(st, w, s, t, busy, end):
    """Books `busy` issue-slot ticks of warp `w` on sub-core `s` within [t, end).

    Idle slots before it go to the warp's reason.
    """
    subs = st.subs
    cursor = subs[s, S.CURSOR]
    if t > cursor:
        st.slots[st.warps[w, W.REASON]] += t - cursor
        cursor = t
        subs[s, S.IDLE] = 0
    if end > cursor:
        st.slots[Reason.MATH_PIPE_THROTTLE] += end - cursor
        subs[s, S.IDLE] += end - cursor
        cursor = end
    idle = subs[s, S.IDLE]
    take = min(idle, busy)
    st.slots[Reason.MATH_PIPE_THROTTLE] -= take
    subs[s, S.IDLE] = idle - take
    st.slots[Reason.SELECTED] += busy
    subs[s, S.CURSOR] = cursor + busy - take
    subs[s, S.LAST_WARP] = w
    subs[s, S.SEQUENCE] += 1
    st.warps[w, W.ISSUED] = subs[s, S.SEQUENCE]


@inner(inline=True)
def _rank(p, st, w):
    """What the policy of the warp scheduler ranks warp `w` by: its last issue, or the launch of its CTA."""
    return st.warps[w, W.ISSUED] if p[P.POLICY] == 1 else st.warps[w, W.ORDER]


@inner(inline=True)
def _priority(p, st, s, sm, w, rank):
    """Place of warp `w` of sub-core `s` among warps that are due at the same tick, 0 first."""
    if p[P.POLICY] == 1:  # loose round robin: the least recently issued
        return 63 - min(62, st.subs[s, S.SEQUENCE] - rank)
    if p[P.POLICY] == 0 and st.subs[s, S.LAST_WARP] == w:  # greedy
        return 0
    return 62 - min(61, st.sms[sm, M.NEWEST] - rank)


@inner
def _add_log(log, st, w, op, t0, t1, t2, value):
    """One row of the event log, if it lies in the window; its number, -1 outside."""
    if not _seen(st, w, t0, t2):
        return -1
    n = st.x[X.LOG]
    st.x[X.LOG] = n + 1
    if n < log.shape[0]:
        log[n, 0] = 0
        log[n, 1] = st.ctas[st.warps[w, W.CTA], C.LINEAR]
        log[n, 2] = st.warps[w, W.WARP]
        log[n, 3] = op
        log[n, 4] = t0
        log[n, 5] = t1
        log[n, 6] = t2
        log[n, 7] = value
    return n


@inner(inline=True)
def _log(log, st, w, op, t0, t1, t2, value):
    """One row of the event log (`sim.gpu.engine.events.Event`), if one is kept; the kernel's number is filled in later.

    Returns the row's number, -1 without one.
    """
    if log is not None:
        return _add_log(log, st, w, op, t0, t1, t2, value)
    return -1


@inner(inline=True)
def _log_woken(log, st, w, tick):
    """The row of the op that warp `w` was parked at, which ends at `tick`."""
    if log is not None and st.warps[w, W.BLOCK_OP] >= 0:
        value = 0
        if st.warps[w, W.BLOCK] == Block.MBARRIER:
            value = (st.warps[w, W.BLOCK_B] << PHASE_SHIFT) | st.warps[w, W.BLOCK_A]
        _add_log(log, st, w, st.warps[w, W.BLOCK_OP], st.warps[w, W.T_ISSUE], tick, tick, value)


@inner(inline=True)
def _log_end(log, row, read, done):
    """Writes the times of a wgmma that has been logged when it was issued."""
    if log is not None and 0 <= row < log.shape[0]:
        log[row, 5] = read
        log[row, 6] = done


@inner(inline=True)
def _log_put_off(log, row, ticks):
    """Moves the end of a run that has been logged."""
    if log is not None and 0 <= row < log.shape[0]:
        log[row, 5] += ticks
        log[row, 6] += ticks


# ---- memory


@inner(inline=True)
def _port_read(p, sms, gpcs, ms, mem, sm, now, t, line, mask, k):
    """A line read from SM `sm` at tick `t` through its unicast read path; returns the tick at which the data leaves
    the crossbar. k: its number among those that `_prefetch_lines` has located.

    now: tick of the event in progress. What SMs share is booked from it, so that a request ahead of time leaves no
    hole before it. The request itself takes the place of a sector on the path that stores leave by. `_count_reads`
    counts what an event has read.
    """
    n = count_sectors(mask)
    sms[sm, M.WRITE_FREE] = max(sms[sm, M.WRITE_FREE], now) + p[P.WRITE_TICKS]
    begin = max(t, sms[sm, M.READ_FREE])
    sms[sm, M.READ_FREE] = begin + n * p[P.READ_TICKS]
    gpc = sms[sm, M.GPC]
    free = max(now, gpcs[gpc])
    gpcs[gpc] = free + n * p[P.GPC_TICKS]
    port = max(begin, free)
    return l2_read_ahead(ms, mem, port, sms[sm, M.PARTITION], line, mask, k)


@inner(inline=True)
def _count_reads(counters, lines, sectors, received):
    """Counts lines that `_port_read` has read, their sectors, and sectors that `_port_receive` has delivered."""
    counters[Counter.LINES] += lines
    counters[Counter.PORT_READ_BYTES] += 32 * sectors
    counters[Counter.PORT_RECEIVE_BYTES] += 32 * received


@inner(inline=True)
def _locate_in_l1(p, st, sm, lines, count):
    """Sets in the L1 of `sm` of the first `count` lines (numbers, CHUNK of them), which the host is asked for."""
    sets, multiplier, shift = p[P.L1_SETS], p[P.L1_SET_MULTIPLIER], p[P.L1_SET_SHIFT]
    first = sm * sets
    ways = p[P.L1_WAYS]
    for k in range(CHUNK):  # as in `l2_prefetch`
        line = lines[LINE, k]
        mixed = line ^ (line >> 7)
        st.l1_ahead[k] = first + mixed - product(divide(mixed, multiplier, shift), sets)
    for k in range(count):
        prefetch(st.l1_tags, st.l1_ahead[k] * TAGS)
        prefetch(st.l1_lines, st.l1_ahead[k] * ways)


@inner(inline=True)
def _prefetch_lines(p, st, ms, mem, sm, l1, changes, base, row, rows, stride, row_bytes, offset, size_bytes):
    """Locates the lines that the walk over a box meets next: about `size_bytes`, at most a chunk. Returns their number.

    Parts of one line that the walk meets in a row count once. l1: whether they are looked up in the L1, too.
    changes: whether they are written.
    """
    n = 0
    line = (base + row * stride + offset) >> 7
    step = 0
    last = -1
    if stride & 127 == 0 and (base & 127) + row_bytes <= 128:  # a line a row
        step = stride >> 7
        n = min(CHUNK, rows - row)
    elif row_bytes - offset > CHUNK << 7:
        step = 1
        n = CHUNK
    if n > 0:
        for k in range(CHUNK):
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
    if changes:
        l2_prefetch_changes(ms, mem, n)
    else:
        l2_prefetch(ms, mem, st.sms[sm, M.PARTITION], n)
    if l1:
        _locate_in_l1(p, st, sm, mem.ahead, n)
    return n


@inner(inline=True)
def _port_receive(p, sms, sm, t_request, t_data, mask):
    """Delivery of a line into SM `sm`.

    The receive port delivers in the order of arrival, so its work is booked from the request.
    """
    n = count_sectors(mask)
    free = max(sms[sm, M.RECEIVE_FREE], t_request + p[P.NEAR_LATENCY] - 4 * p[P.RECEIVE_TICKS]) + n * p[P.RECEIVE_TICKS]
    sms[sm, M.RECEIVE_FREE] = free
    return max(t_data, free)


@inner(inline=True)
def _port_write(p, sms, counters, ms, mem, sm, t, address, end, reduce, k):
    """[address, end) of one line written (or reduced) from SM `sm`; returns the tick of its acknowledgement. k: the
    line's number among those that `_prefetch_lines` has located."""
    mask = _sector_mask(address, end)
    n = count_sectors(mask)
    begin = max(t, sms[sm, M.WRITE_FREE])
    sms[sm, M.WRITE_FREE] = begin + n * p[P.WRITE_TICKS]
    counters[Counter.PORT_WRITE_BYTES] += 32 * n
    counters[Counter.LINES] += 1
    full = _full_mask(address, end)
    return l2_change_ahead(ms, mem, begin, sms[sm, M.PARTITION], address >> 7, mask, full, reduce, k)


@inner
def _earliest(entries, sm):
    """Index of the entry of SM `sm` that becomes free first."""
    size = entries.shape[1]
    least = FAR
    for k in range(size):
        least = min(least, entries[sm, k])
    found = 0
    for k in range(size):
        if entries[sm, k] == least:
            found = k
    return found


@inner(inline=True)
def _entry(entries, sms, sm, column, t):
    """Index of an entry that is free at tick t or, where none is, of the one that becomes free first.

    Answers come back in any order, so that one that waits for DRAM holds up no others. Entries are taken in turn, and
    searched where the next one is still taken.
    """
    k = sms[sm, column]
    return k if entries[sm, k] <= t else _earliest(entries, sm)


@inner(inline=True)
def _take_entry(entries, sms, sm, column, k, tick):
    """Takes entry `k` until a tick."""
    entries[sm, k] = tick
    following = sms[sm, column] + 1
    sms[sm, column] = following if following < entries.shape[1] else 0


@inner(inline=True)
def _l1_find(st, policy, ways, cache_set, line):
    """Way of a line in a set of an L1 with `ways` and a replacement policy, allocated for it if need be."""
    order = st.l1_order[cache_set]
    way = find_tag(st.l1_tags, cache_set, line)
    if way < 0:
        way = victim(policy, order, ways)
        st.l1_order[cache_set] = fill(policy, order, ways, way)
        st.l1_tags[cache_set * TAGS + way] = line
        st.l1_lines[cache_set, way] = 0
    else:
        st.l1_order[cache_set] = touch(policy, order, ways, way)
    return way


@inner(inline=True)
def _l1_write(st, policy, ways, cache_set, address, end, t):
    """A store to [address, end) of one line goes through an L1, which keeps it; sectors written whole are valid."""
    way = _l1_find(st, policy, ways, cache_set, address >> 7)
    word = st.l1_lines[cache_set, way]
    valid = (word & L1_SECTORS) | _full_mask(address, end)
    st.l1_lines[cache_set, way] = (max(word >> L1_READY_SHIFT, t) << L1_READY_SHIFT) | valid


# ---- barriers


@inner(inline=True)
def _park(st, w, block, a, b, op, issued):
    """Notes what warp `w` waits for; whoever provides it calls `_wake`."""
    st.warps[w, W.BLOCK] = block
    st.warps[w, W.BLOCK_A] = a
    st.warps[w, W.BLOCK_B] = b
    st.warps[w, W.BLOCK_OP] = op
    st.warps[w, W.T_ISSUE] = issued


@inner(inline=True)
def _wake(p, st, w, tick, reason, now):
    """Puts parked warp `w` back: it goes on at `tick`, its wait is booked on `reason`."""
    tick = max(tick, now)
    _log_woken(st.log, st, w, tick)
    st.warps[w, W.BLOCK] = Block.NONE
    _account(st, w, tick, reason)
    _schedule_warp(st, tick, _priority(p, st, st.warps[w, W.SUB], st.warps[w, W.SM], w, _rank(p, st, w)), w)


@inner
def _complete_phase(p, prog, st, slot, b, now):
    """Completes the phase of mbarrier `b` of CTA slot `slot` and wakes who waits for it."""
    row = slot * p[P.BARRIERS] + b
    bars = st.bars
    bars[row, B.PHASE] += 1
    bars[row, B.DONE] = bars[row, B.TIME]
    bars[row, B.TIME] = 0
    bars[row, B.PENDING] = prog.barrier_arrivals[b]
    if bars[row, B.WAITERS] == 0:
        return
    first = st.ctas[slot, C.FIRST_WARP]
    for w in range(first, first + p[P.WARPS_PER_CTA]):
        waits = st.warps[w, W.BLOCK] == Block.MBARRIER and st.warps[w, W.BLOCK_A] == b
        if waits and bars[row, B.PHASE] > st.warps[w, W.BLOCK_B]:
            bars[row, B.WAITERS] -= 1
            _wake(p, st, w, bars[row, B.DONE] + p[P.WAIT_LATENCY], Reason.MBARRIER, now)


@inner(inline=True)
def _barrier_arrive(p, prog, st, slot, b, arrivals, size_bytes, tick, now):
    """`arrivals` arrivals and a change of the outstanding bytes of an mbarrier, effective at `tick`."""
    row = slot * p[P.BARRIERS] + b
    bars = st.bars
    bars[row, B.PENDING] -= arrivals
    bars[row, B.BYTES] += size_bytes
    bars[row, B.TIME] = max(bars[row, B.TIME], tick)
    if bars[row, B.PENDING] == 0 and bars[row, B.BYTES] == 0:
        _complete_phase(p, prog, st, slot, b, now)


@inner(inline=True)
def _peer(st, slot, rank):
    """CTA slot of cluster rank `rank` as seen from `slot`, or -1 where that CTA has ended."""
    other = st.ctas[slot, C.PEERS + rank]
    if st.ctas[other, C.ACTIVE] == 1 and st.ctas[other, C.CLUSTER] == st.ctas[slot, C.CLUSTER]:
        return other
    return -1


# ---- TMA


@inner
def _tma_enqueue(p, st, w, op, which, bar, mask, size_bytes, reduce, now):
    """Gives the box that warp `w` has located to a queue of its SM's TMA (0 loads, 1 stores).

    False: the queue is full.
    """
    sm = st.warps[w, W.SM]
    q = which * p[P.SMS] + sm
    n = st.queue_at[q, 1]
    if n >= TMA_QUEUE:
        return False
    i = (st.queue_at[q, 0] + n) % TMA_QUEUE
    e = st.queues
    e[q, i, Q.WARP] = w
    e[q, i, Q.OP] = op
    for c in range(6):
        e[q, i, Q.BASE + c] = st.warps[w, W.BASE + c]
    e[q, i, Q.BAR] = bar
    e[q, i, Q.MASK] = mask
    e[q, i, Q.BYTES] = size_bytes
    e[q, i, Q.T_ISSUE] = now
    e[q, i, Q.T_READ] = now
    e[q, i, Q.T_DONE] = now
    e[q, i, Q.GROUP] = st.warps[w, W.BULK_N]
    e[q, i, Q.CTA] = st.warps[w, W.CTA]
    e[q, i, Q.REDUCE] = reduce
    st.queue_at[q, 1] = n + 1
    st.counters[Counter.TMA_BOXES] += 1
    if n == 0:
        begin = max(now, st.queue_at[q, 2])
        if which == 0:
            begin = max(begin, st.sms[sm, M.DESCRIPTORS])
        _schedule(st, begin, 32, p[P.SMS] * p[P.WARPS_PER_SM] + q, _leaf(p, sm, p[P.WARPS_PER_SM] + which), sm)
    return True


@inner(inline=True)
def _tma_loads(p, prog, st, ms, mem, sm, t):
    """Up to CHUNK lines of the loads queued at the TMA of `sm`.

    Returns the tick of its next event, PARKED if the queue is empty.
    """
    q = sm
    e = st.queues
    sms = st.sms
    i = st.queue_at[q, 0]
    slot = e[q, i, Q.CTA]
    mask = e[q, i, Q.MASK]
    base = e[q, i, Q.BASE]
    rows = e[q, i, Q.ROWS]
    stride = e[q, i, Q.ROW_STRIDE]
    row_bytes = e[q, i, Q.ROW_BYTES]
    row = e[q, i, Q.ROW]
    offset = e[q, i, Q.OFFSET]
    done = e[q, i, Q.T_DONE]
    free = max(t, st.queue_at[q, 2])
    receivers = st.stack  # SMs
    count = 0
    if mask < 0:
        receivers[0] = sm
        count = 1
    else:
        for rank in range(8):
            if (mask >> rank) & 1:
                receivers[count] = st.ctas[slot, C.PEERS + rank] // p[P.CTAS_PER_SM]
                count += 1
    _prefetch_lines(p, st, ms, mem, sm, False, False, base, row, rows, stride, row_bytes, offset, FAR)
    lines = 0
    read = 0
    here = -1  # the line in progress, number `place` of those that have been located
    place = -1
    while row < rows and lines < CHUNK:
        k = _entry(st.in_flight, sms, sm, M.TMA_HEAD, free)
        begin = max(free, st.in_flight[sm, k])
        if begin > t + TMA_SLACK:
            _count_reads(st.counters, lines, read, read * count)
            e[q, i, Q.ROW] = row
            e[q, i, Q.OFFSET] = offset
            e[q, i, Q.T_DONE] = done
            st.queue_at[q, 2] = free
            return begin
        address = base + row * stride + offset
        end = min(base + row * stride + row_bytes, ((address >> 7) + 1) << 7)
        sectors = _sector_mask(address, end)
        begin = max(begin, sms[sm, M.READ_FREE])
        if address >> 7 != here:
            here = address >> 7
            place += 1
        data = _port_read(p, sms, st.gpcs, ms, mem, sm, t, begin, here, sectors, place)
        read += count_sectors(sectors)
        latest = data
        for j in range(count):
            other = receivers[j]
            latest = max(latest, _port_receive(p, sms, other, begin, data, sectors))
            sms[other, M.BACKGROUND_FREE] = max(sms[other, M.BACKGROUND_FREE], t) + p[P.SHARED_TICKS]
        latest += p[P.TMA_LATENCY]
        _take_entry(st.in_flight, sms, sm, M.TMA_HEAD, k, latest)
        done = max(done, latest)
        free = begin + p[P.TMA_GAP]
        offset += end - address
        if offset >= row_bytes:
            row += 1
            offset = 0
        lines += 1
    _count_reads(st.counters, lines, read, read * count)
    st.queue_at[q, 2] = free
    e[q, i, Q.ROW] = row
    e[q, i, Q.OFFSET] = offset
    e[q, i, Q.T_DONE] = done
    if row < rows:
        return free
    # The box is complete: bytes arrive on the barrier of each receiving CTA. Clipped parts are written as zeros, so
    # all bytes count.
    bar = e[q, i, Q.BAR]
    size_bytes = e[q, i, Q.BYTES]
    phase = st.bars[slot * p[P.BARRIERS] + bar, B.PHASE]
    _log(st.log, st, e[q, i, Q.WARP], e[q, i, Q.OP], e[q, i, Q.T_ISSUE], done, done, (phase << PHASE_SHIFT) | bar)
    if mask < 0:
        _barrier_arrive(p, prog, st, slot, bar, 0, -size_bytes, done, t)
    else:
        ranks = st.ctas[slot, C.RANK]
        for rank in range(8):
            if (mask >> rank) & 1:
                other = slot if rank == ranks else _peer(st, slot, rank)
                if other >= 0:
                    _barrier_arrive(p, prog, st, other, bar, 0, -size_bytes, done, t)
    st.queue_at[q, 0] = (i + 1) % TMA_QUEUE
    st.queue_at[q, 1] -= 1
    if st.queue_at[q, 1] > 0:
        return free
    return PARKED


@inner(inline=True)
def _tma_stores(p, st, ms, mem, sm, t):
    """Up to CHUNK lines of the stores queued at the TMA of `sm`.

    Returns the tick of its next event, PARKED if the queue is empty.
    """
    q = p[P.SMS] + sm
    e = st.queues
    i = st.queue_at[q, 0]
    base = e[q, i, Q.BASE]
    rows = e[q, i, Q.ROWS]
    stride = e[q, i, Q.ROW_STRIDE]
    row_bytes = e[q, i, Q.ROW_BYTES]
    row = e[q, i, Q.ROW]
    offset = e[q, i, Q.OFFSET]
    done = e[q, i, Q.T_DONE]
    reduce = e[q, i, Q.REDUCE] != 0
    free = max(t, st.queue_at[q, 2])
    _prefetch_lines(p, st, ms, mem, sm, False, True, base, row, rows, stride, row_bytes, offset, FAR)
    lines = 0
    here = -1  # as in `_tma_loads`
    place = -1
    while row < rows and lines < CHUNK:
        begin = max(free, st.sms[sm, M.WRITE_FREE])
        if begin > t + TMA_SLACK:
            break
        address = base + row * stride + offset
        end = min(base + row * stride + row_bytes, ((address >> 7) + 1) << 7)
        st.sms[sm, M.BACKGROUND_FREE] = max(st.sms[sm, M.BACKGROUND_FREE], t) + p[P.SHARED_TICKS]
        if address >> 7 != here:
            here = address >> 7
            place += 1
        done = max(done, _port_write(p, st.sms, st.counters, ms, mem, sm, begin, address, end, reduce, place))
        st.counters[Counter.GLOBAL_WRITE_BYTES] += end - address
        free = begin + p[P.TMA_GAP]
        offset += end - address
        if offset >= row_bytes:
            row += 1
            offset = 0
        lines += 1
    st.queue_at[q, 2] = free
    e[q, i, Q.ROW] = row
    e[q, i, Q.OFFSET] = offset
    e[q, i, Q.T_DONE] = done
    if row < rows:
        return max(free, st.sms[sm, M.WRITE_FREE])
    w = e[q, i, Q.WARP]
    read = free + p[P.TMA_LATENCY]
    st.x[X.LAST_STORE] = max(st.x[X.LAST_STORE], done)
    warps = st.warps
    warps[w, W.STORES] = max(warps[w, W.STORES], done)
    warps[w, W.TICKET] -= 1
    # A group is complete when it and all before it are: running maxima.
    group = e[q, i, Q.GROUP] % N_RING
    warps[w, W.BULK_READ] = max(warps[w, W.BULK_READ], read)
    warps[w, W.BULK_DONE] = max(warps[w, W.BULK_DONE], done)
    warps[w, W.BULK_RING + group] = warps[w, W.BULK_READ]
    warps[w, W.BULK_RING2 + group] = warps[w, W.BULK_DONE]
    _log(st.log, st, w, e[q, i, Q.OP], e[q, i, Q.T_ISSUE], read, done, 0)
    st.queue_at[q, 0] = (i + 1) % TMA_QUEUE
    st.queue_at[q, 1] -= 1
    if warps[w, W.BLOCK] == Block.BULK:
        # It waits for all groups up to BLOCK_B; stores of one warp finish in order.
        more = st.queue_at[q, 1] > 0 and warps[w, W.TICKET] > 0
        pending = False
        if more:
            for j in range(st.queue_at[q, 1]):
                k = (st.queue_at[q, 0] + j) % TMA_QUEUE
                if e[q, k, Q.WARP] == w and e[q, k, Q.GROUP] <= warps[w, W.BLOCK_B]:
                    pending = True
                    break
        if not pending:
            ring = W.BULK_RING if warps[w, W.BLOCK_A] == 1 else W.BULK_RING2
            _wake(p, st, w, warps[w, ring + warps[w, W.BLOCK_B] % N_RING], Reason.TMA_STORE, t)
    if st.queue_at[q, 1] > 0:
        return free
    return PARKED


# ---- CTA scheduler


@inner
def _start_cta(p, prog, st, ms, mem, sm, cluster, rank, t):
    """Places CTA `rank` of `cluster` on SM `sm`; its peers are written afterwards. Returns its slot."""
    slot = sm * p[P.CTAS_PER_SM]
    while st.ctas[slot, C.ACTIVE] == 1:
        slot += 1
    sms = st.sms
    sms[sm, M.FREE_CTAS] -= 1
    if sms[sm, M.WARM] == 0:
        sms[sm, M.WARM] = 1
        number = p[P.WARPS_PER_SM] + 2
        _schedule(st, t, 32, p[P.SMS] * number + sm, _leaf(p, sm, number), sm)
    handed = max(t, st.x[X.LAUNCH_FREE])
    st.x[X.LAUNCH_FREE] = handed + p[P.CTA_INTERVAL]
    begin = max(handed + p[P.CTA_LAUNCH], sms[sm, M.LAUNCH_FREE])
    sms[sm, M.LAUNCH_FREE] = begin + p[P.WARPS_PER_CTA] * p[P.WARP_LAUNCH]
    ctas = st.ctas
    grid_x = p[P.GRID_X] // p[P.CLUSTER_X]
    grid_y = p[P.GRID_Y] // p[P.CLUSTER_Y]
    cx = cluster % grid_x
    cy = (cluster // grid_x) % grid_y
    cz = cluster // (grid_x * grid_y)
    rx = rank % p[P.CLUSTER_X]
    ry = (rank // p[P.CLUSTER_X]) % p[P.CLUSTER_Y]
    rz = rank // (p[P.CLUSTER_X] * p[P.CLUSTER_Y])
    x = cx * p[P.CLUSTER_X] + rx
    y = cy * p[P.CLUSTER_Y] + ry
    z = cz * p[P.CLUSTER_Z] + rz
    ctas[slot, C.ACTIVE] = 1
    ctas[slot, C.X] = x
    ctas[slot, C.Y] = y
    ctas[slot, C.Z] = z
    ctas[slot, C.RANK] = rank
    ctas[slot, C.LEFT] = p[P.WARPS_PER_CTA]
    ctas[slot, C.LINEAR] = x + p[P.GRID_X] * (y + p[P.GRID_Y] * z)
    ctas[slot, C.SYNC_COUNT] = 0
    ctas[slot, C.SYNC_TIME] = 0
    ctas[slot, C.TILES] = 0
    ctas[slot, C.CLUSTER] = cluster
    first = sm * p[P.WARPS_PER_SM] + (slot - sm * p[P.CTAS_PER_SM]) * p[P.WARPS_PER_CTA]
    ctas[slot, C.FIRST_WARP] = first
    order = st.x[X.ORDER]
    st.x[X.ORDER] = order + 1
    sms[sm, M.NEWEST] = order
    for b in range(p[P.BARRIERS]):
        row = slot * p[P.BARRIERS] + b
        st.bars[row, B.PENDING] = prog.barrier_arrivals[b]
        st.bars[row, B.BYTES] = 0
        st.bars[row, B.PHASE] = 0
        st.bars[row, B.TIME] = 0
        st.bars[row, B.DONE] = 0
        st.bars[row, B.WAITERS] = 0
    for b in range(16):
        st.named[slot, b, 0] = 0
        st.named[slot, b, 1] = 0
    st.counters[Counter.CTAS] += 1
    for i in range(p[P.WARPS_PER_CTA]):
        w = first + i
        s = sm * p[P.SUB_CORES] + w % p[P.WARPS_PER_SM] % p[P.SUB_CORES]
        for c in range(W.WIDTH):
            st.warps[w, c] = 0
        st.warps[w, W.PC] = prog.warp_entry[i, 0]
        for c in range(4):
            st.warps[w, W.GIVEN + c] = ctas[slot, C.X + c]
        st.warps[w, W.GIVEN + 4] = prog.warp_entry[i, 1]
        st.warps[w, W.WARP] = i
        st.warps[w, W.CTA] = slot
        st.warps[w, W.SM] = sm
        st.warps[w, W.SUB] = s
        st.warps[w, W.LEAF] = _leaf(p, sm, w - sm * p[P.WARPS_PER_SM])
        st.warps[w, W.ORDER] = order
        st.warps[w, W.ACCOUNTED] = begin
        if st.subs[s, S.RESIDENT] == 0 and begin > st.subs[s, S.CURSOR]:
            st.slots[Reason.NO_WARP] += begin - st.subs[s, S.CURSOR]
            st.subs[s, S.CURSOR] = begin
            st.subs[s, S.IDLE] = 0
        st.subs[s, S.RESIDENT] += 1
        st.warps[w, W.REASON] = Reason.NO_INSTRUCTION
        _trace(st.trace, st, w, TRACE_BEGIN, begin, begin)
        if sms[sm, M.WARM] == 2:
            _schedule_warp(st, begin, 32, w)
        else:
            _park(st, w, Block.FETCH, 0, 0, -1, begin)
    for i in range(p[P.CLUSTER_X] * p[P.CLUSTER_Y] * p[P.CLUSTER_Z]):
        ctas[slot, C.PEERS + i] = slot
    return slot


@inner
def _fetch_line(p, st, ms, mem, sm, t, line):
    """Reads a line of code or a tensor map for an SM."""
    mem.ahead[LINE, 0] = line
    l2_prefetch(ms, mem, st.sms[sm, M.PARTITION], 1)
    _count_reads(st.counters, 1, count_sectors(L1_SECTORS), 0)
    return _port_read(p, st.sms, st.gpcs, ms, mem, sm, t, t, line, L1_SECTORS, 0)


@inner
def _fetch_code(p, st, ms, mem, sm, t):
    """Cold instruction fetch of one SM: the next lines ahead of its program counter, the tensor maps with the first.

    SMs of a GPC share an instruction cache, so that a line comes from the L2 once a GPC.
    Returns the tick of the next batch; after the last one the waiting warps start and it returns PARKED.
    """
    sms = st.sms
    done = t
    line = sms[sm, M.FETCHED]
    if line == 0:
        for d in range(p[P.DESCRIPTORS]):
            data = _fetch_line(p, st, ms, mem, sm, t, p[P.CODE_BASE] - 1 - d)
            sms[sm, M.DESCRIPTORS] = max(sms[sm, M.DESCRIPTORS], data)
    if line < p[P.CODE_LINES]:
        last = min(line + p[P.FETCH_LINES], p[P.CODE_LINES])
        gpc = sms[sm, M.GPC]
        while line < last:
            if st.code_ready[gpc, line] == 0:
                st.code_ready[gpc, line] = _fetch_line(p, st, ms, mem, sm, t, p[P.CODE_BASE] + line)
            done = max(done, st.code_ready[gpc, line])
            line += 1
        sms[sm, M.FETCHED] = line
        return done
    sms[sm, M.WARM] = 2
    first = sm * p[P.WARPS_PER_SM]
    for w in range(first, first + p[P.WARPS_PER_SM]):
        if st.warps[w, W.BLOCK] == Block.FETCH:
            _wake(p, st, w, max(t, st.warps[w, W.T_ISSUE]), Reason.NO_INSTRUCTION, t)
    return PARKED


@inner
def _launch(p, prog, st, ms, mem, t):
    """Places as many waiting clusters as fit: the emptiest SMs first, all CTAs of a cluster inside one GPC."""
    size = p[P.CLUSTER_X] * p[P.CLUSTER_Y] * p[P.CLUSTER_Z]
    sms = st.sms
    n = p[P.SMS]
    while st.x[X.NEXT_CLUSTER] < p[P.CLUSTERS]:
        cluster = st.x[X.NEXT_CLUSTER]
        if size == 1:
            best = -1
            most = 0
            for sm in range(n):
                if sms[sm, M.FREE_CTAS] > most:
                    most = sms[sm, M.FREE_CTAS]
                    best = sm
            if best < 0:
                return
            _start_cta(p, prog, st, ms, mem, best, cluster, size - 1, t)
        else:
            # The GPC with the most room; a cluster takes its emptiest SMs.
            best = -1
            most = 0
            sm = 0
            while sm < n:
                gpc = sms[sm, M.GPC]
                room = 0
                while sm < n and sms[sm, M.GPC] == gpc:
                    room += sms[sm, M.FREE_CTAS]
                    sm += 1
                if room >= size and room > most:
                    most = room
                    best = gpc
            if best < 0:
                return
            for rank in range(size):
                chosen = -1
                most = 0
                for sm in range(n):
                    if sms[sm, M.GPC] == best and sms[sm, M.FREE_CTAS] > most:
                        most = sms[sm, M.FREE_CTAS]
                        chosen = sm
                st.stack[rank] = _start_cta(p, prog, st, ms, mem, chosen, cluster, rank, t)
            for rank in range(size):
                for other in range(size):
                    st.ctas[st.stack[rank], C.PEERS + other] = st.stack[other]
        st.x[X.NEXT_CLUSTER] = cluster + 1
        st.x[X.LIVE] += size


@inner(inline=True)
def _exit(p, prog, st, ms, mem, w, t):
    """Warp `w` ends; the last one frees its CTA and lets the next in."""
    _account(st, w, t, Reason.WAIT)
    _trace(st.trace, st, w, TRACE_END, t, t)
    s = st.warps[w, W.SUB]
    st.subs[s, S.RESIDENT] -= 1
    if st.subs[s, S.RESIDENT] == 0 and t > st.subs[s, S.CURSOR]:
        st.slots[st.warps[w, W.REASON]] += t - st.subs[s, S.CURSOR]
        st.subs[s, S.CURSOR] = t
        st.subs[s, S.IDLE] = 0
    slot = st.warps[w, W.CTA]
    st.ctas[slot, C.LEFT] -= 1
    st.ctas[slot, C.END] = max(st.ctas[slot, C.END], t)
    st.x[X.END] = max(st.x[X.END], t)
    if st.ctas[slot, C.LEFT] == 0:
        st.ctas[slot, C.ACTIVE] = 0
        st.sms[st.warps[w, W.SM], M.FREE_CTAS] += 1
        st.x[X.LIVE] -= 1
        _launch(p, prog, st, ms, mem, t)


# ---- warps


@inner(inline=True)
def _running(subs, s, t):
    """256ths of the issue slots that ops in progress on sub-core `s` take at tick t; when the first of them ends."""
    density = 0
    earliest = FAR
    for q in range(N_PIPES):  # without branches: the compiler makes vectors of it
        free = subs[s, S.PIPE_FREE + q]
        share = subs[s, S.DENSITY + q] if free > t else 0
        density += share
        earliest = min(earliest, free if share > 0 else FAR)
    return density, earliest


@inner
def _issue_time(subs, s, t, busy):
    """Ticks in which `busy` ticks of issue slots fit beside the ops that already run on sub-core `s` at tick `t`.

    Each of those takes its share of the slots (`S.DENSITY`, in 256ths) until its pipe is free.
    """
    left = busy
    now = t
    while True:
        rate = 256
        following = FAR
        for q in range(N_PIPES):
            f = subs[s, S.PIPE_FREE + q]
            if f > now:
                rate -= subs[s, S.DENSITY + q]
                if subs[s, S.DENSITY + q] > 0:
                    following = min(following, f)
        if following == FAR:
            return now + left - t
        if rate > 0:
            if left * 256 <= rate * (following - now):
                return now + (left * 256 + rate - 1) // rate - t
            left -= rate * (following - now) >> 8
        now = following


@inner(inline=True)
def _wgmma_place(op):
    """Offset of a warp's wgmma number `op` in the columns of those in flight."""
    return 2 * (op & (N_RING - 1))


@inner
def _serve(warps, subs, log, s, t):
    """Gives the time of sub-core `s`'s tensor core up to tick `t` to the wgmma in flight.

    The tensor core alternates between the warps that have some: each gets an equal share. Time is given out in whole
    rounds, what is left over stays for the next call.
    """
    while subs[s, S.WG_WARPS] > 0:
        count = subs[s, S.WG_WARPS]
        share = t - subs[s, S.WG_NOW]
        if count == 2:
            share >>= 1
        elif count > 2:
            share //= count
        if share <= 0:
            return
        for i in range(count):
            w = subs[s, S.WG_WARP + i]
            end = warps[w, W.WG_END + _wgmma_place(warps[w, W.WG_DONE])]
            share = min(share, end - warps[w, W.WG_ASKED] + warps[w, W.WG_LEFT])
        now = subs[s, S.WG_NOW] + share * count
        subs[s, S.WG_NOW] = now
        for i in range(count - 1, -1, -1):
            w = subs[s, S.WG_WARP + i]
            left = warps[w, W.WG_LEFT] - share
            warps[w, W.WG_LEFT] = left
            op = _wgmma_place(warps[w, W.WG_DONE])
            if warps[w, W.WG_END + op] > warps[w, W.WG_ASKED] - left:
                continue
            warps[w, W.WG_LAST] = max(warps[w, W.WG_LAST], now + warps[w, W.WG_TICK + op])
            warps[w, W.WG_TICK + op] = warps[w, W.WG_LAST]
            _log_end(log, warps[w, W.WG_ROW + op // 2], now, warps[w, W.WG_LAST])
            warps[w, W.WG_DONE] += 1
            if left == 0:
                count -= 1
                subs[s, S.WG_WARP + i] = subs[s, S.WG_WARP + count]
        subs[s, S.WG_WARPS] = count


@inner
def _served_at(warps, subs, s, need):
    """Tick at which a warp of sub-core `s` will have got `need` ticks of its tensor core, unless more wgmma are issued
    or the register file is taken until then: others get as much meanwhile, or what they still need."""
    tick = subs[s, S.WG_NOW]
    for i in range(subs[s, S.WG_WARPS]):
        tick += min(warps[subs[s, S.WG_WARP + i], W.WG_LEFT], need)
    return tick


@inner(inline=True)
def _await_wgmma(st, w, s, left, behind, reason):
    """Makes warp `w` wait until its wgmma in flight need no more than `left` ticks of the tensor core, and for `behind`
    ticks from then on; returns the tick as it is now known. Others that issue meanwhile put it off."""
    warps = st.warps
    warps[w, W.WG_AWAITED] = left + 1
    warps[w, W.WG_BEHIND] = behind
    tick = _served_at(warps, st.subs, s, warps[w, W.WG_LEFT] - left) + behind
    _account(st, w, tick, reason)
    return tick


@inner(inline=True)
def _put_off_waits(st, s, w):
    """Puts off the other warps of sub-core `s` that wait for wgmma in flight: warp `w` has issued some."""
    subs, warps = st.subs, st.warps
    for i in range(subs[s, S.WG_WARPS]):
        other = subs[s, S.WG_WARP + i]
        need = warps[other, W.WG_LEFT] - warps[other, W.WG_AWAITED] + 1
        if warps[other, W.WG_AWAITED] > 0 and need > 0 and other != w:
            tick = _served_at(warps, subs, s, need) + warps[other, W.WG_BEHIND]
            if tick > warps[other, W.ACCOUNTED]:
                _account(st, other, tick, warps[other, W.REASON])
                _set_due(st.due, warps[other, W.LEAF], (tick << TIME_SHIFT) | (32 << ID_BITS) | other)


@inner(inline=True)
def _take_registers(st, s, t, duration, taken):
    """Instructions on vector registers, issued within [t, t + duration), keep the tensor core from the register file
    for `taken` ticks: what it has in hand ends later, what it is given before they end takes longer."""
    subs = st.subs
    free = subs[s, S.PIPE_FREE + Pipe.TENSOR]
    if free > t:
        lost = taken if t + duration <= free else taken * (free - t) // duration
        subs[s, S.PIPE_FREE + Pipe.TENSOR] = free + lost
        if subs[s, S.WG_WARPS] > 0:
            _serve(st.warps, subs, st.log, s, t)
            subs[s, S.WG_NOW] += lost
    end = t + duration
    if subs[s, S.REGISTER_END] > t:
        taken += (subs[s, S.REGISTER_END] - t) * subs[s, S.REGISTER_RATE] >> 8
        end = max(end, subs[s, S.REGISTER_END])
    subs[s, S.REGISTER_END] = end
    subs[s, S.REGISTER_RATE] = taken * 256 // (end - t)


@inner(inline=True)
def _registers_taken(subs, s, t, duration):
    """Ticks that vector instructions in progress add to `duration` ticks of the tensor core from tick t on."""
    overlap = min(subs[s, S.REGISTER_END] - t, duration)
    return overlap * subs[s, S.REGISTER_RATE] >> 8 if overlap > 0 else 0


@inner(inline=True)
def _let_overtake(st, s, w, pipe, tile, row):
    """Notes that a spread op of warp `w` holds a pipe of sub-core `s`, unless it has itself overtaken one that does.

    tile: its result. row: of the event log, -1 none.
    """
    subs = st.subs
    if subs[s, S.OVERTAKEN_PIPE] == 0:
        subs[s, S.OVERTAKEN_PIPE] = pipe + 1
        subs[s, S.OVERTAKEN_WARP] = w
        subs[s, S.OVERTAKEN_TILE] = tile
        if st.log is not None:
            subs[s, S.OVERTAKEN_LOG] = row
        subs[s, S.HEAD_FREE] = 0


@inner(inline=True)
def _may_overtake(p, st, s, w, pipe):
    """Whether ops of warp `w` may issue between the instructions of the spread op that holds a pipe of sub-core `s`.

    A greedy scheduler stays with a warp until that stalls, and its multiplies stall for the pipe. An older warp issues
    other instructions meanwhile, becomes the greedy one, and has the pipe for as long as it has multiplies.
    """
    subs = st.subs
    if p[P.POLICY] == 1 or subs[s, S.OVERTAKEN_PIPE] != pipe + 1:
        return False
    return st.warps[w, W.ORDER] < st.warps[subs[s, S.OVERTAKEN_WARP], W.ORDER]


@inner(inline=True)
def _put_off(st, s, pipe, ticks):
    """Puts off the end of the op that holds a pipe: it has been overtaken for so long."""
    subs = st.subs
    subs[s, S.PIPE_FREE + pipe] += ticks
    tile = W.READY + N_SCOREBOARDS + subs[s, S.OVERTAKEN_TILE]
    st.warps[subs[s, S.OVERTAKEN_WARP], tile] += ticks << REASON_BITS
    _log_put_off(st.log, subs[s, S.OVERTAKEN_LOG], ticks)


@inner(inline=True)
def _part(amount, done, n, total):
    """What `n` of the `total` instructions of a row, after the first `done`, take of an amount that belongs to all."""
    return amount if n == total else amount * (done + n) // total - amount * done // total


@inner(inline=True)
def _issue_run(p, prog, st, w, s, t, pc, n, total):
    """Books `n` of the `total` instructions of row `pc` on their pipes and issue slots.

    Returns (start, tick after the last of them, tick of the next instruction of this warp). start > t: nothing was
    booked, the warp has to come back at start.
    """
    code, subs = prog.code, st.subs
    pipe = code[pc, Col.PIPE]
    interval = code[pc, Col.INTERVAL]
    free = subs[s, S.PIPE_FREE + pipe]
    overtakes = free > t and _may_overtake(p, st, s, w, pipe)
    if overtakes:
        free = subs[s, S.HEAD_FREE]
    if free > t:
        _account(st, w, free, Reason.MATH_PIPE_THROTTLE)
        return free, free, free
    if overtakes:
        subs[s, S.DENSITY + pipe] = 0
    done = total - st.warps[w, W.LEFT]
    slots = _part(code[pc, Col.ISSUE], done, n, total)
    cycle = p[P.CYCLE]
    busy = slots * cycle
    duration = n * interval
    if pipe == Pipe.TENSOR:
        duration += _registers_taken(subs, s, t, duration)
    alone = duration  # of the pipe; the rest of the duration it waits for slots and for the other pipes of the mix
    if p[P.MAX_RUN] == 1:
        free = subs[s, S.ISSUE_FREE]
        if free > t:
            _account(st, w, free, Reason.NOT_SELECTED)
            return free, free, free
        subs[s, S.ISSUE_FREE] = t + busy
        duration = max(duration, busy)
    else:
        density, earliest = _running(subs, s, t)
        if density > FULL:  # the slots of running ops leave nothing
            _account(st, w, earliest, Reason.NOT_SELECTED)
            return earliest, earliest, earliest
        duration = max(duration, _issue_time(subs, s, t, busy) if density > 0 else busy)
    for k in range(2):
        ticks = code[pc, Col.MIX_TICKS0 + 2 * k]
        if ticks > 0:
            ticks = _part(ticks, done, n, total)
            q = code[pc, Col.MIX_PIPE0 + 2 * k]
            if q < N_VECTOR_PIPES:
                st.counters[Counter.FMA_TICKS + q] += ticks
            if q == pipe:
                alone = n * interval + ticks
                duration = max(duration, alone)
            else:
                f = max(subs[s, S.PIPE_FREE + q], t) + ticks
                subs[s, S.PIPE_FREE + q] = f
                subs[s, S.DENSITY + q] = 0
                duration = max(duration, f - t)
    if overtakes:
        subs[s, S.HEAD_FREE] = t + duration
        _put_off(st, s, pipe, duration)
    else:
        subs[s, S.PIPE_FREE + pipe] = t + (alone if p[P.MAX_RUN] == 1 else duration)
        if subs[s, S.OVERTAKEN_PIPE] == pipe + 1:
            subs[s, S.OVERTAKEN_PIPE] = 0
    subs[s, S.DENSITY + pipe] = min(256, busy * 256 // max(duration, 1))
    taken = code[pc, Col.REGISTERS]
    if taken > 0:
        _take_registers(st, s, t, max(duration, busy), taken * n // total)
    end = max(t + duration - interval + cycle, t + busy)
    following = t + busy if code[pc, Col.SPREAD] == 1 else end
    _issue_slots(st, w, s, t, busy, following)
    st.warp_states[Reason.SELECTED] += busy
    st.warps[w, W.ACCOUNTED] = t + busy
    _account(st, w, following, Reason.MATH_PIPE_THROTTLE)
    st.counters[Counter.INSTRUCTIONS] += slots
    st.counters[code[pc, Col.COUNTER]] += n
    st.counters[Counter.INST_OTHER] += slots - n
    if pipe < N_VECTOR_PIPES:
        st.counters[Counter.FMA_TICKS + pipe] += n * interval
    if code[pc, Col.LOADS] > 0:
        served = _stream_loads(st, w, t, code, pc, done, n, total)
        # They are issued ahead of the multiplies that need them: within the row, only a full queue holds it up.
        served -= p[P.MIO_QUEUE] if done + n < total else 0
        end = max(end, served)
        if served > following:
            _account(st, w, served, Reason.MIO_THROTTLE)
            following = served
    return t, end, following


@inner(inline=True)
def _stream_loads(st, w, t, code, pc, done, n, total):
    """Books the shared-memory loads that go with instructions `done` to `done + n` of row `pc`.

    Returns the tick at which the array has served them. They are spread over the row, so that the array has room for
    others between them: they wait only for its bandwidth.
    """
    background = st.sms[st.warps[w, W.SM], M.BACKGROUND_FREE]
    begin = max(background, t)
    end = begin + _part(code[pc, Col.SHARED], done, n, total)
    st.sms[st.warps[w, W.SM], M.BACKGROUND_FREE] = end
    loads = _part(code[pc, Col.LOADS], done, n, total)
    st.counters[Counter.INST_SHARED] += loads
    st.counters[Counter.INST_OTHER] -= loads
    st.counters[Counter.SHARED_READ_BYTES] += _part(code[pc, Col.BYTES], done, n, total)
    st.counters[Counter.SHARED_CONFLICT_TICKS] += _part(code[pc, Col.CONFLICTS], done, n, total)
    return end


@inner(inline=True)
def _contend(p, st, s, sm, w, tick, pipe, tried):
    """Puts warp `w` among those that wait to issue on a pipe of sub-core `s`, from `tick` on. Returns its key.

    tried: whether it has found no room, and is ranked by the policy."""
    subs, i = st.subs, st.subs[s, S.CONTENDERS]
    subs[s, S.CONTENDERS] = i + 1
    rank = _rank(p, st, w)
    st.contenders[s, i, T.TICK] = tick
    st.contenders[s, i, T.WARP] = w
    st.contenders[s, i, T.LEAF] = st.warps[w, W.LEAF]
    st.contenders[s, i, T.PIPE] = pipe
    st.contenders[s, i, T.RANK] = rank
    st.contenders[s, i, T.REASON] = st.warps[w, W.REASON]
    st.contenders[s, i, T.TRIED] = tried
    priority = _priority(p, st, s, sm, w, rank) if tried != 0 else 32
    return (tick << TIME_SHIFT) | (priority << ID_BITS) | w


@inner(inline=True)
def _leave_line(st, s, w, t):
    """Takes warp `w`, the first in line, from the contenders of sub-core `s`."""
    last = st.subs[s, S.CONTENDERS] - 1
    i = 0
    while st.contenders[s, i, T.WARP] != w:
        i += 1
    _account(st, w, t, st.contenders[s, i, T.REASON])
    for c in range(T.WIDTH):
        st.contenders[s, i, c] = st.contenders[s, last, c]
    st.subs[s, S.CONTENDERS] = last
    st.subs[s, S.FIRST] = 0
    st.subs[s, S.FIRST_KEY] = NEVER


@inner(inline=True)
def _next_in_line(p, st, s, sm, t):
    """Announces the event of the contender of sub-core `s` that tries first, from tick `t`, the present, on.

    The others have none: they would find their pipe or all issue slots taken, or are ranked behind it by the policy.
    """
    subs = st.subs
    if subs[s, S.CONTENDERS] == 0:
        return
    density, earliest = _running(subs, s, t)
    if density <= FULL:
        earliest = t
    first = NEVER
    leaf = 0
    for i in range(subs[s, S.CONTENDERS]):
        w = st.contenders[s, i, T.WARP]
        pipe = st.contenders[s, i, T.PIPE]
        tick = max(t, st.contenders[s, i, T.TICK])
        free = subs[s, S.PIPE_FREE + pipe]
        reason = Reason.MATH_PIPE_THROTTLE
        if free > tick and _may_overtake(p, st, s, w, pipe):
            free = subs[s, S.HEAD_FREE]
        elif earliest > max(free, tick):
            free = earliest
            reason = Reason.NOT_SELECTED
        if free > tick:
            tick = free
            st.contenders[s, i, T.REASON] = reason
            st.contenders[s, i, T.TRIED] = 1
        st.contenders[s, i, T.TICK] = tick
        priority = 32
        if st.contenders[s, i, T.TRIED] != 0:
            priority = _priority(p, st, s, sm, w, st.contenders[s, i, T.RANK])
        key = (tick << TIME_SHIFT) | (priority << ID_BITS) | w
        if key < first:
            first = key
            leaf = st.contenders[s, i, T.LEAF]
    if first == NEVER:
        return
    w = first & ID_MASK
    _prefetch_warp(st, w)
    before = subs[s, S.FIRST] - 1
    if before >= 0 and before != w:
        _set_due(st.due, st.warps[before, W.LEAF], NEVER)
    subs[s, S.FIRST] = w + 1
    subs[s, S.FIRST_KEY] = first
    _announce(st, first, leaf, sm)


@inner(inline=True)
def _slot_free(p, subs, s, t):
    """Tick from which a memory instruction finds an issue slot of sub-core `s`.

    It issues beside the ops that run, whatever share of the slots these take. But slots that are booked beyond the end
    of all of them, with none left idle before, are given once: `BACKLOG` bounds how far the account is ahead."""
    free = subs[s, S.CURSOR] - BACKLOG
    if free <= t or subs[s, S.IDLE] > 0:
        return t
    for q in range(N_PIPES):
        if subs[s, S.PIPE_FREE + q] >= free:
            return t
    return free


@inner(inline=True)
def _issue_one(p, st, w, s, t):
    """Issues one control instruction; returns the tick after it."""
    cycle = p[P.CYCLE]
    _issue_slots(st, w, s, t, cycle, t + cycle)
    st.warp_states[Reason.SELECTED] += cycle
    st.warps[w, W.ACCOUNTED] = t + cycle
    st.warps[w, W.REASON] = Reason.WAIT
    st.counters[Counter.INSTRUCTIONS] += 1
    st.counters[Counter.INST_OTHER] += 1
    return t + cycle


@inner(inline=True)
def _set_ready(st, w, slot, tick, reason):
    """Ready slot `slot`: when what was issued last into it can be used."""
    st.warps[w, W.READY + slot] = tick << REASON_BITS | reason


@inner(inline=True)
def _add_ready(st, w, slot, tick, reason):
    """Scoreboard `slot` counts what is in flight.

    It is ready when the last of several ops has completed, in whatever order.
    """
    if tick > st.warps[w, W.READY + slot] >> REASON_BITS:
        _set_ready(st, w, slot, tick, reason)


@inner(inline=True)
def _set_tile(st, w, tile, first, last, reason):
    """Register tile `tile`: when its first and its last element can be read."""
    _set_ready(st, w, N_SCOREBOARDS + tile, last, reason)
    _set_ready(st, w, N_SCOREBOARDS + N_TILES + tile, first, reason)


@inner(inline=True)
def _global_access(p, prog, st, ms, mem, w, s, now, t, pc, kind):
    """LDG, STG, RED and cp.async: as many instructions of row `pc` as fit one event. Returns the tick at which to
    come back.

    now: tick from which what SMs share is booked. When the row is finished the program counter moves on; else the warp
    comes back for the rest.
    """
    code, warps, sms = prog.code, st.warps, st.sms
    total = code[pc, Col.COUNT]
    sm = warps[w, W.SM]
    cycle = p[P.CYCLE]
    queue = p[P.LG_QUEUE]
    free = _slot_free(p, st.subs, s, t)
    if free > t:
        _account(st, w, free, Reason.NOT_SELECTED)
        return free
    if warps[w, W.LEFT] == 0:
        _locate_box(prog, warps, st.stack, w, code[pc, Col.BOX])
        warps[w, W.LEFT] = total
        warps[w, W.T_ISSUE] = t
        warps[w, W.T_DONE] = t
    busy = sms[sm, M.LSU_FREE]
    changes = kind == Kind.STG or kind == Kind.RED
    cached = kind == Kind.LDG or kind == Kind.STG  # in the L1
    if changes:
        # No more stores are on their way than entries: memory that takes no more stops the warps.
        busy = max(busy, sms[sm, M.WRITE_FREE], st.stores[sm, sms[sm, M.STORE_HEAD]])
    if busy > t + queue:
        _account(st, w, busy - queue, Reason.LG_THROTTLE)
        return busy - queue
    left = warps[w, W.LEFT]
    row_bytes = warps[w, W.ROW_BYTES]
    rows = warps[w, W.ROWS]
    # Bytes of the (clipped) box that one instruction moves.
    share = (rows * row_bytes + total - 1) // total
    n = 0
    lines = 0
    # What the event counts, in sectors but for bytes and lines: asked of the L1, found there, brought by the port.
    asked, hit, brought, brought_lines, moved_bytes = 0, 0, 0, 0, 0
    lsu = max(sms[sm, M.LSU_FREE], t)
    sector_ticks, ways, policy = p[P.L1_SECTOR_TICKS], p[P.L1_WAYS], p[P.L1_REPLACEMENT]
    done = warps[w, W.T_DONE]
    row = warps[w, W.ROW]
    offset = warps[w, W.OFFSET]
    stride = warps[w, W.ROW_STRIDE]
    base = warps[w, W.BASE]
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
                    ahead = _prefetch_lines(
                        p, st, ms, mem, sm, cached, changes, base, row, rows, stride, row_bytes, offset, rest
                    )
                    k = 0
            mask = _sector_mask(address, end)
            sectors = count_sectors(mask)
            touched += 1
            at = lsu
            lsu += max(cycle, sectors * sector_ticks)
            moved_bytes += end - address
            if kind == Kind.LDG or kind == Kind.CP_ASYNC:
                data = at
                missing = mask
                cache_set = 0
                way = 0
                word = 0
                if kind == Kind.LDG:
                    cache_set = st.l1_ahead[k]
                    way = _l1_find(st, policy, ways, cache_set, line)
                    word = st.l1_lines[cache_set, way]
                    missing = mask & ~word
                    data = word >> L1_READY_SHIFT
                    asked += sectors
                if missing != 0:
                    entry = _entry(st.misses, sms, sm, M.MISS_HEAD, at)
                    begin = max(at, st.misses[sm, entry])
                    answer = _port_read(p, sms, st.gpcs, ms, mem, sm, now, begin, line, missing, k)
                    answer = _port_receive(p, sms, sm, begin, answer, missing)
                    brought += count_sectors(missing)
                    brought_lines += 1
                    if kind == Kind.CP_ASYNC:
                        answer += p[P.CP_ASYNC_LATENCY]
                        sms[sm, M.SHARED_FREE] = max(sms[sm, M.SHARED_FREE], t) + p[P.SHARED_TICKS]
                    _take_entry(st.misses, sms, sm, M.MISS_HEAD, entry, answer)
                    data = max(data, answer)
                    if kind == Kind.LDG:
                        st.l1_lines[cache_set, way] = (data << L1_READY_SHIFT) | (word & L1_SECTORS) | missing
                else:
                    hit += sectors
                    data = max(data, at + p[P.L1_HIT])
                done = max(done, data)
            else:
                red = kind == Kind.RED
                if not red:
                    _l1_write(st, policy, ways, st.l1_ahead[k], address, end, at)
                answer = _port_write(p, sms, st.counters, ms, mem, sm, at, address, end, red, k)
                _take_entry(st.stores, sms, sm, M.STORE_HEAD, sms[sm, M.STORE_HEAD], answer)
                done = max(done, answer)
            moved += end - address
            offset += end - address
            if offset >= row_bytes:
                row += 1
                offset = 0
        lines += max(touched, 1)
        if touched == 0:  # wholly outside the tensor: predicated off
            lsu += cycle
    warps[w, W.ROW] = row
    warps[w, W.OFFSET] = offset
    warps[w, W.T_DONE] = done
    sms[sm, M.LSU_FREE] = lsu
    slots = _part(code[pc, Col.ISSUE], total - left, n, total)
    busy = slots * cycle
    after = t + max(busy, n * code[pc, Col.INTERVAL])
    _issue_slots(st, w, s, t, busy, t + busy)
    st.warp_states[Reason.SELECTED] += busy
    warps[w, W.ACCOUNTED] = t + busy
    _account(st, w, after, Reason.LG_THROTTLE)
    st.counters[Counter.INSTRUCTIONS] += slots
    st.counters[Counter.INST_GLOBAL] += n
    st.counters[Counter.INST_OTHER] += slots - n
    loads = kind == Kind.LDG or kind == Kind.CP_ASYNC
    st.counters[Counter.GLOBAL_READ_BYTES if loads else Counter.GLOBAL_WRITE_BYTES] += moved_bytes
    st.counters[Counter.L1_READ_SECTORS] += asked
    st.counters[Counter.L1_HIT_SECTORS] += hit
    _count_reads(st.counters, brought_lines, brought, brought)
    warps[w, W.LEFT] = left - n
    if left > n:
        return after
    warps[w, W.PC] = pc + 1
    if kind == Kind.LDG:
        if code[pc, Col.SLOT] >= 0:
            _add_ready(st, w, code[pc, Col.SLOT], done, Reason.LONG_SCOREBOARD)
        if code[pc, Col.TILE] >= 0:
            _set_tile(st, w, code[pc, Col.TILE], done, done, Reason.LONG_SCOREBOARD)
    elif kind == Kind.CP_ASYNC:
        warps[w, W.CP_LAST] = max(warps[w, W.CP_LAST], done)
    else:
        warps[w, W.STORES] = max(warps[w, W.STORES], done)
        st.x[X.LAST_STORE] = max(st.x[X.LAST_STORE], done)
    read = done if kind == Kind.CP_ASYNC or kind == Kind.LDG else after
    _log(st.log, st, w, code[pc, Col.OP], warps[w, W.T_ISSUE], read, done, 0)
    return after


@inner(inline=True)
def _step(p, prog, st, ms, mem, w, t):
    """Runs warp `w` from tick `t` until it waits or another component is due first.

    What concerns its SM alone goes on although another SM is due, for up to `P.LOOKAHEAD` ticks: less than an SM needs
    to reach another. Returns the tick of its next event, PARKED if somebody else has to wake it.
    """
    code, warps, x = prog.code, st.warps, st.x
    s = warps[w, W.SUB]
    sm = warps[w, W.SM]
    slot = warps[w, W.CTA]
    cycle = p[P.CYCLE]
    log = st.log
    checked = t
    ahead = False
    horizon = t + p[P.LOOKAHEAD]
    soon = t + p[P.SLACK]
    x[X.NEW] = 0
    first = st.subs[s, S.FIRST] == w + 1  # of the contenders of its sub-core
    if first:
        _leave_line(st, s, w, t)
    line = p[P.MAX_RUN] > 1  # in single issue each try is an event of its own
    contends = False
    hand_over = False
    while True:
        if hand_over:
            first = False
            hand_over = False
            _next_in_line(p, st, s, sm, x[X.NOW])
        if contends:
            return SCHEDULED if st.subs[s, S.FIRST] == w + 1 else PARKED
        pc = warps[w, W.PC]
        kind = code[pc, Col.KIND]
        if kind <= Kind.ASSIGN:  # of this warp alone, and no time
            if kind == Kind.NEXT:
                warps[w, W.VARS + code[pc, Col.VAR2]] -= 1
                if warps[w, W.VARS + code[pc, Col.VAR2]] > 0:
                    warps[w, W.VARS + code[pc, Col.VAR]] += _evaluate(prog, warps, st.stack, w, code[pc, Col.STEP])
                    warps[w, W.PC] = code[pc, Col.JUMP]
                else:
                    warps[w, W.PC] = pc + 1
            elif kind == Kind.LOOP:
                trips = _evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
                if trips > 0:
                    warps[w, W.VARS + code[pc, Col.VAR]] = _evaluate(prog, warps, st.stack, w, code[pc, Col.START])
                    warps[w, W.VARS + code[pc, Col.VAR2]] = trips
                    warps[w, W.PC] = pc + 1
                else:
                    warps[w, W.PC] = code[pc, Col.JUMP]
            else:
                warps[w, W.VARS + code[pc, Col.VAR]] = _evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
                warps[w, W.PC] = pc + 1
            continue

        mask = code[pc, Col.WAIT_MASK]
        if mask != 0 and warps[w, W.LEFT] == 0:
            need = t
            why = 0
            while mask != 0:
                i = lowest_bit(mask)
                mask &= mask - 1
                ready = warps[w, W.READY + i]
                if ready >> REASON_BITS > need:
                    need = ready >> REASON_BITS
                    why = ready & ((1 << REASON_BITS) - 1)
            if need > t:
                _account(st, w, need, why)
                t = need
                hand_over = first
                continue

        chip = (CHIP_KINDS >> kind) & 1
        if t != checked or x[X.NEW] != 0 or (ahead and chip != 0):
            key = (t << TIME_SHIFT) | (32 << ID_BITS) | w
            ahead = key >= x[X.LIMIT]
            if ahead and (chip != 0 or key >= x[X.SM_LIMIT] or t > horizon):
                if line and (kind == Kind.RUN or kind == Kind.SHARED):
                    contends = True
                    hand_over = _contend(p, st, s, sm, w, t, code[pc, Col.PIPE], 0) < st.subs[s, S.FIRST_KEY]
                    continue
                if not line or t > soon or (AHEAD_KINDS >> kind) & 1 == 0:
                    return t
            checked = t
            x[X.NEW] = 0
        if kind == Kind.RUN or kind == Kind.SHARED:
            total = code[pc, Col.COUNT]
            if kind == Kind.SHARED:
                queued = st.sms[sm, M.SHARED_FREE]
                if not line and code[pc, Col.BYTES_COUNTER] == Counter.SHARED_WRITE_BYTES:
                    # Stores queue behind spread loads, which else would starve. A run books all of its loads ahead, so
                    # that in runs these hold up nobody.
                    queued = st.sms[sm, M.BACKGROUND_FREE]
                if queued > t + p[P.MIO_QUEUE]:
                    _account(st, w, queued - p[P.MIO_QUEUE], Reason.MIO_THROTTLE)
                    t = queued - p[P.MIO_QUEUE]
                    hand_over = first
                    continue
            fresh = warps[w, W.LEFT] == 0
            if fresh:
                warps[w, W.LEFT] = total
            # A spread op is one run in every mode: single issue would need the order that the compiler gave it.
            n = warps[w, W.LEFT] if code[pc, Col.SPREAD] == 1 else min(warps[w, W.LEFT], p[P.MAX_RUN])
            start, issued, following = _issue_run(p, prog, st, w, s, t, pc, n, total)
            if start > t:
                if fresh:
                    warps[w, W.LEFT] = 0
                # Contended: the policy decides who goes first at that tick.
                if not line:
                    _schedule_warp(st, start, _priority(p, st, s, sm, w, _rank(p, st, w)), w)
                    return SCHEDULED
                contends = True
                hand_over = _contend(p, st, s, sm, w, start, code[pc, Col.PIPE], 1) < st.subs[s, S.FIRST_KEY]
                continue
            hand_over = first or st.subs[s, S.FIRST_KEY] < following << TIME_SHIFT
            interval = code[pc, Col.INTERVAL]
            latency = code[pc, Col.LATENCY]
            if fresh:
                warps[w, W.T_ISSUE] = t
            if kind == Kind.SHARED:
                begin = max(st.sms[sm, M.SHARED_FREE], t)
                work = n * code[pc, Col.SHARED]
                st.sms[sm, M.SHARED_FREE] = begin + work
                st.sms[sm, M.BACKGROUND_FREE] = max(st.sms[sm, M.BACKGROUND_FREE], t) + work
                st.counters[code[pc, Col.BYTES_COUNTER]] += n * code[pc, Col.BYTES]
                st.counters[Counter.SHARED_CONFLICT_TICKS] += n * code[pc, Col.CONFLICTS]
                end = max(begin + work, issued)
                last = end + latency
                foremost = last
                if code[pc, Col.BYTES_COUNTER] == Counter.SHARED_WRITE_BYTES:
                    warps[w, W.SHARED_WRITTEN] = max(warps[w, W.SHARED_WRITTEN], last)
                reason = Reason.SHORT_SCOREBOARD
            else:
                last = issued - cycle + latency
                # What reads memory has no first element before the last: its operands are in flight to its end.
                foremost = last if code[pc, Col.LOADS] > 0 else warps[w, W.T_ISSUE] + latency
                reason = Reason.WAIT
                if code[pc, Col.MACS] > 0:
                    st.counters[code[pc, Col.MACS_COUNTER]] += n * code[pc, Col.MACS]
                    st.counters[Counter.TENSOR_TICKS] += (
                        n * interval * (1 if code[pc, Col.MACS_COUNTER] == Counter.MACS_TENSOR else 0)
                    )
            warps[w, W.LEFT] -= n
            t = following
            if warps[w, W.LEFT] > 0:
                continue
            if code[pc, Col.SLOT] >= 0:
                _add_ready(st, w, code[pc, Col.SLOT], last, reason)
            if code[pc, Col.TILE] >= 0:
                _set_tile(st, w, code[pc, Col.TILE], foremost, last, reason)
            logged = _log(log, st, w, code[pc, Col.OP], warps[w, W.T_ISSUE], issued, last, 0)
            if code[pc, Col.SPREAD] == 1 and code[pc, Col.TILE] >= 0 and code[pc, Col.SLOT] < 0:
                _let_overtake(st, s, w, code[pc, Col.PIPE], code[pc, Col.TILE], logged)
            warps[w, W.PC] = pc + 1

        elif kind == Kind.WGMMA:
            subs = st.subs
            _serve(warps, subs, st.log, s, t)
            warps[w, W.WG_AWAITED] = 0
            if warps[w, W.LEFT] != 0:  # its instructions issue as the tensor core takes those before them
                left = p[P.WGMMA_IN_FLIGHT] * code[pc, Col.INTERVAL]
                if warps[w, W.WG_LEFT] > left:
                    t = _await_wgmma(st, w, s, left, 0, Reason.MATH_PIPE_THROTTLE)
                    continue
                warps[w, W.LEFT] = 0
                warps[w, W.PC] = pc + 1
                continue
            at = _wgmma_place(warps[w, W.WG_ISSUED])
            if warps[w, W.WG_ISSUED] - warps[w, W.WG_DONE] == N_RING:
                left = warps[w, W.WG_ASKED] - warps[w, W.WG_END + at]
                t = _await_wgmma(st, w, s, left, 0, Reason.MATH_PIPE_THROTTLE)
                continue
            n = code[pc, Col.COUNT]
            work = n * code[pc, Col.INTERVAL]
            free = max(t, subs[s, S.PIPE_FREE + Pipe.TENSOR])
            work += _registers_taken(subs, s, free, work)
            if subs[s, S.WG_WARPS] == 0:
                subs[s, S.WG_NOW] = free
            if warps[w, W.WG_LEFT] == 0:
                subs[s, S.WG_WARP + subs[s, S.WG_WARPS]] = w
                subs[s, S.WG_WARPS] += 1
            warps[w, W.WG_LEFT] += work
            end = _served_at(warps, subs, s, warps[w, W.WG_LEFT])
            # Operands stream from shared memory; its array is shared with TMA and the LSU.
            shared = max(st.sms[sm, M.BACKGROUND_FREE], t) + n * code[pc, Col.SHARED]
            st.sms[sm, M.BACKGROUND_FREE] = shared
            if shared > end:
                warps[w, W.WG_LEFT] += shared - end
                work += shared - end
                end = shared
            warps[w, W.WG_ASKED] += work
            subs[s, S.PIPE_FREE + Pipe.TENSOR] = free + work
            subs[s, S.DENSITY + Pipe.TENSOR] = 0
            warps[w, W.WG_END + at] = warps[w, W.WG_ASKED]
            warps[w, W.WG_TICK + at] = code[pc, Col.LATENCY]
            warps[w, W.WG_ISSUED] += 1
            warps[w, W.LEFT] = 1
            busy = code[pc, Col.ISSUE] * cycle
            _issue_slots(st, w, s, t, busy, t + busy)
            st.warp_states[Reason.SELECTED] += busy
            warps[w, W.ACCOUNTED] = t + busy
            warps[w, W.REASON] = Reason.WAIT
            st.counters[Counter.INSTRUCTIONS] += code[pc, Col.ISSUE]
            st.counters[Counter.INST_TENSOR] += n
            st.counters[Counter.INST_OTHER] += code[pc, Col.ISSUE] - n
            st.counters[Counter.MACS_TENSOR] += n * code[pc, Col.MACS]
            st.counters[Counter.TENSOR_TICKS] += n * code[pc, Col.INTERVAL]
            st.counters[Counter.SHARED_READ_BYTES] += n * code[pc, Col.BYTES]
            logged = _log(log, st, w, code[pc, Col.OP], t, end, end + code[pc, Col.LATENCY], 0)
            if log is not None:
                warps[w, W.WG_ROW + at // 2] = logged
            if subs[s, S.WG_WARPS] > 1:
                _put_off_waits(st, s, w)
            t += busy
            left = p[P.WGMMA_IN_FLIGHT] * code[pc, Col.INTERVAL]
            if _served_at(warps, subs, s, warps[w, W.WG_LEFT] - left) > t:
                t = _await_wgmma(st, w, s, left, 0, Reason.MATH_PIPE_THROTTLE)

        elif kind == Kind.WGMMA_WAIT:
            if warps[w, W.LEFT] == 0:
                warps[w, W.LEFT] = 1
                warps[w, W.T_ISSUE] = t
                t = _issue_one(p, st, w, s, t)
                continue
            groups = warps[w, W.WG_N] - code[pc, Col.VALUE]
            ops = warps[w, W.WG_RING + (groups - 1) % N_RING] if groups > 0 else 0
            at = _wgmma_place(ops - 1)
            _serve(warps, st.subs, st.log, s, t)
            warps[w, W.WG_AWAITED] = 0
            if ops > warps[w, W.WG_DONE]:
                left = warps[w, W.WG_ASKED] - warps[w, W.WG_END + at]
                t = _await_wgmma(st, w, s, left, warps[w, W.WG_TICK + at], Reason.GMMA)
                continue
            if ops > 0 and warps[w, W.WG_ISSUED] - ops < N_RING and warps[w, W.WG_TICK + at] > t:
                t = warps[w, W.WG_TICK + at]
                _account(st, w, t, Reason.GMMA)
            warps[w, W.LEFT] = 0
            warps[w, W.PC] = pc + 1
            _log(log, st, w, code[pc, Col.OP], warps[w, W.T_ISSUE], t, t, 0)

        elif kind == Kind.MBAR_WAIT:
            b = code[pc, Col.BAR] + _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
            phase = _evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
            row = slot * p[P.BARRIERS] + b
            issued = t
            t = _issue_one(p, st, w, s, t)
            warps[w, W.PC] = pc + 1
            if st.bars[row, B.PHASE] <= phase:
                st.bars[row, B.WAITERS] += 1
                _park(st, w, Block.MBARRIER, b, phase, code[pc, Col.OP], issued)
                return PARKED
            if st.bars[row, B.PHASE] == phase + 1 and st.bars[row, B.DONE] + p[P.WAIT_LATENCY] > t:
                t = st.bars[row, B.DONE] + p[P.WAIT_LATENCY]
                _account(st, w, t, Reason.MBARRIER)
            _log(log, st, w, code[pc, Col.OP], issued, t, t, (phase << PHASE_SHIFT) | b)

        elif kind == Kind.MBAR_ARRIVE or kind == Kind.MBAR_EXPECT:
            b = code[pc, Col.BAR] + _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
            t = _issue_one(p, st, w, s, t)
            _log(log, st, w, code[pc, Col.OP], t, t, t, 0)
            warps[w, W.PC] = pc + 1
            if kind == Kind.MBAR_EXPECT:
                size_bytes = _evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
                _barrier_arrive(p, prog, st, slot, b, 1, size_bytes, t, t)
            elif code[pc, Col.MASK] < 0:
                _barrier_arrive(p, prog, st, slot, b, 1, 0, t + p[P.ARRIVE_LATENCY], t)
            else:
                ranks = _evaluate(prog, warps, st.stack, w, code[pc, Col.MASK])
                for rank in range(8):
                    if (ranks >> rank) & 1:
                        other = _peer(st, slot, rank)
                        if other == slot:
                            _barrier_arrive(p, prog, st, slot, b, 1, 0, t + p[P.ARRIVE_LATENCY], t)
                        elif other >= 0:
                            _barrier_arrive(p, prog, st, other, b, 1, 0, t + p[P.REMOTE_ARRIVE], t)

        elif kind == Kind.TMA_LOAD:
            b = code[pc, Col.BAR] + _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
            ranks = -1
            if code[pc, Col.MASK] >= 0:
                ranks = _evaluate(prog, warps, st.stack, w, code[pc, Col.MASK])
            _locate_box(prog, warps, st.stack, w, code[pc, Col.BOX])
            if not _tma_enqueue(p, st, w, code[pc, Col.OP], 0, b, ranks, code[pc, Col.BYTES], 0, t):
                # The queue drains one box at a time; look again after the head's next event.
                tick = max(t + 64 * cycle, st.queue_at[sm, 2])
                _account(st, w, tick, Reason.LG_THROTTLE)
                t = tick
                continue
            st.counters[Counter.GLOBAL_READ_BYTES] += warps[w, W.ROWS] * warps[w, W.ROW_BYTES]
            t = _issue_one(p, st, w, s, t)
            warps[w, W.PC] = pc + 1

        elif kind == Kind.TMA_STORE or kind == Kind.TMA_REDUCE:
            _locate_box(prog, warps, st.stack, w, code[pc, Col.BOX])
            reduce = 1 if kind == Kind.TMA_REDUCE else 0
            if not _tma_enqueue(p, st, w, code[pc, Col.OP], 1, -1, -1, code[pc, Col.BYTES], reduce, t):
                tick = max(t + 64 * cycle, st.queue_at[p[P.SMS] + sm, 2])
                _account(st, w, tick, Reason.LG_THROTTLE)
                t = tick
                continue
            warps[w, W.TICKET] += 1
            t = _issue_one(p, st, w, s, t)
            warps[w, W.PC] = pc + 1

        elif kind == Kind.LDG or kind == Kind.STG or kind == Kind.RED or kind == Kind.CP_ASYNC:
            t = _global_access(p, prog, st, ms, mem, w, s, x[X.NOW] if ahead else t, t, pc, kind)

        elif kind == Kind.EXIT:
            if warps[w, W.WG_LEFT] > 0:
                _serve(warps, st.subs, st.log, s, t)
                if warps[w, W.WG_LEFT] > 0:
                    t = _await_wgmma(st, w, s, 0, 0, Reason.GMMA)
                    continue
            if warps[w, W.TICKET] > 0:  # bulk stores must have read shared memory before the CTA goes
                _park(st, w, Block.BULK, 1, warps[w, W.BULK_N], -1, t)
                return PARKED
            # Its slot may at once get a warp of the next CTA, with an event of its own.
            _set_due(st.due, warps[w, W.LEAF], NEVER)
            _exit(p, prog, st, ms, mem, w, t)
            return SCHEDULED

        else:
            tick = _sync_op(p, prog, st, w, s, t, pc, kind)
            if tick == PARKED:
                return PARKED
            t = tick


@inner(inline=True)
def _sync_op(p, prog, st, w, s, t, pc, kind):
    """Groups, named barriers, cluster barriers, tile counters and flags.

    Returns the tick after it, PARKED if the warp has to wait.
    """
    code, warps, x = prog.code, st.warps, st.x
    slot = warps[w, W.CTA]
    op = code[pc, Col.OP]
    log = st.log
    warps[w, W.PC] = pc + 1
    issued = t
    t = _issue_one(p, st, w, s, t)

    if kind == Kind.WGMMA_COMMIT:
        warps[w, W.WG_RING + warps[w, W.WG_N] % N_RING] = warps[w, W.WG_ISSUED]
        warps[w, W.WG_N] += 1
    elif kind == Kind.CP_COMMIT:
        warps[w, W.CP_RING + warps[w, W.CP_N] % N_RING] = warps[w, W.CP_LAST]
        warps[w, W.CP_N] += 1
    elif kind == Kind.CP_WAIT:
        n = warps[w, W.CP_N] - code[pc, Col.VALUE]
        if n > 0:
            tick = warps[w, W.CP_RING + (n - 1) % N_RING]
            if tick > t:
                _account(st, w, tick, Reason.CP_ASYNC)
                t = tick
    elif kind == Kind.CP_ARRIVE:
        b = code[pc, Col.BAR] + _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
        _barrier_arrive(p, prog, st, slot, b, 1, 0, max(t, warps[w, W.CP_LAST]) + p[P.ARRIVE_LATENCY], t)
    elif kind == Kind.BULK_COMMIT:
        warps[w, W.BULK_N] += 1
    elif kind == Kind.BULK_WAIT or kind == Kind.BULK_WAIT_READ:
        group = warps[w, W.BULK_N] - 1 - code[pc, Col.VALUE]
        if group >= 0:
            pending = False
            q = p[P.SMS] + warps[w, W.SM]
            if warps[w, W.TICKET] > 0:
                for j in range(st.queue_at[q, 1]):
                    k = (st.queue_at[q, 0] + j) % TMA_QUEUE
                    if st.queues[q, k, Q.WARP] == w and st.queues[q, k, Q.GROUP] <= group:
                        pending = True
                        break
            if pending:
                _park(st, w, Block.BULK, 1 if kind == Kind.BULK_WAIT_READ else 0, group, op, issued)
                return PARKED
            ring = W.BULK_RING if kind == Kind.BULK_WAIT_READ else W.BULK_RING2
            tick = warps[w, ring + group % N_RING]
            if tick > t:
                _account(st, w, tick, Reason.TMA_STORE)
                t = tick
    elif kind == Kind.BAR_SYNC or kind == Kind.BAR_ARRIVE:
        b = _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
        expected = code[pc, Col.VALUE]
        named = st.named
        named[slot, b, 0] += 1
        # The barrier orders shared memory: a warp has arrived when its stores have been made.
        named[slot, b, 1] = max(named[slot, b, 1], max(t, warps[w, W.SHARED_WRITTEN]))
        if named[slot, b, 0] < expected:
            if kind == Kind.BAR_ARRIVE:
                _log(log, st, w, op, issued, t, t, 0)
                return t
            _park(st, w, Block.BAR_SYNC, b, 0, op, issued)
            return PARKED
        tick = named[slot, b, 1] + p[P.BARRIER_LATENCY] + expected * p[P.BARRIER_PER_WARP]
        named[slot, b, 0] = 0
        named[slot, b, 1] = 0
        first = st.ctas[slot, C.FIRST_WARP]
        for other in range(first, first + p[P.WARPS_PER_CTA]):
            if warps[other, W.BLOCK] == Block.BAR_SYNC and warps[other, W.BLOCK_A] == b:
                _wake(p, st, other, tick, Reason.BARRIER, t)
        if kind == Kind.BAR_SYNC:
            _account(st, w, tick, Reason.BARRIER)
            t = tick
    elif kind == Kind.CLUSTER_SYNC:
        size = p[P.CLUSTER_X] * p[P.CLUSTER_Y] * p[P.CLUSTER_Z]
        root = st.ctas[slot, C.PEERS]
        ctas = st.ctas
        ctas[root, C.SYNC_COUNT] += 1
        ctas[root, C.SYNC_TIME] = max(ctas[root, C.SYNC_TIME], t)
        if ctas[root, C.SYNC_COUNT] < size * p[P.WARPS_PER_CTA]:
            _park(st, w, Block.CLUSTER, 0, 0, op, issued)
            return PARKED
        tick = ctas[root, C.SYNC_TIME] + p[P.CLUSTER_LATENCY]
        ctas[root, C.SYNC_COUNT] = 0
        ctas[root, C.SYNC_TIME] = 0
        for rank in range(size):
            first = ctas[ctas[slot, C.PEERS + rank], C.FIRST_WARP]
            for other in range(first, first + p[P.WARPS_PER_CTA]):
                if other != w and warps[other, W.BLOCK] == Block.CLUSTER:
                    _wake(p, st, other, tick, Reason.CLUSTER_BARRIER, t)
        _account(st, w, tick, Reason.CLUSTER_BARRIER)
        t = tick
    elif kind == Kind.NEXT_TILE:
        n = warps[w, W.TILES]
        warps[w, W.TILES] = n + 1
        if n >= st.ctas[slot, C.TILES]:
            at = C.TILE_RING + 2 * (n % N_RING)
            st.ctas[slot, at] = x[X.TILE_COUNTER]
            st.ctas[slot, at + 1] = t + p[P.ATOMIC_LATENCY]
            x[X.TILE_COUNTER] += 1
            st.ctas[slot, C.TILES] = n + 1
        at = C.TILE_RING + 2 * (n % N_RING)
        value = st.ctas[slot, at]
        if st.ctas[slot, at + 1] > t:
            _account(st, w, st.ctas[slot, at + 1], Reason.LONG_SCOREBOARD)
            t = st.ctas[slot, at + 1]
        warps[w, W.VARS + code[pc, Col.VAR]] = value
        _log(log, st, w, op, issued, t, t, value)
        return t
    elif kind == Kind.FLAG_ADD:
        f = _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
        first = st.ctas[slot, C.FIRST_WARP]
        visible = t
        for other in range(first, first + p[P.WARPS_PER_CTA]):
            visible = max(visible, warps[other, W.STORES])
        if visible > t:
            _account(st, w, visible, Reason.MEMBAR)
            t = visible
        st.flags[f, 0] += 1
        st.flags[f, 1] = max(st.flags[f, 1], t + p[P.ATOMIC_LATENCY])
        i = 0
        while i < x[X.FLAG_WAITERS]:
            other = st.flag_waiters[i]
            if warps[other, W.BLOCK_A] == f and st.flags[f, 0] >= warps[other, W.BLOCK_B]:
                x[X.FLAG_WAITERS] -= 1
                st.flag_waiters[i] = st.flag_waiters[x[X.FLAG_WAITERS]]
                tick = st.flags[f, 1] + p[P.ATOMIC_LATENCY] // 2
                _wake(p, st, other, tick, Reason.SLEEPING, t)
            else:
                i += 1
    elif kind == Kind.FLAG_WAIT:
        f = _evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
        value = _evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
        if st.flags[f, 0] < value:
            _park(st, w, Block.FLAG, f, value, op, issued)
            st.flag_waiters[x[X.FLAG_WAITERS]] = w
            x[X.FLAG_WAITERS] += 1
            return PARKED
        tick = max(t + p[P.ATOMIC_LATENCY], st.flags[f, 1])
        _account(st, w, tick, Reason.LONG_SCOREBOARD)
        t = tick
    elif kind == Kind.FENCE and warps[w, W.SHARED_WRITTEN] > t:
        _account(st, w, warps[w, W.SHARED_WRITTEN], Reason.MEMBAR)
        t = warps[w, W.SHARED_WRITTEN]
    _log(log, st, w, op, issued, t, t, 0)
    return t


# ---- main loop


@kernel(announce="compiling the GPU engine, once, about half a minute; runs that record have a version of their own")
def advance(p, prog, st, ms, mem, until):
    """Processes all events up to tick `until`. Returns the tick of the next event, or -1 when none is left."""
    due, x = st.due, st.x
    if x[X.STARTED] == 0:
        x[X.STARTED] = 1
        _launch(p, prog, st, ms, mem, p[P.LAUNCH_START])
    warps = p[P.SMS] * p[P.WARPS_PER_SM]
    border = (until + 1) << TIME_SHIFT
    while due[1] < border:
        key = due[1]
        t = key >> TIME_SHIFT
        component = key & ID_MASK
        x[X.NOW] = t
        st.counters[Counter.EVENTS] += 1
        if component < warps:
            leaf = st.warps[component, W.LEAF]
            # The next event of its SM, and of all.
            limit = border
            node = leaf
            for _ in range(p[P.TREE_LEVELS]):
                limit = min(limit, due[node ^ 1])
                node >>= 1
            x[X.SM] = st.warps[component, W.SM]
            x[X.SM_LIMIT] = limit
            while node > 1:
                limit = min(limit, due[node ^ 1])
                node >>= 1
            x[X.LIMIT] = limit
            following = limit & ID_MASK  # most likely the next in turn: its row comes from far away
            if following < warps:
                _prefetch_warp(st, following)
                if p[P.WGMMA_IN_FLIGHT] > 0:
                    prefetch(st.warps, following * W.WIDTH + W.WG_LEFT)
            tick = _step(p, prog, st, ms, mem, component, t)
        elif component < warps + 2 * p[P.SMS]:
            sm = component - warps
            if sm < p[P.SMS]:
                leaf = _leaf(p, sm, p[P.WARPS_PER_SM])
                tick = _tma_loads(p, prog, st, ms, mem, sm, t)
            else:
                sm -= p[P.SMS]
                leaf = _leaf(p, sm, p[P.WARPS_PER_SM] + 1)
                tick = _tma_stores(p, st, ms, mem, sm, t)
        else:
            sm = component - warps - 2 * p[P.SMS]
            leaf = _leaf(p, sm, p[P.WARPS_PER_SM] + 2)
            tick = _fetch_code(p, st, ms, mem, sm, t)
        if tick == PARKED:
            _set_due(due, leaf, NEVER)
        elif tick != SCHEDULED:
            _set_due(due, leaf, (tick << TIME_SHIFT) | (32 << ID_BITS) | component)
    return -1 if due[1] == NEVER else due[1] >> TIME_SHIFT
