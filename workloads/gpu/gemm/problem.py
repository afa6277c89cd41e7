"""A GEMM as its kernels see it: tensors as stored, alignment of their rows, operands by the way in which k runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.language import GlobalTensor, IntLike, SharedTile, View
from workloads.ops import Gemm

MAX_VECTOR_BYTES = 16
"""Widest access of one thread."""
SECTOR_BYTES = 32
SCALES_A_ROW = MAX_VECTOR_BYTES // DTYPE_BYTES["fp32"]
"""Elements of which a row of A's scales has a multiple in memory."""


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def row_alignment(tensor: GlobalTensor) -> int:
    """Bytes (16, 8, 4, 2 or 1) to which the start of every row of `tensor` is aligned."""
    width = DTYPE_BYTES[tensor.dtype]
    strides = [s * width for n, s in zip(tensor.shape, tensor.strides, strict=True) if s != 1 and n > 1]
    return math.gcd(MAX_VECTOR_BYTES, *strides)


@dataclass(frozen=True)
class Operand:
    """One operand as `rows` (m of A, n of B) by k.

    k_major: k is the contiguous dimension in memory (and in the shared tile).
    """

    tensor: GlobalTensor
    rows: int
    k_major: bool

    @property
    def dtype(self) -> str:
        """Number format of the elements."""
        return self.tensor.dtype

    @property
    def vector_bytes(self) -> int:
        """Bytes that one thread can load at once."""
        return row_alignment(self.tensor)

    @property
    def tma(self) -> bool:
        """Whether a tensor map can describe it: every stride but the innermost a multiple of 16 bytes."""
        return self.vector_bytes == MAX_VECTOR_BYTES

    def tile_shape(self, rows: int, depth: int) -> tuple[int, int]:
        """Shape of a shared tile that holds `rows` by `depth` elements in the order of memory."""
        return (rows, depth) if self.k_major else (depth, rows)

    def box(self, batch: IntLike, row: IntLike, rows: int, k: IntLike, depth: int) -> View:
        """`rows` by `depth` elements of global memory, in the order of memory."""
        if self.k_major:
            return self.tensor[batch, row:rows, k:depth]  # type: ignore[misc]
        return self.tensor[batch, k:depth, row:rows]  # type: ignore[misc]

    def part(self, tile: SharedTile, stage: IntLike, row: IntLike, rows: int, k: IntLike, depth: int) -> View:
        """`rows` by `depth` elements of a shared tile, in the order of memory."""
        if self.k_major:
            return tile[stage, row:rows, k:depth]  # type: ignore[misc]
        return tile[stage, k:depth, row:rows]  # type: ignore[misc]

    def by_rows(self, view: View) -> View:
        """The view as rows by k."""
        return view if self.k_major else view.T

    def by_k(self, view: View) -> View:
        """The view as k by rows."""
        return view.T if self.k_major else view


@dataclass(frozen=True)
class Weights(Operand):
    """B with `bits` a value, stored as `Packed` has it: its elements are bytes."""

    bits: int = 8

    def bytes_of(self, depth: int) -> int:
        """Bytes of `depth` values of a column."""
        return depth * self.bits // 8

    def tile_shape(self, rows: int, depth: int) -> tuple[int, int]:
        """As they lie in memory."""
        return (rows, self.bytes_of(depth))


@dataclass(frozen=True)
class Problem:
    """Tensors A, B, C of a `Gemm` with its number formats resolved; shapes (batch, rows, columns) as stored.

    scales: of A and of B, where they have some by block; rows of A's begin at multiples of 16 B, as TMA needs them.
    finish: what results are made with, see `Gemm.finish_operands`. group_scales: of B, where it is quantised.
    block_scales: of A and of B in a block format, `dtype`.
    """

    op: Gemm
    dtype: str
    out: str
    acc: str
    a: Operand
    b: Operand
    c: GlobalTensor
    scales: tuple[GlobalTensor, GlobalTensor] | None = None
    finish: tuple[GlobalTensor, ...] = ()
    group_scales: GlobalTensor | None = None
    block_scales: tuple[GlobalTensor, GlobalTensor] | None = None

    @property
    def m(self) -> int:
        """Rows of C."""
        return self.op.m

    @property
    def n(self) -> int:
        """Columns of C."""
        return self.op.n

    @property
    def k(self) -> int:
        """Depth of the sum."""
        return self.op.k

    @property
    def batch(self) -> int:
        """Independent multiplies."""
        return self.op.batch

    @property
    def c_vector_bytes(self) -> int:
        """Bytes of C that one thread can store at once."""
        return row_alignment(self.c)

    def sides(self, swap: bool) -> tuple[Operand, Operand]:
        """First and second operand of the tensor unit: A and B, the other way round where they change places."""
        return (self.b, self.a) if swap else (self.a, self.b)

    def results(
        self, batch: IntLike, first: tuple[IntLike, int], second: tuple[IntLike, int], swap: bool, piece: IntLike | None
    ) -> View:
        """A box of C, with what is its begin and its length along the first and the second operand; where a second
        kernel adds pieces of k, that of a piece."""
        (row, high), (column, wide) = (second, first) if swap else (first, second)
        if piece is not None:
            return self.c[piece, batch, row:high, column:wide]  # type: ignore[misc]
        return self.c[batch, row:high, column:wide]  # type: ignore[misc]


