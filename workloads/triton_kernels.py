"""Triton kernels as workloads, compiled for the machine that runs them; to compile one is to execute its file.

As text a launch is `matmul.py:matmul_kernel grid=324 a=fp16[2304,2304] M=2304 BM=128 num-warps=4 num-stages=4`.
Integers are specialised as Triton's just-in-time compiler does: by divisibility by 16, and 1 is a constant.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from os.path import isfile
from typing import Any

from arch.errors import InputError
from arch.near import hint
from sim.gpu.sass.cubin import CompiledKernel, disassemble, kernel_of
from sim.gpu.sass.followed import with_values
from workloads.compiled import expected_of, launch_sha256, launched, pairs_of, short
from workloads.compiled_arguments import Argument, ArrayArgument, Dimensions, read_argument, read_constant, read_grid
from workloads.triton_reference import Interpreted, interpreted
from workloads.written import WORD, OwnProgram, ProgramFile, function_of, told

_TYPES = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8e4nv",
    "fp8_e5m2": "fp8e5",
    **{f"{sign}{bits}": f"{sign[0]}{bits}" for sign in ("int", "uint") for bits in (64, 32, 16, 8)},
    "bool": "i1",
}
_ALIGNED_BYTES = 16
_INT32 = range(-(1 << 31), 1 << 31)
_WARPS, _STAGES, _CTAS = "num-warps", "num-stages", "num-ctas"


@dataclass(frozen=True)
class TritonLaunch(ProgramFile):
    """A Triton kernel with its launch, compiled for the machine that runs it.

    arguments: by parameter, arrays and numbers. constants: of its `tl.constexpr` parameters. grid: CTAs, or an
    expression of arguments and constants. num_ctas: CTAs of a cluster, which computes what one CTA of the grid does.
    fn: the kernel itself, where it is not to be read from a file; call: gives the grid, as in Triton. oracle:
    `FILE.py:FUNCTION` in place of Triton's interpreter, as of `CubinKernel`.
    """

    compiled = True

    grid: Dimensions | str = (1, 1, 1)
    constants: tuple[tuple[str, Any], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    oracle: str = ""
    fn: Any = field(default=None, compare=False)
    call: Callable[[Mapping[str, Any]], Sequence[int]] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        grid = self.grid if isinstance(self.grid, str) else short(self.grid)
        pairs = [f"{name}={value}" for name, value in (*self.arguments, *self.constants)]
        options = [f"{_WARPS}={self.num_warps}", f"{_STAGES}={self.num_stages}"]
        options += [f"{_CTAS}={self.num_ctas}"] if self.num_ctas > 1 else []
        options += [f"reference={self.oracle}"] if self.oracle else []
        return " ".join([f"{self.path}:{self.function}", f"grid={grid}", *pairs, *options])

    @property
    def kernel(self) -> Any:
        """The kernel as the file has it, autotuners and heuristics included."""
        need_triton()
        return self.fn if self.fn is not None else function_of(self.path, self.function)

    def on(self, machine: Any) -> OwnProgram:
        """Compiles the kernel for a machine; InputError for what Triton refuses."""
        whole = self.kernel
        kernel = _plain(whole, self.path)
        asked = replace(self, constants=tuple(_with_heuristics(whole, self).items()))
        made = _compile(kernel, asked, machine)
        given = dict(self.arguments)
        x, y, z = asked._grid()
        ctas = f" ctas {self.num_ctas}" if self.num_ctas > 1 else ""
        program = launched(
            made.compiled, (x * self.num_ctas, y, z), (32 * self.num_warps, 1, 1),
            tuple((name, given[name]) for name in made.kept), made.shared_bytes,
            f"triton {made.version} warps {self.num_warps} stages {self.num_stages}{ctas}",
            constants=dict(asked.constants), expanded=True, cluster=(self.num_ctas, 1, 1), boxes=made.boxes,
        )  # fmt: skip
        expected = expected_of(self.oracle) or partial(_interpreted, asked, kernel)
        program = with_values(program, machine)
        notes = (*program.notes, *_alignment_notes(kernel, asked, machine, made.compiled))
        return OwnProgram(str(self), replace(program, expected=expected, notes=notes))

    def _grid(self) -> Dimensions:
        numbers = {**dict(self.arguments), **dict(self.constants)}
        if self.call is not None:
            with told(self.path):
                x, y, z = (*self.call(numbers), 1, 1)[:3]
            return int(x), int(y), int(z)
        return read_grid(self.grid, numbers) if isinstance(self.grid, str) else self.grid

    def configurations(self) -> list[TritonLaunch]:
        """A launch for each configuration of the kernel's `@triton.autotune` list. InputError without one."""
        found = next((kernel.configs for kernel in _layers(self.kernel) if hasattr(kernel, "configs")), None)
        if not found:
            raise InputError(f"{self.path}:{self.function}: has no @triton.autotune list of configurations")
        launches = []
        for config in found:
            held = dict(self.constants)
            named = next((name for name in config.kwargs if name in held), None)
            if named:
                raise InputError(f"{self.function}: {named} is one of the list's constants; leave --const {named} out")
            launches.append(
                replace(
                    self, constants=tuple({**held, **config.kwargs}.items()), num_warps=config.num_warps,
                    num_stages=config.num_stages, num_ctas=getattr(config, "num_ctas", 1) or 1,
                )
            )  # fmt: skip
        return launches


