"""Accesses of memory by the addresses of lanes: lines and sectors of global memory, wavefronts of shared memory.

Arguments as in `sim.gpu.engine.loop` and `lanes`. An access takes the address unit of its sub-core, before which a few
wait in a queue, and then the path that all sub-cores share.
"""

import numpy as np

from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import inner
from sim.engine.search import lowest_bit
from sim.gpu.counters import Counter
from sim.gpu.engine.global_memory import LoadStore, Stores, load_line, take_store
from sim.gpu.lower.tables import Kind, Pipe
from sim.gpu.sass.tables import (
    LANES,
    LOCAL_BYTES,
    LOCAL_WINDOW,
    PATTERNS,
    RANK_SHIFT,
    WAITING,
    Cell,
    Fault,
    FaultKind,
    Launched,
    Mode,
    Scalar,
    Traced,
    Unit,
)
from sim.gpu.units.chip import CHUNK, Chip
from sim.gpu.units.cp_async import CpAsyncFigure, CpAsyncGroups
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.l1 import READY_SHIFT, SECTORS, L1Figure, find_line, locate_in_l1, whole_sectors
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.port import Port, PortFigure, count_reads
from sim.gpu.units.shared import SharedFigure, book_access, book_copies
from sim.gpu.units.warp import Warp, add_ready
from sim.memory.ahead import LINE, l2_prefetch, l2_prefetch_changes
from sim.memory.l2 import l2_change_ahead
from sim.memory.sets import count_sectors

_PATTERN_MASK, _PATTERN_WAVES, _PATTERN_FIRST = 0, 1, 2
_LOADS = 1 << Unit.LDG | 1 << Unit.LDGSTS | 1 << Unit.LD
_ATOMICS = 1 << Unit.RED | 1 << Unit.ATOMG | 1 << Unit.ATOM
"""Done at the L2."""
_RETURN = 1 << Unit.LDG | 1 << Unit.LD | 1 << Unit.ATOMG | 1 << Unit.ATOM
"""Whose result comes from there."""


@inner
def blame(x, st, w, row, kind, lane, address):
    """Notes why the run stops, the first reason only."""
    fault = x.fault
    if fault[Fault.KIND] == FaultKind.NONE:
        fault[Fault.KIND], fault[Fault.ROW], fault[Fault.LANE], fault[Fault.ADDRESS] = kind, row, lane, address
        fault[Fault.CTA] = st.ctas[st.warps[w, Warp.CTA], Cta.LINEAR]
        fault[Fault.WARP] = st.warps[w, Warp.NUMBER]


@inner
def locate(x, w, row):
    """Writes the byte address of each lane to `x.addresses[0]`."""
    code, addresses, scalars = x.code, x.addresses, x.scalars
    if x.trace.shape[0] > 0:
        access = x.trace[scalars[w, Scalar.CURSOR], Traced.ACCESS]
        for lane in range(LANES):
            addresses[0, lane] = x.trace_lanes[access, lane]
        return
    register, uniform = code[row, Cell.ADDRESS], code[row, Cell.ADDRESS_UNIFORM]
    base = code[row, Cell.OFFSET]
    if uniform >= 0:
        base += scalars[w, Scalar.UNIFORM + uniform]
        if code[row, Cell.ADDRESS_UNIFORM_WIDE] != 0:
            base += scalars[w, Scalar.UNIFORM + uniform + 1] << 32
    if register < 0:
        for lane in range(LANES):
            addresses[0, lane] = base
    elif code[row, Cell.ADDRESS_WIDE] != 0:
        for lane in range(LANES):
            low, high = x.registers[w, register, lane], x.registers[w, register + 1, lane]
            addresses[0, lane] = base + (int(low) | int(high) << 32)
    else:
        shift = code[row, Cell.ADDRESS_SHIFT]
        for lane in range(LANES):
            addresses[0, lane] = base + (int(x.registers[w, register, lane]) << shift)


@inner(inline=True)
def locate_shared(p, x, st, w, row):
    """`locate` of shared memory of the own CTA."""
    locate(x, w, row)
    _within_cta(p, x, st, w)


