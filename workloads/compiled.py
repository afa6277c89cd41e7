"""Compiled kernels as workloads: a kernel of a cubin, or a Triton kernel that is compiled for the machine.

Their arguments are written as text: `a=fp16[2304,2304]` is an array, row-major and 16-byte aligned; `n=2304` an
integer, `eps=1e-5` a number. Triton's kernels are specialised as its just-in-time compiler does: by divisibility by 16,
and integers of 1 are constants. To compile a Triton kernel is to execute its file.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.near import hint
from sim.gpu.language import GlobalTensor, Program
from sim.gpu.sass.cubin import CompiledKernel, disassemble, kernel_of, read_compiled
from sim.gpu.sass.kernel import Pointer, Value, sass_program
from workloads.written import OwnProgram, ProgramFile, function_of, sources_sha256, told

Dimensions = tuple[int, int, int]

_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]+)\]")
_TRITON_TYPES = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8e4nv",
    "fp8_e5m2": "fp8e5",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
}
_ALIGNED_BYTES = 16
_INT32 = range(-(1 << 31), 1 << 31)


@dataclass(frozen=True)
class ArrayArgument:
    """An argument that is an array."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def tensor(self, name: str) -> GlobalTensor:
        """The array in device memory."""
        strides = tuple(itertools.accumulate((1, *self.shape[:0:-1]), lambda a, b: a * b))[::-1]
        return GlobalTensor(name, self.shape, self.dtype, strides)


Argument = ArrayArgument | int | float


def read_argument(text: str) -> Argument:
    """An argument from its text. InputError for text that is none."""
    match = _ARRAY.fullmatch(text.strip())
    if match:
        dtype = match["dtype"]
        if dtype not in DTYPE_BYTES:
            raise InputError(
                f"{text}: there is no number format {dtype}, one of {', '.join(DTYPE_BYTES)}{hint(dtype, DTYPE_BYTES)}"
            )
        shape = tuple(int(word) for word in match["shape"].split(",") if word.strip())
        if not shape or min(shape) < 1:
            raise InputError(f"{text}: an array has at least one element in each dimension")
        return ArrayArgument(dtype, shape)
    for kind in (lambda word: int(word, 0), float):
        try:
            return kind(text)  # type: ignore[no-any-return, operator]
        except ValueError:
            continue
    raise InputError(f"{text}: must be an array such as fp16[2304,2304], or a number")


def read_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts by name. InputError for one that is none, and for a name that is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise InputError(f"{option} {text}: must be NAME=VALUE, such as {option} a=fp16[2304,2304]")
        if name in found:
            raise InputError(f"{option} {name}: is given twice, as {found[name]} and {value}")
        found[name] = value
    return found


def read_dimensions(option: str, text: str) -> Dimensions:
    """One to three positive whole numbers, `18,18`."""
    words = text.split(",")
    if len(words) > 3 or not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise InputError(f"{option} {text}: must be one to three whole numbers of at least 1, such as {option} 18,18")
    x, y, z = *(int(word) for word in words), *(1,) * (3 - len(words))
    return x, y, z


@dataclass(frozen=True)
class CubinKernel(ProgramFile):
    """A kernel of a cubin, with its launch. function: its name, empty for the only one. arguments: of its parameters,
    in their order. shared_bytes: dynamic shared memory."""

    grid: Dimensions = (1, 1, 1)
    block: Dimensions = (1, 1, 1)
    shared_bytes: int = 0

    def __str__(self) -> str:
        return _text(f"{self.path}:{self.function}", self.grid, self.arguments)

    def on(self, machine: Any) -> OwnProgram:
        """The launch as a program."""
        compiled = read_compiled(self.path, self.function)
        shared = self.shared_bytes + compiled.shared_bytes
        return OwnProgram(str(self), _program(compiled, self.grid, self.block, self.arguments, shared, "cubin"))