def TritonKernel(
    fn: Any,
    args: Mapping[str, Argument | str],
    grid: Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]],
    *,
    constants: Mapping[str, Any] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
    num_ctas: int = 1,
) -> TritonLaunch:
    """A `@triton.jit` function with its launch, for `simulate`.

    args: by parameter, such as "fp16[2304,2304]" or 2304. grid: CTAs, or a function that gives them from arguments and
    constants, as in Triton.
    """
    plain = _plain(fn, "triton kernel")
    path = plain.fn.__code__.co_filename
    given = tuple((name, read_argument(a) if isinstance(a, str) else a) for name, a in args.items())
    x, y, z = (1, 1, 1) if callable(grid) else (*grid, 1, 1)[:3]
    return TritonLaunch(
        path, plain.fn.__name__, given, launch_sha256(path, given) if isfile(path) else "",
        grid=(x, y, z), constants=tuple((constants or {}).items()), num_warps=num_warps, num_stages=num_stages, fn=fn,
        num_ctas=num_ctas, call=grid if callable(grid) else None,
    )  # fmt: skip


def read_triton(words: Sequence[str], kernel: Any) -> TritonLaunch:
    """The launch that words such as `matmul.py:matmul_kernel`, `grid=324` describe; InputError names what is wrong."""
    match = WORD.fullmatch(words[0])
    assert match is not None, words
    pairs = pairs_of(words)
    grid, reference = pairs.pop("grid", ""), pairs.pop("reference", "")
    if not grid:
        raise InputError(f"{words[0]}: is a Triton kernel, which needs grid=, such as grid=324 or grid=cdiv(M,BM)")
    options = {name: pairs.pop(name, default) for name, default in ((_WARPS, "4"), (_STAGES, "3"), (_CTAS, "1"))}
    for name, value in options.items():
        if not value.isdigit() or int(value) < 1:
            raise InputError(f"{words[0]} {name}={value}: must be a whole number of at least 1")
    free = {p.name for p in _plain(kernel, match["path"]).params if not p.is_constexpr}
    arguments = tuple((name, read_argument(value)) for name, value in pairs.items() if name in free)
    constants = tuple((name, read_constant(value)) for name, value in pairs.items() if name not in free)
    return TritonLaunch(
        match["path"], match["function"], arguments, launch_sha256(match["path"], arguments, reference), grid=grid,
        constants=constants, num_warps=int(options[_WARPS]), num_stages=int(options[_STAGES]),
        num_ctas=int(options[_CTAS]), oracle=reference,
    )  # fmt: skip


