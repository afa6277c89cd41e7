"""The engine's loop: takes the events of all components in order and hands each to its unit.

Everything here and in the units' files is compiled. Times are int64 ticks. A warp's event runs ops until the warp waits
for something that has not been booked yet (it is parked and woken by whoever books it) or until another component is
due first.

Arguments that most functions share: `p`, parameters (`sim.gpu.units.chip`); `prog`, the lowered kernel
(`sim.gpu.lower.tables`); `st`, the state (`sim.gpu.engine.state`); `ms` and `mem`, the memory system's spec and state;
`w`, a warp; `s`, its sub-core; `sm`, its SM; `slot`, its CTA's place; `t`, a tick; `pc`, a row of the program. Handlers
of ops return the tick at which the warp goes on, PARKED or SCHEDULED.
"""

from sim.engine.jit import inner, kernel
from sim.engine.pack import packed
from sim.engine.prefetch import prefetch
from sim.gpu.counters import Counter
from sim.gpu.engine.barriers import arrive_behind_copies, arrive_or_expect, meet, meet_cluster, wait_phase
from sim.gpu.engine.boxes import Walk
from sim.gpu.engine.cta_scheduler import exit_warp, place_clusters
from sim.gpu.engine.fetch import fetch_code
from sim.gpu.engine.flow import control
from sim.gpu.engine.global_memory import move
from sim.gpu.engine.issue import issue
from sim.gpu.engine.scheduler import Line, announce_first, contend, leave_line, next_in_line
from sim.gpu.engine.semaphores import next_tile, raise_flag, wait_flag
from sim.gpu.engine.shared import fence
from sim.gpu.engine.tcgen05 import operate, settle
from sim.gpu.engine.tma import BulkGroups, issue_load, issue_store, load_lines, store_lines, wait_bulk
from sim.gpu.engine.wgmma import multiply, wait_group
from sim.gpu.lower.tables import N_SCOREBOARDS, Col, Kind, WarpVariables
from sim.gpu.units.accounting import account, issue_one
from sim.gpu.units.chip import Chip
from sim.gpu.units.cp_async import commit_copies, wait_copies
from sim.gpu.units.cta import CtaFigure, Grid
from sim.gpu.units.policies import SchedulerFigure
from sim.gpu.units.record import log_op
from sim.gpu.units.tensor import TensorFigure, TensorWarp, commit_products
from sim.gpu.units.tree import (
    ID_BITS,
    ID_MASK,
    NEVER,
    PARKED,
    SCHEDULED,
    TIME_SHIFT,
    TreeFigure,
    Turn,
    leaf_of,
    set_due,
)
from sim.gpu.units.warp import Warp, operands_ready

CHIP_KINDS = (
    1 << Kind.EXIT
    | 1 << Kind.LDG
    | 1 << Kind.STG
    | 1 << Kind.RED
    | 1 << Kind.CP_ASYNC
    | 1 << Kind.CLUSTER_SYNC
    | 1 << Kind.CLUSTER_ARRIVE
    | 1 << Kind.CLUSTER_WAIT
    | 1 << Kind.NEXT_TILE
    | 1 << Kind.FLAG_ADD
    | 1 << Kind.FLAG_WAIT
    | 1 << Kind.TRY_CANCEL
)  # ops that keep the order of time on the whole chip
AHEAD_KINDS = 1 << Kind.LDG | 1 << Kind.STG  # of these, those that may be `TreeFigure.SLACK` ahead of any other event


