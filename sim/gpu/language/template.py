"""The load-compute-store template: a TMA pipeline of any depth around what the kernel's author writes.

One producer warp keeps `stages` steps of tiles in flight; consumer warps take a step when its bytes have landed and
hand its buffers back when they have read them; at the end they store. The author says what is loaded and what is done
with it; roles, barriers, phases and the order of waits are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.language.builder import KernelBuilder, RoleBuilder
from sim.gpu.language.expressions import Expr, IntLike
from sim.gpu.language.tensors import SharedTile, View


@dataclass(frozen=True)
class Load:
    """What the producer brings each step: `box(step)`, a view of a global tensor, into one stage of `tile`."""

    tile: SharedTile
    box: Callable[[Expr], View]


def pipelined(
    kernel: KernelBuilder,
    *,
    steps: IntLike,
    loads: Sequence[Load],
    warps: int,
    registers: int,
    compute: Callable[[RoleBuilder, Expr, Expr], None],
    store: Callable[[RoleBuilder], None],
    producer_registers: int = 40,
) -> None:
    """Writes the roles `consumer` (`warps` warps of `registers` a thread) and `producer` (one warp) of `kernel`.

    steps: trips of the main loop. compute(role, step, stage): what a consumer warp does with one stage; when it
    returns, the warp has finished reading (after `wgmma_wait`, say). store(role): what it does after the last step.
    Raises InputError for loads whose tiles differ in stages or whose boxes have another size than their tile.
    """
    depths = {load.tile.stages for load in loads}
    if len(depths) != 1:
        raise InputError(f"kernel {kernel.name}: loads have tiles of {sorted(depths)} stages; all need the same number")
    stages = depths.pop()
    full = kernel.mbarrier("full", stages, 1)
    empty = kernel.mbarrier("empty", stages, warps)

    # Consumers come first: warpgroups are aligned to four warps.
    with kernel.role("consumer", warps, registers) as role:
        role.bar_sync(0, warps + 1)
        with role.loop("step", steps) as step:
            stage, turn = step % stages, step // stages
            role.mbarrier_wait(full, stage, turn)
            compute(role, step, stage)
            role.mbarrier_arrive(empty, stage)
        store(role)

    with kernel.role("producer", 1, producer_registers) as role:
        role.bar_sync(0, warps + 1)
        with role.loop("step", steps) as step:
            stage, turn = step % stages, step // stages
            # The first turn finds its buffers empty: phase -1 is complete.
            role.mbarrier_wait(empty, stage, turn - 1)
            role.mbarrier_expect(full, stage, sum(_bytes(load.tile) for load in loads))
            for load in loads:
                box = load.box(step)
                if box.size_bytes != _bytes(load.tile):
                    raise InputError(
                        f"kernel {kernel.name}: box {box} has {box.size_bytes} B, "
                        f"a stage of {load.tile.name} {_bytes(load.tile)} B"
                    )
                role.tma_load(load.tile.stage(stage), box, full, stage)


def _bytes(tile: SharedTile) -> int:
    """Bytes that TMA counts for one stage: its elements, without padding."""
    size = DTYPE_BYTES[tile.dtype]
    for extent in tile.shape:
        size *= extent
    return size
