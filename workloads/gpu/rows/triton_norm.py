"""Layer norm in Triton: a row in three sweeps, for its mean, for its variance, and for the result.

The kernel is that of Triton's tutorial; the one that PyTorch's compiler makes differs in what it launches.

Counts are those of the compiled kernel (triton-lang/triton, python/tutorials/05-layer-norm.py; Triton 3.9.0, ptxas
12.9, sm_80), which has sums of its own for every element of a thread, tests its bounds in each sweep, and holds nothing
of a row from one sweep to the next: the second and the third read it again, from the L1 or the L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from arch.errors import InputError
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import GlobalTensor, RegisterTile, View
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.gpu.rows.rows import RowConfig, RowKernel, sums
from workloads.ops.base import Array
from workloads.ops.rowwise import EPSILON

ROW_BYTES = 65536
"""Longest row: the tutorial refuses longer ones."""
MOST_WARPS, WARP_COLUMNS = 8, 256
"""The tutorial takes a warp for each 256 columns, at most eight."""
COMPILED_HELD, COMPILED_BLOCK, COMPILED_WARP_COLUMNS = 1024, 2048, 128
"""The same of PyTorch's compiler, at least two warps; it keeps short rows in registers."""
UNROLLED = 8
"""Elements of a thread up to which the compiler unrolls a sweep by four, with tests of how much is left."""
REGISTERS = ((16, 40), (32, 62), (64, 112), (128, 203))
"""Registers of a thread by the elements of its tile, at most; on sm_90 up to 40 more."""
COMPILED_REGISTERS = 32
"""Of a thread of the kernel that PyTorch's compiler makes, which has no weights (Triton 3.9.0, sm_80)."""

TRIP: Cost = {"iadd.int32": 25.0}
TRIP_STEPS = 19
"""Of a sweep that is unrolled, before its load: starts of sums, three tests each with a branch, address, bound. The
stall counts of these 25 instructions add up to 76 cycles, 19 of the latency of one."""
LONG_TRIP: Cost = {"iadd.int32": 22.0}
LONG_TRIP_STEPS = 6
"""The same where it is not unrolled: one test; addresses of one vector while another's come."""
LAST_TRIP: Cost = {"iadd.int32": 14.0, "imad.int32": 6.0}
"""Of the last sweep, with the addresses of weights, biases and results; never unrolled."""
MEAN: Cost = {"rcp.fp32": 1.0, "fmul.fp32": 5.0, "setp.int32": 2.0, "iadd.int32": 6.0}
"""Sum over length; the length's reciprocal, its range tested, is there before the sum is."""
SCALE: Cost = {
    "rcp.fp32": 2.0,
    "rsq.fp32": 1.0,
    "fmul.fp32": 8.0,
    "ffma.fp32": 1.0,
    "setp.int32": 5.0,
    "imad.int32": 2.0,
}
SCALE_STEPS = 4
"""1 / sqrt(variance + epsilon): square root, then reciprocal, each between range tests that wait for it: about 100
cycles, four of the latency of either."""


