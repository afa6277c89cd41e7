"""Dense matrix products."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from arch.dtypes import DTYPE_BYTES, round_to
from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, choice, extent, number_format
from workloads.ops.dtypes import accumulators, default_accumulator, default_output, epsilon, is_integer

SCALE_BLOCK = 128
"""Elements that share a scale with `scale=block`, along k and, of B, along n."""


@dataclass(frozen=True)
class Gemm(Operator):
    """C[b, m, n] = sum over k of A[b, m, k] B[b, k, n]; all operands are row-major (the last index is contiguous).

    `ta=T` stores A as [b, k, m], `tb=T` stores B as [b, n, k]. `beta=1` adds the sum to what C holds, as in BLAS.
    `scale=block` gives fp8 operands fp32 scales by block of 128, as DeepSeek-V3's models are served: SA, stored
    [b, k blocks, m], has one for 128 elements of a row of A, SB, stored [b, n blocks, k blocks], one for 128 x 128
    elements of B. The sum over each block of k is scaled and added in fp32.
    """

    word: ClassVar[str] = "gemm"
    example: ClassVar[str] = "m=4k n=4k k=4k"

    m: int = extent(help="rows of A and C")
    n: int = extent(help="columns of B and C")
    k: int = extent(help="columns of A, rows of B")
    batch: int = extent(1, help="independent multiplies, each with operands of its own")
    ta: str = choice("N", ("N", "T"), help="T: A is stored transposed")
    tb: str = choice("N", ("N", "T"), help="T: B is stored transposed")
    dtype: str | None = number_format("of A and B; default: the machine's")
    out: str | None = number_format("of C; default: the input's, tf32 to fp32, int8 to int32, fp8 to bf16")
    acc: str | None = number_format("of the sums; default: fp32, int32 for integers")
    beta: str = choice("0", ("0", "1"), help="1: the result is added to what C holds")
    scale: str = choice("none", ("none", "block"), help="block: fp8 operands have scales by block of 128")

    def __post_init__(self) -> None:
        """Checks the fields and that the number formats go together."""
        super().__post_init__()
        if self.dtype is not None:
            right = accumulators(self.dtype)
            if self.acc is not None and self.acc not in right:
                raise InputError(f"gemm acc={self.acc}: {self.dtype} operands are summed in {' or '.join(right)}")
            if self.out is not None and is_integer(self.out) and not is_integer(self.dtype):
                raise InputError(
                    f"gemm out={self.out}: {self.dtype} operands give a floating-point result, such as "
                    f"{default_output(self.dtype)}"
                )
            if self.blockwise and self.dtype != "fp8":
                raise InputError(f"gemm scale=block: {self.dtype} operands have no scales; nearest: dtype=fp8")
        if self.blockwise and self.adds:
            raise InputError("gemm beta=1: with scale=block nothing is added to C; nearest: beta=0")

    def read_as_column_major(self) -> Self:
        """The row-major multiply that does what these keys mean in BLAS's column-major convention.

        C^T = B^T A^T, and a column-major matrix is its row-major transpose: m and n, ta and tb change places.
        """
        return dataclasses.replace(self, m=self.n, n=self.m, ta=self.tb, tb=self.ta)

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype`, `out` and `acc` filled in; `dtype` is used where the operator names none."""
        chosen = self.dtype or dtype
        return dataclasses.replace(
            self, dtype=chosen, out=self.out or default_output(chosen), acc=self.acc or default_accumulator(chosen)
        )

    @property
    def adds(self) -> bool:
        """Whether C is read."""
        return self.beta == "1"

    @property
    def blockwise(self) -> bool:
        """Whether operands have scales by block."""
        return self.scale == "block"

    @property
    def macs(self) -> int:
        """batch * m * n * k."""
        return self.batch * self.m * self.n * self.k

    @property
    def a_shape(self) -> tuple[int, int, int]:
        """Shape of A as stored."""
        return (self.batch, self.m, self.k) if self.ta == "N" else (self.batch, self.k, self.m)

    @property
    def b_shape(self) -> tuple[int, int, int]:
        """Shape of B as stored."""
        return (self.batch, self.k, self.n) if self.tb == "N" else (self.batch, self.n, self.k)

    @property
    def c_shape(self) -> tuple[int, int, int]:
        """Shape of C."""
        return (self.batch, self.m, self.n)

    @property
    def a_scales_shape(self) -> tuple[int, int, int]:
        """Shape of SA as stored, see `scale`."""
        return (self.batch, -(-self.k // SCALE_BLOCK), self.m)

    @property
    def b_scales_shape(self) -> tuple[int, int, int]:
        """Shape of SB as stored."""
        return (self.batch, -(-self.n // SCALE_BLOCK), -(-self.k // SCALE_BLOCK))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A and B as stored, with `beta=1` C too, with `scale=block` SA and SB."""
        dtype, out, _ = self._formats()
        more = [Operand("c", self.c_shape, out)] if self.adds else []
        if self.blockwise:
            more = [Operand("sa", self.a_scales_shape, "fp32"), Operand("sb", self.b_scales_shape, "fp32")]
        return (Operand("a", self.a_shape, dtype), Operand("b", self.b_shape, dtype), *more)

    @property
    def results(self) -> tuple[Operand, ...]:
        """C."""
        return (Operand("c", self.c_shape, self._formats()[1]),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """C, see `reference`."""
        return (self.reference(*operands),)

    def reference(self, *operands: Array) -> Array:
        """C of shape `c_shape`, from the operands as stored: exact sums, rounded once to `acc` and once to `out`."""
        dtype, out, acc = self._formats()
        a, b = self._logical(*operands)
        if self.blockwise:
            return round_to(round_to(self._scaled(a, b, *operands[2:]), acc), out)
        before = operands[2] if self.adds else 0
        if is_integer(dtype):
            total = _exact_matmul(a, b) + np.asarray(before, dtype=np.int64)
            return round_to(_wrap(total, acc), out)
        return round_to(round_to(np.matmul(a, b) + before, acc), out)

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """Error of C, see `relative_error`."""
        return self.relative_error(results[0], *operands)

    def relative_error(self, result: Array, *operands: Array) -> float:
        """Largest |C - reference| over the matching element of |A| |B| + |C| (Higham, Accuracy and Stability, 3.5)."""
        a, b = self._logical(*operands)
        expected = self.reference(*operands)
        if self.blockwise:
            scale = self._scaled(np.abs(a), np.abs(b), *map(np.abs, operands[2:]))
        else:
            scale = np.matmul(np.abs(a), np.abs(b)).astype(np.float64)
        if self.adds:
            scale += np.abs(operands[2])
        error = np.abs(np.asarray(result, dtype=np.float64).reshape(expected.shape) - expected)
        relative = np.divide(error, scale, out=np.where(error == 0, 0.0, np.inf), where=scale > 0)
        return float(np.nan_to_num(relative, nan=np.inf).max())

    @property
    def tolerance(self) -> float:
        """One rounding to `out` and up to k roundings to `acc` (with C one more), on both sides of the comparison."""
        _, out, acc = self._formats()
        return epsilon(out) + (self.k + 2 if self.adds else self.k + 1) * epsilon(acc)

    def _scaled(self, a: Array, b: Array, sa: Array, sb: Array) -> Array:
        """Sum over the blocks of k of their products, each with its scales."""
        columns = np.repeat(sb, SCALE_BLOCK, axis=1)[:, : self.n]
        total = np.zeros(self.c_shape)
        for block in range(sb.shape[2]):
            part = slice(block * SCALE_BLOCK, (block + 1) * SCALE_BLOCK)
            product = np.matmul(a[..., part], b[..., part, :])
            total += product * sa[:, block, :, None] * columns[:, None, :, block]
        return total

    def _formats(self) -> tuple[str, str, str]:
        """(dtype, out, acc) with defaults; InputError while `dtype` is open."""
        if self.dtype is None:
            raise InputError(f"{self}: dtype is not set, such as dtype=bf16")
        full = self.with_defaults(self.dtype)
        return str(full.dtype), str(full.out), str(full.acc)

    def _logical(self, *operands: Array) -> tuple[Array, Array]:
        """A as [b, m, k] and B as [b, k, n], whatever their storage."""
        a, b = operands[:2]
        return (a.swapaxes(-1, -2) if self.ta == "T" else a), (b.swapaxes(-1, -2) if self.tb == "T" else b)


def _wrap(values: Array, acc: str) -> Array:
    """Integer sums as a register of the accumulator's width holds them (two's complement)."""
    bits = 8 * DTYPE_BYTES[acc]
    return (values + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _exact_matmul(a: Array, b: Array) -> Array:
    """a b of integers, exactly: in floating point where no sum can leave its 53 bits, which is many times faster."""
    largest = float(np.abs(a).max()) * float(np.abs(b).max()) * a.shape[-1]
    if largest < 2**53:
        return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    return np.matmul(a.astype(np.int64), b.astype(np.int64))