def need_triton() -> None:
    """InputError where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise InputError("a Triton kernel needs Triton, which is not installed: pip install 'tilewave[triton]'")


def _layers(kernel: Any) -> list[Any]:
    """Autotuners and heuristics, and below them the `@triton.jit` function."""
    found = [kernel]
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "params"):
        kernel = kernel.fn
        found.append(kernel)
    return found


def _plain(kernel: Any, path: str) -> Any:
    """The `@triton.jit` function below autotuners and heuristics."""
    plain = _layers(kernel)[-1]
    if not hasattr(plain, "params") or not hasattr(plain, "arg_names"):
        raise InputError(f"{path}: {getattr(plain, '__name__', plain)} is no kernel of Triton (@triton.jit)")
    return plain


def _with_heuristics(kernel: Any, asked: TritonLaunch) -> dict[str, Any]:
    """The constants, those that `@triton.heuristics` compute included."""
    constants = dict(asked.constants)
    for layer in _layers(kernel):
        values = getattr(layer, "values", None)
        if isinstance(values, dict):
            with told(asked.path):
                numbers = {**dict(asked.arguments), **constants}
                constants |= {name: made(numbers) for name, made in values.items() if name not in constants}
    return constants


def _interpreted(asked: TritonLaunch, kernel: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays behind a launch by Triton's interpreter."""
    constants = dict(asked.constants)
    values = {
        name: (value.dtype, value.extents(constants) if value.block else ())
        if isinstance(value, ArrayArgument)
        else value
        for name, value in (*asked.arguments, *asked.constants)
    }
    return interpreted(Interpreted(asked.path, asked.function, asked._grid(), values, arrays))


@dataclass(frozen=True)
class _Compiled:
    """What the compiler makes. kept: parameters of the code. boxes: by parameter, blocks of tensor maps."""

    compiled: CompiledKernel
    kept: list[str]
    shared_bytes: int
    version: str
    boxes: dict[str, tuple[int, ...]]


def _compile(kernel: Any, asked: TritonLaunch, machine: Any) -> _Compiled:
    """The kernel compiled for a machine."""
    signature, constants, attributes = _specialised(kernel, asked)
    major, _, minor = str(machine.compute_capability).partition(".")
    key = (
        asked.sha256, asked.path, asked.function, 10 * int(major) + int(minor or 0), asked.num_warps, asked.num_stages,
        asked.num_ctas, tuple(signature.items()), tuple((name, str(value)) for name, value in constants.items()),
        tuple((at, str(value)) for at, value in attributes.items()),
    )  # fmt: skip
    return _made(key, _Source(kernel, asked, signature, constants, attributes))


