"""The place of each row's maximum, as greedy sampling finds a token: one sweep, in which every thread keeps the largest
value that it has seen and where, and a reduction of both over lanes and warps."""

from __future__ import annotations

import numpy as np

from arch.gpu import GpuSpec
from sim.gpu.language import GlobalTensor, Program, RegisterTile, View
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.gpu.rows import rows
from workloads.gpu.rows.rows import RowConfig, RowKernel
from workloads.gpu.select import Choice
from workloads.ops import Argmax
from workloads.ops.base import Array
from workloads.registry import register

LARGER: Cost = {"setp.int32": 1.0, "iadd.int32": 2.0}
"""Of an element: is it larger, and then its value and its place in those of before (FSETP, two FSEL)."""
STEPS = 2
"""Shuffles of a step of the reduction: value and place."""


@register("argmax", "gpu", "auto")
def choose(op: Argmax, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """Warps that share a row: the best by the estimate, or a configuration as it prints."""
    found = rows.sweep_candidates(spec, "swept", op.cols, op.chosen_dtype)
    if schedule not in ("auto", "swept"):
        found = [found[0].changed(schedule)]
        rows.check(spec, op.cols, found[0])
    read_bytes = op.operands[0].size_bytes
    best = rows.ranked(
        op, spec, found,
        lambda config: [
            rows.load(spec, op.rows, op.cols, config, read_bytes=read_bytes, written_bytes=4 * op.rows,
                      cost=LARGER, reductions=1)
        ],
    )  # fmt: skip
    return Choice(best[0][0], best)


@register("argmax", "gpu", "swept")
def build(op: Argmax, spec: GpuSpec, config: RowConfig) -> Program:
    """The program: one kernel."""
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output", (op.rows, 1))

    def body(w: RowKernel) -> None:
        found = w.start("found", (-np.inf, 0.0))
        with w.sweep(0):
            _update(w, w.load(x), found, x)
        w.across(found, "fmnmx", _larger, STEPS)
        place = RegisterTile("place_of_row", (w.tile_rows, 1), "int32")
        lanes.write(
            w.r, spec, {"cvt.int32": 1.0}, dst=place.whole, srcs=(found,), compute=lambda _, v: np.asarray(v)[:, 1:]
        )
        w.store(y, place.whole)

    kernel = RowKernel("argmax", spec, op.rows, op.cols, config, values=2).write(body)
    return Program(str(op), (x, y), (kernel,), str(config), {"config": config})


def _update(w: RowKernel, tile: View, found: View, x: GlobalTensor) -> None:
    """Takes a tile's largest value and its column where it is larger than what was there; of equal ones the first."""

    def run(before: Array, given: Array, column: Array) -> Array:
        first = int(column)
        values = np.where(w.inside(first), np.asarray(given, dtype=np.float64), -np.inf)
        place = values.argmax(axis=1)
        here = values[np.arange(len(values)), place]
        old = np.asarray(before, dtype=np.float64)
        better = here > old[:, 0]
        return np.stack([np.where(better, here, old[:, 0]), np.where(better, first + place, old[:, 1])], axis=1)

    cost = lanes.total(LARGER, lanes.widen(x.dtype))
    lanes.write(
        w.r, w.spec, lanes.scaled(cost, w.elements), dst=found, srcs=(tile,), compute=run, indices=(w.column,),
        after=(x.name,),
    )  # fmt: skip


def _larger(every: Array) -> Array:
    """The largest of the warps' values, with its place; of equal ones the first place."""
    order = np.lexsort((every[:, 1], -every[:, 0]))
    return np.asarray(every[order[0]])
