"""The dataflow engine: stages that fire when their tokens are there and their buffers have room.

Everything here is compiled. Times are int64 ticks. Each stage has at most one event in the heap, whose key is (tick,
stage): events at the same tick are in the order of stages. Shared links, address generators and memory channels are
calendars, booked when a stage fires, so that whoever comes first in time is served first.
"""

from sim.engine.jit import inner, kernel
from sim.memory.dram_kernel import dram_read, dram_write
from sim.rdu.events import ID_BITS, ID_MASK, book_links, book_wait, moves, pop, push, takes
from sim.rdu.layout import UNIT_BYTES, Channels, Kind, Log, Reason, Scalars, Segments, Stages
from sim.rdu.vectors import due, hand_over, work

CHUNK = 64  # requests to memory a stage makes in one event

_BUSY = int(Reason.BUSY)
_NO_INPUT = int(Reason.NO_INPUT)
_NO_ROOM = int(Reason.NO_ROOM)
_MEMORY = int(Reason.MEMORY)
_NETWORK = int(Reason.NETWORK)
_COMPUTE = int(Kind.COMPUTE)
_STORE = int(Kind.STORE)
_GATHER = int(Kind.GATHER)
_COLLECTIVE = int(Kind.COLLECTIVE)
_HELD_INPUT = int(Stages.HELD_INPUT)
_HELD_ROOM = int(Stages.HELD_ROOM)


@inner
def _try(state, s, t):
    """Tick from which stage s can fire, or -1 when it was parked; books the wait if that tick is now."""
    stage = state.stage
    from_input, from_room, source, input_net, room_net = 0, 0, -1, 0, 0
    for p in range(stage[s, Stages.INPUTS], stage[s, Stages.INPUTS_END]):
        c = state.ports[p]
        if state.channel[c, Channels.WAITS_TOKEN] and takes(state, s, c):
            if state.channel[c, Channels.COMMITTED] == state.channel[c, Channels.TAKEN]:
                stage[s, Stages.PARKED] = c
                return -1
            slot = (
                state.channel[c, Channels.SLOTS] + state.channel[c, Channels.TAKEN] % state.channel[c, Channels.DEPTH]
            )
            if state.ready[slot] > from_input:
                from_input, source, input_net = state.ready[slot], c, state.ready_net[slot]
    for p in range(stage[s, Stages.OUTPUTS], stage[s, Stages.OUTPUTS_END]):
        c = state.ports[p]
        if (
            state.channel[c, Channels.WAITS_ROOM]
            and state.channel[c, Channels.OPEN] == 0
            and moves(state, s, state.channel[c, Channels.EMIT_LEVEL])
        ):
            acquired = state.channel[c, Channels.ACQUIRED]
            if acquired >= state.channel[c, Channels.RELEASED] + state.channel[c, Channels.DEPTH]:
                stage[s, Stages.PARKED] = c
                return -1
            slot = state.channel[c, Channels.SLOTS] + acquired % state.channel[c, Channels.DEPTH]
            if state.freed[slot] > from_room:
                from_room, room_net = state.freed[slot], state.freed_net[slot]
    earliest = max(from_input, from_room)
    if earliest > t:
        return earliest
    wait = t - stage[s, Stages.FREE]
    if wait > 0:
        reason, late = book_wait(state, s, wait, (from_input, from_room, source, input_net, room_net))
        stage[s, Stages.WAITED] = reason
        stage[s, Stages.LATE] = late
    return t


