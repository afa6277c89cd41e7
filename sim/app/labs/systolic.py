"""Lab 7, a systolic array by hand and by cell: one cycle of all cells, how long a product takes, which shape fits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.app.labs import NOT_ANSWERED, Answers, Task, Wrong, judge
from sim.app.report.report import Report
from sim.tpu.pe import PeArray

Matrix = NDArray[np.int64]

MACHINE = "tpu-v1"
CELLS = 256 * 256
NARROW, WIDE = "gemm m=64 n=4096 k=256", "gemm m=256 n=2048 k=2048"
"""Products for which a shape is chosen: one of few rows, and one that fills the square array."""
FASTER, NOT_SLOWER = 2.0, 1.05
PROBLEMS = ((6, 4, 4, 4, 4), (10, 8, 4, 4, 4), (12, 8, 8, 4, 8), (100, 16, 16, 8, 8), (5, 3, 3, 4, 4))
"""m, k, n, rows and columns of products with at least as many rows as the array."""


def _numbers(seed: int, *shape: int) -> Matrix:
    return np.random.default_rng(seed).integers(-9, 10, shape)


def entering(answers: Answers) -> None:
    """`entering(a, r, cycle)`: the number of A that enters row r of the array in a cycle."""
    a = _numbers(1, 5, 3)
    for r in range(3):
        for cycle in range(10):
            right = a[cycle - r, r] if 0 <= cycle - r < 5 else 0
            found = judge.number(judge.call(answers, "entering", a, r, cycle), f"entering(a, {r}, {cycle})")
            if found != right:
                raise Wrong(f"entering(a, {r}, {cycle}) is {found:g}: row r begins r cycles after row 0")


def step(answers: Answers) -> None:
    """`step(act, total, weight, new)`: one cycle of all cells. The grader feeds it and collects what leaves."""
    for seed, (m, k, n) in enumerate(((5, 3, 4), (1, 4, 2), (7, 6, 6))):
        a, b = _numbers(seed, m, k), _numbers(seed + 10, k, n)
        act, total = np.zeros((k, n), dtype=np.int64), np.zeros((k, n), dtype=np.int64)
        product = np.zeros((m, n), dtype=np.int64)
        for cycle in range(m + k + n - 2):
            new = np.array([a[cycle - r, r] if 0 <= cycle - r < m else 0 for r in range(k)])
            made = judge.call(answers, "step", act.copy(), total.copy(), b, new)
            if made is None:
                raise Wrong(f"step returns nothing: {NOT_ANSWERED}")
            if not isinstance(made, tuple) or len(made) != 2 or any(np.shape(part) != (k, n) for part in made):
                raise Wrong(f"step has to return act and total, rows x columns numbers each ({k} x {n} here)")
            act, total = (np.asarray(part) for part in made)
            for c in range(n):
                if 0 <= (row := cycle - (k - 1) - c) < m:
                    product[row, c] = total[k - 1, c]
        if not (product == a @ b).all():
            raise Wrong(
                f"what leaves an array of {k} x {n} cells is not A B: what comes from the left, and from above?"
            )


def _cycles(m: int, k: int, n: int, rows: int, columns: int, overlap: int) -> float:
    a, b = np.ones((m, k), dtype=np.int64), np.ones((k, n), dtype=np.int64)
    return PeArray(a, b, rows, columns, "ws", bool(overlap)).run().cycles


def cycles(answers: Answers) -> None:
    """`cycles(m, k, n, rows, columns, overlap)`: how long a product takes, cell by cell."""
    cases = [(*problem, overlap) for problem in PROBLEMS for overlap in (0, 1)]
    hint = "how many tiles of weights are there, and what does each wait for? Draw the case with one tile first"
    judge.agrees(answers, "cycles", _cycles, cases, hint)


def _ran(text: str, shape: tuple[int, int]) -> Report:
    rows, columns = shape
    change = [f"array.rows={rows}", f"array.columns={columns}"]
    return judge.ran(text, MACHINE, scope="array", set=change)


def shape(answers: Answers) -> None:
    """`shape`: rows and columns of as many cells, for products of few rows."""
    found = answers["shape"]
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(side, int) for side in found):
        raise Wrong("shape has to be two numbers: rows, columns")
    if found[0] * found[1] != CELLS:
        raise Wrong(f"{found[0]} x {found[1]} cells are not {CELLS}")
    square = (256, 256)
    narrow, wide = (_ran(text, square).cycles / _ran(text, found).cycles for text in (NARROW, WIDE))
    if narrow < FASTER:
        raise Wrong(f"{NARROW} is {narrow:.2f} times as fast: what does the array wait for between two tiles?")
    if wide * NOT_SLOWER < 1:
        raise Wrong(f"{WIDE} takes {1 / wide:.2f} times as long as before")


TASKS = (
    Task("what enters", 2, ("entering",), entering),
    Task("one cycle of all cells", 4, ("step",), step),
    Task("how long a product takes", 3, ("cycles",), cycles),
    Task("the shape of an array", 3, ("shape",), shape),
)
