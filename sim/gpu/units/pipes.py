"""Pipes and issue slots of a sub-core, booked ahead by the runs that hold them."""

from enum import IntEnum

from sim.engine.jit import inner
from sim.gpu.units.tree import FAR

N_PIPES = 8  # room for pipes: a host cache line, whole vectors
BACKLOG = 131072  # ticks: how far ahead of its event a memory instruction may book issue slots


class SubCore(IntEnum):
    """Columns of a sub-core's row, eight to a host cache line, of which the third has what most events touch beside the
    pipes. Others own the rest: `Overtaken`, `Line`, `RegisterFile`, `TensorCore`.
    """

    PIPE_FREE = 0  # by pipe: when it is free
    PIPE_SHARE = 8  # by pipe: share of the issue slots that its op takes until then, in 256ths
    CURSOR = 16  # slots accounted up to here
    IDLE = 17  # idle slot ticks inside the running ops that others may still use
    SEQUENCE = 18  # issues so far
    LAST_WARP = 19  # that has issued
    RESIDENT = 28  # warps
    ISSUE_FREE = 29  # in single issue: when the slot is free


@inner(inline=True)
def running_ops(subs, s, t):
    """256ths of the issue slots that ops in progress on sub-core `s` take at tick t; when the first of them ends."""
    density = 0
    earliest = FAR
    for q in range(N_PIPES):  # without branches: the compiler makes vectors of it
        free = subs[s, SubCore.PIPE_FREE + q]
        share = subs[s, SubCore.PIPE_SHARE + q] if free > t else 0
        density += share
        earliest = min(earliest, free if share > 0 else FAR)
    return density, earliest


@inner
def issue_time(subs, s, t, busy):
    """Ticks in which `busy` ticks of issue slots fit beside the ops that already run on sub-core `s` at tick `t`.

    Each of those takes its share of the slots (`SubCore.PIPE_SHARE`, in 256ths) until its pipe is free.
    """
    left = busy
    now = t
    while True:
        rate = 256
        following = FAR
        for q in range(N_PIPES):
            f = subs[s, SubCore.PIPE_FREE + q]
            if f > now:
                rate -= subs[s, SubCore.PIPE_SHARE + q]
                if subs[s, SubCore.PIPE_SHARE + q] > 0:
                    following = min(following, f)
        if following == FAR:
            return now + left - t
        if rate > 0:
            if left * 256 <= rate * (following - now):
                return now + (left * 256 + rate - 1) // rate - t
            left -= rate * (following - now) >> 8
        now = following


@inner(inline=True)
def slot_free(p, subs, s, t):
    """Tick from which a memory instruction finds an issue slot of sub-core `s`.

    It issues beside the ops that run, whatever share of the slots these take. But slots that are booked beyond the end
    of all of them, with none left idle before, are given once: `BACKLOG` bounds how far the account is ahead."""
    free = subs[s, SubCore.CURSOR] - BACKLOG
    if free <= t or subs[s, SubCore.IDLE] > 0:
        return t
    for q in range(N_PIPES):
        if subs[s, SubCore.PIPE_FREE + q] >= free:
            return t
    return free


@inner(inline=True)
def part(amount, done, n, total):
    """What `n` of the `total` instructions of a row, after the first `done`, take of an amount that belongs to all."""
    return amount if n == total else amount * (done + n) // total - amount * done // total
