"""Transpose through shared memory: a CTA reads a square tile by rows and writes it by columns, both in whole lines.

The tile's rows are padded by one word, so that neither side has bank conflicts; `pad 0` shows what they cost.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import CTA_X, CTA_Y, CTA_Z, WARP, GlobalTensor, Kernel, KernelBuilder, Program, RegisterTile
from workloads.gpu.overhead import INSTRUCTION_BYTES, mix
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Load
from workloads.gpu.select import Choice
from workloads.ops import Transpose
from workloads.registry import register

LINE_BYTES = 128
REGISTERS = 32


@dataclass(frozen=True)
class TransposeConfig:
    """warps of a CTA, and padding of a row of the tile in bytes."""

    warps: int = 8
    pad: int = 4
    schedule: str = "tile"

    def __str__(self) -> str:
        """As people type it: `tile warps 8 pad 4`."""
        return f"{self.schedule} warps {self.warps} pad {self.pad}"


@register("transpose", "gpu", "tile")
def build(op: Transpose, spec: GpuSpec, config: TransposeConfig) -> Program:
    """The program: a tile has rows of one line on both sides."""
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    return Program(str(op), (x, y), (kernel(x, y, config),), str(config), {"config": config})


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
    """The one kind of kernel."""
    config = TransposeConfig() if schedule in ("auto", "tile") else _parse(schedule)
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


def _parse(schedule: str) -> TransposeConfig:
    text = schedule.removeprefix("tile").strip()
    if not schedule.startswith("tile") or not re.fullmatch(r"((warps|pad) \d+ ?)+", text):
        raise InputError(f"schedule={schedule}: one of auto, tile, or a whole configuration: {TransposeConfig()}")
    fields: dict[str, Any] = {name: int(value) for name, value in re.findall(r"(warps|pad) (\d+)", text)}
    return TransposeConfig(**fields)
