"""Operands that lie in another order than the result: its dimensions by letters, as einsum has them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from arch.errors import InputError
from workloads.ops.base import Array

LETTERS = "abcd"
"""Of the result's dimensions, the first one first; kernels address four."""
_SHAPE = re.compile(r"[1-9]\d{0,9}(x[1-9]\d{0,9}){1,3}")


class Layout(NamedTuple):
    """How operands lie beside one result.

    shape: of the result, which lies row by row. orders: for each operand the dimensions of the result in the order in
    which memory holds them, the contiguous one last; along those that are left out it is spread.
    """

    shape: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]

    @property
    def text(self) -> tuple[str, str]:
        """Shape and orders as people write them, `16x128` and `ab+ba`."""
        orders = ("".join(LETTERS[d] for d in order) for order in self.orders)
        return "x".join(map(str, self.shape)), "+".join(orders)

    @property
    def permuted(self) -> bool:
        """Whether an operand's dimensions stand in another order than the result's."""
        return any(list(order) != sorted(order) for order in self.orders)

    def sizes(self, number: int) -> tuple[int, ...]:
        """The shape of an operand as it lies."""
        return tuple(self.shape[d] for d in self.orders[number])

    def seen(self, number: int, values: Array) -> Array:
        """An operand's values beside those of the result, element by element."""
        order = self.orders[number]
        turned = values.reshape(self.sizes(number)).transpose(np.argsort(order))
        beside = turned.reshape([size if d in order else 1 for d, size in enumerate(self.shape)])
        return np.broadcast_to(beside, self.shape).reshape(-1)

    def merged(self) -> Layout:
        """The same with as few dimensions as it needs: one for those that follow each other in all operands."""
        shape, orders = list(self.shape), self.orders

        def without(gone: int) -> tuple[tuple[int, ...], ...]:
            del shape[gone]
            return tuple(tuple(d - (d > gone) for d in order if d != gone) for order in orders)

        for d in reversed(range(len(shape))):
            if shape[d] == 1:
                orders = without(d)
        for d in reversed(range(len(shape) - 1)):
            if all(_together(order, d) for order in orders):
                shape[d] *= shape[d + 1]
                orders = without(d + 1)
        return Layout(tuple(shape), orders)


def _together(order: Sequence[int], d: int) -> bool:
    """Whether an operand has a dimension right before the next one, or neither."""
    if d not in order:
        return d + 1 not in order
    return order[order.index(d) + 1 :][:1] == (d + 1,)


def read_layout(where: str, shape: str, layout: str, n: int, operands: int) -> Layout:
    """A layout as people write it, for a result of n elements. InputError for what is none."""
    if not isinstance(shape, str) or not _SHAPE.fullmatch(shape):
        raise InputError(f"{where} shape={shape}: must be two to four dimensions, such as 16x128x64")
    sizes = tuple(map(int, shape.split("x")))
    if math.prod(sizes) != n:
        raise InputError(f"{where} shape={shape}: has {math.prod(sizes)} elements, n={n}")
    letters = LETTERS[: len(sizes)]
    orders = layout.split("+") if isinstance(layout, str) else []
    if len(orders) != operands:
        raise InputError(f"{where} layout={layout}: must have the dimensions of {operands} operands, joined by +")
    for order in orders:
        if not set(order) <= set(letters) or len(set(order)) < len(order) or letters[-1] not in order:
            rule = f"each operand has some of {letters}, each once, {letters[-1]} among them"
            raise InputError(f"{where} layout={layout}: {rule}")
    found = Layout(sizes, tuple(tuple(map(LETTERS.index, order)) for order in orders))
    if not found.permuted:
        raise InputError(f"{where} layout={layout}: all operands lie as the result does; leave shape and layout out")
    if (least := found.merged()) != found:
        raise InputError(f"{where} layout={layout}: has more dimensions than it needs; "
                         f"nearest: shape={least.text[0]} layout={least.text[1]}")  # fmt: skip
    return found