@inner(inline=True)
def _step(p, prog, st, ms, mem, w, t):
    """Runs warp `w` from tick `t` until it waits or another component is due first.

    What concerns its SM alone goes on although another SM is due, for up to `TreeFigure.LOOKAHEAD` ticks: less than an
    SM needs to reach another. Returns the tick of its next event, PARKED if somebody else has to wake it.
    """
    code, warps, chip = prog.code, st.warps, st.chip
    s = warps[w, Warp.SUB_CORE]
    sm = warps[w, Warp.SM]
    checked = t
    ahead = False
    horizon = t + p[TreeFigure.LOOKAHEAD]
    soon = t + p[TreeFigure.SLACK]
    chip[Turn.ANNOUNCED] = 0
    first = st.sub_cores[s, Line.FIRST] == w + 1  # of the contenders of its sub-core
    if first:
        leave_line(st, s, w, t)
    before = st.sub_cores[s, Line.FIRST]  # one more than the contender that has an event, 0 none
    found = False  # which one has one next
    as_found = False  # since then nothing has been booked
    in_runs = p[SchedulerFigure.LONGEST_RUN] > 1  # in single issue each try is an event of its own
    in_line = False
    moves_up = False
    while True:
        if moves_up:
            first = False
            moves_up = False
            next_in_line(p, st, s, sm, chip[Turn.TICK], as_found)
            found = st.sub_cores[s, Line.LENGTH] > 0
            as_found = True
        if in_line:
            t = SCHEDULED if st.sub_cores[s, Line.FIRST] == w + 1 else PARKED
            break
        pc = warps[w, Warp.PROGRAM_COUNTER]
        kind = code[pc, Col.KIND]
        if kind <= Kind.ASSIGN:
            control(prog, st, w, pc, kind)
            continue

        mask = code[pc, Col.WAIT_MASK]
        if mask != 0 and warps[w, Warp.LEFT] == 0:
            ready, why = operands_ready(st, w, mask, t)
            if ready > t:
                account(st, w, ready, why)
                t = ready
                moves_up = first
                continue

        of_chip = (CHIP_KINDS >> kind) & 1
        if t != checked or chip[Turn.ANNOUNCED] != 0 or (ahead and of_chip != 0):
            key = (t << TIME_SHIFT) | (32 << ID_BITS) | w
            ahead = key >= chip[Turn.LIMIT]
            if ahead and (of_chip != 0 or key >= chip[Turn.SM_LIMIT] or t > horizon):
                if in_runs and (kind == Kind.RUN or kind == Kind.SHARED):
                    in_line = True
                    key = contend(p, st, s, sm, w, t, code[pc, Col.PIPE], 0)
                    moves_up = key < st.sub_cores[s, Line.FIRST_KEY]
                    continue
                if not in_runs or t > soon or (AHEAD_KINDS >> kind) & 1 == 0:
                    break
            checked = t
            chip[Turn.ANNOUNCED] = 0
        if kind == Kind.RUN or kind == Kind.SHARED:
            t, moves_up, in_line = issue(p, prog, st, w, s, sm, t, pc, kind, first)
            as_found = as_found and in_line
        elif kind == Kind.LDG or kind == Kind.STG or kind == Kind.RED or kind == Kind.CP_ASYNC:
            t = move(p, prog, st, ms, mem, w, s, sm, chip[Turn.TICK] if ahead else t, t, pc, kind)
            as_found = False
        else:
            t = _other_op(p, prog, st, w, s, sm, t, pc, kind)
            as_found = False
        if t < 0:
            break
    if found:
        announce_first(p, st, s, sm, before, w, t)
    return t


@inner(inline=True)
def _other_op(p, prog, st, w, s, sm, t, pc, kind):
    """Ops of units that work beside the warps: tensor cores and memory, mbarriers, TMA; and the end of a warp."""
    if kind == Kind.WGMMA:
        return multiply(p, prog, st, w, s, sm, t, pc)
    if kind == Kind.WGMMA_WAIT:
        return wait_group(p, prog, st, w, s, t, pc)
    if kind == Kind.MBAR_WAIT:
        return wait_phase(p, prog, st, w, s, t, pc)
    if kind == Kind.MBAR_ARRIVE or kind == Kind.MBAR_EXPECT:
        return arrive_or_expect(p, prog, st, w, s, t, pc, kind)
    if kind == Kind.TMA_LOAD:
        return issue_load(p, prog, st, w, s, sm, t, pc)
    if kind == Kind.TMA_STORE or kind == Kind.TMA_REDUCE:
        return issue_store(p, prog, st, w, s, sm, t, pc, kind)
    if kind == Kind.EXIT:
        return exit_warp(p, prog, st, w, s, sm, t)
    if kind >= Kind.TCGEN05_MMA and kind <= Kind.TRY_CANCEL:
        return operate(p, prog, st, w, s, sm, t, pc, kind)
    return _sync_op(p, prog, st, w, s, t, pc, kind)


@inner(inline=True)
def _sync_op(p, prog, st, w, s, t, pc, kind):
    """Groups, named barriers, cluster barriers, tensor memory, tile counters and flags: one control instruction and
    what it waits for.

    Returns the tick after it, PARKED if the warp has to wait.
    """
    code = prog.code
    st.warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    issued = t
    t = issue_one(p, st, w, s, t)
    value = 0  # in the event log, and when it is done if that is later than its warp goes on
    done = t
    if kind == Kind.WGMMA_COMMIT:
        commit_products(st, w)
    elif kind == Kind.CP_COMMIT:
        commit_copies(st, w)
    elif kind == Kind.CP_WAIT:
        t = wait_copies(st, w, t, code[pc, Col.VALUE])
    elif kind == Kind.CP_ARRIVE:
        done = arrive_behind_copies(p, prog, st, w, t, pc)
    elif kind == Kind.BULK_COMMIT:
        st.warps[w, BulkGroups.COMMITTED] += 1
    elif kind == Kind.BULK_WAIT or kind == Kind.BULK_WAIT_READ:
        t = wait_bulk(p, prog, st, w, t, pc, kind, issued)
    elif kind == Kind.BAR_SYNC or kind == Kind.BAR_ARRIVE:
        t = meet(p, prog, st, w, t, pc, kind, issued)
    elif kind == Kind.CLUSTER_SYNC or kind == Kind.CLUSTER_ARRIVE or kind == Kind.CLUSTER_WAIT:
        t = meet_cluster(p, prog, st, w, t, pc, kind, issued)
    elif kind == Kind.NEXT_TILE:
        t, value = next_tile(p, st, code, w, t, pc)
    elif kind == Kind.FLAG_ADD:
        t = raise_flag(p, prog, st, w, t, pc)
    elif kind == Kind.FLAG_WAIT:
        t = wait_flag(p, prog, st, w, t, pc, issued)
    elif kind == Kind.FENCE:
        t = fence(st, w, t)
    elif kind >= Kind.TCGEN05_COMMIT:
        t, done, value = settle(p, prog, st, w, st.warps[w, Warp.SM], t, pc, kind, issued)
    if t != PARKED:
        log_op(st.log, st, w, code[pc, Col.OP], issued, t, max(t, done), value)
    return t


