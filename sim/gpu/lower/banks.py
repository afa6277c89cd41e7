"""Shared-memory bank conflicts: wavefronts of an instruction, computed from the tile's layout and swizzle.

Banks are 4 B wide. With 32 of them, accesses of 8 B a thread are served in two phases (half warps), of 16 B in four
(quarter warps); with more or fewer a phase holds as many threads as the banks have words for. Threads that read the
same word share it. Where threads read the same vector pair by pair (as in the outer product of
a SIMT GEMM), the registers of a pair return packed and each phase serves twice the threads: LDS.128 takes two
wavefronts instead of four (NVIDIA staff, forums.developer.nvidia.com/t/77228, for compute capability 7.0 to 7.5;
later ones are assumed alike). ldmatrix reads each 8x8 matrix as eight rows of 16 B, in one phase of 32 banks.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

from arch.dtypes import DTYPE_BYTES
from sim.gpu.language import SharedTile, View

WARP = 32
_MATRIX_WORDS = 32


def swizzle(address: int, swizzle_bytes: int) -> int:
    """Byte address after the XOR pattern of TMA and ldmatrix layouts.

    16 B chunks permuted by the 128 B line's number.
    """
    lines = swizzle_bytes // 16
    if lines < 2:
        return address
    return address ^ (((address >> 7) & (lines - 1)) << 4)


class _Layout(NamedTuple):
    """Where the elements of a tile lie."""

    row_bytes: int
    swizzle_bytes: int

    def address(self, row: int, byte: int) -> int:
        """Of a byte of a row, within the tile."""
        return swizzle(row * self.row_bytes + byte, self.swizzle_bytes)


def _degree(words: list[int], banks: int) -> int:
    """Wavefronts of one phase: the most distinct words in one bank."""
    asked: dict[int, set[int]] = defaultdict(set)
    for word in words:
        asked[word % banks].add(word)
    return max((len(of_bank) for of_bank in asked.values()), default=1)


def ldmatrix_waves(view: View, banks: int, matrices: int = 4) -> int:
    """Wavefronts of one ldmatrix of `matrices` 8x8 matrices taken from the rows of `view`."""
    tile = view.buffer
    assert isinstance(tile, SharedTile)
    layout = _Layout(tile.row_bytes, tile.swizzle_bytes)
    words = [(layout.address(row, 0) + 4 * w) // 4 for row in range(8) for w in range(4)]
    phase = min(banks, _MATRIX_WORDS)
    return matrices * sum(_degree(words[i : i + phase], banks) for i in range(0, _MATRIX_WORDS, phase))


def access_waves(view: View, vector_bytes: int, banks: int, sharers: int = 1) -> int:
    """Wavefronts of one LDS or STS of `vector_bytes` a thread.

    Threads walk the rows of `view` (its columns where transposed), `sharers` of them abreast.
    """
    tile = view.buffer
    assert isinstance(tile, SharedTile)
    element = DTYPE_BYTES[tile.dtype]
    width = max(vector_bytes, element)
    rows, cols = (view.extents[-2] if len(view.extents) > 1 else 1), view.extents[-1]
    per_row = max(1, cols * element // width)
    layout = _Layout(tile.row_bytes, tile.swizzle_bytes)
    return _waves(layout, rows, per_row, view.transposed, width, banks, sharers)


@lru_cache(1 << 10)
def _waves(layout: _Layout, rows: int, per_row: int, transposed: bool, width: int, banks: int, sharers: int) -> int:
    """`access_waves` of `rows` with `per_row` accesses of `width` bytes each."""
    total = rows * per_row
    threads = []
    for thread in range(WARP):
        i = thread // sharers % total
        row, vector = (i % rows, i // rows) if transposed else (i // per_row, i % per_row)
        first = layout.address(row, vector * width)
        threads.append([(first + 4 * w) // 4 for w in range(max(1, width // 4))])
    group = min(WARP, max(1, banks // max(1, width // 4 // (2 if sharers > 1 else 1))))
    phases = [threads[i : i + group] for i in range(0, WARP, group)]
    return sum(_degree([word for t in phase for word in t], banks) for phase in phases)
