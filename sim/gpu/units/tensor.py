"""Tensor cores: asynchronous products in flight, complete by groups; the register file, which vector instructions take
from synchronous products, and which asynchronous ones leave to one of them at a time.

A tensor core holds some products of a warp and alternates between the warps that have some. So what a warp waits for is
known only as far as no other one issues: who waits asks again at the tick that it was told. Synchronous products take
the pipe as other instructions take theirs (`sim.gpu.units.pipes`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.jit import inner
from sim.gpu.lower.tables import Pipe
from sim.gpu.units.chip import Part
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.record import log_end
from sim.gpu.units.shared import book_background

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


OPS = 8  # products, or rows of them, of one warp in flight, and groups of them that it may wait for

FIGURES = ("sm.wgmma_in_flight",)


class TensorWarp(IntEnum):
    """Columns of a warp's row: its products. An op is one of them, or several of equal size that issue together."""

    LEFT = 96  # ticks of its tensor core that its products in flight still need
    ASKED = 97  # ticks that all of them have needed
    ISSUED = 98  # ops so far
    DONE = 99  # of these, over
    LAST = 100  # latest completion of its products
    GROUPS = 101  # committed groups
    AWAITED = 102  # one more than what may be left when a wait for products in flight ends, 0 without one
    BEHIND = 103  # ticks from then to the end of that wait
    GROUP_OPS = 104  # by group: ops issued when it was committed
    OP_END = 136  # by op, two columns each: ticks asked for up to its end
    OP_TICK = 137  # its latency behind the tensor core; once it is over, the tick of its completion
    OP_LOG_ROW = 152  # by op: its row in the event log, if one is kept


class RegisterFile(IntEnum):
    """Columns of a sub-core's row: vector instructions that keep synchronous products from registers, or that
    asynchronous ones let in."""

    BUSY_UNTIL = 30
    SHARE = 31  # what they take of it until then, in 256ths


class TensorCore(IntEnum):
    """Columns of a sub-core's row: its tensor core."""

    GIVEN_UNTIL = 32  # up to here its time has been given to products in flight
    WARPS_IN_FLIGHT = 33  # warps that have some
    FIRST_WARP = 34  # these warps: from here on a column for each warp of the sub-core


class TensorFigure(IntEnum):
    """Parameters of the tensor cores."""

    IN_FLIGHT_INSTRUCTIONS = Part.TENSOR  # of one warp; 0 without wgmma


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`TensorFigure`."""
    return {TensorFigure.IN_FLIGHT_INSTRUCTIONS: spec.sm.wgmma_in_flight or 0}


@inner(inline=True)
def op_place(op):
    """Offset of a warp's op number `op` in the columns of those in flight."""
    return 2 * (op & (OPS - 1))


