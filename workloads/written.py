"""Programs of one's own as workloads: a function of a Python file, `my_kernel.py:gemm m=512 n=512 k=512`.

The function makes a `Program` of the family of machines that it is meant for. Its parameters are the workload's keys,
as their annotations say (`int`, `float`, `bool`, `str`); one called `machine` gets the description of the machine. To
run such a workload is to execute the file, with the rights of whoever asks for it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from arch import reading
from arch.digits import whole_size
from arch.errors import InputError
from arch.families import families, family
from arch.near import hint
from workloads.graphs.graph import Graph, GraphOperator
from workloads.ops.base import Array, Operand, Operator
from workloads.ops.dtypes import epsilon

WORD = re.compile(r"(?P<path>\S+\.py):(?P<function>[A-Za-z_]\w*)")
"""How such a workload begins."""

TRACE = re.compile(r"\S+\.(traceg|traceg\.xz|tracez)")
"""A trace of Accel-Sim."""

CUBIN = re.compile(r"(?P<path>\S+\.(cubin|sass))(:(?P<kernel>\w+))?")
"""How a compiled kernel begins."""


_MACHINE = "machine"
_OURS = ("arch", "sim", "workloads")
"""Packages that stay one and the same where a program lies beside them, in a checkout of the repository."""
_BOOLS = {"true": True, "false": False}
_SUMS = 4096
"""Additions in fp32 that a comparison allows for where a program does not state its tolerance."""


# ------------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class ProgramFile(Operator):
    """A function of a file, with its arguments, before it is called for a machine.

    path: as it was typed. arguments: name and value, in the order of the function's parameters. sha256: of the file and
    of what it imports from its own folder, so that a changed program is another workload to every store and lock.
    torch: the function makes a module of PyTorch, which is exported on the meta device; strict: operators of it that
    have no kernel are refused.
    """

    compiled: ClassVar[bool] = False  # machine code, or what a compiler makes it of
    path: str
    function: str
    arguments: tuple[tuple[str, Any], ...]
    sha256: str
    torch: bool = False
    strict: bool = False

    def __str__(self) -> str:
        return " ".join([f"{self.path}:{self.function}", *(f"{name}={value}" for name, value in self.arguments)])

    def with_defaults(self, dtype: str) -> Self:
        """The same; a program states its own number formats."""
        return self

    def on(self, machine: Any) -> OwnProgram | Graph | GraphOperator:
        """Calls the function for a machine; InputError, with the file's line, where it gives no program or graph."""
        made = function_of(self.path, self.function)
        arguments = dict(self.arguments)
        if _MACHINE in inspect.signature(made).parameters:
            arguments[_MACHINE] = machine
        from workloads.graphs.torch_graph import exported_from, is_exported, read_exported  # for models alone

        with told(self.path):
            if self.torch:
                return exported_from(made, arguments, str(self), strict=self.strict)
            found = made(**arguments)
        if isinstance(found, Graph):
            return found
        if is_exported(found):
            return read_exported(found, str(self), strict=self.strict)
        return OwnProgram(str(self), _of_family(found, machine, f"{self.path}:{self.function}"))


@dataclass(frozen=True, eq=False)
class OwnProgram(Operator):
    """A program that somebody has written, in the place of an operator. text: how it was asked for."""

    text: str
    program: Any

    def __str__(self) -> str:
        return self.text

    @property
    def dtype(self) -> str:
        """Number format of the first tensor; programs of TPU v1 compute in int8."""
        return next((operand.dtype for operand in (*self.operands, *self.results)), "int8")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Tensors that are read."""
        return self._tensors("input")

    @property
    def results(self) -> tuple[Operand, ...]:
        """Tensors that are written, scratch left out."""
        return self._tensors("output")

    @property
    def compared(self) -> bool:
        """Whether the program says what its results should be."""
        return self.program.reference is not None

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """What its reference gives; InputError where that fails or has other shapes than the results."""
        name = f"{self.text}: reference"
        try:
            found = self.program.reference(*operands)
        except Exception as error:  # somebody's function
            raise InputError(f"{name}: {type(error).__name__}: {error}") from None
        arrays = tuple(np.asarray(a) for a in (found if isinstance(found, tuple | list) else (found,)))
        shapes, wanted = [a.shape for a in arrays], [result.shape for result in self.results]
        if shapes != wanted:
            raise InputError(f"{name}: gives arrays of shapes {shapes}, the outputs have {wanted}")
        return arrays

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The largest value of each result: what its sums cancelled is not known."""
        found = self.references(*operands)
        return tuple(np.full(a.shape, np.abs(a).max(initial=0.0)) for a in found)

    @property
    def tolerance(self) -> float:
        """As the program states it; else one rounding to the coarsest format of its tensors and 4096 sums in fp32."""
        stated: float | None = getattr(self.program, "tolerance", None)
        if stated is not None:
            return stated
        formats = [operand.dtype for operand in (*self.operands, *self.results)]
        return max((epsilon(dtype) for dtype in formats), default=0.0) + _SUMS * epsilon("fp32")

    def _tensors(self, role: str) -> tuple[Operand, ...]:
        tensors = getattr(self.program, "tensors", ())
        return tuple(Operand(t.name, tuple(t.shape), t.dtype) for t in tensors if t.role == role)