@inner(inline=True)
def _prefetch_warp(st, w):
    """Asks the host's caches for the parts of a warp's row that its next event touches."""
    row = w * Warp.WIDTH
    prefetch(st.warps, row)
    prefetch(st.warps, row + Warp.LAUNCH_ORDER)
    prefetch(st.warps, row + Walk.BASE)
    prefetch(st.warps, row + Warp.READY)
    prefetch(st.warps, row + Warp.READY + N_SCOREBOARDS)
    prefetch(st.warps, row + WarpVariables.CTA_X)
    prefetch(st.warps, row + WarpVariables.FIRST)
    if st.since.shape[0] > 0:
        prefetch(st.since, w * st.since.shape[1])


@inner(inline=True)
def _run_warp(p, prog, st, ms, mem, w, t, border):
    """The event of warp `w`; returns the tick of its next one, PARKED or SCHEDULED."""
    tree, chip = st.tree, st.chip
    # The next event of its SM, and of all.
    limit = border
    node = st.warps[w, Warp.LEAF]
    for _ in range(p[TreeFigure.LEVELS]):
        limit = min(limit, tree[node ^ 1])
        node >>= 1
    chip[Turn.SM] = st.warps[w, Warp.SM]
    chip[Turn.SM_LIMIT] = limit
    while node > 1:
        limit = min(limit, tree[node ^ 1])
        node >>= 1
    chip[Turn.LIMIT] = limit
    following = limit & ID_MASK  # most likely the next in turn: its row comes from far away
    if following < p[Chip.SMS] * p[Chip.WARPS_PER_SM]:
        _prefetch_warp(st, following)
        if p[TensorFigure.IN_FLIGHT_INSTRUCTIONS] > 0:
            prefetch(st.warps, following * Warp.WIDTH + TensorWarp.LEFT)
    return _step(p, prog, st, ms, mem, w, t)


@kernel(announce="compiling the GPU engine, once, some 20 seconds; runs that record have a version of their own")
def advance(p, prog, st, ms, mem, until):
    """Processes all events up to tick `until`. Returns the tick of the next event, or -1 when none is left."""
    return _advance(p, packed(prog), packed(st), packed(ms), packed(mem), until)


@inner(inline=True)
def _advance(p, prog, st, ms, mem, until):
    """`advance` of tuples by their addresses."""
    tree, chip = st.tree, st.chip
    if chip[Grid.STARTED] == 0:
        chip[Grid.STARTED] = 1
        place_clusters(p, prog, st, p[CtaFigure.START])
    warps = p[Chip.SMS] * p[Chip.WARPS_PER_SM]
    border = (until + 1) << TIME_SHIFT
    while tree[1] < border:
        key = tree[1]
        t = key >> TIME_SHIFT
        component = key & ID_MASK
        chip[Turn.TICK] = t
        st.counters[Counter.EVENTS] += 1
        if component < warps:
            leaf = st.warps[component, Warp.LEAF]
            tick = _run_warp(p, prog, st, ms, mem, component, t, border)
        elif component < warps + 2 * p[Chip.SMS]:
            sm = component - warps
            if sm < p[Chip.SMS]:
                leaf = leaf_of(p, sm, p[Chip.WARPS_PER_SM])
                tick = load_lines(p, prog, st, ms, mem, sm, t)
            else:
                sm -= p[Chip.SMS]
                leaf = leaf_of(p, sm, p[Chip.WARPS_PER_SM] + 1)
                tick = store_lines(p, st, ms, mem, sm, t)
        else:
            sm = component - warps - 2 * p[Chip.SMS]
            leaf = leaf_of(p, sm, p[Chip.WARPS_PER_SM] + 2)
            tick = fetch_code(p, st, ms, mem, sm, t)
        if tick == PARKED:
            set_due(tree, leaf, NEVER)
        elif tick != SCHEDULED:
            set_due(tree, leaf, (tick << TIME_SHIFT) | (32 << ID_BITS) | component)
    return -1 if tree[1] == NEVER else tree[1] >> TIME_SHIFT
