"""Tuples by address are read like the tuples themselves, in functions that are inlined and in those that are called."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from sim.engine.jit import inner, kernel
from sim.engine.pack import packed


class _Inside(NamedTuple):
    factor: int
    table: np.ndarray


class _State(NamedTuple):
    rows: np.ndarray
    log: np.ndarray | None
    inside: _Inside
    start: int


@inner(inline=True)
def _merged(state: Any, row: int) -> Any:
    state.rows[row, 1] += state.inside.factor * state.inside.table[row] + state.start
    return state.rows[row, 1]


@inner
def _called(state: Any, row: int) -> Any:
    state.rows[row, 0] += 1
    return _merged(state, row) + state.rows.shape[1]


@inner(inline=True)
def _note(log: Any, row: int, value: int) -> None:
    if log is not None:
        log[row] = value


@inner(inline=True)
def _all_rows(state: Any, rows: int) -> Any:
    total = 0
    for row in range(rows):
        total = 3 * total + _called(state, row) + _merged(state, row)
        _note(state.log, row, total)
    return total


@kernel
def _by_value(state: Any, rows: int) -> Any:
    return _all_rows(state, rows)


@kernel
def _by_address(state: Any, rows: int) -> Any:
    return _all_rows(packed(state), rows)


def _state(rows: int, log: bool) -> _State:
    table = np.arange(rows, dtype=np.int64) ** 2
    return _State(np.zeros((rows, 3), np.int64), np.zeros(rows, np.int64) if log else None, _Inside(7, table), 5)


@pytest.mark.parametrize("log", [False, True])
def test_by_address_as_by_value(log: bool) -> None:
    value, address = _state(5, log), _state(5, log)
    assert _by_address(address, 5) == _by_value(value, 5)
    assert address.rows.tolist() == value.rows.tolist() == [[1, 2 * (7 * i * i + 5), 0] for i in range(5)]
    if address.log is not None:
        assert address.log.all()


def test_each_call_packs_anew() -> None:
    first, second = _state(2, False), _state(4, False)
    results = [_by_address(first, 2), _by_address(second, 4), _by_address(first, 2)]
    assert results[2] > results[0]
    assert first.rows[:, 0].tolist() == [2, 2]
    assert second.rows[:, 0].tolist() == [1, 1, 1, 1]
