"""The state of a launch: arrays of int64 rows, one row for everything that is touched together.

Rows of the chip, its SMs, sub-cores, CTA slots and warps are shared by units; each unit names the columns that it owns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from arch import limits
from arch.gpu import GpuSpec
from sim.engine.buffers import filled, give_back
from sim.engine.search import TAGS
from sim.gpu.counters import Counter
from sim.gpu.engine.fetch import FetchFigure
from sim.gpu.engine.flow import Trips
from sim.gpu.engine.scheduler import Contender, Line
from sim.gpu.engine.semaphores import SemaphoreFigure
from sim.gpu.engine.tma import TmaBox, TmaFigure, TmaQueue
from sim.gpu.lower.tables import Scratch
from sim.gpu.units.accounting import Since
from sim.gpu.units.barriers import BarrierFigure, Mbarrier, NamedBarrier
from sim.gpu.units.chip import CHUNK, Chip
from sim.gpu.units.cta import Cta, CtaSlots, locate_ctas
from sim.gpu.units.events import EVENT_COLUMNS, TRACE_COLUMNS, Reason, Window
from sim.gpu.units.l1 import L1Figure
from sim.gpu.units.port import Port, locate_ports, new_bounds, new_entries
from sim.gpu.units.record import Recorder
from sim.gpu.units.tensor import TensorCore
from sim.gpu.units.tree import ID_MASK, NEVER, TreeFigure
from sim.gpu.units.warp import Warp
from sim.memory.replacement import first_word

CHIP_WIDTH = 32
"""Columns of the chip's row."""
SM_WIDTH = 40
"""Columns of an SM's row."""


class GpuState(NamedTuple):
    """Everything that changes while a kernel runs."""

    tree: np.ndarray  # tournament tree of event keys: node i has children 2 i and 2 i + 1, leaves are components by SM
    chip: np.ndarray
    warps: np.ndarray
    sub_cores: np.ndarray
    contenders: np.ndarray  # (sub-cores, warps, Contender.WIDTH): who waits for a pipe or issue slots
    sms: np.ndarray
    gpcs: np.ndarray  # when a GPC's link to the L2 is free; last: when the L2 takes a read, in 16ths of a tick
    ctas: np.ndarray
    mbarriers: np.ndarray
    named_barriers: np.ndarray  # (CTA slots, barriers, NamedBarrier.WIDTH)
    tma_boxes: np.ndarray  # (2 * SMs, boxes, TmaBox.WIDTH): loads, then stores
    tma_queues: np.ndarray  # (2 * SMs, TmaQueue.WIDTH)
    tma_in_flight: np.ndarray  # (SMs, entries) completion ticks of TMA lines
    tma_bounds: np.ndarray  # of these by blocks (`sim.gpu.units.port.new_bounds`)
    l1_misses: np.ndarray  # (SMs, entries) completion ticks of L1 misses
    l1_bounds: np.ndarray  # of these by blocks
    stores: np.ndarray  # (SMs, entries) ticks at which stores are acknowledged
    l1_tags: np.ndarray  # (SMs * sets * TAGS,) int32
    l1_lines: np.ndarray  # (SMs * sets, ways): mask of valid sectors, ready tick above it
    l1_order: np.ndarray  # (SMs * sets,): words of `sim.memory.replacement`
    l1_ahead: np.ndarray  # (lines of a chunk,): sets of those that are looked up next
    flags: np.ndarray  # (flags, 2)
    flag_waiters: np.ndarray  # warps
    code_ready: np.ndarray  # (GPCs, code lines): tick at which a GPC's instruction cache holds it, 0 not asked for
    stack: np.ndarray  # scratch: operands of an expression, receivers of a box, slots of a cluster, a warp's reasons
    counters: np.ndarray  # by Counter
    warp_states: np.ndarray  # ticks by Reason
    since: np.ndarray  # (warps, Since.WIDTH): what a warp has done since its last barrier; no rows without barriers
    barrier_waits: np.ndarray  # ticks by Reason: of BARRIER in `warp_states`, what the last warp did meanwhile
    issue_slots: np.ndarray  # ticks by Reason
    # None in a launch that records nothing: `advance` is compiled for it without what records.
    log: np.ndarray | None  # rows of `sim.gpu.units.events.Event`
    trace: np.ndarray | None  # rows of `sim.gpu.units.events.TraceRow`, none for executed ops alone