@inner
def _take_inputs(spec, state, s, t):
    """Takes tokens and streams operands; (tick at which ports, tick at which links have delivered)."""
    ports, links = t, t
    for p in range(state.stage[s, Stages.INPUTS], state.stage[s, Stages.INPUTS_END]):
        c = state.ports[p]
        if state.channel[c, Channels.VECTORS] == 0 and takes(state, s, c):
            state.channel[c, Channels.TAKEN] += 1
        if state.channel[c, Channels.LOOKUPS] >= 0:
            ports = max(ports, t + state.lookups[state.channel[c, Channels.LOOKUPS] + state.stage[s, Stages.FIRED]])
        else:
            ports = max(ports, t + state.channel[c, Channels.READ])
        through, _ = book_links(
            spec, state, t, state.channel[c, Channels.READ_LINKS], state.channel[c, Channels.READ_LINKS_END]
        )
        links = max(links, t + state.channel[c, Channels.READ_PRIVATE], through)
    return ports, links


@inner
def _acquire_outputs(spec, state, s, t):
    """Takes room for what this firing emits and books its way; (ports, links) as above."""
    ports, links = t, t
    for p in range(state.stage[s, Stages.OUTPUTS], state.stage[s, Stages.OUTPUTS_END]):
        c = state.ports[p]
        if moves(state, s, state.channel[c, Channels.EMIT_LEVEL]):
            if state.channel[c, Channels.VECTORS] == 0 and state.channel[c, Channels.OPEN] == 0:
                state.channel[c, Channels.OPEN] = 1
                state.channel[c, Channels.ACQUIRED] += 1
            ports = max(ports, t + state.channel[c, Channels.WRITE])
            first, last = state.channel[c, Channels.WRITE_LINKS], state.channel[c, Channels.WRITE_LINKS_END]
            through, _ = book_links(spec, state, t, first, last)
            links = max(links, t + state.channel[c, Channels.WRITE_PRIVATE], through)
    return ports, links


@inner
def _finish(spec, state, s, start, end, commit, worked, memory):
    """Ends a firing at tick `end`: frees tokens, commits results, wakes neighbours, schedules the next firing.

    worked, memory: see `Log`.
    """
    stage, channel = state.stage, state.channel
    stage[s, Stages.FREE] = end
    for p in range(stage[s, Stages.INPUTS], stage[s, Stages.INPUTS_END]):
        c = state.ports[p]
        if channel[c, Channels.VECTORS] == 0 and moves(state, s, channel[c, Channels.READ_LEVEL]):
            slot = channel[c, Channels.SLOTS] + channel[c, Channels.RELEASED] % channel[c, Channels.DEPTH]
            _, waits = book_links(
                spec, state, end, channel[c, Channels.CREDIT_LINKS], channel[c, Channels.CREDIT_LINKS_END]
            )
            state.freed_net[slot] = channel[c, Channels.CREDIT_LATENCY] + waits
            state.freed[slot] = end + state.freed_net[slot]
            channel[c, Channels.RELEASED] += 1
            producer = channel[c, Channels.PRODUCER]
            if stage[producer, Stages.PARKED] == c and producer != s:
                stage[producer, Stages.PARKED] = -1
                push(state, max(state.freed[slot], stage[producer, Stages.FREE]), producer)
    for p in range(stage[s, Stages.OUTPUTS], stage[s, Stages.OUTPUTS_END]):
        c = state.ports[p]
        if channel[c, Channels.OPEN] == 1 and moves(state, s, channel[c, Channels.TOKEN_LEVEL]):
            channel[c, Channels.OPEN] = 0
            slot = channel[c, Channels.SLOTS] + channel[c, Channels.COMMITTED] % channel[c, Channels.DEPTH]
            _, waits = book_links(
                spec, state, commit, channel[c, Channels.DONE_LINKS], channel[c, Channels.DONE_LINKS_END]
            )
            announced = channel[c, Channels.DONE_LATENCY] + waits
            state.ready[slot] = commit + max(channel[c, Channels.READY_LATENCY], announced)
            state.ready_net[slot] = channel[c, Channels.HOP_LATENCY] + max(
                0, announced - channel[c, Channels.READY_LATENCY]
            )
            channel[c, Channels.COMMITTED] += 1
            consumer = channel[c, Channels.CONSUMER]
            if stage[consumer, Stages.PARKED] == c and consumer != s:
                stage[consumer, Stages.PARKED] = -1
                push(state, max(state.ready[slot], stage[consumer, Stages.FREE]), consumer)
    row = state.x[Scalars.LOGGED]
    if row < len(state.log):
        state.log[row, Log.STAGE] = s
        state.log[row, Log.FIRING] = stage[s, Stages.FIRED]
        state.log[row, Log.START] = start
        state.log[row, Log.END] = end
        state.log[row, Log.COMMIT] = commit
        state.log[row, Log.WAITED] = stage[s, Stages.WAITED]
        state.log[row, Log.LATE] = stage[s, Stages.LATE]
        state.log[row, Log.WORKED] = worked
        state.log[row, Log.MEMORY] = memory
        state.log[row, Log.HELD_INPUT] = stage[s, Stages.HELD_INPUT]
        state.log[row, Log.HELD_ROOM] = stage[s, Stages.HELD_ROOM]
        state.x[Scalars.LOGGED] = row + 1
    state.x[Scalars.END] = max(state.x[Scalars.END], max(end, commit))
    stage[s, Stages.FIRED] += 1
    if stage[s, Stages.FIRED] < stage[s, Stages.FIRINGS]:
        push(state, end, s)
    else:
        state.x[Scalars.DONE] += 1


