"""How addresses spread: exact division by constants, and permutations that break up any stride.

Factors are below 2**32 and products below 2**63, so jitted code and plain Python give the same values. A permutation
rotates a block of `count` items by a hash of the block's number: every block meets each target exactly once, and items
of different blocks fall as if drawn at random.
"""

from sim.engine.jit import kernel

DIVIDEND_BITS = 31
"""Dividends of `divide` are below 2**31."""

_MASK = 0xFFFFFFFF
_FIRST = 0x5BD1E995
_SECOND = 0x2C1B3C6D


def reciprocal(divisor: int) -> tuple[int, int]:
    """Multiplier and shift with which `divide` divides exactly by `divisor` (1 to 2**31)."""
    shift = DIVIDEND_BITS + (divisor - 1).bit_length()
    return (1 << shift) // divisor + 1, shift


@kernel(inline=True)
def product(x: int, y: int) -> int:
    """Product of two numbers from 0 to 2**32 - 1: one multiplication of a vector, where that of int64 takes three."""
    return (x & _MASK) * (y & _MASK)


@kernel(inline=True)
def divide(x: int, multiplier: int, shift: int) -> int:
    """Quotient of x (0 to 2**31 - 1) by the divisor that `reciprocal` prepared."""
    return product(x, multiplier) >> shift


@kernel(inline=True)
def mix(x: int) -> int:
    """Hash of x (32 bits) to 32 bits."""
    h = product(x, _FIRST) & _MASK
    h ^= h >> 16
    h = product(h, _SECOND) & _MASK
    return h ^ (h >> 15)


@kernel(inline=True)
def rotate(remainder: int, block: int, count: int) -> int:
    """Where item `remainder` of a block of `count` goes (0 to count - 1): rotated by the hash of the block's number."""
    place = remainder + (product(mix(block), count) >> 32)
    return place - count if place >= count else place
