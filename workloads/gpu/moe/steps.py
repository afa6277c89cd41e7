"""What runs behind the products of a layer of experts: activation and sum, and what fills tensors.

Kernels of vLLM (csrc/moe, csrc/activation_kernels.cu) and PyTorch. Instructions a warp are those that Nsight Compute
counted on H100 in vLLM 0.24's kernels with PyTorch 2.11 and CUDA 13: what the ALU runs as `iadd`, floating-point and
integer multiply-adds as `ffma`, and with these what takes a slot to issue and no more (branches, constants).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, WARP, Expr, GlobalTensor, Kernel, KernelBuilder, RegisterTile, RoleBuilder
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.blocks import Blocks, Numbers, looked_up
from workloads.gpu.overhead import DEPENDENT_CYCLES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.gpu.pointwise.pointwise import SETUP, WIDE_VECTORS
from workloads.gpu.rows import quantize
from workloads.ops import Moe, Quantize
from workloads.ops.base import Array

REGISTERS = 32
MAX_WARPS = 32
ACTIVATION_SETUP: Cost = {"iadd.int32": 6.0, "ffma.fp32": 16.0}
SILU: Cost = {"iadd.int32": 7.1, "ffma.fp32": 20.3, "ex2.fp32": 1.0, "rcp.fp32": 1.0}
"""Of a pair of elements: 235 instructions for eight pairs, beside two loads and a store."""
SILU_PATH = 92
"""Cycles of an element, which the machine code finishes before the next: 14 dependent instructions, ex2 and rcp."""
DIVISION: Cost = {"iadd.int32": 21.0, "ffma.fp32": 12.6}
"""Of an element more whose quotient is 0 / 2: 30 instructions of a subroutine, seven of them branches, and its call."""
DIVISION_PATH = 134
"""Of an element, nearly all of these one after the other."""
RELU2: Cost = {"ffma.fp32": 1.0, "iadd.int32": 1.5}
"""Of an element, in each of the two kernels."""
MOST_VECTOR, FEW = lanes.MAX_VECTOR_BYTES, 4
"""Bytes that a thread reads at once; elements where PyTorch's vectors are no longer."""
OWN_SUMS = (2, 3, 4)
"""Choices that vLLM's own kernel adds up."""
SUM_SETUP: Cost = {"iadd.int32": 3.0, "ffma.fp32": 5.0}
SUM_CHOICE_SETUP: Cost = {"iadd.int32": 1.5, "ffma.fp32": 2.5}
SUM_STEP: Cost = {"iadd.int32": 7.0, "ffma.fp32": 4.0}
SUM_CHOICE: Cost = {"iadd.int32": 2.0, "ffma.fp32": 3.0}
"""Of vLLM's sum: 25 instructions before its loop and 39 a step with four choices, with 4 loads, a store and
a rounding (F2F, on the XU pipe) of each sum but the last. What a choice has of these is that of the machine code."""
SUM_PATH = 25
"""Cycles of a choice that wait for the sum before: its rounding (17), a shift and an addition."""
SUM_WARPS, RESULTS, UNROLLED, REDUCTION_REGISTERS = 4, 4, 4, 54
"""PyTorch's reduction: warps of a CTA, results of a thread, rows at once."""
REDUCTION_SETUP: Cost = {"iadd.int32": 27.0, "ffma.fp32": 60.0}
REDUCTION_STEP: Cost = {"iadd.int32": 26.0, "ffma.fp32": 33.0}
REDUCTION_LEFT: Cost = {"iadd.int32": 11.0, "ffma.fp32": 10.0}
REDUCTION_LOOPED: Cost = {"iadd.int32": 24.0, "ffma.fp32": 8.0}
REDUCTION_END: Cost = {"iadd.int32": 68.0, "ffma.fp32": 126.0}
"""443 instructions a warp for eight rows: 102 before the loop, 63 a step of four rows with its loads, 215 behind, of
which 32 only where there is a loop. A row that is left takes 21 to 23 with its load, and is converted
before the next is read."""
JUMPS, JUMP_CYCLES = (3, 17), 72
"""Its 104 KB of code hold a case for everything, so that a warp jumps 20 times, before the loop and behind it, to what
its instruction cache has not fetched ahead: 1449 cycles a warp without an instruction (26 % of the samples of 7680
warps, 14 CTAs an SM; 2033 where an SM has one CTA)."""
FILL_WARPS, FILL_VECTORS = 4, 4
"""Of a CTA that fills a tensor; vectors of a thread (aten/src/ATen/native/cuda/CUDALoops.cuh)."""
CODE_BYTES = 4096
MOST_OPS, LEAST_CTAS = 500_000, 2000
"""Size of a sample of a long kernel: ops of all its CTAs, and CTAs at least."""


