"""The request coalescer in front of a slice of the L2: reads of one line at about the same time are one.

Requests come from the crossbar, data go back over it. A read whose line another SM of the same GPC has asked for, and
whose data have not left the coalescer yet, joins it: the slice is read once, and the crossbar carries the data to that
GPC once. `l2.coalescer_reads` are answered together at most. Where the port of a GPC is busy data leave later, and more
can join. Loads for several CTAs of a cluster (multicast) neither join nor are joined.

Source: counters of Nsight Compute on an H100 and an H200 (`lrc__*`), docs/accuracy/memory.md.
"""

from sim.engine.jit import inner
from sim.engine.search import TAGS, equal_tags, lowest_bit
from sim.memory.counters import MemoryCounter
from sim.memory.sets import VALID_BITS, count_sectors

_NEVER = 1 << 62
_READ = int(MemoryCounter.L2_READ_SECTORS)
_READ_HIT = int(MemoryCounter.L2_READ_HIT_SECTORS)
_COALESCED = int(MemoryCounter.L2_COALESCED_SECTORS)


@inner(inline=True)
def waiting_places(coalesced):
    """Places of a slice's row for `coalesced` reads: whole vectors."""
    return (coalesced + TAGS - 1) & -TAGS


@inner
def find_waiting(spec, state, t, slice_index, gpc, line, sectors):
    """Place of the read that one of `sectors` of a line at tick t joins, of several the one that is answered first; -1
    if there is none."""
    places = waiting_places(spec.coalesced)
    first = (slice_index * spec.gpcs + gpc) * places
    found = -1
    least = _NEVER
    for block in range(first, first + places, TAGS):
        same = equal_tags(state.waiting, block, line)
        while same != 0:
            place = block + lowest_bit(same)
            same &= same - 1
            held = state.waiting_answer[place]
            answer = held >> VALID_BITS
            has_room = state.waiting_room[place] > 0 and t < answer - spec.way_back
            if has_room and sectors & ~held == 0 and answer < least:
                found = place
                least = answer
    return found


@inner(inline=True)
def join(spec, state, place, t, sectors):
    """A read at tick t joins the one at `place`; returns the tick of its answer."""
    n = count_sectors(sectors)
    state.counters[_READ] += n
    state.counters[_READ_HIT] += n
    state.counters[_COALESCED] += n
    state.waiting_room[place] -= 1
    return max(state.waiting_answer[place] >> VALID_BITS, t + spec.way_back)


@inner(inline=True)
def hold(spec, state, slice_index, gpc, line, sectors, answer):
    """Keeps a read that is answered at a tick, in the place of the oldest one that is held there for its GPC."""
    row = slice_index * spec.gpcs + gpc
    k = state.waiting_next[row]
    state.waiting_next[row] = k + 1 if k + 1 < spec.coalesced else 0
    place = row * waiting_places(spec.coalesced) + k
    state.waiting[place] = line
    state.waiting_answer[place] = answer << VALID_BITS | sectors
    state.waiting_room[place] = spec.joined
