"""CTAs of a cluster with the values that they share: which one an address names, and the barrier of the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.sass.replay_groups import Groups
from sim.gpu.sass.tables import RANK_SHIFT

if TYPE_CHECKING:
    from sim.gpu.sass.replay_bulk import MbarrierValues

_PLACE = (1 << RANK_SHIFT) - 1


class CtaValues:
    """What the warps of a CTA share. rank: in its cluster; running: its warps that have not ended."""

    def __init__(self, place: tuple[int, int, int], rank: int, warps: int, shared_end: int) -> None:
        self.place, self.rank, self.running = place, rank, warps
        self.shared = np.zeros(shared_end, dtype=np.uint8)
        self.written = np.zeros(shared_end, dtype=bool)
        self.mbarriers: dict[int, MbarrierValues] = {}
        self.reductions: dict[int, list[NDArray[np.bool_]]] = {}
        self.cluster: ClusterValues = ClusterValues([self])

    def own(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Addresses in the shared memory of the cluster; those of this CTA become places in its own."""
        found = addresses & 0xFFFFFFFF
        return np.where(found >> RANK_SHIFT == self.rank, found & _PLACE, found)

    def named(self, where: str, address: int) -> tuple[CtaValues, int]:
        """The CTA of the cluster that an address names, and the place there. InputError where it is none, or has
        ended."""
        rank, place = address >> RANK_SHIFT, address & _PLACE
        if rank >= len(self.cluster.ctas):
            raise InputError(f"{where}: shared address {address:#x} names no CTA of the cluster")
        found = self.cluster.ctas[rank]
        if not found.running:
            raise InputError(f"{where}: shared address {address:#x} is of a CTA of the cluster that has ended")
        return found, place

    def mbarrier(self, where: str, place: int) -> MbarrierValues:
        """The mbarrier at a place; InputError where none has been set up."""
        if place not in self.mbarriers:
            raise InputError(f"{where}: no mbarrier has been set up at {place:#x}")
        return self.mbarriers[place]


class ClusterValues:
    """A cluster and its barrier: warps that have arrived in the phase, and phases completed. boxes: that the TMA has
    not brought yet."""

    def __init__(self, ctas: Sequence[CtaValues]) -> None:
        self.ctas, self.arrived, self.phase = list(ctas), 0, 0
        self.boxes = Groups()
        for cta in ctas:
            cta.cluster = self

    def bring_box(self) -> bool:
        """The TMA brings the oldest box; False without one."""
        return self.boxes.finish_oldest()

    def arrive(self) -> int:
        """A warp arrives; the phase that it arrives in."""
        phase = self.phase
        self.arrived += 1
        self._complete()
        return phase

    def leave(self, cta: CtaValues) -> None:
        """A warp has ended, and is no longer waited for."""
        cta.running -= 1
        self._complete()

    def _complete(self) -> None:
        if self.arrived and self.arrived >= sum(cta.running for cta in self.ctas):
            self.arrived, self.phase = 0, self.phase + 1


def clusters(
    grid: tuple[int, int, int],
    cluster: tuple[int, int, int],
    warps: int,
    shared_end: int,
    *,
    backwards: bool = False,
) -> Iterator[ClusterValues]:
    """The clusters of a launch, each with its CTAs by rank. backwards: the last one first."""
    inside = [(x, y, z) for z in range(cluster[2]) for y in range(cluster[1]) for x in range(cluster[0])]
    xs, ys, zs = (range(0, whole, part)[:: -1 if backwards else 1] for whole, part in zip(grid, cluster, strict=True))
    for z in zs:
        for y in ys:
            for x in xs:
                places = [(x + a, y + b, z + c) for a, b, c in inside]
                yield ClusterValues([CtaValues(at, rank, warps, shared_end) for rank, at in enumerate(places)])
