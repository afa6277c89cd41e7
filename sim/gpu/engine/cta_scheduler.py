"""The CTA scheduler: which CTA starts where and when, and what a CTA's end lets in."""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.fetch import COLD, WARM, InstructionFetch, begin_fetch
from sim.gpu.engine.semaphores import CtaTiles
from sim.gpu.engine.tma import BulkGroups
from sim.gpu.lower.tables import WarpVariables
from sim.gpu.units.accounting import account, leave_barrier
from sim.gpu.units.barriers import ClusterBarrier, reset_barriers
from sim.gpu.units.chip import Chip
from sim.gpu.units.cta import Cta, CtaFigure, CtaSlots, Grid
from sim.gpu.units.events import TRACE_BEGIN, TRACE_END, Reason
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.policies import note_end, note_start
from sim.gpu.units.record import trace_state
from sim.gpu.units.tensor import products_over
from sim.gpu.units.tree import NEVER, PARKED, SCHEDULED, leaf_of, set_due
from sim.gpu.units.warp import Block, Warp, park, schedule_warp


@inner
def place_clusters(p, prog, st, t):
    """Places as many waiting clusters as fit: the emptiest SMs first, of equal ones in turn over the places; each
    cluster stays inside one."""
    size = p[Chip.CLUSTER_SIZE]
    while st.chip[Grid.NEXT_CLUSTER] < p[CtaFigure.CLUSTERS]:
        cluster = st.chip[Grid.NEXT_CLUSTER]
        if size == 1:
            sm = emptiest_sm(p, st, -1)
            if sm < 0:
                return
            start_cta(p, prog, st, sm, cluster, 0, t)
        else:
            place = next_place(p, st, size)
            if place < 0:
                return
            st.chip[Grid.PLACE] = place + 1
            for rank in range(size):
                st.stack[rank] = start_cta(p, prog, st, emptiest_sm(p, st, place), cluster, rank, t)
            for rank in range(size):
                for other in range(size):
                    st.ctas[st.stack[rank], Cta.PEERS + other] = st.stack[other]
        st.chip[Grid.NEXT_CLUSTER] = cluster + 1
        st.chip[Grid.LIVE_CTAS] += size


@inner(inline=True)
def emptiest_sm(p, st, place):
    """The SM with room for most CTAs, in a place or, where that is -1, on the chip; -1 if none has room."""
    best = -1
    most = 0
    for turn in range(p[Chip.SMS]):
        sm = st.sms[turn, CtaSlots.IN_TURN]
        if (place < 0 or st.sms[sm, CtaSlots.PLACE] == place) and st.sms[sm, CtaSlots.FREE] > most:
            most = st.sms[sm, CtaSlots.FREE]
            best = sm
    return best


@inner(inline=True)
def next_place(p, st, size):
    """The place whose `size` emptiest SMs have room for most CTAs each, of equal ones the next in turn; where a cluster
    finds SMs of its own in none, the next one with room for its CTAs; -1 if there is none."""
    sms = st.sms
    each = 0
    for sm in range(p[Chip.SMS]):
        each = max(each, sms[sm, CtaSlots.FREE])
    best = -1
    while best < 0 and each >= 0:
        soonest = p[Chip.SMS]
        sm = 0
        while sm < p[Chip.SMS]:
            place = sms[sm, CtaSlots.PLACE]
            room = 0
            wide = 0
            while sm < p[Chip.SMS] and sms[sm, CtaSlots.PLACE] == place:
                room += sms[sm, CtaSlots.FREE]
                wide += sms[sm, CtaSlots.FREE] >= each
                sm += 1
            turns = place - st.chip[Grid.PLACE]
            if turns < 0:
                turns += p[Chip.SMS]
            if room >= size and turns < soonest and (wide >= size or each == 0):
                soonest = turns
                best = place
        each -= 1
    return best


