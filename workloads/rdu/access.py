"""Ways to read the same bytes: a stream, whose addresses run ahead, and a linked list, whose own are data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.rdu.program import Call, Counter, Out, Program, Section, Tensor

WIDTH = 16
"""Words of a row, 64 bytes: a burst of memory. The first word of a list's row is the number of the next."""


def linked_rows(count: int, seed: int = 0) -> NDArray[np.int64]:
    """The table of a list through all rows in a random order, [count, WIDTH]; it begins with row 0."""
    order = np.concatenate([[0], 1 + np.random.Generator(np.random.PCG64(seed)).permutation(count - 1)])
    table = np.arange(count * WIDTH, dtype=np.int64).reshape(count, WIDTH) % 100
    table[order, 0] = np.roll(order, -1)
    return table


def chase(count: int, *, on_chip: bool = False) -> Program:
    """Walks the list and stores the second word of every row. on_chip: its rows are brought to PMUs first."""
    table = linked_rows(count)
    order = np.zeros(count, np.int64)
    for step in range(1, count):
        order[step] = table[order[step - 1], 0]
    section, i = Section("chase"), Counter("i", count)
    rows = Tensor("rows", (count, WIDTH), "int32")
    index = section.loop(Tensor("head", (1, 1), "int32"), Out((1, 1), "int32", (i,)))
    if on_chip:
        held = section.load("load_rows", rows, (0, 0), (count, WIDTH), ())
        row = section.lookup("fetch", held, index.read(), order[:, None], (i,))
    else:
        row = section.gather("fetch", rows, index.read(), order, (i,), units=1)
    section.close(index, section.stage("next", (i,), {"x": row}, lambda x: x.columns(0, 1), Out((1, 1), "int32", (i,))))
    word = section.stage("word", (i,), {"x": row}, lambda x: x.columns(1, 2), Out((1, 1), "int32", (i,)))
    section.store("store", Tensor("words", (count, 1), "int32", "output"), (i, 0), word, (i,), units=1)
    return Program("chase", (Call(section),), "linked list in PMUs" if on_chip else "linked list")


def stream(count: int, tile: int = 64) -> Program:
    """Reads the rows in their order, by tiles, and stores the second word of every row."""
    section, i = Section("stream"), Counter("i", count // tile)
    rows = Tensor("rows", (count, WIDTH), "int32")
    read = section.load("fetch", rows, (i * tile, 0), (tile, WIDTH), (i,), units=1)
    word = section.stage("word", (i,), {"x": read.read(8)}, lambda x: x.columns(1, 2), Out((tile, 1), "int32", (i,)))
    section.store("store", Tensor("words", (count, 1), "int32", "output"), (i * tile, 0), word, (i,), units=1)
    return Program("stream", (Call(section),), "stream")
