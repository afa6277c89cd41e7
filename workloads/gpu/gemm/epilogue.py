"""What kernels make of sums before they store them: scales by row and column, functions of an epilogue.

A thread loads what its own results need (two neighbours of a row at once, as the tensor cores leave them), and computes
in fp32 on the registers that hold the sums, as CUTLASS's fusion operations and EVT do.
"""

from __future__ import annotations

import numpy as np

from arch.dtypes import DTYPE_BYTES, is_integer
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import Expr, GlobalTensor, RegisterTile, RoleBuilder, View
from workloads.gpu.gemm.problem import Problem, ceil_div, row_alignment
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.functions import COSTS
from workloads.ops import Gemm

WARP_SIZE = 32
NEIGHBOURS = 2
"""Neighbouring results of a row that a thread holds."""
LANES = 8
"""Rows, and pairs of columns, after which a thread's next results come."""
FINISHED = "fp32"
"""Format of results on their way, where sums are integers."""


def check(p: Problem, spec: GpuSpec, where: str) -> None:
    """InputError where a machine cannot compute an epilogue in the format of the sums."""
    if p.op.finished and p.acc not in ("fp32", "int32"):
        raise InputError(f"{where}: epilogues compute in fp32, the sums are {p.acc}; nearest: dtype=fp32")
    missing = [name for name, _ in lanes.counts(cost(p.op)) if not spec.has_instruction(*name.split("."))]
    if missing:
        raise InputError(f"{where}: {spec.name} has no {missing[0]}, which epilogue={p.op.epilogue} needs")


def cost(op: Gemm) -> lanes.Cost:
    """Instructions of one result."""
    parts: list[lanes.Cost] = [COSTS[name] for name in op.functions]
    parts += [lanes.widen(operand.dtype) for operand in op.finish_operands]
    parts += [{"fmul.fp32": 2.0}] if op.rowwise else []
    parts += [{"cvt.int32": 1.0}] if is_integer(str(op.dtype)) and op.finished else []
    return lanes.total(*parts)


def results(p: Problem, acc: RegisterTile) -> RegisterTile:
    """Where finished results of a tile of sums are: in its place, but for integers."""
    if not p.op.finished or not is_integer(p.acc):
        return acc
    return RegisterTile(f"{acc.name}_finished", acc.shape, FINISHED)


def held(p: Problem) -> str:
    """Format of the results before they are rounded to C's."""
    return FINISHED if p.op.finished and is_integer(p.acc) else p.acc


def finish(
    r: RoleBuilder, p: Problem, spec: GpuSpec, sums: View, done: View, batch: Expr, rows: tuple[Expr, int],
    columns: tuple[Expr, int],
) -> None:  # fmt: skip
    """Brings `sums` to `done`. rows, columns: first one and number, of C; sums may be its transpose."""
    op = p.op
    if not op.finished:
        return
    swapped = sums.extents != (rows[1], columns[1])
    given, waits = [], []
    for operand, tensor in zip(op.finish_operands, p.finish, strict=True):
        into = f"finish_{operand.name}"
        view = _load(r, tensor, operand.name, into, batch, rows, columns)
        given.append(view.T if swapped else view)
        waits.append(into)
    in_place = sums == done

    def compute(old: np.ndarray, *values: np.ndarray) -> np.ndarray:
        found, others = (old, values) if in_place else (values[0], values[1:])
        turned = [np.asarray(x, dtype=np.float64).T if swapped else np.asarray(x, dtype=np.float64) for x in others]
        finished = op.finish(found.T[None] if swapped else found[None], *_as_operands(op, turned))[0]
        return finished.T if swapped else finished

    values = ceil_div(rows[1] * columns[1], WARP_SIZE)
    lanes.write(
        r, spec, lanes.scaled(cost(op), values), dst=done, srcs=(*(() if in_place else (sums,)), *given),
        compute=compute, after=tuple(waits),
    )  # fmt: skip


def _as_operands(op: Gemm, found: list[np.ndarray]) -> list[np.ndarray]:
    """What registers hold, (rows, 1), (1, columns) or both, as `Gemm.finish` takes it."""
    return [
        x.reshape(1, -1) if operand.name in ("sa", "sb") else x
        for operand, x in zip(op.finish_operands, found, strict=True)
    ]


def _load(
    r: RoleBuilder, tensor: GlobalTensor, name: str, into: str, batch: Expr, rows: tuple[Expr, int],
    columns: tuple[Expr, int],
) -> View:  # fmt: skip
    """Loads a warp's part of an operand; the registers, as rows by columns of C."""
    width = DTYPE_BYTES[tensor.dtype]
    vector = max(width, min(NEIGHBOURS * width, row_alignment(tensor)))
    (row, high), (col, wide) = rows, columns
    if name == "sa":
        tile = RegisterTile(f"{into}_{high}", (1, high), tensor.dtype)
        r.ldg(tile.whole, tensor[batch, row:high], ceil_div(high, LANES), into=into, vector_bytes=width)  # type: ignore[misc]
        return tile.whole.T
    if name == "sb" or len(tensor.shape) == 1:
        tile = RegisterTile(f"{into}_{wide}", (1, wide), tensor.dtype)
        box = tensor[batch, col:wide] if name == "sb" else tensor[col:wide]  # type: ignore[misc]
        loads = ceil_div(wide, LANES) * (NEIGHBOURS * width // vector)
        r.ldg(tile.whole, box, loads, into=into, vector_bytes=vector)
        return tile.whole
    tile = RegisterTile(f"{into}_{high}x{wide}", (high, wide), tensor.dtype)
    loads = ceil_div(high * wide * width, WARP_SIZE * vector)
    r.ldg(tile.whole, tensor[batch, row:high, col:wide], loads, into=into, vector_bytes=vector)  # type: ignore[misc]
    return tile.whole
