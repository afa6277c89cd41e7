"""How time passes in external memory. All ticks are int64; calls book resources and return at once.

A channel's controller holds `queue` reads; one that finds no place waits until the first of them has its data. The
data bus is booked from the tick at which a read has its place: the controller reorders, so a read whose bank is busy
does not hold up the bus for the others that it holds, but it keeps its place. A bank serves batches: requests of one
row that arrive while the row is pending or open join it (first ready, first come), the others queue behind it with
precharge and activate. `page_policy` says for how long a row is open. Writes are posted: a channel collects a batch,
turns its bus round, and writes it.
"""

from sim.engine.jit import inner, kernel
from sim.engine.prefetch import prefetch
from sim.engine.search import TICKS, find_due
from sim.memory.counters import MemoryCounter
from sim.memory.dram import (
    ACTIVATE_FREE,
    BANK_WORDS,
    BATCHES,
    BUS_FREE,
    CHANNEL_WORDS,
    DRAINED_BEFORE,
    GOLDEN,
    LAST_DRAINED,
    ONE,
    PENDING_ATOMS,
    PENDING_WRITES,
    RANK,
    WRITING,
)
from sim.memory.hashing import divide, rotate
from sim.memory.page_policy import kept_until, open_until

_READ_BYTES = int(MemoryCounter.DRAM_READ_BYTES)
_WRITE_BYTES = int(MemoryCounter.DRAM_WRITE_BYTES)
_ROW_HITS = int(MemoryCounter.DRAM_ROW_HITS)
_ROW_MISSES = int(MemoryCounter.DRAM_ROW_MISSES)
_ROW_CONFLICTS = int(MemoryCounter.DRAM_ROW_CONFLICTS)
_TURN_ROUNDS = int(MemoryCounter.DRAM_TURN_ROUNDS)
_REFRESH_WAITS = int(MemoryCounter.DRAM_REFRESH_WAITS)


@inner(inline=True)
def row_of(spec, unit):
    """Row, over all banks of a channel, that holds a unit."""
    return divide(unit, spec.row_multiplier, spec.row_shift)


@kernel(inline=True)
def bank_of(spec, row):
    """Bank of a row: consecutive rows lie in different banks."""
    group = divide(row, spec.bank_multiplier, spec.bank_shift)
    return rotate(row - group * spec.banks, group, spec.banks)


@inner(inline=True)
def ask_bank(spec, state, channel, unit):
    """Asks the host for the words of the bank that holds a unit, which is read soon."""
    base = (channel * spec.banks + bank_of(spec, row_of(spec, unit))) * BANK_WORDS
    prefetch(state.bank, base)
    prefetch(state.bank, base + BANK_WORDS - 1)


@kernel(inline=True)
def refresh_at(spec, channel, bank):
    """Tick of a bank's first refresh.

    The banks of a rank are refreshed one after the other, evenly over the interval, or all at once, and channels of one
    bank number likewise within its turn. Further ranks lie between, so that the first ones keep their times.
    """
    rank = bank // RANK
    between = rank * GOLDEN % ONE * spec.refresh_gap // ONE
    return spec.refresh_first + (bank - rank * RANK) * spec.refresh_gap + between + channel * spec.refresh_step


@inner(inline=True)
def open_row(spec, state, counters, t, channel, bank, row, atoms):
    """Find or make the batch of a row for a request at tick t; returns the index of the batch's words in `state.bank`.

    `state.bank[i + 1]` is then the tick from which columns of the row can be read. atoms: that are asked of it.
    """
    base = (channel * spec.banks + bank) * BANK_WORDS
    for batch in range(BATCHES):
        i = base + 2 + 3 * batch
        if state.bank[i] == row and t <= state.bank[i + 2]:
            counters[_ROW_HITS] += 1
            return i
    activate = max(t, state.channel[channel * CHANNEL_WORDS + ACTIVATE_FREE])
    state.channel[channel * CHANNEL_WORDS + ACTIVATE_FREE] = activate + max(spec.activate_gap, atoms * spec.column_gap)
    if state.bank[base] > activate:
        activate = state.bank[base]
        counters[_ROW_CONFLICTS] += 1
    else:
        counters[_ROW_MISSES] += 1
    if spec.rfc > 0:
        # Whether a kernel runs or not.
        left = spec.rfc - (activate - refresh_at(spec, channel, bank)) % spec.refi
        if left > 0:
            activate += left
            counters[_REFRESH_WAITS] += 1
    batch = state.bank[base + 1] + 1
    if batch == BATCHES:
        batch = 0
    state.bank[base + 1] = batch
    i = base + 2 + 3 * batch
    state.bank[i] = row
    state.bank[i + 1] = activate + spec.rcd
    state.bank[i + 2] = open_until(spec.page_policy, activate, spec.ras)
    state.bank[base] = max(activate + spec.rc, activate + spec.ras + spec.rp)
    return i


