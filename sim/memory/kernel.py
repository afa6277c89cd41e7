"""How time passes in the L2: lookups, fills, the link between partitions, write-back. Ticks are int64.

A request names its line (byte address >> 7), the sectors it wants (4-bit mask) and the partition of the SM that asks.
`t` is the tick at which the load issues; latencies are whole-load latencies, so an unloaded near hit returns at
t + hit latency. Calls book slices, link and DRAM in the order of the calls; times should be (almost) in order. Each
resource on a request's way is booked from t on, and the answer waits for the last of them: booking one after the other
would leave holes in every calendar behind a busy one. So the busiest resource sets the rate, exactly; waits at two
resources count as the longer one, not as their sum.

Reads look in the SM's own partition first. Where a line's home is the other partition and local copies are kept, a miss
goes over the link to the home slice and leaves a copy behind; writes and atomics go to the home and drop the copy.
A sector that a write covers in part is fetched first; full sectors are allocated without a fetch.

Where slices have a request coalescer (`l2.coalescer`), a read that has to wait joins another of the same sectors that
waits there, and takes none of the slice's time.

Which line of a set makes room says `replacement`. Lines of a page of 2 to 2.5 MiB are dealt evenly to the
slices, but neighbours as if drawn at random: with neighbours in turn no slice or channel ever had a queue, and streams
that nearly saturate DRAM were up to 20 % faster than gpu-benches measures on V100, A100 and H100. Where `l2.interleave`
is more than a line, that many bytes stay together, in two slices of one channel.
"""

import numpy as np

from sim.engine.jit import inner, kernel
from sim.engine.prefetch import prefetch
from sim.engine.search import TAGS, find_tag
from sim.memory.counters import MemoryCounter
from sim.memory.dram_kernel import ask_bank, dram_read, dram_write
from sim.memory.hashing import divide, product, rotate
from sim.memory.replacement import drop, fill, touch, victim

VALID = 0xF
"""Mask of the valid sectors in a line's word."""

PAGE_SHIFT = 8
"""Lines that keep their low bits: 32 KiB are scattered, 32 KiB times the slices (2 to 2.5 MiB, a page) are balanced."""

VALID_BITS = 4
"""Bits of that mask."""

DIRTY_SHIFT = 4
READY_SHIFT = 8
"""A line's word: valid sectors, dirty sectors from bit 4, ready tick from bit 8."""

WORD_MASKS = 0xFF
"""Both masks of a line's word."""

AHEAD = 16
"""Lines that a request locates ahead of their look-ups."""

LINE, HOME, ASKED, SET, OTHER_SET = range(5)
"""Rows of `MemoryState.ahead`: numbers of lines, and what `locate` or `locate_change` gave for them."""

FEW = 2
"""Lines up to which they are located one by one, beyond which in vectors."""

_WORDS_A_HOST_LINE = 8

_BITS = 0x4332322132212110
"""Number of bits set in each 4-bit mask, as nibbles."""

_READ = int(MemoryCounter.L2_READ_SECTORS)
_READ_HIT = int(MemoryCounter.L2_READ_HIT_SECTORS)
_READ_MISS = int(MemoryCounter.L2_READ_MISS_SECTORS)
_MERGED = int(MemoryCounter.L2_MERGED_SECTORS)
_COALESCED = int(MemoryCounter.L2_COALESCED_SECTORS)
_FAR_READ = int(MemoryCounter.L2_FAR_READ_SECTORS)
_WRITE = int(MemoryCounter.L2_WRITE_SECTORS)
_REDUCE = int(MemoryCounter.L2_REDUCE_SECTORS)
_FAR_WRITE = int(MemoryCounter.L2_FAR_WRITE_SECTORS)
_FETCH = int(MemoryCounter.L2_FETCH_SECTORS)
_LINK_BYTES = int(MemoryCounter.L2_LINK_BYTES)
_EVICTIONS = int(MemoryCounter.L2_EVICTIONS)
_WRITE_BACK = int(MemoryCounter.L2_WRITE_BACK_SECTORS)
_INVALIDATIONS = int(MemoryCounter.L2_INVALIDATIONS)


@inner(inline=True)
def count_sectors(mask):
    """Sectors in a 4-bit mask."""
    return (_BITS >> (mask << 2)) & 7


