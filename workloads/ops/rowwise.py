"""Operators that normalise each row of a matrix: softmax, layer norm, RMS norm, and their backward forms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from arch.dtypes import FORMATS, round_to
from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, choice, extent, number_format, operator, rounding

LEAST_LARGEST = 1e-10
"""Of the largest |x| that share a scale, so that none is 0 (vLLM, per_token_group_quant)."""
EPSILON = 1e-5
"""Added to the variance (layer norm) or the mean square (RMS norm), PyTorch's default for layer norm."""


@dataclass(frozen=True)
class RowOperator(Operator):
    """Base: a matrix of `rows` x `cols`, row-major; sums are fp32 and run over a row."""

    abreast: ClassVar[bool] = True

    rows: int = extent(help="independent rows")
    cols: int = extent(help="elements of a row")
    dtype: str | None = number_format("of the operands; default: the machine's")
    out: str | None = number_format("of the result; default: the input's")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` and `out` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or chosen)

    @property
    def out_dtype(self) -> str:
        """Format of the result."""
        return self.out or self.chosen_dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return (self.rows, self.cols)

    @property
    def tolerance(self) -> float:
        """One rounding to the result's format after sums over a row."""
        return rounding(self.out_dtype, self.cols)

    def matrix(self, name: str) -> Operand:
        """An operand of the matrix's shape."""
        return Operand(name, self.shape, self.chosen_dtype)

    def result(self, name: str) -> Operand:
        """The result, of the matrix's shape."""
        return Operand(name, self.shape, self.out_dtype)


@operator("softmax", kind="normalisation", example="rows=4k cols=1k")
@dataclass(frozen=True)
class Softmax(RowOperator):
    """y = exp(x - max x) / sum exp(x - max x), by row."""

    @property
    def flops(self) -> int:
        """Five an element: maximum, difference, exponential, sum, product."""
        return 5 * self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x."""
        return (self.matrix("x"),)

    @property
    def results(self) -> tuple[Operand, ...]:
        """y."""
        return (self.result("y"),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """y."""
        return (round_to(_softmax(operands[0]), self.out_dtype),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The result times 1 + |x - max x|, by which a rounding error of the argument grows."""
        x = operands[0]
        return (_softmax(x) * (1 + np.abs(x - x.max(axis=1, keepdims=True))),)


@operator("softmax_backward", kind="normalisation", example="rows=4k cols=1k")
@dataclass(frozen=True)
class SoftmaxBackward(RowOperator):
    """dx = y (dy - sum y dy), by row: y is what softmax gave."""

    @property
    def flops(self) -> int:
        """Four an element: product, sum, difference, product."""
        return 4 * self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """dy and y."""
        return (self.matrix("dy"), self.matrix("y"))

    @property
    def results(self) -> tuple[Operand, ...]:
        """dx."""
        return (self.result("dx"),)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """dy as in the base, y a softmax."""
        dy, x = super().inputs(seed, data)
        return dy, round_to(_softmax(x), self.chosen_dtype)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """dx."""
        dy, y = operands
        return (round_to(y * (dy - (y * dy).sum(axis=1, keepdims=True)), self.out_dtype),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """|y| (|dy| + sum |y dy|)."""
        dy, y = np.abs(operands[0]), np.abs(operands[1])
        return (y * (dy + (y * dy).sum(axis=1, keepdims=True)),)


@operator("argmax", kind="normalisation", example="rows=16 cols=32k")
@dataclass(frozen=True)
class Argmax(RowOperator):
    """y[i] = the column of row i's largest element, the first one of equal ones: greedy sampling of logits."""

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in; places are whole numbers."""
        return dataclasses.replace(self, dtype=self.dtype or dtype, out="int32")

    @property
    def flops(self) -> int:
        """A comparison an element."""
        return self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x."""
        return (self.matrix("x"),)

    @property
    def results(self) -> tuple[Operand, ...]:
        """The places."""
        return (Operand("y", (self.rows,), "int32"),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The places."""
        return (np.asarray(operands[0], dtype=np.float64).argmax(axis=1),)

    @property
    def tolerance(self) -> float:
        """Nothing is rounded."""
        return 0.0


@operator("quantize", kind="normalisation", example="rows=4k cols=4k dtype=bf16")
@dataclass(frozen=True)
class Quantize(RowOperator):
    """y = x / scale, rounded to a format of 8 bits.

    `scale=token` gives each row a scale, the largest |x| in it over the largest number of the format, `scale=group`
    each `group` elements of a row, and `scale=tensor` takes one that is given. Scales are fp32, [groups, rows].
    """

    scale: str = choice("token", ("token", "group", "tensor"), help="what shares a scale; tensor: one that is given")
    group: int = extent(128, help="elements of a row that share a scale with scale=group")
    out: str | None = number_format("of the result; default: fp8")

    def __post_init__(self) -> None:
        """Checks that rows fall into groups, and the result's format."""
        super().__post_init__()
        if self.scale == "group" and self.cols % self.group:
            nearest = max(1, round(self.cols / self.group)) * self.group
            raise InputError(f"quantize cols={self.cols}: must be a multiple of group={self.group}, nearest: {nearest}")
        if self.out not in (None, "fp8", "fp8_e5m2", "int8"):
            raise InputError(f"quantize out={self.out}: one of fp8, fp8_e5m2, int8")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` and `out` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype, out=self.out or "fp8")

    @property
    def out_dtype(self) -> str:
        """Format of the result."""
        return self.out or "fp8"

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.cols // self.group if self.scale == "group" else 1

    @property
    def flops(self) -> int:
        """A product an element, and a comparison where the scale is not given."""
        return (1 if self.scale == "tensor" else 2) * self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x, and the tensor's scale."""
        return (self.matrix("x"), *((Operand("scale", (1,), "fp32"),) if self.scale == "tensor" else ()))

    @property
    def results(self) -> tuple[Operand, ...]:
        """y, and its scales where they are not given."""
        scales = (Operand("scale", (self.groups, self.rows), "fp32"),) if self.scale != "tensor" else ()
        return (self.result("y"), *scales)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """As in the base; the scale of a tensor is a quarter."""
        x, *scale = super().inputs(seed, data)
        return (x, *(np.full_like(s, 0.25) for s in scale))

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """y and the scales."""
        x = np.asarray(operands[0], dtype=np.float64)
        if self.scale == "tensor":
            return (round_to(x / operands[1], self.out_dtype),)
        parts = x.reshape(self.rows, self.groups, -1)
        scale = self.scale_of(np.abs(parts).max(axis=2, keepdims=True))
        y = round_to(parts / scale, self.out_dtype).reshape(self.shape)
        return y, scale[:, :, 0].T

    def scale_of(self, largest: Array) -> Array:
        """The scale by which the largest |x| becomes the largest number of the format."""
        return round_to(np.maximum(largest, LEAST_LARGEST) / FORMATS[self.out_dtype].largest, "fp32")

    @property
    def tolerance(self) -> float:
        """A rounding of the scales; y is rounded from the same numbers."""
        return rounding("fp32")


