"""Number formats: size in memory, and rounding emulated in NumPy (round to nearest, ties to even).

Values are carried as float64 (or int64), each one exactly representable in its format. A product of two values of at
most 26 significant bits is exact in float64, so all formats up to fp32 are emulated by rounding after the operation.

Sources: IEEE 754-2019 (fp16, fp32); OCP 8-bit Floating Point Specification 1.0 (fp8: E4M3, E5M2); NVIDIA PTX ISA,
"Alternate floating point data formats" (bf16, tf32) and `cvt` (conversions to fp8 and int8 saturate).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DType:
    """One number format.

    bytes_per_element: size in memory. significand_bits: with the hidden bit (0 for integers). min_exponent: of the
    smallest normal number, 2**min_exponent. largest: greatest finite value. saturates: what is too large becomes
    `largest`, not infinity.
    """

    name: str
    bytes_per_element: int
    significand_bits: int
    min_exponent: int
    largest: float
    saturates: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer format."""
        return self.significand_bits == 0

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next value; 0 for integers, which are exact."""
        return 0.0 if self.is_integer else 2.0 ** (1 - self.significand_bits)


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("fp64", 8, 53, -1022, float(np.finfo(np.float64).max)),
        DType("fp32", 4, 24, -126, (2 - 2.0**-23) * 2.0**127),
        DType("tf32", 4, 11, -126, (2 - 2.0**-10) * 2.0**127),
        DType("fp16", 2, 11, -14, 65504.0),
        DType("bf16", 2, 8, -126, (2 - 2.0**-7) * 2.0**127),
        DType("fp8", 1, 4, -6, 448.0, saturates=True),  # E4M3
        DType("fp8_e5m2", 1, 3, -14, 57344.0, saturates=True),
        DType("int8", 1, 0, 0, 127.0, saturates=True),
        DType("int16", 2, 0, 0, 32767.0, saturates=True),
        DType("int32", 4, 0, 0, 2147483647.0, saturates=True),
    )
}

_DEFAULT_OUTPUT = {"tf32": "fp32", "int8": "int32", "int16": "int32", "fp8": "bf16", "fp8_e5m2": "bf16"}


def dtype_of(name: str, where: str = "dtype") -> DType:
    """The format called `name`; InputError with the nearest right name otherwise. `where` names the option or field."""
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        near = difflib.get_close_matches(str(name), DTYPES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{where}={name}: unknown number format, one of {', '.join(DTYPES)}{hint}") from None


def default_output(dtype: str) -> str:
    """Format of a result when none is asked for: the input's, but tf32 to fp32, int8 to int32, fp8 to bf16."""
    return _DEFAULT_OUTPUT.get(dtype, dtype)


def default_accumulator(dtype: str) -> str:
    """Format that products are summed in when none is asked for: int32, fp64 for fp64, else fp32."""
    if dtype_of(dtype).is_integer:
        return "int32"
    return "fp64" if dtype == "fp64" else "fp32"


def round_to(values: Array, dtype: str) -> Array:
    """Rounds `values` (any shape, real) to the format, ties to even.

    Returns float64 of the same shape (int64 for integer formats). Too large a value becomes infinity, or the largest
    finite value where the format's conversion saturates; NaN stays NaN (an integer format takes it as 0, as PTX does).
    """
    fmt = dtype_of(dtype)
    if fmt.is_integer:
        bounded = np.clip(np.rint(np.nan_to_num(values, nan=0.0)), -fmt.largest - 1, fmt.largest)
        return bounded.astype(np.int64)
    exact = np.asarray(values, dtype=np.float64)
    if dtype == "fp64":
        return exact
    if dtype == "fp32":
        with np.errstate(over="ignore"):
            return exact.astype(np.float32).astype(np.float64)
    # x = f * 2**e, f in [0.5, 1): the last kept bit is worth 2**(e - bits), but never less than a subnormal's.
    _, exponent = np.frexp(exact)
    last_bit = np.maximum(exponent - 1, fmt.min_exponent) - (fmt.significand_bits - 1)
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(exact, -last_bit)), last_bit)
    beyond = fmt.largest if fmt.saturates else np.inf
    too_large = np.abs(rounded) > fmt.largest
    return np.where(too_large, np.copysign(beyond, rounded), rounded)
