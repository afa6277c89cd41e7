"""A slice of the L2 and what it talks to: its port for reads, the link between partitions, DRAM."""

from sim.engine.jit import inner
from sim.memory.addresses import channel_of
from sim.memory.counters import MemoryCounter
from sim.memory.dram_kernel import ask_bank, dram_read
from sim.memory.sets import (
    allocate,
    atoms_of,
    count_sectors,
    find,
    masks_of,
    set_masks,
    set_there,
    there_from,
    use,
)

_READ_HIT = int(MemoryCounter.L2_READ_HIT_SECTORS)
_READ_MISS = int(MemoryCounter.L2_READ_MISS_SECTORS)
_MERGED = int(MemoryCounter.L2_MERGED_SECTORS)
_PREFETCHED = int(MemoryCounter.L2_PREFETCHED_SECTORS)
_LINK_BYTES = int(MemoryCounter.L2_LINK_BYTES)


@inner(inline=True)
def look_up(spec, state, t, line, slice_index, cache_set, sectors, latency):
    """Book a slice's port for a read at tick t and look for the line; `latency` is that of a hit as the SM sees it.

    Returns (whether all sectors are there, tick of the answer as far as the slice goes, the line's way or -1).
    """
    n = count_sectors(sectors)
    start = max(t, state.read_free[slice_index])
    state.read_free[slice_index] = start + n * spec.read_sector
    answer = start + latency + (n - 1) * spec.read_sector
    way = find(state, line, cache_set)
    if way >= 0:
        use(spec, state, cache_set, way)
        if sectors & ~masks_of(state, cache_set, way) == 0:
            state.counters[_READ_HIT] += n
            there = there_from(state, cache_set, way, answer)
            if there > answer:
                state.counters[_MERGED] += n
                answer = there
            return True, answer, way
    return False, answer, way


@inner(inline=True)
def cross_link(spec, state, t, direction, n):
    """Carry n sectors over the link towards partition `direction`; returns the tick of the last one's start."""
    end = max(t, state.link_free[direction]) + n * spec.link_sector
    state.link_free[direction] = end
    state.counters[_LINK_BYTES] += n * spec.sector_bytes
    return end - spec.link_sector


@inner(inline=True)
def fetch(spec, state, t, slice_index, line, sectors):
    """Read sectors of a home line from DRAM at tick t; returns the tick at which they are there, as seen by the SM."""
    place = channel_of(spec, slice_index, line)
    atoms = atoms_of(spec, sectors)
    return dram_read(spec.dram, state.dram, state.counters, t, place >> 32, place & 0xFFFFFFFF, atoms)


@inner
def complete_from_dram(spec, state, t, answer, way, line, home, cache_set, sectors, fetched, latency):
    """Complete a read at the home slice that found the line in a way (-1: did not) without all its sectors.

    What else of `fetched` the slice lacks comes along: a row of DRAM is opened once for it.
    """
    place = channel_of(spec, home, line)
    ask_bank(spec.dram, state.dram, place >> 32, place & 0xFFFFFFFF)
    if way < 0:
        way, taken = allocate(spec, state, t, line, cache_set)
        answer = max(answer, taken)
    else:  # of a line that has just got room nothing is on its way
        answer = there_from(state, cache_set, way, answer)
    masks = masks_of(state, cache_set, way)
    misses = count_sectors(sectors & ~masks)
    missing = fetched & ~masks
    state.counters[_READ_HIT] += count_sectors(sectors) - misses
    state.counters[_READ_MISS] += misses
    state.counters[_PREFETCHED] += count_sectors(missing) - misses
    answer = max(answer, fetch(spec, state, t, home, line, missing) + latency)
    set_masks(state, cache_set, way, masks | missing)
    set_there(state, cache_set, way, answer)
    return answer
