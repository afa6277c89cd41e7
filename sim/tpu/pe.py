"""The array of processing elements on its own: matrix products, cycle by cycle, with what every cell holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.tpu import kernel
from sim.tpu.kernel import OUTPUTS_STAY, WEIGHTS_STAY, PeState, advance

Matrix = NDArray[np.int64]

_CHUNK_CYCLES = 4096
"""Cycles between two returns to Python, so that Ctrl-C is heard."""


@dataclass(frozen=True)
class PeResult:
    """A product that has left the array. shift_at, stream_at: cycle at which each tile began to shift and to stream."""

    product: NDArray[np.int32]
    cycles: int
    shift_at: tuple[int, ...]
    stream_at: tuple[int, ...]
    macs: Matrix


@dataclass(frozen=True)
class Cells:
    """What the cells hold at the end of a cycle, [rows, columns] each.

    valid: the cell multiplies in it; moving: a weight is passing down; loaded: some weight has come to it. shadow: the
    weight of the second registers.
    """

    cycle: int
    valid: NDArray[np.bool_]
    moving: NDArray[np.bool_]
    loaded: NDArray[np.bool_]
    act: Matrix
    weight: Matrix
    shadow: Matrix
    total: Matrix


class PeArray:
    """A x B on an array of `rows` x `columns` cells; a: [m, k], b: [k, n] integers of `bits` (a) and 8 bits (b).

    dataflow: `ws`, `os` or `is` (the product is computed transposed: a stays). overlap: tiles are shifted in behind the
    active one (`os`: folds follow without a gap). Tiles go along k first, then along n.
    """

    def __init__(
        self, a: Matrix, b: Matrix, rows: int, columns: int, dataflow: str = "ws", overlap: bool = True, bits: int = 8
    ) -> None:
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise InputError(f"a {a.shape} times b {b.shape}: columns of a and rows of b must be equal")
        if dataflow not in ("ws", "os", "is"):
            raise InputError(f"dataflow={dataflow}: must be one of ws, os, is")
        if bits not in (8, 16) or (bits == 16 and dataflow != "ws"):
            raise InputError(f"bits={bits}: must be 8, or 16 with dataflow ws")
        for name, matrix, width in (("a", a, bits), ("b", b, 8)):
            if np.abs(matrix.astype(np.int64) * 2 + 1).max() > 2**width:
                raise InputError(f"{name} holds values outside {width} bits")
        self._transposed = dataflow == "is"
        left, right = (b.T, a.T) if self._transposed else (a, b)
        self._shape = (left.shape[0], right.shape[1])
        self._stay = OUTPUTS_STAY if dataflow == "os" else WEIGHTS_STAY
        self._overlap = overlap
        make = _outputs_stay if self._stay == OUTPUTS_STAY else _weights_stay
        self.state = make(left.astype(np.int64), right.astype(np.int64), rows, columns, bits)

    def run(self) -> PeResult:
        """Runs to the end."""
        while advance(self.state, self._overlap, self._stay, _CHUNK_CYCLES) == _CHUNK_CYCLES:
            pass
        s = self.state
        m, n = self._shape
        product = s.accumulators[:m, :n].astype(np.uint64).astype(np.uint32).view(np.int32)
        return PeResult(
            product=product.T if self._transposed else product,
            cycles=int(s.control[kernel.LAST]),
            shift_at=tuple(int(t) for t in s.shift_at),
            stream_at=tuple(int(t) for t in s.stream_at),
            macs=s.macs.copy(),
        )

    def steps(self) -> Iterator[Cells]:
        """Runs cycle by cycle, with what the cells hold after each."""
        s = self.state
        loaded = np.zeros(s.act.shape, dtype=bool)
        while advance(s, self._overlap, self._stay, 1):
            loaded = loaded | (s.fresh != 0)
            yield Cells(
                cycle=int(s.control[kernel.CYCLE]) - 1,
                valid=s.act_valid.astype(bool),
                moving=s.fresh != 0,
                loaded=loaded,
                act=s.act.copy(),
                weight=s.weight.copy(),
                shadow=s.shadow.copy(),
                total=s.total.copy(),
            )


def _weights_stay(a: Matrix, b: Matrix, rows: int, columns: int, bits: int) -> PeState:
    """Tiles of b in the cells, rows of a streaming; 16-bit activations in two passes, low byte first."""
    (m, k), n = a.shape, b.shape[1]
    deep, wide = -(-k // rows), -(-n // columns)
    passes = bits // 8
    padded = np.zeros((m, deep * rows), dtype=np.int64)
    padded[:, :k] = a
    halves = [padded] if passes == 1 else [padded & 0xFF, padded >> 8]
    by_pass = np.stack(halves, axis=1).reshape(m * passes, deep, rows)
    weights = np.zeros((deep * rows, wide * columns), dtype=np.int64)
    weights[:k, :n] = b
    tiles = weights.reshape(deep, rows, wide, columns).transpose(2, 0, 1, 3).reshape(-1, rows, columns)
    count = wide * deep
    first = np.arange(count + 1) * m * passes
    flag = np.zeros(count * m * passes, dtype=np.uint8)
    flag[first[:-1]] = 1
    one = np.repeat(np.arange(m), passes)
    return _state(
        rows,
        columns,
        weights=np.ascontiguousarray(tiles),
        inputs=np.tile(np.ascontiguousarray(by_pass.transpose(1, 0, 2)).reshape(-1, rows), (wide, 1)),
        first=first,
        flag=flag,
        dest=np.tile(one, count),
        bits=np.tile(np.tile(8 * np.arange(passes), m), count),
        column=np.repeat(np.arange(wide) * columns, deep),
        accumulators=np.zeros((m, wide * columns), dtype=np.int64),
    )


def _outputs_stay(a: Matrix, b: Matrix, rows: int, columns: int, bits: int) -> PeState:
    """Blocks of the product in the cells; columns of a and rows of b streaming."""
    (m, k), n = a.shape, b.shape[1]
    high, wide = -(-m // rows), -(-n // columns)
    left = np.zeros((high * rows, k), dtype=np.int64)
    left[:m] = a
    right = np.zeros((k, wide * columns), dtype=np.int64)
    right[:, :n] = b
    count = high * wide
    flag = np.zeros(count * k, dtype=np.uint8)
    flag[k - 1 :: k] = 1
    blocks = [(i, j) for j in range(wide) for i in range(high)]
    inputs = [left[i * rows : (i + 1) * rows].T for i, _ in blocks]
    weights = [right[:, j * columns : (j + 1) * columns] for _, j in blocks]
    return _state(
        rows,
        columns,
        weights=np.ascontiguousarray(np.concatenate(weights)[:, None]),
        inputs=np.ascontiguousarray(np.concatenate(inputs)),
        first=np.arange(count + 1) * k,
        flag=flag,
        dest=np.array([i * rows for i, _ in blocks]),
        bits=np.zeros(count, dtype=np.int64),
        column=np.array([j * columns for _, j in blocks]),
        accumulators=np.zeros((high * rows, wide * columns), dtype=np.int64),
    )


def _state(rows: int, columns: int, **operands: NDArray) -> PeState:
    """Registers at reset, and the operands."""
    cells = (rows, columns)
    tiles = operands["first"].size - 1
    control = np.zeros(kernel.CONTROLS, dtype=np.int64)
    control[[kernel.SHIFT_START, kernel.SHADOW_TILE, kernel.STREAM_TILE]] = -1

    def words() -> Matrix:
        return np.zeros(cells, dtype=np.int64)

    def tags() -> NDArray[np.uint8]:
        return np.zeros(cells, dtype=np.uint8)

    return PeState(
        control=control,
        act=words(),
        act_valid=tags(),
        act_flag=tags(),
        total=words(),
        weight=words(),
        shadow=words(),
        target=words(),
        fresh=tags(),
        macs=words(),
        shift_at=np.full(tiles, -1, dtype=np.int64),
        stream_at=np.full(tiles, -1, dtype=np.int64),
        column_tile=np.zeros(columns, dtype=np.int64),
        row_tile=np.zeros(rows, dtype=np.int64),
        out_pass=np.zeros(columns, dtype=np.int64),
        out_tile=np.zeros(columns, dtype=np.int64),
        **operands,
    )
