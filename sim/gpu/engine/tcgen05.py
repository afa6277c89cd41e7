"""Ops of the tile language on tensor memory (`sim.gpu.units.tcgen05`), and requests for CTAs that have not started."""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.barriers import barrier_number
from sim.gpu.engine.expressions import evaluate
from sim.gpu.engine.semaphores import TILES_AHEAD, CtaTiles, TileWarp
from sim.gpu.lower.tables import Col, Kind, WarpVariables
from sim.gpu.units.accounting import account, issue_slots
from sim.gpu.units.barriers import BarrierFigure, Mbarrier, arrive, peer
from sim.gpu.units.chip import Chip
from sim.gpu.units.cta import Cta, CtaFigure, Grid
from sim.gpu.units.events import PHASE_SHIFT, Reason
from sim.gpu.units.record import log_op
from sim.gpu.units.tcgen05 import (
    QUARTERS,
    TensorMemory,
    TensorMemoryFigure,
    TensorMemoryWarp,
    book_copies,
    book_products,
    book_quarter,
    free_columns,
    products_room,
    take_columns,
)
from sim.gpu.units.tree import PARKED
from sim.gpu.units.warp import Block, Warp, park


@inner
def operate(p, prog, st, w, s, sm, t, pc, kind):
    """A product, copy, load or store, or a request of launch control; returns the tick at which the warp goes on,
    perhaps with the same row."""
    code, warps = prog.code, st.warps
    n, interval, op = code[pc, Col.COUNT], code[pc, Col.INTERVAL], code[pc, Col.OP]
    column = -1
    queued = kind == Kind.TCGEN05_MMA or kind == Kind.TCGEN05_CP
    if queued:
        room = products_room(p, st, sm, interval)
        if room > t:
            account(st, w, room, Reason.MATH_PIPE_THROTTLE)
            return room
        other = -1
        if code[pc, Col.VALUE] == 1:
            other = warps[st.ctas[partner(st, w), Cta.FIRST_WARP], Warp.SM]
        if kind == Kind.TCGEN05_MMA:
            end = book_products(st, sm, other, t, n * interval, n * code[pc, Col.SHARED])
        else:
            end = book_copies(st, sm, other, t, n * interval)
        column = TensorMemoryWarp.PRODUCTS
        count_products(p, st.counters, code, pc, 2 if other >= 0 else 1)
    elif kind == Kind.TRY_CANCEL:
        end = cancel(p, prog, st, w, t, pc)
    else:
        loads = kind == Kind.TCGEN05_LD
        ports = TensorMemory.READ_FREE if loads else TensorMemory.WRITE_FREE
        end = book_quarter(st, sm, ports, warps[w, Warp.NUMBER] % QUARTERS, t, n * interval)
        column = TensorMemoryWarp.LOADS if loads else TensorMemoryWarp.STORES
        st.counters[Counter.INST_OTHER] += n
    if column >= 0:
        done = end + code[pc, Col.LATENCY]
        warps[w, column] = max(warps[w, column], done)
        log_op(st.log, st, w, op, t, end, done, 0)
    busy = code[pc, Col.ISSUE] * p[Chip.CYCLE]
    issue_slots(st, w, s, t, busy, t + busy)
    st.warp_states[Reason.SELECTED] += busy
    st.counters[Counter.INSTRUCTIONS] += code[pc, Col.ISSUE]
    warps[w, Warp.ACCOUNTED] = t + busy
    warps[w, Warp.REASON] = Reason.WAIT
    warps[w, Warp.PROGRAM_COUNTER] = pc + 1
    return t + busy


@inner(inline=True)
def partner(st, w):
    """CTA slot of the other CTA of the pair of warp `w`."""
    slot = st.warps[w, Warp.CTA]
    return st.ctas[slot, Cta.PEERS + (st.ctas[slot, Cta.RANK] ^ 1)]


@inner(inline=True)
def count_products(p, counters, code, pc, sms):
    """Counts the products or copies of row `pc`, which the tensor cores of `sms` SMs execute."""
    n = code[pc, Col.COUNT]
    counters[Counter.INST_TENSOR] += n
    counters[Counter.INST_OTHER] += code[pc, Col.ISSUE] - n
    counters[Counter.MACS_TENSOR] += n * code[pc, Col.MACS]
    counters[Counter.SHARED_READ_BYTES] += sms * n * code[pc, Col.BYTES]
    if code[pc, Col.MACS] > 0:  # an SM's tensor core is that of all of its sub-cores
        counters[Counter.TENSOR_TICKS] += sms * p[Chip.SUB_CORES] * n * code[pc, Col.INTERVAL]


