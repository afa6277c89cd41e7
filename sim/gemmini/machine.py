"""Runs a program on a Gemmini: figures become integers, one compiled loop runs all tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from arch.gemmini import GemminiSpec
from sim.gemmini import memory as mem
from sim.gemmini.kernel import (
    ACTIVE,
    BUSY,
    ISSUED,
    RING,
    WAITS_ENTRY,
    WAITS_LOAD,
    WAITS_TILE,
    Rules,
    State,
    run,
)
from sim.gemmini.program import (
    COLUMNS,
    DEPTH,
    FILTER_COLUMNS,
    FILTER_ROWS,
    LEFT,
    OUTPUTS,
    RIGHT,
    ROWS,
    Program,
)
from sim.gemmini.unroll import Commands, Geometry
from sim.memory.counters import MemoryCounter
from sim.memory.dram import lower_dram, new_dram_state

FIGURES = (
    "array.least_rows",
    "array.latency",
    "array.size",
    "clock.boost",
    "core.choice",
    "core.command",
    "core.tile",
    "dma.bus",
    "dma.commands",
    "dma.request",
    "dma.requests",
    "l2.latency",
    "l2.line",
    "l2.misses",
    "l2.replacement",
    "l2.set_busy",
    "l2.size",
    "l2.ways",
    "memory_cache.latency",
    "memory_cache.line",
    "memory_cache.port",
    "memory_cache.replacement",
    "memory_cache.size",
    "memory_cache.ways",
    "reservation.executes",
    "reservation.loads",
    "reservation.stores",
)
"""Figures of a preset that this module reads."""


class Span(NamedTuple):
    """From one cycle to another a queue worked on a tile, or waited for what `cause` says."""

    queue: str
    cause: str
    tile: int
    begin: int
    end: int


@dataclass(frozen=True)
class Result:
    """What one run counted. accounts: by unit, cycles by what they went into, each unit's summing to `cycles`."""

    cycles: int
    accounts: Mapping[str, Mapping[str, int]]
    counters: Mapping[str, int]
    events: int
    spans: Sequence[Span] = ()
    """What queues did when, where a log was asked for, in the order in which it began."""
    tiles: Sequence[tuple[int, int]] = ()
    """When each tile was begun, and its last command sent, likewise."""


QUEUES = ("load", "array", "store")
"""Of which one's spans are told, in the order of the loop's numbers."""

_CAUSES = {ACTIVE: "active", WAITS_LOAD: "load", WAITS_ENTRY: "entry", BUSY: "busy"}

_SPANS_A_COMMAND = 2
"""A command's own, and what it waited for."""


def simulate(spec: GemminiSpec, program: Program, *, warm: bool = False, log: bool = False) -> Result:
    """Runs a program. warm: its operands and results have been touched before, in the order of their addresses. log:
    tells what queues did when; a first run counts the commands."""
    spans = 0
    if log:
        _, state, _ = _ran(spec, program, warm, 0)
        spans = _SPANS_A_COMMAND * int(state.queue[:, ISSUED].sum()) + 1
    return _result(spec, program, *_ran(spec, program, warm, spans))


def _ran(spec: GemminiSpec, program: Program, warm: bool, spans: int) -> tuple[int, State, mem.Caches]:
    """Cycles, and what the loop leaves behind; with room for so many spans."""
    tiles = program.tiles
    geometry, rules = _geometry(spec, program), _rules(spec, program)
    commands = _room(geometry, program.convolution, tiles)
    state = _state(commands, geometry, tiles, spans)
    figures, caches = _memories(spec)
    channel = lower_dram(spec.dram, spec.memory_cache.line_bytes, spec.clock.boost_hz)
    counters = np.zeros(len(MemoryCounter), np.int64)
    dram = (channel, new_dram_state(channel), counters)
    touched = program.operand_bytes if warm else 0
    cycles = int(run(rules, geometry, figures, caches, dram, state, tiles, commands, touched))
    return cycles, state, caches


