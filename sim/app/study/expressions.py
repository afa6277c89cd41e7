"""Arithmetic that a person gives: `sm.count * 4.2 + l2.size_bytes / 2**20 * 0.9 <= 900`. Read as a tree, never run.

Names are figures of the machine as in Python, with their unit (`l2.size_bytes`, `dram.bandwidth_bytes_per_s`), numbers
of the report (`time_us`, `energy_j`), or expressions that were defined before.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.leaves import leaves
from arch.near import hint

_BINARY: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
MOST_CHARACTERS = 500
_FUNCTIONS: Mapping[str, Callable[..., float]] = {"min": min, "max": max}


@dataclass(frozen=True)
class Expression:
    """A parsed expression. text: as it was given."""

    text: str
    tree: ast.expr

    @classmethod
    def parse(cls, text: str, option: str) -> Expression:
        """InputError, naming the option, for anything but arithmetic."""
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"{option} {text[:20]}...: longer than {MOST_CHARACTERS} characters")
        try:
            with warnings.catch_warnings(action="ignore"):  # Python's about literals; what is no arithmetic is refused
                tree = ast.parse(text.strip(), mode="eval").body
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # a NUL, half a character, nesting
            reason = getattr(error, "msg", None) or error or "is nested too deeply"
            raise InputError(f"{option} {text!r}: {reason}") from None
        if not all(map(_allowed, _parts(tree))):
            raise InputError(f"{option} {text!r}: only numbers, names, + - * / **, min() and max() are understood")
        return cls(text, tree)

    @property
    def names(self) -> list[str]:
        """Names that the expression uses, each once."""
        return list(dict.fromkeys(_path(n) for n in _parts(self.tree) if isinstance(n, ast.Name | ast.Attribute)))

    def value(self, names: Mapping[str, float]) -> float:
        """The number that it stands for; InputError where that is none, as after a division by zero."""
        try:
            found = _value(self.tree, names)
        except (ZeroDivisionError, OverflowError):
            found = math.inf
        if isinstance(found, complex) or not math.isfinite(found):
            raise InputError(f"{self.text}: is no finite number")
        return found


@dataclass(frozen=True)
class Constraint:
    """`left <= right`."""

    text: str
    left: Expression
    right: Expression

    @classmethod
    def parse(cls, text: str, option: str) -> Constraint:
        """Reads `A <= B` or `A >= B`."""
        for sign in ("<=", ">="):
            left, found, right = text.partition(sign)
            if found:
                sides = Expression.parse(left, option), Expression.parse(right, option)
                return cls(text, *(sides if sign == "<=" else sides[::-1]))
        raise InputError(f"{option} {text!r}: write it as A <= B or A >= B, such as 'area <= 800'")

    @property
    def names(self) -> list[str]:
        """Names of both sides."""
        return list(dict.fromkeys([*self.left.names, *self.right.names]))

    def excess(self, names: Mapping[str, float]) -> float:
        """By how much it is broken, relative to the limit; 0 or less where it holds."""
        left, right = self.left.value(names), self.right.value(names)
        return (left - right) / (abs(right) or 1.0)


def machine_names(machine: Any) -> dict[str, float]:
    """Every number of a description under its Python path."""
    found = {}
    for leaf in leaves(machine.__class__).values():
        value: Any = machine
        for attribute in leaf.attributes:
            value = getattr(value, attribute, None)
        if isinstance(value, int | float):
            found[".".join(leaf.attributes)] = float(value)
    return found


def check_names(expression: Expression | Constraint, known: Mapping[str, Any], option: str) -> None:
    """InputError, with the nearest name, for a name that nobody knows."""
    for name in expression.names:
        if name not in known:
            near = hint(name, known, "; nearest: {}")
            raise InputError(f"{option} {expression.text!r}: unknown name {name}{near}")


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The node and everything below it, but not what an attribute is made of nor what is called."""
    yield node
    if isinstance(node, ast.BinOp):
        yield from _parts(node.left)
        yield from _parts(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from _parts(node.operand)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            yield from _parts(argument)


def _allowed(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name():
            return True
        case ast.Attribute():
            return bool(_path(node))
        case ast.BinOp(op=op):
            return type(op) in _BINARY
        case ast.UnaryOp(op=op):
            return isinstance(op, ast.USub)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _FUNCTIONS and len(args) > 1
    return False


def _path(node: ast.expr) -> str:
    """`a.b.c`; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _path(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(operand=operand):
            return -_value(operand, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(argument, names) for argument in args))
    return names[_path(node)]
