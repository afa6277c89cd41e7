"""What the loop unrollers make of a tile: loads, products of blocks and stores, in the order in which they are sent.

A load or store is (address, rows, bytes of a row, bytes from row to row). Of a product: its rows, whether it brings new
weights, the load that must have been sent before it and the load whose data it reads (-1: none). Of a store also the
product whose result it takes, and the one that must have been sent before it.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from sim.engine.jit import inner
from sim.gemmini.program import (
    ABOVE,
    BELOW,
    COLUMNS,
    DEPTH,
    DEPTH_PAD,
    FILTER_COLUMNS,
    FILTER_ROWS,
    LEFT,
    OUTPUT_PAD,
    OUTPUTS,
    RIGHT,
    ROW_PAD,
    ROWS,
    STARTS,
    STORES,
    W,
    X,
    Y,
)

ADDRESS, COUNT, BYTES, PITCH, AFTER, SENT = range(6)
"""Words of a load or store; a load of zeros has no bytes."""

PRODUCT_ROWS, FRESH, LOAD_SENT, LOAD_DONE = range(4)
"""Words of a product."""


class Geometry(NamedTuple):
    """A program's shape and the machine's block as integers."""

    block: int
    blocks: int
    """Blocks that a load takes beside each other."""
    width: int
    channels: int
    out_width: int
    out_channels: int
    stride: int
    filter_columns: int
    out_bytes: int
    outputs_stay: int


class Commands(NamedTuple):
    """Room for the commands of one tile of each kind."""

    loads: NDArray
    products: NDArray
    stores: NDArray


@inner
def _put(array, i, address, count, size, pitch):
    array[i, ADDRESS] = address
    array[i, COUNT] = count
    array[i, BYTES] = size
    array[i, PITCH] = pitch
    return i + 1


@inner
def _filter_loads(g, tile, loads, n):
    """Weights of a convolution's tile: by 64 filters, filter row, column, 16 channels."""
    wide = g.block * g.blocks
    for k in range(0, tile[OUTPUTS], wide):
        size = min(wide, tile[OUTPUTS] - k)
        for r in range(tile[FILTER_ROWS]):
            for s in range(tile[FILTER_COLUMNS]):
                for c in range(0, tile[DEPTH], g.block):
                    place = (r * g.filter_columns + s) * g.channels + c
                    rows = min(g.block, tile[DEPTH] - c)
                    n = _put(loads, n, tile[W] + place * g.out_channels + k, rows, size, g.out_channels)
    return n


