"""What a TPU is: a systolic array of multiply-accumulate cells with its buffers, memories and host.

People type paths without units (`array.rows`, `dram.bandwidth`); the Python attributes carry them. Times on the chip
are in cycles, other times in picoseconds, energies in femtojoules.
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
    POWER,
    Bytes,
    BytesPerCycle,
    BytesPerSecond,
    Cycles,
    Femtojoules,
    FemtojoulesPerByte,
    Hertz,
    Milliwatts,
    Picoseconds,
)

_MOST_BUFFER_BYTES = 2**30
"""The check of programs holds a clock for every row of the unified buffer."""


class Array(Group):
    """The matrix unit: cells that pass activations to the right and sums (or weights) downwards."""

    rows: Count = Field(description="cells of a column; the summed dimension of a weight tile maps to them")
    columns: Count = Field(description="cells of a row; outputs of a weight tile map to them")
    count: Count = Field(description="arrays, each with weight FIFO and accumulators of its own")
    operands: Literal["int8", "bf16"] = Field(
        default="int8",
        description="integers, those of 16 bits in more passes; or bf16, whose products are summed in fp32",
    )
    adder: Count = Field(default=1, description="products that each adder of a column sums")
    dataflow: Literal["ws", "os", "is"] = Field(
        description="what stays in the cells: weights, outputs, or inputs (weights and inputs change places)"
    )
    overlap_weights: bool = Field(description="a tile is shifted in behind the active one, tiles follow without a gap")
    issue_interval_cycles: Cycles = Field(description="least cycles from one matrix instruction to the next")
    wide_interval_cycles: Cycles = Field(ge=1, description="cycles of a row of 16-bit activations; 8-bit ones take 1")


class Accumulators(Group):
    """32-bit sums below the array."""

    rows: Count = Field(description="entries, each as wide as the array has columns")


class WeightFifo(Group):
    """Tiles on their way from weight memory to the array."""

    depth: Count = Field(description="tiles")
    tile_rows: Count = Field(description="least rows of a tile of weights, which is fetched as a whole")
    tile_columns: Count = Field(description="least columns of a tile; arrays that are smaller take tiles of their size")


class Dram(BankedMemory):
    """Weight memory; on later machines the memory of everything."""

    refresh: Literal["bank", "all"] = Field(
        default="bank", description="what is refreshed at a time: one bank of a channel, or all, which stops its bus"
    )

    @property
    def channel_bandwidth_bytes_per_s(self) -> float:
        """Usable data rate of one channel."""
        return self.bandwidth_bytes_per_s * (1 - self.overhead) / self.channels

    @property
    def write_overhead(self) -> float:
        """None: writes run at the full rate."""
        return 0.0


class UnifiedBuffer(Group):
    """On-chip memory of activations, with one read and one write port."""

    behind: Literal["host", "dram"] = Field(
        default="host", description="memory from which activations come and to which results go"
    )
    size_bytes: Bytes
    bandwidth_bytes_per_cycle: BytesPerCycle = Field(description="of each port")
    latency_cycles: Cycles = Field(description="from the buffer through the systolic set-up to the array")


class Activation(Group):
    """Nonlinear functions and pooling between accumulators and unified buffer."""

    values: Count = Field(description="values a cycle")
    latency_cycles: Cycles = Field(description="from the last accumulator read to the last write")


class Vector(Group):
    """A vector unit beside the activation unit; TPU v1 has none."""

    lanes: Count = Field(description="values a cycle")
    exp: Count = Field(default=1, description="cycles of a lane for an exponential, where other passes take 1")
    latency_cycles: Cycles


class Control(Group):
    """How instructions get to the units."""

    instruction_bytes: Bytes = Field(description="of one instruction, sent by the host")
    buffer: Count = Field(description="instructions that the chip holds before they are issued")
    queue: Count = Field(description="instructions that wait at one unit")
    issue_cycles: Cycles = Field(ge=1, description="between two instructions, which one unit hands on")
    sync_cycles: Cycles = Field(description="of an explicit synchronisation, after what it waits for has ended")


class Clock(Group):
    """The core clock; one frequency, no boost above it."""

    boost_hz: Hertz


class Pcie(Group):
    """Link to the host, each direction."""

    bandwidth_bytes_per_s: BytesPerSecond = Field(description="from host memory to the chip's, all on the way included")
    path_bytes_per_s: Annotated[
        BytesPerSecond, Documents("bandwidth is the rate of the whole way, this path included", "pcie.bandwidth")
    ] = Field(description="between host interface and unified buffer")
    latency_ps: Picoseconds


class Host(Group):
    """The server's CPU, which does what the chip cannot."""

    turnaround_ps: Picoseconds = Field(description="from the chip's interrupt to the first command after it")
    bandwidth_bytes_per_s: BytesPerSecond = Field(description="memory bandwidth of host arithmetic")
    ops_hz: Hertz = Field(description="arithmetic operations a second of elementwise code")
    exp_ops: Count = Field(description="operations of one exponential")


