"""The table that a framework's profiler prints: by operator, calls, time of the host and of the device, and shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sim.app.report.figures import Figures, level_bytes
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
    external_bytes: int
    """Bytes from and to external memory (of copies and collectives: of their links)."""
    bound: str
    """What bounds the longest of its kernels."""
    schedules: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Calls by operator as text and schedule."""

    @property
    def gb_per_s(self) -> float:
        """Gigabytes a second of external memory over the device time."""
        return self.external_bytes / self.device_ps * 1e3 if self.device_ps else 0.0

    @property
    def tflops(self) -> float:
        """Operations over the device time."""
        return self.flops / self.device_ps if self.device_ps else 0.0

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
            "external_bytes": self.external_bytes,
            "bound": self.bound,
            "schedules": [
                {"workload": workload, "schedule": schedule, "calls": calls}
                for (workload, schedule), calls in self.schedules.items()
            ],
        }


def profile(run: RunRecord) -> list[Entry]:
    """One entry an operator, longest device time first; ties by name."""
    entries = _entries(run, lambda operator: operator.name)
    return sorted(entries, key=lambda entry: (-entry.device_ps, entry.name))


def classes(run: RunRecord) -> dict[str, Entry]:
    """One entry a class of operators, longest device time first."""
    entries = _entries(run, lambda operator: operator.kind)
    return {entry.kind: entry for entry in sorted(entries, key=lambda entry: (-entry.device_ps, entry.kind))}


def whole(entries: Sequence[Entry]) -> Entry:
    """All entries as one, called `total`."""
    summed = {
        name: sum(getattr(entry, name) for entry in entries)
        for name in ("calls", "kernels", "host_ps", "device_ps", "flops", "external_bytes")
    }
    ones = dict.fromkeys(("host_share", "device_share", "flop_share"), 1.0)
    return Entry(name="total", kind="", bound="", **summed, **ones)  # type: ignore[arg-type]


def _outside(group: Sequence[OperatorTime]) -> str:
    """What bounds operators without kernels: the host that computes them, or the bytes that stand for them."""
    return "stream" if any(operator.streamed_bytes for operator in group) else "host"


def _external_bytes(run: RunRecord, kernel: KernelRecord) -> int:
    """What a kernel moved from and to the machine's external memory, else over its links."""
    levels = level_bytes(kernel.counters)
    external = sum(sum(levels[level].values()) for level in run.machine.external if level in levels)
    return external or sum(sum(levels[level].values()) for level in ("link", "pcie") if level in levels)


def _entries(run: RunRecord, key: Callable[[OperatorTime], str]) -> list[Entry]:
    """Entries in the order in which their key first appears."""
    groups: dict[str, list[OperatorTime]] = {}
    longest: dict[str, KernelRecord | None] = {}  # None of what the host computes
    moved: dict[str, int] = {}
    kernels = iter(run.kernels)
    for operator in run.operators:
        group = key(operator)
        groups.setdefault(group, []).append(operator)
        own = list(islice(kernels, operator.kernels))
        moved[group] = moved.get(group, 0) + sum(_external_bytes(run, kernel) for kernel in own)
        longest[group] = max([*own, longest.get(group)], key=lambda k: k.time_ps if k else -1)
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
            external_bytes=moved[name],
            bound=Figures.of_kernel(run, kernel).bound if (kernel := longest[name]) else _outside(group),
            schedules=Counter((o.workload, o.schedule) for o in group),
        )
        for name, group in groups.items()
    ]
