"""Attention by the MATH backend of PyTorch's `scaled_dot_product_attention`, with sums in 16 bits allowed.

Kernels and their order are those of `_scaled_dot_product_attention_math` (ATen/native/transformers/attention.cpp, 2.5
and later): Q and K are multiplied by the root of the scale; heads of K and V are repeated where several query heads
read them; Q K^T; a causal mask is made of booleans (ones, tril, where), and added to the scores in place; softmax is
the safe one, which also asks of every score whether it is minus infinity, of every row whether all of them are, and
takes zeros there; P V. Numbers to compare with and to choose are tensors of one element, each filled by a kernel.
Operands and result lie head by head.

The comparison, the choice and the addition have operands whose strides do not fit each other: one element a thread at a
time, as in `unfused`. The bytes that the comparison stores say here which scores are none, so that a maximum stands for
`all`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
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
from workloads.gpu.attention.blocks import Array, AttentionProblem, problem
from workloads.gpu.attention.unfused import (
    CODE_BYTES,
    CTA,
    ELEMENTS,
    WARPS,
    UnfusedConfig,
    add_mask,
    by_rows,
    elements,
    index_mix,
    over_mask,
    plain,
    product,
    scratch,
    softmax_of,
    triangle,
)
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.overhead import INSTRUCTION_BYTES, Mix
from workloads.gpu.rows import softmax
from workloads.ops import Gemm, Softmax
from workloads.ops.attention import Attention
from workloads.registry import register

TORCH = "torch"
"""Kind of softmax."""
BOOLEAN = "int8"
_VECTOR_BYTES = 16
SCALE = plain(14, 2, 14)
COMPARE = plain(2, 0, 1)
CHOOSE = plain(2, 0, 0)
"""Instructions of a vector that is scaled, of an element that is compared, of one that is chosen. Assumptions."""


@dataclass(frozen=True)
class TorchMathConfig(UnfusedConfig):
    """Nothing to choose: each kernel's configuration is its own operator's."""

    schedule: ClassVar[str] = "torch-math"
    more_passes: ClassVar[int] = 4


@register("attention", "gpu", "torch-math")
def build(op: Attention, spec: GpuSpec, config: TorchMathConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where a kernel cannot take the machine or the problem."""
    p = problem(op)
    config.check(p, spec)
    op, dtype = p.op, p.dtype
    heads, shape = op.batch * op.heads, (op.batch * op.heads, op.queries, op.keys)
    q_in, k_in, v_in, o_out = (_by_heads(t) for t in (p.q, p.k, p.v, p.o))
    p = replace(p, q=q_in, k=k_in, v=v_in, o=o_out)
    q, k = (
        scratch(f"{n}_scaled", (heads, rows, op.head_dim), dtype) for n, rows in (("q", op.queries), ("k", op.keys))
    )
    q_flat, k_all, v, o = (_flat(tensor) for tensor in (q_in, k_in, v_in, o_out))
    scores, weights, result = (scratch(name, shape, dtype) for name in ("scores", "weights", "safe"))
    seen = scratch("seen", shape, BOOLEAN)
    numbers = scratch("numbers", (3,), dtype)
    rows = heads * op.queries
    any_seen = scratch("any_seen", (rows, 1), BOOLEAN)
    tensors = [q_in, k_in, v_in, o_out, q_flat, k_all, v, o, q, k, scores, weights, result, seen, any_seen, numbers]
    root = op.head_dim**-0.25
    kernels = [_scaled("q", q_flat, q, root)]
    if p.masked:
        whole, lower = (scratch(name, (op.queries, op.keys), BOOLEAN) for name in ("whole", "lower"))
        mask = scratch("mask", (op.queries, op.keys), dtype)
        tensors += [whole, lower, mask]
        kernels += [_ones(p, whole), triangle(p, whole, lower, ELEMENTS), _number(numbers, 0), _mask(p, lower, mask)]
    if op.heads != op.key_heads:
        k_all, v = (scratch(f"{n}_repeated", (heads, op.keys, op.head_dim), dtype) for n in ("k", "v"))
        tensors += [k_all, v]
        kernels += [_repeated(p, k_in, k_all), _repeated(p, v_in, v)]
    kernels.append(_scaled("k", k_all, k, root))
    first = Gemm(m=op.queries, n=op.keys, k=op.head_dim, batch=heads, tb="T", dtype=dtype)
    kernels += product(first, spec, q, k, scores, tensors)
    if p.masked:
        kernels.append(add_mask(p, scores, mask, scores))
    flat = (rows, op.keys)
    score_rows, weight_rows, seen_rows = (
        replace(scratch(f"{t.name}_rows", flat, t.dtype), alias=t.name) for t in (scores, weights, seen)
    )
    tensors += [score_rows, weight_rows, seen_rows]
    kernels += softmax_of(Softmax(rows=rows, cols=op.keys, dtype=dtype), spec, TORCH, score_rows, weight_rows)
    kernels += [_number(numbers, 1), _is_seen(score_rows, seen_rows)]
    kernels += [softmax.any_of_rows("all", spec, flat, seen_rows, any_seen), _number(numbers, 2)]
    kernels.append(_where(p, weights, any_seen, result))
    second = Gemm(m=op.queries, n=op.head_dim, k=op.keys, batch=heads, dtype=dtype)
    kernels += product(second, spec, result, v, o, tensors)
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


