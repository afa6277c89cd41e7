"""Attention as separate kernels, as PyTorch runs it without a fused one: every intermediate goes through memory.

Heads are brought together (a copy each of Q, K, V, and of O at the end; that of K is transposed, as `rearrange(k, 'b s
h d -> (b h) d s')` in the published benchmarks), Q K^T and P V are batched products of the
vendor library, softmax is its `torch-2.0` kernel. A mask is a matrix that is added to all heads'
scores. The scale goes into the copy of Q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.program import CTA_X, CTA_Y, CTA_Z, WARP, Expr, GlobalTensor, Kernel, KernelBuilder, Program, RegisterTile
from workloads.gpu import choose as gemm
from workloads.gpu import softmax
from workloads.gpu.attention import Array, AttentionProblem, problem
from workloads.gpu.compose import on_tensors
from workloads.gpu.overhead import INSTRUCTION_BYTES, mix
from workloads.gpu.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.ops import Gemm, Softmax
from workloads.ops.attention import Attention
from workloads.registry import build as build_kernel
from workloads.registry import register

TORCH = "torch-2.0"
"""Kind of softmax. The published comparisons do not state the version; beyond 1024 columns the kernel of 2.1 to 2.6
would take about twice the measured time."""
WARPS = 4
ELEMENTS = 4
"""Elements of a thread in PyTorch's elementwise kernels that cannot use vectors."""
INDEX = mix(alu=12, imad=12)
"""Index arithmetic of one element of such a kernel with an operand that is broadcast: a division by multiplication and
an offset for each of its dimensions and operands. Assumption: 24 instructions."""


@dataclass(frozen=True)
class UnfusedConfig:
    """Nothing to choose: each kernel's configuration is its own operator's."""

    schedule: ClassVar[str] = "unfused"

    def __str__(self) -> str:
        return self.schedule


def check(p: AttentionProblem, spec: GpuSpec, config: UnfusedConfig) -> None:
    """InputError if the machine or the problem cannot take these kernels."""
    if p.out != p.dtype or DTYPE_BYTES[p.dtype] != 2:
        raise InputError(f"schedule={config}: kernels have fp16 and bf16 in and out, not {p.dtype} and {p.out}")
    if p.causal and p.op.queries > p.op.keys:
        raise InputError(
            f"schedule={config}: the first {p.op.queries - p.op.keys} queries see no key and give no softmax; "
            f"nearest: seq_q={p.op.keys}"
        )