def _alignment_notes(kernel: Any, asked: TritonLaunch, machine: Any, compiled: CompiledKernel) -> tuple[str, ...]:
    """Whether whole numbers that are no multiples of 16 cost accesses: the same kernel is compiled for multiples."""
    odd = {
        name: value
        for name, value in asked.arguments
        if isinstance(value, int) and value % _ALIGNED_BYTES and value != 1
    }
    if not odd:
        return ()
    even = tuple((n, -(-v // _ALIGNED_BYTES) * _ALIGNED_BYTES if n in odd else v) for n, v in asked.arguments)  # type: ignore[operator]
    try:
        better = _compile(kernel, replace(asked, arguments=even), machine).compiled
    except InputError:
        return ()
    found, possible = _accesses(compiled), _accesses(better)
    if possible >= found:
        return ()
    names = ", ".join(f"{name}={value}" for name, value in odd.items())
    return (
        f"{names}: no multiple of {_ALIGNED_BYTES}, which the compiler needs for wide accesses. The code has {found} "
        f"loads and stores of device memory; with multiples it would have {possible}.",
    )


def _accesses(compiled: CompiledKernel) -> int:
    """Loads, stores and copies of device memory in a kernel's code."""
    names = (one.opcode.partition(".")[0] for one in compiled.function.instructions)
    return sum(name in ("LDG", "STG", "LDGSTS") for name in names)


@dataclass(frozen=True)
class _Source:
    """What Triton's compiler is given; two of one key are the same."""

    kernel: Any = field(compare=False)
    asked: TritonLaunch = field(compare=False)
    signature: dict[str, str] = field(compare=False)
    constants: dict[str, Any] = field(compare=False)
    attributes: dict[tuple[int], Any] = field(compare=False)


@lru_cache(maxsize=64)
def _made(key: tuple[Any, ...], source: _Source) -> _Compiled:
    """What the compiler makes, kept by its key."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    asked = source.asked
    with told(asked.path), warnings.catch_warnings(), knobs.runtime.scope():
        warnings.simplefilter("ignore")
        knobs.runtime.add_stages_inspection_hook = _with_true_lines
        given = ASTSource(source.kernel, source.signature, source.constants, source.attributes)
        options = {"num_warps": asked.num_warps, "num_stages": asked.num_stages, "num_ctas": asked.num_ctas}
        made = triton.compile(given, target=GPUTarget("cuda", key[3], 32), options=options)
    name = made.metadata.name
    compiled = kernel_of(made.asm["cubin"], disassemble(made.asm["cubin"]), name, name)
    kept = [name for name, kind in source.signature.items() if kind != "constexpr"]
    if getattr(made.metadata, "global_scratch_size", 0):
        raise InputError(f"kernel {name}: needs scratch memory of the launch, which is not modelled")
    maps = [name for name, kind in source.signature.items() if kind.startswith("tensordesc")]
    blocks = [tuple(one["block_size"]) for one in getattr(made.metadata, "tensordesc_meta", None) or ()]
    boxes = dict(zip(maps, blocks, strict=False)) if asked.num_ctas > 1 else {}
    return _Compiled(compiled, kept, int(made.metadata.shared), str(triton.__version__), boxes)


_ASSEMBLY = re.compile(r"// begin inline asm\n.*?// end inline asm\n", re.DOTALL)
_LINE_OF_PTX = re.compile(r"^[ \t]*\.loc[ \t].*\n", re.MULTILINE)


def _with_true_lines(*given: Any) -> tuple[str, str] | None:
    """A hook of Triton's pipeline. Its loads and stores are assembly of several lines, each of which LLVM counts as a
    line further down in the user's file; without these counts all of them belong to the line that has the access."""
    if not given:
        return "true lines", "true lines"  # of the key of Triton's cache
    stages = given[1]
    make = stages["ptx"]

    def made(source: Any, metadata: Any) -> str:
        return _ASSEMBLY.sub(lambda block: _LINE_OF_PTX.sub("", block[0]), make(source, metadata))

    stages["ptx"] = made
    return None


def _specialised(kernel: Any, asked: TritonLaunch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
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
        kind, divisible = _kind_of(argument, constants)
        if argument == 1 and kind == "i32" and not parameter.do_not_specialize:
            signature[name], constants[name] = "constexpr", 1
            continue
        signature[name] = kind
        if divisible and not parameter.do_not_specialize and not parameter.do_not_specialize_on_alignment:
            attributes[(i,)] = [["tt.divisibility", _ALIGNED_BYTES]]
    if missing:
        raise InputError(f"kernel {asked.function}: missing {', '.join(missing)}{_list_of(asked)}")
    return signature, constants, attributes


def _list_of(asked: TritonLaunch) -> str:
    tuned = any(hasattr(layer, "configs") for layer in _layers(asked.kernel))
    return "; --autotune takes them from its @triton.autotune list" if tuned else ""


def _kind_of(argument: Argument, constants: Mapping[str, Any]) -> tuple[str, bool]:
    """Triton's type of an argument, and whether it is known to be divisible by 16."""
    if isinstance(argument, ArrayArgument):
        if argument.block:
            block = ",".join(map(str, argument.extents(constants)))
            return f"tensordesc<{_TYPES[argument.dtype]}[{block}]>", False
        return f"*{_TYPES[argument.dtype]}", True
    if isinstance(argument, float):
        return "fp32", False
    return ("i32" if argument in _INT32 else "i64"), argument % _ALIGNED_BYTES == 0