@kernel(inline=True)
def index_of(spec, line):
    """A line's index within its slice. A slice has one line in `slices` of those that share their low bits."""
    group = divide(line >> PAGE_SHIFT, spec.slice_multiplier, spec.slice_shift)
    return (group << PAGE_SHIFT) | (line & ((1 << PAGE_SHIFT) - 1))


@kernel(inline=True)
def home_slice(spec, line, index):
    """Slice that owns a line: neighbours are scattered as if drawn at random, larger ranges are balanced.

    Lines that stay together alternate between two neighbouring slices.
    """
    place = rotate(
        (line >> PAGE_SHIFT) - product(index >> PAGE_SHIFT, spec.slices), index >> spec.interleave_shift, spec.slices
    )
    return place ^ (index & spec.alternate)


@kernel(inline=True)
def set_of(spec, index, slice_index):
    """Number of a line's set: each run of `sets` indices meets every set of the slice once."""
    group = divide(index, spec.set_multiplier, spec.set_shift)
    place = rotate(index - product(group, spec.sets), product(group, spec.slices) + slice_index, spec.sets)
    return product(place, spec.slices) + slice_index


@inner(inline=True)
def find(state, line, cache_set):
    """Index of the line in `state.tags` if its set holds it, or -1."""
    way = find_tag(state.tags, cache_set, line)
    return cache_set * TAGS + way if way >= 0 else -1


@inner(inline=True)
def locate(spec, partition, line):
    """A line's home slice, the slice that a read asks first, the line's set there and at home."""
    index = index_of(spec, line)
    home = home_slice(spec, line, index)
    asked = home
    if spec.local_copies != 0 and (home >= spec.slices_per_partition) != (partition == 1):
        asked = home + (2 * partition - 1) * spec.slices_per_partition
    cache_set = set_of(spec, index, asked)
    return home, asked, cache_set, set_of(spec, index, home) if spec.local_copies != 0 else cache_set


@kernel(inline=True)
def channel_of(spec, slice_index, line):
    """Channel of a slice's line and the line's place in that channel, as channel << 32 | place.

    Places follow addresses, so that neighbours share a row; lines that the scatter brings together may share a place.
    With as many slices as channels, or a multiple, a slice has one channel; otherwise it uses several.
    """
    block = divide(line, spec.slice_multiplier, spec.slice_shift)
    place = block * spec.slices + slice_index
    group = divide(place, spec.channel_multiplier, spec.channel_shift)
    channel = place - group * spec.dram.channels
    if spec.dram.channels > spec.slices:
        channel = rotate(channel, group, spec.dram.channels)
    return (channel << 32) | group


@inner(inline=True)
def fetch(spec, state, t, slice_index, line, sectors):
    """Read sectors of a home line from DRAM at tick t; returns the tick at which they are there, as seen by the SM."""
    place = channel_of(spec, slice_index, line)
    atoms = (spec.atoms_of_sectors >> (sectors << 2)) & 7
    return dram_read(spec.dram, state.dram, state.counters, t, place >> 32, place & 0xFFFFFFFF, atoms)


