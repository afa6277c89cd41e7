"""Sets of the L2: lines are found, get room, and are dropped. Which line makes room says `replacement`.

A line of a set is known by its way. Its tag is its number (byte address >> 7), -1 where the way is empty; its word
holds which of its sectors are valid, which are dirty, and the tick at which the latest of them is there. All of a set
is one row, so that the host finds it on one page: `TAGS` tags of four bytes, `TAGS` words of eight, the replacement
order's word.
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

SET_WORDS = 32
"""Words of eight bytes of a set's row: four cache lines of the host."""

FIRST_WORD = TAGS // 2
"""Behind the tags: the word of the set's first way."""

ORDER = FIRST_WORD + TAGS
"""The word of the replacement policy."""

_FIRST_TAG = 2 * SET_WORDS  # tags of four bytes in a row
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
    return find_tag(state.tags, cache_set * _FIRST_TAG, line)


@inner(inline=True)
def word_of(state, cache_set, way):
    """A line's word."""
    return state.lines[cache_set * SET_WORDS + FIRST_WORD + way]


@inner(inline=True)
def set_word(state, cache_set, way, word):
    """Changes a line's word."""
    state.lines[cache_set * SET_WORDS + FIRST_WORD + way] = word


@inner(inline=True)
def use(spec, state, cache_set, way):
    """Tells the replacement policy of a hit."""
    at = cache_set * SET_WORDS + ORDER
    state.lines[at] = touch(spec.replacement, state.lines[at], spec.ways, way)


@inner(inline=True)
def allocate(spec, state, t, line, cache_set):
    """Make room for a line at tick t; a dirty victim goes to DRAM.

    Returns the line's way, and the tick at which DRAM's write buffer has taken the victim (t if nothing was to do).
    """
    row = cache_set * SET_WORDS
    order = state.lines[row + ORDER]
    way = victim(spec.replacement, order, spec.ways)
    tag = cache_set * _FIRST_TAG + way
    evicted = np.int64(state.tags[tag])
    taken = t
    if evicted >= 0:
        state.counters[_EVICTIONS] += 1
        dirty = (state.lines[row + FIRST_WORD + way] >> DIRTY_SHIFT) & VALID
        if dirty:
            taken = write_back(spec, state, t, evicted, dirty)
    state.tags[tag] = line
    state.lines[row + FIRST_WORD + way] = 0
    state.lines[row + ORDER] = fill(spec.replacement, order, spec.ways, way)
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
        row = cache_set * SET_WORDS
        state.tags[cache_set * _FIRST_TAG + way] = -1
        state.lines[row + FIRST_WORD + way] = 0
        state.lines[row + ORDER] = drop(spec.replacement, state.lines[row + ORDER], spec.ways, way)
        state.counters[_INVALIDATIONS] += 1


@inner(inline=True)
def ask_set(state, cache_set):
    """Asks the host for a set, which is looked up soon."""
    row = cache_set * SET_WORDS
    for i in range(row, row + SET_WORDS, _WORDS_A_HOST_LINE):
        prefetch(state.lines, i)


@inner(inline=True)
def ask_tags(state, cache_set):
    """Asks the host for the tags of a set alone."""
    prefetch(state.tags, cache_set * _FIRST_TAG)
