"""The numbers of a report that tables of studies have columns for, and which of them are better when they grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch.errors import InputError
from arch.near import hint

METRICS: Mapping[str, str] = {
    "time_us": "time, us",
    "cycles": "cycles",
    "tflops": "TFLOPS",
    "percent_of_peak": "% of peak",
    "clock_hz": "mean clock, Hz",
    "energy_j": "energy, J",
    "power_w": "power, W",
    "flops": "operations",
    "macs": "multiply-accumulates",
}
"""Numbers of a report that a table has a column for, with their name on an axis."""

MORE_IS_BETTER = ("tflops", "percent_of_peak", "clock_hz")


def metrics(report: Mapping[str, Any]) -> dict[str, float | int]:
    """The numbers of a report that a table has columns for; bytes as `dram.read_bytes`."""
    found: dict[str, float | int] = {name: report[name] for name in METRICS if name in report}
    for level, sides in report.get("bytes", {}).items():
        found |= {f"{level}.{side}_bytes": count for side, count in sides.items()}
    return found


def known_metric(metric: str) -> None:
    """InputError, with the nearest name, for a metric that no table has."""
    if metric not in METRICS and not metric.endswith("_bytes"):
        near = hint(metric, METRICS, "; nearest: {}")
        raise InputError(f"metric {metric}: must be one of {', '.join(METRICS)} or LEVEL.read_bytes{near}")
