"""Records and timelines whose numbers no change of the simulator moves: what tests of pages and pictures draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sim.app.report.record import GpuLaunch, KernelRecord, Occupancy, RunRecord
from sim.app.trace.timeline import Timeline

COUNTERS: Mapping[str, Mapping[str, int]] = {
    "gpu": {
        "macs": 16777216, "warp_instructions": 61488, "ctas": 16, "smem_read_bytes": 1048576,
        "smem_write_bytes": 131072, "smem_busy_cycles": 19456, "l2_read_bytes": 1138688, "l2_write_bytes": 131072,
        "l2_hits": 27052, "l2_misses": 8532, "dram_read_bytes": 273024, "dram_row_hits": 748,
        "dram_row_misses": 1385, "tensor_busy_cycles": 32768, "fma_busy_cycles": 21760, "alu_busy_cycles": 92288,
    },
    "tpu": {
        "macs": 67108864, "instructions": 17, "matrix_busy_cycles": 1024, "activation_busy_cycles": 2048,
        "dram_read_bytes": 262144, "unified_buffer_write_bytes": 655360, "unified_buffer_read_bytes": 786432,
        "accumulators_write_bytes": 1048576, "accumulators_read_bytes": 524288, "pcie_read_bytes": 131072,
        "pcie_write_bytes": 524288,
    },
    "rdu": {
        "macs": 0, "lane_operations": 655360, "pmu_read_bytes": 2361344, "pmu_write_bytes": 2361344,
        "pcu_busy_cycles": 20650, "hbm_read_bytes": 262144, "hbm_write_bytes": 262144,
    },
}  # fmt: skip
STALLS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "gpu": {
        "warps": {"selected": 61, "math_pipe_throttle": 84, "barrier": 37, "mbarrier": 130, "tma_store": 12,
                  "long_scoreboard": 90, "no_instruction": 302},
        "issue": {"math_pipe_throttle": 59, "mbarrier": 126, "no_instruction": 151, "no_warp": 592, "issued": 61},
    },
    "tpu": {
        "matrix": {"instruction": 702, "input": 9962, "active": 1024, "drain": 1052, "activation": 1536,
                   "output": 35388},
        "host_write": {"activation": 14072, "busy": 34180, "finished": 700},
    },
    "rdu": {
        "pcus": {"busy": 20650, "no_input": 133210, "memory": 43835, "reconfiguration": 656000, "idle": 484400},
        "memory_stages": {"busy": 204, "no_input": 1406, "memory": 52, "network": 58, "idle": 1518},
    },
}  # fmt: skip
CYCLES = 12_000
_LAUNCH = GpuLaunch((16, 1, 1), (1, 1, 1), Occupancy(2, 16, "registers", 64, 3286), 60, 31)
STATES = {
    "gpu": ("no_instruction", "selected", "math_pipe_throttle", "mbarrier", "selected", "barrier", "long_scoreboard"),
    "tpu": ("input", "active", "weight_stall", "output", "finished"),
    "rdu": ("reconfiguration", "no_input", "busy", "memory", "busy", "no_room", "idle"),
}
ROWS = {
    "gpu": [f"sub-core {i} / warp {j}" for i in range(4) for j in (i, i + 4)],
    "tpu": ["matrix0", "activation", "weights", "host_read", "host_write"],
    "rdu": ["load_x", "row_max", "subtract", "exponent", "row_sum", "divide", "store_y"],
}


def record(run: RunRecord, slower: int = 1) -> RunRecord:
    """The run with other numbers: what it is called, ran on and consisted of is kept. slower: times as many cycles."""
    kernels = [_kernel(kernel, run, slower) for kernel in run.kernels]
    operators = [replace(op, device_ps=(3 + i) * 700_000) for i, op in enumerate(run.operators)]
    time_ps = sum(kernel.time_ps for kernel in kernels)
    return replace(run, kernels=kernels, operators=operators, candidates=(), time_ps=time_ps, notes=())


def _kernel(kernel: KernelRecord, run: RunRecord, slower: int) -> KernelRecord:
    family, clock = run.machine.family, run.machine.boost_hz
    cycles = CYCLES * slower
    return replace(
        kernel,
        cycles=cycles,
        clock_hz=clock,
        time_ps=cycles * 10**12 // clock,
        counters=COUNTERS[family],
        stalls=STALLS[family],
        energy_fj=slower * 10**12,
        launch_ps={"command": 501_000, "setup": 1_300_000, "drain": 400_000} if family == "gpu" else kernel.launch_ps,
        own=_LAUNCH if family == "gpu" else kernel.own,
        throttle_reason=None,
    )


def timeline(machine: str, family: str, slower: int = 1, counters: Sequence[str] = ("L2 read", "power")) -> Timeline:
    """Rows of states that follow each other, each row a little later than the one above, and counters."""
    cycles = CYCLES * slower
    facts = {"time": "one nanosecond is one cycle; 0 is the kernel's launch", "cycles": str(cycles)}
    found = Timeline("fixed", facts)
    root = found.track(machine)
    for number, name in enumerate(counters):
        track = found.child(name, root, "B/cycle")
        for i in range(40):
            found.sample(track, i * cycles // 40, ((i * 7 + number * 5) % 13) * 100.0)
    states = STATES[family]
    for number, name in enumerate(ROWS[family]):
        track = found.child(name, root)
        length = cycles // (len(states) + 2)
        for i, state in enumerate(states):
            begin = i * length + number * cycles // 60
            category = "issue" if state in ("selected", "active", "busy") else "stall"
            found.add(track, begin, begin + length, state, category, {"line": f"kernel.py:{10 + i}", "CTA": 0})
    return found
