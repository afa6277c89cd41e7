"""Firings that go vector by vector: a vector is worked on when it is there and its result has room.

A channel of vectors counts them where others count tokens, and keeps a tick for each (`ready`, `freed`). A stage goes
on with its firing, ahead of other stages' time, as far as the vectors that were handed over and the room that was given
back let it: their ticks say when that was. So an event is as many vectors as a buffer holds, not one.
"""

from sim.engine.jit import inner
from sim.rdu.events import book_wait, moves, push
from sim.rdu.layout import Channels, Reason, Stages

_NO_INPUT = int(Reason.NO_INPUT)
_NO_ROOM = int(Reason.NO_ROOM)
_MEMORY = int(Reason.MEMORY)


@inner
def due(state, s, done, then, whole):
    """When the part of a firing from `done` to `then` of `whole` has its vectors and room for its results.

    Tick of the last vector (-1 where stage s was parked), tick of the room, the vector's channel or -1, and the ticks
    of both that the networks took.
    """
    stage, channel = state.stage, state.channel
    from_input, from_room, source, input_net, room_net = 0, 0, -1, 0, 0
    fired = stage[s, Stages.FIRED]
    for p in range(stage[s, Stages.INPUTS], stage[s, Stages.INPUTS_END]):
        c = state.ports[p]
        vectors = channel[c, Channels.VECTORS]
        if vectors == 0:
            continue
        last = fired * vectors + (then if vectors == whole else (then * vectors + whole - 1) // whole) - 1
        if channel[c, Channels.COMMITTED] <= last:
            stage[s, Stages.PARKED] = c
            return -1, 0, -1, 0, 0
        slot = channel[c, Channels.SLOTS] + last % channel[c, Channels.DEPTH]
        if state.ready[slot] > from_input:
            from_input, source, input_net = state.ready[slot], c, channel[c, Channels.HOP_LATENCY]
    for p in range(stage[s, Stages.OUTPUTS], stage[s, Stages.OUTPUTS_END]):
        c = state.ports[p]
        vectors = channel[c, Channels.VECTORS]
        if vectors == 0 or not moves(state, s, channel[c, Channels.EMIT_LEVEL]):
            continue
        new = then - done if vectors == whole else then * vectors // whole - done * vectors // whole
        if new == 0:
            continue
        last = channel[c, Channels.COMMITTED] + new - 1
        if last >= channel[c, Channels.RELEASED] + channel[c, Channels.DEPTH]:
            stage[s, Stages.PARKED] = c
            return -1, 0, -1, 0, 0
        slot = channel[c, Channels.SLOTS] + last % channel[c, Channels.DEPTH]
        if state.freed[slot] > from_room:
            from_room, room_net = state.freed[slot], channel[c, Channels.CREDIT_LATENCY]
    return from_input, from_room, source, input_net, room_net


@inner
def hand_over(state, s, done, then, whole, left, made):
    """Gives back the vectors that this part of a firing took, at tick `left`, and hands over its results, at `made`."""
    stage, channel = state.stage, state.channel
    for p in range(stage[s, Stages.INPUTS], stage[s, Stages.INPUTS_END]):
        c = state.ports[p]
        vectors = channel[c, Channels.VECTORS]
        if vectors == 0:
            continue
        gone = channel[c, Channels.RELEASED]
        old = then - done if vectors == whole else then * vectors // whole - done * vectors // whole
        tick = left + channel[c, Channels.CREDIT_LATENCY]
        for n in range(gone, gone + old):
            state.freed[channel[c, Channels.SLOTS] + n % channel[c, Channels.DEPTH]] = tick
        channel[c, Channels.RELEASED] = channel[c, Channels.TAKEN] = gone + old
        producer = channel[c, Channels.PRODUCER]
        if old and stage[producer, Stages.PARKED] == c:
            stage[producer, Stages.PARKED] = -1
            push(state, max(tick, stage[producer, Stages.FREE]), producer)
    for p in range(stage[s, Stages.OUTPUTS], stage[s, Stages.OUTPUTS_END]):
        c = state.ports[p]
        vectors = channel[c, Channels.VECTORS]
        if vectors == 0 or not moves(state, s, channel[c, Channels.EMIT_LEVEL]):
            continue
        there = channel[c, Channels.COMMITTED]
        new = then - done if vectors == whole else then * vectors // whole - done * vectors // whole
        tick = made + channel[c, Channels.TRAIL] + channel[c, Channels.READY_LATENCY]
        for n in range(there, there + new):
            state.ready[channel[c, Channels.SLOTS] + n % channel[c, Channels.DEPTH]] = tick
        channel[c, Channels.COMMITTED] = channel[c, Channels.ACQUIRED] = there + new
        consumer = channel[c, Channels.CONSUMER]
        if new and stage[consumer, Stages.PARKED] == c:
            stage[consumer, Stages.PARKED] = -1
            push(state, max(tick, stage[consumer, Stages.FREE]), consumer)


@inner
def _pair(state, s, first, last, steps, emits):
    """The channels of vectors among ports `first` to `last` of a stage, at most two, -1 for none; -2 twice where there
    are more, or their vectors are not the stage's own. emits: without those to which this firing does not emit."""
    one, two = -1, -1
    for p in range(first, last):
        c = state.ports[p]
        vectors = state.channel[c, Channels.VECTORS]
        if vectors == 0 or (emits and not moves(state, s, state.channel[c, Channels.EMIT_LEVEL])):
            continue
        if two >= 0 or vectors != steps:
            return -2, -2
        one, two = (c, -1) if one < 0 else (one, c)
    return one, two


@inner
def _held(state, s, waited, wait):
    """Books a wait inside of a firing."""
    reason, late = book_wait(state, s, wait, waited)
    held = wait - late
    state.stage[s, Stages.HELD_INPUT] += held if reason == _NO_INPUT else 0
    state.stage[s, Stages.HELD_ROOM] += held if reason == _NO_ROOM else 0
    state.stage[s, Stages.HELD_MEMORY] += held if reason == _MEMORY else 0


@inner
def _ring(state, c, column):
    """Channel c's ring from the vector that `column` counts: (its slot, the ring's first, the one behind it)."""
    if c < 0:
        return 0, 0, 0
    first, depth = state.channel[c, Channels.SLOTS], state.channel[c, Channels.DEPTH]
    return first + state.channel[c, column] % depth, first, first + depth


@inner
def _held_by(state, c):
    """Vectors in channel c."""
    return state.channel[c, Channels.COMMITTED] - state.channel[c, Channels.RELEASED]


@inner
def _ready_for(state, s, inputs, outputs, left):
    """How many of the `left` vectors of a firing have come and have room; the stage is parked where that is not all."""
    channel, lacks = state.channel, -1
    for c in inputs:
        if c >= 0 and _held_by(state, c) < left:
            left, lacks = _held_by(state, c), c
    for c in outputs:
        if c >= 0 and channel[c, Channels.DEPTH] - _held_by(state, c) < left:
            left, lacks = channel[c, Channels.DEPTH] - _held_by(state, c), c
    state.stage[s, Stages.PARKED] = lacks
    return left


@inner
def _settle(state, inputs, outputs, count, left, made):
    """Counts `count` vectors as taken and handed over, the first at ticks `left` and `made`, and wakes who waits."""
    stage, channel = state.stage, state.channel
    for c in inputs:
        if c >= 0:
            producer = channel[c, Channels.PRODUCER]
            channel[c, Channels.RELEASED] = channel[c, Channels.TAKEN] = channel[c, Channels.RELEASED] + count
            if stage[producer, Stages.PARKED] == c:
                stage[producer, Stages.PARKED] = -1
                push(state, max(left + channel[c, Channels.CREDIT_LATENCY], stage[producer, Stages.FREE]), producer)
    for c in outputs:
        if c >= 0:
            consumer = channel[c, Channels.CONSUMER]
            channel[c, Channels.COMMITTED] = channel[c, Channels.ACQUIRED] = channel[c, Channels.COMMITTED] + count
            if stage[consumer, Stages.PARKED] == c:
                stage[consumer, Stages.PARKED] = -1
                tick = made + channel[c, Channels.TRAIL] + channel[c, Channels.READY_LATENCY]
                push(state, max(tick, stage[consumer, Stages.FREE]), consumer)


@inner
def _through(state, s, inputs, outputs, pace):
    """Works on as many vectors as `due` and `hand_over` would one by one: (tick, vectors done). At most two channels
    come in and two go out; what others see of them is brought up to date once.

    pace: tick, vectors done, of how many, ticks and 1 / steps of ticks a vector takes, and those that are left over.
    """
    channel = state.channel
    at, step, steps, each, rest, spare = pace
    count = _ready_for(state, s, inputs, outputs, steps - step)
    if count == 0:
        return at, step
    (a, c), (b, d) = inputs, outputs
    take, first_take, end_take = _ring(state, a, Channels.RELEASED)
    also, first_also, end_also = _ring(state, c, Channels.RELEASED)
    give, first_give, end_give = _ring(state, b, Channels.COMMITTED)
    more, first_more, end_more = _ring(state, d, Channels.COMMITTED)
    latency, first = state.stage[s, Stages.LATENCY], -1
    credit, and_credit = channel[max(a, 0), Channels.CREDIT_LATENCY], channel[max(c, 0), Channels.CREDIT_LATENCY]
    after = latency + channel[max(b, 0), Channels.TRAIL] + channel[max(b, 0), Channels.READY_LATENCY]
    and_after = latency + channel[max(d, 0), Channels.TRAIL] + channel[max(d, 0), Channels.READY_LATENCY]
    for _ in range(count):
        there = state.ready[take] if a >= 0 else 0
        other = state.ready[also] if c >= 0 else 0
        room = state.freed[give] if b >= 0 else 0
        space = state.freed[more] if d >= 0 else 0
        begin = max(max(at, max(there, other)), max(room, space))
        if begin > at:
            source = -1 if max(there, other) <= 0 else c if other > there else a
            net = channel[max(source, 0), Channels.HOP_LATENCY]
            back = channel[max(d if space > room else b, 0), Channels.CREDIT_LATENCY]
            _held(state, s, (max(there, other), max(room, space), source, net, back), begin - at)
        at, spare = begin + each, spare + rest
        if spare >= steps:
            at, spare = at + 1, spare - steps
        first = at if first < 0 else first
        if a >= 0:
            state.freed[take] = at + credit
            take = take + 1 if take + 1 < end_take else first_take
        if c >= 0:
            state.freed[also] = at + and_credit
            also = also + 1 if also + 1 < end_also else first_also
        if b >= 0:
            state.ready[give] = at + after
            give = give + 1 if give + 1 < end_give else first_give
        if d >= 0:
            state.ready[more] = at + and_after
            more = more + 1 if more + 1 < end_more else first_more
    _settle(state, inputs, outputs, count, first, first + latency)
    return at, step + count


@inner
def work(state, s):
    """Goes on with a firing of stage s as far as it can; whether that was to its end. `FREE` is its own time."""
    stage = state.stage
    steps, pace, latency = stage[s, Stages.STEPS], stage[s, Stages.PACE], stage[s, Stages.LATENCY]
    at, step = stage[s, Stages.FREE], stage[s, Stages.STEP]
    each, rest = pace // steps, pace % steps
    spare = rest * step % steps
    inputs = _pair(state, s, stage[s, Stages.INPUTS], stage[s, Stages.INPUTS_END], steps, False)
    outputs = _pair(state, s, stage[s, Stages.OUTPUTS], stage[s, Stages.OUTPUTS_END], steps, True)
    if inputs[0] > -2 and outputs[0] > -2:
        at, step = _through(state, s, inputs, outputs, (at, step, steps, each, rest, spare))
        stage[s, Stages.FREE], stage[s, Stages.STEP] = at, step
        return step == steps
    while step < steps:
        waited = due(state, s, step, step + 1, steps)
        if waited[0] < 0:
            stage[s, Stages.FREE], stage[s, Stages.STEP] = at, step
            return False
        begin = max(at, waited[0], waited[1])
        if begin > at:
            _held(state, s, waited, begin - at)
        at, spare = begin + each, spare + rest
        if spare >= steps:
            at, spare = at + 1, spare - steps
        hand_over(state, s, step, step + 1, steps, at, at + latency)
        step += 1
    stage[s, Stages.FREE], stage[s, Stages.STEP] = at, step
    return True