def config(rows_bytes: int, cols: int) -> RowConfig:
    """The tutorial's launch for rows of `cols` elements, `rows_bytes` long."""
    if rows_bytes > ROW_BYTES:
        raise InputError(f"schedule=triton: the tutorial's layer norm takes rows of at most 64 KiB, not {rows_bytes} B")
    block = max(WARP_SIZE, 2 ** math.ceil(math.log2(cols)))
    warps = min(max(block // WARP_COLUMNS, 1), MOST_WARPS)
    return RowConfig("triton", warps, 1, block // (WARP_SIZE * warps))


def compiled_config(cols: int) -> RowConfig:
    """What PyTorch's compiler launches (torch/_inductor/triton_ops/autotune.py of 2.0): rows of up to 1024 elements
    stay in registers, longer ones are swept in blocks of 2048."""
    block = max(WARP_SIZE, 2 ** math.ceil(math.log2(cols)))
    if block <= COMPILED_HELD:
        return RowConfig("inductor", min(max(block // COMPILED_WARP_COLUMNS, 2), MOST_WARPS), 1)
    return RowConfig("inductor", MOST_WARPS, 1, COMPILED_BLOCK // (WARP_SIZE * MOST_WARPS))


def registers(config: RowConfig) -> int:
    """Registers of a thread."""
    if config.schedule == "inductor":
        return COMPILED_REGISTERS
    return next(count for most, count in REGISTERS if config.elements <= most)


class Sweeps:
    """Writes the kernel's body. x, vectors: what is read; y, stats: what is written."""

    def __init__(
        self, x: GlobalTensor, vectors: list[GlobalTensor], y: GlobalTensor, stats: list[GlobalTensor]
    ) -> None:
        self.x, self.vectors, self.y, self.stats = x, vectors, y, stats
        self.wide = lanes.widen(x.dtype)

    def write(self, w: RowKernel) -> None:
        """Three sweeps, and between them the numbers of the row."""
        mean = self._mean(w)
        numbers = self._scale(w, mean)
        for number, tensor in enumerate(self.stats):
            w.store(tensor, numbers.buffer[:, number:1])  # type: ignore[index]
        with w.sweep(2):
            self._open(w, LAST_TRIP, 1)
            given = w.load(self.x)
            loaded = [w.load(vector) for vector in self.vectors]
            cost = lanes.total(
                {"fadd.fp32": 1.0, "fmul.fp32": 1.0, "ffma.fp32": 1.0}, self.wide, *(self.wide for _ in loaded),
                lanes.narrow(w.spec, self.y.dtype),
            )  # fmt: skip
            out = w.map(
                "out", cost, (given, numbers, *loaded), lambda _, v, n, g=1.0, b=0.0: (v - n[:, :1]) * n[:, 1:] * g + b,
                dtype=self.y.dtype, after=(self.x.name, *(vector.name for vector in self.vectors)),
            )  # fmt: skip
            w.store(self.y, out)

    def _mean(self, w: RowKernel) -> View:
        total = w.start("total", (0.0,))
        with w.sweep(0):
            self._open_early(w)
            given = w.load(self.x)
            w.local(
                "total", lanes.total({"fadd.fp32": 1.0}, self.wide), (given,),
                lambda ok, before, v: before[:, 0] + np.where(ok, v, 0.0).sum(axis=1), after=(self.x.name,), old=True,
            )  # fmt: skip
        self._across(w, total)
        return self._numbers(w, "mean", 1, MEAN, (total,), 1, lambda t: t / w.cols)

    def _scale(self, w: RowKernel, mean: View) -> View:
        squares = w.start("squares", (0.0,))
        with w.sweep(1):
            self._open_early(w)
            given = w.load(self.x)
            w.local(
                "squares", lanes.total({"fadd.fp32": 1.0, "sel.int32": 1.0, "ffma.fp32": 1.0}, self.wide),
                (given, mean),
                lambda ok, before, v, m: before[:, 0] + (np.where(ok, v - m, 0.0) ** 2).sum(axis=1),
                after=(self.x.name,), old=True,
            )  # fmt: skip
        self._across(w, squares)
        return self._numbers(
            w, "numbers", 2, SCALE, (mean, squares), SCALE_STEPS,
            lambda m, q: np.concatenate([m, 1 / np.sqrt(q / w.cols + EPSILON)], axis=1),
        )  # fmt: skip

    def _open(self, w: RowKernel, cost: Cost, steps: int) -> None:
        """What a sweep does before it loads."""
        bounds = RegisterTile("bounds", (1, 1), "int32")
        lanes.write(w.r, w.spec, cost, dst=bounds.whole, compute=lambda _: np.zeros((1, 1)), chain=steps)

    def _open_early(self, w: RowKernel) -> None:
        if w.config.elements <= UNROLLED:
            self._open(w, TRIP, TRIP_STEPS)
        else:
            self._open(w, LONG_TRIP, LONG_TRIP_STEPS)

    def _across(self, w: RowKernel, partial: View) -> None:
        """A thread's own sums to one, then those of all threads."""
        own = w.config.elements - 1
        if own:
            w.r.run(
                "fadd", own, dtype="fp32", dst=partial, srcs=(partial,), compute=lanes.keep,
                chain=max(1, math.ceil(math.log2(own + 1))),
            )  # fmt: skip
        w.across(partial, "fadd", sums)

    def _numbers(
        self, w: RowKernel, name: str, values: int, cost: Cost, given: tuple[View, ...], steps: int,
        compute: Callable[..., Array],
    ) -> View:  # fmt: skip
        """Numbers of a row from its sums, (1, values)."""
        tile = RegisterTile(name, (1, values), "fp32")
        lanes.write(
            w.r, w.spec, cost, dst=tile.whole, srcs=given, chain=steps,
            compute=lambda _, *parts: compute(*(np.asarray(part, dtype=np.float64) for part in parts)),
        )  # fmt: skip
        return tile.whole
