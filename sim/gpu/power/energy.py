"""Energy of a kernel: action counts times the preset's energy per action, scaled with voltage, plus static power.

All sums are integers in femtojoules. The clock at which the board's limit is met follows from the same figures.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.engine.clock import PS_PER_S
from sim.gpu.counters import Counter
from sim.gpu.power.average import MovingAverage, held_hz, highest_within
from sim.memory.counters import MemoryCounter

FIGURES = (
    "clock.lowest",
    "clock.step",
    "dram.bandwidth",
    "power.data.dram_zeros",
    "power.data.half_zeros",
    "power.data.moved_zeros",
    "power.data.normal",
    "power.data.uniform",
    "power.data.zeros",
    "power.energy.alu",
    "power.energy.dfma",
    "power.energy.dram",
    "power.energy.fma",
    "power.energy.hfma",
    "power.energy.issue",
    "power.energy.l1",
    "power.energy.l2",
    "power.energy.shared",
    "power.energy.tensor.bf16",
    "power.energy.tensor.fp4",
    "power.energy.tensor.fp16",
    "power.energy.tensor.fp64",
    "power.energy.tensor.fp8",
    "power.energy.tensor.int8",
    "power.energy.tensor.tf32",
    "power.energy.xu",
    "power.static",
    "power.voltage.max",
    "power.voltage.max_clock",
    "power.voltage.min",
    "power.voltage.min_clock",
    "power.voltage.reference_clock",
)
"""Figures of a preset that this module reads."""

_FINEST_HZ = 5_000_000
"""Clocks to choose from are at most this far apart; less where the regulator's own steps are smaller."""


class Spent(NamedTuple):
    """Energy of a window of `window_ps` by where it goes, in femtojoules."""

    core_fj: int
    memory_fj: int
    static_fj: int
    window_ps: int
    tensor: bool = False
    """Whether tensor cores worked that hold the clock down."""

    @property
    def total_fj(self) -> int:
        """All of it."""
        return self.core_fj + self.memory_fj + self.static_fj


def _line_mv(min_mv: int, max_mv: int, min_hz: int, max_hz: int, clock_hz: int) -> int:
    """Core voltage at a clock: a line, flat outside."""
    clock = min(max(clock_hz, min_hz), max_hz)
    return min_mv + (max_mv - min_mv) * (clock - min_hz) // max(1, max_hz - min_hz)


