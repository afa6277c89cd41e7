"""Products with weights of 4 or 8 bits and A of 16 (w4a16, w8a16): dequantisation in the main loop, as Marlin does it.

Frantar et al., MARLIN (arXiv 2408.11743), which serving frameworks run from Ampere on: the main loop of `mma`, whose B
comes quantised by cp.async in the order in which threads need it, with the scales of its group beside it, goes from
shared memory to registers as it is, and is brought to A's format there between the multiplies: 8 integers of 4 bits
take a shift, four LOP3 that make halves of them by exponent bits, four subtractions or multiply-adds and four
multiplications by the scale; 8 floats of 4 bits six LOP3, two right shifts and three left ones (IMAD) that bring sign
and magnitude to their places in an order that asks for no more, four multiplications by the bias and four by the scale
(triton-lang/triton, python/triton_kernels, hopper_value.py). Two scales of 8 bits take as many as two values. Tiles
have at most 64 rows; what few rows leave of the chip is shared out by cutting k.
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
from sim.gpu.language import WARP, Const, Expr, Op, Program, RegisterTile, RoleBuilder, View
from workloads import libraries
from workloads.gpu.gemm import threadblock
from workloads.gpu.gemm.estimate import Figures, Work
from workloads.gpu.gemm.mma import MmaConfig, TensorCore
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, Operand, Problem, Weights, ceil_div, problem, row_alignment
from workloads.gpu.gemm.threadblock import WARP_SIZE, Copy, Inner, Writer
from workloads.ops import Gemm
from workloads.ops.packed import DEPTH, PackedMatrices
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
            raise InputError(
                f"{where}: its weights have 4 or 8 bits; weights=int4, int8, mxfp4 or nvfp4, or schedule=mma"
            )
        if self.tile_k != DEPTH or self.copy != "cp.async":
            raise InputError(f"{where}: a step has {DEPTH} of k and comes by cp.async; nearest: tile k {DEPTH}")
        threadblock.check(p, spec, self, self.inner(p, spec), where)

    def counts(self, p: Problem, f: Figures, inner: Inner, resident: int) -> Work:
        """Counts for the estimate."""
        assert isinstance(p.b, Weights)
        plain = super().counts(p, f, inner, resident)
        width = DTYPE_BYTES[p.dtype]
        step = self.tile_m * self.tile_k * width + self.tile_n * p.b.bytes_of(self.tile_k)
        dequantise = sum(count for _, count in _dequantise(p.op.packed, self.warp_n * self.tile_k))
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
        yield MarlinConfig(tile_m, tile_n, DEPTH, warp_m, warp_n, stages, "cp.async")


def _dequantise(packed: PackedMatrices, values: int) -> list[tuple[str, int]]:
    """Instructions of a warp that bring `values` to A's format and multiply them by their scale."""
    pairs = ceil_div(values, 2 * WARP_SIZE)
    if DTYPE_BYTES[packed.scale] == 1:
        quarters = pairs + ceil_div(values, 2 * WARP_SIZE * packed.group)
        names = (("lop.int32", 6), ("shf.int32", 2), ("imad.int32", 3))
        logic = [(name, ceil_div(count * quarters, 4)) for name, count in names]
    elif packed.bits == 4:
        # Two integers of 4 bits: a LOP3 and a quarter of a shift; of 8 bits: a PRMT.
        logic = [("lop.int32", pairs), ("shf.int32", ceil_div(pairs, 4))]
    else:
        logic = [("lop.int32", pairs)]
    return [(f"hfma2.{packed.dtype}", 2 * pairs), *logic]


