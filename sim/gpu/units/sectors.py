"""Sectors of a line, as masks: those that a range of bytes touches, and those that it covers."""

from sim.engine.jit import inner


@inner(inline=True)
def sector_mask(address, end):
    """Mask of the 32 B sectors of one line that [address, end) touches; the line is that of `address`."""
    first = (address >> 5) & 3
    last = ((end - 1) >> 5) & 3
    return ((1 << (last + 1)) - 1) & ~((1 << first) - 1)


@inner(inline=True)
def full_mask(address, end):
    """Mask of the sectors of one line of which [address, end) covers every byte."""
    first = ((address + 31) >> 5) - ((address >> 7) << 2)
    last = (end >> 5) - ((address >> 7) << 2)
    return ((1 << last) - 1) & ~((1 << first) - 1) if last > first else 0
