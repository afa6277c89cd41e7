"""wgmma of the tile language: rows of products that issue as the tensor core takes those before them, and waits for
groups of them. The tensor core itself is `sim.gpu.units.tensor`."""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.lower.tables import Col
from sim.gpu.units.accounting import account, issue_one, issue_slots
from sim.gpu.units.chip import Chip
from sim.gpu.units.events import Reason
from sim.gpu.units.record import log_op
from sim.gpu.units.tensor import (
    TensorCore,
    TensorFigure,
    TensorWarp,
    await_products,
    book_products,
    groups_done,
    note_log_row,
    products_room,
    served_at,
)
from sim.gpu.units.tree import FAR, ID_BITS, TIME_SHIFT, set_due
from sim.gpu.units.warp import Warp


@inner(inline=True)
def put_off_waits(st, s, w):
    """Puts off the other warps of sub-core `s` that wait for products in flight: warp `w` has issued some."""
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
    held = p[TensorFigure.IN_FLIGHT_INSTRUCTIONS] * code[pc, Col.INTERVAL]
    fresh = warps[w, Warp.LEFT] == 0
    room = products_room(st, w, s, t, FAR if fresh else held, fresh)
    if room > t:
        account(st, w, room, Reason.MATH_PIPE_THROTTLE)
        return room
    if not fresh:
        warps[w, Warp.LEFT] = 0
        warps[w, Warp.PROGRAM_COUNTER] = pc + 1
        return t
    n = code[pc, Col.COUNT]
    end = book_products(st, w, s, sm, t, n * code[pc, Col.INTERVAL], code[pc, Col.LATENCY], n * code[pc, Col.SHARED])
    warps[w, Warp.LEFT] = 1
    busy = code[pc, Col.ISSUE] * p[Chip.CYCLE]
    issue_slots(st, w, s, t, busy, t + busy)
    st.warp_states[Reason.SELECTED] += busy
    warps[w, Warp.ACCOUNTED] = t + busy
    warps[w, Warp.REASON] = Reason.WAIT
    count_wgmma(st.counters, code, pc)
    note_log_row(st, w, log_op(st.log, st, w, code[pc, Col.OP], t, end, end + code[pc, Col.LATENCY], 0))
    if st.sub_cores[s, TensorCore.WARPS_IN_FLIGHT] > 1:
        put_off_waits(st, s, w)
    t += busy
    if served_at(warps, st.sub_cores, s, warps[w, TensorWarp.LEFT] - held) > t:
        t = await_products(st, w, s, held, 0)
        account(st, w, t, Reason.MATH_PIPE_THROTTLE)
    return t


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


@inner(inline=True)
def wait_group(p, prog, st, w, s, t, pc):
    """A wait for groups of wgmma; returns the tick at which the warp goes on, perhaps with the same row."""
    code, warps = prog.code, st.warps
    if warps[w, Warp.LEFT] == 0:
        warps[w, Warp.LEFT] = 1
        warps[w, Warp.OP_ISSUED] = t
        return issue_one(p, st, w, s, t)
    done = groups_done(st, w, s, t, code[pc, Col.VALUE])
    if warps[w, TensorWarp.AWAITED] > 0 or done > t:
        account(st, w, done, Reason.GMMA)
    if warps[w, TensorWarp.AWAITED] > 0:
        return done
    warps[w, Warp.LEFT] = 0
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    log_op(st.log, st, w, code[pc, Col.OP], warps[w, Warp.OP_ISSUED], done, done, 0)
    return done