@inner
def _compute(spec, state, s, t):
    """One firing of a stage whose time is known."""
    ports_in, links_in = _take_inputs(spec, state, s, t)
    ports_out, links_out = _acquire_outputs(spec, state, s, t)
    worked = t + state.stage[s, Stages.INTERVAL]
    ports = max(worked, ports_in, ports_out)
    end = max(ports, links_in, links_out)
    reason = _NETWORK if state.stage[s, Stages.KIND] == _COLLECTIVE else _BUSY
    state.reasons[s, reason] += worked - t
    state.reasons[s, _MEMORY] += ports - worked
    state.reasons[s, _NETWORK] += end - ports
    _finish(spec, state, s, t, end, end + state.stage[s, Stages.LATENCY], worked - t, ports - worked)


@inner
def _begin_vectors(spec, state, s, t):
    """Begins a firing that goes vector by vector: how long all of them take where none has to wait."""
    stage = state.stage
    ports_in, links_in = _take_inputs(spec, state, s, t)
    ports_out, links_out = _acquire_outputs(spec, state, s, t)
    ports = max(t + stage[s, Stages.INTERVAL], ports_in, ports_out)
    stage[s, Stages.BEGUN] = stage[s, Stages.FREE] = t
    stage[s, Stages.STEP] = 0
    stage[s, Stages.PORTS] = ports - t
    stage[s, Stages.PACE] = max(ports, links_in, links_out) - t
    stage[s, Stages.HELD_INPUT] = stage[s, Stages.HELD_ROOM] = stage[s, Stages.HELD_MEMORY] = 0


@inner
def _vectors(spec, state, s):
    """Goes on with a firing vector by vector; at its end, books what it took."""
    stage = state.stage
    if not work(state, s):
        return
    start, end = stage[s, Stages.BEGUN], stage[s, Stages.FREE]
    stage[s, Stages.BEGUN] = -1
    worked, ports = stage[s, Stages.INTERVAL], stage[s, Stages.PORTS]
    state.reasons[s, _BUSY] += worked
    state.reasons[s, _MEMORY] += ports - worked
    state.reasons[s, _NETWORK] += stage[s, Stages.PACE] - ports
    trail = 0
    for p in range(stage[s, Stages.OUTPUTS], stage[s, Stages.OUTPUTS_END]):
        trail = max(trail, state.channel[state.ports[p], Channels.TRAIL])
    memory = ports - worked + stage[s, Stages.HELD_MEMORY]
    _finish(spec, state, s, start, end, end + stage[s, Stages.LATENCY] + trail, worked, memory)


