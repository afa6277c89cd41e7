"""Convolutions on a Gemmini: a part of the image and of the filters in the scratchpad, windows read by rows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np

from arch.errors import InputError
from arch.gemmini import GemminiSpec
from sim.gemmini.program import Program, Shape
from workloads.gemmini.estimate import estimate
from workloads.gemmini.gemm import MOST, OUT_BYTES, PAGE
from workloads.gemmini.mapping import (
    CONVOLUTION,
    Mapped,
    Sizes,
    best,
    mapped,
    refuse_too_large,
    searched,
    shrunk,
    written,
)
from workloads.ops import Conv2d
from workloads.registry import register


@register("conv2d", "gemmini", "auto")
def candidates(op: Conv2d, spec: GemminiSpec, schedule: str) -> list[tuple[Mapped, int]]:
    """Mappings with their estimates, the best first."""
    out = checked(op, spec)
    whole, rows = extents(op), partial(_rows, op, spec)

    def library(kind: str) -> Mapped:
        sizes, looked = shrunk(spec, kind, whole, rows)
        return mapped(kind, sizes, CONVOLUTION, looked)

    if schedule != "auto":
        mapping = written(schedule, whole, CONVOLUTION, library)
        if mapping.schedule == "os":
            raise InputError(f"schedule={schedule}: convolutions on {spec.name} keep weights; nearest: ws")
        refuse_too_large(spec, mapping, rows)
        return [(mapping, estimate(spec, build(op, spec, mapping), out))]
    block = spec.array.size
    steps = {"p": max(1, whole["p"] // 8), "q": block, "k": block, "c": 4 * block}
    found = [replace(library("ws"), choices=0), *searched(spec, {**whole, "n": 1}, steps, ("npqksrc", "nkpqsrc"), rows)]
    return best([(m, estimate(spec, build(op, spec, m), out)) for m in found], MOST)


def extents(op: Conv2d) -> dict[str, int]:
    """By dimension in the library's order; s and r: rows and columns of a filter, as in its loops."""
    p, q = op.output
    return {"n": op.n, "p": p, "q": q, "k": op.k, "s": op.r, "r": op.s, "c": op.c}


def checked(op: Conv2d, spec: GemminiSpec) -> int:
    """Bytes of a result; InputError for a convolution that the machine cannot do."""
    if op.dtype != "int8" or op.acc != "int32" or op.out not in OUT_BYTES:
        raise InputError(f"{op}: {spec.name} multiplies int8, sums in int32 and writes int8 or int32")
    if op.groups > 1 or op.dilation > 1 or op.strides[0] != op.strides[1] or op.layout != "nhwc":
        raise InputError(f"{op}: on {spec.name} groups and dilation are 1, strides equal, the layout nhwc")
    return OUT_BYTES[op.out]


def _rows(op: Conv2d, spec: GemminiSpec, tile: Sizes) -> tuple[int, int]:
    block, step = spec.array.size, op.strides[0]
    height, width = tile["p"] * step + tile["s"] - 1, tile["q"] * step + tile["r"] - 1
    channels, filters = -(-tile["c"] // block), -(-tile["k"] // block)
    image = channels * tile["n"] * height * width
    return image + filters * tile["s"] * tile["r"] * tile["c"], filters * tile["n"] * tile["p"] * tile["q"]


@register("conv2d", "gemmini", "ws")
def build(op: Conv2d, spec: GemminiSpec, mapping: Mapped) -> Program:
    """The tiles in the order of the mapping's loops. Images of a tile are tiles of their own to the unroller."""
    whole, step, out = extents(op), mapping.sizes, checked(op, spec)
    p, q = op.output
    areas = [op.n * op.h * op.w * op.c, op.r * op.s * op.c * op.k, op.n * p * q * op.k * out]
    starts = [sum(-(-size // PAGE) * PAGE for size in areas[:i]) for i in range(4)]
    tiles = []
    for at in itertools.product(*(range(0, whole[name], step[name]) for name in mapping.order)):
        place = dict(zip(mapping.order, at, strict=True))
        here = {name: min(step[name], whole[name] - place[name]) for name in CONVOLUTION}
        for image in range(place["n"], place["n"] + here["n"]):
            tiles.append(_tile(op, place | {"n": image}, here, whole, starts))
    return Program(
        name="conv2d",
        schedule=str(mapping),
        convolution=True,
        serial=False,
        shape=Shape(op.w, op.c, q, op.k, op.strides[0], op.s, out),
        tiles=np.array(tiles, np.int64),
        operand_bytes=starts[3],
        choices=mapping.choices,
    )


def _tile(op: Conv2d, at: Sizes, here: Sizes, whole: Sizes, starts: list[int]) -> tuple[int, ...]:
    """One tile: its extents, what of its windows hangs over the image, and where its operands lie."""
    step, (p, q) = op.strides[0], op.output
    top, left = at["p"] * step + at["s"] - op.padding[0], at["q"] * step + at["r"] - op.padding[1]
    height, width = here["p"] * step + here["s"] - 1, here["q"] * step + here["r"] - 1
    above, before = max(0, -top), max(0, -left)
    below, behind = max(0, top + height - op.h), max(0, left + width - op.w)
    out = OUT_BYTES[str(op.out)]
    image = ((at["n"] * op.h + top + above) * op.w + left + before) * op.c + at["c"]
    weights = ((at["s"] * op.s + at["r"]) * op.c + at["c"]) * op.k + at["k"]
    result = (((at["n"] * p + at["p"]) * q + at["q"]) * op.k + at["k"]) * out
    ends = all(at[name] + here[name] == whole[name] for name in "src")
    begins = not any(at[name] for name in "src")
    extent = (here["p"], here["q"], here["k"], here["s"], here["r"], here["c"])
    zeros = (before, behind, above, below)
    addresses = (starts[0] + image, starts[1] + weights, starts[2] + result)
    return (*extent, *zeros, *addresses, int(ends), int(begins), 0, 0, 0)
