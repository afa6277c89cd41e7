"""Sets of the L2: lines are found, get room, and are dropped. Which line makes room says `replacement`.

A line of a set is known by its way. Its tag is its number (byte address >> 7), -1 where the way is empty; its masks say
which of its sectors are valid and which are dirty. All of a set is one row of three cache lines of the host: `TAGS`
tags of four bytes; the replacement order's word, two ticks of the set, `TAGS` bytes of masks; and when the lines are
there, four bytes each, which is read only while something of the set is on its way.

What an L2 writes back was counted on an H100 (`docs/accuracy/memory.md`). A share of a
set's lines may be dirty. Where a line comes in or becomes dirty when as many are, the oldest of these goes to DRAM and
stays, clean. So a kernel that writes much leaves no more behind than that share, and nothing is written while the L2
idles. A line that needs room takes that of the oldest clean one. Where an older one is dirty, that goes to DRAM and
stays, clean, every second time; the next line takes its room.
"""

import numpy as np

from sim.engine.jit import inner
from sim.engine.prefetch import prefetch
from sim.engine.search import TAGS, find_tag
from sim.memory.addresses import channel_of, home_slice, index_of
from sim.memory.counters import MemoryCounter
from sim.memory.dram_kernel import dram_write
from sim.memory.replacement import drop, fill, touch, victim, victim_of

VALID = 0xF
"""Mask of the valid sectors in a line's word."""

VALID_BITS = 4
"""Bits of that mask."""

DIRTY_SHIFT = 4
"""A line's masks: valid sectors, dirty sectors from bit 4."""

SET_WORDS = 24
"""Words of eight bytes of a set's row."""

ORDER = TAGS // 2
"""Behind the tags: the word of the replacement policy."""

LATEST = ORDER + 1
"""The tick at which the last of all sectors that the set ever held is there."""

SINCE = LATEST + 1
"""The tick from which those of its lines count."""

FIRST_MASKS = 8 * (SINCE + 1)
"""The byte with the masks of the set's first way."""

_MASKS = SINCE + 1  # the words that hold the masks
_WORDS_A_HOST_LINE = 8
_BYTES = 8 * SET_WORDS
_HALVES = 2 * SET_WORDS  # words of four bytes in a row
FIRST_READY = 2 * 2 * _WORDS_A_HOST_LINE
"""The word of four bytes that says when the line in the set's first way is there."""

_LONGEST = 1 << 31  # ticks from SINCE that such a word can hold
_KEPT = 1 << 30  # of them, those that stay when SINCE moves: nothing is under way for so long

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
    return find_tag(state.tags, cache_set * _HALVES, line)


@inner(inline=True)
def masks_of(state, cache_set, way):
    """A line's masks."""
    return np.int64(state.masks[cache_set * _BYTES + FIRST_MASKS + way])


@inner(inline=True)
def set_masks(state, cache_set, way, masks):
    """Changes a line's masks."""
    state.masks[cache_set * _BYTES + FIRST_MASKS + way] = masks


@inner(inline=True)
def there_from(state, cache_set, way, t):
    """Tick, `t` or later, from which the sectors of a line are there."""
    row = cache_set * SET_WORDS
    if state.lines[row + LATEST] > t:
        t = max(t, state.lines[row + SINCE] + state.tags[cache_set * _HALVES + FIRST_READY + way])
    return t


@inner(inline=True)
def set_there(state, cache_set, way, tick):
    """The latest of a line's sectors is there at a tick."""
    row = cache_set * SET_WORDS
    if tick - state.lines[row + SINCE] >= _LONGEST:
        _move_since(state, cache_set, tick - _KEPT)
    state.tags[cache_set * _HALVES + FIRST_READY + way] = tick - state.lines[row + SINCE]
    state.lines[row + LATEST] = max(state.lines[row + LATEST], tick)


@inner
def _move_since(state, cache_set, tick):
    """Counts the ticks of a set's lines from a later one on, before which all were there that have none."""
    passed = tick - state.lines[cache_set * SET_WORDS + SINCE]
    state.lines[cache_set * SET_WORDS + SINCE] = tick
    first = cache_set * _HALVES + FIRST_READY
    for word in range(first, first + TAGS):
        state.tags[word] = max(0, state.tags[word] - passed)


@inner(inline=True)
def _set_empty(state, cache_set, way):
    """No sector of a way is valid or on its way."""
    set_masks(state, cache_set, way, 0)
    state.tags[cache_set * _HALVES + FIRST_READY + way] = 0


@inner(inline=True)
def use(spec, state, cache_set, way):
    """Tells the replacement policy of a hit."""
    at = cache_set * SET_WORDS + ORDER
    state.lines[at] = touch(spec.replacement, state.lines[at], spec.ways, way)


_NIBBLES = 0x0F0F0F0F0F0F0F0F
_BYTES_OF_ONE = 0x0101010101010101


@inner(inline=True)
def _dirty_bytes(word):
    """Bit 0 of each byte whose upper half is not zero."""
    return ((((word >> DIRTY_SHIFT) & _NIBBLES) + _NIBBLES) >> 4) & _BYTES_OF_ONE


@inner(inline=True)
def _gathered(ones):
    """Bit 0 of each byte, together."""
    ones |= ones >> 7
    ones |= ones >> 14
    return (ones | (ones >> 28)) & 0xFF


