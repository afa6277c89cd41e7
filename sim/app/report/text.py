"""Numbers and names as reports print them."""

from __future__ import annotations


def percent(share: float) -> str:
    """`71.8 %`."""
    return f"{100 * share:.1f} %"


def bytes_text(count: int) -> str:
    """Bytes with a binary prefix: `1.50 GiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def time_text(ps: int) -> str:
    """A time with three to four digits: `193.4 us`."""
    us = ps * 1e-6
    if us >= 1e6:
        return f"{us * 1e-6:.3f} s"
    if us >= 1e4:
        return f"{us * 1e-3:.2f} ms"
    return f"{us:.2f} us" if us < 100 else f"{us:.1f} us"


def ops_text(ops_per_s: float, dtype: str) -> str:
    """`710.2 TFLOPS`, or GFLOPS where small; of integers TOPS and GOPS."""
    unit = "OPS" if dtype.startswith("int") else "FLOPS"
    return f"{ops_per_s * 1e-12:.1f} T{unit}" if ops_per_s >= 1e11 else f"{ops_per_s * 1e-9:.2f} G{unit}"


def ghz_text(hz: int) -> str:
    """`1.755 GHz`."""
    return f"{hz * 1e-9:.3f} GHz"


def change_text(old: float, new: float) -> str:
    """How a number moved: `+0.4 %`, `12 times` where it is ten times as much or more, nothing where it was 0."""
    if not old:
        return ""
    ratio = new / old
    if ratio >= 10:
        return f"{ratio:,.0f} times"
    percent_ = 100 * (ratio - 1)
    return f"{percent_:+.1f} %" if abs(percent_) >= 0.1 else f"{percent_:+.2g} %"


def words(name: str) -> str:
    """A counter's or reason's name for people: `shared_memory` is `shared memory`."""
    return name.replace("_", " ")
