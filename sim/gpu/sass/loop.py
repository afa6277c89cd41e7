"""Time of compiled kernels: each sub-core issues one instruction of one warp a cycle, in an event of its own.

What an instruction waits for is known when the one before it has issued: the compiler's stall count, and the ticks at
which scoreboards are released, which are booked at issue as everything is. A sub-core has an event at the first cycle
in which one of its warps may issue; the machine's policy chooses among those that may.

Arguments as in `sim.gpu.engine.loop`; `x` is the program (`tables.SassProgram`), `i` the place of a warp in its
sub-core.
"""

from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import inner, kernel
from sim.engine.pack import packed
from sim.engine.prefetch import prefetch
from sim.gpu.counters import Counter
from sim.gpu.engine.cta_scheduler import exit_warp, place_clusters
from sim.gpu.engine.fetch import fetch_code
from sim.gpu.engine.global_memory import LoadStore, LoadStoreFigure
from sim.gpu.engine.own_loop import STOPPED
from sim.gpu.engine.tma import BulkGroups, load_lines, store_lines
from sim.gpu.lower.tables import N_VECTOR_PIPES, Pipe
from sim.gpu.sass.atomics import access_at_l2, access_in_shared
from sim.gpu.sass.bulk import (
    arrive_at_cluster,
    copy_bulk,
    meet_in_cluster,
    move_box,
    queue_room,
    synchronise,
    wait_for_cluster,
    wait_stores,
)
from sim.gpu.sass.bulk_cluster import bring_lines, is_in_cluster
from sim.gpu.sass.cluster_memory import access_cluster, access_generic
from sim.gpu.sass.flow import ENDED, active, following
from sim.gpu.sass.lanes import compute, lanes_of
from sim.gpu.sass.memory import (
    access_global,
    access_shared,
    blame,
    locate_shared,
    queue_free,
    reserve,
    write_copies,
)
from sim.gpu.sass.tables import (
    ALL_LANES,
    ASKED,
    LANES,
    Cell,
    Fault,
    FaultKind,
    Launched,
    Meaning,
    Scalar,
    Traced,
    Turn,
    Unit,
)
from sim.gpu.units.accounting import account, add_wait, charge_waits, issue_slots, leave_barrier
from sim.gpu.units.barriers import BarrierFigure, NamedBarrier, arrive_named
from sim.gpu.units.chip import Chip
from sim.gpu.units.cp_async import commit_copies, wait_copies
from sim.gpu.units.cta import Cta, CtaFigure, Grid
from sim.gpu.units.events import Reason
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.policies import Policy, SchedulerFigure, priority_of, rank_of
from sim.gpu.units.port import Port
from sim.gpu.units.record import log_op
from sim.gpu.units.shared import SharedFigure, SharedMemory
from sim.gpu.units.tensor import (
    TensorFigure,
    TensorWarp,
    book_products,
    commit_products,
    groups_done,
    note_log_row,
    products_over,
    products_room,
)
from sim.gpu.units.tree import FAR, ID_BITS, ID_MASK, NEVER, PARKED, SCHEDULED, TIME_SHIFT, leaf_of, set_due
from sim.gpu.units.tree import Turn as Event
from sim.gpu.units.warp import Block, Warp, add_ready, operands_ready

_SHARED_UNITS = 1 << Unit.LDS | 1 << Unit.STS | 1 << Unit.LDSM | 1 << Unit.STSM
_GLOBAL_UNITS = 1 << Unit.LDG | 1 << Unit.STG | 1 << Unit.RED | 1 << Unit.LDGSTS | 1 << Unit.ATOMG
_GENERIC_UNITS = 1 << Unit.LD | 1 << Unit.ST | 1 << Unit.ATOM
_CLUSTER_UNITS = 1 << Unit.STAS | 1 << Unit.REDAS
_BULK_UNITS = 1 << Unit.UBLKCP | 1 << Unit.UBLKRED
_TMA_UNITS = 1 << Unit.UTMALDG | 1 << Unit.UTMASTG | 1 << Unit.UTMAREDG | _BULK_UNITS
_FLOW_UNITS = (
    1 << Unit.BRANCH | 1 << Unit.JUMP | 1 << Unit.BSSY | 1 << Unit.BSYNC | 1 << Unit.BREAK | 1 << Unit.EXIT
    | 1 << Unit.WARPSYNC
)  # fmt: skip
_OWN_UNITS = (
    1 << Unit.MATH | 1 << Unit.UNIFORM | 1 << Unit.SPECIAL | 1 << Unit.SHUFFLE | 1 << Unit.NOTE
    | 1 << Unit.BRANCH | 1 << Unit.JUMP | 1 << Unit.BSSY | 1 << Unit.BSYNC | 1 << Unit.BREAK | 1 << Unit.WARPSYNC
    | 1 << Unit.COMMIT | 1 << Unit.GWAIT
)  # fmt: skip
"""Whose instructions neither change nor read what other sub-cores do."""


