"""Lines of one request located together, ahead of their look-ups: many at once make vectors, and their sets, which the
host is asked for, come from its memory side by side."""

from sim.engine.jit import inner
from sim.memory.addresses import locate, locate_change
from sim.memory.sets import ask_rest, ask_set, ask_tags, find

AHEAD = 16
"""Lines that a request locates ahead of their look-ups."""

LINE, HOME, ASKED, SET, OTHER_SET = range(5)
"""Rows of `MemoryState.ahead`: numbers of lines, and what `locate` or `locate_change` gave for them."""

_FEW = 1
"""Lines up to which they are located one by one, beyond which in vectors."""

_VECTOR = 8
"""Lines of the widest vectors of hosts: loops over whole ones leave no rest that the compiler would do one by one."""


@inner(inline=True)
def whole_vectors(count):
    """The next number of lines that fills vectors, AHEAD at most."""
    return (count + _VECTOR - 1) & -_VECTOR


@inner(inline=True)
def l2_prefetch(spec, state, partition, count):
    """Locates the first `count` lines of `state.ahead[LINE]` for reads and asks the host for what these will touch."""
    ahead = state.ahead
    if count <= _FEW:
        for k in range(count):
            _locate_number(spec, ahead, partition, k)
    else:
        for k in range(whole_vectors(count)):
            _locate_number(spec, ahead, partition, k)
    _ask_sets(spec, state, count)
    if spec.local_copies != 0:
        _ask_homes(spec, state, count)


@inner(inline=True)
def _locate_number(spec, ahead, partition, k):
    """`locate` for number `k` of those ahead."""
    home, asked, cache_set, home_set = locate(spec, partition, ahead[LINE, k])
    ahead[HOME, k] = home
    ahead[ASKED, k] = asked
    ahead[SET, k] = cache_set
    ahead[OTHER_SET, k] = home_set


@inner(inline=True)
def _ask_homes(spec, state, count):
    """Asks the host for all of the home sets of the lines ahead of which the slice that is asked holds no copy."""
    ahead = state.ahead
    for k in range(count):
        if ahead[ASKED, k] != ahead[HOME, k] and find(state, ahead[LINE, k], ahead[SET, k]) < 0:
            ask_rest(state, ahead[OTHER_SET, k])


@inner(inline=True)
def l2_prefetch_changes(spec, state, partition, count):
    """As `l2_prefetch`, for writes and reductions."""
    ahead = state.ahead
    if count <= _FEW:
        for k in range(count):
            _locate_number_changed(spec, ahead, k)
    else:
        for k in range(whole_vectors(count)):
            _locate_number_changed(spec, ahead, k)
    _ask_sets(spec, state, count)
    if spec.local_copies != 0:
        for k in range(count):  # where the writer's partition gets a copy
            if (ahead[HOME, k] >= spec.slices_per_partition) != (partition == 1):
                ask_rest(state, ahead[OTHER_SET, k])


@inner(inline=True)
def _locate_number_changed(spec, ahead, k):
    """`locate_change` for number `k` of those ahead."""
    home, cache_set, copy_set = locate_change(spec, ahead[LINE, k])
    ahead[HOME, k] = home
    ahead[SET, k] = cache_set
    ahead[OTHER_SET, k] = copy_set


@inner(inline=True)
def _ask_sets(spec, state, count):
    """Asks the host for the sets of the first `count` lines ahead, and for the tags of their other sets."""
    for k in range(count):
        ask_set(state, state.ahead[SET, k])
        if spec.local_copies != 0:
            ask_tags(state, state.ahead[OTHER_SET, k])
