"""Gradients of scaled dot-product attention."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops.attention import Attention
from workloads.ops.base import (
    Array,
    Operand,
    Operator,
    choice,
    count,
    derived_extent,
    extent,
    number_format,
    operator,
    rounding,
)
from workloads.ops.dtypes import epsilon


@operator("attention_backward", kind="contraction", example="batch=2 heads=16 head_dim=128 seq=2k causal=1")
@dataclass(frozen=True)
class AttentionBackward(Operator):
    """dQ, dK and dV of attention, from dO, Q, K, V, O and the logarithms of the sums of its rows.

    Tensors lie as those of `attention`; LSE is [batch, heads, seq_q]. With P = exp(Q K^T / sqrt(head_dim) - LSE) and D
    the sums of dO O over rows, dV = P^T dO and dS = P (dO V^T - D), of which dQ and dK are products with K and Q.
    `deterministic=1` adds up dQ in an order that does not depend on which CTA comes first. Masks: as of `attention`.
    """

    batch: int = extent(help="independent sequences")
    heads: int = extent(help="query heads")
    head_dim: int = extent(help="elements of a head's vector")
    kv_heads: int | None = derived_extent(help="key and value heads; default: heads")
    seq: int | None = derived_extent(help="queries and keys of a sequence; default: seq_q and seq_k are given")
    seq_q: int | None = derived_extent(help="queries of a sequence; default: seq")
    seq_k: int | None = derived_extent(help="keys of a sequence; default: seq")
    causal: str = choice("0", ("0", "1"), help="1: a query sees no later key")
    window: int = count(0, help="keys that a query sees, its own included; 0: all")
    deterministic: str = choice("0", ("0", "1"), help="1: sums of dQ do not depend on the order of CTAs")
    dtype: str | None = number_format("of all tensors; default: the machine's")

    def __post_init__(self) -> None:
        """Checks lengths and heads as attention does, and that each query sees a key."""
        super().__post_init__()
        queries, keys = self.forward.queries, self.forward.keys
        ahead = 0 if self.causal == "1" else self.window - 1
        if (self.causal == "1" or self.window) and queries > keys + ahead:
            mask, most = ("causal", f"seq_k={keys}") if not ahead else (f"window={self.window}", str(keys + ahead))
            raise InputError(f"attention_backward seq_q={queries}: {mask}, at most {most}, so that each sees a key")

    @functools.cached_property
    def forward(self) -> Attention:
        """The attention whose gradients these are."""
        keys = ("batch", "heads", "head_dim", "kv_heads", "seq", "seq_q", "seq_k", "causal", "window", "dtype")
        return Attention(**{key: getattr(self, key) for key in keys})

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def macs(self) -> int:
        """Five products where attention has two: scores once more, dP, dV, dK, dQ."""
        return self.forward.macs // 2 * 5

    @property
    def operands(self) -> tuple[Operand, ...]:
        """dO, Q, K, V, O, LSE."""
        q, k, v = self.forward.operands
        o = Operand("o", q.shape, q.dtype)
        return (Operand("do", *o[1:]), q, k, v, o, Operand("lse", (self.batch, self.heads, q.shape[1]), "fp32"))

    @property
    def results(self) -> tuple[Operand, ...]:
        """dQ, dK, dV."""
        return tuple(Operand(f"d{operand.name}", operand.shape, operand.dtype) for operand in self.forward.operands)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands; O and LSE are those of the forward pass."""
        do, q, k, v, _, _ = super().inputs(seed, data)
        (o,) = dataclasses.replace(self.forward, out=self.dtype).references(q, k, v)
        lse = np.zeros(self.operands[-1].shape)
        for b, h, scores, _ in self._heads(q, k):
            top = scores.max(axis=1)
            lse[b, h] = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
        return do, q, k, v, o, round_to(lse, "fp32")

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """dQ, dK, dV in float64, rounded once."""
        return tuple(round_to(gradient, self.chosen_dtype) for gradient in self._gradients(operands, lambda x: x))

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The same sums with absolute values."""
        return self._gradients(operands, np.abs)

    @property
    def tolerance(self) -> float:
        """Roundings of weights and of dS, which tensor cores take in the operands' format, and of the results, those of
        heads that share keys one by one."""
        longest = max(self.forward.queries, self.forward.keys)
        found = rounding(self.chosen_dtype, longest * self.heads // self.forward.key_heads)
        return found + 3 * epsilon(self.chosen_dtype) + 8 * self.head_dim * epsilon("fp32")

    def _heads(self, q: Array, k: Array) -> list[tuple[int, int, Array, int]]:
        """Sequence, head, scores (minus infinity where a key is not seen) and key head of each head."""
        queries, keys, found = self.forward.queries, self.forward.keys, []
        first, last = self.forward.visible(np.arange(queries)[:, None], queries, keys)
        seen = (np.arange(keys)[None, :] >= first) & (np.arange(keys)[None, :] <= last)
        for b in range(self.batch):
            for h in range(self.heads):
                shared = h * self.forward.key_heads // self.heads
                scores = q[b, :, h] @ k[b, :, shared].T / math.sqrt(self.head_dim)
                found.append((b, h, np.where(seen, scores, -np.inf), shared))
        return found

    def _gradients(self, operands: tuple[Array, ...], sized: Callable[[Array], Array]) -> tuple[Array, ...]:
        """dQ, dK and dV of values, or of their sizes."""
        do, q, k, v, o, lse = (np.asarray(operand, dtype=np.float64) for operand in operands)
        dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
        sign = 1 if sized(np.array(-1.0)) < 0 else -1
        for b, h, scores, shared in self._heads(q, k):
            p = np.exp(scores - lse[b, h][:, None])
            own_do = sized(do[b, :, h])
            sums = (own_do * sized(o[b, :, h])).sum(axis=1, keepdims=True)
            ds = p * (own_do @ sized(v[b, :, shared]).T - sign * sums) / math.sqrt(self.head_dim)
            dv[b, :, shared] += p.T @ own_do
            dq[b, :, h] = ds @ sized(k[b, :, shared])
            dk[b, :, shared] += ds.T @ sized(q[b, :, h])
        return dq, dk, dv