class ActionEnergies(Group):
    """Energy of one action."""

    mac_fj: Femtojoules = Field(description="one 8-bit multiply-accumulate with its registers")
    buffer_fj_per_byte: FemtojoulesPerByte
    dram_fj_per_byte: FemtojoulesPerByte
    pcie_fj_per_byte: FemtojoulesPerByte


class Power(Group):
    """Power of the chip."""

    limit_mw: Milliwatts
    static_mw: Milliwatts
    energy: ActionEnergies


class TpuSpec(MachineSpec):
    """One TPU with its weight memory and its host."""

    family: Literal["tpu"]
    array: Array
    weight_fifo: WeightFifo
    accumulators: Accumulators
    unified_buffer: UnifiedBuffer
    activation: Activation
    vector: Vector | None = None
    control: Control
    clock: Clock
    dram: Dram
    pcie: Pcie
    host: Host
    power: Power

    @property
    def default_dtype(self) -> str:
        """What the array multiplies."""
        return self.array.operands

    @property
    def floats(self) -> bool:
        """Whether the array multiplies floating-point numbers."""
        return self.array.operands == "bf16"

    @property
    def cells(self) -> int:
        """Multiply-accumulate cells of one array."""
        return self.array.rows * self.array.columns

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight in a tile."""
        return 2 if self.floats else 1

    @property
    def tile_bytes(self) -> int:
        """Bytes of one weight tile."""
        return self.cells * self.weight_bytes

    def using(self, rows: int, columns: int) -> TpuSpec:
        """The machine with the first rows and columns of its arrays alone."""
        return self.model_copy(update={"array": self.array.model_copy(update={"rows": rows, "columns": columns})})

    def format_of(self, bits: int) -> str:
        """The number format that values of `bits` bits have here."""
        return {16: "bf16", 32: "fp32"}[bits] if self.floats else f"int{bits}"

    def row_cycles(self, bits: int) -> int:
        """Cycles of one row of activations of `bits` bits in the array."""
        return 1 if self.floats or bits == 8 else self.array.wide_interval_cycles

    def peak_flops(self, dtype: str) -> float:
        """Peak operations a second; 16-bit integer weights take two tiles, 16-bit integer activations two passes."""
        integers = {"int8": 1, "int16": 2 * self.array.wide_interval_cycles}
        passes = ({"bf16": 1} if self.floats else integers).get(dtype, 0)
        return 2 * self.cells * self.array.count * self.clock.boost_hz / passes if passes else 0.0

    @property
    def summary(self) -> str:
        """The main figures in one line."""
        array = self.array
        arrays = f"{array.count} arrays of " if array.count > 1 else ""
        return (
            f"{arrays}{array.rows} x {array.columns} cells ({array.dataflow}) at {HERTZ.format(self.clock.boost_hz)}, "
            f"unified buffer {BYTES.format(self.unified_buffer.size_bytes)}, {BYTES.format(self.dram.size_bytes)} "
            f"{self.dram.type} at {BYTES_PER_S.format(self.dram.bandwidth_bytes_per_s)}, "
            f"{self.peak_flops(self.default_dtype) / 1e12:.0f} {self.default_dtype} "
            f"{'TFLOPS' if self.floats else 'TOPS'}, {POWER.format(self.power.limit_mw)}"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.unified_buffer.size_bytes < 4 * self.tile_bytes // self.array.columns:
            raise ValueError(
                f"unified_buffer.size: must hold at least 4 rows of the array, {4 * self.array.rows} B; "
                f"nearest: {4 * self.array.rows} B"
            )
        if self.unified_buffer.size_bytes > _MOST_BUFFER_BYTES:
            most = BYTES.format(_MOST_BUFFER_BYTES)
            raise ValueError(
                f"unified_buffer.size: {BYTES.format(self.unified_buffer.size_bytes)}; the model takes {most}"
            )
        if self.control.buffer < 1 or self.weight_fifo.depth * self.tile_bytes > self.dram.size_bytes:
            raise ValueError(
                f"weight_fifo.depth: {self.weight_fifo.depth} tiles of {self.tile_bytes} B exceed dram.size; "
                f"nearest: {max(1, self.dram.size_bytes // self.tile_bytes)}"
            )
        return self
