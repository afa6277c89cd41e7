"""Rotary positions of queries and keys."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, choice, extent, number_format, operator, rounding
from workloads.ops.rowwise import EPSILON

BASE = 10_000.0
"""Of the wavelengths."""


@operator("rope", kind="elementwise", example="tokens=64 heads=32 kv_heads=8 head_dim=128")
@dataclass(frozen=True)
class Rope(Operator):
    """Turns each head's vector of queries and keys, [tokens, heads + kv_heads, head_dim], by its token's position.

    Elements of the first half of a vector are turned with those of the second (as in NeoX and Llama), by angles whose
    cosines and sines, [tokens, head_dim], are looked up by `positions`. With `norm=1` vectors are first normalised as
    `rmsnorm` does, with one weight for queries and one for keys.
    """

    tokens: int = extent(help="tokens")
    heads: int = extent(help="heads of queries")
    kv_heads: int = extent(help="heads of keys")
    head_dim: int = extent(help="elements of a head's vector")
    norm: str = choice("0", ("0", "1"), help="1: queries and keys are normalised first")
    dtype: str | None = number_format("of all tensors; default: the machine's")

    def __post_init__(self) -> None:
        """Checks that vectors have halves."""
        super().__post_init__()
        if self.head_dim % 2:
            raise InputError(f"rope head_dim={self.head_dim}: must be even, nearest: {self.head_dim + 1}")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def vectors(self) -> int:
        """Vectors of a token."""
        return self.heads + self.kv_heads

    @property
    def flops(self) -> int:
        """Three an element, and four of the norm."""
        return (7 if self.norm == "1" else 3) * self.tokens * self.vectors * self.head_dim

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x, positions, cosines and sines, and the weights of queries and of keys."""
        dtype = self.chosen_dtype
        weight = (Operand("weight", (2, self.head_dim), dtype),) if self.norm == "1" else ()
        return (
            Operand("x", (self.tokens, self.vectors, self.head_dim), dtype),
            Operand("positions", (self.tokens,), "int32"),
            Operand("angles", (self.tokens, self.head_dim), dtype),
            *weight,
        )

    @property
    def results(self) -> tuple[Operand, ...]:
        """y."""
        return (Operand("y", (self.tokens, self.vectors, self.head_dim), self.chosen_dtype),)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """As in the base; positions in order, and their angles."""
        x, _, _, *weight = super().inputs(seed, data)
        places = np.arange(self.tokens)
        turns = places[:, None] * BASE ** (-np.arange(self.head_dim // 2) / (self.head_dim // 2))
        angles = np.concatenate([np.cos(turns), np.sin(turns)], axis=1)
        return (x, places.astype(np.int32), round_to(angles, self.chosen_dtype), *weight)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """y."""
        return (round_to(self._turned(*operands), self.chosen_dtype),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of both products' sizes."""
        x, positions, angles, *weight = operands
        return (self._turned(np.abs(x), positions, np.abs(angles), *map(np.abs, weight), sign=1.0),)

    @property
    def tolerance(self) -> float:
        """One rounding after a norm's sum."""
        return rounding(self.chosen_dtype, self.head_dim)

    def _turned(self, x: Array, positions: Array, angles: Array, *weight: Array, sign: float = -1.0) -> Array:
        if weight:
            scale = 1 / np.sqrt((x * x).mean(axis=2, keepdims=True) + EPSILON)
            x = x * scale * np.repeat(weight[0], (self.heads, self.kv_heads), axis=0)[None]
        return turned(x, angles[np.asarray(positions, dtype=np.int64)][:, None], sign)


def turned(x: Array, angles: Array, sign: float = -1.0) -> Array:
    """Vectors along the last index, turned by cosines and sines that lie one behind the other."""
    (first, second), (cosine, sine) = (np.split(np.asarray(a, dtype=np.float64), 2, axis=-1) for a in (x, angles))
    return np.concatenate([first * cosine + sign * second * sine, second * cosine + first * sine], axis=-1)
