"""Which line of a cache set makes room for another: replacement policies behind one interface.

A set of n ways (1 to 16) has one int64, its word, of which only the set's policy knows the meaning; products and sums
in it stay below 2**63, so jitted code and plain Python give the same values. A policy has a name (`POLICIES`), by whose
number jitted code knows it, and five functions:

- `first_word`: the word of an empty set;
- `victim`: the way that the next line takes;
- `fill`: the word after a line has been put into the victim;
- `touch`: the word after a hit;
- `drop`: the word after a way has become empty, which is the next victim then.

`victim_of` chooses among some of a full set's ways. A policy of another package is asked for its victim, and where that
is none of them, the first of them goes.

To add a policy: here its name, its functions and a branch in each of the interface's; its name in `arch.gpu`, too.
Other packages register policies with these five functions (`sim.engine.extensions`); their numbers follow.

`lru` replaces the least recently used line. Why it is the GPUs' default: pointer chases beyond the L1 and beyond the L2
of V100, A100 and H100 (gpu-benches), in lines that are visited twice a lap, miss as least-recently-used sets do: 0.24
to 0.26 of the visits at 1.035 times the capacity, 0.65 at 1.14, 0.87 at 1.25.

`srrip` is static re-reference interval prediction with hit priority and 2 bits a line (Jaleel et al., ISCA 2010): a
line comes in as one that is used again late, a hit makes it one that is used again soon, and the first way whose line
is not expected back is replaced; where there is none, all lines age until there is. A scan leaves lines alone that
have been hit.
"""

from arch.extensions import REPLACEMENTS
from sim.engine.extensions import number_of, one_of, policies
from sim.engine.jit import inner
from sim.engine.search import lowest_bit

MAX_WAYS = 16

POLICIES = ("lru", "srrip")
"""As `l1.replacement` and `l2.replacement` name them; a policy's number is its place here."""

_LRU = POLICIES.index("lru")
_SHIPPED = len(POLICIES)
_OTHERS = policies(REPLACEMENTS)
_OTHER_COUNT = len(_OTHERS)
_victim = one_of([other.victim for other in _OTHERS], lambda number, word, ways: 0)
_fill = one_of([other.fill for other in _OTHERS], lambda number, word, ways, way: word)
_touch = one_of([other.touch for other in _OTHERS], lambda number, word, ways, way: word)
_drop = one_of([other.drop for other in _OTHERS], lambda number, word, ways, way: word)


# ---------------------------------------------------------------------------------------------------- the interface


def policy_number(name: str) -> int:
    """The number of a policy. InputError for one of another package that cannot be loaded."""
    return POLICIES.index(name) if name in POLICIES else _SHIPPED + number_of(REPLACEMENTS, name)


def first_word(policy: int, ways: int) -> int:
    """The word of a set without lines."""
    if policy >= _SHIPPED:
        return int(_OTHERS[policy - _SHIPPED].first_word(ways))
    return _first_order(ways) if policy == _LRU else _ALL_EMPTY


@inner(inline=True)
def victim(policy: int, word: int, ways: int) -> int:
    """The way that the next line takes: an empty one where there is any."""
    if _OTHER_COUNT > 0 and policy >= _SHIPPED:
        return min(ways - 1, max(0, _victim(policy - _SHIPPED, word, ways)))
    return _oldest(word, ways) if policy == _LRU else _least_expected(word, ways)


@inner(inline=True)
def victim_of(policy: int, word: int, ways: int, allowed: int) -> int:
    """The way of a full set that the next line takes, one of those whose bits are set in `allowed`."""
    if policy == _LRU:
        return _oldest_of(word, ways, allowed)
    way = victim(policy, word, ways)
    return way if allowed >> way & 1 else lowest_bit(allowed)


@inner(inline=True)
def fill(policy: int, word: int, ways: int, way: int) -> int:
    """The word after a line has been put into `way`, the victim."""
    if _OTHER_COUNT > 0 and policy >= _SHIPPED:
        return _fill(policy - _SHIPPED, word, ways, way)
    return _refilled(word, ways, way) if policy == _LRU else _aged_and_filled(word, way)


@inner(inline=True)
def touch(policy: int, word: int, ways: int, way: int) -> int:
    """The word after a hit in `way`."""
    if _OTHER_COUNT > 0 and policy >= _SHIPPED:
        return _touch(policy - _SHIPPED, word, ways, way)
    return _used(word, ways, way) if policy == _LRU else _expected_soon(word, way)


