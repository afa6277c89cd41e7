"""Attention as separate kernels, as PyTorch runs it without a fused one: every intermediate goes through memory.

The operators are those of `attention_pytorch` in the published benchmarks: copies that bring heads together (that of K
transposed, `rearrange(k, 'b s h d -> (b h) d s')`), Q K^T as a batched product of the vendor library, a mask made in
fp32 (full, triu, cast) and added to all heads' scores, softmax, and P V, whose result is returned as a view. Softmax
is the `torch-2.0` kernel. The scale is a factor of the first product, whose epilogue multiplies by one in any case;
here the numbers get it in the copy of Q.

Copies and the addition take operands whose strides do not fit each other, for which PyTorch has one kernel: a thread
takes four elements, each a division by multiplication and an offset a dimension and operand. Its pointers may alias, so
an element's loads come after the store of the one before: a thread has one element on its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    CTA_Z,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
)
from workloads.gpu.attention.blocks import Array, AttentionProblem, check_lengths, problem, width
from workloads.gpu.attention.compose import on_tensors
from workloads.gpu.attention.configuration import AttentionConfig
from workloads.gpu.figures import figures, transfer
from workloads.gpu.gemm import choose as gemm
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.overhead import INSTRUCTION_BYTES, Mix, mix
from workloads.gpu.rows import softmax
from workloads.ops import Gemm, Softmax
from workloads.ops.attention import Attention
from workloads.registry import build as build_kernel
from workloads.registry import register

TORCH = "torch-2.0"
"""Kind of softmax. The published comparisons do not state the version; beyond 1024 columns the kernel of 2.1 to 2.6
would take about twice the measured time."""
WARPS = 4
ELEMENTS = 4
"""Elements of a thread in PyTorch's elementwise kernels, one CTA of 128 threads apart."""
MASK_DTYPE = "fp32"


def plain(alu: int, imad: int, other: int) -> Mix:
    """Instructions of an element; `other`: uniform loads of constants, branches, moves and half-precision arithmetic,
    which leave the integer pipe alone."""
    return (*mix(alu, imad), ("ffma", other))


def index_mix(operands: int, dimensions: int) -> Mix:
    """Index arithmetic, bounds and control of one element (SASS of a kernel of that form, nvcc 13, sm_90: 15 and 12 a
    dimension with two operands, 22 and 14 with three)."""
    alu, other = (8, 7) if operands == 2 else (10, 12)
    return plain(alu + 4 * dimensions, (2 + operands) * dimensions, other + (2 + operands) * dimensions)


ADD = plain(1, 0, 3)
"""Two conversions, a multiply-add, and a conversion back."""
TRIANGLE = plain(24, 8, 10)
"""Of an element of triu: row and column by 64-bit division, comparison. Assumption."""


