"""Operators that move rows to or from places given as data: look-ups of rows, writes to a cache in pages."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

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
    words,
)
from workloads.ops.lengths import listed


@operator("gather", kind="elementwise", example="rows=4k cols=4k of=32k")
@dataclass(frozen=True)
class Gather(Operator):
    """y[i] = x[index[i]]: rows of a table by their numbers, as an embedding looks tokens up."""

    rows: int = extent(help="rows that are looked up")
    cols: int = extent(help="elements of a row")
    of: int = extent(help="rows of the table")
    seed: int = count(0, help="of the numbers, which are random")
    dtype: str | None = number_format("of the table and the result; default: the machine's")
    index_dtype: str = choice("int32", ("int32", "int64"), help="number format of the numbers")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @functools.cached_property
    def index(self) -> NDArray[np.int64]:
        """Numbers of the rows that are looked up."""
        return np.random.Generator(np.random.PCG64(self.seed)).integers(self.of, size=self.rows)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x, index."""
        return (Operand("x", (self.of, self.cols), self.chosen_dtype), Operand("index", (self.rows,), self.index_dtype))

    @property
    def results(self) -> tuple[Operand, ...]:
        """y."""
        return (Operand("y", (self.rows, self.cols), self.chosen_dtype),)

    @property
    def operand_bytes(self) -> int:
        """Rows that are looked up, each once, numbers and results."""
        looked_up = len(np.unique(self.index)) * self.results[0].size_bytes // self.rows
        return looked_up + self.operands[1].size_bytes + self.results[0].size_bytes

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """The table, and the operator's own numbers."""
        return (super().inputs(seed, data)[0], self.index)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The rows."""
        return (np.asarray(operands[0], dtype=np.float64)[self.index],)

    @property
    def tolerance(self) -> float:
        """Nothing is rounded."""
        return 0.0


@operator("kv_write", kind="elementwise", example="batch=64 seq_k=2k kv_heads=8 head_dim=128")
@dataclass(frozen=True)
class KvWrite(Operator):
    """Writes keys and values of new tokens to their slots in a cache in pages, as serving frameworks do.

    The last `seq_q` of `seq_k` tokens of each sequence are new. K and V are caches [pages, page, kv_heads, head_dim],
    and the operand `slots` [batch, seq_q] says where a token goes: to key slot % page of page slot // page. Pages lie
    as those of `attention page=...` do. With `seqlens_q` or `seqlens_k` sequences have numbers of their own, as those
    of `attention` do; then the rows of all new tokens follow each other.
    """

    batch: int = extent(help="sequences")
    kv_heads: int = extent(help="key and value heads")
    head_dim: int = extent(help="elements of a key's vector")
    seq_q: int = extent(1, help="new tokens of a sequence")
    seq_k: int | None = derived_extent(help="tokens of a sequence, the new ones included; default: seq_q")
    page: int = extent(16, help="tokens of a page")
    head_dim_v: int | None = derived_extent(help="elements of a value's vector; default: head_dim")
    seqlens_q: str | None = words("new tokens of each sequence: numbers, a file or a distribution; default: none")
    seqlens_k: str | None = words("tokens of each sequence: numbers, a file or a distribution; default: none")
    seed: int = count(0, help="of lengths that are drawn")
    dtype: str | None = number_format("of all tensors; default: the machine's")

    def __post_init__(self) -> None:
        """Checks that the new tokens belong to their sequences, whose lengths are given once."""
        super().__post_init__()
        for key, plain in (("seqlens_q", self.seq_q != 1), ("seqlens_k", self.seq_k is not None)):
            if (text := getattr(self, key)) is not None:
                if plain:
                    raise InputError(f"kv_write {key}={text}: {key.replace('lens', '')} says the same; leave it out")
                object.__setattr__(self, key, listed(f"kv_write {key}", text))
        for queries, keys in zip(self.cached.lengths_q, self.cached.lengths_k, strict=True):
            if keys < queries:
                key = f"seqlens_k={keys}" if self.cached.ragged else f"seq_k={self.seq_k}"
                raise InputError(f"kv_write {key}: must be at least seq_q={queries}, which it includes")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @functools.cached_property
    def cached(self) -> Attention:
        """An attention that reads this cache, whose pages and lengths these are."""
        queries = None if self.seqlens_q else self.seq_q
        keys = None if self.seqlens_q or self.seqlens_k else self.seq_k or self.seq_q
        return Attention(
            batch=self.batch, heads=self.kv_heads, head_dim=self.head_dim, seq_q=queries, seq_k=self.seq_k or keys,
            seqlens_q=self.seqlens_q, seqlens_k=self.seqlens_k, seed=self.seed, page=self.page,
        )  # fmt: skip

    @functools.cached_property
    def slots(self) -> NDArray[np.int64]:
        """Where each new token goes, [batch, seq_q], or in one row."""
        return self.cached.slots

    @property
    def operands(self) -> tuple[Operand, ...]:
        """New keys, new values, slots, both caches."""
        widths = (("k", self.head_dim), ("v", self.head_dim_v or self.head_dim))
        dtype, new, cache = self.chosen_dtype, self.slots.shape, (self.cached.all_pages, self.page)
        return (
            *(Operand(f"{name}_new", (*new, self.kv_heads, n), dtype) for name, n in widths),
            Operand("slots", new, "int32"),
            *(Operand(name, (*cache, self.kv_heads, n), dtype) for name, n in widths),
        )

    @property
    def results(self) -> tuple[Operand, ...]:
        """The caches."""
        return self.operands[-2:]

    @property
    def operand_bytes(self) -> int:
        """New keys and values, read and written, and their slots."""
        k, v, slots = (operand.size_bytes for operand in self.operands[:3])
        return 2 * (k + v) + slots

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands; the slots are the operator's own."""
        k_new, v_new, _, k, v = super().inputs(seed, data)
        return k_new, v_new, self.slots, k, v

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The caches with the new tokens in them."""
        k_new, v_new, _, k, v = operands
        return self._written(k, k_new), self._written(v, v_new)

    @property
    def tolerance(self) -> float:
        """Nothing is rounded."""
        return 0.0

    def _written(self, cache: Array, new: Array) -> Array:
        found = np.array(cache, dtype=np.float64)
        found[self.slots // self.page, self.slots % self.page] = new
        return found
