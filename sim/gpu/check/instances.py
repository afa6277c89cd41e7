"""One warp's program in the order in which it runs: ops with every expression evaluated.

This is the language's meaning of loops, guards and counters, written with `evaluate` alone: nothing of the engine's
lowering is used.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from arch.errors import InputError
from sim.gpu.language import (
    Assign,
    Buffer,
    Expr,
    GlobalTensor,
    Kernel,
    Loop,
    Op,
    Role,
    SharedTile,
    Statement,
    TensorTile,
    View,
    evaluate,
)
from sim.gpu.language.ops import Action


@dataclass(frozen=True, slots=True)
class Box:
    """A view with its offsets evaluated: elements lower[d] <= i < upper[d] of one stage of a buffer."""

    buffer: Buffer
    stage: int
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    transposed: bool = False

    @property
    def index(self) -> tuple[slice, ...]:
        """The box as a NumPy index."""
        return tuple(slice(a, b) for a, b in zip(self.lower, self.upper, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements; 0 where clipped away."""
        return tuple(max(0, b - a) for a, b in zip(self.lower, self.upper, strict=True))

    def clipped(self) -> Box:
        """The part that lies inside the buffer, the box itself if all of it does."""
        for a, b, n in zip(self.lower, self.upper, self.buffer.shape, strict=True):
            if a < 0 or b > n:
                break
        else:
            return self
        lower = tuple(min(max(a, 0), n) for a, n in zip(self.lower, self.buffer.shape, strict=True))
        upper = tuple(min(max(b, 0), n) for b, n in zip(self.upper, self.buffer.shape, strict=True))
        return Box(self.buffer, self.stage, lower, upper, self.transposed)

    def overlaps(self, other: Box) -> bool:
        """Whether both share an element (same buffer and stage taken for granted)."""
        corners = zip(self.lower, self.upper, other.lower, other.upper, strict=True)
        return all(a < d and c < b for a, b, c, d in corners)

    def contains(self, other: Box) -> bool:
        """Whether `other` lies inside this box (same buffer and stage taken for granted)."""
        corners = zip(self.lower, self.upper, other.lower, other.upper, strict=True)
        return all(a <= c and d <= b for a, b, c, d in corners)

    def __str__(self) -> str:
        box = ", ".join(f"{a}..{b}" for a, b in zip(self.lower, self.upper, strict=True))
        stage = f" stage {self.stage}" if isinstance(self.buffer, SharedTile | TensorTile) else ""
        return f"{self.buffer.name}{stage} [{box}]"


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of an op by one warp; `number` is the op's index in the kernel's enumeration, as in the event
    log."""

    number: int
    op: Op
    dst: Box | None
    srcs: tuple[Box, ...]
    stage: int
    phase: int
    value: int
    mask: int | None
    indices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a CTA stands: its number in the grid, its coordinates, its cluster, and the CTAs of that cluster by
    rank."""

    cta: int
    coordinates: tuple[int, int, int]
    cluster: int
    rank: int
    peers: tuple[int, ...]


def places(kernel: Kernel) -> list[Place]:
    """The place of every CTA of the grid, in linear order."""
    gx, gy, gz = kernel.grid
    cx, cy, cz = kernel.cluster
    out = []
    for z in range(gz):
        for y in range(gy):
            for x in range(gx):
                bx, by, bz = x - x % cx, y - y % cy, z - z % cz
                peers = tuple(
                    bx + i + gx * (by + j + gy * (bz + k)) for k in range(cz) for j in range(cy) for i in range(cx)
                )
                cta = x + gx * (y + gy * z)
                cluster = bx // cx + gx // cx * (by // cy + gy // cy * (bz // cz))
                out.append(Place(cta, (x, y, z), cluster, peers.index(cta), peers))
    return out


def warp_roles(kernel: Kernel) -> list[tuple[Role, int]]:
    """(role, number of the warp in its role) for every warp of a CTA."""
    return [(role, i) for role in kernel.roles for i in range(role.warps)]


