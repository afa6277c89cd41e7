"""Scaled dot-product attention."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import round_to
from arch.errors import InputError
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
    words,
)
from workloads.ops.dtypes import default_output, epsilon
from workloads.ops.lengths import lengths, listed

PAGE_SEED = 20
"""Of the places of pages."""


def page_places(batch: int, pages: int) -> NDArray[np.int64]:
    """Where the `pages` pages of each sequence lie in a cache: at random places, the same in each run."""
    places = np.random.Generator(np.random.PCG64(PAGE_SEED)).permutation(batch * pages)
    return places.reshape(batch, pages)


@operator("attention", kind="contraction", example="batch=2 heads=16 head_dim=128 seq=2k causal=1")
@dataclass(frozen=True)
class Attention(Operator):
    """O = softmax(Q K^T / sqrt(head_dim)) V for each batch and head.

    Q and O are [batch, seq_q, heads, head_dim], K and V [batch, seq_k, kv_heads, head_dim], row-major; query head h
    reads key head h * kv_heads // heads. `causal=1` lets query i see keys up to i + seq_k - seq_q, `window=w` only the
    last w of those and, where not causal, w - 1 after them. A query that sees no key gives zeros.

    With `page=n` K and V are caches as serving frameworks keep them, [pages, n, kv_heads, head_dim], and the operand
    `page_table` [batch, pages of a sequence] says where the pages of each sequence lie. With `append=1` the keys and
    values of the last `seq_q` tokens are operands of their own, which the caches are results with.

    With `seqlens_q` or `seqlens_k` sequences have lengths of their own. Then the rows of all sequences follow each
    other in one, [1, tokens of all, heads, :], pages are as many as the sequences need, and the operand `seqlens`
    [batch, 2] has queries and keys of each. Where one of the two is not given, nor `seq_q` or `seq_k` for it, it is as
    the other one.

    With `latent=1` V is the first `head_dim_v` columns of K, and no operand: one cache, as latent attention (MLA) has
    it when its projections are absorbed.
    """

    batch: int = extent(help="independent sequences")
    heads: int = extent(help="query heads")
    head_dim: int = extent(help="elements of a head's vector")
    kv_heads: int | None = derived_extent(help="key and value heads; default: heads")
    seq: int | None = derived_extent(help="queries and keys of a sequence; default: seq_q and seq_k are given")
    seq_q: int | None = derived_extent(help="queries of a sequence; default: seq")
    seq_k: int | None = derived_extent(help="keys of a sequence; default: seq")
    seqlens_q: str | None = words("queries of each sequence: numbers, a file or a distribution; default: none")
    seqlens_k: str | None = words("keys of each sequence: numbers, a file or a distribution; default: none")
    seed: int = count(0, help="of lengths that are drawn")
    causal: str = choice("0", ("0", "1"), help="1: a query sees no later key")
    window: int = count(0, help="keys that a query sees, its own included; 0: all")
    head_dim_v: int | None = derived_extent(help="elements of a value's vector; default: head_dim")
    latent: str | None = choice(
        None, ("0", "1"),
        help="1: V is the first head_dim_v columns of K, one cache; default: 1 for query heads that share the only key "
        "head, where values are narrower",
    )  # fmt: skip
    page: int = count(0, help="keys of a page of a cache in pages; 0: the keys of a sequence lie together")
    append: str = choice("0", ("0", "1"), help="1: keys and values of the queries are written to the cache before")
    dtype: str | None = number_format("of Q, K and V; default: the machine's")
    out: str | None = number_format("of O; default: the input's, fp8 to bf16")

    def __post_init__(self) -> None:
        """Checks that lengths are given once and heads share evenly."""
        super().__post_init__()
        self._check_lengths()
        if self.seq is None and not self.ragged and (self.seq_q is None or self.seq_k is None):
            raise InputError("attention: seq is missing; write seq=... or seq_q=... seq_k=...")
        if self.seq is not None and self.seq_q is not None and self.seq_k is not None:
            raise InputError("attention: seq, seq_q and seq_k are all given; leave out seq")
        room = all(queries <= keys for queries, keys in zip(self.lengths_q, self.lengths_k, strict=True))
        if self.append == "1" and not (self.page and room):
            raise InputError("attention append=1: needs a cache in pages with room for the queries; nearest: page=64")
        if self.one_cache and (self.append == "1" or self.value_dim > self.head_dim):
            rule = "values are columns of keys, in a cache that has been written; nearest: latent=0"
            raise InputError(f"attention latent={self.latent}: {rule}")
        if self.heads % self.key_heads:
            below = max(d for d in range(1, min(self.heads, self.key_heads) + 1) if self.heads % d == 0)
            raise InputError(
                f"attention kv_heads={self.kv_heads}: must divide heads={self.heads}; nearest below: {below}"
            )

    def _check_lengths(self) -> None:
        """Makes lists of lengths of files; InputError for lengths that are given twice."""
        for key, plain in (("seqlens_q", self.seq_q), ("seqlens_k", self.seq_k)):
            text = getattr(self, key)
            if text is None:
                continue
            if plain is not None or self.seq is not None:
                raise InputError(
                    f"attention {key}={text}: seq and {key.replace('lens', '')} say the same; leave them out"
                )
            object.__setattr__(self, key, listed(f"attention {key}", text))
            lengths(f"attention {key}", getattr(self, key), self.batch, self.seed)

    @property
    def ragged(self) -> bool:
        """Whether sequences have lengths of their own."""
        return self.seqlens_q is not None or self.seqlens_k is not None

    @functools.cached_property
    def lengths_q(self) -> tuple[int, ...]:
        """Queries of each sequence."""
        text = self.seqlens_q or (self.seqlens_k if self.seq_q is None else None)
        if text is None:
            return (self.seq_q or self.seq or 0,) * self.batch
        return lengths("attention seqlens_q", text, self.batch, self.seed)

    @functools.cached_property
    def lengths_k(self) -> tuple[int, ...]:
        """Keys of each sequence."""
        text = self.seqlens_k or (self.seqlens_q if self.seq_k is None else None)
        if text is None:
            return (self.seq_k or self.seq or 0,) * self.batch
        # What is drawn for both is drawn apart.
        return lengths("attention seqlens_k", text, self.batch, self.seed + (self.seqlens_q not in (None, text)))

    @property
    def queries(self) -> int:
        """Queries of a sequence, of the longest where they differ."""
        return max(self.lengths_q) if self.ragged else self.seq_q or self.seq or 0

    @property
    def keys(self) -> int:
        """Keys of a sequence, of the longest where they differ."""
        return max(self.lengths_k) if self.ragged else self.seq_k or self.seq or 0

    @property
    def key_heads(self) -> int:
        """Key and value heads."""
        return self.kv_heads or self.heads

    @property
    def value_dim(self) -> int:
        """Elements of a value's vector, and of a result's."""
        return self.head_dim_v or self.head_dim

    @property
    def one_cache(self) -> bool:
        """Whether V is the first columns of K."""
        if self.latent is not None:
            return self.latent == "1"
        narrower = self.value_dim < self.head_dim and self.append == "0"
        return narrower and self.key_heads == 1 < self.heads

    def check_plain(self, machine: str) -> None:
        """InputError for what only GPUs have kernels for."""
        if self.page or self.ragged or self.value_dim != self.head_dim or self.one_cache:
            key = f"page={self.page}" if self.page else f"head_dim_v={self.value_dim}"
            key = "with lengths of sequences" if self.ragged else key
            raise InputError(f"attention {key}: has no form on {machine}; leave it out")

    @property
    def pages(self) -> int:
        """Pages of a sequence, of the longest where they differ; 0 where its keys lie together."""
        return -(-self.keys // self.page) if self.page else 0

    @property
    def all_pages(self) -> int:
        """Pages of all sequences."""
        return sum(-(-keys // self.page) for keys in self.lengths_k) if self.page else 0

    @functools.cached_property
    def page_table(self) -> NDArray[np.int64]:
        """Where the pages of each sequence lie in the cache: at random places, the same in each run."""
        if not self.ragged:
            return page_places(self.batch, self.pages)
        places = page_places(1, self.all_pages)[0]
        table, used = np.zeros((self.batch, self.pages), dtype=np.int64), 0
        for row, keys in zip(table, self.lengths_k, strict=True):
            own = -(-keys // self.page)
            row[:own] = places[used : used + own]
            used += own
        return table

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` and `out` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or default_output(chosen))

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head of one sequence; of their mean where they differ."""
        return -(-self._count(lambda first, last: np.maximum(last - first + 1, 0)) // self.batch)

    @property
    def blind(self) -> int:
        """Queries of a sequence that see no key; of their mean where they differ."""
        return self._count(lambda first, last: last < first) // self.batch

    @property
    def macs(self) -> int:
        """A product over head_dim and one over head_dim_v for each pair that is visible."""
        pairs = self._count(lambda first, last: np.maximum(last - first + 1, 0))
        return self.heads * pairs * (self.head_dim + self.value_dim)

    def _count(self, of_query: Callable[[Array, Array], Array]) -> int:
        """A count of each query, given the first and the last key that it sees, over all sequences."""
        found = 0
        for (queries, keys), times in Counter(zip(self.lengths_q, self.lengths_k, strict=True)).items():
            found += times * int(of_query(*self.visible(np.arange(queries, dtype=np.int64), queries, keys)).sum())
        return found

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K, V, unless K has it; the table of pages, and lengths, where there are any."""
        dtype = self.chosen_dtype
        lie = (self.all_pages, self.page) if self.page else self._rows(self.lengths_k)
        found = [Operand("q", (*self._rows(self.lengths_q), self.heads, self.head_dim), dtype)]
        widths = [("k", self.head_dim), ("v", self.value_dim)][: 1 if self.one_cache else 2]
        cache = [Operand(name, (*lie, self.key_heads, n), dtype) for name, n in widths]
        table = [Operand("page_table", (self.batch, self.pages), "int32")] if self.page else []
        table += [Operand("seqlens", (self.batch, 2), "int32")] if self.ragged else []
        if self.append == "0":
            return (*found, *cache, *table)
        new = (*self._rows(self.lengths_q), self.key_heads)
        return (*found, *(Operand(f"{name}_new", (*new, n), dtype) for name, n in widths), *table, *cache)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands as stored in device memory; the table of pages is `page_table`."""
        drawn = zip(self.operands, super().inputs(seed, data), strict=True)
        own: dict[str, Array] = {"page_table": self.page_table} if self.page else {}
        if self.ragged:
            own["seqlens"] = np.stack([self.lengths_q, self.lengths_k], axis=1)
        return tuple(own.get(operand.name, array) for operand, array in drawn)

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
        return (*self._rows(self.lengths_q), self.heads, self.value_dim)

    def _rows(self, lengths: tuple[int, ...]) -> tuple[int, int]:
        """Sequences, and rows of each; of those that differ one, with all rows."""
        return (self.batch, lengths[0]) if len(set(lengths)) == 1 else (1, sum(lengths))

    @property
    def _out(self) -> str:
        return self.out or default_output(self.chosen_dtype)

    def visible(self, i: Array, queries: int, keys: int) -> tuple[Array, Array]:
        """First and last key that query i of a sequence sees."""
        own = i + keys - queries
        first = np.maximum(own - self.window + 1, 0) if self.window else np.zeros_like(own)
        ahead = 0 if self.causal == "1" else (self.window - 1 if self.window else keys + queries)
        return first, np.minimum(own + ahead, keys - 1)

    def _appended(self, operands: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Q, K, V as the queries see them."""
        if self.one_cache:
            q, k = operands[:2]
            return q, k, k[..., : self.value_dim]
        if self.append == "0":
            q, k, v = operands[:3]
            return q, k, v
        q, k_new, v_new, *_, k, v = operands
        return q, self.written(k, k_new), self.written(v, v_new)

    def written(self, cache: Array, new: Array) -> Array:
        """A cache in pages with the last tokens of each sequence in it."""
        found = cache.copy()
        slots = self.slots
        found[slots // self.page, slots % self.page] = new
        return found

    @property
    def slots(self) -> NDArray[np.int64]:
        """Where each query's own key lies in a cache in pages, [sequences, queries]: slot % page of page slot // page;
        of sequences that differ in one row."""
        found = []
        for row, queries, keys in zip(self.page_table, self.lengths_q, self.lengths_k, strict=True):
            position = np.arange(keys - queries, keys)
            found.append(row[position // self.page] * self.page + position % self.page)
        return np.concatenate(found).reshape(self._rows(self.lengths_q))

    def _sequences(self, cache: Array) -> list[Array]:
        """Keys or values of each sequence, [keys, key heads, :], whether or not they lie in pages."""
        if not self.page:
            return _parted(cache, self.lengths_k)
        pages = cache[self.page_table]  # [batch, pages of a sequence, page, key heads, :]
        rows = pages.reshape(self.batch, -1, *cache.shape[2:])
        return [own[:keys] for own, keys in zip(rows, self.lengths_k, strict=True)]

    def _attend(self, q: Array, k: Array, v: Array, *, absolute: bool) -> Array:
        """O before rounding; `absolute`: with |V|, the size of what is added up."""
        o = np.zeros(self._result_shape)
        parts = (_parted(q, self.lengths_q), self._sequences(k), self._sequences(v), _parted(o, self.lengths_q))
        for own_q, own_k, own_v, own_o in zip(*parts, strict=True):
            queries, keys = len(own_q), len(own_k)
            first, last = self.visible(np.arange(queries), queries, keys)
            key = np.arange(keys)
            seen = (key >= first[:, None]) & (key <= last[:, None])
            for h in range(self.heads):
                shared = h * self.key_heads // self.heads
                scores = own_q[:, h] @ own_k[:, shared].T / math.sqrt(self.head_dim)
                scores = np.where(seen, scores, -np.inf)
                top = scores.max(axis=1, keepdims=True)
                weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
                total = weights.sum(axis=1, keepdims=True)
                values = np.abs(own_v[:, shared]) if absolute else own_v[:, shared]
                own_o[:, h] = (weights / np.where(total > 0, total, 1.0)) @ values
        return o


def _parted(rows: Array, lengths: tuple[int, ...]) -> list[Array]:
    """The rows of each sequence, views of all."""
    flat = rows.reshape(-1, *rows.shape[2:])
    return np.split(flat, np.cumsum(lengths)[:-1])
