"""Where the tensors of a graph lie in device memory: a caching allocator's best fit, by the life of each tensor."""

from __future__ import annotations

from collections.abc import Iterable

GRANULE_BYTES = 512
"""Blocks are multiples of this, as in PyTorch's caching allocator."""


class Arena:
    """Blocks from a growing range of addresses; a freed block is given out again, the smallest that fits first."""

    def __init__(self, first_address: int) -> None:
        self._top = first_address
        self._free: list[tuple[int, int]] = []  # (address, size), by address, never adjacent
        self._sizes: dict[int, int] = {}

    @property
    def end(self) -> int:
        """The highest address that was ever given out, plus one."""
        return self._top

    def allocate(self, size_bytes: int) -> int:
        """Address of a new block."""
        size = -(-max(size_bytes, 1) // GRANULE_BYTES) * GRANULE_BYTES
        fitting = [(block, i) for i, block in enumerate(self._free) if block[1] >= size]
        if fitting:
            (address, found), i = min(fitting, key=lambda item: (item[0][1], item[0][0]))
            self._free[i : i + 1] = [(address + size, found - size)] if found > size else []
        else:
            address = self._top
            self._top += size
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Gives a block back; neighbours that are free too become one."""
        blocks = sorted([*self._free, (address, self._sizes.pop(address))])
        merged: list[tuple[int, int]] = []
        for start, size in blocks:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged


def plan(
    first_address: int, sizes: dict[str, int], lasting: Iterable[str], lives: dict[str, tuple[int, int]]
) -> tuple[dict[str, int], int]:
    """Addresses of the buffers `sizes` (bytes), and the end of all.

    lasting: buffers that exist before and after. lives: steps at which each other buffer is made and used last.
    """
    arena = Arena(first_address)
    addresses = {name: arena.allocate(sizes[name]) for name in lasting}
    steps = 1 + max((last for _, last in lives.values()), default=-1)
    for step in range(steps):
        for name, (first, _) in lives.items():
            if first == step:
                addresses[name] = arena.allocate(sizes[name])
        for name, (_, last) in lives.items():
            if last == step:
                arena.free(addresses[name])
    return addresses, arena.end
