"""Scaled dot-product attention."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, choice, count, derived_extent, extent, number_format, rounding
from workloads.ops.dtypes import default_output, epsilon

PAGE_SEED = 20
"""Of the places of pages."""


def page_places(batch: int, pages: int) -> NDArray[np.int64]:
    """Where the `pages` pages of each sequence lie in a cache: at random places, the same in each run."""
    places = np.random.Generator(np.random.PCG64(PAGE_SEED)).permutation(batch * pages)
    return places.reshape(batch, pages)


@dataclass(frozen=True)
class Attention(Operator):
    """O = softmax(Q K^T / sqrt(head_dim)) V for each batch and head.

    Q and O are [batch, seq_q, heads, head_dim], K and V [batch, seq_k, kv_heads, head_dim], row-major; query head h
    reads key head h * kv_heads // heads. `causal=1` lets query i see keys up to i + seq_k - seq_q, `window=w` only the
    last w of those and, where not causal, w - 1 after them. A query that sees no key gives zeros.

    With `page=n` K and V are caches as serving frameworks keep them, [pages, n, kv_heads, head_dim], and the operand
    `page_table` [batch, pages of a sequence] says where the pages of each sequence lie. With `append=1` the keys and
    values of the last `seq_q` tokens are operands of their own, which the caches are results with.
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
    head_dim_v: int | None = derived_extent(help="elements of a value's vector; default: head_dim")
    page: int = count(0, help="keys of a page of a cache in pages; 0: the keys of a sequence lie together")
    append: str = choice("0", ("0", "1"), help="1: keys and values of the queries are written to the cache before")
    dtype: str | None = number_format("of Q, K and V; default: the machine's")
    out: str | None = number_format("of O; default: the input's, fp8 to bf16")

    def __post_init__(self) -> None:
        """Checks that lengths are given once and heads share evenly."""
        super().__post_init__()
        if self.seq is None and (self.seq_q is None or self.seq_k is None):
            raise InputError("attention: seq is missing; write seq=... or seq_q=... seq_k=...")
        if self.seq is not None and self.seq_q is not None and self.seq_k is not None:
            raise InputError("attention: seq, seq_q and seq_k are all given; leave out seq")
        if self.append == "1" and not (self.page and self.queries <= self.keys):
            raise InputError("attention append=1: needs a cache in pages with room for the queries; nearest: page=64")
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

    @property
    def value_dim(self) -> int:
        """Elements of a value's vector, and of a result's."""
        return self.head_dim_v or self.head_dim

    def check_plain(self, machine: str) -> None:
        """InputError for what only GPUs have kernels for."""
        if self.page or self.value_dim != self.head_dim:
            key = f"page={self.page}" if self.page else f"head_dim_v={self.head_dim_v}"
            raise InputError(f"attention {key}: has no form on {machine}; leave it out")

    @property
    def pages(self) -> int:
        """Pages of a sequence; 0 where its keys lie together."""
        return -(-self.keys // self.page) if self.page else 0

    @functools.cached_property
    def page_table(self) -> NDArray[np.int64]:
        """Where the pages of each sequence lie in the cache: at random places, the same in each run."""
        return page_places(self.batch, self.pages)

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
        """A product over head_dim and one over head_dim_v for each pair that is visible."""
        return self.batch * self.heads * self.pairs * (self.head_dim + self.value_dim)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K, V; the table of pages, where there are any."""
        dtype = self.chosen_dtype
        lie = (self.batch * self.pages, self.page) if self.page else (self.batch, self.keys)
        found = [Operand("q", (self.batch, self.queries, self.heads, self.head_dim), dtype)]
        widths = (("k", self.head_dim), ("v", self.value_dim))
        cache = [Operand(name, (*lie, self.key_heads, n), dtype) for name, n in widths]
        table = [Operand("page_table", (self.batch, self.pages), "int32")] if self.page else []
        if self.append == "0":
            return (*found, *cache, *table)
        new = (self.batch, self.queries, self.key_heads)
        return (*found, *(Operand(f"{name}_new", (*new, n), dtype) for name, n in widths), *table, *cache)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands as stored in device memory; the table of pages is `page_table`."""
        drawn = zip(self.operands, super().inputs(seed, data), strict=True)
        return tuple(self.page_table if operand.name == "page_table" else array for operand, array in drawn)

    @property
    def results(self) -> tuple[Operand, ...]:
        """O; with new keys the caches before it."""
        o = Operand("o", self._result_shape, self._out)
        return (*self.operands[-2:], o) if self.append == "1" else (o,)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """O in float64, rounded once; with new keys the caches before it."""
        q, k, v = self._appended(operands)
        o = round_to(self._attend(q, k, v, absolute=False), self._out)
        return (k, v, o) if self.append == "1" else (o,)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """Weighted |V|; with new keys those of the caches before it."""
        q, k, v = self._appended(operands)
        o = self._attend(q, k, v, absolute=True)
        return (np.abs(k), np.abs(v), o) if self.append == "1" else (o,)

    @property
    def tolerance(self) -> float:
        """Roundings of the scores and of the weights (which tensor cores take in the operands' format), and of O.

        A score's own rounding error moves its weight by |q| |k| sqrt(head_dim) roundings of fp32.
        """
        weights = epsilon(self.chosen_dtype)
        return rounding(self._out, self.keys) + 2 * weights + 8 * self.head_dim * epsilon("fp32")

    @property
    def _result_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.queries, self.heads, self.value_dim)

    @property
    def _out(self) -> str:
        return self.out or default_output(self.chosen_dtype)

    def _visible(self, i: Array) -> tuple[Array, Array]:
        """First and last key that query i sees."""
        own = i + self.keys - self.queries
        first = np.maximum(own - self.window + 1, 0) if self.window else np.zeros_like(own)
        ahead = 0 if self.causal == "1" else (self.window - 1 if self.window else self.keys + self.queries)
        return first, np.minimum(own + ahead, self.keys - 1)

    def _appended(self, operands: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Q, K, V as the queries see them."""
        if self.append == "0":
            q, k, v = operands[:3]
            return q, k, v
        q, k_new, v_new, _, k, v = operands
        return q, self.written(k, k_new), self.written(v, v_new)

    def written(self, cache: Array, new: Array) -> Array:
        """A cache in pages with the last tokens of each sequence in it."""
        found = cache.copy()
        for token in range(self.queries):
            page, row = divmod(self.keys - self.queries + token, self.page)
            found[self.page_table[:, page], row] = new[:, token]
        return found

    def _together(self, cache: Array) -> Array:
        """Keys or values as sequences, whether or not they lie in pages."""
        if not self.page:
            return cache
        pages = cache[self.page_table]  # [batch, pages of a sequence, page, key heads, :]
        return pages.reshape(self.batch, -1, *cache.shape[2:])[:, : self.keys]

    def _attend(self, q: Array, k: Array, v: Array, *, absolute: bool) -> Array:
        """O before rounding; `absolute`: with |V|, the size of what is added up."""
        k, v = self._together(k), self._together(v)
        first, last = self._visible(np.arange(self.queries))
        key = np.arange(self.keys)
        seen = (key >= first[:, None]) & (key <= last[:, None])
        o = np.zeros(self._result_shape)
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
