"""Shared memory of an SM: one array for loads, stores, ldmatrix, reads of the TMA and operands of the tensor cores.

What the TMA writes takes nothing from these (`deliver` in tma.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks, transfer_ticks
from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.engine.accounting import account
from sim.gpu.engine.chip import Chip, Part
from sim.gpu.engine.cta import Cta
from sim.gpu.engine.events import Reason
from sim.gpu.engine.expressions import evaluate
from sim.gpu.engine.pipes import part
from sim.gpu.engine.warp import Warp
from sim.gpu.lower.tables import Col

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.engine.chip import Launching


FIGURES = ("shared.bandwidth", "shared.queue")


class SharedMemory(IntEnum):
    """Columns of an SM's row: until when the array's work is booked."""

    FREE = 0  # for loads and stores of warps
    BACKGROUND_FREE = 1  # for what tensor cores and TMA read behind these
    NETWORK_FREE = 10  # for what other SMs of its cluster bring: data that its loads asked for, and their stores


class SharedFigure(IntEnum):
    """Parameters of shared memory."""

    WAVEFRONT = Part.SHARED  # ticks a 128 B wavefront
    # Ticks of queued work that an SM accepts. Compilers spread loads between arithmetic so that the queues do not
    # stall a warp; an op stands for loads so spread: a deeper queue than the 4 to 8 entries that single ones see.
    QUEUE = Part.SHARED + 1


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`SharedFigure`."""
    return {
        SharedFigure.WAVEFRONT: transfer_ticks(128, spec.shared.bandwidth_bytes_per_cycle),
        SharedFigure.QUEUE: cycles_to_ticks(spec.shared.queue_cycles),
    }


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
    code, sms = prog.code, st.sms
    begin = max(sms[sm, SharedMemory.FREE], t)
    work = n * code[pc, Col.SHARED]
    sms[sm, SharedMemory.FREE] = begin + work
    sms[sm, SharedMemory.BACKGROUND_FREE] = max(sms[sm, SharedMemory.BACKGROUND_FREE], t) + work
    st.counters[Counter.SHARED_TICKS] += work
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
    """Books `n` accesses by row `pc` of another SM's array, and the network at the SM that they bring data to.

    Returns when they are through. A store leaves the queue of its own SM when the network takes it.
    """
    code, sms = prog.code, st.sms
    ranks = evaluate(prog, st.warps, st.stack, w, code[pc, Col.MASK])
    rank = 0
    while rank + 1 < p[Chip.CLUSTER_SIZE] and ranks >> (rank + 1) > 0:
        rank += 1
    peer = st.ctas[st.warps[w, Warp.CTA], Cta.PEERS + rank]
    other = st.warps[st.ctas[peer, Cta.FIRST_WARP], Warp.SM]
    if other != sm:
        background = max(sms[other, SharedMemory.BACKGROUND_FREE], t)
        sms[other, SharedMemory.BACKGROUND_FREE] = background + n * code[pc, Col.SHARED]
        st.counters[Counter.SHARED_TICKS] += n * code[pc, Col.SHARED]
    stores = code[pc, Col.BYTES_COUNTER] == Counter.SHARED_WRITE_BYTES
    receiver = other if stores else sm
    end = max(sms[receiver, SharedMemory.NETWORK_FREE], t) + n * code[pc, Col.NETWORK]
    sms[receiver, SharedMemory.NETWORK_FREE] = end
    if stores:
        sms[sm, SharedMemory.FREE] = max(sms[sm, SharedMemory.FREE], end)
    return end


@inner(inline=True)
def stream_loads(st, w, t, code, pc, done, n, total):
    """Books the shared-memory loads that go with instructions `done` to `done + n` of row `pc`.

    Returns the tick at which the array has served them. They are spread over the row, so that the array has room for
    others between them: they wait only for its bandwidth.
    """
    background = st.sms[st.warps[w, Warp.SM], SharedMemory.BACKGROUND_FREE]
    begin = max(background, t)
    end = begin + part(code[pc, Col.SHARED], done, n, total)
    st.sms[st.warps[w, Warp.SM], SharedMemory.BACKGROUND_FREE] = end
    st.counters[Counter.SHARED_TICKS] += end - begin
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
