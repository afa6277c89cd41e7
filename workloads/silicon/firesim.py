"""Layers on Gemmini's RTL, run by FireSim: a table with a mapping and the library's own tiling a line.

The table is that of DOSA's artifact (MICRO 2023): cycles of a mapping that a search found, in Timeloop's words, and of
the tiling that Gemmini's library chooses. Letters of a mapping stand for columns (P, R) and rows (Q, S) of results and
filters, channels (C) and filters (K), as the artifact's script reads them. Its programs pad every side of an image by
half a filter, rounded down. A program has all convolutions or all products of a network, one after the other in the
same arrays, and each layer first as the library tiles it: only its first layer finds nothing in the caches. The time of
the library is that of its call, in which it looks for its tiling. How large the buffers of the machine on the FPGA were
is not stated; its mappings get some that hold two tiles of each of them, and the library's tilings those of its
default, for which they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arch.errors import InputError

COLUMNS = (
    *("set", "workload"),
    *("c", "k", "p", "q", "r", "s", "stride", "mapping"),
    *("auto_tiling", "auto_cycles", "cycles"),
)
"""Columns that are read."""

SOURCE, URL = "dosa_firesim", "https://github.com/ucb-bar/dosa"
CLOCK_GHZ = 1.0

BUFFERS = ("scratchpad.size=2 MiB", "accumulator.size=1 MiB")

_LEVELS = ("L0[W] ", "L1[O] ", "L2[WI] ")
_DRAM = "L3[WIO] "
_LIBRARY_ORDER = "CRSKPQN"
"""Innermost loop first."""

_NAMES = {"P": "q", "Q": "p", "C": "c", "K": "k", "R": "r", "S": "s", "N": "n"}
_PRODUCT = {"P": "m", "C": "k", "K": "n"}


def is_firesim(header: Sequence[str]) -> bool:
    """Whether a CSV file with this header is such a table."""
    return all(column in header for column in COLUMNS)


def records(path: object, lines: Iterable[tuple[int, Mapping[str, str]]]) -> list[dict[str, Any]]:
    """Fields of two rows a line: of the mapping, and of the library's tiling."""
    found, begun = [], set()
    for number, line in lines:
        try:
            program = (line["set"], line["workload"], _is_product(line))
            found += _of_line(line, first=program not in begun)
            begun.add(program)
        except (ValueError, KeyError, IndexError):
            raise InputError(f"{path}:{number}: is no line of a table of layers on FireSim") from None
    return found


def _is_product(line: Mapping[str, str]) -> bool:
    return all(int(line[name]) == 1 for name in ("q", "r", "s"))


def _of_line(line: Mapping[str, str], *, first: bool) -> list[dict[str, Any]]:
    """first: of its program."""
    c, k, p, q, r, s, stride = (int(line[name]) for name in ("c", "k", "p", "q", "r", "s", "stride"))
    if _is_product(line):
        op, shape, names = "gemm", f"m={p} n={k} k={c} out=int8", _PRODUCT
        extent = {"m": p, "n": k, "k": c}
    else:
        op, names = "conv2d", _NAMES
        shape = f"n=1 c={c} h={q * stride} w={p * stride} k={k} r={s} s={r} stride={stride} pad={r // 2} out=int8"
        extent = {"n": 1, "p": q, "q": p, "c": c, "k": k, "s": s, "r": r}
    common = {
        "machine": "gemmini", "op": op, "dtype": "int8", "shape": shape, "scope": "kernel", "overhead_us": 0.0,
        "quality": "A", "source": SOURCE, "url": URL,
    }  # fmt: skip
    mapping = {
        "schedule": "mapping", "kind": _schedule(line["mapping"], names, extent), "l2": "warm",
        "time_us": int(line["cycles"]) / CLOCK_GHZ / 1000, "overrides": BUFFERS,
    }  # fmt: skip
    library = {
        "schedule": "library", "kind": "ws", "l2": "cold" if first else "warm",
        "time_us": int(line["auto_cycles"]) / CLOCK_GHZ / 1000,
    }  # fmt: skip
    return [common | mapping, common | library]


def _schedule(mapping: str, names: Mapping[str, str], extent: Mapping[str, int]) -> str:
    """A mapping in this program's words: a tile is all below the loops over DRAM, which give the order."""
    tile = dict.fromkeys(names.values(), 1)
    for level in _LEVELS:
        for name, size in _factors(mapping, level):
            if name in names:
                tile[names[name]] *= size
    inner = [name for name, _ in reversed(_factors(mapping, _DRAM))]
    inner += [name for name in _LIBRARY_ORDER if name not in inner]
    order = "".join(names[name] for name in reversed(inner) if name in names)
    sizes = " ".join(f"{name}={min(size, extent[name])}" for name, size in tile.items())
    return f"ws {sizes} order={order}"


def _factors(mapping: str, level: str) -> list[tuple[str, int]]:
    """Loops of a level as Timeloop writes them, the outermost first; an X marks loops over the array."""
    words = mapping.split(level)[1].split(" - ")[0].split()
    return [(word[0], int(word[1:].rstrip("XY"))) for word in words]