@inner(inline=True)
def allocate(spec, state, t, line, cache_set):
    """Make room for a line; returns its index in `state.tags`. A dirty victim goes to DRAM.

    `state.scratch[0]` is then the tick at which DRAM's write buffer has taken the victim, t if there was nothing to do.
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
            place = channel_of(spec, home_slice(spec, evicted, index_of(spec, evicted)), evicted)
            atoms = (spec.atoms_of_sectors >> (dirty << 2)) & 7
            state.counters[_WRITE_BACK] += count_sectors(dirty)
            taken = dram_write(spec.dram, state.dram, state.counters, t, place >> 32, place & 0xFFFFFFFF, atoms)
    state.tags[i] = line
    state.lines[i] = 0
    state.order[cache_set] = fill(spec.replacement, order, spec.ways, way)
    state.scratch[0] = taken
    return i


@inner
def coalesce(spec, state, t, slice_index, line, sectors, start):
    """Tick at which a slice serves a read that has to wait until `start` if no other read of its sectors waits there.

    The slice's coalescer holds the latest `spec.coalesced` reads that wait; one more read of a line that is among them
    is answered with it, and takes no time of the slice.
    """
    first = slice_index * spec.coalesced
    for k in range(first, first + spec.coalesced):
        held = state.waiting[k]
        if held >> VALID_BITS == line and sectors & ~held == 0 and state.waiting_start[k] > t:
            return state.waiting_start[k]
    k = state.waiting_next[slice_index]
    state.waiting_next[slice_index] = k + 1 if k + 1 < spec.coalesced else 0
    state.waiting[first + k] = line << VALID_BITS | sectors
    state.waiting_start[first + k] = start
    return start


@inner(inline=True)
def look_up(spec, state, t, line, slice_index, cache_set, sectors, latency):
    """Book a slice's port for a read at tick t and look for the line; `latency` is that of a hit as the SM sees it.

    Returns (whether all sectors are there, tick of the answer as far as the slice goes, index of the line or -1).
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
    i = find(state, line, cache_set)
    if i >= 0:
        word = state.lines[i]
        state.order[cache_set] = touch(spec.replacement, state.order[cache_set], spec.ways, i - cache_set * TAGS)
        if sectors & ~word == 0:
            state.counters[_READ_HIT] += n
            ready = word >> READY_SHIFT
            if ready > answer:
                state.counters[_MERGED] += n
                answer = ready
            return True, answer, i
    return False, answer, i


@inner(inline=True)
def complete_from_dram(spec, state, t, answer, i, line, home, cache_set, sectors, latency):
    """Complete a read at the home slice that found line i (-1: none) without all its sectors."""
    place = channel_of(spec, home, line)
    ask_bank(spec.dram, state.dram, place >> 32, place & 0xFFFFFFFF)
    if i < 0:
        i = allocate(spec, state, t, line, cache_set)
        answer = max(answer, state.scratch[0])
    word = state.lines[i]
    missing = sectors & ~word
    misses = count_sectors(missing)
    state.counters[_READ_HIT] += count_sectors(sectors) - misses
    state.counters[_READ_MISS] += misses
    answer = max(max(answer, word >> READY_SHIFT), fetch(spec, state, t, home, line, missing) + latency)
    state.lines[i] = (answer << READY_SHIFT) | (word & WORD_MASKS) | missing
    return answer


@inner(inline=True)
def cross_link(spec, state, t, direction, n):
    """Carry n sectors over the link towards partition `direction`; returns the tick of the last one's start."""
    end = max(t, state.link_free[direction]) + n * spec.link_sector
    state.link_free[direction] = end
    state.counters[_LINK_BYTES] += n * spec.sector_bytes
    return end - spec.link_sector


@kernel(inline=True)
def l2_read(spec, state, t, partition, line, sectors):
    """Read sectors of a line at tick t; returns the tick at which the data leave towards the SM.

    partition: of the SM that asks. line: byte address >> 7, below 2**31. sectors: mask of 1 to 15.
    """
    home, asked, cache_set, home_set = locate(spec, partition, line)
    return read_located(spec, state, t, partition, line, sectors, home, asked, cache_set, home_set)


@inner(inline=True)
def l2_read_ahead(spec, state, t, partition, line, sectors, k):
    """`l2_read` of a line that `l2_prefetch` has located as number `k`."""
    ahead = state.ahead
    home, asked, cache_set, home_set = ahead[HOME, k], ahead[ASKED, k], ahead[SET, k], ahead[OTHER_SET, k]
    return read_located(spec, state, t, partition, line, sectors, home, asked, cache_set, home_set)


