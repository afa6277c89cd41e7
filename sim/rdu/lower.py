"""A section and a machine become the engine's integer tables: costs, units, placement, routes, memory requests.

What does not fit (PCUs, PMUs, SRAM, ports) is an `InputError` that says what would.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import Memory, RduSpec
from arch.units import BYTES
from sim.engine.clock import TICKS_PER_CYCLE, bytes_per_cycle, cycles_to_ticks, ps_to_ticks, transfer_ticks
from sim.memory.counters import MemoryCounter
from sim.memory.dram import DramSpec, DramState, lower_dram, new_dram_state
from sim.rdu import network, place, route
from sim.rdu.balance import balance, memory_cycles
from sim.rdu.banks import bank_conflict, lookup_cycles
from sim.rdu.cost import StageCost, carry_pmus, entry_bytes, least_pmus, stage_cost
from sim.rdu.grain import room_of, steps_of, trail_ticks, vectors_of
from sim.rdu.layout import UNIT_BYTES, Channels, Kind, Log, Network, Reason, Scalars, Segments, Stages
from sim.rdu.network import Ways
from sim.rdu.place import Grid, Ints
from sim.rdu.program import Read, Section, Stage, walk

FIGURES = (
    "agcu.bandwidth",
    "agcu.count",
    "agcu.in_flight",
    "clock.boost",
    "ddr.bandwidth",
    "ddr.latency",
    "dies.count",
    "hbm.bandwidth",
    "hbm.latency",
    "mesh.control",
    "mesh.vector",
    "pcu.count",
    "pmu.bandwidth",
    "pmu.count",
    "pmu.latency",
)
"""Figures of a preset that this module reads."""

_SPREADS = ((1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (2, 2), (0, 0))
"""Times the PMUs that rates need, of an array's operand and of other buffers: spread over more, streams share fewer
links. 0: no buffer gets more than its size needs, and all stand near to what they serve."""

_CHANNEL_EVENTS = 1000
"""Events of the engine that take as long as routing a channel once, and placing a memory unit."""
_UNIT_EVENTS = 100

_KINDS = {
    "compute": Kind.COMPUTE,
    "load": Kind.LOAD,
    "store": Kind.STORE,
    "gather": Kind.GATHER,
    "lookup": Kind.COMPUTE,
    "collective": Kind.COLLECTIVE,
    "timed": Kind.COMPUTE,
}


class EngineSpec(NamedTuple):
    """Figures of the machine that the engine needs, in ticks."""

    hbm: DramSpec
    ddr: DramSpec
    ticks_per_unit: int
    """Of one address generator for `UNIT_BYTES`."""


class EngineState(NamedTuple):
    """Tables and calendars of one run; columns are in `sim.rdu.layout`."""

    x: Ints
    heap: Ints
    stage: Ints
    channel: Ints
    ports: Ints
    starts: Ints
    ready: Ints
    freed: Ints
    ready_net: Ints
    """Ticks of `ready` that the networks took, and of `freed`."""
    freed_net: Ints
    lookups: Ints
    links: Ints
    link_free: Ints
    jobs: Ints
    segments: Ints
    ring: Ints
    generator_free: Ints
    reasons: Ints
    log: Ints
    hbm: DramState
    hbm_counters: Ints
    ddr: DramState
    ddr_counters: Ints


@dataclass(frozen=True)
class ChannelUnits:
    """Where a channel's buffer is, and what it costs: for reports."""

    read: Read
    pmus: Ints
    """Coordinates (row, column)."""
    read_bytes: int
    """A firing of the reader."""
    write_bytes: int
    """A piece of the producer."""
    ways: Ways
    entry_bytes: int
    """Of what the buffer's depth counts."""
    vectors: int = 0
    """That hand a token over one by one; 0: it comes whole."""
    lookup_cycles: Ints | None = None
    """Of a table that is looked up: cycles of its ports, by firing."""


