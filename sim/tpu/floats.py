"""What a program's instructions do to numbers on an array of floating-point cells: products of bf16, sums in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.encoding import decoded, encoded
from arch.tpu import TpuSpec
from sim.tpu.data import Memory, rows
from sim.tpu.program import Activate, Convolve, MatrixMultiply, Program, Vector

FIGURES = ("array.columns", "array.operands", "array.rows")
"""Figures of a preset that this module reads."""


class FloatMemory(Memory):
    """All memories of one run. A row that sees nothing has a softmax of zeros."""

    def __init__(self, spec: TpuSpec, program: Program) -> None:
        super().__init__(spec, program)
        self.acc = [np.zeros(held.shape, dtype=np.float32) for held in self.acc]

    def tile(self, address: int, unsigned: int) -> NDArray[Any]:
        """One weight tile, [array.rows, array.columns]."""
        array = self._spec.array
        raw = self.weights[address : address + self._spec.tile_bytes]
        return decoded(raw, self._spec.format_of(16)).reshape(array.rows, array.columns)

    def multiply(self, i: MatrixMultiply, step: int, address: int) -> None:
        """Repetition `step` of a matrix instruction with the tile at `address`."""
        first = step * self._spec.array.rows
        depth = min(self._spec.array.rows, i.depth - first)
        if isinstance(i, Convolve):
            left = self._patches(i, i.tap + first, depth)
        else:
            left = self._numbers(i.ub + first * i.bits // 8, i.rows, depth, i.pitch, i.bits)
        target = self.acc[i.array][i.acc : i.acc + i.rows]
        sums = left @ self.tile(address, i.unsigned)[:depth]
        target[:] = target + sums if i.accumulate or step else sums

    def _values(self, raw: NDArray[np.uint8], bits: int) -> NDArray[Any]:
        return decoded(raw, self._spec.format_of(bits))

    def _lowest(self, bits: int) -> float:
        return -np.inf

    def _numbers(self, address: int, count: int, columns: int, pitch: int, bits: int) -> NDArray[Any]:
        return self._values(rows(self.ub, address, count, columns * bits // 8, pitch).copy(), bits)

    def activate(self, i: Activate) -> None:
        """Accumulators to the unified buffer."""
        values = self.acc[i.array][i.acc : i.acc + i.rows, i.first : i.first + i.columns]
        self._store(i.ub, i.pitch, _applied(i.function, values.astype(np.float64) / 2**i.shift), i.bits)

    def vector(self, i: Vector) -> None:
        """An operation on the unified buffer."""
        bits, pitch = i.out_bits or i.bits, i.out_pitch or i.pitch
        if i.op == "max_pool":
            self._store(i.ub, pitch, self._pooled(i), bits)
            return
        a = self._numbers(i.a, i.rows, i.columns, i.pitch, i.bits).astype(np.float64)
        if i.op in ("row_max", "exp_sum", "softmax"):
            self._softmax(i, np.where(_seen(i), a / i.dim**0.5, -np.inf), bits, pitch)
            return
        b = self._numbers(i.b, i.rows, i.columns, i.b_pitch or i.pitch, i.bits).astype(np.float64)
        match i.op:
            case "add":
                result = a + b
            case "multiply":
                result = a * b / 2**i.shift
            case function:
                result = _applied(function, a / 2**i.shift)
        self._store(i.ub, pitch, result, bits)

    def _softmax(self, i: Vector, a: NDArray[np.float64], bits: int, pitch: int) -> None:
        """One of the three passes of a softmax by row."""
        if i.op == "row_max":
            top = a.max(axis=1, keepdims=True)
            self._row_max[i.a] = np.where(np.isfinite(top), top, 0.0)
            return
        weights = np.exp(a - self._row_max[i.a])
        if i.op == "exp_sum":
            self._row_sum[i.a] = weights.sum(axis=1, keepdims=True)
            return
        total = self._row_sum[i.a]
        self._store(i.ub, pitch, weights / np.where(total > 0, total, 1.0), bits)

    def _store(self, address: int, pitch: int, values: NDArray[Any], bits: int) -> None:
        raw = encoded(values, self._spec.format_of(bits)).reshape(values.shape[0], -1)
        rows(self.ub, address, raw.shape[0], raw.shape[1], pitch)[:] = raw


def _seen(i: Vector) -> NDArray[np.bool_]:
    """Which columns each row of a softmax sees, [rows, columns]."""
    column, own = np.arange(i.columns)[None], (i.query + np.arange(i.rows) + i.columns - i.queries)[:, None]
    seen = np.ones((i.rows, i.columns), dtype=bool)
    if i.queries and i.window:
        seen &= (column > own - i.window) & (column < own + i.window)
    if i.queries and i.causal:
        seen &= column <= own
    return seen


def _applied(function: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """An activation function."""
    match function:
        case "identity":
            return values
        case "relu":
            return np.maximum(values, 0)
        case "tanh":
            return np.tanh(values)
        case _:
            return 1 / (1 + np.exp(-values))
