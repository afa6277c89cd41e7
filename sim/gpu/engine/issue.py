"""Issue of runs: consecutive instructions of one op book their pipe and their share of issue slots in one event."""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.scheduler import FULL, Line, Overtaken, contend, let_overtake, may_overtake, put_off
from sim.gpu.engine.shared import access, queue_room, stream_loads
from sim.gpu.lower.tables import N_VECTOR_PIPES, Col, Kind, Pipe
from sim.gpu.units.accounting import account, issue_slots
from sim.gpu.units.chip import Chip
from sim.gpu.units.events import Reason
from sim.gpu.units.pipes import SubCore, issue_time, part, running_ops
from sim.gpu.units.policies import SPECIAL_RUN, SchedulerFigure, priority_of, rank_of
from sim.gpu.units.record import log_op
from sim.gpu.units.shared import SharedFigure
from sim.gpu.units.tensor import beside_products, registers_taken, take_registers
from sim.gpu.units.tree import SCHEDULED, TIME_SHIFT
from sim.gpu.units.warp import Warp, add_ready, schedule_warp, set_tile


@inner(inline=True)
def issue(p, prog, st, w, s, sm, t, pc, kind, first):
    """Rows of kinds RUN and SHARED: as many instructions as the scheduler lets issue in one event.

    Returns (tick, whether the line of its sub-core may move up, whether the warp stands in it now). first: the warp was
    the first in line.
    """
    code, warps, sub_cores = prog.code, st.warps, st.sub_cores
    in_runs = p[SchedulerFigure.LONGEST_RUN] > 1
    if kind == Kind.SHARED:
        room = queue_room(p, st, code, sm, pc, in_runs)
        if room > t:
            account(st, w, room, Reason.MIO_THROTTLE)
            return room, first, False
    total = code[pc, Col.COUNT]
    fresh = warps[w, Warp.LEFT] == 0
    if fresh:
        warps[w, Warp.LEFT] = total
    n = run_length(p, code, pc, warps[w, Warp.LEFT])
    start, issued, following = issue_run(p, prog, st, w, s, t, pc, n, total)
    if start > t:
        if fresh:
            warps[w, Warp.LEFT] = 0
        # Contended: the policy decides who goes first at that tick.
        if not in_runs:
            schedule_warp(st, start, priority_of(p, st, s, sm, w, rank_of(p, st, w), code[pc, Col.PIPE]), w)
            return SCHEDULED, False, False
        key = contend(p, st, s, sm, w, start, code[pc, Col.PIPE], 1)
        return t, key < sub_cores[s, Line.FIRST_KEY], True
    moves_up = first or sub_cores[s, Line.FIRST_KEY] < following << TIME_SHIFT
    if fresh:
        warps[w, Warp.OP_ISSUED] = t
    if kind == Kind.SHARED:
        last = access(p, prog, st, w, sm, t, pc, n, issued)
        foremost = last
        reason = Reason.SHORT_SCOREBOARD
    else:
        last = issued - p[Chip.CYCLE] + code[pc, Col.LATENCY]
        # What reads memory has no first element before the last: its operands are in flight to its end.
        foremost = last if code[pc, Col.LOADS] > 0 else warps[w, Warp.OP_ISSUED] + code[pc, Col.LATENCY]
        reason = Reason.WAIT
        count_macs(st, code, pc, n)
    warps[w, Warp.LEFT] -= n
    if warps[w, Warp.LEFT] == 0:
        finish(st, code, w, s, pc, issued, foremost, last, reason)
    return following, moves_up, False


@inner(inline=True)
def run_length(p, code, pc, left):
    """How many of the `left` instructions of row `pc` issue in one event.

    A spread op is one run in every mode: single issue would need the order that the compiler gave it.
    """
    if code[pc, Col.SPREAD] == 1:
        return left
    n = min(left, p[SchedulerFigure.LONGEST_RUN])
    return min(n, SPECIAL_RUN) if code[pc, Col.PIPE] == Pipe.XU else n


@inner(inline=True)
def count_macs(st, code, pc, n):
    """Counts the multiply-accumulates of `n` instructions of row `pc`."""
    if code[pc, Col.MACS] > 0:
        st.counters[code[pc, Col.MACS_COUNTER]] += n * code[pc, Col.MACS]
        st.counters[Counter.TENSOR_TICKS] += (
            n * code[pc, Col.INTERVAL] * (1 if code[pc, Col.MACS_COUNTER] == Counter.MACS_TENSOR else 0)
        )


@inner(inline=True)
def finish(st, code, w, s, pc, issued, foremost, last, reason):
    """All instructions of row `pc` have issued: its results, its row in the event log, the next row."""
    slot, tile = code[pc, Col.SLOT], code[pc, Col.TILE]
    if slot >= 0:
        add_ready(st, w, slot, last, reason)
    if tile >= 0:
        set_tile(st, w, tile, foremost, last, reason)
    row = log_op(st.log, st, w, code[pc, Col.OP], st.warps[w, Warp.OP_ISSUED], issued, last, 0)
    if code[pc, Col.SPREAD] == 1 and tile >= 0 and slot < 0:
        let_overtake(st, s, w, code[pc, Col.PIPE], tile, row)
    st.warps[w, Warp.PROGRAM_COUNTER] = pc + 1


