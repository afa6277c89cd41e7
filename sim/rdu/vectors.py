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
def work(state, s):
    """Goes on with a firing of stage s as far as it can; whether that was to its end. `FREE` is its own time."""
    stage = state.stage
    steps, pace, latency = stage[s, Stages.STEPS], stage[s, Stages.PACE], stage[s, Stages.LATENCY]
    at, step = stage[s, Stages.FREE], stage[s, Stages.STEP]
    each, rest = pace // steps, pace % steps
    spare = rest * step % steps
    while step < steps:
        waited = due(state, s, step, step + 1, steps)
        if waited[0] < 0:
            stage[s, Stages.FREE], stage[s, Stages.STEP] = at, step
            return False
        begin = max(at, waited[0], waited[1])
        if begin > at:
            reason, late = book_wait(state, s, begin - at, waited)
            held = begin - at - late
            stage[s, Stages.HELD_INPUT] += held if reason == _NO_INPUT else 0
            stage[s, Stages.HELD_ROOM] += held if reason == _NO_ROOM else 0
            stage[s, Stages.HELD_MEMORY] += held if reason == _MEMORY else 0
        at, spare = begin + each, spare + rest
        if spare >= steps:
            at, spare = at + 1, spare - steps
        hand_over(state, s, step, step + 1, steps, at, at + latency)
        step += 1
    stage[s, Stages.FREE], stage[s, Stages.STEP] = at, step
    return True
