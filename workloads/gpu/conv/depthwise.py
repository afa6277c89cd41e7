"""Convolution of each channel with a filter of its own, directly: no product of matrices, and none is faster.

A thread has channels that lie together in four bytes, 32 threads those of a warp; neighbours of one row of Y that a
thread works on share the values of X between their filters. It reads the rows under the filter from the L2 or the L1,
one after the other, and sums in fp32 registers. Nothing goes through shared memory: the nine values of a 3 x 3 filter
are used once a result, and what neighbouring rows of Y share the caches give. PyTorch's `conv_depthwise2d_forward` and
cuDNN's kernels for NHWC are built so; results a thread are a choice here.

X, W and Y are NHWC, X with its padding, as those of the implicit GEMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import CTA_X, CTA_Y, WARP, GlobalTensor, Kernel, KernelBuilder, Program, RegisterTile
from workloads.gpu import overhead
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost, Load
from workloads.ops import Conv2d
from workloads.ops.base import Array
from workloads.registry import register

OUTPUTS = (8, 4, 2, 1)
"""Neighbours of a row of Y that a thread may work on."""
WORD_BYTES = 4
"""Of one row of X or Y that a thread moves at once: a warp moves a line."""
WARPS = 4
OTHER_INSTRUCTIONS = 24
"""Instructions of an item beside arithmetic and moves: its place, addresses, bounds; as many registers hold these."""


@dataclass(frozen=True)
class DepthwiseConfig(Configuration):
    """outputs: neighbours of a row of Y that a thread works on."""

    outputs: int

    schedule: ClassVar[str] = "depthwise"

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("outputs"),)


@dataclass(frozen=True)
class _Item:
    """What a warp does at once: `outputs` neighbours of a row of Y."""

    op: Conv2d
    outputs: int

    @property
    def span(self) -> int:
        """Pixels of a row of X."""
        return (self.outputs - 1) * self.op.strides[1] + (self.op.s - 1) * self.op.dilation + 1

    @property
    def wide(self) -> int:
        """Channels of a thread."""
        return max(1, WORD_BYTES // DTYPE_BYTES[self.op.chosen_dtype])

    @property
    def channels(self) -> int:
        """Channels of a warp."""
        return WARP_SIZE * self.wide

    @property
    def blocks(self) -> int:
        """Items of a row of Y."""
        return ceil_div(self.op.output[1], self.outputs)

    @property
    def count(self) -> int:
        """Items of all rows of all images, for `channels`."""
        return self.op.n * self.op.output[0] * self.blocks

    @property
    def registers(self) -> int:
        """Of a thread: a row of X as it comes and as fp32, the filter, the sums."""
        return self.span * (1 + self.wide) + self.op.r * self.op.s * self.wide + self.results + OTHER_INSTRUCTIONS

    @property
    def results(self) -> int:
        """Sums of a thread."""
        return self.outputs * self.wide

    @property
    def instructions(self) -> int:
        """Of a thread, about."""
        op = self.op
        row = self.span * (1 + self.wide) + op.s * self.results
        return op.r * row + op.r * op.s * self.wide + self.outputs + self.results + OTHER_INSTRUCTIONS


def takes(op: Conv2d) -> bool:
    """Whether each channel of Y belongs to one of X, in a format that is summed in fp32."""
    op = op.with_defaults(op.chosen_dtype)
    return op.groups == op.c == op.k > 1 and op.chosen_dtype in lanes.FLOATS and op.acc == "fp32"


def candidates(op: Conv2d, spec: GpuSpec) -> list[tuple[DepthwiseConfig, int]]:
    """Configurations with estimated times in picoseconds; none where a channel of Y sums over several of X."""
    if not takes(op):
        return []
    found = []
    for outputs in OUTPUTS:
        item = _Item(op, outputs)
        resident = lanes.resident(spec, WARPS, item.registers)
        if resident and outputs < 2 * op.output[1]:
            found.append((DepthwiseConfig(outputs), lanes.load_ps(spec, [_load(item, spec, resident)])))
    return found


@register("conv2d", "gpu", "depthwise")
def build(op: Conv2d, spec: GpuSpec, config: DepthwiseConfig) -> Program:
    """The program. InputError where a channel of Y sums over several of X."""
    if not takes(op):
        raise InputError(f"schedule={config}: takes groups=c=k, floating-point formats summed in fp32; nearest: mma")
    (rows, columns), (above, beside), dtype = op.output, op.padding, op.chosen_dtype
    height, width = op.h + 2 * above, op.w + 2 * beside
    stored = (op.n * height, width, op.c)
    x = GlobalTensor("x", stored, dtype, (width * op.c, op.c, 1), "input")
    w = GlobalTensor("w", (op.k, op.r * op.s), dtype, (op.r * op.s, 1), "input")
    out = op.with_defaults(dtype).out or dtype
    y = GlobalTensor("y", (op.n * rows, columns, op.k), out, (columns * op.k, op.k, 1), "output")

    def padded(array: Array) -> Array:
        sides = ((0, 0), (above, above), (beside, beside), (0, 0))
        return np.pad(np.asarray(array), sides).reshape(stored)

    settings = {"config": config, "stored": {"x": padded}}
    return Program(str(op), (x, w, y), (_kernel(_Item(op, config.outputs), spec, x, w, y),), str(config), settings)


def _kernel(g: _Item, spec: GpuSpec, x: GlobalTensor, w: GlobalTensor, y: GlobalTensor) -> Kernel:
    op = g.op
    k = KernelBuilder(
        "depthwise", (ceil_div(g.count, WARPS), ceil_div(op.c, g.channels), 1),
        code_bytes=g.instructions * overhead.INSTRUCTION_BYTES,
    )  # fmt: skip
    item, channel = CTA_X * WARPS + WARP, CTA_Y * g.channels
    line, column = item // g.blocks, item % g.blocks * g.outputs
    rows = op.output[0]
    above = line // rows * (op.h + 2 * op.padding[0]) + line % rows * op.strides[0]
    size = DTYPE_BYTES[x.dtype]
    with k.role("warps", WARPS, g.registers) as r, r.when(item < g.count):
        filters = RegisterTile("filters", (g.channels, op.r * op.s), x.dtype)
        sums = RegisterTile("sums", (g.outputs, g.channels), "fp32")
        result = RegisterTile("result", (g.outputs, g.channels), y.dtype)
        under = [RegisterTile(f"row{i}", (g.span, g.channels), x.dtype) for i in range(op.r)]
        r.ldg(
            filters.whole, w[channel : g.channels, 0 : op.r * op.s], op.r * op.s * g.wide, into="filters",  # type: ignore[misc]
            vector_bytes=size, mix=overhead.mix(alu=OTHER_INSTRUCTIONS),
        )  # fmt: skip
        moved = lanes.vector_bytes(op.c, x.dtype, WORD_BYTES)
        for i, there in enumerate(under):
            left = column * op.strides[1]
            box = x[above + i * op.dilation, left : g.span, channel : g.channels]  # type: ignore[misc]
            r.ldg(there.whole, box, g.span * (WORD_BYTES // moved), into=there.name, vector_bytes=moved)
        for i, there in enumerate(under):
            cost: Cost = lanes.total(
                {"ffma.fp32": op.s * g.results}, lanes.scaled(lanes.widen(x.dtype), g.span * g.wide)
            )
            after = ("filters", there.name) if i == 0 else (there.name,)
            srcs = (there.whole, filters.whole, *([sums.whole] if i else []))
            lanes.write(r, spec, cost, dst=sums.whole, srcs=srcs, compute=partial(_row_sums, g, i), after=after)
        moved = lanes.vector_bytes(op.k, y.dtype, WORD_BYTES)
        cost = lanes.scaled(lanes.narrow(spec, y.dtype), g.results)
        lanes.write(r, spec, cost, dst=result.whole, srcs=(sums.whole,), compute=lanes.keep)
        box = y[line, column : g.outputs, channel : g.channels]  # type: ignore[misc]
        stores = g.outputs * ceil_div(g.channels * DTYPE_BYTES[y.dtype], WARP_SIZE * moved)
        r.stg(box, result.whole, stores, vector_bytes=moved)
    return k.build()


def _row_sums(g: _Item, row: int, old: Array, pixels: Array, filters: Array, sums: Array | None = None) -> Array:
    """The sums of an item with what row `row` of the filters adds to them; the first row has none before it."""
    op, step = g.op, g.op.strides[1]
    taps = filters.reshape(g.channels, op.r, op.s)[:, row]
    total = np.zeros((g.outputs, g.channels)) if sums is None else sums
    for s in range(op.s):
        first = s * op.dilation
        total = total + pixels[first : first + (g.outputs - 1) * step + 1 : step] * taps[:, s]
    return total


def _load(g: _Item, spec: GpuSpec, resident: int) -> Load:
    """Counts of the kernel for the estimate."""
    op, size = g.op, DTYPE_BYTES[g.op.chosen_dtype]
    ctas = ceil_div(g.count, WARPS) * ceil_div(op.c, g.channels)
    (height, width), (above, beside) = (op.h, op.w), op.padding
    once = op.n * (height + 2 * above) * (width + 2 * beside) * op.c * size
    asked = g.count * op.r * g.span * op.c * size
    return Load(
        ctas=ctas, resident=resident, read_bytes=once, again_bytes=max(0, asked - once),
        written_bytes=op.results[0].size_bytes, issue=ceil_div(WARPS * g.instructions, spec.sm.sub_cores),
        path=2 * g.instructions, code_bytes=g.instructions * overhead.INSTRUCTION_BYTES,
    )  # fmt: skip
