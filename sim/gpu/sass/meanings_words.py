"""What meanings of instructions share: operands as numbers, numbers as words, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.gpu.sass.forms import Form
from sim.gpu.sass.operands import Kind, Operand

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

Words = NDArray[np.uint32]
Function = Callable[["WarpValues", Form], tuple[Words, ...]]

_MASK = 0xFFFFFFFF


def signed(form: Form) -> bool:
    """Whether an instruction takes its operands as signed numbers."""
    return not any(part.startswith("U") and part[1:].isdigit() for part in form.parts)


def word(value: NDArray[np.int64]) -> Words:
    """Lower words of numbers."""
    return (value & _MASK).astype(np.uint32)


def both(value: NDArray[np.int64]) -> tuple[Words, Words]:
    """Both words of numbers."""
    return word(value), word(value >> 32)


def integer(warp: WarpValues, form: Form, operand: Operand, signs: bool) -> NDArray[np.int64]:
    """A word or pair of words as a number, its sign included."""
    if form.is_wide(operand):
        low, high = warp.word(operand), warp.word(operand, 1)
        found = (high.astype(np.int64) << 32) | low.astype(np.int64)
    else:
        words = warp.word(operand)
        found = (words.view(np.int32) if signs else words).astype(np.int64)
    return -found if operand.negated and operand.kind is not Kind.IMMEDIATE else found


def holds(name: str, a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Where a comparison of numbers holds."""
    less, equal = np.less(a, b), np.equal(a, b)
    more = np.greater(a, b)
    found: NDArray[np.bool_] = {
        "LT": less, "LE": less | equal, "EQ": equal, "NE": ~equal, "GT": more, "GE": more | equal
    }[name]  # fmt: skip
    return found


def joined(warp: WarpValues, form: Form, found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The result of a comparison, joined with the predicate that it takes."""
    other = warp.predicate(form.inputs[0])
    return found | other if "OR" in form.parts else found ^ other if "XOR" in form.parts else found & other


def compared(warp: WarpValues, form: Form, found: NDArray[np.bool_]) -> tuple[Words, ...]:
    """Sets the predicates of a comparison: its result, and the opposite, each joined with what it takes."""
    for output, value in zip(form.outputs, (found, ~found), strict=False):
        warp.set_predicate(output, joined(warp, form, value))
    return ()