@inner(inline=True)
def _on_grid(tick):
    """The first cycle that begins at a tick or later."""
    return (tick + TICKS_PER_CYCLE - 1) // TICKS_PER_CYCLE * TICKS_PER_CYCLE


@inner(inline=True)
def _spend(x, st, w, row, tick, reason):
    """Books a warp's time up to a tick, also on the instruction that it is about to issue."""
    begin = st.warps[w, Warp.ACCOUNTED]
    if tick > begin:
        x.spent[row, reason] += tick - begin
    account(st, w, tick, reason)


@inner(inline=True)
def _call(p, x, st, s, tick):
    """Sees to an event of a sub-core at a tick or before."""
    sm = s // p[Chip.SUB_CORES]
    leaf = leaf_of(p, sm, p[Chip.WARPS_PER_SM] + 3 + s - sm * p[Chip.SUB_CORES])
    key = (tick << TIME_SHIFT) | (32 << ID_BITS) | (x.launch[Launched.FIRST_SUB_CORE] + s)
    if key < st.tree[leaf]:
        set_due(st.tree, leaf, key)


@inner(inline=True)
def _place(p, w):
    """The sub-core of a warp, and its place there."""
    sm = w // p[Chip.WARPS_PER_SM]
    number = w - sm * p[Chip.WARPS_PER_SM]
    i = number // p[Chip.SUB_CORES]
    return sm * p[Chip.SUB_CORES] + number - i * p[Chip.SUB_CORES], i


@inner
def _begin(p, x, st, w, t):
    """The first event of warp `w`: its lanes are those of the block, it is at the first row. Others wake it."""
    set_due(st.tree, st.warps[w, Warp.LEAF], NEVER)
    if x.scalars[w, Scalar.PARKED] != 0:
        _go_on(p, x, st, w, t)
        return
    for c in range(Scalar.WIDTH):
        x.scalars[w, c] = 0
    threads = x.launch[Launched.THREADS] - st.warps[w, Warp.NUMBER] * LANES
    lanes = ALL_LANES if threads >= LANES else (1 << threads) - 1
    x.scalars[w, Scalar.ACTIVE] = lanes
    x.scalars[w, Scalar.EXITED] = ALL_LANES & ~lanes
    x.scalars[w, Scalar.PREDICATE + 7] = ALL_LANES
    x.scalars[w, Scalar.UNIFORM_PREDICATE + 7] = ALL_LANES
    row = 0
    if x.trace.shape[0] > 0:
        first = st.ctas[st.warps[w, Warp.CTA], Cta.LINEAR] * p[Chip.WARPS_PER_CTA] + st.warps[w, Warp.NUMBER]
        x.scalars[w, Scalar.CURSOR] = x.trace_first[first]
        row = x.trace[x.trace_first[first], Traced.ROW]
    st.warps[w, Warp.PROGRAM_COUNTER] = row
    s, i = _place(p, w)
    _await(x, st, w, s, i, row, _on_grid(t))
    _call(p, x, st, s, _on_grid(t))


