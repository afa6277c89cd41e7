"""Matrix products in other words: convolution and matrix times vector."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, choice, count, derived_extent, extent, number_format, operator
from workloads.ops.dtypes import default_accumulator, default_output
from workloads.ops.gemm import Gemm


@operator("conv2d", kind="contraction", example="n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1")
@dataclass(frozen=True)
class Conv2d(Operator):
    """Y[n, k, p, q] = sum over c, r, s of X[n, c, p stride + r dilation - pad, q ...] W[k, c, r, s].

    `layout` says how X and Y are stored: `nhwc` with weights [k, r, s, c], or `nchw` with [k, c, r, s].
    """

    n: int = extent(help="images")
    c: int = extent(help="channels of X")
    h: int = extent(help="rows of X")
    w: int = extent(help="columns of X")
    k: int = extent(help="channels of Y")
    r: int = extent(help="rows of a filter")
    s: int = extent(help="columns of a filter")
    stride: int = extent(1, help="rows and columns from one result to the next")
    pad: int = count(0, help="zeros around X")
    dilation: int = extent(1, help="rows and columns from one filter element to the next")
    groups: int = extent(1, help="independent groups of channels")
    stride_h: int | None = derived_extent(help="rows from one result to the next; default: stride")
    stride_w: int | None = derived_extent(help="columns from one result to the next; default: stride")
    pad_h: int | None = count(None, help="rows of zeros above and below X; default: pad")
    pad_w: int | None = count(None, help="columns of zeros beside X; default: pad")
    p: int | None = derived_extent(help="rows of Y; default: what the other keys give")
    q: int | None = derived_extent(help="columns of Y; default: what the other keys give")
    layout: str = choice("nhwc", ("nhwc", "nchw"), help="order of X and Y in memory")
    dtype: str | None = number_format("of X and W; default: the machine's")
    out: str | None = number_format("of Y; default: the input's, tf32 to fp32, int8 to int32, fp8 to bf16")
    acc: str | None = number_format("of the sums; default: fp32, int32 for integers")

    def __post_init__(self) -> None:
        """Checks that groups divide the channels, that the filter fits, and sizes of Y that are given."""
        super().__post_init__()
        for key, channels in (("c", self.c), ("k", self.k)):
            if channels % self.groups:
                nearest = max(self.groups, channels // self.groups * self.groups)
                raise InputError(f"conv2d {key}={channels}: must be a multiple of groups={self.groups}, as {nearest}")
        for key, size in (("h", self.h), ("w", self.w)):
            axis = 0 if key == "h" else 1
            reach = (self._filter[axis] - 1) * self.dilation + 1
            padded = size + 2 * self.padding[axis]
            if padded < reach:
                least = size + reach - padded
                raise InputError(
                    f"conv2d {key}={size}: the filter reaches over {reach}, padded X is {padded}; {key}>={least}"
                )
        for key, given, right in (("p", self.p, self.output[0]), ("q", self.q, self.output[1])):
            if given not in (None, right):
                raise InputError(f"conv2d {key}={given}: the other keys give {key}={right}")

    @property
    def strides(self) -> tuple[int, int]:
        """Rows and columns from one result to the next."""
        return (self.stride_h or self.stride, self.stride_w or self.stride)

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros on each side."""
        return (self.pad if self.pad_h is None else self.pad_h, self.pad if self.pad_w is None else self.pad_w)

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of Y."""
        sides = zip((self.h, self.w), self.padding, self._filter, self.strides, strict=True)
        rows, columns = ((x + 2 * pad - (f - 1) * self.dilation - 1) // step + 1 for x, pad, f, step in sides)
        return rows, columns

    def as_gemm(self) -> Gemm:
        """The multiply of each group: results of all images by channels, over the filter's elements."""
        rows, columns = self.output
        return Gemm(
            m=self.n * rows * columns, n=self.k // self.groups, k=self.c // self.groups * self.r * self.s,
            batch=self.groups, dtype=self.dtype, out=self.out, acc=self.acc, tb="T",
        )  # fmt: skip

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype`, `out` and `acc` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(
            self, dtype=chosen, out=self.out or default_output(chosen), acc=self.acc or default_accumulator(chosen)
        )

    @property
    def macs(self) -> int:
        """Padding counts as multiplied."""
        return self.as_gemm().macs

    @property
    def operands(self) -> tuple[Operand, ...]:
        """X and W."""
        channels = self.c // self.groups
        if self.layout == "nchw":
            x, w = (self.n, self.c, self.h, self.w), (self.k, channels, self.r, self.s)
        else:
            x, w = (self.n, self.h, self.w, self.c), (self.k, self.r, self.s, channels)
        return (Operand("x", x, self.chosen_dtype), Operand("w", w, self.chosen_dtype))

    @property
    def results(self) -> tuple[Operand, ...]:
        """Y."""
        rows, columns = self.output
        y = (self.n, self.k, rows, columns) if self.layout == "nchw" else (self.n, rows, columns, self.k)
        return (Operand("y", y, self.out or default_output(self.chosen_dtype)),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """Y by the multiply of X's patches with W."""
        patches, weights = self.patches(*operands)
        return (self.image(self._multiply.reference(patches, weights)),)

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """As that of the multiply."""
        patches, weights = self.patches(*operands)
        y = np.asarray(results[0], dtype=np.float64).reshape(self.results[0].shape)
        y = y if self.layout == "nhwc" else y.transpose(0, 2, 3, 1)
        columns = y.reshape(-1, self.groups, self.k // self.groups).swapaxes(0, 1)
        return self._multiply.relative_error(columns, patches, weights)

    @property
    def tolerance(self) -> float:
        """As that of the multiply."""
        return self._multiply.tolerance

    @property
    def _multiply(self) -> Gemm:
        return self.as_gemm().with_defaults(self.chosen_dtype)

    @property
    def _filter(self) -> tuple[int, int]:
        return (self.r, self.s)

    def patches(self, x: Array, w: Array) -> tuple[Array, Array]:
        """X as [groups, n p q, r s c] and W as [groups, k, r s c]."""
        if self.layout == "nchw":
            x, w = x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1)
        (rows, columns), (down, right), (above, beside) = self.output, self.strides, self.padding
        padded = np.pad(x, ((0, 0), (above, above), (beside, beside), (0, 0)))
        taps = [
            padded[:, r * self.dilation :, s * self.dilation :][:, : (rows - 1) * down + 1 : down]
            [:, :, : (columns - 1) * right + 1 : right]
            for r in range(self.r)
            for s in range(self.s)
        ]  # fmt: skip
        patches = np.stack(taps, axis=3).reshape(self.n * rows * columns, self.r * self.s, self.groups, -1)
        weights = w.reshape(self.groups, self.k // self.groups, -1)
        return patches.transpose(2, 0, 1, 3).reshape(self.groups, patches.shape[0], -1), weights

    def image(self, products: Array) -> Array:
        """[groups, n p q, k / groups] as Y."""
        rows, columns = self.output
        y = products.swapaxes(0, 1).reshape(self.n, rows, columns, self.k)
        return y if self.layout == "nhwc" else y.transpose(0, 3, 1, 2)


@operator("matvec", kind="contraction", example="rows=4k cols=4k")
@dataclass(frozen=True)
class Matvec(Operator):
    """y = A x: a matrix of `rows` x `cols`, row-major, times a vector."""

    rows: int = extent(help="rows of A, elements of y")
    cols: int = extent(help="columns of A, elements of x")
    dtype: str | None = number_format("of A and x; default: the machine's")
    out: str | None = number_format("of y; default: the input's, tf32 to fp32, int8 to int32, fp8 to bf16")
    acc: str | None = number_format("of the sums; default: fp32, int32 for integers")

    def as_gemm(self) -> Gemm:
        """The same numbers as a multiply with one column."""
        return Gemm(m=self.rows, n=1, k=self.cols, dtype=self.dtype, out=self.out, acc=self.acc)

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype`, `out` and `acc` filled in."""
        full = self.as_gemm().with_defaults(dtype)
        return dataclasses.replace(self, dtype=full.dtype, out=full.out, acc=full.acc)

    @property
    def macs(self) -> int:
        """rows * cols."""
        return self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A and x."""
        dtype = self.chosen_dtype
        return (Operand("a", (self.rows, self.cols), dtype), Operand("x", (self.cols,), dtype))

    @property
    def results(self) -> tuple[Operand, ...]:
        """y."""
        return (Operand("y", (self.rows,), self._multiply.results[0].dtype),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """y."""
        return (self._multiply.reference(*self._matrices(*operands)).reshape(self.rows),)

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """As that of the multiply."""
        return self._multiply.relative_error(results[0], *self._matrices(*operands))

    @property
    def tolerance(self) -> float:
        """As that of the multiply."""
        return self._multiply.tolerance

    @property
    def _multiply(self) -> Gemm:
        return self.as_gemm().with_defaults(self.chosen_dtype)

    def _matrices(self, a: Array, x: Array) -> tuple[Array, Array]:
        return a.reshape(1, self.rows, self.cols), x.reshape(1, self.cols, 1)