@inner
def serve(warps, subs, log, s, t):
    """Gives the time of sub-core `s`'s tensor core up to tick `t` to the products in flight.

    The tensor core alternates between the warps that have some: each gets an equal share. Time is given out in whole
    rounds, what is left over stays for the next call.
    """
    while subs[s, TensorCore.WARPS_IN_FLIGHT] > 0:
        count = subs[s, TensorCore.WARPS_IN_FLIGHT]
        share = t - subs[s, TensorCore.GIVEN_UNTIL]
        if count == 2:
            share >>= 1
        elif count > 2:
            share //= count
        if share <= 0:
            return
        for i in range(count):
            w = subs[s, TensorCore.FIRST_WARP + i]
            end = warps[w, TensorWarp.OP_END + op_place(warps[w, TensorWarp.DONE])]
            share = min(share, end - warps[w, TensorWarp.ASKED] + warps[w, TensorWarp.LEFT])
        now = subs[s, TensorCore.GIVEN_UNTIL] + share * count
        subs[s, TensorCore.GIVEN_UNTIL] = now
        for i in range(count - 1, -1, -1):
            w = subs[s, TensorCore.FIRST_WARP + i]
            left = warps[w, TensorWarp.LEFT] - share
            warps[w, TensorWarp.LEFT] = left
            op = op_place(warps[w, TensorWarp.DONE])
            if warps[w, TensorWarp.OP_END + op] > warps[w, TensorWarp.ASKED] - left:
                continue
            warps[w, TensorWarp.LAST] = max(warps[w, TensorWarp.LAST], now + warps[w, TensorWarp.OP_TICK + op])
            warps[w, TensorWarp.OP_TICK + op] = warps[w, TensorWarp.LAST]
            log_end(log, warps[w, TensorWarp.OP_LOG_ROW + op // 2], now, warps[w, TensorWarp.LAST])
            warps[w, TensorWarp.DONE] += 1
            if left == 0:
                count -= 1
                subs[s, TensorCore.FIRST_WARP + i] = subs[s, TensorCore.FIRST_WARP + count]
        subs[s, TensorCore.WARPS_IN_FLIGHT] = count


@inner
def served_at(warps, subs, s, need):
    """Tick at which a warp of sub-core `s` will have got `need` ticks of its tensor core, unless more products issue or
    the register file is taken until then: others get as much meanwhile, or what they still need."""
    tick = subs[s, TensorCore.GIVEN_UNTIL]
    for i in range(subs[s, TensorCore.WARPS_IN_FLIGHT]):
        tick += min(warps[subs[s, TensorCore.FIRST_WARP + i], TensorWarp.LEFT], need)
    return tick


@inner(inline=True)
def await_products(st, w, s, left, behind):
    """Notes that warp `w` waits until its products in flight need no more than `left` ticks of the tensor core, and for
    `behind` ticks from then on; returns the tick at which that is so, as it is now known."""
    warps = st.warps
    warps[w, TensorWarp.AWAITED] = left + 1
    warps[w, TensorWarp.BEHIND] = behind
    return served_at(warps, st.sub_cores, s, warps[w, TensorWarp.LEFT] - left) + behind


@inner(inline=True)
def products_room(st, w, s, t, held, another):
    """Tick from which warp `w` has no more than `held` ticks of products in flight: `t` or, as it is now known, later.
    another: and from which there is a place for another op."""
    warps = st.warps
    serve(warps, st.sub_cores, st.log, s, t)
    warps[w, TensorWarp.AWAITED] = 0
    if another and warps[w, TensorWarp.ISSUED] - warps[w, TensorWarp.DONE] == OPS:
        oldest = TensorWarp.OP_END + op_place(warps[w, TensorWarp.ISSUED])
        held = min(held, warps[w, TensorWarp.ASKED] - warps[w, oldest])
    return await_products(st, w, s, held, 0) if warps[w, TensorWarp.LEFT] > held else t


@inner(inline=True)
def book_products(st, w, s, sm, t, work, latency, operands):
    """Gives products of warp `w` to its tensor core, which have been served up to tick `t`: they need `work` ticks of
    it, their results are there `latency` ticks behind, and their operands take the array of shared memory for
    `operands` ticks. Returns when they would be over."""
    sub_cores, warps = st.sub_cores, st.warps
    at = op_place(warps[w, TensorWarp.ISSUED])
    free = max(t, sub_cores[s, SubCore.PIPE_FREE + Pipe.TENSOR])
    if sub_cores[s, TensorCore.WARPS_IN_FLIGHT] == 0:
        sub_cores[s, TensorCore.GIVEN_UNTIL] = free
    if warps[w, TensorWarp.LEFT] == 0:
        sub_cores[s, TensorCore.FIRST_WARP + sub_cores[s, TensorCore.WARPS_IN_FLIGHT]] = w
        sub_cores[s, TensorCore.WARPS_IN_FLIGHT] += 1
    warps[w, TensorWarp.LEFT] += work
    end = served_at(warps, sub_cores, s, warps[w, TensorWarp.LEFT])
    shared = book_background(st, sm, t, operands)
    if shared > end:
        warps[w, TensorWarp.LEFT] += shared - end
        work += shared - end
        end = shared
    warps[w, TensorWarp.ASKED] += work
    sub_cores[s, SubCore.PIPE_FREE + Pipe.TENSOR] = free + work
    sub_cores[s, SubCore.PIPE_SHARE + Pipe.TENSOR] = 0
    warps[w, TensorWarp.OP_END + at] = warps[w, TensorWarp.ASKED]
    warps[w, TensorWarp.OP_TICK + at] = latency
    warps[w, TensorWarp.ISSUED] += 1
    return end


@inner(inline=True)
def note_log_row(st, w, row):
    """The latest op of warp `w` has a row in the event log, which learns its times when they are known."""
    if st.log is not None:
        st.warps[w, TensorWarp.OP_LOG_ROW + op_place(st.warps[w, TensorWarp.ISSUED] - 1) // 2] = row


@inner(inline=True)
def commit_products(st, w):
    """Closes a group of products."""
    warps = st.warps
    warps[w, TensorWarp.GROUP_OPS + warps[w, TensorWarp.GROUPS] % OPS] = warps[w, TensorWarp.ISSUED]
    warps[w, TensorWarp.GROUPS] += 1


@inner(inline=True)
def groups_done(st, w, s, t, pending):
    """Tick, `t` or later, at which all groups of warp `w` but the last `pending` are complete; while their products are
    in flight (`TensorWarp.AWAITED`) as it is now known."""
    warps = st.warps
    groups = warps[w, TensorWarp.GROUPS] - pending
    ops = warps[w, TensorWarp.GROUP_OPS + (groups - 1) % OPS] if groups > 0 else 0
    at = op_place(ops - 1)
    serve(warps, st.sub_cores, st.log, s, t)
    warps[w, TensorWarp.AWAITED] = 0
    if ops > warps[w, TensorWarp.DONE]:
        left = warps[w, TensorWarp.ASKED] - warps[w, TensorWarp.OP_END + at]
        return await_products(st, w, s, left, warps[w, TensorWarp.OP_TICK + at])
    if ops > 0 and warps[w, TensorWarp.ISSUED] - ops < OPS:
        return max(t, warps[w, TensorWarp.OP_TICK + at])
    return t


@inner(inline=True)
def products_over(st, w, s, t):
    """Tick at which the products in flight of an ending warp are over, `t` if they are."""
    if st.warps[w, TensorWarp.LEFT] > 0:
        serve(st.warps, st.sub_cores, st.log, s, t)
        if st.warps[w, TensorWarp.LEFT] > 0:
            return await_products(st, w, s, 0, 0)
    return t


# ---- the register file


@inner(inline=True)
def take_registers(st, s, t, duration, taken):
    """Instructions on vector registers, issued within [t, t + duration), keep synchronous products from the register
    file for `taken` ticks: what the tensor core has in hand ends later, what it gets before they end takes longer."""
    subs = st.sub_cores
    free = subs[s, SubCore.PIPE_FREE + Pipe.TENSOR]
    if free > t:
        lost = taken if t + duration <= free else taken * (free - t) // duration
        subs[s, SubCore.PIPE_FREE + Pipe.TENSOR] = free + lost
    end = t + duration
    if subs[s, RegisterFile.BUSY_UNTIL] > t:
        taken += (subs[s, RegisterFile.BUSY_UNTIL] - t) * subs[s, RegisterFile.SHARE] >> 8
        end = max(end, subs[s, RegisterFile.BUSY_UNTIL])
    subs[s, RegisterFile.BUSY_UNTIL] = end
    subs[s, RegisterFile.SHARE] = taken * 256 // (end - t)


@inner(inline=True)
def registers_taken(subs, s, t, duration):
    """Ticks that vector instructions in progress add to `duration` ticks of the tensor core from tick t on."""
    overlap = min(subs[s, RegisterFile.BUSY_UNTIL] - t, duration)
    return overlap * subs[s, RegisterFile.SHARE] >> 8 if overlap > 0 else 0


@inner(inline=True)
def beside_products(subs, s, t, duration, taken):
    """How long instructions on vector registers take from t on that need `duration` ticks of their pipe, and `taken` of
    the register file while the tensor core of sub-core `s` has products: one warp's after the other's."""
    left = subs[s, SubCore.PIPE_FREE + Pipe.TENSOR] - t
    begin = max(subs[s, RegisterFile.BUSY_UNTIL] - t, 0)
    if begin >= left:
        return duration
    end = begin + taken
    if end > left:  # what goes on beyond the products goes on without them
        end = left + (end - left) * min(duration, taken) // taken
    subs[s, RegisterFile.BUSY_UNTIL] = t + min(end, left)
    return max(duration, end)
