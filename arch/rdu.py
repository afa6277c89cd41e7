"""What a reconfigurable dataflow unit is: compute units (PCUs) and memory units (PMUs) on a mesh of switches.

People type paths without units (`pcu.lanes`, `hbm.bandwidth`, `launch.execute`); the Python attributes carry them.
Times on the chip are in core cycles, other times in picoseconds, energies in femtojoules.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from arch.memory import BankedMemory
from arch.spec import Count, Documents, Group, MachineSpec
from arch.units import (
    BYTES,
    BYTES_PER_S,
    HERTZ,
    Bytes,
    BytesPerCycle,
    BytesPerSecond,
    Cycles,
    Femtojoules,
    FemtojoulesPerByte,
    FemtojoulesPerFlop,
    Hertz,
    Milliwatts,
    Picoseconds,
)


class Clock(Group):
    """The core clock of tiles and network."""

    boost_hz: Hertz = Field(description="core clock; it does not change under load")


class Pcu(Group):
    """Pattern compute unit: a pipeline of SIMD stages, or an output-stationary systolic array of its cells.

    As an array it has `lanes` rows and `stages` columns of cells, each with `macs` multiply-adds along k a cycle. As a
    pipeline it takes a vector of `lanes` elements a cycle through `stages` operations.
    """

    count: Count = Field(description="of the socket, all dies")
    lanes: Count = Field(description="SIMD lanes; rows of the systolic array")
    stages: Count = Field(description="operations of the SIMD pipeline; columns of the systolic array")
    macs: Count = Field(description="multiply-adds of one cell a cycle, along k")
    dtypes: str = Field(description="formats that the systolic array multiplies, the default first, separated by +")
    tail_interval_cycles: Cycles = Field(gt=0, description="between two vectors through the tail's functions (exp)")
    latency_cycles: Cycles = Field(description="first element in to first element out, beyond the cells themselves")
    fifo_bytes: Bytes = Field(description="input FIFO of one port; deeper streams live in PMUs")
    vector_inputs: Count = Field(description="vector streams that enter one unit, that of the unit before it included")
    vector_outputs: Count = Field(description="vector streams that leave one unit, that to the unit behind it included")
    systolic: bool = Field(description="whether it works as an output-stationary array; else it reduces over lanes")


class Pmu(Group):
    """Pattern memory unit: a banked scratchpad with address units of its own."""

    count: Count = Field(description="of the socket, all dies")
    size_bytes: Bytes
    banks: Count
    bandwidth_bytes_per_cycle: BytesPerCycle = Field(description="read, and at the same time write")
    addresses: Count = Field(description="independent addresses a cycle, for gathers")
    latency_cycles: Cycles = Field(description="from a complete write to the first element read")
    transpose: bool = Field(description="diagonal stripes: transposing reads at full rate")


class Mesh(Group):
    """Switches of all dies side by side, one a unit; vector, scalar and control traffic on networks of their own."""

    rows: Count = Field(description="rows of units; columns follow from the counts")
    hop_cycles: Cycles = Field(description="through one switch and link")
    vector_bytes_per_cycle: BytesPerCycle = Field(description="one link, one direction")
    scalar_bytes_per_cycle: BytesPerCycle = Field(description="one link, one direction")
    control_cycles: Cycles = Field(description="of a done or credit token over one hop")
    control_wires: Count = Field(
        description="circuits of a link, one direction, a token a cycle each; more than that share"
    )
    credits: Count = Field(description="flits of one flow in flight on a link; a round trip longer than that slows it")
    flit_bytes: Bytes = Field(gt=0, description="data of one vector flit")


class Dies(Group):
    """Dies of a socket; streams cross from one to the next without external memory."""

    count: Count
    bandwidth_bytes_per_s: BytesPerSecond = Field(description="across one boundary, one direction")
    latency_ps: Picoseconds


class Tiles(Group):
    """Tiles of a die, all alike: each is a mesh that can run a program of its own. Where a program takes several, their
    meshes are joined at the borders."""

    rows: Count = Field(description="tiles of a die, one above the other")
    columns: Count = Field(description="tiles of a die, side by side")
    bandwidth_bytes_per_cycle: BytesPerCycle = Field(
        gt=0, description="of one link of the vector network across a border, one direction"
    )
    latency_cycles: Cycles = Field(description="across one border, beyond the hop; all networks")


class Agcu(Group):
    """Address generators and coalescing units between the mesh and external memory or other sockets."""

    count: Count
    bandwidth_bytes_per_cycle: BytesPerCycle = Field(description="one unit, one direction")
    in_flight_bytes: Bytes = Field(description="requested and not yet back, one unit")


class Memory(BankedMemory):
    """HBM or DDR behind the address generators."""

    @property
    def write_overhead(self) -> float:
        """Share of the data bus that writes alone lose; none is known."""
        return 0.0

    @property
    def channel_bandwidth_bytes_per_s(self) -> float:
        """Usable data rate of one channel."""
        return self.bandwidth_bytes_per_s * (1 - self.overhead) / self.channels


class Launch(Group):
    """A kernel launch is three commands (program load, argument load, execute), from the host or from an AGCU.

    Host commands follow one another with `host` between them; `hardware` is the same from a static schedule on chip.
    """

    program_load_ps: Picoseconds = Field(description="reconfiguration: the units' programs and the switches' routes")
    argument_load_ps: Picoseconds
    execute_ps: Picoseconds = Field(description="start of all units, and the done token back")
    host_ps: Picoseconds = Field(description="host to chip and completion back, software-orchestrated, a kernel")
    hardware_ps: Picoseconds = Field(description="the same by an AGCU's static schedule")


class Link(Group):
    """To other devices of a node; bandwidth is of one direction."""

    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds


class Node(Group):
    """Devices of one enclosure, and the network between enclosures; bandwidth of one device, one direction."""

    devices: Count
    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds


class Energy(Group):
    """Dynamic energy of the things that are counted."""

    mac_fj_per_flop: FemtojoulesPerFlop
    simd_fj: Femtojoules = Field(description="one SIMD operation on one element")
    pmu_fj_per_byte: FemtojoulesPerByte
    hop_fj_per_byte: FemtojoulesPerByte = Field(description="one byte over one link of the mesh")
    hbm_fj_per_byte: FemtojoulesPerByte
    ddr_fj_per_byte: FemtojoulesPerByte
    link_fj_per_byte: FemtojoulesPerByte


class Power(Group):
    """Power beside the counted events."""

    static_mw: Milliwatts
    energy: Energy


class RduSpec(MachineSpec):
    """One socket (and, with `devices`, several of them joined by links)."""

    family: Literal["rdu"]
    devices: Annotated[
        Count, Documents("workloads say over how many sockets they run", "devices= or tp= of the workload")
    ]
    clock: Clock
    pcu: Pcu
    pmu: Pmu
    mesh: Mesh
    dies: Dies
    tiles: Tiles | None = None
    agcu: Agcu
    hbm: Memory | None = None
    ddr: Memory
    launch: Launch
    host: Link = Field(description="PCIe")
    link: Link | None = None
    node: Node | None = None
    power: Power

    @property
    def columns(self) -> int:
        """Columns of units over all dies: what the counts need at `mesh.rows` rows, the same on each die."""
        each = -(-(self.pcu.count + self.pmu.count) // (self.dies.count * self.mesh.rows))
        return each * self.dies.count

    @property
    def tile_rows(self) -> tuple[int, ...]:
        """First row of each tile below another one."""
        down = self.tiles.rows if self.tiles else 1
        return tuple(i * self.mesh.rows // down for i in range(1, down))

    @property
    def tile_columns(self) -> tuple[int, ...]:
        """First column of each tile to the right of another one of its die."""
        across, each = self.tiles.columns if self.tiles else 1, self.columns // self.dies.count
        return tuple(die * each + i * each // across for die in range(self.dies.count) for i in range(1, across))

    def link_bytes_per_cycle(self, parts: int) -> float:
        """The narrowest link of the vector network in each of `parts` equal parts of the socket."""
        links, dies = [self.mesh.vector_bytes_per_cycle], self.dies.count
        if self.tiles is not None and parts < dies * self.tiles.rows * self.tiles.columns:
            links.append(self.tiles.bandwidth_bytes_per_cycle)
        if parts < dies:
            links.append(self.dies.bandwidth_bytes_per_s / (self.mesh.rows * self.clock.boost_hz))
        return min(links)

    @property
    def array_dtypes(self) -> tuple[str, ...]:
        """Formats that the systolic array multiplies."""
        return tuple(self.pcu.dtypes.split("+"))

    @property
    def default_dtype(self) -> str:
        """Operand type used where a workload names none."""
        return self.array_dtypes[0]

    @property
    def main_memory(self) -> Memory:
        """Where operands lie: HBM, or DDR on a machine without."""
        return self.hbm or self.ddr

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-adds of one PCU a cycle."""
        return self.pcu.lanes * self.pcu.stages * self.pcu.macs

    def divisions(self, budget: int) -> list[tuple[int, int]]:
        """(row parts, column parts) of a tile over at most `budget` PCUs whose bands fill whole rows of a region.

        A region is as high as the mesh (or a half or a quarter) and some columns wide; a band is one or several of its
        rows. Other divisions would do, but their columns lie askew and share links.
        """
        wide = max(1, self.columns * self.pcu.count // (self.pcu.count + self.pmu.count))
        found = {(1, parts) for parts in range(1, min(wide, budget) + 1)}
        for high in (self.mesh.rows, self.mesh.rows // 2, self.mesh.rows // 4):
            for rows in range(1, high + 1):
                if high % rows == 0:
                    found |= {(high // rows, width * rows) for width in range(1, wide + 1)}
        return sorted(pair for pair in found if pair[0] * pair[1] <= budget)

    def peak_flops(self, dtype: str) -> float:
        """Peak operations a second: the arrays for their formats, else one SIMD operation a lane and stage."""
        if dtype in self.array_dtypes:
            return 2.0 * self.pcu.count * self.macs_per_cycle * self.clock.boost_hz
        return 1.0 * self.pcu.count * self.pcu.lanes * self.pcu.stages * self.clock.boost_hz

    @property
    def summary(self) -> str:
        """The main figures in one line."""
        memory = self.main_memory
        return (
            f"{self.pcu.count} PCUs and {self.pmu.count} PMUs at {HERTZ.format(self.clock.boost_hz)}, "
            f"{BYTES.format(self.pmu.count * self.pmu.size_bytes)} on chip, {BYTES.format(memory.size_bytes)} "
            f"{memory.type} at {BYTES_PER_S.format(memory.bandwidth_bytes_per_s)}, "
            f"{self.peak_flops(self.default_dtype) / 1e12:.0f} {self.default_dtype} TFLOPS"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        units = self.pcu.count + self.pmu.count
        if self.mesh.rows > units // self.dies.count:
            raise ValueError(f"mesh.rows: {self.mesh.rows} rows for {units} units; at most {units // self.dies.count}")
        for path, parts, whole, of in (
            ("rows", self.tiles.rows if self.tiles else 1, self.mesh.rows, "rows of the mesh"),
            ("columns", self.tiles.columns if self.tiles else 1, self.columns // self.dies.count, "columns of a die"),
        ):
            if parts > whole:
                raise ValueError(f"tiles.{path}: {parts} tiles in {whole} {of}; nearest: {whole}")
        if self.agcu.count % 2 or self.agcu.count > 2 * self.mesh.rows:
            lower = max(2, min(self.agcu.count, 2 * self.mesh.rows) // 2 * 2)
            raise ValueError(
                f"agcu.count: {self.agcu.count} must be even and at most two a row ({2 * self.mesh.rows}), "
                f"as they stand at both outer edges; nearest: {lower}"
            )
        for path, there, spent in (
            ("hbm", self.hbm, self.power.energy.hbm_fj_per_byte),
            ("link", self.link, self.power.energy.link_fj_per_byte),
        ):
            if there is None and spent:
                raise ValueError(f"power.energy.{path}: the machine has no {path}; nearest: 0 pJ/B")
        if self.pmu.size_bytes % self.pmu.banks:
            below = self.pmu.size_bytes // self.pmu.banks * self.pmu.banks
            raise ValueError(
                f"pmu.size: {self.pmu.size_bytes} B must be a multiple of pmu.banks = {self.pmu.banks}; "
                f"nearest: {below} B or {below + self.pmu.banks} B"
            )
        return self
