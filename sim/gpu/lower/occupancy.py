"""How many CTAs of a kernel an SM holds, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import Kernel

FIGURES = (
    "dsmem.max_cluster",
    "gpc.count",
    "gpc.single_tpcs",
    "sm.per_tpc",
    "shared.granule",
    "shared.max_per_cta",
    "shared.max_per_sm",
    "shared.reserved_per_cta",
    "sm.count",
    "sm.max_ctas",
    "sm.max_registers_per_thread",
    "sm.max_threads",
    "sm.max_threads_per_cta",
    "sm.max_warps",
    "sm.register_granule",
    "sm.registers",
    "sm.sub_cores",
)
"""Figures of a preset that this module reads."""


@dataclass(frozen=True)
class Occupancy:
    """CTAs that one SM holds, and the resource that limits them."""

    ctas: int
    warps: int
    limiter: str


def occupancy(kernel: Kernel, spec: GpuSpec) -> Occupancy:
    """CTAs of `kernel` an SM can hold. Raises InputError if not even one fits."""
    granule = spec.sm.register_granule
    registers = -(-kernel.launch_registers * WARP_SIZE // granule) * granule
    shared, shared_total = kernel.shared_bytes, shared_of_cta(kernel, spec)
    if shared > spec.shared.max_per_cta_bytes:
        raise InputError(
            f"kernel {kernel.name} needs {shared} B of shared memory a CTA; "
            f"{spec.name} allows {spec.shared.max_per_cta_bytes} B (fewer stages or smaller tiles)"
        )
    threads = kernel.warps * WARP_SIZE
    if threads > spec.sm.max_threads_per_cta:
        raise InputError(
            f"kernel {kernel.name} has {threads} threads a CTA; {spec.name} allows {spec.sm.max_threads_per_cta}"
        )
    if kernel.launch_registers > spec.sm.max_registers_per_thread:
        raise InputError(
            f"kernel {kernel.name} needs {kernel.launch_registers} registers a thread; "
            f"{spec.name} allows {spec.sm.max_registers_per_thread}"
        )
    if kernel.cluster_size > spec.max_ctas_per_cluster:
        raise InputError(
            f"kernel {kernel.name} has clusters of {kernel.cluster_size} CTAs; "
            f"{spec.name} allows {spec.max_ctas_per_cluster}"
        )
    limits = {
        "warps": spec.sm.max_warps // kernel.warps,
        "threads": spec.sm.max_threads // threads,
        # A sub-core holds whole warps: its quarter of the registers is not shared with the others.
        "registers": spec.sm.registers // spec.sm.sub_cores // registers * spec.sm.sub_cores // kernel.warps,
        "shared memory": spec.shared.max_per_sm_bytes // shared_total if shared_total else spec.sm.max_ctas,
        "CTA slots": spec.sm.max_ctas,
    }
    limiter = min(limits, key=lambda name: limits[name])
    ctas = limits[limiter]
    if ctas < 1:
        raise InputError(f"kernel {kernel.name}: one CTA exceeds the {limiter} of an SM of {spec.name}")
    if kernel.cluster_size > max(spec.sms_per_place) * ctas:
        raise InputError(
            f"kernel {kernel.name}: a cluster of {kernel.cluster_size} CTAs does not fit a GPC of {spec.name}"
        )
    return Occupancy(ctas, ctas * kernel.warps, limiter)


def shared_of_cta(kernel: Kernel, spec: GpuSpec) -> int:
    """Bytes of the combined array that a resident CTA takes, the system's share included."""
    step = spec.shared.granule_bytes
    return -(-(kernel.shared_bytes + spec.shared.reserved_per_cta_bytes) // step) * step


class Room(NamedTuple):
    """Resources of one SM. registers: of a sub-core, which holds whole warps."""

    warps: int
    registers: int
    shared_bytes: int
    ctas: int


def room_of_cta(kernel: Kernel, spec: GpuSpec) -> Room:
    """What one CTA takes."""
    granule = spec.sm.register_granule
    registers = -(-kernel.launch_registers * WARP_SIZE // granule) * granule
    warps_of_sub_core = -(-kernel.warps // spec.sm.sub_cores)
    return Room(kernel.warps, warps_of_sub_core * registers, shared_of_cta(kernel, spec), 1)


def room_left(kernel: Kernel, spec: GpuSpec) -> Room:
    """What is free on the fullest SM while as many CTAs as run at once do."""
    sm, cta = spec.sm, room_of_cta(kernel, spec)
    whole = Room(sm.max_warps, sm.registers // sm.sub_cores, spec.shared.max_per_sm_bytes, sm.max_ctas)
    resident = min(occupancy(kernel, spec).ctas, -(-kernel.ctas // sm.count))
    return Room(*(have - resident * taken for have, taken in zip(whole, cta, strict=True)))
