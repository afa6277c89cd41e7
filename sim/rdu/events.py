"""What all stages of the dataflow engine need: the heap of events, nests of counters, calendars of shared links."""

from sim.engine.jit import inner
from sim.rdu.layout import Channels, Kind, Links, Reason, Scalars, Stages

ID_BITS = 12
ID_MASK = (1 << ID_BITS) - 1

_WAITS = int(Scalars.LINK_WAIT)
_NO_INPUT = int(Reason.NO_INPUT)
_NO_ROOM = int(Reason.NO_ROOM)
_MEMORY = int(Reason.MEMORY)
_NETWORK = int(Reason.NETWORK)
_LOAD = int(Kind.LOAD)
_GATHER = int(Kind.GATHER)
_COLLECTIVE = int(Kind.COLLECTIVE)


@inner
def push(state, tick, stage):
    """Schedules a stage: a binary heap of packed keys."""
    heap = state.heap
    i = state.x[Scalars.HEAP]
    state.x[Scalars.HEAP] = i + 1
    key = (tick << ID_BITS) | stage
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] <= key:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = key


@inner
def pop(state):
    """Takes the earliest key."""
    heap = state.heap
    top = heap[0]
    n = state.x[Scalars.HEAP] - 1
    state.x[Scalars.HEAP] = n
    key = heap[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = key
    return top


@inner
def takes(state, s, c):
    """Whether the firing that comes next takes a new token of channel c."""
    fired = state.stage[s, Stages.FIRED]
    return state.starts[state.stage[s, Stages.STARTS] + fired] < state.channel[c, Channels.READ_LEVEL]


@inner
def moves(state, s, level):
    """Whether a counter below `level` moves on after the firing that comes next."""
    return state.starts[state.stage[s, Stages.STARTS] + state.stage[s, Stages.FIRED] + 1] < level


@inner
def book_links(spec, state, t, first, last):
    """Books the shared links of a transfer at tick t: (tick at which the last is through, longest wait for one).

    Flits of different flows take turns: a transfer waits for what is booked before it, but for no more than its own
    time for each other flow that uses the link.
    """
    end, longest = t, 0
    for i in range(first, last):
        link = state.links[i, Links.LINK]
        ticks = state.links[i, Links.TICKS]
        waits = min(max(0, state.link_free[link] - t), ticks * state.links[i, Links.OTHERS])
        state.x[_WAITS + state.links[i, Links.NETWORK]] += waits
        state.link_free[link] = max(t, state.link_free[link]) + ticks
        end = max(end, t + waits + ticks)
        longest = max(longest, waits)
    return end, longest


@inner
def book_wait(state, s, wait, waited):
    """Books the ticks that stage s has waited; (reason, how many at their end were the network's).

    waited: tick of the input that came last and of the room that came last, the input's channel or -1, and the ticks of
    both that the networks took.
    """
    from_input, from_room, source, input_net, room_net = waited
    reason, late = _NO_INPUT, 0
    if from_room > from_input:
        reason, late = _NO_ROOM, room_net
    elif source >= 0:
        producer = state.channel[source, Channels.PRODUCER]
        kind = state.stage[producer, Stages.KIND]
        if kind in (_LOAD, _GATHER):
            reason = _MEMORY
        else:
            late = input_net
            if kind == _COLLECTIVE:
                late += state.stage[producer, Stages.INTERVAL] + state.stage[producer, Stages.LATENCY]
    late = min(wait, late)
    state.reasons[s, reason] += wait - late
    state.reasons[s, _NETWORK] += late
    return reason, late
