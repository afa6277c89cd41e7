"""Boxes of global tensors as addresses: base, strides, and the rows and columns that a copy walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.language import Expr, GlobalTensor, View
from sim.gpu.lower.tables import Box


def box_row(view: View, addresses: Mapping[str, int], index_of: Callable[[Expr], int], where: str) -> list[int]:
    """The row of a view of a global tensor in the table of boxes (`tables.Box`).

    addresses: first byte of each tensor. index_of: puts an expression into the table of expressions. where: names the
    op's place in an InputError about a view that no copy can take.
    """
    tensor = view.buffer
    assert isinstance(tensor, GlobalTensor)
    if len(tensor.shape) > 4:
        raise InputError(f"{where}: tensor {tensor.name} has {len(tensor.shape)} dimensions; at most 4")
    if tensor.name not in addresses:
        raise InputError(
            f"{where}: tensor {tensor.name} is none of the program; it has {', '.join(addresses) or 'none'}"
        )
    element = DTYPE_BYTES[tensor.dtype]
    contiguous = [d for d, s in enumerate(tensor.strides) if s == 1]
    if not contiguous:
        raise InputError(f"{where}: tensor {tensor.name} has no dimension of stride 1")
    column = max(contiguous, key=lambda d: (view.extents[d], d))
    rows = [d for d, n in enumerate(view.extents) if n > 1 and d != column]
    if len(rows) > 1:
        raise InputError(f"{where}: {view} is more than two-dimensional; copy it in two-dimensional boxes")
    row = [0] * Box.WIDTH
    row[Box.BASE], row[Box.ELEMENT] = addresses[tensor.name], element
    row[Box.ROW_DIM], row[Box.COL_DIM], row[Box.DIMS] = rows[0] if rows else -1, column, len(tensor.shape)
    for d, (offset, extent) in enumerate(zip(view.offsets, view.extents, strict=True)):
        at = Box.EXPR0 + 4 * d
        row[at : at + 4] = [index_of(offset), tensor.strides[d] * element, tensor.shape[d], extent]
    return row
