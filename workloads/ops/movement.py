"""Operators that sum or move: sum, transpose, copies from the host, all-reduce between devices."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np

from arch.dtypes import DTYPE_BYTES, FORMATS, is_integer, round_to, wrapped_to
from arch.errors import InputError
from workloads.ops.base import (
    Array,
    Operand,
    Operator,
    count,
    derived_extent,
    extent,
    number_format,
    operator,
    rounding,
)


@operator("sum", kind="normalisation", example="n=16M")
@dataclass(frozen=True)
class Sum(Operator):
    """The sum of n elements, or of a matrix's rows or columns.

    `sum n=...` adds up everything; `sum rows=... cols=... axis=1` gives one result a row, `axis=0` one a column.
    """

    n: int | None = derived_extent(help="elements, all added up; default: rows and cols are given")
    rows: int | None = derived_extent(help="rows of the matrix; default: n is given")
    cols: int | None = derived_extent(help="columns of the matrix; default: n is given")
    axis: int | None = count(None, help="0: one result a column, 1: one result a row; default: one of all")
    dtype: str | None = number_format("of the operand; default: the machine's")
    out: str | None = number_format("of the result; default: the input's, 64 bits of integers")

    def __post_init__(self) -> None:
        """Checks that either n or rows and cols are given, and that integers are not sums of fractions."""
        super().__post_init__()
        if self.out and self.dtype and is_integer(self.out) and not is_integer(self.dtype):
            raise InputError(f"sum dtype={self.dtype} out={self.out}: sums of fractions are none; nearest: out=fp32")
        if self.out and is_integer(self.out) and DTYPE_BYTES[self.out] < 4:
            raise InputError(f"sum out={self.out}: sums of integers have 32 or 64 bits; nearest: out=int32")
        matrix = self.rows is not None and self.cols is not None
        if self.n is not None and (self.rows, self.cols, self.axis) != (None, None, None):
            raise InputError("sum: n goes without rows, cols and axis; write n=... or rows=... cols=... axis=0|1")
        if self.n is None and not matrix:
            raise InputError("sum: n is missing; write n=... or rows=... cols=... axis=0|1")
        if self.axis not in (None, 0, 1):
            raise InputError(f"sum axis={self.axis}: must be 0 (one result a column) or 1 (one result a row)")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` and `out` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or _sum_of(chosen))

    @property
    def shape(self) -> tuple[int, int]:
        """The operand as a matrix; all of n is one row."""
        return (1, self.n) if self.n is not None else (self.rows or 1, self.cols or 1)

    @property
    def added(self) -> int:
        """Elements that one result is the sum of."""
        rows, cols = self.shape
        return {0: rows, 1: cols}.get(-1 if self.axis is None else self.axis, rows * cols)

    @property
    def flops(self) -> int:
        """One addition an element."""
        return self.shape[0] * self.shape[1]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x."""
        return (Operand("x", (self.n,) if self.n is not None else self.shape, self.chosen_dtype),)

    @property
    def results(self) -> tuple[Operand, ...]:
        """The sums."""
        results = self.shape[0] * self.shape[1] // self.added
        return (Operand("y", (results,), self.out or _sum_of(self.chosen_dtype)),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The exact sums, rounded once; of integers their lowest bits."""
        out = self.results[0].dtype
        return (round_to(wrapped_to(self._sum(operands[0]), out), out),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """Sums of absolute values."""
        return (self._sum(np.abs(operands[0])),)

    @property
    def tolerance(self) -> float:
        """One rounding to the result's format after fp32 sums; integers are exact."""
        out = self.results[0].dtype
        return 0.0 if is_integer(out) else rounding(out, self.added)

    def _sum(self, x: Array) -> Array:
        return np.atleast_1d(np.asarray(x).reshape(self.shape).sum(axis=self.axis))


@operator("transpose", kind="elementwise", example="rows=4k cols=4k")
@dataclass(frozen=True)
class Transpose(Operator):
    """y[j, i] = x[i, j]."""

    rows: int = extent(help="rows of the operand")
    cols: int = extent(help="columns of the operand")
    dtype: str | None = number_format("of the operand and the result; default: the machine's")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x."""
        return (Operand("x", (self.rows, self.cols), self.chosen_dtype),)

    @property
    def results(self) -> tuple[Operand, ...]:
        """y."""
        return (Operand("y", (self.cols, self.rows), self.chosen_dtype),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The transposed matrix."""
        return (np.asarray(operands[0], dtype=np.float64).T,)

    @property
    def tolerance(self) -> float:
        """Nothing is rounded."""
        return 0.0


@operator("copy_h2d", kind="copy", example="bytes=64M")
@dataclass(frozen=True)
class CopyH2D(Operator):
    """Copies bytes from the host's memory to the device."""

    bytes: int = extent(help="bytes that are copied")

    def with_defaults(self, dtype: str) -> Self:
        """Itself: bytes have no number format."""
        return self

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Nothing in device memory."""
        return ()

    @property
    def results(self) -> tuple[Operand, ...]:
        """The copied bytes."""
        return (Operand("y", (self.bytes,), "int8"),)


@operator("allreduce", kind="communication", example="bytes=64M devices=8")
@dataclass(frozen=True)
class AllReduce(Operator):
    """Sums equally long buffers of several devices; each device ends with the sum."""

    bytes: int = extent(help="bytes of each device's buffer")
    devices: int = extent(help="devices that take part")
    dtype: str | None = number_format("of the elements; default: the machine's")

    def __post_init__(self) -> None:
        """Checks that there is somebody to reduce with and that elements are whole."""
        super().__post_init__()
        if self.devices < 2:
            raise InputError(f"allreduce devices={self.devices}: must be at least 2")
        if self.dtype is not None and self.bytes % DTYPE_BYTES[self.dtype]:
            size = DTYPE_BYTES[self.dtype]
            nearest = max(size, self.bytes // size * size)
            raise InputError(f"allreduce bytes={self.bytes}: {self.dtype} has {size} bytes; nearest: {nearest}")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def flops(self) -> int:
        """Additions on all devices together."""
        return (self.devices - 1) * (self.bytes // DTYPE_BYTES[self.chosen_dtype])

    @property
    def operands(self) -> tuple[Operand, ...]:
        """One buffer of each device."""
        shape = (self.devices, self.bytes // DTYPE_BYTES[self.chosen_dtype])
        return (Operand("x", shape, self.chosen_dtype),)

    @property
    def results(self) -> tuple[Operand, ...]:
        """The sum."""
        return (Operand("y", (self.bytes // DTYPE_BYTES[self.chosen_dtype],), self.chosen_dtype),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of all buffers, rounded once."""
        return (round_to(operands[0].sum(axis=0), self.chosen_dtype),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of absolute values."""
        return (np.abs(operands[0]).sum(axis=0),)

    @property
    def tolerance(self) -> float:
        """One rounding to the format at each device that adds."""
        return self.devices * rounding(self.chosen_dtype)


def _sum_of(dtype: str) -> str:
    """Format of a sum when none is asked for: that of what is added up, but 64 bits of integers, as in NumPy."""
    if not is_integer(dtype):
        return dtype
    return "int64" if FORMATS[dtype].signed or dtype == "bool" else "uint64"
