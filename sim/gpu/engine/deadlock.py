"""What is said of a kernel that cannot go on: which warps wait for what, and the lines that wrote those waits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.gpu.engine.state import GpuState
from sim.gpu.language.program import Kernel, Op, walk
from sim.gpu.units.cta import Cta
from sim.gpu.units.warp import Block, Warp


class DeadlockError(RuntimeError):
    """No event is left and warps still wait: a program that synchronises wrongly.

    The message names what each waits for, and the file and line of the op.
    """


def waiting(kernel: Kernel, state: GpuState) -> str:
    """What the parked warps of the first live CTA wait for, in one line; warps at one op together."""
    live = np.flatnonzero(state.ctas[:, Cta.ACTIVE] == 1)
    if not len(live):
        return f"kernel {kernel.name} deadlocks: clusters are left and no SM can take one"
    row = state.ctas[live[0]]
    ops = [(role.name, op) for role in kernel.roles for op in walk(role.body)]
    found: dict[str, list[int]] = {}
    for w in range(row[Cta.FIRST_WARP], row[Cta.FIRST_WARP] + kernel.warps):
        warp = state.warps[w]
        if warp[Warp.BLOCK]:
            number = int(warp[Warp.BLOCK_OP])
            role, op = ops[number] if number >= 0 else ("", None)
            at = f" ({role}, {op.opcode} at {op.line})" if op else ""
            found.setdefault(f"{_what(kernel, warp, op)}{at}", []).append(int(warp[Warp.NUMBER]))
    waits = "; ".join(f"{_warps(numbers)} {what}" for what, numbers in found.items())
    return f"kernel {kernel.name} deadlocks: CTA ({row[Cta.X]}, {row[Cta.Y]}, {row[Cta.Z]}): {waits}"


def _what(kernel: Kernel, warp: NDArray[np.int64], op: Op | None) -> str:
    what, value = int(warp[Warp.BLOCK_WHAT]), int(warp[Warp.BLOCK_VALUE])
    match Block(warp[Warp.BLOCK]):
        case Block.MBARRIER:
            return f"at mbarrier {_barrier(kernel, what)} for phase {value}"
        case Block.BAR_SYNC:
            return f"at bar_sync {what}" + (f" for {op.value} warps" if op else "")
        case Block.FLAG:
            return f"at flag {what} for {value}"
        case block:
            return f"at {block.name.lower()}"


def _barrier(kernel: Kernel, number: int) -> str:
    """The name and stage of the CTA's mbarrier of a number: they are counted in the order of declaration."""
    for barrier in kernel.barriers:
        if number < barrier.stages:
            return f"{barrier.name}[{number}]"
        number -= barrier.stages
    return str(number)


def _warps(numbers: list[int]) -> str:
    """Numbers in ascending order, neighbours as ranges: `warps 0-3, 8`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    shown = ", ".join("-".join(map(str, span)) for span in spans)
    return f"warp{'s' if len(numbers) > 1 else ''} {shown}"
