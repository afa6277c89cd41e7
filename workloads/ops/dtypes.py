"""Which number formats an operator uses when it is not told."""

from __future__ import annotations

from arch.dtypes import BLOCK_FORMATS, format_of, is_integer

_DEFAULT_OUTPUT = {
    **{"tf32": "fp32", "fp8": "bf16", "fp8_e5m2": "bf16"},
    **dict.fromkeys(BLOCK_FORMATS, "bf16"),
    **dict.fromkeys(("int8", "int16", "uint8", "uint16", "bool"), "int32"),
}


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
