"""The listing of a compiled kernel: its instructions with the compiler's control words, and what they take.

A line: `00f0   4y w2 after 0,3   LDG.E.128 R8, [R4.64]   lsu 4/38`: address, cycles to the warp's next instruction (y:
another warp is to go next), scoreboards of result and operands, those that it waits for; then the pipe, the cycles for
which the instruction holds it and its latency. `*`: the lanes' results are computed, since addresses, masks or branches
depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.lower.tables import Pipe
from sim.gpu.sass.cubin import CompiledKernel
from sim.gpu.sass.lower import Lowered
from sim.gpu.sass.tables import Cell, Meaning
from sim.gpu.sass.text import Control, Instruction

_WIDTH = 64


def listing(compiled: CompiledKernel, lowered: Lowered) -> list[str]:
    """A line each instruction, with the lines of the source and the labels between them."""
    labels: dict[int, list[str]] = {}
    for name, at in compiled.function.labels.items():
        labels.setdefault(at, []).append(name)
    found, place = [], ""
    for instruction, row in zip(compiled.function.instructions, lowered.code, strict=True):
        here = f"{instruction.file}:{instruction.line}" if instruction.line else ""
        if here and here != place:
            found.append(f"  {here}")
        place = here or place
        found += [f"{label}:" for label in labels.get(instruction.address, [])]
        found.append(_line(instruction, row))
    return found


def _line(instruction: Instruction, row: np.ndarray) -> str:
    computed = "*" if row[Cell.MEANING] != Meaning.NONE or row[Cell.KEEPS] else " "
    words = " ".join(_control(instruction.control))
    text = f"{computed} {instruction}"
    return f"    {instruction.address:04x}  {words:24} {text:{_WIDTH}}  {_cost(row)}".rstrip()


def _control(control: Control) -> Iterator[str]:
    yield f"{control.stall:2}{'y' if control.gives_way else ' '}"
    yield f"w{control.write}" if control.write >= 0 else "  "
    yield f"r{control.read}" if control.read >= 0 else "  "
    yield "after " + ",".join(str(i) for i in range(6) if control.wait >> i & 1) if control.wait else ""


def _cost(row: np.ndarray) -> str:
    pipe = Pipe(row[Cell.PIPE]).name.lower() if row[Cell.PIPE] >= 0 else ""
    interval, latency = (f"{row[cell] / TICKS_PER_CYCLE:g}" for cell in (Cell.INTERVAL, Cell.LATENCY))
    return f"{pipe} {interval}/{latency}" if pipe else (f"latency {latency}" if row[Cell.LATENCY] else "")
