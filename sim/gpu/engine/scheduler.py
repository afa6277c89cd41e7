"""The warp scheduler of a sub-core: the line of warps that could issue.

Warps that wait for a pipe or issue slots stand in line, and only the one that can go first has an event. A policy
(`sim.gpu.units.policies`) ranks them.
"""

from enum import IntEnum

from sim.engine.jit import inner
from sim.engine.prefetch import prefetch
from sim.gpu.lower.tables import N_SCOREBOARDS
from sim.gpu.units.accounting import account
from sim.gpu.units.chip import Chip
from sim.gpu.units.events import Reason
from sim.gpu.units.pipes import SubCore, running_ops
from sim.gpu.units.policies import goes_between, priority_of, rank_of
from sim.gpu.units.record import log_put_off
from sim.gpu.units.tree import (
    ID_BITS,
    ID_MASK,
    NEVER,
    SCHEDULED,
    TIME_SHIFT,
    leaf_of,
    limit,
    set_due,
    set_due_in_sm,
)
from sim.gpu.units.warp import REASON_BITS, Warp

FULL = 240  # 256ths of the issue slots: ops that take more leave nothing to others


class Overtaken(IntEnum):
    """Columns of a sub-core's row: a spread op that holds a pipe, between whose instructions older warps may issue."""

    PIPE = 23  # one more than the pipe, 0 none
    WARP = 24  # whose op it is
    TILE = 25  # its result
    LOG_ROW = 26  # its row in the event log
    FREE = 27  # until then the pipe is busy with ops that have overtaken it


class Line(IntEnum):
    """Columns of a sub-core's row: the warps that stand in line."""

    LENGTH = 20
    FIRST = 21  # one more than the one of them that tries next, 0 none
    FIRST_KEY = 22  # of its event


class Contender(IntEnum):
    """Columns of a warp that stands in line."""

    TICK = 0  # when it tries again, at the earliest
    RANK = 1  # what the policy ranks it by
    WHO = 2  # the warp, and above its number the pipe, the reason and the mark below
    WIDTH = 3


_PIPE_SHIFT = ID_BITS
_PIPE_MASK = 15
_REASON_SHIFT = _PIPE_SHIFT + 4  # why it has not tried before
_TRIED = 1 << (_REASON_SHIFT + REASON_BITS)  # it has found no room
_UNTRIED_WHO = (1 << _REASON_SHIFT) - 1


@inner(inline=True)
def may_overtake(p, st, s, w, pipe):
    """Whether ops of warp `w` may issue between the instructions of the spread op that holds a pipe of sub-core `s`."""
    sub_cores = st.sub_cores
    return sub_cores[s, Overtaken.PIPE] == pipe + 1 and goes_between(p, st, w, sub_cores[s, Overtaken.WARP])


@inner(inline=True)
def let_overtake(st, s, w, pipe, tile, row):
    """Notes that a spread op of warp `w` holds a pipe of sub-core `s`, unless it has itself overtaken one that does.

    tile: its result. row: of the event log, -1 none.
    """
    subs = st.sub_cores
    if subs[s, Overtaken.PIPE] == 0:
        subs[s, Overtaken.PIPE] = pipe + 1
        subs[s, Overtaken.WARP] = w
        subs[s, Overtaken.TILE] = tile
        if st.log is not None:
            subs[s, Overtaken.LOG_ROW] = row
        subs[s, Overtaken.FREE] = 0


@inner(inline=True)
def put_off(st, s, pipe, ticks):
    """Puts off the end of the op that holds a pipe: it has been overtaken for so long."""
    subs = st.sub_cores
    subs[s, SubCore.PIPE_FREE + pipe] += ticks
    tile = Warp.READY + N_SCOREBOARDS + subs[s, Overtaken.TILE]
    st.warps[subs[s, Overtaken.WARP], tile] += ticks << REASON_BITS
    log_put_off(st.log, subs[s, Overtaken.LOG_ROW], ticks)


@inner(inline=True)
def contend(p, st, s, sm, w, tick, pipe, tried):
    """Puts warp `w` among those that wait to issue on a pipe of sub-core `s`, from `tick` on. Returns its key.

    tried: whether it has found no room, and is ranked by the policy."""
    subs, i = st.sub_cores, st.sub_cores[s, Line.LENGTH]
    subs[s, Line.LENGTH] = i + 1
    rank = rank_of(p, st, w)
    st.contenders[s, i, Contender.TICK] = tick
    st.contenders[s, i, Contender.RANK] = rank
    who = w | pipe << _PIPE_SHIFT | st.warps[w, Warp.REASON] << _REASON_SHIFT
    st.contenders[s, i, Contender.WHO] = who | _TRIED if tried != 0 else who
    priority = priority_of(p, st, s, sm, w, rank, pipe) if tried != 0 else 32
    return (tick << TIME_SHIFT) | (priority << ID_BITS) | w


