"""Number formats: the names used everywhere, their size in memory, and rounding to them.

Sources: IEEE 754-2019 (fp16, fp32); OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2); NVIDIA PTX ISA,
"Alternate floating point data formats" (bf16, tf32) and `cvt` (conversions to fp8 and integers saturate).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.near import hint


class Format(NamedTuple):
    """One number format.

    bytes: size in memory. significand_bits: with the hidden bit, 0 for integers. min_exponent: the smallest normal
    number is 2**min_exponent. largest: greatest finite value. saturates: what is too large becomes `largest`, not
    infinity. signed: there are negative numbers.
    """

    bytes: int
    significand_bits: int
    min_exponent: int
    largest: float
    saturates: bool = False
    signed: bool = True

    @property
    def least(self) -> float:
        """Least finite value; 64-bit integers are carried as fp64, so that `largest` of them is a power of two."""
        if not self.signed:
            return 0.0
        return -self.largest - 1 if self.significand_bits == 0 else -self.largest


def _integer(size_bytes: int, *, signed: bool) -> Format:
    return Format(size_bytes, 0, 0, float(2 ** (8 * size_bytes - signed) - 1), saturates=True, signed=signed)


FORMATS: dict[str, Format] = {
    "fp64": Format(8, 53, -1022, float(np.finfo(np.float64).max)),
    "fp32": Format(4, 24, -126, float(np.finfo(np.float32).max)),
    "tf32": Format(4, 11, -126, (2 - 2.0**-10) * 2.0**127),  # stored as fp32, the tensor core reads 19 bits
    "fp16": Format(2, 11, -14, 65504.0),
    "bf16": Format(2, 8, -126, (2 - 2.0**-7) * 2.0**127),
    "fp8": Format(1, 4, -6, 448.0, saturates=True),  # e4m3
    "fp8_e5m2": Format(1, 3, -14, 57344.0, saturates=True),
    **{f"int{bits}": _integer(bits // 8, signed=True) for bits in (64, 32, 16, 8)},
    **{f"uint{bits}": _integer(bits // 8, signed=False) for bits in (64, 32, 16, 8)},
    "bool": Format(1, 0, 0, 1.0, saturates=True, signed=False),  # what is not 0 is 1
}
"""All number formats that tensors have; nothing else lists them."""


class BlockFormat(NamedTuple):
    """A format of operands whose elements share scales along the sum.

    stored: format of the tensor that holds the elements; of four bits two to a byte, the lower first. bits: of an
    element. block: elements that share a scale. scale: format of the tensor of scales; uint8 are exponents of 2, 127
    more. kind: of the instructions that multiply it.
    """

    stored: str
    bits: int
    block: int
    scale: str
    kind: str


BLOCK_FORMATS: dict[str, BlockFormat] = {
    "mxfp8": BlockFormat("fp8", 8, 32, "uint8", "mxfp8"),
    "mxfp4": BlockFormat("uint8", 4, 32, "uint8", "mxfp4"),
    "nvfp4": BlockFormat("uint8", 4, 16, "fp8", "nvfp4"),
    "blockfp8": BlockFormat("fp8", 8, 128, "uint8", "mxfp8"),
}
"""Block formats of tensor cores (OCP Microscaling Formats 1.0; NVIDIA PTX ISA, "Block scaling"): e4m3 or e2m1. blockfp8
is what DeepGEMM has on Blackwell for fp8 operands with scales by 128: powers of two, of which one stands for four
scales of mxfp8."""

DTYPE_BYTES: dict[str, int] = {name: fmt.bytes for name, fmt in FORMATS.items()}


def format_of(name: str, where: str = "dtype") -> Format:
    """The format called `name`; InputError with the nearest right name otherwise. `where` names the option or field."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        near = hint(str(name), [known for known in FORMATS if _digits(known) == _digits(str(name))])
        raise InputError(f"{where}={name}: unknown number format, one of {', '.join(FORMATS)}{near}") from None


def _digits(name: str) -> list[str]:
    """Digits of a name in any order: a format of other bits is no slip (fp4 is not fp64), swapped digits are one."""
    return sorted(character for character in name if character.isdigit())


def is_integer(name: str) -> bool:
    """Whether it is an integer format; no block format is one."""
    return name not in BLOCK_FORMATS and format_of(name).significand_bits == 0


def round_to(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """`values` (any shape, real) rounded to nearest, ties to even, in `dtype`; float64 of the same shape.

    NaN stays NaN in every format, integers included, so that it can mark what was never written. Too large a value
    becomes infinity, or the largest finite one where the format's conversion saturates.
    """
    fmt = FORMATS[dtype]
    exact = np.asarray(values, dtype=np.float64)
    if dtype == "fp64":
        return exact
    if dtype == "bool":
        return np.where(np.isnan(exact), exact, exact != 0)
    if fmt.significand_bits == 0:
        return np.clip(np.rint(exact), fmt.least, fmt.largest)
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


def wrapped_to(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """What integer arithmetic leaves of `values`: their lowest bits; floating-point formats are left alone.

    Numbers are carried as fp64, so that what arithmetic gives is exact to 2**53 in 64-bit formats.
    """
    exact = np.asarray(values, dtype=np.float64)
    if not is_integer(dtype):
        return exact
    fmt = FORMATS[dtype]
    if dtype == "bool":
        return round_to(exact, dtype)
    count = 2.0 ** (8 * fmt.bytes)
    rest = np.fmod(exact, count)
    return rest + count * ((rest < fmt.least).astype(np.float64) - (rest > fmt.largest))
