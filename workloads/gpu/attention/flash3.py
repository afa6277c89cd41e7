"""FlashAttention-3: attention forward on Hopper (Shah et al., arXiv 2407.08608).

One producer warp brings tiles of Q, K and V by TMA; two or three consumer warpgroups, 64 queries each, multiply them
with wgmma. Inside a warpgroup the product Q K^T of a block of keys runs beside P V of the block before, and softmax
beside P V (overlap). The warpgroups take turns at the tensor cores, so that softmax of one runs beside the products of
the other (ping-pong). CTAs of a cluster share K and V by multicast. CTAs are persistent; where masks make tiles
unequal they take them from a counter, the longest first, few heads at a time so that K and V stay in the L2.

Each mechanism can be left out, which gives another program: `tma` (cp.async by the producer's four warps), `wgmma`
(ldmatrix and mma.sync), `specialized` (all warps load and compute), `pingpong`, `overlap` (each product, then softmax,
is waited for before the next one begins: the paper's algorithm 1), and multicast (`cluster` 1).

Tiles, warps and instruction counts are those of the published kernels (hopper/tile_size.h and machine code of commit
0251105a, nvcc 13.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CLUSTER_RANK,
    CTA_X,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    MBarrier,
    Program,
    RegisterTile,
    RoleBuilder,
    SharedTile,
    Var,
    View,
    minimum,
)
from sim.gpu.language.expressions import ZERO
from workloads import libraries
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import (
    AttentionProblem,
    Blocks,
    OnlineSoftmax,
    blocks,
    check_head,
    check_together,
    packed,
    problem,
    width,
)
from workloads.gpu.attention.configuration import AttentionConfig, rounds_ps
from workloads.gpu.attention.flash2 import BLOCK_COLUMNS, Blocked, Fragments, store_rows
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.mma import MATRIX_BYTES
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, ceil_div
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, INSTRUCTION_K_BYTES, WARP_ROWS, WARPGROUP, clusters_resident
from workloads.ops.attention import Attention
from workloads.registry import register

RELEASE = "flash-attention-3@2025"
"""Whose kernels these are (`workloads/libraries`)."""


@dataclass(frozen=True)
class Flash3Config(AttentionConfig):
    """One kernel of FlashAttention-3: its tile, and which mechanisms it uses (see above).

    block_m: queries of a CTA.
    block_n: keys of a step.
    cluster: CTAs that share keys and values.
    stages: buffers of K and of V, each.
    longest_first: where masks make tiles unequal, CTAs take the longest of a section first; without, all in order.
    """

    block_m: int
    block_n: int
    cluster: int = 1
    stages: int = 2
    pingpong: bool = True
    overlap: bool = True
    tma: bool = True
    wgmma: bool = True
    specialized: bool = True
    longest_first: bool = True

    schedule: ClassVar[str] = "flash3"

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return self.block_m // BLOCK_ROWS

    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("block_m", "block_n"),
        Word.number("cluster", 1),
        Word.number("stages"),
        Word.flag("pingpong"),
        Word.flag("overlap"),
        Word.flag("cp.async", "tma", False),
        Word.flag("mma", "wgmma", False),
        Word.flag("unspecialized", "specialized", False),
        Word.flag("in-order", "longest_first", False),
    )

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if not available(p, spec):
            raise InputError(f"{where}: {spec.name} has no wgmma for {p.dtype}; its nearest schedule is flash2")
        if width(p) == 1 and not (self.tma and self.wgmma and self.specialized and self.cluster == 1):
            raise InputError(
                f"{where}: {p.dtype} needs TMA, wgmma and producers, which transpose V; nearest: dtype=fp16"
            )
        check_together(p, where, "flash3-varlen")
        check_tile(p, self, where)

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """About the time in picoseconds."""
        p = packed(p)
        cycles = products(p, spec, self.block_m, self.block_n, columns(p))
        return rounds_ps(p, spec, self.block_m, self.block_n, cycles, self.overlap)

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism and what needs it."""
        match mechanism:
            case "tma":
                left = replace(self, tma=False, cluster=1)
            case "wgmma":
                left = replace(self, wgmma=False, overlap=False)
            case "warp_specialization":
                left = replace(self, specialized=False, pingpong=False)
            case "multicast":
                left = replace(self, cluster=1)
            case "pingpong" | "overlap":
                left = replace(self, **{mechanism: False})
            case _:
                left = self
        return str(left)