@operator("layernorm", kind="normalisation", example="rows=4k cols=1k")
@dataclass(frozen=True)
class LayerNorm(RowOperator):
    """y = (x - mean x) / sqrt(var x + epsilon) * weight + bias, by row; weight and bias have one element a column."""

    stats: str = choice("0", ("0", "1"), help="1: mean and 1/deviation of each row are stored too")
    affine: str = choice("1", ("0", "1"), help="0: without weight and bias")

    @property
    def flops(self) -> int:
        """Eight an element: mean (1), variance (3), difference, product, weight, bias; six without the last two."""
        return (8 if self.affine == "1" else 6) * self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x, weight, bias; without `affine` x alone."""
        names = ("weight", "bias") if self.affine == "1" else ()
        return (self.matrix("x"), *(Operand(name, (self.cols,), self.chosen_dtype) for name in names))

    @property
    def results(self) -> tuple[Operand, ...]:
        """y, and with `stats=1` the rows' mean and 1/deviation in fp32."""
        stats = (Operand("mean", (self.rows,), "fp32"), Operand("rstd", (self.rows,), "fp32"))
        return (self.result("y"), *(stats if self.stats == "1" else ()))

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """y, mean, 1/deviation."""
        x, weight, bias = operands if self.affine == "1" else (*operands, np.ones(1), np.zeros(1))
        mean, rstd = row_statistics(x)
        y = round_to((x - mean) * rstd * weight + bias, self.out_dtype)
        return (y, *((round_to(mean[:, 0], "fp32"), round_to(rstd[:, 0], "fp32")) if self.stats == "1" else ()))

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """(|x| + mean |x|) |weight| / deviation + |bias|."""
        x, weight, bias = operands if self.affine == "1" else (*operands, np.ones(1), np.zeros(1))
        _, rstd = row_statistics(x)
        size = np.abs(x).mean(axis=1, keepdims=True)
        scale = (np.abs(x) + size) * rstd * np.abs(weight) + np.abs(bias)
        return (scale, *((size[:, 0], 2 * rstd[:, 0]) if self.stats == "1" else ()))