@inner
def cancel(p, prog, st, w, t, pc):
    """Takes the next cluster that has not started, for all CTAs that the request names; returns when they know."""
    chip, ctas = st.chip, st.ctas
    slot = st.warps[w, Warp.CTA]
    found = -1
    if chip[Grid.NEXT_CLUSTER] < p[CtaFigure.CLUSTERS]:
        found = chip[Grid.NEXT_CLUSTER]
        chip[Grid.NEXT_CLUSTER] += 1
    b = barrier_number(prog, st, w, pc)
    done = t + p[TensorMemoryFigure.CANCEL]
    here = ctas[slot, Cta.RANK]
    ranks = 1 << here
    if prog.code[pc, Col.MASK] >= 0:
        ranks = evaluate(prog, st.warps, st.stack, w, prog.code[pc, Col.MASK])
    phase = st.mbarriers[slot * p[BarrierFigure.MBARRIERS] + b, Mbarrier.PHASE]
    log_op(st.log, st, w, prog.code[pc, Col.OP], t, done, done, (phase << PHASE_SHIFT) | b)
    for rank in range(p[Chip.CLUSTER_SIZE]):
        if (ranks >> rank) & 1:
            other = slot if rank == here else peer(st, slot, rank)
            if other >= 0:
                ctas[other, CtaTiles.RING + 2 * (ctas[other, CtaTiles.FETCHED] % TILES_AHEAD)] = found
                ctas[other, CtaTiles.FETCHED] += 1
                arrive(p, prog, st, other, b, 0, -prog.code[pc, Col.BYTES], done, t)
    return done


@inner
def settle(p, prog, st, w, sm, t, pc, kind, issued):
    """Commits, waits, allocations and answers: what `t` and the logged value are afterwards, and when it is done."""
    code, warps = prog.code, st.warps
    if kind == Kind.TCGEN05_COMMIT:
        return t, commit(p, prog, st, w, t, pc), 0
    if kind == Kind.TCGEN05_WAIT_LD or kind == Kind.TCGEN05_WAIT_ST:
        loads = kind == Kind.TCGEN05_WAIT_LD
        done = warps[w, TensorMemoryWarp.LOADS if loads else TensorMemoryWarp.STORES]
        if done > t:
            account(st, w, done, Reason.SHORT_SCOREBOARD)
            t = done
    elif kind == Kind.TCGEN05_ALLOC:
        if not take_columns(p, st, sm, code[pc, Col.VALUE]):
            park(st, w, Block.TENSOR_MEMORY, 0, code[pc, Col.VALUE], code[pc, Col.OP], issued)
            return PARKED, t, 0
        t += p[TensorMemoryFigure.ALLOCATION]
        account(st, w, t, Reason.SLEEPING)
    elif kind == Kind.TCGEN05_DEALLOC:
        free_columns(p, st, sm, code[pc, Col.VALUE], t)
    else:
        n = warps[w, TileWarp.FETCHED]
        warps[w, TileWarp.FETCHED] = n + 1
        found = st.ctas[warps[w, Warp.CTA], CtaTiles.RING + 2 * (n % TILES_AHEAD)]
        warps[w, WarpVariables.FIRST + code[pc, Col.VAR]] = found
        return t, t, found
    return t, t, 0


@inner(inline=True)
def commit(p, prog, st, w, t, pc):
    """Arrivals on mbarriers when the products of warp `w` are over; returns the tick."""
    slot = st.warps[w, Warp.CTA]
    b = barrier_number(prog, st, w, pc)
    done = max(t, st.warps[w, TensorMemoryWarp.PRODUCTS])
    here = st.ctas[slot, Cta.RANK]
    ranks = 1 << here
    if prog.code[pc, Col.MASK] >= 0:
        ranks = evaluate(prog, st.warps, st.stack, w, prog.code[pc, Col.MASK])
    for rank in range(p[Chip.CLUSTER_SIZE]):
        if (ranks >> rank) & 1:
            other = slot if rank == here else peer(st, slot, rank)
            if other >= 0:
                arrive(p, prog, st, other, b, 1, 0, done, t)
    return done
