"""Expressions as the engine evaluates them: a table of bytecode, and of those that are affine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from arch.errors import InputError
from sim.gpu.language import BUILTIN_VARS, Binary, Const, Expr, Table, Var
from sim.gpu.language.expressions import INT64, MOST_SHIFT
from sim.gpu.lower.ranges import ANY, Known, Range, judge, of_binary, of_table, overflows
from sim.gpu.lower.tables import MAX_TERMS, Affine, Operator, WarpVariables

Words = Sequence[tuple[int, int]]
"""Bytecode: pairs of an operator and its argument."""

Code = list[tuple[int, int]]
"""Bytecode that grows."""

_DIVISORS = ("divisor", Range(1, ANY.high))
_OPERANDS = {"//": _DIVISORS, "%": _DIVISORS, "<<": ("shift", Range(0, MOST_SHIFT))}
"""What the right operand of an operator is called that not each number can be, and which can."""

_OPERATORS = {
    "+": Operator.ADD,
    "-": Operator.SUB,
    "*": Operator.MUL,
    "//": Operator.DIV,
    "%": Operator.MOD,
    "^": Operator.XOR,
    "&": Operator.AND,
    "<<": Operator.SHL,
    "<": Operator.LT,
    "==": Operator.EQ,
    "min": Operator.MIN,
    "max": Operator.MAX,
}


def brief(expr: Expr) -> str:
    """An expression as a message shows it."""
    text = str(expr)
    return text if len(text) <= 200 else f"{text[:197]}..."


def given_variables() -> dict[str, int]:
    """Variables that a warp starts with, numbered like its loop variables: their columns are before those."""
    return {name: WarpVariables.CTA_X - WarpVariables.FIRST + i for i, name in enumerate(BUILTIN_VARS)}


class ExpressionScope(NamedTuple):
    """Where an expression stands. variables: numbers of those that it may use. known: of their values, None where the
    statement is never executed. where: names the place, the op with its line."""

    variables: Mapping[str, int]
    known: Known | None
    where: str


class Expressions:
    """The expression table under construction.

    limits, places: of the values that are checked while the kernel runs, since no range says that they are allowed.
    """

    def __init__(self) -> None:
        self.words: list[tuple[int, int]] = []
        self.start: list[int] = [0]
        self.affine: list[list[int]] = []
        self.tables: list[int] = []
        self.limits: list[tuple[int, int]] = []
        self.places: list[str] = []
        self._known: dict[tuple[tuple[int, int], ...], int] = {}
        self._tables: dict[tuple[int, ...], int] = {}

    def add(self, expr: Expr, at: ExpressionScope, what: str = "value", allowed: Range = ANY) -> int:
        """Index of an expression in the table. InputError where it leaves what is allowed of `what`."""
        words = tuple(self._within(expr, at, what, allowed)[0])
        if words not in self._known:
            self._known[words] = len(self.start) - 1
            self.words.extend(words)
            self.start.append(len(self.words))
            self.affine.append(_affine(words))
        return self._known[words]

    def check(self, expr: Expr, at: ExpressionScope, what: str = "value", allowed: Range = ANY) -> None:
        """As `add`, of an expression that the engine does not evaluate: what is not sure is left to the interpreter."""
        if isinstance(expr, Const) and allowed.low <= expr.value <= allowed.high:
            return
        limits = len(self.limits)
        self._within(expr, at, what, allowed)
        del self.limits[limits:], self.places[limits:]

    def _within(self, expr: Expr, at: ExpressionScope, what: str, allowed: Range) -> tuple[Code, Range]:
        """Bytecode and range of an expression, with a check of the value where it is not known to be allowed."""
        words, found = self._compile(expr, at)
        if at.known is None or found.within(allowed):
            return words, found
        judged = judge(expr, found, allowed, at.known)
        if judged.outside:
            found_text = "" if isinstance(expr, Const) else f" is {judged.range}"
            raise InputError(f"{at.where}: {what} {brief(expr)}{found_text}; allowed are {allowed}")
        if not judged.inside:
            words.append((Operator.WITHIN, len(self.limits)))
            self.limits.append(allowed)
            self.places.append(f"{at.where}: {what} {brief(expr)}")
        return words, found.meet(allowed)

    def _compile(self, expr: Expr, at: ExpressionScope) -> tuple[Code, Range]:
        """Bytecode and range of an expression."""
        if isinstance(expr, Const):
            return [(Operator.CONST, expr.value)], Range(expr.value, expr.value)
        if isinstance(expr, Var):
            if expr.name not in at.variables:
                raise InputError(f"{at.where}: variable {expr} is used outside its loop or before it is assigned")
            found = at.known.values.get(expr.name, ANY) if at.known else ANY
            return [(Operator.VARIABLE, WarpVariables.FIRST + at.variables[expr.name])], found
        if isinstance(expr, Table):
            index, found = self._within(expr.index, at, "index of a table", Range(0, len(expr.values) - 1))
            return [*index, (Operator.TABLE, self._table(expr.values))], of_table(expr, found)
        assert isinstance(expr, Binary)
        left, a = self._compile(expr.left, at)
        what, allowed = _OPERANDS.get(expr.op, ("", ANY))
        right, b = self._within(expr.right, at, what, allowed)
        found = of_binary(expr.op, a, b)
        if found is ANY and at.known and overflows(expr.op, a, b):
            raise InputError(f"{at.where}: {brief(expr)} does not fit 64 bits: its operands are {a} and {b}")
        return [*left, *right, (_OPERATORS[expr.op], 0)], found

    def _table(self, values: tuple[int, ...]) -> int:
        """First word of a table, which is kept once."""
        if values not in self._tables:
            self._tables[values] = len(self.tables)
            self.tables.extend(values)
        return self._tables[values]


def _affine(words: Words) -> list[int]:
    """An expression's row in the table of affine ones (`tables.Affine`)."""
    then, by, plus, rest = 0, 0, 0, words
    if len(rest) > 2 and rest[-1][0] in (Operator.ADD, Operator.SUB) and rest[-2][0] == Operator.CONST:
        plus = rest[-2][1] if rest[-1][0] == Operator.ADD else -rest[-2][1]
        rest = rest[:-2]
    if rest[-1][0] == Operator.TABLE:
        (then, by), rest = rest[-1], rest[:-1]
    elif rest[-1][0] in (Operator.DIV, Operator.MOD) and rest[-2][0] == Operator.CONST:
        then, by, rest = rest[-1][0], rest[-2][1], rest[:-2]
    else:
        plus, rest = 0, words
    terms = _terms(rest)
    if terms is None:
        return [-1] * Affine.WIDTH
    constant = terms.pop(-1, 0)
    if len(terms) > MAX_TERMS:
        return [-1] * Affine.WIDTH
    row = [len(terms), constant, then, by, plus, *(word for term in terms.items() for word in term)]
    if not INT64[0] <= min(row) <= max(row) <= INT64[1]:
        return [-1] * Affine.WIDTH
    return row + [0] * (Affine.WIDTH - len(row))


def _terms(words: Words) -> dict[int, int] | None:
    """Factors by column of the warp's row, the constant at -1; None for an expression that is not affine."""
    stack: list[dict[int, int]] = []
    for op, arg in words:
        if op == Operator.CONST:
            stack.append({-1: arg})
        elif op == Operator.VARIABLE:
            stack.append({arg: 1})
        elif op in (Operator.ADD, Operator.SUB, Operator.MUL):
            b, a = stack.pop(), stack.pop()
            if op == Operator.MUL:
                a, b = (a, b) if b.keys() <= {-1} else (b, a)
                if not b.keys() <= {-1}:
                    return None
                stack.append({column: factor * b.get(-1, 0) for column, factor in a.items()})
            else:
                sign = 1 if op == Operator.ADD else -1
                stack.append({column: a.get(column, 0) + sign * b.get(column, 0) for column in a | b})
        else:
            return None
    (terms,) = stack
    return terms