def _geometry(spec: GemminiSpec, program: Program) -> Geometry:
    shape, block = program.shape, spec.array.size
    return Geometry(
        block=block,
        blocks=max(1, spec.dma.request_bytes // block),
        width=shape.width,
        channels=shape.channels,
        out_width=shape.out_width,
        out_channels=shape.out_channels,
        stride=shape.stride,
        filter_columns=shape.filter_columns,
        out_bytes=shape.out_bytes,
        outputs_stay=int(program.schedule.startswith("os")),
    )


def _rules(spec: GemminiSpec, program: Program) -> Rules:
    return Rules(
        loads=spec.reservation.loads,
        pairs=max(1, spec.reservation.executes // 2),
        stores=spec.reservation.stores,
        requests=spec.dma.requests,
        commands=spec.dma.commands,
        request_bytes=spec.dma.request_bytes,
        beat=int(spec.dma.bus_bytes_per_cycle),
        latency=int(spec.array.latency_cycles),
        least_rows=spec.array.least_rows,
        tile=int(spec.core.tile_cycles),
        command=int(spec.core.command_cycles) if program.serial else 0,
        begins=int(program.choices * spec.core.choice_cycles),
        convolution=int(program.convolution),
        serial=int(program.serial),
    )


def _room(g: Geometry, convolution: bool, tiles: NDArray[np.int64]) -> Commands:
    """Arrays that hold the commands of the largest tile."""

    def blocks(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        return -(-values // size)

    rows, columns, outputs, depth = (tiles[:, i] for i in (ROWS, COLUMNS, OUTPUTS, DEPTH))
    wide = g.block * g.blocks
    if convolution:
        high, across = tiles[:, FILTER_ROWS], tiles[:, FILTER_COLUMNS]
        filters = blocks(outputs, wide) * high * across * blocks(depth, g.block)
        width = columns * g.stride + across - 1 - tiles[:, LEFT] - tiles[:, RIGHT]
        pieces = blocks(width, g.block) + blocks(tiles[:, LEFT], g.block) + blocks(tiles[:, RIGHT], g.block)
        loads = 1 + filters + (rows * g.stride + high - 1) * pieces * blocks(depth, wide)
        places = rows * blocks(columns, g.block)
        products = blocks(outputs, g.block) * high * across * blocks(depth, g.block) * places
        stores = places * blocks(outputs, g.block)
    else:
        loads = rows * blocks(depth, g.blocks) + depth * blocks(outputs, g.blocks)
        products = rows * outputs * depth
        stores = rows * outputs
    sizes = [(int(loads.max()), 6), (int(products.max()), 4), (int(stores.max()), 6)]
    return Commands(*(np.zeros(size, np.int64) for size in sizes))


def _state(c: Commands, g: Geometry, tiles: NDArray[np.int64], spans: int) -> State:
    loads, products = c.loads.shape[0], c.products.shape[0]
    queue = np.zeros((3, 9), np.int64)
    queue[:, 2] = -1
    return State(
        queue=queue,
        begun=np.zeros(len(tiles), np.int64),
        sent=np.zeros(len(tiles), np.int64),
        load_sent=np.zeros((4, loads), np.int64),
        load_done=np.zeros((4, loads), np.int64),
        pair_sent=np.zeros((4, products), np.int64),
        pair_done=np.zeros((4, products), np.int64),
        ring=np.zeros((3, RING), np.int64),
        way=np.zeros((2, RING), np.int64),
        asked=np.zeros(2, np.int64),
        counted=np.zeros((2, 4), np.int64),
        left_at=np.zeros((4, loads), np.int64),
        right_at=np.zeros((4, loads), np.int64),
        spent=np.zeros(4, np.int64),
        busy=np.zeros(3, np.int64),
        spans=np.full((spans, 5), -1, np.int64),
        noted=np.zeros(4, np.int64),
    )


def _memories(spec: GemminiSpec) -> tuple[mem.Figures, mem.Caches]:
    line = spec.l2.line_bytes
    l2, cache = (
        mem.CacheFigures(
            part.size_bytes // (part.ways * part.line_bytes), part.ways, int(part.replacement == "random"), fills_empty
        )
        for part, fills_empty in ((spec.l2, 0), (spec.memory_cache, 1))
    )
    port = int(spec.memory_cache.port_bytes_per_cycle)
    figures = mem.Figures(
        l2=l2,
        cache=cache,
        line=line,
        lines=spec.memory_cache.line_bytes // line,
        beat=int(spec.dma.bus_bytes_per_cycle),
        latency=int(spec.l2.latency_cycles),
        set_busy=int(spec.l2.set_busy_cycles),
        misses=spec.l2.misses,
        cache_latency=int(spec.memory_cache.latency_cycles),
        fill=-(-line // port),
        whole=-(-spec.memory_cache.line_bytes // port),
    )
    caches = mem.Caches(
        l2=_lines(l2),
        cache=_lines(cache),
        set_free=np.zeros(l2.sets, np.int64),
        misses=np.zeros(spec.l2.misses, np.int64),
        clock=np.array([mem.FIRST_CHOICE, mem.FIRST_CHOICE, 0, 0, 0, 0, 0], np.int64),
        counts=np.zeros(7, np.int64),
    )
    return figures, caches


def _lines(figures: mem.CacheFigures) -> mem.Lines:
    size = figures.sets * figures.ways
    return mem.Lines(np.full(size, -1, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))


def _result(spec: GemminiSpec, program: Program, cycles: int, s: State, m: mem.Caches) -> Result:
    counts, line = [int(count) for count in m.counts], spec.l2.line_bytes
    spent = [int(part) for part in s.spent]
    array = {
        "active": spent[ACTIVE],
        "core": int(program.choices * spec.core.choice_cycles),
        "load": spent[WAITS_LOAD],
        "entry": spent[WAITS_ENTRY],
        "drain": spent[WAITS_TILE],
    }
    queues = {
        name: {"busy": int(s.busy[i]), "waits": cycles - int(s.busy[i])} for name, i in (("load", 0), ("store", 2))
    }
    return Result(
        cycles=cycles,
        accounts={"array": array, **queues},
        counters={
            "l2_read_bytes": counts[mem.L2_READ],
            "l2_write_bytes": counts[mem.L2_WRITTEN],
            "l2_hits": counts[mem.L2_HITS],
            "l2_misses": counts[mem.L2_MISSES],
            "dram_read_bytes": counts[mem.DRAM_LINES] * line,
            "dram_write_bytes": counts[mem.DRAM_WRITTEN] * line,
        },
        events=int(s.queue[:, ISSUED].sum() + s.asked.sum()),
        spans=[Span(QUEUES[u], _CAUSES[c], t, a, b) for u, c, t, a, b in s.spans[: s.noted[0]].tolist()],
        tiles=list(zip(s.begun.tolist(), s.sent.tolist(), strict=True)) if s.spans.size else (),
    )
