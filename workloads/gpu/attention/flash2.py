"""FlashAttention-2: attention forward by mma.sync and cp.async, as it runs on Ampere (Dao, arXiv 2307.08691).

All warps of a CTA do the same: 32 or 16 queries each, all keys. K and V have one buffer each: V is on its way while
Q K^T is multiplied, the next K while softmax and P V run. Tiles, warps and instruction counts are those of the
published kernels (csrc/flash_attn, machine code of commit 0251105a, nvcc 13.0); on Hopper it is the same program.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    CTA_Z,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    SharedTile,
    View,
    as_expr,
)
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import (
    WIDE_HEAD_DIMS,
    AttentionProblem,
    Blocks,
    OnlineSoftmax,
    blocks,
    check_head,
    check_together,
    problem,
    width,
)
from workloads.gpu.attention.configuration import AttentionConfig, rounds_ps
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.mma import MATRIX_BYTES
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.ops.attention import Attention
from workloads.registry import register

SHAPE = "m16n8k16"
SHAPE_K = 16
SHAPE_MACS = 16 * 8 * 16
BLOCK_COLUMNS = 64
"""Columns of a block of a shared tile: 128 B, all banks once, so that ldmatrix has no conflicts. Heads that are no
multiple of it have blocks of half the width, two rows of which have all banks."""


@dataclass(frozen=True)
class Flash2Config(AttentionConfig):
    """Tile configuration: `block_m` queries a CTA of `warps` warps, `block_n` keys a step."""

    block_m: int
    block_n: int
    warps: int = 4

    schedule: ClassVar[str] = "flash2"

    @property
    def rows(self) -> int:
        """Queries of a warp."""
        return self.block_m // self.warps

    grammar: ClassVar[tuple[Word, ...]] = (Word.tile("block_m", "block_n"), Word.number("warps"))

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        check_tile(p, spec, where, self.block_m, self.block_n, self.warps)
        check_together(p, where, "flash2-varlen", lengths=True)

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """About the time in picoseconds."""
        return rounds_ps(p, spec, self.block_m, self.block_n, products(p, spec, self.block_m, self.block_n))


def products(p: AttentionProblem, spec: GpuSpec, block_m: int, block_n: int) -> float:
    """Cycles of both products of a step of `block_m` queries and `block_n` keys on an SM."""
    row = spec.instruction("mma", p.dtype, SHAPE)
    return 2 * block_m * block_n * p.head_dim / row.macs * row.cadence_cycles / spec.sm.sub_cores


def default_config(p: AttentionProblem, spec: GpuSpec) -> Flash2Config:
    """The published kernel's configuration (csrc/flash_attn/src/flash_fwd_launch_template.h)."""
    d = p.head_dim
    if d <= 64:
        return Flash2Config(128, 128)
    if d in (96, 128):
        return Flash2Config(128, 64)
    if d == 192:
        return Flash2Config(128, 64, 8)
    # Two CTAs of 64 queries where an SM has room for both, else one of 128.
    small = (64 + 2 * 64) * d * width(p)
    one = (128 + 2 * 64) * d * width(p)
    if one <= spec.shared.max_per_cta_bytes and spec.shared.max_per_sm_bytes < 2 * small:
        return Flash2Config(128, 64, 8)
    return Flash2Config(64, 64)


def check_tile(p: AttentionProblem, spec: GpuSpec, where: str, block_m: int, block_n: int, warps: int) -> None:
    """InputError if the machine has no such instructions or warps cannot share such a tile of such heads."""
    for size, wide in ((p.op.head_dim, WIDE_HEAD_DIMS), (p.op.value_dim, WIDE_HEAD_DIMS[:1])):
        check_head(where, p.dtype, size, wide=wide, other=", or schedule=unfused")
    if spec.cp_async is None or not spec.has_instruction("mma", p.dtype, SHAPE):
        raise InputError(f"{where}: {spec.name} has no cp.async with mma {SHAPE} for {p.dtype}; nearest: unfused")
    if block_m % (16 * warps) or block_m < 1:
        raise InputError(f"{where}: each warp has a multiple of 16 queries; nearest: {16 * warps} queries")
    if block_n % SHAPE_K or block_n < SHAPE_K:
        raise InputError(f"{where}: a block of keys is a multiple of {SHAPE_K}; nearest: 64")


