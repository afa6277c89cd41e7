"""Arguments of compiled kernels, as people type them: arrays, tensor maps, numbers, grids.

`a=fp16[2304,2304]` is an array, row-major and 16-byte aligned; `a=fp16[2304,2304]@128,64` a tensor map of one, for
boxes of 128 x 64; `i=int32[64]:pages.npy` an array whose content is known; `n=2304` an integer, `eps=1e-5` a number. A
grid is one to three expressions of such numbers.
"""

from __future__ import annotations

import ast
import io
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arch import reading
from arch.dtypes import DTYPE_BYTES, format_of
from arch.errors import InputError
from arch.near import hint
from sim.gpu.language import GlobalTensor

Dimensions = tuple[int, int, int]

_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]+)\](@(?P<block>[\w,\s]+))?(:(?P<file>.+))?")


@dataclass(frozen=True)
class ArrayArgument:
    """An argument that is an array. block: with it a tensor map of the array, for boxes of these extents, which may be
    names of constants. file: of its content (.npy), where addresses depend on that."""

    dtype: str
    shape: tuple[int, ...]
    block: tuple[str, ...] = ()
    file: str = ""

    def __str__(self) -> str:
        block = f"@{','.join(self.block)}" if self.block else ""
        file = f":{self.file}" if self.file else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{block}{file}"

    def content(self) -> np.ndarray | None:
        """What its file holds, None without one. InputError for a file that does not fit."""
        if not self.file:
            return None
        packed = io.BytesIO(reading.content(self.file, f"{self}: {self.file}"))
        try:
            found: np.ndarray = np.lib.format.read_array(packed, allow_pickle=False)
        except Exception as error:  # of many kinds: NumPy reads the header as Python's words
            raise InputError(f"{self}: {self.file} cannot be read as .npy: {error}") from None
        if found.shape != self.shape or found.dtype.itemsize != DTYPE_BYTES[self.dtype]:
            raise InputError(f"{self}: {self.file} holds {found.dtype}{list(found.shape)}")
        return np.ascontiguousarray(found)

    def extents(self, constants: Mapping[str, Any]) -> tuple[int, ...]:
        """The block in numbers."""
        found = tuple(int(word) if word.isdigit() else constants.get(word) for word in self.block)
        if any(not isinstance(one, int) or one < 1 for one in found):
            raise InputError(f"{self}: its block must be whole numbers, or tl.constexpr parameters that are")
        return found  # type: ignore[return-value]

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
        format_of(dtype, f"{text}: dtype")
        shape = tuple(int(word) for word in match["shape"].split(",") if word.strip())
        if not shape or min(shape) < 1:
            raise InputError(f"{text}: an array has at least one element in each dimension")
        block = tuple(word.strip() for word in (match["block"] or "").split(",") if word.strip())
        if block and len(block) != len(shape):
            raise InputError(f"{text}: a block has as many extents as the array")
        return ArrayArgument(dtype, shape, block, match["file"] or "")
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


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}


def read_grid(text: str, numbers: Mapping[str, Any]) -> Dimensions:
    """The CTAs of a launch: one to three whole numbers, or expressions of arguments and constants such as
    `cdiv(M,BM)*cdiv(N,BN)`. InputError for what is none."""
    try:
        tree = ast.parse(text, mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.Tuple) else [tree]
        found = [_number(node, numbers) for node in nodes]
    except (SyntaxError, ZeroDivisionError, TypeError):
        found = []
    if not 1 <= len(found) <= 3 or min(found) < 1:
        raise InputError(
            f"--grid {text}: must be one to three whole numbers of at least 1, such as 18,18, or expressions of "
            "arguments, such as cdiv(M,BM)*cdiv(N,BN)"
        )
    x, y, z = *found, *(1,) * (3 - len(found))
    return x, y, z


def _number(node: ast.expr, numbers: Mapping[str, Any]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        value = numbers.get(node.id)
        if not isinstance(value, int):
            known = [name for name, one in numbers.items() if isinstance(one, int)]
            raise InputError(f"--grid: {node.id} is no whole number that is given{hint(node.id, known)}")
        return value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_number(node.left, numbers), _number(node.right, numbers))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_number(one, numbers) for one in node.args))
    raise TypeError
