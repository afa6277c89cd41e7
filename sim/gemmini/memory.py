"""Behind a Gemmini's bus: a second-level cache, a cache in front of the DRAM, and the DRAM's channels.

Times are in cycles; the DRAM's own are in ticks. Lines of the second-level cache go to its channels in turn, as a
Rocket chip's memory bus stripes them, also those that are one line of the cache in front of the DRAM. A request books
what it needs when it is made: its set, which serves one request at a time, a place among the misses on their way, the
bus to memory, the bus to the transfer engine.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import inner
from sim.memory.dram_kernel import dram_read, dram_write

CHOICE, CACHE_CHOICE, TICK, BUS_FREE, ACCEPTS, FILL_FREE, CACHE_FREE = range(7)
"""Words of `Caches.clock`: of each cache, what chooses victims by chance; look-ups so far; bus of answers; next
request; bus of lines from memory; when the cache in front of the DRAM is free."""

LAPS = 4
"""Times that the run before has read its operands, where it has left them in the caches: as victims are chosen by
chance, one is not enough for all that would fit."""

FIRST_CHOICE = 1
"""State of a shift register that begins."""

L2_HITS, L2_MISSES, L2_READ, L2_WRITTEN, CACHE_HITS, DRAM_LINES, DRAM_WRITTEN = range(7)
"""Words of `Caches.counts`; L2_READ and L2_WRITTEN in bytes, the last two in lines."""


class CacheFigures(NamedTuple):
    """Sets and ways of a cache; whether chance chooses victims, and whether empty ways come before it."""

    sets: int
    ways: int
    by_chance: int
    fills_empty: int


class Figures(NamedTuple):
    """Figures of the memories; times in cycles."""

    l2: CacheFigures
    cache: CacheFigures
    line: int
    lines: int
    """Lines of the second-level cache in one of the next."""
    beat: int
    latency: int
    set_busy: int
    misses: int
    cache_latency: int
    fill: int
    """Of a line on the bus to memory, and in the array of the cache in front of the DRAM."""
    whole: int
    """Of a line of that cache in its array."""


class Lines(NamedTuple):
    """A cache's lines: what is where, when it was used last, whether memory lacks it."""

    tag: NDArray
    used: NDArray
    dirty: NDArray


class Caches(NamedTuple):
    """State of all of it. set_free: by set of the second-level cache; misses: when each place is free again."""

    l2: Lines
    cache: Lines
    set_free: NDArray
    misses: NDArray
    clock: NDArray
    counts: NDArray


@inner
def _by_chance(ways, clock, which):
    """A way by chance: a linear feedback shift register of 16 bits steps once, its low ten bits choose."""
    state = clock[which]
    bit = (state >> 15 ^ state >> 13 ^ state >> 12 ^ state >> 10) & 1
    clock[which] = (state << 1 | bit) & 0xFFFF
    return (clock[which] & 1023) * ways >> 10


@inner
def look_up(figures, lines, line, clock, which, write):
    """Finds a line or puts it in the place of another. Returns whether it was there, and a line that memory lacks and
    that had to leave (-1: none)."""
    clock[TICK] += 1
    first = line % figures.sets * figures.ways
    victim, oldest = first + _by_chance(figures.ways, clock, which), first
    for way in range(first, first + figures.ways):
        if lines.tag[way] == line:
            lines.used[way] = clock[TICK]
            if write:
                lines.dirty[way] = 1
            return True, -1
        if figures.fills_empty and lines.tag[way] < 0:
            victim = way
        if lines.used[way] < lines.used[oldest]:
            oldest = way
    if not figures.by_chance:
        victim = oldest
    left = lines.tag[victim] if lines.dirty[victim] != 0 else -1
    lines.tag[victim] = line
    lines.used[victim] = clock[TICK]
    lines.dirty[victim] = 1 if write else 0
    return False, left


@inner
def _transfer(f, dram, t, line, write):
    """A line of the cache in front of the DRAM, whose parts are on as many channels as there are. Returns the tick of
    the last data that are read."""
    spec, state, counters = dram
    across = min(f.lines, spec.channels)
    end = t
    for part in range(line * f.lines, line * f.lines + across):
        channel, place = part % spec.channels, part // spec.channels // f.lines
        parts = (f.lines - (part - line * f.lines) + across - 1) // across
        atoms = parts * f.line // spec.atom_bytes
        if write:
            dram_write(spec, state, counters, t, channel, place, atoms)
        else:
            end = max(end, dram_read(spec, state, counters, t, channel, place, atoms))
    return end


