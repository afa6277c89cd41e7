"""Boxes of global tensors: a warp's walk over one, a line at a time."""

from enum import IntEnum

from sim.engine.jit import inner
from sim.gpu.engine.expressions import evaluate
from sim.gpu.lower.tables import Box


class Walk(IntEnum):
    """Columns of a warp's row: the box that it has located last, and how far the walk over it has come."""

    BASE = 16  # byte address
    ROWS = 17
    ROW_BYTES = 18
    ROW_STRIDE = 19
    ROW = 20
    OFFSET = 21
    DONE = 23  # latest completion of its lines


@inner(inline=True)
def locate_box(prog, warps, stack, w, box):
    """Resolves a box of a global tensor for warp `w` and starts its walk: address, rows, bytes a row, stride.

    Clipped at the tensor's edges.
    """
    boxes = prog.boxes
    rows = 1
    row_stride = 0
    row_bytes = 0
    address = boxes[box, Box.BASE]
    element = boxes[box, Box.ELEMENT]
    for d in range(boxes[box, Box.DIMS]):
        at = Box.EXPR0 + 4 * d
        offset = evaluate(prog, warps, stack, w, boxes[box, at])
        stride = boxes[box, at + 1]
        shape = boxes[box, at + 2]
        extent = boxes[box, at + 3]
        lo = max(offset, 0)
        n = min(offset + extent, shape) - lo
        if n < 0:
            n = 0
        address += lo * stride
        if d == boxes[box, Box.COL_DIM]:
            row_bytes = n * element
        elif d == boxes[box, Box.ROW_DIM]:
            rows = n
            row_stride = stride
        elif n == 0:
            rows = 0
    if row_bytes == 0:
        rows = 0
    if rows > 1 and row_stride == row_bytes:  # dense: one long row
        row_bytes *= rows
        rows = 1
    warps[w, Walk.BASE] = address
    warps[w, Walk.ROWS] = rows
    warps[w, Walk.ROW_BYTES] = row_bytes
    warps[w, Walk.ROW_STRIDE] = row_stride
    warps[w, Walk.ROW] = 0
    warps[w, Walk.OFFSET] = 0
