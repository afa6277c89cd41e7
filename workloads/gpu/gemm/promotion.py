"""What registers hold of operands with fp32 scales by block: products of a block of k, and their scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Scaled = Callable[..., np.ndarray]


def times(_: np.ndarray, vector: np.ndarray, scalar: np.ndarray) -> np.ndarray:
    """Scales of a vector, each with that of a block of columns."""
    return vector * scalar


def by_rows(_: np.ndarray, products: np.ndarray, *scales: Any) -> np.ndarray:
    """Products with the scales of their rows; what the registers held is gone. scales: (1, rows), with those of the
    block of columns in which the tile begins, and of the one in which it ends; columns in the former."""
    *by_block, former = scales
    return np.asarray(products * np.where(np.arange(products.shape[1]) < former, by_block[0].T, by_block[-1].T))


def by_columns(_: np.ndarray, products: np.ndarray, factors: np.ndarray, __: Any) -> np.ndarray:
    """Products with the scales of their columns, of a tile of the transpose."""
    return np.asarray(products * factors)


def added(scaled: Scaled) -> Scaled:
    """As a function of `by_rows` or `by_columns`, added to what the registers held."""

    def add(sums: np.ndarray, *others: Any) -> np.ndarray:
        return np.asarray(sums + scaled(sums, *others))

    return add
