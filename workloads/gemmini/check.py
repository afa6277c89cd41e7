"""What a program's tiles add up to, with numbers: each tile's own part of the operands, in the order of the tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.gemmini.program import (
    ABOVE,
    COLUMNS,
    DEPTH,
    FILTER_COLUMNS,
    FILTER_ROWS,
    LEFT,
    OUTPUTS,
    ROWS,
    Program,
    W,
    X,
    Y,
)

BLOCK = 16


def product(op: Any, program: Program, x: NDArray[Any], w: NDArray[Any]) -> NDArray[np.int64]:
    """The result that the tiles give, in the operator's own order."""
    out = program.shape.out_bytes
    areas = sorted({int(program.tiles[:, column].min()) for column in (X, W, Y)})
    flat = np.zeros(program.operand_bytes // out, np.int64)
    memory = np.zeros(program.operand_bytes, np.int64)
    weights = w.transpose(1, 2, 3, 0) if program.convolution else w
    _lay(memory, op, program, x, weights, areas)
    for tile in program.tiles:
        if program.convolution:
            _window(flat, memory, program, tile, op.strides[0])
        else:
            _blocks(flat, memory, program, tile)
    batch = 1 if program.convolution else op.batch
    size = int(np.prod(op.results[0].shape)) // batch
    step = program.operand_bytes // batch
    first = areas[2]
    parts = [flat[(b * step + first) // out :][:size] for b in range(batch)]
    return np.concatenate(parts).reshape(op.results[0].shape)


def _lay(memory: NDArray[np.int64], op: Any, program: Program, x: Any, w: Any, areas: list[int]) -> None:
    """Operands where the program has them."""
    batch = 1 if program.convolution else op.batch
    step = program.operand_bytes // batch
    for at, operand in ((areas[0], x), (areas[1], w)):
        each = np.ascontiguousarray(operand).astype(np.int64).reshape(batch, -1)
        for b in range(batch):
            memory[b * step + at :][: each.shape[1]] = each[b]


def _matrix(memory: NDArray[np.int64], first: int, rows: int, columns: int, pitch: int) -> NDArray[np.int64]:
    at = first + np.arange(rows)[:, None] * pitch + np.arange(columns)
    found: NDArray[np.int64] = memory[at]
    return found


def _blocks(flat: NDArray[np.int64], memory: NDArray[np.int64], program: Program, tile: NDArray[np.int64]) -> None:
    """Adds a tile of a product."""
    shape, out = program.shape, program.shape.out_bytes
    m, k, n = (int(tile[i]) * BLOCK - int(tile[pad]) for i, pad in ((ROWS, 15), (DEPTH, 16), (OUTPUTS, 17)))
    a = _matrix(memory, int(tile[X]), m, k, shape.channels)
    b = _matrix(memory, int(tile[W]), k, n, shape.out_channels)
    at = int(tile[Y]) // out + np.arange(m)[:, None] * shape.out_channels + np.arange(n)
    flat[at] += a @ b


def _window(
    flat: NDArray[np.int64], memory: NDArray[np.int64], program: Program, tile: NDArray[np.int64], step: int
) -> None:
    """Adds a tile of a convolution: each of its filter's elements in turn."""
    shape, out = program.shape, program.shape.out_bytes
    rows, columns, filters, depth = (int(tile[i]) for i in (ROWS, COLUMNS, OUTPUTS, DEPTH))
    image = np.zeros((rows * step + tile[FILTER_ROWS] - 1, columns * step + tile[FILTER_COLUMNS] - 1, depth), np.int64)
    inside = image[tile[ABOVE] : len(image) - tile[9], tile[LEFT] : image.shape[1] - tile[7]]
    for y in range(inside.shape[0]):
        first = int(tile[X]) + y * shape.width * shape.channels
        inside[y] = _matrix(memory, first, inside.shape[1], depth, shape.channels)
    at = int(tile[Y]) // out + (np.arange(rows)[:, None] * shape.out_width + np.arange(columns)) * shape.out_channels
    for r in range(tile[FILTER_ROWS]):
        for s in range(tile[FILTER_COLUMNS]):
            first = int(tile[W]) + (r * shape.filter_columns + s) * shape.channels * shape.out_channels
            w = _matrix(memory, first, depth, filters, shape.out_channels)
            part = image[r : r + (rows - 1) * step + 1 : step, s : s + (columns - 1) * step + 1 : step]
            flat[at[..., None] + np.arange(filters)] += part @ w
