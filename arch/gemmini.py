"""What a Gemmini is: a square systolic array behind a scratchpad and accumulators, fed by a transfer engine of its own.

Loads, products and stores are three queues beside each other; the order between them is kept by a reservation station.
Behind the transfer engine lie the caches and the memory of the system on a chip, which a processor's core shares.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from arch.memory import BankedMemory
from arch.spec import Count, Group, MachineSpec
from arch.units import BYTES, BYTES_PER_S, HERTZ, Bytes, BytesPerCycle, Cycles, Hertz


class Array(Group):
    """The systolic array: as many rows as columns, a multiply-accumulate of int8 a cell and cycle."""

    size: Count = Field(description="cells of a row and of a column; a block is as many rows of as many values")
    latency_cycles: Cycles = Field(description="from a product's last row to its entry in the reservation station")
    least_rows: Count = Field(description="rows that a product with the weights that stay takes at least")


class Scratchpad(Group):
    """On-chip memory of operands, int8; a row is a block's row."""

    size_bytes: Bytes


class Accumulator(Group):
    """Sums of int32 on their way to memory, which add what comes in."""

    size_bytes: Bytes


class Reservation(Group):
    """Commands that are known to the hardware and not complete, by kind; a product is two of them."""

    loads: Count
    executes: Count
    stores: Count


class Dma(Group):
    """The transfer engine."""

    bus_bytes_per_cycle: BytesPerCycle = Field(description="of the bus to the second-level cache, each direction")
    request_bytes: Bytes = Field(description="most bytes of a request, which lies within as many aligned ones")
    requests: Count = Field(description="reads on their way, and as many writes")
    commands: Count = Field(description="loads on their way, and as many stores")


Replacement = Literal["random", "lru"]
"""Which line of a set makes room: one by chance, or the one that was used longest ago."""


class L2(Group):
    """The cache behind the bus. By chance, it puts lines in any way, even where another one is empty."""

    size_bytes: Bytes
    ways: Count
    replacement: Replacement = Field(description="which line of a set makes room")
    line_bytes: Bytes
    latency_cycles: Cycles = Field(description="of a read that hits, from the transfer engine to its first data")
    set_busy_cycles: Cycles = Field(description="between two requests of one set, which it serves one after the other")
    misses: Count = Field(description="lines on their way from memory at a time")


class MemoryCache(Group):
    """The cache in front of the DRAM, which does one thing at a time. Empty ways are filled first."""

    size_bytes: Bytes
    ways: Count
    replacement: Replacement = Field(description="which line of a set makes room")
    line_bytes: Bytes
    latency_cycles: Cycles = Field(description="of the way from the second-level cache and back, both together")
    port_bytes_per_cycle: BytesPerCycle = Field(description="of the bus to it, each direction")


class Dram(BankedMemory):
    """External memory."""

    refresh: Literal["bank", "all"] = Field(description="what is refreshed at a time: one bank of a channel, or all")

    @property
    def channel_bandwidth_bytes_per_s(self) -> float:
        """Usable data rate of one channel."""
        return self.bandwidth_bytes_per_s * (1 - self.overhead) / self.channels

    @property
    def write_overhead(self) -> float:
        """None: writes run at the full rate."""
        return 0.0


class Core(Group):
    """The processor's core, which sends commands."""

    choice_cycles: Cycles = Field(description="to see whether one tiling fits, where its library looks for one")
    tile_cycles: Cycles = Field(description="for the loops and addresses of one tile and the commands that start it")
    command_cycles: Cycles = Field(description="for a load, product or store that it sends itself")


class Clock(Group):
    """One frequency for all."""

    boost_hz: Hertz


class GemminiSpec(MachineSpec):
    """One Gemmini with the memory system that it stands in."""

    family: Literal["gemmini"]
    array: Array
    scratchpad: Scratchpad
    accumulator: Accumulator
    reservation: Reservation
    dma: Dma
    l2: L2
    memory_cache: MemoryCache
    dram: Dram
    core: Core
    clock: Clock

    @property
    def default_dtype(self) -> str:
        """What the array multiplies."""
        return "int8"

    @property
    def scratchpad_rows(self) -> int:
        """Rows of the scratchpad."""
        return self.scratchpad.size_bytes // self.array.size

    @property
    def accumulator_rows(self) -> int:
        """Rows of the accumulators."""
        return self.accumulator.size_bytes // (4 * self.array.size)

    def peak_flops(self, dtype: str) -> float:
        """Peak operations a second."""
        return 2.0 * self.array.size**2 * self.clock.boost_hz if dtype == "int8" else 0.0

    @property
    def summary(self) -> str:
        """The main figures in one line."""
        return (
            f"{self.array.size} x {self.array.size} cells at {HERTZ.format(self.clock.boost_hz)}, scratchpad "
            f"{BYTES.format(self.scratchpad.size_bytes)}, accumulators {BYTES.format(self.accumulator.size_bytes)}, L2 "
            f"{BYTES.format(self.l2.size_bytes)}, {self.dram.type} at "
            f"{BYTES_PER_S.format(self.dram.bandwidth_bytes_per_s)}, {self.peak_flops('int8') / 1e12:.2f} int8 TOPS"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        least = 4 * self.array.size  # rows: two blocks of operands, twice
        if self.scratchpad_rows < least:
            raise ValueError(
                f"scratchpad.size: must hold two blocks of each operand; nearest: {least * self.array.size} B"
            )
        if self.accumulator_rows < 2 * self.array.size:
            raise ValueError(f"accumulator.size: must hold two blocks; nearest: {8 * self.array.size**2} B")
        for name, cache in (("l2", self.l2), ("memory_cache", self.memory_cache)):
            whole = cache.ways * cache.line_bytes
            if cache.size_bytes % whole:
                nearest = max(1, round(cache.size_bytes / whole)) * whole
                raise ValueError(f"{name}.size: must be whole sets of {whole} B; nearest: {nearest} B")
        if self.memory_cache.line_bytes % self.l2.line_bytes:
            raise ValueError(f"memory_cache.line: must be whole lines of the L2; nearest: {self.l2.line_bytes} B")
        if self.l2.line_bytes % self.dma.request_bytes or self.dma.request_bytes % self.dma.bus_bytes_per_cycle:
            raise ValueError(
                f"dma.request: must be whole beats of dma.bus and divide l2.line; nearest: {self.l2.line_bytes} B"
            )
        return self
