"""What a GPU is: the frozen description from which the engine of the GPU family is built.

People type paths without units (`l2.size`, `dram.bandwidth`, `clock.boost`); the Python attributes carry them:
`spec.l2.size_bytes`, `spec.dram.bandwidth_bytes_per_s`, `spec.clock.boost_hz`. Times inside an SM are in core cycles,
other times in picoseconds, energies in femtojoules. Values of type `int` are exact; `float` stands where a rate or an
average need not be whole (35.5 B/clk): round it once, when lowering to ticks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from arch.errors import InputError
from arch.extensions import REPLACEMENTS, SCHEDULERS
from arch.gpu_rules import WARP_SIZE, check
from arch.memory import BankedMemory
from arch.policies import Policy
from arch.spec import Count, Documents, Group, MachineSpec, Share
from arch.units import (
    BYTES,
    BYTES_PER_S,
    HERTZ,
    POWER,
    Bytes,
    BytesPerCycle,
    BytesPerSecond,
    Cycles,
    Femtojoules,
    FemtojoulesPerByte,
    FemtojoulesPerFlop,
    Hertz,
    MeanCycles,
    Millivolts,
    Milliwatts,
    Picoseconds,
)

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]
Replacement = Literal["lru", "srrip"]
"""Which line of a cache set makes room: the least recently used one, or by re-reference interval prediction."""
WarpScheduler = Literal["gto", "lrr", "oldest", "two_level"]
"""Which eligible warp issues: greedy then oldest, loose round robin, oldest, round robin in an active set."""
Pipe = Literal["fma", "alu", "half", "xu", "tensor", "lsu", "fp64", "fp64_shared"]
"""Execution pipes, one each a sub-core, but `lsu` and `fp64_shared`: an SM has one, and the intervals of their rows are
cycles of that."""


class Gpc(Group):
    """Graphics processing clusters: SMs that share a port to the L2; a thread-block cluster lives inside one."""

    count: Count
    single_tpcs: Annotated[int, Field(ge=0)] = Field(
        default=0, description="TPCs of the middle GPC that take no cluster with CTAs on other TPCs"
    )


class Sm(Group):
    """One streaming multiprocessor."""

    count: Count = Field(description="SMs of the chip; spread over the GPCs as evenly as possible")
    per_tpc: Count = Field(
        default=1, description="SMs of a texture processing cluster; a GPC has whole ones, so that clusters fill it"
    )
    sub_cores: Count = Field(description="warp schedulers, each with its own pipes and registers")
    max_warps: Count
    max_ctas: Count
    max_threads: Count
    max_threads_per_cta: Count
    registers: Count = Field(description="32-bit registers of an SM")
    max_registers_per_thread: Count
    register_granule: Count = Field(description="registers of a warp are allocated in multiples of this")
    scheduler: Annotated[str, Policy(SCHEDULERS, get_args(WarpScheduler))] = Field(
        description="which eligible warp issues"
    )
    round_robin_run: Count = Field(
        default=8, description="lrr and two_level: instructions of an op that issue in one go"
    )
    active_warps: Count = Field(
        default=4, description="two_level: warps of a sub-core that issue before others; a long wait ends a turn"
    )
    cta_launch_cycles: Cycles = Field(description="from a free slot to the first instruction of the next CTA")
    warp_setup_cycles: Cycles = Field(
        default=3, description="between the first instructions of two CTAs of one SM, a warp of the first"
    )
    instruction_prefetch_bytes: Bytes = Field(
        default=4096, description="code that an SM fetches ahead in one go when it meets a kernel for the first time"
    )
    address_interval_cycles: Cycles = Field(description="between two memory instructions of one sub-core")
    instruction_cache_bytes: Bytes = Field(
        description="instructions that an SM holds without going to the L2: a kernel that is still there is not fetched"
    )
    register_conflict_cycles: MeanCycles = Field(
        description="cycles that mma.sync loses for a vector instruction beside it: both read the register file"
    )
    wgmma_in_flight: Count | None = Field(
        default=None, description="Hopper: wgmma of one warp that a tensor core holds; the next one waits to issue"
    )
    beside_wgmma_fma_cycles: MeanCycles | None = Field(
        default=None, description="Hopper: of the register file that an instruction of the FMA pipe takes beside wgmma"
    )
    beside_wgmma_alu_cycles: MeanCycles | None = Field(default=None, description="as beside_wgmma_fma, of the ALU")
    beside_wgmma_xu_cycles: MeanCycles | None = Field(
        default=None, description="as beside_wgmma_fma, of the special functions"
    )


class Sync(Group):
    """Barriers. A bar.sync of W warps costs barrier + W * barrier_per_warp cycles after the last arrival."""

    barrier_cycles: Cycles
    barrier_per_warp_cycles: Cycles
    named_barriers: Count = Field(default=16, description="of a CTA")
    warp_sync_cycles: Annotated[Cycles, Documents("no op of the tile language is a __syncwarp", "sync.barrier")]
    mbarrier_arrive_cycles: Cycles | None = Field(default=None, description="Ampere and later")
    mbarrier_wait_cycles: Cycles | None = Field(
        default=None, description="from completion to the waiting warp's next issue"
    )
    cluster_sync_cycles: Cycles | None = Field(default=None, description="Hopper: arrive and wait of a whole cluster")


class Shared(Group):
    """Shared memory of an SM."""

    max_per_sm_bytes: Bytes
    max_per_cta_bytes: Bytes
    reserved_per_cta_bytes: Bytes = Field(description="taken by the system from each resident CTA's share")
    granule_bytes: Bytes = Field(description="allocations are multiples of this")
    banks: Count = Field(description="banks of 4 bytes")
    bandwidth_bytes_per_cycle: BytesPerCycle
    return_bytes_per_cycle: Annotated[
        BytesPerCycle,
        Documents("the latencies of loads hold it", "instructions.lds.b32.latency and those of wider loads"),
    ] = Field(description="loaded data into the registers of one sub-core")
    load_latency_cycles: Annotated[
        Cycles, Documents("the rows of loads hold it, by width", "instructions.lds.b32.latency")
    ] = Field(description="dependent load without conflict; a pointer chase adds its address step")
    store_latency_cycles: Annotated[
        Cycles, Documents("the rows of stores hold it, by width", "instructions.sts.b32.latency")
    ]
    queue_cycles: Cycles = Field(
        default=256, description="work of the data path that waits in an SM before a warp stalls on it"
    )


class L1(Group):
    """The L1 data cache: what shared memory leaves of the SM's combined array."""

    size_bytes: Bytes = Field(description="combined L1 and shared array")
    reserved_bytes: Bytes = Field(description="part of the array that neither data nor shared memory get")
    ways: Count
    replacement: Annotated[str, Policy(REPLACEMENTS, get_args(Replacement))] = "lru"
    line_bytes: Bytes
    sector_bytes: Bytes
    hit_latency_cycles: Cycles = Field(description="dependent load that hits, as a pointer chase measures it")
    bandwidth_bytes_per_cycle: BytesPerCycle
    miss_queue: Count = Field(description="lines that one SM may have in flight to the L2")
    queue_cycles: Cycles = Field(
        default=256, description="work of the load/store unit that waits in an SM before a warp stalls on it"
    )


