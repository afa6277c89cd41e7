"""Integer expressions: the bounds and coordinates of the tile language.

Built with Python's operators from CTA coordinates, loop variables and warp numbers; Python folds what is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from arch.arguments import name, sequence, shown
from arch.errors import InputError

MOST_NODES, MOST_DEPTH = 4095, 200
"""Constants, variables and operators of one expression, and operators around one operand."""

INT64 = -(1 << 63), (1 << 63) - 1
"""The smallest and largest value that an expression can have."""

MOST_SHIFT = 62
MOST_TABLE = 1 << 24
"""Entries of a constant table."""


class Expr:
    """An integer expression; build it with + - * // % ^ & comparisons, `minimum`, `maximum` and `table`."""

    __slots__ = ()

    def __add__(self, other: IntLike) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: IntLike) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: IntLike) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: IntLike) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: IntLike) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: IntLike) -> Expr:
        return _binary("*", other, self)

    def __floordiv__(self, other: IntLike) -> Expr:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return _binary("//", other, self)

    def __mod__(self, other: IntLike) -> Expr:
        return _binary("%", self, other)

    def __rmod__(self, other: IntLike) -> Expr:
        return _binary("%", other, self)

    def __xor__(self, other: IntLike) -> Expr:
        return _binary("^", self, other)

    def __rxor__(self, other: IntLike) -> Expr:
        return _binary("^", other, self)

    def __and__(self, other: IntLike) -> Expr:
        return _binary("&", self, other)

    def __rand__(self, other: IntLike) -> Expr:
        return _binary("&", other, self)

    def __lshift__(self, other: IntLike) -> Expr:
        return _binary("<<", self, other)

    def __rlshift__(self, other: IntLike) -> Expr:
        return _binary("<<", other, self)

    def __lt__(self, other: IntLike) -> Expr:
        return _binary("<", self, other)

    def __le__(self, other: IntLike) -> Expr:
        return _binary("<", self, as_expr(other) + 1)

    def __gt__(self, other: IntLike) -> Expr:
        return _binary("<", other, self)

    def __ge__(self, other: IntLike) -> Expr:
        return _binary("<", other, self + 1)

    def equals(self, other: IntLike) -> Expr:
        """1 where both sides are equal, else 0 (`==` keeps Python's meaning)."""
        return _binary("==", self, other)

    def __bool__(self) -> bool:
        raise InputError(
            f"expression {self}: has no value yet when the kernel is written; branch with `when`, and use `minimum`, "
            "`maximum` and `&`"
        )

    @property
    def size(self) -> tuple[int, int]:
        """Constants, variables and operators in it, and how deeply they are nested."""
        return 1, 1


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A fixed integer of 64 bits; what a comparison of Python gives counts as 0 or 1."""

    value: int

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | np.integer | np.bool_):
            text = shown(self.value)
            raise InputError(f"expression {text}: must be a whole number or made of CTA_X, WARP, loop variables")
        if not INT64[0] <= self.value <= INT64[1]:
            raise InputError(f"expression {shown(self.value)}: does not fit 64 bits")
        object.__setattr__(self, "value", int(self.value))

    def __str__(self) -> str:
        return str(self.value)


ZERO = Const(0)


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A variable: a CTA coordinate, the warp's number in its role, a loop counter or an assigned counter."""

    name: str

    def __post_init__(self) -> None:
        name("variable", self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`left op right`; division and modulo round towards minus infinity, comparisons give 0 or 1."""

    op: str
    left: Expr
    right: Expr
    _size: tuple[int, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.op not in _FOLD or not isinstance(self.left, Expr) or not isinstance(self.right, Expr):
            raise InputError(f"expression: {shown(self.op)} of {shown(self.left)} and {shown(self.right)} is none")
        object.__setattr__(self, "_size", _grown(self.left.size, self.right.size))

    @property
    def size(self) -> tuple[int, int]:
        """Constants, variables and operators in it, and how deeply they are nested."""
        return self._size

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True)
class Table(Expr):
    """`values[index]`: a constant integer table."""

    values: tuple[int, ...]
    index: Expr

    def __post_init__(self) -> None:
        values = sequence("table values", self.values)
        if not 1 <= len(values) <= MOST_TABLE:
            raise InputError(f"table: has {len(values)} values; it must have 1 to {MOST_TABLE}")
        object.__setattr__(self, "values", tuple(Const(value).value for value in values))
        object.__setattr__(self, "index", as_expr(self.index))
        _grown(self.index.size, (0, 0))

    @property
    def size(self) -> tuple[int, int]:
        """Constants, variables and operators in it, and how deeply they are nested."""
        return self.index.size[0] + 1, self.index.size[1] + 1

    def __str__(self) -> str:
        return f"table{len(self.values)}[{self.index}]"


IntLike = Expr | int


def _grown(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """The size of an operator with its operands. InputError where it is too large to be evaluated."""
    nodes, depth = left[0] + right[0] + 1, max(left[1], right[1]) + 1
    if nodes > MOST_NODES or depth > MOST_DEPTH:
        raise InputError(
            f"expression: has more than {MOST_NODES} operators and operands, or {MOST_DEPTH} inside each other; "
            "`assign` parts of it"
        )
    return nodes, depth


def as_expr(value: IntLike) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else Const(value)


_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "<<": lambda a, b: a << b,
    "<": lambda a, b: int(a < b),
    "==": lambda a, b: int(a == b),
    "min": min,
    "max": max,
}


def _binary(op: str, left: IntLike, right: IntLike) -> Expr:
    a, b = as_expr(left), as_expr(right)
    if op in ("//", "%") and isinstance(b, Const) and b.value <= 0:
        raise InputError(f"expression ({a} {op} {b}): the divisor must be a positive integer")
    if op == "<<" and isinstance(b, Const) and not 0 <= b.value <= MOST_SHIFT:
        raise InputError(f"expression ({a} << {b}): the shift must be 0 to {MOST_SHIFT}")
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(_FOLD[op](a.value, b.value))
    if isinstance(b, Const):
        if (op in ("+", "-", "^", "<<") and b.value == 0) or (op in ("*", "//") and b.value == 1):
            return a
        if (op == "*" and b.value == 0) or (op == "%" and b.value == 1):
            return Const(0)
    if isinstance(a, Const):
        if op == "+" and a.value == 0:
            return b
        if op == "*" and a.value in (0, 1):
            return b if a.value == 1 else Const(0)
    return Binary(op, a, b)


def minimum(left: IntLike, right: IntLike) -> Expr:
    """The smaller of two expressions."""
    return _binary("min", left, right)


def maximum(left: IntLike, right: IntLike) -> Expr:
    """The larger of two expressions."""
    return _binary("max", left, right)


def table(values: Sequence[int], index: IntLike) -> Expr:
    """`values[index]` for a constant tuple of integers."""
    return Table(tuple(sequence("table values", values)), as_expr(index))


def evaluate(expr: Expr, env: dict[str, int]) -> int:
    """Value of `expr` with variables from `env` (the interpreter's and the tests' evaluator)."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Var):
        return env[expr.name]
    if isinstance(expr, Binary):
        return _FOLD[expr.op](evaluate(expr.left, env), evaluate(expr.right, env))
    if isinstance(expr, Table):
        return expr.values[evaluate(expr.index, env)]
    raise TypeError(f"not an expression: {expr!r}")


#: Variables that every warp has: CTA coordinates in the grid, rank in its cluster, number of its warp in its role.
CTA_X, CTA_Y, CTA_Z, CLUSTER_RANK, WARP = Var("cta_x"), Var("cta_y"), Var("cta_z"), Var("cluster_rank"), Var("warp")
BUILTIN_VARS = ("cta_x", "cta_y", "cta_z", "cluster_rank", "warp")