@inner(inline=True)
def dirty_ways(state, cache_set):
    """The ways of a set with lines that DRAM lacks, as a mask."""
    row = cache_set * SET_WORDS + _MASKS
    return _gathered(_dirty_bytes(state.lines[row])) | _gathered(_dirty_bytes(state.lines[row + 1])) << 8


@inner(inline=True)
def count_ways(mask):
    """Ways in a mask of up to 16."""
    mask -= (mask >> 1) & 0x5555
    mask = (mask & 0x3333) + ((mask >> 2) & 0x3333)
    mask = (mask + (mask >> 4)) & 0x0F0F
    return (mask + (mask >> 8)) & 0x1F


@inner
def keep_limit(spec, state, t, cache_set, dirty):
    """Sends the oldest of a set's dirty lines, a mask of ways, to DRAM at tick t if no more may be dirty; it stays.

    Returns the tick at which DRAM's write buffer has taken it (t if nothing was to do).
    """
    if count_ways(dirty) < spec.dirty_limit:
        return t
    order = state.lines[cache_set * SET_WORDS + ORDER]
    return _clean(spec, state, t, cache_set, victim_of(spec.replacement, order, spec.ways, dirty))


@inner
def _clean(spec, state, t, cache_set, way):
    """Sends a dirty line to DRAM at tick t, which stays; returns the tick at which DRAM's write buffer has taken it."""
    masks = masks_of(state, cache_set, way)
    set_masks(state, cache_set, way, masks & VALID)
    return write_back(spec, state, t, np.int64(state.tags[cache_set * _HALVES + way]), masks >> DIRTY_SHIFT)


@inner(inline=True)
def _cleans(line):
    """Whether a line that finds the oldest one of its set dirty sends that to DRAM: every second, by its number."""
    return (line * 0x9E3779B1 >> 28) & 1 != 0


@inner(inline=True)
def allocate(spec, state, t, line, cache_set):
    """Make room for a line at tick t; a dirty victim goes to DRAM, and one more line where too many are dirty.

    Returns the line's way, and the tick at which DRAM's write buffer has taken them (t if nothing was to do).
    """
    row = cache_set * SET_WORDS
    order = state.lines[row + ORDER]
    way = victim(spec.replacement, order, spec.ways)
    taken = t
    if state.tags[cache_set * _HALVES + way] >= 0:
        state.counters[_EVICTIONS] += 1
    dirty = dirty_ways(state, cache_set)
    if dirty >> way & 1 != 0 or count_ways(dirty) >= spec.dirty_limit:
        way, taken = _room_among_dirty(spec, state, t, line, cache_set, way, dirty)
        order = state.lines[row + ORDER]
    state.tags[cache_set * _HALVES + way] = line
    _set_empty(state, cache_set, way)
    state.lines[row + ORDER] = fill(spec.replacement, order, spec.ways, way)
    return way, taken


@inner
def _room_among_dirty(spec, state, t, line, cache_set, way, dirty):
    """The way that a line takes in a set with dirty lines, where `way` is the next victim, as the order of the set then
    says, too; and the tick at which DRAM's write buffer has taken what was to be written back."""
    taken = t
    if dirty >> way & 1:
        clean = ~dirty & ((1 << spec.ways) - 1)
        spared = spec.clean_first != 0 and clean != 0
        if not spared or _cleans(line):
            taken = _clean(spec, state, t, cache_set, way)
            dirty &= ~(1 << way)
        if spared:
            at = cache_set * SET_WORDS + ORDER
            way = victim_of(spec.replacement, state.lines[at], spec.ways, clean)
            state.lines[at] = drop(spec.replacement, state.lines[at], spec.ways, way)
    return way, max(taken, keep_limit(spec, state, t, cache_set, dirty))


@inner(inline=True)
def write_back(spec, state, t, line, dirty):
    """Send a line's dirty sectors to DRAM at tick t; returns the tick at which its write buffer takes them."""
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
        state.tags[cache_set * _HALVES + way] = -1
        _set_empty(state, cache_set, way)
        state.lines[row + ORDER] = drop(spec.replacement, state.lines[row + ORDER], spec.ways, way)
        state.counters[_INVALIDATIONS] += 1


@inner
def leave_copy(spec, state, t, line, cache_set, sectors):
    """Leave a copy of sectors that are being written at tick t in the writer's partition; returns as `allocate`."""
    way = find(state, line, cache_set)
    taken = t
    if way >= 0:
        use(spec, state, cache_set, way)
    else:
        way, taken = allocate(spec, state, t, line, cache_set)
    set_masks(state, cache_set, way, masks_of(state, cache_set, way) | sectors)
    return taken


@inner(inline=True)
def ask_set(state, cache_set):
    """Asks the host for a set, which is looked up soon."""
    row = cache_set * SET_WORDS
    for i in range(row, row + SET_WORDS, _WORDS_A_HOST_LINE):
        prefetch(state.lines, i)


@inner(inline=True)
def ask_tags(state, cache_set):
    """Asks the host for the tags of a set alone."""
    prefetch(state.tags, cache_set * _HALVES)


@inner(inline=True)
def ask_rest(state, cache_set):
    """Asks the host for a set but for its tags."""
    row = cache_set * SET_WORDS
    for i in range(row + _WORDS_A_HOST_LINE, row + SET_WORDS, _WORDS_A_HOST_LINE):
        prefetch(state.lines, i)
