"""How long a TPU's host takes for operators of a graph that the chip cannot run."""

from __future__ import annotations

from arch.tpu import TpuSpec
from sim.app.families.family import Host
from sim.engine.clock import PS_PER_S


def calls_ps(spec: TpuSpec, moved_bytes: int, ops: int, exponentials: int, calls: int) -> int:
    """Picoseconds of some calls: of each the turnaround, then the longer of moving all elements and computing them.
    Where activations lie in the chip's memory, they come and go over PCIe."""
    host = spec.host
    ops = max(ops, exponentials * host.exp_ops)
    busy = max(moved_bytes / host.bandwidth_bytes_per_s, ops / host.ops_hz)
    if spec.unified_buffer.behind != "host":
        busy += moved_bytes / spec.pcie.bandwidth_bytes_per_s
    return calls * host.turnaround_ps + round(busy * PS_PER_S)


HOST = Host(
    ("host.turnaround", "host.bandwidth", "host.ops", "host.exp_ops", "pcie.bandwidth"),
    calls_ps,
)