@inner(inline=True)
def issue_run(p, prog, st, w, s, t, pc, n, total):
    """Books `n` of the `total` instructions of row `pc` on their pipes and issue slots.

    Returns (start, tick after the last of them, tick of the next instruction of this warp). start > t: nothing was
    booked, the warp has to come back at start.
    """
    code, sub_cores = prog.code, st.sub_cores
    pipe = code[pc, Col.PIPE]
    interval = code[pc, Col.INTERVAL]
    free = sub_cores[s, SubCore.PIPE_FREE + pipe]
    overtakes = free > t and may_overtake(p, st, s, w, pipe)
    if overtakes:
        free = sub_cores[s, Overtaken.FREE]
    if free > t:
        account(st, w, free, Reason.MATH_PIPE_THROTTLE)
        return free, free, free
    if overtakes:
        sub_cores[s, SubCore.PIPE_SHARE + pipe] = 0
    done = total - st.warps[w, Warp.LEFT]
    slots = part(code[pc, Col.ISSUE], done, n, total)
    cycle = p[Chip.CYCLE]
    busy = slots * cycle
    duration = n * interval
    if pipe == Pipe.TENSOR:
        duration += registers_taken(sub_cores, s, t, duration)
    if code[pc, Col.BESIDE] > 0:
        duration = beside_products(sub_cores, s, t, duration, part(code[pc, Col.BESIDE], done, n, total))
    alone = duration  # of the pipe; the rest of the duration it waits for slots and for the other pipes of the mix
    if p[SchedulerFigure.LONGEST_RUN] == 1:
        free = sub_cores[s, SubCore.ISSUE_FREE]
        if free > t:
            account(st, w, free, Reason.NOT_SELECTED)
            return free, free, free
        sub_cores[s, SubCore.ISSUE_FREE] = t + busy
        duration = max(duration, busy)
    else:
        density, earliest = running_ops(sub_cores, s, t)
        if density > FULL:  # the slots of running ops leave nothing
            account(st, w, earliest, Reason.NOT_SELECTED)
            return earliest, earliest, earliest
        duration = max(duration, issue_time(sub_cores, s, t, busy) if density > 0 else busy)
    alone, duration = book_mix(st, code, s, t, pc, done, n, total, alone, duration)
    if overtakes:
        sub_cores[s, Overtaken.FREE] = t + duration
        put_off(st, s, pipe, duration)
    else:
        sub_cores[s, SubCore.PIPE_FREE + pipe] = t + (alone if p[SchedulerFigure.LONGEST_RUN] == 1 else duration)
        if sub_cores[s, Overtaken.PIPE] == pipe + 1:
            sub_cores[s, Overtaken.PIPE] = 0
    sub_cores[s, SubCore.PIPE_SHARE + pipe] = min(256, busy * 256 // max(duration, 1))
    taken = code[pc, Col.REGISTERS]
    if taken > 0:
        take_registers(st, s, t, max(duration, busy), taken * n // total)
    end = max(t + duration - interval + cycle, t + busy)
    following = t + busy if code[pc, Col.SPREAD] == 1 else end
    issue_slots(st, w, s, t, busy, following)
    st.warp_states[Reason.SELECTED] += busy
    st.warps[w, Warp.ACCOUNTED] = t + busy
    account(st, w, following, Reason.MATH_PIPE_THROTTLE)
    count_run(st, code, pc, n, slots)
    if code[pc, Col.LOADS] > 0:
        served = stream_loads(st, w, t, code, pc, done, n, total)
        # They are issued ahead of the multiplies that need them: within the row, only a full queue holds it up.
        served -= p[SharedFigure.QUEUE] if done + n < total else 0
        end = max(end, served)
        if served > following:
            account(st, w, served, Reason.MIO_THROTTLE)
            following = served
    return t, end, following


@inner(inline=True)
def book_mix(st, code, s, t, pc, done, n, total, alone, duration):
    """Books the pipes of the instructions mixed into row `pc`.

    Returns what its own pipe takes alone and how long all of it takes, given as far as known.
    """
    sub_cores = st.sub_cores
    pipe = code[pc, Col.PIPE]
    for k in range(2):
        ticks = code[pc, Col.MIX_TICKS0 + 2 * k]
        if ticks > 0:
            ticks = part(ticks, done, n, total)
            q = code[pc, Col.MIX_PIPE0 + 2 * k]
            if q < N_VECTOR_PIPES:
                st.counters[Counter.FMA_TICKS + q] += ticks
            if q == pipe:
                alone = n * code[pc, Col.INTERVAL] + ticks
                duration = max(duration, alone)
            else:
                f = max(sub_cores[s, SubCore.PIPE_FREE + q], t) + ticks
                sub_cores[s, SubCore.PIPE_FREE + q] = f
                sub_cores[s, SubCore.PIPE_SHARE + q] = 0
                duration = max(duration, f - t)
    return alone, duration


@inner(inline=True)
def count_run(st, code, pc, n, slots):
    """Counts `n` instructions of row `pc` and those that take the rest of its `slots`."""
    st.counters[Counter.INSTRUCTIONS] += slots
    st.counters[code[pc, Col.COUNTER]] += n
    st.counters[Counter.INST_OTHER] += slots - n
    pipe = code[pc, Col.PIPE]
    if pipe < N_VECTOR_PIPES:
        st.counters[Counter.FMA_TICKS + pipe] += n * code[pc, Col.INTERVAL]
