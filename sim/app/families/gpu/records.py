"""From what the GPU engine counted to the record that a report shows: ticks to cycles, sectors to bytes, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from arch.gpu import GpuSpec
from sim.app.families.gpu import report
from sim.app.report.record import GpuLaunch, KernelRecord, MachineFigures, MemoryLine, Occupancy, SourceLine
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.gpu.engine.api import KernelResult, Launch
from sim.gpu.engine.own_loop import OwnLoopKernel
from sim.gpu.lower.access import access_lines
from sim.host.model import Copy
from sim.link import nccl
from sim.link.library import CollectiveCost
from sim.memory.counters import MemoryCounter

SECTOR_BYTES = 32

_PIPES = {"tensor": "tensor_ticks", "fma": "fma_ticks", "alu": "alu_ticks", "half": "half_ticks", "mufu": "mufu_ticks"}
"""Counter of the time of each pipe of a sub-core."""


_SHARED_STATES = ("short_scoreboard", "mio_throttle")
"""States in which warps wait for shared memory."""


def machine_figures(spec: GpuSpec, dtype: str) -> MachineFigures:
    """What a report divides by, for operands of type `dtype`; the fp32 pipes compute what no unit has as a format."""
    tensor = spec.tensor_flops_per_cycle(dtype) * spec.clock.tensor_hz
    vector = spec.vector_flops_per_cycle(dtype if spec.peak_flops(dtype) else "fp32") * spec.clock.boost_hz
    sub_cores = spec.sm.count * spec.sm.sub_cores
    return MachineFigures(
        name=spec.name,
        family=spec.family,
        view=report,
        boost_hz=spec.clock.boost_hz,
        peak_ops_per_s=int(max(tensor, vector)),
        peak_hz=spec.clock.tensor_hz if tensor >= vector else spec.clock.boost_hz,
        bandwidths={
            "l2": int(spec.l2.slices * spec.l2.bandwidth_bytes_per_cycle * (spec.l2.clock_hz or spec.clock.boost_hz)),
            "dram": spec.dram.bandwidth_bytes_per_s,
            "pcie": spec.pcie.bandwidth_bytes_per_s,
        },
        clocked=() if spec.l2.clock_hz else ("l2",),
        power_limit_mw=spec.power.limit_mw,
        instances={"smem": spec.sm.count, "link": 1, "pcie": 1, **dict.fromkeys(_PIPES, sub_cores)},
        spec=spec.model_dump(mode="json", by_alias=True),
    )


def kernel_record(launch: Launch, result: KernelResult, schedule: str, throttle_reason: str | None) -> KernelRecord:
    """The record of a kernel that `launch` has brought to its end. throttle_reason: as in `KernelRecord`."""
    kernel, spec = result.kernel, launch.device.spec
    held = result.occupancy
    cycles = -(-result.ticks // TICKS_PER_CYCLE)
    busy_sms = min(spec.sm.count, kernel.ctas)
    resident = sum(sms * held.ctas // kernel.cluster_size for sms in spec.sms_per_place) * kernel.cluster_size
    warp_ticks = sum(result.warp_states.values())
    slots = dict(result.issue_slots)
    slots["issued"] = slots.pop("selected")
    timing = spec.launch
    idle = _idle_ticks(launch)
    states = {k: v for k, v in result.warp_states.items() if k != "no_warp"}
    return KernelRecord(
        name=kernel.name,
        schedule=schedule,
        cycles=cycles,
        clock_hz=result.clock_hz,
        time_ps=result.time_ps,
        counters=counters(result, spec),
        stalls={
            "warps": to_cycles(states),
            "issue": to_cycles(slots),
        },
        own=GpuLaunch(
            grid=kernel.grid,
            cluster=kernel.cluster,
            occupancy=Occupancy(
                ctas_per_sm=held.ctas,
                warps_per_sm=held.warps,
                limiter=held.limiter.replace(" ", "_"),
                max_warps_per_sm=spec.sm.max_warps,
                achieved_warps_milli=1000 * warp_ticks // (result.ticks * busy_sms),
            ),
            waves_milli=1000 * kernel.ctas // resident,
            tail_cycles=int(idle.max(initial=0)) // TICKS_PER_CYCLE,
            tail_idle_cycles=int(idle.sum()) // (TICKS_PER_CYCLE * max(1, len(idle))),
            source=(source := _source_lines(launch)),
            sms=busy_sms,
            memory=_memory_lines(launch, source, result.counters["shared_conflict_ticks"]),
            barrier_waits=_barrier_cycles(states, result.barrier_waits),
        ),
        energy_fj=result.energy_fj,
        launch_ps={
            "command": timing.kernel_ps,
            "setup": launch.launch_ps - timing.kernel_ps,
            "drain": timing.drain_ps,
        },
        throttle_reason=throttle_reason,
    )


def _source_lines(launch: Launch) -> list[SourceLine]:
    """Of a compiled kernel, the lines of its source, the one that took most of its warps' time first."""
    if not isinstance(launch.kernel, OwnLoopKernel):
        return []
    lines = [
        SourceLine(spent.file, spent.line, spent.instructions, to_cycles(spent.ticks))
        for spent in launch.kernel.source(launch.program)
    ]
    return sorted(lines, key=lambda line: -sum(line.cycles.values()))


