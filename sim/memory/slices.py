"""A slice of the L2 and what it talks to: its port for reads with the coalescer, the link between partitions, DRAM.

Where slices have a request coalescer (`l2.coalescer`), a read that has to wait joins another of the same sectors that
waits there, and takes none of the slice's time.
"""

from sim.engine.jit import inner
from sim.engine.search import TAGS, equal_tags, lowest_bit
from sim.memory.addresses import channel_of
from sim.memory.counters import MemoryCounter
from sim.memory.dram_kernel import ask_bank, dram_read
from sim.memory.sets import (
    VALID_BITS,
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

_NEVER = 1 << 62
_READ_HIT = int(MemoryCounter.L2_READ_HIT_SECTORS)
_READ_MISS = int(MemoryCounter.L2_READ_MISS_SECTORS)
_MERGED = int(MemoryCounter.L2_MERGED_SECTORS)
_PREFETCHED = int(MemoryCounter.L2_PREFETCHED_SECTORS)
_COALESCED = int(MemoryCounter.L2_COALESCED_SECTORS)
_LINK_BYTES = int(MemoryCounter.L2_LINK_BYTES)


@inner(inline=True)
def waiting_places(coalesced):
    """Places of a slice's row for `coalesced` waiting reads: whole vectors."""
    return (coalesced + TAGS - 1) & -TAGS


@inner
def coalesce(spec, state, t, slice_index, line, sectors, start):
    """Tick at which a slice serves a read that has to wait until `start` if no other read of its sectors waits there.

    The slice's coalescer holds the latest `spec.coalesced` reads that wait; one more read of a line that is among them
    is answered with it, with the first of several, and takes no time of the slice.
    """
    places = waiting_places(spec.coalesced)
    first = slice_index * places
    joined = _NEVER
    for block in range(first, first + places, TAGS):
        same = equal_tags(state.waiting, block, line)
        while same != 0:
            held = state.waiting_start[block + lowest_bit(same)]
            same &= same - 1
            if sectors & ~held == 0 and held >> VALID_BITS > t:
                joined = min(joined, held >> VALID_BITS)
    if joined != _NEVER:
        return joined
    k = state.waiting_next[slice_index]
    state.waiting_next[slice_index] = k + 1 if k + 1 < spec.coalesced else 0
    state.waiting[first + k] = line
    state.waiting_start[first + k] = start << VALID_BITS | sectors
    return start


@inner(inline=True)
def look_up(spec, state, t, line, slice_index, cache_set, sectors, latency):
    """Book a slice's port for a read at tick t and look for the line; `latency` is that of a hit as the SM sees it.

    Returns (whether all sectors are there, tick of the answer as far as the slice goes, the line's way or -1).
    """
    n = count_sectors(sectors)
    start = max(t, state.read_free[slice_index])
    begin = start
    if start > t and spec.coalesced > 0:
        begin = coalesce(spec, state, t, slice_index, line, sectors, start)
    if begin == start:
        state.read_free[slice_index] = start + n * spec.read_sector
    else:
        state.counters[_COALESCED] += n
    answer = begin + latency + (n - 1) * spec.read_sector
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
