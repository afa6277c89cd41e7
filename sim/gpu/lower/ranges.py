"""Ranges of expressions: what an index can be, from what its variables can be.

Intervals are exact for sums and products of variables that occur once. Where an interval leaves what is allowed, the
expression is evaluated at the values of its variables, all of them if they are few. What is still not known to be
allowed is checked while the kernel runs (`sim.gpu.lower.expressions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import floordiv, lshift, mul
from typing import NamedTuple

from sim.gpu.language import Assign, Binary, Const, Expr, Kernel, Loop, Op, Role, Statement, Table, Var, evaluate
from sim.gpu.language.expressions import INT64, MOST_SHIFT
from sim.gpu.language.ops import Action
from sim.gpu.language.rules import MOST_SIDE

_POINTS = 1 << 12
"""Values of an expression's variables, all combined, up to which it is evaluated at all of them."""

FAR = 1 << 60
"""What a counter that grows from trip to trip stays below, however often it does (`arch.limits`)."""

_GROWTH = 1 << 20
"""Of such a counter in one trip, at most."""


class Range(NamedTuple):
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        low, high = ("..." if abs(end) >= FAR else str(end) for end in self)
        return low if self.low == self.high else f"{low} to {high}"

    def within(self, other: Range) -> bool:
        """Whether all of it is part of `other`."""
        return other.low <= self.low and self.high <= other.high

    def apart(self, other: Range) -> bool:
        """Whether no number is in both."""
        return self.high < other.low or other.high < self.low

    def join(self, other: Range) -> Range:
        """The smallest range with both in it."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def meet(self, other: Range) -> Range:
        """What is in both; this one where nothing is."""
        return self if self.apart(other) else Range(max(self.low, other.low), min(self.high, other.high))


ANY, BIT = Range(*INT64), Range(0, 1)


@dataclass(frozen=True)
class Known:
    """What is known where a statement stands. values: ranges of variables. free: those that take each value of theirs
    with each of the others'. certain: the statement is executed at all of them."""

    values: Mapping[str, Range]
    free: frozenset[str]
    certain: bool = True

    def with_value(self, name: str, value: Range, free: bool = False) -> Known:
        """The same with another range of one variable."""
        names = self.free | {name} if free else self.free - {name}
        return replace(self, values={**self.values, name: value}, free=names)


def at_entry(kernel: Kernel, role: Role) -> Known:
    """What is known when a role begins."""
    values = {name: Range(0, n - 1) for name, n in zip(("cta_x", "cta_y", "cta_z"), kernel.grid, strict=True)}
    values["cluster_rank"] = Range(0, kernel.cluster_size - 1)
    values["warp"] = Range(0, role.warps - 1)
    return Known(values, frozenset(values) - {"cluster_rank"})


# ---- expressions


def of_binary(op: str, a: Range, b: Range) -> Range:
    """What an operator can give; ANY where that does not fit 64 bits."""
    found = _BINARY[op](a, b)
    return found if ANY.low <= found.low and found.high <= ANY.high else ANY


def overflows(op: str, a: Range, b: Range) -> bool:
    """Whether an operator on numbers that are known leaves 64 bits."""
    known = max(abs(end) for end in (*a, *b)) < FAR
    return known and not _BINARY[op](a, b).within(ANY)


def of_table(table: Table, index: Range) -> Range:
    """What an entry of a table can be."""
    at = index.meet(Range(0, len(table.values) - 1))
    entries = table.values[max(at.low, 0) : at.high + 1] or table.values
    return Range(min(entries), max(entries))


def range_of(expr: Expr, known: Known) -> Range:
    """What an expression can be, at most."""
    if isinstance(expr, Const):
        return Range(expr.value, expr.value)
    if isinstance(expr, Var):
        return known.values.get(expr.name, ANY)
    if isinstance(expr, Table):
        return of_table(expr, range_of(expr.index, known))
    assert isinstance(expr, Binary)
    return of_binary(expr.op, range_of(expr.left, known), range_of(expr.right, known))


def _corners(a: Range, b: Range, of: Callable[[int, int], int]) -> Range:
    """Of an operator that is monotonous in each operand."""
    if b.low == b.high:
        one, other = of(a.low, b.low), of(a.high, b.low)
        return Range(one, other) if one <= other else Range(other, one)
    found = [of(x, y) for x in a for y in b]
    return Range(min(found), max(found))


def _divide(a: Range, b: Range) -> Range:
    if b.high < 1:
        return ANY
    return _corners(a, b if b.low > 0 else Range(1, b.high), floordiv)