class Port(Group):
    """Links between SMs and the L2, in bytes a core cycle; `gpc` in bytes a cycle of `l2.clock`."""

    read_bytes_per_cycle: BytesPerCycle = Field(description="L2 to one SM, each line requested by that SM alone")
    receive_bytes_per_cycle: BytesPerCycle = Field(description="what an SM can take in with multicast")
    write_bytes_per_cycle: BytesPerCycle = Field(description="one SM to the L2")
    gpc_bytes_per_cycle: BytesPerCycle = Field(description="L2 to all SMs of one GPC")


class CpAsync(Group):
    """cp.async: global to shared memory without registers (Ampere and later)."""

    latency_cycles: Cycles = Field(description="beyond that of a plain load from the same place")
    prefetch_bytes: Bytes = Field(
        default=128, description="aligned bytes that the L2 fetches from DRAM where a copy misses; 32: what it asks for"
    )


class Tma(Group):
    """The tensor memory accelerator of an SM (Hopper)."""

    issue_gap_cycles: Cycles = Field(description="between two line requests of one SM's engine")
    latency_cycles: Cycles = Field(description="beyond that of a plain load from the same place")
    max_in_flight_bytes: Bytes = Field(description="requested and not yet arrived, an SM")
    promotion_bytes: Bytes = Field(
        default=128, description="aligned bytes that the L2 fetches from DRAM where a load misses; 32: what it asks for"
    )
    queue: Count = Field(default=64, description="boxes of one SM that wait, loads and stores each")
    max_multicast: Count = Field(description="CTAs that one load may fill")
    multicast_latency_cycles: Annotated[
        Cycles, Documents("a multicast load takes its time at the receiving ports", "port.receive or tma.latency")
    ] = Field(description="beyond that of a load for one CTA")


class Dsmem(Group):
    """Distributed shared memory: the SM-to-SM network inside a cluster (Hopper)."""

    max_cluster: Count = Field(description="CTAs in a cluster, opt-in limit")
    max_portable_cluster: Count = Field(description="CTAs in a cluster without opting in")
    latency_cycles: Cycles = Field(
        description="dependent load from another SM of the cluster; until a store or an arrival there is made"
    )
    read_bytes_per_cycle: BytesPerCycle = Field(description="an SM, all SMs reading")
    write_bytes_per_cycle: BytesPerCycle = Field(description="an SM, all SMs writing")


