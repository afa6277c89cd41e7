"""A product of the rows of each expert with that expert's weights, in Triton's tiles: a block of rows is one expert's.

On warp-level mma the main loop is the one of Triton's matrix multiplication (`workloads.gpu.gemm.triton`), but for the
addresses. Numbers of rows and experts are read by the kernel as the sorting has left them; which they are is known when
the program is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, Const, Expr, GlobalTensor, Kernel, RegisterTile, RoleBuilder, View
from workloads.gpu.gemm import mma
from workloads.gpu.gemm.plan import Unit
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div
from workloads.gpu.gemm.threadblock import WARP_SIZE, Copy, Writer
from workloads.gpu.gemm.triton import TritonConfig, TritonCore, warp_tile
from workloads.gpu.moe.blocks import Blocks, Numbers, looked_up
from workloads.gpu.moe.config import MoeConfig
from workloads.ops import Gemm
from workloads.ops.base import Array


@dataclass(frozen=True)
class Sorted:
    """What the sorting leaves. rows, experts: numbers of rows, and of experts, in the order of blocks. padded: rows
    with their padding."""

    rows: GlobalTensor
    experts: GlobalTensor
    padded: GlobalTensor

    @classmethod
    def of(cls, blocks: Blocks) -> Sorted:
        """The tensors."""

        def numbers(name: str, count: int) -> GlobalTensor:
            return GlobalTensor(name, (1, count), "int32", (count, 1), "scratch")

        return cls(
            numbers("rows", blocks.launched * blocks.size), numbers("experts", blocks.launched), numbers("padded", 1)
        )


@dataclass(frozen=True)
class Tokens:
    """Rows of x as its kernels read them: a window of `group` rows, `spacing` tokens apart, from each token on.

    In front lies room for rows that a window leaves out at its end.
    """

    blocks: Blocks

    @property
    def margin(self) -> int:
        """Rows in front of the first token."""
        return self.blocks.spacing * self.blocks.group

    def tensor(self, dtype: str) -> GlobalTensor:
        """Windows by their first token, rows of a window, elements."""
        hidden, b = self.blocks.op.hidden, self.blocks
        shape = (self.blocks.op.tokens + self.margin, b.group, hidden)
        return GlobalTensor("x", shape, dtype, (hidden, b.spacing * hidden, 1), "input")

    def stored(self, x: Array) -> Array:
        """x as the tensor shows it."""
        b = self.blocks
        beyond = b.spacing * (b.group - 1)
        padded = np.pad(np.asarray(x), ((self.margin, beyond), (0, 0)))
        found = np.lib.stride_tricks.sliding_window_view(padded, beyond + 1, axis=0)[:, :, :: b.spacing]
        return np.asarray(found[: b.op.tokens + self.margin].transpose(0, 2, 1))

    def windows(self, tensor: GlobalTensor, group: Expr, column: Expr, columns: int) -> View:
        """The rows of a whole group, counted over all blocks."""
        b = self.blocks
        tokens = b.tokens.reshape(-1, b.group)
        valid = (tokens >= 0).sum(axis=1)
        first = looked_up(np.maximum(tokens[:, 0], 0) + b.spacing * valid, group)
        return tensor[first:1, looked_up(b.group - valid, group) : b.group, column:columns]  # type: ignore[misc]

    def row(self, tensor: GlobalTensor, row: Expr, column: Expr, columns: int) -> View:
        """One row, counted over all blocks; nothing of one that is padded."""
        tokens = self.blocks.tokens.reshape(-1)
        places = np.where(tokens >= 0, tokens + self.margin, tensor.shape[0])
        return tensor[looked_up(places, row) : 1, 0:1, column:columns]  # type: ignore[misc]


@dataclass(frozen=True)
class Part:
    """What is simulated of a product. picked: numbers of the blocks; launched: blocks of the grid; tiles_n: tiles
    along the columns; stands_for: tiles of the launch, 0 where these are all."""

    picked: Numbers
    launched: int
    tiles_n: int
    stands_for: int = 0

    @classmethod
    def whole(cls, blocks: Blocks, tiles_n: int) -> Part:
        """All of it."""
        return cls(np.arange(blocks.count), blocks.launched, tiles_n)


@dataclass(frozen=True)
class GroupedProduct:
    """c = a w[expert]^T, a block of rows an expert.

    a: tokens, or a tensor that lies block by block. part: what is simulated of it. weights: of the rows, by which the
    epilogue multiplies.
    """

    name: str
    blocks: Blocks
    sorted: Sorted
    a: GlobalTensor
    w: GlobalTensor
    c: GlobalTensor
    part: Part
    tokens: Tokens | None = None
    weights: GlobalTensor | None = None

    def problem(self, config: MoeConfig) -> Problem:
        """As a product of all blocks."""
        b, dtype = self.blocks, self.w.dtype
        rows, columns, depth = self.part.launched * b.size, self.part.tiles_n * config.block_n, self.w.shape[2]
        gemm = Gemm(m=rows, n=columns, k=depth, tb="T", dtype=dtype).with_defaults(dtype)
        a, w = Operand(self.a, rows, True), Operand(self.w, columns, True)
        return Problem(gemm, dtype, self.c.dtype, str(gemm.acc), a, w, self.c)


class _Writer(Writer):
    """Writes a grouped product on warp-level mma."""

    def __init__(
        self, g: GroupedProduct, p: Problem, spec: GpuSpec, config: TritonConfig, core: mma.TensorCore
    ) -> None:
        self.g = g
        self.together = g.blocks.group if g.tokens else 0
        super().__init__(p, spec, config, core)
        self.together = 0
        self.k.name = f"{g.name}_{config.tile_m}x{config.tile_n}x{config.tile_k}"

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        c = self.config
        with self.k.role("warps", c.warps, self.registers) as r:
            self.inner.setup.write(r)
            unit = self._resolved(r, self.plan.unit(CTA_X, Const(0)))
            _load_number(r, self.g.sorted.padded, Const(0), "padded")
            picked = self.g.part.picked
            if len(picked) == self.g.part.launched:
                self._block(r, unit)
            else:
                with r.when(unit.tile.m < len(picked)):
                    self._block(r, unit)
        return replace(self.k.build(), stands_for=self.g.part.stands_for)

    def _block(self, r: RoleBuilder, unit: Unit) -> None:
        """A tile of a block that has rows."""
        b = self.g.blocks
        picked = self.g.part.picked
        if len(picked) < b.count:
            block = r.assign("block", looked_up(picked, unit.tile.m))
            unit = replace(unit, tile=replace(unit.tile, m=block))
        experts = b.experts[picked]
        _load_rows(r, self.g.sorted.rows, unit.tile.m * b.size, b.size)
        _load_number(r, self.g.sorted.experts, unit.tile.m, "expert")
        self.valid = r.assign("valid", looked_up(b.valid, unit.tile.m))
        here = looked_up(b.experts >= 0, unit.tile.m)
        self.expert = r.assign("expert", looked_up(np.maximum(b.experts, 0), unit.tile.m))
        self.even: Expr = Const(1)
        if self.g.tokens and not b.even(b.group).all():
            self.even = r.assign("even", looked_up(b.even(b.group), unit.tile.m))
        if (experts >= 0).all():
            self._main_loop(r, unit)
            self._epilogue(r, unit)
            return
        if (experts < 0).all():
            self._store_zeros(r, unit)
            return
        with r.when(here):
            self._main_loop(r, unit)
            self._epilogue(r, unit)
        with r.when(here.equals(0)):
            self._store_zeros(r, unit)

    # --- operands and results

    def _fetch(self, r: RoleBuilder, unit: Unit, k: Expr, stage: Expr, reuse: bool = False) -> None:
        """Starts the copies of k step `k`; tokens that do not lie evenly apart row by row."""
        a, b = self.copies
        if self.even == Const(1):
            super()._fetch(r, unit, k, stage, reuse)
            return
        both = self.copies
        with r.when(self.even):
            self.copies = (a,)  # type: ignore[assignment]
            super()._fetch(r, unit, k, stage, reuse)
        with r.when(self.even.equals(0)):
            if reuse:
                r.bar_sync(0, self.config.warps)
            with self._copying(r, a):
                self._fetch_rows(r, a, unit, (unit.k_begin + k) * self.config.tile_k, stage)
        self.copies = (b,)  # type: ignore[assignment]
        super()._fetch(r, unit, k, stage, reuse)
        self.copies = both

    def _fetch_rows(self, r: RoleBuilder, copy: Copy, unit: Unit, depth: Expr, stage: Expr) -> None:
        tokens = self.g.tokens
        assert tokens is not None
        for piece in range(copy.pieces):
            for i in range(copy.rows):
                share = copy.share(piece) + i
                row, column = self._place(copy, share)
                source = tokens.row(self.g.a, unit.tile.m * self.g.blocks.size + row, depth + column, copy.columns)
                target = copy.tile[stage, share:1, 0 : copy.columns]  # type: ignore[misc]
                r.cp_async(target, source, 1, vector_bytes=copy.operand.vector_bytes)

    @staticmethod
    def _place(copy: Copy, share: Expr) -> tuple[Expr, Expr]:
        """Row of the block and column of the step where a box of the shared tile begins."""
        if copy.blocks > 1:
            return share % copy.memory_rows, share // copy.memory_rows * copy.columns
        return share, Const(0)

    def source(self, copy: Copy, unit: Unit, depth: Expr, piece: int) -> View:
        """Tokens, or rows of the block, or weights of its expert, in one step of the sum."""
        row, column = self._place(copy, copy.share(piece))
        at = depth + column
        if copy.operand is not self.p.a:
            first = unit.tile.n * copy.extent + row
            return self.g.w[self.expert, first : copy.rows, at : copy.columns]  # type: ignore[misc]
        b = self.g.blocks
        if self.g.tokens is None:
            return self.g.a[unit.tile.m, b.size - self.valid + row : copy.rows, at : copy.columns]  # type: ignore[misc]
        group = unit.tile.m * (b.size // b.group) + row // b.group
        view = self.g.tokens.windows(self.g.a, group, at, copy.columns)
        if copy.rows == b.group:
            return view
        first, inside, columns = view.offsets
        return self.g.a[first:1, inside + row % b.group : copy.rows, columns : copy.columns]  # type: ignore[misc]

    def result(self, unit: Unit, row: Expr, rows: int, col: Expr, cols: int) -> View:
        """Rows of the block."""
        first = self.g.blocks.size - self.valid + (row - unit.tile.m * self.g.blocks.size)
        return self.g.c[unit.tile.m, first:rows, col:cols]  # type: ignore[misc]

    # --- epilogue

    def _epilogue(self, r: RoleBuilder, unit: Unit) -> None:
        if self.g.weights is not None:
            c = self.config
            topk = self.g.weights.shape[1]
            held = RegisterTile("weights", (ceil_div(c.warp_m, topk), topk), "fp32")
            row = looked_up(np.maximum(self.g.blocks.flat[:, 0], 0) // topk, unit.tile.m)
            r.ldg(held.whole, _some(self.g.weights, row, c.warp_m), into="w", vector_bytes=4)
            r.run("fmul", c.accumulators, dtype="fp32", after=("w",))
        super()._epilogue(r, unit)

    def _store_zeros(self, r: RoleBuilder, unit: Unit) -> None:
        c = self.config
        zeros = RegisterTile("zeros", (c.warp_m, c.warp_n), self.p.out)
        r.run("iadd", 1, dtype="int32", dst=zeros.whole, compute=np.zeros_like, nominal=True)
        row, col = unit.tile.m * c.tile_m + self.row, unit.tile.n * c.tile_n + self.col
        vector = min(16, self.p.c_vector_bytes, c.warp_n * DTYPE_BYTES[self.p.out])
        box = self.result(unit, row, c.warp_m, col, c.warp_n)
        count = ceil_div(c.warp_m * c.warp_n * DTYPE_BYTES[self.p.out], WARP_SIZE * vector)
        r.stg(box, zeros.whole, count, vector_bytes=vector)


def _some(weights: GlobalTensor, row: Expr, rows: int) -> View:
    """As many weights as a warp has rows, from a token's on: they stand for those of its rows."""
    topk = weights.shape[1]
    return weights[row : ceil_div(rows, topk), 0:topk]  # type: ignore[misc]


