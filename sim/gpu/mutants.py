"""Mutants of a program: the same with one wait or fence left out, to show that the check notices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sim.gpu.program import Loop, Op, Program, Statement, walk

#: Opcodes whose removal must be noticed: what waits, and what orders.
WAITS = (
    "mbarrier_wait",
    "bar_sync",
    "cluster_sync",
    "cp_wait",
    "wgmma_wait",
    "bulk_wait",
    "bulk_wait_read",
    "flag_wait",
)
FENCES = ("wgmma_fence", "fence_async")


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """(description, program) with one wait, one fence or one scoreboard of one op's `after` removed at a time.

    The description is `kernel/role/n opcode`, n counting the ops of the role, with ` after name` for a scoreboard.
    """
    for k, kernel in enumerate(program.kernels):
        for i, role in enumerate(kernel.roles):
            for what, body in _bodies(role.body, 0):
                roles = (*kernel.roles[:i], replace(role, body=body), *kernel.roles[i + 1 :])
                kernels = (*program.kernels[:k], replace(kernel, roles=roles), *program.kernels[k + 1 :])
                yield f"{kernel.name}/{role.name}/{what}", replace(program, kernels=kernels)


def _bodies(body: Sequence[Statement], first: int) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    """Every body that lacks one wait; `first` is the number of its first op in the role."""
    number = first
    for i, statement in enumerate(body):
        before, behind = tuple(body[:i]), tuple(body[i + 1 :])
        if isinstance(statement, Op):
            if statement.opcode in WAITS or statement.opcode in FENCES:
                yield f"{number} {statement.opcode}", before + behind
            for name in statement.after:
                left = tuple(n for n in statement.after if n != name)
                yield f"{number} {statement.opcode} after {name}", (*before, replace(statement, after=left), *behind)
            number += 1
        elif isinstance(statement, Loop):
            for what, inner in _bodies(statement.body, number):
                yield what, (*before, replace(statement, body=inner), *behind)
            number += sum(1 for _ in walk(statement.body))
