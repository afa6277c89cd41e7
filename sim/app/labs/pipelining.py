"""Lab 3, pipelining: copies that run ahead, by cp.async on Ampere and by a producer warp and the TMA on Hopper."""

from __future__ import annotations

from functools import cache
from typing import Any

from sim.app.labs import Answers, Task, Wrong, judge
from sim.app.report.report import Report
from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile

AMPERE, HOPPER = "a100-sxm4-80gb", "h100-sxm"
COLUMNS, TILE_ROWS, STEPS = 256, 4, 48
SMS = {AMPERE: 108, HOPPER: 132}
CTAS, SMALL_STEPS = 4, 8
"""Of the run whose numbers are compared."""
STAGES = 4
CYCLES_OVER_SERIAL = 0.6
SPARE_BYTES = 256 << 10
CASES = ((1000, 100, 1), (1000, 100, 4), (1000, 100, 16), (600, 40, 3), (300, 500, 2))
ENOUGH_GAIN = 0.05


def _step(latency: float, work: float, stages: int) -> float:
    return max(work, (latency + work) / stages)


def law(answers: Answers) -> None:
    """`cycles_a_step(latency, work, stages)`: the pace of a pipeline."""
    hint = "which of the two limits holds, and how often does one buffer come round?"
    judge.agrees(answers, "cycles_a_step", _step, CASES, hint)


def serial(rows: int, ctas: int) -> Program:
    """The kernel of the notebook: one buffer, one step after the other."""
    x, y = (GlobalTensor(n, (rows, COLUMNS), "fp32", (COLUMNS, 1), r) for n, r in (("x", "input"), ("y", "output")))
    kernel = KernelBuilder("serial", grid=(ctas, 1, 1))
    tile = kernel.shared("tile", (TILE_ROWS, COLUMNS), "fp32")
    steps = rows // TILE_ROWS // ctas
    with kernel.role("warps", warps=TILE_ROWS, registers=64) as r:
        numbers = RegisterTile("numbers", (1, COLUMNS), "fp32")
        with r.loop("step", steps) as step:
            row = (CTA_X * steps + step) * TILE_ROWS + WARP
            r.cp_async(tile[0, WARP:1, :], x[row:1, :], vector_bytes=16)  # type: ignore[misc]
            r.cp_commit()
            r.cp_wait(0)
            r.bar_sync(0, TILE_ROWS)
            r.lds(numbers.whole, tile[0, WARP:1, :], vector_bytes=16)  # type: ignore[misc]
            r.run("ffma", 8, dtype="fp32", dst=numbers.whole, srcs=(numbers.whole,), compute=lambda _, v: 2 * v + 1)
            r.stg(y[row:1, :], numbers.whole, vector_bytes=16)  # type: ignore[misc]
            r.bar_sync(0, TILE_ROWS)
    return Program("scale", (x, y), (kernel.build(),), "serial")


def _rows(ctas: int, steps: int) -> int:
    return TILE_ROWS * ctas * steps


def _made(answers: Answers, name: str, stages: int, ctas: int, steps: int) -> Program:
    rows = _rows(ctas, steps)
    shape = (rows, COLUMNS)
    return judge.gpu_program(answers, name, (rows, stages, ctas), [shape, shape], lambda x: 2 * x + 1)


def _timed(answers: Answers, name: str, machine: str, stages: int) -> Report:
    """The kernel at full size: as many CTAs as there are SMs, each row read once."""
    program = _made(answers, name, stages, SMS[machine], STEPS)
    report = judge.ran(program, machine)
    ctas = judge.counter(report, "ctas")
    if ctas != SMS[machine]:
        raise Wrong(f"{name} starts {ctas} CTAs, not the {SMS[machine]} that it was asked for")
    size = 4 * COLUMNS * _rows(SMS[machine], STEPS)
    found = judge.counter(report, "l2_read_bytes")
    if found > size + SPARE_BYTES:
        raise Wrong(f"{name} reads {found / size:.2f} times the matrix; each row is needed once")
    return report


def _refused(program: Program, opcode: str, name: str) -> None:
    if opcode not in judge.opcodes(program):
        raise Wrong(f"{name} has no {opcode}")


@cache
def _serial_cycles() -> int:
    return judge.ran(serial(_rows(SMS[AMPERE], STEPS), SMS[AMPERE]), AMPERE).cycles