def new_state(p: np.ndarray, spec: GpuSpec, window: Window | None = None, *, meets: bool = True) -> GpuState:
    """A chip with nothing on it yet, for a launch's parameters. window: what is recorded, None for nothing. meets:
    whether warps meet at named barriers."""
    sms, sub_cores = int(p[Chip.SMS]), int(p[Chip.SMS] * p[Chip.SUB_CORES])
    warps_per_sm = int(p[Chip.WARPS_PER_SM])
    warps, ctas = sms * warps_per_sm, sms * int(p[Chip.CTAS_PER_SM])
    components = warps + 3 * sms
    if components > ID_MASK:
        raise ValueError(f"{components} warps and queues exceed the {ID_MASK} that event keys can name")

    sm_rows = _rows(sms, SM_WIDTH)
    sm_rows[:, CtaSlots.FREE] = p[Chip.CTAS_PER_SM]
    locate_ports(spec, sm_rows)
    locate_ctas(spec, sm_rows)
    warps_per_sub_core = -(-warps_per_sm // int(p[Chip.SUB_CORES]))
    gpcs = int(sm_rows[:, Port.GPC].max()) + 1
    sub_core_rows = _rows(sub_cores, TensorCore.FIRST_WARP + warps_per_sub_core)
    sub_core_rows[:, Line.FIRST_KEY] = NEVER
    chip = _zeros(CHIP_WIDTH)
    chip[Trips.LEFT] = limits.steps()
    log = trace = None
    if window is not None:
        chip[Recorder.FROM], chip[Recorder.TO] = window.from_tick, window.to_tick
        chip[Recorder.FIRST_SM], chip[Recorder.LAST_SM] = window.first_sm, window.last_sm
        log, trace = _zeros(window.rows, EVENT_COLUMNS), _zeros(window.rows if window.trace else 0, TRACE_COLUMNS)
    l1_sets, l1_ways = sms * int(p[L1Figure.SETS]), int(p[L1Figure.WAYS])
    tma_in_flight = new_entries(sms, int(p[TmaFigure.LINES_IN_FLIGHT]))
    l1_misses = new_entries(sms, int(p[L1Figure.MISS_QUEUE]))
    return GpuState(
        tree=filled(2 * int(p[TreeFigure.SMS]) << int(p[TreeFigure.LEVELS]), np.int64, NEVER),
        chip=chip,
        warps=_rows(warps, Warp.WIDTH),
        sub_cores=sub_core_rows,
        contenders=_zeros(sub_cores, warps_per_sub_core, Contender.WIDTH),
        sms=sm_rows,
        gpcs=_zeros(gpcs + 1),
        ctas=_zeros(ctas, Cta.WIDTH),
        mbarriers=_zeros(ctas * int(p[BarrierFigure.MBARRIERS]), Mbarrier.WIDTH),
        named_barriers=_zeros(ctas, int(p[BarrierFigure.NAMED]), NamedBarrier.WIDTH),
        tma_boxes=_zeros(2 * sms, int(p[TmaFigure.QUEUE]), TmaBox.WIDTH),
        tma_queues=_zeros(2 * sms, TmaQueue.WIDTH),
        tma_in_flight=tma_in_flight,
        tma_bounds=new_bounds(tma_in_flight),
        l1_misses=l1_misses,
        l1_bounds=new_bounds(l1_misses),
        stores=_zeros(sms, int(p[L1Figure.MISS_QUEUE])),
        l1_tags=filled(l1_sets * TAGS, np.int32, -1),
        l1_lines=_zeros(l1_sets, l1_ways),
        l1_order=filled(l1_sets, np.int64, first_word(int(p[L1Figure.REPLACEMENT]), l1_ways)),
        l1_ahead=_zeros(CHUNK),
        flags=_zeros(max(1, int(p[SemaphoreFigure.FLAGS])), 2),
        flag_waiters=_zeros(warps),
        code_ready=_zeros(gpcs, max(1, int(p[FetchFigure.CODE_LINES]))),
        stack=_zeros(Scratch.WIDTH),
        counters=_zeros(Counter.WIDTH),
        warp_states=_zeros(len(Reason)),
        since=filled((warps if meets else 0, Since.WIDTH), np.uint32, 0),
        barrier_waits=_zeros(len(Reason)),
        issue_slots=_zeros(len(Reason)),
        log=log,
        trace=trace,
    )


def drop_state(state: GpuState) -> None:
    """Hands the arrays of a launch back that nobody looks at any more; those of a recording stay."""
    give_back(array for array in state._replace(log=None, trace=None) if array is not None)


def _zeros(*shape: int) -> np.ndarray:
    return filled(shape, np.int64, 0)


def _rows(count: int, width: int) -> np.ndarray:
    """Rows that begin at host cache lines, as the array does."""
    width = -(-width // 8) * 8
    return filled((count, width), np.int64, 0)
