"""The memory system beyond the SM's port: figures of a machine in ticks, state, and what happens to it between kernels.

Typical use::

    spec = lower_memory(gpu, clock_hz)
    state = new_memory_state(spec)
    tick = l2_read(spec, state, t, partition, address >> 7, 0b1111)
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.gpu import L2
from sim.engine.buffers import filled, give_back
from sim.engine.clock import TICKS_PER_CYCLE, transfer_ticks
from sim.engine.search import TAGS
from sim.memory.ahead import AHEAD, OTHER_SET
from sim.memory.counters import MemoryCounter
from sim.memory.dram import DramFigures, DramSpec, DramState, drop_writes, lower_dram, new_dram_state, settle_dram
from sim.memory.hashing import reciprocal
from sim.memory.l2 import ALL_PARTITIONS, read_lines, write_lines
from sim.memory.replacement import MAX_WAYS, first_word, policy_number
from sim.memory.sets import DIRTY_SHIFT, FIRST_MASKS, FIRST_READY, LATEST, ORDER, SET_WORDS, SINCE, VALID

FIGURES = (
    "dram.atom",
    "dram.channels",
    "l2.bandwidth",
    "l2.clean_first",
    "l2.clock",
    "l2.coalescer",
    "l2.coalescer_reads",
    "l2.coalescer_wait",
    "l2.dirty_limit",
    "l2.far_latency",
    "l2.hit_latency",
    "l2.interleave",
    "l2.line",
    "l2.link_bandwidth",
    "l2.local_copies",
    "l2.partitions",
    "l2.replacement",
    "l2.request",
    "l2.sector",
    "l2.size",
    "l2.slices",
    "l2.ways",
    "l2.write_bandwidth",
)
"""Figures of a preset that this module reads."""

LINE_BYTES = 128
SECTOR_BYTES = 32


class Machine(Protocol):
    """The parts of a machine description that the memory system reads (for example `arch.gpu.GpuSpec`)."""

    @property
    def l2(self) -> L2:
        """The cache."""

    @property
    def dram(self) -> DramFigures:
        """The external memory."""


class MemorySpec(NamedTuple):
    """Figures of the memory system; times in ticks, latencies as a whole load sees them."""

    partitions: int
    slices: int
    slices_per_partition: int
    sets: int
    """Of one slice."""
    ways: int
    replacement: int
    """A policy of `replacement`."""
    dirty_limit: int
    """Lines of a set that may be dirty."""
    clean_first: int
    """1 if every second victim is the oldest clean line."""
    slice_multiplier: int
    slice_shift: int
    set_multiplier: int
    set_shift: int
    interleave_shift: int
    """Lines that stay together, as a power of two."""
    alternate: int
    """1 if these alternate between two slices."""
    local_copies: int
    sector_bytes: int
    hit_latency: int
    """Hit in the SM's own partition."""
    far_latency: int
    """Hit in the other partition, everything included."""
    read_sector: int
    """Time of a slice's port for one sector read."""
    coalesced: int
    """Reads that a slice's coalescer holds for one GPC; 0: it has none."""
    gpcs: int
    joined: int
    """Reads that may join one."""
    way_back: int
    """Part of hit_latency that passes after the data have left the coalescer: nobody joins a read any more."""
    write_sector: int
    link_sector: int
    gpc_sectors: int
    """Time of the crossbar's port of one GPC for 16 sectors; 0: no such port."""
    requests: int
    """Time of all slices together for 16 reads of SMs, each of one line; 0: no limit."""
    channel_multiplier: int
    channel_shift: int
    atoms_of_sectors: int
    """DRAM atoms that each 4-bit mask of sectors touches, as nibbles."""
    dram: DramSpec


class MemoryState(NamedTuple):
    """Contents and calendars, all C-contiguous.

    lines: int64 [slices * sets * SET_WORDS], rows of sets (see `sets`); tags, masks: the same memory as int32 and as
    uint8. read_free, write_free: int64 [slices]. link_free: int64 [2], by the partition that receives. waiting: int32
    [slices * gpcs * places], lines of reads that a slice's coalescer holds for each GPC, rows of whole vectors;
    waiting_answer: int64 of the same shape, their sectors and above these the ticks at which they are answered;
    waiting_room: how many more may join; waiting_next: int64 [slices * gpcs], the place that is taken next. ahead:
    int64 [5, AHEAD], lines that are looked up next and where they are (see `ahead.SET`). counters: int64
    [len(MemoryCounter)].
    """

    tags: NDArray[np.int32]
    lines: NDArray[np.int64]
    masks: NDArray[np.uint8]
    read_free: NDArray[np.int64]
    write_free: NDArray[np.int64]
    link_free: NDArray[np.int64]
    waiting: NDArray[np.int32]
    waiting_answer: NDArray[np.int64]
    waiting_room: NDArray[np.int64]
    waiting_next: NDArray[np.int64]
    ahead: NDArray[np.int64]
    dram: DramState
    counters: NDArray[np.int64]


