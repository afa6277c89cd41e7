"""Ops of the tile language on shared memory: what rows of loads, stores and ldmatrix take of the array, and of the
network between the SMs of a cluster (`sim.gpu.units.shared`)."""

from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.expressions import evaluate
from sim.gpu.lower.tables import Col
from sim.gpu.units.accounting import account
from sim.gpu.units.chip import Chip
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.pipes import part
from sim.gpu.units.shared import SharedFigure, SharedMemory, book_access, book_background, book_crossing
from sim.gpu.units.warp import Warp


@inner(inline=True)
def queue_room(p, st, code, sm, pc, in_runs):
    """Tick from which the queue of `sm` has room for an access by row `pc`."""
    free = st.sms[sm, SharedMemory.FREE]
    if not in_runs and code[pc, Col.BYTES_COUNTER] == Counter.SHARED_WRITE_BYTES and code[pc, Col.NETWORK] == 0:
        # Stores queue behind spread loads, which else would starve. A run books all of its loads ahead, so that in
        # runs these hold up nobody.
        free = st.sms[sm, SharedMemory.BACKGROUND_FREE]
    return free - p[SharedFigure.QUEUE]


@inner(inline=True)
def access(p, prog, st, w, sm, t, pc, n, issued):
    """Books `n` loads or stores of row `pc`, of which the last issues at `issued`; returns when they are done."""
    code = prog.code
    work = n * code[pc, Col.SHARED]
    begin = book_access(st, sm, t, work)
    st.counters[code[pc, Col.BYTES_COUNTER]] += n * code[pc, Col.BYTES]
    st.counters[Counter.SHARED_CONFLICT_TICKS] += n * code[pc, Col.CONFLICTS]
    end = max(begin + work, issued)
    if code[pc, Col.NETWORK] > 0:
        end = max(end, cross_network(p, prog, st, w, sm, t, pc, n))
    last = end + code[pc, Col.LATENCY]
    if code[pc, Col.BYTES_COUNTER] == Counter.SHARED_WRITE_BYTES:
        st.warps[w, Warp.SHARED_WRITTEN] = max(st.warps[w, Warp.SHARED_WRITTEN], last)
    return last


@inner
def cross_network(p, prog, st, w, sm, t, pc, n):
    """Books `n` accesses by row `pc` of another SM's array, and the network; returns when they are through."""
    code = prog.code
    ranks = evaluate(prog, st.warps, st.stack, w, code[pc, Col.MASK])
    rank = 0
    while rank + 1 < p[Chip.CLUSTER_SIZE] and ranks >> (rank + 1) > 0:
        rank += 1
    peer = st.ctas[st.warps[w, Warp.CTA], Cta.PEERS + rank]
    other = st.warps[st.ctas[peer, Cta.FIRST_WARP], Warp.SM]
    stores = code[pc, Col.BYTES_COUNTER] == Counter.SHARED_WRITE_BYTES
    return book_crossing(st, sm, other, t, n * code[pc, Col.SHARED], n * code[pc, Col.NETWORK], stores)


@inner(inline=True)
def stream_loads(st, w, t, code, pc, done, n, total):
    """Books the shared-memory loads that go with instructions `done` to `done + n` of row `pc`.

    Returns the tick at which the array has served them. They are spread over the row, so that the array has room for
    others between them: they wait only for its bandwidth.
    """
    end = book_background(st, st.warps[w, Warp.SM], t, part(code[pc, Col.SHARED], done, n, total))
    loads = part(code[pc, Col.LOADS], done, n, total)
    st.counters[Counter.INST_SHARED] += loads
    st.counters[Counter.INST_OTHER] -= loads
    st.counters[Counter.SHARED_READ_BYTES] += part(code[pc, Col.BYTES], done, n, total)
    st.counters[Counter.SHARED_CONFLICT_TICKS] += part(code[pc, Col.CONFLICTS], done, n, total)
    return end


@inner(inline=True)
def fence(st, w, t):
    """Waits until the shared-memory stores of warp `w` have been made; returns the tick."""
    if st.warps[w, Warp.SHARED_WRITTEN] > t:
        account(st, w, st.warps[w, Warp.SHARED_WRITTEN], Reason.MEMBAR)
        t = st.warps[w, Warp.SHARED_WRITTEN]
    return t
