"""Sums over the rows of a matrix: one result a column.

A CTA takes a strip of columns and a share of the rows; its warps take rows in turn, each lane neighbouring columns, and
add up through shared memory. Where a strip has several shares, each leaves its sums in device memory, and the CTA that
comes last in the grid waits for the others of its strip and adds them up (PyTorch's global reduction).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    RegisterTile,
    RoleBuilder,
    as_expr,
)
from workloads.gpu.overhead import INSTRUCTION_BYTES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost, Load
from workloads.gpu.pointwise.pointwise import SETUP
from workloads.ops.base import Array

WARPS = 8
UNROLL = 4
"""Rows that a warp has in flight."""
CTAS_PER_SM = 4
"""Shares of the rows are made until the chip has this many CTAs."""
REGISTERS = 40


@dataclass(frozen=True)
class ColumnSums:
    """The kernels, and the tensors for their parts."""

    kernels: tuple[Kernel, ...]
    scratch: tuple[GlobalTensor, ...]


@dataclass(frozen=True)
class _Grid:
    """lane: columns of a lane; strips of columns; shares of the rows; trips of a warp over its rows."""

    lane: int
    strips: int
    shares: int
    trips: int

    @property
    def span(self) -> int:
        """Columns of a strip."""
        return self.lane * WARP_SIZE


def _grid(spec: GpuSpec, shape: tuple[int, int], dtype: str) -> _Grid:
    height, width = shape
    lane = max(1, lanes.vector_bytes(width, dtype, 8) // DTYPE_BYTES[dtype])
    strips = -(-width // (lane * WARP_SIZE))
    step = WARPS * UNROLL
    most = -(-height // step)
    shares = max(1, min(most, -(-CTAS_PER_SM * spec.sm.count // strips)))
    trips = -(-height // (shares * step))
    return _Grid(lane, strips, -(-height // (trips * step)), trips)


def kernels(
    name: str, spec: GpuSpec, shape: tuple[int, int], matrices: Sequence[GlobalTensor], numbers: Sequence[GlobalTensor],
    results: Sequence[GlobalTensor], cost: Cost, compute: Callable[..., Sequence[Array]], *, numbers_in: str = "fp32",
) -> ColumnSums:  # fmt: skip
    """Sums over the rows of `shape`.

    matrices: of that shape. numbers: of each row, (rows, 1). results: (1, cols). cost: instructions an element.
    compute(*matrices, *numbers): the sums of a tile, each (columns,). numbers_in: the format that they are kept in.
    """
    grid = _grid(spec, shape, matrices[0].dtype)
    count, split = len(results), grid.shares > 1
    parts = [
        GlobalTensor(f"{r.name}_parts", (grid.shares, shape[1]), numbers_in, (shape[1], 1), "scratch") for r in results
    ]
    k = KernelBuilder(
        name, (grid.strips, grid.shares, 1), code_bytes=200 * INSTRUCTION_BYTES, flags=grid.strips if split else 0
    )
    w = _Strip(k, spec, grid, count, numbers_in)
    with k.role("warps", WARPS, REGISTERS) as r:
        place = RegisterTile("place", (1, 1), "int32")
        lanes.write(r, spec, SETUP, dst=place.whole, compute=lambda _: np.zeros((1, 1)))
        w.add_up(r, "rows", grid.trips, CTA_Y * grid.trips, matrices, numbers, cost, compute)
        w.combine(r, parts if split else results, CTA_Y if split else as_expr(0), signals=split)
        if split:
            with r.when(CTA_Y.equals(grid.shares - 1)):
                r.flag_wait(CTA_X, grid.shares * count)
                trips = -(-grid.shares // (WARPS * UNROLL))
                plain = lanes.scaled(lanes.ADDITION[numbers_in], count)
                w.add_up(r, "parts", trips, as_expr(0), parts, (), plain, lambda *t: [one.sum(axis=0) for one in t])
                # The semaphore has ordered what the first combination reads of shared memory.
                w.combine(r, results, as_expr(0))
    return ColumnSums((k.build(),), tuple(parts) if split else ())


class _Strip:
    """What the warps of one CTA do with its strip of columns."""

    def __init__(self, k: KernelBuilder, spec: GpuSpec, grid: _Grid, count: int, dtype: str) -> None:
        self.dtype = dtype
        self.spec, self.grid, self.count = spec, grid, count
        self.sums = k.shared("sums", (count * WARPS, grid.span), dtype)
        self.total = RegisterTile("total", (count, grid.span), dtype)
        self.column = CTA_X * grid.span

    def add_up(
        self, r: RoleBuilder, name: str, trips: int, first: Expr, matrices: Sequence[GlobalTensor],
        numbers: Sequence[GlobalTensor], cost: Cost, compute: Callable[..., Sequence[Array]],
    ) -> None:  # fmt: skip
        """Every warp's sums over its rows, to registers; `first` is the trip that the CTA begins with."""
        grid = self.grid
        zeros: Cost = {"iadd.int32": float(grid.lane * self.count)}
        lanes.write(r, self.spec, zeros, dst=self.total.whole, compute=lambda old: np.zeros(old.shape))
        with r.loop(name, trips) as step:
            row = ((first + step) * WARPS + WARP) * UNROLL
            loaded = []
            for number, tensor in enumerate((*matrices, *numbers)):
                span = grid.span if number < len(matrices) else 1
                tile = RegisterTile(f"{tensor.name}_rows", (UNROLL, span), tensor.dtype)
                box = tensor[row:UNROLL, self.column if span > 1 else 0 : span]  # type: ignore[misc]
                own_bytes = (grid.lane if span > 1 else 1) * DTYPE_BYTES[tensor.dtype]
                vector = min(lanes.MAX_VECTOR_BYTES, own_bytes)
                r.ldg(tile.whole, box, UNROLL * own_bytes // vector, into=f"load{number}", vector_bytes=vector)
                loaded.append(tile.whole)
            lanes.write(
                r, self.spec, lanes.total(lanes.scaled(cost, grid.lane * UNROLL), {"iadd.int32": 6.0}),
                dst=self.total.whole, srcs=tuple(loaded), compute=_add(compute),
                after=tuple(f"load{number}" for number in range(len(loaded))),
            )  # fmt: skip

    def combine(self, r: RoleBuilder, targets: Sequence[GlobalTensor], row: Expr, *, signals: bool = False) -> None:
        """The sums of all warps, one target a warp, to row `row` of the targets. signals: a semaphore of the strip says
        so."""
        grid = self.grid
        own_bytes = grid.lane * DTYPE_BYTES[self.dtype]
        width = min(lanes.MAX_VECTOR_BYTES, own_bytes)
        count = own_bytes // width
        for i in range(self.count):
            r.sts(self.sums[0, i * WARPS + WARP, :], self.total[i:1, :], count, vector_bytes=width)  # type: ignore[misc]
        r.bar_sync(0, WARPS)
        for i, target in enumerate(targets):
            with r.when(WARP.equals(i)):
                every = RegisterTile("every", (WARPS, grid.span), self.dtype)
                out = RegisterTile("out", (1, grid.span), target.dtype)
                own = self.sums[0, i * WARPS : WARPS, :]  # type: ignore[misc]
                r.lds(every.whole, own, WARPS * count, vector_bytes=width)
                added = lanes.scaled(lanes.ADDITION[self.dtype], WARPS)
                cost = lanes.total(added, lanes.narrow(self.spec, target.dtype, self.dtype))
                lanes.write(
                    r, self.spec, lanes.scaled(cost, grid.lane), dst=out.whole, srcs=(every.whole,),
                    compute=lambda _, v: v.sum(axis=0, keepdims=True),
                )  # fmt: skip
                size = DTYPE_BYTES[target.dtype]
                vector = lanes.vector_bytes(target.shape[1], target.dtype, min(16, grid.lane * size))
                box = target[row:1, self.column : grid.span]  # type: ignore[misc]
                r.stg(box, out.whole, max(1, grid.lane * size // vector), vector_bytes=vector)
                if signals:
                    r.flag_add(CTA_X)


def _add(compute: Callable[..., Sequence[Array]]) -> Callable[..., Array]:
    def add(old: Array, *tiles: Array) -> Array:
        found = compute(*(np.asarray(t, dtype=np.float64) for t in tiles))
        return np.asarray(old + np.stack([np.asarray(one) for one in found]))

    return add


def load(spec: GpuSpec, shape: tuple[int, int], dtype: str, matrices: int, cost: Cost) -> Load:
    """Counts for the estimate."""
    grid = _grid(spec, shape, dtype)
    elements = grid.lane * UNROLL * grid.trips
    instructions = 80 + elements * sum(cost.values())
    return Load(
        ctas=grid.strips * grid.shares,
        resident=lanes.resident(spec, WARPS, REGISTERS, 4 * WARPS * grid.span),
        read_bytes=matrices * shape[0] * shape[1] * DTYPE_BYTES[dtype],
        written_bytes=shape[1] * DTYPE_BYTES[dtype],
        issue=int(-(-WARPS * instructions // spec.sm.sub_cores)),
        path=int(2 * instructions) + 200,
        trips=grid.trips,
    )
