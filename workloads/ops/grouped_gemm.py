"""A product of each group of rows with a matrix of its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from arch.dtypes import round_to
from workloads.ops import routing
from workloads.ops.base import Array, Operand, Operator, count, extent, number_format, operator, random_array, rounding
from workloads.ops.routing import Ids


@operator("grouped_gemm", kind="contraction", example="m=256 n=512 k=512 groups=4")
@dataclass(frozen=True)
class GroupedGemm(Operator):
    """Y_g = X_g W_g^T for each of `groups` groups of rows, one after the other.

    A group's rows begin at a multiple of `align`, so that no tile has rows of two groups; rows between belong to the
    group before them and are multiplied as well (the contiguous layout of DeepGEMM).
    """

    m: int = extent(help="rows of all groups")
    n: int = extent(help="columns of each result")
    k: int = extent(help="elements that are summed over")
    groups: int = extent(help="groups, each with a matrix of its own")
    distribution: str = dataclasses.field(default="balanced", metadata={"kind": "words", "help": routing.WAYS})
    seed: int = count(0, help="of a random distribution")
    align: int = extent(128, help="rows of which each group begins at a multiple")
    dtype: str | None = number_format("of x, the matrices and y; default: the machine's")

    def __post_init__(self) -> None:
        """Checks the distribution; one from a file is read."""
        super().__post_init__()
        object.__setattr__(self, "distribution", routing.read(self.distribution, self.word))
        routing.check(self.distribution, self.m, self.groups, 1, self.word, "m", "groups")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def tokens(self) -> int:
        """Rows, with those between the groups."""
        return len(self.group_of)

    @property
    def topk(self) -> int:
        """Each row belongs to one group."""
        return 1

    @property
    def hidden(self) -> int:
        """Elements of a row."""
        return self.k

    @cached_property
    def sizes(self) -> Ids:
        """Rows of each group."""
        ids = routing.chosen(self.distribution, self.m, self.groups, 1, 1, self.seed)
        return np.bincount(ids.reshape(-1), minlength=self.groups)

    @cached_property
    def group_of(self) -> Ids:
        """Group of each row, with those between the groups."""
        return np.repeat(np.arange(self.groups), -(-self.sizes // self.align) * self.align)

    @property
    def macs(self) -> int:
        """Of the rows that belong to groups."""
        return self.m * self.n * self.k

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Rows, the group of each, the groups' matrices."""
        rows, dtype = len(self.group_of), self.chosen_dtype
        return (
            Operand("x", (rows, self.k), dtype),
            Operand("group_of", (rows,), "int32"),
            Operand("w", (self.groups, self.n, self.k), dtype),
        )

    @property
    def results(self) -> tuple[Operand, ...]:
        """Y."""
        return (Operand("y", (len(self.group_of), self.n), self.chosen_dtype),)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands."""
        rng = np.random.Generator(np.random.PCG64(seed))
        x, _, w = self.operands
        return (
            random_array(rng, x.shape, x.dtype, data),
            self.group_of.astype(np.int32),
            random_array(rng, w.shape, w.dtype, data),
        )

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """Y in float64, rounded once."""
        return (round_to(self._product(*operands), self.chosen_dtype),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The sums of absolute products."""
        x, groups, w = operands
        return (self._product(np.abs(x), groups, np.abs(w)),)

    @property
    def tolerance(self) -> float:
        """Roundings of a sum."""
        return rounding(self.chosen_dtype, self.k)

    def _product(self, x: Array, groups: Array, w: Array) -> Array:
        x, w = np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64)
        y = np.empty((len(x), self.n))
        for group in range(self.groups):
            rows = groups.reshape(-1) == group
            y[rows] = x[rows] @ w[group].T
        return y