@inner
def start_cta(p, prog, st, sm, cluster, rank, t):
    """Places CTA `rank` of `cluster` on SM `sm`; its peers are written afterwards. Returns its slot."""
    slot = sm * p[Chip.CTAS_PER_SM]
    while st.ctas[slot, Cta.ACTIVE] == 1:
        slot += 1
    chip, sms, ctas = st.chip, st.sms, st.ctas
    sms[sm, CtaSlots.FREE] -= 1
    if sms[sm, InstructionFetch.STATE] == COLD:
        begin_fetch(p, st, sm, t)
    handed = max(t, chip[Grid.LAUNCH_FREE])
    chip[Grid.LAUNCH_FREE] = handed + p[CtaFigure.INTERVAL]
    begin = max(handed + p[CtaFigure.LAUNCH_LATENCY], sms[sm, CtaSlots.LAUNCH_FREE])
    sms[sm, CtaSlots.LAUNCH_FREE] = begin + p[Chip.WARPS_PER_CTA] * p[CtaFigure.WARP_SETUP]
    locate_cta(p, ctas, slot, cluster, rank)
    ctas[slot, Cta.ACTIVE] = 1
    ctas[slot, Cta.LEFT] = p[Chip.WARPS_PER_CTA]
    ctas[slot, ClusterBarrier.ARRIVED] = 0
    ctas[slot, ClusterBarrier.LATEST] = 0
    ctas[slot, CtaTiles.FETCHED] = 0
    number = slot - sm * p[Chip.CTAS_PER_SM]
    ctas[slot, Cta.FIRST_WARP] = sm * p[Chip.WARPS_PER_SM] + number * p[Chip.WARPS_PER_CTA]
    order = chip[Grid.LAUNCHED]
    chip[Grid.LAUNCHED] = order + 1
    sms[sm, CtaSlots.NEWEST] = order
    reset_barriers(p, prog, st, slot)
    st.counters[Counter.CTAS] += 1
    # The first warps of CTAs have often most to do: they begin on another sub-core in turn.
    turn = number // p[CtaFigure.TURN_AFTER]
    for i in range(p[Chip.WARPS_PER_CTA]):
        start_warp(p, prog, st, sm, slot, i, (i + turn) % p[Chip.WARPS_PER_CTA], order, begin)
    for i in range(p[Chip.CLUSTER_SIZE]):
        ctas[slot, Cta.PEERS + i] = slot
    return slot


