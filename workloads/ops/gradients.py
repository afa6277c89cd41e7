"""Gradients of a convolution: of X (dgrad) and of W (wgrad), with the keys of the convolution itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.ops.base import Array, Operand, operator
from workloads.ops.contractions import Conv2d
from workloads.ops.dtypes import default_output
from workloads.ops.gemm import Gemm


@operator("conv2d_dgrad")
@dataclass(frozen=True)
class Conv2dDgrad(Conv2d):
    """dX[n, h, w, c] = sum over k, r, s of dY[n, p, q, k] W[k, r, s, c] where p stride + r dilation - pad = h, q alike.

    The keys are those of the convolution whose gradient it is. `dtype` is that of dY and W, `out` that of dX.
    """

    @property
    def operands(self) -> tuple[Operand, ...]:
        """dY and W."""
        return (super().results[0]._replace(name="dy", dtype=self.chosen_dtype), super().operands[1])

    @property
    def results(self) -> tuple[Operand, ...]:
        """dX."""
        return (super().operands[0]._replace(name="dx", dtype=self.out or default_output(self.chosen_dtype)),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """dX by the multiply of dY's patches with W."""
        products = self._multiply.reference(*self.patches(*operands))
        dx = products.swapaxes(0, 1).reshape(self.n, self.h, self.w, self.c)
        return (dx if self.layout == "nhwc" else dx.transpose(0, 3, 1, 2),)

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """As that of the multiply."""
        dx = np.asarray(results[0], dtype=np.float64).reshape(self.results[0].shape)
        dx = dx if self.layout == "nhwc" else dx.transpose(0, 2, 3, 1)
        found = dx.reshape(-1, self.groups, self.c // self.groups).swapaxes(0, 1)
        return self._multiply.relative_error(found, *self.patches(*operands))

    def patches(self, x: Array, w: Array) -> tuple[Array, Array]:
        """dY (the first operand) as [groups, n h w, r s k], 0 where no filter met it, and W as [groups, c, r s k]."""
        dy = x if self.layout == "nhwc" else x.transpose(0, 2, 3, 1)
        w = w if self.layout == "nhwc" else w.transpose(0, 2, 3, 1)
        taps = self.r * self.s
        rows, columns = (self._met(axis) for axis in (0, 1))
        met = [
            dy[:, row][:, :, column] * (a_row[:, None] & a_column)[..., None]
            for row, a_row in rows
            for column, a_column in columns
        ]
        patches = np.stack(met, axis=3)
        patches = patches.reshape(self.n * self.h * self.w, taps, self.groups, -1).transpose(2, 0, 1, 3)
        filters = w.reshape(self.groups, self.k // self.groups, taps, -1).transpose(0, 3, 2, 1)
        deep = taps * self.k // self.groups
        return patches.reshape(self.groups, -1, deep), filters.reshape(self.groups, -1, deep)

    def _met(self, axis: int) -> list[tuple[Array, Array]]:
        """By row (or column) of the filter: the row of dY that it met in each row of X, and whether there is one."""
        size, count = (self.h, self.w)[axis], self.output[axis]
        step, pad = self.strides[axis], self.padding[axis]
        found = []
        for tap in range((self.r, self.s)[axis]):
            at = np.arange(size) + pad - tap * self.dilation
            there = (at % step == 0) & (at >= 0) & (at // step < count)
            found.append((np.where(there, at // step, 0), there))
        return found

    @property
    def _multiply(self) -> Gemm:
        return Gemm(
            m=self.n * self.h * self.w, n=self.c // self.groups, k=self.r * self.s * self.k // self.groups,
            batch=self.groups, dtype=self.dtype, out=self.out, acc=self.acc, tb="T",
        ).with_defaults(self.chosen_dtype)  # fmt: skip


@operator("conv2d_wgrad")
@dataclass(frozen=True)
class Conv2dWgrad(Conv2d):
    """dW[k, r, s, c] = sum over n, p, q of dY[n, p, q, k] X[n, p stride + r dilation - pad, q ..., c].

    The keys are those of the convolution whose gradient it is. `dtype` is that of X and dY, `out` that of dW.
    """

    @property
    def operands(self) -> tuple[Operand, ...]:
        """X and dY."""
        return (super().operands[0], super().results[0]._replace(name="dy", dtype=self.chosen_dtype))

    @property
    def results(self) -> tuple[Operand, ...]:
        """dW."""
        return (super().operands[1]._replace(name="dw", dtype=self.out or default_output(self.chosen_dtype)),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """dW by the multiply of dY with X's patches."""
        dw = self._multiply.reference(*self.patches(*operands)).reshape(self.k, self.r, self.s, -1)
        return (dw if self.layout == "nhwc" else dw.transpose(0, 3, 1, 2),)

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """As that of the multiply."""
        dw = np.asarray(results[0], dtype=np.float64).reshape(self.results[0].shape)
        dw = dw if self.layout == "nhwc" else dw.transpose(0, 2, 3, 1)
        found = dw.reshape(self.groups, self.k // self.groups, -1)
        return self._multiply.relative_error(found, *self.patches(*operands))

    def patches(self, x: Array, w: Array) -> tuple[Array, Array]:
        """dY (the second operand) as [groups, k, n p q], and X as [groups, n p q, r s c]."""
        none = np.zeros(super().operands[1].shape)
        patches, _ = super().patches(x, none)
        dy = w if self.layout == "nhwc" else w.transpose(0, 2, 3, 1)
        return dy.reshape(-1, self.groups, self.k // self.groups).transpose(1, 2, 0), patches

    @property
    def _multiply(self) -> Gemm:
        rows, columns = self.output
        return Gemm(
            m=self.k // self.groups, n=self.r * self.s * self.c // self.groups, k=self.n * rows * columns,
            batch=self.groups, dtype=self.dtype, out=self.out, acc=self.acc,
        ).with_defaults(self.chosen_dtype)  # fmt: skip
