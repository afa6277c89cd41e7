"""Arrays that are used again: fresh memory from the host costs more than what a small kernel does with it.

`filled` gives an array; who is done with some, and holds no views of them, may hand them back with `give_back`. An
array that has been used before is filled like a fresh one. Threads may do both.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOST_LINE_BYTES = 64
"""Arrays begin at cache lines of the host, so that what is touched together lies in as few as possible."""

MOST_BYTES = 32 << 20
"""Of the arrays that are kept, those that were handed back last."""

_lock = threading.Lock()
_kept: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()  # by address
_addresses: dict[int, list[int]] = {}  # of those kept, by size in bytes


def filled(shape: int | tuple[int, ...], dtype: type, value: int) -> NDArray[Any]:
    """A C-contiguous array that is `value` everywhere and begins at a cache line of the host."""
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    whole = size * np.dtype(dtype).itemsize
    with _lock:
        places = _addresses.get(whole)
        raw = _kept.pop(places.pop()) if places else None
    if raw is None:
        block = np.empty(whole + HOST_LINE_BYTES, np.uint8)
        skip = -block.ctypes.data % HOST_LINE_BYTES
        raw = block[skip : skip + whole]
    array: NDArray[Any] = raw.view(dtype).reshape(shape)
    array.fill(value)
    return array


def give_back(arrays: Iterable[NDArray[Any]]) -> None:
    """Takes arrays from `filled` that nobody looks at any more."""
    with _lock:
        for array in arrays:
            raw = array.reshape(-1).view(np.uint8)
            if raw.nbytes and raw.ctypes.data not in _kept:
                _kept[raw.ctypes.data] = raw
                _addresses.setdefault(raw.nbytes, []).append(raw.ctypes.data)
        excess = kept_bytes() - MOST_BYTES
        while excess > 0:
            address, raw = _kept.popitem(last=False)
            _addresses[raw.nbytes].remove(address)
            excess -= raw.nbytes


def kept_bytes() -> int:
    """Of the arrays that wait to be used again."""
    return sum(raw.nbytes for raw in _kept.values())
