"""Rows to 8 bits: `fused` keeps a row in registers between its largest element and the quotients, `swept` reads it
twice, and with a scale that is given once. Groups of elements with a scale each are a warp's work apiece."""

from __future__ import annotations

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from sim.gpu.language import GlobalTensor, Program, RegisterTile, View
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.gpu.rows import rows
from workloads.gpu.rows.rows import RowConfig, RowKernel, largest
from workloads.gpu.select import Choice
from workloads.ops import Quantize
from workloads.ops.base import Array
from workloads.registry import register

KINDS = ("fused", "swept")
LARGER: Cost = {"fmnmx.fp32": 1.0}
"""Of an element: FMNMX of |x|."""
QUOTIENT: Cost = {"fmul.fp32": 1.0, "fmnmx.fp32": 2.0}
"""A product by the reciprocal, and both ends of the format's range."""
SCALE: Cost = {"fmul.fp32": 1.0, "fmnmx.fp32": 1.0, "rcp.fp32": 1.0}
"""Of a row, once a thread."""
GROUP_WARPS = (4, 8)
"""Warps of a CTA in which each has a group of its own."""


@register("quantize", "gpu", "auto")
def choose(op: Quantize, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The best by the estimate, one of `KINDS`, or a configuration as it prints."""
    lanes.check_format(op, op.chosen_dtype)
    lanes.check_conversions(op, spec, op.chosen_dtype, op.out_dtype)
    words = schedule.split()
    if schedule != "auto" and (not words or words[0] not in KINDS):
        near = hint(schedule, KINDS)
        raise InputError(f"schedule={schedule}: one of auto, {', '.join(KINDS)}, or a whole configuration{near}")
    count, cols = _view(op)
    configs = [config for kind in (KINDS if schedule == "auto" else words[:1]) for config in _configs(op, spec, kind)]
    if len(words) > 1:
        configs = [(configs[0] if configs else RowConfig(words[0], 8, 1)).changed(schedule)]
        rows.check(spec, cols, configs[0])
    x, y, given = op.operands[0], op.results[0], op.scale == "tensor"
    best = rows.ranked(
        op, spec, configs,
        lambda config: [
            rows.load(spec, count, cols, config, read_bytes=x.size_bytes, written_bytes=y.size_bytes,
                      cost=lanes.total(LARGER, QUOTIENT), reductions=int(not given),
                      sweeps=2 if config.elements and not given else 1)
        ],
    )  # fmt: skip
    return Choice(best[0][0], best)


def _view(op: Quantize) -> tuple[int, int]:
    """Rows and columns of what shares a scale."""
    return op.rows * op.groups, op.cols // op.groups


def _configs(op: Quantize, spec: GpuSpec, kind: str) -> list[RowConfig]:
    cols = op.cols // op.groups
    if kind == "swept":
        return [] if op.scale == "group" else rows.sweep_candidates(spec, kind, cols, op.chosen_dtype)
    if op.scale == "group":
        return [RowConfig(kind, warps, warps) for warps in GROUP_WARPS]
    return rows.register_candidates(spec, kind, cols)


@register("quantize", "gpu", "fused", "swept")
def build(op: Quantize, spec: GpuSpec, config: RowConfig) -> Program:
    """The program: one kernel."""
    shape = _view(op)
    rows.check(spec, shape[1], config)
    if op.scale == "group" and config.rows != config.warps:
        raise InputError(f"schedule={config}: a warp has a group; nearest: rows {config.warps}")
    x, y = lanes.tensor(op.operands[0], shape=shape), lanes.tensor(op.results[0], "output", shape)
    given = op.scale == "tensor"
    scale = (
        lanes.tensor(op.operands[1], shape=(1, 1))
        if given
        else lanes.tensor(op.results[1], "output", None if op.scale == "group" else (op.rows, 1))
    )

    def body(w: RowKernel) -> None:
        if given:
            number = w.load(scale)
        else:
            number = _scale_of_row(w, op, x, scale)
        cost = lanes.total(QUOTIENT, lanes.widen(x.dtype), lanes.narrow(spec, y.dtype))

        def finish(tile: View, after: tuple[str, ...]) -> None:
            out = w.map("out", cost, (tile, number), lambda ok, v, s: v / s, dtype=y.dtype, after=after)
            w.store(y, out)

        if config.elements:
            with w.sweep(1):
                finish(w.load(x, "x1"), ("x1", *((scale.name,) if given else ())))
        else:
            finish(w.load(x) if given else RegisterTile(x.name, (w.tile_rows, w.span), x.dtype).whole,
                   (x.name, scale.name) if given else ())  # fmt: skip

    kernel = RowKernel("quantize", spec, *shape, config).write(body)
    tensors = (x, scale, y) if given else (x, y, scale)
    return Program(str(op), tensors, (kernel,), str(config), {"config": config})


def _scale_of_row(w: RowKernel, op: Quantize, x: GlobalTensor, scale: GlobalTensor) -> View:
    """The row's scale from its largest element, stored."""
    cost = lanes.total(LARGER, lanes.widen(x.dtype))

    def top(ok: Array, *tiles: Array) -> Array:
        *before, v = tiles
        found = np.where(ok, np.abs(v), 0.0).max(axis=1)
        return np.maximum(before[0][:, 0], found) if before else found

    if w.config.elements:
        found = w.start("top", (0.0,))
        with w.sweep(0):
            w.local("top", cost, (w.load(x, "x0"),), top, after=("x0",), old=True)
        w.across(found, "fmnmx", largest)
    else:
        found = w.reduce("top", "fmnmx", cost, (w.load(x),), top, largest, after=w.arrived(x))
    tile = RegisterTile("scale_of_row", (w.tile_rows, 1), "fp32")
    lanes.write(w.r, w.spec, SCALE, dst=tile.whole, srcs=(found,), compute=lambda _, v: op.scale_of(v))
    if op.scale == "group":
        w.r.stg(scale[w.row % op.groups : 1, w.row // op.groups : 1], tile.whole, 1, vector_bytes=4)  # type: ignore[misc]
    else:
        w.store(scale, tile.whole)
    return tile.whole
