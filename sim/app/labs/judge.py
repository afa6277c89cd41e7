"""What graders share: answers as the kind of thing that was asked for, and programs as they run.

A kernel is judged by three things. Its result: the schedule is replayed with numbers at a small size and compared with
the grader's own reference. Its cycles and its counters at a larger size. What it consists of, where the question
says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from arch.errors import InputError
from sim.app.labs import NOT_ANSWERED, Answers, Wrong
from sim.app.report.report import Report
from sim.app.run import simulate
from sim.gpu.language import Program
from sim.gpu.language.program import Op, walk


def call(answers: Answers, name: str, *arguments: Any) -> Any:
    """What a function of the answers returns; Wrong where it is none or refuses."""
    function: Callable[..., Any] = answers[name]
    if not callable(function):
        raise Wrong(f"{name} has to be a function")
    try:
        return function(*arguments)
    except InputError as error:
        raise Wrong(str(error)) from None


def number(value: Any, name: str) -> float:
    """A finite number of Python or NumPy."""
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()
    if value is None or value is ...:
        raise Wrong(f"{name} is {NOT_ANSWERED}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"{name} has to be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise Wrong(f"{name} has to be a finite number")
    return float(value)


def power_of_two(value: Any, name: str, largest: int) -> int:
    """A power of two from 2 to `largest`."""
    if not isinstance(value, int) or not 1 < value <= largest or value & (value - 1):
        raise Wrong(f"{name} has to be a power of two between 2 and 2**{largest.bit_length() - 1}")
    return value


def agrees(
    answers: Answers, name: str, right: Callable[..., float], cases: Sequence[tuple[Any, ...]], hint: str
) -> None:
    """A function gives what it should, to 1 %, for each case."""
    for case in cases:
        shown = f"{name}({', '.join(map(str, case))})"
        found = number(call(answers, name, *case), shown)
        expected = right(*case)
        if abs(found - expected) > 0.01 * abs(expected):
            raise Wrong(f"{shown} is {found:.6g}: {hint}")


def ran(program: Any, machine: str, **options: Any) -> Report:
    """A run; what a machine refuses is a hint."""
    try:
        return simulate(program, machine, **options)
    except InputError as error:
        raise Wrong(str(error)) from None


def gpu_program(
    answers: Answers, name: str, arguments: Sequence[Any], shapes: Sequence[tuple[int, ...]],
    reference: Callable[..., Any],
) -> Program:  # fmt: skip
    """The program that a function of the answers makes, with the grader's reference.

    shapes: of its inputs and then of its one output, which is what `reference` computes from the inputs.
    """
    program = call(answers, name, *arguments)
    if program is None:
        raise Wrong(f"{name} returns nothing: {NOT_ANSWERED}")
    if not isinstance(program, Program):
        raise Wrong(f"{name} has to return a Program, not {type(program).__name__}")
    inputs = [tensor.shape for tensor in program.tensors if tensor.role == "input"]
    outputs = [tensor.shape for tensor in program.tensors if tensor.role == "output"]
    if [*inputs, *outputs] != [*shapes] or len(outputs) != 1:
        raise Wrong(f"{name}: its inputs and its output have to be {', '.join(map(str, shapes))}, in this order")
    return replace(program, reference=reference, tolerance=None)


def checked(program: Program, machine: str) -> None:
    """The schedule computes what it should and breaks no rule; else Wrong with the first finding."""
    report = ran(program, machine, check=True)
    found = report.record.check
    if found is None or not found.passed:
        wrong = next(iter(report.record.notes), "the result is not that of the reference")
        raise Wrong(f"the check of your kernel does not pass: {wrong}")


def opcodes(program: Program) -> set[str]:
    """What a program's kernels consist of."""
    return {op.opcode for op in ops(program)}


def ops(program: Program) -> list[Op]:
    """All ops of a program's kernels."""
    return [op for kernel in program.kernels for role in kernel.roles for op in walk(role.body)]


def counter(report: Report, name: str) -> int:
    """A counter of a run, 0 where it was not counted."""
    return report.figures.counters.get(name, 0)
