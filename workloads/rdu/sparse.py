"""A sparse matrix times a vector: the vector lies in PMUs, and the matrix's column numbers look it up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.rdu.program import Call, Counter, Out, Program, Section, Tensor


def sparse_matvec(columns: NDArray[np.int64], length: int, *, tile: int = 64, pmus: int = 4) -> Program:
    """y = A x with as many nonzeros in every row (ELLPACK). columns: numbers of their columns, [rows, nonzeros].

    length: elements of x. tile: rows a firing. pmus: memory units that share x.
    """
    rows, nonzeros = columns.shape
    if rows % tile:
        below = max(t for t in range(1, tile + 1) if rows % t == 0)
        raise InputError(f"sparse_matvec: {rows} rows are not whole tiles of {tile}; nearest below: {below}")
    each = tile * nonzeros
    section, i = Section("sparse"), Counter("i", rows // tile)
    x = section.load("load_x", Tensor("x", (length, 1), "fp32"), (0, 0), (length, 1), ())
    numbers = section.load(
        "load_columns", Tensor("columns", (rows * nonzeros, 1), "int32"), (i * each, 0), (each, 1), (i,)
    )
    values = section.load(
        "load_values", Tensor("values", (rows, nonzeros), "fp32"), (i * tile, 0), (tile, nonzeros), (i,)
    )
    found = section.lookup("look_up", x.read(1, pmus=pmus), numbers, columns.reshape(-1, each), (i,))
    y = section.stage(
        "dot", (i,), {"x": found, "v": values},
        lambda x, v: (x.reshape(tile, nonzeros) * v).row_sum(), Out((tile, 1), "fp32", (i,)),
    )  # fmt: skip
    section.store("store_y", Tensor("y", (rows, 1), "fp32", "output"), (i * tile, 0), y, (i,))
    return Program("y = A x", (Call(section),), "x in PMUs")
