"""Order of use of a cache set's ways, least recently used replaced first.

The order of a set of n ways (1 to 16) is one int64: its n - 1 most recently used ways as nibbles, the latest lowest.
The way that is missing there is the least recently used one. Products and sums stay below 2**63, so jitted code and
plain Python give the same values.

Why this policy: pointer chases beyond the L1 and beyond the L2 of V100, A100 and H100 (gpu-benches), in lines that are
visited twice a lap, miss as least-recently-used sets do: 0.24 to 0.26 of the visits at 1.035 times the capacity, 0.65
at 1.14, 0.87 at 1.25.
"""

from sim.engine.jit import inner

MAX_WAYS = 16

_ONES = 0x111111111111111
_SEVENS = 0x777777777777777
_EIGHTS = 0x888888888888888


def first_order(ways: int) -> int:
    """Order of a set that nothing has used: ways are taken from 0 on."""
    return sum((ways - 1 - place) << (4 * place) for place in range(ways - 1))


@inner(inline=True)
def place_of(order: int, ways: int, way: int) -> int:
    """Bit 3 of the nibble that holds a way, alone; 0 for the least recently used one."""
    different = order ^ (way * _ONES)
    same = ~(((different & _SEVENS) + _SEVENS) | different) & _EIGHTS & ((1 << (4 * ways - 4)) - 1)
    return same & -same


@inner(inline=True)
def oldest_way(order: int, ways: int) -> int:
    """The least recently used way: the exclusive or of all ways that the order does not hold."""
    rest = order ^ (order >> 32)
    rest ^= rest >> 16
    rest ^= rest >> 8
    rest ^= rest >> 4
    # 0 ^ 1 ^ ... ^ (ways - 1) repeats every four.
    every = ways - 1
    if ways & 3 == 2:
        every = 1
    elif ways & 3 == 3:
        every = ways
    elif ways & 3 == 0:
        every = 0
    return (rest ^ every) & 15


@inner(inline=True)
def refilled(order: int, ways: int, way: int) -> int:
    """The order after a use of the least recently used way: what was second to last is the oldest now."""
    kept = ((1 << (4 * ways - 4)) - 1) >> 4
    return (((order & kept) << 4) | way) if ways > 1 else order


@inner(inline=True)
def used(order: int, ways: int, way: int) -> int:
    """The order after a use of a way."""
    place = place_of(order, ways, way)
    if place == 0:
        return refilled(order, ways, way)
    below = (place >> 3) - 1
    return (order & ~((place << 1) - 1)) | ((order & below) << 4) | way


@inner(inline=True)
def dropped(order: int, ways: int, way: int) -> int:
    """The order after a way has become empty: it is replaced next."""
    place = place_of(order, ways, way)
    if place == 0:
        return order
    below = (place >> 3) - 1
    return (order & below) | ((order >> 4) & ~below) | (oldest_way(order, ways) << (4 * ways - 8))