class Dequantising(Writer):
    """Writes the main loop of a product whose B is quantised. Who inherits calls `hold` when its copies are known."""

    def hold(self) -> None:
        """What holds bytes and scales of a step."""
        p, c = self.p, self.config
        assert isinstance(p.b, Weights)
        assert p.group_scales is not None
        self.packed_b, self.groups = p.op.packed, p.group_scales
        self.step_groups = ceil_div(DEPTH, self.packed_b.group)
        self.scales = self.k.shared("scales", (self.step_groups, c.tile_n), self.packed_b.scale, c.buffers)
        self.packed = RegisterTile("packed", (c.warp_n, p.b.bytes_of(self.inner.part_k)), self.packed_b.stored)
        self.scale = RegisterTile("scale", (1, c.warp_n), self.packed_b.scale)

    def first_block(self) -> Expr:
        """Of the matrix that a tile takes, its place among the blocks of k of all."""
        return Const(0)

    def first_group(self) -> Expr:
        """The same among groups of k."""
        return Const(0)

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """What lies together of the weights, or A's rows."""
        if copy.operand is not self.p.b:
            return super().source(copy, unit, depth, piece)
        first = unit.tile.n * copy.extent + copy.share(piece)
        block = self.first_block() + depth // DEPTH
        return copy.operand.tensor[block, first : copy.rows, 0 : copy.columns]  # type: ignore[misc]

    def _fetch(self, r: RoleBuilder, unit: Unit, k: Expr, stage: Expr, pointers: str = "") -> None:
        super()._fetch(r, unit, k, stage, pointers)
        c, rows = self.config, self.step_groups
        group = self.first_group() + (unit.k_begin + k) * c.tile_k // self.packed_b.group
        box = self.groups[group:rows, unit.tile.n * c.tile_n : c.tile_n]  # type: ignore[misc]
        vector = min(MAX_VECTOR_BYTES, row_alignment(self.groups))
        with r.when(WARP.equals(0)):
            count = ceil_div(box.size_bytes, WARP_SIZE * vector)
            r.cp_async(self.scales[stage, 0:rows, :], box, count, vector_bytes=vector)

    def _load_fragments(self, r: RoleBuilder, part: int, stage: Expr) -> None:
        """A's fragment; B's as bytes, with its scales once a group, and from them the fragment."""
        depth, k, (a, b) = part * self.inner.part_k, self.inner.part_k, self.fragments[part % 2]
        for piece in self._pieces(self.copies[0], self.row, a.shape[0], depth, k, stage):
            k_major = self._shared_k_major(self.copies[0])
            dst = a[piece.row : piece.rows, piece.k : piece.depth]  # type: ignore[misc]
            r.load(dst if k_major else dst.T, self.inner.load(piece.view, k_major))
        column, warp_n, size = self.col, self.config.warp_n, self.packed.shape[1]
        bytes_of_part = self.copies[1].tile[stage, column:warp_n, part * size : size]  # type: ignore[misc]
        count = ceil_div(warp_n * size, WARP_SIZE * 16)
        r.load(self.packed.whole, Op("lds", count, srcs=(bytes_of_part,), vector_bytes=16))
        if depth % min(self.packed_b.group, DEPTH) == 0:
            scales = self.scales[stage, depth // self.packed_b.group, column:warp_n]  # type: ignore[misc]
            r.load(self.scale.whole, Op("lds", 1, srcs=(scales,), vector_bytes=16, sharers=8))
        (name, first), *mix = _dequantise(self.packed_b, warp_n * k)
        r.run(
            name.partition(".")[0], first, dtype=self.p.dtype, dst=b.whole, srcs=(self.packed.whole, self.scale.whole),
            compute=partial(_values, self.packed_b), mix=tuple(mix),
        )  # fmt: skip


class _Writer(Dequantising):
    """Writes the kernel."""

    def __init__(self, p: Problem, spec: GpuSpec, config: MarlinConfig, inner: Inner) -> None:
        super().__init__(p, spec, config, inner)
        self.hold()


def _values(packed: PackedMatrices, old: np.ndarray, stored: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Weights, columns by k, of their bytes and scales; what was never written stays unwritten."""
    if np.isnan(stored).any() or np.isnan(scales).any():
        return np.full_like(old, np.nan)
    return np.asarray(packed.elements(stored).astype(np.float64) * packed.factors(scales).T)
