"""Matrix products on a Gemmini: tiles of both operands in the scratchpad, sums in the accumulators."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np

from arch.errors import InputError
from arch.gemmini import GemminiSpec
from sim.gemmini.program import Program, Shape
from workloads.gemmini.estimate import estimate
from workloads.gemmini.mapping import (
    PRODUCT,
    Mapped,
    Sizes,
    best,
    mapped,
    near_square,
    refuse_too_large,
    searched,
    written,
)
from workloads.ops import Gemm
from workloads.registry import register

PAGE = 4096
"""Operands begin at multiples of it."""

MOST = 8
"""Candidates that are kept."""

OUT_BYTES = {"int8": 1, "int32": 4}


@register("gemm", "gemmini", "auto")
def candidates(op: Gemm, spec: GemminiSpec, schedule: str) -> list[tuple[Mapped, int]]:
    """Mappings with their estimates, the best first."""
    out = checked(op, spec)
    whole, rows = {"m": op.m, "n": op.n, "k": op.k}, partial(_rows, spec)

    def library(kind: str) -> Mapped:
        return mapped(kind, near_square(spec, kind, whole, rows), PRODUCT)

    if schedule != "auto":
        mapping = written(schedule, whole, PRODUCT, library)
        refuse_too_large(spec, mapping, rows)
        return [(mapping, estimate(spec, build(op, spec, mapping), out))]
    block = spec.array.size
    steps = {name: block * max(1, -(-size // block) // 16) for name, size in whole.items()}
    found = [library("ws"), *searched(spec, whole, steps, ("mnk", "nmk"), rows)]
    return best([(m, estimate(spec, build(op, spec, m), out)) for m in found], MOST)


def checked(op: Gemm, spec: GemminiSpec) -> int:
    """Bytes of a result; InputError for a product that the machine cannot do."""
    if op.dtype != "int8" or op.acc != "int32" or op.out not in OUT_BYTES:
        raise InputError(f"{op}: {spec.name} multiplies int8, sums in int32 and writes int8 or int32")
    if op.adds or op.ta == "T" or op.tb == "T":
        raise InputError(f"{op}: on {spec.name} operands are stored as they are multiplied and beta is 0")
    return OUT_BYTES[op.out]


def _rows(spec: GemminiSpec, tile: Sizes) -> tuple[int, int]:
    m, n, k = (-(-tile[name] // spec.array.size) for name in PRODUCT)
    return (m * k + k * n) * spec.array.size, m * n * spec.array.size


@register("gemm", "gemmini", "ws", "os")
def build(op: Gemm, spec: GemminiSpec, mapping: Mapped) -> Program:
    """The tiles in the order of the mapping's loops; batches follow each other."""
    block, out = spec.array.size, checked(op, spec)
    whole = {"m": op.m, "n": op.n, "k": op.k}
    blocks = {name: -(-size // block) for name, size in whole.items()}
    step = {name: -(-size // block) for name, size in mapping.sizes.items()}
    pads = {name: blocks[name] * block - size for name, size in whole.items()}
    sizes = [op.m * op.k, op.k * op.n, op.m * op.n * out]
    starts = [sum(_pages(size) for size in sizes[:i]) for i in range(4)]
    tiles = []
    loops = [range(0, blocks[name], step[name]) for name in mapping.order]
    for batch, *at in itertools.product(range(op.batch), *loops):
        place = dict(zip(mapping.order, at, strict=True))
        here = {name: min(step[name], blocks[name] - place[name]) for name in PRODUCT}
        last = {name: place[name] + here[name] == blocks[name] for name in PRODUCT}
        m, n, k = (place[name] * block for name in PRODUCT)
        base = batch * starts[3]
        tiles.append((
            *(here["m"], 1, here["n"], 1, 1, here["k"], 0, 0, 0, 0),
            *(base + starts[0] + m * op.k + k, base + starts[1] + k * op.n + n),
            base + starts[2] + (m * op.n + n) * out,
            *(int(last["k"]), int(k == 0)),
            *(pads[name] if last[name] else 0 for name in ("m", "k", "n")),
        ))  # fmt: skip
    return Program(
        name="gemm",
        schedule=str(mapping),
        convolution=False,
        serial=mapping.schedule == "os",
        shape=Shape(1, op.k, 1, op.n, out_bytes=out),
        tiles=np.array(tiles, np.int64),
        operand_bytes=op.batch * starts[3],
        choices=mapping.choices,
    )


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
