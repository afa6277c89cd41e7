"""cp.async: copies from global to shared memory without registers, complete by groups.

The copies themselves are requests like loads (`sim.gpu.engine.global_memory`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.units.accounting import account
from sim.gpu.units.chip import Part
from sim.gpu.units.events import Reason
from sim.gpu.units.l1 import AS_ASKED, fills

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


GROUPS = 8  # of one warp that it may wait for

FIGURES = ("cp_async.latency", "cp_async.prefetch")


class CpAsyncGroups(IntEnum):
    """Columns of a warp's row."""

    DONE = 112  # by group: its completion
    LAST = 160  # latest completion of its copies
    COMMITTED = 161


class CpAsyncFigure(IntEnum):
    """Parameters of cp.async."""

    LATENCY = Part.CP_ASYNC  # beyond that of a plain load
    FETCHED = Part.CP_ASYNC + 1  # as `L1Figure.FILLS`: what the L2 fetches from DRAM for a copy that misses


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`CpAsyncFigure`."""
    if spec.cp_async is None:
        return {CpAsyncFigure.LATENCY: 0, CpAsyncFigure.FETCHED: AS_ASKED}
    return {
        CpAsyncFigure.LATENCY: cycles_to_ticks(spec.cp_async.latency_cycles),
        CpAsyncFigure.FETCHED: fills(spec.cp_async.prefetch_bytes) if launch.kernel.prefetches else AS_ASKED,
    }


@inner(inline=True)
def commit_copies(st, w):
    """Closes a group of copies."""
    warps = st.warps
    group = warps[w, CpAsyncGroups.COMMITTED]
    warps[w, CpAsyncGroups.DONE + group % GROUPS] = warps[w, CpAsyncGroups.LAST]
    warps[w, CpAsyncGroups.COMMITTED] = group + 1


@inner(inline=True)
def wait_copies(st, w, t, in_flight):
    """Waits until no more than `in_flight` groups are; returns the tick."""
    groups = st.warps[w, CpAsyncGroups.COMMITTED] - in_flight
    if groups > 0:
        tick = st.warps[w, CpAsyncGroups.DONE + (groups - 1) % GROUPS]
        if tick > t:
            account(st, w, tick, Reason.CP_ASYNC)
            t = tick
    return t
