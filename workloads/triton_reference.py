"""What a Triton kernel computes by Triton's own interpreter, in NumPy: the reference of checks; no GPU, no torch.

The interpreter must be chosen before Triton is imported, so that it runs in a process of its own: `python -m
workloads.triton_reference FILE`, where FILE holds the launch, and afterwards the arrays.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import FORMATS, is_integer
from arch.errors import InputError
from sim.gpu.sass.floats import fp8, of_bf16

_SECONDS = 300
_NAMES = {
    "fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "fp8": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
    **{name: name for name in FORMATS if is_integer(name)},
}  # fmt: skip


@dataclass(frozen=True)
class Interpreted:
    """A launch for the interpreter. values: of parameters: numbers, or (number format, block) of arrays."""

    path: str
    function: str
    grid: tuple[int, int, int]
    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def interpreted(launch: Interpreted) -> dict[str, NDArray[Any]]:
    """The arrays behind the launch. InputError where the interpreter fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "launch"
        file.write_bytes(pickle.dumps(launch))
        command = [sys.executable, "-m", "workloads.triton_reference", str(file)]
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"check: Triton's interpreter takes longer than {_SECONDS} s; a smaller grid") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InputError(f"check: Triton's interpreter cannot run {launch.path}:{launch.function}: {last}")
        found: dict[str, NDArray[Any]] = pickle.loads(file.read_bytes())  # what the process above wrote
        return found


class _Format:
    """A number format as the interpreter asks for it."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.itemsize = name, size
        self.is_floating_point = "float" in name

    def __str__(self) -> str:
        return f"torch.{self.name}"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self.name)


class _Tensor:
    """An array as the interpreter asks for it: it is its own storage, on the host already."""

    def __init__(self, array: NDArray[Any], name: str) -> None:
        self.array, self.dtype, self.shape = array, _Format(name, array.itemsize), array.shape

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> _Tensor:
        return self

    def cpu(self) -> _Tensor:
        return self

    def new_empty(self, *_: object, **__: object) -> _Tensor:
        return _Tensor(self.array, self.dtype.name)

    def set_(self, *_: object) -> None:
        pass

    def copy_(self, _: object) -> None:
        pass

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)


_NARROW = {"fp8e4nv": "fp8", "fp8e5": "fp8_e5m2"}


def _round_well(interpreter: Any) -> None:
    """Rounds to formats of 8 bits as the hardware does: Triton 3.9's interpreter drops the carry of a fraction that
    rounds up to 2, so that 7.9 becomes 4."""
    given = interpreter._convert_float

    def convert(value: NDArray[Any], of: Any, to: Any, mode: Any) -> NDArray[Any]:
        name = _NARROW.get(str(to), "")
        if not name or of.primitive_bitwidth < 16:
            found: NDArray[Any] = given(value, of, to, mode)
            return found
        return fp8(of_bf16(value.view(np.uint16)) if str(of) == "bf16" else value, name)

    interpreter._convert_float = convert


def _main(words: Sequence[str]) -> None:
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction
    from triton.tools.tensor_descriptor import TensorDescriptor

    from workloads.written import function_of

    _round_well(interpreter)
    file = Path(words[0])
    launch: Interpreted = pickle.loads(file.read_bytes())  # what `interpreted` wrote
    arrays = {name: aligned(array) for name, array in launch.arrays.items()}
    given = {}
    for name, value in launch.values.items():
        if name not in arrays:
            given[name] = value
            continue
        dtype, block = value
        held = _Tensor(arrays[name], _NAMES[dtype])
        given[name] = TensorDescriptor(held, list(held.shape), list(held.stride()), list(block)) if block else held
    kernel: Any = function_of(launch.path, launch.function)
    while not isinstance(kernel, InterpretedFunction):
        kernel = kernel.fn
    with np.errstate(all="ignore"):
        kernel.run(grid=launch.grid, warmup=False, **given)
    file.write_bytes(pickle.dumps(arrays))


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy whose first byte's address is a multiple of 128, as device memory's is."""
    room = np.zeros(array.nbytes + 128, dtype=np.uint8)
    first = -room.ctypes.data % 128
    found: NDArray[Any] = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


if __name__ == "__main__":
    _main(sys.argv[1:])
