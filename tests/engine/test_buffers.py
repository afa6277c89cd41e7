"""Arrays that are used again."""

from __future__ import annotations

import numpy as np
import pytest

from sim.engine import buffers


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_kept", type(buffers._kept)())
    monkeypatch.setattr(buffers, "_addresses", {})


@pytest.mark.parametrize(
    ("shape", "dtype", "value"), [(7, np.int32, -1), ((3, 5), np.int64, 1 << 40), (0, np.int64, 0)]
)
def test_an_array_that_comes_back_is_a_fresh_one(shape: int | tuple[int, ...], dtype: type, value: int) -> None:
    first = buffers.filled(shape, dtype, value)
    place, fresh = first.ctypes.data, first.copy()
    first[...] = 99
    buffers.give_back([first])
    again = buffers.filled(shape, dtype, value)
    assert again.ctypes.data == place or not again.size
    assert again.dtype == fresh.dtype
    assert again.flags.c_contiguous
    assert again.flags.writeable
    np.testing.assert_array_equal(again, fresh)
    assert np.all(fresh == value)


def test_arrays_begin_at_host_lines_and_never_share_memory() -> None:
    arrays = [buffers.filled(n, np.int64, n) for n in (1, 8, 9, 8, 1)]
    assert all(array.ctypes.data % buffers.HOST_LINE_BYTES == 0 for array in arrays)
    buffers.give_back([arrays[1], arrays[1], arrays[3]])
    more = [buffers.filled(8, np.int64, 5) for _ in range(3)]
    held = [arrays[0], arrays[2], arrays[4], *more]
    assert len({array.ctypes.data for array in held}) == len(held)
    assert [int(array[0]) for array in held] == [1, 9, 1, 5, 5, 5]


def test_an_array_of_another_type_takes_the_memory_of_one_of_its_size() -> None:
    first = buffers.filled((4, 2), np.int64, -1)
    place = first.ctypes.data
    buffers.give_back([first])
    second = buffers.filled(16, np.int32, 3)
    assert second.ctypes.data == place
    assert second.tolist() == [3] * 16


def test_what_is_kept_has_a_limit_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MOST_BYTES", 256)
    first, second, third = (buffers.filled(n, np.int64, 0) for n in (10, 12, 14))
    place = third.ctypes.data
    buffers.give_back([first, second])
    assert buffers.kept_bytes() == 176
    buffers.give_back([third])
    assert buffers.kept_bytes() == 208
    assert buffers.filled(14, np.int64, 0).ctypes.data == place
    assert buffers.kept_bytes() == 96