@inner(inline=True)
def _within_cta(p, x, st, w):
    """Of addresses in the shared memory of the cluster, those of this CTA become addresses in its own."""
    if p[Chip.CLUSTER_SIZE] > 1:
        rank = st.ctas[st.warps[w, Warp.CTA], Cta.RANK]
        for lane in range(LANES):
            address = x.addresses[0, lane]
            x.addresses[0, lane] = address - (rank << RANK_SHIFT if address >> RANK_SHIFT == rank else 0)


@inner
def reserve(x, st, s, t, interval):
    """Takes the address unit of a sub-core; returns when it is free for this access, which waits in its queue until
    then."""
    subs = st.sub_cores
    start = max(t, subs[s, SubCore.PIPE_FREE + Pipe.LSU])
    subs[s, SubCore.PIPE_FREE + Pipe.LSU] = start + interval
    place = x.queues[s, WAITING]
    x.queues[s, place] = start
    x.queues[s, WAITING] = place + 1 if place + 1 < WAITING else 0
    return start


@inner(inline=True)
def queue_free(x, s):
    """Tick from which the queue of a sub-core's address unit has a place."""
    return x.queues[s, x.queues[s, WAITING]]


@inner(inline=True)
def hold(st, s, until):
    """The address unit hands an access over at a tick, and not before it takes the next one."""
    subs = st.sub_cores
    subs[s, SubCore.PIPE_FREE + Pipe.LSU] = max(subs[s, SubCore.PIPE_FREE + Pipe.LSU], until)


# ---- shared memory


