"""What warps meet at in the replay: mbarriers, barriers of CTAs and clusters, semaphores; and how CTAs end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from arch.errors import InputError
from sim.gpu.check.findings import Violations, What
from sim.gpu.check.gates import Flag, Gate, MBarrierStage, Rendezvous
from sim.gpu.check.happens_before import AGENTS, OWN, Clock, Clocks
from sim.gpu.check.instances import Place
from sim.gpu.check.warps import Step, Warp
from sim.gpu.language import Kernel
from sim.gpu.language.ops import GROUPS


class Barriers:
    """All gates of one launch, and the vector clocks of its CTAs."""

    def __init__(self, kernel: Kernel, places: list[Place], violations: Violations) -> None:
        self.kernel, self._violations = kernel, violations
        self.clocks = _clocks(kernel, places)
        self._first_stage, stages = {}, 0
        for barrier in kernel.barriers:
            self._first_stage[barrier.name] = stages
            stages += barrier.stages
        self._mbarriers: dict[tuple[int, str, int], MBarrierStage] = {}
        self._named: dict[tuple[int, int], Rendezvous] = {}
        self._clusters: dict[int, Rendezvous] = {}
        self._flags: dict[int, Flag] = {}
        self._sent: dict[int, dict[int, tuple[int, What]]] = {}  # CTA -> component -> latest epoch sent to it by peers
        self._exits: dict[int, list[Clock]] = {}  # CTA -> clocks of its warps that have ended

    def gates(self) -> Iterator[Gate]:
        """Everything that somebody may be waiting at."""
        yield from (*self._mbarriers.values(), *self._named.values(), *self._clusters.values(), *self._flags.values())

    def mbarriers(self) -> Iterator[tuple[int, str, int, MBarrierStage]]:
        """CTA, name, stage and state of each mbarrier that has been used."""
        for (cta, name, stage), state in self._mbarriers.items():
            yield cta, name, stage, state

    def mbarrier(self, cta: int, step: Step) -> MBarrierStage:
        """The mbarrier stage that an op uses in `cta`; to be initialised before, by the first warp of that CTA."""
        warp, instance = step.warp, step.instance
        barrier = instance.op.barrier
        assert barrier is not None
        if not 0 <= instance.stage < barrier.stages:
            raise InputError(
                f"kernel {self.kernel.name}, {step.what}: stage {instance.stage} of barrier {barrier.name}; "
                f"it has stages 0 to {barrier.stages - 1}"
            )
        key = (cta, barrier.name, instance.stage)
        clocks, local = self.clocks[cta]
        if key not in self._mbarriers:
            component = clocks.barrier_component(local, self._first_stage[barrier.name] + instance.stage)
            self._mbarriers[key] = MBarrierStage(barrier.arrivals, component, clocks.blank())
        # The first warp initialises the barriers before its first release: whoever knows its epoch 1 may use them.
        if warp.clock[clocks.component(clocks.row(local, 0), OWN)] < 1:
            self._violations.of(
                step.what,
                "initialised",
                f"uses barrier {barrier.name} of CTA {cta}, whose initialisation is not ordered before it",
            )
        return self._mbarriers[key]

    def arrive(self, barrier: MBarrierStage, clock: Clock, what: What) -> None:
        """One arrival on an mbarrier."""
        if not barrier.arrive(clock, what.who):
            self._violations.of(what, "arrivals", f"arrives once too often: {barrier.missing()}")

    def meeting(self, step: Step) -> Rendezvous:
        """The barrier of the cluster or, by its number, of the CTA."""
        place, new = step.warp.place, Rendezvous(step.warp.clocks.blank())
        if step.spec.cluster:
            return self._clusters.setdefault(place.cluster, new)
        return self._named.setdefault((place.cta, step.instance.stage), new)

    def semaphore(self, step: Step) -> Flag:
        """The global semaphore that an op names."""
        number = step.instance.stage
        if not 0 <= number < self.kernel.flags:
            raise InputError(f"kernel {self.kernel.name}, {step.what}: semaphore {number} of {self.kernel.flags}")
        return self._flags.setdefault(number, Flag())

    def reach(self, warp: Warp, cta: int, component: int, epoch: int, what: What) -> None:
        """Notes that a warp touches a peer's shared memory: that CTA must not end before."""
        if cta == warp.place.cta:
            return
        if len(self._exits.get(cta, ())) == self.kernel.warps:
            self._violations.of(what, "exited", f"reaches CTA {cta} of its cluster, which has ended")
        self._sent.setdefault(cta, {})[component] = (epoch, what)

    def leave(self, warp: Warp) -> None:
        """A warp's end; with the last of its CTA the shared memory is gone."""
        for group in GROUPS:
            if group.reads_first and warp.clock[warp.component(AGENTS[group].read)] < warp.groups[group].issued:
                self._violations.add(
                    ("exit", warp.role),
                    f"{warp.role} (CTA {warp.place.cta}, warp {warp.number}) ends before its "
                    f"{group.name} stores have read shared memory",
                )
        ended = self._exits.setdefault(warp.place.cta, [])
        ended.append(warp.clock)
        if len(ended) == self.kernel.warps:
            known = np.maximum.reduce(ended)
            for component, (epoch, what) in self._sent.get(warp.place.cta, {}).items():
                if known[component] < epoch:
                    self._violations.of(
                        what, "exited", f"reaches CTA {warp.place.cta}, which may have ended: nothing orders it"
                    )


def _clocks(kernel: Kernel, places: list[Place]) -> list[tuple[Clocks, int]]:
    """(clocks, number in them) of each CTA: one set for the grid if it has semaphores, else one a cluster."""
    stages = sum(b.stages for b in kernel.barriers)
    if kernel.flags:
        whole = Clocks(kernel.ctas, kernel.warps, stages)
        return [(whole, p.cta) for p in places]
    clusters: dict[int, Clocks] = {}
    for place in places:
        if place.cluster not in clusters:
            clusters[place.cluster] = Clocks(kernel.cluster_size, kernel.warps, stages)
    return [(clusters[p.cluster], p.rank) for p in places]