@dataclass(frozen=True)
class TritonKernel(ProgramFile):
    """A Triton kernel with its launch, compiled for the machine that runs it.

    arguments: by parameter, arrays and numbers. constants: of its `tl.constexpr` parameters. fn: the kernel itself,
    where it is not to be read from a file.
    """

    grid: Dimensions = (1, 1, 1)
    constants: tuple[tuple[str, Any], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    fn: Any = field(default=None, compare=False)

    def __str__(self) -> str:
        constants = [f"{name}={value}" for name, value in self.constants]
        text = _text(f"{self.path}:{self.function}", self.grid, self.arguments)
        return " ".join([text, *constants, f"num_warps={self.num_warps}", f"num_stages={self.num_stages}"])

    def on(self, machine: Any) -> OwnProgram:
        """Compiles the kernel for a machine; InputError for what Triton refuses."""
        _need_triton()
        kernel = self.fn if self.fn is not None else function_of(self.path, self.function)
        kernel = _plain(kernel, self.path)
        compiled, names, shared, version = _compile(kernel, self, machine)
        given = dict(self.arguments)
        program = _program(
            compiled, self.grid, (32 * self.num_warps, 1, 1), tuple((name, given[name]) for name in names), shared,
            f"triton {version} warps {self.num_warps} stages {self.num_stages}",
        )  # fmt: skip
        return OwnProgram(str(self), program)


def triton_kernel(
    fn: Any,
    args: Mapping[str, Argument | str],
    grid: Sequence[int],
    *,
    constants: Mapping[str, Any] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
) -> TritonKernel:
    """A `@triton.jit` function with its launch, for `simulate`.

    args: by parameter, such as "fp16[2304,2304]" or 2304.
    """
    plain = _plain(fn, "triton kernel")
    path = plain.fn.__code__.co_filename
    given = tuple((name, read_argument(a) if isinstance(a, str) else a) for name, a in args.items())
    x, y, z = (*grid, 1, 1)[:3]
    return TritonKernel(
        path, plain.fn.__name__, given, sources_sha256(path) if Path(path).is_file() else "", grid=(x, y, z),
        constants=tuple((constants or {}).items()), num_warps=num_warps, num_stages=num_stages, fn=plain,
    )  # fmt: skip


def _text(name: str, grid: Dimensions, arguments: Sequence[tuple[str, Any]]) -> str:
    while len(grid) > 1 and grid[-1] == 1:
        grid = grid[:-1]  # type: ignore[assignment]
    pairs = [f"{name}={value}" for name, value in arguments]
    return " ".join([name, f"grid={','.join(map(str, grid))}", *pairs])


def _program(
    compiled: CompiledKernel,
    grid: Dimensions,
    block: Dimensions,
    arguments: Sequence[tuple[str, Any]],
    shared_bytes: int,
    schedule: str,
) -> Program:
    """A launch as a program; InputError where arguments do not fit the kernel's parameters."""
    if len(arguments) > len(compiled.parameters):
        raise InputError(
            f"kernel {compiled.name} has {len(compiled.parameters)} parameters, {len(arguments)} are given"
        )
    values: list[Value] = []
    arrays: list[GlobalTensor] = []
    for (name, argument), (_, size) in zip(arguments, compiled.parameters, strict=False):
        if isinstance(argument, ArrayArgument):
            if size != 8:
                raise InputError(
                    f"{name}={argument}: parameter {name} of {compiled.name} has {size} bytes, an address 8"
                )
            arrays.append(argument.tensor(name))
            values.append(Pointer(name))
        else:
            values.append(argument)
    if not arrays:
        raise InputError(f"kernel {compiled.name}: at least one argument must be an array, such as a=fp16[64,64]")
    return sass_program(compiled, grid, block, tuple(values), tuple(arrays), shared_bytes, schedule)


# ---- Triton


def _need_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise InputError("a Triton kernel needs Triton, which is not installed: pip install 'tilewave[triton]'")


def _plain(kernel: Any, path: str) -> Any:
    """The `@triton.jit` function below autotuners and heuristics."""
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "params"):
        kernel = kernel.fn
    if not hasattr(kernel, "params") or not hasattr(kernel, "arg_names"):
        raise InputError(f"{path}: {getattr(kernel, '__name__', kernel)} is no kernel of Triton (@triton.jit)")
    return kernel


def _compile(kernel: Any, asked: TritonKernel, machine: Any) -> tuple[CompiledKernel, list[str], int, str]:
    """The kernel compiled for a machine: code, parameters that it keeps, shared memory, version of Triton."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = _specialised(kernel, asked)
    major, _, minor = str(machine.compute_capability).partition(".")
    target = GPUTarget("cuda", 10 * int(major) + int(minor or 0), 32)
    options = {"num_warps": asked.num_warps, "num_stages": asked.num_stages}
    with told(asked.path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=target, options=options)
    name = made.metadata.name
    compiled = kernel_of(made.asm["cubin"], disassemble(made.asm["cubin"]), name, name)
    kept = [name for name, kind in signature.items() if kind != "constexpr"]
    if getattr(made.metadata, "global_scratch_size", 0):
        raise InputError(f"kernel {name}: needs scratch memory of the launch, which is not modelled")
    return compiled, kept, int(made.metadata.shared), str(triton.__version__)


def _specialised(kernel: Any, asked: TritonKernel) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
    """Types, constants and attributes of parameters, as Triton's just-in-time compiler finds them from arguments."""
    given, constants = dict(asked.arguments), dict(asked.constants)
    names = list(kernel.arg_names)
    for name in (*given, *constants):
        if name not in names:
            raise InputError(
                f"kernel {asked.function} has no parameter {name}, one of {', '.join(names)}{hint(name, names)}"
            )
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], Any] = {}
    missing: list[str] = []
    for i, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr or name in constants:
            if name in given:
                raise InputError(
                    f"kernel {asked.function}: {name} is a tl.constexpr, give it by --const {name}={given[name]}"
                )
            if name not in constants and parameter.has_default:
                constants[name] = parameter.default
            if name not in constants:
                missing.append(f"--const {name}=...")
            signature[name] = "constexpr"
            continue
        if name not in given:
            missing.append(f"--arg {name}=...")
            continue
        argument = given[name]
        free = parameter.do_not_specialize
        if isinstance(argument, ArrayArgument):
            signature[name] = f"*{_TRITON_TYPES[argument.dtype]}"
            divisible = True
        elif isinstance(argument, float):
            signature[name], divisible = "fp32", False
        elif argument == 1 and not free:
            signature[name], constants[name] = "constexpr", 1
            continue
        else:
            signature[name] = "i32" if argument in _INT32 else "i64"
            divisible = argument % _ALIGNED_BYTES == 0
        if divisible and not free and not parameter.do_not_specialize_on_alignment:
            attributes[(i,)] = [["tt.divisibility", _ALIGNED_BYTES]]
    if missing:
        raise InputError(f"kernel {asked.function}: missing {', '.join(missing)}")
    return signature, constants, attributes


def read_constant(text: str) -> Any:
    """A `tl.constexpr` from its text: a whole number, a number, true, false, none, else the text."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    makers: tuple[Callable[[str], Any], ...] = (lambda word: int(word, 0), float)
    for make in makers:
        try:
            return make(text)
        except ValueError:
            continue
    return text
