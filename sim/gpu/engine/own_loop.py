"""Kernels that bring a loop of their own: compiled code, whose instructions are not ops of the tile language.

They share everything else with those of the language: launches, CTA scheduler, memory system, counters, clock, reports.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from arch.gpu import GpuSpec
from sim.gpu.language import Kernel
from sim.gpu.units.chip import Chip

STOPPED = -3
"""What a loop returns in place of a tick where the kernel has done what no kernel may."""


@dataclass(frozen=True)
class SpentLine:
    """A line of the source of a kernel. instructions: of warps. ticks: of warps, by state."""

    file: str
    line: int
    instructions: int
    ticks: Mapping[str, int]


@dataclass(frozen=True)
class ShownInstruction:
    """How a timeline shows an instruction. place: file and line of the source. lane: what runs beside its warp, such as
    `loads in flight`, empty for others; category: of that. multiplies: on the tensor pipe."""

    label: str
    place: str = ""
    lane: str = ""
    category: str = ""
    multiplies: bool = False


@dataclass(frozen=True, eq=False)
class OwnLoopKernel(Kernel):
    """A kernel whose tables another loop reads than `sim.gpu.engine.loop`."""

    @abstractmethod
    def parameters(self, p: np.ndarray) -> None:
        """Changes parameters of the launch that the loop needs otherwise."""

    @abstractmethod
    def tables(self, p: np.ndarray, addresses: Mapping[str, int], spec: GpuSpec) -> Any:
        """What the loop reads and changes. Raises InputError for what the machine cannot run."""

    @property
    @abstractmethod
    def opcodes(self) -> frozenset[str]:
        """Ops of the tile language that use the units, and so read the figures, that its instructions use."""

    @abstractmethod
    def rows(self, addresses: Mapping[str, int], spec: GpuSpec) -> frozenset[str]:
        """Names of the rows of a machine's instruction table that its instructions take."""

    @property
    @abstractmethod
    def loop(self) -> Callable[..., int]:
        """A kernel with the arguments of `sim.gpu.engine.loop.advance`; STOPPED in place of a tick ends the run."""

    @abstractmethod
    def source(self, tables: Any) -> list[SpentLine]:
        """Where in its source the time of warps went, a line each."""

    @abstractmethod
    def shown(self) -> list[ShownInstruction]:
        """Its instructions, by their numbers in the event log."""

    @abstractmethod
    def listing(self, addresses: Mapping[str, int], spec: GpuSpec) -> list[str]:
        """Its code as text, a line each, with what each instruction takes on a machine."""

    @abstractmethod
    def stopped(self, tables: Any) -> Exception:
        """Why the loop has returned STOPPED."""

    @abstractmethod
    def watch(self) -> Callable[[Any, Any], None]:
        """What is called with tables and state from time to time; raises where the kernel can never end."""

    @abstractmethod
    def waiting(self, tables: Any, state: Any) -> str:
        """Which warps wait for what will never come, where no event is left."""


def warps_of(p: np.ndarray) -> int:
    """Places for warps on the chip."""
    return int(p[Chip.SMS] * p[Chip.WARPS_PER_SM])
