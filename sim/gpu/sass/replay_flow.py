"""Which lanes of a warp run, and where, in a replay with values: branches, calls, convergence barriers, ends.

Lanes that take another way wait on a stack until those before them wait or end. Each lane has convergence barriers of
its own, as code of two ways that have the same barrier's name needs it: a mask of the lanes that it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.sass.forms import Form
from sim.gpu.sass.operands import Kind
from sim.gpu.sass.tables import LANES, Unit
from sim.gpu.sass.text import INSTRUCTION_BYTES

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

Lanes = NDArray[np.bool_]
FLOW = (Unit.BRANCH, Unit.JUMP, Unit.CALL, Unit.BSSY, Unit.BSYNC, Unit.BREAK, Unit.WARPSYNC, Unit.EXIT)
_BITS = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
_ALL = np.uint32(0xFFFFFFFF)
_NOWHERE = -1


def bits(lanes: Lanes) -> np.uint32:
    """Lanes as a mask."""
    return np.uint32(_BITS[lanes].sum())


def lanes_of(mask: np.uint32) -> Lanes:
    """The lanes of a mask."""
    found: Lanes = mask & _BITS != 0
    return found


class Paths:
    """Paths of a warp that wait for their turn. left: rows and lanes, the last ones go on first. barriers: by number
    and lane, the lanes that it waits for. syncs: rows at which lanes wait for others, with `awaited`, whom."""

    def __init__(self) -> None:
        self.left: list[tuple[int, Lanes]] = []
        self.barriers = np.zeros((16, LANES), dtype=np.uint32)
        self.syncs = np.full(LANES, _NOWHERE, dtype=np.int64)
        self.awaited = np.zeros(LANES, dtype=np.uint32)
        self.numbers = np.zeros(LANES, dtype=np.int64)

    def wait(self, warp: WarpValues, masks: NDArray[np.uint32], number: int) -> None:
        """Lanes that run wait for the lanes of their masks to come to a barrier of this number, too."""
        self.syncs[warp.active] = warp.row
        self.awaited[warp.active] = masks[warp.active] | _BITS[warp.active]
        self.numbers[warp.active] = number
        warp.active = np.zeros(LANES, dtype=bool)

    def go_on(self, warp: WarpValues) -> bool:
        """The lanes that go on; False when none is left. InputError where lanes wait for each other."""
        for lane in np.flatnonzero(self.syncs >= 0):
            expected = lanes_of(self.awaited[lane]) & ~warp.exited
            here = (self.syncs >= 0) & (self.numbers == self.numbers[lane])
            if (here | ~expected).all():
                warp.row = int(self.syncs[lane]) + 1
                for row in set(self.syncs[expected].tolist()) - {warp.row - 1}:
                    self.left.append((row + 1, expected & (self.syncs == row)))
                warp.active = expected & (self.syncs == warp.row - 1)
                self.syncs[expected] = _NOWHERE
                return True
        if self.left:
            warp.row, warp.active = self.left.pop()
            return True
        if (self.syncs >= 0).any():
            raise InputError(f"row {int(self.syncs.max())}: lanes wait for lanes of their warp that never come")
        return False


def flow(warp: WarpValues, form: Form, target: int | None) -> bool:
    """Where a warp goes on behind an instruction of control flow, whose lanes are in its mask; False at its end."""
    unit, row, paths = form.opcode.unit, warp.row, warp.paths
    name = next((int(o.text[1:]) for o in form.sources if o.kind is Kind.NAME and o.text[0] == "B"), 0)
    warp.row = row + 1
    if unit is Unit.CALL:
        if warp.mask.any():
            raise InputError(f"{form.instruction.place}: {form.instruction}: calls of other kernels' code")
    elif unit in (Unit.BRANCH, Unit.JUMP):
        taken = _taken(warp, form)
        if unit is Unit.JUMP and taken.any():
            targets = _targets(warp, form)
            target = int(targets[np.argmax(taken)])
            taken, others = taken & (targets == target), taken & (targets != target)
            if others.any():
                paths.left.append((row, others))
                warp.active = warp.active & ~others
        if taken.any():
            if (taken != warp.active).any():
                paths.left.append((row + 1, warp.active & ~taken))
                warp.active = taken
            assert target is not None
            warp.row = target
    elif unit is Unit.BSSY:
        paths.barriers[name, warp.active] = bits(warp.active)
    elif unit is Unit.BREAK:
        leaving = warp.mask & (warp.predicate(form.inputs[0]) if form.inputs else True)
        masks = paths.barriers[name]
        for lane in np.flatnonzero(leaving):
            masks[lanes_of(masks[lane])] &= ~_BITS[lane]
            paths.awaited[(paths.syncs >= 0) & (paths.numbers == name)] &= ~_BITS[lane]
    elif unit is Unit.BSYNC:
        warp.row = row
        paths.wait(warp, paths.barriers[name], name)
        return paths.go_on(warp)
    elif unit is Unit.WARPSYNC:
        given = [o for o in form.sources if o.kind in (Kind.REGISTER, Kind.IMMEDIATE)]
        warp.row = row
        paths.wait(warp, warp.word(given[0]) if given else np.full(LANES, _ALL), _NOWHERE)
        return paths.go_on(warp)
    else:
        warp.exited = warp.exited | warp.mask
        warp.active = warp.active & ~warp.mask
        return bool(warp.active.any()) or paths.go_on(warp)
    return True


def _taken(warp: WarpValues, form: Form) -> Lanes:
    """Lanes that a branch takes with it: by its predicates, or all that run where those for which they hold are (CONV)
    or are not (DIV) all that a mask names."""
    if "CONV" not in form.parts and "DIV" not in form.parts:
        return warp.mask & warp.predicate(form.inputs[0]) if form.inputs else warp.mask
    named = [o for o in form.sources if o.kind is Kind.UNIFORM]
    awaited = lanes_of(warp.word(named[0])[0]) if named else np.ones(LANES, dtype=bool)
    together = not ((awaited & ~warp.exited) ^ warp.mask).any()
    return warp.active & (together == ("CONV" in form.parts))


def _targets(warp: WarpValues, form: Form) -> NDArray[np.int64]:
    """Rows that the lanes of a jump go to: relative to what follows it, or to the begin of the kernel."""
    found = warp.word(form.sources[0]).view(np.int32).astype(np.int64)
    added = sum(o.value for o in form.sources[1:] if o.kind is Kind.IMMEDIATE)
    if form.parts[0] in ("BRX", "BRXU"):
        added += form.instruction.address + INSTRUCTION_BYTES
    return (found + added) // INSTRUCTION_BYTES
