"""Transpose through shared memory: a CTA reads a square tile by rows and writes it by columns, both in whole lines.

The tile's rows are padded by one word, so that neither side has bank conflicts; `pad 0` shows what they cost. `torch`
is PyTorch's copy of a transposed view: neighbouring threads write neighbouring elements, each of which they read from a
row of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import CTA_X, CTA_Y, CTA_Z, WARP, GlobalTensor, Kernel, KernelBuilder, Program, RegisterTile
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.overhead import INSTRUCTION_BYTES, mix
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Load
from workloads.gpu.pointwise.pointwise import PLACES, PLACES_REGISTERS, SECTOR_BYTES
from workloads.gpu.select import Choice
from workloads.ops import Transpose
from workloads.ops.base import Array
from workloads.registry import register

LINE_BYTES = 128
REGISTERS = 32


@dataclass(frozen=True)
class TransposeConfig(Configuration):
    """warps of a CTA, and padding of a row of the tile in bytes."""

    warps: int = 8
    pad: int = 4
    schedule: str = "tile"

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("warps"), Word.number("pad"))


@dataclass(frozen=True)
class CopyConfig(Configuration):
    """elements that a thread copies, one after the other."""

    elements: int
    warps: int = 4
    schedule: str = "torch"

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("elements"),)


@register("transpose", "gpu", "tile")
def build(op: Transpose, spec: GpuSpec, config: TransposeConfig) -> Program:
    """The program: a tile has rows of one line on both sides."""
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    return Program(str(op), (x, y), (kernel(x, y, config),), str(config), {"config": config})


@register("transpose", "gpu", "torch")
def build_copy(op: Transpose, spec: GpuSpec, config: CopyConfig) -> Program:
    """The program of PyTorch's kernel, which knows the result as one row."""
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    flat = GlobalTensor("y_flat", (math.prod(y.shape),), y.dtype, (1,), "scratch", alias=y.name)
    return Program(str(op), (x, y, flat), (copy(x, flat, spec, config),), str(config), {"config": config})