@inner(inline=True)
def leave_line(st, s, w, t):
    """Takes warp `w`, the first in line, from the contenders of sub-core `s`."""
    last = st.sub_cores[s, Line.LENGTH] - 1
    i = 0
    while st.contenders[s, i, Contender.WHO] & ID_MASK != w:
        i += 1
    account(st, w, t, (st.contenders[s, i, Contender.WHO] & (_TRIED - 1)) >> _REASON_SHIFT)
    for c in range(Contender.WIDTH):
        st.contenders[s, i, c] = st.contenders[s, last, c]
    st.sub_cores[s, Line.LENGTH] = last
    st.sub_cores[s, Line.FIRST] = 0
    st.sub_cores[s, Line.FIRST_KEY] = NEVER


@inner(inline=True)
def next_in_line(p, st, s, sm, t, one_more):
    """Finds the contender of sub-core `s` that tries first, from tick `t`, the present, on.

    one_more: since this has been done, one contender has come, and the sub-core has booked nothing.
    `announce_first` gives it an event. The others have none: they would find their pipe or all issue slots taken, or
    are ranked behind it by the policy.
    """
    subs = st.sub_cores
    length = subs[s, Line.LENGTH]
    if length > 0:
        free = _slots_free(subs, s, t)
        first = subs[s, Line.FIRST_KEY] if one_more else NEVER
        for i in range(length - 1 if one_more else 0, length):
            first = min(first, _key_of(p, st, s, sm, i, t, free))
        _set_first(st, s, sm, first)


@inner(inline=True)
def _slots_free(subs, s, t):
    """Tick, `t` or later, from which ops in progress leave issue slots of sub-core `s` to others."""
    density, earliest = running_ops(subs, s, t)
    return t if density <= FULL else earliest


@inner(inline=True)
def _key_of(p, st, s, sm, i, t, earliest):
    """Key of the next try of contender `i` of sub-core `s`, whose issue slots are free from `earliest` on."""
    subs = st.sub_cores
    who = st.contenders[s, i, Contender.WHO]
    w = who & ID_MASK
    pipe = (who >> _PIPE_SHIFT) & _PIPE_MASK
    tick = max(t, st.contenders[s, i, Contender.TICK])
    free = subs[s, SubCore.PIPE_FREE + pipe]
    reason = Reason.MATH_PIPE_THROTTLE
    if free > tick and may_overtake(p, st, s, w, pipe):
        free = subs[s, Overtaken.FREE]
    elif earliest > max(free, tick):
        free = earliest
        reason = Reason.NOT_SELECTED
    if free > tick:
        tick = free
        who = (who & _UNTRIED_WHO) | reason << _REASON_SHIFT | _TRIED
        st.contenders[s, i, Contender.WHO] = who
    st.contenders[s, i, Contender.TICK] = tick
    priority = 32
    if who & _TRIED != 0:
        priority = priority_of(p, st, s, sm, w, st.contenders[s, i, Contender.RANK], pipe)
    return (tick << TIME_SHIFT) | (priority << ID_BITS) | w


@inner(inline=True)
def _set_first(st, s, sm, key):
    """The first in line of sub-core `s` tries next; the event in progress goes no further than that."""
    w = key & ID_MASK
    prefetch(st.warps, w * Warp.WIDTH)
    prefetch(st.warps, w * Warp.WIDTH + Warp.READY)
    st.sub_cores[s, Line.FIRST] = w + 1
    st.sub_cores[s, Line.FIRST_KEY] = key
    limit(st, key, sm)


@inner(inline=True)
def announce_first(p, st, s, sm, before, w, tick):
    """Gives the first in line of sub-core `s` its event, when that of warp `w` is over and goes on at `tick`.

    before: one more than the warp in line that has had an event until now, 0 none.
    """
    subs = st.sub_cores
    # Leaves by number: the rows of these warps may come from far away.
    leaf = leaf_of(p, sm, 0) - sm * p[Chip.WARPS_PER_SM]
    first = subs[s, Line.FIRST]
    if before != 0 and before != first:
        set_due_in_sm(p, st.tree, leaf + before - 1, NEVER)
    if tick == SCHEDULED:
        set_due(st.tree, leaf + first - 1, subs[s, Line.FIRST_KEY])
    else:
        set_due_in_sm(p, st.tree, leaf + first - 1, subs[s, Line.FIRST_KEY])
