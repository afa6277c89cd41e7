"""The filters of int8 brought into the order of the tensor cores, in a kernel before the convolution.

cuDNN permutes the filters' output channels for IMMA in every call, unless its user has had it done once before
(`cudnnReorderFilterAndBias`, `CUDNN_DEFAULT_REORDER`). Here every value is read and written, and keeps its place.
"""

from __future__ import annotations

import math
from dataclasses import replace

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import CTA_X, WARP, GlobalTensor, Kernel, KernelBuilder, RegisterTile
from workloads.gpu import overhead
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Load
from workloads.ops.base import Array

WARPS = 8
REGISTERS = 24
INSTRUCTIONS = 24
"""Of a thread: its place, a load, a store."""


def ordered(w: GlobalTensor) -> GlobalTensor:
    """The filters in their new order."""
    return replace(w, name="w_ordered", role="scratch")


def lines(w: GlobalTensor) -> tuple[GlobalTensor, GlobalTensor]:
    """Both orders as lines of what a warp moves at once."""
    values = math.prod(w.shape)
    line = math.gcd(values, WARP_SIZE * MAX_VECTOR_BYTES // DTYPE_BYTES[w.dtype])
    shape, strides = (values // line, line), (line, 1)
    return (
        GlobalTensor("w_lines", shape, w.dtype, strides, "scratch", alias=w.name),
        GlobalTensor("w_ordered_lines", shape, w.dtype, strides, "scratch", alias=ordered(w).name),
    )


def kernel(w: GlobalTensor) -> Kernel:
    """A warp a line."""
    source, target = lines(w)
    count, line = source.shape
    k = KernelBuilder(
        "reorder_filters", (ceil_div(count, WARPS), 1, 1), code_bytes=INSTRUCTIONS * overhead.INSTRUCTION_BYTES
    )  # fmt: skip
    number = CTA_X * WARPS + WARP
    vector = lanes.vector_bytes(line, w.dtype, MAX_VECTOR_BYTES)
    moves = ceil_div(line * DTYPE_BYTES[w.dtype], WARP_SIZE * vector)
    with k.role("warps", WARPS, REGISTERS) as r, r.when(number < count):
        there = RegisterTile("there", (1, line), w.dtype)
        back = RegisterTile("back", (1, line), w.dtype)
        r.ldg(there.whole, source[number, 0:line], moves, into="there", vector_bytes=vector)  # type: ignore[misc]
        r.run(
            overhead.ALU,
            INSTRUCTIONS,
            dtype="int32",
            dst=back.whole,
            srcs=(there.whole,),
            compute=_same,
            after=("there",),
        )
        r.stg(target[number, 0:line], back.whole, moves, vector_bytes=vector)  # type: ignore[misc]
    return k.build()


def _same(old: Array, value: Array) -> Array:
    """What was read."""
    return value


def time_ps(w: GlobalTensor, spec: GpuSpec) -> int:
    """Estimated picoseconds of the kernel."""
    ctas = ceil_div(lines(w)[0].shape[0], WARPS)
    resident = max(1, lanes.resident(spec, WARPS, REGISTERS))
    issue = ceil_div(WARPS * INSTRUCTIONS, spec.sm.sub_cores)
    size = w.size_bytes
    return lanes.load_ps(spec, [Load(ctas, resident, size, size, issue, path=2 * INSTRUCTIONS)])
