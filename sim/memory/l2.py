"""How time passes in the L2: reads, writes and atomics of lines. Ticks are int64.

A request names its line (byte address >> 7), the sectors it wants (4-bit mask) and the partition of the SM that asks.
A read also names what comes from DRAM where one of these is missing: more than it wants where it has a prefetch size.
`t` is the tick at which the load issues; latencies are whole-load latencies, so an unloaded near hit returns at
t + hit latency. Calls book slices, link and DRAM in the order of the calls; times should be (almost) in order. Each
resource on a request's way is booked from t on, and the answer waits for the last of them: booking one after the other
would leave holes in every calendar behind a busy one. So the busiest resource sets the rate, exactly; waits at two
resources count as the longer one, not as their sum.

Reads look in the SM's own partition first. Where a line's home is the other partition and local copies are kept, a miss
goes over the link to the home slice and leaves a copy behind. Writes and atomics go to the home; a write from the other
partition leaves a copy of whole sectors there, what else changes a line drops the copy.
A sector that a write covers in part is fetched first; full sectors are allocated without a fetch.

`addresses` says where a line lies, `sets` what a set holds, `slices` what a slice does; `ahead` locates many lines.
"""

from sim.engine.jit import inner, kernel
from sim.memory.addresses import locate, locate_change
from sim.memory.ahead import ASKED, HOME, OTHER_SET, SET
from sim.memory.counters import MemoryCounter
from sim.memory.sets import (
    DIRTY_SHIFT,
    VALID,
    allocate,
    count_sectors,
    dirty_ways,
    drop_copy,
    find,
    keep_limit,
    leave_copy,
    masks_of,
    set_masks,
    set_there,
    there_from,
    use,
)
from sim.memory.slices import complete_from_dram, cross_link, fetch, look_up

ALL_PARTITIONS = -1

_READ = int(MemoryCounter.L2_READ_SECTORS)
_READ_HIT = int(MemoryCounter.L2_READ_HIT_SECTORS)
_FAR_READ = int(MemoryCounter.L2_FAR_READ_SECTORS)
_WRITE = int(MemoryCounter.L2_WRITE_SECTORS)
_REDUCE = int(MemoryCounter.L2_REDUCE_SECTORS)
_FAR_WRITE = int(MemoryCounter.L2_FAR_WRITE_SECTORS)
_FETCH = int(MemoryCounter.L2_FETCH_SECTORS)


@kernel(inline=True)
def l2_read(spec, state, t, partition, line, sectors):
    """Read sectors of a line at tick t; returns the tick at which the data leave towards the SM.

    partition: of the SM that asks. line: byte address >> 7, below 2**31. sectors: mask of 1 to 15.
    """
    home, asked, cache_set, home_set = locate(spec, partition, line)
    return read_located(spec, state, t, partition, line, sectors, sectors, home, asked, cache_set, home_set)


@inner(inline=True)
def l2_read_ahead(spec, state, t, partition, line, sectors, fetched, k):
    """`l2_read` of a line that `l2_prefetch` has located as number `k`.

    fetched: mask of the sectors that come from DRAM if one of `sectors` has to, these included.
    """
    ahead = state.ahead
    home, asked, cache_set, home_set = ahead[HOME, k], ahead[ASKED, k], ahead[SET, k], ahead[OTHER_SET, k]
    return read_located(spec, state, t, partition, line, sectors, fetched, home, asked, cache_set, home_set)