@dataclass(frozen=True)
class UnfusedConfig(AttentionConfig):
    """Nothing to choose: each kernel's configuration is its own operator's. more_passes: over the scores."""

    schedule: ClassVar[str] = "unfused"
    more_passes: ClassVar[int] = 0

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take these kernels."""
        check_lengths(p, f"schedule={self}", "flash2-varlen")
        if p.op.value_dim != p.op.head_dim:
            raise InputError(f"schedule={self}: values are as wide as keys here; nearest: head_dim_v={p.op.head_dim}")
        if p.out != p.dtype or DTYPE_BYTES[p.dtype] != 2:
            raise InputError(f"schedule={self}: kernels have fp16 and bf16 in and out, not {p.dtype} and {p.out}")
        if blind := p.op.blind:
            raise InputError(
                f"schedule={self}: the first {blind} queries see no key and give no softmax; "
                f"nearest: seq_q={p.op.queries - blind}"
            )

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """Scores are written and read three times each, weights read once more; the safe softmax reads both once more,
        and writes weights again."""
        f = figures(spec)
        score_bytes = p.op.batch * p.op.heads * p.op.queries * p.op.keys * width(p)
        passes = (6 if p.masked else 4) + self.more_passes
        cycles = transfer(passes * score_bytes, f.dram_rate) + 7 * (f.start + 2 * f.load_latency)
        return 7 * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)


@register("attention", "gpu", "unfused")
def build(op: Attention, spec: GpuSpec, config: UnfusedConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where a kernel cannot take the machine or the problem."""
    p = problem(op)
    config.check(p, spec)
    op = p.op
    heads, dtype = op.batch * op.heads, p.dtype
    q, v = (
        scratch(f"{name}_heads", (heads, rows, op.head_dim), dtype)
        for name, rows in (("q", op.queries), ("v", op.keys))
    )
    k = scratch("k_heads", (heads, op.head_dim, op.keys), dtype)
    scores, masked, weights = (
        scratch(name, (heads, op.queries, op.keys), dtype) for name in ("scores", "masked", "weights")
    )
    # What the second product writes head by head is returned as it lies.
    result = replace(p.o, strides=(op.heads * op.queries * op.head_dim, op.head_dim, op.queries * op.head_dim, 1))
    o = replace(scratch("o_heads", (heads, op.queries, op.head_dim), dtype), alias=result.name)
    tensors = [p.q, p.k, p.v, result, q, k, v, scores, weights, o]
    if p.masked:
        tensors.append(masked)
    flat = (heads * op.queries, op.keys)
    score_rows, masked_rows, weight_rows = (
        replace(scratch(f"{t.name}_rows", flat, dtype), alias=t.name) for t in (scores, masked, weights)
    )
    kernels = [copy_heads(p, p.q, q, 1 / math.sqrt(op.head_dim)), _copy_transposed(p, k)]
    kernels += product(
        Gemm(m=op.queries, n=op.keys, k=op.head_dim, batch=heads, dtype=dtype), spec, q, k, scores, tensors
    )
    if p.masked:
        whole, lower = (scratch(name, (op.queries, op.keys), MASK_DTYPE) for name in ("whole", "triangle"))
        mask = scratch("mask", (op.queries, op.keys), dtype)
        tensors += [whole, lower, mask]
        kernels += [_full(p, whole), triangle(p, whole, lower), _cast(p, lower, mask)]
        kernels.append(add_mask(p, scores, mask, masked))
    rows = Softmax(rows=flat[0], cols=flat[1], dtype=dtype)
    kernels += softmax_of(rows, spec, TORCH, masked_rows if p.masked else score_rows, weight_rows)
    kernels.append(copy_heads(p, p.v, v))
    kernels += product(
        Gemm(m=op.queries, n=op.head_dim, k=op.keys, batch=heads, dtype=dtype), spec, weights, v, o, tensors
    )
    tensors += [score_rows, masked_rows, weight_rows] if p.masked else [score_rows, weight_rows]
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


def scratch(name: str, shape: tuple[int, ...], dtype: str) -> GlobalTensor:
    """A dense tensor of the program's own."""
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(name, shape, dtype, strides, "scratch")


