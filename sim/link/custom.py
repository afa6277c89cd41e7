"""All-reduce kernels that serving frameworks bring along: one shot, two shots, or through the switch; else NCCL.

What they choose is in their sources: vLLM's `custom_all_reduce.cuh` and `all_reduce_utils.py` (one shot below 512 KiB
on up to four GPUs and 256 KiB on more, two shots above, up to a largest size by GPUs, beyond it NCCL; on H100 with more
than four GPUs buffers above that size go through the switch, between two copies). More than two GPUs must reach each
other over NVLink.
"""

from __future__ import annotations

from typing import Any

from sim.link import nccl
from sim.link.library import Plan, Wire, last_of

FIGURES = (
    "collectives.copy",
    "collectives.lean_flag",
    "collectives.lean_start",
    "collectives.read",
    "collectives.spread",
    "dram.latency",
    "l2.size",
    "sm.count",
)
"""Figures of a preset that this module reads."""

LIBRARIES = ("vllm", "vllm_eager", "trtllm")

_MIB = 2**20
_VLLM_MOST_BYTES = {
    "ampere": {2: 8 * _MIB, 4: 8 * _MIB, 6: 8 * _MIB, 8: 8 * _MIB},
    "hopper": {2: 64 * _MIB, 4: 32 * _MIB, 6: _MIB // 2, 8: _MIB // 4},
    "blackwell": {2: 2 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: _MIB},
}
"""By generation and devices; from that size on its rule takes another kernel."""
_VLLM_SWITCH_MOST_BYTES = {"hopper": 64 * _MIB, "blackwell": 128 * _MIB}
"""The same of sums through the switch, over more than four devices."""
_VLLM_CTAS = 36
_VLLM_THREADS = 512
"""Of a CTA; each has one load of 16 bytes from each other device on its way."""
_SWITCH_CTAS, _SWITCH_THREADS = 8, 1024
"""At most, of PyTorch's `multimem_all_reduce_`; each thread has one word of 16 bytes on its way."""
_TRTLLM_MOST_BYTES = {2: 16 * _MIB, 4: 8 * _MIB, 8: _MIB // 2}


def plan(spec: Any, library: str, devices: int, size_bytes: int) -> Plan | None:
    """The kernel that a framework has for an all-reduce; None where it calls NCCL."""
    path = nccl.path_between(spec, devices)
    if devices > 2 and not path.nvlink:
        return None
    if library == "trtllm":
        if size_bytes > _TRTLLM_MOST_BYTES.get(devices, 0):
            return None
        # Values carry their own flags: nobody waits for anybody but for what it adds up.
        return _shots(spec, devices, size_bytes, "push", spec.sm.count)
    most = _VLLM_MOST_BYTES.get(spec.architecture, _VLLM_MOST_BYTES["ampere"]).get(devices, 0)
    if size_bytes < most:
        one = devices == 2 or size_bytes < (_MIB // 2 if devices <= 4 else _MIB // 4)
        return _shots(spec, devices, size_bytes, "one_shot" if one else "two_shot", _VLLM_CTAS)
    most = _VLLM_SWITCH_MOST_BYTES.get(spec.architecture, 0)
    if path.switched and devices > 4 and size_bytes <= most:
        return _through_switch(spec, devices, size_bytes)
    return None


def _shots(spec: Any, devices: int, size_bytes: int, algorithm: Any, ctas: int) -> Plan:
    figures = spec.collectives
    port = nccl.port_bytes_per_s(spec, devices, reads=algorithm != "push")
    flag_ps = max(figures.lean_flag_ps, nccl.path_between(spec, devices).latency_ps)
    read_ps = max(figures.read_ps, 2 * nccl.path_between(spec, devices).latency_ps)
    # Operand and result of a device: what its L2 does not hold others wait for.
    read_ps += spec.dram.latency_ps * (2 * size_bytes > spec.l2.size_bytes)
    wire = Wire("flags", flag_ps, port, figures.copy_bytes_per_s, read_ps=read_ps)
    at_once = ctas * _VLLM_THREADS * 16
    return Plan("all_reduce", algorithm, devices, size_bytes, wire, ctas, at_once, _start_ps(spec, devices))


def _through_switch(spec: Any, devices: int, size_bytes: int) -> Plan:
    """The sum in a buffer that the switch knows; to copy values there and back are kernels of their own."""
    figures = spec.collectives
    port = nccl.port_bytes_per_s(spec, devices, reads=False)
    asked = nccl.port_bytes_per_s(spec, devices, reads=True)
    wire = Wire(
        "flags", figures.lean_flag_ps, port, figures.copy_bytes_per_s, read_ps=figures.read_ps, asked_bytes_per_s=asked
    )
    at_once = _SWITCH_CTAS * _SWITCH_THREADS * 16 * devices
    return Plan("all_reduce", "multimem", devices, size_bytes, wire, _SWITCH_CTAS, at_once, _start_ps(spec, devices))


def _start_ps(spec: Any, devices: int) -> int:
    figures = spec.collectives
    return figures.lean_start_ps + round(last_of(devices, figures.spread_ps))