@inner(inline=True)
def _go_on(p, x, st, w, t):
    """What warp `w` has waited for has come about."""
    s, i = _place(p, w)
    parked, row = x.scalars[w, Scalar.PARKED], st.warps[w, Warp.PROGRAM_COUNTER]
    x.scalars[w, Scalar.PARKED] = 0
    if parked < 0:
        exit_warp(p, x, st, w, s, s // p[Chip.SUB_CORES], t)
        return
    x.spent[row - 1, x.scalars[w, Scalar.PARKED_REASON]] += t - (parked - 1)
    _spend(x, st, w, row, _on_grid(t), Reason.WAIT)
    _await(x, st, w, s, i, row, _on_grid(t))
    _call(p, x, st, s, x.turns[s, i, Turn.READY])


@inner(inline=True)
def _await(x, st, w, s, i, row, t):
    """Warp `w` is to issue `row`, at tick `t` at the earliest: notes from when its scoreboards let it."""
    ready, why = operands_ready(st, w, x.code[row, Cell.WAIT], t)
    x.turns[s, i, Turn.READY] = _on_grid(ready)
    x.turns[s, i, Turn.REASON] = why if ready > t else st.warps[w, Warp.REASON]
    x.turns[s, i, Turn.PIPE] = -1 if x.code[row, Cell.UNIT] == Unit.HGMMA else x.code[row, Cell.PIPE]
    if x.code[row, Cell.ASKED] >= 0:
        _ask(x, w, row)


@inner(inline=True)
def _ask(x, w, row):
    """Asks the host's caches for the registers that a row reads."""
    first = w * x.registers.shape[1]
    for k in range(ASKED):
        at = (first + x.code[row, Cell.ASKED + k]) * LANES
        prefetch(x.registers, at)
        prefetch(x.registers, at + LANES // 2)


@inner(inline=True)
def _earliest(p, x, st, s, i):
    """Cycle in which a warp may issue, as far as it and its pipe are concerned; FAR for none."""
    ready, pipe = x.turns[s, i, Turn.READY], x.turns[s, i, Turn.PIPE]
    if pipe < 0 or ready >= FAR:
        return ready
    return max(ready, _free(x, st, s, pipe))


@inner(inline=True)
def _free(x, st, s, pipe):
    """Cycle from which a pipe takes an instruction: that in which it is free, or its queue has a place."""
    if pipe == Pipe.LSU:
        return _on_grid(queue_free(x, s))
    return st.sub_cores[s, SubCore.PIPE_FREE + pipe] // TICKS_PER_CYCLE * TICKS_PER_CYCLE


@inner
def _choose(p, x, st, s, sm, t):
    """The place of the warp of a sub-core that issues at tick `t`, -1 for none. Of two to which the policy gives the
    same place the older one: it has few places."""
    best, several = -1, False
    for i in range(x.turns.shape[1]):
        if _earliest(p, x, st, s, i) <= t:
            several = best >= 0
            best = i
            if several:
                break
    if not several:
        return best
    first, oldest = 64, FAR
    base = sm * p[Chip.WARPS_PER_SM] + s - sm * p[Chip.SUB_CORES]
    for i in range(x.turns.shape[1]):
        if _earliest(p, x, st, s, i) <= t:
            w = base + i * p[Chip.SUB_CORES]
            rank = rank_of(p, st, w)
            priority = priority_of(p, st, s, sm, w, rank, x.turns[s, i, Turn.PIPE])
            if priority < first or (priority == first and rank < oldest):
                best, first, oldest = i, priority, rank
    return best


@inner
def _sub_core(p, x, st, ms, mem, s, t, until):
    """The event of a sub-core: an instruction issues, and those that follow as long as they concern nobody else and
    nobody else can concern them. Returns the tick of its next event, FAR for none."""
    sm = s // p[Chip.SUB_CORES]
    border = -1
    tick = t
    while True:
        following = _turn(p, x, st, ms, mem, s, sm, tick, tick > t)
        if following == tick or following > until:
            return following
        if border < 0:
            border = min(until + 1, _undisturbed(p, x, st, s, sm, t))
        if following >= border:
            return following
        tick = following


@inner(inline=True)
def _undisturbed(p, x, st, s, sm, t):
    """Tick before which no event from `t` on can let another warp of a sub-core issue: warps that wait at a barrier go
    on so much behind it, and those of a new CTA begin so much behind its start."""
    if p[SchedulerFigure.POLICY] > Policy.OLDEST:  # which may look at other warps of the SM
        return t
    border = FAR
    base = sm * p[Chip.WARPS_PER_SM] + s - sm * p[Chip.SUB_CORES]
    for i in range(x.turns.shape[1]):
        if x.turns[s, i, Turn.READY] >= FAR:
            w = base + i * p[Chip.SUB_CORES]
            begins = st.tree[leaf_of(p, sm, w - sm * p[Chip.WARPS_PER_SM])]
            latency = min(p[BarrierFigure.SYNC_LATENCY], p[CtaFigure.LAUNCH_LATENCY])
            if x.scalars[w, Scalar.PARKED] != 0:
                if st.warps[w, Warp.BLOCK] != Block.MBARRIER:
                    return t
                latency = p[BarrierFigure.WAIT_LATENCY]
            border = min(border, t + latency)
            border = border if begins == NEVER else min(border, begins >> TIME_SHIFT)
    return border


@inner
def _turn(p, x, st, ms, mem, s, sm, t, ahead):
    """The instruction of a sub-core that issues at tick `t`; ahead: of other events, so that it must be one of its own.
    Returns the tick of the next one, FAR for none, `t` where it has to wait for them."""
    if x.launch[Launched.PRODUCTS] != 0:
        _look_again(p, x, st, s, sm, t)
    i = _choose(p, x, st, s, sm, t)
    if i >= 0:
        w = sm * p[Chip.WARPS_PER_SM] + s - sm * p[Chip.SUB_CORES] + i * p[Chip.SUB_CORES]
        row = st.warps[w, Warp.PROGRAM_COUNTER]
        if ahead and (_OWN_UNITS >> x.code[row, Cell.UNIT]) & 1 == 0:
            return t
        room = _room(p, x, st, w, s, sm, t, row)
        if room > t:
            of_memory = ((_GLOBAL_UNITS | _GENERIC_UNITS) >> x.code[row, Cell.UNIT]) & 1
            reason = Reason.LG_THROTTLE if of_memory else Reason.MIO_THROTTLE
            if x.code[row, Cell.UNIT] == Unit.HGMMA:
                reason = Reason.MATH_PIPE_THROTTLE
            elif x.code[row, Cell.UNIT] == Unit.EXIT:
                reason = Reason.GMMA
            elif (_TMA_UNITS >> x.code[row, Cell.UNIT]) & 1:
                reason = Reason.LG_THROTTLE
            _spend(x, st, w, row, x.turns[s, i, Turn.READY], x.turns[s, i, Turn.REASON])
            x.turns[s, i, Turn.READY], x.turns[s, i, Turn.REASON] = _on_grid(room), reason
        else:
            _issue(p, x, st, ms, mem, w, s, sm, i, t, row)
    earliest = FAR
    for k in range(x.turns.shape[1]):
        earliest = min(earliest, _earliest(p, x, st, s, k))
    if i < 0 or earliest >= FAR:
        return earliest
    return max(earliest, t + TICKS_PER_CYCLE)


@inner
def _look_again(p, x, st, s, sm, t):
    """Puts off the warps of a sub-core that wait for products: others have issued some since they were told a tick."""
    base = sm * p[Chip.WARPS_PER_SM] + s - sm * p[Chip.SUB_CORES]
    for i in range(x.turns.shape[1]):
        if x.turns[s, i, Turn.GROUPS] > 0 and x.turns[s, i, Turn.READY] <= t:
            w = base + i * p[Chip.SUB_CORES]
            done = groups_done(st, w, s, t, x.turns[s, i, Turn.GROUPS] - 1)
            if st.warps[w, TensorWarp.AWAITED] == 0:
                x.turns[s, i, Turn.GROUPS] = 0
            if done > t:
                x.turns[s, i, Turn.READY], x.turns[s, i, Turn.REASON] = _on_grid(done), Reason.GMMA


@inner(inline=True)
def _room(p, x, st, w, s, sm, t, row):
    """Tick from which the queues that an instruction goes to have room for it."""
    unit = x.code[row, Cell.UNIT]
    sms = st.sms
    if (_GENERIC_UNITS >> unit) & 1:
        return max(
            sms[sm, SharedMemory.FREE] - p[SharedFigure.QUEUE], sms[sm, LoadStore.FREE] - p[LoadStoreFigure.QUEUE]
        )
    if ((_SHARED_UNITS | _CLUSTER_UNITS | 1 << Unit.ATOMS) >> unit) & 1:
        return sms[sm, SharedMemory.FREE] - p[SharedFigure.QUEUE]
    if (_GLOBAL_UNITS >> unit) & 1:
        busy = sms[sm, LoadStore.FREE]
        if unit == Unit.STG or unit == Unit.RED or unit == Unit.ATOMG:
            busy = max(busy, sms[sm, Port.WRITE_FREE], sms[sm, LoadStore.STORE_FREE])
        return busy - p[LoadStoreFigure.QUEUE]
    if unit == Unit.HGMMA:
        held = (p[TensorFigure.IN_FLIGHT_INSTRUCTIONS] - 1) * x.code[row, Cell.INTERVAL]
        return products_room(st, w, s, t, held, True)
    if unit == Unit.EXIT:
        return products_over(st, w, s, t)
    if (_TMA_UNITS >> unit) & 1:
        return queue_room(p, x, st, sm, row, t)
    return 0


@inner
def _issue(p, x, st, ms, mem, w, s, sm, i, t, row):
    """Warp `w` issues the instruction of a row at tick `t`."""
    code, warps = x.code, st.warps
    unit = code[row, Cell.UNIT]
    _account_wait(x, st, w, s, i, t, row)
    mask = active(x, w, row)
    if x.trace.shape[0] > 0:
        mask = x.trace[x.scalars[w, Scalar.CURSOR], Traced.MASK]
    x.issued[row, 0] += 1
    st.counters[Counter.INSTRUCTIONS] += 1
    end = t + code[row, Cell.STALL]
    following_row = row + 1
    if code[row, Cell.MEANING] != Meaning.NONE:
        compute(p, x, st, w, row, mask)
    read, done = end, end
    if unit == Unit.MATH:
        read = _on_pipe(x, st, w, s, t, row)
        done = read + code[row, Cell.LATENCY]
    elif unit == Unit.SPECIAL:
        _release_at(x, st, w, row, t + code[row, Cell.LATENCY], Reason.SHORT_SCOREBOARD)
    elif unit == Unit.SHUFFLE:
        start = reserve(x, st, s, t, code[row, Cell.INTERVAL])
        _release_at(x, st, w, row, start + code[row, Cell.LATENCY], Reason.SHORT_SCOREBOARD)
    elif (_SHARED_UNITS >> unit) & 1:
        access_shared(p, x, st, w, s, sm, t, row, mask)
    elif unit == Unit.ATOMS:
        if mask != 0:
            locate_shared(p, x, st, w, row)
        done = access_in_shared(p, x, st, w, s, sm, t, row, mask)
    elif unit == Unit.RED or unit == Unit.ATOMG:
        done = access_at_l2(p, x, st, ms, mem, w, s, sm, t, row, mask)
    elif (_GLOBAL_UNITS >> unit) & 1:
        if unit == Unit.LDGSTS:
            write_copies(p, x, st, w, sm, t, row, mask)
            if x.trace.shape[0] == 0:
                mask &= lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1])
        done = access_global(p, x, st, ms, mem, w, s, sm, t, row, mask)
    elif (_GENERIC_UNITS >> unit) & 1:
        done = access_generic(p, x, st, ms, mem, w, s, sm, t, row, mask)
    elif (_CLUSTER_UNITS >> unit) & 1:
        done = access_cluster(p, x, st, w, s, sm, t, row, mask)
    elif unit == Unit.SHARED_MATH:
        read = _on_shared_pipe(p, x, st, w, s, sm, t, row)
        done = read + code[row, Cell.LATENCY]
    elif unit == Unit.CALL:
        if mask != 0:
            blame(x, st, w, row, FaultKind.CALL, 0, 0)
    elif (_FLOW_UNITS >> unit) & 1:
        following_row = following(x, st, w, row, mask)
    elif unit != Unit.UNIFORM and unit != Unit.NOTE:
        end = _synchronise(p, x, st, w, s, sm, i, t, end, row, mask)
    if ((_GLOBAL_UNITS | _GENERIC_UNITS) >> unit) & 1 == 0:
        st.counters[code[row, Cell.COUNTER]] += 1
    if (_TMA_UNITS >> unit) & 1 == 0:  # the TMA writes rows of its own
        logged = log_op(st.log, st, w, row, t, max(t, read), max(t, done), 0)
        if unit == Unit.HGMMA:
            note_log_row(st, w, logged)
    if x.trace.shape[0] > 0:
        following_row = _traced(p, x, st, w)
    if following_row == ENDED:
        x.turns[s, i, Turn.READY] = FAR
        if end >= FAR:  # the trace breaks off where others would have had to come
            x.scalars[w, Scalar.BARRIER_WAIT], end = 0, t
        _end(p, x, st, w, s, sm, end)
        return
    warps[w, Warp.PROGRAM_COUNTER] = following_row
    if end >= FAR:
        x.turns[s, i, Turn.READY] = FAR
        return
    _spend(x, st, w, following_row, end, warps[w, Warp.REASON])
    _await(x, st, w, s, i, following_row, end)
    if code[row, Cell.GIVES_WAY] != 0:
        st.sub_cores[s, SubCore.LAST_WARP] = -1


