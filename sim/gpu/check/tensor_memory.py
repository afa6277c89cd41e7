"""Tensor memory in the replay: who has columns of it, and whether those who use it may."""

from __future__ import annotations

from sim.gpu.check.accesses import Accesses, Agent
from sim.gpu.check.findings import Violations
from sim.gpu.check.happens_before import OWN
from sim.gpu.check.instances import Box
from sim.gpu.check.warps import Step
from sim.gpu.language import Kernel, TensorTile
from sim.gpu.language.tensors import LANES

_QUARTERS = 4


class TensorMemory:
    """The tensor memory of all CTAs of one launch."""

    def __init__(self, kernel: Kernel, accesses: Accesses, violations: Violations) -> None:
        self._kernel, self._accesses, self._violations = kernel, accesses, violations
        self._held: dict[int, Step] = {}  # by CTA: its allocation

    def allocate(self, step: Step) -> None:
        """A CTA gets its columns, in which nothing is yet."""
        cta = step.warp.place.cta
        if cta in self._held:
            self._violations.of(step.what, "allocated", "allocates tensor memory that its CTA has already")
        self._held[cta] = step
        self._touch_all(step)

    def free(self, step: Step) -> None:
        """A CTA gives its columns back, of which all use must be over."""
        if self._held.pop(step.warp.place.cta, None) is None:
            self._violations.of(step.what, "allocated", "frees tensor memory that its CTA does not have")
        self._touch_all(step)

    def use(self, step: Step) -> None:
        """An op on tensor memory: of a CTA that has some, by a warp that reaches the lanes."""
        boxes = [box for box in (*step.instance.srcs, step.instance.dst) if box and isinstance(box.buffer, TensorTile)]
        if boxes and step.warp.place.cta not in self._held:
            self._violations.of(step.what, "allocated", "uses tensor memory that its CTA does not have")
        if step.spec.owns_registers:
            first = step.warp.number % _QUARTERS * LANES // _QUARTERS
            for box in boxes:
                if not first <= box.lower[0] <= box.upper[0] <= first + LANES // _QUARTERS:
                    text = f"reaches lanes {box.lower[0]} to {box.upper[0] - 1}; its warp has {first} and 31 more"
                    self._violations.of(step.what, "quarter", text)

    def judge_end(self) -> None:
        """Adds a finding for each CTA that has ended with columns."""
        for cta, step in self._held.items():
            self._violations.add(("leak", step.what.number), f"CTA {cta} ends without freeing its tensor memory")

    def _touch_all(self, step: Step) -> None:
        """Writes, as far as order is concerned, all tiles of the warp's CTA."""
        agent = Agent(OWN, step.warp.clocks.epoch(step.warp.row), False, False, True)
        for tile in self._kernel.tensor:
            for stage in range(tile.stages):
                box = Box(tile, stage, (0, 0), tile.shape)
                self._accesses.end(self._accesses.begin(step, step.warp.place.cta, box, True, agent, None))