@inner(inline=True)
def read_located(spec, state, t, partition, line, sectors, home, asked, cache_set, home_set):
    """`l2_read` of a line for which `locate` has given the last four arguments."""
    n = count_sectors(sectors)
    state.counters[_READ] += n
    latency = spec.hit_latency
    crossed = 0
    if asked == home and spec.partitions == 2 and (home >= spec.slices_per_partition) != (partition == 1):
        latency = spec.far_latency
        crossed = cross_link(spec, state, t, partition, n) + latency
        state.counters[_FAR_READ] += n
    complete, answer, i = look_up(spec, state, t, line, asked, cache_set, sectors, latency)
    answer = max(answer, crossed)
    if complete:
        return answer
    there = answer
    copy = -1
    copied = 0
    if asked != home:  # the slice keeps a copy; what it lacks comes from the home slice
        if i < 0:
            i = allocate(spec, state, t, line, cache_set)
            answer = max(answer, state.scratch[0])
        copy = i
        word = state.lines[copy]
        copied = word & VALID
        sectors &= ~word
        misses = count_sectors(sectors)
        state.counters[_READ_HIT] += n - misses
        state.counters[_FAR_READ] += misses
        latency = spec.far_latency
        answer = max(max(answer, word >> READY_SHIFT), cross_link(spec, state, t, partition, misses) + latency)
        cache_set = home_set
        complete, there, i = look_up(spec, state, t, line, home, cache_set, sectors, latency)
    if not complete:
        there = complete_from_dram(spec, state, t, there, i, line, home, cache_set, sectors, latency)
    answer = max(answer, there)
    if copy >= 0:
        state.lines[copy] = (answer << READY_SHIFT) | copied | sectors
    return answer


@inner(inline=True)
def l2_prefetch(spec, state, partition, count):
    """Locates the first `count` lines of `state.ahead[LINE]` for reads and asks the host for what these will touch."""
    ahead = state.ahead
    if count <= FEW:
        for k in range(count):
            locate_number(spec, ahead, partition, k)
    else:
        for k in range(AHEAD):  # whatever the count: the compiler makes vectors of it
            locate_number(spec, ahead, partition, k)
    prefetch_sets(spec, state, count)


@inner(inline=True)
def locate_number(spec, ahead, partition, k):
    """`locate` for number `k` of those ahead."""
    home, asked, cache_set, home_set = locate(spec, partition, ahead[LINE, k])
    ahead[HOME, k] = home
    ahead[ASKED, k] = asked
    ahead[SET, k] = cache_set
    ahead[OTHER_SET, k] = home_set


@inner(inline=True)
def l2_prefetch_changes(spec, state, count):
    """As `l2_prefetch`, for writes and reductions."""
    ahead = state.ahead
    if count <= FEW:
        for k in range(count):
            locate_number_changed(spec, ahead, k)
    else:
        for k in range(AHEAD):
            locate_number_changed(spec, ahead, k)
    prefetch_sets(spec, state, count)


@inner(inline=True)
def locate_number_changed(spec, ahead, k):
    """`locate_change` for number `k` of those ahead."""
    home, cache_set, copy_set = locate_change(spec, ahead[LINE, k])
    ahead[HOME, k] = home
    ahead[SET, k] = cache_set
    ahead[OTHER_SET, k] = copy_set


@inner(inline=True)
def prefetch_sets(spec, state, count):
    """Asks the host for the sets of the first `count` lines ahead, and for the tags of their other sets."""
    for k in range(count):
        cache_set = state.ahead[SET, k]
        base = cache_set * TAGS
        prefetch(state.tags, base)
        for i in range(base, base + TAGS, _WORDS_A_HOST_LINE):
            prefetch(state.lines, i)
        prefetch(state.order, cache_set)
        if spec.local_copies != 0:
            prefetch(state.tags, state.ahead[OTHER_SET, k] * TAGS)


@inner(inline=True)
def locate_change(spec, line):
    """The slice where a line is changed, its set there, and the set that may hold a copy in the other partition (the
    same one where there are none)."""
    index = index_of(spec, line)
    home = home_slice(spec, line, index)
    other = home
    if spec.local_copies != 0:
        other += spec.slices_per_partition
        if other >= spec.slices:
            other -= spec.slices
    return home, set_of(spec, index, home), set_of(spec, index, other)


@inner(inline=True)
def drop_copy(spec, state, line, cache_set):
    """Drop the copy that the other partition may hold, in that set, of a line that is being written."""
    i = find(state, line, cache_set)
    if i >= 0:
        state.tags[i] = -1
        state.lines[i] = 0
        state.order[cache_set] = drop(spec.replacement, state.order[cache_set], spec.ways, i - cache_set * TAGS)
        state.counters[_INVALIDATIONS] += 1