@inner
def convolution_loads(g, tile, loads):
    """Zeros for sums that begin, then weights, then the image's part row by row; returns how many."""
    n = 0
    if tile[STARTS]:
        sums = tile[ROWS] * tile[COLUMNS] * ((tile[OUTPUTS] + g.block - 1) // g.block)
        n = _put(loads, n, 0, sums, 0, 0)
    n = _filter_loads(g, tile, loads, n)
    height = tile[ROWS] * g.stride + tile[FILTER_ROWS] - 1 - tile[ABOVE] - tile[BELOW]
    width = tile[COLUMNS] * g.stride + tile[FILTER_COLUMNS] - 1 - tile[LEFT] - tile[RIGHT]
    wide = g.block * g.blocks
    for y in range(-tile[ABOVE], height + tile[BELOW]):
        x = -tile[LEFT]
        while x < width + tile[RIGHT]:
            if x < 0:
                count = min(g.block, -x)
            elif x >= width:
                count = min(g.block, width + tile[RIGHT] - x)
            else:
                count = min(g.block, width - x)
            inside = x >= 0 and x < width and y >= 0 and y < height
            for c in range(0, tile[DEPTH], wide):
                size = min(wide, tile[DEPTH] - c) if inside else 0
                n = _put(loads, n, tile[X] + (y * g.width + x) * g.channels + c, count, size, g.channels)
            x += count
    return n


@inner
def convolution_products(g, tile, products, loads):
    """By 16 filters, filter row, column, 16 channels: all rows and columns of results; returns how many."""
    n = 0
    for _ in range(0, tile[OUTPUTS], g.block):
        for r in range(tile[FILTER_ROWS]):
            for _ in range(tile[FILTER_COLUMNS]):
                for _ in range(0, tile[DEPTH], g.block):
                    fresh = 1
                    for y in range(tile[ROWS]):
                        last = y == tile[ROWS] - 1 and r == tile[FILTER_ROWS] - 1
                        for x in range(0, tile[COLUMNS], g.block):
                            products[n, PRODUCT_ROWS] = min(g.block, tile[COLUMNS] - x)
                            products[n, FRESH] = fresh
                            products[n, LOAD_SENT] = loads - 1
                            products[n, LOAD_DONE] = loads - 1 if last else -1
                            fresh = 0
                            n += 1
    return n


@inner
def convolution_stores(g, tile, stores, products):
    """Row by row, 16 columns, 16 filters; the unroller begins when all products have been sent; returns how many."""
    if not tile[STORES]:
        return 0
    n = 0
    across = (tile[COLUMNS] + g.block - 1) // g.block
    each = products // ((tile[OUTPUTS] + g.block - 1) // g.block)
    for y in range(tile[ROWS]):
        for x in range(0, tile[COLUMNS], g.block):
            for k in range(0, tile[OUTPUTS], g.block):
                place = tile[Y] + ((y * g.out_width + x) * g.out_channels + k) * g.out_bytes
                size = min(g.block, tile[OUTPUTS] - k) * g.out_bytes
                stores[n, SENT] = products - 1
                stores[n, AFTER] = (k // g.block + 1) * each - (tile[ROWS] - y) * across + x // g.block
                n = _put(stores, n, place, min(g.block, tile[COLUMNS] - x), size, g.out_channels * g.out_bytes)
    return n


@inner
def _last(g, block, blocks, pad):
    return g.block - (pad if block == blocks - 1 else 0)


@inner
def _left_load(g, tile, loads, n, i, k):
    """Sixteen rows and up to 64 columns of the left operand."""
    blocks = min(g.blocks, tile[DEPTH] - k)
    size = blocks * g.block - (tile[DEPTH_PAD] if k + blocks >= tile[DEPTH] else 0)
    address = tile[X] + i * g.block * g.channels + k * g.block
    return _put(loads, n, address, _last(g, i, tile[ROWS], tile[ROW_PAD]), size, g.channels)


@inner
def _right_load(g, tile, loads, n, k, j):
    """Sixteen rows and up to 64 columns of the right operand."""
    blocks = min(g.blocks, tile[OUTPUTS] - j)
    size = blocks * g.block - (tile[OUTPUT_PAD] if j + blocks >= tile[OUTPUTS] else 0)
    address = tile[W] + k * g.block * g.out_channels + j * g.block
    return _put(loads, n, address, _last(g, k, tile[DEPTH], tile[DEPTH_PAD]), size, g.out_channels)


@inner
def product_loads(g, tile, loads, left_at, right_at):
    """Both operands along the depth, whichever is behind; or, where outputs stay, the right one first. Returns how
    many. left_at, right_at: the load of each (block of rows, 4 of depth) and (block of depth, 4 of columns)."""
    n, left, right = 0, 0, 0
    deep = (tile[DEPTH] + g.blocks - 1) // g.blocks
    across = (tile[OUTPUTS] + g.blocks - 1) // g.blocks
    while left < deep * tile[ROWS] or right < tile[DEPTH] * across:
        if g.outputs_stay:
            take_left = right >= tile[DEPTH] * across
        else:
            behind = left // tile[ROWS] * g.blocks <= right // across
            take_left = left < deep * tile[ROWS] and (behind or right >= tile[DEPTH] * across)
        if take_left:
            left_at[left] = n
            n = _left_load(g, tile, loads, n, left % tile[ROWS], left // tile[ROWS] * g.blocks)
            left += 1
        else:
            right_at[right] = n
            n = _right_load(g, tile, loads, n, right // across, right % across * g.blocks)
            right += 1
    return n


@inner
def _product(g, tile, products, n, i, j, k, left_at, right_at, fresh):
    across = (tile[OUTPUTS] + g.blocks - 1) // g.blocks
    needed = max(left_at[k // g.blocks * tile[ROWS] + i], right_at[k * across + j // g.blocks])
    products[n, PRODUCT_ROWS] = _last(g, i, tile[ROWS], tile[ROW_PAD])
    products[n, FRESH] = fresh
    products[n, LOAD_SENT] = needed
    products[n, LOAD_DONE] = needed
    return n + 1


@inner
def product_products(g, tile, products, left_at, right_at):
    """Where weights stay by block of depth, column, row; where outputs stay by row, column, depth. Returns how many."""
    n = 0
    if g.outputs_stay:
        for i in range(tile[ROWS]):
            for j in range(tile[OUTPUTS]):
                for k in range(tile[DEPTH]):
                    n = _product(g, tile, products, n, i, j, k, left_at, right_at, 1)
    else:
        for k in range(tile[DEPTH]):
            for j in range(tile[OUTPUTS]):
                for i in range(tile[ROWS]):
                    n = _product(g, tile, products, n, i, j, k, left_at, right_at, 1 if i == 0 else 0)
    return n


@inner
def product_stores(g, tile, stores):
    """Up to 64 columns of 16 rows each, as soon as they have been sent; returns how many."""
    if not tile[STORES]:
        return 0
    n = 0
    wide = 1 if g.outputs_stay or g.out_bytes > 1 else g.blocks
    for j in range(0, tile[OUTPUTS], wide):
        blocks = min(wide, tile[OUTPUTS] - j)
        size = blocks * g.block - (tile[OUTPUT_PAD] if j + blocks >= tile[OUTPUTS] else 0)
        for i in range(tile[ROWS]):
            if g.outputs_stay:
                product = (i * tile[OUTPUTS] + j + 1) * tile[DEPTH] - 1
            else:
                product = ((tile[DEPTH] - 1) * tile[OUTPUTS] + j + blocks - 1) * tile[ROWS] + i
            stores[n, AFTER] = product
            stores[n, SENT] = product
            address = tile[Y] + (i * g.block * g.out_channels + j * g.block) * g.out_bytes
            rows = _last(g, i, tile[ROWS], tile[ROW_PAD])
            n = _put(stores, n, address, rows, size * g.out_bytes, g.out_channels * g.out_bytes)
    return n