class Tcgen05(Group):
    """The tensor unit of an SM whose sums lie in tensor memory (Blackwell's tcgen05). What its products take of it is
    in rows `tcgen05_mma` of the instruction table: of 128 rows and eight columns. Two SMs can share a product (a
    pair)."""

    columns: Count = Field(description="of tensor memory, which has 128 lanes of 32 bits in each")
    queue: Count = Field(description="products that wait in an SM before the warp that issues them stalls")
    latency_cycles: Cycles = Field(
        description="from a product's issue to the end of a wait for it, beyond its interval and the read of its first"
        " operand from shared memory"
    )
    pair_latency_cycles: Cycles = Field(description="further cycles of a pair's product")
    half_latency_cycles: Cycles = Field(description="further cycles of a pair's product with 64 rows an SM")
    scaled_latency_cycles: Cycles = Field(description="further cycles of a product with scales")
    pair_gap_cycles: MeanCycles = Field(
        description="between products of a pair that wait for their operands from shared memory, 128 rows an SM"
    )
    half_gap_cycles: MeanCycles = Field(description="as pair_gap, 64 rows an SM")
    floor_cycles: MeanCycles = Field(description="least interval between two products")
    read_bytes_per_cycle: BytesPerCycle = Field(description="tensor memory to registers, all four quarters")
    write_bytes_per_cycle: BytesPerCycle = Field(description="registers to tensor memory, all four quarters")
    read_latency_cycles: Cycles = Field(description="from the read of the last column to the end of a wait for it")
    write_latency_cycles: Cycles = Field(description="from the write of the last column to the end of a wait for it")
    copy_latency_cycles: Cycles = Field(description="of a copy from shared to tensor memory, beyond what it takes")
    copy_bytes_per_cycle: BytesPerCycle = Field(description="copied from shared to tensor memory")
    allocation_cycles: Cycles = Field(description="that an allocation of columns takes where some are free")
    cancel_cycles: Cycles = Field(
        description="from a request for a cluster that has not started to the answer (cluster launch control)"
    )


class L2(Group):
    """The L2 cache: partitions of slices, sectored, set-associative, write-back."""

    size_bytes: Bytes
    partitions: Annotated[int, Field(ge=1, le=2)]
    slices: Count = Field(description="of the whole chip")
    ways: Count
    replacement: Annotated[str, Policy(REPLACEMENTS, get_args(Replacement))] = "lru"
    line_bytes: Bytes
    sector_bytes: Bytes
    clock_hz: Hertz | None = Field(
        default=None,
        description="of the L2 and the crossbar: `bandwidth`, `write_bandwidth`, `link_bandwidth` and `port.gpc` are in"
        " its cycles; absent: the core clock",
    )
    bandwidth_bytes_per_cycle: BytesPerCycle = Field(description="read, one slice")
    write_bandwidth_bytes_per_cycle: BytesPerCycle = Field(description="written by SMs, one slice")
    request_cycles: MeanCycles | None = Field(
        default=None,
        description="that a slice takes for a read of part of a line or all of it, where all slices are asked alike;"
        " null: no longer than for what is read",
    )
    hit_latency_cycles: Cycles = Field(description="dependent load that hits in the SM's own partition")
    far_latency_cycles: Cycles = Field(description="beyond hit_latency for a hit in the other partition")
    link_bandwidth_bytes_per_cycle: BytesPerCycle | None = Field(
        default=None, description="between the partitions, each direction; absent with one partition"
    )
    interleave_bytes: Bytes = Field(
        description="neighbouring bytes that stay together when lines are scattered over the slices; more than a"
        " line alternates between two slices of a channel"
    )
    coalescer: Annotated[int, Field(ge=0)] = Field(
        description="reads at a slice that another read of the same line may join; 0: no request coalescer"
    )
    coalescer_reads: Count = Field(default=1, description="that one read of a slice answers at most")
    coalescer_wait_cycles: Cycles = Field(
        default=0, description="of hit_latency, what passes until the data leave: so long a read may be joined"
    )
    local_copies: bool = Field(description="a partition keeps copies of lines whose home is the other one")
    dirty_limit: Share = Field(
        description="of a set's lines, those that may be dirty: one more sends the oldest of them to DRAM"
    )
    clean_first: bool = Field(
        description="a line takes the room of the oldest clean one; older dirty ones go to DRAM every second time"
    )

    @property
    def sets(self) -> int:
        """Sets of one slice; any whole number, not always a power of two."""
        return self.size_bytes // (self.slices * self.ways * self.line_bytes)

    def in_core_cycles(self, bytes_per_cycle: float, core_hz: int) -> Fraction:
        """A rate in bytes a cycle of the L2's clock as bytes a core cycle."""
        return Fraction(bytes_per_cycle) * Fraction(self.clock_hz or core_hz, core_hz)

    @property
    def slices_per_partition(self) -> int:
        """Slices of one partition."""
        return self.slices // self.partitions

    @property
    def granule_bytes(self) -> int:
        """Sizes must be multiples of this: one set in every slice."""
        return self.slices * self.ways * self.line_bytes


