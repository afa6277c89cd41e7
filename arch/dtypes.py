"""Number formats: the names used everywhere and their size in memory."""

DTYPE_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,  # stored as fp32, the tensor core reads 19 bits
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,  # e4m3
    "int32": 4,
    "int8": 1,
}
