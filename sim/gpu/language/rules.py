"""What a kernel must keep to: operands that its opcodes take (`OPS`), names that it declares, sizes that can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from arch.arguments import name, shown, three, whole
from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.near import hint
from arch.tcgen05 import SCALED_FORMATS
from sim.gpu.language.expressions import Const, Expr
from sim.gpu.language.ops import OPS, Action, Space, Unit
from sim.gpu.language.program import Assign, Kernel, Loop, Op, Role, Statement, walk
from sim.gpu.language.ring import Ring
from sim.gpu.language.tensors import LANES, Buffer, MBarrier, SharedTile, TensorTile, View

MOST_COUNT = 1 << 24
"""Instructions of one op, which a compiler writes one after the other."""

MOST_SIDE = (1 << 31) - 1
"""CTAs along one side of a grid."""

MOST_WARPS = 32
"""Of a CTA: 1024 threads."""

MOST_REGISTERS = 256
"""Of a thread, as `setmaxnreg` counts them."""

MOST_FLAGS = 1 << 24

COLUMNS = (32, 64, 128, 256, 512)
"""Of tensor memory, that one allocation can be of."""
MOST_CODE_BYTES = 1 << 24
MOST_DESCRIPTORS = 1024
MOST_DEPTH = 64
"""Loops and guards around one op."""

PAIRED = ("tcgen05_mma", "tcgen05_cp", "tma_load")
"""Ops that two CTAs of a pair can do together, or for each other."""


_CHECKED = "_checked"
"""Attribute of a kernel that keeps to the rules."""

_NUMBERS = {"count": (1, MOST_COUNT), "vector_bytes": (1, 1024), "sharers": (1, 32), "chain": (1, MOST_COUNT)}
"""Whole numbers that every op has, and what they may be."""

_WORDS = ("opcode", "dtype", "shape", "into", "var", "line")
_EXPRESSIONS = ("stage", "value", "phase", "multicast")


def _malformed(op: Op) -> str:
    """Which field of an op is of a wrong kind or out of its range, in words; "" if none is."""
    for field, (least, most) in _NUMBERS.items():
        whole(field, getattr(op, field), least, most)
    for field in _WORDS:
        if not isinstance(getattr(op, field), str):
            return f"{field}={shown(getattr(op, field))}: must be text"
    for field in _EXPRESSIONS:
        found = getattr(op, field)
        if not isinstance(found, Expr) and not (found is None and field in ("phase", "multicast")):
            return f"{field}={shown(found)}: must be an expression"
    if not isinstance(op.after, tuple) or not all(isinstance(other, str) for other in op.after):
        return f"after={shown(op.after)}: must be a tuple of names"
    if not isinstance(op.mix, tuple) or not all(isinstance(item, tuple) and len(item) == 2 for item in op.mix):
        return f"mix={shown(op.mix)}: must be a tuple of (opcode, count)"
    for opcode, count in op.mix:
        whole(f"mix {name('mix', opcode)}", count, 0, MOST_COUNT)
    views = (*op.srcs, *(() if op.dst is None else (op.dst,))) if isinstance(op.srcs, tuple) else (op.srcs,)
    if not all(isinstance(view, View) for view in views):
        return "its operands must be views of tensors and tiles"
    if not isinstance(op.indices, tuple) or not all(isinstance(index, Expr) for index in op.indices):
        return "its indices must be a tuple of expressions"
    if not isinstance(op.loads, tuple) or not all(isinstance(load, Op) for load in op.loads):
        return f"loads={shown(op.loads)}: must be a tuple of ops"
    if op.compute is not None and not callable(op.compute):
        return f"compute={shown(op.compute)}: must be a function"
    if op.barrier is not None and not isinstance(op.barrier, MBarrier):
        return f"barrier={shown(op.barrier)}: must be an mbarrier"
    known = (*DTYPE_BYTES, *SCALED_FORMATS)
    if op.dtype and op.dtype not in known and not op.dtype.startswith("b"):
        return f"dtype={shown(op.dtype)}: must be one of {', '.join(known)}{hint(op.dtype, known)}"
    if not isinstance(op.pair, bool) or (op.pair and op.opcode not in PAIRED):
        return f"pair={shown(op.pair)}: only {', '.join(PAIRED)} are of two CTAs"
    return ""


def _wrong_value(op: Op) -> str:
    """Why the constant of an op is none that it may have, in words; "" if it is."""
    if op.spec.evaluated or not isinstance(op.value, Const):
        return ""
    value = op.value.value
    match op.spec.action:
        case Action.AWAIT_GROUPS if not 0 <= value <= MOST_COUNT:
            return f"{value} groups left: must be at least 0"
        case Action.MEET | Action.JOIN if not op.spec.cluster and not 1 <= value <= MOST_WARPS:
            return f"{value} warps: must be 1 to {MOST_WARPS}"
        case Action.ALLOCATE | Action.FREE if value not in COLUMNS:
            return f"{value} columns: must be {', '.join(map(str, COLUMNS))}"
        case Action.NOTE if value % 8 or not 24 <= value <= MOST_REGISTERS:
            return f"{value} registers: must be a multiple of 8 from 24 to {MOST_REGISTERS}"
    return ""


def misfit(op: Op) -> str:
    """What of an op its opcode does not take, in words; "" if all fits.

    An op of `loads` has no destination. Operands may be left out of arithmetic, and out of an op that only takes time.
    """
    try:
        wrong = _malformed(op)
    except InputError as error:
        wrong = str(error)
    return wrong or _wrong_value(op) or _wrong_operands(op)


def _wrong_operands(op: Op) -> str:
    """Which operand of an op its opcode does not take or lacks, in words; "" if all fit."""
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
    least = len(places) if spec.unit is Unit.TENSOR else 4 if op.dtype in SCALED_FORMATS else 2
    if spec.unit in (Unit.TENSOR, Unit.TCGEN05) and len(op.srcs) < least and spec.accumulates:
        return f"needs {least} sources, not {len(op.srcs)}"
    if spec.action in (Action.NEXT_TILE, Action.READ_CANCELLED) and not op.var:
        return "needs a variable for its tile"
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
    """Refuses kernels that name what they do not declare or exceed what any machine has; once each."""
    if _CHECKED in vars(kernel):
        return
    where = f"kernel {name('kernel name', kernel.name)}"
    _check_sizes(kernel, where)
    _check_names(kernel, where)
    shared, barriers = {*kernel.shared, *kernel.tensor}, set(kernel.barriers)
    first_warp = 0
    for role in kernel.roles:
        at = f"{where}, role {role.name}"
        _check_statements(role.body, at, 0)
        ops = list(walk(role.body))
        for op in ops:
            if wrong := misfit(op) or _wrong_place(op, role, first_warp, kernel.warps) or _wrong_pair(op, kernel):
                raise InputError(f"{at}, {op}: {wrong}")
        _check_registers(ops, at)
        signalled = {op.into for op in ops if op.into}
        for op in ops:
            for view in (*op.views, *(view for load in op.loads for view in load.views)):
                if isinstance(view.buffer, SharedTile | TensorTile) and view.buffer not in shared:
                    what = f"{view.buffer.space} tile".replace(" memory", "")
                    raise InputError(f"{at}, {op}: {what} {view.buffer.name} is not declared in this kernel")
            if op.barrier is not None and op.barrier not in barriers:
                raise InputError(f"{at}, {op}: barrier {op.barrier.name} is not declared in this kernel")
            if missing := set(op.after) - signalled:
                raise InputError(f"{at}, {op}: waits for scoreboard {sorted(missing)[0]}, which no op signals")
        first_warp += role.warps
    object.__setattr__(kernel, _CHECKED, True)  # `replace` does not hand it on


def _check_sizes(kernel: Kernel, where: str) -> None:
    """Whole numbers of a kernel."""
    grid = three(f"{where}: grid", kernel.grid, MOST_SIDE)
    cluster = three(f"{where}: cluster", kernel.cluster, MOST_SIDE)
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise InputError(f"{where}: grid {grid} is not a multiple of its cluster {cluster}")
    whole(f"{where}: flags", kernel.flags, 0, MOST_FLAGS)
    whole(f"{where}: code_bytes", kernel.code_bytes, 0, MOST_CODE_BYTES)
    whole(f"{where}: descriptors", kernel.descriptors, 0, MOST_DESCRIPTORS)
    whole(f"{where}: stands_for", kernel.stands_for)
    whole(f"{where}: launch_registers", kernel.launch_registers, 1, MOST_REGISTERS)
    for what, kind, items in (("roles", Role, kernel.roles), ("shared", SharedTile, kernel.shared),
                              ("barriers", MBarrier, kernel.barriers), ("rings", Ring, kernel.rings),
                              ("tensor", TensorTile, kernel.tensor)):  # fmt: skip
        if not isinstance(items, tuple) or not all(isinstance(item, kind) for item in items):
            raise InputError(f"{where}: {what}={shown(items)}: must be a tuple of {kind.__name__}")
    for role in kernel.roles:
        at = f"{where}, role {name('role name', role.name)}"
        whole(f"{at}: warps", role.warps, 1, MOST_WARPS)
        whole(f"{at}: registers", role.registers, 1, MOST_REGISTERS)
    if not 1 <= kernel.warps <= MOST_WARPS:
        raise InputError(f"{where}: {kernel.warps} warps a CTA; must be 1 to {MOST_WARPS} (1024 threads)")


def _check_names(kernel: Kernel, where: str) -> None:
    """Names of tiles, barriers and roles, each given once."""
    for what, names in (("shared tiles", kernel.shared), ("tensor tiles", kernel.tensor),
                        ("barriers", kernel.barriers), ("roles", kernel.roles)):  # fmt: skip
        twice = [found for found, n in Counter(declared.name for declared in names).items() if n > 1]
        if twice:
            raise InputError(f"{where}: two {what} are named {twice[0]}; each needs a name of its own")


def _check_statements(body: Sequence[Statement], where: str, depth: int) -> None:
    """Kinds of a body's statements, and how deeply they are nested."""
    if not isinstance(body, tuple):
        raise InputError(f"{where}: a body must be a tuple of ops, loops and assignments, not {shown(body)}")
    if depth > MOST_DEPTH:
        raise InputError(f"{where}: has more than {MOST_DEPTH} loops and guards inside each other")
    for statement in body:
        if isinstance(statement, Loop):
            expressions: tuple[Expr, ...] = (statement.trips, statement.start, statement.step)
            _check_statements(statement.body, where, depth + 1)
        elif isinstance(statement, Op | Assign):
            expressions = (statement.value,)
        else:
            raise InputError(f"{where}: {shown(statement)} is no op, loop or assignment")
        if not all(isinstance(expr, Expr) for expr in expressions) or not isinstance(statement.var, str):
            raise InputError(f"{where}: {shown(statement)}: its numbers must be expressions, its variable a name")
        if isinstance(statement, Assign):
            name(f"{where}: variable", statement.var)