class Dram(BankedMemory):
    """Device memory behind the L2."""

    latency_ps: Picoseconds = Field(description="beyond an L2 hit, for a row that is open in an idle channel")
    write_overhead: Share = Field(description="further share that writes lose: check bits are read, changed, written")
    t_ccd_ps: Picoseconds = Field(
        default=0, description="between bursts of a row that no other row's comes between; 0: the data bus is slower"
    )

    @property
    def channel_bandwidth_bytes_per_s(self) -> float:
        """Usable data rate of one channel."""
        return self.bandwidth_bytes_per_s * (1 - self.overhead) / self.channels


class Clock(Group):
    """Core and memory clocks, and the fast regulator's transient under a load above the power limit."""

    boost_hz: Hertz = Field(description="highest core clock")
    tensor: Share = Field(description="clock behind the data sheet's tensor peak, as a share of boost")
    step_hz: Hertz = Field(default=15_000_000, description="the regulator's clocks are multiples of this")
    lowest_hz: Hertz = Field(
        default=210_000_000, description="to which the regulator throttles at most, whatever the power limit"
    )
    base_hz: Annotated[Hertz, Documents("the clock under load follows from power", "clock.boost or power.limit")]
    memory_hz: Annotated[Hertz, Documents("the data rate is stated itself", "dram.bandwidth")]
    onset_ps: Picoseconds = Field(description="run at full clock before the regulator reacts")
    recovery_ps: Picoseconds = Field(
        description="after which the clock settles on its sustained level, counted from the start"
    )
    undershoot: Share = Field(description="clock between onset and recovery, as a share of the sustained one")
    under_tensor: Share = Field(
        default=1.0, description="highest clock while tensor cores multiply formats up to 32 bits, as a share of boost"
    )

    @property
    def under_tensor_hz(self) -> int:
        """Highest core clock while tensor cores work."""
        return round(self.boost_hz * self.under_tensor)

    @property
    def tensor_hz(self) -> int:
        """Core clock behind the data sheet's tensor peak; what is sustained under load is the power model's."""
        return round(self.boost_hz * self.tensor)


