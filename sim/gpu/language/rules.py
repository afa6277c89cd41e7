"""What a kernel must keep to: operands that its opcodes take (`OPS`), names that it declares, sizes that can be."""

from __future__ import annotations

from collections import Counter

from arch.errors import InputError
from arch.near import hint
from sim.gpu.language.expressions import Const
from sim.gpu.language.ops import OPS, Action, Space, Unit
from sim.gpu.language.program import Kernel, Op, walk
from sim.gpu.language.tensors import SharedTile, View


def misfit(op: Op) -> str:
    """What of an op its opcode does not take, in words; "" if all fits.

    An op of `loads` has no destination. Operands may be left out of arithmetic, and out of an op that only takes time.
    """
    spec = op.spec
    if (op.barrier is not None) != spec.barrier:
        near = "" if op.opcode in OPS else hint(op.opcode, OPS, "; nearest opcode: {}")
        return ("takes no mbarrier" if op.barrier is not None else "needs an mbarrier") + near
    if (op.phase is not None) != (spec.action is Action.AWAIT_PHASE):
        return "takes no phase" if op.phase is not None else "needs a phase"
    if not spec.evaluated and not isinstance(op.value, Const):
        return f"its number must be known when the kernel is built, not {op.value}"
    if op.dst is not None and not _lies_in(op.dst, spec.dst):
        return f"writes to {spec.dst}, not to {op.dst} in {op.dst.buffer.space}"
    places = spec.srcs + spec.srcs[-1:] * (len(op.srcs) - len(spec.srcs)) if spec.variadic else spec.srcs
    if len(op.srcs) > len(places):
        return f"has {len(places)} sources, not {len(op.srcs)}"
    for view, space in zip(op.srcs, places, strict=False):
        if not _lies_in(view, space):
            return f"reads from {space}, not from {view} in {view.buffer.space}"
    for load in op.loads:
        if load.spec.unit is not Unit.SHARED or load.spec.dst != Space.REGISTERS or load.dst is not None:
            return f"loads are of shared memory, without destination; not {load.opcode}"
        if wrong := misfit(load):
            return f"loads by {load.opcode}, which {wrong}"
    return ""


def _lies_in(view: View, space: Space) -> bool:
    here = view.buffer.space
    return here in space or (here is Space.SHARED and Space.CLUSTER in space)


def check_kernel(kernel: Kernel) -> None:
    """Refuses kernels that name what they do not declare or exceed what any machine has."""
    if min(kernel.grid) < 1 or min(kernel.cluster) < 1:
        raise InputError(f"kernel {kernel.name}: grid {kernel.grid} and cluster {kernel.cluster} must be positive")
    if any(g % c for g, c in zip(kernel.grid, kernel.cluster, strict=True)):
        raise InputError(f"kernel {kernel.name}: grid {kernel.grid} is not a multiple of its cluster {kernel.cluster}")
    if kernel.warps > 32:
        raise InputError(f"kernel {kernel.name}: {kernel.warps} warps a CTA; at most 32 (1024 threads)")
    for what, names in (("shared tiles", kernel.shared), ("barriers", kernel.barriers)):
        twice = [name for name, n in Counter(declared.name for declared in names).items() if n > 1]
        if twice:
            raise InputError(f"kernel {kernel.name}: two {what} are named {twice[0]}; each needs a name of its own")
    shared, barriers = set(kernel.shared), set(kernel.barriers)
    first_warp = 0
    for role in kernel.roles:
        ops = list(walk(role.body))
        for op in ops:
            together = op.spec.group.warps if op.spec.group and op.spec.action is Action.OPERATE else 1
            if first_warp % together or role.warps % together:
                raise InputError(
                    f"kernel {kernel.name}, role {role.name}: {op.opcode} needs whole warpgroups, {together} warps "
                    f"from a multiple of {together} on; the role has warps {first_warp} to "
                    f"{first_warp + role.warps - 1}"
                )
        first_warp += role.warps
        signalled = {op.into for op in ops if op.into}
        for op in ops:
            where = f"kernel {kernel.name}, role {role.name}, {op.opcode}"
            for view in (*op.views, *(view for load in op.loads for view in load.views)):
                if isinstance(view.buffer, SharedTile) and view.buffer not in shared:
                    raise InputError(f"{where}: shared tile {view.buffer.name} is not declared in this kernel")
            if op.barrier is not None and op.barrier not in barriers:
                raise InputError(f"{where}: barrier {op.barrier.name} is not declared in this kernel")
            if missing := set(op.after) - signalled:
                raise InputError(f"{where}: waits for scoreboard {sorted(missing)[0]}, which no op signals")