@inner(inline=True)
def read_located(spec, state, t, partition, line, sectors, fetched, home, asked, cache_set, home_set):
    """`l2_read_ahead` of a line for which `locate` has given the last four arguments."""
    n = count_sectors(sectors)
    state.counters[_READ] += n
    latency = spec.hit_latency
    crossed = 0
    if asked == home and spec.partitions == 2 and (home >= spec.slices_per_partition) != (partition == 1):
        latency = spec.far_latency
        crossed = cross_link(spec, state, t, partition, n) + latency
        state.counters[_FAR_READ] += n
    complete, answer, way = look_up(spec, state, t, line, asked, cache_set, sectors, latency)
    answer = max(answer, crossed)
    if complete:
        return answer
    there = answer
    copy = -1
    copy_set = cache_set
    copied = 0
    if asked != home:  # the slice keeps a copy; what it lacks comes from the home slice
        if way < 0:
            way, taken = allocate(spec, state, t, line, cache_set)
            answer = max(answer, taken)
        else:
            answer = there_from(state, cache_set, way, answer)
        copy = way
        copied = masks_of(state, copy_set, copy) & VALID
        sectors &= ~copied
        fetched &= ~copied
        misses = count_sectors(sectors)
        state.counters[_READ_HIT] += n - misses
        state.counters[_FAR_READ] += misses
        latency = spec.far_latency
        answer = max(answer, cross_link(spec, state, t, partition, misses) + latency)
        cache_set = home_set
        complete, there, way = look_up(spec, state, t, line, home, cache_set, sectors, latency)
    if not complete:
        there = complete_from_dram(spec, state, t, there, way, line, home, cache_set, sectors, fetched, latency)
    answer = max(answer, there)
    if copy >= 0:
        set_masks(state, copy_set, copy, copied | sectors)
        set_there(state, copy_set, copy, answer)
    return answer


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
    answer, changed = modify(spec, state, t, partition, line, sectors, needed, time, home, cache_set, copy_set)
    return changed if reduce else answer


@inner(inline=True)
def modify(spec, state, t, partition, line, sectors, needed, sector_time, slice_index, cache_set, copy_set):
    """Change sectors at the home slice, whose content is needed first for those in `needed`. The last three arguments
    are what `locate_change` has given for the line.

    Returns the tick of the acknowledgement, and that at which the needed content is there and the sectors are changed.
    """
    n = count_sectors(sectors)
    latency = spec.hit_latency
    crossed = t
    taken = t
    if spec.partitions == 2:
        home = 1 if slice_index >= spec.slices_per_partition else 0
        if home != partition:
            latency = spec.far_latency
            state.counters[_FAR_WRITE] += n
            crossed = cross_link(spec, state, t, home, n)
        if spec.local_copies != 0:
            if home != partition and sectors & ~needed != 0:
                taken = leave_copy(spec, state, t, line, copy_set, sectors & ~needed)
            else:
                drop_copy(spec, state, line, copy_set)
    end = max(t, state.write_free[slice_index]) + n * sector_time
    state.write_free[slice_index] = end
    answer = max(crossed, end - sector_time) + latency
    way = find(state, line, cache_set)
    masks = 0
    if way >= 0:
        use(spec, state, cache_set, way)
        masks = masks_of(state, cache_set, way)
        if masks <= VALID:
            taken = max(taken, keep_limit(spec, state, t, cache_set, dirty_ways(state, cache_set)))
    else:
        way, room = allocate(spec, state, t, line, cache_set)
        taken = max(taken, room)
    if taken > t:
        # A full write buffer holds up the slice's port, and with it everybody who writes there.
        state.write_free[slice_index] = max(end, taken)
        answer = max(answer, taken + latency)
    there = there_from(state, cache_set, way, answer)
    missing = needed & ~masks
    if missing != 0:
        state.counters[_FETCH] += count_sectors(missing)
        fetched = fetch(spec, state, t, slice_index, line, missing) + latency
        set_there(state, cache_set, way, max(there_from(state, cache_set, way, 0), fetched))
        there = max(there, fetched)
    set_masks(state, cache_set, way, masks | sectors | (sectors << DIRTY_SHIFT))
    return answer, there


@inner(inline=True)
def _in_turn(spec, partition, line):
    return partition if partition != ALL_PARTITIONS else (line >> 3) % spec.partitions


@kernel
def read_lines(spec, state, t, gap, partition, first, count, sectors):
    """Read `count` consecutive lines, one each `gap` ticks; returns the tick of the last answer.

    partition: of the SM that reads; `ALL_PARTITIONS`: of these in turns, a warp's piece of 1 KiB each.
    """
    last = t
    for k in range(count):
        reader = _in_turn(spec, partition, first + k)
        last = max(last, l2_read(spec, state, t + k * gap, reader, first + k, sectors))
    return last


@kernel
def write_lines(spec, state, t, gap, partition, first, count):
    """As `read_lines` for writes of whole lines; returns the tick of the last acknowledgement."""
    last = t
    for k in range(count):
        writer = _in_turn(spec, partition, first + k)
        last = max(last, l2_write(spec, state, t + k * gap, writer, first + k, VALID, VALID))
    return last