def _by_heads(tensor: GlobalTensor) -> GlobalTensor:
    """[batch, row, head, :] in memory as [batch, head, row, :]."""
    _, rows, heads, d = tensor.shape
    return replace(tensor, strides=(heads * rows * d, d, rows * d, 1))


def _flat(tensor: GlobalTensor) -> GlobalTensor:
    """The same memory as [batch head, row, :]."""
    batch, rows, heads, d = tensor.shape
    return replace(scratch(f"{tensor.name}_flat", (batch * heads, rows, d), tensor.dtype), alias=tensor.name)


def _scaled(name: str, source: GlobalTensor, target: GlobalTensor, scale: float) -> Kernel:
    """All heads of an operand times a number: a vector a thread."""
    heads, all_rows, d = target.shape
    access, row_bytes = WARP_SIZE * _VECTOR_BYTES, d * DTYPE_BYTES[target.dtype]
    rows = max(1, access // row_bytes)
    count = ceil_div(rows * row_bytes, access)
    grid = (ceil_div(all_rows, WARPS * rows), heads, 1)
    builder = KernelBuilder(f"scale_{name}", grid, code_bytes=64 * INSTRUCTION_BYTES)
    with builder.role("warps", WARPS, 24) as r:
        here = RegisterTile("here", (rows, d), target.dtype)
        row = (CTA_X * WARPS + WARP) * rows
        r.ldg(here.whole, source[CTA_Y, row:rows, :], count, into="here", vector_bytes=_VECTOR_BYTES)  # type: ignore[misc]
        r.run(
            SCALE[0][0], SCALE[0][1], dtype="int32", dst=here.whole, compute=lambda x: x * scale, after=("here",),
            mix=SCALE[1:],
        )  # fmt: skip
        r.stg(target[CTA_Y, row:rows, :], here.whole, count, vector_bytes=_VECTOR_BYTES)  # type: ignore[misc]
    return builder.build()


def _repeated(p: AttentionProblem, source: GlobalTensor, target: GlobalTensor) -> Kernel:
    """Heads as often as query heads read them."""
    d = p.op.head_dim
    grid = (ceil_div(target.shape[1] * d, CTA * ELEMENTS), target.shape[0], 1)
    here = RegisterTile("here", (1, WARP_SIZE), p.dtype)
    head = p.key_head(CTA_Y % p.op.heads)

    def copy(r: RoleBuilder, row: Expr, column: Expr) -> None:
        r.ldg(here.whole, source[CTA_Y // p.op.heads, row, head, column:WARP_SIZE], 1, into="here", vector_bytes=2)  # type: ignore[misc]
        r.stg(target[CTA_Y, row, column:WARP_SIZE], here.whole, 1, vector_bytes=2, after=("here",))  # type: ignore[misc]

    builder = KernelBuilder(f"repeat_{source.name}", grid, code_bytes=CODE_BYTES)
    return elements(builder, index_mix(2, 3), by_rows(d, copy))


def _ones(p: AttentionProblem, target: GlobalTensor) -> Kernel:
    """True everywhere, which stands for minus infinity below."""
    return over_mask(p, "ones", None, target, ELEMENTS, plain(10, 4, 0), lambda old, row, first: np.ones_like(old))


def _mask(p: AttentionProblem, source: GlobalTensor, target: GlobalTensor) -> Kernel:
    """0 where a query sees a key, else minus infinity."""
    cost = tuple((name, ELEMENTS * count) for name, count in _sum(index_mix(3, 1), CHOOSE))

    def compute(_: Array, given: Array, row: int, first: int) -> Array:
        return np.where(given > 0, -np.inf, 0.0)

    return over_mask(p, "where_mask", source, target, ELEMENTS, cost, compute)


def _sum(*parts: Mix) -> Mix:
    return tuple(entry for part in parts for entry in part)


def _number(numbers: GlobalTensor, place: int) -> Kernel:
    """A tensor of one element."""
    builder = KernelBuilder("fill", (1, 1, 1), code_bytes=32 * INSTRUCTION_BYTES)
    with builder.role("warps", WARPS, 16) as r:
        number = RegisterTile("number", (1,), numbers.dtype)
        cost = plain(8, 2, 6)
        r.run(cost[0][0], cost[0][1], dtype="int32", dst=number.whole, mix=cost[1:], compute=lambda old: old * 0)
        with r.when(WARP.equals(0)):
            r.stg(numbers[place:1], number.whole, 1, vector_bytes=2)  # type: ignore[misc]
    return builder.build()


def _is_seen(scores: GlobalTensor, target: GlobalTensor) -> Kernel:
    """Of each score whether it is more than minus infinity."""
    rows, cols = scores.shape
    x, flag = RegisterTile("x", (1, WARP_SIZE), scores.dtype), RegisterTile("flag", (1, WARP_SIZE), target.dtype)
    grid = (ceil_div(cols, CTA * ELEMENTS), rows, 1)

    def body(r: RoleBuilder, number: Expr) -> None:
        r.ldg(x.whole, scores[CTA_Y, number:WARP_SIZE], 1, into="x", vector_bytes=2)  # type: ignore[misc]
        r.run(
            COMPARE[0][0], COMPARE[0][1], dtype="int32", dst=flag.whole, srcs=(x.whole,), mix=COMPARE[1:],
            compute=lambda _, given: (given > -np.inf).astype(given.dtype), after=("x",),
        )  # fmt: skip
        r.stg(target[CTA_Y, number:WARP_SIZE], flag.whole, 1, vector_bytes=1)  # type: ignore[misc]

    return elements(KernelBuilder("eq", grid, code_bytes=CODE_BYTES), index_mix(3, 1), body)


def _where(p: AttentionProblem, weights: GlobalTensor, any_seen: GlobalTensor, target: GlobalTensor) -> Kernel:
    """The weights, and zeros in rows that see nothing."""
    op = p.op
    x, flag = RegisterTile("x", (1, WARP_SIZE), p.dtype), RegisterTile("flag", (1, 1), BOOLEAN)
    grid = (ceil_div(op.keys, CTA * ELEMENTS), op.queries, op.batch * op.heads)

    def body(r: RoleBuilder, number: Expr) -> None:
        r.ldg(flag.whole, any_seen[CTA_Z * op.queries + CTA_Y, 0:1], 1, into="flag", vector_bytes=1)  # type: ignore[misc]
        r.ldg(x.whole, weights[CTA_Z, CTA_Y, number:WARP_SIZE], 1, into="x", vector_bytes=2)  # type: ignore[misc]
        r.run(
            CHOOSE[0][0], CHOOSE[0][1], dtype="int32", dst=x.whole, srcs=(flag.whole,), mix=CHOOSE[1:],
            compute=lambda given, seen: np.where(seen > 0, given, 0.0), after=("x", "flag"),
        )  # fmt: skip
        r.stg(target[CTA_Z, CTA_Y, number:WARP_SIZE], x.whole, 1, vector_bytes=2)  # type: ignore[misc]

    return elements(KernelBuilder("where", grid, code_bytes=CODE_BYTES), index_mix(3, 2), body)