@inner(inline=True)
def use_row(spec, state, base, i, end):
    """Keep the bank of batch i until the batch's data end at tick `end`; only the newest moves the next activate."""
    if end > state.bank[i + 2] and i == base + 2 + 3 * state.bank[base + 1]:
        state.bank[i + 2] = kept_until(spec.page_policy, end)
        if end + spec.rp > state.bank[base]:
            state.bank[base] = end + spec.rp


@inner
def place_in_queue(spec, state, t, channel):
    """Index in `state.queue` of a place that is free at tick t, else of the one that is free first."""
    first = channel * spec.places
    for k in range(first, first + spec.places, TICKS):
        place = find_due(state.queue, k, t)
        if place >= 0:
            return k + place
    least = state.queue[first]
    for k in range(first, first + spec.places):
        least = min(least, state.queue[k])
    k = first
    place = find_due(state.queue, k, least)
    while place < 0:
        k += TICKS
        place = find_due(state.queue, k, least)
    return k + place


@kernel(inline=True)
def dram_read(spec, state, counters, t, channel, unit, atoms):
    """Read atoms of one unit (its index within the channel) at tick t; returns the tick at which all are back."""
    row = row_of(spec, unit)
    bank = bank_of(spec, row)
    word = channel * CHANNEL_WORDS
    place = place_in_queue(spec, state, t, channel)
    t = max(t, state.queue[place])
    free = state.channel[word + BUS_FREE]
    if state.channel[word + WRITING] != 0:
        state.channel[word + WRITING] = 0
        free += spec.wtr
        counters[_TURN_ROUNDS] += 1
    busy = atoms * spec.burst
    bus_end = max(free, t) + busy
    state.channel[word + BUS_FREE] = bus_end
    i = open_row(spec, state, counters, t, channel, bank, row, atoms)
    end = max(bus_end, max(t, state.bank[i + 1]) + busy)
    use_row(spec, state, (channel * spec.banks + bank) * BANK_WORDS, i, end)
    state.queue[place] = end
    counters[_READ_BYTES] += atoms * spec.atom_bytes
    return end - spec.burst + spec.latency


@kernel
def dram_write(spec, state, counters, t, channel, unit, atoms):
    """Post atoms of one unit at tick t; returns the tick at which the write buffer takes them.

    The buffer holds two batches: one that fills while the other is written.
    """
    word = channel * CHANNEL_WORDS
    accepted = max(t, state.channel[word + DRAINED_BEFORE])
    row = row_of(spec, unit)
    waiting = state.channel[word + PENDING_WRITES]
    slot = (channel * (spec.write_batch + 1) + waiting) * 2
    state.pending[slot] = bank_of(spec, row)
    state.pending[slot + 1] = row
    state.channel[word + PENDING_WRITES] = waiting + 1
    state.channel[word + PENDING_ATOMS] += atoms
    counters[_WRITE_BYTES] += atoms * spec.atom_bytes
    if state.channel[word + PENDING_ATOMS] >= spec.write_batch:
        drain_writes(spec, state, counters, accepted, channel)
    return accepted


@inner
def drain_writes(spec, state, counters, t, channel):
    """Write a channel's buffered batch: book its bus with the turn-round, and the banks of its rows."""
    word = channel * CHANNEL_WORDS
    free = state.channel[word + BUS_FREE]
    if state.channel[word + WRITING] == 0:
        state.channel[word + WRITING] = 1
        free += spec.rtw
        counters[_TURN_ROUNDS] += 1
    end = max(free, t) + state.channel[word + PENDING_ATOMS] * spec.write_burst
    state.channel[word + BUS_FREE] = end
    for write in range(state.channel[word + PENDING_WRITES]):
        slot = (channel * (spec.write_batch + 1) + write) * 2
        bank = state.pending[slot]
        i = open_row(spec, state, counters, t, channel, bank, state.pending[slot + 1], spec.unit_atoms)
        last = max(end, state.bank[i + 1] + spec.write_burst)
        use_row(spec, state, (channel * spec.banks + bank) * BANK_WORDS, i, last)
    state.channel[word + PENDING_WRITES] = 0
    state.channel[word + PENDING_ATOMS] = 0
    state.channel[word + DRAINED_BEFORE] = state.channel[word + LAST_DRAINED]
    state.channel[word + LAST_DRAINED] = end
