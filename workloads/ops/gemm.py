"""Dense matrix products."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES, is_integer, round_to
from arch.errors import InputError
from arch.near import hint
from workloads.ops import blocks, packed
from workloads.ops.base import Array, Operand, Operator, choice, extent, number_format, operator, random_array
from workloads.ops.dtypes import accumulators, default_accumulator, default_output, epsilon
from workloads.ops.packed import PackedMatrices
from workloads.ops.pointwise import FUNCTIONS

EPILOGUE = ("bias", "add", "scale", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
"""Functions of `FUNCTIONS` that kernels apply to results before they are stored."""
FINISHED_WITH = ("fp32", "fp16", "bf16")
"""Formats of an epilogue's operands, which are C's if it has one of these, else bf16."""
SCALED_BY_ROW = ("fp8", "fp8_e5m2", "int8")
"""Formats of operands that may have scales by row."""
BLOCK_K = 32
"""Elements of k of which block formats have a multiple: rows begin at multiples of 16 B."""
SCALE_BLOCK = 128
"""Elements that share a scale with `scale=block`, along k and, of B, along n."""


@operator("gemm", kind="contraction", example="m=4k n=4k k=4k")
@dataclass(frozen=True)
class Gemm(Operator):
    """C[b, m, n] = sum over k of A[b, m, k] B[b, k, n]; all operands are row-major (the last index is contiguous).

    `ta=T` stores A as [b, k, m], `tb=T` stores B as [b, n, k]. `beta=1` adds the sum to what C holds, as in BLAS.
    `scale=block` gives fp8 operands fp32 scales by block of 128, as DeepSeek-V3's models are served: SA, stored
    [b, k blocks, m], has one for 128 elements of a row of A, SB, stored [b, n blocks, k blocks], one for 128 x 128
    elements of B. The sum over each block of k is scaled and added in fp32. `scale=row` gives fp8 and int8 operands one
    fp32 scale a row of A and a column of B, by which sums are multiplied.

    `weights=int4` (or int8, mxfp4, nvfp4) stores B with fewer bits, as w4a16 (w8a16) models are served: for each 64 of
    k and each column of B the values' bytes, two values of 4 bits a byte (the lower first), and SW [k groups, n], by
    which they are multiplied: of A's format for `group` integers, for 32 (16) of mxfp4 (nvfp4) powers of 2 (e4m3). A,
    sums and C stay in `dtype`, fp16 or bf16.

    `dtype=mxfp8`, `mxfp4` and `nvfp4` are block formats: elements of 8 bits, or of 4, two a byte, and a scale for each
    32 (nvfp4: 16) of k, SA and SB, in the order in which tensor cores take them. `blockfp8` has 8 bits and a scale for
    each 128 of k, a power of two, as libraries make of `scale=block` on Blackwell.

    `epilogue=bias+gelu` applies functions of `pointwise` to the results in fp32, before they are rounded to `out`:
    `bias` takes a vector of n, `add` a matrix of C's shape, both of `out`'s format.
    """

    m: int = extent(help="rows of A and C")
    n: int = extent(help="columns of B and C")
    k: int = extent(help="columns of A, rows of B")
    batch: int = extent(1, help="independent multiplies, each with operands of its own")
    ta: str = choice("N", ("N", "T"), help="T: A is stored transposed")
    tb: str = choice("N", ("N", "T"), help="T: B is stored transposed")
    dtype: str | None = number_format("of A and B; default: the machine's", blocks=True)
    out: str | None = number_format("of C; default: the input's, tf32 to fp32, int8 to int32, fp8 to bf16")
    acc: str | None = number_format("of the sums; default: fp32, int32 for integers")
    beta: str = choice("0", ("0", "1"), help="1: the result is added to what C holds")
    scale: str = choice(
        "none", ("none", "block", "row"), help="block: fp8 operands have scales by block of 128; row: by row and column"
    )
    weights: str = choice(
        "same", ("same", *packed.FORMS), help="int8, int4, mxfp4, nvfp4: B is stored so, with a scale a group"
    )
    group: int = extent(packed.GROUP, help="elements of k that share a scale of weights=int8 or int4")
    epilogue: str = field(
        default="none",
        metadata={"kind": "chain", "help": "functions of the results, joined by +: " + ", ".join(EPILOGUE)},
    )

    def __post_init__(self) -> None:
        """Checks the fields and that the number formats go together."""
        super().__post_init__()
        if self.dtype is not None:
            right = accumulators(self.dtype)
            if self.acc is not None and self.acc not in right:
                raise InputError(f"gemm acc={self.acc}: {self.dtype} operands are summed in {' or '.join(right)}")
            if self.in_blocks:
                self._check_blocks()
            elif self.out is not None and is_integer(self.out) and not is_integer(self.dtype):
                raise InputError(
                    f"gemm out={self.out}: {self.dtype} operands give a floating-point result, such as "
                    f"{default_output(self.dtype)}"
                )
            if self.blockwise and self.dtype != "fp8":
                raise InputError(f"gemm scale=block: {self.dtype} operands have no scales; nearest: dtype=fp8")
            if self.rowwise and self.dtype not in SCALED_BY_ROW:
                raise InputError(f"gemm scale=row: {self.dtype} operands have no scales; nearest: dtype=fp8")
        if self.scale != "none" and self.adds:
            raise InputError(f"gemm beta=1: with scale={self.scale} nothing is added to C; nearest: beta=0")
        for name in self.functions:
            if name not in EPILOGUE:
                known = f"one of {', '.join(EPILOGUE)}, joined by +{hint(name, EPILOGUE)}"
                raise InputError(f"gemm epilogue={self.epilogue}: {name or 'nothing'} is no function of it; {known}")
        if self.quantised:
            self._check_weights()
        if self.functions and self.adds:
            raise InputError("gemm beta=1: with an epilogue nothing is added to C; nearest: epilogue=add")

    def _check_blocks(self) -> None:
        """InputError for what block formats do not go with."""
        where = f"gemm dtype={self.dtype}"
        if (self.ta, self.tb, self.scale, self.weights, self.beta) != ("N", "T", "none", "same", "0"):
            raise InputError(f"{where}: takes ta=N tb=T scale=none weights=same beta=0; blocks lie along k")
        if self.k % BLOCK_K:
            nearest = max(1, round(self.k / BLOCK_K)) * BLOCK_K
            raise InputError(f"{where} k={self.k}: must be a multiple of {BLOCK_K}, nearest: {nearest}")
        if self.out is not None and is_integer(self.out):
            raise InputError(f"{where} out={self.out}: operands give a floating-point result, such as bf16")

    def _check_weights(self) -> None:
        """InputError for what weights of fewer bits do not go with."""
        where = f"gemm weights={self.weights}"
        if self.dtype not in (None, "fp16", "bf16"):
            raise InputError(f"{where}: {self.dtype} operands; nearest: dtype=fp16")
        if (self.ta, self.tb, self.batch, self.scale, self.beta) != ("N", "N", 1, "none", "0"):
            raise InputError(
                f"{where}: takes ta=N tb=N batch=1 scale=none beta=0; weights lie in an order of their own"
            )
        if self.k % packed.DEPTH:
            nearest = max(1, round(self.k / packed.DEPTH)) * packed.DEPTH
            raise InputError(f"{where} k={self.k}: must be a multiple of {packed.DEPTH}, nearest: {nearest}")
        PackedMatrices.of(self.weights, self.group, self.dtype or "fp16", where)

    def read_as_column_major(self) -> Self:
        """The row-major multiply that does what these keys mean in BLAS's column-major convention.

        C^T = B^T A^T, and a column-major matrix is its row-major transpose: m and n, ta and tb change places.
        """
        return dataclasses.replace(self, m=self.n, n=self.m, ta=self.tb, tb=self.ta)

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype`, `out` and `acc` filled in; `dtype` is used where the operator names none."""
        chosen = self.dtype or dtype
        out = "bf16" if self.finished and is_integer(chosen) else default_output(chosen)
        return dataclasses.replace(self, dtype=chosen, out=self.out or out, acc=self.acc or default_accumulator(chosen))

    @property
    def adds(self) -> bool:
        """Whether C is read."""
        return self.beta == "1"

    @property
    def in_blocks(self) -> bool:
        """Whether operands are in a block format."""
        return self.dtype in BLOCK_FORMATS

    @property
    def blockwise(self) -> bool:
        """Whether operands have scales by block."""
        return self.scale == "block"

    @property
    def quantised(self) -> bool:
        """Whether B is stored with fewer bits than A."""
        return self.weights != "same"

    @property
    def packed(self) -> PackedMatrices:
        """How quantised B is stored, see `weights`."""
        return PackedMatrices.of(self.weights, self.group, self._formats()[0], "gemm")

    @property
    def rowwise(self) -> bool:
        """Whether operands have scales by row."""
        return self.scale == "row"

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions of the epilogue, in order."""
        return () if self.epilogue == "none" else tuple(self.epilogue.split("+"))

    @property
    def finished(self) -> bool:
        """Whether sums are more than rounded before they are stored."""
        return bool(self.functions) or self.rowwise

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
        """A and B as stored, with `beta=1` C too, with scales SA and SB, then what the epilogue takes."""
        dtype, out, _ = self._formats()
        if self.in_blocks:
            return self._block_operands()
        more = [Operand("c", self.c_shape, out)] if self.adds else []
        if self.blockwise:
            more = [Operand("sa", self.a_scales_shape, "fp32"), Operand("sb", self.b_scales_shape, "fp32")]
        b = Operand("b", self.b_shape, dtype)
        if self.quantised:
            b = Operand("b", self.packed.shape(self.k, self.n), self.packed.stored)
            more = [Operand("sw", (self.packed.groups(self.k), self.n), self.packed.scale)]
        more += [Operand(name, shape, kind) for name, shape, kind in self.finish_operands]
        return (Operand("a", self.a_shape, dtype), b, *more)

    def _block_operands(self) -> tuple[Operand, ...]:
        """A, B, their scales, and what the epilogue takes."""
        dtype = str(self.dtype)
        stored, bits, _, scale, _ = BLOCK_FORMATS[dtype]
        sides = (("a", self.m), ("b", self.n))
        return (
            *(Operand(name, (self.batch, rows, self.k * bits // 8), stored) for name, rows in sides),
            *(Operand(f"s{x}", blocks.scales_shape(dtype, self.batch, rows, self.k), scale) for x, rows in sides),
            *self.finish_operands,
        )

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """As `Operator.inputs`; of block formats any bytes, and scales near 1."""
        found = super().inputs(seed, data)
        if self.quantised:
            b, scales = found[1:3]
            return (found[0], *self.packed.random(seed + 1, b.shape, scales.shape, data), *found[3:])
        if not self.in_blocks:
            return found
        rng = np.random.Generator(np.random.PCG64(seed + 1))
        stored, _, _, scale, _ = BLOCK_FORMATS[str(self.dtype)]
        shapes = [array.shape for array in found[:4]]
        elements = [
            random_array(rng, s, stored, data) if stored == "fp8" else rng.integers(0, 256, s) for s in shapes[:2]
        ]
        factors = [rng.integers(126, 130, s) if scale == "uint8" else rng.integers(1, 5, s) / 2 for s in shapes[2:]]
        return (*(np.asarray(x, dtype=np.float64) for x in (*elements, *factors)), *found[4:])

    @property
    def finish_operands(self) -> tuple[Operand, ...]:
        """Scales by row and column, and what the epilogue's functions take, in their order."""
        out = self._formats()[1]
        out = out if out in FINISHED_WITH else "bf16"
        found = []
        if self.rowwise:
            found = [Operand("sa", (self.batch, self.m), "fp32"), Operand("sb", (self.batch, self.n), "fp32")]
        for number, name in enumerate(self.functions):
            for kind in FUNCTIONS[name].others:
                shape = (self.n,) if kind == "column" else self.c_shape
                found.append(Operand(f"{name}{number}", shape, out))
        return tuple(found)

    def finish(self, sums: Array, *others: Array) -> Array:
        """Sums (batch, m, n) with their scales and functions, in double precision; others: `finish_operands`."""
        values, rest = np.asarray(sums, dtype=np.float64), iter(others)
        if self.rowwise:
            values = values * next(rest)[:, :, None] * next(rest)[:, None, :]
        for name in self.functions:
            values = FUNCTIONS[name].apply(values, *(next(rest) for _ in FUNCTIONS[name].others))
        return values

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
        others = self._finish_of(operands)
        if self.blockwise:
            sums = round_to(self._scaled(a, b, *operands[2:4]), acc)
            return round_to(self.finish(sums, *others) if self.finished else sums, out)
        before = operands[2] if self.adds else 0
        if is_integer(dtype):
            sums = _wrap(_exact_matmul(a, b) + np.asarray(before, dtype=np.int64), acc)
        else:
            sums = round_to(np.matmul(a, b) + before, acc)
        return round_to(self.finish(sums, *others) if self.finished else sums, out)

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """Error of C, see `relative_error`."""
        return self.relative_error(results[0], *operands)

    def relative_error(self, result: Array, *operands: Array) -> float:
        """Largest |C - reference| over the matching element of |A| |B| + |C| (Higham, Accuracy and Stability, 3.5)."""
        a, b = self._logical(*operands)
        expected = self.reference(*operands)
        if self.blockwise:
            scale = self._scaled(np.abs(a), np.abs(b), *map(np.abs, operands[2:4]))
        else:
            scale = np.matmul(np.abs(a), np.abs(b)).astype(np.float64)
        if self.adds:
            scale += np.abs(operands[2])
        if self.finished:
            scale = self._finished_scale(scale, *map(np.abs, self._finish_of(operands))) + np.abs(expected)
        error = np.abs(np.asarray(result, dtype=np.float64).reshape(expected.shape) - expected)
        relative = np.divide(error, scale, out=np.where(error == 0, 0.0, np.inf), where=scale > 0)
        return float(np.nan_to_num(relative, nan=np.inf).max())

    def _finish_of(self, operands: Sequence[Array]) -> Sequence[Array]:
        """Of the operands, those of `finish_operands`, which come last."""
        return operands[len(operands) - len(self.finish_operands) :]

    def _finished_scale(self, scale: Array, *others: Array) -> Array:
        """What errors of finished results are relative to: no function of an epilogue is steeper than 1.2."""
        rest = iter(others)
        if self.rowwise:
            scale = scale * next(rest)[:, :, None] * next(rest)[:, None, :]
        return 1.2 * (scale + sum(next(rest) for name in self.functions for _ in FUNCTIONS[name].others))

    @property
    def tolerance(self) -> float:
        """One rounding to `out` and up to k roundings to `acc` (with C one more), on both sides of the comparison."""
        _, out, acc = self._formats()
        finish = 16 * epsilon("fp32") if self.finished else 0
        return epsilon(out) + (self.k + 2 if self.adds else self.k + 1) * epsilon(acc) + finish

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
        if self.in_blocks:
            sides = ((a, operands[2], self.m), (b, operands[3], self.n))
            a, b = (blocks.values(str(self.dtype), x, scales, rows, self.k) for x, scales, rows in sides)
        if self.quantised:
            b = round_to(self.packed.matrix(b, operands[2], self.k), self._formats()[0])[None]
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
