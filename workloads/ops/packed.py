"""Weights that are stored with fewer bits than they are multiplied in (w4a16, w8a16): what their bytes stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from arch.dtypes import BLOCK_FORMATS
from arch.errors import InputError
from workloads.ops import blocks
from workloads.ops.base import Array, random_array

DEPTH = 64
"""Elements of k that lie together in memory."""
GROUP = 128
"""Elements of k that share a scale where nothing else is said."""


class _Form(NamedTuple):
    """bits: of a value. group: values along k that share a scale, 0 where it is asked for. scale: format of scales,
    nothing for that of the other operand. stored: format of the bytes."""

    bits: int
    group: int = 0
    scale: str = ""
    stored: str = "int8"


_BLOCKS = {name: BLOCK_FORMATS[name] for name in ("mxfp4", "nvfp4")}
FORMS = {
    "int8": _Form(8),
    "int4": _Form(4),
    **{name: _Form(found.bits, found.block, found.scale, found.stored) for name, found in _BLOCKS.items()},
}
"""Formats of weights: integers, and the block formats of four bits, whose scales are powers of 2 or e4m3."""


@dataclass(frozen=True)
class PackedMatrices:
    """Matrices of k by n whose values have a format of `FORMS`.

    For each `DEPTH` of k and each column the values' bytes lie together, two of four bits a byte, the lower first; what
    is left of the last `DEPTH` is filled up. Scales lie as [groups of k, n].
    """

    form: str
    group: int
    dtype: str

    @classmethod
    def of(cls, form: str, group: int, dtype: str, where: str) -> PackedMatrices:
        """Weights of a product of `dtype`, with the group that is asked for where the format has none of its own;
        InputError for a group that k steps do not fall into."""
        if (own := FORMS[form].group) or group % DEPTH == 0 or group in (DEPTH // 4, DEPTH // 2):
            return cls(form, own or group, dtype)
        nearest = max(1, round(group / DEPTH)) * DEPTH
        raise InputError(f"{where} group={group}: must be 16, 32 or a multiple of {DEPTH}, nearest: {nearest}")

    @property
    def bits(self) -> int:
        """Of a value."""
        return FORMS[self.form].bits

    @property
    def stored(self) -> str:
        """Format of the tensor of bytes."""
        return FORMS[self.form].stored

    @property
    def scale(self) -> str:
        """Format of the scales."""
        return FORMS[self.form].scale or self.dtype

    def blocks(self, k: int) -> int:
        """Times `DEPTH` of k."""
        return -(-k // DEPTH)

    def groups(self, k: int) -> int:
        """Scales of a column, with those of what is filled up."""
        return -(-self.blocks(k) * DEPTH // self.group)

    def shape(self, k: int, n: int) -> tuple[int, int, int]:
        """Shape of a matrix in bytes."""
        return self.blocks(k), n, DEPTH * self.bits // 8

    def elements(self, stored: Array) -> Array:
        """Values along the last index that bytes hold, without their scales."""
        if self.form in _BLOCKS:
            return blocks.elements(self.form, stored)
        found = np.asarray(stored).astype(np.int64)
        if self.bits == 8:
            return found
        halves = np.stack([found & 15, found >> 4 & 15], axis=-1).reshape(*found.shape[:-1], -1)
        return (halves ^ 8) - 8

    def factors(self, stored: Array) -> Array:
        """The numbers that scales hold."""
        return blocks.scales(self.form, stored) if self.form in _BLOCKS else np.asarray(stored, dtype=np.float64)

    def matrix(self, stored: Array, scales: Array, k: int) -> Array:
        """A matrix as [k, n] of its bytes and scales, before it is rounded."""
        values = self.elements(stored)
        whole = values.transpose(0, 2, 1).reshape(-1, values.shape[1])[:k].astype(np.float64)
        return whole * np.repeat(self.factors(scales), self.group, axis=0)[:k]

    def random(self, seed: int, shape: tuple[int, ...], scales: tuple[int, ...], data: str) -> tuple[Array, Array]:
        """Bytes and scales of these shapes, by which values are some units at most."""
        rng = np.random.Generator(np.random.PCG64(seed))
        if self.form not in _BLOCKS:
            unit = 2.0 ** (1 - self.bits)
            return random_array(rng, shape, self.stored, data), unit * random_array(rng, scales, self.scale, data)
        factors = rng.integers(126, 130, scales) if self.scale == "uint8" else rng.integers(1, 5, scales) / 2
        return rng.integers(0, 256, shape).astype(np.float64), np.asarray(factors, dtype=np.float64)
