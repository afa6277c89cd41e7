"""Behind a Gemmini's bus: a second-level cache, a cache in front of the DRAM, and the DRAM's channels.

Times are in cycles; the DRAM's own are in ticks. A request books what it needs when it is made: its set, which serves
one request at a time, a place among the misses on their way, the bus to memory, the bus to the transfer engine.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import inner
from sim.memory.dram_kernel import dram_read, dram_write

TICK, BUS_FREE, ACCEPTS, FILL_FREE = range(4)
"""Words of `Caches.clock`: for replacement; bus of answers; next request; bus of lines from memory."""

L2_HITS, L2_MISSES, L2_READ, L2_WRITTEN, CACHE_HITS, DRAM_LINES, DRAM_WRITTEN = range(7)
"""Words of `Caches.counts`; L2_READ and L2_WRITTEN in bytes, the last two in lines."""


class CacheFigures(NamedTuple):
    """Sets and ways of a cache."""

    sets: int
    ways: int


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
    """Of a line on the bus to memory."""


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
def look_up(figures, lines, line, tick, write):
    """Finds a line or puts it in the place of the one that was used longest ago. Returns whether it was there, and a
    line that memory lacks and that had to leave (-1: none)."""
    first = line % figures.sets * figures.ways
    victim = first
    for way in range(first, first + figures.ways):
        if lines.tag[way] == line:
            lines.used[way] = tick
            if write:
                lines.dirty[way] = 1
            return True, -1
        if lines.used[way] < lines.used[victim]:
            victim = way
    left = lines.tag[victim] if lines.dirty[victim] != 0 else -1
    lines.tag[victim] = line
    lines.used[victim] = tick
    lines.dirty[victim] = 1 if write else 0
    return False, left


@inner
def _to_memory(f, m, dram, t, line):
    """A line that leaves the second-level cache; what it drives out of the next one goes to the DRAM."""
    spec, state, counters = dram
    _, left = look_up(f.cache, m.cache, line // f.lines, m.clock[TICK], True)
    if left >= 0:
        m.counts[DRAM_WRITTEN] += f.lines
        dram_write(spec, state, counters, t * TICKS_PER_CYCLE, 0, left, f.lines * f.line // spec.atom_bytes)


@inner
def _from_memory(f, m, dram, t, line):
    """Cycle at which a line that the second-level cache misses at t begins to arrive."""
    spec, state, counters = dram
    there, left = look_up(f.cache, m.cache, line // f.lines, m.clock[TICK], False)
    atoms = f.lines * f.line // spec.atom_bytes
    if there:
        m.counts[CACHE_HITS] += 1
        return t + f.cache_latency
    m.counts[DRAM_LINES] += f.lines
    ready = dram_read(spec, state, counters, t * TICKS_PER_CYCLE, 0, line // f.lines, atoms)
    if left >= 0:
        m.counts[DRAM_WRITTEN] += f.lines
        dram_write(spec, state, counters, t * TICKS_PER_CYCLE, 0, left, atoms)
    return (ready + TICKS_PER_CYCLE - 1) // TICKS_PER_CYCLE


@inner
def request(f, m, dram, t, address, size, write):
    """A request of up to a line that leaves the transfer engine at t; returns the cycle of its last answer."""
    m.clock[TICK] += 1
    line = address // f.line
    index = line % f.l2.sets
    start = max(t, m.clock[ACCEPTS], m.set_free[index])
    m.clock[ACCEPTS] = max(t, m.clock[ACCEPTS]) + 1
    there, left = look_up(f.l2, m.l2, line, m.clock[TICK], write)
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
        if left >= 0:
            _to_memory(f, m, dram, sent, left)
        filled = max(_from_memory(f, m, dram, sent, line), m.clock[FILL_FREE]) + f.fill
        m.clock[FILL_FREE] = filled
        m.misses[place] = filled
        m.set_free[index] = filled
        ready = filled + f.latency // 2
    if write:
        return ready
    begins = max(ready, m.clock[BUS_FREE])
    m.clock[BUS_FREE] = begins + (size + f.beat - 1) // f.beat
    return m.clock[BUS_FREE]


@inner
def warm(f, m, bytes_touched):
    """Brings memory from address 0 on into the caches, in order and in no time."""
    for line in range((bytes_touched + f.line - 1) // f.line):
        m.clock[TICK] += 1
        look_up(f.l2, m.l2, line, m.clock[TICK], False)
        look_up(f.cache, m.cache, line // f.lines, m.clock[TICK], False)