def lower_memory(
    machine: Machine, clock_hz: int, gpc_bytes_per_cycle: float | None = None, gpcs: int = 1
) -> MemorySpec:
    """Figures of a machine's L2 and DRAM in ticks of its core clock. gpc_bytes_per_cycle: of a GPC's port. gpcs: that
    read.

    Raises InputError for a geometry that the model cannot take.
    """
    l2, dram = machine.l2, machine.dram
    _check(machine)
    slice_multiplier, slice_shift = reciprocal(l2.slices)
    set_multiplier, set_shift = reciprocal(l2.sets)
    channel_multiplier, channel_shift = reciprocal(dram.channels)
    interleave = l2.interleave_bytes // l2.line_bytes

    def sector_ticks(bytes_per_cycle: float | None, sectors: int = 1) -> int:
        if not bytes_per_cycle:
            return 0
        return transfer_ticks(sectors * l2.sector_bytes, l2.in_core_cycles(bytes_per_cycle, clock_hz))

    return MemorySpec(
        partitions=l2.partitions,
        slices=l2.slices,
        slices_per_partition=l2.slices_per_partition,
        sets=l2.sets,
        ways=l2.ways,
        replacement=policy_number(l2.replacement),
        dirty_limit=max(1, round(l2.dirty_limit * l2.ways)),
        clean_first=int(l2.clean_first),
        slice_multiplier=slice_multiplier,
        slice_shift=slice_shift,
        set_multiplier=set_multiplier,
        set_shift=set_shift,
        interleave_shift=interleave.bit_length() - 1,
        alternate=int(interleave > 1),
        local_copies=int(l2.local_copies and l2.partitions == 2),
        sector_bytes=l2.sector_bytes,
        hit_latency=l2.hit_latency_cycles * TICKS_PER_CYCLE,
        far_latency=(l2.hit_latency_cycles + l2.far_latency_cycles) * TICKS_PER_CYCLE,
        read_sector=sector_ticks(l2.bandwidth_bytes_per_cycle),
        coalesced=l2.coalescer,
        gpcs=gpcs,
        joined=l2.coalescer_reads - 1,
        way_back=(l2.hit_latency_cycles - l2.coalescer_wait_cycles) * TICKS_PER_CYCLE,
        write_sector=sector_ticks(l2.write_bandwidth_bytes_per_cycle),
        link_sector=sector_ticks(l2.link_bandwidth_bytes_per_cycle),
        gpc_sectors=sector_ticks(gpc_bytes_per_cycle, 16),
        requests=round(16 * TICKS_PER_CYCLE * (l2.request_cycles or 0) / l2.slices),
        channel_multiplier=channel_multiplier,
        channel_shift=channel_shift,
        atoms_of_sectors=_atoms_of_sectors(dram.atom_bytes // l2.sector_bytes),
        dram=lower_dram(dram, l2.line_bytes, clock_hz),
    )


def _check(machine: Machine) -> None:
    l2, dram = machine.l2, machine.dram
    if (l2.line_bytes, l2.sector_bytes) != (LINE_BYTES, SECTOR_BYTES):
        raise InputError(f"l2.line={l2.line_bytes} B, l2.sector={l2.sector_bytes} B: the L2 model takes 128 B and 32 B")
    if l2.ways > MAX_WAYS:
        raise InputError(f"l2.ways={l2.ways}: the L2 model takes 1 to {MAX_WAYS}; the nearest is {MAX_WAYS}")
    if dram.atom_bytes not in (32, 64, 128):
        raise InputError(f"dram.atom={dram.atom_bytes} B: must be 32, 64 or 128 B behind an L2 of 32 B sectors")


def _atoms_of_sectors(sectors_per_atom: int) -> int:
    table = 0
    for mask in range(16):
        table |= len({sector // sectors_per_atom for sector in range(4) if mask >> sector & 1}) << (4 * mask)
    return table


def new_memory_state(spec: MemorySpec) -> MemoryState:
    """State at tick 0 with an empty cache."""
    lines = filled(spec.slices * spec.sets * SET_WORDS, np.int64, 0)
    waiting = spec.slices * spec.gpcs * -(-max(1, spec.coalesced) // TAGS) * TAGS
    state = MemoryState(
        tags=lines.view(np.int32),
        lines=lines,
        masks=lines.view(np.uint8),
        read_free=np.zeros(spec.slices, np.int64),
        write_free=np.zeros(spec.slices, np.int64),
        link_free=np.zeros(2, np.int64),
        waiting=filled(waiting, np.int32, -1),
        waiting_answer=np.zeros(waiting, np.int64),
        waiting_room=np.zeros(waiting, np.int64),
        waiting_next=np.zeros(spec.slices * spec.gpcs, np.int64),
        ahead=np.zeros((OTHER_SET + 1, AHEAD), np.int64),
        dram=new_dram_state(spec.dram),
        counters=np.zeros(len(MemoryCounter), np.int64),
    )
    flush(spec, state)
    return state


def drop_memory_state(state: MemoryState) -> None:
    """Hands back the memory of the contents, which nobody looks at any more; counters stay."""
    give_back([state.lines])


class _Sets(NamedTuple):
    """Views of the contents, a row a set."""

    tags: NDArray[np.int32]
    masks: NDArray[np.uint8]
    order: NDArray[np.int64]
    ticks: NDArray[np.int64]
    ready: NDArray[np.int32]


def _sets(state: MemoryState) -> _Sets:
    rows = state.lines.reshape(-1, SET_WORDS)
    halves = state.tags.reshape(len(rows), -1)
    masks = state.masks.reshape(len(rows), -1)[:, FIRST_MASKS : FIRST_MASKS + TAGS]
    ready = halves[:, FIRST_READY : FIRST_READY + TAGS]
    return _Sets(halves[:, :TAGS], masks, rows[:, ORDER], rows[:, LATEST : SINCE + 1], ready)


def flush(spec: MemorySpec, state: MemoryState) -> None:
    """Empty the cache without cost in time or counts, as before a cold run; DRAM's write buffers keep their content."""
    sets = _sets(state)
    sets.tags[:] = -1
    sets.masks[:] = 0
    sets.order[:] = first_word(spec.replacement, spec.ways)
    sets.ticks[:] = 0
    sets.ready[:] = 0


def settle(state: MemoryState) -> None:
    """Bring all calendars to tick 0, as between kernels: contents stay, nothing is in flight, rows are closed."""
    sets = _sets(state)
    for ticks in (sets.ticks, sets.ready, state.read_free, state.write_free, state.link_free, state.waiting_answer):
        ticks[:] = 0
    settle_dram(state.dram)


def warm(
    spec: MemorySpec, state: MemoryState, first_line: int, count: int, dirty: bool = False, partition: int | None = None
) -> None:
    """Bring `count` lines into the cache as if every partition had read them before; dirty: as if SMs of all partitions
    had written them, each line by one; partition: as if this one had read or written all.

    Costs no time and counts nothing; all calendars stand at tick 0 afterwards, and what channels had buffered is
    written: the cache was filled long before.
    """
    counters = state.counters.copy()
    if dirty:
        write_lines(spec, state, 0, 0, ALL_PARTITIONS if partition is None else partition, first_line, count)
    else:
        for reader in range(spec.partitions) if partition is None else (partition,):
            read_lines(spec, state, 0, 0, reader, first_line, count, VALID)
    state.counters[:] = counters
    settle(state)
    drop_writes(state.dram)


def clean(state: MemoryState) -> None:
    """Writes all dirty lines back to DRAM, at no cost."""
    _sets(state).masks[:] &= VALID


def resident_lines(state: MemoryState) -> int:
    """Lines in the cache, copies counted."""
    return int(np.count_nonzero(_sets(state).tags >= 0))


def dirty_sectors(state: MemoryState) -> int:
    """Sectors in the cache that DRAM does not have."""
    sets = _sets(state)
    masks = sets.masks[sets.tags >= 0] >> DIRTY_SHIFT
    return int(sum(np.count_nonzero(masks >> sector & 1) for sector in range(4)))