def copy(x: GlobalTensor, y: GlobalTensor, spec: GpuSpec, config: CopyConfig) -> Kernel:
    """PyTorch's kernel (elementwise_kernel with an OffsetCalculator): threads take the elements of `y` by their number,
    across the ends of its rows, and the place of each in `x` is computed anew. `y`: the result as one row.

    A warp that crosses ends of rows has one load for each row, where the machine has one in all.
    """
    rows, _ = x.shape
    span = config.warps * WARP_SIZE
    size = DTYPE_BYTES[x.dtype]
    k = KernelBuilder("copy", (-(-y.shape[0] // (span * config.elements)), 1, 1), code_bytes=160 * INSTRUCTION_BYTES)
    with k.role("warps", config.warps, PLACES_REGISTERS) as r:
        there, turned = RegisterTile("there", (WARP_SIZE, 1), x.dtype), RegisterTile("turned", (1, WARP_SIZE), x.dtype)
        for turn in range(config.elements):
            at = (CTA_X * config.elements + turn) * span + WARP * WARP_SIZE
            row, place = at // rows, at % rows
            lanes.write(r, spec, PLACES, dst=turned.whole, compute=lambda old: old)
            r.ldg(there.whole, x[place:WARP_SIZE, row:1], 1, into="there", vector_bytes=size)  # type: ignore[misc]
            lanes.write(r, spec, {}, dst=turned.whole, srcs=(there.whole,), compute=_turn, after=("there",))
            with r.loop(f"more{turn}", (place + WARP_SIZE - 1) // rows, start=1) as more:
                box = x[place - more * rows : WARP_SIZE, row + more : 1]  # type: ignore[misc]
                r.ldg(there.whole, box, 1, into="there", vector_bytes=size)
                lanes.write(r, spec, {}, dst=turned.whole, srcs=(there.whole,), compute=_fill, after=("there",))
            r.stg(y[at:WARP_SIZE], turned.whole, 1, vector_bytes=size)  # type: ignore[misc]
    return k.build()


def _turn(_: Array, value: Array) -> Array:
    return value.T


def _fill(old: Array, value: Array) -> Array:
    """Elements of one more row: each load has zeros where its box lies outside the tensor."""
    return old + value.T


def kernel(x: GlobalTensor, y: GlobalTensor, config: TransposeConfig, name: str = "transpose") -> Kernel:
    """The kernel that turns the last two dimensions of `x` into `y`; both have one dimension more at most."""
    size = DTYPE_BYTES[x.dtype]
    side = LINE_BYTES // size
    _check(config, side)
    own = side // config.warps
    *batch, rows, cols = x.shape
    each = (CTA_Z,) if batch else ()
    k = KernelBuilder(
        name, (-(-cols // side), -(-rows // side), math.prod(batch)), code_bytes=128 * INSTRUCTION_BYTES
    )  # fmt: skip
    tile = k.shared("tile", (side, side), x.dtype, pad_bytes=config.pad)
    row, column = CTA_Y * side, CTA_X * side
    words = -(-own * side // WARP_SIZE)  # elements of a lane; those of 16 or 8 bit one by one on the transposed side
    with k.role("warps", config.warps, REGISTERS) as r:
        there = RegisterTile("there", (own, side), x.dtype)
        back = RegisterTile("back", (own, side), x.dtype)
        wide = lanes.vector_bytes(cols, x.dtype, min(4, LINE_BYTES // WARP_SIZE))
        out = lanes.vector_bytes(rows, x.dtype, min(4, LINE_BYTES // WARP_SIZE))
        count = own * LINE_BYTES // (WARP_SIZE * wide)
        box = x[(*each, slice(row + WARP * own, own), slice(column, side))]
        r.ldg(there.whole, box, count, into="there", vector_bytes=wide, mix=mix(alu=14, imad=own))
        r.sts(tile[0, WARP * own : own, :], there.whole, vector_bytes=4, after=("there",))
        r.bar_sync(0, config.warps)
        source = tile[0, :, WARP * own : own].T
        r.lds(back.whole, source, words, vector_bytes=size, mix=mix(alu=words if size < 4 else 0))
        count = own * LINE_BYTES // (WARP_SIZE * out)
        box = y[(*each, slice(column + WARP * own, own), slice(row, side))]
        r.stg(box, back.whole, count, vector_bytes=out, mix=mix(imad=own))
    return k.build()


def _check(config: TransposeConfig, side: int) -> None:
    if config.warps < 1 or side % config.warps or config.warps > 32:
        raise InputError(f"schedule={config}: warps must divide the tile's {side} rows, such as 8")
    if config.pad % 4 or config.pad > LINE_BYTES:
        raise InputError(f"schedule={config}: pad must be a multiple of 4 up to {LINE_BYTES}")


@register("transpose", "gpu", "auto")
def choose(op: Transpose, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """`auto` takes the kernel that goes through shared memory."""
    size = DTYPE_BYTES[op.chosen_dtype]
    copying = CopyConfig(2 if size >= 4 else 4)
    if schedule in ("torch", str(copying)):
        x = lanes.tensor(op.operands[0])
        span = copying.elements * copying.warps * WARP_SIZE
        work = Load(
            ctas=-(-math.prod(x.shape) // span),
            resident=lanes.resident(spec, copying.warps, PLACES_REGISTERS),
            read_bytes=x.size_bytes, written_bytes=x.size_bytes, issue=35 * copying.elements, path=150,
            trips=copying.elements, again_bytes=max(0, SECTOR_BYTES // size - 1) * x.size_bytes,
        )  # fmt: skip
        return Choice(copying, [(copying, lanes.load_ps(spec, [work]))])
    kind, *more = schedule.split()
    if kind not in ("auto", "tile"):
        written = f"one of auto, tile, torch, or a whole configuration: {TransposeConfig()}"
        raise InputError(f"schedule={schedule}: {written}")
    config = TransposeConfig().changed(schedule) if more else TransposeConfig()
    return Choice(config, [(config, lanes.load_ps(spec, [load(lanes.tensor(op.operands[0]), config, spec)]))])


def load(x: GlobalTensor, config: TransposeConfig, spec: GpuSpec) -> Load:
    """Counts of the kernel that turns `x`, for the estimate."""
    side = LINE_BYTES // DTYPE_BYTES[x.dtype]
    _check(config, side)
    *batch, rows, cols = x.shape
    shared = side * (LINE_BYTES + config.pad)
    return Load(
        ctas=math.prod(batch) * -(-cols // side) * -(-rows // side),
        resident=max(1, lanes.resident(spec, config.warps, REGISTERS, shared)),
        read_bytes=x.size_bytes, written_bytes=x.size_bytes, issue=16 * side // spec.sm.sub_cores, path=150,
    )  # fmt: skip
