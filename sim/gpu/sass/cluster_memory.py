"""Generic addresses: LD, ST and ATOM of device memory and of shared memory, also of the other CTAs of a cluster; STAS
and REDAS.

Arguments as in `memory`. Lanes may name several CTAs, which come one after the other. An access takes the address unit
and the array of its own SM, the array of the other one, and the network at the SM that it brings data to, as `dsmem_ld`
and `dsmem_st` of the tile language do.
"""

from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import inner
from sim.engine.search import lowest_bit
from sim.gpu.counters import Counter
from sim.gpu.sass.atomics import access_at_l2, access_in_cluster, access_in_shared, cannot_be_told
from sim.gpu.sass.lanes import write_predicate
from sim.gpu.sass.memory import access_global, blame, collect, hold, locate, release, reserve, wavefronts
from sim.gpu.sass.tables import LANES, RANK_SHIFT, WINDOW, Cell, FaultKind, Unit
from sim.gpu.units.barriers import arrive, peer
from sim.gpu.units.chip import Chip
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.shared import SharedFigure, SharedMemory, book_access, book_crossing
from sim.gpu.units.warp import Warp
from sim.memory.sets import count_sectors

_WORD = 0xFFFFFFFF
_PLACE = (1 << RANK_SHIFT) - 1


@inner
def access_generic(p, x, st, ms, mem, w, s, sm, t, row, mask):
    """LD, ST or ATOM of warp `w`: lanes whose addresses lie in the window of shared memory, and those of device
    memory; the tick at which both are done."""
    unit = x.code[row, Cell.UNIT]
    inside, done = 0, t
    if mask != 0:
        locate(x, w, row)
        for lane in range(LANES):
            if (mask >> lane) & 1 and x.addresses[0, lane] >> 32 == WINDOW:
                inside |= 1 << lane
    if inside != 0:
        cannot_be_told(x, st, w, row, inside)
    if mask == 0 or inside != 0:
        if unit == Unit.ATOM:
            done = _change_cluster(p, x, st, w, s, sm, t, row, inside)
        else:
            done = access_cluster(p, x, st, w, s, sm, t, row, inside)
        st.counters[Counter.INST_SHARED] += 1
    outside = mask & ~inside
    if unit == Unit.ATOM:
        write_predicate(x, w, x.code[row, Cell.PREDICATE0], outside, mask, LANES)
    if outside != 0:
        if unit == Unit.ATOM:
            if inside != 0:
                locate(x, w, row)
            done = max(done, access_at_l2(p, x, st, ms, mem, w, s, sm, t, row, outside))
        else:
            done = max(done, access_global(p, x, st, ms, mem, w, s, sm, t, row, outside))
    return done


@inner
def _change_cluster(p, x, st, w, s, sm, t, row, mask):
    """Lanes of ATOM that name shared memory of the cluster; the tick at which they are done. Where the instruction
    says whether it was done, it is left undone: it has no such operation there."""
    slot = st.warps[w, Warp.CTA]
    if mask == 0 or x.code[row, Cell.PREDICATE0] >= 0:
        start = reserve(x, st, s, t, x.code[row, Cell.INTERVAL])
        release(x, st, w, row, start, start + x.code[row, Cell.READ_LATENCY], Reason.SHORT_SCOREBOARD)
        return start
    done = t
    while mask != 0:
        first = lowest_bit(mask)
        address = x.addresses[0, first]
        lanes = _same_cta(x, mask, address)
        mask ^= lanes
        other = _cta_of(p, x, st, w, row, first, address)
        if other < 0:
            return done
        for lane in range(LANES):
            x.addresses[0, lane] = _place_in(x, lanes, lane, address)
        if other == slot:
            done = max(done, access_in_shared(p, x, st, w, s, sm, t, row, lanes))
        else:
            done = max(done, access_in_cluster(p, x, st, w, s, sm, t, row, lanes, other))
        locate(x, w, row)
    return done


