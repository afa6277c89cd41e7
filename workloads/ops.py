"""Operators: what is computed, with the work that it needs and a NumPy reference. Nothing here knows a machine.

An operator is a frozen dataclass registered under the word that people type. A new one is a class in a file of its own,
named in `MODULES`; its fields are the keys of `workloads.parse`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES, round_to
from arch.errors import InputError
from workloads.dtypes import default_accumulator, default_output, epsilon, format_of, is_integer

Array = NDArray[Any]

MAX_EXTENT = 2**31 - 1
"""Largest extent of one dimension: coordinates in kernels are 32-bit."""

MODULES: dict[str, str] = {"gemm": "workloads.ops"}
"""Word of each operator of this version, and the module whose import registers it."""

PLANNED = (
    *("conv2d", "softmax", "layernorm", "rmsnorm", "transpose", "sum", "add", "copy", "fill", "scale", "gelu", "exp"),
    *("pointwise", "attention", "bert_layer", "llama", "allreduce", "matvec", "copy_h2d"),
)
"""Words that later versions will take; this one answers that they are not available."""

DATA_KINDS = ("normal", "uniform", "integers", "zeros")
"""Kinds of operand data that `inputs` makes."""

_REGISTRY: dict[str, type[Operator]] = {}


def extent(default: int | None = None, help: str = "") -> Any:
    """A dataclass field that holds a positive integer."""
    meta = {"kind": "extent", "help": help}
    return field(metadata=meta) if default is None else field(default=default, metadata=meta)


def choice(default: str, choices: tuple[str, ...], help: str = "") -> Any:
    """A dataclass field that holds one word of `choices`."""
    return field(default=default, metadata={"kind": "choice", "choices": choices, "help": help})


def number_format(help: str = "") -> Any:
    """A dataclass field that names a number format, or None for the default."""
    return field(default=None, metadata={"kind": "dtype", "help": help})


@dataclass(frozen=True)
class Operator:
    """Base of all operators: subclasses are frozen dataclasses with `word` set; fields are checked on creation."""

    word: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Registers the operator under its word."""
        super().__init_subclass__(**kwargs)
        if cls.word:
            _REGISTRY[cls.word] = cls

    def __post_init__(self) -> None:
        """Checks every field; InputError names the key, the value and the rule."""
        for f in fields(self):
            _check(self.word, f.name, getattr(self, f.name), f.metadata)

    def __str__(self) -> str:
        """The operator as people type it, keys at their default left out: `gemm m=64 n=64 k=32 dtype=fp16`."""
        given = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return " ".join([self.word, *(f"{f.name}={getattr(self, f.name)}" for f in given)])

    def with_defaults(self, dtype: str) -> Self:
        """The same operator with every number format filled in; `dtype` is the machine's default."""
        raise NotImplementedError

    @property
    def macs(self) -> int:
        """Multiply-accumulates that the result needs."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Arithmetic operations, two per multiply-accumulate."""
        return 2 * self.macs

    @property
    def operand_bytes(self) -> int:
        """Bytes of all operands and results, each touched once; number formats must be known."""
        raise NotImplementedError

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands as stored in device memory, repeatable from `seed`; `data` is one of `DATA_KINDS`."""
        raise NotImplementedError

    def reference(self, *operands: Array) -> Array:
        """The result in NumPy, rounded to the output format."""
        raise NotImplementedError

    def relative_error(self, result: Array, *operands: Array) -> float:
        """Largest error of `result`, relative to the size of what was summed; NaN in `result` gives infinity."""
        raise NotImplementedError

    @property
    def tolerance(self) -> float:
        """`relative_error` that rounding alone can explain, whatever the order of summation."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gemm(Operator):
    """C[b, m, n] = sum over k of A[b, m, k] B[b, k, n]; all operands are row-major (the last index is contiguous).

    `ta=T` stores A as [b, k, m], `tb=T` stores B as [b, n, k]. `beta=1` adds the sum to what C holds, as in BLAS.
    """

    word: ClassVar[str] = "gemm"

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

    def __post_init__(self) -> None:
        """Checks the fields and that the number formats go together."""
        super().__post_init__()
        if self.dtype is not None:
            integer = is_integer(self.dtype)
            if self.acc is not None and is_integer(self.acc) != integer:
                right = default_accumulator(self.dtype)
                raise InputError(f"gemm acc={self.acc}: {self.dtype} operands are summed in {right}")
            if self.out is not None and is_integer(self.out) and not integer:
                right = default_output(self.dtype)
                raise InputError(
                    f"gemm out={self.out}: {self.dtype} operands give a floating-point result, such as {right}"
                )

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
    def operand_bytes(self) -> int:
        """Bytes of A, B and C, which `beta=1` reads and writes."""
        dtype, out, _ = self._formats()
        elements_in = self.batch * self.k * (self.m + self.n)
        elements_out = self.batch * self.m * self.n * (2 if self.adds else 1)
        return elements_in * DTYPE_BYTES[dtype] + elements_out * DTYPE_BYTES[out]

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """A and B as stored (`a_shape`, `b_shape`), with `beta=1` C too, values exact in their formats.

        They are the same for the same seed everywhere.
        """
        dtype, out, _ = self._formats()
        rng = np.random.Generator(np.random.PCG64(seed))
        shapes = [(self.a_shape, dtype), (self.b_shape, dtype), *([(self.c_shape, out)] if self.adds else [])]
        return tuple(random_array(rng, shape, kind, data) for shape, kind in shapes)

    def reference(self, *operands: Array) -> Array:
        """C of shape `c_shape`, from the operands as stored: exact sums, rounded once to `acc` and once to `out`."""
        dtype, out, acc = self._formats()
        a, b = self._logical(*operands)
        before = operands[2] if self.adds else 0
        if is_integer(dtype):
            total = np.matmul(a.astype(np.int64), b.astype(np.int64)) + np.asarray(before, dtype=np.int64)
            return round_to(_wrap(total, acc), out)
        return round_to(round_to(np.matmul(a, b) + before, acc), out)

    def relative_error(self, result: Array, *operands: Array) -> float:
        """Largest |C - reference| over the matching element of |A| |B| + |C| (Higham, Accuracy and Stability, 3.5)."""
        a, b = self._logical(*operands)
        expected = self.reference(*operands)
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


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, data: str) -> Array:
    """An array of `shape` whose values are exact in `dtype`.

    data: `normal` (mean 0, deviation 1), `uniform` (-1 to 1), `integers` (-3 to 3: sums are exact in every format while
    k < 2**20) or `zeros`. Integer formats spread normal and uniform over their range, up to +-127.
    """
    if data not in DATA_KINDS:
        near = difflib.get_close_matches(str(data), DATA_KINDS, n=1, cutoff=0.0)[0]
        raise InputError(f"data={data}: unknown kind of data, one of {', '.join(DATA_KINDS)}; did you mean {near}?")
    scale = 1.0
    if is_integer(dtype) and data in ("normal", "uniform"):
        scale = 32.0 if data == "normal" else 127.0
    match data:
        case "normal":
            values: Array = scale * rng.standard_normal(shape)
        case "uniform":
            values = scale * rng.uniform(-1.0, 1.0, shape)
        case "integers":
            values = rng.integers(-3, 4, shape)
        case _:
            values = np.zeros(shape)
    return round_to(values, dtype)


def operator_class(word: str) -> type[Operator]:
    """The operator called `word`; InputError says whether it is unknown (nearest name) or not in this version."""
    if word in MODULES:
        importlib.import_module(MODULES[word])
        return _REGISTRY[word]
    available = ", ".join(MODULES)
    if word in PLANNED:
        raise InputError(f"operator {word} is not available in this version; available: {available}")
    near = difflib.get_close_matches(word, [*MODULES, *PLANNED], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"unknown operator {word}, one of {available}{hint}")


def _wrap(values: Array, acc: str) -> Array:
    """Integer sums as a register of the accumulator's width holds them (two's complement)."""
    bits = 8 * DTYPE_BYTES[acc]
    return (values + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _check(word: str, key: str, value: Any, meta: Mapping[str, Any]) -> None:
    """Checks one field of an operator by its kind."""
    match meta.get("kind"):
        case "extent":
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= MAX_EXTENT:
                raise InputError(f"{word} {key}={value}: must be an integer from 1 to {MAX_EXTENT}")
        case "choice":
            if value not in meta["choices"]:
                raise InputError(f"{word} {key}={value}: must be one of {', '.join(meta['choices'])}")
        case "dtype":
            if value is not None:
                format_of(value, f"{word} {key}")
