"""Machine and launch figures of one kernel as the engine takes them: the parameter array."""

from __future__ import annotations

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.engine.clock import cycles_to_ticks, ps_to_ticks, transfer_ticks
from sim.gpu.engine.layout import P
from sim.gpu.language import Kernel
from sim.gpu.lower.occupancy import occupancy, shared_of_cta
from sim.memory.hashing import reciprocal
from sim.memory.replacement import MAX_WAYS, POLICIES

#: Work that the shared-memory and load/store queues of an SM hold before a warp stalls on them, in cycles of their
#: data path.
#: Assumption: 16 accesses of four wavefronts a sub-core. Compilers spread loads between arithmetic so that the queues
#: do not stall a warp; an op stands for loads so spread, so the queue is deeper than the 4 to 8 entries that single
#: instructions see.
_QUEUE_CYCLES = 256
#: Instructions of an op that issue in one event under loose round robin, so that warps of equal rank alternate.
_ROUND_ROBIN_RUN = 8
#: An SM sets up one warp of a new CTA after the other. From gpu-benches' stream kernels: a CTA of 4 warps takes 5 to
#: 12 cycles longer from slot to slot than one of 1 warp (init, A100 and H100 PCIe).
_WARP_LAUNCH_CYCLES = 3
_CODE_BASE_LINE = (1 << 20) // 128

#: How far a warp may be ahead of other SMs, at most; it changes only the order in which lines of a multicast take their
#: place in the receiving SM.
_LOOKAHEAD_CYCLES = 64

#: How far a request to memory may be ahead of other warps of its SM: two loads in a row, or a short calculation and
#: the store of its result, are one event.
_SLACK_CYCLES = 16

#: Instruction lines of 128 B that an SM fetches ahead in one go (4 KiB): sequential prefetch of the instruction caches.
#: Calibrated on the shortest xla_matmul_table bf16 rows of h100-sxm.
_FETCH_LINES = 32


