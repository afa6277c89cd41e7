"""Rings of stages in shared memory: producers fill them, consumers empty them, all count steps instead of phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.gpu.language.expressions import Expr, IntLike, as_expr
from sim.gpu.language.tensors import MBarrier

if TYPE_CHECKING:
    from sim.gpu.language.builder import RoleBuilder


@dataclass(frozen=True)
class Ring:
    """Step s of a pipeline uses stage s mod stages; two barriers a stage say what has landed and what has been read.

    A producer calls `acquire` before it loads, a consumer `wait` before it reads and `release` after it has read. What
    completes `full` is bytes (`acquire` with their number, `tma_load(..., ring.full, ring.stage(step))`) or arrivals of
    the producers (`fill`).
    """

    full: MBarrier
    empty: MBarrier

    @property
    def stages(self) -> int:
        """Steps that can be on their way at once."""
        return self.full.stages

    def stage(self, step: IntLike) -> Expr:
        """The stage that a step uses."""
        return as_expr(step) % self.stages

    def acquire(self, role: RoleBuilder, step: IntLike, size_bytes: IntLike | None = None) -> None:
        """Waits until consumers have released the step that used this stage before, then expects `size_bytes`.

        The first turn finds its stages empty: phase -1 is complete.
        """
        role.mbarrier_wait(self.empty, self.stage(step), self._turn(step) - 1)
        if size_bytes is not None:
            role.mbarrier_expect(self.full, self.stage(step), size_bytes)

    def fill(self, role: RoleBuilder, step: IntLike) -> None:
        """One arrival: what this warp has written for a step is there."""
        role.mbarrier_arrive(self.full, self.stage(step))

    def wait(self, role: RoleBuilder, step: IntLike) -> None:
        """Waits until a step is there."""
        role.mbarrier_wait(self.full, self.stage(step), self._turn(step))

    def release(self, role: RoleBuilder, step: IntLike, cluster: IntLike | None = None) -> None:
        """One arrival: this warp has read a step. cluster: mask of the CTAs that load into this one."""
        role.mbarrier_arrive(self.empty, self.stage(step), cluster)

    def _turn(self, step: IntLike) -> Expr:
        """How often the stage of a step has been used before."""
        return as_expr(step) // self.stages
