"""FlashAttention-3: attention forward on Hopper (Shah et al., arXiv 2407.08608).

One producer warp brings tiles of Q, K and V by TMA; two or three consumer warpgroups, 64 queries each, multiply them
with wgmma. Inside a warpgroup the product Q K^T of a block of keys runs beside P V of the block before, and softmax
beside P V (overlap). The warpgroups take turns at the tensor cores, so that softmax of one runs beside the products of
the other (ping-pong). CTAs of a cluster share K and V by multicast. CTAs are persistent; where masks make tiles
unequal they take them from a counter, the longest first, few heads at a time so that K and V stay in the L2.

Tiles, warps and instruction counts are those of the published kernels (hopper/tile_size.h and machine code of commit
0251105a, nvcc 13.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.program import (
    CLUSTER_RANK,
    CTA_X,
    WARP,
    Const,
    Expr,
    IntLike,
    Kernel,
    KernelBuilder,
    MBarrier,
    Program,
    RoleBuilder,
    SharedTile,
    Var,
    minimum,
)
from workloads.gpu import overhead
from workloads.gpu.attention import AttentionProblem, Blocks, OnlineSoftmax, blocks, problem, width
from workloads.gpu.problem import ceil_div
from workloads.gpu.wgmma import BLOCK_ROWS, INSTRUCTION_K_BYTES, WARP_ROWS, WARPGROUP, clusters_resident
from workloads.ops.attention import Attention
from workloads.registry import register

L2_SECTION_BYTES = 32 << 20
"""Keys and values of the heads that are worked on at a time (hopper/tile_scheduler.hpp)."""


@dataclass(frozen=True)
class Flash3Config:
    """Tile configuration: `block_m` queries a CTA, `block_n` keys a step.

    cluster: CTAs that share keys and values. stages: of K and of V. pingpong, overlap: see above.
    """

    block_m: int
    block_n: int
    cluster: int = 1
    stages: int = 2
    pingpong: bool = True
    overlap: bool = True

    schedule: ClassVar[str] = "flash3"

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return self.block_m // BLOCK_ROWS

    def __str__(self) -> str:
        words = [f"flash3 {self.block_m}x{self.block_n}"]
        words += [f"cluster {self.cluster}"] if self.cluster > 1 else []
        words += [f"stages {self.stages}"]
        words += ["pingpong"] if self.pingpong else []
        words += ["overlap"] if self.overlap else []
        return " ".join(words)


def tile(p: AttentionProblem) -> tuple[int, int]:
    """Published tile of queries and keys."""
    d, local = p.op.head_dim, p.op.window > 0
    if width(p) == 1:
        return {64: (192, 160), 128: (128, 224), 256: (128, 64 if local else 128)}[d]
    if d == 64:
        return 192, 128 if p.masked else 192
    if d == 128:
        return 128, 128 if p.masked else 176
    return 128, 64 if local else 80


def default_config(p: AttentionProblem) -> Flash3Config:
    """The published kernel's configuration."""
    block_m, block_n = tile(p)
    shares = not p.masked and p.op.head_dim >= 128 and ceil_div(p.op.queries, block_m) % 2 == 0
    wide = p.op.head_dim >= 128 if width(p) == 1 else p.op.head_dim <= 128
    return Flash3Config(block_m, block_n, cluster=2 if shares else 1, pingpong=wide)


@register("attention", "gpu", "flash3")
def build(op: Attention, spec: GpuSpec, config: Flash3Config) -> Program:
    """The program of `op` on `spec`. Raises InputError where machine or problem cannot take it."""
    p = problem(op)
    check(p, spec, config)
    kernel = _Builder(p, spec, config).kernel()
    return Program(f"{op}", p.tensors, (kernel,), str(config), {"config": config})


