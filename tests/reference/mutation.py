"""Leaves every wait of a program out in turn and demands that somebody notices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.gpu.check.interpret import interpret
from sim.gpu.check.mutants import mutants
from sim.gpu.language import Program

Tensors = Mapping[str, NDArray[Any]]


def assert_mutants_caught(
    build: Callable[[], tuple[Program, Tensors, Tensors]],
    simulate: Callable[[Program], NDArray[np.int64]],
    redundant: Mapping[str, str] | None = None,
) -> int:
    """Fails unless every mutant deadlocks, violates a rule or computes something else; the number of mutants.

    build: (program, inputs, expected outputs). simulate: the event log of a program, RuntimeError on a deadlock.
    redundant: mutants that nobody can notice, each with the reason; one that is noticed after all, or does not exist,
    fails too, so that the list stays true.
    """
    program, inputs, expected = build()
    excused = dict(redundant or {})
    assert not check(program, simulate, inputs, expected), "the program itself does not pass"
    survivors, number = [], 0
    for what, mutant in mutants(program):
        number += 1
        caught = bool(check(mutant, simulate, inputs, expected))
        if not caught and what not in excused:
            survivors.append(what)
        if caught and what in excused:
            raise AssertionError(f"{what} is listed as redundant ({excused[what]}) but its removal is noticed")
        excused.pop(what, None)
    assert not excused, f"listed as redundant but no mutant: {sorted(excused)}"
    assert not survivors, f"nobody noticed that these were removed: {survivors}"
    return number


def check(
    program: Program, simulate: Callable[[Program], NDArray[np.int64]], inputs: Tensors, expected: Tensors
) -> list[str]:
    """What is wrong with a program: a deadlock, violations, or a result that differs from `expected`."""
    try:
        events = simulate(program)
    except RuntimeError as stuck:
        return [str(stuck)]
    result = interpret(program, events, inputs)
    wrong = [name for name, value in expected.items() if not np.array_equal(result.outputs[name], value)]
    return result.violations + [f"{name} differs from the expected result" for name in wrong]