@inner(inline=True)
def locate_cta(p, ctas, slot, cluster, rank):
    """Writes where in the grid the CTA in a slot lies: rank `rank` of `cluster`."""
    grid_x = p[CtaFigure.GRID_X] // p[CtaFigure.CLUSTER_X]
    grid_y = p[CtaFigure.GRID_Y] // p[CtaFigure.CLUSTER_Y]
    cx = cluster % grid_x
    cy = (cluster // grid_x) % grid_y
    cz = cluster // (grid_x * grid_y)
    rx = rank % p[CtaFigure.CLUSTER_X]
    ry = (rank // p[CtaFigure.CLUSTER_X]) % p[CtaFigure.CLUSTER_Y]
    rz = rank // (p[CtaFigure.CLUSTER_X] * p[CtaFigure.CLUSTER_Y])
    x = cx * p[CtaFigure.CLUSTER_X] + rx
    y = cy * p[CtaFigure.CLUSTER_Y] + ry
    z = cz * p[CtaFigure.CLUSTER_Z] + rz
    ctas[slot, Cta.X] = x
    ctas[slot, Cta.Y] = y
    ctas[slot, Cta.Z] = z
    ctas[slot, Cta.RANK] = rank
    ctas[slot, Cta.LINEAR] = x + p[CtaFigure.GRID_X] * (y + p[CtaFigure.GRID_Y] * z)
    ctas[slot, Cta.CLUSTER] = cluster


@inner(inline=True)
def start_warp(p, prog, st, sm, slot, i, place, order, begin):
    """Warp `i` of the CTA in a slot starts at tick `begin` in a place of its CTA, if its SM holds the kernel's code."""
    warps, sub_cores = st.warps, st.sub_cores
    w = st.ctas[slot, Cta.FIRST_WARP] + place
    s = sm * p[Chip.SUB_CORES] + w % p[Chip.WARPS_PER_SM] % p[Chip.SUB_CORES]
    for c in range(Warp.WIDTH):
        warps[w, c] = 0
    warps[w, Warp.PROGRAM_COUNTER] = prog.warp_entry[i, 0]
    for c in range(4):
        warps[w, WarpVariables.CTA_X + c] = st.ctas[slot, Cta.X + c]
    warps[w, WarpVariables.ROLE_WARP] = prog.warp_entry[i, 1]
    warps[w, Warp.NUMBER] = i
    warps[w, Warp.CTA] = slot
    warps[w, Warp.SM] = sm
    warps[w, Warp.SUB_CORE] = s
    warps[w, Warp.LEAF] = leaf_of(p, sm, w - sm * p[Chip.WARPS_PER_SM])
    warps[w, Warp.LAUNCH_ORDER] = order
    warps[w, Warp.ACCOUNTED] = begin
    if st.since.shape[0] > 0:
        leave_barrier(st, w)
    note_start(st, w, begin)
    if sub_cores[s, SubCore.RESIDENT] == 0 and begin > sub_cores[s, SubCore.CURSOR]:
        st.issue_slots[Reason.NO_WARP] += begin - sub_cores[s, SubCore.CURSOR]
        sub_cores[s, SubCore.CURSOR] = begin
        sub_cores[s, SubCore.IDLE] = 0
    sub_cores[s, SubCore.RESIDENT] += 1
    warps[w, Warp.REASON] = Reason.NO_INSTRUCTION
    trace_state(st.trace, st, w, TRACE_BEGIN, begin, begin)
    if st.sms[sm, InstructionFetch.STATE] == WARM:
        schedule_warp(st, begin, 32, w)
    else:
        park(st, w, Block.FETCH, 0, 0, -1, begin)


@inner(inline=True)
def exit_warp(p, prog, st, w, s, sm, t):
    """Warp `w` ends at `t`, unless products or bulk stores of it are in flight; the last one lets the next CTA in.

    Returns the tick at which it looks again, PARKED or SCHEDULED.
    """
    warps, chip, ctas, sub_cores = st.warps, st.chip, st.ctas, st.sub_cores
    free = products_over(st, w, s, t)
    if free > t:
        account(st, w, free, Reason.GMMA)
        return free
    if warps[w, BulkGroups.BOXES_LEFT] > 0:  # bulk stores must have read shared memory before the CTA goes
        park(st, w, Block.BULK, 1, warps[w, BulkGroups.COMMITTED], -1, t)
        return PARKED
    # Its slot may at once get a warp of the next CTA, with an event of its own.
    set_due(st.tree, warps[w, Warp.LEAF], NEVER)
    account(st, w, t, Reason.WAIT)
    note_end(st, w)
    trace_state(st.trace, st, w, TRACE_END, t, t)
    sub_cores[s, SubCore.RESIDENT] -= 1
    if sub_cores[s, SubCore.RESIDENT] == 0 and t > sub_cores[s, SubCore.CURSOR]:
        st.issue_slots[warps[w, Warp.REASON]] += t - sub_cores[s, SubCore.CURSOR]
        sub_cores[s, SubCore.CURSOR] = t
        sub_cores[s, SubCore.IDLE] = 0
    slot = warps[w, Warp.CTA]
    ctas[slot, Cta.LEFT] -= 1
    ctas[slot, Cta.END] = max(ctas[slot, Cta.END], t)
    chip[Grid.END] = max(chip[Grid.END], t)
    if ctas[slot, Cta.LEFT] == 0:
        ctas[slot, Cta.ACTIVE] = 0
        st.sms[sm, CtaSlots.FREE] += 1
        chip[Grid.LIVE_CTAS] -= 1
        place_clusters(p, prog, st, t)
    return SCHEDULED
