"""The cells: what they hold, when tiles move, and the modes in which the kernel runs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from sim.tpu.pe import PeArray

ROOT = Path(__file__).resolve().parents[2]


def test_four_by_four_by_hand() -> None:
    """y = W x on 4 x 4 cells: weights in after 4 cycles, the product on its way for 7 more."""
    w, x = np.arange(16).reshape(4, 4), np.array([[1, 2, 3, 4]])
    cells = list(PeArray(x, w.T, 4, 4).steps())
    # In cycle 4 + r + c the cell (r, c) multiplies, and no other time.
    for cell in cells:
        expected = {(r, c) for r in range(4) for c in range(4) if 4 + r + c == cell.cycle}
        assert {(int(r), int(c)) for r, c in zip(*np.nonzero(cell.valid), strict=True)} == expected
    assert len(cells) == 11
    assert [int(cells[7 + c].total[3, c]) for c in range(4)] == list(w @ [1, 2, 3, 4])
    assert (cells[-1].weight == w.T).all()


def test_sixteen_cells_work_for_one_cycle_each() -> None:
    result = PeArray(np.ones((1, 4), dtype=int), np.ones((4, 4), dtype=int), 4, 4).run()
    assert result.cycles == 11
    assert (result.macs == 1).all()


@pytest.mark.parametrize(("overlap", "streams"), [(True, (4, 10, 16)), (False, (4, 20, 36))])
def test_tiles_hide_behind_each_other_or_do_not(overlap: bool, streams: tuple[int, ...]) -> None:
    a, b = np.ones((6, 12), dtype=int), np.ones((12, 4), dtype=int)
    result = PeArray(a, b, 4, 4, overlap=overlap).run()
    assert result.stream_at == streams
    # Behind the active tile the next one shifts in as soon as the second registers are free.
    assert result.shift_at == ((0, 4, 10) if overlap else (0, 16, 32))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"a": np.ones((2, 3), dtype=int), "b": np.ones((4, 2), dtype=int)}, "columns of a and rows of b"),
        ({"a": np.full((2, 3), 128), "b": np.ones((3, 2), dtype=int)}, "a holds values outside 8 bits"),
        ({"a": np.ones((2, 3), dtype=int), "b": np.full((3, 2), -129)}, "b holds values outside 8 bits"),
        ({"a": np.ones((2, 3), dtype=int), "b": np.ones((3, 2), dtype=int), "dataflow": "rs"}, "ws, os, is"),
        ({"a": np.ones((2, 3), dtype=int), "b": np.ones((3, 2), dtype=int), "bits": 4}, "bits=4"),
    ],
)
def test_wrong_input(arguments: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        PeArray(rows=4, columns=4, **arguments)


SMALL = """
import numpy as np
from sim.tpu.pe import PeArray
rng = np.random.default_rng(1)
a, b = rng.integers(-100, 100, (5, 7)), rng.integers(-100, 100, (7, 6))
for dataflow in ("ws", "os", "is"):
    for overlap in (True, False):
        result = PeArray(a, b, 3, 4, dataflow, overlap).run()
        assert (result.product == a @ b).all()
        print(result.cycles)
"""


def test_same_cycles_unjitted_and_with_bounds_checks() -> None:
    printed = []
    for mode in ({}, {"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_BOUNDSCHECK": "1"}):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **mode}
        done = subprocess.run([sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1] == printed[2]
