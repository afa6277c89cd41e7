"""Sets of the L2: lines are found, get room, and are dropped. Which line makes room says `replacement`.

A line of a set is known by its way. Its tag is its number (byte address >> 7), -1 where the way is empty; its word
holds which of its sectors are valid, which are dirty, and the tick at which the latest of them is there.
"""

import numpy as np

from sim.engine.jit import inner
from sim.engine.prefetch import prefetch
from sim.engine.search import TAGS, find_tag
from sim.memory.addresses import channel_of, home_slice, index_of
from sim.memory.counters import MemoryCounter
from sim.memory.dram_kernel import dram_write
from sim.memory.replacement import drop, fill, touch, victim

VALID = 0xF
"""Mask of the valid sectors in a line's word."""

VALID_BITS = 4
"""Bits of that mask."""

DIRTY_SHIFT = 4
READY_SHIFT = 8
"""A line's word: valid sectors, dirty sectors from bit 4, ready tick from bit 8."""

WORD_MASKS = 0xFF
"""Both masks of a line's word."""

_WORDS_A_HOST_LINE = 8

_BITS = 0x4332322132212110
"""Number of bits set in each 4-bit mask, as nibbles."""

_EVICTIONS = int(MemoryCounter.L2_EVICTIONS)
_WRITE_BACK = int(MemoryCounter.L2_WRITE_BACK_SECTORS)
_INVALIDATIONS = int(MemoryCounter.L2_INVALIDATIONS)


@inner(inline=True)
def count_sectors(mask):
    """Sectors in a 4-bit mask."""
    return (_BITS >> (mask << 2)) & 7


@inner(inline=True)
def atoms_of(spec, sectors):
    """DRAM atoms that hold the sectors of a mask."""
    return (spec.atoms_of_sectors >> (sectors << 2)) & 7


@inner(inline=True)
def find(state, line, cache_set):
    """The line's way if its set holds it, or -1."""
    return find_tag(state.tags, cache_set, line)


@inner(inline=True)
def word_of(state, cache_set, way):
    """A line's word."""
    return state.lines[cache_set * TAGS + way]


@inner(inline=True)
def set_word(state, cache_set, way, word):
    """Changes a line's word."""
    state.lines[cache_set * TAGS + way] = word


@inner(inline=True)
def use(spec, state, cache_set, way):
    """Tells the replacement policy of a hit."""
    state.order[cache_set] = touch(spec.replacement, state.order[cache_set], spec.ways, way)


@inner(inline=True)
def allocate(spec, state, t, line, cache_set):
    """Make room for a line at tick t; a dirty victim goes to DRAM.

    Returns the line's way, and the tick at which DRAM's write buffer has taken the victim (t if nothing was to do).
    """
    order = state.order[cache_set]
    way = victim(spec.replacement, order, spec.ways)
    i = cache_set * TAGS + way
    evicted = np.int64(state.tags[i])
    taken = t
    if evicted >= 0:
        state.counters[_EVICTIONS] += 1
        dirty = (state.lines[i] >> DIRTY_SHIFT) & VALID
        if dirty:
            taken = write_back(spec, state, t, evicted, dirty)
    state.tags[i] = line
    state.lines[i] = 0
    state.order[cache_set] = fill(spec.replacement, order, spec.ways, way)
    return way, taken


@inner(inline=True)
def write_back(spec, state, t, line, dirty):
    """Send an evicted line's dirty sectors to DRAM at tick t; returns the tick at which its write buffer takes them."""
    place = channel_of(spec, home_slice(spec, line, index_of(spec, line)), line)
    atoms = atoms_of(spec, dirty)
    state.counters[_WRITE_BACK] += count_sectors(dirty)
    return dram_write(spec.dram, state.dram, state.counters, t, place >> 32, place & 0xFFFFFFFF, atoms)


@inner(inline=True)
def drop_copy(spec, state, line, cache_set):
    """Drop the copy that the other partition may hold, in that set, of a line that is being written."""
    way = find(state, line, cache_set)
    if way >= 0:
        i = cache_set * TAGS + way
        state.tags[i] = -1
        state.lines[i] = 0
        state.order[cache_set] = drop(spec.replacement, state.order[cache_set], spec.ways, way)
        state.counters[_INVALIDATIONS] += 1


@inner(inline=True)
def ask_set(state, cache_set):
    """Asks the host for a set, which is looked up soon."""
    base = cache_set * TAGS
    prefetch(state.tags, base)
    for i in range(base, base + TAGS, _WORDS_A_HOST_LINE):
        prefetch(state.lines, i)
    prefetch(state.order, cache_set)


@inner(inline=True)
def ask_tags(state, cache_set):
    """Asks the host for the tags of a set alone."""
    prefetch(state.tags, cache_set * TAGS)
