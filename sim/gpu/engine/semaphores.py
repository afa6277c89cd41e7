"""Semaphores in device memory: flags that warps raise and wait for, and the counter from which CTAs take tiles."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.clock import cycles_to_ticks
from sim.engine.jit import inner
from sim.gpu.engine.expressions import evaluate
from sim.gpu.lower.tables import Col, WarpVariables
from sim.gpu.units.accounting import account
from sim.gpu.units.chip import Chip, Part
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.tree import PARKED
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp, park

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


TILES_AHEAD = 8  # tiles that the fastest warp of a CTA may be ahead of the slowest

FIGURES = ("l2.hit_latency",)


class TileCounter(IntEnum):
    """Columns of the chip's row."""

    NEXT = 24  # tile


class FlagWaiters(IntEnum):
    """Columns of the chip's row."""

    COUNT = 25  # warps that wait for a flag


class CtaTiles(IntEnum):
    """Columns of a CTA's row."""

    FETCHED = 10  # tiles
    RING = 16  # by tile: number, when it is known


class TileWarp(IntEnum):
    """Columns of a warp's row."""

    FETCHED = 165  # calls of next_tile


class Flag(IntEnum):
    """Columns of a flag."""

    VALUE = 0
    LATEST = 1  # when it got that


class SemaphoreFigure(IntEnum):
    """Parameters of semaphores."""

    FLAGS = Part.SEMAPHORES
    LATENCY = Part.SEMAPHORES + 1  # of an atomic in the L2


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`SemaphoreFigure`."""
    return {
        SemaphoreFigure.FLAGS: launch.kernel.flags,
        SemaphoreFigure.LATENCY: cycles_to_ticks(spec.l2.hit_latency_cycles),
    }


@inner(inline=True)
def next_tile(p, st, code, w, t, pc):
    """The next tile of the CTA of warp `w`, which its first warp to ask fetches. Returns (tick, tile)."""
    warps, ctas, chip = st.warps, st.ctas, st.chip
    slot = warps[w, Warp.CTA]
    n = warps[w, TileWarp.FETCHED]
    warps[w, TileWarp.FETCHED] = n + 1
    at = CtaTiles.RING + 2 * (n % TILES_AHEAD)
    if n >= ctas[slot, CtaTiles.FETCHED]:
        ctas[slot, at] = chip[TileCounter.NEXT]
        ctas[slot, at + 1] = t + p[SemaphoreFigure.LATENCY]
        chip[TileCounter.NEXT] += 1
        ctas[slot, CtaTiles.FETCHED] = n + 1
    tile = ctas[slot, at]
    if ctas[slot, at + 1] > t:
        account(st, w, ctas[slot, at + 1], Reason.LONG_SCOREBOARD)
        t = ctas[slot, at + 1]
    warps[w, WarpVariables.FIRST + code[pc, Col.VAR]] = tile
    return t, tile


@inner(inline=True)
def raise_flag(p, prog, st, w, t, pc):
    """Adds one to a flag when the stores of the CTA of warp `w` are visible; returns the tick."""
    warps, chip, flags = st.warps, st.chip, st.flags
    f = evaluate(prog, warps, st.stack, w, prog.code[pc, Col.STAGE])
    first = st.ctas[warps[w, Warp.CTA], Cta.FIRST_WARP]
    visible = t
    for other in range(first, first + p[Chip.WARPS_PER_CTA]):
        visible = max(visible, warps[other, Warp.STORES_DONE])
    if visible > t:
        account(st, w, visible, Reason.MEMBAR)
        t = visible
    flags[f, Flag.VALUE] += 1
    flags[f, Flag.LATEST] = max(flags[f, Flag.LATEST], t + p[SemaphoreFigure.LATENCY])
    i = 0
    while i < chip[FlagWaiters.COUNT]:
        other = st.flag_waiters[i]
        if warps[other, Warp.BLOCK_WHAT] == f and flags[f, Flag.VALUE] >= warps[other, Warp.BLOCK_VALUE]:
            chip[FlagWaiters.COUNT] -= 1
            st.flag_waiters[i] = st.flag_waiters[chip[FlagWaiters.COUNT]]
            wake(p, st, other, flags[f, Flag.LATEST] + p[SemaphoreFigure.LATENCY] // 2, Reason.SLEEPING, t)
        else:
            i += 1
    return t


@inner(inline=True)
def wait_flag(p, prog, st, w, t, pc, issued):
    """Waits until a flag has reached a value; returns the tick, PARKED if it has not."""
    code, warps = prog.code, st.warps
    f = evaluate(prog, warps, st.stack, w, code[pc, Col.STAGE])
    value = evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
    if st.flags[f, Flag.VALUE] < value:
        park(st, w, Block.FLAG, f, value, code[pc, Col.OP], issued)
        st.flag_waiters[st.chip[FlagWaiters.COUNT]] = w
        st.chip[FlagWaiters.COUNT] += 1
        return PARKED
    tick = max(t + p[SemaphoreFigure.LATENCY], st.flags[f, Flag.LATEST])
    account(st, w, tick, Reason.LONG_SCOREBOARD)
    return tick