def products(p: AttentionProblem, spec: GpuSpec, block_m: int, block_n: int, d: int) -> float:
    """Cycles of both products of a step of `block_m` queries and `block_n` keys on an SM, with heads of `d` columns."""
    depth = step_k(p)
    scores, outputs = (spec.instruction("wgmma", p.dtype, f"m64n{width}k{depth}") for width in (block_n, d))
    cycles = scores.interval_cycles * (d // depth) + outputs.interval_cycles * (block_n // depth)
    return cycles * (block_m // BLOCK_ROWS)


def columns(p: AttentionProblem) -> int:
    """Columns of a head in the kernel (round_up_headdim in hopper/flash_api.cpp)."""
    return max(64, p.head_dim)


def published_tile(p: AttentionProblem) -> tuple[int, int]:
    """Published tile of queries and keys."""
    same = [row for row in libraries.rows(RELEASE, "tiles") if row.bytes == width(p)]
    widest = max(same, key=lambda row: row.head_dim)
    tile = next((row for row in same if row.head_dim == columns(p)), widest)
    return tile.queries, tile.keys_window if p.op.window > 0 else tile.keys_causal if p.masked else tile.keys


def default_config(p: AttentionProblem) -> Flash3Config:
    """The published kernel's configuration."""
    block_m, block_n = published_tile(p)
    wide = width(p) == 2
    shares = wide and not p.masked and columns(p) >= 128 and ceil_div(p.op.queries, block_m) % 2 == 0
    turns = columns(p) <= 128 if wide else columns(p) >= 128
    return Flash3Config(block_m, block_n, cluster=2 if shares else 1, pingpong=turns)


@register("attention", "gpu", "flash3")
def build(op: Attention, spec: GpuSpec, config: Flash3Config) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    config.check(p, spec)
    by_rows = packed(p)
    kernel = Builder(by_rows, spec, config).kernel()
    tensors = p.tensors if by_rows is p else (*p.tensors[:-1], by_rows.q, by_rows.o, by_rows.lse)
    return Program(f"{op}", tensors, (kernel,), str(config), {"config": config})


def check_tile(p: AttentionProblem, config: Flash3Config, where: str) -> None:
    """InputError for tiles, heads and mechanisms that do not go together."""
    check_head(where, p.dtype, p.op.head_dim, other=", or schedule=unfused")
    if config.block_n % step_k(p):
        raise InputError(f"{where}: a block of {p.dtype} keys is a multiple of {step_k(p)}; nearest: 128")
    if config.block_m not in (64, 128, 192):
        raise InputError(f"{where}: a tile has 64, 128 or 192 queries, one warpgroup each 64; nearest: 128")
    if config.block_n % 16 or not 16 <= config.block_n <= 256:
        raise InputError(f"{where}: a block of keys is a multiple of 16 from 16 to 256; nearest: 128")
    if config.overlap and not config.wgmma:
        raise InputError(f"{where}: mma.sync ends before the next instruction, nothing overlaps it; leave out overlap")
    if config.pingpong and not config.specialized:
        raise InputError(f"{where}: warps that load cannot take turns; leave out pingpong")
    if config.cluster > 1 and not config.tma:
        raise InputError(f"{where}: only TMA writes to other CTAs of a cluster; nearest: cluster 1")
    if config.cluster not in (1, 2, 4) or config.block_n % (8 * config.cluster):
        raise InputError(f"{where}: 1, 2 or 4 CTAs share keys, whole groups of 8 rows each; nearest: cluster 1")


def available(p: AttentionProblem, spec: GpuSpec) -> bool:
    """Whether the machine has what the kernel is made of."""
    return spec.tma is not None and spec.has_instruction("wgmma", p.dtype, f"m{BLOCK_ROWS}n*k{step_k(p)}")


def step_k(p: AttentionProblem) -> int:
    """Depth of one wgmma."""
    return INSTRUCTION_K_BYTES // width(p)


class Builder:
    """Writes the kernel; one method a role or a part of one."""

    def __init__(self, p: AttentionProblem, spec: GpuSpec, config: Flash3Config) -> None:
        self.p, self.c = p, config
        d = columns(p)
        self.tiles_m = self.tiles_of_head
        self.tiles = self.all_tiles
        workers = min(self.tiles, max(1, clusters_resident(spec, config.cluster)))
        self.workers = workers
        self.k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (workers * config.cluster, 1, 1), (config.cluster, 1, 1),
            code_bytes=_code_bytes(config, d),
        )  # fmt: skip
        self.q = self._buffer("q", config.block_m, 1)
        self.keys = self._buffer("k", config.block_n, config.stages)
        self.values = self._buffer("v", config.block_n, config.stages)
        used = sum(t.tile.size_bytes for t in (self.q, self.keys, self.values)) + 2048
        # Where registers cannot hold scores, outputs and weights, the weights go through shared memory.
        self.weights: SharedTile | None = None
        if config.wgmma and config.block_n * (4 + width(p)) // 8 + d // 2 > self._registers[2]:
            self.weights = self.k.shared("p", (config.block_m, config.block_n), p.dtype, swizzle_bytes=128)
            used += self.weights.size_bytes
        # wgmma takes 8-bit values only with keys contiguous: producers transpose what TMA has brought.
        self.transposed: SharedTile | None = None
        if width(p) == 1:
            self.transposed = self.k.shared("v_transposed", (d, config.block_n), p.dtype, config.stages, 128)
            used += self.transposed.size_bytes
        staged = config.block_m * d * DTYPE_BYTES[p.out]
        # O leaves through the stages of V, whose next load waits for that; where it is wider than these or V lies in
        # blocks of columns, through a buffer of its own, or through Q, or straight from registers.
        self.stage_groups = config.block_n // BLOCK_ROWS
        fits = config.stages * self.stage_groups >= config.warpgroups and p.out == p.dtype
        self.through_v = fits and config.wgmma and self.stores_tiles
        self.o: Blocked | None = None
        if not self.through_v and used + staged <= spec.shared.max_per_cta_bytes:
            self.o = self._buffer("o", config.block_m, 1, p.out)
        self.through_q = self.o is None and not self.through_v and p.out == p.dtype
        self.staging = self.values if self.through_v else self.o or (self.q if self.through_q else None)
        warps = self.consumer_warps
        loaders = 1 if config.tma else WARPGROUP if config.specialized else warps
        if self.transposed:
            self.raw_full = self.k.mbarrier("raw_full", config.stages, 1)
            self.raw_empty = self.k.mbarrier("raw_empty", config.stages, WARPGROUP)
        if self.through_v:
            self.o_stored = self.k.mbarrier("o_stored", 1, config.cluster)
        self.q_full = self.k.mbarrier("q_full", 1, self.query_loaders)
        self.q_empty = self.k.mbarrier("q_empty", 1, 1 if self.through_q and self.stores_tiles else warps)
        self.k_full = self.k.mbarrier("k_full", config.stages, loaders)
        self.v_full = self.k.mbarrier("v_full", config.stages, WARPGROUP if self.transposed else loaders)
        self.k_empty, self.v_empty = (
            self.k.mbarrier(f"{n}_empty", config.stages, warps * config.cluster) for n in "kv"
        )
        self.rank: IntLike = CLUSTER_RANK if config.cluster > 1 else 0
        self.everyone = (1 << config.cluster) - 1
        self.fragments = Fragments(p.dtype, WARP_ROWS, config.block_n, d)

    def _buffer(self, name: str, rows: int, stages: int, dtype: str = "") -> Blocked:
        """A tile in shared memory: wgmma reads it whole, ldmatrix in blocks of 128 B without conflicts."""
        d = columns(self.p)
        return Blocked(self.k, name, rows, d, dtype or self.p.dtype, stages, d if self.c.wgmma else BLOCK_COLUMNS)

    @property
    def tiles_of_head(self) -> int:
        """Tiles of one head of one sequence, counted by cluster."""
        return ceil_div(ceil_div(self.p.op.queries, self.c.block_m), self.c.cluster)

    @property
    def all_tiles(self) -> int:
        """Tiles of all sequences."""
        return self.tiles_m * self.heads * self.p.op.batch

    @property
    def heads(self) -> int:
        """Heads of a sequence that have tiles of their own."""
        return self.p.op.heads

    @property
    def counted(self) -> bool:
        """Whether CTAs take tiles from a counter."""
        return self.p.masked

    @property
    def stores_tiles(self) -> bool:
        """Whether the TMA stores outputs."""
        return self.c.tma

    @property
    def query_loaders(self) -> int:
        """Warps that say that queries have come."""
        if self.c.tma:
            return 1
        return WARPGROUP if self.c.specialized else self.consumer_warps

    @property
    def _registers(self) -> tuple[int, int, int]:
        """Registers of a thread: at launch, of producers, of consumers."""
        if not self.c.specialized:
            return (many := {1: 255, 2: 255, 3: 168}[self.c.warpgroups]), 0, many
        launch, few, many = {1: (168, 56, 248), 2: (168, 24, 240), 3: (128, 32, 160)}[self.c.warpgroups]
        # Producers without TMA calculate addresses.
        return (launch, few, many) if self.c.tma else (launch, few + 16, many - 8)

    @property
    def consumer_warps(self) -> int:
        """Warps that compute."""
        return WARPGROUP * self.c.warpgroups

    def kernel(self) -> Kernel:
        """All roles, producer first."""
        launch, few, many = self._registers
        if not self.c.specialized:
            with self.k.role("warps", self.consumer_warps, many) as r:
                self._set_up(r, 0)
                self._consumer(r)
            return self.k.build()
        with self.k.role("producer", WARPGROUP, few) as r:
            self._set_up(r, few)
            if self.transposed:
                self._transposing_producer(r, self.transposed)
            elif self.c.tma:
                with r.when(WARP.equals(0)):
                    self._producer(r)
            else:
                self._producer(r)
        with self.k.role("consumer", self.consumer_warps, many) as r:
            self._set_up(r, many)
            self._consumer(r)
        return self.k.build(launch_registers=launch)

    def _set_up(self, r: RoleBuilder, registers: int) -> None:
        overhead.FLASH3_CTA_SETUP.write(r)
        if self.c.cluster > 1:
            r.cluster_sync()
        else:
            r.bar_sync(0, self.consumer_warps + (WARPGROUP if self.c.specialized else 0))
        if registers:
            r.setmaxnreg(registers)

    # --- tiles

    @contextmanager
    def _each_tile(self, r: RoleBuilder) -> Iterator[Tile]:
        """The tiles of this CTA one after the other."""
        worker = CTA_X // self.c.cluster if self.c.cluster > 1 else CTA_X
        r.assign("done", 0)  # steps of the tiles before, for the stages of K and V
        if self.counted:
            r.assign("index", 0)
            r.next_tile("tile")
            with r.loop_while(Var("tile") < self.tiles):
                uneven = self.p.masked and self.c.longest_first
                t = self._longest_first(Var("tile")) if uneven else self._in_order(Var("tile"))
                yield t
                r.assign("done", Var("done") + t.blocks.trips)
                r.assign("index", Var("index") + 1)
                r.next_tile("tile")
        else:
            with r.loop("index", (self.tiles - worker + (self.workers - 1)) // self.workers) as index:
                t = self._in_order(worker + index * self.workers)
                yield t
                r.assign("done", Var("done") + t.blocks.trips)

    def _in_order(self, number: Expr) -> Tile:
        """Neighbours in number have the same keys."""
        heads = number // self.tiles_m
        return self._tile(number % self.tiles_m, heads)

    def _longest_first(self, number: Expr) -> Tile:
        """Sections of heads whose keys fit the L2 together; in a section the tiles that see most keys first."""
        op = self.p.op
        all_heads = op.batch * self.heads
        head_bytes = 2 * op.keys * op.head_dim * width(self.p)
        together = libraries.figure(RELEASE, "section_bytes") // head_bytes
        section = min(all_heads, 1 << max(0, together.bit_length() - 1))
        within = number % (section * self.tiles_m)
        first = number // (section * self.tiles_m) * section
        # The last section has what heads are left.
        left = all_heads - all_heads // section * section
        size: IntLike = section
        if left:
            whole = all_heads - left
            size = section - (first + 1 > whole) * (section - left)
        return self._tile(self.tiles_m - 1 - within // size, first + within % size)

    def _tile(self, m: Expr, heads: Expr) -> Tile:
        row = (m * self.c.cluster + self.rank) * self.c.block_m
        head, batch = heads % self.heads, heads // self.heads
        return Tile(row, head, batch, blocks(self.p, row, self.c.block_m, self.c.block_n))

    # --- loads

    def _producer(self, r: RoleBuilder) -> None:
        c = self.c
        with self._each_tile(r) as t:
            self._load_first(r, t)
            self._await_store(r, Var("index") - 1)
            with r.loop("i", t.blocks.trips - 1) as i:
                step, block = Var("done") + i, t.blocks.end - 1 - i
                # Keys run one block ahead of values, as consumers ask for them.
                self._load(r, t, step + 1, block - 1, self.keys)
                self._load(r, t, step, block, self.values)
                if not c.tma:
                    self._landed(r, self.k_full, step + 1, 1)
                    self._landed(r, self.v_full, step, 0)
                overhead.FLASH3_PRODUCER_STEP.write(r)
            step = Var("done") + t.blocks.trips - 1
            self._load(r, t, step, t.blocks.end - t.blocks.trips, self.values)
            if not c.tma:
                self._landed(r, self.v_full, step, 0)
        self._drain(r)

    def _transposing_producer(self, r: RoleBuilder, to: SharedTile) -> None:
        """The first warp loads, one block ahead; all four transpose values."""
        with self._each_tile(r) as t:
            with r.when(WARP.equals(0)):
                self._load_first(r, t)
                self._await_store(r, Var("index") - 1)
                self._load(r, t, Var("done"), t.blocks.end - 1, self.values)
            with r.loop("i", t.blocks.trips - 1) as i:
                step, block = Var("done") + i, t.blocks.end - 1 - i
                with r.when(WARP.equals(0)):
                    self._load(r, t, step + 1, block - 1, self.keys)
                    self._load(r, t, step + 1, block - 1, self.values)
                    overhead.FLASH3_PRODUCER_STEP.write(r)
                self._transpose(r, step, to)
            self._transpose(r, Var("done") + t.blocks.trips - 1, to)

    def _transpose(self, r: RoleBuilder, step: Expr, to: SharedTile) -> None:
        """This warp's keys of a block: ldmatrix.trans, two permutes a word, stmatrix."""
        stage, phase, d = step % self.c.stages, step // self.c.stages, columns(self.p)
        rows = self.c.block_n // WARPGROUP
        own, count = WARP * rows, ceil_div(rows * d, MATRIX_BYTES)
        turn = RegisterTile("turn", (rows, d), self.p.dtype)
        r.mbarrier_wait(self.raw_full, stage, phase)
        r.ldmatrix(turn.whole, self.values.view(own, rows, 0, d, stage), count, mix=overhead.mix(alu=8 * count))
        r.mbarrier_wait(self.v_empty, stage, phase - 1)
        r.sts(to[stage, :, own:rows], turn.whole.T, count, vector_bytes=16)  # type: ignore[misc]
        r.fence_async()
        r.mbarrier_arrive(self.v_full, stage)
        r.mbarrier_arrive(self.raw_empty, stage)

    def _drain(self, r: RoleBuilder) -> None:
        """A CTA stays until its peers have handed back what it sent them, the values last, and have stored theirs."""
        if self.c.cluster > 1:
            self._await_store(r, (self.tiles - CTA_X // self.c.cluster + (self.workers - 1)) // self.workers - 1)
            with r.loop("drain", minimum(Var("done"), self.c.stages)) as i:
                step = Var("done") - 1 - i
                r.mbarrier_wait(self.v_empty, step % self.c.stages, step // self.c.stages)

    def _await_store(self, r: RoleBuilder, tile: Expr) -> None:
        """Until the outputs of a tile have left the buffers of V, in all CTAs that share values."""
        if self.through_v:
            r.mbarrier_wait(self.o_stored, 0, tile)

    def _load_first(self, r: RoleBuilder, t: Tile) -> None:
        """Q and the first keys."""
        r.mbarrier_wait(self.q_empty, 0, Var("index") - 1)
        if self.c.tma:
            r.mbarrier_expect(self.q_full, 0, self.q.tile.stage_bytes)
        self._copy(r, self.q, 0, self.p.q, t.batch, t.row, t.head, self.q_full)
        overhead.FLASH3_PRODUCER_TILE.write(r)
        self._load(r, t, Var("done"), t.blocks.end - 1, self.keys)
        if not self.c.tma and self.c.specialized:
            self._landed(r, self.q_full, Const(0), 0)
            r.mbarrier_arrive(self.k_full, Var("done") % self.c.stages)

    def _load(self, r: RoleBuilder, t: Tile, step: Expr, block: Expr, to: Blocked) -> None:
        """One block of K or V on its way."""
        full, empty, tensor = (self.k_full, self.k_empty, self.p.k)
        if to is self.values:
            full, empty, tensor = (self.v_full, self.v_empty, self.p.v)
            if self.transposed:
                full, empty = self.raw_full, self.raw_empty
        stage = step % self.c.stages
        r.mbarrier_wait(empty, stage, step // self.c.stages - 1)
        if self.c.tma:
            r.mbarrier_expect(full, stage, to.tile.stage_bytes)
        self._copy(r, to, stage, tensor, t.batch, block * self.c.block_n, self.p.key_head(t.head), full)

    def _copy(
        self, r: RoleBuilder, to: Blocked, stage: IntLike, tensor: GlobalTensor, batch: Expr, row: Expr, head: Expr,
        full: MBarrier,
    ) -> None:  # fmt: skip
        """Rows of a tensor to a tile: by TMA, each CTA of a cluster its part of K and V for all; or by cp.async, each
        warp its part, of the warpgroups that the rows divide among."""
        shared = self.c.cluster > 1 and to is not self.q
        parts = self.c.cluster if shared else 1
        own: IntLike = CLUSTER_RANK * (to.rows // parts) if shared else 0
        warps = WARPGROUP if self.c.specialized else self.consumer_warps
        if not self.c.tma:
            parts = next(n for n in range(warps, 0, -WARPGROUP) if to.rows % n == 0)
            own = WARP * (to.rows // parts)
        rows = to.rows // parts
        for block in range(to.blocks):
            at = block * to.columns
            src = tensor[batch, row + own : rows, head, at : to.columns]  # type: ignore[misc]
            dst = to.view(own, rows, at, to.columns, stage)
            if self.c.tma:
                r.tma_load(dst, src, full, stage, multicast=self.everyone if shared else None)
                continue
            count = ceil_div(rows * to.columns * width(self.p), 32 * MAX_VECTOR_BYTES)
            with r.when(parts > WARP) if parts < warps else nullcontext():
                r.cp_async(dst, src, count, mix=overhead.mix(alu=2 * count))
        if not self.c.tma:
            r.cp_commit()

    def _landed(self, r: RoleBuilder, full: MBarrier, step: Expr, left: int) -> None:
        """This warp's part of a block is there, for wgmma to see."""
        r.cp_wait(left)
        r.fence_async()
        r.mbarrier_arrive(full, step % full.stages)

    def _load_ahead(self, r: RoleBuilder, t: Tile, i: IntLike) -> None:
        """Without a producer: what step `i` of the tile brings, the next keys and its own values; before it, what the
        step before has brought is made known."""
        step, block = Var("done") + i, t.blocks.end - 1 - i
        first = isinstance(i, int)
        if self.c.tma:
            with r.when(WARP.equals(0)):
                if first:
                    self._load_first(r, t)
                    self._await_store(r, Var("index") - 1)
                with r.when(t.blocks.trips > i + 1):
                    self._load(r, t, step + 1, block - 1, self.keys)
                self._load(r, t, step, block, self.values)
            return
        if first:
            self._load_first(r, t)
            self._landed(r, self.q_full, Const(0), 0)
        elif self.c.overlap:
            self._landed(r, self.v_full, step - 1, 0)
        r.mbarrier_arrive(self.k_full, step % self.c.stages)
        with r.when(t.blocks.trips > i + 1):
            self._load(r, t, step + 1, block - 1, self.keys)
        self._load(r, t, step, block, self.values)

    # --- consumers

    def _consumer(self, r: RoleBuilder) -> None:
        c = self.c
        s = self.softmax()
        if c.pingpong and c.warpgroups > 1:
            with r.when((WARP // WARPGROUP).equals(c.warpgroups - 1)):
                self._give_turn(r)
        with self._each_tile(r) as t:
            row = t.row + self._own_row
            overhead.FLASH3_CONSUMER_TILE.write(r)
            if not c.specialized:
                self._load_ahead(r, t, 0)
            self._bring_queries(r, t)
            self._await(r, self.q_full, 0, Var("index"))
            step = self._overlapped_step if c.overlap else self._serial_step
            if c.overlap:
                self._first_block(r, s, t, row)
            else:
                self._serial_step(r, s, t, row, 0, masked=True)
            done: Expr = Const(1)
            for name, trips, masked in (
                ("tail", t.blocks.tail, self.p.masked), ("whole", t.blocks.whole, False), ("head", t.blocks.head, True)
            ):  # fmt: skip
                if trips == Const(0):
                    continue
                with r.loop(name, trips) as i:
                    if not c.specialized:
                        self._load_ahead(r, t, done + i)
                    step(r, s, t, row, done + i, masked=masked)
                done = done + trips
            if not self.through_q:
                r.mbarrier_arrive(self.q_empty, 0)
            if c.overlap:
                self._last_block(r, s, t)
            else:
                self._give_turn(r)
            self._store(r, s, t, row)
        if self.stores_tiles and self.staging:
            with r.when(WARP.equals(self.consumer_warps - 1)):
                if not self.through_v:
                    r.bulk_wait(0, read=False)
                if not c.specialized:
                    self._drain(r)

    def softmax(self) -> OnlineSoftmax:
        """Of a warp's rows."""
        return OnlineSoftmax(self.p, WARP_ROWS, self.c.block_n, columns(self.p))

    def _bring_queries(self, r: RoleBuilder, t: Tile) -> None:
        """Where consumers bring their queries themselves."""

    def _await(self, r: RoleBuilder, full: MBarrier, stage: IntLike, phase: Expr) -> None:
        """Until a tile has come, as the tensor cores see it."""
        r.mbarrier_wait(full, stage, phase)

    @property
    def _own_row(self) -> Expr:
        """First row of this warp in its tile."""
        return WARP // WARPGROUP * BLOCK_ROWS + WARP % WARPGROUP * WARP_ROWS

    def _take_turn(self, r: RoleBuilder) -> None:
        if self.c.pingpong and self.c.warpgroups > 1:
            r.bar_sync(2 + WARP // WARPGROUP, 2 * WARPGROUP)

    def _give_turn(self, r: RoleBuilder) -> None:
        if self.c.pingpong and self.c.warpgroups > 1:
            r.bar_arrive(2 + (WARP // WARPGROUP + 1) % self.c.warpgroups, 2 * WARPGROUP)

    def _scores(self, r: RoleBuilder, s: OnlineSoftmax, step: Expr, *, turn: bool) -> None:
        """Q K^T of one block, in flight."""
        stage, d = step % self.c.stages, columns(self.p)
        self._await(r, self.k_full, stage, step // self.c.stages)
        if turn:
            self._take_turn(r)
        if not self.c.wgmma:
            self.fragments.scores(r, s, self.q, self._own_row, self.keys, stage)
            return
        r.wgmma_fence()
        r.wgmma(
            s.scores.whole, self.q.view(self._own_row, WARP_ROWS, 0, d), self.keys.tile.stage(stage).T,
            shape=f"m{BLOCK_ROWS}n{self.c.block_n}k{step_k(self.p)}", dtype=self.p.dtype, count=d // step_k(self.p),
            accumulate=0, mix=overhead.mix(alu=2 * d // step_k(self.p)),
        )  # fmt: skip
        r.wgmma_commit()

    def _outputs(self, r: RoleBuilder, s: OnlineSoftmax, step: Expr, first: IntLike, *, turn: bool) -> None:
        """acc + P V of one block, in flight. first: whether it is the first of the tile."""
        stage, n = step % self.c.stages, self.c.block_n // step_k(self.p)
        self._await(r, self.v_full, stage, step // self.c.stages)
        if turn:
            self._take_turn(r)
        if not self.c.wgmma:
            self.fragments.outputs(r, s, self.values, stage, accumulate=1 - first)
            return
        r.wgmma_fence()
        r.wgmma(
            s.acc.whole,
            s.weights.whole if self.weights is None else self._rows_of_weights(self.weights),
            self.transposed.stage(stage).T if self.transposed else self.values.tile.stage(stage),
            shape=f"m{BLOCK_ROWS}n{columns(self.p)}k{step_k(self.p)}", dtype=self.p.dtype, count=n,
            accumulate=1 - first, mix=overhead.mix(alu=2 * n),
        )  # fmt: skip
        r.wgmma_commit()

    def _rows_of_weights(self, tile: SharedTile) -> View:
        """This warp's weights in shared memory."""
        return tile[0, self._own_row : WARP_ROWS, :]  # type: ignore[misc]

    def _convert(self, r: RoleBuilder, s: OnlineSoftmax) -> None:
        """Weights in the operands' format, where the product with the values takes them."""
        s.convert(r)
        if self.weights:
            count = WARP_ROWS * self.c.block_n * width(self.p) // MATRIX_BYTES
            r.stmatrix(self._rows_of_weights(self.weights), s.weights.whole, count)

    def _show_weights(self, r: RoleBuilder) -> None:
        """Makes weights in shared memory visible to wgmma."""
        if self.weights:
            r.fence_async()

    def _wait(self, r: RoleBuilder, left: int) -> None:
        """Until at most `left` products are in flight; mma.sync leaves none."""
        if self.c.wgmma:
            r.wgmma_wait(left)

    def _first_block(self, r: RoleBuilder, s: OnlineSoftmax, t: Tile, row: Expr) -> None:
        self._scores(r, s, Var("done"), turn=False)
        self._wait(r, 0)
        self._release(r, self.k_empty, Var("done"))
        s.mask(r, row, (t.blocks.end - 1) * self.c.block_n)
        s.block(r, first=True)
        self._convert(r, s)
        self._show_weights(r)

    def _overlapped_step(
        self, r: RoleBuilder, s: OnlineSoftmax, t: Tile, row: Expr, i: Expr, *, masked: bool
    ) -> None:  # fmt: skip
        """One block of keys: its scores and softmax, and the outputs of the block before."""
        step = Var("done") + i
        before = step - 1
        self._scores(r, s, step, turn=True)
        self._outputs(r, s, before, before.equals(Var("done")), turn=False)
        self._give_turn(r)
        self._wait(r, 1)
        self._release(r, self.k_empty, step)
        if masked:
            s.mask(r, row, (t.blocks.end - 1 - i) * self.c.block_n)
        s.block(r, first=False)
        self._wait(r, 0)
        self._release(r, self.v_empty, before)
        self._convert(r, s)
        s.rescale(r)
        self._show_weights(r)
        overhead.FLASH3_CONSUMER_STEP.write(r)

    def _last_block(self, r: RoleBuilder, s: OnlineSoftmax, t: Tile) -> None:
        last = Var("done") + t.blocks.trips - 1
        if not self.c.specialized and not self.c.tma:
            self._landed(r, self.v_full, last, 0)
        self._outputs(r, s, last, t.blocks.trips.equals(1), turn=False)
        self._wait(r, 0)
        self._release(r, self.v_empty, last)

    def _serial_step(
        self, r: RoleBuilder, s: OnlineSoftmax, t: Tile, row: Expr, i: IntLike, *, masked: bool
    ) -> None:  # fmt: skip
        """One block of keys: its scores, softmax and outputs in turn. A warpgroup's turn at the tensor cores is the
        outputs of one block and the scores of the next."""
        first = isinstance(i, int)
        step = Var("done") + i
        self._scores(r, s, step, turn=first)
        self._give_turn(r)
        self._wait(r, 0)
        self._release(r, self.k_empty, step)
        if masked:
            s.mask(r, row, (t.blocks.end - 1 - i) * self.c.block_n)
        s.block(r, first=first)
        self._convert(r, s)
        if not first:
            s.rescale(r)
        self._show_weights(r)
        if not self.c.specialized and not self.c.tma:
            self._landed(r, self.v_full, step, 0)
        self._outputs(r, s, step, int(first), turn=True)
        self._wait(r, 0)
        self._release(r, self.v_empty, step)
        overhead.FLASH3_CONSUMER_STEP.write(r)

    def _release(self, r: RoleBuilder, empty: MBarrier, step: Expr) -> None:
        r.mbarrier_arrive(empty, step % self.c.stages, self.everyone if self.c.cluster > 1 else None)

    # --- epilogue

    def _store(self, r: RoleBuilder, s: OnlineSoftmax, t: Tile, row: Expr) -> None:
        """Outputs through shared memory, the rows' LSE from registers."""
        s.finish(r)
        overhead.FLASH3_EPILOGUE.write(r)
        last = Var("done") + t.blocks.trips - 1
        staging = self.staging
        if staging is None:
            box = self.p.o[t.batch, row:WARP_ROWS, t.head, 0 : s.head_dim]  # type: ignore[misc]
            pair = 2 * DTYPE_BYTES[self.p.out]  # what a thread holds of a row
            r.stg(box, s.acc.whole, s.rows * s.head_dim // 64, vector_bytes=pair)
        elif self.stores_tiles:
            self._store_tile(r, s, t, staging, last)
        else:
            store_rows(r, s, staging, self._own_row, self.p.o, (t.batch, row, t.head))
            if self.through_q:
                r.mbarrier_arrive(self.q_empty, 0)
        lse = self.p.lse[t.batch, t.head, row:WARP_ROWS]  # type: ignore[misc]
        r.stg(lse, s.total.whole, 2, vector_bytes=4)

    def _store_tile(self, r: RoleBuilder, s: OnlineSoftmax, t: Tile, staging: Blocked, last: Expr) -> None:
        """All warps write their rows, the last of them stores the tile by TMA. last: the tile's last step."""
        warps, out = self.consumer_warps, DTYPE_BYTES[self.p.out]
        storing = WARP.equals(warps - 1)
        if self.o:
            with r.when(storing):
                r.bulk_wait(0)
        r.bar_sync(1, warps)  # all have read the last values
        vector = 16 if out < 4 else 8
        group = WARP // WARPGROUP
        own_stage, own_row = self._place(group, last)
        for block in range(staging.blocks):
            at = block * staging.columns
            r.sts(
                staging.view(own_row + WARP % WARPGROUP * WARP_ROWS, WARP_ROWS, at, staging.columns, own_stage),
                s.acc[:, at : staging.columns],
                WARP_ROWS * staging.columns * out // (32 * vector), vector_bytes=vector,
            )  # fmt: skip
        r.fence_async()
        r.bar_sync(1, warps)
        # As many rows at a time as one stage holds.
        groups = min(self.c.warpgroups, self.stage_groups) if self.through_v else self.c.warpgroups
        with r.when(storing):
            for first in range(0, self.c.warpgroups, groups):
                rows = (min(first + groups, self.c.warpgroups) - first) * BLOCK_ROWS
                stage, row = self._place(first, last)
                for block in range(staging.blocks):
                    at = block * staging.columns
                    box = self.p.o[t.batch, t.row + first * BLOCK_ROWS : rows, t.head, at : staging.columns]  # type: ignore[misc]
                    r.tma_store(box, staging.view(row, rows, at, staging.columns, stage))
            r.bulk_commit()
            if self.o is None:
                r.bulk_wait(0)
            if self.through_v:
                r.mbarrier_arrive(self.o_stored, 0, self.everyone if self.c.cluster > 1 else None)
            if self.through_q:
                r.mbarrier_arrive(self.q_empty, 0)

    def _place(self, group: IntLike, last: Expr) -> tuple[IntLike, IntLike]:
        """Stage and first row of a warpgroup's outputs on their way through shared memory."""
        if not self.through_v:
            return 0, group * BLOCK_ROWS
        return (last + group // self.stage_groups) % self.c.stages, group % self.stage_groups * BLOCK_ROWS


@dataclass(frozen=True)
class Tile:
    """A tile of queries: its first row, head, sequence, and the blocks of keys that it visits, of all or of a part."""

    row: Expr
    head: Expr
    batch: Expr
    blocks: Blocks
    part: Expr = ZERO


def _code_bytes(c: Flash3Config, head_dim: int) -> int:
    """Machine code on the path that runs."""
    scores = c.block_n // 2
    step = 6 * scores + head_dim + 130
    return (230 + 60 + 2 * step + 300 + 200 + 150) * overhead.INSTRUCTION_BYTES