@inner(inline=True)
def drop(policy: int, word: int, ways: int, way: int) -> int:
    """The word after `way` has become empty."""
    if _OTHER_COUNT > 0 and policy >= _SHIPPED:
        return _drop(policy - _SHIPPED, word, ways, way)
    return _dropped(word, ways, way) if policy == _LRU else word | (1 << (_EMPTY + way))


# ---------------------------------------------------------------------------------------------------- lru
# The word holds the n - 1 most recently used ways as nibbles, the latest lowest. The way that is missing there is the
# least recently used one.

_ONES = 0x111111111111111
_SEVENS = 0x777777777777777
_EIGHTS = 0x888888888888888
_ALL_WAYS = 0xF1C0B18071403100 - (1 << 64)  # 0 ^ 1 ^ ... ^ (ways - 1), as the nibble `ways & 15`


def _first_order(ways: int) -> int:
    """Ways are taken from 0 on."""
    return sum((ways - 1 - place) << (4 * place) for place in range(ways - 1))


@inner(inline=True)
def _place_of(order: int, ways: int, way: int) -> int:
    """Bit 3 of the nibble that holds a way, alone; 0 for the least recently used one."""
    different = order ^ (way * _ONES)
    same = ~(((different & _SEVENS) + _SEVENS) | different) & _EIGHTS & ((1 << (4 * ways - 4)) - 1)
    return same & -same


@inner(inline=True)
def _oldest(order: int, ways: int) -> int:
    """The least recently used way: the exclusive or of all ways that the order does not hold."""
    rest = order ^ (order >> 32)
    rest ^= rest >> 16
    rest ^= rest >> 8
    rest ^= rest >> 4
    return (rest ^ (_ALL_WAYS >> ((ways & 15) << 2))) & 15


@inner
def _oldest_of(order: int, ways: int, allowed: int) -> int:
    """The least recently used of the ways whose bits are set in `allowed`, of which there is at least one."""
    way = _oldest(order, ways)
    place = 4 * ways - 8
    while allowed >> way & 1 == 0 and place >= 0:
        way = (order >> place) & 15
        place -= 4
    return way


@inner(inline=True)
def _refilled(order: int, ways: int, way: int) -> int:
    """The order after a use of the least recently used way: what was second to last is the oldest now."""
    kept = ((1 << (4 * ways - 4)) - 1) >> 4
    return (((order & kept) << 4) | way) if ways > 1 else order


@inner(inline=True)
def _used(order: int, ways: int, way: int) -> int:
    """The order after a use of a way."""
    place = _place_of(order, ways, way)
    if place == 0:
        return _refilled(order, ways, way)
    below = (place >> 3) - 1
    return (order & ~((place << 1) - 1)) | ((order & below) << 4) | way


@inner(inline=True)
def _dropped(order: int, ways: int, way: int) -> int:
    """The order with a way as its least recently used one."""
    place = _place_of(order, ways, way)
    if place == 0:
        return order
    below = (place >> 3) - 1
    return (order & below) | ((order >> 4) & ~below) | (_oldest(order, ways) << (4 * ways - 8))


# ---------------------------------------------------------------------------------------------------- srrip
# The word holds three planes of a bit a way: the low and the high bits of the lines' predicted re-reference intervals
# (0 soon, 2 late, 3 not expected), and which ways are empty.

_HIGH, _EMPTY = MAX_WAYS, 2 * MAX_WAYS
"""Where the second and the third plane begin."""

_PLANE = (1 << MAX_WAYS) - 1
_ALL_EMPTY = _PLANE << _EMPTY


@inner
def _least_expected(word: int, ways: int) -> int:
    """The first empty way or, where there is none, the first of those with the longest interval."""
    there = (1 << ways) - 1
    low, high, found = word & there, (word >> _HIGH) & there, (word >> _EMPTY) & there
    if found == 0:
        found = high & low
    if found == 0:
        found = high
    if found == 0:
        found = low
    if found == 0:
        found = there
    return lowest_bit(found)


@inner
def _aged_and_filled(word: int, way: int) -> int:
    """All lines age until that of the victim is not expected any more; the new one is expected late."""
    bit = 1 << way
    low, high, empty = word & _PLANE, (word >> _HIGH) & _PLANE, word >> _EMPTY
    if empty & bit == 0:  # then the victim's interval is the longest
        if low & bit == 0:  # 0 or 2: one more for all, none of which is 3
            high, low = high | low, low ^ _PLANE
        if high & bit == 0:  # 0, which is 1 by now, or 1: two more
            high = _PLANE
    return ((empty & ~bit) << _EMPTY) | ((high | bit) << _HIGH) | (low & ~bit)


@inner
def _expected_soon(word: int, way: int) -> int:
    """A hit: the line's interval is 0."""
    return word & ~((1 << way) | (1 << (_HIGH + way)))
