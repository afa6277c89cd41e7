"""What an engine hands to a report: plain integers counted during one run, with no ratio and no unit conversion yet.

A counter, level or unit that a machine lacks is absent from its mapping. Names of warp states are Nsight Compute's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arch.spec import labelled
from sim.app.report.asked import Asked, titled

if TYPE_CHECKING:
    from sim.app.report.view import FamilyView

WARP_STATES = (
    "selected",  # issued an instruction in this cycle
    "not_selected",  # eligible, but another warp of the sub-core was chosen
    "wait",  # fixed-latency dependency or stall count
    "math_pipe_throttle",  # FP32, INT, MUFU or tensor pipe busy
    "short_scoreboard",  # shared memory, MUFU or other on-chip result
    "long_scoreboard",  # global or local memory result
    "lg_throttle",  # queue of global and local memory instructions full
    "mio_throttle",  # queue of shared-memory and special instructions full
    "barrier",  # bar.sync
    "mbarrier",  # waiting for the phase of an mbarrier
    "gmma",  # a wait for asynchronous products
    "cp_async",  # cp.async.wait_group
    "tma_store",  # cp.async.bulk.wait_group, or TMA queue full
    "cluster_barrier",  # barrier.cluster
    "membar",  # memory fence
    "sleeping",  # nanosleep, or parked by setmaxnreg
    "no_instruction",  # instruction fetch
)
"""Closed list of warp states of a GPU."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Residency of one kernel: what fits on one SM, what limits it, and what was reached on average."""

    ctas_per_sm: int
    warps_per_sm: int
    limiter: str
    """`registers`, `shared_memory`, `warps`, `ctas` or `grid`."""
    max_warps_per_sm: int
    achieved_warps_milli: int = 0
    """Mean resident warps of an SM with work, times 1000."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the source of a compiled kernel. instructions: of warps. cycles: of warps, by the state in which they
    waited to issue its instructions or issued them."""

    file: str
    line: int
    instructions: int
    cycles: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """A line of a program that meets bank conflicts, or uses a part of the sectors that it asks for. place: file and
    line. conflict_cycles: of shared memory, summed over SMs. requests: warp instructions on global memory."""

    place: str
    conflict_cycles: int = 0
    requests: int = 0
    sector_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GpuLaunch:
    """What only a launch on a GPU has."""

    grid: tuple[int, ...]
    cluster: tuple[int, ...] = (1, 1, 1)
    occupancy: Occupancy | None = None
    waves_milli: int = 0
    """CTAs (or clusters' CTAs) divided by those that are resident at once, times 1000."""
    tail_cycles: int = 0
    """Cycles from the first SM that has no work left to the end."""
    tail_idle_cycles: int = 0
    """Cycles that an SM, in the mean of those that had work, waits for the end."""
    source: Sequence[SourceLine] = ()
    """Of compiled kernels, the line that took most of its warps' time first."""
    sms: int = 0
    """SMs that had work."""
    memory: Sequence[MemoryLine] = ()
    """Lines with bank conflicts or uncoalesced access."""
    barrier_waits: Mapping[str, int] = field(default_factory=dict)
    """Warp-cycles in the state `barrier`, by what the last warp to arrive did while the others waited; `barrier` among
    them is the barrier's own time. They sum to that state."""


@dataclass(frozen=True, slots=True)
class RduStage:
    """One stage of a section. cycles: by reason; they sum to the section's."""

    name: str
    kind: str
    pcus: int
    firings: int
    interval_cycles: int
    cycles: Mapping[str, int]
    units: Sequence[tuple[int, int]] = ()
    """(row, column) of its PCUs on the mesh."""