@inner(inline=True)
def _traced(p, x, st, w):
    """The next row of the trace that warp `w` follows, ENDED at its end."""
    first = st.ctas[st.warps[w, Warp.CTA], Cta.LINEAR] * p[Chip.WARPS_PER_CTA] + st.warps[w, Warp.NUMBER]
    cursor = x.scalars[w, Scalar.CURSOR] + 1
    x.scalars[w, Scalar.CURSOR] = cursor
    return x.trace[cursor, Traced.ROW] if cursor < x.trace_first[first + 1] else ENDED


@inner(inline=True)
def _end(p, x, st, w, s, sm, t):
    """Warp `w` ends, once its stores by the TMA have read shared memory."""
    x.scalars[w, Scalar.PARKED] = -1 if st.warps[w, BulkGroups.BOXES_LEFT] > 0 else 0
    if p[Chip.CLUSTER_SIZE] > 1 and x.clusters.shape[0] > 0:
        meet_in_cluster(p, x, st, st.warps[w, Warp.CTA], t, 1)
    exit_warp(p, x, st, w, s, sm, t)


@inner(inline=True)
def _account_wait(x, st, w, s, i, t, row):
    """Books what warp `w` has waited for until tick `t`, and the cycle in which it issues."""
    ready, pipe = x.turns[s, i, Turn.READY], x.turns[s, i, Turn.PIPE]
    _spend(x, st, w, row, min(ready, t), x.turns[s, i, Turn.REASON])
    if t > ready:
        if pipe >= 0:
            free = min(_free(x, st, s, pipe), t)
            if free > ready:
                reason = Reason.MIO_THROTTLE if pipe == Pipe.LSU else Reason.MATH_PIPE_THROTTLE
                _spend(x, st, w, row, free, reason)
        _spend(x, st, w, row, t, Reason.NOT_SELECTED)
    issue_slots(st, w, s, t, TICKS_PER_CYCLE, t + TICKS_PER_CYCLE)
    st.warp_states[Reason.SELECTED] += TICKS_PER_CYCLE
    x.spent[row, Reason.SELECTED] += TICKS_PER_CYCLE
    st.warps[w, Warp.ACCOUNTED] = t + TICKS_PER_CYCLE
    st.warps[w, Warp.REASON] = Reason.WAIT


