"""Expressions as the engine evaluates them: a table of bytecode, and of those that are affine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arch.errors import InputError
from sim.gpu.language import BUILTIN_VARS, Binary, Const, Expr, Table, Var
from sim.gpu.lower.tables import MAX_TERMS, Affine, Operator, WarpVariables

Words = Sequence[tuple[int, int]]
"""Bytecode: pairs of an operator and its argument."""

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


def given_variables() -> dict[str, int]:
    """Variables that a warp starts with, numbered like its loop variables: their columns are before those."""
    return {name: WarpVariables.CTA_X - WarpVariables.FIRST + i for i, name in enumerate(BUILTIN_VARS)}


class Expressions:
    """The expression table under construction."""

    def __init__(self) -> None:
        self.words: list[tuple[int, int]] = []
        self.start: list[int] = [0]
        self.affine: list[list[int]] = []
        self.tables: list[int] = []
        self._known: dict[tuple[tuple[int, int], ...], int] = {}

    def add(self, expr: Expr, variables: Mapping[str, int], where: str) -> int:
        """Index of an expression in the table; `variables` numbers those that it may use, `where` names its place."""
        words = tuple(self._compile(expr, variables, where))
        if words not in self._known:
            self._known[words] = len(self.start) - 1
            self.words.extend(words)
            self.start.append(len(self.words))
            self.affine.append(_affine(words))
        return self._known[words]

    def _compile(self, expr: Expr, variables: Mapping[str, int], where: str) -> list[tuple[int, int]]:
        if isinstance(expr, Const):
            return [(Operator.CONST, expr.value)]
        if isinstance(expr, Var):
            if expr.name not in variables:
                raise InputError(f"{where}: variable {expr.name} is used outside its loop or before it is assigned")
            return [(Operator.VARIABLE, WarpVariables.FIRST + variables[expr.name])]
        if isinstance(expr, Table):
            at = len(self.tables)
            self.tables.extend(expr.values)
            return [*self._compile(expr.index, variables, where), (Operator.TABLE, at)]
        assert isinstance(expr, Binary)
        left = self._compile(expr.left, variables, where)
        return [*left, *self._compile(expr.right, variables, where), (_OPERATORS[expr.op], 0)]


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
