"""The tensor core of an SM whose sums lie in tensor memory: a queue of products, ports of tensor memory by quarters of
its lanes, and its columns, of which CTAs are allocated some.

Products follow each other in the order of their issue, those of a pair at both of its SMs at once. What they take is
known when they are booked: their operands are in shared memory by then.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.units.chip import Chip, Part
from sim.gpu.units.events import Reason
from sim.gpu.units.shared import book_background
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


QUARTERS = 4

FIGURES = ("tcgen05.allocation", "tcgen05.cancel", "tcgen05.columns", "tcgen05.queue")


class TensorMemory(IntEnum):
    """Columns of an SM's row."""

    READ_FREE = 24  # by quarter of its lanes: until when loads have its port
    WRITE_FREE = 28  # by quarter: until when stores have it
    PRODUCTS_FREE = 32  # until when the tensor core has products, or copies
    COLUMNS = 33  # allocated
    COPIES_FREE = 34  # until when copies from shared memory are under way
    BEFORE_LAST = 35  # until when it has products but the latest op's


class TensorMemoryWarp(IntEnum):
    """Columns of a warp's row: when what it has issued is over."""

    PRODUCTS = 168
    LOADS = 169
    STORES = 170


class TensorMemoryFigure(IntEnum):
    """Parameters of tensor memory."""

    COLUMNS = Part.TENSOR_MEMORY
    QUEUE = Part.TENSOR_MEMORY + 1  # products of an SM that wait
    ALLOCATION = Part.TENSOR_MEMORY + 2
    CANCEL = Part.TENSOR_MEMORY + 3


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`TensorMemoryFigure`; all 0 without tensor memory, which no op can need then."""
    unit = spec.tcgen05
    return {
        TensorMemoryFigure.COLUMNS: unit.columns if unit else 0,
        TensorMemoryFigure.QUEUE: unit.queue if unit else 0,
        TensorMemoryFigure.ALLOCATION: cycles_to_ticks(unit.allocation_cycles) if unit else 0,
        TensorMemoryFigure.CANCEL: cycles_to_ticks(unit.cancel_cycles) if unit else 0,
    }


@inner(inline=True)
def products_room(p, st, sm, interval):
    """Tick from which the queue of `sm` has room for a product, if those in it take `interval` ticks each."""
    return st.sms[sm, TensorMemory.PRODUCTS_FREE] - p[TensorMemoryFigure.QUEUE] * interval


@inner(inline=True)
def book_products(st, sm, other, t, work, operands):
    """Books products that are issued at tick `t` at the tensor core of `sm`, and of the pair's `other` SM where that is
    not -1: they take `work` ticks of each, and their operands `operands` ticks of each one's shared memory. Returns
    when they are over."""
    sms = st.sms
    begin = max(t, max(sms[sm, TensorMemory.PRODUCTS_FREE], sms[sm, TensorMemory.COPIES_FREE]))
    sms[sm, TensorMemory.BEFORE_LAST] = sms[sm, TensorMemory.PRODUCTS_FREE]
    if other >= 0:
        begin = max(begin, max(sms[other, TensorMemory.PRODUCTS_FREE], sms[other, TensorMemory.COPIES_FREE]))
        sms[other, TensorMemory.BEFORE_LAST] = sms[other, TensorMemory.PRODUCTS_FREE]
    end = max(begin + work, book_background(st, sm, begin, operands))
    if other >= 0:
        end = max(end, book_background(st, other, begin, operands))
        sms[other, TensorMemory.PRODUCTS_FREE] = end
    sms[sm, TensorMemory.PRODUCTS_FREE] = end
    return end


@inner(inline=True)
def book_copies(st, sm, other, t, work):
    """Books copies to tensor memory that are issued at tick `t`, as `book_products`: they go on beside the latest
    products, and behind those before, whose operands they may replace. Returns when they are over."""
    sms = st.sms
    begin = max(t, max(sms[sm, TensorMemory.COPIES_FREE], sms[sm, TensorMemory.BEFORE_LAST]))
    if other >= 0:
        begin = max(begin, max(sms[other, TensorMemory.COPIES_FREE], sms[other, TensorMemory.BEFORE_LAST]))
        sms[other, TensorMemory.COPIES_FREE] = begin + work
    sms[sm, TensorMemory.COPIES_FREE] = begin + work
    return begin + work


@inner(inline=True)
def book_quarter(st, sm, first, quarter, t, work):
    """Books `work` ticks of the port of a quarter of the lanes of `sm`, from tick `t` on. first: column of the ports of
    loads or of stores. Returns when they are over."""
    end = max(t, st.sms[sm, first + quarter]) + work
    st.sms[sm, first + quarter] = end
    return end


@inner(inline=True)
def take_columns(p, st, sm, columns):
    """Allocates columns of tensor memory on `sm`; False where there are not as many."""
    if st.sms[sm, TensorMemory.COLUMNS] + columns > p[TensorMemoryFigure.COLUMNS]:
        return False
    st.sms[sm, TensorMemory.COLUMNS] += columns
    return True


@inner
def free_columns(p, st, sm, columns, t):
    """Frees columns on `sm`, and lets warps go on that wait for some, in the order of their places."""
    st.sms[sm, TensorMemory.COLUMNS] -= columns
    for w in range(sm * p[Chip.WARPS_PER_SM], (sm + 1) * p[Chip.WARPS_PER_SM]):
        if st.warps[w, Warp.BLOCK] == Block.TENSOR_MEMORY and take_columns(p, st, sm, st.warps[w, Warp.BLOCK_VALUE]):
            wake(p, st, w, t + p[TensorMemoryFigure.ALLOCATION], Reason.SLEEPING, t)
