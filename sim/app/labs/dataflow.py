"""Lab 8, dataflow and metapipelines: the pace of stages, a softmax and a product as graphs, who gets the units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.load import load_arch
from sim.app.labs import NOT_ANSWERED, Answers, Task, Wrong, judge
from sim.app.report.report import Report
from sim.rdu.engine import run_section
from sim.rdu.program import Call, Counter, Out, Program, Section, Tensor

Array = NDArray[np.floating]

MACHINE = "sn40l"
TOKENS = 40
PIPELINES = ((1000, 1000, 1000), (500, 2000, 1000), (3000, 500), (800, 900, 100, 2000))
"""Cycles of each stage."""
AGREES = 0.05
WORK, UNITS = (4096, 1024, 2048), 14
ROWS, SMALL_ROWS, COLUMNS = 4096, 256, 512
SOFTMAX_CYCLES, SOFTMAX_PCUS = 30_000, 40
M, N, K = 1024, 768, 512
SMALL_M = 256
PRODUCT_CYCLES = 50_000


def timed(times: Sequence[int], tokens: int, depth: int) -> int:
    """Cycles of a pipeline of stages that take a known time, with buffers of `depth` tokens between them."""
    section, i = Section("timed"), Counter("i", tokens)
    x = Tensor("x", (tokens * 16, 32), "bf16")
    y = Tensor("y", (tokens * 16, 32), "bf16", "output")
    token = Out((16, 32), "bf16", (i,))
    value: Any = section.load("load", x, (i * 16, 0), (16, 32), (i,)).read(depth=8)
    for number, cycles in enumerate(times):
        made = section.timed(f"stage_{number}", (i,), {"x": value}, token, interval_cycles=cycles)
        value = made.read(depth=depth if number < len(times) - 1 else 8)
    section.store("store", y, (i * 16, 0), value, (i,))
    program = Program("timed", (Call(section),), "by hand")
    return run_section(section, load_arch(MACHINE), program.addresses()).ticks // 256  # type: ignore[arg-type]


def pace(answers: Answers) -> None:
    """`overlapped(times, tokens)` and `taking_turns(times, tokens)`: pipelines with two buffers, and with one."""
    for name, depth in (("overlapped", 2), ("taking_turns", 1)):
        for times in PIPELINES:
            found = judge.number(judge.call(answers, name, times, TOKENS), f"{name}({times}, {TOKENS})")
            right = timed(times, TOKENS, depth)
            if abs(found / right - 1) > AGREES:
                raise Wrong(f"{name}({times}, {TOKENS}) is {found:g}, the machine takes {right}")


def balance(answers: Answers) -> None:
    """`units`: how many units each of three stages gets."""
    units = answers["units"]
    if not isinstance(units, tuple) or len(units) != 3 or not all(isinstance(n, int) and n > 0 for n in units):
        raise Wrong("units has to be three numbers from 1 on")
    if sum(units) > UNITS:
        raise Wrong(f"{sum(units)} units are more than {UNITS}")
    slowest = max(work / n for work, n in zip(WORK, units, strict=True))
    if slowest > min(WORK) / 2:
        raise Wrong(f"with {units} a token comes every {slowest:.0f} cycles: which stage do all others wait for?")


# ------------------------------------------------------------------------------------------------ programs


def _program(answers: Answers, name: str, arguments: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> Program:
    program = judge.call(answers, name, *arguments)
    if program is None:
        raise Wrong(f"{name} returns nothing: {NOT_ANSWERED}")
    if not isinstance(program, Program):
        raise Wrong(f"{name} has to return a Program of sim.rdu.program, not {type(program).__name__}")
    inputs = [tensor.shape for tensor in program.tensors if tensor.role == "input"]
    outputs = [tensor.shape for tensor in program.tensors if tensor.role == "output"]
    if sorted([*inputs, *outputs]) != sorted(shapes) or len(outputs) != 1:
        raise Wrong(f"{name}: its inputs and its output have to be {', '.join(map(str, shapes))}")
    return program


def _checked(program: Program, reference: Any) -> None:
    report = judge.ran(replace(program, reference=reference, tolerance=None), MACHINE, check=True)
    if report.record.check is None or not report.record.check.passed:
        wrong = next(iter(report.record.notes), "the result is not that of the reference")
        raise Wrong(f"the check of your program does not pass: {wrong}")


def _section(program: Program) -> tuple[int, int]:
    """Cycles of its section, launch and configuration left out, and bytes that it reads from memory."""
    if len(program.calls) != 1:
        raise Wrong("your program has to be one call of one section")
    found = run_section(program.calls[0].section, load_arch(MACHINE), program.addresses())  # type: ignore[arg-type]
    return found.ticks // 256, sum(found.read_bytes.values())


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _pcus(report: Report) -> int:
    return sum(stage.pcus for stage in report.record.kernels[0].own.stages)


def softmax(answers: Answers) -> int:
    """`softmax(rows, cols)`: two stages with buffers between them, and enough units."""
    _checked(_program(answers, "softmax", (SMALL_ROWS, COLUMNS), [(SMALL_ROWS, COLUMNS)] * 2), _softmax)
    program = _program(answers, "softmax", (ROWS, COLUMNS), [(ROWS, COLUMNS)] * 2)
    pcus, (cycles, _) = _pcus(judge.ran(program, MACHINE)), _section(program)
    if pcus > SOFTMAX_PCUS:
        raise Wrong(f"your stages take {pcus} PCUs; {SOFTMAX_PCUS} have to do")
    if cycles > SOFTMAX_CYCLES:
        raise Wrong(f"your section takes {cycles} cycles, {SOFTMAX_CYCLES} are enough: what do its stages wait for?")
    return cycles


def product(answers: Answers) -> int:
    """`product(m, n, k)`: relu(A B), each number of A and B read once."""
    small = [(SMALL_M, K), (K, N), (SMALL_M, N)]
    _checked(_program(answers, "product", (SMALL_M, N, K), small), lambda a, b: np.maximum(a @ b, 0))
    program = _program(answers, "product", (M, N, K), [(M, K), (K, N), (M, N)])
    (cycles, read), least = _section(program), 2 * (M * K + K * N)
    if read > least:
        raise Wrong(f"your section reads {read / least:.2f} times A and B: over which counters is each of them loaded?")
    if cycles > PRODUCT_CYCLES:
        raise Wrong(f"your section takes {cycles} cycles, {PRODUCT_CYCLES} are enough: how many units multiply?")
    return cycles


TASKS = (
    Task("the pace of a pipeline", 3, ("overlapped", "taking_turns"), pace),
    Task("who gets the units", 2, ("units",), balance),
    Task("a softmax as a pipeline", 4, ("softmax",), softmax),
    Task("a product that reads once", 4, ("product",), product),
)
