"""Rotary positions of queries and keys, a warp for each head's vector of a token, with their norm before it
(TensorRT-LLM's fused kernel of both; vLLM's without a norm has a CTA for a token's vectors)."""

from __future__ import annotations

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import Expr, GlobalTensor, Program, RegisterTile
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.gpu.rows import norms, rows
from workloads.gpu.rows.rows import RowConfig, RowKernel, sums
from workloads.gpu.select import Choice
from workloads.ops import Rope
from workloads.ops.base import Array
from workloads.ops.rotary import turned
from workloads.ops.rowwise import EPSILON
from workloads.registry import register

TURN: Cost = {"fmul.fp32": 1.0, "ffma.fp32": 1.0, "shfl.b32": 1.0}
"""Of an element: its partner from the lane that holds it, a product and a multiply-add."""
WARPS = (4, 8)
"""Of a CTA, each with a vector."""


@register("rope", "gpu", "auto")
def choose(op: Rope, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The better of two sizes of CTAs by the estimate, or a configuration as it prints."""
    lanes.check_format(op, op.chosen_dtype)
    configs = [RowConfig("fused", warps, warps) for warps in WARPS]
    if schedule not in ("auto", "fused"):
        configs = [configs[0].changed(schedule)]
        rows.check(spec, op.head_dim, configs[0])
    moved = op.results[0].size_bytes
    best = rows.ranked(
        op, spec, configs,
        lambda config: [
            rows.load(spec, op.tokens * op.vectors, op.head_dim, config, read_bytes=moved, written_bytes=moved,
                      cost=TURN, reductions=int(op.norm))
        ],
    )  # fmt: skip
    return Choice(best[0][0], best)


@register("rope", "gpu", "fused")
def build(op: Rope, spec: GpuSpec, config: RowConfig) -> Program:
    """The program: one kernel."""
    if config.rows != config.warps:
        raise InputError(f"schedule={config}: a warp has a vector; nearest: rows {config.warps}")
    shape = (op.tokens * op.vectors, op.head_dim)
    given, positions, angles, *weights = (
        lanes.tensor(o, shape={"x": shape, "positions": (1, op.tokens)}.get(o.name)) for o in op.operands
    )
    y, dtype = lanes.tensor(op.results[0], "output", shape), op.chosen_dtype

    def looked_up(w: RowKernel, name: str, tensor: GlobalTensor, row: Expr) -> RegisterTile:
        tile = RegisterTile(name, (1, op.head_dim), dtype)
        count, vector = w.accesses(tensor, (1, op.head_dim))
        w.r.ldg(tile.whole, tensor[row:1, 0 : op.head_dim], count, into=name, vector_bytes=vector)  # type: ignore[misc]
        return tile

    def body(w: RowKernel) -> None:
        token, head = w.row // op.vectors, w.row % op.vectors
        place = RegisterTile("position", (1, 1), "int32")
        w.r.ldg(place.whole, positions[0:1, token:1], 1, into="position", vector_bytes=4)  # type: ignore[misc]
        x = w.load(given)
        # Token t has position t: which one it is, is known when the program is written, but waited for.
        w.r.run("imad", 1, dtype="int32", dst=place.whole, srcs=(place.whole,), compute=lanes.keep, after=("position",))
        table = looked_up(w, "angles", angles, token)
        wide = lanes.widen(dtype)
        cost, after = lanes.total(TURN, wide, lanes.narrow(spec, dtype)), (given.name, "angles")
        if not weights:
            out = w.map("out", cost, (x, table.whole), lambda ok, v, a: turned(v, a), dtype=dtype, after=after)
        else:
            weight = looked_up(w, "weight", weights[0], head >= op.heads)
            total = w.reduce(
                "total", "fadd", lanes.total(norms.SUM, {"fmul.fp32": 1.0}, wide), (x,),
                lambda ok, v: (v * v).sum(axis=1), sums, after=(given.name,),
            )  # fmt: skip

            def both(ok: Array, v: Array, a: Array, t: Array, scale: Array) -> Array:
                return turned(v / np.sqrt(t / op.head_dim + EPSILON) * scale, a)

            out = w.map(
                "out", lanes.total(cost, norms.SCALE, wide), (x, table.whole, total, weight.whole), both, dtype=dtype,
                once=norms.ROOT, after=("angles", "weight"),
            )  # fmt: skip
        w.store(y, out)

    kernel = RowKernel("rope", spec, *shape, config).write(body)
    return Program(str(op), (given, positions, angles, *weights, y), (kernel,), str(config), {"config": config})