def shared_sectors(p: Problem, dtype: str, columns: int) -> int:
    """Sectors of a result in a format that two stores share, each of them `columns` of a row: where rows, or pieces of
    them, do not begin with a sector."""
    row, piece = p.n * DTYPE_BYTES[dtype], columns * DTYPE_BYTES[dtype]
    aligned = math.gcd(row, piece, SECTOR_BYTES)
    stores = p.batch * p.m * ceil_div(p.n, columns)
    return min(stores * (SECTOR_BYTES - aligned), p.batch * p.m * row) // SECTOR_BYTES


def _dense(name: str, shape: tuple[int, ...], dtype: str) -> GlobalTensor:
    return GlobalTensor(name, shape, dtype, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), "input")


def _tensor(name: str, shape: tuple[int, int, int], dtype: str, role: str) -> GlobalTensor:
    return GlobalTensor(name, shape, dtype, (shape[1] * shape[2], shape[2], 1), role)


def problem(op: Gemm) -> Problem:
    """The tensors of `op`. Raises InputError for sizes below 1 and for a number format that is still open."""
    for key in ("m", "n", "k", "batch"):
        if getattr(op, key) < 1:
            raise InputError(f"gemm {key}={getattr(op, key)}: must be at least 1")
    if op.dtype is None:
        raise InputError("gemm dtype: not set, such as dtype=bf16")
    full = op.with_defaults(op.dtype)
    dtype, out, acc = str(full.dtype), str(full.out), str(full.acc)
    in_blocks: tuple[GlobalTensor, GlobalTensor] | None = None
    if full.in_blocks:
        of_a, of_b, *scales_of = (_dense(o.name.upper(), o.shape, o.dtype) for o in full.operands[:4])
        a, b = Operand(of_a, full.m, True), Operand(of_b, full.n, True)
        in_blocks = scales_of[0], scales_of[1]
    else:
        a = Operand(_tensor("A", full.a_shape, dtype, "input"), full.m, full.ta == "N")
        b = Operand(_tensor("B", full.b_shape, dtype, "input"), full.n, full.tb == "T")
    groups: GlobalTensor | None = None
    if full.quantised:
        packed = full.packed
        b = Weights(_tensor("B", packed.shape(full.k, full.n), packed.stored, "input"), full.n, True, packed.bits)
        groups = GlobalTensor("SW", (packed.groups(full.k), full.n), packed.scale, (full.n, 1), "input")
    scales = None
    if full.blockwise:
        batch, blocks, rows = full.a_scales_shape
        row = ceil_div(rows, SCALES_A_ROW) * SCALES_A_ROW
        sa = GlobalTensor("SA", (batch, blocks, rows), "fp32", (blocks * row, row, 1), "input")
        scales = sa, _tensor("SB", full.b_scales_shape, "fp32", "input")
    finish = tuple(_dense(o.name, o.shape, o.dtype) for o in full.finish_operands)
    return Problem(
        full, dtype, out, acc, a, b, _tensor("C", full.c_shape, out, "output"), scales, finish, groups, in_blocks
    )


def without_scales(p: Problem, where: str) -> None:
    """InputError for a problem whose operands have scales, of a program that has no use for them."""
    if p.scales:
        raise InputError(f"{where}: scale=block is not available; nearest: wgmma, on machines that have it")


def without_groups(p: Problem, where: str) -> None:
    """InputError for a problem whose B is quantised, of a program that cannot bring it to A's format."""
    if p.group_scales is not None:
        raise InputError(f"{where}: weights={p.op.weights} is not available; nearest: marlin")


def multiply_add(acc: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """acc + a @ b."""
    return acc + a @ b


def add(acc: np.ndarray, part: np.ndarray) -> np.ndarray:
    """acc + part."""
    return acc + part


def zeros(acc: np.ndarray) -> np.ndarray:
    """A cleared accumulator."""
    return np.zeros_like(acc)