@dataclass(frozen=True, slots=True)
class RduBuffer:
    """One channel's buffer. units: (row, column) of its PMUs."""

    name: str
    depth: int
    token_bytes: int
    pmus: int
    units: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class RduTiles:
    """Tiles of the dies, and what went over their borders on the vector network."""

    count: int
    used: int
    """In which a unit of a stage or of a buffer stands."""
    border_bytes: int
    busiest_border: float
    """Share of its bandwidth that the busiest link across a border uses."""
    rows: Sequence[int] = ()
    """First row of each tile below another one, and first column of each to the right of one."""
    columns: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class RduSection:
    """What only a section on a dataflow machine has: stages, buffers, where they stand, when they fired."""

    name: str
    stages: Sequence[RduStage]
    buffers: Sequence[RduBuffer]
    grid: tuple[int, int]
    pcus: int
    pcu_count: int
    pmus: int
    pmu_count: int
    sram_bytes: int
    networks: Mapping[str, tuple[float, int]]
    """By network (vector, scalar, control): share of its bandwidth that the busiest link uses, cycles of waits."""
    log: Sequence[tuple[int, int, int]] = ()
    """(stage, first cycle, end) of firings."""
    tiles: RduTiles | None = None
    """Of a machine whose dies have tiles."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One launch (of a program, of a section) as the engine counted it."""

    name: str
    schedule: str
    cycles: int
    """Core-clock cycles from the start of its first piece of work to its last store."""
    clock_hz: int
    """Mean core clock over those cycles."""
    time_ps: int
    """Device time of the kernel: what a profiler reports as its duration."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Monotonic counts. Known names: `macs`, `events`, `<level>_read_bytes`, `<level>_write_bytes`, `<level>_hits`,
    `<level>_misses` (levels: `sim.app.report.figures.LEVELS`), `<pipe>_busy_cycles` (summed over its instances); of a
    GPU `warp_instructions`, `ctas`, `memory_lines`, `smem_conflict_cycles`, `dram_row_hits`, `dram_row_misses`."""
    stalls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By unit, cycles by what they were spent on; a unit's counts sum to its instances times cycles. Of a GPU: `warps`,
    warp-cycles by state (`WARP_STATES`), and `issue`, issue-slot cycles: `issued`, `no_warp`, or the state of the warp
    that became eligible first."""
    own: Any = None
    """What only the machine's family has: a `GpuLaunch`, an `RduSection`;
    of other families what their report module reads."""
    energy_fj: int = 0
    launch_ps: Mapping[str, int] = field(default_factory=dict)
    """Parts of the launch that belong to `time_ps`: `command`, `instruction_fetch`, `descriptor_fetch`, ..."""
    transfer_ps: int = 0
    """By how much shorter it would be if data were between host and device at once."""
    throttle_reason: str | None = None
    """Why the clock stayed below boost: the board's limit of `power`, its pace under `tensor` cores, or `locked`; None
    at boost."""
    beside_ps: int = 0
    """Of its time, that in which another kernel of the record runs, which counts it."""

    @property
    def alone_cycles(self) -> int:
        """Cycles that no other kernel counts."""
        return self.cycles * (self.time_ps - self.beside_ps) // self.time_ps if self.beside_ps else self.cycles


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that `schedule=auto` considered.

    simulated_cycles: None of one that was not simulated to its end. given_up_ps: of one that takes longer than this,
    as its simulation showed until then. pace_ps: of one that was left after its first part: what it takes at the pace
    of that.
    """

    schedule: str
    estimate_cycles: int
    simulated_cycles: int | None = None
    given_up_ps: int | None = None
    pace_ps: int | None = None
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One call of an operator, as a profiler of a framework shows it."""

    name: str
    kind: str
    """Class of the operator by how it moves data: `contraction`, `normalisation`, `elementwise`, `copy` (to or from the
    host), `communication` (between devices)."""
    workload: str
    """The operator as text."""
    host_ps: int
    """For how long the call kept the host's thread."""
    kernels: int
    device_ps: int
    flops: int
    schedule: str = ""
    """How it ran: of a collective its algorithm; empty of a copy."""
    streamed_bytes: int = 0
    """Bytes that stand for it where no kernel here computes it; 0 of what ran."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer of a network, run by itself. kernels: how many of the record's are its own, in their order."""

    name: str
    workload: str
    """The operator as text."""
    schedule: str
    kernels: int
    time_ps: int
    """In the record's scope."""
    macs: int
    operand_bytes: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a workload has and the run does not: it takes no time. operators: by name, how many. macs, bytes: of all of
    them. unsized: how many of them read or write something whose size is not known, which is not in `bytes`."""

    operators: Mapping[str, int]
    macs: int
    bytes: int
    unsized: int = 0

    def to_dict(self, macs: int, moved: int) -> dict[str, Any]:
        """By schema.json. macs, moved: multiply-adds and bytes of what ran, each byte touched once."""
        shares = {
            "mac_share": self.macs / max(self.macs + macs, 1), "byte_share": self.bytes / max(self.bytes + moved, 1),
        }  # fmt: skip
        return {"operators": dict(self.operators), **shares, "unsized": self.unsized}


@dataclass(frozen=True, slots=True)
class StreamedOperators:
    """What a workload has and no kernel here computes: it takes as long as its bytes do. operators: by name, how many.
    bytes, time_ps: of all of them."""

    operators: Mapping[str, int]
    bytes: int
    time_ps: int

    def to_dict(self, time_ps: int) -> dict[str, Any]:
        """By schema.json. time_ps: of the whole run."""
        share = self.time_ps / max(time_ps, 1)
        return {"operators": dict(self.operators), "bytes": self.bytes, "time_share": min(1.0, share)}


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """The figures of a machine that a report divides by. Peaks are at the boost clock, but see `peak_hz`."""

    name: str
    family: str
    boost_hz: int
    peak_ops_per_s: int
    """Peak of the chosen dtype, operations (2 per MAC) a second, as the data sheet counts them."""
    bandwidths: Mapping[str, int]
    """Peak bytes a second by memory level; a level without a figure is absent."""
    external: tuple[str, ...] = ("dram",)
    """Levels outside the chip: what the roofline counts as memory."""
    duplex: tuple[str, ...] = ()
    """Levels whose bandwidth is that of each direction; of others both share it."""
    clocked: tuple[str, ...] = ()
    """Levels whose bandwidth moves with the core clock; their figure is at boost."""
    power_limit_mw: int | None = None
    peak_hz: int = 0
    """Core clock behind `peak_ops_per_s`; 0: boost."""
    free: tuple[str, ...] = ()
    """Levels and pipes that take no time in the scope of the run, so that they have no share of it."""
    instances: Mapping[str, int] = field(default_factory=dict)
    """How many instances of each pipe, or port of a memory level, the machine has: what `<pipe>_busy_cycles` is divided
    by."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The validated description, as plain data."""
    view: FamilyView = field(kw_only=True, compare=False, repr=False)
    """What reports say about machines of this family alone."""