@inner
def _in_cache(f, m, dram, t, line, write):
    """A line that the cache in front of the DRAM is asked for at t. It does one thing at a time: a cycle to begin, then
    beats of a line that it has or is given, or the tags alone, and a whole line of its own that has to leave. Returns
    when it begins to answer (-1: from the DRAM), and when it knows what it has."""
    there, left = look_up(f.cache, m.cache, line // f.lines, m.clock, CACHE_CHOICE, write)
    start = max(t, m.clock[CACHE_FREE]) + 1
    free = start + (f.fill if there else 1)
    if left >= 0:
        m.counts[DRAM_WRITTEN] += f.lines
        _transfer(f, dram, free * TICKS_PER_CYCLE, left, True)
        free += f.whole
    if write and not there:
        free += f.fill
    m.clock[CACHE_FREE] = free
    return start if there else -1, start + 1


@inner
def _to_memory(f, m, dram, t, line):
    """A line that leaves the second-level cache; what is missing of the next one's line comes from the DRAM."""
    found, known = _in_cache(f, m, dram, t, line, True)
    if found < 0 and f.lines > 1:
        _from_dram(f, m, dram, known, line)


@inner
def _from_dram(f, m, dram, t, line):
    """Cycle at which a line of the cache in front of the DRAM arrives there, which it then has to write."""
    m.counts[DRAM_LINES] += f.lines
    ready = _transfer(f, dram, t * TICKS_PER_CYCLE, line // f.lines, False)
    m.clock[CACHE_FREE] += f.whole
    return (ready + TICKS_PER_CYCLE - 1) // TICKS_PER_CYCLE


@inner
def _from_memory(f, m, dram, t, line):
    """Cycle at which a line that the second-level cache misses at t begins to arrive."""
    found, known = _in_cache(f, m, dram, t, line, False)
    if found >= 0:
        m.counts[CACHE_HITS] += 1
        return found + f.cache_latency
    return _from_dram(f, m, dram, known, line) + f.cache_latency


@inner
def request(f, m, dram, t, address, size, write):
    """A request of up to a line that leaves the transfer engine at t; returns the cycle at which the cache takes it,
    which is when a miss has a place, and that of its last answer."""
    line = address // f.line
    index = line % f.l2.sets
    start = max(t, m.clock[ACCEPTS], m.set_free[index])
    taken = max(t, m.clock[ACCEPTS])
    m.clock[ACCEPTS] = taken + 1
    there, left = look_up(f.l2, m.l2, line, m.clock, CHOICE, write)
    m.counts[L2_WRITTEN if write else L2_READ] += size
    if there:
        m.counts[L2_HITS] += 1
        m.set_free[index] = start + f.set_busy
        ready = start + f.latency
    else:
        m.counts[L2_MISSES] += 1
        place = 0
        for i in range(f.misses):
            if m.misses[i] < m.misses[place]:
                place = i
        sent = max(start, m.misses[place])
        taken = max(taken, m.misses[place])
        m.clock[ACCEPTS] = max(m.clock[ACCEPTS], taken + 1)
        filled = max(_from_memory(f, m, dram, sent, line), m.clock[FILL_FREE]) + f.fill
        if left >= 0:
            _to_memory(f, m, dram, sent, left)
        m.clock[FILL_FREE] = filled
        m.misses[place] = filled
        m.set_free[index] = filled
        ready = filled + f.latency // 2
    if write:
        return taken, ready
    begins = max(ready, m.clock[BUS_FREE])
    m.clock[BUS_FREE] = begins + (size + f.beat - 1) // f.beat
    return taken, m.clock[BUS_FREE]


@inner
def warm(f, m, bytes_touched):
    """Brings memory from address 0 on into the caches, in no time: lap after lap, as the run before read it."""
    for _ in range(LAPS):
        for line in range((bytes_touched + f.line - 1) // f.line):
            there, _ = look_up(f.l2, m.l2, line, m.clock, CHOICE, False)
            if not there:
                look_up(f.cache, m.cache, line // f.lines, m.clock, CACHE_CHOICE, False)