def given(program: Any) -> OwnProgram:
    """A `Program` object as a workload. InputError for what is none."""
    made_by = [one for one in families().values() if one.program.partition(":")[0] in sys.modules]
    if not any(isinstance(program, one.load("program")) for one in made_by):
        raise InputError(f"workload: must be an operator, its text, a graph or a Program, not {type(program).__name__}")
    return OwnProgram(program.name, program)


def placed(asked: Operator, machine: Any) -> Operator:
    """What a machine runs: number formats filled in, a program of one's own made for it."""
    if isinstance(asked, ProgramFile):
        if asked.compiled and not family(machine.family).compiled_kernels:
            raise InputError(f"{asked}: is a kernel compiled for GPUs, {machine.name} is of family {machine.family}")
        found = asked.on(machine)
        assert isinstance(found, OwnProgram), "a graph is planned as one"
        return found
    if isinstance(asked, OwnProgram):
        return OwnProgram(asked.text, _of_family(asked.program, machine, asked.text))
    return asked.with_defaults(machine.default_dtype)


def held_schedule(op: OwnProgram, schedule: str, without: Sequence[str] = ()) -> str:
    """The schedule of a program, which is its own; InputError where another one is asked for."""
    asked = f"schedule={schedule}" if schedule != "auto" else f"without {without[0]}" if without else ""
    if asked:
        raise InputError(f"{asked}: {op} is a program of its own, leave it out")
    return str(op.program.schedule)


# --------------------------------------------------------------------------------------------------------- how it reads


def keys_of(word: str) -> Mapping[str, type]:
    """Keys of a workload by its first word, and their types. The file is executed."""
    match = _matched(word)
    return {name: kind for name, (kind, _) in _parameters(match["path"], match["function"]).items()}


def parse_own(words: Sequence[str]) -> ProgramFile:
    """The workload that words such as `my_kernel.py:gemm`, `m=512` describe; InputError names what is wrong."""
    word, *pairs = words
    match = _matched(word)
    path, function = match["path"], match["function"]
    known = _parameters(path, function)
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in known:
            raise InputError(f"{word}: unknown key {key!r}, one of {', '.join(known) or 'none'}{hint(key, known)}")
        if not equals or not value:
            raise InputError(f"{word}: {pair!r} has no value, write {key}=VALUE")
        if key in values:
            raise InputError(f"{word}: key {key} is given twice, as {values[key]} and {value}")
        values[key] = _value(f"{word} {key}", known[key][0], value)
    required = [name for name, (_, default) in known.items() if default is inspect.Parameter.empty]
    if missing := [name for name in required if name not in values]:
        raise InputError(f"{word}: {', '.join(missing)} missing, needed are {', '.join(required)}")
    arguments = tuple((name, values[name]) for name in known if name in values)
    return ProgramFile(path, function, arguments, sources_sha256(path))