def _modulo(a: Range, b: Range) -> Range:
    if b.low == b.high > 0 and a.low // b.low == a.high // b.low:
        return Range(a.low % b.low, a.high % b.low)
    top = max(b.high - 1, 0)
    return Range(0, min(top, a.high) if a.low >= 0 else top)


def _xor(a: Range, b: Range) -> Range:
    return Range(0, (1 << max(a.high, b.high).bit_length()) - 1) if min(a.low, b.low) >= 0 else ANY


def _and(a: Range, b: Range) -> Range:
    tops = [r.high for r in (a, b) if r.low >= 0]
    return Range(0, min(tops)) if tops else ANY


def _shift(a: Range, b: Range) -> Range:
    shifts = Range(0, MOST_SHIFT)
    return _corners(a, b.meet(shifts), lshift) if not b.apart(shifts) else ANY


def _less(a: Range, b: Range) -> Range:
    return Range(1, 1) if a.high < b.low else Range(0, 0) if a.low >= b.high else BIT


def _equal(a: Range, b: Range) -> Range:
    return Range(0, 0) if a.apart(b) else Range(1, 1) if a.low == a.high == b.low == b.high else BIT


_BINARY: dict[str, Callable[[Range, Range], Range]] = {
    "+": lambda a, b: Range(a.low + b.low, a.high + b.high),
    "-": lambda a, b: Range(a.low - b.high, a.high - b.low),
    "*": lambda a, b: _corners(a, b, mul),
    "//": _divide,
    "%": _modulo,
    "^": _xor,
    "&": _and,
    "<<": _shift,
    "<": _less,
    "==": _equal,
    "min": lambda a, b: Range(min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: Range(max(a.low, b.low), max(a.high, b.high)),
}


def variables(expr: Expr) -> Iterable[str]:
    """Names of the variables of an expression, as often as they occur."""
    if isinstance(expr, Var):
        yield expr.name
    elif isinstance(expr, Binary):
        yield from variables(expr.left)
        yield from variables(expr.right)
    elif isinstance(expr, Table):
        yield from variables(expr.index)


class Found(NamedTuple):
    """What an expression turns out to be. inside: surely within what is allowed. outside: surely not always."""

    range: Range
    inside: bool
    outside: bool


def judge(expr: Expr, found: Range, allowed: Range, known: Known) -> Found:
    """Whether an expression of the range `found` stays within a range."""
    if found.within(allowed) or found.apart(allowed):
        return Found(found, found.within(allowed), found.apart(allowed))
    names = sorted(set(variables(expr)))
    sides = [known.values.get(name, ANY) for name in names]
    all_points = math.prod(side.high - side.low + 1 for side in sides) <= _POINTS
    choices = [range(side.low, side.high + 1) if all_points else sorted(set(side)) for side in sides]
    try:
        reached = [evaluate(expr, dict(zip(names, point, strict=True))) for point in product(*choices)]
    except (ArithmeticError, IndexError, ValueError):  # of a part of it, which is judged by itself
        return Found(found, False, False)
    exact = Range(min(reached), max(reached))
    if exact.within(allowed):
        return Found(exact if all_points else found, all_points, False)
    reaches = known.certain and (known.free.issuperset(names) or names == ["cluster_rank"])
    return Found(exact if all_points else found, False, reaches)


# ---- statements


def changed(body: Sequence[Statement]) -> set[str]:
    """Variables that a body sets."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, Loop):
            names |= changed(statement.body)
        names.add(statement.var)
    return names - {""}


def after(statement: Op | Assign, known: Known) -> Known:
    """What is known behind an op or an assignment."""
    if isinstance(statement, Assign):
        return known.with_value(statement.var, range_of(statement.value, known))
    if statement.spec.action is Action.READ_CANCELLED:
        return known.with_value(statement.var, Range(-1, MOST_SIDE))
    return known.with_value(statement.var, Range(0, FAR)) if statement.var else known


def inside(loop: Loop, known: Known) -> Known | None:
    """What is known in the body of a loop, in each of its trips; None where it has none."""
    trips = range_of(loop.trips, known)
    if trips.high <= 0:
        return None
    names = changed(loop.body)
    within = _entered(loop, _steady(loop, known, names) if names else known)
    return within if trips.low >= 1 else replace(within, certain=False)


def behind(loop: Loop, known: Known, end: Known | None) -> Known:
    """What is known behind a loop; end: at the end of its body."""
    if end is None:
        return known
    values = {name: value.join(known.values.get(name, value)) for name, value in end.values.items()}
    names = changed(loop.body) | {loop.var}
    return Known(values, known.free - names, known.certain and not loop.again)


def _entered(loop: Loop, known: Known) -> Known:
    """In a body, where the loop has a trip."""
    trips, start, step = (range_of(e, known) for e in (loop.trips, loop.start, loop.step))
    known = _where(loop.trips, known)
    if not loop.var:
        return known
    value = of_binary("+", start, of_binary("*", Range(0, max(trips.high - 1, 0)), step))
    every = isinstance(loop.trips, Const) and isinstance(loop.start, Const) and loop.step == Const(1)
    return known.with_value(loop.var, value, every)


def _steady(loop: Loop, known: Known, names: set[str]) -> Known:
    """What holds at the head of a loop whose body changes `names`, whichever trip it is."""
    head = known

    def turned() -> dict[str, Range]:
        end = through(loop.body, _entered(loop, head))
        return {name: end.values.get(name, ANY) for name in names}

    for turn in range(len(names) + 3):
        moved = {name: new for name, new in turned().items() if not _holds(new, head.values.get(name))}
        if not moved:
            break
        for name, new in moved.items():
            old = head.values.get(name, new)
            if turn == 1:
                new = Range(-FAR if new.low < old.low else old.low, FAR if new.high > old.high else old.high)
            head = head.with_value(name, ANY if turn > 1 else old.join(new))
    else:
        return replace(head, values={**head.values, **dict.fromkeys(names, ANY)}, free=head.free - names)
    narrow = {name: new.join(known.values.get(name, new)) for name, new in turned().items()}
    return replace(head, values={**head.values, **narrow}, free=head.free - names)


def _holds(new: Range, old: Range | None) -> bool:
    """Whether a variable is still what it was; one that grows without an end may grow on."""
    if old is None:
        return False
    low = old.low - _GROWTH if old.low <= -FAR else old.low
    return new.within(Range(low, old.high + _GROWTH if old.high >= FAR else old.high))


def through(body: Sequence[Statement], known: Known) -> Known:
    """What is known at the end of a body."""
    for statement in body:
        if isinstance(statement, Loop):
            within = inside(statement, known)
            known = behind(statement, known, None if within is None else through(statement.body, within))
        else:
            known = after(statement, known)
    return known


def _where(condition: Expr, known: Known) -> Known:
    """What is known where an expression is positive: of comparisons of a variable, and of those joined by `&`, `*`."""
    if isinstance(condition, Binary):
        left, right = range_of(condition.left, known), range_of(condition.right, known)
        if condition.op == "&" or (condition.op == "*" and min(left.low, right.low) >= 0):
            return _where(condition.right, _where(condition.left, known))
        if condition.op == "<":
            known = _bounded(condition.left, Range(ANY.low, right.high - 1), known)
            return _bounded(condition.right, Range(left.low + 1, ANY.high), known)
        if condition.op == "==":
            return _bounded(condition.right, left, _bounded(condition.left, right, known))
    return _bounded(condition, Range(1, ANY.high), known)


def _bounded(expr: Expr, bound: Range, known: Known) -> Known:
    """What a bound of an expression says of the variables in it."""
    if isinstance(expr, Var):
        met = known.values.get(expr.name, ANY).meet(bound)
        return known if met == known.values.get(expr.name) else known.with_value(expr.name, met)
    if not isinstance(expr, Binary):
        return known
    left, right = range_of(expr.left, known), range_of(expr.right, known)
    if expr.op == "+":
        known = _bounded(expr.left, _clipped(bound.low - right.high, bound.high - right.low), known)
        return _bounded(expr.right, _clipped(bound.low - left.high, bound.high - left.low), known)
    if expr.op == "-":
        known = _bounded(expr.left, _clipped(bound.low + right.low, bound.high + right.high), known)
        return _bounded(expr.right, _clipped(left.low - bound.high, left.high - bound.low), known)
    if isinstance(expr.right, Const) and (by := expr.right.value) > 0:
        if expr.op == "*":
            return _bounded(expr.left, Range(-(-bound.low // by), bound.high // by), known)
        if expr.op == "//":
            return _bounded(expr.left, _clipped(bound.low * by, bound.high * by + by - 1), known)
    return known


def _clipped(low: int, high: int) -> Range:
    return Range(max(low, ANY.low), min(high, ANY.high))
