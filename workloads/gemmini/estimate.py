"""What a mapping takes, from its tiles alone: products and transfers that hide behind each other, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.gemmini import GemminiSpec
from sim.gemmini.program import (
    COLUMNS,
    DEPTH,
    DEPTH_PAD,
    FILTER_COLUMNS,
    FILTER_ROWS,
    OUTPUT_PAD,
    OUTPUTS,
    ROW_PAD,
    ROWS,
    STORES,
    Program,
)

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """Of all tiles of a program, by tile. products: of blocks; fresh: those that bring weights; rows: of the array that
    they stream; image, weights, results: bytes that come and go; sums: rows of accumulators that are written."""

    products: Numbers
    fresh: Numbers
    rows: Numbers
    image: Numbers
    weights: Numbers
    results: Numbers
    sums: Numbers


def work(spec: GemminiSpec, program: Program, out_bytes: int) -> Work:
    """What a program's tiles do."""
    t, block = program.tiles, spec.array.size

    def blocks(values: Numbers) -> Numbers:
        return -(-values // block)

    if not program.convolution:
        depth, wide = t[:, DEPTH], t[:, OUTPUTS]
        rows = t[:, ROWS] * block - t[:, ROW_PAD]
        deep = depth * block - t[:, DEPTH_PAD]
        across = wide * block - t[:, OUTPUT_PAD]
        results = rows * across * out_bytes * t[:, STORES]
        return Work(t[:, ROWS] * depth * wide, depth * wide, rows * depth * wide, rows * deep, deep * across, results,
                    rows * depth * wide)  # fmt: skip
    taps = t[:, FILTER_ROWS] * t[:, FILTER_COLUMNS]
    fresh = blocks(t[:, OUTPUTS]) * taps * blocks(t[:, DEPTH])
    places = t[:, ROWS] * t[:, COLUMNS]
    stride = program.shape.stride
    image = (t[:, ROWS] * stride + t[:, FILTER_ROWS] - 1) * (t[:, COLUMNS] * stride + t[:, FILTER_COLUMNS] - 1)
    return Work(
        products=fresh * t[:, ROWS] * blocks(t[:, COLUMNS]),
        fresh=fresh,
        rows=fresh * places,
        image=image * t[:, DEPTH],
        weights=taps * t[:, DEPTH] * t[:, OUTPUTS],
        results=places * t[:, OUTPUTS] * out_bytes * t[:, STORES],
        sums=fresh * places,
    )


def estimate(spec: GemminiSpec, program: Program, out_bytes: int) -> int:
    """Cycles: of each tile the longer of its products and its transfers, of the first tile its loads, and of the last
    one its stores; and what the core does before."""
    done = work(spec, program, out_bytes)
    pairs = max(1, spec.reservation.executes // 2)
    least = -(-(spec.array.latency_cycles + spec.array.least_rows) // pairs)
    products = np.maximum(done.rows, done.products * least)
    bus = spec.dma.bus_bytes_per_cycle
    rows = (done.image + done.weights) / np.minimum(spec.dma.request_bytes, program.tiles[:, DEPTH])
    loads = np.maximum((done.image + done.weights) / bus, rows)
    stores = done.results / spec.array.size * 4
    tiles = np.maximum(products, loads + stores)
    begins = program.choices * spec.core.choice_cycles
    return int(begins + tiles.sum() + loads[0] + stores[-1] + spec.core.tile_cycles)
