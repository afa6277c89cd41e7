"""Products with weights of 4 or 8 bits and A of 16 (w4a16, w8a16): dequantisation in the main loop, as Marlin does it.

Frantar et al., MARLIN (arXiv 2408.11743), which serving frameworks run from Ampere on: the main loop of `mma`, whose B
comes quantised by cp.async in the order in which threads need it, with the scales of its group beside it, goes from
shared memory to registers as it is, and is brought to A's format there between the multiplies: 8 values of 4 bits take
a shift, four LOP3 that make halves of them by exponent bits, four subtractions or multiply-adds and four
multiplications by the scale. Tiles have at most 64 rows; what few rows leave of the chip is shared out by cutting k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import WARP, Expr, Op, Program, RegisterTile, RoleBuilder, View
from workloads import libraries
from workloads.gpu.gemm import threadblock
from workloads.gpu.gemm.estimate import Figures, Work
from workloads.gpu.gemm.mma import MmaConfig, TensorCore
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, Operand, Problem, Weights, ceil_div, problem, row_alignment
from workloads.gpu.gemm.threadblock import WARP_SIZE, Copy, Inner, Writer
from workloads.ops import Gemm
from workloads.ops.gemm import WEIGHTS_K
from workloads.registry import register

MARLIN = "marlin@1"
"""Whose tiles these are (`workloads/libraries`)."""


class MarlinCore(TensorCore):
    """`Inner` of warps whose B is quantised."""

    def shared_shape(self, operand: Operand, rows: int, depth: int) -> tuple[tuple[int, int], int, int]:
        """B as it lies in memory: what a thread needs together lies together."""
        if isinstance(operand, Weights):
            return operand.tile_shape(rows, depth), 0, 0
        return super().shared_shape(operand, rows, depth)


@dataclass(frozen=True)
class MarlinConfig(MmaConfig):
    """Tile configuration; see `ThreadblockConfig`."""

    schedule: ClassVar[str] = "marlin"
    core: ClassVar[type[TensorCore]] = MarlinCore

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if p.group_scales is None:
            raise InputError(f"{where}: its weights have 4 or 8 bits; weights=int4 or int8, or schedule=mma")
        if self.tile_k != WEIGHTS_K or self.copy != "cp.async":
            raise InputError(f"{where}: a step has {WEIGHTS_K} of k and comes by cp.async; nearest: tile k {WEIGHTS_K}")
        threadblock.check(p, spec, self, self.inner(p, spec), where)

    def counts(self, p: Problem, f: Figures, inner: Inner, resident: int) -> Work:
        """Counts for the estimate."""
        assert isinstance(p.b, Weights)
        plain = super().counts(p, f, inner, resident)
        width = DTYPE_BYTES[p.dtype]
        step = self.tile_m * self.tile_k * width + self.tile_n * p.b.bytes_of(self.tile_k)
        dequantise = sum(count for _, count in _dequantise(p.b.bits, p.dtype, self.warp_n * self.tile_k))
        busy = max(plain.busy, plain.busy // 2 + dequantise * ceil_div(self.warps, f.sub_cores))
        stored = p.k * p.m * width + p.n * p.b.bytes_of(p.k)
        round_bytes = plain.round_bytes * step // ((self.tile_m + self.tile_n) * self.tile_k * width)
        return plain._replace(
            busy=busy, unicast_bytes=step, received_bytes=step, requested_bytes=step, operand_bytes=stored,
            round_bytes=round_bytes,
        )  # fmt: skip


@register("gemm", "gpu", "marlin")
def build(op: Gemm, spec: GpuSpec, config: MarlinConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where `check` does."""
    p = problem(op)
    config.check(p, spec)
    writer = _Writer(p, spec, config, config.inner(p, spec))
    assert p.group_scales is not None
    tensors = [p.a.tensor, p.b.tensor, p.group_scales, *p.finish, p.c]
    if writer.partials is not None:
        tensors.append(writer.partials)
    return Program(str(op), tuple(tensors), (writer.kernel(),), str(config), {"config": config})


def configs() -> Iterator[MarlinConfig]:
    """The tiles."""
    stages = libraries.figure(MARLIN, "stages")
    for tile_m, tile_n, warp_m, warp_n in libraries.rows(MARLIN, "tiles"):
        yield MarlinConfig(tile_m, tile_n, WEIGHTS_K, warp_m, warp_n, stages, "cp.async")


