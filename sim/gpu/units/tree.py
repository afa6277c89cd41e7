"""Events: a tournament tree of keys, whose leaves are the components of the chip and whose subtrees are SMs.

A key is (tick, priority, component), so that simultaneous events have one order. Each component has at most one event.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.units.chip import Part

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


ID_BITS = 16
TIME_SHIFT = ID_BITS + 6  # six bits of priority
ID_MASK = (1 << ID_BITS) - 1
NEVER = (1 << 63) - 1  # key of a component without an event
FAR = 1 << 62  # a tick after all others
PARKED = -1  # in place of a tick: somebody else has to wake the component
SCHEDULED = -2  # in place of a tick: the event of the component in progress has been announced

#: How far a warp may be ahead of other SMs, at most; it changes only the order in which lines of a multicast take their
#: place in the receiving SM.
_LOOKAHEAD_CYCLES = 64
#: How far a request to memory may be ahead of other warps of its SM: two loads in a row, or a short calculation and
#: the store of its result, are one event.
_SLACK_CYCLES = 16

FIGURES = ("sm.count", "l2.hit_latency", "sm.cta_launch", "dsmem.latency", "sync.cluster_sync")


class Turn(IntEnum):
    """Columns of the chip's row that the event in progress owns."""

    ANNOUNCED = 0  # an event has been announced in it
    TICK = 1
    LIMIT = 2  # earliest key of the other components
    SM = 3  # of the warp in progress
    SM_LIMIT = 4  # earliest key of the other components of its SM


class TreeFigure(IntEnum):
    """Parameters of the order of events."""

    SMS = Part.TREE  # SMs that the tree has room for, a power of two
    LEVELS = Part.TREE + 1  # of the tree below an SM
    LOOKAHEAD = Part.TREE + 2  # ticks that a warp may be ahead of other SMs
    SLACK = Part.TREE + 3  # ticks that a request to memory may be ahead of other events of its SM


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`TreeFigure`: room for the chip, and how far warps may be ahead: less than an SM takes to affect another."""
    between_sms = [spec.l2.hit_latency_cycles, spec.sm.cta_launch_cycles]
    if spec.dsmem:
        between_sms += [spec.dsmem.latency_cycles, spec.sync.cluster_sync_cycles or 0]
    return {
        TreeFigure.SMS: 1 << (spec.sm.count - 1).bit_length(),
        TreeFigure.LEVELS: (launch.held.warps + 2).bit_length(),
        TreeFigure.LOOKAHEAD: cycles_to_ticks(min(_LOOKAHEAD_CYCLES, *between_sms)),
        TreeFigure.SLACK: cycles_to_ticks(_SLACK_CYCLES),
    }


@inner(inline=True)
def set_due(due, leaf, key):
    """Sets the event of the component at `leaf`; each node above holds the least key below it."""
    due[leaf] = key
    node = leaf
    while node > 1:
        key = min(key, due[node ^ 1])
        node >>= 1
        due[node] = key


@inner(inline=True)
def set_due_in_sm(p, due, leaf, key):
    """As `set_due`, for a component of the SM whose event is in progress: that is the first of all, so that no node
    above the SM changes before its own leaf does."""
    due[leaf] = key
    node = leaf
    for _ in range(p[TreeFigure.LEVELS]):
        key = min(key, due[node ^ 1])
        node >>= 1
        due[node] = key


@inner(inline=True)
def leaf_of(p, sm, number):
    """Leaf of component `number` of an SM: its warps, the TMA's two queues, the code fetch."""
    return ((p[TreeFigure.SMS] + sm) << p[TreeFigure.LEVELS]) + number


@inner(inline=True)
def announce(st, key, leaf, sm):
    """Announces the event with a key."""
    set_due(st.tree, leaf, key)
    limit(st, key, sm)


@inner(inline=True)
def limit(st, key, sm):
    """Notes that an event with a key has been announced, of a component of `sm`."""
    x = st.chip
    x[Turn.ANNOUNCED] = 1
    x[Turn.LIMIT] = min(x[Turn.LIMIT], key)
    if sm == x[Turn.SM]:
        x[Turn.SM_LIMIT] = min(x[Turn.SM_LIMIT], key)


@inner(inline=True)
def schedule(st, tick, priority, component, leaf, sm):
    """Announces an event of a component."""
    announce(st, (tick << TIME_SHIFT) | (priority << ID_BITS) | component, leaf, sm)