def _memory_lines(launch: Launch, source: Sequence[SourceLine], conflict_ticks: int) -> list[MemoryLine]:
    """Lines with bank conflicts, which were counted in all, or with uncoalesced access. Of compiled kernels conflicts
    are where warps wait for shared memory; no counter tells of their access of global memory."""
    if isinstance(launch.kernel, OwnLoopKernel):
        waits = {
            f"{Path(one.file).name}:{one.line}": sum(map(one.cycles.get, _SHARED_STATES, (0, 0))) for one in source
        }
        return [
            MemoryLine(place, conflict_ticks * spent // sum(waits.values()) // TICKS_PER_CYCLE)
            for place, spent in waits.items()
            if spent and conflict_ticks
        ]
    found = access_lines(launch.kernel, launch.program)
    expected = sum(one.conflict_ticks for one in found) or 1
    return [
        MemoryLine(
            *(one.line, one.conflict_ticks * conflict_ticks // expected // TICKS_PER_CYCLE),
            *(one.requests, one.sector_bytes, one.used_bytes),
        )
        for one in found
    ]


def counters(result: KernelResult, spec: GpuSpec) -> dict[str, int]:
    """Counts of SMs and memory under the names of `KernelRecord.counters`, in bytes and cycles."""
    sm, memory = result.counters, result.memory
    found = {
        "macs": sm["macs_tensor"] + sm["macs_vector"],
        "warp_instructions": sm["instructions"],
        "ctas": sm["ctas"],
        "events": sm["events"],
        "memory_lines": sm["lines"],
        "smem_read_bytes": sm["shared_read_bytes"],
        "smem_write_bytes": sm["shared_write_bytes"],
        "smem_conflict_cycles": sm["shared_conflict_ticks"] // TICKS_PER_CYCLE,
        "l1_read_bytes": SECTOR_BYTES * sm["l1_read_sectors"],
        "l1_hits": sm["l1_hit_sectors"],
        "l1_misses": sm["l1_read_sectors"] - sm["l1_hit_sectors"],
        # What slices have read: requests that their coalescers have joined count once.
        "l2_read_bytes": SECTOR_BYTES * (memory["l2_read_sectors"] - memory["l2_coalesced_sectors"]),
        "l2_write_bytes": SECTOR_BYTES * (memory["l2_write_sectors"] + memory["l2_reduce_sectors"]),
        "l2_hits": memory["l2_read_hit_sectors"],
        "l2_misses": memory["l2_read_miss_sectors"],
        "l2_evictions": memory["l2_evictions"],
        "dram_read_bytes": memory["dram_read_bytes"],
        "dram_write_bytes": memory["dram_write_bytes"],
        "dram_row_hits": memory["dram_row_hits"],
        "dram_row_misses": memory["dram_row_misses"] + memory["dram_row_conflicts"],
    }
    if spec.l2.coalescer:
        found["l2_coalesced"] = memory["l2_coalesced_sectors"]
    if spec.l2.partitions == 2:
        found["l2_far_read_bytes"] = SECTOR_BYTES * memory["l2_far_read_sectors"]
        found["l2_link_bytes"] = memory["l2_link_bytes"]
    found["smem_busy_cycles"] = sm["shared_ticks"] // TICKS_PER_CYCLE
    found |= {f"{pipe}_busy_cycles": sm[counter] // TICKS_PER_CYCLE for pipe, counter in _PIPES.items()}
    found |= {name: count for name, count in sm.items() if name.startswith("inst_")}
    return found


def to_cycles(ticks: Mapping[str, int]) -> dict[str, int]:
    """Whole cycles whose sum is that of `ticks`, rounded down once: parts still add up to their whole."""
    found, seen = {}, 0
    for name, count in ticks.items():
        found[name] = (seen + count) // TICKS_PER_CYCLE - seen // TICKS_PER_CYCLE
        seen += count
    return found


def _barrier_cycles(states: Mapping[str, int], waits: Mapping[str, int]) -> dict[str, int]:
    """Waits at barriers in cycles: parts of those in the state `barrier`, rounded in its place among the states."""
    seen = sum(states[name] for name in list(states)[: list(states).index("barrier")])
    cycles = to_cycles({"": seen, **waits})
    return {name: count for name, count in cycles.items() if name and count}


def _idle_ticks(launch: Launch) -> np.ndarray:
    """Ticks from the end of the last CTA of each SM that had any to the end of the last CTA of all."""
    ends = launch.last_cta_ticks()
    worked = ends[ends > 0]
    return worked.max(initial=0) - worked


def copy_record(label: str, copy: Copy, time_ps: int, spec: GpuSpec) -> KernelRecord:
    """A copy beside kernels: cycles are those that the core's clock would count meanwhile."""
    return KernelRecord(
        name=f"{label}: {copy.name}",
        schedule="pcie",
        cycles=time_ps * spec.clock.boost_hz // PS_PER_S,
        clock_hz=spec.clock.boost_hz,
        time_ps=time_ps,
        counters={"pcie_read_bytes": copy.size_bytes},
        own=GpuLaunch((1, 1, 1)),
        transfer_ps=time_ps,
    )


def memory_bytes(counts: np.ndarray) -> dict[str, int]:
    """What a collective beside kernels has moved in L2 and DRAM, under the names of `KernelRecord.counters`."""
    c = MemoryCounter
    return {
        "l2_read_bytes": SECTOR_BYTES * int(counts[c.L2_READ_SECTORS] - counts[c.L2_COALESCED_SECTORS]),
        "l2_write_bytes": SECTOR_BYTES * int(counts[c.L2_WRITE_SECTORS]),
        "dram_read_bytes": int(counts[c.DRAM_READ_BYTES]),
        "dram_write_bytes": int(counts[c.DRAM_WRITE_BYTES]),
    }


def path_counters(spec: GpuSpec, devices: int, ended: CollectiveCost) -> dict[str, int]:
    """What a library's collective did with a device's path to the others, under the names of `KernelRecord.counters`:
    links where they reach all of them, else PCIe."""
    path = "link" if nccl.path_between(spec, devices).nvlink else "pcie"
    busy_ps = {path: ended.port_ps, "copy": ended.copied_ps}
    cycles = {f"{name}_busy_cycles": ps * spec.clock.boost_hz // PS_PER_S for name, ps in busy_ps.items()}
    return {"link_write_bytes": ended.sent_bytes, **cycles}


def collective_record(
    name: str, algorithm: str, counters: Mapping[str, int], time_ps: int, spec: GpuSpec
) -> KernelRecord:
    """A collective of one device: cycles are those that the core's clock would count meanwhile."""
    return KernelRecord(
        name=name,
        schedule=algorithm,
        cycles=time_ps * spec.clock.boost_hz // PS_PER_S,
        clock_hz=spec.clock.boost_hz,
        time_ps=time_ps,
        counters=counters,
        own=GpuLaunch((1, 1, 1)),
        launch_ps={"command": spec.launch.kernel_ps},
    )
