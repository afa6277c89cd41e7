"""Numbers as bytes of a memory, by the names of `arch.dtypes`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import round_to

_KINDS: dict[str, Any] = {"int8": np.int8, "int16": np.int16, "int32": np.int32, "fp32": np.float32}


def encoded(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Bytes of values in a format, one after the other; bf16 rounds to nearest, integers are taken as they are."""
    if name == "bf16":
        single = round_to(values, name).astype(np.float32)
        return np.ascontiguousarray((single.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8).ravel()
    return np.ascontiguousarray(np.asarray(values).astype(_KINDS[name])).view(np.uint8).ravel()


def decoded(raw: NDArray[np.uint8], name: str) -> NDArray[Any]:
    """The values of bytes [..., bytes of some values]: int64, or float32 of floating-point formats."""
    flat = np.ascontiguousarray(raw)
    if name == "bf16":
        return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    found = flat.view(_KINDS[name])
    return found if name == "fp32" else found.astype(np.int64)
