"""How time passes on a Gemmini: loads, products and stores are three queues, each in order, that wait for each other.

Each queue has a clock of its own; the one that is behind goes on. A command waits for a place in the reservation
station, for the commands on whose results it depends, and for what carries it out. Tiles follow each other in two
halves of the scratchpad: one begins when the one before the last has sent all that it has.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from sim.engine.jit import inner, kernel
from sim.gemmini.memory import request, warm
from sim.gemmini.unroll import (
    ADDRESS,
    AFTER,
    BYTES,
    COUNT,
    FRESH,
    LOAD_DONE,
    LOAD_SENT,
    PITCH,
    PRODUCT_ROWS,
    SENT,
    convolution_loads,
    convolution_products,
    convolution_stores,
    product_loads,
    product_products,
    product_stores,
)

TILE, NEXT, COMMANDS, FREE, ISSUED, DONE, ROW, BEGUN, ANSWERED = range(9)
"""Words of a queue: tile, next command of it and how many it has (-1: not begun), cycle from which it can go on, and
how many commands of it have been begun in all; cycle at which the last of them was complete. Of the command in
progress, where it moves rows: rows that have been asked for, when the first was, and when the last answer comes."""

LOAD, EXECUTE, STORE = range(3)

RING = 64
"""Completions that are remembered of each queue, and of requests; no station has more entries."""

NEVER = 1 << 62

ACTIVE, WAITS_LOAD, WAITS_ENTRY, WAITS_TILE = range(4)
"""Words of `State.spent`: cycles of the array by what it did or waited for."""


SPAN_UNIT, SPAN_CAUSE, SPAN_TILE, SPAN_BEGIN, SPAN_END = range(5)
"""Words of a span of `State.spans`."""

BUSY = 4
"""What a span of loads or stores spends its time on; those of the array have words of `State.spent`."""


class Rules(NamedTuple):
    """Figures of the queues; times in cycles."""

    loads: int
    pairs: int
    stores: int
    requests: int
    commands: int
    request_bytes: int
    beat: int
    latency: int
    least_rows: int
    tile: int
    command: int
    """Between commands that the core sends itself; 0: the unroller sends one a cycle."""
    begins: int
    """When the core starts the first tile."""
    convolution: int
    serial: int


class State(NamedTuple):
    """What the queues know. begun, sent: by tile, when it was started and when its last command was sent; load_sent,
    load_done, pair_sent, pair_done: by tile modulo 4 and command; ring: completions of each queue's last commands;
    way: of the last requests, reads and writes; asked: how many there were. counted: loads and products of a tile, by
    tile modulo 4. left_at, right_at: as `product_loads` has them. spent: cycles of the array; busy: of each queue.
    spans: what queues did when, where there is room for it; noted: how many spans, and by queue the last one's number.
    """

    queue: NDArray
    begun: NDArray
    sent: NDArray
    load_sent: NDArray
    load_done: NDArray
    pair_sent: NDArray
    pair_done: NDArray
    ring: NDArray
    way: NDArray
    asked: NDArray
    counted: NDArray
    left_at: NDArray
    right_at: NDArray
    spent: NDArray
    busy: NDArray
    spans: NDArray
    noted: NDArray


@inner
def _complete(s, which, count, at):
    """Notes that a queue's command number `count` is complete at a cycle; completions are in order."""
    s.queue[which, DONE] = max(s.queue[which, DONE], at)
    s.ring[which, count % RING] = at


@inner
def _note(s, which, cause, tile, begin, end):
    """Notes what a queue did from one cycle to another; what follows without a gap and is alike is one span."""
    if s.spans.shape[0] == 0 or end <= begin:
        return
    last = s.noted[1 + which]
    span = s.spans[last]
    if (
        span[SPAN_END] >= begin - 1
        and span[SPAN_CAUSE] == cause
        and span[SPAN_TILE] == tile
        and span[SPAN_UNIT] == which
    ):
        span[SPAN_END] = end
        return
    number = s.noted[0]
    s.noted[0] = number + 1
    s.noted[1 + which] = number
    s.spans[number, SPAN_UNIT] = which
    s.spans[number, SPAN_CAUSE] = cause
    s.spans[number, SPAN_TILE] = tile
    s.spans[number, SPAN_BEGIN] = begin
    s.spans[number, SPAN_END] = end


@inner
def _entry(s, which, count, entries):
    """Cycle from which the station has a place for a queue's command number `count`."""
    return s.ring[which, (count - entries) % RING] if count >= entries else 0


