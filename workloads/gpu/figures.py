"""What estimates of kernels read of a machine, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from arch.gpu import GpuSpec

PS_PER_S = 10**12
MILLI = 1000
"""Rates are kept in thousandths of a byte a cycle, so that all arithmetic is on integers."""


@dataclass(frozen=True)
class Figures:
    """What the estimate reads of a machine: cycles, and bytes in thousandths a cycle.

    start: cycles until the first lines of code and the tensor maps are there. code_bytes: fetched in one go.
    miss_rate: of an SM that has as many lines in flight as it may. gap_ps: between dependent kernels. launch_ps: of
    a kernel's launch and end, whose code is warm. cta_ps: from one CTA's start to the next one's. together: reads of
    one GPC that the L2 answers by one. wgmma_ahead: wgmma of a warp that wait for its tensor core. activation:
    thousandths of a cycle between two rows that all channels of DRAM open. request: thousandths of a cycle between two
    reads that the L2 takes, where they are no longer for what they read.
    """

    clock_hz: int
    sms: int
    sub_cores: int
    gpcs: int
    sms_per_place: tuple[int, ...]
    fixed_ps: int
    gap_ps: int
    launch_ps: int
    cta_ps: int
    start: int
    code_bytes: int
    load_latency: int
    l2_latency: int
    tma_latency: int
    barrier: int
    barrier_per_warp: int
    mbarrier_wait: int
    shared_latency: int
    shared_rate: int
    read_rate: int
    miss_rate: int
    receive_rate: int
    write_rate: int
    gpc_rate: int
    l2_rate: int
    l2_write_rate: int
    request: int
    together: int
    wgmma_ahead: int
    l2_bytes: int
    l2_reach: int
    dram_rate: int
    activation: int


@lru_cache(maxsize=64)
def figures(spec: GpuSpec) -> Figures:
    """The figures of a machine."""
    hz, launch = spec.clock.tensor_hz, spec.launch
    dram_latency = spec.dram.latency_ps * hz // PS_PER_S
    far = spec.l2.far_latency_cycles // 2
    load_latency = int(spec.l2.hit_latency_cycles + far + dram_latency)
    activation_ps = max(spec.dram.t_faw_ps // 4, spec.dram.t_rc_ps // spec.dram.banks)
    usable = spec.dram.bandwidth_bytes_per_s * (1 - spec.dram.overhead)
    return Figures(
        clock_hz=hz,
        sms=spec.sm.count,
        sub_cores=spec.sm.sub_cores,
        gpcs=spec.gpc.count,
        sms_per_place=spec.sms_per_place,
        fixed_ps=launch.kernel_ps + launch.setup_ps + launch.drain_ps,
        gap_ps=launch.gap_graph_ps,
        launch_ps=launch.kernel_ps + launch.drain_ps,
        cta_ps=launch.cta_interval_ps or 0,
        start=(launch.descriptor_fetch + launch.cold_instruction) * load_latency,
        code_bytes=spec.sm.instruction_prefetch_bytes if launch.cold_instruction else 1 << 30,
        load_latency=load_latency,
        l2_latency=int(spec.l2.hit_latency_cycles + far),
        tma_latency=int(spec.tma.latency_cycles) if spec.tma else 0,
        barrier=int(spec.sync.barrier_cycles),
        barrier_per_warp=int(spec.sync.barrier_per_warp_cycles),
        mbarrier_wait=int(spec.sync.mbarrier_wait_cycles or 0),
        shared_latency=int(spec.instruction("lds", "b32").latency_cycles) - 1,  # beyond its issue
        shared_rate=int(spec.shared.bandwidth_bytes_per_cycle * MILLI),
        miss_rate=int(spec.l1.miss_queue * spec.l1.line_bytes * MILLI) // load_latency,
        read_rate=int(spec.port.read_bytes_per_cycle * MILLI),
        receive_rate=int(spec.port.receive_bytes_per_cycle * MILLI),
        write_rate=int(spec.port.write_bytes_per_cycle * MILLI),
        gpc_rate=int(spec.l2.in_core_cycles(spec.port.gpc_bytes_per_cycle, hz) * MILLI),
        l2_rate=int(spec.l2.slices * spec.l2.in_core_cycles(spec.l2.bandwidth_bytes_per_cycle, hz) * MILLI),
        l2_write_rate=int(spec.l2.slices * spec.l2.in_core_cycles(spec.l2.write_bandwidth_bytes_per_cycle, hz) * MILLI),
        request=round((spec.l2.request_cycles or 0) * MILLI / spec.l2.slices),
        wgmma_ahead=spec.sm.wgmma_in_flight or 0,
        together=spec.l2.coalescer_reads if spec.l2.coalescer else 1,
        l2_bytes=spec.l2.size_bytes,
        l2_reach=spec.l2.size_bytes // (spec.l2.partitions if spec.l2.local_copies else 1),
        dram_rate=int(usable * MILLI / hz),
        activation=activation_ps * hz * MILLI // (PS_PER_S * spec.dram.channels),
    )


def fetch(f: Figures, code_bytes: int) -> int:
    """Cycles in which a kernel's code arrives beyond the first lines that are fetched ahead, which `start` has."""
    return (-(-code_bytes // f.code_bytes) - 1) * f.load_latency if code_bytes else 0


def cold_ps(spec: GpuSpec, code_bytes: int) -> int:
    """Picoseconds that a kernel takes less where the instruction caches hold its code: set-up, and what it fetches."""
    f = figures(spec)
    return f.fixed_ps - f.launch_ps + (f.start + fetch(f, code_bytes)) * PS_PER_S // f.clock_hz


def transfer(size_bytes: int, rate: int) -> int:
    """Cycles that `size_bytes` take at `rate` thousandths of a byte a cycle."""
    return -(-size_bytes * MILLI // rate)