@register("attention", "gpu", "unfused")
def build(op: Attention, spec: GpuSpec, config: UnfusedConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where a kernel cannot take the machine or the problem."""
    p = problem(op)
    check(p, spec, config)
    op = p.op
    heads, dtype = op.batch * op.heads, p.dtype
    q, v, o = (
        _scratch(f"{name}_heads", (heads, rows, op.head_dim), dtype)
        for name, rows in (("q", op.queries), ("v", op.keys), ("o", op.queries))
    )
    k = _scratch("k_heads", (heads, op.head_dim, op.keys), dtype)
    scores, weights = (_scratch(name, (heads, op.queries, op.keys), dtype) for name in ("scores", "weights"))
    flat = (heads * op.queries, op.keys)
    score_rows, weight_rows = (
        replace(_scratch(f"{t.name}_rows", flat, dtype), alias=t.name) for t in (scores, weights)
    )
    tensors = [p.q, p.k, p.v, p.o, q, k, v, scores, score_rows, weights, weight_rows, o]
    scale = 1 / math.sqrt(op.head_dim)
    kernels = [_gather(p, p.q, q, scale), _transpose(p, k), _gather(p, p.v, v)]
    kernels += _product(
        Gemm(m=op.queries, n=op.keys, k=op.head_dim, batch=heads, dtype=dtype), spec, q, k, scores, tensors
    )
    if p.masked:
        mask = _scratch("mask", (op.queries, op.keys), dtype)
        tensors.append(mask)
        kernels += [_mask(p, mask), _add_mask(p, score_rows, mask)]
    kernels += _softmax(Softmax(rows=flat[0], cols=flat[1], dtype=dtype), spec, score_rows, weight_rows)
    kernels += _product(
        Gemm(m=op.queries, n=op.head_dim, k=op.keys, batch=heads, dtype=dtype), spec, weights, v, o, tensors
    )
    kernels.append(_scatter(p, o))
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


def _scratch(name: str, shape: tuple[int, ...], dtype: str) -> GlobalTensor:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(name, shape, dtype, strides, "scratch")


def _product(
    op: Gemm, spec: GpuSpec, a: GlobalTensor, b: GlobalTensor, c: GlobalTensor, tensors: list[GlobalTensor]
) -> list[Kernel]:
    """The vendor library's kernels of a batched product; their scratch joins `tensors`."""
    program = build_kernel(op, spec, gemm.choose(op, spec).config)
    names = {"A": a, "B": b, "C": c}
    for tensor in program.tensors:
        if tensor.name not in names:
            names[tensor.name] = replace(tensor, name=f"{c.name}_{tensor.name}")
            tensors.append(names[tensor.name])
    return [on_tensors(kernel, names, f"{c.name}_{kernel.name}") for kernel in program.kernels]


def _softmax(op: Softmax, spec: GpuSpec, x: GlobalTensor, y: GlobalTensor) -> list[Kernel]:
    program = build_kernel(op, spec, softmax.choose(op, spec, TORCH).config)
    given, result = program.tensors[0].name, program.tensors[1].name
    return [on_tensors(kernel, {given: x, result: y}, kernel.name) for kernel in program.kernels]


# --------------------------------------------------------------------------------------------------------- kernels


def _rows_of_a_warp(head_dim: int) -> int:
    """Rows of a head that a warp copies: 16 B a thread."""
    return max(1, WARP_SIZE * MAX_VECTOR_BYTES // (2 * head_dim))


def _gather(p: AttentionProblem, source: GlobalTensor, target: GlobalTensor, scale: float = 1.0) -> Kernel:
    """[batch, row, head, :] to [batch head, row, :], key heads as often as query heads read them."""
    op, d = p.op, p.op.head_dim
    head = CTA_Y % op.heads if source is p.q else p.key_head(CTA_Y % op.heads)
    rows = _rows_of_a_warp(d)
    builder = KernelBuilder(
        f"gather_{source.name}", (ceil_div(target.shape[1], rows * WARPS), op.batch * op.heads, 1),
        code_bytes=64 * INSTRUCTION_BYTES,
    )  # fmt: skip
    row = (CTA_X * WARPS + WARP) * rows
    with builder.role("warps", WARPS, 32) as r:
        here = RegisterTile("here", (rows, d), p.dtype)
        r.ldg(here.whole, source[CTA_Y // op.heads, row:rows, head, :], 1, into="here", mix=mix(alu=12, imad=8))  # type: ignore[misc]
        if scale != 1.0:
            r.run(
                "fmul", 8, dtype="fp32", dst=here.whole, after=("here",), compute=lambda x: x * scale,
                mix=(("cvt", 4),),
            )  # fmt: skip
        after = () if scale != 1.0 else ("here",)
        r.stg(target[CTA_Y, row:rows, :], here.whole, 1, after=after)  # type: ignore[misc]
    return builder.build()


def _transpose(p: AttentionProblem, target: GlobalTensor) -> Kernel:
    """K as [batch head, :, row]: neighbouring threads write neighbours and read from rows of their own."""
    op = p.op
    span, across = _span(p)
    builder = KernelBuilder(
        "transpose_k", (across, op.head_dim, op.batch * op.heads), code_bytes=128 * INSTRUCTION_BYTES
    )
    first = (CTA_X * WARPS + WARP) * span
    head = p.key_head(CTA_Z % op.heads)
    with builder.role("warps", WARPS, 32) as r:
        here = RegisterTile("here", (span, 1), p.dtype)
        index = tuple((name, ELEMENTS * n) for name, n in INDEX)
        box = p.k[CTA_Z // op.heads, first:span, head, CTA_Y]  # type: ignore[misc]
        r.ldg(here.whole, box, ELEMENTS, into="here", vector_bytes=2, mix=index)
        r.stg(target[CTA_Z, CTA_Y, first:span], here.whole, ELEMENTS, vector_bytes=2, after=("here",))  # type: ignore[misc]
    return builder.build()


def _scatter(p: AttentionProblem, source: GlobalTensor) -> Kernel:
    """[batch head, row, :] to [batch, row, head, :]."""
    op, d = p.op, p.op.head_dim
    rows = _rows_of_a_warp(d)
    builder = KernelBuilder(
        "scatter_o", (ceil_div(op.queries, rows * WARPS), op.batch * op.heads, 1), code_bytes=64 * INSTRUCTION_BYTES
    )
    row = (CTA_X * WARPS + WARP) * rows
    with builder.role("warps", WARPS, 32) as r:
        here = RegisterTile("here", (rows, d), p.dtype)
        r.ldg(here.whole, source[CTA_Y, row:rows, :], 1, into="here", mix=mix(alu=12, imad=8))  # type: ignore[misc]
        box = p.o[CTA_Y // op.heads, row:rows, CTA_Y % op.heads, :]  # type: ignore[misc]
        r.stg(box, here.whole, 1, after=("here",))
    return builder.build()


def _span(p: AttentionProblem) -> tuple[int, int]:
    """Elements of a warp and CTAs along a row of scores."""
    span = WARP_SIZE * ELEMENTS
    return span, ceil_div(p.op.keys, span * WARPS)


def _mask(p: AttentionProblem, mask: GlobalTensor) -> Kernel:
    """0 where a query sees a key, minus infinity elsewhere."""
    span, across = _span(p)
    builder = KernelBuilder("mask", (across, p.op.queries, 1), code_bytes=64 * INSTRUCTION_BYTES)
    column = (CTA_X * WARPS + WARP) * span

    def compute(_: Array, row: int, first: int) -> Array:
        seen = p.seen(np.array([row]), first + np.arange(span))
        return np.where(seen, 0.0, -np.inf)

    with builder.role("warps", WARPS, 32) as r:
        here = RegisterTile("here", (1, span), p.dtype)
        r.run(
            "sel", ELEMENTS, dtype="int32", dst=here.whole, compute=compute, indices=(CTA_Y, column),
            mix=mix(alu=16, imad=8),
        )  # fmt: skip
        r.stg(mask[CTA_Y, column:span], here.whole, 1, vector_bytes=8)  # type: ignore[misc]
    return builder.build()


def _add_mask(p: AttentionProblem, scores: GlobalTensor, mask: GlobalTensor) -> Kernel:
    """scores + mask in place; element by element, since one operand is broadcast."""
    span, across = _span(p)
    heads = p.op.batch * p.op.heads
    builder = KernelBuilder("add_mask", (across, p.op.queries, heads), code_bytes=128 * INSTRUCTION_BYTES)
    column = (CTA_X * WARPS + WARP) * span
    row: Expr = CTA_Z * p.op.queries + CTA_Y
    with builder.role("warps", WARPS, 32) as r:
        x, m = RegisterTile("x", (1, span), p.dtype), RegisterTile("m", (1, span), p.dtype)
        each = {"vector_bytes": 2}
        index = tuple((name, ELEMENTS * n) for name, n in INDEX)
        r.ldg(x.whole, scores[row, column:span], ELEMENTS, into="x", mix=index, **each)  # type: ignore[misc]
        r.ldg(m.whole, mask[CTA_Y, column:span], ELEMENTS, into="m", **each)  # type: ignore[misc]
        r.run(
            "fadd", ELEMENTS, dtype="fp32", dst=x.whole, srcs=(m.whole,), compute=_plus, after=("x", "m"),
            mix=(("cvt", 3 * ELEMENTS),),
        )  # fmt: skip
        r.stg(scores[row, column:span], x.whole, ELEMENTS, **each)  # type: ignore[misc]
    return builder.build()


def _plus(x: Array, m: Array) -> Array:
    return x + m