@inner(inline=True)
def _release_at(x, st, w, row, done, reason):
    """The scoreboards of an instruction, released when its result is there."""
    if x.code[row, Cell.WRITE] >= 0:
        add_ready(st, w, x.code[row, Cell.WRITE], done, reason)
    if x.code[row, Cell.READ] >= 0:
        add_ready(st, w, x.code[row, Cell.READ], done, reason)


@inner(inline=True)
def _on_pipe(x, st, w, s, t, row):
    """An instruction of a pipe of the sub-core; the tick at which the pipe has taken it."""
    code, subs, counters = x.code, st.sub_cores, st.counters
    pipe = code[row, Cell.PIPE]
    start = max(t, subs[s, SubCore.PIPE_FREE + pipe])
    subs[s, SubCore.PIPE_FREE + pipe] = start + code[row, Cell.INTERVAL]
    if pipe < N_VECTOR_PIPES:
        counters[Counter.FMA_TICKS + pipe] += code[row, Cell.INTERVAL]
    elif pipe == Pipe.TENSOR:
        counters[Counter.TENSOR_TICKS] += code[row, Cell.INTERVAL]
    if code[row, Cell.MACS] > 0:
        counters[code[row, Cell.MACS_COUNTER]] += code[row, Cell.MACS]
    _release_at(x, st, w, row, start + code[row, Cell.LATENCY], Reason.SHORT_SCOREBOARD)
    return start + code[row, Cell.INTERVAL]


