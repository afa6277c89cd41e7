"""CTAs and the grid of a launch: their rows, and the figures of launching."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from sim.engine.clock import cycles_to_ticks, ps_to_ticks
from sim.gpu.units.chip import Part

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


FIGURES = (
    "gpc.count",
    "gpc.single_tpcs",
    "sm.count",
    "sm.per_tpc",
    "sm.sub_cores",
    "sm.cta_launch",
    "sm.warp_setup",
    "launch.cta_interval",
)


class Grid(IntEnum):
    """Columns of the chip's row: how far the launch has come."""

    NEXT_CLUSTER = 16
    LIVE_CTAS = 17
    LAUNCHED = 18  # CTAs so far
    LAUNCH_FREE = 19  # tick until which the CTA scheduler is busy
    END = 20  # of the last warp
    STARTED = 21
    PLACE = 22  # at which the next cluster is tried first


class CtaSlots(IntEnum):
    """Columns of an SM's row."""

    FREE = 8  # CTAs that it has room for
    NEWEST = 9  # launch order of its newest CTA
    IN_TURN = 11  # the SM whose turn this place of the chip's order is
    LAUNCH_FREE = 15  # tick until which it sets up warps
    PLACE = 20  # of those among which a cluster has to stay


class Cta(IntEnum):
    """Columns of a CTA slot's row. Others own the rest: `ClusterBarrier`, `CtaTiles`."""

    ACTIVE = 0
    X = 1
    Y = 2
    Z = 3
    RANK = 4
    LEFT = 5  # warps that have not exited
    FIRST_WARP = 6
    LINEAR = 7  # number in the grid
    END = 11
    CLUSTER = 12  # number of its cluster in the launch
    PEERS = 32  # by rank: slots of its cluster's CTAs
    WIDTH = 48


class CtaFigure(IntEnum):
    """Parameters of the launch."""

    GRID_X = Part.CTA
    GRID_Y = Part.CTA + 1
    GRID_Z = Part.CTA + 2
    CLUSTER_X = Part.CTA + 3
    CLUSTER_Y = Part.CTA + 4
    CLUSTER_Z = Part.CTA + 5
    CLUSTERS = Part.CTA + 6
    LAUNCH_LATENCY = Part.CTA + 7  # from a free slot to the first instruction
    INTERVAL = Part.CTA + 8  # between two CTAs of the chip
    WARP_SETUP = Part.CTA + 9  # between the first instructions of two CTAs of an SM, a warp
    START = Part.CTA + 10  # of the first CTA
    TURN_AFTER = Part.CTA + 11  # CTAs of an SM of which the first warps would be on one sub-core again


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`CtaFigure`."""
    kernel = launch.kernel
    return {
        CtaFigure.GRID_X: kernel.grid[0],
        CtaFigure.GRID_Y: kernel.grid[1],
        CtaFigure.GRID_Z: kernel.grid[2],
        CtaFigure.CLUSTER_X: kernel.cluster[0],
        CtaFigure.CLUSTER_Y: kernel.cluster[1],
        CtaFigure.CLUSTER_Z: kernel.cluster[2],
        CtaFigure.CLUSTERS: kernel.ctas // kernel.cluster_size,
        CtaFigure.LAUNCH_LATENCY: cycles_to_ticks(spec.sm.cta_launch_cycles),
        CtaFigure.INTERVAL: ps_to_ticks(spec.launch.cta_interval_ps, launch.clock_hz),
        CtaFigure.WARP_SETUP: cycles_to_ticks(spec.sm.warp_setup_cycles),
        CtaFigure.START: ps_to_ticks(launch.start_ps, launch.clock_hz),
        CtaFigure.TURN_AFTER: spec.sm.sub_cores // math.gcd(kernel.warps, spec.sm.sub_cores),
    }


def locate_ctas(spec: GpuSpec, sms: np.ndarray) -> None:
    """Writes where clusters may lie (`sms_per_place`), and the order in which SMs get CTAs: one in each place in turn.

    SMs are in the order of GPCs; single TPCs are the last of the middle one.
    """
    gpcs, sizes = spec.gpc.count, spec.sms_per_place
    single = len(sizes) - gpcs
    order = np.insert(np.arange(single, single + gpcs), gpcs // 2 + 1, np.arange(single))
    sizes_in_order = np.asarray(sizes)[order]
    place = np.repeat(order, sizes_in_order)
    number = np.concatenate([np.arange(size) for size in sizes_in_order])
    sms[:, CtaSlots.PLACE] = place
    sms[:, CtaSlots.IN_TURN] = np.lexsort((place, number))
