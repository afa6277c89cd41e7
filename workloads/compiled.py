"""Compiled kernels as workloads: a kernel of a cubin with its launch. Triton's are in `triton_kernels`.

As text a launch is `kernel.cubin:add grid=128 block=128 x=fp32[65536] n=65536`: its parameters in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.cubin import CompiledKernel, read_compiled
from sim.gpu.sass.followed import with_values
from sim.gpu.sass.kernel import Pointer, SassLaunchProgram, TensorMap, Value, sass_program
from workloads.compiled_arguments import Argument, ArrayArgument, Dimensions, read_argument, read_dimensions
from workloads.written import CUBIN, WORD, OwnProgram, ProgramFile, function_of, sources_sha256, told

_LAUNCH = ("grid", "block", "cluster", "shared", "reference")


@dataclass(frozen=True)
class CubinKernel(ProgramFile):
    """A kernel of a cubin, with its launch. function: its name, empty for the only one. arguments: of its parameters,
    in their order. shared_bytes: dynamic shared memory. cluster: CTAs of a cluster, where the launch and not the cubin
    says it. oracle: `FILE.py:FUNCTION`, which gives what the kernel writes, by name, from its arrays by name."""

    compiled = True

    grid: Dimensions = (1, 1, 1)
    block: Dimensions = (1, 1, 1)
    shared_bytes: int = 0
    oracle: str = ""
    cluster: Dimensions | None = None

    def __str__(self) -> str:
        name = f"{self.path}:{self.function}" if self.function else self.path
        shared = [f"cluster={short(self.cluster)}"] if self.cluster else []
        shared += [f"shared={self.shared_bytes}"] if self.shared_bytes else []
        pairs = [f"{name}={value}" for name, value in self.arguments]
        pairs += [f"reference={self.oracle}"] if self.oracle else []
        return " ".join([name, f"grid={short(self.grid)}", f"block={short(self.block)}", *shared, *pairs])

    def on(self, machine: Any) -> OwnProgram:
        """The launch as a program."""
        compiled = read_compiled(self.path, self.function)
        shared = self.shared_bytes + compiled.shared_bytes
        program = launched(compiled, self.grid, self.block, self.arguments, shared, "cubin", cluster=self.cluster)
        _check_given(compiled, len(self.arguments))
        program = with_values(program, machine)
        return OwnProgram(str(self), replace(program, expected=expected_of(self.oracle)))


def _check_given(compiled: CompiledKernel, given: int) -> None:
    """InputError where a parameter that the code reads is left out."""
    sizes = [size for _, size in compiled.parameters]
    for number in range(given, len(sizes)):
        if compiled.reads_parameter(number):
            raise InputError(
                f"kernel {compiled.name} has {len(sizes)} parameters, of {', '.join(map(str, sizes))} bytes; the first "
                f"{given} are given, and its code reads number {number + 1}, of {sizes[number]} bytes; give that too"
            )


def read_cubin(words: Sequence[str]) -> CubinKernel:
    """The launch that words such as `kernel.cubin:add`, `grid=128` describe; InputError names what is wrong."""
    match = CUBIN.fullmatch(words[0])
    assert match is not None, words
    pairs = pairs_of(words)
    for name in ("grid", "block"):
        if name not in pairs:
            raise InputError(f"{words[0]}: needs {name}=, such as {name}=128")
    shared = pairs.get("shared", "0")
    if not shared.isdigit():
        raise InputError(f"{words[0]} shared={shared}: must be a whole number of bytes")
    arguments = tuple((name, read_argument(value)) for name, value in pairs.items() if name not in _LAUNCH)
    reference = pairs.get("reference", "")
    return CubinKernel(
        match["path"], match["kernel"] or "", arguments, launch_sha256(match["path"], arguments, reference),
        grid=read_dimensions("grid", pairs["grid"]), block=read_dimensions("block", pairs["block"]),
        shared_bytes=int(shared), oracle=reference,
        cluster=read_dimensions("cluster", pairs["cluster"]) if "cluster" in pairs else None,
    )  # fmt: skip


def pairs_of(words: Sequence[str]) -> dict[str, str]:
    """Values by key of the words behind the first. InputError for a word without a value and a key that is repeated."""
    found: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise InputError(f"{words[0]}: {word!r} has no value, write {name}=VALUE")
        if name in found:
            raise InputError(f"{words[0]}: key {name} is given twice, as {found[name]} and {value}")
        found[name] = value
    return found


def expected_of(reference: str) -> Callable[..., Mapping[str, Any]] | None:
    """The function that `FILE.py:FUNCTION` names, called with arrays by name; None without one."""
    if not reference:
        return None
    match = WORD.fullmatch(reference)
    if match is None:
        raise InputError(f"reference={reference}: must be FILE.py:FUNCTION")
    made = function_of(match["path"], match["function"])

    def expected(arrays: dict[str, Any]) -> Mapping[str, Any]:
        with told(match["path"]):
            found = made(arrays)
            if not isinstance(found, dict):
                raise InputError(f"{reference} gives {type(found).__name__}, not arrays by name")
        return found

    return expected


def launch_sha256(path: str, arguments: Sequence[tuple[str, Argument]], reference: str = "") -> str:
    """Hash of a kernel's file, of what its arrays hold, and of its reference's file."""
    hashes = [sources_sha256(path)]
    hashes += [sources_sha256(reference.partition(":")[0])] if reference else []
    hashes += [sources_sha256(one.file) for _, one in arguments if isinstance(one, ArrayArgument) and one.file]
    return hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode()).hexdigest()


def short(dimensions: Dimensions) -> str:
    """Dimensions as text, without ones at the end."""
    x, y, z = dimensions
    return ",".join(map(str, (x, y, z) if z > 1 else (x, y) if y > 1 else (x,)))


def launched(
    compiled: CompiledKernel,
    grid: Dimensions,
    block: Dimensions,
    arguments: Sequence[tuple[str, Argument]],
    shared_bytes: int,
    schedule: str,
    *,
    constants: Mapping[str, Any] | None = None,
    expanded: bool = False,
    cluster: Dimensions | None = None,
    boxes: Mapping[str, tuple[int, ...]] | None = None,
) -> SassLaunchProgram:
    """A launch as a program; InputError where arguments do not fit the kernel's parameters.

    constants: that blocks of tensor maps name. expanded: extents and strides of an array follow its tensor map as
    parameters, as Triton passes them. cluster: CTAs of a cluster, where the kernel does not ask for any. boxes: by
    parameter, blocks of tensor maps that the compiler has split.
    """
    values: list[tuple[str, Argument, Value]] = []
    arrays: list[GlobalTensor] = []
    for name, argument in arguments:
        if not isinstance(argument, ArrayArgument):
            values.append((name, argument, argument))
            continue
        tensor = argument.tensor(name)
        arrays.append(tensor)
        if not argument.block:
            values.append((name, argument, Pointer(name)))
            continue
        block_of = (boxes or {}).get(name) or argument.extents(constants or {})
        values.append((name, argument, _tensor_map(tensor, block_of)))
        if expanded:
            values += [(name, argument, number) for number in (*tensor.shape, *tensor.strides)]
    if len(values) > len(compiled.parameters):
        raise InputError(f"kernel {compiled.name} has {len(compiled.parameters)} parameters, {len(values)} are given")
    for (name, argument, value), (_, size) in zip(values, compiled.parameters, strict=False):
        wanted = {Pointer: ("an address", 8), TensorMap: ("a tensor map", 128)}.get(type(value))
        if wanted and size != wanted[1]:
            raise InputError(
                f"{name}={argument}: parameter {name} of {compiled.name} has {size} bytes, {wanted[0]} {wanted[1]}"
            )
    if not arrays:
        raise InputError(f"kernel {compiled.name}: at least one argument must be an array, such as a=fp16[64,64]")
    given = tuple(value for _, _, value in values)
    found = ((n, a.content()) for n, a in arguments if isinstance(a, ArrayArgument))
    contents = {name: content for name, content in found if content is not None}
    return sass_program(
        compiled, grid, block, given, tuple(arrays), shared_bytes, schedule, contents=contents, cluster=cluster
    )


def _tensor_map(tensor: GlobalTensor, block: tuple[int, ...]) -> TensorMap:
    """A tensor map; the box of one instruction is at most 128 bytes wide, as its swizzled forms are."""
    element = DTYPE_BYTES[tensor.dtype]
    *outer, inner = block
    box = (*outer, min(inner, max(1, _SWIZZLE_BYTES // element)))
    pitch = [("rows", tensor.shape[-1] * element)] if len(tensor.shape) > 1 else []
    for what, size in (*pitch, ("rows of its block", box[-1] * element)):
        if size % _MAP_BYTES:
            raise InputError(
                f"{tensor.name}: its {what} have {size} bytes; those of a tensor map are multiples of {_MAP_BYTES}"
            )
    return TensorMap(
        tensor.name, int(element), tensor.shape[::-1], tuple(int(s * element) for s in tensor.strides[::-1]), box[::-1]
    )


_SWIZZLE_BYTES = 128
"""Widest row of a box whose form in shared memory is swizzled."""
_MAP_BYTES = 16
"""Of what strides and the rows of a box are multiples (CUDA driver API, cuTensorMapEncodeTiled)."""