@inner(inline=True)
def _on_shared_pipe(p, x, st, w, s, sm, t, row):
    """`_on_pipe` of the pipe that the sub-cores of an SM share: an instruction of each may wait for it."""
    code, subs, first = x.code, st.sub_cores, sm * p[Chip.SUB_CORES]
    start = max(t, subs[first, SubCore.PIPE_FREE + Pipe.FP64_SHARED])
    subs[first, SubCore.PIPE_FREE + Pipe.FP64_SHARED] = start + code[row, Cell.INTERVAL]
    subs[s, SubCore.PIPE_FREE + code[row, Cell.PIPE]] = start
    if code[row, Cell.MACS] > 0:
        st.counters[code[row, Cell.MACS_COUNTER]] += code[row, Cell.MACS]
    _release_at(x, st, w, row, start + code[row, Cell.LATENCY], Reason.SHORT_SCOREBOARD)
    return start + code[row, Cell.INTERVAL]


# ---- what warps wait for beside scoreboards


@inner
def _synchronise(p, x, st, w, s, sm, i, t, end, row, mask):
    """Groups of copies and products, barriers, fences: the tick from which the warp goes on, FAR if others wake it."""
    code, warps = x.code, st.warps
    unit = code[row, Cell.UNIT]
    if unit == Unit.COMMIT:
        commit_copies(st, w)
        return end
    if unit == Unit.DEPBAR:
        ready = t
        if code[row, Cell.COUNT] == 0:
            ready, why = operands_ready(st, w, 1 << code[row, Cell.OPERATION], t)
            _spend(x, st, w, row, ready, why)
            end = max(end, ready)
            ready = wait_stores(p, x, st, w, ready, row)
            if ready >= FAR:
                return FAR
            _spend(x, st, w, row, ready, Reason.TMA_STORE)
            end = max(end, ready)
        return max(end, wait_copies(st, w, t, code[row, Cell.COUNT]))
    if (_TMA_UNITS >> unit) & 1:
        if mask != 0 and (_BULK_UNITS >> unit) & 1:
            copy_bulk(p, x, st, w, t, row)
        elif mask != 0:
            move_box(p, x, st, w, t, row)
        _release_at(x, st, w, row, t + code[row, Cell.LATENCY], Reason.SHORT_SCOREBOARD)
        return end
    if unit == Unit.FLUSH:
        if mask != 0:
            warps[w, BulkGroups.COMMITTED] += 1
        return end
    if unit == Unit.SYNCS:
        after = synchronise(p, x, st, w, t, end, row, mask)
        _release_at(x, st, w, row, t + code[row, Cell.LATENCY], Reason.SHORT_SCOREBOARD)
        if after < FAR and after > end:
            _spend(x, st, w, row, after, Reason.MBARRIER)
        return after
    if unit == Unit.FENCE:
        written = warps[w, Warp.SHARED_WRITTEN]
        _spend(x, st, w, row, written, Reason.MEMBAR)
        return max(end, written)
    if unit == Unit.MEMBAR:
        acknowledged = warps[w, Warp.STORES_DONE]
        _spend(x, st, w, row, acknowledged, Reason.MEMBAR)
        return max(end, acknowledged)
    if unit == Unit.HGMMA:
        _multiply(x, st, w, s, sm, t, row)
        return end
    if unit == Unit.GWAIT:
        done = groups_done(st, w, s, t, code[row, Cell.COUNT])
        x.turns[s, i, Turn.GROUPS] = 1 + code[row, Cell.COUNT] if warps[w, TensorWarp.AWAITED] > 0 else 0
        _spend(x, st, w, row, done, Reason.GMMA)
        return max(end, done)
    if mask == 0:
        return end
    if unit == Unit.CLUSTER_ARRIVE:
        arrive_at_cluster(p, x, st, w, t)
        return end
    if unit == Unit.CLUSTER_WAIT:
        after = wait_for_cluster(x, st, w, t, end)
        if after < FAR:
            _spend(x, st, w, row, after, Reason.CLUSTER_BARRIER)
        return after
    return _meet(p, x, st, w, t, end, row, unit == Unit.ARRIVE)


