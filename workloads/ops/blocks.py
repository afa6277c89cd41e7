"""Operands in block formats: what the bytes of elements and of their scales stand for.

Scales lie in memory as tensor cores take them (cuBLAS's 128x4 layout): for 128 rows and four scales of each, 512 bytes
that are 32 lanes of 16: row r has its four scales in lane r mod 32, from byte 4 (r div 32) on.
"""

from __future__ import annotations

import numpy as np

from arch.dtypes import BLOCK_FORMATS
from workloads.ops.base import Array

ROWS, GROUP = 128, 4
"""Rows, and scales of each, that lie together."""
GROUP_BYTES = ROWS * GROUP
LANES = 32
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_BIAS = 127


def scales_shape(dtype: str, batch: int, rows: int, k: int) -> tuple[int, int, int, int]:
    """Shape of the scales of `rows` by `k` elements as stored."""
    return batch, -(-rows // ROWS), -(-k // (GROUP * BLOCK_FORMATS[dtype].block)), GROUP_BYTES


def elements(dtype: str, stored: Array) -> Array:
    """Elements, along the last index, that a tensor holds."""
    if BLOCK_FORMATS[dtype].bits == 8:
        return np.asarray(stored, dtype=np.float64)
    found = np.asarray(stored).astype(np.int64)
    halves = np.stack([found & 15, found >> 4 & 15], axis=-1).reshape(*found.shape[:-1], -1)
    return np.where(halves & 8, -1.0, 1.0) * _E2M1[halves & 7]


def scales(dtype: str, stored: Array) -> Array:
    """The numbers that a tensor of scales holds, in any shape."""
    found = np.asarray(stored, dtype=np.float64)
    return np.exp2(found - _BIAS) if BLOCK_FORMATS[dtype].scale == "uint8" else np.abs(found)


def by_rows(stored: Array) -> Array:
    """Groups of 512 bytes, (..., blocks of rows, groups, 512), as rows by scales along k."""
    *outer, blocks, groups, _ = stored.shape
    parts = np.asarray(stored).reshape(*outer, blocks, groups, LANES, ROWS // LANES, GROUP)
    turned = np.moveaxis(parts, -4, -2)  # blocks, lanes, quarters, groups, scales
    turned = np.swapaxes(turned, -4, -3)
    return turned.reshape(*outer, blocks * ROWS, groups * GROUP)


def values(dtype: str, stored: Array, stored_scales: Array, rows: int, k: int) -> Array:
    """The matrices (batch, rows, k) that elements and their scales stand for."""
    found = elements(dtype, stored)[..., :k]
    factors = by_rows(scales(dtype, stored_scales))[:, :rows]
    return found * np.repeat(factors, BLOCK_FORMATS[dtype].block, axis=-1)[..., :k]
