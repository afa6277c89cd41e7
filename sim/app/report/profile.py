"""The table that a framework's profiler prints: by operator, calls, time of the host and of the device, and shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sim.app.report.figures import Figures
from sim.app.report.record import KernelRecord, OperatorTime, RunRecord


@dataclass(frozen=True)
class Entry:
    """All calls of one operator, or of one class of operators."""

    name: str
    kind: str
    calls: int
    kernels: int
    host_ps: int
    host_share: float
    device_ps: int
    device_share: float
    flops: int
    flop_share: float
    bound: str
    """What bounds the longest of its kernels."""

    def to_dict(self) -> dict[str, Any]:
        """The entry by schema.json."""
        return {
            "operator": self.name,
            "kind": self.kind,
            "calls": self.calls,
            "kernels": self.kernels,
            "host_us": self.host_ps / 1e6,
            "host_share": self.host_share,
            "device_us": self.device_ps / 1e6,
            "device_share": self.device_share,
            "flops": self.flops,
            "bound": self.bound,
        }


def profile(run: RunRecord) -> list[Entry]:
    """One entry an operator, longest device time first; ties by name."""
    entries = _entries(run, lambda operator: operator.name)
    return sorted(entries, key=lambda entry: (-entry.device_ps, entry.name))


def classes(run: RunRecord) -> dict[str, Entry]:
    """One entry a class of operators, longest device time first."""
    entries = _entries(run, lambda operator: operator.kind)
    return {entry.kind: entry for entry in sorted(entries, key=lambda entry: (-entry.device_ps, entry.kind))}


def _entries(run: RunRecord, key: Callable[[OperatorTime], str]) -> list[Entry]:
    """Entries in the order in which their key first appears."""
    groups: dict[str, list[OperatorTime]] = {}
    longest: dict[str, KernelRecord] = {}
    kernels = iter(run.kernels)
    for operator in run.operators:
        group = key(operator)
        groups.setdefault(group, []).append(operator)
        own = [*islice(kernels, operator.kernels), *([longest[group]] if group in longest else [])]
        longest[group] = max(own, key=lambda kernel: kernel.time_ps)
    every = [operator for group in groups.values() for operator in group]
    host, device, flops = (sum(getattr(o, name) for o in every) or 1 for name in ("host_ps", "device_ps", "flops"))
    return [
        Entry(
            name=name,
            kind=group[0].kind,
            calls=len(group),
            kernels=sum(o.kernels for o in group),
            host_ps=sum(o.host_ps for o in group),
            host_share=sum(o.host_ps for o in group) / host,
            device_ps=sum(o.device_ps for o in group),
            device_share=sum(o.device_ps for o in group) / device,
            flops=sum(o.flops for o in group),
            flop_share=sum(o.flops for o in group) / flops,
            bound=Figures.of_kernel(run, longest[name]).bound,
        )
        for name, group in groups.items()
    ]
