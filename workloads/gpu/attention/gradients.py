"""What kernels for the gradients of attention have in common: their tensors, and the kernels beside the products."""

from __future__ import annotations

import math

import numpy as np

from arch.dtypes import DTYPE_BYTES
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    CTA_Z,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    RegisterTile,
    as_expr,
    maximum,
    minimum,
)
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import LOG2_E, Array
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.ops import AttentionBackward

WARPS = 8
"""Of a CTA of the kernels beside the products."""


def contiguous(name: str, shape: tuple[int, ...], dtype: str, role: str = "scratch") -> GlobalTensor:
    """A contiguous tensor."""
    return GlobalTensor(name, shape, dtype, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), role)


class Gradients:
    """Tensors of a problem whose kernels take `block_m` queries and `block_n` keys at a time.

    group: query heads that share a key head. dk, dv: of each query head. ahead: keys after its own that a query sees;
    None for all. d: columns of a head in the kernels.
    """

    def __init__(self, op: AttentionBackward, block_m: int, block_n: int, d: int) -> None:
        self.op, self.block_m, self.block_n, self.d = op, block_m, block_n, d
        self.dtype = op.chosen_dtype
        self.queries, self.keys = op.forward.queries, op.forward.keys
        self.group = op.heads // op.forward.key_heads
        self.inputs = {o.name: contiguous(*o, "input") for o in op.operands}
        self.outputs = {o.name: contiguous(*o, "output") for o in op.results}
        expanded = (op.batch, self.keys, op.heads, op.head_dim)
        self.dk, self.dv = (
            self.outputs[name] if self.group == 1 else contiguous(f"{name}_expanded", expanded, self.dtype)
            for name in ("dk", "dv")
        )
        self.scale = 1 / math.sqrt(op.head_dim)
        self.ahead = 0 if op.causal == "1" else op.window - 1 if op.window else None

    def rows_of_queries(self, name: str, code: int) -> tuple[KernelBuilder, int, Expr]:
        """A kernel over the rows of queries; rows of a warp and the first one."""
        grid = (ceil_div(self.queries, self.block_m), self.op.batch, self.op.heads)
        own = self.block_m // WARPS
        k = KernelBuilder(name, grid, code_bytes=code * overhead.INSTRUCTION_BYTES)
        return k, own, CTA_X * self.block_m + WARP * own

    def heads_added(self) -> tuple[list[GlobalTensor], list[Kernel]]:
        """Where query heads share key heads, tensors and kernels by which dK and dV are added up."""
        if self.group == 1:
            return [], []
        kernels = [self._add_heads(self.dk, self.outputs["dk"]), self._add_heads(self.dv, self.outputs["dv"])]
        return [self.dk, self.dv], kernels

    def _add_heads(self, source: GlobalTensor, target: GlobalTensor) -> Kernel:
        """Gradients of query heads that share a key head, added up: a warp a key and key head."""
        op, d = self.op, self.d
        heads = op.forward.key_heads
        k = KernelBuilder(
            f"sum_{target.name}", (ceil_div(self.keys, WARPS), op.batch, heads),
            code_bytes=200 * overhead.INSTRUCTION_BYTES,
        )  # fmt: skip
        parts, out = (RegisterTile(name, (rows, d), self.dtype) for name, rows in (("parts", self.group), ("out", 1)))
        row = CTA_X * WARPS + WARP
        with k.role("warps", WARPS, 40) as r, r.when(row < self.keys):
            box = source[CTA_Y, row, CTA_Z * self.group : self.group, 0:d]  # type: ignore[misc]
            count = ceil_div(self.group * d * DTYPE_BYTES[self.dtype], 32 * MAX_VECTOR_BYTES)
            r.ldg(parts.whole, box, count, into="parts", mix=overhead.mix(alu=30, imad=15))
            r.run(
                "fadd", ceil_div(self.group * d, 32), dtype="fp32", dst=out.whole, srcs=(parts.whole,), compute=_total,
                after=("parts",),
            )  # fmt: skip
            vector = 1 << (ceil_div(d * DTYPE_BYTES[self.dtype], 32) - 1).bit_length()  # of a row by all lanes
            r.stg(target[CTA_Y, row, CTA_Z, 0:d], out.whole, 1, vector_bytes=vector)  # type: ignore[misc]
        return k.build()

    def scaled(self, _: Array, source: Array) -> Array:
        """Products with the scale of the scores."""
        return source * self.scale

    def scaled_in_place(self, values: Array) -> Array:
        """The same of values that stay where they are."""
        return values * self.scale

    def seeing(self, n: Expr) -> tuple[Expr, Expr]:
        """First and last block of queries that see keys of block `n`."""
        first, last = as_expr(0), as_expr(ceil_div(self.queries, self.block_m) - 1)
        if self.ahead is None:
            return first, last
        key = n * self.block_n + (self.queries - self.keys)
        seeing = maximum(0, (key - self.ahead) // self.block_m)
        if not self.op.window:
            return seeing, last
        return seeing, minimum(last, (key + (self.block_n + self.op.window - 2)) // self.block_m)

    def hidden(self, n: Expr, row: Expr) -> Expr:
        """Whether queries from `row` on do not see all keys of block `n`, for a mask that hides some."""
        assert self.ahead is not None
        key = n * self.block_n - (self.keys - self.queries)  # query that stands at the block's first key
        hidden = row < key + (self.block_n - 1 - self.ahead)
        if self.op.window:
            hidden = maximum(hidden, row > key + (self.op.window - self.block_m))
        return hidden

    def masked(self, scores: Array, first_row: int, first_column: int) -> Array:
        """Scores of queries by keys from these on, minus infinity where a key is not seen."""
        rows, columns = scores.shape
        first, last = self.op.forward.visible(first_row + np.arange(rows), self.queries, self.keys)
        column = first_column + np.arange(columns)
        return np.where((column >= first[:, None]) & (column <= last[:, None]), scores, -np.inf)

    def weights(self, scores: Array, lse: Array) -> Array:
        """Weights of scores, from the logarithms of the sums of their rows."""
        return np.exp2(self.scale * LOG2_E * scores - LOG2_E * lse)


def kept(values: Array) -> Array:
    """Values that are only rounded."""
    return values


def dotted(_: Array, left: Array, right: Array) -> Array:
    """Sums of products along rows."""
    return (left * right).sum(axis=1, keepdims=True)


def slope(dp: Array, weights: Array, dots: Array) -> Array:
    """Gradients of scores, without their scale."""
    return weights * (dp - dots)


def _total(_: Array, parts: Array) -> Array:
    return parts.sum(axis=0, keepdims=True)
