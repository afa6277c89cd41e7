"""Shared memory of an SM: one array for loads, stores, ldmatrix, reads of the TMA and operands of the tensor cores; the
network over which the SMs of a cluster reach each other's.

What the TMA writes takes nothing from these (`deliver` in tma.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks, transfer_ticks
from sim.engine.jit import inner
from sim.gpu.counters import Counter
from sim.gpu.units.chip import Part

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


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
def book_access(st, sm, t, work):
    """Books `work` ticks of the array for accesses of warps that reach it at tick `t`; returns when they begin."""
    sms = st.sms
    begin = max(sms[sm, SharedMemory.FREE], t)
    sms[sm, SharedMemory.FREE] = begin + work
    sms[sm, SharedMemory.BACKGROUND_FREE] = max(sms[sm, SharedMemory.BACKGROUND_FREE], t) + work
    st.counters[Counter.SHARED_TICKS] += work
    return begin


@inner(inline=True)
def book_background(st, sm, t, work):
    """Books `work` ticks of the array, from tick `t` on, for what warps do not wait for as for their accesses
    (operands of tensor cores, spread loads, other SMs); returns when they are over."""
    end = max(st.sms[sm, SharedMemory.BACKGROUND_FREE], t) + work
    st.sms[sm, SharedMemory.BACKGROUND_FREE] = end
    st.counters[Counter.SHARED_TICKS] += work
    return end


@inner(inline=True)
def book_copies(st, sm, t, work):
    """Books `work` ticks of the array, from tick `t` on, for what asynchronous copies write."""
    st.sms[sm, SharedMemory.FREE] = max(st.sms[sm, SharedMemory.FREE], t) + work
    st.counters[Counter.SHARED_TICKS] += work


@inner(inline=True)
def book_network(st, sm, t, work):
    """Books `work` ticks of the network that brings data to an SM, from tick `t` on; returns when they are over."""
    end = max(st.sms[sm, SharedMemory.NETWORK_FREE], t) + work
    st.sms[sm, SharedMemory.NETWORK_FREE] = end
    return end


@inner(inline=True)
def book_crossing(st, sm, there, t, work, network, stores):
    """Books an access of SM `sm` to the array of another one of its cluster, which takes `work` ticks of that, and
    `network` ticks of the network at the SM that it brings data to; returns when it is through.

    A store leaves the queue of its own SM when the network takes it.
    """
    if there != sm:
        book_background(st, there, t, work)
    end = book_network(st, there if stores else sm, t, network)
    if stores:
        st.sms[sm, SharedMemory.FREE] = max(st.sms[sm, SharedMemory.FREE], end)
    return end