@dataclass(frozen=True)
class Configuration:
    """A section on a machine: what was placed where, and the tables to run it from."""

    section: Section
    spec: RduSpec
    grid: Grid
    stages: Sequence[Stage]
    channels: Sequence[ChannelUnits]
    costs: Sequence[StageCost]
    pcus: Sequence[Ints]
    """Coordinates of each stage's PCUs (of its address generators, for a memory stage)."""
    link_load: NDArray[np.float64]
    """Over each link in the whole run, shape (networks, 4, rows, columns): bytes, of the control network tokens."""
    engine: EngineSpec
    tables: EngineState
    """At tick 0; `fresh` copies it."""
    placing_events: int
    """Events of the engine that take as long as finding places and ways did."""

    @property
    def pcus_used(self) -> int:
        """PCUs of all stages."""
        return sum(cost.pcus for cost in self.costs)

    @property
    def pmus_used(self) -> int:
        """PMUs of all buffers."""
        return sum(len(channel.pmus) for channel in self.channels)

    def fresh(self, log: bool = True) -> EngineState:
        """A state at tick 0."""
        copy = _copy(self.tables)
        return copy if log else copy._replace(log=np.zeros((0, len(Log)), np.int64))


def lower_section(section: Section, spec: RduSpec, addresses: Mapping[str, int]) -> Configuration:
    """Costs, fits, places and routes a section."""
    stages, reads = section.stages, section.channels
    for read in reads:
        if read.output.stage not in stages:
            raise InputError(f"{section.name}: {read.name} reads a loop that was never closed")
    balance(section, spec)
    costs = [stage_cost(stage, spec) for stage in stages]
    number = {id(stage): i for i, stage in enumerate(stages)}
    firings = [walk(stage.over) for stage in stages]
    grid = place.grid_of(spec)
    units_of = route.place_stages(grid, stages, costs, reads, number)
    ends = [(costs[number[id(read.output.stage)]], costs[number[id(read.reader)]]) for read in reads]
    slowest = max(len(fired) * cost.interval_cycles for fired, cost in zip(firings, costs, strict=True))
    carried = sum(carry_pmus(stage, cost, spec) for stage, cost in zip(stages, costs, strict=True))
    enough, least = max(slowest, memory_cycles(section, spec)), math.inf
    buffers: list[Ints] = []
    found: list[network.Ways] = []
    placing, tried = 0, set()
    # Buffers whose busiest link or unit is least busy, or the first that none of them slows.
    for spread, inside in itertools.product(_SPREADS, (True, False) if grid.borders.any() else (True,)):
        needs = [_pmus(read, *pair, spec, spread) for read, pair in zip(reads, ends, strict=True)]
        pmus = _share_pmus(needs, spec.pmu.count - carried)
        _fits(section, spec, stages, costs, reads, pmus, carried)
        if (inside, *pmus) in tried:
            continue
        tried.add((inside, *pmus))
        placing += _CHANNEL_EVENTS * len(reads) + _UNIT_EVENTS * sum(pmus)
        placed = _place_buffers(grid, stages, costs, units_of, reads, pmus, number, inside)
        routed = network.ways(spec, grid, stages, costs, units_of, reads, placed, number)
        busiest = network.busiest_cycles(spec, grid, _loads(grid, reads, routed)[Network.VECTOR])
        for read, (_, cost), count in zip(reads, ends, pmus, strict=True):
            busiest = max(busiest, _port_cycles(read, cost, count, spec))
        if busiest < least:
            buffers, found, least = placed, routed, busiest
        if busiest <= enough:
            break
    channels = []
    vectors = vectors_of(section, stages, costs, spec)
    for read, units, way, count in zip(reads, buffers, found, vectors, strict=True):
        reader = number[id(read.reader)]
        cycles = None
        if read.port == "table" and stages[reader].kind == "lookup":
            rows = stages[reader].rows
            assert rows is not None
            row_bytes = read.token_bytes // read.shape[0]
            cycles, costs[reader].interval_cycles = lookup_cycles(rows, row_bytes, len(units), spec)
        taken, write = costs[reader].ports[read.port].read_bytes, read.output.out.piece_bytes
        channels.append(ChannelUnits(read, units, taken, write, way, entry_bytes(read, spec), count, cycles))
    total = _loads(grid, reads, found)
    engine = EngineSpec(
        lower_dram(spec.main_memory, UNIT_BYTES, spec.clock.boost_hz),
        lower_dram(spec.ddr, UNIT_BYTES, spec.clock.boost_hz),
        transfer_ticks(UNIT_BYTES, Fraction(spec.agcu.bandwidth_bytes_per_cycle)),
    )
    tables = _tables(spec, grid, stages, channels, costs, firings, number, addresses=addresses, engine=engine)
    return Configuration(
        section, spec, grid, stages, channels, costs, [u.all for u in units_of], total, engine, tables, placing
    )