def fill(name: str, tensor: GlobalTensor, rows: Numbers, value: float) -> Kernel:
    """One value to some rows of a tensor, as PyTorch fills one: CTAs of four warps, a few vectors a thread."""
    columns = tensor.shape[1]
    vector = vector_bytes(columns, tensor.dtype)
    span = WARP_SIZE * vector // DTYPE_BYTES[tensor.dtype]
    steps = ceil_div(columns, span)
    units = len(rows) * steps
    ctas, sampled = sample(ceil_div(units, FILL_WARPS * FILL_VECTORS), 2 * FILL_WARPS * FILL_VECTORS)
    k = KernelBuilder(name, (len(ctas), 1, 1), code_bytes=CODE_BYTES)
    values = RegisterTile("values", (1, span), tensor.dtype)
    with k.role("warps", FILL_WARPS, REGISTERS) as r:
        cta = looked_up(ctas, CTA_X) if sampled else CTA_X
        r.run(
            "iadd", 12, dtype="int32", dst=values.whole, nominal=True,
            compute=lambda _: np.full((1, span), value),
        )  # fmt: skip
        for i in range(min(FILL_VECTORS, units)):
            unit = r.assign(f"unit{i}", (cta * FILL_VECTORS + i) * FILL_WARPS + WARP)
            with r.when(unit < units):
                row, at = looked_up(rows, unit // steps), unit % steps * span
                r.stg(tensor[row:1, at:span], values.whole, vector_bytes=vector)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def activate(op: Moe, b: Blocks, spec: GpuSpec, first: GlobalTensor, inner: GlobalTensor) -> list[Kernel]:
    """f of the first product: vLLM's kernel of gate and product, or PyTorch's of relu and square."""
    if op.first_columns > op.local_inter:
        return [_silu_and_mul(op, b, spec, first, inner)]
    return [
        _elementwise("relu", b, spec, first, first, lambda _, x: np.maximum(np.asarray(x, dtype=np.float64), 0)),
        _elementwise("square", b, spec, first, inner, lambda _, x: op.activated(np.asarray(x, dtype=np.float64))),
    ]


def _elementwise(
    name: str, b: Blocks, spec: GpuSpec, read: GlobalTensor, written: GlobalTensor, f: Callable[..., Array]
) -> Kernel:
    """PyTorch's kernel over all elements: four warps, eight elements of 2 B or four of 4 B a thread."""
    dtype, columns = read.dtype, read.shape[2]
    size = DTYPE_BYTES[dtype]
    elements = MOST_VECTOR // size
    span = WARP_SIZE * elements
    vector = math.gcd(MOST_VECTOR if spec.compute_capability in WIDE_VECTORS else FEW * size, columns * size)
    each = ceil_div(columns, span)
    units = len(b.places) * each
    ctas, sampled = sample(ceil_div(units, FILL_WARPS), 6 * FILL_WARPS)
    k = KernelBuilder(name, (len(ctas), 1, 1), code_bytes=CODE_BYTES)
    source, target, tile = by_rows(read), by_rows(written), RegisterTile("x", (1, span), dtype)
    cost = lanes.scaled(lanes.total(RELU2, lanes.widen(dtype), lanes.narrow(spec, dtype)), elements)
    with k.role("warps", FILL_WARPS, REGISTERS) as r:
        unit = r.assign("unit", (looked_up(ctas, CTA_X) if sampled else CTA_X) * FILL_WARPS + WARP)
        alone(r, spec, SETUP)
        with r.when(unit < units):
            row, at = looked_up(b.places, unit // each), unit % each * span
            r.ldg(tile.whole, source[row:1, at:span], into="in", vector_bytes=vector)  # type: ignore[misc]
            lanes.write(r, spec, cost, dst=tile.whole, srcs=(tile.whole,), compute=f, after=("in",))
            r.stg(target[row:1, at:span], tile.whole, vector_bytes=vector)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def _silu_and_mul(op: Moe, b: Blocks, spec: GpuSpec, first: GlobalTensor, inner: GlobalTensor) -> Kernel:
    """A CTA a row, 16 B a thread at once.

    Rows of zeros, which an expert on another device leaves, take the slow path of the division by 1 + exp(-x): nothing
    is stored of such a quotient but zero, but its range is looked at.
    """
    dtype, columns = first.dtype, op.local_inter
    vector = math.gcd(MOST_VECTOR, columns * DTYPE_BYTES[dtype])
    span = WARP_SIZE * vector // DTYPE_BYTES[dtype]
    warps = min(MAX_WARPS, ceil_div(columns, span))
    rows, sampled = sample(len(b.places), 7 * warps * ceil_div(columns, warps * span))
    k = KernelBuilder("silu_and_mul", (len(rows), 1, 1), code_bytes=CODE_BYTES)
    read, written = by_rows(first), by_rows(inner)
    tiles = [RegisterTile(name, (1, span), dtype) for name in ("gate", "up")]
    result = RegisterTile("result", (1, span), dtype)
    each = span // WARP_SIZE
    silu, division = lanes.scaled(SILU, each), lanes.scaled(DIVISION, each)
    elsewhere = (b.experts < 0)[b.places // b.size].astype(np.int64)
    slow = not b.filtered and bool(elsewhere.any())

    def f(_: Array, *values: Array) -> Array:
        return op.activated(np.concatenate([np.asarray(v, dtype=np.float64) for v in values], axis=1))

    with k.role("warps", warps, REGISTERS) as r:
        alone(r, spec, ACTIVATION_SETUP)
        row = r.assign("row", looked_up(b.places[rows], CTA_X))
        zeros = r.assign("zeros", looked_up(elsewhere[rows], CTA_X)) if slow else None
        with r.loop("step", ceil_div(columns, warps * span)) as step:
            at = (step * warps + WARP) * span
            with r.when(at < columns):
                for i, tile in enumerate(tiles):
                    r.ldg(tile.whole, read[row:1, at + i * columns : span], into="in", vector_bytes=vector)  # type: ignore[misc]
                lanes.write(
                    r, spec, silu, dst=result.whole, srcs=tuple(tile.whole for tile in tiles), compute=f,
                    after=("in",), chain=chain(spec, silu, SILU_PATH * each),
                )  # fmt: skip
                if zeros is not None:
                    with r.when(zeros):
                        lanes.write(
                            r, spec, division, dst=result.whole, srcs=(result.whole,), compute=lanes.keep,
                            chain=chain(spec, division, DIVISION_PATH * each),
                        )  # fmt: skip
                r.stg(written[row:1, at:span], result.whole, vector_bytes=vector)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def quantise(b: Blocks, spec: GpuSpec, read: GlobalTensor, written: GlobalTensor, scales: GlobalTensor) -> Kernel:
    """Rows that lie block by block in fp8, a warp for each block of 128 elements, which share a scale."""
    groups, span = scales.shape[2], read.shape[2] // scales.shape[2]
    op = Quantize(rows=1, cols=span, dtype=read.dtype)
    units = len(b.places) * groups
    ctas, sampled = sample(ceil_div(units, FILL_WARPS), 12 * FILL_WARPS)
    k = KernelBuilder("per_token_group_quant", (len(ctas), 1, 1), code_bytes=CODE_BYTES)
    x, scale = RegisterTile("x", (1, span), read.dtype), RegisterTile("scale", (1, 1), "fp32")
    out = RegisterTile("out", (1, span), written.dtype)
    source, target, found = by_rows(read), by_rows(written), by_rows(scales)
    each = span // WARP_SIZE
    cost = lanes.scaled(lanes.total(quantize.LARGER, lanes.widen(read.dtype)), each)
    quotients = lanes.scaled(lanes.total(quantize.QUOTIENT, lanes.narrow(spec, written.dtype)), each)
    with k.role("warps", FILL_WARPS, REGISTERS) as r:
        unit = r.assign("unit", (looked_up(ctas, CTA_X) if sampled else CTA_X) * FILL_WARPS + WARP)
        with r.when(unit < units):
            row, group = r.assign("row", looked_up(b.places, unit // groups)), unit % groups
            box = (row, group * span)
            r.ldg(x.whole, source[box[0] : 1, box[1] : span], into="in", vector_bytes=each * DTYPE_BYTES[read.dtype])  # type: ignore[misc]
            lanes.write(
                r, spec, cost, dst=scale.whole, srcs=(x.whole,), after=("in",),
                compute=lambda _, v: np.abs(np.asarray(v, dtype=np.float64)).max(axis=1, keepdims=True),
            )  # fmt: skip
            lanes.write(
                r, spec, lanes.total({"shfl.b32": lanes.SHUFFLES, "fmnmx.fp32": lanes.SHUFFLES}, quantize.SCALE),
                dst=scale.whole, srcs=(scale.whole,), compute=lambda _, v: op.scale_of(v), chain=lanes.SHUFFLES,
            )  # fmt: skip
            lanes.write(r, spec, quotients, dst=out.whole, srcs=(x.whole, scale.whole), compute=lambda _, v, s: v / s)
            r.stg(target[box[0] : 1, box[1] : span], out.whole, vector_bytes=each * DTYPE_BYTES[written.dtype])  # type: ignore[misc]
            r.stg(found[row:1, group:1], scale.whole, 1, vector_bytes=4)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def add_up(op: Moe, b: Blocks, spec: GpuSpec, second: GlobalTensor, weights: GlobalTensor, y: GlobalTensor) -> Kernel:
    """The sum over a token's choices: a kernel of vLLM for two to four of them (csrc/moe/moe_align_sum_kernels.cu),
    else PyTorch's reduction. The weights, by which the second product has multiplied, count here for the numbers."""
    write = _sum_of_few if op.topk in OWN_SUMS else _reduction
    return write(op, b, spec, second, weights, y)


def _weighed(_: Array, w: Array, values: Array) -> Array:
    return np.asarray(w.astype(np.float64) @ values.astype(np.float64))


def _sum_of_few(
    op: Moe, b: Blocks, spec: GpuSpec, second: GlobalTensor, weights: GlobalTensor, y: GlobalTensor
) -> Kernel:
    """A CTA a token, an element a thread and step; each partial sum is rounded."""
    dtype, size = y.dtype, DTYPE_BYTES[y.dtype]
    warps = min(MAX_WARPS, ceil_div(op.hidden, WARP_SIZE))
    trips = ceil_div(op.hidden, warps * WARP_SIZE)
    tokens, sampled = sample(op.tokens, (op.topk + 3) * warps * trips)
    k = KernelBuilder("moe_sum", (len(tokens), 1, 1), code_bytes=CODE_BYTES)
    read = by_rows(second)
    own = RegisterTile("own", (1, op.topk), "fp32")
    choices = RegisterTile("choices", (op.topk, WARP_SIZE), dtype)
    result = RegisterTile("sum", (1, WARP_SIZE), dtype)
    cost = lanes.total(SUM_STEP, lanes.scaled(SUM_CHOICE, op.topk))
    if dtype != "fp32":
        cost = lanes.total(cost, {"cvt.int32": op.topk - 1.0})
    path = chain(spec, cost, op.topk * SUM_PATH)
    with k.role("warps", warps, REGISTERS) as r:
        alone(r, spec, lanes.total(SUM_SETUP, lanes.scaled(SUM_CHOICE_SETUP, op.topk)))
        token = r.assign("token", looked_up(tokens, CTA_X)) if sampled else CTA_X
        r.ldg(own.whole, weights[token:1, :], into="in", vector_bytes=4)  # type: ignore[misc]
        with r.loop("step", trips) as step:
            at = (step * warps + WARP) * WARP_SIZE
            with r.when(at < op.hidden):
                for i in range(op.topk):
                    row = looked_up(b.places[i :: op.topk][tokens], CTA_X)
                    r.ldg(choices[i:1, :], read[row:1, at:WARP_SIZE], into="in", vector_bytes=size)  # type: ignore[misc]
                lanes.write(
                    r, spec, cost, dst=result.whole, srcs=(own.whole, choices.whole), compute=_weighed, after=("in",),
                    chain=path,
                )  # fmt: skip
                r.stg(y[token:1, at:WARP_SIZE], result.whole, vector_bytes=size)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def _reduction(
    op: Moe, b: Blocks, spec: GpuSpec, second: GlobalTensor, weights: GlobalTensor, y: GlobalTensor
) -> Kernel:
    """Four warps a CTA, four neighbouring results a thread: four rows at once in a loop, those that are left one after
    the other, and each result is stored by itself (aten/src/ATen/native/cuda/Reduce.cuh)."""
    dtype, size = y.dtype, DTYPE_BYTES[y.dtype]
    vector = math.gcd(RESULTS * size, op.hidden * size)
    span = WARP_SIZE * RESULTS
    each = ceil_div(op.hidden, span)
    left = op.topk % UNROLLED
    ctas, sampled = sample(ceil_div(op.tokens * each, SUM_WARPS), SUM_WARPS * (op.topk + 8))
    k = KernelBuilder("reduce_kernel", (len(ctas), 1, 1), code_bytes=CODE_BYTES)
    read = by_rows(second)
    own = RegisterTile("own", (1, op.topk), "fp32")
    choices = RegisterTile("choices", (op.topk, span), dtype)
    result = RegisterTile("sum", (1, span), dtype)

    def accumulate(r: RoleBuilder, token: Expr, at: Expr, first: int, count: int, cost: Cost) -> None:
        for i in range(first, first + count):
            row = looked_up(b.places[i :: op.topk], token)
            r.ldg(choices[i:1, :], read[row:1, at:span], into="in", vector_bytes=vector)  # type: ignore[misc]
        rows = choices[first:count, :]  # type: ignore[misc]
        lanes.write(r, spec, cost, dst=rows, srcs=(rows,), compute=lanes.keep, after=("in",))

    with k.role("warps", SUM_WARPS, REDUCTION_REGISTERS) as r:
        cta = looked_up(ctas, CTA_X) if sampled else CTA_X
        unit = r.assign("unit", cta * SUM_WARPS + WARP)
        alone(r, spec, REDUCTION_SETUP, JUMPS[0] * JUMP_CYCLES)
        with r.when(unit < op.tokens * each):
            token, at = r.assign("token", unit // each), r.assign("at", unit % each * span)
            r.ldg(own.whole, weights[token:1, :], into="in", vector_bytes=4)  # type: ignore[misc]
            for first in range(0, op.topk - left, UNROLLED):
                accumulate(r, token, at, first, UNROLLED, REDUCTION_STEP)
            for i in range(op.topk - left, op.topk):
                accumulate(r, token, at, i, 1, REDUCTION_LEFT)
            cost = lanes.total(REDUCTION_END, REDUCTION_LOOPED if op.topk >= UNROLLED else {})
            lanes.write(
                r, spec, cost, dst=result.whole, srcs=(own.whole, choices.whole), compute=_weighed,
                chain=chain(spec, cost, DEPENDENT_CYCLES * sum(cost.values()) + JUMPS[1] * JUMP_CYCLES),
            )  # fmt: skip
            r.stg(y[token:1, at:span], result.whole, RESULTS, vector_bytes=size)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def chain(spec: GpuSpec, cost: Cost, cycles: float) -> int:
    """Dependent steps of `lanes.write` by which instructions take a warp alone so many cycles."""
    return max(1, round(cycles / sum(lanes.instruction(spec, name).latency_cycles for name in cost)))


def alone(r: RoleBuilder, spec: GpuSpec, cost: Cost, further: int = 0) -> None:
    """Instructions most of which wait for the one before, and which the next ones wait for; further cycles."""
    done = RegisterTile("place", (1, 1), "int32")
    steps = chain(spec, cost, DEPENDENT_CYCLES * sum(cost.values()) + further)
    lanes.write(r, spec, cost, dst=done.whole, compute=np.zeros_like, chain=steps)
    r.run("iadd", 1, dtype="int32", dst=done.whole, srcs=(done.whole,), compute=lanes.keep)


def sample(ctas: int, ops: int) -> tuple[Numbers, int]:
    """Numbers of the CTAs of a long kernel that are simulated, evenly over all, and how many they stand for; 0 where
    they are all. ops: of one of them."""
    simulated = min(ctas, max(LEAST_CTAS, MOST_OPS // ops))
    return np.arange(simulated) * ctas // simulated, ctas if simulated < ctas else 0


def by_rows(tensor: GlobalTensor) -> GlobalTensor:
    """A tensor that lies block by block, as its rows."""
    blocks, size, columns = tensor.shape
    name, shape = f"{tensor.name}_rows", (blocks * size, columns)
    return GlobalTensor(name, shape, tensor.dtype, (columns, 1), "scratch", alias=tensor.name)


def vector_bytes(elements: int, dtype: str) -> int:
    """Bytes that a thread reads at once of a row."""
    return math.gcd(16, elements * DTYPE_BYTES[dtype])