def product(
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


def softmax_of(op: Softmax, spec: GpuSpec, kind: str, x: GlobalTensor, y: GlobalTensor) -> list[Kernel]:
    """Softmax of rows as a version of PyTorch runs it."""
    program = build_kernel(op, spec, softmax.choose(op, spec, kind).config)
    given, result = program.tensors[0].name, program.tensors[1].name
    return [on_tensors(kernel, {given: x, result: y}, kernel.name) for kernel in program.kernels]


# --------------------------------------------------------------------------------------------------------- kernels

CTA = WARPS * WARP_SIZE
CODE_BYTES = 256 * INSTRUCTION_BYTES
"""What runs of an elementwise kernel, which is unrolled over its elements and for up to 25 dimensions."""


def elements(builder: KernelBuilder, index: Mix, body: Callable[[RoleBuilder, Expr], None]) -> Kernel:
    """A kernel whose threads take one element after the other: `body` loads, computes and stores 32 of a warp, from
    the given number on, counted from the first of all CTAs in x."""
    with builder.role("warps", WARPS, 18) as r:
        place = RegisterTile("place", (1, 1), "int32")
        with r.loop("number", ELEMENTS, CTA_X * (CTA * ELEMENTS) + WARP * WARP_SIZE, CTA) as number:
            first, *rest = index
            r.run(first[0], first[1], dtype="int32", dst=place.whole, mix=tuple(rest), compute=lambda old: old)
            body(r, number)
    return builder.build()


def by_rows(columns: int, body: Callable[[RoleBuilder, Expr, Expr], None]) -> Callable[[RoleBuilder, Expr], None]:
    """`body` with row and column of a warp's elements from a number on. Where they reach into further rows, it is
    called for each, with a column before the first: accesses of their own, where the machine has one in all."""

    def parts(r: RoleBuilder, number: Expr) -> None:
        row, column = number // columns, number % columns
        body(r, row, column)
        if columns % WARP_SIZE:
            with r.loop("further", (column + (WARP_SIZE - 1)) // columns, start=1) as further:
                body(r, row + further, column - further * columns)

    return parts


def copy_heads(p: AttentionProblem, source: GlobalTensor, target: GlobalTensor, scale: float = 1.0) -> Kernel:
    """[batch, row, head, :] to [batch head, row, :], key heads as often as query heads read them."""
    op, d = p.op, p.op.head_dim
    head = CTA_Y % op.heads if source is p.q else p.key_head(CTA_Y % op.heads)
    grid = (ceil_div(target.shape[1] * d, CTA * ELEMENTS), op.batch * op.heads, 1)
    here = RegisterTile("here", (1, WARP_SIZE), p.dtype)

    def copy(r: RoleBuilder, row: Expr, column: Expr) -> None:
        r.ldg(here.whole, source[CTA_Y // op.heads, row, head, column:WARP_SIZE], 1, into="here", vector_bytes=2)  # type: ignore[misc]
        r.op(
            "stg", dst=target[CTA_Y, row, column:WARP_SIZE], srcs=(here.whole,), vector_bytes=2, after=("here",),
            compute=lambda _, x: x * scale,
        )  # type: ignore[misc]  # fmt: skip

    builder = KernelBuilder(f"copy_{source.name}", grid, code_bytes=CODE_BYTES)
    return elements(builder, index_mix(2, 4), by_rows(d, copy))


def _copy_transposed(p: AttentionProblem, target: GlobalTensor) -> Kernel:
    """K as [batch head, :, row]: neighbouring threads write neighbours and read from rows of their own."""
    op = p.op
    grid = (ceil_div(op.keys, CTA * ELEMENTS), op.head_dim, op.batch * op.heads)
    here = RegisterTile("here", (WARP_SIZE, 1), p.dtype)
    head = p.key_head(CTA_Z % op.heads)

    def body(r: RoleBuilder, number: Expr) -> None:
        box = p.k[CTA_Z // op.heads, number:WARP_SIZE, head, CTA_Y]  # type: ignore[misc]
        r.ldg(here.whole, box, 1, into="here", vector_bytes=2)
        r.stg(target[CTA_Z, CTA_Y, number:WARP_SIZE], here.whole, 1, vector_bytes=2, after=("here",))  # type: ignore[misc]

    return elements(KernelBuilder("copy_k_transposed", grid, code_bytes=CODE_BYTES), index_mix(2, 3), body)


def add_mask(p: AttentionProblem, scores: GlobalTensor, mask: GlobalTensor, target: GlobalTensor) -> Kernel:
    """scores + mask, which is broadcast over batch and heads."""
    op = p.op
    grid = (ceil_div(op.keys, CTA * ELEMENTS), op.queries, op.batch * op.heads)
    x, m = (RegisterTile(name, (1, WARP_SIZE), p.dtype) for name in ("x", "m"))

    def body(r: RoleBuilder, number: Expr) -> None:
        r.ldg(x.whole, scores[CTA_Z, CTA_Y, number:WARP_SIZE], 1, into="x", vector_bytes=2)  # type: ignore[misc]
        r.ldg(m.whole, mask[CTA_Y, number:WARP_SIZE], 1, into="m", vector_bytes=2)  # type: ignore[misc]
        r.run(
            ADD[0][0],
            ADD[0][1],
            dtype="int32",
            dst=x.whole,
            srcs=(m.whole,),
            compute=_plus,
            after=("x", "m"),
            mix=ADD[1:],
        )
        r.stg(target[CTA_Z, CTA_Y, number:WARP_SIZE], x.whole, 1, vector_bytes=2)  # type: ignore[misc]

    return elements(KernelBuilder("add_mask", grid, code_bytes=CODE_BYTES), index_mix(3, 2), body)


def _plus(x: Array, m: Array) -> Array:
    return x + m


def over_mask(
    p: AttentionProblem, name: str, source: GlobalTensor | None, target: GlobalTensor, vector_bytes: int, cost: Mix,
    compute: Callable[..., Array],
) -> Kernel:  # fmt: skip
    """A kernel over the mask, `ELEMENTS` neighbours a thread: compute(old, source, row, first column). vector_bytes: of
    an access to the source, or to the target of none."""
    span = WARP_SIZE * ELEMENTS
    builder = KernelBuilder(
        name, (ceil_div(p.op.keys, span * WARPS), p.op.queries, 1), code_bytes=64 * INSTRUCTION_BYTES
    )
    column = (CTA_X * WARPS + WARP) * span
    with builder.role("warps", WARPS, 32) as r:
        from_dtype = source.dtype if source else target.dtype
        given, result = RegisterTile("given", (1, span), from_dtype), RegisterTile("result", (1, span), target.dtype)
        loads = ceil_div(ELEMENTS * DTYPE_BYTES[from_dtype], vector_bytes)
        if source is not None:
            r.ldg(given.whole, source[CTA_Y, column:span], loads, into="given", vector_bytes=vector_bytes)  # type: ignore[misc]
        r.run(
            cost[0][0], cost[0][1], dtype="int32", dst=result.whole, srcs=() if source is None else (given.whole,),
            compute=compute, indices=(CTA_Y, column), after=() if source is None else ("given",), mix=cost[1:],
        )  # fmt: skip
        stored = vector_bytes * DTYPE_BYTES[target.dtype] // DTYPE_BYTES[from_dtype]
        r.stg(target[CTA_Y, column:span], result.whole, loads, vector_bytes=stored)  # type: ignore[misc]
    return builder.build()


def _full(p: AttentionProblem, target: GlobalTensor) -> Kernel:
    """Minus infinity everywhere."""
    return over_mask(p, "full", None, target, 16, plain(10, 4, 0), lambda old, row, first: np.full_like(old, -np.inf))


def triangle(p: AttentionProblem, source: GlobalTensor, target: GlobalTensor, vector_bytes: int = 4) -> Kernel:
    """0 where a query sees a key, else what the source has."""

    def compute(_: Array, given: Array, row: int, first: int) -> Array:
        seen = p.seen(np.array([row]), first + np.arange(given.shape[1]))
        return np.where(seen, 0.0, given)

    cost = tuple((name, ELEMENTS * count) for name, count in TRIANGLE)
    return over_mask(p, "triangle", source, target, vector_bytes, cost, compute)


def _cast(p: AttentionProblem, source: GlobalTensor, target: GlobalTensor) -> Kernel:
    """The mask in the scores' format."""
    return over_mask(p, "cast_mask", source, target, 4, plain(16, 4, 8), lambda old, given, row, first: given)