def pipelined(answers: Answers) -> int:
    """`pipelined(rows, stages, ctas)`: copies by cp.async that run ahead."""
    for stages in (2, 3):
        program = _made(answers, "pipelined", stages, CTAS, SMALL_STEPS)
        _refused(program, "cp_async", "pipelined")
        judge.checked(program, AMPERE)
    cycles = _timed(answers, "pipelined", AMPERE, STAGES).cycles
    if cycles > CYCLES_OVER_SERIAL * _serial_cycles():
        share = cycles / _serial_cycles()
        raise Wrong(
            f"with {STAGES} stages your kernel takes {share:.2f} times the cycles of `serial`: what does it wait for?"
        )
    return cycles


@cache
def _depths() -> dict[int, tuple[int, str]]:
    """Cycles and bound of a right kernel, by depth."""
    right: dict[str, Any] = {"pipelined": _right}
    found = {stages: _timed(right, "pipelined", AMPERE, stages) for stages in (2, 3, 4, 5, 8, 9)}
    return {stages: (report.cycles, report.bound) for stages, report in found.items()}


def _right(rows: int, stages: int, ctas: int) -> Program:
    x, y = (GlobalTensor(n, (rows, COLUMNS), "fp32", (COLUMNS, 1), r) for n, r in (("x", "input"), ("y", "output")))
    kernel = KernelBuilder("pipelined", grid=(ctas, 1, 1))
    tile = kernel.shared("tile", (TILE_ROWS, COLUMNS), "fp32", stages)
    steps = rows // TILE_ROWS // ctas
    with kernel.role("warps", warps=TILE_ROWS, registers=64) as r:
        numbers = RegisterTile("numbers", (1, COLUMNS), "fp32")

        def load(step: Any) -> None:
            with r.when(step < steps):
                row = (CTA_X * steps + step) * TILE_ROWS + WARP
                r.cp_async(tile[step % stages, WARP:1, :], x[row:1, :], vector_bytes=16)  # type: ignore[misc]
            r.cp_commit()

        with r.loop("first", stages - 1) as first:
            load(first)
        with r.loop("step", steps) as step:
            r.cp_wait(stages - 2)
            r.bar_sync(0, TILE_ROWS)
            load(step + stages - 1)
            r.lds(numbers.whole, tile[step % stages, WARP:1, :], vector_bytes=16)  # type: ignore[misc]
            r.run("ffma", 8, dtype="fp32", dst=numbers.whole, srcs=(numbers.whole,), compute=lambda _, v: 2 * v + 1)
            r.stg(y[(CTA_X * steps + step) * TILE_ROWS + WARP : 1, :], numbers.whole, vector_bytes=16)  # type: ignore[misc]
    return Program("scale", (x, y), (kernel.build(),), f"{stages} stages")


def enough(answers: Answers) -> None:
    """`enough`, `limit`: the depth that suffices, and what limits from there on."""
    stages = judge.power_of_two(answers["enough"], "enough", 8)
    cycles, bound = _depths()[stages]
    if _depths()[stages + 1][0] < (1 - ENOUGH_GAIN) * cycles:
        raise Wrong(f"one stage more than {stages} still brings more than {ENOUGH_GAIN:.0%}")
    if stages > 2 and _depths()[stages // 2 + 1][0] >= (1 - ENOUGH_GAIN) * _depths()[stages // 2][0]:
        raise Wrong(f"fewer than {stages} stages are enough")
    if answers["limit"] != bound:
        raise Wrong(f"limit = {answers['limit']!r} is not what `report.bound` says with {stages} stages")


def with_tma(answers: Answers) -> int:
    """`with_tma(rows, stages, ctas)`: a producer warp, the TMA, and a ring."""
    program = _made(answers, "with_tma", 3, CTAS, SMALL_STEPS)
    _refused(program, "tma_load", "with_tma")
    if len(program.kernels[0].roles) < 2:
        raise Wrong("with_tma has one role: who loads while the others compute?")
    judge.checked(program, HOPPER)
    one, four = (_timed(answers, "with_tma", HOPPER, stages).cycles for stages in (1, STAGES))
    if four > CYCLES_OVER_SERIAL * one:
        raise Wrong(f"with {STAGES} stages your kernel takes {four / one:.2f} times the cycles of one stage")
    if one > 1.2 * _tma_serial():
        raise Wrong(f"with one stage your kernel takes {one} cycles; {_tma_serial()} are enough")
    return four


@cache
def _tma_serial() -> int:
    return judge.ran(serial(_rows(SMS[HOPPER], STEPS), SMS[HOPPER]), HOPPER).cycles


TASKS = (
    Task("the pace of a pipeline", 2, ("cycles_a_step",), law),
    Task("a pipeline with cp.async", 4, ("pipelined",), pipelined),
    Task("how deep is deep enough", 2, ("enough", "limit"), enough),
    Task("a producer and the TMA", 4, ("with_tma",), with_tma),
)