@inner
def _begin_transfer(spec, state, s, t):
    """First event of a firing of a memory stage."""
    stage = state.stage
    ports_in, links_in = _take_inputs(spec, state, s, t)
    ports_out, links_out = _acquire_outputs(spec, state, s, t)
    stage[s, Stages.BEGUN] = t
    stage[s, Stages.SEGMENT] = state.jobs[stage[s, Stages.JOBS] + stage[s, Stages.FIRED]]
    stage[s, Stages.OFFSET] = 0
    stage[s, Stages.READY] = max(ports_in, ports_out, links_in, links_out)
    stage[s, Stages.MOVED] = 0
    if stage[s, Stages.STEPS]:
        size = 0
        job = stage[s, Stages.JOBS] + stage[s, Stages.FIRED]
        for segment in range(state.jobs[job], state.jobs[job + 1]):
            size += state.segments[segment, Segments.BYTES] * state.segments[segment, Segments.ROWS]
        stage[s, Stages.BYTES] = size
        stage[s, Stages.BYTES_DONE] = 0
        stage[s, Stages.HELD_INPUT] = stage[s, Stages.HELD_ROOM] = 0
        stage[s, Stages.HELD_SINCE] = -1


@inner
def _transfer(spec, state, s, t):
    """Goes on with a memory stage's firing: up to CHUNK requests, then it waits for its turn again."""
    stage = state.stage
    writes = stage[s, Stages.KIND] == _STORE
    ddr = stage[s, Stages.PLACE] == 1
    last = state.jobs[stage[s, Stages.JOBS] + stage[s, Stages.FIRED] + 1]
    held = _HELD_INPUT if writes else _HELD_ROOM
    vectors = stage[s, Stages.STEPS] > 0
    if vectors and stage[s, Stages.HELD_SINCE] >= 0:
        stage[s, held] += max(0, t - stage[s, Stages.HELD_SINCE])
        stage[s, Stages.HELD_SINCE] = -1
    issue = t
    for _ in range(CHUNK):
        segment = stage[s, Stages.SEGMENT]
        if segment == last:
            break
        address = (
            state.segments[segment, Segments.ADDRESS] + stage[s, Stages.ROW] * state.segments[segment, Segments.STRIDE]
        )
        address += stage[s, Stages.OFFSET]
        left = state.segments[segment, Segments.BYTES] - stage[s, Stages.OFFSET]
        unit = address // UNIT_BYTES
        size = min(left, (unit + 1) * UNIT_BYTES - address)
        allowed = t
        if vectors:
            sent = stage[s, Stages.BYTES_DONE]
            there, room, _, _, _ = due(state, s, sent, sent + size, stage[s, Stages.BYTES])
            if there < 0:
                stage[s, Stages.HELD_SINCE] = issue
                return
            allowed = max(there, room)
        n = stage[s, Stages.UNITS]
        stage[s, Stages.UNITS] = n + 1
        generator = stage[s, Stages.GENERATOR] + n % stage[s, Stages.GENERATORS]
        ring = stage[s, Stages.RING] + n % stage[s, Stages.WINDOW]
        begin = max(t, state.generator_free[generator], state.ring[ring])
        if allowed > begin:
            stage[s, held] += max(0, allowed - max(issue, begin))
            begin = allowed
        moved = max(1, size * spec.ticks_per_unit // UNIT_BYTES)
        state.generator_free[generator] = begin + moved
        stage[s, Stages.MOVED] += moved
        if ddr:
            done = _access(spec.ddr, state.ddr, state.ddr_counters, begin, unit, address, size, writes)
        else:
            done = _access(spec.hbm, state.hbm, state.hbm_counters, begin, unit, address, size, writes)
        state.ring[ring] = done
        stage[s, Stages.READY] = max(stage[s, Stages.READY], done)
        issue = max(issue, begin)
        if vectors:
            stage[s, Stages.BYTES_DONE] += size
            hand_over(state, s, sent, sent + size, stage[s, Stages.BYTES], begin + moved, stage[s, Stages.READY])
        stage[s, Stages.OFFSET] += size
        if stage[s, Stages.OFFSET] == state.segments[segment, Segments.BYTES]:
            stage[s, Stages.OFFSET] = 0
            stage[s, Stages.ROW] += 1
            if stage[s, Stages.ROW] == state.segments[segment, Segments.ROWS]:
                stage[s, Stages.ROW] = 0
                stage[s, Stages.SEGMENT] = segment + 1
    if stage[s, Stages.SEGMENT] < last:
        # Its generators work in parallel: the next request can go when the earliest of them, or of the answers, is due.
        n = stage[s, Stages.UNITS]
        generator = stage[s, Stages.GENERATOR] + n % stage[s, Stages.GENERATORS]
        after = max(state.generator_free[generator], state.ring[stage[s, Stages.RING] + n % stage[s, Stages.WINDOW]])
        push(state, max(after, t), s)
        return
    _end_transfer(spec, state, s, issue, writes)


@inner
def _end_transfer(spec, state, s, issue, writes):
    """Ends a memory stage's firing: what it waits for, and where its time went."""
    stage = state.stage
    start = stage[s, Stages.BEGUN]
    stage[s, Stages.BEGUN] = -1
    own = stage[s, Stages.MOVED] // stage[s, Stages.GENERATORS]
    if (writes and stage[s, Stages.STEPS] == 0) or stage[s, Stages.KIND] == _GATHER:
        end = max(stage[s, Stages.READY], issue, start + own)
    else:  # the next tile's requests follow at once
        end = max(issue, start + own)
    waited = stage[s, Stages.HELD_INPUT] + stage[s, Stages.HELD_ROOM]
    worked = min(own, end - start - waited)
    memory = end - start - waited - worked
    state.reasons[s, _NO_INPUT] += stage[s, Stages.HELD_INPUT]
    state.reasons[s, _NO_ROOM] += stage[s, Stages.HELD_ROOM]
    state.reasons[s, _BUSY] += worked
    state.reasons[s, _MEMORY] += memory
    _finish(spec, state, s, start, end, max(end, stage[s, Stages.READY]), worked, memory)


@inner
def _access(memory, state, counters, t, unit, address, size, writes):
    """One request; the tick of its answer."""
    row = unit // memory.channels
    # Each round of the channels begins elsewhere, or a pitch of many units would meet few of them.
    channel = (unit + (7 if memory.channels % 7 != 0 else 11) * row) % memory.channels
    atoms = (address % UNIT_BYTES + size - 1) // memory.atom_bytes - (address % UNIT_BYTES) // memory.atom_bytes + 1
    if writes:
        return dram_write(memory, state, counters, t, channel, row, atoms)
    return dram_read(memory, state, counters, t, channel, row, atoms)


@kernel
def advance(spec, state, until):
    """Runs events up to tick `until`; the next event's tick, -1 when all stages are done, -2 when none can go on."""
    while state.x[Scalars.HEAP] > 0:
        key = state.heap[0]
        t = key >> ID_BITS
        if t > until:
            return t
        pop(state)
        s = key & ID_MASK
        state.x[Scalars.EVENTS] += 1
        kind = state.stage[s, Stages.KIND]
        if state.stage[s, Stages.BEGUN] >= 0:
            if kind == _COMPUTE:
                _vectors(spec, state, s)
            else:
                _transfer(spec, state, s, t)
            continue
        at = _try(state, s, t)
        if at < 0:
            continue
        if at > t:
            push(state, at, s)
            continue
        if kind == _COMPUTE and state.stage[s, Stages.STEPS]:
            _begin_vectors(spec, state, s, t)
            _vectors(spec, state, s)
        elif kind in (_COMPUTE, _COLLECTIVE):
            _compute(spec, state, s, t)
        else:
            _begin_transfer(spec, state, s, t)
            _transfer(spec, state, s, t)
    return -1 if state.x[Scalars.DONE] == len(state.stage) else -2
