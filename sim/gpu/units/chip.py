"""The parameter array of a launch: which unit has which part of it, and what all units read.

A unit that reads figures of the machine has a part of the array, whose names it declares, and a function `parameters`
that computes them, in ticks unless the name says otherwise. `sim.gpu.engine.parameters` puts them together.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.language import Kernel
    from sim.gpu.lower.occupancy import Occupancy

from dataclasses import dataclass

from sim.engine.clock import TICKS_PER_CYCLE
from sim.memory.ahead import AHEAD

CHUNK = AHEAD  # lines that a long transfer issues in one event

FIGURES = ("sm.count", "sm.sub_cores")


class Part(IntEnum):
    """First parameter of each unit; a part ends where the next one begins."""

    CHIP = 0
    TREE = 8
    CTA = 16
    FETCH = 32
    SCHEDULER = 40
    TENSOR = 48
    SHARED = 56
    PORT = 64
    L1 = 72
    LOAD_STORE = 82
    CP_ASYNC = 84
    TMA = 88
    BARRIERS = 96
    SEMAPHORES = 108
    TENSOR_MEMORY = 112
    WIDTH = 120


class Chip(IntEnum):
    """Parameters that all units read."""

    SMS = Part.CHIP
    SUB_CORES = Part.CHIP + 1
    WARPS_PER_SM = Part.CHIP + 2
    CTAS_PER_SM = Part.CHIP + 3
    WARPS_PER_CTA = Part.CHIP + 4
    CLUSTER_SIZE = Part.CHIP + 5  # CTAs of a cluster
    CYCLE = Part.CHIP + 6


@dataclass(frozen=True)
class Launching:
    """One launch of a kernel, as units see it when they compute their parameters.

    shared_bytes: what a resident CTA takes of the combined array. code_number: the kernel's place in the program, from
    which the address of its code follows. exact: every instruction issues in an event of its own. cold: instructions
    and descriptors are fetched through the L2. start_ps: from the launch to the first CTA.
    """

    kernel: Kernel
    held: Occupancy
    shared_bytes: int
    clock_hz: int
    start_ps: int = 0
    code_number: int = 0
    exact: bool = False
    cold: bool = True


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`Chip`."""
    return {
        Chip.SMS: spec.sm.count,
        Chip.SUB_CORES: spec.sm.sub_cores,
        Chip.WARPS_PER_SM: launch.held.warps,
        Chip.CTAS_PER_SM: launch.held.ctas,
        Chip.WARPS_PER_CTA: launch.kernel.warps,
        Chip.CLUSTER_SIZE: launch.kernel.cluster_size,
        Chip.CYCLE: TICKS_PER_CYCLE,
    }
