"""Scaled dot-product attention."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, choice, count, derived_extent, extent, number_format, rounding
from workloads.ops.dtypes import default_output, epsilon


@dataclass(frozen=True)
class Attention(Operator):
    """O = softmax(Q K^T / sqrt(head_dim)) V for each batch and head.

    Q and O are [batch, seq_q, heads, head_dim], K and V [batch, seq_k, kv_heads, head_dim], row-major; query head h
    reads key head h * kv_heads // heads. `causal=1` lets query i see keys up to i + seq_k - seq_q, `window=w` only the
    last w of those and, where not causal, w - 1 after them. A query that sees no key gives zeros.
    """

    word: ClassVar[str] = "attention"
    example: ClassVar[str] = "batch=2 heads=16 head_dim=128 seq=2k causal=1"

    batch: int = extent(help="independent sequences")
    heads: int = extent(help="query heads")
    head_dim: int = extent(help="elements of a head's vector")
    kv_heads: int | None = derived_extent(help="key and value heads; default: heads")
    seq: int | None = derived_extent(help="queries and keys of a sequence; default: seq_q and seq_k are given")
    seq_q: int | None = derived_extent(help="queries of a sequence; default: seq")
    seq_k: int | None = derived_extent(help="keys of a sequence; default: seq")
    causal: str = choice("0", ("0", "1"), help="1: a query sees no later key")
    window: int = count(0, help="keys that a query sees, its own included; 0: all")
    dtype: str | None = number_format("of Q, K and V; default: the machine's")
    out: str | None = number_format("of O; default: the input's, fp8 to bf16")

    def __post_init__(self) -> None:
        """Checks that lengths are given once and heads share evenly."""
        super().__post_init__()
        if self.seq is None and (self.seq_q is None or self.seq_k is None):
            raise InputError("attention: seq is missing; write seq=... or seq_q=... seq_k=...")
        if self.seq is not None and self.seq_q is not None and self.seq_k is not None:
            raise InputError("attention: seq, seq_q and seq_k are all given; leave out seq")
        if self.heads % self.key_heads:
            below = max(d for d in range(1, min(self.heads, self.key_heads) + 1) if self.heads % d == 0)
            raise InputError(
                f"attention kv_heads={self.kv_heads}: must divide heads={self.heads}; nearest below: {below}"
            )

    @property
    def queries(self) -> int:
        """Queries of a sequence."""
        return self.seq_q or self.seq or 0

    @property
    def keys(self) -> int:
        """Keys of a sequence."""
        return self.seq_k or self.seq or 0

    @property
    def key_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` and `out` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or default_output(chosen))

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head of one sequence."""
        i = np.arange(self.queries, dtype=np.int64)
        first, last = self._visible(i)
        return int(np.maximum(last - first + 1, 0).sum())

    @property
    def blind(self) -> int:
        """Queries that see no key."""
        first, last = self._visible(np.arange(self.queries, dtype=np.int64))
        return int((last < first).sum())

    @property
    def macs(self) -> int:
        """Two products over head_dim for each pair that is visible."""
        return 2 * self.batch * self.heads * self.pairs * self.head_dim

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K, V."""
        dtype = self.chosen_dtype
        keys = (self.batch, self.keys, self.key_heads, self.head_dim)
        return (Operand("q", self._query_shape, dtype), Operand("k", keys, dtype), Operand("v", keys, dtype))

    @property
    def results(self) -> tuple[Operand, ...]:
        """O."""
        return (Operand("o", self._query_shape, self._out),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """O in float64, rounded once."""
        return (round_to(self._attend(*operands, absolute=False), self._out),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """Weighted |V|."""
        return (self._attend(*operands, absolute=True),)

    @property
    def tolerance(self) -> float:
        """Roundings of the scores and of the weights (which tensor cores take in the operands' format), and of O.

        A score's own rounding error moves its weight by |q| |k| sqrt(head_dim) roundings of fp32.
        """
        weights = epsilon(self.chosen_dtype)
        return rounding(self._out, self.keys) + 2 * weights + 8 * self.head_dim * epsilon("fp32")

    @property
    def _query_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.queries, self.heads, self.head_dim)

    @property
    def _out(self) -> str:
        return self.out or default_output(self.chosen_dtype)

    def _visible(self, i: Array) -> tuple[Array, Array]:
        """First and last key that query i sees."""
        own = i + self.keys - self.queries
        first = np.maximum(own - self.window + 1, 0) if self.window else np.zeros_like(own)
        ahead = 0 if self.causal == "1" else (self.window - 1 if self.window else self.keys + self.queries)
        return first, np.minimum(own + ahead, self.keys - 1)

    def _attend(self, q: Array, k: Array, v: Array, *, absolute: bool) -> Array:
        """O before rounding; `absolute`: with |V|, the size of what is added up."""
        first, last = self._visible(np.arange(self.queries))
        key = np.arange(self.keys)
        seen = (key >= first[:, None]) & (key <= last[:, None])
        o = np.zeros(self._query_shape)
        for b in range(self.batch):
            for h in range(self.heads):
                shared = h * self.key_heads // self.heads
                scores = q[b, :, h] @ k[b, :, shared].T / math.sqrt(self.head_dim)
                scores = np.where(seen, scores, -np.inf)
                top = scores.max(axis=1, keepdims=True)
                weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
                total = weights.sum(axis=1, keepdims=True)
                values = np.abs(v[b, :, shared]) if absolute else v[b, :, shared]
                o[b, :, h] = (weights / np.where(total > 0, total, 1.0)) @ values
        return o