def _load_number(r: RoleBuilder, tensor: GlobalTensor, place: Expr, name: str) -> None:
    """One number that all threads read, and wait for."""
    tile = RegisterTile(name, (1, 1), "int32")
    r.ldg(tile.whole, tensor[0:1, place:1], 1, into=name, vector_bytes=4)  # type: ignore[misc]
    r.run("iadd", 1, dtype="int32", after=(name,))


def _load_rows(r: RoleBuilder, tensor: GlobalTensor, place: Expr, rows: int) -> None:
    """Numbers of the rows of a block."""
    tile = RegisterTile("row_numbers", (1, rows), "int32")
    r.ldg(tile.whole, tensor[0:1, place:rows], ceil_div(rows, WARP_SIZE), into="rows", vector_bytes=4)  # type: ignore[misc]
    r.run("iadd", 2, dtype="int32", after=("rows",))


def kernel(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> Kernel:
    """The kernel of a product."""
    p = g.problem(config)
    tile = TritonConfig(
        config.block_m, config.block_n, config.block_k, *warp_tile(config.block_m, config.block_n, config.warps),
        config.stages, "cp.async", config.group,
    )  # fmt: skip
    core = TritonCore(spec, p.dtype, "cp.async")
    mma.check(p, spec, tile)
    return _Writer(g, p, spec, tile, core).kernel()