@dataclass(frozen=True, slots=True)
class SimulatorStats:
    """What the simulation itself cost. Only the counts are deterministic."""

    events: int
    cpu_s: float
    wall_s: float
    peak_memory_bytes: int
    warp_instructions: int | None = None
    memory_lines: int | None = None
    instructions: int | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of check mode. max_rel_error: against the NumPy reference; None where a program has none, so that the
    rules of its schedule alone were judged."""

    passed: bool
    max_rel_error: float | None


@dataclass(frozen=True, slots=True)
class Trust:
    """What measured rows say of a run's time.

    sentences: for people. errors: of rows like it, by schema.json (`accuracy`); None where no row is like it. ratios: a
    sentence on ratios between machines; empty where nothing is known of them.
    """

    sentences: Sequence[str]
    errors: Mapping[str, Any] | None = None
    ratios: str = ""


@dataclass(frozen=True, slots=True)
class LibraryRun:
    """What a library takes for the operator of a run.

    release: `cublas@13.1`. source: of its rule, or why there is none. schedule: what it takes; empty where no rule of
    it is known on the machine. cycles: core-clock cycles of its kernels. time_ps: picoseconds in the run's scope.
    """

    release: str
    source: str
    schedule: str = ""
    cycles: int = 0
    time_ps: int = 0

    def to_dict(self) -> dict[str, Any]:
        """By schema.json."""
        ran = {"schedule": self.schedule, "cycles": self.cycles, "time_us": self.time_ps / 1e6} if self.schedule else {}
        return {"release": self.release, "source": self.source, **ran}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One operator on one machine."""

    machine: MachineFigures
    workload: str
    """The operator as text, `gemm m=... n=...`."""
    dtype: str
    flops: int
    macs: int
    operand_bytes: int
    """Bytes of all operands and results, each touched once."""
    schedule: str
    """The schedule that was taken."""
    kernels: Sequence[KernelRecord]
    asked: Asked = field(default_factory=Asked)
    scope: str = "kernel"
    """What `time_ps` covers: `kernel`, `event`, `stream` or `host`."""
    time_ps: int = 0
    """Time in that scope; 0: that of the kernels alone."""
    candidates: Sequence[Candidate] = ()
    estimate_error_percent: int = 0
    """By how much the estimate of the fastest candidate may lie above the best one, as the estimate says of itself."""
    host_ps: Mapping[str, int] = field(default_factory=dict)
    """Time outside kernels by cause: `framework`, `launch`, `gap`, `synchronise`, `copy`, ..."""
    check: CheckResult | None = None
    simulator: SimulatorStats | None = None
    operators: Sequence[OperatorTime] = ()
    """The operators of a graph, in the order of their calls."""
    layers: Sequence[LayerTime] = ()
    """The layers of a network, in the order of its file."""
    left_out: LeftOut | None = None
    streamed: StreamedOperators | None = None
    """What is no part of the run; None where nothing is missing."""
    trust: Trust | None = None
    """How far its time can be trusted; None where nobody asked."""
    library: LibraryRun | None = None
    """What a library takes; None where nobody asked."""
    notes: Sequence[str] = ()
    """Anything that a reader must know, one sentence each."""

    @property
    def machine_label(self) -> str:
        """What the machine is called wherever it is named: `h100-sxm with sm.count=133`."""
        return labelled(self.machine.name, self.asked.overrides)

    @property
    def title(self) -> str:
        """What ran where, and what was unusual about it."""
        return titled(f"{self.workload} on {self.machine_label}", self.asked.unusual)
