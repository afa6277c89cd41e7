"""Colours of everything that is drawn: a state has one colour in all pictures, pages and timelines.

Hues by kind, so that a picture can be read from afar: work is green, waiting for data blue, waiting for a busy unit
orange, waiting for others violet, starting and stopping brown. Idle is light. Red is for what is wrong alone.
"""

from __future__ import annotations

import zlib

WORK = "#4f9d55"
IDLE = "#e2e5e9"
IDLE_ON_DARK = "#7d848d"
"""Idle on a dark page, where a light bar would be the first thing seen; black letters can be read on it."""
WRONG = "#c0392b"
METER = "#4e79a7"
"""Bars of shares, and areas of counters in a lighter tone."""
AREA = "#9bb7d4"
GUIDE = "#6b7280"
"""Lines that help to read: limits, published values, equality."""

DARK_PAPER, DARK_INK = "#17191c", "#e4e6ea"
"""Ground and letters of a page in a dark scheme."""

SERIES = ("#4e79a7", "#f28e2b", "#4f9d55", "#8f6bb1", "#9c755f", "#3aa6a0", "#d37295", "#b6992d")
"""Lines and bars of things that are compared: machines, schedules, operators."""

_DATA = ("#2f5f8f", "#4e79a7", "#6f98c4", "#93b5d9", "#b5cde6", "#5ea3a3", "#86bcb6", "#a9d3cf")
_BUSY = ("#e67e22", "#f2a65a", "#f6c28b", "#e0b33a", "#edd07a")
_OTHERS = ("#7d5ba6", "#9b7fc0", "#b9a4d4", "#d3c6e6", "#c99ac0")
_STARTING = ("#8c6d46", "#a98c67", "#c4ad8e", "#dccfb9")

_KINDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # GPUs
    (_DATA, ("long_scoreboard", "short_scoreboard", "cp_async", "tma_store", "membar")),
    (_BUSY, ("math_pipe_throttle", "wait", "not_selected", "mio_throttle", "lg_throttle")),
    (_OTHERS, ("mbarrier", "barrier", "cluster_barrier", "sleeping", "gmma")),
    (_STARTING, ("no_instruction", "launch", "drain", "setup")),
    # dataflow machines
    (_DATA, ("memory", "network", "no_input")),
    (_OTHERS, ("no_room",)),
    (_STARTING, ("reconfiguration",)),
    # TPUs
    (_OTHERS, ("pipeline",)),
    (_DATA, ("weight_stall", "dram", "input", "output", "unified_buffer")),
    (_DATA, ("weights", "host_read", "host_write", "load", "store")),
    (_BUSY, ("accumulators", "activation", "raw", "matrix", "fifo_full")),
    (_STARTING, ("weight_shift", "instruction", "host", "waits_for_the_host")),
)

_WORKING = ("selected", "issued", "busy", "active", "work", "vector", "vector_unit", "compute", "kernels")
_IDLING = ("idle", "no_warp", "finished", "other", "unused")

_STATES = {
    **{name: hue[i] for hue, names in _KINDS for i, name in enumerate(names)},
    **dict.fromkeys(_WORKING, WORK),
    **dict.fromkeys(_IDLING, IDLE),
}

BOUNDS = {
    "compute": _BUSY[0],
    "dram": _DATA[1],
    "hbm": _DATA[1],
    "ddr": _DATA[3],
    "l2": _DATA[3],
    "smem": _DATA[5],
    "latency": GUIDE,
    "overhead": _STARTING[0],
    "power": _STARTING[2],
    "host": _STARTING[1],
}
"""What bounds a run."""


def of_state(name: str) -> str:
    """The colour of a state, of a warp, a stage or a unit; one without a place of its own always gets the same."""
    key = name.strip().lower().replace(" ", "_").replace("-", "_")
    if key in _STATES:
        return _STATES[key]
    others = (*_STARTING, *_OTHERS, *_DATA)
    return others[zlib.crc32(key.encode()) % len(others)]


def text_on(colour: str) -> str:
    """Black or white, which of them is read better on a colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 299 * red + 587 * green + 114 * blue > 140_000 else "white"


def css(colour: str) -> str:
    """A colour as a style sheet has it: idle by the scheme of the page."""
    return f"light-dark({IDLE}, {IDLE_ON_DARK})" if colour == IDLE else colour


def of_bound(name: str) -> str:
    """The colour of what bounds a run."""
    return BOUNDS.get(name, of_state(name))


def of_series(number: int) -> str:
    """The colour of the n-th of things that are compared."""
    return SERIES[number % len(SERIES)]
