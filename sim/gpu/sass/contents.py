"""What arrays hold of which nobody has said it: random numbers, always the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import FORMATS
from arch.errors import InputError
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.floats import NAMES, bf16, fp8

_FLOATS = {"fp64": np.float64, "fp32": np.float32, "tf32": np.float32, "fp16": np.float16}
INTEGERS = {name: np.dtype(name) for name, one in FORMATS.items() if one.significand_bits == 0}
"""NumPy's types of whole numbers by their name here, which is NumPy's."""


def drawn(tensor: GlobalTensor, seed: int) -> NDArray[np.generic]:
    """Numbers of a normal distribution, or whole ones below 8, as the array has them."""
    random = np.random.default_rng(seed)
    if tensor.dtype in INTEGERS:
        return random.integers(0, 8, tensor.shape).astype(INTEGERS[tensor.dtype])
    numbers = random.standard_normal(tensor.shape)
    if tensor.dtype == "bf16":
        return bf16(numbers)
    if tensor.dtype in NAMES.values():
        return fp8(numbers, tensor.dtype)
    if tensor.dtype not in _FLOATS:
        known = ", ".join([*_FLOATS, "bf16", *NAMES.values(), *INTEGERS])
        raise InputError(f"check: array {tensor.name} is of {tensor.dtype}; values are computed of {known}")
    return numbers.astype(_FLOATS[tensor.dtype])
