"""Tensor cores: wgmma in flight, complete by groups; the register file, which vector instructions take from mma.sync
and which wgmma leave to one of them at a time.

mma.sync is a run on the tensor pipe (`sim.gpu.engine.issue`). wgmma is asynchronous: a tensor core holds some of a warp
and alternates between the warps that have some.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.accounting import account, issue_one, issue_slots
from sim.gpu.engine.chip import Chip, Part
from sim.gpu.engine.events import Reason
from sim.gpu.engine.pipes import SubCore
from sim.gpu.engine.record import log_end, log_op
from sim.gpu.engine.shared import SharedMemory
from sim.gpu.engine.tree import ID_BITS, TIME_SHIFT, set_due
from sim.gpu.engine.warp import Warp
from sim.gpu.lower.tables import Col, Pipe

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.engine.chip import Launching


OPS = 8  # wgmma of one warp in flight, and groups of them that it may wait for

FIGURES = ("sm.wgmma_in_flight",)


class TensorWarp(IntEnum):
    """Columns of a warp's row: its wgmma."""

    LEFT = 96  # ticks of its tensor core that its wgmma in flight still need
    ASKED = 97  # ticks that all its wgmma have needed
    ISSUED = 98  # wgmma ops so far
    DONE = 99  # of these, over
    LAST = 100  # latest completion of its wgmma
    GROUPS = 101  # committed groups
    AWAITED = 102  # one more than what may be left when a wait for wgmma in flight ends, 0 without one
    BEHIND = 103  # ticks from then to the end of that wait
    GROUP_OPS = 104  # by group: ops issued when it was committed
    OP_END = 136  # by op, two columns each: ticks asked for up to its end
    OP_TICK = 137  # its latency behind the tensor core; once it is over, the tick of its completion
    OP_LOG_ROW = 152  # by op: its row in the event log, if one is kept


class RegisterFile(IntEnum):
    """Columns of a sub-core's row: vector instructions that keep mma.sync from registers, or that wgmma let in."""

    BUSY_UNTIL = 30
    SHARE = 31  # what they take of it until then, in 256ths


class TensorCore(IntEnum):
    """Columns of a sub-core's row: its tensor core."""

    GIVEN_UNTIL = 32  # up to here its time has been given to wgmma in flight
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
    """Offset of a warp's wgmma number `op` in the columns of those in flight."""
    return 2 * (op & (OPS - 1))


