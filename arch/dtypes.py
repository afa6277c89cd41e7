"""Number formats: the names used everywhere, their size in memory, and rounding to them.

Sources: IEEE 754-2019 (fp16, fp32); OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2); NVIDIA PTX ISA,
"Alternate floating point data formats" (bf16, tf32) and `cvt` (conversions to fp8 and integers saturate).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Format(NamedTuple):
    """One number format.

    bytes: size in memory. significand_bits: with the hidden bit, 0 for integers. min_exponent: the smallest normal
    number is 2**min_exponent. largest: greatest finite value. saturates: what is too large becomes `largest`, not
    infinity.
    """

    bytes: int
    significand_bits: int
    min_exponent: int
    largest: float
    saturates: bool = False


FORMATS: dict[str, Format] = {
    "fp64": Format(8, 53, -1022, float(np.finfo(np.float64).max)),
    "fp32": Format(4, 24, -126, float(np.finfo(np.float32).max)),
    "tf32": Format(4, 11, -126, (2 - 2.0**-10) * 2.0**127),  # stored as fp32, the tensor core reads 19 bits
    "fp16": Format(2, 11, -14, 65504.0),
    "bf16": Format(2, 8, -126, (2 - 2.0**-7) * 2.0**127),
    "fp8": Format(1, 4, -6, 448.0, saturates=True),  # e4m3
    "fp8_e5m2": Format(1, 3, -14, 57344.0, saturates=True),
    "int32": Format(4, 0, 0, 2147483647.0, saturates=True),
    "int16": Format(2, 0, 0, 32767.0, saturates=True),
    "int8": Format(1, 0, 0, 127.0, saturates=True),
}

DTYPE_BYTES: dict[str, int] = {name: fmt.bytes for name, fmt in FORMATS.items()}


def round_to(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """`values` (any shape, real) rounded to nearest, ties to even, in `dtype`; float64 of the same shape.

    NaN stays NaN in every format, integers included, so that it can mark what was never written. Too large a value
    becomes infinity, or the largest finite one where the format's conversion saturates.
    """
    fmt = FORMATS[dtype]
    exact = np.asarray(values, dtype=np.float64)
    if dtype == "fp64":
        return exact
    if fmt.significand_bits == 0:
        return np.clip(np.rint(exact), -fmt.largest - 1, fmt.largest)
    if dtype == "fp32":
        with np.errstate(over="ignore"):
            return exact.astype(np.float32).astype(np.float64)
    # x = f * 2**e with f in [0.5, 1): the last kept bit is worth 2**(e - bits), and never less than a subnormal's.
    _, exponent = np.frexp(exact)
    last_bit = np.maximum(exponent - 1, fmt.min_exponent) - (fmt.significand_bits - 1)
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(exact, -last_bit)), last_bit)
        beyond = fmt.largest if fmt.saturates else np.inf
        return np.where(np.abs(rounded) > fmt.largest, np.copysign(beyond, rounded), rounded)