@register("attention", "gpu", "flash2")
def build(op: Attention, spec: GpuSpec, config: Flash2Config) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    return Program(f"{op}", p.tensors, (_Builder(p, config).kernel(),), str(config), {"config": config})


class Blocked:
    """`rows` by head_dim elements in shared memory, in blocks of `columns` columns with permuted rows (XOR)."""

    def __init__(
        self, k: KernelBuilder, name: str, rows: int, head_dim: int, dtype: str, stages: int = 1, columns: int = 0,
    ) -> None:  # fmt: skip
        columns = columns or (BLOCK_COLUMNS if head_dim % BLOCK_COLUMNS == 0 else BLOCK_COLUMNS // 2)
        self.rows, self.columns, self.blocks = rows, columns, head_dim // columns
        swizzle = 128 if columns * DTYPE_BYTES[dtype] % 128 == 0 or columns % BLOCK_COLUMNS == 0 else 64
        self.tile: SharedTile = k.shared(name, (rows * self.blocks, columns), dtype, stages, swizzle_bytes=swizzle)

    def view(self, row: IntLike, rows: int, column: IntLike, columns: int, stage: IntLike = 0) -> View:
        """A box that lies in one block of columns."""
        first = column // self.columns * self.rows
        return self.tile[stage, row + first : rows, column % self.columns : columns]  # type: ignore[misc]


class Fragments:
    """Products of 16 rows and more by ldmatrix and mma: fragments of one part are read while the one before multiplies.

    A part is `PART` deep, two mma. depth: of the scores, where it is not the width of the outputs.
    """

    PART = 16

    def __init__(self, dtype: str, rows: int, block_n: int, head_dim: int, depth: int = 0) -> None:
        self.dtype, self.rows, self.block_n, self.head_dim = dtype, rows, block_n, head_dim
        self.depth = depth or head_dim
        self.a = [RegisterTile(f"a{i}", (rows, self.PART), dtype) for i in range(2)]
        self.b = [RegisterTile(f"b{i}", (self.PART, max(block_n, head_dim)), dtype) for i in range(2)]

    def scores(self, r: RoleBuilder, s: OnlineSoftmax, q: Blocked, row: Expr, k: Blocked, stage: IntLike = 0) -> None:
        """scores = Q K^T."""

        def load(part: int) -> None:
            at = part * self.PART
            self._ldmatrix(r, self.a[part % 2].whole, q.view(row, self.rows, at, self.PART))
            self._ldmatrix(r, self.b[part % 2][:, 0 : self.block_n].T, k.view(0, self.block_n, at, self.PART, stage))

        def multiply(part: int, spread: bool) -> None:
            b = self.b[part % 2][:, 0 : self.block_n]
            self._mma(r, s.scores.whole, self.a[part % 2].whole, b, part > 0, spread)

        self._pipeline(self.depth // self.PART, load, multiply)

    def outputs(
        self, r: RoleBuilder, s: OnlineSoftmax, v: Blocked, stage: IntLike = 0, accumulate: IntLike = 1
    ) -> None:
        """acc += P V."""

        def load(part: int) -> None:
            for block in range(v.blocks):
                columns = min(BLOCK_COLUMNS, v.columns)
                at = block * columns
                dst = self.b[part % 2][:, at:columns]
                self._ldmatrix(r, dst, v.view(part * self.PART, self.PART, at, columns, stage))

        def multiply(part: int, spread: bool) -> None:
            a = s.weights[:, part * self.PART : self.PART]
            b = self.b[part % 2][:, 0 : self.head_dim]
            self._mma(r, s.acc.whole, a, b, accumulate if part == 0 else 1, spread)

        self._pipeline(self.block_n // self.PART, load, multiply)

    @staticmethod
    def _pipeline(parts: int, load, multiply) -> None:  # type: ignore[no-untyped-def]
        load(0)
        for part in range(parts):
            multiply(part, part + 1 < parts)
            if part + 1 < parts:
                load(part + 1)

    def _ldmatrix(self, r: RoleBuilder, dst: View, src: View) -> None:
        r.ldmatrix(dst, src, ceil_div(dst.size_bytes, MATRIX_BYTES))

    def _mma(self, r: RoleBuilder, acc: View, a: View, b: View, accumulate: IntLike, spread: bool) -> None:
        count = acc.extents[0] * acc.extents[1] * self.PART // SHAPE_MACS
        r.mma(
            acc, a, b, shape=SHAPE, dtype=self.dtype, count=count, accumulate=accumulate, spread=spread,
            mix=self.moves(count).mix,
        )  # fmt: skip

    def moves(self, count: int) -> overhead.Overhead:
        """What a warp executes among `count` of its multiplies: their share of what there is in a step."""
        of_step = overhead.Overhead(0).plus(overhead.FLASH2_PER_SCORES, self.rows * self.block_n // 1024)
        of_step = of_step.plus(overhead.FLASH2_PER_OUTPUTS, self.rows * self.head_dim // 1024)
        share = Fraction(count * SHAPE_MACS, self.rows * self.block_n * (self.depth + self.head_dim))
        return overhead.Overhead(round(of_step.alu * share), round(of_step.imad * share))


def store_rows(
    r: RoleBuilder, s: OnlineSoftmax, staging: Blocked, own: Expr, o: GlobalTensor, at: tuple[IntLike, Expr, Expr],
    column: IntLike = 0, first: IntLike = 0,
) -> None:  # fmt: skip
    """A warp's outputs to (batch, row, head) `at`, from `column` on, through its rows `own` of `staging`, so that
    threads store whole vectors; it takes back what it has put there, so that no barrier is needed. first: the first
    of its queries, where lengths differ."""
    batch, row, head = at
    out, rows, columns = DTYPE_BYTES[o.dtype], s.rows, staging.columns
    result = RegisterTile("result", (rows, s.head_dim), o.dtype)
    firsts = range(0, s.head_dim, columns)
    for block in firsts:
        view = staging.view(own, rows, block, columns)
        r.sts(view, s.acc[:, block:columns], ceil_div(rows * columns, 64), vector_bytes=2 * out)
    for block in firsts:
        view = staging.view(own, rows, block, columns)
        r.lds(result[:, block:columns], view, ceil_div(rows * columns * out, 32 * MAX_VECTOR_BYTES))

    def store(count: int) -> None:
        box = o[batch, row:count, head, column : s.head_dim]  # type: ignore[misc]
        r.stg(box, result[0:count, :], ceil_div(count * s.head_dim * out, 32 * MAX_VECTOR_BYTES))

    if not s.p.ragged_q:
        store(rows)
        return
    left = s.p.queries - as_expr(first)
    with r.when(rows - 1 < left):
        store(rows)
    # What lies behind the end of a sequence is another one's.
    for rest in sorted({length % rows for length in s.p.op.lengths_q} - {0}):
        with r.when(left.equals(rest)):
            store(rest)


class _Builder:
    """Writes the kernel."""

    def __init__(self, p: AttentionProblem, config: Flash2Config) -> None:
        p = p.at(CTA_Y)
        self.p, self.c = p, config
        op, d = p.op, p.head_dim
        self.k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (ceil_div(op.queries, config.block_m), op.batch, op.heads),
            code_bytes=_code_bytes(config, d),
        )  # fmt: skip
        self.q, self.keys, self.values = (
            Blocked(self.k, name, rows, d, p.dtype)
            for name, rows in (("q", config.block_m), ("k", config.block_n), ("v", config.block_n))
        )
        # O leaves through the buffer of Q.
        self.staging = self.q if p.out == p.dtype else Blocked(self.k, "o", config.block_m, d, p.out)
        self.own = WARP * config.rows

    def kernel(self) -> Kernel:
        """One role: all warps do the same."""
        c, d = self.c, self.p.head_dim
        row = CTA_X * c.block_m
        b = blocks(self.p, row, c.block_m, c.block_n)
        s = OnlineSoftmax(self.p, c.rows, c.block_n, d)
        f = Fragments(self.p.dtype, c.rows, c.block_n, d)
        with self.k.role("warps", c.warps, 255) as r:
            overhead.FLASH2_SETUP.write(r)
            self.p.read_lengths(r)
            # The grid is for the longest sequence.
            with r.when(row < self.p.queries) if self.p.ragged_q else nullcontext():
                self._tile(r, s, f, b, row)
        return self.k.build()

    def _tile(self, r: RoleBuilder, s: OnlineSoftmax, f: Fragments, b: Blocks, row: Expr) -> None:
        """A tile of queries with all keys that it sees."""
        c = self.c
        self._copy(r, self.q, self.p.q, row, CTA_Z)
        self._copy(r, self.keys, self.p.k, (b.end - 1) * c.block_n, self.p.key_head(CTA_Z))
        r.cp_commit()
        self._block(r, s, f, b, row, b.end - 1, first=True, masked=True)
        last = b.end - 2
        for name, trips, masked in (("tail", b.tail, True), ("whole", b.whole, False), ("head", b.head, True)):
            if trips == Const(0):
                continue
            with r.loop(name, trips) as i:
                self._block(r, s, f, b, row, last - i, first=False, masked=masked)
            last = last - trips
        self._store(r, s, row)

    def _copy(self, r: RoleBuilder, to: Blocked, tensor: GlobalTensor, row: Expr, head: Expr) -> None:
        """All warps bring their share of the rows of a tile, block of columns by block."""
        rows = to.rows // self.c.warps
        for block in range(to.blocks):
            columns = to.columns
            column = block * columns
            own = WARP * rows
            at: tuple[IntLike, Expr] = (CTA_Y, row + own)
            if self.p.ragged:
                at = self.p.query_place(at[1]) if tensor is self.p.q else self.p.key_place(at[1])
            src = tensor[at[0], at[1] : rows, head, column:columns]  # type: ignore[misc]
            count = ceil_div(rows * columns * width(self.p), 32 * MAX_VECTOR_BYTES)
            r.cp_async(to.view(own, rows, column, columns), src, count)

    def _block(
        self, r: RoleBuilder, s: OnlineSoftmax, f: Fragments, b: Blocks, row: Expr, block: Expr, *, first: bool,
        masked: bool,
    ) -> None:  # fmt: skip
        c, head = self.c, self.p.key_head(CTA_Z)
        r.cp_wait(0)
        r.bar_sync(0, c.warps)
        self._copy(r, self.values, self.p.v, block * c.block_n, head)
        r.cp_commit()
        f.scores(r, s, self.q, self.own, self.keys)
        if masked:
            s.mask(r, row + self.own, block * c.block_n)
        r.cp_wait(0)
        r.bar_sync(0, c.warps)
        with r.when(block > b.end - b.trips):
            self._copy(r, self.keys, self.p.k, (block - 1) * c.block_n, head)
        r.cp_commit()
        s.block(r, first=first)
        if not first:
            s.rescale(r)
        s.convert(r)
        f.outputs(r, s, self.values, accumulate=0 if first else 1)
        overhead.FLASH2_STEP.write(r)

    def _store(self, r: RoleBuilder, s: OnlineSoftmax, row: Expr) -> None:
        """Outputs through shared memory, LSE from registers."""
        s.finish(r)
        overhead.FLASH2_EPILOGUE.write(r)
        at: tuple[IntLike, Expr] = (CTA_Y, row + self.own)
        if self.p.ragged:
            at = self.p.query_place(at[1])
        store_rows(r, s, self.staging, self.own, self.p.o, (*at, CTA_Z), first=row + self.own)
        lse = self.p.lse[CTA_Y, CTA_Z, row + self.own : self.c.rows]  # type: ignore[misc]
        r.stg(lse, s.total.whole, s.lines, vector_bytes=4)


def _code_bytes(c: Flash2Config, head_dim: int) -> int:
    """Machine code on the path that runs: set-up, a masked block, the loop, the epilogue."""
    return (240 + 1650 + 1180 + 350 + head_dim) * overhead.INSTRUCTION_BYTES