@inner(inline=True)
def _multiply(x, st, w, s, sm, t, row):
    """HGMMA: a warp's quarter of a product."""
    code, counters = x.code, st.counters
    over = book_products(st, w, s, sm, t, code[row, Cell.INTERVAL], code[row, Cell.LATENCY], code[row, Cell.SHARED])
    if code[row, Cell.COMMITS] != 0:
        commit_products(st, w)
    counters[Counter.TENSOR_TICKS] += code[row, Cell.INTERVAL]
    counters[Counter.MACS_TENSOR] += code[row, Cell.MACS]
    counters[Counter.SHARED_READ_BYTES] += code[row, Cell.BYTES]
    _release_at(x, st, w, row, over, Reason.GMMA)


@inner
def _meet(p, x, st, w, t, end, row, passes):
    """BAR.SYNC and BAR.ARV: the tick from which the warp goes on, FAR if others have to come first."""
    code, warps = x.code, st.warps
    slot, number = warps[w, Warp.CTA], code[row, Cell.OPERATION]
    expected = code[row, Cell.COUNT] if code[row, Cell.COUNT] > 0 else p[Chip.WARPS_PER_CTA]
    tick = arrive_named(p, st, w, slot, number, expected, t)
    if tick < 0:
        if passes:
            leave_barrier(st, w)
            return end
        x.scalars[w, Scalar.BARRIER_WAIT] = number + 1
        return FAR
    latest = st.named_barriers[slot, number, NamedBarrier.LATEST]
    first = st.ctas[slot, Cta.FIRST_WARP]
    for other in range(first, first + p[Chip.WARPS_PER_CTA]):
        if x.scalars[other, Scalar.BARRIER_WAIT] == number + 1:
            x.scalars[other, Scalar.BARRIER_WAIT] = 0
            at = warps[other, Warp.PROGRAM_COUNTER]
            add_wait(st, other, latest, tick)
            _spend(x, st, other, at, tick, Reason.BARRIER)
            leave_barrier(st, other)
            s, i = _place(p, other)
            _await(x, st, other, s, i, at, tick)
            _call(p, x, st, s, x.turns[s, i, Turn.READY])
    if not passes:
        add_wait(st, w, latest, tick)
    charge_waits(st)
    if not passes:
        _spend(x, st, w, row, tick, Reason.BARRIER)
        end = max(end, tick)
    leave_barrier(st, w)
    return end


