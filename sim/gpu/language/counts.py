"""How many warp instructions an op needs for what its views say that it moves or computes.

The builder takes this number where none is stated, and refuses a smaller one: an op that moved more bytes than its
instructions carry would be faster than any hardware. A larger one is the author's to state: vectors that lie across an
edge, lanes that are switched off, what a compiler really emits.
"""

from __future__ import annotations

import math
import re

from sim.gpu.language.meanings import multiplied
from sim.gpu.language.ops import Space, Unit
from sim.gpu.language.program import Op
from sim.gpu.language.tensors import View

WARP_LANES = 32
WIDTHS = (1, 2, 4, 8, 16, 32)
"""Bytes that a thread loads or stores at once."""

MATRIX_BYTES = 512
"""Of one ldmatrix.x4 or stmatrix.x4: four 8 x 8 matrices of 2 B."""

TENSOR_BYTES = 128 * 128
"""Of one tcgen05.ld or st: the 32 lanes of a quarter, at most 128 columns of 4 bytes."""

PACKED = 2
"""Elements that a lane computes in one instruction at most: pairs of 16-bit numbers, conversions of two."""

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def usual(op: Op) -> int:
    """The number that is taken where none is stated; arithmetic computes an element a lane."""
    if op.spec.unit is Unit.ISSUE and not op.spec.accumulates and op.dst is not None:
        return -(-math.prod(op.dst.extents) // WARP_LANES)
    return _needed(op)[0]


def too_few(op: Op) -> str:
    """Why the op's number of warp instructions is too small, in words; "" if it is not."""
    least, why = _needed(op)
    return f"count={op.count}: {why}, which takes {least}" if op.count < least else ""


def odd_width(op: Op) -> str:
    """Why no thread accesses as many bytes at once as an op says, in words; "" if it may."""
    moves = op.spec.unit in (Unit.SHARED, Unit.GLOBAL) and op.views and "matrix" not in op.opcode
    known = ", ".join(map(str, WIDTHS))
    return f"vector_bytes={op.vector_bytes}: a thread moves {known}" if moves and op.vector_bytes not in WIDTHS else ""


def _needed(op: Op) -> tuple[int, str]:
    """The least number, and what it is for; 1 where the views do not say."""
    spec, moves = op.spec, op.spec.unit in (Unit.SHARED, Unit.GLOBAL)
    if op.compute is multiplied:
        return _products(op)
    if spec.unit is Unit.TCGEN05 and spec.owns_registers and op.views:
        view = next(v for v in op.views if v.buffer.space is Space.TENSOR)
        return -(-view.size_bytes // TENSOR_BYTES), f"{view} has {view.size_bytes} B at {TENSOR_BYTES} B an instruction"
    if moves and op.views:
        view = next((v for v in op.views if v.buffer.space is not Space.REGISTERS), op.views[0])
        vector = MATRIX_BYTES if "matrix" in op.opcode else WARP_LANES * op.vector_bytes
        each = f"{vector} B an instruction" + (f", {op.sharers} threads a vector" if op.sharers > 1 else "")
        return -(-view.size_bytes * op.sharers // vector), f"{view} has {view.size_bytes} B at {each}"
    if (
        spec.unit is Unit.ISSUE
        and not spec.accumulates
        and op.dst is not None
        and op.srcs
        and op.compute is not None
        and not op.nominal
    ):
        elements = math.prod(op.dst.extents)
        return -(-elements // (PACKED * WARP_LANES)), f"{op.dst} has {elements} elements, {PACKED} a lane if packed"
    return 1, ""


def _products(op: Op) -> tuple[int, str]:
    """Instructions of a matrix product: this warp's share of a, all of b."""
    match = _SHAPE.fullmatch(op.shape)
    if match is None:
        return 1, ""
    m, n, k = (int(size) for size in match.groups())
    if op.pair:
        m, n = m // 2, n // 2
    quad_pairs = 4 if op.shape == "m8n8k4" else 1  # each of the four pairs of quads of a warp multiplies one
    group = op.spec.group
    (rows, depth), (_, columns) = (_matrix(view) for view in op.srcs[:2])
    least = math.prod(-(-a // b) for a, b in ((rows, m // (group.warps if group else 1)), (columns, n), (depth, k)))
    return -(-least // quad_pairs), f"{op.shape} for {rows} x {columns} x {depth}"


def _matrix(view: View) -> tuple[int, int]:
    rows, columns = (1, *view.extents)[-2:]
    return (columns, rows) if view.transposed else (rows, columns)
