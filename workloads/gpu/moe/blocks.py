"""The rows of a layer of experts in the order in which its kernels take them: sorted by expert, in whole blocks.

A row is a choice of a token, number `token * topk + slot`. Rows of an expert that fills no whole block are padded with
rows that are neither read nor written; experts of other devices have blocks, too, of which only zeros are stored.

What kernels leave for each other lies block by block as it is computed, where vLLM has it row by row: whole rows lie
elsewhere, and nothing else changes. In a block that is not full the rows are the last ones of its tensor, so that a
tile that begins at the first of them ends with the tensor.

Where few choices meet many experts, vLLM sorts nothing: each choice is a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.gpu.language import Expr, IntLike, table
from workloads.ops import Moe

Numbers = NDArray[np.int64]
GROUPS = (16, 8, 4, 2)
"""Rows that a copy takes at once where their tokens lie evenly apart."""
EVEN_SHARE = 0.75
"""Share of the blocks of a layer that must be even for a copy of that many rows."""
SPARSE = 4
"""Experts a choice from which on choices are not sorted (vllm/model_executor/layers/fused_moe/fused_moe.py)."""


class Routed(Protocol):
    """What blocks are made of: tokens (rows), choices of each, elements of a token."""

    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def topk(self) -> int: ...  # noqa: D102
    @property
    def hidden(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Blocks:
    """size: rows of a block. experts: of each block, -1 on another device. flat: rows, (blocks, size), -1 where
    padded. launched: blocks of the grid, whose number a launch does not know. filtered: whether the grid has none for
    experts on other devices. sorted: whether choices are sorted."""

    op: Routed
    size: int
    experts: Numbers
    flat: Numbers
    launched: int
    filtered: bool = False
    sorted: bool = True

    @classmethod
    def of(cls, op: Moe, size: int, filtered: bool = False) -> Blocks:
        """The blocks of a layer."""
        ids = op.ids.reshape(-1)
        if op.ep == 1 and len(ids) * SPARSE <= op.experts:
            flat = np.full((len(ids), size), -1, dtype=np.int64)
            flat[:, 0] = np.arange(len(ids))
            return cls(op, size, ids, flat, len(ids), sorted=False)
        counts = np.bincount(ids, minlength=op.experts)
        blocks = -(-counts // size)
        flat = np.full((int(blocks.sum()), size), -1, dtype=np.int64)
        places = np.concatenate([np.arange(n) + first for n, first in zip(counts, _starts(blocks) * size, strict=True)])
        flat.reshape(-1)[places] = np.argsort(ids, kind="stable")
        experts = np.repeat(np.arange(op.experts), blocks)
        most = len(ids) + op.experts * (size - 1)
        if len(ids) < op.experts or op.tokens < size:
            most = min(most, len(ids) * size)
        launched = max(len(experts), -(-most // size))
        return cls(op, size, np.where(experts < op.local_experts, experts, -1), flat, launched, filtered)

    @property
    def count(self) -> int:
        """Blocks that have rows."""
        return len(self.experts)

    @cached_property
    def taken(self) -> Numbers:
        """Numbers of the blocks of which the products compute something, or store zeros."""
        return np.flatnonzero(self.experts >= 0) if self.filtered else np.arange(self.count)

    @cached_property
    def valid(self) -> Numbers:
        """Rows of each block."""
        return np.asarray((self.flat >= 0).sum(axis=1))

    @cached_property
    def places(self) -> Numbers:
        """Of each row, its place in tensors that lie block by block."""
        found = np.empty(self.op.tokens * self.op.topk, dtype=np.int64)
        block, row = np.nonzero(self.flat >= 0)
        found[self.flat[block, row]] = (block + 1) * self.size - self.valid[block] + row
        return found

    @cached_property
    def tokens(self) -> Numbers:
        """Token of each row, (blocks, size); -1 where padded."""
        return np.where(self.flat >= 0, self.flat // self.op.topk, -1)

    @cached_property
    def spacing(self) -> int:
        """Tokens from row to row in most places."""
        steps = np.diff(self.tokens, axis=1)[self.tokens[:, 1:] >= 0]
        steps = steps[steps > 0]
        return int(np.bincount(steps).argmax()) if len(steps) else 1

    def even(self, group: int) -> NDArray[np.bool_]:
        """Blocks in which each group of rows lies evenly apart in the order of tokens."""
        tokens = self.tokens.reshape(self.count, -1, group)
        steps = np.diff(tokens, axis=2)
        return np.asarray(((steps == self.spacing) | (tokens[:, :, 1:] < 0)).all(axis=(1, 2)))

    @cached_property
    def group(self) -> int:
        """Rows that a copy of tokens takes at once."""
        fits = (g for g in GROUPS if g <= self.size and self.even(g).mean() >= EVEN_SHARE)
        return next(fits, 1)


def looked_up(values: NDArray[Any], index: IntLike) -> Expr:
    """`values[index]` in a program."""
    return table(values.tolist(), index)


def _starts(counts: Numbers) -> Numbers:
    return np.asarray(np.cumsum(counts) - counts)
