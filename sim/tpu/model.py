"""From the figures of a machine to integers: ticks (1/256 of a core cycle) of what its units do."""

from __future__ import annotations

from typing import NamedTuple

from arch.tpu import TpuSpec
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.tpu.program import Image, MatrixMultiply, Vector

FIGURES = (
    "activation.values",
    "array.adder",
    "array.columns",
    "array.dataflow",
    "array.rows",
    "clock.boost",
    "host.bandwidth",
    "host.ops",
    "host.turnaround",
    "pcie.bandwidth",
    "unified_buffer.bandwidth",
    "vector.exp",
    "vector.lanes",
)
"""Figures of a preset that this module reads."""


class Timing(NamedTuple):
    """Rates and latencies of one machine in ticks. `alone`: the array with neighbours that never make it wait."""

    spec: TpuSpec
    alone: bool

    def cycles(self, count: int) -> int:
        """Ticks of core cycles."""
        return count * TICKS_PER_CYCLE

    def latency(self, cycles: int) -> int:
        """Ticks of a latency outside the array."""
        return 0 if self.alone else cycles * TICKS_PER_CYCLE

    def picoseconds(self, ps: int) -> int:
        """Ticks of a time, rounded up."""
        return 0 if self.alone else -(-ps * self.spec.clock.boost_hz * TICKS_PER_CYCLE // PS_PER_S)

    def transfer(self, size: int, bytes_per_s: int) -> int:
        """Ticks of so many bytes at a rate, rounded up."""
        return 0 if self.alone else -(-size * self.spec.clock.boost_hz * TICKS_PER_CYCLE // bytes_per_s)

    def pcie(self, size: int) -> int:
        """Ticks of bytes from or to the host."""
        return self.transfer(size, self.spec.pcie.bandwidth_bytes_per_s)

    def port(self, size: int) -> int:
        """Ticks of bytes through a port of the unified buffer, rounded up."""
        width = self.spec.unified_buffer.bandwidth_bytes_per_cycle
        return 0 if self.alone else -int(-size * TICKS_PER_CYCLE // width)

    def activation(self, values: int) -> int:
        """Ticks of values through the activation unit, rounded up."""
        return 0 if self.alone else -(-values * TICKS_PER_CYCLE // self.spec.activation.values)

    def vector(self, i: Vector) -> int:
        """Ticks of values through the vector unit."""
        unit = self.spec.vector
        assert unit is not None
        passes = 1 if i.op == "row_max" else unit.exp
        return 0 if self.alone else -(-i.rows * i.columns * passes * TICKS_PER_CYCLE // unit.lanes)

    def host_work(self, size: int, ops: int) -> int:
        """Ticks of host arithmetic: the longer of moving its bytes and computing, after the turnaround."""
        host = self.spec.host
        busy = max(self.transfer(size, host.bandwidth_bytes_per_s), self.transfer(ops, host.ops_hz))
        return self.picoseconds(host.turnaround_ps) + busy

    @property
    def skew(self) -> int:
        """Ticks from the entry of the last row into the array to its last sum."""
        array = self.spec.array
        return self.cycles(-(-array.rows // array.adder) + array.columns - 2)

    def steps(self, i: MatrixMultiply, step: int) -> int:
        """What streams through the array in one repetition: rows, or elements of the depth where outputs stay."""
        if self.spec.array.dataflow == "os":
            return self.depth(i, step)
        return i.rows

    def depth(self, i: MatrixMultiply, step: int) -> int:
        """Elements of a row in repetition `step`."""
        return min(self.spec.array.rows, i.depth - step * self.spec.array.rows)


def pooled_bytes(image: Image, columns: int, bits: int) -> int:
    """Bytes that a pooling operation reads of each output position: its window."""
    return image.r * image.s * columns * (bits // 8)
