"""What tensors and tiles hold during a replay: arrays of floats, NaN where nothing valid was written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import FORMATS, round_to
from arch.errors import InputError
from sim.gpu.check.instances import Box
from sim.gpu.language import GlobalTensor, Program

Array = NDArray[Any]

MOST_BYTES = 16 << 30
"""Of all tensors of a program that is replayed with numbers."""


def device_memory(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The program's tensors by name, those of `inputs` with their contents; shapes are the tensors'.

    Raises InputError for inputs that are missing, unknown or of another shape.
    """
    tensors = {t.name: t for t in program.tensors}
    size_bytes = sum(math.prod(t.shape) * np.dtype(_storage(t.dtype)).itemsize for t in program.tensors)
    if size_bytes > MOST_BYTES:
        raise InputError(
            f"check: the tensors of program {program.name} take {size_bytes} B as numbers, more than the {MOST_BYTES} "
            "that are kept; a smaller problem runs the same code"
        )
    for name in inputs:
        if name not in tensors:
            raise InputError(f"inputs: {name} is no tensor of program {program.name}; it has {', '.join(tensors)}")
    memory = {}
    for tensor in program.tensors:
        if tensor.name in inputs:
            given = np.asarray(inputs[tensor.name])
            if given.shape != tensor.shape:
                raise InputError(f"inputs: {tensor.name} has shape {given.shape}; the program says {tensor.shape}")
            memory[tensor.name] = rounded(given, tensor.dtype)
        elif tensor.alias:
            lying = memory[tensor.alias].transpose(_as_it_lies(tensors[tensor.alias]))
            order = _as_it_lies(tensor)
            memory[tensor.name] = lying.reshape([tensor.shape[i] for i in order]).transpose(np.argsort(order))
        elif tensor.role == "input":
            raise InputError(f"inputs: {tensor.name} is missing; program {program.name} reads it")
        else:
            order = _as_it_lies(tensor)
            empty = blank(tuple(tensor.shape[i] for i in order), tensor.dtype)
            memory[tensor.name] = empty.transpose(np.argsort(order))
    return memory


def _as_it_lies(tensor: GlobalTensor) -> list[int]:
    """Dimensions of a tensor in the order in which memory holds them, the contiguous one last."""
    return sorted(range(len(tensor.shape)), key=lambda i: -tensor.strides[i])


def _storage(dtype: str) -> type[np.floating[Any]]:
    """The NumPy type whose values hold every value of `dtype` and NaN."""
    fmt = FORMATS[dtype]
    bits = fmt.significand_bits or 8 * fmt.bytes
    return np.float64 if bits > FORMATS["fp32"].significand_bits else np.float32


def blank(shape: tuple[int, ...], dtype: str) -> Array:
    """Memory that was never written."""
    return np.full(shape, np.nan, dtype=_storage(dtype))


def rounded(values: Array, dtype: str) -> Array:
    """`values` as a tensor of `dtype` holds them."""
    if dtype == "fp32":
        return values.astype(np.float32)
    return round_to(values, dtype).astype(_storage(dtype))


def intersection(a: Box, b: Box) -> Box:
    """The elements of both boxes."""
    lower = tuple(map(max, a.lower, b.lower))
    upper = tuple(map(min, a.upper, b.upper))
    return Box(a.buffer, a.stage, lower, upper)


def relative(part: Box, whole: Box) -> tuple[slice, ...]:
    """Index of `part` in an array that holds `whole`."""
    return tuple(
        slice(a - origin, max(a, b) - origin) for a, b, origin in zip(part.lower, part.upper, whole.lower, strict=True)
    )


def matrix(values: Array, transposed: bool) -> Array:
    """Values as `compute` gets them: leading extents of 1 dropped down to a matrix, the last two swapped if asked."""
    while values.ndim > 2 and values.shape[0] == 1:
        values = values[0]
    return np.swapaxes(values, -1, -2) if transposed else values
