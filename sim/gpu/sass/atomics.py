"""Atomics: RED, ATOMG and ATOM at the L2, ATOMS and ATOM in shared memory, ATOM in that of another CTA.

Arguments as in `memory`. What an atomic finds matters where addresses or branches depend on it, such as the number of
the next tile: then the array's content is given, and changes in the order of time.
"""

import numpy as np

from sim.engine.clock import TICKS_PER_CYCLE
from sim.engine.jit import inner
from sim.engine.search import lowest_bit
from sim.gpu.counters import Counter
from sim.gpu.sass.lanes import fetch
from sim.gpu.sass.memory import access_global, blame, collect, content_at, hold, release, reserve, wavefronts
from sim.gpu.sass.tables import LANES, Atomic, Cell, FaultKind, Launched, Mode
from sim.gpu.units.cta import Cta
from sim.gpu.units.events import Reason
from sim.gpu.units.shared import SharedFigure, book_access, book_background, book_network
from sim.gpu.units.warp import Warp
from sim.memory.sets import count_sectors


@inner
def access_at_l2(p, x, st, ms, mem, w, s, sm, t, row, mask):
    """RED and ATOMG of warp `w`, and lanes of ATOM; the tick at which it is done."""
    done = access_global(p, x, st, ms, mem, w, s, sm, t, row, mask)
    if x.code[row, Cell.KEEPS] != 0 and mask != 0:
        _change_content(x, st, w, row, mask)
    return done


@inner
def _change_content(x, st, w, row, mask):
    """What the lanes of an atomic of 32 bits find in arrays whose content is given goes to its register, and what it
    makes of that to the array, lane by lane."""
    code, operation = x.code, x.code[row, Cell.OPERATION]
    dst = code[row, Cell.DST]
    fetch(x, w, row, Cell.A, 0, LANES)
    fetch(x, w, row, Cell.B, 1, LANES)
    signed = code[row, Cell.MODE] & Mode.SIGNED != 0
    for lane in range(LANES):
        if (mask >> lane) & 1:
            address = x.addresses[0, lane]
            at = content_at(x, address, 4)
            if at < 0 or operation == Atomic.SPIN:
                blame(x, st, w, row, FaultKind.CONTENT, lane, address)
                return
            old = 0
            for k in range(4):
                old |= int(x.data[at + k]) << (8 * k)
            new = _changed(operation, old, x.operands[0, lane], x.operands[1, lane], signed)
            for k in range(4):
                x.data[at + k] = np.uint8(new >> (8 * k) & 0xFF)
            if dst >= 0:
                x.registers[w, dst, lane] = np.uint32(old)


@inner
def _changed(operation, old, given, other, signed):
    """What an atomic of 32 bits makes of a word. other: of CAS, what it writes where it finds `given`."""
    sign = 0x80000000 if signed else 0
    if operation == Atomic.ADD:
        return (old + given) & 0xFFFFFFFF
    if operation == Atomic.MIN:
        return old if old ^ sign <= given ^ sign else given
    if operation == Atomic.MAX:
        return old if old ^ sign >= given ^ sign else given
    if operation == Atomic.AND:
        return old & given
    if operation == Atomic.OR:
        return old | given
    if operation == Atomic.XOR:
        return old ^ given
    if operation == Atomic.CAS:
        return other if old == given else old
    if operation == Atomic.INC:
        return 0 if old >= given else old + 1
    if operation == Atomic.DEC:
        return given if old == 0 or old > given else old - 1
    return given