@inner
def _row(r, f, m, dram, s, t, address, size, write):
    """One row of a load or store as requests, each within as many aligned bytes, the fullest first. Returns the cycle
    after the last one left, and that of the last answer."""
    answered = t
    while size > 0:
        best, taken = r.beat, 0
        reach = r.beat
        while reach <= r.request_bytes:
            inside = min(reach - address % reach, size)
            if inside > taken:
                best, taken = reach, inside
            reach *= 2
        number = s.asked[write]
        if number >= r.requests:
            t = max(t, s.way[write, (number - r.requests) % RING])
        taken_at, back = request(f, m, dram, t, address - address % best, best, write)
        s.way[write, number % RING] = back
        s.asked[write] += 1
        answered = max(answered, back)
        t = max(t + (max(1, best // r.beat) if write else 1), taken_at)
        address += taken
        size -= taken
    return t, answered


@inner
def _load_sent(r, s):
    """Cycle at which the next load is in the station."""
    q = s.queue[LOAD]
    return max(s.begun[q[TILE]] + q[NEXT] * r.command, _entry(s, LOAD, q[ISSUED], r.loads))


@inner
def _load_starts(r, s):
    """Cycle from which the load queue can ask for its next row."""
    q = s.queue[LOAD]
    if q[ROW] > 0:
        return q[FREE]
    return max(q[FREE] + 1, _load_sent(r, s), _entry(s, LOAD, q[ISSUED], r.commands))


@inner
def _load(r, g, f, m, dram, s, tiles, c):
    """The next row of a load, or the start of the next tile."""
    q = s.queue[LOAD]
    n = q[TILE]
    if q[COMMANDS] < 0:
        q[FREE] = max(q[FREE], _begins(r, s, n))
        s.begun[n] = q[FREE]
        if r.convolution:
            q[COMMANDS] = convolution_loads(g, tiles[n], c.loads)
        else:
            q[COMMANDS] = product_loads(g, tiles[n], c.loads, s.left_at[n % 4], s.right_at[n % 4])
        s.counted[0, n % 4] = q[COMMANDS]
        q[NEXT] = 0
        return
    i = q[NEXT]
    command = c.loads[i]
    if q[ROW] == 0:
        s.load_sent[n % 4, i] = _load_sent(r, s)
    t = _load_starts(r, s)
    if command[BYTES] == 0:
        q[BEGUN] = t
        q[FREE] = q[ANSWERED] = t + command[COUNT]
        q[ROW] = command[COUNT]
    else:
        _next_row(r, f, m, dram, s, q, command, t, 0)
    if q[ROW] < command[COUNT]:
        return
    s.load_done[n % 4, i] = q[ANSWERED]
    _end_moves(s, LOAD, n)
    if q[NEXT] == q[COMMANDS]:
        q[TILE] += 1
        q[COMMANDS] = -1


@inner
def _next_row(r, f, m, dram, s, q, command, t, write):
    """The next row of a load or store, which leaves from cycle t on."""
    if q[ROW] == 0:
        q[BEGUN] = q[ANSWERED] = t
    address = command[ADDRESS] + q[ROW] * command[PITCH]
    q[FREE], back = _row(r, f, m, dram, s, t, address, command[BYTES], write)
    q[ANSWERED] = max(q[ANSWERED], back)
    q[ROW] += 1


@inner
def _end_moves(s, which, n):
    """A load or store of tile n has asked for all of its rows."""
    q = s.queue[which]
    s.busy[which] += q[FREE] - q[BEGUN]
    _note(s, which, BUSY, n, q[BEGUN], q[FREE])
    _complete(s, which, q[ISSUED], q[ANSWERED])
    q[ISSUED] += 1
    q[NEXT] += 1
    q[ROW] = 0


@inner
def _begins(r, s, n):
    """Cycle at which the core has started a tile: one that the hardware has room for, after the one before."""
    begins = s.begun[n - 1] + r.tile if n > 0 else r.begins
    waits_for = n - 1 if r.serial else n - 2
    return max(begins, s.sent[waits_for]) if waits_for >= 0 else begins


@inner
def _execute(r, g, s, tiles, c):
    """The next product of blocks, or the start of the next tile."""
    q = s.queue[EXECUTE]
    n = q[TILE]
    if q[COMMANDS] < 0:
        if r.convolution:
            q[COMMANDS] = convolution_products(g, tiles[n], c.products, _loads_of(s, n))
        else:
            q[COMMANDS] = product_products(g, tiles[n], c.products, s.left_at[n % 4], s.right_at[n % 4])
        q[NEXT] = 0
        return
    i = q[NEXT]
    command = c.products[i]
    count = q[ISSUED]
    entry = _entry(s, EXECUTE, count, r.pairs)
    loaded = s.load_sent[n % 4, command[LOAD_SENT]]
    sent = max(loaded, entry)
    if r.serial:
        sent = max(sent, s.load_sent[n % 4, _loads_of(s, n) - 1] + 2 * (i + 1) * r.command)
    ready = s.load_done[n % 4, command[LOAD_DONE]] if command[LOAD_DONE] >= 0 else 0
    start = max(q[FREE], sent, ready)
    gap = start - q[FREE]
    cause = WAITS_LOAD if max(ready, loaded) >= entry else WAITS_ENTRY
    s.spent[cause] += gap
    _note(s, EXECUTE, cause, n, start - gap, start)
    takes = g.block if command[FRESH] else max(command[PRODUCT_ROWS], r.least_rows)
    s.spent[ACTIVE] += takes
    _note(s, EXECUTE, ACTIVE, n, start, start + takes)
    q[FREE] = start + takes
    s.pair_sent[n % 4, i] = sent
    s.pair_done[n % 4, i] = start + takes + r.latency
    _complete(s, EXECUTE, count, start + takes + r.latency)
    q[ISSUED] += 1
    q[NEXT] += 1
    if q[NEXT] == q[COMMANDS]:
        s.counted[1, n % 4] = q[COMMANDS]
        q[TILE] += 1
        q[COMMANDS] = -1


@inner
def _loads_of(s, n):
    """How many loads a tile has, where they are all known."""
    return s.counted[0, n % 4]


@inner
def _store_sent(r, s, c):
    """Cycle at which the next store is in the station."""
    q = s.queue[STORE]
    n = q[TILE]
    sent = max(s.pair_sent[n % 4, c.stores[q[NEXT], SENT]], _entry(s, STORE, q[ISSUED], r.stores))
    return max(sent, s.sent[n] + r.command) if r.serial else sent


@inner
def _store_starts(r, s, c):
    """Cycle from which the store queue can write its next row."""
    q = s.queue[STORE]
    if q[ROW] > 0:
        return q[FREE]
    ready = s.pair_done[q[TILE] % 4, c.stores[q[NEXT], AFTER]]
    return max(q[FREE] + 1, _store_sent(r, s, c), ready, _entry(s, STORE, q[ISSUED], r.commands))


@inner
def _store(r, g, f, m, dram, s, tiles, c):
    """The next row of a store, the first look at a tile's stores, or the end of a tile that has none."""
    q = s.queue[STORE]
    n = q[TILE]
    if q[COMMANDS] < 0:
        pairs = s.counted[1, n % 4]
        if r.convolution:
            q[COMMANDS] = convolution_stores(g, tiles[n], c.stores, pairs)
        else:
            q[COMMANDS] = product_stores(g, tiles[n], c.stores)
        q[NEXT] = 0
        s.sent[n] = s.pair_sent[n % 4, pairs - 1]
    elif q[COMMANDS] > 0:
        command = c.stores[q[NEXT]]
        t = _store_starts(r, s, c)
        if q[ROW] == 0:
            s.sent[n] = max(s.sent[n], _store_sent(r, s, c))
        _next_row(r, f, m, dram, s, q, command, t, 1)
        if q[ROW] == command[COUNT]:
            _end_moves(s, STORE, n)
    if q[NEXT] == q[COMMANDS]:
        q[TILE] += 1
        q[COMMANDS] = -1


@inner
def _due(r, s, tiles, c, which):
    """Cycle from which a queue can go on; NEVER where it waits for another one to get further."""
    n = s.queue[which, TILE]
    if n == tiles.shape[0]:
        return NEVER
    free = s.queue[which, FREE]
    if which == LOAD:
        if s.queue[LOAD, COMMANDS] >= 0:
            return _load_starts(r, s)
        waits_for = n - 1 if r.serial else n - 2
        return NEVER if s.queue[STORE, TILE] <= waits_for else max(free, _begins(r, s, n))
    if which == STORE:
        if s.queue[EXECUTE, TILE] <= n:
            return NEVER
        return _store_starts(r, s, c) if s.queue[STORE, COMMANDS] > 0 else free
    if s.queue[LOAD, TILE] > n:
        return free
    if r.convolution or r.serial or s.queue[LOAD, TILE] < n or s.queue[LOAD, COMMANDS] < 0:
        return NEVER
    if s.queue[EXECUTE, COMMANDS] < 0:
        return free
    return free if s.queue[LOAD, NEXT] > c.products[s.queue[EXECUTE, NEXT], LOAD_SENT] else NEVER


@kernel
def run(r, g, f, m, dram, s, tiles, c, warm_bytes):
    """Runs all tiles; returns the cycle at which the last store is in memory. Room of the caches is warm if asked."""
    warm(f, m, warm_bytes)
    s.queue[EXECUTE, FREE] = r.begins
    while s.queue[STORE, TILE] < tiles.shape[0]:
        which, first = STORE, NEVER
        for candidate in range(STORE, -1, -1):
            due = _due(r, s, tiles, c, candidate)
            if due < first:
                which, first = candidate, due
        if which == LOAD:
            _load(r, g, f, m, dram, s, tiles, c)
        elif which == EXECUTE:
            _execute(r, g, s, tiles, c)
        else:
            _store(r, g, f, m, dram, s, tiles, c)
    end = 0
    for which in range(3):
        end = max(end, s.queue[which, DONE])
    s.spent[WAITS_TILE] = end - s.queue[EXECUTE, FREE]
    return end