@inner
def serve(warps, subs, log, s, t):
    """Gives the time of sub-core `s`'s tensor core up to tick `t` to the wgmma in flight.

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
    """Tick at which a warp of sub-core `s` will have got `need` ticks of its tensor core, unless more wgmma are issued
    or the register file is taken until then: others get as much meanwhile, or what they still need."""
    tick = subs[s, TensorCore.GIVEN_UNTIL]
    for i in range(subs[s, TensorCore.WARPS_IN_FLIGHT]):
        tick += min(warps[subs[s, TensorCore.FIRST_WARP + i], TensorWarp.LEFT], need)
    return tick


@inner(inline=True)
def await_wgmma(st, w, s, left, behind, reason):
    """Makes warp `w` wait until its wgmma in flight need no more than `left` ticks of the tensor core, and for `behind`
    ticks from then on; returns the tick as it is now known. Others that issue meanwhile put it off."""
    warps = st.warps
    warps[w, TensorWarp.AWAITED] = left + 1
    warps[w, TensorWarp.BEHIND] = behind
    tick = served_at(warps, st.sub_cores, s, warps[w, TensorWarp.LEFT] - left) + behind
    account(st, w, tick, reason)
    return tick


@inner(inline=True)
def put_off_waits(st, s, w):
    """Puts off the other warps of sub-core `s` that wait for wgmma in flight: warp `w` has issued some."""
    subs, warps = st.sub_cores, st.warps
    for i in range(subs[s, TensorCore.WARPS_IN_FLIGHT]):
        other = subs[s, TensorCore.FIRST_WARP + i]
        need = warps[other, TensorWarp.LEFT] - warps[other, TensorWarp.AWAITED] + 1
        if warps[other, TensorWarp.AWAITED] > 0 and need > 0 and other != w:
            tick = served_at(warps, subs, s, need) + warps[other, TensorWarp.BEHIND]
            if tick > warps[other, Warp.ACCOUNTED]:
                account(st, other, tick, warps[other, Warp.REASON])
                set_due(st.tree, warps[other, Warp.LEAF], (tick << TIME_SHIFT) | (32 << ID_BITS) | other)


@inner(inline=True)
def multiply(p, prog, st, w, s, sm, t, pc):
    """A wgmma op of warp `w`; returns the tick at which the warp goes on.

    Its instructions issue as the tensor core takes those before them, so that the warp may come back to the same row.
    """
    code, warps = prog.code, st.warps
    serve(warps, st.sub_cores, st.log, s, t)
    warps[w, TensorWarp.AWAITED] = 0
    held = p[TensorFigure.IN_FLIGHT_INSTRUCTIONS] * code[pc, Col.INTERVAL]
    if warps[w, Warp.LEFT] != 0:
        if warps[w, TensorWarp.LEFT] > held:
            return await_wgmma(st, w, s, held, 0, Reason.MATH_PIPE_THROTTLE)
        warps[w, Warp.LEFT] = 0
        warps[w, Warp.PROGRAM_COUNTER] = pc + 1
        return t
    at = op_place(warps[w, TensorWarp.ISSUED])
    if warps[w, TensorWarp.ISSUED] - warps[w, TensorWarp.DONE] == OPS:
        left = warps[w, TensorWarp.ASKED] - warps[w, TensorWarp.OP_END + at]
        return await_wgmma(st, w, s, left, 0, Reason.MATH_PIPE_THROTTLE)
    end = book_wgmma(st, code, w, s, sm, t, pc, at)
    warps[w, Warp.LEFT] = 1
    busy = code[pc, Col.ISSUE] * p[Chip.CYCLE]
    issue_slots(st, w, s, t, busy, t + busy)
    st.warp_states[Reason.SELECTED] += busy
    warps[w, Warp.ACCOUNTED] = t + busy
    warps[w, Warp.REASON] = Reason.WAIT
    count_wgmma(st.counters, code, pc)
    row = log_op(st.log, st, w, code[pc, Col.OP], t, end, end + code[pc, Col.LATENCY], 0)
    if st.log is not None:
        warps[w, TensorWarp.OP_LOG_ROW + at // 2] = row
    if st.sub_cores[s, TensorCore.WARPS_IN_FLIGHT] > 1:
        put_off_waits(st, s, w)
    t += busy
    if served_at(warps, st.sub_cores, s, warps[w, TensorWarp.LEFT] - held) > t:
        t = await_wgmma(st, w, s, held, 0, Reason.MATH_PIPE_THROTTLE)
    return t


@inner(inline=True)
def book_wgmma(st, code, w, s, sm, t, pc, at):
    """Gives wgmma of row `pc` to the tensor core, in place `at` of warp `w`; returns when they would be over."""
    sub_cores, warps, sms = st.sub_cores, st.warps, st.sms
    n = code[pc, Col.COUNT]
    work = n * code[pc, Col.INTERVAL]
    free = max(t, sub_cores[s, SubCore.PIPE_FREE + Pipe.TENSOR])
    if sub_cores[s, TensorCore.WARPS_IN_FLIGHT] == 0:
        sub_cores[s, TensorCore.GIVEN_UNTIL] = free
    if warps[w, TensorWarp.LEFT] == 0:
        sub_cores[s, TensorCore.FIRST_WARP + sub_cores[s, TensorCore.WARPS_IN_FLIGHT]] = w
        sub_cores[s, TensorCore.WARPS_IN_FLIGHT] += 1
    warps[w, TensorWarp.LEFT] += work
    end = served_at(warps, sub_cores, s, warps[w, TensorWarp.LEFT])
    # Operands stream from shared memory; its array is shared with TMA and the LSU.
    shared = max(sms[sm, SharedMemory.BACKGROUND_FREE], t) + n * code[pc, Col.SHARED]
    sms[sm, SharedMemory.BACKGROUND_FREE] = shared
    if shared > end:
        warps[w, TensorWarp.LEFT] += shared - end
        work += shared - end
        end = shared
    warps[w, TensorWarp.ASKED] += work
    sub_cores[s, SubCore.PIPE_FREE + Pipe.TENSOR] = free + work
    sub_cores[s, SubCore.PIPE_SHARE + Pipe.TENSOR] = 0
    warps[w, TensorWarp.OP_END + at] = warps[w, TensorWarp.ASKED]
    warps[w, TensorWarp.OP_TICK + at] = code[pc, Col.LATENCY]
    warps[w, TensorWarp.ISSUED] += 1
    return end


@inner(inline=True)
def count_wgmma(counters, code, pc):
    """Counts the wgmma of row `pc`."""
    n = code[pc, Col.COUNT]
    counters[Counter.INSTRUCTIONS] += code[pc, Col.ISSUE]
    counters[Counter.INST_TENSOR] += n
    counters[Counter.INST_OTHER] += code[pc, Col.ISSUE] - n
    counters[Counter.MACS_TENSOR] += n * code[pc, Col.MACS]
    counters[Counter.TENSOR_TICKS] += n * code[pc, Col.INTERVAL]
    counters[Counter.SHARED_READ_BYTES] += n * code[pc, Col.BYTES]
    counters[Counter.SHARED_TICKS] += n * code[pc, Col.SHARED]


@inner(inline=True)
def commit_group(st, w):
    """Closes a group of wgmma."""
    warps = st.warps
    warps[w, TensorWarp.GROUP_OPS + warps[w, TensorWarp.GROUPS] % OPS] = warps[w, TensorWarp.ISSUED]
    warps[w, TensorWarp.GROUPS] += 1


@inner(inline=True)
def wait_group(p, prog, st, w, s, t, pc):
    """A wait for groups of wgmma; returns the tick at which the warp goes on, perhaps with the same row."""
    code, warps = prog.code, st.warps
    if warps[w, Warp.LEFT] == 0:
        warps[w, Warp.LEFT] = 1
        warps[w, Warp.OP_ISSUED] = t
        return issue_one(p, st, w, s, t)
    groups = warps[w, TensorWarp.GROUPS] - code[pc, Col.VALUE]
    ops = warps[w, TensorWarp.GROUP_OPS + (groups - 1) % OPS] if groups > 0 else 0
    at = op_place(ops - 1)
    serve(warps, st.sub_cores, st.log, s, t)
    warps[w, TensorWarp.AWAITED] = 0
    if ops > warps[w, TensorWarp.DONE]:
        left = warps[w, TensorWarp.ASKED] - warps[w, TensorWarp.OP_END + at]
        return await_wgmma(st, w, s, left, warps[w, TensorWarp.OP_TICK + at], Reason.GMMA)
    if ops > 0 and warps[w, TensorWarp.ISSUED] - ops < OPS and warps[w, TensorWarp.OP_TICK + at] > t:
        t = warps[w, TensorWarp.OP_TICK + at]
        account(st, w, t, Reason.GMMA)
    warps[w, Warp.LEFT] = 0
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    log_op(st.log, st, w, code[pc, Col.OP], warps[w, Warp.OP_ISSUED], t, t, 0)
    return t


@inner(inline=True)
def wait_all(st, w, s, t):
    """Tick at which the wgmma in flight of an ending warp are over, `t` if they are."""
    if st.warps[w, TensorWarp.LEFT] > 0:
        serve(st.warps, st.sub_cores, st.log, s, t)
        if st.warps[w, TensorWarp.LEFT] > 0:
            return await_wgmma(st, w, s, 0, 0, Reason.GMMA)
    return t


@inner(inline=True)
def take_registers(st, s, t, duration, taken):
    """Instructions on vector registers, issued within [t, t + duration), keep mma.sync from the register file for
    `taken` ticks: what the tensor core has in hand ends later, what it is given before they end takes longer."""
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
def beside_wgmma(subs, s, t, duration, taken):
    """How long instructions on vector registers take from t on that need `duration` ticks of their pipe, and `taken` of
    the register file while the tensor core of sub-core `s` has wgmma: one warp's after the other's."""
    left = subs[s, SubCore.PIPE_FREE + Pipe.TENSOR] - t
    begin = max(subs[s, RegisterFile.BUSY_UNTIL] - t, 0)
    if begin >= left:
        return duration
    end = begin + taken
    if end > left:  # what the wgmma do not see the end of goes on without them
        end = left + (end - left) * min(duration, taken) // taken
    subs[s, RegisterFile.BUSY_UNTIL] = t + min(end, left)
    return max(duration, end)