@functools.cache
def _clocks(lowest_hz: int, highest_hz: int, apart_hz: int, line: tuple[int, int, int, int]) -> np.ndarray:
    """From one clock to another in steps of at most `apart_hz`, by halves, with the voltages of a line."""

    def halves(low: int, high: int) -> list[int]:
        middle = (low + high) // 2
        return [low] if high - low <= apart_hz else halves(low, middle) + halves(middle, high)

    clocks = [*halves(lowest_hz, highest_hz), highest_hz]
    return np.array([(hz, hz // 1_000_000, _line_mv(*line, hz) ** 2) for hz in clocks], dtype=np.int64)


class EnergyModel:
    """Energies of a chip. data: operands, "zeros", "half_zeros" (one of two), "uniform" or "normal"; tensor and move
    actions scale with it."""

    def __init__(self, spec: GpuSpec, data: str = "normal") -> None:
        self.spec = spec
        energy = spec.power.energy
        of_data = spec.power.data
        factors = {
            "zeros": of_data.zeros,
            "half_zeros": of_data.half_zeros,
            "uniform": of_data.uniform,
            "normal": of_data.normal,
        }
        factor = factors[data]

        def of_bytes(zeros: float | None) -> float:
            """Factor of bytes that move; where one of two operands is zeros, half of them are."""
            if zeros is None:
                return factor
            return {**factors, "zeros": zeros, "half_zeros": (1 + zeros) / 2}[data]

        moved, dram = of_bytes(of_data.moved_zeros), of_bytes(of_data.dram_zeros)
        # Memory has its own supply: its energy does not scale with the core's voltage.
        self._core_actions = np.zeros(Counter.WIDTH, dtype=np.int64)
        self._memory_actions = np.zeros(len(MemoryCounter), dtype=np.int64)
        self._factor_ppm = int(factor * 1_000_000)
        self._holds_clock = True

        # Asked in every window of the regulator, for the same few hundred clocks.
        v = spec.power.voltage
        self._line = (v.min_mv, v.max_mv, v.min_clock_hz, v.max_clock_hz)
        self.voltage_mv = functools.cache(functools.partial(_line_mv, *self._line))
        self._reference_mv = self.voltage_mv(v.reference_clock_hz)
        self._static_mw = spec.power.static_mw
        self._clocks = functools.cache(self._clock_table)

        def put(index: int, femtojoules: float, share: float, rail: np.ndarray = self._core_actions) -> None:
            rail[index] += int(femtojoules * share)

        put(Counter.INSTRUCTIONS, energy.issue_fj, 1)
        # A packed multiply-add (two halves, four bytes) moves as many register bits as one of fp32.
        packed_fj = energy.fma_fj if energy.hfma_fj is None else energy.hfma_fj
        put(Counter.INST_FMA, WARP_SIZE * energy.fma_fj, factor)
        put(Counter.INST_FP16, WARP_SIZE * packed_fj, factor)
        put(Counter.INST_FP64, WARP_SIZE * energy.dfma_fj, factor)
        put(Counter.INST_ALU, WARP_SIZE * energy.alu_fj, factor)
        put(Counter.INST_MUFU, WARP_SIZE * energy.xu_fj, factor)
        put(Counter.SHARED_READ_BYTES, energy.shared_fj_per_byte, moved)
        put(Counter.SHARED_WRITE_BYTES, energy.shared_fj_per_byte, moved)
        put(Counter.L1_READ_SECTORS, 32 * energy.l1_fj_per_byte, moved)
        put(Counter.PORT_READ_BYTES, energy.l2_fj_per_byte, moved)  # a multicast line is read and sent once
        put(Counter.PORT_WRITE_BYTES, energy.l2_fj_per_byte, moved)
        self._dram_fj_per_byte = int(energy.dram_fj_per_byte * dram)
        for counter in (MemoryCounter.DRAM_READ_BYTES, MemoryCounter.DRAM_WRITE_BYTES):
            put(counter, self._dram_fj_per_byte, 1, self._memory_actions)

    def set_tensor_dtype(self, dtype: str) -> None:
        """Operand type of the tensor-core work that follows."""
        self._holds_clock = dtype != "fp64"
        tensor = self.spec.power.energy.tensor
        per_flop = getattr(tensor, f"{tensor.figure_of(dtype)}_fj_per_flop")
        self._core_actions[Counter.MACS_TENSOR] = int(2 * per_flop * self._factor_ppm) // 1_000_000

    def actions_fj(self, counters: np.ndarray, memory: np.ndarray) -> tuple[int, int]:
        """Energy of what the counters of SMs and memory hold, by supply: core (at its reference clock), memory."""
        return int(counters.dot(self._core_actions)), int(memory.dot(self._memory_actions))

    def memory_most_fj(self, window_ps: int) -> int:
        """What DRAM can spend in a window at most: bytes that are asked for beyond its bandwidth move later."""
        return int(self.spec.dram.bandwidth_bytes_per_s) * self._dram_fj_per_byte * window_ps // PS_PER_S

    def window_fj(self, core_fj: int, memory_fj: int, window_ps: int, clock_hz: int, macs: int = 0) -> Spent:
        """Energy of a window: of what was done in it, and static power for its `window_ps` (1 mW over 1 ps is 1 fJ).
        macs: of tensor cores."""
        voltage = self.voltage_mv(clock_hz)
        return Spent(
            core_fj * voltage * voltage // (self._reference_mv * self._reference_mv),
            memory_fj,
            self._static_mw * window_ps,
            window_ps,
            macs > 0 and self._holds_clock,
        )

    def at_reference(self, spent: Spent, clock_hz: int) -> Spent:
        """What a window at `clock_hz` would have spent at the reference voltage."""
        core_fj = spent.core_fj * self._reference_mv**2 // self.voltage_mv(clock_hz) ** 2
        return spent._replace(core_fj=core_fj)

    def sustained_hz(self, clock_hz: int, spent: Spent, limit_mw: int, highest_hz: int) -> int:
        """Highest clock, at most `highest_hz`, at which work would stay within `limit_mw` that spent `spent` at
        `clock_hz`, its core energy taken at the reference voltage (`at_reference`).

        Its time scales with the clock, core energy with voltage squared.
        """
        most_fj = (limit_mw + 1) * spent.window_ps - spent.static_fj
        return int(
            highest_within(
                self._clocks(highest_hz),
                spent.core_fj,
                spent.memory_fj,
                most_fj,
                clock_hz // 1_000_000,
                self._reference_mv**2,
            )
        )

    def held_hz(self, average: MovingAverage, spent: Spent, clock_hz: int, limit_mw: int, highest_hz: int) -> int:
        """As `sustained_hz`, for the average, which takes in a window that spent `spent` at `clock_hz`."""
        return int(
            held_hz(
                average,
                self._clocks(highest_hz),
                limit_mw,
                spent.core_fj,
                spent.memory_fj,
                spent.static_fj,
                spent.window_ps,
                clock_hz // 1_000_000,
                self.voltage_mv(clock_hz) ** 2,
                self._reference_mv**2,
            )
        )

    def _clock_table(self, highest_hz: int) -> np.ndarray:
        """Clocks to choose from, as `sim.gpu.power.average` has them."""
        clock = self.spec.clock
        return _clocks(clock.lowest_hz, highest_hz, min(_FINEST_HZ, clock.step_hz), self._line)