@inner(inline=True)
def modify(spec, state, t, partition, line, sectors, needed, sector_time, slice_index, cache_set, copy_set):
    """Change sectors at the home slice, whose content is needed first for those in `needed`. The last three arguments
    are what `locate_change` has given for the line.

    Returns the tick of the acknowledgement; `state.scratch[1]` is the tick at which needed content is there.
    """
    n = count_sectors(sectors)
    latency = spec.hit_latency
    crossed = t
    if spec.partitions == 2:
        home = 1 if slice_index >= spec.slices_per_partition else 0
        if home != partition:
            latency = spec.far_latency
            state.counters[_FAR_WRITE] += n
            crossed = cross_link(spec, state, t, home, n)
        if spec.local_copies != 0:
            drop_copy(spec, state, line, copy_set)
    end = max(t, state.write_free[slice_index]) + n * sector_time
    state.write_free[slice_index] = end
    answer = max(crossed, end - sector_time) + latency
    i = find(state, line, cache_set)
    if i >= 0:
        state.order[cache_set] = touch(spec.replacement, state.order[cache_set], spec.ways, i - cache_set * TAGS)
    else:
        i = allocate(spec, state, t, line, cache_set)
        # A full write buffer holds up the slice's port, and with it everybody who writes there.
        state.write_free[slice_index] = max(end, state.scratch[0])
        answer = max(answer, state.scratch[0] + latency)
    word = state.lines[i]
    there = word >> READY_SHIFT
    missing = needed & ~word
    if missing & VALID:
        state.counters[_FETCH] += count_sectors(missing)
        there = max(there, fetch(spec, state, t, slice_index, line, missing) + latency)
    state.lines[i] = (there << READY_SHIFT) | (word & WORD_MASKS) | sectors | (sectors << DIRTY_SHIFT)
    state.scratch[1] = max(answer, there)
    return answer


@inner(inline=True)
def l2_change_ahead(spec, state, t, partition, line, sectors, full, reduce, k):
    """`l2_reduce` if `reduce`, else `l2_write`, of a line that `l2_prefetch_changes` has located as number `k`."""
    ahead = state.ahead
    return change_located(
        spec, state, t, partition, line, sectors, full, reduce, ahead[HOME, k], ahead[SET, k], ahead[OTHER_SET, k]
    )


@inner(inline=True)
def change_located(spec, state, t, partition, line, sectors, full, reduce, home, cache_set, copy_set):
    """`l2_reduce` or `l2_write` of a line for which `locate_change` has given the last three arguments."""
    n = count_sectors(sectors)
    if reduce:
        state.counters[_REDUCE] += n
        full = 0
    else:
        state.counters[_WRITE] += n
    needed = sectors & ~full
    time = spec.write_sector
    answer = modify(spec, state, t, partition, line, sectors, needed, time, home, cache_set, copy_set)
    return state.scratch[1] if reduce else answer


@kernel
def l2_write(spec, state, t, partition, line, sectors, full):
    """Write to sectors of a line at tick t; returns the tick of the acknowledgement as the SM sees it.

    full: those of `sectors` that are written in all their bytes; others are fetched unless present, for which the
    writer does not wait.
    """
    home, cache_set, copy_set = locate_change(spec, line)
    return change_located(spec, state, t, partition, line, sectors, full, False, home, cache_set, copy_set)


@kernel
def l2_reduce(spec, state, t, partition, line, sectors):
    """Add to sectors of a line by atomics at the L2 at tick t; returns the tick at which the sums are there."""
    home, cache_set, copy_set = locate_change(spec, line)
    return change_located(spec, state, t, partition, line, sectors, 0, True, home, cache_set, copy_set)


@kernel
def read_lines(spec, state, t, gap, partition, first, count, sectors):
    """Read `count` consecutive lines, one each `gap` ticks; returns the tick of the last answer."""
    last = t
    for k in range(count):
        last = max(last, l2_read(spec, state, t + k * gap, partition, first + k, sectors))
    return last


@kernel
def write_lines(spec, state, t, gap, partition, first, count):
    """Write `count` consecutive whole lines, one each `gap` ticks; returns the tick of the last acknowledgement."""
    last = t
    for k in range(count):
        last = max(last, l2_write(spec, state, t + k * gap, partition, first + k, VALID, VALID))
    return last