def sources_sha256(path: str) -> str:
    """Hash of a file and of the modules that it imports from its own folder; nothing is executed."""
    found = hashlib.sha256()
    for name, content in sorted(_sources(Path(path)).items()):
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _sources(path: Path) -> dict[str, bytes]:
    """Contents by file name."""
    found: dict[str, bytes] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(path.parent).as_posix()
        if name in found:
            continue
        found[name] = _content(file)
        try:
            tree = ast.parse(found[name])
        except (SyntaxError, ValueError):  # executing it says what is wrong
            continue
        waiting += [file for module in _imported(tree) for file in _files(path.parent, module)]
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names of the modules that a file imports; parts of a package as modules of their own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(folder: Path, module: str) -> Iterator[Path]:
    """The files in a folder that the import of a module reads."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        stem = folder.joinpath(*parts[:end])
        yield from (file for file in (stem.with_suffix(".py"), stem / "__init__.py") if isfile(file))


def _content(path: Path) -> bytes:
    return reading.content(path, f"program {path}", reading.MOST_BYTES)


def _matched(word: str) -> re.Match[str]:
    match = WORD.fullmatch(word)
    assert match is not None, word
    return match


def _parameters(path: str, function: str) -> dict[str, tuple[type, Any]]:
    """Type and default of each key; InputError for a parameter that no text can give."""
    made = function_of(path, function)
    where = f"{path}:{function}"
    with told(path):
        parameters = inspect.signature(made, eval_str=True).parameters
    found = {}
    for name, parameter in parameters.items():
        if name == _MACHINE:
            continue
        kind = parameter.annotation
        if kind is parameter.empty and parameter.default is not parameter.empty:
            kind = type(parameter.default)
        if kind not in (int, float, bool, str) or parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_KEYWORD):
            raise InputError(
                f"{where}: parameter {name} needs an annotation int, float, bool or str, such as {name}: int"
            )
        found[name] = (kind, parameter.default)
    return found


def _value(where: str, kind: type, text: str) -> Any:
    """The value that a text gives to a parameter."""
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise InputError(f"{where}={text[:40]}: must be true or false")
        return _BOOLS[text.lower()]
    if kind is int:
        number = whole_size(text.removeprefix("-"))
        if number is None:
            raise InputError(f"{where}={text[:40]}: must be a whole number, such as 4096, 4k or 2**12")
        return -number if text.startswith("-") else number
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}={text[:40]}: must be a number")
    return value


# ------------------------------------------------------------------------------------------------------ how it executes


def function_of(path: str, function: str) -> Callable[..., Any]:
    """A function of a file; InputError with the nearest name where there is none."""
    module = _executed(path, sources_sha256(path))
    found: Any = vars(module).get(function)
    if not callable(found) and not hasattr(found, "fn"):  # an autotuner of Triton has one
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise InputError(f"program {path}: has no function {function}{hint(function, functions)}")
    return found


@functools.lru_cache(maxsize=16)
def _executed(path: str, sha256: str) -> ModuleType:
    """The file as a module, once for each version of it. Modules of its folder are imported anew with it."""
    module = ModuleType(f"tilewave_program_{sha256[:16]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # as dataclasses of the file expect
    with told(path), _imports_from(Path(path).resolve().parent):
        exec(compile(_content(Path(path)), path, "exec"), vars(module))
    return module


class _FromSource(importlib.machinery.SourceFileLoader):
    """Reads the source and never a `.pyc`, which two versions of one size saved within a second share."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


_FINDER = importlib.machinery.FileFinder.path_hook(
    (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    (_FromSource, importlib.machinery.SOURCE_SUFFIXES),
)


@contextlib.contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Modules can be imported from a folder, as its files are now, and are forgotten afterwards."""

    def beneath(path: str) -> bool:
        place = Path(path).resolve()
        return place.is_relative_to(folder) and "site-packages" not in place.parts

    def finder(entry: str) -> importlib.abc.PathEntryFinder:
        if not beneath(entry):
            raise ImportError(entry)
        return _FINDER(entry)

    def look_anew() -> None:
        for entry in [entry for entry in sys.path_importer_cache if beneath(entry)]:
            del sys.path_importer_cache[entry]

    before = set(sys.modules)
    look_anew()
    sys.path.insert(0, str(folder))
    sys.path_hooks.insert(0, finder)
    try:
        yield
    finally:
        sys.path_hooks.remove(finder)
        sys.path.remove(str(folder))
        look_anew()
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and beneath(file) and name.partition(".")[0] not in _OURS:
                del sys.modules[name]


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Turns whatever goes wrong in somebody's file into one line with its place; what it prints goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        place = f"program {path} line {line}" if line else f"program {path}"
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        near = hint(error.name, dir(error.obj)) if isinstance(error, AttributeError) and error.name else ""
        raise InputError(f"{place}: {kind}{error}{near}") from None


def check_widths(program: Any) -> None:
    """InputError for an access of a width that threads do not have."""
    counts, walk = (importlib.import_module(f"sim.gpu.language.{part}") for part in ("counts", "program"))
    for kernel in program.kernels:
        for role in kernel.roles:
            for op in walk.walk(role.body):
                if wrong := counts.odd_width(op):
                    raise InputError(f"kernel {kernel.name}, role {role.name}, {op.opcode} ({op.line}): {wrong}")


def _of_family(program: Any, machine: Any, name: str) -> Any:
    """The program; InputError where it is none, or none of the machine's family."""
    own = family(machine.family)
    kinds = {one.name: one.load("program") for one in families().values() if one.program}
    if not own.program:
        raise InputError(f"{name}: {machine.name} runs no programs; machines of family {', '.join(kinds)} do")
    if isinstance(program, kinds[own.name]):
        if own.check_program:
            own.load("check_program")(program)
        return program
    other = next((other for other, kind in kinds.items() if isinstance(program, kind)), None)
    if other:
        raise InputError(f"{name}: is a program for machines of family {other}, {machine.name} is of {own.name}")
    raise InputError(
        f"{name}: gives {type(program).__name__}, it must give a Program; {machine.name} takes those of "
        f"{own.program.partition(':')[0]}"
    )
