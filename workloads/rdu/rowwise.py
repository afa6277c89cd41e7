"""Softmax and norms as streaming pipelines: each step over a block of rows is a stage, double buffers between them.

While one stage subtracts in block i, the one before takes the maximum of block i + 1: all are in flight at once, and
memory is touched once on either side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.program import Call, Counter, Out, Output, Program, Section, Tensor, Value
from workloads.ops import LayerNorm, RmsNorm, RowOperator, Softmax, SoftmaxBackward
from workloads.ops.rowwise import EPSILON
from workloads.rdu.select import ceil_div, check_dtype, launch_cycles, load_cycles, pick
from workloads.registry import register

SHOWN = 8
"""Candidates that are shown."""
STAGES = 6
"""Stages from load to store, about."""
_FORM = re.compile(r"streaming (\d+) rows")


@dataclass(frozen=True)
class RowConfig:
    """Rows of a block."""

    rows: int

    schedule = "streaming"

    def __str__(self) -> str:
        return f"streaming {self.rows} rows"

    def build(self, op: RowOperator, spec: RduSpec) -> Program:
        """The program, one section."""
        section, i = Section(op.word), Counter("block", ceil_div(op.rows, self.rows))
        at, tile = (i * self.rows, 0), (self.rows, op.cols)
        blocks = [
            section.load(f"load_{o.name}", Tensor(o.name, o.shape, o.dtype), at, tile, (i,))
            for o in op.operands
            if o.shape == op.shape
        ]
        y = _STAGES[op.word](section, op, *blocks, i, self.rows)
        (output,) = op.results
        section.store(f"store_{output.name}", Tensor(output.name, op.shape, op.out_dtype, "output"), at, y, (i,))
        return Program(str(op), (Call(section),), str(self))


@register("layernorm", "rdu", "streaming")
@register("rmsnorm", "rdu", "streaming")
@register("softmax", "rdu", "streaming")
@register("softmax_backward", "rdu", "streaming")
def build(op: RowOperator, spec: RduSpec, config: RowConfig) -> Program:
    """The program of a configuration."""
    return config.build(op, spec)


@register("layernorm", "rdu", "auto")
@register("rmsnorm", "rdu", "auto")
@register("softmax", "rdu", "auto")
@register("softmax_backward", "rdu", "auto")
def choose(op: RowOperator, spec: RduSpec, schedule: str) -> list[tuple[RowConfig, int]]:
    """Blocks by estimated cycles: the launch, memory's time, and what fills the pipeline."""
    check_dtype(op, spec)
    if isinstance(op, RmsNorm) and op.add == "1":
        raise InputError(f"{op}: {spec.name} adds in a stage of a graph before it; nearest: add=0")
    ranked = []
    width = DTYPE_BYTES[str(op.dtype)]
    rate, load = spec.main_memory.bandwidth_bytes_per_s, load_cycles(spec)
    # A stage's pipeline is as deep as its PCUs and the hops to the next one, whatever a block's size.
    deep = 2 * spec.mesh.rows * spec.mesh.hop_cycles + spec.pcu.stages + spec.pcu.latency_cycles
    for power in range(14):
        rows = min(op.rows, 1 << power)
        block_bytes = rows * op.cols * width
        if STAGES * 3 * block_bytes > spec.pmu.count * spec.pmu.size_bytes // 2 and rows > 1:
            break
        blocks, moved = ceil_div(op.rows, rows), 2 * block_bytes * spec.clock.boost_hz // rate
        # A double buffer hides memory's latency where a block takes as long as that, and the way to its readers.
        each = max(moved, (moved + load + 2 * deep) // 2)
        # PCUs are given out for twice memory's pace, and stages of few blocks, which take turns, share that time.
        stage = moved // (2 * max(1, STAGES // blocks)) + deep
        ranked.append((RowConfig(rows), launch_cycles(spec) + load + (blocks - 1) * each + moved + STAGES * stage))
        if rows == op.rows:
            break
    ranked.sort(key=lambda entry: (entry[1], -entry[0].rows))
    return list(pick(op.word, schedule, ranked[:SHOWN], _parse))


def _parse(text: str) -> RowConfig | None:
    match = _FORM.fullmatch(text)
    return RowConfig(int(match[1])) if match else None


def _softmax(section: Section, op: Softmax, x: Output, i: Counter, rows: int) -> Output:
    tile, column = Out((rows, op.cols), "fp32", (i,)), Out((rows, 1), "fp32", (i,))
    top = section.stage("row_max", (i,), {"x": x}, lambda x: x.row_max(), column)
    # x waits in its own buffer while its maximum is found: one block more than a double buffer.
    difference = section.stage("subtract", (i,), {"x": x.read(3), "top": top}, lambda x, top: x - top, tile)
    e = section.stage("exponent", (i,), {"d": difference}, lambda d: d.exp(), tile)
    total = section.stage("row_sum", (i,), {"e": e}, lambda e: e.row_sum(), column)
    return _named(
        section, "divide", i, {"e": e.read(3), "s": total}, lambda e, s: e / s, Out((rows, op.cols), op.out_dtype, (i,))
    )


def _named(
    section: Section, name: str, i: Counter, inputs: dict[str, Any], body: Callable[..., Value], out: Out
) -> Output:
    made: Output = section.stage(name, (i,), inputs, body, out)
    return made


def _rmsnorm(section: Section, op: RmsNorm, x: Output, i: Counter, rows: int) -> Output:
    weight = section.load("load_weight", Tensor("weight", (op.cols,), str(op.dtype)), (0,), (op.cols,), (), units=1)
    column = Out((rows, 1), "fp32", (i,))

    def root(x: Value) -> Value:
        return ((x * x).row_sum() * (1 / op.cols) + EPSILON).tail("rsqrt")

    scale = section.stage("root_mean_square", (i,), {"x": x}, root, column)
    return _named(
        section,
        "scale",
        i,
        {"x": x.read(3), "s": scale, "w": weight.read(1)},
        lambda x, s, w: x * s * w,
        Out((rows, op.cols), op.out_dtype, (i,)),
    )


def _layernorm(section: Section, op: LayerNorm, x: Output, i: Counter, rows: int) -> Output:
    vectors = [
        section.load(f"load_{name}", Tensor(name, (op.cols,), str(op.dtype)), (0,), (op.cols,), (), units=1)
        for name in (("weight", "bias") if op.affine == "1" else ())
    ]
    column = Out((rows, 1), "fp32", (i,))
    mean = section.stage("mean", (i,), {"x": x}, lambda x: x.row_sum() * (1 / op.cols), column)
    centred = section.stage(
        "centre", (i,), {"x": x.read(3), "m": mean}, lambda x, m: x - m, Out((rows, op.cols), "fp32", (i,))
    )

    def root(x: Value) -> Value:
        return ((x * x).row_sum() * (1 / op.cols) + EPSILON).tail("rsqrt")

    scale = section.stage("deviation", (i,), {"x": centred}, root, column)
    return _named(
        section,
        "scale",
        i,
        {"x": centred.read(3), "s": scale} | {name: v.read(1) for name, v in zip("wb", vectors, strict=False)},
        (lambda x, s, w, b: x * s * w + b) if vectors else (lambda x, s: x * s),
        Out((rows, op.cols), op.out_dtype, (i,)),
    )


def _softmax_backward(section: Section, op: SoftmaxBackward, dy: Output, y: Output, i: Counter, rows: int) -> Output:
    column = Out((rows, 1), "fp32", (i,))
    inner = section.stage("inner_product", (i,), {"dy": dy, "y": y}, lambda dy, y: (dy * y).row_sum(), column)
    return _named(
        section,
        "difference",
        i,
        {"dy": dy.read(3), "y": y.read(3), "s": inner},
        lambda dy, y, s: (dy - s) * y,
        Out((rows, op.cols), op.out_dtype, (i,)),
    )


_STAGES: dict[str, Callable[..., Output]] = {
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
}