def parameters(
    kernel: Kernel, spec: GpuSpec, *, exact: bool = False, cold_launch: bool = True, number: int = 0
) -> np.ndarray:
    """Parameters of one launch (`layout.P`). number: position in the program (its code's address).

    exact: every instruction issues in an event of its own. cold_launch: instructions and descriptors are fetched
    through the L2. Raises InputError for a machine or kernel that the engine cannot take.
    """
    held = occupancy(kernel, spec)
    cycle = cycles_to_ticks(1)
    # The driver leaves to shared memory what as many CTAs as fit need, also where the grid has fewer.
    l1_bytes = spec.l1.size_bytes - spec.l1.reserved_bytes - held.ctas * shared_of_cta(kernel, spec)
    l1_bytes = max(l1_bytes, spec.l1.ways * spec.l1.line_bytes)
    if spec.l1.ways > MAX_WAYS:
        raise InputError(f"l1.ways={spec.l1.ways}: the L1 model takes 1 to {MAX_WAYS}; the nearest is {MAX_WAYS}")
    tma, sync = spec.tma, spec.sync
    l1_sets = max(1, l1_bytes // (spec.l1.ways * spec.l1.line_bytes))
    l1_multiplier, l1_shift = reciprocal(l1_sets)
    p = np.zeros(P.WIDTH, dtype=np.int64)
    values = {
        P.SMS: spec.sm.count,
        P.SUB_CORES: spec.sm.sub_cores,
        P.WARPS_PER_SM: held.warps,
        P.CTAS_PER_SM: held.ctas,
        P.WARPS_PER_CTA: kernel.warps,
        P.GRID_X: kernel.grid[0],
        P.GRID_Y: kernel.grid[1],
        P.GRID_Z: kernel.grid[2],
        P.CLUSTER_X: kernel.cluster[0],
        P.CLUSTER_Y: kernel.cluster[1],
        P.CLUSTER_Z: kernel.cluster[2],
        P.CLUSTERS: kernel.ctas // kernel.cluster_size,
        P.BARRIERS: max(1, sum(b.stages for b in kernel.barriers)),
        P.MAX_RUN: 1 if exact else (_ROUND_ROBIN_RUN if spec.sm.scheduler == "lrr" else 1 << 30),
        P.POLICY: {"gto": 0, "lrr": 1, "oldest": 2}[spec.sm.scheduler],
        P.CYCLE: cycle,
        P.READ_TICKS: transfer_ticks(32, spec.port.read_bytes_per_cycle),
        P.RECEIVE_TICKS: transfer_ticks(32, spec.port.receive_bytes_per_cycle),
        P.WRITE_TICKS: transfer_ticks(32, spec.port.write_bytes_per_cycle),
        P.GPC_TICKS: transfer_ticks(32, spec.port.gpc_bytes_per_cycle),
        P.L1_SETS: l1_sets,
        P.L1_SET_MULTIPLIER: l1_multiplier,
        P.L1_SET_SHIFT: l1_shift,
        P.L1_WAYS: spec.l1.ways,
        P.L1_REPLACEMENT: POLICIES.index(spec.l1.replacement),
        P.L1_SECTOR_TICKS: transfer_ticks(32, spec.l1.bandwidth_bytes_per_cycle),
        P.L1_HIT: cycles_to_ticks(spec.l1.hit_latency_cycles),
        P.MISS_QUEUE: spec.l1.miss_queue,
        P.NEAR_LATENCY: cycles_to_ticks(spec.l2.hit_latency_cycles),
        P.TMA_GAP: cycles_to_ticks(tma.issue_gap_cycles) if tma else cycle,
        P.TMA_LATENCY: cycles_to_ticks(tma.latency_cycles) if tma else 0,
        P.TMA_IN_FLIGHT: tma.max_in_flight_bytes // spec.l1.line_bytes if tma else 1,
        P.CP_ASYNC_LATENCY: cycles_to_ticks(spec.cp_async.latency_cycles) if spec.cp_async else 0,
        P.SHARED_TICKS: transfer_ticks(128, spec.shared.bandwidth_bytes_per_cycle),
        P.MIO_QUEUE: _QUEUE_CYCLES * cycle,
        P.LG_QUEUE: _QUEUE_CYCLES * cycle,
        P.BARRIER_LATENCY: cycles_to_ticks(sync.barrier_cycles),
        P.BARRIER_PER_WARP: cycles_to_ticks(sync.barrier_per_warp_cycles),
        P.ARRIVE_LATENCY: cycles_to_ticks(sync.mbarrier_arrive_cycles or 0),
        P.WAIT_LATENCY: cycles_to_ticks(sync.mbarrier_wait_cycles or 0),
        P.CLUSTER_LATENCY: cycles_to_ticks(sync.cluster_sync_cycles or 0),
        P.REMOTE_ARRIVE: cycles_to_ticks(spec.dsmem.latency_cycles) if spec.dsmem else 0,
        P.ATOMIC_LATENCY: cycles_to_ticks(spec.l2.hit_latency_cycles),
        P.WGMMA_IN_FLIGHT: spec.sm.wgmma_in_flight or 0,
        P.CTA_LAUNCH: cycles_to_ticks(spec.sm.cta_launch_cycles),
        P.WARP_LAUNCH: cycles_to_ticks(_WARP_LAUNCH_CYCLES),
        P.CTA_INTERVAL: ps_to_ticks(spec.launch.cta_interval_ps, spec.clock.boost_hz),
        P.LAUNCH_START: ps_to_ticks(idle_launch_ps(kernel, spec), spec.clock.boost_hz),
        P.CODE_LINES: -(-kernel.code_bytes // spec.l1.line_bytes)
        if cold_launch and spec.launch.cold_instruction
        else 0,
        P.CODE_BASE: _CODE_BASE_LINE + 1024 * number,
        P.FETCH_LINES: _FETCH_LINES,
        P.DESCRIPTORS: kernel.descriptors if cold_launch and spec.launch.descriptor_fetch_cycles else 0,
        P.FLAGS: kernel.flags,
        P.TREE_SMS: 1 << (spec.sm.count - 1).bit_length(),
        P.TREE_LEVELS: (held.warps + 2).bit_length(),
        P.SLACK: _SLACK_CYCLES * cycle,
        P.LOOKAHEAD: min(_LOOKAHEAD_CYCLES, *_between_sms_cycles(spec)) * cycle,
    }
    for name, value in values.items():
        p[name] = value
    return p


def idle_launch_ps(kernel: Kernel, spec: GpuSpec) -> int:
    """From the launch of a kernel on an idle device to its first CTA: the preset's command and set-up."""
    shared = occupancy(kernel, spec).ctas * shared_of_cta(kernel, spec)
    split_ps = spec.shared.setup_ps if 4 * shared > spec.l1.size_bytes else 0
    return spec.launch.kernel_ps + spec.launch.setup_ps + split_ps


def _between_sms_cycles(spec: GpuSpec) -> list[int]:
    """What an SM takes at least to affect another."""
    latencies = [spec.l2.hit_latency_cycles, spec.sm.cta_launch_cycles]
    if spec.dsmem:
        latencies += [spec.dsmem.latency_cycles, spec.sync.cluster_sync_cycles or 0]
    return latencies
