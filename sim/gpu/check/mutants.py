"""Mutants of a program: the same with one wait or fence left out, to show that the check notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sim.gpu.language import Kernel, Loop, Op, Program, Statement, walk
from sim.gpu.language.ops import CP_ASYNC, OPS, Action

Edit = Callable[[int, int, Op], Op | None]
"""(role, number of the op in its role, op) -> what stands there instead."""


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """(description, program) with one wait, one fence or one scoreboard of one op's `after` removed at a time.

    A scoreboard of asynchronous copies is left alone: it guards their addresses, which no result depends on here.
    The description is `kernel/role/n opcode`, n counting the ops of the role, with ` after name` for a scoreboard; a
    barrier that several roles pass is in addition left out of all of them, since left out of one role alone it
    deadlocks: `kernel/*/n-th opcode`.
    """
    for k, kernel in enumerate(program.kernels):
        for what, edit in _edits(kernel):
            roles = tuple(replace(r, body=_edited(r.body, i, 0, edit)) for i, r in enumerate(kernel.roles))
            kernels = (*program.kernels[:k], replace(kernel, roles=roles), *program.kernels[k + 1 :])
            yield f"{kernel.name}/{what}", replace(program, kernels=kernels)


def _edits(kernel: Kernel) -> Iterator[tuple[str, Edit]]:
    common: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for i, role in enumerate(kernel.roles):
        seen: Counter[tuple[str, str]] = Counter()
        addresses = {op.into for op in walk(role.body) if op.spec.group is CP_ASYNC}
        for number, op in enumerate(walk(role.body)):
            if op.spec.waits or op.spec.fences:
                yield f"{role.name}/{number} {op.opcode}", _without([(i, number)])
            for name in (name for name in op.after if name not in addresses):
                yield f"{role.name}/{number} {op.opcode} after {name}", _unlinked(i, number, name)
            if op.spec.action in (Action.MEET, Action.AWAIT_JOINED):
                same = (op.opcode, str(op.stage))
                common.setdefault((*same, seen[same]), []).append((i, number))
                seen[same] += 1
    for (opcode, barrier, n), where in common.items():
        if len({i for i, _ in where}) > 1:
            label = f"{opcode} {barrier}" if OPS[opcode].numbered else opcode
            yield f"*/{n} {label}", _without(where)


def _without(where: Sequence[tuple[int, int]]) -> Edit:
    return lambda role, number, op: None if (role, number) in where else op


def _unlinked(role: int, number: int, name: str) -> Edit:
    def edit(at_role: int, at: int, op: Op) -> Op:
        if (at_role, at) != (role, number):
            return op
        return replace(op, after=tuple(n for n in op.after if n != name))

    return edit


def _edited(body: Sequence[Statement], role: int, number: int, edit: Edit) -> tuple[Statement, ...]:
    """The body after `edit`; `number` is the number of its first op in the role."""
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, Op):
            kept = edit(role, number, statement)
            if kept is not None:
                out.append(kept)
            number += 1
        elif isinstance(statement, Loop):
            out.append(replace(statement, body=_edited(statement.body, role, number, edit)))
            number += sum(1 for _ in walk(statement.body))
        else:
            out.append(statement)
    return tuple(out)
