"""Look-up of rows as PyTorch runs it (`vectorized_gather_kernel`, aten/src/ATen/native/cuda/IndexKernelUtils.cu).

A CTA has up to 256 threads and copies a piece of one row, a vector of 16 B a thread where rows allow it; each thread
reads the row's number first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import CTA_X, CTA_Y, WARP, KernelBuilder, Program, RegisterTile, Table
from workloads.gpu import overhead
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.pointwise import lanes
from workloads.gpu.select import Choice
from workloads.ops import Gather
from workloads.registry import register

MOST_WARPS = 8
REGISTERS = 16
CODE_BYTES = 96 * overhead.INSTRUCTION_BYTES


@dataclass(frozen=True)
class GatherConfig(Configuration):
    """warps of a CTA, and bytes that a thread copies."""

    warps: int
    vector_bytes: int

    schedule: ClassVar[str] = "torch"

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("warps"), Word.number("vector_bytes", text="vector"))


@register("gather", "gpu", "auto")
def choose(op: Gather, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The published shape: one CTA a row as far as 256 threads reach."""
    config = default_config(op)
    if schedule not in ("auto", GatherConfig.schedule, str(config)):
        raise InputError(f"schedule={schedule}: gather has {GatherConfig.schedule}, which is {config} here")
    size = op.results[0].size_bytes
    work = lanes.Load(
        ctas=op.rows * _pieces(op, config), resident=max(1, lanes.resident(spec, config.warps, REGISTERS, 0)),
        read_bytes=size, written_bytes=size, issue=12 * config.warps // spec.sm.sub_cores, path=60,
    )  # fmt: skip
    return Choice(config, [(config, lanes.load_ps(spec, [work]))])


def default_config(op: Gather) -> GatherConfig:
    """Whole vectors of a row, and a thread for each as far as a CTA reaches."""
    vector = lanes.vector_bytes(op.cols, op.chosen_dtype)
    row_bytes = op.cols * DTYPE_BYTES[op.chosen_dtype]
    return GatherConfig(min(MOST_WARPS, -(-row_bytes // (vector * WARP_SIZE))), vector)


def _pieces(op: Gather, config: GatherConfig) -> int:
    """CTAs that share a row."""
    reach = config.warps * WARP_SIZE * config.vector_bytes
    return -(-op.cols * DTYPE_BYTES[op.chosen_dtype] // reach)


@register("gather", "gpu", "torch")
def build(op: Gather, spec: GpuSpec, config: GatherConfig) -> Program:
    """The program. Its numbers of rows are read by the kernel; which they are is known when it is written."""
    x, index = (lanes.tensor(operand) for operand in op.operands)
    y = lanes.tensor(op.results[0], "output")
    own = WARP_SIZE * config.vector_bytes // DTYPE_BYTES[op.chosen_dtype]
    k = KernelBuilder("vectorized_gather", (op.rows, _pieces(op, config), 1), code_bytes=CODE_BYTES)
    row = Table(tuple(int(number) for number in op.index), CTA_X)
    column = (CTA_Y * config.warps + WARP) * own
    with k.role("warps", config.warps, REGISTERS) as r:
        here = RegisterTile("here", (1, own), op.chosen_dtype)
        r.op(
            "ldg",
            1,
            srcs=(index[CTA_X:1],),
            into="index",
            vector_bytes=DTYPE_BYTES[index.dtype],
            mix=overhead.mix(alu=4, imad=4),
        )  # type: ignore[misc]
        with r.when(column < op.cols):
            box = x[row:1, column:own]  # type: ignore[misc]
            r.ldg(
                here.whole, box, 1, into="here", vector_bytes=config.vector_bytes, after=("index",),
                mix=overhead.mix(alu=8, imad=4),
            )  # fmt: skip
            out = y[CTA_X:1, column:own]  # type: ignore[misc]
            r.stg(out, here.whole, 1, vector_bytes=config.vector_bytes, after=("here",))
    return Program(str(op), (x, index, y), (k.build(),), str(config), {"config": config})