@inner
def access_cluster(p, x, st, w, s, sm, t, row, mask):
    """A load or store of warp `w` in the shared memory of its cluster: books arrays and network, releases scoreboards;
    the tick at which it is done."""
    code, sms = x.code, st.sms
    unit = code[row, Cell.UNIT]
    start = reserve(x, st, s, t, code[row, Cell.INTERVAL])
    begin = max(start, sms[sm, SharedMemory.FREE])
    hold(st, s, begin)
    done = begin
    if mask != 0:
        locate(x, w, row)
    while mask != 0:
        first = lowest_bit(mask)
        address = x.addresses[0, first]
        lanes = _same_cta(x, mask, address)
        mask ^= lanes
        other = _cta_of(p, x, st, w, row, first, address)
        if other < 0:
            return done
        above = address >> 32
        for lane in range(LANES):
            x.addresses[0, lane] = _place_in(x, lanes, lane, address)
        arrived = _cross(p, x, st, w, sm, begin, row, lanes, other)
        done = max(done, arrived)
        if unit == Unit.STAS or unit == Unit.REDAS:
            _complete(p, x, st, w, row, lanes, other, above, arrived, t)
        # The lanes that are left are located again.
        if mask != 0:
            locate(x, w, row)
    read = code[row, Cell.READ_LATENCY]
    if unit == Unit.LD:
        release(x, st, w, row, done, start + read, Reason.SHORT_SCOREBOARD)
    else:
        if unit == Unit.ST:
            st.warps[w, Warp.SHARED_WRITTEN] = max(st.warps[w, Warp.SHARED_WRITTEN], done)
        release(x, st, w, row, done, begin + read, Reason.SHORT_SCOREBOARD)
    return done


@inner(inline=True)
def _same_cta(x, mask, address):
    """Lanes of a mask that name the CTA (and the mbarrier, or the window) that an address names."""
    lanes = 0
    for lane in range(LANES):
        if (mask >> lane) & 1 and x.addresses[0, lane] >> RANK_SHIFT == address >> RANK_SHIFT:
            lanes |= 1 << lane
    return lanes


@inner(inline=True)
def _place_in(x, lanes, lane, address):
    """The place in its CTA's shared memory that a lane names; for others that of `address`, which is one of them."""
    return (x.addresses[0, lane] if (lanes >> lane) & 1 else address) & _PLACE


@inner
def _cta_of(p, x, st, w, row, lane, address):
    """The slot of the CTA that an address names; -1, with blame, where there is none."""
    slot = st.warps[w, Warp.CTA]
    rank = (address & _WORD) >> RANK_SHIFT
    if rank >= p[Chip.CLUSTER_SIZE]:
        blame(x, st, w, row, FaultKind.SHARED, lane, address & _WORD)
        return -1
    if rank == st.ctas[slot, Cta.RANK]:
        return slot
    other = peer(st, slot, rank)
    if other < 0:
        blame(x, st, w, row, FaultKind.ENDED, lane, address & _WORD)
    return other


@inner
def _cross(p, x, st, w, sm, begin, row, lanes, other):
    """Books an access of some lanes to the array of the SM of CTA slot `other`; the tick at which it is done."""
    code, counters = x.code, st.counters
    stores = code[row, Cell.UNIT] != Unit.LD
    size = code[row, Cell.BYTES]
    waves, least = wavefronts(x, st, w, row, lanes)
    work = waves * p[SharedFigure.WAVEFRONT]
    changes = code[row, Cell.UNIT] == Unit.REDAS
    there = st.warps[st.ctas[other, Cta.FIRST_WARP], Warp.SM]
    start = book_access(st, sm, begin, work)
    counters[Counter.SHARED_CONFLICT_TICKS] += (waves - least) * p[SharedFigure.WAVEFRONT]
    counters[Counter.SHARED_WRITE_BYTES if stores else Counter.SHARED_READ_BYTES] += LANES * size
    sectors = 0
    for k in range(collect(x, lanes, size)):
        sectors += count_sectors(x.lines[1, k])
    registers = max(1, size // 4)
    behind = (waves - least - registers) * TICKS_PER_CYCLE
    if there == sm and code[row, Cell.UNIT] != Unit.STAS and not changes:
        return start + work + code[row, Cell.OWN_LATENCY] + behind
    work_there = 2 * work if changes else work
    through = book_crossing(st, sm, there, begin, work_there, sectors * code[row, Cell.NETWORK], stores)
    return max(start + work, through) + code[row, Cell.LATENCY] + behind


@inner
def _complete(p, x, st, w, row, lanes, other, address, done, now):
    """The bytes that lanes have stored are there: an mbarrier of the same CTA, at a shared address, counts them."""
    rank = address >> RANK_SHIFT
    bar = -1
    for k in range(x.mbarriers.shape[0]):
        if x.mbarriers[k] == address & _PLACE:
            bar = k
    if bar < 0 or rank != st.ctas[other, Cta.RANK]:
        blame(x, st, w, row, FaultKind.MBARRIER, lowest_bit(lanes), address)
        return
    count = 0
    while lanes != 0:
        lanes &= lanes - 1
        count += 1
    arrive(p, x, st, other, bar, 0, -count * x.code[row, Cell.BYTES], done, now)