@inner
def access_shared(p, x, st, w, s, sm, t, row, mask):
    """A load, store, LDSM or STSM of warp `w`: books the array, releases scoreboards."""
    code = x.code
    unit = code[row, Cell.UNIT]
    start = reserve(x, st, s, t, code[row, Cell.INTERVAL])
    waves, least = 1, 1
    size = code[row, Cell.BYTES]
    if mask != 0:
        locate_shared(p, x, st, w, row)
        waves, least = wavefronts(x, st, w, row, mask)
    work = waves * p[SharedFigure.WAVEFRONT]
    begin = book_access(st, sm, start, work)
    hold(st, s, begin)
    stores = unit == Unit.STS or unit == Unit.STSM
    moved = code[row, Cell.MATRICES] * 128 if code[row, Cell.MATRICES] > 0 else LANES * size
    st.counters[Counter.SHARED_WRITE_BYTES if stores else Counter.SHARED_READ_BYTES] += moved
    st.counters[Counter.SHARED_CONFLICT_TICKS] += (waves - least) * p[SharedFigure.WAVEFRONT]
    registers = max(1, size // 4) if code[row, Cell.MATRICES] == 0 else code[row, Cell.MATRICES]
    done = begin + work + code[row, Cell.LATENCY] + (waves - least - registers) * TICKS_PER_CYCLE
    if stores:
        st.warps[w, Warp.SHARED_WRITTEN] = max(st.warps[w, Warp.SHARED_WRITTEN], done)
        release(x, st, w, row, done, begin + code[row, Cell.READ_LATENCY], Reason.SHORT_SCOREBOARD)
    else:
        release(x, st, w, row, done, start + code[row, Cell.READ_LATENCY], Reason.SHORT_SCOREBOARD)


@inner
def release(x, st, w, row, done, read, reason):
    """The scoreboards of an access: of its result, and of its operands."""
    if x.code[row, Cell.WRITE] >= 0:
        add_ready(st, w, x.code[row, Cell.WRITE], done, reason)
    if x.code[row, Cell.READ] >= 0:
        add_ready(st, w, x.code[row, Cell.READ], read, reason)


@inner
def wavefronts(x, st, w, row, mask):
    """Wavefronts of the access whose addresses are there, and how few it would take without conflicts.

    Conflicts depend on the distances between addresses, which mostly have been there before: warps and steps of a loop
    have one of a few.
    """
    code, addresses, patterns = x.code, x.addresses, x.patterns
    size, matrices = code[row, Cell.BYTES], code[row, Cell.MATRICES]
    lanes = 8 * matrices if matrices > 0 else LANES
    base = addresses[0, 0]
    place = row * PATTERNS + _pattern_of(addresses, base, lanes)
    low, high = x.launch[Launched.SHARED_BEGIN], x.launch[Launched.SHARED_END] - size
    changed = patterns[place, _PATTERN_MASK] ^ mask
    outside, bits = 0, 0  # outside: negative where a lane is
    for lane in range(lanes):
        address = addresses[0, lane]
        changed |= patterns[place, _PATTERN_FIRST + lane] ^ (address - base)
        outside |= (address - low) | (high - address)
        bits |= address
    if outside < 0 or bits & (size - 1) != 0:
        _judge_shared(x, st, w, row, mask, lanes, size)
    width = max(size, 4)
    least = matrices if matrices > 0 else max(1, LANES * width // (4 * x.launch[Launched.BANKS]))
    if changed != 0:
        patterns[place, _PATTERN_MASK] = mask
        for lane in range(lanes):
            patterns[place, _PATTERN_FIRST + lane] = addresses[0, lane] - base
        granule = 16 if matrices > 0 else width
        group = max(1, 4 * x.launch[Launched.BANKS] // granule)
        waves = 0
        for first in range(0, lanes, group):
            count = min(group, lanes - first)
            found = _apart(x, mask, first, count, granule, matrices > 0)
            waves += found if found >= 0 else _conflicts(x, mask, first, count, granule, matrices > 0)
        patterns[place, _PATTERN_WAVES] = max(1, waves)
    return patterns[place, _PATTERN_WAVES], min(least, patterns[place, _PATTERN_WAVES])


@inner
def _apart(x, mask, first, count, granule, whole):
    """`_conflicts` of lanes of which no two meet in a bank, as mostly: 1, 0 without any; -1 where two do."""
    slots = 4 * x.launch[Launched.BANKS] // granule
    if slots < 1 or slots > LANES or slots & (slots - 1) != 0:
        return -1
    shift = lowest_bit(granule)
    taken, twice = 0, 0
    for i in range(first, first + count):
        if whole or (mask >> i) & 1:
            slot = 1 << ((x.addresses[0, i] >> shift) & (slots - 1))
            twice |= taken & slot
            taken |= slot
    if twice != 0:
        return -1
    return 1 if taken != 0 else 0


@inner(inline=True)
def _pattern_of(addresses, base, lanes):
    """Which of a row's places keeps a pattern: by the distances to lanes 1, 2, 4, 8 and 16, which tell permutations of
    rows of a tile apart."""
    mixed = 0
    lane = 1
    while lane < lanes:
        mixed = 3 * mixed + addresses[0, lane] - base
        lane *= 2
    return (mixed >> 4 ^ mixed >> 8) & (PATTERNS - 1)


@inner
def _judge_shared(x, st, w, row, mask, lanes, size):
    """Stops the run at a lane whose address is not in the CTA's shared memory, or no multiple of its size."""
    low, high = x.launch[Launched.SHARED_BEGIN], x.launch[Launched.SHARED_END]
    bad = 0
    for lane in range(lanes):
        address = x.addresses[0, lane]
        wrong = (address < low) | (address + size > high) | (address & (size - 1) != 0)
        bad |= (1 if wrong else 0) << lane
    if x.code[row, Cell.MATRICES] == 0:
        bad &= mask
    if bad != 0:
        for lane in range(lanes):
            if (bad >> lane) & 1:
                address = x.addresses[0, lane]
                kind = FaultKind.MISALIGNED if address & (size - 1) != 0 else FaultKind.SHARED
                blame(x, st, w, row, kind, lane, address)


@inner
def _conflicts(x, mask, first, count, granule, whole):
    """Wavefronts of `count` lanes: the most different words in one bank. granule: bytes of a lane."""
    addresses, banks = x.addresses, x.launch[Launched.BANKS]
    slots = max(1, 4 * banks // granule)  # granules that the banks hold side by side
    most = 0
    for i in range(first, first + count):
        if whole or (mask >> i) & 1:
            mine = addresses[0, i] // granule
            different = 1
            for j in range(first, i):
                if whole or (mask >> j) & 1:
                    other = addresses[0, j] // granule
                    if other % slots == mine % slots and other != mine:
                        different += 1
            # A granule that was there before is read with it.
            for j in range(first, i):
                if (whole or (mask >> j) & 1) and addresses[0, j] // granule == mine:
                    different = 0
            most = max(most, different)
    return most


# ---- global memory


@inner
def access_global(p, x, st, ms, mem, w, s, sm, t, row, mask):
    """A load, store, atomic or LDGSTS of warp `w`: moves the sectors that its lanes name, releases scoreboards; the
    tick at which that is done."""
    code, sms, warps = x.code, st.sms, st.warps
    unit = code[row, Cell.UNIT]
    start = reserve(x, st, s, t, code[row, Cell.INTERVAL])
    begin = max(start, sms[sm, LoadStore.FREE])
    done = begin
    if mask != 0:
        locate(x, w, row)
        if code[row, Cell.LOCAL] != 0:
            _interleave(x, w, code[row, Cell.BYTES])
        else:
            _judge_global(x, st, w, row, mask)
        if code[row, Cell.KEEPS] != 0 and (_LOADS >> unit) & 1:
            _keep(x, st, w, row, mask)
        count = collect(x, mask, code[row, Cell.BYTES])
        done = _move(p, x, st, ms, mem, sm, t, begin, row, count)
    hold(st, s, begin)
    read = start + code[row, Cell.READ_LATENCY]
    if (_RETURN >> unit) & 1:
        release(x, st, w, row, done, read, Reason.LONG_SCOREBOARD)
    elif unit == Unit.LDGSTS:
        done = max(done, begin) + p[CpAsyncFigure.LATENCY]
        warps[w, CpAsyncGroups.LAST] = max(warps[w, CpAsyncGroups.LAST], done)
        release(x, st, w, row, done, read, Reason.LONG_SCOREBOARD)
    else:
        release(x, st, w, row, read, read, Reason.SHORT_SCOREBOARD)
    if (_LOADS >> unit) & 1 == 0:
        warps[w, Warp.STORES_DONE] = max(warps[w, Warp.STORES_DONE], done)
        st.chip[Stores.LAST] = max(st.chip[Stores.LAST], done)
    st.counters[Counter.INST_GLOBAL] += 1
    return done


@inner
def _interleave(x, w, size):
    """Makes addresses of device memory of those in local memory: what lanes have at one address lies side by side."""
    first = x.launch[Launched.LOCAL_BEGIN] + w * LANES * LOCAL_BYTES
    for lane in range(LANES):
        at = x.addresses[0, lane] & (LOCAL_BYTES - 1)
        x.addresses[0, lane] = first + at * LANES + lane * size


@inner
def _judge_global(x, st, w, row, mask):
    """Stops the run at a lane whose address lies in no array, or is no multiple of its size."""
    size, ranges, addresses = x.code[row, Cell.BYTES], x.ranges, x.addresses
    first = addresses[0, lowest_bit(mask)]
    least, most, bits = first, first, 0
    for lane in range(LANES):
        address = addresses[0, lane] if (mask >> lane) & 1 else first
        least, most, bits = min(least, address), max(most, address), bits | address
    for k in range(ranges.shape[0]):  # mostly all lie in one array
        if bits & (size - 1) == 0 and least >= ranges[k, 0] and most + size <= ranges[k, 1]:
            return
    for lane in range(LANES):
        if (mask >> lane) & 1:
            address = addresses[0, lane]
            if address & (size - 1) != 0:
                blame(x, st, w, row, FaultKind.MISALIGNED, lane, address)
            if address >> 32 == LOCAL_WINDOW:
                addresses[0, lane] = x.launch[Launched.LOCAL_BEGIN] + (w * LANES + lane) * LOCAL_BYTES
                addresses[0, lane] += address & (LOCAL_BYTES - 1)
                continue
            inside = False
            for k in range(ranges.shape[0]):
                inside |= (address >= ranges[k, 0]) & (address + size <= ranges[k, 1])
            if not inside:
                blame(x, st, w, row, FaultKind.OUTSIDE, lane, address)


@inner
def _keep(x, st, w, row, mask):
    """Writes what the lanes of a load read, from arrays whose content is given, to its registers."""
    size, dst = x.code[row, Cell.BYTES], x.code[row, Cell.DST]
    narrow = x.code[row, Cell.MODE] & Mode.SIGNED != 0 and size < 4
    for lane in range(LANES):
        if (mask >> lane) & 1:
            address = x.addresses[0, lane]
            at = content_at(x, address, size)
            if at < 0:
                blame(x, st, w, row, FaultKind.CONTENT, lane, address)
                return
            for word in range(max(1, size // 4)):
                value = 0
                for k in range(min(4, size)):
                    value |= int(x.data[at + 4 * word + k]) << (8 * k)
                if narrow and value >> (8 * size - 1):
                    value |= 0xFFFFFFFF << (8 * size)
                x.registers[w, dst + word, lane] = np.uint32(value & 0xFFFFFFFF)


@inner
def content_at(x, address, size):
    """Place in `x.data` of bytes of an array whose content is given, -1 for others."""
    for k in range(x.ranges.shape[0]):
        if x.ranges[k, 0] <= address and address + size <= x.ranges[k, 1] and x.ranges[k, 2] >= 0:
            return x.ranges[k, 2] + address - x.ranges[k, 0]
    return -1


@inner
def collect(x, mask, size):
    """Writes the lines of an access to `x.lines`, with the sectors that are touched and those covered whole.

    Lanes of one request (128 B at most) share lines. Returns the number of lines.
    """
    addresses, lines, covered = x.addresses, x.lines, x.covered
    group = min(LANES, 128 // max(size, 4))
    count = 0
    first_of_request = 0
    for lane in range(LANES):
        if lane & (group - 1) == 0:
            first_of_request = count
        if (mask >> lane) & 1:
            address = addresses[0, lane]
            line, sector = address >> 7, (address >> 5) & 3
            k = count - 1
            while k >= first_of_request and lines[0, k] != line:
                k -= 1
            if k < first_of_request:
                k = count
                count += 1
                lines[0, k], lines[1, k] = line, 0
                for part in range(4):
                    covered[k, part] = 0
            lines[1, k] |= 1 << sector
            covered[k, sector] += size
    for k in range(count):
        whole = 0
        for part in range(4):
            whole |= (1 if covered[k, part] >= 32 else 0) << part
        lines[2, k] = whole
    return count


@inner
def _move(p, x, st, ms, mem, sm, now, begin, row, count):
    """Moves the lines of an access from tick `begin` on; returns when all of it is done."""
    unit, cached = x.code[row, Cell.UNIT], x.code[row, Cell.CACHED]
    loads = (_LOADS >> unit) & 1 != 0
    in_l1 = (cached != 0 and loads) or unit == Unit.STG or unit == Unit.ST
    done = begin
    lsu = begin
    partition = st.sms[sm, Port.PARTITION]
    first = 0
    while first < count:
        n = min(CHUNK, count - first)
        for k in range(CHUNK):
            mem.ahead[LINE, k] = x.lines[0, first + min(k, n - 1)]
        if loads:
            l2_prefetch(ms, mem, partition, n)
        else:
            l2_prefetch_changes(ms, mem, partition, n)
        if in_l1:
            locate_in_l1(p, st, sm, mem.ahead, n)
        for k in range(n):
            mask = x.lines[1, first + k]
            sectors = count_sectors(mask)
            at = lsu
            lsu += max(TICKS_PER_CYCLE, sectors * p[L1Figure.SECTOR])
            if loads:
                done = max(done, _load(p, x, st, ms, mem, sm, now, begin, row, at, first + k, k, cached))
            else:
                done = max(done, _store(p, x, st, ms, mem, sm, at, first + k, k, unit))
        first += n
    st.sms[sm, LoadStore.FREE] = lsu
    return done


@inner
def _load(p, x, st, ms, mem, sm, now, t, row, at, i, k, cached):
    """Loads sectors of line `i` of instruction `row`, number `k` of those located; returns when they are there."""
    counters, line, mask = st.counters, x.lines[0, i], x.lines[1, i]
    fetches = x.code[row, Cell.FETCHES]
    sectors = count_sectors(mask)
    counters[Counter.GLOBAL_READ_BYTES] += 32 * sectors
    if cached != 0:
        missing, data = load_line(p, st, ms, mem, sm, now, t, Kind.LDG, at, line, mask, fetches, k)
        counters[Counter.L1_READ_SECTORS] += sectors
        if missing == 0:
            counters[Counter.L1_HIT_SECTORS] += sectors
    else:  # of a kind that neither looks in the L1 nor writes shared memory
        missing, data = load_line(p, st, ms, mem, sm, now, t, Kind.NOTE, at, line, mask, fetches, k)
    if missing != 0:
        brought = count_sectors(missing)
        count_reads(counters, 1, brought, brought)
    return data


@inner
def _store(p, x, st, ms, mem, sm, at, i, k, unit):
    """Writes (or reduces) the sectors of line `i` of an access; returns the tick of its acknowledgement."""
    sms, line, mask, whole = st.sms, x.lines[0, i], x.lines[1, i], x.lines[2, i]
    sectors = count_sectors(mask)
    if unit == Unit.STG or unit == Unit.ST:
        cache_set = st.l1_ahead[k]
        way = find_line(st, p[L1Figure.REPLACEMENT], p[L1Figure.WAYS], cache_set, line)
        word = st.l1_lines[cache_set, way]
        written = SECTORS ^ whole_sectors(p[L1Figure.FILLS], SECTORS ^ whole)
        st.l1_lines[cache_set, way] = (max(word >> READY_SHIFT, at) << READY_SHIFT) | (word & SECTORS) | written
    begin = max(at, sms[sm, Port.WRITE_FREE])
    sms[sm, Port.WRITE_FREE] = begin + sectors * p[PortFigure.WRITE_SECTOR]
    st.counters[Counter.PORT_WRITE_BYTES] += 32 * sectors
    st.counters[Counter.GLOBAL_WRITE_BYTES] += 32 * sectors
    st.counters[Counter.LINES] += 1
    reduces = (_ATOMICS >> unit) & 1 != 0
    answer = l2_change_ahead(ms, mem, begin, sms[sm, Port.PARTITION], line, mask, whole, reduces, k)
    take_store(st, sm, answer)
    return answer


@inner
def write_copies(p, x, st, w, sm, t, row, mask):
    """What LDGSTS writes to shared memory: books its wavefronts; zeros are written for lanes that read nothing."""
    code = x.code
    register, uniform = code[row, Cell.SOURCE], code[row, Cell.SOURCE_UNIFORM]
    base = code[row, Cell.SOURCE_OFFSET]
    if uniform >= 0:
        base += x.scalars[w, Scalar.UNIFORM + uniform]
    shift = code[row, Cell.SOURCE_SHIFT]
    if x.trace.shape[0] > 0 and x.launch[Launched.FOLLOWS] != 0:
        access = x.trace[x.scalars[w, Scalar.CURSOR], Traced.ACCESS] + 1
        for lane in range(LANES):
            x.addresses[0, lane] = x.trace_lanes[access, lane]
    elif x.trace.shape[0] > 0:  # which a trace does not tell: side by side
        for lane in range(LANES):
            x.addresses[0, lane] = x.launch[Launched.SHARED_BEGIN] + lane * code[row, Cell.BYTES]
    elif register >= 0:
        for lane in range(LANES):
            x.addresses[0, lane] = base + (int(x.registers[w, register, lane]) << shift)
    else:
        for lane in range(LANES):
            x.addresses[0, lane] = base
    _within_cta(p, x, st, w)
    waves, least = wavefronts(x, st, w, row, mask)
    book_copies(st, sm, t, waves * p[SharedFigure.WAVEFRONT])
    st.counters[Counter.SHARED_CONFLICT_TICKS] += (waves - least) * p[SharedFigure.WAVEFRONT]
