"""Programs of a Gemmini: the tiles of an operator in the order in which the core starts them.

A tile is what the hardware's loop unroller turns into commands: loads of its operands into half of the scratchpad,
products of blocks, stores of its sums where they are complete. Two tiles are at work at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE_WORDS = (
    *("rows", "columns", "outputs"),  # of results; of a product: blocks of rows, -, blocks of columns
    *("filter_rows", "filter_columns", "depth"),  # summed over; of a product the depth counts blocks
    *("left", "right", "above", "below"),  # zeros around the image's part
    *("x", "w", "y"),  # addresses of operands and result
    *("stores", "starts"),  # whether sums leave with it, whether they begin with it
    *("row_pad", "depth_pad", "output_pad"),  # of a product: what is missing of the last blocks
)
"""Columns of `Program.tiles`."""

ROWS, COLUMNS, OUTPUTS, FILTER_ROWS, FILTER_COLUMNS, DEPTH, LEFT, RIGHT, ABOVE = range(9)
BELOW, X, W, Y, STORES, STARTS, ROW_PAD, DEPTH_PAD, OUTPUT_PAD = range(9, 18)


@dataclass(frozen=True)
class Shape:
    """Extents of the whole operator, as addresses are made of them; of a product the channels alone.

    width, channels: of the image; out_width, out_channels: of the result, whose elements have out_bytes.
    """

    width: int
    channels: int
    out_width: int
    out_channels: int
    stride: int = 1
    filter_columns: int = 1
    out_bytes: int = 1


@dataclass(frozen=True)
class Program:
    """One operator. convolution: whether its tiles are such. serial: the core sends each command itself, and a tile
    begins when the one before has sent its last. operand_bytes: of all memory that it touches, from address 0 on.
    choices: tilings that the core looks at before it starts the first tile."""

    name: str
    schedule: str
    convolution: bool
    serial: bool
    shape: Shape
    tiles: NDArray[np.int64]
    operand_bytes: int
    choices: int = 0
    notes: tuple[str, ...] = ()