# ---- events


@inner
def _tma(p, x, st, ms, mem, component, t):
    """The event of an SM's TMA: some lines of a box."""
    queue = component - p[Chip.SMS] * p[Chip.WARPS_PER_SM]
    if queue < p[Chip.SMS]:
        leaf = leaf_of(p, queue, p[Chip.WARPS_PER_SM])
        tick = load_lines(p, x, st, ms, mem, queue, t)
    else:
        leaf = leaf_of(p, queue - p[Chip.SMS], p[Chip.WARPS_PER_SM] + 1)
        sm = queue - p[Chip.SMS]
        tick = bring_lines(p, x, st, sm, t) if is_in_cluster(p, x, st, sm) else store_lines(p, st, ms, mem, sm, t)
    if tick == PARKED:
        set_due(st.tree, leaf, NEVER)
    elif tick != SCHEDULED:
        set_due(st.tree, leaf, (tick << TIME_SHIFT) | (32 << ID_BITS) | component)


@kernel(announce="compiling the engine of compiled kernels, once")
def advance(p, x, st, ms, mem, until):
    """Processes all events up to tick `until`. Returns the tick of the next event, -1 when none is left, STOPPED after
    a fault."""
    return _advance(p, packed(x), packed(st), packed(ms), packed(mem), until)


@inner(inline=True)
def _advance(p, x, st, ms, mem, until):
    """`advance` of tuples by their addresses."""
    tree, chip = st.tree, st.chip
    if chip[Grid.STARTED] == 0:
        chip[Grid.STARTED] = 1
        place_clusters(p, x, st, p[CtaFigure.START])
    warps = p[Chip.SMS] * p[Chip.WARPS_PER_SM]
    border = (until + 1) << TIME_SHIFT
    while tree[1] < border:
        key = tree[1]
        t = key >> TIME_SHIFT
        component = key & ID_MASK
        chip[Event.TICK] = t
        st.counters[Counter.EVENTS] += 1
        if component >= x.launch[Launched.FIRST_SUB_CORE]:
            s = component - x.launch[Launched.FIRST_SUB_CORE]
            sm = s // p[Chip.SUB_CORES]
            leaf = leaf_of(p, sm, p[Chip.WARPS_PER_SM] + 3 + s - sm * p[Chip.SUB_CORES])
            tick = _sub_core(p, x, st, ms, mem, s, t, until)
            set_due(tree, leaf, NEVER if tick >= FAR else (tick << TIME_SHIFT) | (32 << ID_BITS) | component)
            if x.fault[Fault.KIND] != FaultKind.NONE:
                return STOPPED
        elif component < warps:
            _begin(p, x, st, component, t)
        elif component < warps + 2 * p[Chip.SMS]:
            _tma(p, x, st, ms, mem, component, t)
            if x.fault[Fault.KIND] != FaultKind.NONE:
                return STOPPED
        else:
            sm = component - warps - 2 * p[Chip.SMS]
            tick = fetch_code(p, st, ms, mem, sm, t)
            if tick == PARKED:
                set_due(tree, leaf_of(p, sm, p[Chip.WARPS_PER_SM] + 2), NEVER)
            elif tick != SCHEDULED:
                key = (tick << TIME_SHIFT) | (32 << ID_BITS) | component
                set_due(tree, leaf_of(p, sm, p[Chip.WARPS_PER_SM] + 2), key)
    return -1 if tree[1] == NEVER else tree[1] >> TIME_SHIFT