def _check_registers(ops: Sequence[Op], where: str) -> None:
    """One register tile has one shape, which its name stands for."""
    tiles: dict[str, Buffer] = {}
    for op in ops:
        for view in op.views:
            if view.buffer.space is not Space.REGISTERS:
                continue
            known = tiles.setdefault(view.buffer.name, view.buffer)
            if known.shape != view.buffer.shape:
                raise InputError(
                    f"{where}, {op}: two register tiles are named {known.name}; each needs a name of its own"
                )


def _wrong_pair(op: Op, kernel: Kernel) -> str:
    """Why there are no two CTAs for an op of a pair; empty if there are, or it is of one."""
    odd = op.pair and kernel.cluster_size % 2
    return f"a pair is two CTAs of a cluster, of which the kernel's have {kernel.cluster_size}" if odd else ""


def _wrong_place(op: Op, role: Role, first_warp: int, warps: int) -> str:
    """Why an op cannot be in a role whose first warp is `first_warp` of `warps` of a CTA, in words; "" if it can."""
    together = op.spec.group.warps if op.spec.group and op.spec.action is Action.OPERATE else 1
    if first_warp % together or role.warps % together:
        return (
            f"needs whole warpgroups, {together} warps from a multiple of {together} on; the role has warps "
            f"{first_warp} to {first_warp + role.warps - 1}"
        )
    tensor = [view for view in op.views if isinstance(view.buffer, TensorTile)]
    if op.spec.owns_registers and any(view.extents[0] > LANES // 4 for view in tensor):
        return f"a warp reaches the {LANES // 4} lanes of its quarter of tensor memory, warp % 4"
    if op.spec.action in (Action.MEET, Action.JOIN) and not op.spec.cluster:
        assert isinstance(op.value, Const)
        if op.value.value > warps:
            return f"{op.value} warps: a CTA has {warps}"
    return ""