# ---------------------------------------------------------------------------------------------------- units


def firings_of(read: Read) -> tuple[int, int, int]:
    """(firings of the reader, pieces, tokens) of a channel in one launch."""
    assert read.reader is not None
    out = read.output.out
    return read.reader.firings, len(walk(out.over)), len(walk(out.token_over))


def _loads(grid: Grid, reads: Sequence[Read], found: Sequence[network.Ways]) -> NDArray[np.float64]:
    """Bytes (of the control network: tokens) over each link in one launch, by network."""
    total = np.zeros((len(Network), 4, grid.rows, grid.columns))
    for read, way in zip(reads, found, strict=True):
        taken, emitted, tokens = firings_of(read)
        total[way.write_network] += way.write * emitted
        total[way.read_network] += way.read * taken
        total[Network.CONTROL] += (way.done + way.credit) * tokens
    return total


def _place_buffers(
    grid: Grid,
    stages: Sequence[Stage],
    costs: Sequence[StageCost],
    units_of: list[route.StageUnits],
    reads: Sequence[Read],
    pmus: Sequence[int],
    number: Mapping[int, int],
    inside: bool,
) -> list[Ints]:
    """Coordinates of every channel's PMUs, rather inside of their readers' tiles or wherever is near. A lookup's units,
    put into `units_of`, are those that hold its table."""
    free = np.ones(len(grid.pmus), np.int64)
    found = []
    for read, count in zip(reads, pmus, strict=True):
        producer, reader = number[id(read.output.stage)], number[id(read.reader)]
        if stages[reader].kind == "lookup" and read.port == "table":
            readers = [number[id(r.reader)] for r in reads if r.output.stage is stages[reader]]
            near = [units_of[r].takes for r in readers if stages[r].kind == "compute"]
            units = route.place_table(grid, free, count, near)
            units_of[reader] = route.StageUnits(units)
        else:
            port = costs[reader].ports[read.port]
            ends = (stages[reader], units_of[reader], read.output.stage, units_of[producer])
            units = route.place_buffer(grid, free, count, port, *ends, inside=inside)
        found.append(units)
    return found


