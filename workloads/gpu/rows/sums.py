"""Sums: of everything, of each row, of each column.

Everything: CTAs of 512 threads stride over the vector, one vector of four elements a thread in flight, so that each
waits for the one before. There are as many CTAs as the chip holds, or as leave each thread 16 elements. A CTA halves
its warps' sums in shared memory and leaves its own in device memory; the last one of the grid waits for the others and
adds them up, as PyTorch's reduction does with a semaphore (ATen/native/cuda/Reduce.cuh). A kernel that sets the
semaphore to zero comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import (
    CTA_X,
    WARP,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    SharedTile,
    View,
)
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.overhead import INSTRUCTION_BYTES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost, Load
from workloads.gpu.rows import columns, rows
from workloads.gpu.rows.rows import RowConfig
from workloads.gpu.rows.softmax import row_numbers
from workloads.gpu.select import Choice
from workloads.ops import Sum
from workloads.ops.base import Array
from workloads.registry import register

LOOP: Cost = {"iadd.int32": 5.0, "imad.int32": 2.0}
"""Loop control and addresses of one step (full sum in CUDA, float4, sm_80: 12 instructions with 4 FADD and a load)."""
REGISTERS = 32
VECTOR = 4
"""Elements of a load, whatever their format."""
LEAST_ELEMENTS = 16
"""Of a thread, where CTAs share a sum."""
PROLOGUE: Cost = {"iadd.int32": 70.0, "imad.int32": 35.0, "ffma.fp32": 115.0}
"""Before the first load: places by division, the alignment of the first element; moves, branches and constants, of one
issue slot each, stand as FFMA. By what was counted on H200: 128 CTAs
of a sum of 2^20 in bf16 execute 320 instructions a warp (`executed_instructions.csv`)."""
HALVING: Cost = {"iadd.int32": 6.0, "setp.int32": 2.0}
"""Of each step by which a CTA halves its sums."""


@dataclass(frozen=True)
class VectorConfig(Configuration):
    """Sum of everything: warps of a CTA, vectors that a thread has in flight, CTAs of an SM."""

    warps: int = 16
    vectors: int = 1
    ctas: int = 4
    schedule: str = "torch"

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("warps"), Word.number("vectors"), Word.number("ctas"))


@dataclass(frozen=True)
class ColumnConfig(Configuration):
    """One result a column: a strip of columns and a share of the rows a CTA."""

    schedule: str = "torch"


Config = VectorConfig | ColumnConfig | RowConfig


def _vector_grid(op: Sum, spec: GpuSpec, config: VectorConfig) -> tuple[int, int, int]:
    """Columns of a warp's step, CTAs, steps."""
    elements = op.shape[0] * op.shape[1]
    span = VECTOR * config.vectors * WARP_SIZE
    held = lanes.resident(spec, config.warps, REGISTERS)
    most = min(config.ctas, held) * spec.sm.count
    each = -(-elements // (config.warps * WARP_SIZE))
    ctas = max(1, min(most, -(-each // LEAST_ELEMENTS)))
    steps = -(-elements // (span * config.warps * ctas))
    return span, ctas, steps


def _everything(op: Sum, spec: GpuSpec, config: VectorConfig) -> Program:
    elements = op.shape[0] * op.shape[1]
    x = lanes.tensor(op.operands[0], shape=(1, elements))
    y = lanes.tensor(op.results[0], "output", (1, 1))
    span, ctas, steps = _vector_grid(op, spec, config)
    kept = lanes.sum_format(x.dtype, y.dtype)
    width, addition = DTYPE_BYTES[kept], lanes.ADDITION[kept]
    parts = GlobalTensor("parts", (1, ctas), kept, (ctas, 1), "scratch")
    k = KernelBuilder("sum", (ctas, 1, 1), code_bytes=400 * INSTRUCTION_BYTES, flags=1 if ctas > 1 else 0)
    warp_sums = k.shared("warp_sums", (config.warps, 1), kept)
    with k.role("warps", config.warps, REGISTERS) as r:
        place = RegisterTile("place", (1, 1), "int32")
        lanes.write(r, spec, PROLOGUE, dst=place.whole, compute=lambda _: np.zeros((1, 1)))
        total = RegisterTile("total", (1, 1), kept)
        lanes.write(r, spec, {"iadd.int32": float(VECTOR)}, dst=total.whole, compute=_zero)
        with r.loop("step", steps) as step:
            at = ((step * ctas + CTA_X) * config.warps + WARP) * span
            tile = RegisterTile("x", (1, span), x.dtype)
            vector = min(lanes.MAX_VECTOR_BYTES, VECTOR * DTYPE_BYTES[x.dtype])
            count = config.vectors * VECTOR * DTYPE_BYTES[x.dtype] // vector
            r.ldg(tile.whole, x[0:1, at:span], count, into="x", vector_bytes=vector)  # type: ignore[misc]
            cost = lanes.total(addition, lanes.widen(x.dtype, kept))
            lanes.write(
                r, spec, lanes.total(lanes.scaled(cost, span // WARP_SIZE), lanes.scaled(LOOP, config.vectors)),
                dst=total.whole, srcs=(tile.whole,), compute=_add, after=("x",),
            )  # fmt: skip
        lanes.write(
            r, spec, lanes.scaled(addition, VECTOR - 1), dst=total.whole, srcs=(total.whole,), compute=lanes.keep
        )
        _halve(r, spec, config.warps, total.whole, warp_sums)
        target: View = parts[0:1, CTA_X:1] if ctas > 1 else y[0:1, 0:1]  # type: ignore[misc]
        with r.when(WARP.equals(0)):
            r.stg(target, total.whole, 1, vector_bytes=width if ctas > 1 else DTYPE_BYTES[y.dtype], mix=(("iadd", 30),))
            if ctas > 1:
                r.flag_add(0)
        if ctas > 1:
            with r.when(CTA_X.equals(ctas - 1)):
                r.flag_wait(0, ctas)
                own = -(-ctas // config.warps)
                part = RegisterTile("part", (1, own), kept)
                count = -(-own // WARP_SIZE)
                r.ldg(part.whole, parts[0:1, WARP * own : own], count, into="part", vector_bytes=width)  # type: ignore[misc]
                lanes.write(
                    r, spec, lanes.scaled(addition, count), dst=total.whole, srcs=(part.whole,),
                    compute=lambda _, v: v.sum(axis=1, keepdims=True), after=("part",),
                )  # fmt: skip
                _halve(r, spec, config.warps, total.whole, warp_sums)
                with r.when(WARP.equals(0)):
                    r.stg(y[0:1, 0:1], total.whole, 1, vector_bytes=DTYPE_BYTES[y.dtype])  # type: ignore[misc]
    if ctas == 1:
        return Program(str(op), (x, y), (k.build(),), str(config), {"config": config})
    semaphore = GlobalTensor("semaphore", (1, 1), "int32", (1, 1), "scratch")
    return Program(str(op), (x, y, parts, semaphore), (_clear(semaphore), k.build()), str(config), {"config": config})


def _halve(r: RoleBuilder, spec: GpuSpec, warps: int, total: View, sums: SharedTile) -> None:
    """Leaves the sum of a CTA to its first warp: each lane's numbers are added up over the warps, then the lanes'. The
    lanes' numbers are one here: any of them stands for what they add up to."""
    other, width = RegisterTile("other", (1, 1), sums.dtype), DTYPE_BYTES[sums.dtype]
    r.sts(sums[0, WARP, :], total, 1, vector_bytes=width)
    left = warps
    while left > 1:
        half = (left + 1) // 2
        r.bar_sync(0, warps)
        with r.when(left - half > WARP):
            r.lds(other.whole, sums[0, WARP + half, :], 1, vector_bytes=width)
            cost = lanes.total(lanes.ADDITION[sums.dtype], HALVING)
            lanes.write(r, spec, cost, dst=total, srcs=(other.whole,), compute=_sum)
            r.sts(sums[0, WARP, :], total, 1, vector_bytes=width)
        left = half
    r.bar_sync(0, warps)
    lanes.warp_reduce(r, lanes.ADD_OPCODE[sums.dtype], total, 1)


def _clear(semaphore: GlobalTensor) -> Kernel:
    """cudaMemsetAsync of a few bytes: a kernel of one CTA."""
    k = KernelBuilder("memset", (1, 1, 1), code_bytes=40 * INSTRUCTION_BYTES)
    with k.role("warps", 4, REGISTERS) as r, r.when(WARP.equals(0)):
        zero = RegisterTile("zero", (1, 1), "int32")
        r.run("iadd", 20, dtype="int32", dst=zero.whole, compute=_zero)
        r.stg(semaphore[0:1, 0:1], zero.whole, 1, vector_bytes=4)  # type: ignore[misc]
    return k.build()


def _zero(old: Array) -> Array:
    return np.zeros(old.shape)


def _sum(old: Array, other: Array) -> Array:
    return np.asarray(old + other)


def _add(old: Array, x: Array) -> Array:
    return np.asarray(old + x.astype(np.float64).sum(axis=1, keepdims=True))


def _columns(op: Sum, spec: GpuSpec, config: ColumnConfig) -> Program:
    x = lanes.tensor(op.operands[0])
    y = lanes.tensor(op.results[0], "output", (1, op.shape[1]))
    kept = lanes.sum_format(x.dtype, y.dtype)
    cost = lanes.total(lanes.ADDITION[kept], lanes.widen(x.dtype, kept))
    made = columns.kernels(
        "sum_columns", spec, op.shape, (x,), (), (y,), cost, lambda v: (v.sum(axis=0),), numbers_in=kept
    )
    return Program(str(op), (x, y, *made.scratch), made.kernels, str(config), {"config": config})


def _rows(op: Sum, spec: GpuSpec, config: RowConfig) -> Program:
    x = lanes.tensor(op.operands[0])
    y = lanes.tensor(op.results[0], "output", (op.shape[0], 1))
    made: Kernel = row_numbers("sum_rows", spec, op.shape, x, y, config, "fadd")
    return Program(str(op), (x, y), (made,), str(config), {"config": config})


_BUILDERS: dict[int | None, Callable[[Sum, GpuSpec, Any], Program]] = {None: _everything, 0: _columns, 1: _rows}
"""By the axis along which is summed; None: along all."""


@register("sum", "gpu", "torch")
def build(op: Sum, spec: GpuSpec, config: Config) -> Program:
    """The program of a sum."""
    return _BUILDERS[op.axis](op, spec, config)


@register("sum", "gpu", "auto")
def choose(op: Sum, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel of a sum: what is added up decides its kind."""
    lanes.check_conversions(op, spec, op.chosen_dtype, op.results[0].dtype)
    if schedule.split()[:1] not in (["auto"], ["torch"]):
        raise InputError(f"schedule={schedule}: one of auto, torch, or a whole configuration")
    size = op.operands[0].size_bytes
    cost: Cost = {"fadd.fp32": 1.0}
    if op.axis == 0:
        columns_config = ColumnConfig()
        if schedule not in ("auto", "torch"):
            raise InputError(f"schedule={schedule}: write torch")
        time_ps = lanes.load_ps(spec, [columns.load(spec, op.shape, op.chosen_dtype, 1, cost)])
        return Choice(columns_config, [(columns_config, time_ps)])
    if op.axis == 1:
        found = rows.sweep_candidates(spec, "torch", op.shape[1], op.chosen_dtype)
        if len(schedule.split()) > 1:
            found = [found[0].changed(schedule)]
            rows.check(spec, op.shape[1], found[0])
        best = rows.ranked(
            op, spec, found,
            lambda c: [
                rows.load(spec, *op.shape, c, read_bytes=size, written_bytes=0, cost=cost, reductions=1)
            ],
        )  # fmt: skip
        return Choice(best[0][0], best)
    config = VectorConfig() if schedule in ("auto", "torch") else _parse(schedule)
    _, ctas, steps = _vector_grid(op, spec, config)
    work = Load(ctas, config.ctas, size, 0, 30 * steps * config.warps, 200, steps)
    return Choice(config, [(config, lanes.load_ps(spec, [work]))])


def _parse(schedule: str) -> VectorConfig:
    config = VectorConfig().changed(schedule)
    if not (1 <= config.warps <= 32 and 1 <= config.vectors <= 16 and config.ctas):
        raise InputError(f"schedule={schedule}: 1 to 32 warps, 1 to 16 vectors and at least one CTA")
    return config
