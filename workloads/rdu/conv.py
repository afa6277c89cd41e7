"""Convolution as a metapipeline: an outer loop loads bands of rows of X, an inner one filters.

A band stays in its buffer while the inner loop walks over the filters; the addresses of that buffer give the patches,
so that a row of X is read from memory once a band. Each pair of a band and some filters is a product of tiles, which
`row_par` and `col_par` divide over PCUs. Padding is what lies outside X.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.rdu.program import Call, Counter, Index, Out, Program, Section, Tensor
from workloads.ops import Conv2d
from workloads.rdu.gemm import tile_cycles
from workloads.rdu.select import ceil_div, check_dtype, pick
from workloads.registry import register

SHOWN = 6
_FORM = re.compile(r"metapipeline (\d+) rows (\d+) filters par (\d+)x(\d+)")


@dataclass(frozen=True)
class ConvConfig:
    """Rows of Y of a band, filters of a tile, and how their product is divided over PCUs."""

    rows: int
    filters: int
    row_par: int
    col_par: int

    schedule = "metapipeline"

    def __str__(self) -> str:
        return f"metapipeline {self.rows} rows {self.filters} filters par {self.row_par}x{self.col_par}"

    def build(self, op: Conv2d, spec: RduSpec) -> Program:
        """The program, one section."""
        section, (p, q), (down, right), (above, beside) = Section("conv2d"), op.output, op.strides, op.padding
        image, band = Counter("image", op.n), Counter("band", ceil_div(p, self.rows))
        part = Counter("filters", ceil_div(op.k, self.filters))
        patch = op.r * op.s * op.c
        x = Tensor("x", (op.n, op.h, op.w * op.c), str(op.dtype))
        w = Tensor("w", (op.k, patch), str(op.dtype))
        y = Tensor("y", (op.n, p * q, op.k), str(op.out), "output")
        tile = (1, *_reach(op, self.rows))
        origin = (image, band * (self.rows * down) + -above, Index(-beside * op.c))
        rows = section.load("load_x", x, origin, tile, (image, band), shape=tile[1:])
        filters = section.load("load_w", w, (part * self.filters, 0), (self.filters, patch), (image, band, part))
        nest = (image, band, part)
        sums = section.stage(
            "multiply",
            nest,
            {"x": rows, "w": filters.read(transposed=True)},
            lambda x, w: x.windows((op.r, op.s), (down, right), (self.rows, q), op.c) @ w,
            Out((self.rows * q, self.filters), str(op.out), nest),
            row_par=self.row_par,
            col_par=self.col_par,
        )
        section.store("store_y", y, (image, band * (self.rows * q), part * self.filters), sums, nest)
        return Program(str(op), (Call(section),), str(self))


def _reach(op: Conv2d, rows: int) -> tuple[int, int]:
    """Rows of X, and values of each, that `rows` rows of Y need."""
    (down, right), q = op.strides, op.output[1]
    return (rows - 1) * down + op.r, ((q - 1) * right + op.s) * op.c


@register("conv2d", "rdu", "metapipeline")
def build(op: Conv2d, spec: RduSpec, config: ConvConfig) -> Program:
    """The program of a configuration."""
    return config.build(op, spec)


@register("conv2d", "rdu", "auto")
def choose(op: Conv2d, spec: RduSpec, schedule: str) -> list[tuple[ConvConfig, int]]:
    """Configurations by estimated cycles."""
    check_dtype(op, spec)
    for key, plain in (("layout", "nhwc"), ("groups", 1), ("dilation", 1)):
        if getattr(op, key) != plain:
            raise InputError(f"conv2d {key}={getattr(op, key)}: {spec.name} has no program for it; {key}={plain}")
    ranked = sorted(((estimate(op, spec, c), i, c) for i, c in enumerate(_candidates(op, spec))), key=lambda e: e[:2])
    if not ranked:
        raise InputError(
            f"{op}: no band of rows fits {spec.name}: {BYTES.format(spec.pmu.count * spec.pmu.size_bytes)} on chip, "
            f"{spec.pcu.count} PCUs"
        )
    return list(pick("conv2d", schedule, [(c, cycles) for cycles, _, c in ranked[:SHOWN]], _parse))


def _parse(text: str) -> ConvConfig | None:
    match = _FORM.fullmatch(text)
    return ConvConfig(*map(int, match.groups())) if match else None


def estimate(op: Conv2d, spec: RduSpec, c: ConvConfig) -> int:
    """Cycles: the busier of arithmetic and memory, the first band and filters, the last tile."""
    width, out = DTYPE_BYTES[str(op.dtype)], DTYPE_BYTES[str(op.out)]
    p, q = op.output
    bands, parts = op.n * ceil_div(p, c.rows), ceil_div(op.k, c.filters)
    patch, rate = op.r * op.s * op.c, spec.main_memory.bandwidth_bytes_per_s
    compute = tile_cycles(c.rows * q, c.filters, patch, spec, c.row_par, c.col_par, str(op.dtype))
    rows, values = _reach(op, c.rows)
    band, filters = rows * values * width, c.filters * patch * width
    moved = bands * (band + parts * filters) + op.n * p * q * op.k * out
    first = (band + filters) * spec.clock.boost_hz // rate
    last = compute + c.rows * q * c.filters * out * spec.clock.boost_hz // rate
    return max(bands * parts * compute, moved * spec.clock.boost_hz // rate) + first + last


def _candidates(op: Conv2d, spec: RduSpec) -> Iterator[ConvConfig]:
    """Divisions of the PCUs, and tiles that are one or a few blocks of them."""
    width, out = DTYPE_BYTES[str(op.dtype)], DTYPE_BYTES[str(op.out)]
    room = spec.pmu.count * spec.pmu.size_bytes * 9 // 10
    arrays = spec.pcu.systolic and op.dtype in spec.array_dtypes
    down, across = (spec.pcu.lanes, spec.pcu.stages) if arrays else (1, 1)
    (p, q), seen = op.output, set()
    for row_par, col_par in spec.divisions(spec.pcu.count):
        for blocks_m in (1, 2, 4, 8, 16):
            for blocks_n in (1, 2, 4, 8, 16, 32):
                rows = min(p, ceil_div(down * row_par * blocks_m, q))
                filters = min(op.k, across * col_par * blocks_n)
                found = ConvConfig(rows, filters, row_par, col_par)
                height, values = _reach(op, rows)
                size = height * values * width + filters * op.r * op.s * op.c * width + rows * q * filters * out
                if found not in seen and 2 * size <= room:
                    seen.add(found)
                    yield found