def _dequantise(bits: int, dtype: str, values: int) -> list[tuple[str, int]]:
    """Instructions of a warp that bring `values` to A's format and multiply them by their scale."""
    pairs = ceil_div(values, 2 * WARP_SIZE)
    # Two of 4 bits: a LOP3, a quarter of a shift, a subtraction or multiply-add. Two of 8 bits: a PRMT, a subtraction.
    logic = [("lop.int32", pairs), ("shf.int32", ceil_div(pairs, 4))] if bits == 4 else [("lop.int32", pairs)]
    return [(f"hfma2.{dtype}", 2 * pairs), *logic]


class _Writer(Writer):
    """Writes the kernel."""

    def __init__(self, p: Problem, spec: GpuSpec, config: MarlinConfig, inner: Inner) -> None:
        super().__init__(p, spec, config, inner)
        assert isinstance(p.b, Weights)
        assert p.group_scales is not None
        self.weights, self.groups = p.b, p.group_scales
        self.scales = self.k.shared("scales", (1, config.tile_n), p.dtype, config.stages)
        size = p.b.bytes_of(inner.part_k)
        self.packed = RegisterTile("packed", (config.warp_n, size), "int8")
        self.scale = RegisterTile("scale", (1, config.warp_n), p.dtype)

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """What lies together of the weights, or A's rows."""
        if copy.operand is not self.p.b:
            return super().source(copy, unit, depth, piece)
        first = unit.tile.n * copy.extent + copy.share(piece)
        return copy.operand.tensor[depth // WEIGHTS_K, first : copy.rows, 0 : copy.columns]  # type: ignore[misc]

    def _fetch(self, r: RoleBuilder, unit: Unit, k: Expr, stage: Expr, pointers: str = "") -> None:
        super()._fetch(r, unit, k, stage, pointers)
        c, width = self.config, DTYPE_BYTES[self.p.dtype]
        group = (unit.k_begin + k) * c.tile_k // self.p.op.group
        box = self.groups[group, unit.tile.n * c.tile_n : c.tile_n]  # type: ignore[misc]
        vector = min(MAX_VECTOR_BYTES, row_alignment(self.groups))
        with r.when(WARP.equals(0)):
            count = ceil_div(c.tile_n * width, WARP_SIZE * vector)
            r.cp_async(self.scales[stage, 0, :], box, count, vector_bytes=vector)

    def _load_fragments(self, r: RoleBuilder, part: int, stage: Expr) -> None:
        """A's fragment; B's as bytes, with its scales once a step, and from them the fragment."""
        depth, k, (a, b) = part * self.inner.part_k, self.inner.part_k, self.fragments[part % 2]
        for piece in self._pieces(self.copies[0], self.row, a.shape[0], depth, k, stage):
            k_major = self._shared_k_major(self.copies[0])
            dst = a[piece.row : piece.rows, piece.k : piece.depth]  # type: ignore[misc]
            r.load(dst if k_major else dst.T, self.inner.load(piece.view, k_major))
        at, size = self.weights.bytes_of(depth), self.packed.shape[1]
        column, warp_n = self.col, self.config.warp_n
        tile = self.copies[1].tile
        count = ceil_div(warp_n * size, WARP_SIZE * 16)
        r.load(self.packed.whole, Op("lds", count, srcs=(tile[stage, column:warp_n, at:size],), vector_bytes=16))  # type: ignore[misc]
        if part == 0:
            scales = self.scales[stage, 0, column:warp_n]  # type: ignore[misc]
            r.load(self.scale.whole, Op("lds", 1, srcs=(scales,), vector_bytes=16, sharers=8))
        (name, first), *mix = _dequantise(self.weights.bits, self.p.dtype, warp_n * k)
        r.run(
            name.partition(".")[0], first, dtype=self.p.dtype, dst=b.whole, srcs=(self.packed.whole, self.scale.whole),
            compute=partial(_values, self.p.op), mix=tuple(mix),
        )  # fmt: skip


def _values(op: Gemm, old: np.ndarray, packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Weights, columns by k, of their bytes and scales; what was never written stays unwritten."""
    unwritten = np.isnan(packed).any()
    values = op.unpacked(np.zeros_like(packed) if unwritten else packed).astype(np.float64)
    return np.full_like(values, np.nan) if unwritten else values * scales.T