_ELEMENTS = {"mxfp8": "fp8", "fp6": "fp8", "mxfp6": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""Formats whose products take the energy of another one's."""


class TensorEnergy(Group):
    """Energy of one operation (2 a multiply-add) on the tensor cores, by operand type; absent without such a unit."""

    fp16_fj_per_flop: FemtojoulesPerFlop
    bf16_fj_per_flop: FemtojoulesPerFlop | None = None
    tf32_fj_per_flop: FemtojoulesPerFlop | None = None
    fp8_fj_per_flop: FemtojoulesPerFlop | None = None
    fp4_fj_per_flop: FemtojoulesPerFlop | None = None
    int8_fj_per_flop: FemtojoulesPerFlop | None = None
    fp64_fj_per_flop: FemtojoulesPerFlop | None = None

    def figure_of(self, dtype: str) -> str:
        """The figure that holds for operands of a type: block formats have that of their elements, both formats of fp8
        one, and a type without a figure that of fp16."""
        found = _ELEMENTS.get(dtype, dtype.partition("_")[0])
        return found if getattr(self, f"{found}_fj_per_flop", None) is not None else "fp16"


class Energy(Group):
    """Energy of one action at the reference clock's voltage, operands normally distributed."""

    issue_fj: Femtojoules = Field(description="fetch, decode and schedule of one warp instruction")
    fma_fj: Femtojoules = Field(description="one 32-bit multiply-add of one lane, beside the issue")
    hfma_fj: Femtojoules | None = Field(
        default=None, description="two 16-bit multiply-adds of one lane, packed; as fma where it is not stated"
    )
    dfma_fj: Femtojoules = Field(description="one FP64 multiply-add of one lane, on no tensor core, beside the issue")
    alu_fj: Femtojoules = Field(description="one integer, logic, compare or conversion operation of one lane")
    xu_fj: Femtojoules = Field(description="one special function of one lane: ex2, rcp, rsq, tanh")
    tensor: TensorEnergy
    shared_fj_per_byte: FemtojoulesPerByte
    l1_fj_per_byte: FemtojoulesPerByte
    l2_fj_per_byte: FemtojoulesPerByte = Field(description="L2 to SM, with the network between")
    dram_fj_per_byte: FemtojoulesPerByte


class Voltage(Group):
    """A straight line of core voltage over clock: min at min_clock, max at max_clock, flat outside."""

    min_mv: Millivolts
    max_mv: Millivolts
    min_clock_hz: Hertz
    max_clock_hz: Hertz
    reference_clock_hz: Hertz = Field(description="clock at which the energies hold; they scale with voltage squared")


class DataFactor(Group):
    """What operand data does to the energy of tensor and move actions; normally distributed data is 1."""

    zeros: Share
    half_zeros: Share = Field(default=0.725, description="one of two operands is zeros")
    uniform: Share
    normal: Share
    moved_zeros: Share | None = Field(
        default=None, description="zeros that shared memory, L1 or L2 hand over; as zeros where it is not stated"
    )
    dram_zeros: Share | None = Field(
        default=None, description="zeros that DRAM reads or writes; as zeros where it is not stated"
    )


class Power(Group):
    """The board's limit and the energies from which the sustained clock follows."""

    limit_mw: Milliwatts = Field(description="of the board, held on average over tens of milliseconds and more")
    burst: Annotated[float, Field(ge=1, le=4)] = Field(
        default=1.0,
        description="what the fast regulator holds work to that is over long before that, as a multiple of the limit",
    )
    window_ps: Picoseconds = Field(
        description="over which the regulator averages: a shorter burst may exceed the limit"
    )
    static_mw: Milliwatts = Field(description="drawn whatever runs")
    energy: Energy
    voltage: Voltage
    data: DataFactor


class Launch(Group):
    """Cost of launching kernels. Each part can be switched off by setting it to zero."""

    kernel_ps: Picoseconds = Field(description="command processing until the first CTA starts")
    setup_ps: Picoseconds = Field(
        description="what a kernel finds cold beside its code when its code is cold: constants, translations"
    )
    event_ps: Picoseconds = Field(description="device time of a time stamp, beyond the wait for the work before it")
    gap_stream_ps: Picoseconds = Field(description="start to start of dependent minimal kernels on a stream")
    gap_graph_ps: Picoseconds = Field(description="start to start of dependent minimal kernels in a graph")
    release_stream_ps: Picoseconds | None = Field(
        default=None, description="a kernel's end to when one under programmatic dependent launch goes on, in a stream"
    )
    release_graph_ps: Picoseconds | None = Field(
        default=None, description="a kernel's end to when one under programmatic dependent launch goes on, in a graph"
    )
    gap_replay_ps: Picoseconds = Field(description="start to start of minimal kernels at the border of two graphs")
    gap_replay_more_ps: Picoseconds = Field(
        description="beyond gap_replay before a graph of more than replay_ready kernels"
    )
    replay_ready: Count = Field(description="kernels of the next graph that the front end has ready at a border")
    api_ps: Picoseconds = Field(description="launch call to kernel start on an idle device")
    cta_interval_ps: Picoseconds = Field(description="between two CTAs that the chip's scheduler hands out")
    drain_ps: Picoseconds = Field(description="last CTA's end to the kernel's end, memory flush included")
    cold_instruction: bool = Field(description="first CTAs fetch the kernel's instructions through the L2")
    descriptor_fetch: bool = Field(description="an SM's TMA fetches a tensor map through the L2 before its first use")


class Link(Group):
    """A link to the host; bandwidth is of one direction."""

    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds


class DeviceLink(Group):
    """Links to other devices (NVLink); bandwidth is of one direction."""

    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds | None = Field(default=None, description="of a message between nodes, beside the network's")
    peers: Count = Field(description="devices that they join, this one included; more talk over PCIe")
    switched: bool = Field(default=False, description="through switches, which can add up what passes")


class Slots(Group):
    """How devices that talk over PCIe hang together in a node: some below one bridge, some bridges below one socket.
    Bandwidths are of payload, one direction; a flow is what one device sends to one other."""

    peer_bytes_per_s: BytesPerSecond = Field(description="between two devices below one bridge")
    bridge_devices: Count = Field(description="devices below one bridge")
    bridge_flow_bytes_per_s: BytesPerSecond = Field(description="one flow between bridges of a socket")
    bridge_bytes_per_s: BytesPerSecond = Field(description="all flows out of a bridge together")
    socket_devices: Count = Field(description="devices below one socket")
    socket_flow_bytes_per_s: BytesPerSecond = Field(description="one flow between sockets")
    socket_bytes_per_s: BytesPerSecond = Field(description="all flows out of a socket together")


class Collectives(Group):
    """Kernels of libraries that move data between GPUs over their links; bandwidths are of one CTA."""

    header_bytes: Bytes = Field(description="link bytes with each 128 of a store; a read has them both ways")
    start_ps: Picoseconds = Field(description="a general library's kernel beside its messages: work list, connections")
    several_ps: Picoseconds = Field(description="the same, where several CTAs send: more than of one")
    direct_ps: Picoseconds = Field(description="the same, where they store into the results of others")
    lean_start_ps: Picoseconds = Field(description="a kernel's own beside its messages: pointers, first loads")
    spread_ps: Picoseconds = Field(description="standard deviation of when the devices of a node begin a kernel")
    flag_ps: Picoseconds = Field(description="from a store with its flag to the neighbour's next step")
    lean_flag_ps: Picoseconds = Field(description="the same, where one thread sets a flag and another one polls it")
    read_ps: Picoseconds = Field(description="a load from another GPU's L2, from its request to its answer")
    line_flag_ps: Picoseconds | None = Field(
        default=None, description="the same where a warp stores lines of 120 bytes and a flag, over NVLink alone"
    )
    post_ps: Picoseconds = Field(description="barrier, fence and flag with which a CTA announces what it has stored")
    copy_bytes_per_s: BytesPerSecond = Field(description="copying inside a GPU")
    warp_bytes_per_s: BytesPerSecond = Field(description="copying to or from a channel's buffer, of one warp")
    flagged_bytes_per_s: BytesPerSecond = Field(description="passing on values of 4 bytes with flags of 4")
    flagged_warp_bytes_per_s: BytesPerSecond = Field(description="the same, of one warp of a message between two GPUs")
    line_bytes_per_s: BytesPerSecond | None = Field(
        default=None, description="passing on lines of 120 bytes and a flag"
    )
    shared_bytes_per_s: BytesPerSecond | None = Field(
        default=None,
        description="copying while other warps of the CTA add up through the switch; absent where it does not add",
    )


class Node(Group):
    """GPUs of one enclosure, and the network between enclosures; bandwidth of one GPU, one direction."""

    devices: Count
    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds


class Host(Group):
    """The host program."""

    framework_overhead_ps: Picoseconds = Field(description="host time per operator in an eager framework")
    graph_launch_ps: Picoseconds = Field(description="host time of launching a graph")


_ROW_DOCUMENTS: Mapping[str, Mapping[str, Documents]] = MappingProxyType(
    {
        "lds sts ldmatrix stmatrix": {
            "pipe": Documents("shared memory is reached through lsu", "sm.address_interval"),
            "interval": Documents(
                "shared memory takes them at its bandwidth", "shared.bandwidth or sm.address_interval"
            ),
        },
        "ldg stg": {
            "pipe": Documents("memory is reached through lsu", "sm.address_interval"),
            "interval": Documents("the L1 takes them at its bandwidth", "l1.bandwidth or sm.address_interval"),
            "latency": Documents("where a line is found decides", "l1.hit_latency, l2.hit_latency or dram.latency"),
        },
        "wgmma wgmma_rs": {
            "pipe": Documents("wgmma is what a tensor core does", "interval"),
            "stall": Documents("operand bandwidth and the interval bound it", "interval"),
        },
        "tcgen05_mma": {
            "pipe": Documents("it is what a tensor core does", "interval"),
            "latency": Documents("the unit has it", "tcgen05.latency"),
            "stall": Documents("operand bandwidth and the interval bound it", "interval"),
            "floor": Documents("the unit has it", "tcgen05.floor"),
        },
    }
)
"""Columns of instruction rows that nothing reads, by the rows' ops."""

_NO_FLOOR = Documents("rows of every n alone have a floor", "interval")


_WARPGROUP_OPS = ("wgmma", "wgmma_rs", "tcgen05_mma")


_OTHER_NAMES = {
    **dict.fromkeys(("fmax", "fmin", "max", "min"), "fmnmx"),
    **dict.fromkeys(("fma", "fmad", "mad"), "ffma"),
    **dict.fromkeys(("exp", "exp2", "mufu"), "ex2"),
    **dict.fromkeys(("log", "log2"), "lg2"),
    **dict.fromkeys(("rsqrt", "sqrt"), "rsq"),
    **dict.fromkeys(("div", "reciprocal"), "rcp"),
    **{"add": "fadd", "mul": "fmul", "sub": "fadd", "select": "sel", "shift": "shf", "shuffle": "shfl", "f2f": "cvt"},
}
"""Opcodes by the names that CUDA, PTX or Python have for them: what an error calls nearest."""


class Instruction(Group):
    """One row of the instruction table: a warp instruction's pipe, issue interval and latency.

    A shape such as `m64n*k16` stands for every n of 8 to 256 in steps of 8: its interval is that of n = 8, scaled with
    n and never below the floor.
    """

    op: str
    dtype: str
    shape: str = ""
    pipe: Pipe
    interval_cycles: MeanCycles = Field(gt=0, description="cycles of the pipe between two warp instructions")
    latency_cycles: MeanCycles = Field(
        description="issue to dependent issue; of an n* row: completion after the last interval"
    )
    floor_cycles: MeanCycles = Field(default=0.0, description="least interval of an n* row")
    stall_cycles: MeanCycles = Field(
        default=0.0, description="further cycles between instructions in practice; peak rates do not count them"
    )

    @property
    def name(self) -> str:
        """The row's name in a preset: op.dtype or op.dtype.shape."""
        return ".".join(part for part in (self.op, self.dtype, self.shape) if part)

    @staticmethod
    def documented() -> Mapping[str, Documents]:
        """Columns that only document, `ops: column`."""
        found = {f"{ops}: {name}": mark for ops, columns in _ROW_DOCUMENTS.items() for name, mark in columns.items()}
        return {**found, "rows of one shape: floor": _NO_FLOOR}

    @staticmethod
    def documents(op: str, shape: str, column: str) -> Documents | None:
        """Whether a column of a row only documents."""
        if column == "floor" and "n*" not in shape:
            return _NO_FLOOR
        return next((columns.get(column) for ops, columns in _ROW_DOCUMENTS.items() if op in ops.split()), None)

    @property
    def cadence_cycles(self) -> float:
        """Cycles of the pipe that one of many warp instructions takes in practice."""
        return self.interval_cycles + self.stall_cycles

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one warp (wgmma: warpgroup) instruction; 0 if the shape is no m-n-k shape."""
        if self.op == "mma" and self.shape == "m8n8k4" and self.dtype == "fp16":
            return 4 * 8 * 8 * 4  # four quad-pairs, each with a product of its own
        match = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", self.shape)
        return int(match[1]) * int(match[2]) * int(match[3]) if match else 0

    @property
    def of_warpgroup(self) -> bool:
        """Whether it occupies the tensor cores of all sub-cores."""
        return self.op in _WARPGROUP_OPS

    def at(self, n: int) -> Instruction:
        """Return the row of one n of an `n*` row: interval max(floor, n / 8 * interval), latency interval + tail."""
        interval = max(self.floor_cycles, n / 8 * self.interval_cycles)
        return self.model_copy(
            update={
                "shape": self.shape.replace("n*", f"n{n}"),
                "interval_cycles": interval,
                "latency_cycles": interval + self.latency_cycles,
                "floor_cycles": 0.0,
            }
        )


class GpuSpec(MachineSpec):
    """One GPU."""

    DEFAULT_DTYPES: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"volta": "fp16", "turing": "fp16", "ampere": "bf16", "ada": "bf16", "hopper": "bf16", "blackwell": "bf16"}
    )

    family: Literal["gpu"]
    architecture: Architecture
    compute_capability: Annotated[
        str, Documents("what a machine can do is in its table of instructions", "the rows of instructions")
    ] = Field(pattern=r"^\d+\.\d$")
    devices: Annotated[
        Count, Documents("workloads say over how many devices they run", "devices= or tp= of the workload")
    ]
    gpc: Gpc
    sm: Sm
    sync: Sync
    shared: Shared
    l1: L1
    port: Port
    cp_async: CpAsync | None = None
    tma: Tma | None = None
    dsmem: Dsmem | None = None
    tcgen05: Tcgen05 | None = None
    l2: L2
    dram: Dram
    clock: Clock
    power: Power
    launch: Launch
    pcie: Link
    slots: Slots | None = None
    link: DeviceLink | None = None
    collectives: Collectives
    node: Node | None = None
    host: Host
    instructions: tuple[Instruction, ...]

    # ---- what follows from the figures ----

    @property
    def sms_per_gpc(self) -> tuple[int, ...]:
        """SMs of each GPC: whole TPCs, spread evenly, larger GPCs first. SMs that are no whole TPC are the last one's;
        where there is not a TPC for each GPC, single SMs are spread."""
        gpcs = self.gpc.count
        per_tpc = self.sm.per_tpc if self.sm.count >= gpcs * self.sm.per_tpc else 1
        tpcs, rest = divmod(self.sm.count // per_tpc, gpcs)
        over = self.sm.count - per_tpc * (tpcs * gpcs + rest)
        return tuple((tpcs + (index < rest)) * per_tpc + (over if index == gpcs - 1 else 0) for index in range(gpcs))

    @property
    def sms_per_place(self) -> tuple[int, ...]:
        """SMs among which a cluster has to stay: the single TPCs first, then each GPC without them.

        The middle GPC has the single TPCs: on silicon turns begin at another GPC with each launch.
        """
        sizes, per_tpc = list(self.sms_per_gpc), self.sm.per_tpc
        middle = len(sizes) // 2
        single = min(self.gpc.single_tpcs, (sizes[middle] - 1) // per_tpc)
        sizes[middle] -= single * per_tpc
        return (*(per_tpc for _ in range(single)), *sizes)

    @property
    def default_dtype(self) -> str:
        """Operand type used where a workload names none."""
        return self.DEFAULT_DTYPES[self.architecture]

    @property
    def max_ctas_per_cluster(self) -> int:
        """Largest cluster; 1 where the machine has none."""
        return self.dsmem.max_cluster if self.dsmem else 1

    @property
    def summary(self) -> str:
        """The main figures in one line."""
        dtype = self.default_dtype
        return (
            f"{self.sm.count} SMs at {HERTZ.format(self.clock.boost_hz)}, L2 {BYTES.format(self.l2.size_bytes)}, "
            f"{BYTES.format(self.dram.size_bytes)} {self.dram.type} at "
            f"{BYTES_PER_S.format(self.dram.bandwidth_bytes_per_s)}, "
            f"{self.peak_flops(dtype) / 1e12:.0f} {dtype} TFLOPS, {POWER.format(self.power.limit_mw)}"
        )

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str], Instruction]:
        return {(row.op, row.dtype, row.shape): row for row in self.instructions}

    def instruction(self, op: str, dtype: str, shape: str = "") -> Instruction:
        """Return the row of a warp instruction, such as ("mma", "bf16", "m16n8k16") or ("wgmma", "bf16", "m64n128k16").

        Raises InputError, with the nearest row, for an instruction that the machine does not have.
        """
        row = self._rows.get((op, dtype, shape))
        if row is not None:
            return row
        match = re.fullmatch(r"(m\d+)n(\d+)(k\d+)", shape)
        if match and (pattern := self._rows.get((op, dtype, f"{match[1]}n*{match[3]}"))):
            n = int(match[2])
            if 8 <= n <= 256 and n % 8 == 0:
                return pattern.at(n)
            nearest = min(256, max(8, round(n / 8) * 8))
            raise InputError(
                f"{self.name}: {op} {dtype} {shape}: n must be a multiple of 8 from 8 to 256, nearest: {nearest}"
            )
        wanted = ".".join(part for part in (op, dtype, shape) if part)
        names = {row.name: key for key, row in self._rows.items()}
        # Rows of the same op come first: a wrong dtype or shape is likelier than a wrong op.
        same_op = [name for name, key in names.items() if key[0] == op] or list(names)
        close = difflib.get_close_matches(wanted.replace(op, _OTHER_NAMES.get(op, op), 1), same_op, n=1, cutoff=0.0)
        raise InputError(f"{self.name} has no instruction {wanted}; nearest: {close[0] if close else 'none'}")

    def has_instruction(self, op: str, dtype: str, shape: str = "") -> bool:
        """Say whether the machine has a warp instruction."""
        try:
            self.instruction(op, dtype, shape)
        except InputError:
            return False
        return True

    def tensor_flops_per_cycle(self, dtype: str) -> float:
        """Peak tensor operations (2 a multiply-add) of the chip per core cycle; 0 where it has no such unit."""
        best = 0.0
        for row in self.instructions:
            if row.dtype != dtype or row.pipe != "tensor":
                continue
            if row.of_warpgroup:  # it occupies the tensor cores of all sub-cores
                full = row.at(256) if "n*" in row.shape else row
                best = max(best, 2 * full.macs / full.interval_cycles)
            else:
                best = max(best, 2 * row.macs / row.interval_cycles * self.sm.sub_cores)
        return best * self.sm.count

    def vector_flops_per_cycle(self, dtype: str) -> float:
        """Peak operations of the chip's vector pipes per core cycle: fp32 (FFMA), fp16 (HFMA2), int8 (DP4A); else 0."""
        op, per_lane = {"fp32": ("ffma", 2), "fp16": ("hfma2", 4), "int8": ("dp4a", 8)}.get(dtype, ("", 0))
        row = self._rows.get((op, dtype, ""))
        return per_lane * WARP_SIZE / row.interval_cycles * self.sm.sub_cores * self.sm.count if row else 0.0

    def peak_flops(self, dtype: str) -> float:
        """Peak operations a second for operands of a type, as the data sheet counts them."""
        return max(
            self.tensor_flops_per_cycle(dtype) * self.clock.tensor_hz,
            self.vector_flops_per_cycle(dtype) * self.clock.boost_hz,
        )

    # ---- rules between figures ----

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check(self)
        return self