@operator("layernorm_backward", kind="normalisation", example="rows=4k cols=1k")
@dataclass(frozen=True)
class LayerNormBackward(RowOperator):
    """Gradients of layer norm by x, weight and bias; mean and 1/deviation of each row come from the forward form."""

    @property
    def flops(self) -> int:
        """Fourteen an element: 2 for the normalised x, 9 for dx, 2 for dweight, 1 for dbias."""
        return 14 * self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """dy, x, mean, 1/deviation, weight."""
        stats = (Operand("mean", (self.rows,), "fp32"), Operand("rstd", (self.rows,), "fp32"))
        return (self.matrix("dy"), self.matrix("x"), *stats, Operand("weight", (self.cols,), self.chosen_dtype))

    @property
    def results(self) -> tuple[Operand, ...]:
        """dx, dweight, dbias."""
        out = self.out_dtype
        return (self.result("dx"), Operand("dweight", (self.cols,), out), Operand("dbias", (self.cols,), out))

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """As in the base, mean and 1/deviation those of x."""
        dy, x, _, _, weight = super().inputs(seed, data)
        mean, rstd = row_statistics(x)
        return dy, x, round_to(mean[:, 0], "fp32"), round_to(rstd[:, 0], "fp32"), weight

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """dx, dweight, dbias."""
        dy, x, mean, rstd, weight = operands
        normal = (x - mean[:, None]) * rstd[:, None]
        gradient = dy * weight
        inner = gradient - gradient.mean(axis=1, keepdims=True)
        dx = rstd[:, None] * (inner - normal * (gradient * normal).mean(axis=1, keepdims=True))
        return tuple(round_to(a, self.out_dtype) for a in (dx, (dy * normal).sum(axis=0), dy.sum(axis=0)))

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The same sums with absolute values."""
        dy, x, mean, rstd, weight = (np.abs(a) for a in operands)
        normal = (x + mean[:, None]) * rstd[:, None]
        gradient = dy * weight
        inner = gradient + gradient.mean(axis=1, keepdims=True)
        dx = rstd[:, None] * (inner + normal * (gradient * normal).mean(axis=1, keepdims=True))
        return dx, (dy * normal).sum(axis=0), dy.sum(axis=0)

    @property
    def tolerance(self) -> float:
        """One rounding to the result's format after sums over a row or a column."""
        return rounding(self.out_dtype, max(self.rows, self.cols))


@operator("rmsnorm", kind="normalisation", example="rows=4k cols=1k")
@dataclass(frozen=True)
class RmsNorm(RowOperator):
    """y = x / sqrt(mean x^2 + epsilon) * weight, by row; weight has one element a column.

    With `add=1` a residual is added to x first, and their sum is a result, too, in x's format.
    """

    add: str = choice("0", ("0", "1"), help="1: of the sum with a residual, which is stored too")

    @property
    def flops(self) -> int:
        """Four an element: square, sum, product, weight; with a residual one more."""
        return (4 + int(self.add)) * self.rows * self.cols

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x and weight, and the residual."""
        more = (self.matrix("residual"),) if self.add == "1" else ()
        return (self.matrix("x"), Operand("weight", (self.cols,), self.chosen_dtype), *more)

    @property
    def results(self) -> tuple[Operand, ...]:
        """y, and the sum."""
        return (self.result("y"), *((self.matrix("sum"),) if self.add == "1" else ()))

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """y, and the sum."""
        x, weight, *residual = operands
        if residual:
            x = round_to(x + residual[0], self.chosen_dtype)
        y = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * weight
        return (round_to(y, self.out_dtype), *((x,) if residual else ()))


def row_statistics(x: Array) -> tuple[Array, Array]:
    """Mean and 1/deviation of each row of x, as columns."""
    return x.mean(axis=1, keepdims=True), 1 / np.sqrt(x.var(axis=1, keepdims=True) + EPSILON)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))