@inner
def access_in_shared(p, x, st, w, s, sm, t, row, mask):
    """ATOMS of warp `w`, its addresses located: the array is read and written for each lane of a bank, one after the
    other; releases scoreboards. Returns the tick at which it is done."""
    code = x.code
    start = reserve(x, st, s, t, code[row, Cell.INTERVAL])
    size = code[row, Cell.BYTES]
    passes = 1
    if mask != 0:
        wavefronts(x, st, w, row, mask)  # which judges the addresses
        passes = _passes(x, mask, max(size, 4))
    work = 2 * passes * p[SharedFigure.WAVEFRONT]
    begin = book_access(st, sm, start, work)
    hold(st, s, begin)
    st.counters[Counter.SHARED_READ_BYTES] += LANES * size
    st.counters[Counter.SHARED_WRITE_BYTES] += LANES * size
    st.counters[Counter.SHARED_CONFLICT_TICKS] += work - 2 * max(1, size // 4) * p[SharedFigure.WAVEFRONT]
    done = begin + work + code[row, Cell.OWN_LATENCY] - max(1, size // 4) * TICKS_PER_CYCLE
    st.warps[w, Warp.SHARED_WRITTEN] = max(st.warps[w, Warp.SHARED_WRITTEN], done)
    if code[row, Cell.KEEPS] != 0 and code[row, Cell.OPERATION] == Atomic.SPIN:
        _let_first_succeed(x, w, row, mask)
    release(x, st, w, row, done, start + code[row, Cell.READ_LATENCY], Reason.SHORT_SCOREBOARD)
    return done


@inner
def access_in_cluster(p, x, st, w, s, sm, t, row, mask, other):
    """Lanes of ATOM, their addresses located, in the shared memory of CTA slot `other`: their operands cross the
    network, the array there is read and written for each lane of a bank, what was there comes back. Releases
    scoreboards; returns the tick at which it is done."""
    code, size = x.code, x.code[row, Cell.BYTES]
    start = reserve(x, st, s, t, code[row, Cell.INTERVAL])
    waves, _ = wavefronts(x, st, w, row, mask)  # which judges the addresses
    begin = book_access(st, sm, start, waves * p[SharedFigure.WAVEFRONT])
    hold(st, s, begin)
    work = 2 * _passes(x, mask, max(size, 4)) * p[SharedFigure.WAVEFRONT]
    sectors = 0
    for k in range(collect(x, mask, size)):
        sectors += count_sectors(x.lines[1, k])
    there = st.warps[st.ctas[other, Cta.FIRST_WARP], Warp.SM]
    network = sectors * code[row, Cell.NETWORK]
    changed = book_background(st, there, book_network(st, there, begin, network), work)
    done = book_network(st, sm, changed, network) + code[row, Cell.LATENCY]
    st.counters[Counter.SHARED_READ_BYTES] += LANES * size
    st.counters[Counter.SHARED_WRITE_BYTES] += LANES * size
    if code[row, Cell.KEEPS] != 0 and code[row, Cell.OPERATION] == Atomic.SPIN:
        _let_first_succeed(x, w, row, mask)
    release(x, st, w, row, done, begin + code[row, Cell.READ_LATENCY], Reason.SHORT_SCOREBOARD)
    return done


@inner
def cannot_be_told(x, st, w, row, mask):
    """Stops the run where something depends on what lanes find in shared memory."""
    if x.code[row, Cell.KEEPS] != 0 and x.code[row, Cell.OPERATION] != Atomic.SPIN:
        lane = lowest_bit(mask)
        blame(x, st, w, row, FaultKind.CONTENT, lane, x.addresses[0, lane])


@inner
def _passes(x, mask, width):
    """How often the banks are needed by the lanes of an atomic: the most lanes of a bank, of one address or not."""
    slots = max(1, 4 * x.launch[Launched.BANKS] // width)
    most = 1
    for lane in range(LANES):
        if (mask >> lane) & 1:
            bank, lanes = x.addresses[0, lane] // width % slots, 0
            for other in range(LANES):
                if (mask >> other) & 1 and x.addresses[0, other] // width % slots == bank:
                    lanes += 1
            most = max(most, lanes)
    return most


@inner
def _let_first_succeed(x, w, row, mask):
    """Of lanes that compare and swap at one address the first has made it (1), the others find it changed (0)."""
    dst = x.code[row, Cell.DST]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            made = 1
            for other in range(lane):
                if (mask >> other) & 1 and x.addresses[0, other] == x.addresses[0, lane]:
                    made = 0
            x.registers[w, dst, lane] = np.uint32(made)
            if x.code[row, Cell.BYTES] == 8:
                x.registers[w, dst + 1, lane] = np.uint32(0)
