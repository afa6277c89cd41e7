"""Which lanes of a warp run, and where: branches, jumps, convergence barriers, ends; compiled.

Lanes that take another way than the rest wait on a stack until those come to a convergence barrier or end.
"""

from sim.engine.jit import inner
from sim.gpu.sass.lanes import fetch, lanes_of
from sim.gpu.sass.memory import blame
from sim.gpu.sass.tables import ALL_LANES, LANES, STACK, Cell, FaultKind, Scalar, Unit, Way
from sim.gpu.sass.text import INSTRUCTION_BYTES

ENDED = -1  # in place of a row: no lane is left


@inner(inline=True)
def active(x, w, row):
    """Lanes that run and for which the guard of a row holds."""
    guard = lanes_of(x, w, x.code[row, Cell.GUARD], x.code[row, Cell.GUARD + 1])
    return x.scalars[w, Scalar.ACTIVE] & guard


@inner
def following(x, st, w, row, mask):
    """The row that warp `w` goes on with behind one of control flow, ENDED without a lane left. mask: lanes that take
    part."""
    code, scalars = x.code, x.scalars
    unit = code[row, Cell.UNIT]
    running = scalars[w, Scalar.ACTIVE]
    if unit == Unit.BRANCH or unit == Unit.JUMP:
        mask &= lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1])
        if code[row, Cell.OPERATION] != Way.ASKED and unit == Unit.BRANCH:
            together = running | scalars[w, Scalar.EXITED] == ALL_LANES
            mask = running if together == (code[row, Cell.OPERATION] == Way.TOGETHER) else 0
        if mask == 0:
            return row + 1
        target = code[row, Cell.TARGET]
        if unit == Unit.JUMP:
            target, same = _jump(x, w, row, mask)
            if same != mask:  # the others come to this instruction again
                _push(x, st, w, row, row, mask & ~same)
                running, mask = running & ~mask | same, same
        if mask != running:
            _push(x, st, w, row, row + 1, running & ~mask)
        scalars[w, Scalar.ACTIVE] = mask
        return target
    if unit == Unit.BREAK:
        mask &= lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1])
        scalars[w, Scalar.BARRIER + code[row, Cell.OPERATION]] &= ~mask
        return row + 1
    if unit == Unit.BSSY:
        barrier = code[row, Cell.OPERATION]
        scalars[w, Scalar.BARRIER + barrier] = running
        scalars[w, Scalar.WAITING + barrier] = 0
        return row + 1
    if unit == Unit.BSYNC:
        return _converge(x, st, w, row, code[row, Cell.OPERATION])
    if unit == Unit.WARPSYNC:
        return _meet(x, st, w, row) if code[row, Cell.COUNT] != 0 else row + 1
    scalars[w, Scalar.EXITED] |= mask
    scalars[w, Scalar.ACTIVE] = running & ~mask
    if scalars[w, Scalar.ACTIVE] != 0:
        return row + 1
    return _pop(x, st, w, row)


@inner
def _jump(x, w, row, mask):
    """The row that the first lane of a mask jumps to, and the lanes that go there, too."""
    fetch(x, w, row, Cell.A, 0, LANES)
    target, same = -1, 0
    for lane in range(LANES):
        if (mask >> lane) & 1:
            to = ((x.operands[0, lane] + x.code[row, Cell.OFFSET]) & 0xFFFFFFFF) // INSTRUCTION_BYTES
            if target < 0:
                target = to
            same |= (1 if to == target else 0) << lane
    return target, same


@inner
def _converge(x, st, w, row, barrier):
    """All lanes that run have come to a convergence barrier."""
    scalars = x.scalars
    came = scalars[w, Scalar.WAITING + barrier] | scalars[w, Scalar.ACTIVE]
    scalars[w, Scalar.WAITING + barrier], scalars[w, Scalar.SYNC_ROW + barrier] = came, row
    if came | scalars[w, Scalar.EXITED] != scalars[w, Scalar.BARRIER + barrier] | scalars[w, Scalar.EXITED]:
        return _pop(x, st, w, row)
    scalars[w, Scalar.ACTIVE] = came
    scalars[w, Scalar.WAITING + barrier] = 0
    return row + 1


@inner
def _meet(x, st, w, row):
    """All lanes that run have come to where all of the warp meet."""
    scalars = x.scalars
    came = scalars[w, Scalar.MET] | scalars[w, Scalar.ACTIVE]
    if came | scalars[w, Scalar.EXITED] != ALL_LANES:
        scalars[w, Scalar.MET], scalars[w, Scalar.MET_ROW] = came, row
        return _pop(x, st, w, row)
    scalars[w, Scalar.ACTIVE] = came
    scalars[w, Scalar.MET] = 0
    return row + 1


@inner
def _push(x, st, w, row, target, mask):
    """Leaves lanes on the stack, to go on at row `target`."""
    scalars = x.scalars
    depth = scalars[w, Scalar.DEPTH]
    if depth > 0 and scalars[w, Scalar.STACK_PC + depth - 1] == target:  # lanes that leave a loop one after the other
        scalars[w, Scalar.STACK_MASK + depth - 1] |= mask
        return
    if depth == STACK:
        blame(x, st, w, row, FaultKind.DIVERGENCE, 0, 0)
        return
    scalars[w, Scalar.STACK_PC + depth] = target
    scalars[w, Scalar.STACK_MASK + depth] = mask
    scalars[w, Scalar.DEPTH] = depth + 1


@inner
def _pop(x, st, w, row):
    """The lanes that were left last go on, or those whose wait is over since others have left or ended; returns their
    row, ENDED without any."""
    scalars = x.scalars
    exited = scalars[w, Scalar.EXITED]
    for barrier in range(16):
        came = scalars[w, Scalar.WAITING + barrier]
        if came != 0 and came | exited == scalars[w, Scalar.BARRIER + barrier] | came | exited:
            scalars[w, Scalar.ACTIVE], scalars[w, Scalar.WAITING + barrier] = came, 0
            return scalars[w, Scalar.SYNC_ROW + barrier] + 1
    if scalars[w, Scalar.MET] != 0 and scalars[w, Scalar.MET] | exited == ALL_LANES:
        scalars[w, Scalar.ACTIVE], scalars[w, Scalar.MET] = scalars[w, Scalar.MET], 0
        return scalars[w, Scalar.MET_ROW] + 1
    depth = scalars[w, Scalar.DEPTH] - 1
    if depth < 0:
        if scalars[w, Scalar.MET] != 0:
            blame(x, st, w, row, FaultKind.DIVERGENCE, 0, 0)
        for barrier in range(16):
            if scalars[w, Scalar.WAITING + barrier] != 0:
                blame(x, st, w, row, FaultKind.DIVERGENCE, 0, 0)
        return ENDED
    scalars[w, Scalar.DEPTH] = depth
    scalars[w, Scalar.ACTIVE] = scalars[w, Scalar.STACK_MASK + depth]
    return scalars[w, Scalar.STACK_PC + depth]
