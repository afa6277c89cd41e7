"""Loops that never end: a warp whose registers are again what they were can only go round for ever.

That holds where nothing else decides how it goes on: what device memory holds does not change while a kernel runs but
by atomics. Kernels that ask these or mbarriers, whose answers change with time, are not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.gpu.engine.deadlock import DeadlockError
from sim.gpu.sass.tables import SassProgram, Scalar
from sim.gpu.units.cta import Cta
from sim.gpu.units.warp import Warp

if TYPE_CHECKING:
    from sim.gpu.sass.kernel import SassKernel


_CHANGES = ("SYNCS", "ATOMG", "ATOM.")


class Watch:
    """Looks at the warps of the first CTA that has not ended, from time to time. One that loops for ever is in the end
    the first."""

    def __init__(self, kernel: SassKernel) -> None:
        self.kernel = kernel
        self.judges = not any(one.opcode.startswith(_CHANGES) for one in kernel.compiled.function.instructions)
        self.cta: tuple[int, ...] = ()
        self.seen: list[set[int]] = []
        self.latest: list[int] = []

    def __call__(self, tables: SassProgram, state: Any) -> None:
        """Called from time to time; DeadlockError for a warp that is back in a state that it had left."""
        if not self.judges:
            return
        for slot in np.flatnonzero(state.ctas[:, Cta.ACTIVE] == 1)[:1]:
            row = state.ctas[slot]
            cta = (int(slot), *(int(row[axis]) for axis in (Cta.X, Cta.Y, Cta.Z)))
            if cta != self.cta:
                self.cta, self.seen = cta, [set() for _ in range(self.kernel.warps)]
                self.latest = [0] * self.kernel.warps
            for number in range(self.kernel.warps):
                self._judge(tables, state, int(row[Cta.FIRST_WARP]) + number, number)

    def _judge(self, tables: SassProgram, state: Any, warp: int, number: int) -> None:
        at = int(state.warps[warp, Warp.PROGRAM_COUNTER])
        scalars = tables.scalars[warp]
        held = hash((
            at, int(scalars[Scalar.CURSOR]), scalars[: Scalar.CLUSTER_PHASE].tobytes(), tables.registers[warp].tobytes()
        ))  # fmt: skip
        if held == self.latest[number]:
            return
        if held in self.seen[number]:
            place = self.kernel.compiled.function.instructions[at].place
            raise DeadlockError(
                f"kernel {self.kernel.name} never ends: CTA {self.cta[1:]}, warp {number} is in a loop, {place}, whose "
                "condition nothing changes; what arrays hold does not change while a kernel runs"
            )
        self.seen[number].add(held)
        self.latest[number] = held