def run_warp(kernel: Kernel, place: Place, warp: int) -> Generator[Instance, int, None]:
    """The instances of one warp in program order; after a `next_tile` send its result with `generator.send(tile)`.

    Raises InputError where a shared or register box leaves its buffer, naming kernel, role and op.
    """
    role, number = warp_roles(kernel)[warp]
    first = 0
    for earlier in kernel.roles:
        if earlier is role:
            break
        first += _ops(earlier.body)
    x, y, z = place.coordinates
    env = {"cta_x": x, "cta_y": y, "cta_z": z, "cluster_rank": place.rank, "warp": number}
    where = f"kernel {kernel.name}, role {role.name}"
    yield from _run(role.body, first, env, where)


def _ops(body: Sequence[Statement]) -> int:
    """Ops of a body, loops entered once."""
    return sum(1 if isinstance(s, Op) else _ops(s.body) if isinstance(s, Loop) else 0 for s in body)


def _run(body: Sequence[Statement], number: int, env: dict[str, int], where: str) -> Generator[Instance, int, None]:
    for statement in body:
        if isinstance(statement, Op):
            value = yield _instance(number, statement, env, where)
            if statement.spec.action in (Action.NEXT_TILE, Action.READ_CANCELLED):
                env[statement.var] = value
            number += 1
        elif isinstance(statement, Assign):
            env[statement.var] = _value(statement.value, env, where)
        else:
            if statement.again:
                while _value(statement.trips, env, where) > 0:
                    yield from _run(statement.body, number, env, where)
                number += _ops(statement.body)
                continue
            trips, at, step = (_value(e, env, where) for e in (statement.trips, statement.start, statement.step))
            for _ in range(trips):
                if statement.var:
                    env[statement.var] = at
                yield from _run(statement.body, number, env, where)
                at += step
            number += _ops(statement.body)


def _instance(number: int, op: Op, env: dict[str, int], where: str) -> Instance:
    try:
        return Instance(
            number,
            op,
            None if op.dst is None else _box(op.dst, op, env, where),
            tuple([_box(v, op, env, where) for v in op.srcs]),
            evaluate(op.stage, env),
            0 if op.phase is None else evaluate(op.phase, env),
            evaluate(op.value, env),
            None if op.multicast is None else evaluate(op.multicast, env),
            tuple([evaluate(e, env) for e in op.indices]),
        )
    except (KeyError, IndexError, ArithmeticError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _unknown(f"{where}, {op}", error) from None


def _value(expr: Expr, env: dict[str, int], where: str) -> int:
    """The value of a loop's or an assignment's expression."""
    try:
        return evaluate(expr, env)
    except (KeyError, IndexError, ArithmeticError, ValueError) as error:
        raise _unknown(where, error) from None


def _unknown(where: str, error: Exception) -> InputError:
    """The error for an expression that has no value."""
    if isinstance(error, KeyError):
        return InputError(f"{where}: variable {error} is used before it is set")
    return InputError(f"{where}: an expression has no value: {error}")


def _box(view: View, op: Op, env: dict[str, int], where: str) -> Box:
    lower = tuple([evaluate(o, env) for o in view.offsets])
    box = Box(
        view.buffer,
        evaluate(view.stage, env),
        lower,
        tuple([a + n for a, n in zip(lower, view.extents, strict=True)]),
        view.transposed,
    )
    if not isinstance(view.buffer, GlobalTensor):
        stages = view.buffer.stages if isinstance(view.buffer, SharedTile | TensorTile) else 1
        if not 0 <= box.stage < stages:
            stage = f"stage {box.stage} of {view.buffer.name}"
            raise InputError(f"{where}, {op.opcode}: {stage}; it has stages 0 to {stages - 1}")
        if box.clipped() is not box:
            raise InputError(f"{where}, {op.opcode}: box {box} leaves its tile of shape {view.buffer.shape}")
    return box
