"""Which number formats an operator uses when it is not told, and errors for names that are not formats."""

from __future__ import annotations

from arch.dtypes import FORMATS, Format
from arch.errors import InputError
from arch.near import hint

_DEFAULT_OUTPUT = {"tf32": "fp32", "int8": "int32", "int16": "int32", "fp8": "bf16", "fp8_e5m2": "bf16"}


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
    """Whether it is an integer format."""
    return format_of(name).significand_bits == 0


def epsilon(name: str) -> float:
    """Distance from 1 to the next value of the format; 0 for integers, which are exact."""
    return 0.0 if is_integer(name) else 2.0 ** (1 - format_of(name).significand_bits)


def default_output(dtype: str) -> str:
    """Format of a result when none is asked for: the input's, but tf32 to fp32, int8 to int32, fp8 to bf16."""
    return _DEFAULT_OUTPUT.get(dtype, dtype)


def accumulators(dtype: str) -> tuple[str, ...]:
    """Formats that products can be summed in, the default first: tensor cores sum fp16 in fp16 too."""
    return (default_accumulator(dtype), *(("fp16",) if dtype == "fp16" else ()))


def default_accumulator(dtype: str) -> str:
    """Format that products are summed in when none is asked for: int32, fp64 for fp64, else fp32."""
    if is_integer(dtype):
        return "int32"
    return "fp64" if dtype == "fp64" else "fp32"
