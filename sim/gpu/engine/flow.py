"""Control flow of a warp: loops and assignments."""

from enum import IntEnum

from sim.engine.jit import inner
from sim.gpu.engine.expressions import evaluate
from sim.gpu.lower.tables import Col, Kind, WarpVariables
from sim.gpu.units.warp import Warp


class Trips(IntEnum):
    """Columns of the chip's row."""

    LEFT = 27  # of all loops, that the limit of a program's length leaves; then no loop has another one


@inner(inline=True)
def control(prog, st, w, pc, kind):
    """LOOP, NEXT and ASSIGN: of warp `w` alone, and no time."""
    code, warps = prog.code, st.warps
    variable = WarpVariables.FIRST + code[pc, Col.VAR]
    trips = WarpVariables.FIRST + code[pc, Col.VAR2]
    following = pc + 1
    if kind == Kind.NEXT:
        warps[w, trips] -= 1
        if warps[w, trips] > 0 and st.chip[Trips.LEFT] > 0:
            st.chip[Trips.LEFT] -= code[pc, Col.COUNT]
            warps[w, variable] += evaluate(prog, warps, st.stack, w, code[pc, Col.STEP])
            following = code[pc, Col.JUMP]
    elif kind == Kind.LOOP:
        count = evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
        if count > 0:
            warps[w, variable] = evaluate(prog, warps, st.stack, w, code[pc, Col.START])
            warps[w, trips] = count
        else:
            following = code[pc, Col.JUMP]
    else:
        warps[w, variable] = evaluate(prog, warps, st.stack, w, code[pc, Col.ARG])
    warps[w, Warp.PROGRAM_COUNTER] = following
