"""Bank conflicts inside memory units: of strided vector reads, and of addresses that are computed."""

from __future__ import annotations

import math

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.rdu import RduSpec
from sim.rdu.place import Ints
from sim.rdu.program import Read

FIGURES = (
    "pmu.addresses",
    "pmu.bandwidth",
    "pmu.banks",
    "pmu.transpose",
)
"""Figures of a preset that this module reads."""


def bank_conflict(read: Read, spec: RduSpec) -> int:
    """Times as long as at the full rate that a vector read takes: words in the same bank follow one another, but for
    those of one row of it, and words that do not lie side by side need addresses of their own.

    All banks together give the unit's bandwidth: a row of a bank may be wider than a word, or narrower.
    """
    if read.transposed and not spec.pmu.transpose:
        stride = read.output.out.token_shape[-1]
    else:
        stride = read.stride
    if stride == 1:
        return 1
    words = max(1, int(spec.pmu.bandwidth_bytes_per_cycle) // DTYPE_BYTES[read.output.out.dtype])
    rows = np.unique(np.arange(words) * stride * spec.pmu.banks // words)  # of all banks, one bank after the other
    return max(int(np.bincount(rows % spec.pmu.banks).max()), -(-words // spec.pmu.addresses))


def lookup_cycles(rows: Ints, row_bytes: int, pmus: int, spec: RduSpec) -> tuple[Ints, int]:
    """Cycles of each firing of a lookup, and those of a firing whose rows spread evenly over units and banks.

    rows: numbers, [firings, m]; row r lies in PMU r mod `pmus`, behind the rows before it. Each PMU takes its rows in
    their order, up to `pmu.addresses` a cycle together, and the group leaves when its busiest bank has served all its
    words. Equal addresses are two accesses.
    """
    banks, width = spec.pmu.banks, spec.pmu.bandwidth_bytes_per_cycle / spec.pmu.banks
    firings, count = rows.shape
    where = (np.arange(firings)[:, None] * pmus + rows % pmus).reshape(-1)
    order = np.argsort(where, kind="stable")
    where, begin = where[order], (rows // pmus).reshape(-1)[order] * row_bytes
    first = (begin / width).astype(np.int64)
    words = ((begin + row_bytes - 1) / width).astype(np.int64) - first + 1
    position = np.arange(len(where)) - np.searchsorted(where, where)
    group = np.cumsum(position % spec.pmu.addresses == 0) - 1
    load = np.zeros((int(group[-1]) + 1) * banks, np.int64)
    for word in range(min(banks, int(words.max()))):  # bank by bank of a row; whole rounds over the banks at once
        times = (words - word + banks - 1) // banks
        load += np.bincount(group * banks + (first + word) % banks, times, len(load)).astype(np.int64)
    heads = position % spec.pmu.addresses == 0
    each = np.bincount(where[heads], load.reshape(-1, banks).max(axis=1), firings * pmus).astype(np.int64)
    even = -(-count * math.ceil(row_bytes / width) // (banks * pmus))
    return each.reshape(firings, pmus).max(axis=1), max(even, -(-count // (spec.pmu.addresses * pmus)))