def check(p: AttentionProblem, spec: GpuSpec, config: Flash3Config) -> None:
    """InputError if the machine or the problem cannot take this configuration."""
    where = f"schedule={config}"
    if spec.tma is None or not spec.has_instruction("wgmma", p.dtype, f"m{BLOCK_ROWS}n*k{step_k(p)}"):
        raise InputError(f"{where}: {spec.name} has no wgmma for {p.dtype}; its nearest schedule is flash2")
    if config.block_m not in (64, 128, 192):
        raise InputError(f"{where}: a tile has 64, 128 or 192 queries, one warpgroup each 64; nearest: 128")
    if config.block_n % 16 or not 16 <= config.block_n <= 256:
        raise InputError(f"{where}: a block of keys is a multiple of 16 from 16 to 256; nearest: 128")
    if config.cluster not in (1, 2, 4) or config.block_n % (8 * config.cluster):
        raise InputError(f"{where}: 1, 2 or 4 CTAs share keys, whole groups of 8 rows each; nearest: cluster 1")


def step_k(p: AttentionProblem) -> int:
    """Depth of one wgmma."""
    return INSTRUCTION_K_BYTES // width(p)


class _Builder:
    """Writes the kernel; one method a role or a part of one."""

    def __init__(self, p: AttentionProblem, spec: GpuSpec, config: Flash3Config) -> None:
        self.p, self.c = p, config
        op, d = p.op, p.op.head_dim
        self.tiles_m = ceil_div(ceil_div(op.queries, config.block_m), config.cluster)
        self.tiles = self.tiles_m * op.heads * op.batch
        workers = min(self.tiles, max(1, clusters_resident(spec, config.cluster)))
        self.workers = workers
        self.k = KernelBuilder(
            f"attention_{config}".replace(" ", "_"), (workers * config.cluster, 1, 1), (config.cluster, 1, 1),
            code_bytes=_code_bytes(config, d),
        )  # fmt: skip
        swizzle = 128
        self.sq = self.k.shared("q", (config.block_m, d), p.dtype, 1, swizzle)
        self.sk = self.k.shared("k", (config.block_n, d), p.dtype, config.stages, swizzle)
        self.sv = self.k.shared("v", (config.block_n, d), p.dtype, config.stages, swizzle)
        used = sum(t.size_bytes for t in (self.sq, self.sk, self.sv)) + 2048
        staged = config.block_m * d * DTYPE_BYTES[p.out]
        # O leaves through a buffer of its own; where there is no room, through the values read last, or through Q.
        self.so: SharedTile | None = None
        if used + staged <= spec.shared.max_per_cta_bytes:
            self.so = self.k.shared("o", (config.block_m, d), p.out, 1, swizzle)
        self.through_v = self.so is None and config.block_n >= config.block_m and p.out == p.dtype
        self.through_q = self.so is None and not self.through_v
        warps = self.consumer_warps
        self.q_full = self.k.mbarrier("q_full", 1, 1)
        self.q_empty = self.k.mbarrier("q_empty", 1, 1 if self.through_q else warps)
        self.k_full, self.v_full = (self.k.mbarrier(f"{n}_full", config.stages, 1) for n in "kv")
        self.k_empty, self.v_empty = (
            self.k.mbarrier(f"{n}_empty", config.stages, warps * config.cluster) for n in "kv"
        )
        self.rank: IntLike = CLUSTER_RANK if config.cluster > 1 else 0
        self.everyone = (1 << config.cluster) - 1

    @property
    def consumer_warps(self) -> int:
        """Warps that compute."""
        return WARPGROUP * self.c.warpgroups

    def kernel(self) -> Kernel:
        """All roles, producer first."""
        groups = self.c.warpgroups
        launch, few, many = {1: (168, 56, 256), 2: (168, 24, 240), 3: (128, 32, 160)}[groups]
        with self.k.role("producer", WARPGROUP, few) as r:
            self._set_up(r, few)
            with r.when(WARP.equals(0)):
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
            r.bar_sync(0, WARPGROUP + self.consumer_warps)
        r.setmaxnreg(registers)

    # --- tiles

    @contextmanager
    def _each_tile(self, r: RoleBuilder) -> Iterator[_Tile]:
        """The tiles of this CTA one after the other."""
        worker = CTA_X // self.c.cluster if self.c.cluster > 1 else CTA_X
        r.assign("done", 0)  # steps of the tiles before, for the stages of K and V
        if self.p.masked:
            r.assign("index", 0)
            r.next_tile("tile")
            with r.loop_while(Var("tile") < self.tiles):
                t = self._longest_first(Var("tile"))
                yield t
                r.assign("done", Var("done") + t.blocks.trips)
                r.assign("index", Var("index") + 1)
                r.next_tile("tile")
        else:
            with r.loop("index", (self.tiles - worker + (self.workers - 1)) // self.workers) as index:
                t = self._in_order(worker + index * self.workers)
                yield t
                r.assign("done", Var("done") + t.blocks.trips)

    def _in_order(self, number: Expr) -> _Tile:
        """Neighbours in number have the same keys."""
        heads = number // self.tiles_m
        return self._tile(number % self.tiles_m, heads)

    def _longest_first(self, number: Expr) -> _Tile:
        """Sections of heads whose keys fit the L2 together; in a section the tiles that see most keys first."""
        op = self.p.op
        all_heads = op.batch * op.heads
        head_bytes = 2 * op.keys * op.head_dim * width(self.p)
        section = min(all_heads, 1 << max(0, (L2_SECTION_BYTES // head_bytes).bit_length() - 1))
        within = number % (section * self.tiles_m)
        first = number // (section * self.tiles_m) * section
        # The last section has what heads are left.
        left = all_heads - all_heads // section * section
        size: IntLike = section
        if left:
            whole = all_heads - left
            size = section - (first + 1 > whole) * (section - left)
        return self._tile(self.tiles_m - 1 - within // size, first + within % size)

    def _tile(self, m: Expr, heads: Expr) -> _Tile:
        row = (m * self.c.cluster + self.rank) * self.c.block_m
        head, batch = heads % self.p.op.heads, heads // self.p.op.heads
        return _Tile(row, head, batch, blocks(self.p, row, self.c.block_m, self.c.block_n))

    # --- producer

    def _producer(self, r: RoleBuilder) -> None:
        c = self.c
        with self._each_tile(r) as t:
            r.mbarrier_wait(self.q_empty, 0, Var("index") - 1)
            r.mbarrier_expect(self.q_full, 0, self.sq.stage_bytes)
            box = self.p.q[t.batch, t.row : c.block_m, t.head, :]  # type: ignore[misc]
            r.tma_load(self.sq.stage(), box, self.q_full, 0)
            overhead.FLASH3_PRODUCER_TILE.write(r)
            # Keys run one block ahead of values, as consumers ask for them.
            self._load(r, t, Var("done"), t.blocks.end - 1, self.sk, self.k_full, self.k_empty)
            with r.loop("i", t.blocks.trips - 1) as i:
                step, block = Var("done") + i, t.blocks.end - 1 - i
                self._load(r, t, step + 1, block - 1, self.sk, self.k_full, self.k_empty)
                self._load(r, t, step, block, self.sv, self.v_full, self.v_empty)
                overhead.FLASH3_PRODUCER_STEP.write(r)
            last = t.blocks.end - t.blocks.trips
            self._load(r, t, Var("done") + t.blocks.trips - 1, last, self.sv, self.v_full, self.v_empty)
        if c.cluster > 1:
            # A CTA stays until its peers have handed back what it sent them, the values last.
            with r.loop("drain", minimum(Var("done"), c.stages)) as i:
                step = Var("done") - 1 - i
                r.mbarrier_wait(self.v_empty, step % c.stages, step // c.stages)

    def _load(
        self, r: RoleBuilder, t: _Tile, step: Expr, block: Expr, tile: SharedTile, full: MBarrier, empty: MBarrier
    ) -> None:
        """One block of K or V; each CTA of a cluster brings its part to all."""
        c = self.c
        stage = step % c.stages
        r.mbarrier_wait(empty, stage, step // c.stages - 1)
        r.mbarrier_expect(full, stage, tile.stage_bytes)
        tensor = self.p.k if tile is self.sk else self.p.v
        head, key = self.p.key_head(t.head), block * c.block_n
        if c.cluster == 1:
            r.tma_load(tile.stage(stage), tensor[t.batch, key : c.block_n, head, :], full, stage)  # type: ignore[misc]
            return
        rows = c.block_n // c.cluster
        own = CLUSTER_RANK * rows
        box = tensor[t.batch, key + own : rows, head, :]  # type: ignore[misc]
        r.tma_load(tile[stage, own:rows, :], box, full, stage, multicast=self.everyone)  # type: ignore[misc]

    # --- consumers

    def _consumer(self, r: RoleBuilder) -> None:
        c = self.c
        s = OnlineSoftmax(self.p, WARP_ROWS, c.block_n, self.p.op.head_dim)
        if c.pingpong and c.warpgroups > 1:
            with r.when((WARP // WARPGROUP).equals(c.warpgroups - 1)):
                self._give_turn(r)
        with self._each_tile(r) as t:
            row = t.row + self._own_row
            overhead.FLASH3_CONSUMER_TILE.write(r)
            r.mbarrier_wait(self.q_full, 0, Var("index"))
            self._first_block(r, s, t, row)
            step = Var("done") + 1
            last = t.blocks.end - 2
            for name, trips, masked in (
                ("tail", t.blocks.tail, self.p.masked), ("whole", t.blocks.whole, False), ("head", t.blocks.head, True)
            ):  # fmt: skip
                if trips == Const(0):
                    continue
                with r.loop(name, trips) as i:
                    self._step(r, s, step + i, (row, last - i) if masked else None)
                step, last = step + trips, last - trips
            self._last_block(r, s, t)
            self._store(r, s, t, row)
        with r.when(WARP.equals(0)):
            r.bulk_wait(0, read=False)

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
        stage, d = step % self.c.stages, self.p.op.head_dim
        r.mbarrier_wait(self.k_full, stage, step // self.c.stages)
        if turn:
            self._take_turn(r)
        r.wgmma_fence()
        r.wgmma(
            s.scores.whole, self.sq[0, self._own_row : WARP_ROWS, :], self.sk.stage(stage).T,  # type: ignore[misc]
            shape=f"m{BLOCK_ROWS}n{self.c.block_n}k{step_k(self.p)}", dtype=self.p.dtype, count=d // step_k(self.p),
            accumulate=0, mix=overhead.mix(alu=2 * d // step_k(self.p)),
        )  # fmt: skip
        r.wgmma_commit()

    def _outputs(self, r: RoleBuilder, s: OnlineSoftmax, step: Expr, first: IntLike) -> None:
        """acc + P V of one block, in flight. first: whether it is the first of the tile."""
        stage, n = step % self.c.stages, self.c.block_n // step_k(self.p)
        r.mbarrier_wait(self.v_full, stage, step // self.c.stages)
        r.wgmma(
            s.acc.whole, s.weights.whole, self.sv.stage(stage),
            shape=f"m{BLOCK_ROWS}n{self.p.op.head_dim}k{step_k(self.p)}", dtype=self.p.dtype, count=n,
            accumulate=1 - first, mix=overhead.mix(alu=2 * n),
        )  # fmt: skip
        r.wgmma_commit()

    def _first_block(self, r: RoleBuilder, s: OnlineSoftmax, t: _Tile, row: Expr) -> None:
        self._scores(r, s, Var("done"), turn=False)
        r.wgmma_wait(0)
        self._release(r, self.k_empty, Var("done"))
        s.mask(r, row, (t.blocks.end - 1) * self.c.block_n)
        s.block(r, first=True)
        s.convert(r)

    def _step(self, r: RoleBuilder, s: OnlineSoftmax, step: Expr, masked: tuple[Expr, Expr] | None) -> None:
        """One block of keys: its scores and softmax, and the outputs of the block before."""
        before = step - 1
        first = before.equals(Var("done"))
        self._scores(r, s, step, turn=True)
        r.wgmma_fence()
        self._outputs(r, s, before, first)
        self._give_turn(r)
        r.wgmma_wait(1)
        self._release(r, self.k_empty, step)
        if masked:
            s.mask(r, masked[0], masked[1] * self.c.block_n)
        s.block(r, first=False)
        r.wgmma_wait(0)
        self._release(r, self.v_empty, before)
        s.convert(r)
        s.rescale(r)
        overhead.FLASH3_CONSUMER_STEP.write(r)

    def _last_block(self, r: RoleBuilder, s: OnlineSoftmax, t: _Tile) -> None:
        last = Var("done") + t.blocks.trips - 1
        if not self.through_q:
            r.mbarrier_arrive(self.q_empty, 0)
        r.wgmma_fence()
        self._outputs(r, s, last, t.blocks.trips.equals(1))
        r.wgmma_wait(0)
        if not self.through_v:
            self._release(r, self.v_empty, last)

    def _release(self, r: RoleBuilder, empty: MBarrier, step: Expr) -> None:
        r.mbarrier_arrive(empty, step % self.c.stages, self.everyone if self.c.cluster > 1 else None)

    # --- epilogue

    def _store(self, r: RoleBuilder, s: OnlineSoftmax, t: _Tile, row: Expr) -> None:
        """Outputs through shared memory and one TMA store a tile, the rows' LSE from registers."""
        warps, d = self.consumer_warps, self.p.op.head_dim
        s.finish(r)
        overhead.FLASH3_EPILOGUE.write(r)
        last = Var("done") + t.blocks.trips - 1
        tile, stage = self.so or (self.sv if self.through_v else self.sq), last % self.c.stages if self.through_v else 0
        with r.when(WARP.equals(0)):
            r.bulk_wait(0)
        r.bar_sync(1, warps)
        out = DTYPE_BYTES[self.p.out]
        vector = 16 if out < 4 else 8
        r.sts(
            tile[stage, self._own_row : WARP_ROWS, :], s.acc.whole,  # type: ignore[misc]
            WARP_ROWS * d * out // (32 * vector), vector_bytes=vector,
        )  # fmt: skip
        r.fence_async()
        r.bar_sync(1, warps)
        with r.when(WARP.equals(0)):
            box = self.p.o[t.batch, t.row : self.c.block_m, t.head, :]  # type: ignore[misc]
            r.tma_store(box, tile[stage, 0 : self.c.block_m, :])  # type: ignore[misc]
            r.bulk_commit()
            if self.so is None:
                r.bulk_wait(0)
            if self.through_q:
                r.mbarrier_arrive(self.q_empty, 0)
        if self.through_v:
            self._release(r, self.v_empty, last)
        lse = self.p.lse[t.batch, t.head, row:WARP_ROWS]  # type: ignore[misc]
        r.stg(lse, s.total.whole, 2, vector_bytes=4)


@dataclass(frozen=True)
class _Tile:
    """A tile of queries: its first row, head, sequence, and the blocks of keys that it visits."""

    row: Expr
    head: Expr
    batch: Expr
    blocks: Blocks


def _code_bytes(c: Flash3Config, head_dim: int) -> int:
    """Machine code on the path that runs."""
    scores = c.block_n // 2
    step = 6 * scores + head_dim + 130
    return (230 + 60 + 2 * step + 300 + 200 + 150) * overhead.INSTRUCTION_BYTES