def _share_pmus(needs: Sequence[tuple[int, int]], count: int) -> list[int]:
    """PMUs of each buffer from (what its size needs, what its rate would like): less than liked where they run out."""
    least = sum(size for size, _ in needs)
    liked = sum(max(need) for need in needs)
    if liked <= count or least >= count:
        return [max(need) if liked <= count else need[0] for need in needs]
    return [size + max(rate - size, 0) * (count - least) // (liked - least) for size, rate in needs]


def _pmus(
    read: Read, producer: StageCost, reader: StageCost, spec: RduSpec, spread: tuple[int, int]
) -> tuple[int, int]:
    """PMUs that a buffer needs for its size, and would like for the rates at both ends, which neither its banks nor its
    links should slow; none where FIFOs hold it.

    spread: times as many, see `_SPREADS`.
    """
    size = least_pmus(read, reader, spec)
    if read.pmus is not None or size == 0:
        return size, 0
    rate = Fraction(min(spec.pmu.bandwidth_bytes_per_cycle, spec.mesh.vector_bytes_per_cycle))
    banks = Fraction(spec.pmu.bandwidth_bytes_per_cycle) / bank_conflict(read, spec)
    write_bytes = math.prod(read.output.out.shape) * DTYPE_BYTES[read.output.out.dtype]
    port = reader.ports[read.port]
    if producer.pcus:
        likes = [math.ceil(Fraction(write_bytes) / rate / producer.interval_cycles)]
    else:  # what address generators bring: as fast as memory can, but a PMU for no less than a page
        memory = bytes_per_cycle(spec.main_memory.bandwidth_bytes_per_s, spec.clock.boost_hz)
        likes = [min(math.ceil(memory / rate), -(-write_bytes // 4096))]
    if reader.pcus:
        likes.append(math.ceil(Fraction(port.read_bytes) / min(rate, banks) / reader.interval_cycles))
    if reader.pcus * spec.dies.count > spec.pcu.count and port.spread != "even":
        # Half of what all of the array needs then comes from each die, and half crosses.
        assert read.reader is not None
        likes.append(spec.dies.count * (read.reader.row_par if port.spread == "rows" else read.reader.col_par))
    return size, max(likes) * spread[port.spread == "even"]


def _port_cycles(read: Read, reader: StageCost, pmus: int, spec: RduSpec) -> float:
    """Cycles that a buffer's busier port works in the whole run; a lookup's own time is not among them."""
    assert read.reader is not None
    if not pmus or (read.port == "table" and read.reader.kind == "lookup"):
        return 0
    taken, emitted, _ = firings_of(read)
    out_of = taken * reader.ports[read.port].read_bytes * bank_conflict(read, spec)
    return max(out_of, emitted * read.output.out.piece_bytes) / (pmus * spec.pmu.bandwidth_bytes_per_cycle)


def _fits(
    section: Section,
    spec: RduSpec,
    stages: Sequence[Stage],
    costs: Sequence[StageCost],
    reads: Sequence[Read],
    pmus: Sequence[int],
    carried: int,
) -> None:
    need = sum(cost.pcus for cost in costs)
    if need > spec.pcu.count:
        most = max(range(len(stages)), key=lambda i: costs[i].pcus)
        stage = stages[most]
        rest = spec.pcu.count - need + costs[most].pcus
        parts = stage.row_par * stage.col_par
        fits = rest * parts // costs[most].pcus
        hint = f"row_par * col_par = {fits} instead of {parts} fits" if fits > 0 else "cut it into sections"
        raise InputError(
            f"section {section.name} needs {need} PCUs, {spec.name} has pcu.count = {spec.pcu.count}; most, "
            f"{costs[most].pcus}, in {stage.name}: {hint}"
        )
    total = sum(pmus) + carried
    if total > spec.pmu.count:
        most = max(range(len(reads)), key=lambda i: pmus[i])
        read = reads[most]
        size = sum(r.depth * entry_bytes(r, spec) for r in reads)
        rest = (spec.pmu.count - total + pmus[most]) * spec.pmu.size_bytes
        fits = rest // entry_bytes(read, spec)
        if 0 < fits < read.depth:
            hint = f"depth {fits} fits"
        elif read.pmus is not None and fits >= read.depth:
            hint = f"pmus={rest // spec.pmu.size_bytes} fits"
        else:
            hint = "smaller tiles, or a cut into sections, would fit"
        raise InputError(
            f"section {section.name} needs {total} PMUs ({BYTES.format(size)} of buffers), {spec.name} has pmu.count = "
            f"{spec.pmu.count} of {BYTES.format(spec.pmu.size_bytes)}; most, {pmus[most]}, in {read.name} "
            f"(depth {read.depth} of {BYTES.format(entry_bytes(read, spec))}): {hint}"
        )
    if len(stages) > 4000:
        raise InputError(
            f"section {section.name} has {len(stages)} stages; the engine takes 4000: cut it into sections"
        )


# ---------------------------------------------------------------------------------------------------- tables


def _tables(
    spec: RduSpec,
    grid: Grid,
    stages: Sequence[Stage],
    channels: Sequence[ChannelUnits],
    costs: Sequence[StageCost],
    firings: Sequence[Ints],
    number: Mapping[int, int],
    *,
    addresses: Mapping[str, int],
    engine: EngineSpec,
) -> EngineState:
    of_stages = _stage_tables(spec, stages, channels, costs, firings, addresses)
    of_channels = _channel_tables(spec, grid, stages, channels, costs, number)
    slots = len(of_channels.ready)
    state = EngineState(
        x=np.zeros(len(Scalars), np.int64),
        heap=np.zeros(len(stages) + 1, np.int64),
        stage=of_stages.stage,
        channel=of_channels.channel,
        ports=of_stages.ports,
        starts=of_stages.starts,
        ready=of_channels.ready,
        freed=np.zeros(slots, np.int64),
        ready_net=np.zeros(slots, np.int64),
        freed_net=np.zeros(slots, np.int64),
        lookups=of_channels.lookups,
        links=of_channels.links,
        link_free=np.zeros(len(Network) * grid.links, np.int64),
        jobs=of_stages.jobs,
        segments=of_stages.segments,
        ring=np.zeros(max(of_stages.in_flight, 1), np.int64),
        generator_free=np.zeros(spec.agcu.count, np.int64),
        reasons=np.zeros((len(stages), len(Reason)), np.int64),
        log=np.zeros((sum(map(len, firings)), len(Log)), np.int64),
        hbm=new_dram_state(engine.hbm),
        hbm_counters=np.zeros(len(MemoryCounter), np.int64),
        ddr=new_dram_state(engine.ddr),
        ddr_counters=np.zeros(len(MemoryCounter), np.int64),
    )
    state.heap[: len(stages)] = np.arange(len(stages))  # every stage is due at tick 0
    state.x[Scalars.HEAP] = len(stages)
    return state


class _StageTables(NamedTuple):
    """What `EngineState` says of stages at tick 0."""

    stage: Ints
    ports: Ints
    starts: Ints
    jobs: Ints
    segments: Ints
    in_flight: int
    """Units of memory that all stages together may have in flight."""


def _stage_tables(
    spec: RduSpec,
    stages: Sequence[Stage],
    channels: Sequence[ChannelUnits],
    costs: Sequence[StageCost],
    firings: Sequence[Ints],
    addresses: Mapping[str, int],
) -> _StageTables:
    stage = np.zeros((len(stages), len(Stages)), np.int64)
    starts: list[Ints] = []
    ports: list[int] = []
    jobs: list[Ints] = [np.zeros(0, np.int64)]
    segments: list[Ints] = []
    rings = segment_count = job_count = 0
    for i, (node, cost) in enumerate(zip(stages, costs, strict=True)):
        row = stage[i]
        row[Stages.KIND], row[Stages.FIRINGS] = _KINDS[node.kind], len(firings[i])
        row[Stages.INTERVAL] = cycles_to_ticks(cost.interval_cycles)
        row[Stages.LATENCY] = cycles_to_ticks(cost.latency_cycles)
        row[Stages.STARTS] = sum(map(len, starts))
        starts.append(_start_levels(firings[i]))
        row[Stages.INPUTS] = len(ports)
        own = [n for n, c in enumerate(channels) if c.read.reader is node]
        given = [n for n, c in enumerate(channels) if c.read.output.stage is node]
        if any(channels[n].vectors for n in (*own, *given)):
            row[Stages.STEPS] = steps_of(node, cost, spec) or 1
        ports += own
        row[Stages.INPUTS_END] = row[Stages.OUTPUTS] = len(ports)
        ports += given
        row[Stages.OUTPUTS_END] = len(ports)
        row[Stages.PARKED] = row[Stages.BEGUN] = row[Stages.HELD_SINCE] = -1
        if node.tensor is not None:
            row[Stages.PLACE] = int(node.tensor.place == "ddr" and spec.hbm is not None)
            row[Stages.GENERATORS] = route.generators_of(node, spec.agcu.count)
            row[Stages.WINDOW] = row[Stages.GENERATORS] * max(1, spec.agcu.in_flight_bytes // UNIT_BYTES)
            row[Stages.RING] = rings
            rings += int(row[Stages.WINDOW])
            counts, pieces = requests(node, firings[i], addresses[node.tensor.name])
            row[Stages.JOBS] = job_count
            jobs.append(segment_count + np.concatenate([[0], np.cumsum(counts)]))
            job_count += len(counts) + 1
            segments.append(pieces)
            segment_count += len(pieces)
    return _StageTables(
        stage=stage,
        ports=np.array([*ports, 0], np.int64),
        starts=np.concatenate(starts),
        jobs=np.concatenate([*jobs, np.zeros(1, np.int64)]).astype(np.int64),
        segments=np.concatenate([*segments, np.zeros((1, len(Segments)), np.int64)]),
        in_flight=rings,
    )


class _ChannelTables(NamedTuple):
    """What `EngineState` says of channels at tick 0."""

    channel: Ints
    links: Ints
    lookups: Ints
    ready: Ints


def _channel_tables(
    spec: RduSpec,
    grid: Grid,
    stages: Sequence[Stage],
    channels: Sequence[ChannelUnits],
    costs: Sequence[StageCost],
    number: Mapping[int, int],
) -> _ChannelTables:
    channel = np.zeros((len(channels), len(Channels)), np.int64)
    links = network.link_tables(spec, grid, [units.ways for units in channels], channel)
    lookups: list[Ints] = [np.zeros(0, np.int64)]
    slots = 0
    for i, units in enumerate(channels):
        read, row, way = units.read, channel[i], units.ways
        reader = stages[number[id(read.reader)]]
        row[Channels.PRODUCER], row[Channels.CONSUMER] = number[id(read.output.stage)], number[id(read.reader)]
        row[Channels.DEPTH], row[Channels.SLOTS], row[Channels.VECTORS] = read.depth, slots, units.vectors
        if units.vectors:
            producer = number[id(read.output.stage)]
            ticks = cycles_to_ticks(costs[producer].interval_cycles)
            row[Channels.TRAIL] = trail_ticks(read.output, costs[producer], ticks, spec)
            row[Channels.DEPTH] = room_of(read, units.vectors, len(units.pmus), spec)
        slots += int(row[Channels.DEPTH])
        row[Channels.EMIT_LEVEL] = len(read.output.out.over)
        row[Channels.TOKEN_LEVEL] = row[Channels.READ_LEVEL] = len(read.output.out.token_over)
        assert reader.over[: int(row[Channels.READ_LEVEL])] == read.output.out.token_over
        into_buffer = cycles_to_ticks(spec.pmu.latency_cycles) if len(units.pmus) else 0
        row[Channels.HOP_LATENCY] = way.latency_ticks
        row[Channels.READY_LATENCY] = way.latency_ticks + into_buffer
        row[Channels.DONE_LATENCY] = way.control_ticks + into_buffer
        row[Channels.CREDIT_LATENCY] = cycles_to_ticks(spec.mesh.control_cycles * way.hops)
        row[Channels.LOOKUPS] = -1
        if units.lookup_cycles is not None:
            row[Channels.LOOKUPS] = sum(map(len, lookups))
            lookups.append(units.lookup_cycles * TICKS_PER_CYCLE)
        if len(units.pmus):
            rate = Fraction(spec.pmu.bandwidth_bytes_per_cycle) * len(units.pmus)
            row[Channels.READ] = transfer_ticks(units.read_bytes * bank_conflict(read, spec), rate)
            row[Channels.WRITE] = transfer_ticks(units.write_bytes, rate)
        row[Channels.WAITS_TOKEN] = row[Channels.WAITS_ROOM] = 1
        row[Channels.ACQUIRED] = row[Channels.COMMITTED] = read.initial
    ready = np.zeros(max(slots, 1), np.int64)
    for row, units in zip(channel, channels, strict=True):
        if units.read.initial:
            first = row[Channels.SLOTS]
            ready[first : first + units.read.initial] = _initial_ticks(spec, units.read)
    return _ChannelTables(channel, links, np.concatenate([*lookups, np.zeros(1, np.int64)]), ready)


def _start_levels(firings: Ints) -> Ints:
    """For each firing the outermost counter that has moved since the one before; -1 for the first, and at the end."""
    levels = np.full(len(firings) + 1, -1, np.int64)
    if firings.shape[1]:
        levels[1:-1] = np.argmax(firings[1:] != firings[:-1], axis=1)
    return levels


def requests(stage: Stage, firings: Ints, base: int) -> tuple[Ints, Ints]:
    """What each firing touches: (segments a firing, segments in the columns of `Segments`)."""
    tensor = stage.tensor
    assert tensor is not None
    width = DTYPE_BYTES[tensor.dtype]
    strides = [width * math.prod(tensor.shape[d + 1 :]) for d in range(len(tensor.shape))]
    if stage.rows is not None:
        run = tensor.shape[-1] * width
        one = np.ones(len(firings), np.int64)
        return one, np.column_stack([base + stage.rows * run, one * run, one, one * run])
    values = {counter: firings[:, i] for i, counter in enumerate(stage.over)}
    origin = [np.broadcast_to(np.asarray(index.at(values), np.int64), len(firings)) for index in stage.origin]
    # Of a tile that begins before the array or ends behind it, what lies inside.
    first = [np.maximum(at, 0) for at in origin]
    extent: list[Ints] = [
        np.maximum(np.minimum(origin[d] + stage.tile[d], tensor.shape[d]) - first[d], 0).astype(np.int64)
        for d in range(len(tensor.shape))
    ]
    # Trailing dimensions that every tile takes whole make one run; the dimension before makes rows of a segment.
    run_from = len(tensor.shape) - 1
    while run_from > 0 and stage.tile[run_from] >= tensor.shape[run_from]:
        run_from -= 1
    runs = extent[run_from] * strides[run_from]
    rows = extent[run_from - 1] if run_from else np.ones(len(firings), np.int64)
    counts = np.ones(len(firings), np.int64)
    for d in range(run_from - 1):
        counts *= extent[d]
    counts[(runs == 0) | (rows == 0)] = 0
    which = np.repeat(np.arange(len(firings)), counts)
    rest = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = np.full(len(firings), base, np.int64)
    for d in range(len(tensor.shape)):
        start += first[d] * strides[d]
    address = start[which]
    for d in range(run_from - 2, -1, -1):
        address += rest % extent[d][which] * strides[d]
        rest = rest // extent[d][which]
    stride = strides[run_from - 1] if run_from else 0
    return counts, np.column_stack([address, runs[which], rows[which], np.full(len(which), stride)]).astype(np.int64)


def _initial_ticks(spec: RduSpec, read: Read) -> Ints:
    """When a loop's first tokens are in their buffer: they come from memory before anything else."""
    memory: Memory = spec.main_memory
    rate = bytes_per_cycle(memory.bandwidth_bytes_per_s, spec.clock.boost_hz)
    each = transfer_ticks(read.token_bytes, rate)
    return ps_to_ticks(memory.latency_ps, spec.clock.boost_hz) + each * np.arange(1, read.initial + 1)


def _copy(state: EngineState) -> EngineState:
    arrays: dict[str, Any] = {n: value.copy() for n, value in state._asdict().items() if isinstance(value, np.ndarray)}
    memories: dict[str, Any] = {n: DramState(*(a.copy() for a in getattr(state, n))) for n in ("hbm", "ddr")}
    return state._replace(**arrays, **memories)
