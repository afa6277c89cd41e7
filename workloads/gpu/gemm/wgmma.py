"""GEMM on Hopper.

TMA loads by one producer warp, asynchronous wgmma by one or two consumer warpgroups (CUTLASS 3.x, warp specialised).

Cooperative: both warpgroups share a tile, each has half of its rows, or of its columns (`columns`: 192x192, 128x320
and other tiles whose rows are no two halves of whole 64, or whose halves by columns feed the tensor cores better).
Ping-pong: each has a tile of its own, and they
take turns, so that the epilogue of one hides behind the main loop of the other. CTAs of a cluster share operand
tiles: each loads a part and multicasts it. The store of a tile drains while the next one is computed.

wgmma reads 16-bit operands in either order but tf32, fp8 and int8 only with k contiguous. An operand in the other
order goes through registers, which wgmma allows for its first operand only (CUTLASS: sm90_mma_tma_gmma_rs); `swap`
exchanges the operands, computing the transpose of C.

Operands with scales by block of k (fp8 as DeepSeek-V3's models are served; CUTLASS's
KernelTmaWarpSpecializedCooperativeFP8BlockScaledAccum, DeepGEMM): a k step is one block. A warpgroup multiplies it into
registers of its own, waits, and adds it with its scales to the sums ("promotion"). The scales of A come by TMA with the
step's operands, those of B are brought to shared memory once a tile. A tile whose width is no divisor of a block lies
in two blocks of columns, and has two scales of B.

Sums in fp8 (`promote`; CUTLASS's sm90_mma_tma_gmma_ss_warpspecialized_fp8, cuBLAS without
CUBLASLT_MATMUL_DESC_FAST_ACCUM): tensor cores add 8-bit products with few bits. So each k step is multiplied into
registers of its own and then added to the sums in fp32 by the vector pipes, as above but without scales.

Two mechanisms can be left out, which gives other programs: `tma` (the producer's four warps copy by cp.async, results
go from registers to memory) and `specialized` (no producer: one of the warps that multiply issues the loads, as in
CUTLASS's sm90_mma_tma_gmma_ss). Without both, all warps copy by cp.async and multiply (`multistage`), as kernels
before Hopper do with mma.sync: no mbarriers, the CTA meets at a barrier in each k step.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
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
    RegisterTile,
    RoleBuilder,
    SharedTile,
    View,
    minimum,
    table,
)
from workloads import libraries
from workloads.gpu import overhead
from workloads.gpu.configuration import Word
from workloads.gpu.gemm import epilogue, promotion, splitk
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import MILLI, Figures, Work, gpcs_of, round_shape, transfer
from workloads.gpu.gemm.fixup import Fixup, Piece, fetches, owner_only, scratch
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.plan import Plan, Unit, stream_tiles
from workloads.gpu.gemm.problem import (
    MAX_VECTOR_BYTES,
    Operand,
    Problem,
    ceil_div,
    problem,
    shared_sectors,
    without_groups,
)
from workloads.gpu.gemm.threadblock import resident_ctas
from workloads.ops import Gemm
from workloads.ops.gemm import SCALE_BLOCK
from workloads.registry import register

CUBLAS = "cublas@13.1"
"""Whose kernels for tf32 these are."""
WARPGROUP = 4
"""Warps of a warpgroup."""
BLOCK_ROWS = 64
"""Rows of one wgmma."""
WARP_ROWS = 16
"""Rows of one wgmma that one warp of the warpgroup holds."""
STEP_BYTES = 128
"""Bytes of k in one stage: the width of the widest swizzle."""
INSTRUCTION_K_BYTES = 32
"""Bytes of k that one wgmma multiplies."""
LINE_BYTES = 128
"""Of memory: what TMA asks for at once."""
SHARE_ROWS = 8
"""Rows of an operand that a CTA of a cluster loads together for all of them: those of a pattern of the swizzle."""
BARRIERS_BYTES = 24
"""Of mbarriers beside a stage: kernels of cuBLAS have so much more shared memory for each."""
BESIDE_BYTES = 84
"""Shared memory of kernels of cuBLAS beside stages, their barriers and results."""
COPIES_AHEAD = 4
"""Stages that a producer without TMA has in flight at most."""
EPILOGUE_COLUMNS = 32
"""Columns of an epilogue subtile (CUTLASS's choice for these tiles); what is left over is a narrower one. Sums of
pieces, which are wider, take half as many: kernels of cuBLAS have 16 KB beside their operands."""
PROMOTED = "fp8"
"""The format whose products tensor cores add with few bits."""
MOST_PROMOTED = 88
"""Accumulators of a thread beside which as many products have room: names of nvjet's kernels in fp8 go up to 64x176 and
128x160, where other formats have 128x320 (`measured_kernels.csv`)."""
MAX_ACCUMULATORS = 176
"""Accumulator registers of a thread: cuBLAS has tiles of 176x128 and 256x88 for one warpgroup
(nvjet_sm90_tst_176x128_64x5_..)."""


@dataclass(frozen=True)
class WgmmaConfig(GemmConfig):
    """One kernel by wgmma: its tile, and which mechanisms it uses.

    tile_m, tile_n: rows and columns of the output tile, along the first and the second operand of wgmma. With
        `pingpong` each warpgroup has such a tile in its turn.
    tile_k: values of k in one step.
    cluster_m, cluster_n: CTAs that share operands, along both.
    stages: buffers of an operand, a step of k each.
    pingpong: two warpgroups take turns, see above.
    swap: the first operand is B, and the tile is one of C transposed.
    persistent: a CTA takes tile after tile.
    group: tiles along the first direction that are done together.
    split: pieces of k of each tile.
    stream_k: the tiles of the last wave are cut evenly over all CTAs.
    tma, specialized: what loads, and whether warps do nothing else, see above.
    columns: the warpgroups share a tile by its columns.
    flat: results lie in shared memory as whole rows of the tile, without swizzle, and a warp waits until one store has
        read them.
    reduce: a second kernel adds the pieces (`splitk`); without, the tile's owner does.
    promote: sums are added in registers, see above.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int = 1
    cluster_n: int = 1
    stages: int = 4
    pingpong: bool = False
    swap: bool = False
    persistent: bool = True
    group: int = 8
    split: int = 1
    stream_k: bool = False
    tma: bool = True
    specialized: bool = True
    columns: bool = False
    flat: bool = False
    reduce: bool = False
    promote: bool = False

    schedule: ClassVar[str] = "wgmma"
    on_tensor_cores: ClassVar[bool] = True
    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("tile_m", "tile_n", "tile_k"),
        Word(("cluster_m", "cluster_n"), "cluster", (1, 1)),
        Word.number("stages"),
        *map(Word.flag, ("pingpong", "columns", "flat", "promote", "swap")),
        Word.flag("one-tile", "persistent", False),
        Word.number("group", 8),
        Word.number("split", 1),
        Word.flag("reduce"),
        Word.flag("stream-k", "stream_k"),
        Word.flag("cp.async", "tma", False),
        Word.flag("unspecialized", "specialized", False),
    )

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return 2 if self.pingpong or self.columns or self.tile_m >= 2 * BLOCK_ROWS else 1

    @property
    def groups(self) -> int:
        """Consumer roles: warpgroups that have tiles, or columns of a tile, of their own."""
        return 2 if self.pingpong or self.columns else 1

    @property
    def multistage(self) -> bool:
        """Whether all warps copy and multiply."""
        return not (self.tma or self.specialized)

    @property
    def ahead(self) -> int:
        """K steps whose copies are on their way beside the one that is multiplied. A multistage kernel leaves one stage
        more to wgmma: only at the next barrier do all warps know that a group has been read."""
        return self.stages - 2 if self.multistage else self.stages - 1

    @property
    def blocks(self) -> int:
        """64-row blocks of a tile that one warpgroup computes."""
        return self.tile_m // self.band

    @property
    def band(self) -> int:
        """Rows of a tile that the warpgroups of a role hold in one accumulator each, and store together."""
        return BLOCK_ROWS * self.warpgroups // self.groups

    @property
    def width(self) -> int:
        """Columns of a tile that one warpgroup computes."""
        return self.tile_n // 2 if self.columns else self.tile_n

    @property
    def scaled_blocks(self) -> int:
        """Blocks of columns, with scales of their own, that a tile may lie in."""
        return 2 if SCALE_BLOCK % self.tile_n else 1

    @property
    def accumulators(self) -> int:
        """Accumulator registers of a thread."""
        return self.blocks * self.width // 2

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if spec.tma is None or spec.dsmem is None:
            raise InputError(f"{where}: {spec.name} has no wgmma; its nearest schedule is mma")
        if p.op.adds:
            raise InputError(f"{where}: beta=1 is not available; nearest: mma")
        epilogue.check(p, spec, where)
        without_groups(p, where)
        x, y = p.sides(self.swap)
        width = DTYPE_BYTES[p.dtype]
        step = INSTRUCTION_K_BYTES // width
        if self.columns and (self.pingpong or not self.specialized or self.tile_n % 16):
            rule = "warpgroups that share columns have a producer and 8, 16, ... each"
            raise InputError(f"{where}: {rule}; nearest: leave out columns")
        if self.tile_m < BLOCK_ROWS or self.tile_m % (BLOCK_ROWS * (1 if self.groups == 2 else self.warpgroups)):
            nearest = max(1, round(self.tile_m / BLOCK_ROWS)) * BLOCK_ROWS
            raise InputError(f"{where}: tile m must be a multiple of {BLOCK_ROWS}, nearest: {nearest}")
        if self.tile_k % (STEP_BYTES // width):
            raise InputError(f"{where}: tile k must be a multiple of {STEP_BYTES // width} for {p.dtype}")
        spec.instruction("wgmma", p.dtype, f"m{BLOCK_ROWS}n{self.width}k{step}")
        if self.accumulators > MAX_ACCUMULATORS:
            raise InputError(
                f"{where}: {self.accumulators} accumulators a thread do not fit its registers, at most "
                f"{MAX_ACCUMULATORS}; nearest: tile n = {_widest(self)}"
            )
        if self.promote:
            _check_promotion(p, self, where)
        if p.scales:
            _check_scales(self, where)
        elif self.flat:
            raise InputError(f"{where}: flat belongs to operands with scale=block; nearest: leave out flat")
        if not 1 <= self.stages <= max_stages(p, self, spec):
            raise InputError(
                f"{where}: {shared_bytes(p, self)} B of shared memory, {spec.name} has "
                f"{spec.shared.max_per_cta_bytes} B a CTA; "
                f"nearest: stages = {max(1, max_stages(p, self, spec))}"
            )
        if self.cluster > spec.dsmem.max_portable_cluster or self.cluster > min(spec.sms_per_gpc):
            raise InputError(f"{where}: clusters have at most {spec.dsmem.max_portable_cluster} CTAs on {spec.name}")
        if through_registers(p, self) and self.tile_m // self.cluster_n % WARP_ROWS:
            raise InputError(
                f"{where}: CTAs of a cluster load whole groups of {WARP_ROWS} rows each; nearest: cluster 1x1"
            )
        if not self.specialized and (self.pingpong or self.stages < least_stages(self)):
            raise InputError(
                f"{where}: warps that load need {least_stages(self)} stages and cannot take turns; nearest: leave out "
                "unspecialized"
            )
        if not self.tma and (self.cluster > 1 or self.stages < 2):
            raise InputError(
                f"{where}: cp.async copies for its own CTA alone, to 2 stages; nearest: cluster 1x1 stages 2"
            )
        if self.columns and through_registers(p, self):
            raise InputError(f"{where}: both warpgroups would bring all rows to registers; nearest: leave out columns")
        if not self.tma and through_registers(p, self):
            raise InputError(
                f"{where}: cp.async brings what wgmma reads from shared memory; nearest: leave out cp.async"
            )
        if self.split < 1 or (self.split > 1 and self.stream_k):
            raise InputError(f"{where}: split must be at least 1, and 1 with stream-k")
        if self.reduce and (self.split < 2 or p.scales or not self.tma):
            raise InputError(f"{where}: reduce adds pieces of k that TMA has stored; nearest: split 2 reduce")
        for operand in (x, y):
            if not operand.tma:
                name, align = operand.tensor.name, operand.vector_bytes
                raise InputError(
                    f"{where}: rows of {name} start at multiples of {align} B, TMA needs 16 B; nearest: mma"
                )
        if width != 2 and not y.k_major:
            hint = "swap" if x.k_major and not self.swap else "mma"
            raise InputError(f"{where}: wgmma {p.dtype} needs k contiguous in {y.tensor.name}; nearest: {hint}")

    def work(self, p: Problem, spec: GpuSpec, f: Figures) -> Work:
        """Counts for the estimate."""
        rates = Rates.of(spec, p.dtype)
        assert rates is not None
        return work(p, f, self, rates, ctas_per_sm(p, self, spec))

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism; the same where it does not use it."""
        match mechanism:
            case "pingpong":
                left = replace(self, pingpong=False)
            case "multicast":
                left = replace(self, cluster_m=1, cluster_n=1)
            case "wgmma":
                return MmaConfig.schedule
            case "tma":
                left = replace(self, tma=False, cluster_m=1, cluster_n=1)
            case "warp_specialization":
                left = replace(self._by_rows, specialized=False, pingpong=False)
            case _:
                raise InputError(f"without {mechanism}: GEMM has no such program; attention can leave it out")
        return str(replace(left, stages=max(left.stages, least_stages(left))))

    @property
    def _by_rows(self) -> WgmmaConfig:
        """The nearest tile that warpgroups share by rows."""
        if not self.columns:
            return self
        return replace(self, columns=False, tile_m=64 if self.tile_m == 64 else 128, tile_n=min(256, self.tile_n))

    @classmethod
    def completed(cls, fields: dict[str, Any], p: Problem, spec: GpuSpec) -> dict[str, Any]:
        """The fields with the k step and as many stages as fit, where they are not said."""
        whole = {"tile_k": STEP_BYTES // DTYPE_BYTES[p.dtype]} | fields
        return {"stages": max(1, max_stages(p, cls(**{**whole, "stages": 1}), spec))} | whole


def through_registers(p: Problem, config: WgmmaConfig) -> bool:
    """Whether the first operand must go through registers because k is not contiguous."""
    return DTYPE_BYTES[p.dtype] != 2 and not p.sides(config.swap)[0].k_major


def shared_bytes(p: Problem, config: WgmmaConfig) -> int:
    """Shared memory of one CTA: operand stages, epilogue buffers, barriers, alignment."""
    width = DTYPE_BYTES[p.dtype]
    stage = (config.tile_m + config.tile_n) * config.tile_k * width + _scale_bytes(p, config)
    return config.stages * (stage + BARRIERS_BYTES) + _beside_stages(p, config)


def max_stages(p: Problem, config: WgmmaConfig, spec: GpuSpec) -> int:
    """Stages that fit beside the epilogue buffers."""
    stage = (
        (config.tile_m + config.tile_n) * config.tile_k * DTYPE_BYTES[p.dtype]
        + _scale_bytes(p, config)
        + BARRIERS_BYTES
    )
    return (spec.shared.max_per_cta_bytes - _beside_stages(p, config)) // stage


def launch_registers(config: WgmmaConfig) -> int:
    """Registers of a thread that a CTA starts with."""
    if config.specialized and config.warpgroups == 2:
        return 168
    return min(255, 8 * ceil_div(config.accumulators * (2 if config.promote else 1) + 90, 8))


def ctas_per_sm(p: Problem, config: WgmmaConfig, spec: GpuSpec) -> int:
    """CTAs that work on an SM at once. One that takes tile after tile is alone there."""
    if config.persistent:
        return 1
    warps = WARPGROUP * (config.warpgroups + config.specialized)
    return resident_ctas(spec, warps, launch_registers(config), shared_bytes(p, config)) // spec.sm.count


def least_stages(config: WgmmaConfig) -> int:
    """Stages that the program needs."""
    return 3 if config.multistage else 1 if config.tma and config.specialized else 2


def _column_scale_bytes(p: Problem, config: WgmmaConfig) -> int:
    """Scales of the second operand of one tile."""
    return config.scaled_blocks * p.scales[1].shape[2] * DTYPE_BYTES["fp32"] if p.scales else 0


def _scale_bytes(p: Problem, config: WgmmaConfig) -> int:
    """Scales of the first operand in one stage."""
    return config.tile_m * DTYPE_BYTES["fp32"] if p.scales else 0


def _epilogue_columns(config: WgmmaConfig) -> int:
    return config.width if config.flat else min(config.width, EPILOGUE_COLUMNS // (2 if config.reduce else 1))


def _epilogue_rest(config: WgmmaConfig) -> int:
    """Columns of the last subtile, where it is narrower than the others; 0 if all are alike."""
    return config.width % _epilogue_columns(config)


def _epilogue_subtiles(config: WgmmaConfig) -> int:
    """Subtiles of a tile."""
    return config.blocks * ceil_div(config.width, _epilogue_columns(config))


def _epilogue_stages(config: WgmmaConfig) -> int:
    """Buffers of subtiles, used in turn: kernels of cuBLAS have 16 KB beside their operands, two of 32 columns in two
    bytes for each warpgroup. Flat results have one for the whole width."""
    return 1 if config.flat else min(2, _epilogue_subtiles(config))


def _stored(p: Problem, config: WgmmaConfig) -> Problem:
    """The problem as the kernel that multiplies sees it."""
    return splitk.of_pieces(p, config.split, config.tile_k) if config.reduce else p


def _beside_stages(p: Problem, config: WgmmaConfig) -> int:
    """Shared memory of one CTA beside the operand stages and their barriers."""
    return _epilogue_bytes(_stored(p, config), config) + _column_scale_bytes(p, config) + BESIDE_BYTES


def _epilogue_bytes(stored: Problem, config: WgmmaConfig) -> int:
    """Epilogue buffers of a kernel that stores the results of a problem (`_stored`)."""
    if stored.c_vector_bytes < 16 or not config.tma:
        return 0
    columns = _epilogue_columns(config) * _epilogue_stages(config)
    return config.groups * config.band * columns * DTYPE_BYTES[stored.out]


def _stored_columns(stored: Problem, config: WgmmaConfig) -> int:
    """Columns of a row of the result of a problem (`_stored`) that a TMA store or an instruction writes."""
    if _epilogue_bytes(stored, config) > 0:
        return config.band if config.swap else _epilogue_columns(config)
    if config.swap:
        return WARP_ROWS
    # A thread holds two neighbours.
    return min(config.width, 32 * min(2, max(1, stored.c_vector_bytes // DTYPE_BYTES[stored.out])))


def _widest(config: WgmmaConfig) -> int:
    """Widest tile whose accumulators fit."""
    return 2 * MAX_ACCUMULATORS // config.blocks // 8 * 8 * (2 if config.columns else 1)


def clusters_resident(spec: GpuSpec, size: int) -> int:
    """Clusters of `size` CTAs, one CTA an SM, that the chip holds: a cluster lives inside one GPC."""
    return sum(sms // size for sms in spec.sms_per_place)


def plan(p: Problem, spec: GpuSpec, config: WgmmaConfig) -> Plan:
    """Tiles (of a cluster) and workers (clusters)."""
    x, y = p.sides(config.swap)
    tiles_m = ceil_div(x.rows, config.tile_m * config.cluster_m)
    tiles_n = ceil_div(y.rows, config.tile_n * config.cluster_n)
    tiles, steps = tiles_m * tiles_n * p.batch, ceil_div(p.k, config.tile_k)
    resident = max(1, clusters_resident(spec, config.cluster))
    shared_tiles, workers = 0, min(tiles, resident) if config.persistent else tiles
    if config.split > 1:
        shared_tiles, workers = tiles, min(tiles * config.split, tiles * steps)
    elif config.stream_k and tiles % resident:
        shared_tiles = stream_tiles(tiles, resident)
        workers = min(resident, shared_tiles * steps)
    # Neighbours in time share operands best when groups run across the shorter side.
    group = _group(config, tiles_m, tiles_n)
    return Plan(tiles_m, tiles_n, p.batch, steps, workers, shared_tiles, group, tiles_m < tiles_n)


def _group(c: WgmmaConfig, tiles_m: int, tiles_n: int) -> int:
    """Tiles of clusters that are done together along the shorter side."""
    return max(1, c.group // (c.cluster_n if tiles_m < tiles_n else c.cluster_m))


def _check_promotion(p: Problem, config: WgmmaConfig, where: str) -> None:
    """InputError if a configuration cannot add the products of each step to its sums."""
    if p.dtype != PROMOTED or p.scales or not config.specialized:
        raise InputError(
            f"{where}: promote is for {PROMOTED} without scales, with a producer; nearest: leave out promote"
        )
    if config.accumulators > MOST_PROMOTED:
        widest = 2 * MOST_PROMOTED // config.blocks // 8 * 8 * (2 if config.columns else 1)
        raise InputError(
            f"{where}: {config.accumulators} sums and as many products a thread do not fit its registers, at most "
            f"{MOST_PROMOTED}; nearest: tile n = {widest}"
        )


def _check_scales(config: WgmmaConfig, where: str) -> None:
    """InputError if a configuration cannot scale its products by block."""
    if config.swap or config.columns or config.pingpong or not (config.tma and config.specialized):
        words = "swap, columns, pingpong, cp.async and unspecialized"
        raise InputError(f"{where}: scale=block has programs without {words}; nearest: leave them out")
    within = config.tile_n <= SCALE_BLOCK or math.gcd(config.tile_n, SCALE_BLOCK) == config.tile_n - SCALE_BLOCK
    if config.tile_k != SCALE_BLOCK or not within:
        raise InputError(
            f"{where}: a step of k is a block of {SCALE_BLOCK}, a tile lies in two blocks of columns at most; "
            f"nearest: {config.tile_m}x{SCALE_BLOCK}x{SCALE_BLOCK}"
        )
    if 2 * config.accumulators > MAX_ACCUMULATORS:
        raise InputError(
            f"{where}: {config.accumulators} sums and as many products a thread do not fit its registers, at most "
            f"{MAX_ACCUMULATORS}; nearest: 128x128x{SCALE_BLOCK}"
        )


@register("gemm", "gpu", "wgmma")
def build(op: Gemm, spec: GpuSpec, config: WgmmaConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where `check` does."""
    p = problem(op)
    config.check(p, spec)
    kernel = _Builder(p, spec, config)
    tensors = [p.a.tensor, p.b.tensor, *(p.scales or ()), *p.finish, p.c]
    kernels = [kernel.kernel()]
    if kernel.partials is not None:
        tensors.append(kernel.partials)
    if config.reduce:
        tensors.append(kernel.p.c)
        # cuBLAS launches it behind its TMA kernels programmatically, behind others when these have ended.
        kernels.append(splitk.reduction(p, spec, kernel.p.c, dependent=not through_registers(p, config)))
    return Program(f"{op}", tuple(tensors), tuple(kernels), str(config), {"config": config})


class _Builder:
    """Writes the kernel; one method a role or a part of one."""

    def __init__(self, p: Problem, spec: GpuSpec, config: WgmmaConfig) -> None:
        p = _stored(p, config)
        self.p, self.spec, self.config = p, spec, config
        self.x, self.y = p.sides(config.swap)
        self.plan = plan(p, spec, config)
        self.single = self.plan.tiles_m * self.plan.tiles_n * p.batch <= self.plan.workers
        self.rs = through_registers(p, config)
        c = config
        self.k = KernelBuilder(
            f"gemm_{c}".replace(" ", "_"), (self.plan.workers * c.cluster, 1, 1), (c.cluster, 1, 1),
            code_bytes=_code_bytes(p, c),
            flags=0 if c.reduce else self.plan.shared_tiles * c.cluster,
        )  # fmt: skip
        shape_x, shape_y = self.x.tile_shape(c.tile_m, c.tile_k), self.y.tile_shape(c.tile_n, c.tile_k)
        # What threads read lies in blocks of at most 128 B, as TMA's swizzle has them (wgmma's own reads never
        # conflict).
        self.block = math.gcd(c.tile_m // c.cluster_n, STEP_BYTES // DTYPE_BYTES[p.dtype])
        if self.rs:
            shape_x = (c.tile_m // self.block * c.tile_k, self.block)
        swizzle_x = self.block * DTYPE_BYTES[p.dtype] if self.rs else 128
        self.sx = self.k.shared("x", shape_x, p.dtype, c.stages, swizzle_x if swizzle_x in (32, 64, 128) else 0)
        self.sy = self.k.shared("y", shape_y, p.dtype, c.stages, swizzle_bytes=128)
        if p.scales:
            self.scales = self.k.shared("scales", (1, c.tile_m), "fp32", c.stages)
            self.scales_b = self.k.shared("scales_b", (c.scaled_blocks, p.scales[1].shape[2]), "fp32")
        if not c.multistage:
            readers = WARPGROUP * (1 if c.pingpong else c.warpgroups)
            self.ring = self.k.ring(
                c.stages,
                producers=1 if c.tma else WARPGROUP,
                consumers=readers * (c.cluster_m + c.cluster_n - 1),
            )
        self.turn: MBarrier | None = self.k.mbarrier("turn", 2, WARPGROUP) if c.pingpong else None
        self.partials = None if c.reduce else scratch(self.plan, c.cluster, c.tile_m, c.tile_n, p.acc)
        # Buffers for each group of warps that stores together.
        self.staging: list[SharedTile] = []
        if p.c_vector_bytes == 16 and c.tma:
            self.staging = [self._staging(f"staging{group}") for group in range(c.groups)]
        self.worker = CTA_X // c.cluster if c.cluster > 1 else CTA_X
        self.rank_m: IntLike = CLUSTER_RANK % c.cluster_m if c.cluster > 1 else 0
        self.rank_n: IntLike = CLUSTER_RANK // c.cluster_m if c.cluster > 1 else 0

    def _staging(self, name: str) -> SharedTile:
        """Buffers of an epilogue subtile."""
        c = self.config
        columns, stages = _epilogue_columns(c), _epilogue_stages(c)
        shape, swizzle = (columns, c.band) if c.swap else (c.band, columns), 128
        if not c.swap:
            swizzle = 0 if c.flat else min(128, columns * DTYPE_BYTES[self.p.out])
        return self.k.shared(name, shape, self.p.out, stages, swizzle if swizzle in (32, 64, 128) else 0)

    def kernel(self) -> Kernel:
        """All roles, producer first."""
        c = self.config
        launch = launch_registers(c)
        if not c.specialized:
            with self.k.role("warps", WARPGROUP * c.warpgroups, launch) as r:
                self._set_up(r)
                self._consumer(r, 0, WARPGROUP * c.warpgroups)
            return self.k.build()
        few, many = (40, 232) if c.tma else (56, 224)  # who copies by cp.async calculates addresses
        with self.k.role("producer", WARPGROUP, few if c.warpgroups == 2 else launch) as r:
            self._set_up(r, few)
            if c.tma:
                with r.when(WARP.equals(0)):
                    self._producer(r)
            else:
                self._copying_producer(r)
        warps = WARPGROUP * c.warpgroups // c.groups
        for group in range(c.groups):
            name = f"consumer{group}" if c.groups == 2 else "consumer"
            with self.k.role(name, warps, many if c.warpgroups == 2 else launch) as r:
                self._set_up(r, many)
                self._consumer(r, group, warps)
        return self.k.build(launch_registers=launch)

    def _set_up(self, r: RoleBuilder, registers: int = 0) -> None:
        """Barriers are initialised by one warp; nobody uses them before all CTAs of the cluster know."""
        if self.config.cluster > 1:
            overhead.in_turn(r, overhead.WGMMA_BARRIERS)
            r.cluster_arrive()
            overhead.in_turn(r, overhead.WGMMA_CTA_SETUP)
        else:
            overhead.in_turn(r, overhead.WGMMA_BARRIERS.plus(overhead.WGMMA_CTA_SETUP, 1))
        if self.p.dtype == "tf32":
            overhead.waits(r, libraries.figure(CUBLAS, "xmma_setup_cycles"))
        if self.config.cluster > 1:
            r.cluster_wait()
        elif not self.config.multistage:
            r.bar_sync(0, WARPGROUP * (self.config.warpgroups + self.config.specialized))
        if self.config.warpgroups == 2 and registers:
            r.setmaxnreg(registers)

    # --- producer

    def _rows(self, unit: Unit) -> tuple[Expr, Expr]:
        """First row of this CTA's tile in the first and second operand."""
        c = self.config
        return (
            (unit.tile.m * c.cluster_m + self.rank_m) * c.tile_m,
            (unit.tile.n * c.cluster_n + self.rank_n) * c.tile_n,
        )

    def _producer(self, r: RoleBuilder) -> None:
        with self.plan.units(r, self.worker) as unit, r.loop("k", unit.k_trips) as k:
            self._load_step(r, unit, k)
        self._drain(r)

    def _load_step(self, r: RoleBuilder, unit: Unit, k: Expr) -> None:
        """Both operands of k step `k` of a piece on their way."""
        c = self.config
        x_row, y_row = self._rows(unit)
        step = unit.first + k
        stage, depth = self.ring.stage(step), (unit.k_begin + k) * c.tile_k
        self.ring.acquire(r, step, self.sx.stage_bytes + self.sy.stage_bytes + _scale_bytes(self.p, c))
        self._load(r, self.x, self.sx, unit, x_row, c.tile_m, depth, stage, share=self.rank_n, sharers=c.cluster_n)
        self._load(r, self.y, self.sy, unit, y_row, c.tile_n, depth, stage, share=self.rank_m, sharers=c.cluster_m)
        if self.p.scales:
            box = self.p.scales[0][unit.tile.batch, unit.k_begin + k : 1, x_row : c.tile_m]  # type: ignore[misc]
            r.tma_load(self.scales.stage(stage), box, self.ring.full, stage)
        overhead.WGMMA_PRODUCER_STEP.write(r)

    def _drain(self, r: RoleBuilder) -> None:
        """A CTA must not leave while others still arrive on its barriers."""
        c = self.config
        if c.cluster > 1:
            done = self.plan.steps_done(self.worker)
            with r.loop("drain", c.stages) as s:
                self.ring.acquire(r, done + s)

    def _copying_producer(self, r: RoleBuilder) -> None:
        """Without TMA: each of four warps copies a quarter of the rows; what has landed is made known `ahead` steps
        later, two before its stage comes round, since consumers hold a stage until they have the next one."""
        c = self.config
        ahead = min(c.stages - 2, COPIES_AHEAD)
        with self.plan.units(r, self.worker) as unit, r.loop("k", unit.k_trips) as k:
            step = unit.first + k
            self.ring.acquire(r, step)
            self._copy_step(r, unit, k, WARPGROUP)
            r.cp_commit()
            with r.when(step >= ahead):
                self._landed(r, step - ahead, ahead)
            overhead.WGMMA_PRODUCER_STEP.write(r)
        done = self.plan.steps_done(self.worker)
        with r.loop("rest", minimum(done, ahead)) as i:
            self._landed(r, done - minimum(done, ahead) + i, 0)

    def _copy_step(self, r: RoleBuilder, unit: Unit, k: Expr, warps: int) -> None:
        """This warp's part of both operands of k step `k` of a piece: of the `warps` that copy each takes as many whole
        rows, as they lie in memory."""
        c = self.config
        stage, depth = (unit.first + k) % c.stages, (unit.k_begin + k) * c.tile_k
        x_row, y_row = self._rows(unit)
        for operand, tile, first, rows in ((self.x, self.sx, x_row, c.tile_m), (self.y, self.sy, y_row, c.tile_n)):
            high, deep = (rows // warps, c.tile_k) if operand.k_major else (rows, c.tile_k // warps)
            row, at = (WARP * high, 0) if operand.k_major else (0, WARP * deep)
            count = ceil_div(high * deep * DTYPE_BYTES[self.p.dtype], 32 * MAX_VECTOR_BYTES)
            src = operand.box(unit.tile.batch, first + row, high, depth + at, deep)
            r.cp_async(operand.part(tile, stage, row, high, at, deep), src, count, mix=overhead.mix(alu=2 * count))

    def _landed(self, r: RoleBuilder, step: Expr, left: int) -> None:
        """This warp's part of a step is there, for wgmma to see; `left` later ones are in flight."""
        r.cp_wait(left)
        r.fence_async()
        self.ring.fill(r, step)

    def _load(
        self, r: RoleBuilder, operand: Operand, tile: SharedTile, unit: Unit, row: Expr, rows: int, depth: Expr,
        stage: Expr, *, share: IntLike, sharers: int,
    ) -> None:  # fmt: skip
        """This CTA's share of the tile, to all CTAs that use it: one TMA load, or one a block. A share is whole groups
        of eight rows; where they do not come out even, the first CTAs load one more."""
        c = self.config
        if operand is self.x and self.rs:
            part = rows // sharers
            for i in range(0, part, self.block):
                at = (share * part + i) // self.block * c.tile_k
                src = operand.box(unit.tile.batch, row + (share * part + i), self.block, depth, c.tile_k)
                mask = None if sharers == 1 else self._mask(True)
                r.tma_load(tile[stage, at : c.tile_k, :], src, self.ring.full, stage, mask)  # type: ignore[misc]
            return

        def load(offset: IntLike, part: int) -> None:
            dst = operand.part(tile, stage, offset, part, 0, c.tile_k)
            src = operand.box(unit.tile.batch, row + offset, part, depth, c.tile_k)
            r.tma_load(dst, src, self.ring.full, stage, None if sharers == 1 else self._mask(operand is self.x))

        groups, more = divmod(rows // SHARE_ROWS, sharers)
        part = groups * SHARE_ROWS
        if not more:
            load(share * part, part)
            return
        assert isinstance(share, Expr)
        with r.when(share < more):
            load(share * (part + SHARE_ROWS), part + SHARE_ROWS)
        if part:
            with r.when(share >= more):
                load(share * part + more * SHARE_ROWS, part)

    def _mask(self, along_n: bool) -> Expr:
        """Ranks of the CTAs in this one's row (the same first operand) or column (the same second one)."""
        c = self.config
        values = []
        for rank in range(c.cluster):
            m, n = rank % c.cluster_m, rank // c.cluster_m
            peers = [m + c.cluster_m * j for j in range(c.cluster_n)] if along_n else []
            peers += [] if along_n else [i + c.cluster_m * n for i in range(c.cluster_m)]
            values.append(sum(1 << peer for peer in peers))
        return table(values, CLUSTER_RANK)

    def _sources(self) -> Expr | None:
        """Ranks of the CTAs that load into this one."""
        c = self.config
        if c.cluster == 1:
            return None
        values = []
        for rank in range(c.cluster):
            m, n = rank % c.cluster_m, rank // c.cluster_m
            row = {m + c.cluster_m * j for j in range(c.cluster_n)}
            column = {i + c.cluster_m * n for i in range(c.cluster_m)}
            values.append(sum(1 << peer for peer in row | column))
        return table(values, CLUSTER_RANK)

    # --- consumer

    def _consumer(self, r: RoleBuilder, group: int, warps: int) -> None:
        c = self.config
        first_row = WARP % WARPGROUP * WARP_ROWS
        if c.band > BLOCK_ROWS:
            first_row = WARP // WARPGROUP * BLOCK_ROWS + first_row
        col = group * c.width if c.columns else 0
        pieces = [
            Piece(RegisterTile(f"acc{i}", (WARP_ROWS, c.width), self.p.acc), first_row + i * c.band, col)
            for i in range(c.blocks)
        ]
        first, stride = (group, 2) if c.pingpong else (0, 1)
        with self.plan.units(r, self.worker, first, stride) as unit:
            if self.turn is not None:
                r.mbarrier_wait(self.turn, unit.index % 2, (unit.index + 1) // 2 - 1)
            if c.multistage:
                self._multistage_loop(r, unit, pieces)
            else:
                if not c.specialized:
                    with r.when(WARP.equals(0)), r.loop("ahead", minimum(unit.k_trips, c.stages)) as k:
                        self._load_step(r, unit, k)
                if self.p.scales:
                    self._scaled_loop(r, unit, pieces, 1 + group, warps)
                elif c.promote:
                    self._promoted_loop(r, unit, pieces)
                else:
                    self._main_loop(r, unit, pieces)
            if self.turn is not None:
                r.mbarrier_arrive(self.turn, (unit.index + 1) % 2)
            if not (self.p.scales or c.promote):  # which wait for each step, and release its stage
                r.wgmma_wait(0)
                if not c.multistage:
                    self.ring.release(r, unit.first + unit.k_trips - 1, self._sources())
            if self.partials is not None:
                rank: IntLike = CLUSTER_RANK if c.cluster > 1 else 0
                storing = warps * c.groups if c.columns else warps
                fixup = Fixup(self.partials, CTA_X, c.cluster, unit.tile_index * c.cluster + rank, storing)
                fixup.store(r, unit, pieces)
            with nullcontext() if c.reduce else owner_only(r, unit):
                if self.partials is not None:
                    fixup.add(r, unit, pieces)
                self._epilogue(r, unit, pieces, group, warps)
        if self.staging and not c.flat:
            with r.when(WARP.equals(0)):
                r.bulk_wait(0, read=False)
        if c.tma and not c.specialized:
            with r.when(WARP.equals(0)):
                self._drain(r)

    def _main_loop(self, r: RoleBuilder, unit: Unit, pieces: list[Piece]) -> None:
        """One group of wgmma stays in flight: a stage is released when the next one's group has been issued."""
        c = self.config
        overhead.WGMMA_CONSUMER_TILE.write(r)
        self._step(r, unit.first, pieces, first=True)
        with r.loop("k", unit.k_trips - 1, 1) as k:
            step = unit.first + k
            self._step(r, step, pieces, first=False)
            r.wgmma_wait(1)
            self.ring.release(r, step - 1, self._sources())
            if not c.specialized:
                following = k + (c.stages - 1)
                with r.when(WARP.equals(0)), r.when(following < unit.k_trips):
                    self._load_step(r, unit, following)
            self._step_overhead.write(r)

    def _scaled_loop(self, r: RoleBuilder, unit: Unit, pieces: list[Piece], barrier: int, warps: int) -> None:
        """Each step's products, complete, are added with their scales to the sums; then the stage is released."""
        overhead.WGMMA_CONSUMER_TILE.write(r)
        assert self.p.scales is not None
        of_b = self.p.scales[1]
        blocks, column = of_b.shape[2], self._rows(unit)[1] // SCALE_BLOCK
        if not self.staging:  # whose barriers would say that all warps are done with the tile before
            r.bar_sync(barrier, warps)
        # Not the warp that may still wait for the store of the tile before.
        with r.when(WARP.equals(int(self.config.flat))):
            rows = RegisterTile("scales", (self.config.scaled_blocks, blocks), "fp32")
            box = of_b[unit.tile.batch, column : self.config.scaled_blocks, 0:blocks]  # type: ignore[misc]
            r.ldg(rows.whole, box, into="sb", vector_bytes=4)
            r.sts(self.scales_b.stage(0), rows.whole, vector_bytes=4, after=("sb",))
        r.bar_sync(barrier, warps)
        self._scaled_step(r, unit, Const(0), pieces, first=True)
        with r.loop("k", unit.k_trips - 1, 1) as k:
            self._scaled_step(r, unit, k, pieces, first=False)
            self._step_overhead.write(r)

    def _scaled_step(self, r: RoleBuilder, unit: Unit, k: Expr, pieces: list[Piece], first: bool) -> None:
        c, step = self.config, unit.first + k
        self.ring.wait(r, step)
        products = [
            Piece(RegisterTile(f"part{i}", p.acc.shape, self.p.acc), p.row, p.col) for i, p in enumerate(pieces)
        ]
        self._multiply(r, step, products, first=True)
        stage = step % c.stages
        blocks = range(c.scaled_blocks)
        of_columns = [RegisterTile(f"sb{j}", (1, 1), "fp32") for j in blocks]
        for j, tile in enumerate(of_columns):
            scale = self.scales_b[0, j:1, unit.k_begin + k : 1]  # type: ignore[misc]
            r.lds(tile.whole, scale, 1, vector_bytes=4, sharers=32, into="sb")
        scales = []
        for i, p in enumerate(pieces):
            of_rows = RegisterTile(f"sa{i}", (1, WARP_ROWS), "fp32")
            # A thread holds values of two rows, four threads those of one.
            view = self.scales[stage, 0:1, p.row : WARP_ROWS]  # type: ignore[misc]
            r.lds(of_rows.whole, view, 2, vector_bytes=4, sharers=4, into="sa")
            scales.append([RegisterTile(f"s{i}{j}", (1, WARP_ROWS), "fp32") for j in blocks])
            for j, (both, column) in enumerate(zip(scales[-1], of_columns, strict=True)):
                r.run(
                    "fmul", 2, dtype="fp32", dst=both.whole, srcs=(of_rows.whole, column.whole),
                    compute=promotion.times, after=() if j else ("sa", "sb"),
                )  # fmt: skip
        r.wgmma_wait(0)
        former = SCALE_BLOCK - self._rows(unit)[1] % SCALE_BLOCK
        for p, product, tiles in zip(pieces, products, scales, strict=True):
            r.run(
                "fmul" if first else "ffma", p.acc.shape[0] * p.acc.shape[1] // 32, dtype="fp32", dst=p.acc.whole,
                srcs=(product.acc.whole, *(tile.whole for tile in tiles)), indices=(former,),
                compute=promotion.by_rows if first else promotion.added(promotion.by_rows),
            )  # fmt: skip
        self.ring.release(r, step, self._sources())

    def _promoted_loop(self, r: RoleBuilder, unit: Unit, pieces: list[Piece]) -> None:
        """Each step's products, complete, are added to the sums, which the first step's are; then the stage is
        released."""
        overhead.WGMMA_CONSUMER_TILE.write(r)
        products = [
            Piece(RegisterTile(f"part{i}", p.acc.shape, self.p.acc), p.row, p.col) for i, p in enumerate(pieces)
        ]
        self._complete_step(r, unit.first, pieces)
        with r.loop("k", unit.k_trips - 1, 1) as k:
            self._complete_step(r, unit.first + k, products)
            for p, product in zip(pieces, products, strict=True):
                values = p.acc.shape[0] * p.acc.shape[1] // 32
                sums, added = p.acc.whole, product.acc.whole
                r.run("fadd", values, dtype="fp32", dst=sums, srcs=(added,), compute=np.add)

    def _complete_step(self, r: RoleBuilder, step: Expr, into: list[Piece]) -> None:
        """The products of a k step, waited for. What else the loop has to do is done meanwhile."""
        self.ring.wait(r, step)
        self._multiply(r, step, into, first=True)
        self._step_overhead.write(r)
        r.wgmma_wait(0)
        self.ring.release(r, step, self._sources())

    def _multistage_loop(self, r: RoleBuilder, unit: Unit, pieces: list[Piece]) -> None:
        """All warps copy `ahead` steps ahead. In step s they meet when their parts of it are there, and each has waited
        for its group of step s - 2, into whose stage step s + ahead is then copied."""
        c = self.config
        overhead.WGMMA_CONSUMER_TILE.write(r)
        with r.loop("ahead", c.ahead) as k:
            with r.when(k < unit.k_trips):
                self._copy_step(r, unit, k, WARPGROUP * c.warpgroups)
            r.cp_commit()
        self._multistage_step(r, unit, Const(0), pieces)
        with r.loop("k", unit.k_trips - 1, 1) as k:
            self._multistage_step(r, unit, k, pieces)
            r.wgmma_wait(1)

    def _multistage_step(self, r: RoleBuilder, unit: Unit, k: Expr, pieces: list[Piece]) -> None:
        c = self.config
        warps = WARPGROUP * c.warpgroups
        r.cp_wait(c.ahead - 1)
        r.fence_async()
        r.bar_sync(0, warps)
        self._multiply(r, unit.first + k, pieces, first=k == Const(0))
        following = k + c.ahead
        with r.when(following < unit.k_trips):
            self._copy_step(r, unit, following, warps)
        r.cp_commit()
        overhead.WGMMA_PRODUCER_STEP.write(r)
        self._step_overhead.write(r)

    @property
    def _step_overhead(self) -> overhead.Overhead:
        """Of one k step of a warp that multiplies."""
        c = self.config
        pairs = c.blocks * c.tile_k * DTYPE_BYTES[self.p.dtype] // (2 * INSTRUCTION_K_BYTES)
        return overhead.WGMMA_CONSUMER_STEP.plus(overhead.WGMMA_PAIR, pairs)

    def _step(self, r: RoleBuilder, step: Expr, pieces: list[Piece], first: bool) -> None:
        self.ring.wait(r, step)
        if self.rs and self.config.pingpong and self.config.blocks > 1 and not first and self.single:
            # The sums of two blocks leave no registers for the next fragments beside those that are being read. Where
            # the other warpgroup has a tile, it multiplies meanwhile.
            r.wgmma_wait(0)
        self._multiply(r, step, pieces, first)

    def _multiply(self, r: RoleBuilder, step: Expr, pieces: list[Piece], first: bool) -> None:
        """The group of wgmma of one k step, in flight."""
        c = self.config
        stage = step % c.stages
        views = [self._first_operand(r, stage, step, i, p) for i, p in enumerate(pieces)]
        second = self.y.by_k(self.y.part(self.sy, stage, pieces[0].col, c.width, 0, c.tile_k))
        k = INSTRUCTION_K_BYTES // DTYPE_BYTES[self.p.dtype]
        shape, count = f"m{BLOCK_ROWS}n{c.width}k{k}", c.tile_k // k
        after = ("x",) if self.rs else ()
        r.wgmma_fence()
        for p, view in zip(pieces, views, strict=True):
            # The first multiply of a tile ignores the accumulator (scale-d = 0): nothing clears it.
            r.wgmma(
                p.acc.whole, view, second, shape=shape, dtype=self.p.dtype, count=count, accumulate=int(not first),
                after=after,
            )  # fmt: skip
        r.wgmma_commit()

    def _first_operand(self, r: RoleBuilder, stage: Expr, step: Expr, block: int, p: Piece) -> View:
        """This warp's rows of the first operand: in shared memory, or brought to registers in k-contiguous order."""
        c = self.config
        if not self.rs:
            return self.x.by_rows(self.x.part(self.sx, stage, p.row, WARP_ROWS, 0, c.tile_k))
        # Two fragments in turn: the group in flight still reads the other one.
        fragment = RegisterTile(f"x{block}", (WARP_ROWS, 2 * c.tile_k), self.p.dtype)
        dst = fragment[:, step % 2 * c.tile_k : c.tile_k]
        at, column = p.row // self.block * c.tile_k, p.row % self.block
        view = self.sx[stage, at : c.tile_k, column:WARP_ROWS]  # type: ignore[misc]
        words = _fragment_words(self.p, c)
        # 8-bit elements arrive four rows a word: a 4x4 byte transpose takes two permutes a word.
        each = {1: 2, 4: libraries.figure(CUBLAS, "xmma_per_fragment_word")}.get(DTYPE_BYTES[self.p.dtype], 0)
        # A thread may hold any rows of a fragment, which only changes whose sums it holds. In the order of the rows two
        # lanes would meet in each bank, and a step of 64x256 take 704 cycles of the array: 628 were measured.
        r.lds(dst.T, view, words, vector_bytes=4, into="x", any_order=True, mix=overhead.mix(alu=each * words))
        return dst

    # --- epilogue

    def _epilogue(self, r: RoleBuilder, unit: Unit, pieces: list[Piece], group: int, warps: int) -> None:
        overhead.WGMMA_EPILOGUE_TILE.write(r)
        x_row, y_row = self._rows(unit)
        if self.staging:
            self._store_through_shared(r, unit, pieces, x_row, y_row, group, warps)
        else:
            self._store_directly(r, unit, pieces, x_row, y_row)

    def _scale_and_convert(self, r: RoleBuilder, values: int) -> None:
        """alpha, which kernels that keep results flat do not have and those of 16 bits skip, as it is 1, and two values
        packed by one conversion; `values` of a thread."""
        if self.p.acc == "fp32" and not self.config.flat and self.p.dtype not in ("bf16", "fp16"):
            further = libraries.figure(CUBLAS, "xmma_per_value") * values if self.p.dtype == "tf32" else 0
            r.run("fmul", values, dtype="fp32", mix=overhead.mix(alu=further))
        if self.p.out != epilogue.held(self.p):
            r.run("cvt", ceil_div(values, 2), dtype=self.p.out)

    def _store_through_shared(
        self, r: RoleBuilder, unit: Unit, pieces: list[Piece], x_row: Expr, y_row: Expr, group: int, warps: int
    ) -> None:
        """Subtile by subtile: registers to shared memory, then one TMA store by an elected warp."""
        c, staging = self.config, self.staging[group]
        columns, rest = _epilogue_columns(c), _epilogue_rest(c)
        whole = c.width // columns
        if _epilogue_subtiles(c) % staging.stages and not self.single:
            # The last subtile of a tile and the first one of the next have the same buffer.
            with r.when(WARP.equals(0)):
                r.bulk_wait(0)
        for band, piece in enumerate(pieces):
            store = partial(self._store_subtile, r, unit, piece, (x_row, y_row), band * c.band, group, warps)
            before = band * (whole + (rest > 0))
            with r.loop("subtile", whole) as s:
                store(buffer=(before + s) % staging.stages, at=s * columns, columns=columns)
            if rest:
                store(buffer=Const((before + whole) % staging.stages), at=Const(whole * columns), columns=rest)

    def _store_subtile(
        self, r: RoleBuilder, unit: Unit, piece: Piece, tile: tuple[Expr, Expr], band: int, group: int, warps: int,
        *, buffer: Expr, at: Expr, columns: int,
    ) -> None:  # fmt: skip
        """`columns` columns, beginning with `at`, of the rows that begin with `band`, through `buffer`. tile: first row
        and column of the tile."""
        c, staging = self.config, self.staging[group]
        results = self._finished(r, unit, piece, (tile[0], tile[1]), at, columns)
        self._scale_and_convert(r, WARP_ROWS * columns // 32)
        # Flat results are stored by a warp that waits before the barrier at which the next tile's scales are there.
        if not c.flat:
            with r.when(WARP.equals(0)):
                r.bulk_wait(staging.stages - 1)
            r.bar_sync(1 + group, warps)
        row = piece.row - band
        if c.swap:
            src, dst = results.T, staging[buffer, 0:columns, row:WARP_ROWS]  # type: ignore[misc]
        else:
            src, dst = results, staging[buffer, row:WARP_ROWS, 0:columns]  # type: ignore[misc]
        if c.flat and not c.swap:  # stmatrix writes eight rows at once, here not apart by a swizzle
            src, dst = results.T, dst.T
        width = DTYPE_BYTES[self.p.out]
        # stmatrix.x4 writes 16 bytes a thread, transposed or not. It takes no 4-byte values: of those a thread
        # stores the two neighbours of a row that it holds, or each alone where rows are columns.
        vector = 16 if width < 4 else width if c.swap else 2 * width
        count = ceil_div(WARP_ROWS * columns * width, 32 * vector)
        r.sts(dst, src, count, vector_bytes=vector, mix=overhead.WGMMA_EPILOGUE_SUBTILE.mix)
        r.fence_async()
        r.bar_sync(1 + group, warps)
        with r.when(WARP.equals(0)):
            first, col = tile[0] + band, tile[1] + piece.col + at
            box = self._box(unit, first, c.band, col, columns)
            whole = columns == _epilogue_columns(c)
            part = staging[buffer, 0:columns, 0 : c.band] if c.swap else staging[buffer, 0 : c.band, 0:columns]  # type: ignore[misc]
            r.tma_store(box, staging.stage(buffer) if whole else part)
            r.bulk_commit()
            if c.flat:
                r.bulk_wait(0)

    def _store_directly(self, r: RoleBuilder, unit: Unit, pieces: list[Piece], x_row: Expr, y_row: Expr) -> None:
        """Rows of C are not aligned for TMA: each thread stores the two neighbouring values that it holds, or one."""
        c = self.config
        width = DTYPE_BYTES[self.p.out]
        vector = width if c.swap else max(width, min(self.p.c_vector_bytes, 2 * width))
        for p in pieces:
            results = self._finished(r, unit, p, (x_row, y_row), Const(0), c.width)
            self._scale_and_convert(r, WARP_ROWS * c.width // 32)
            col = y_row + p.col
            row, count = x_row + p.row, ceil_div(WARP_ROWS * c.width * width, 32 * vector)
            box = self._box(unit, row, WARP_ROWS, col, c.width)
            r.stg(box, results.T if c.swap else results, count, vector_bytes=vector)

    def _box(self, unit: Unit, first: Expr, rows: int, column: Expr, columns: int) -> View:
        """`rows` by `columns` results of a tile in memory; where a second kernel adds the pieces, those of this one."""
        piece = self.worker % self.p.c.shape[0] if self.config.reduce else None
        return self.p.results(unit.tile.batch, (first, rows), (column, columns), self.config.swap, piece)

    def _finished(
        self, r: RoleBuilder, unit: Unit, piece: Piece, tile: tuple[Expr, Expr], at: Expr, columns: int
    ) -> View:
        """`columns` columns of a piece, from `at` on, with scales and epilogue. tile: its first row and column."""
        first, second = (tile[0] + piece.row, WARP_ROWS), (tile[1] + piece.col + at, columns)
        if self.config.reduce:
            return piece.acc[:, at:columns]  # type: ignore[misc]
        sums, done = piece.acc[:, at:columns], epilogue.results(self.p, piece.acc)[:, at:columns]  # type: ignore[misc]
        rows, cols = (second, first) if self.config.swap else (first, second)
        epilogue.finish(r, self.p, self.spec, sums, done, unit.tile.batch, rows, cols)
        return done


def _fragment_words(p: Problem, config: WgmmaConfig) -> int:
    """Registers of a thread, and LDS of a warp, that bring 16 rows of one stage of the first operand."""
    return WARP_ROWS * config.tile_k * DTYPE_BYTES[p.dtype] // 128


def _code_bytes(p: Problem, config: WgmmaConfig) -> int:
    """Machine code on the path that runs: set-up, both roles, epilogue with its subtiles unrolled.

    With an operand through registers the k step is there three times, each with its loads: CUTLASS writes out the first
    and the last one beside the loop.
    """
    subtiles = _epilogue_subtiles(config)
    values = config.accumulators
    instructions = 249 + 88 + 46 + 40 + 144 + values + values // 2 + 20 * subtiles
    if through_registers(p, config):
        instructions += 2 * 46 + 3 * config.blocks * _fragment_words(p, config)
    if p.dtype == "tf32":
        instructions += libraries.figure(CUBLAS, "xmma_per_value") * values
    if p.scales:
        instructions += 2 * (values + 8 * config.blocks)
    return instructions * overhead.INSTRUCTION_BYTES


@dataclass(frozen=True)
class Rates:
    """Issue of wgmma on a machine for one format: cycles of eight columns, least cycles."""

    eight_columns: float
    floor: float

    @classmethod
    def of(cls, spec: GpuSpec, dtype: str) -> Rates | None:
        """None where the machine has no such instruction."""
        shape = f"m{BLOCK_ROWS}n*k{INSTRUCTION_K_BYTES // DTYPE_BYTES[dtype]}"
        if not spec.has_instruction("wgmma", dtype, shape):
            return None
        row = spec.instruction("wgmma", dtype, shape)
        return cls(row.interval_cycles, row.floor_cycles)


def work(p: Problem, f: Figures, c: WgmmaConfig, rates: Rates, per_sm: int = 1) -> Work:
    """Counts for the estimate, per CTA; per_sm: of `ctas_per_sm`."""
    x, y = p.sides(c.swap)
    width, out_width = DTYPE_BYTES[p.dtype], DTYPE_BYTES[p.out]
    steps = ceil_div(p.k, c.tile_k)
    clusters_m, clusters_n = ceil_div(x.rows, c.tile_m * c.cluster_m), ceil_div(y.rows, c.tile_n * c.cluster_n)
    tiles = clusters_m * clusters_n * p.batch * c.cluster
    # One of a cluster asks for what all read; rows beyond an operand's end are asked from nowhere.
    requested_rows = x.rows * clusters_n + y.rows * clusters_m
    requested_bytes = ceil_div(requested_rows * p.batch * c.tile_k * width, tiles)
    resident = sum(sms // c.cluster for sms in f.sms_per_place) * c.cluster * per_sm
    # Both operands of an instruction also pass the shared memory's port.
    operand_rows = c.width + (0 if through_registers(p, c) else BLOCK_ROWS)
    interval = max(
        c.width * rates.eight_columns / 8, rates.floor, operand_rows * INSTRUCTION_K_BYTES * MILLI / f.shared_rate
    )
    instructions = c.tile_n // c.width * c.tile_m // BLOCK_ROWS * (c.tile_k * width // INSTRUCTION_K_BYTES)
    x_bytes, y_bytes = c.tile_m * c.tile_k * width, c.tile_n * c.tile_k * width
    values = c.tile_m * c.tile_n
    store_bytes = values * out_width
    # Four warp schedulers share an epilogue of about 4 instructions per 32 values (CUTLASS: 495 for 64x256 and a warp).
    subtiles = c.blocks * ceil_div(c.width, _epilogue_columns(c))
    epilogue = values // 32 + subtiles * 2 * (f.barrier + f.barrier_per_warp * WARPGROUP * c.warpgroups)
    setup = (overhead.WGMMA_BARRIERS.instructions + overhead.WGMMA_CTA_SETUP.instructions) * ceil_div(
        WARPGROUP * (c.warpgroups + 1), f.sub_cores
    )
    if p.dtype == "tf32":
        setup += libraries.figure(CUBLAS, "xmma_setup_cycles")
        # Integer instructions issue every second cycle.
        epilogue += 2 * libraries.figure(CUBLAS, "xmma_per_value") * values // 32 // f.sub_cores
    busy = int(instructions * interval)
    bubble = _fragment_cycles(p, f, c, tiles <= resident) + (c.accumulators if p.scales or c.promote else 0)
    side_m, side_n = _round_shape(p, c, min(resident, tiles))
    pieces = 1 if c.reduce else min(c.split, steps)
    columns = _stored_columns(_stored(p, c), c)
    whole = Work(
        tiles=tiles,
        steps=steps,
        ctas=tiles * pieces,
        resident=resident,
        persistent=c.persistent,
        busy=busy,
        bubble=max(
            bubble,
            _producer_cycles(f, c) - busy,
            _consumer_cycles(f, c, tiles <= resident) - int(f.wgmma_ahead * interval),
        ),
        shared=_shared_cycles(p, f, c, instructions * operand_rows * INSTRUCTION_K_BYTES),
        unicast_bytes=(x_bytes if c.cluster_n == 1 else 0) + (y_bytes if c.cluster_m == 1 else 0),
        received_bytes=x_bytes + y_bytes,
        requested_bytes=requested_bytes,
        cluster=c.cluster,
        ahead=max(1, c.ahead),
        latency=f.load_latency + f.tma_latency,
        epilogue=epilogue,
        overlapped=c.pingpong,
        store_bytes=store_bytes,
        cuts=pieces,
        stream=c.stream_k and tiles % resident > 0,
        partial_bytes=values * 4,
        fetches=partial(fetches, ((WARP_ROWS, c.width),) * c.blocks),
        code_bytes=_code_bytes(p, c),
        setup=setup,
        operand_bytes=p.batch * p.k * (p.m + p.n) * width + sum(scales.size_bytes for scales in p.scales or ()),
        round_bytes=(side_m * c.tile_m + side_n * c.tile_n) * p.k * width,
        result_bytes=p.batch * p.m * p.n * out_width,
        shared_sectors=shared_sectors(p, p.out, columns),
        extra_ps=f.launch_ps if c.reduce else 0,
        joined_bytes=_joined(c, f, clusters_m, clusters_n, p.batch, min(resident, tiles * pieces), requested_bytes),
    )
    return splitk.work(whole, p, f, min(c.split, steps), columns) if c.reduce else whole


JOINED = 98
"""Percent of the reads that could join others which are taken to do so. With 100, many small tiles look better than
they are simulated where GPCs have many SMs (1024 cubed on 264); with 96, clusters do that save no reads."""


def _joined(c: WgmmaConfig, f: Figures, across: int, along: int, batch: int, ctas: int, requested_bytes: int) -> int:
    """Of `requested_bytes` of a k step of one CTA, those that another one on its GPC asks for at the same time. Loads
    for several CTAs of a cluster are not joined. across, along: tiles of clusters."""
    if f.together == 1:
        return 0
    group = _group(c, across, along)
    clusters = max(1, ctas // c.cluster)
    gpcs = gpcs_of(f.sms_per_place, f.gpcs, clusters, c.cluster)
    rows, columns = _asked_on_gpc(across, along, batch, group, gpcs, f.together)
    x, y = c.tile_m * c.cluster_m, c.tile_n * c.cluster_n
    joined = (0 if c.cluster_n > 1 else x * (MILLI - rows)) + (0 if c.cluster_m > 1 else y * (MILLI - columns))
    return requested_bytes * joined * JOINED // (100 * MILLI * (x + y))


@lru_cache(maxsize=4096)
def _asked_on_gpc(
    tiles_m: int, tiles_n: int, batch: int, group: int, gpcs: tuple[int, ...], together: int
) -> tuple[int, int]:
    """Thousandths of the requests for rows of tiles, and for columns, that reach the L2. gpcs: of each worker."""
    found = Plan(tiles_m, tiles_n, batch, 1, len(gpcs), 0, group, tiles_m < tiles_n).firsts(len(gpcs))
    wanted = (
        ((gpc, tile.batch, tile.m) for gpc, tile in zip(gpcs, found, strict=True)),
        ((gpc, tile.batch, tile.n) for gpc, tile in zip(gpcs, found, strict=True)),
    )
    asked = (sum(ceil_div(n, together) for n in Counter(places).values()) for places in wanted)
    rows, columns = (ceil_div(MILLI * n, len(found)) for n in asked)
    return rows, columns


def _fragment_cycles(p: Problem, f: Figures, c: WgmmaConfig, single: bool) -> int:
    """Cycles in which a warp brings its part of the first operand to registers; 0 if wgmma reads it by itself. single:
    no CTA has a second tile."""
    if not through_registers(p, c):
        return 0
    fragment_bytes = c.blocks * WARP_ROWS * c.tile_k * DTYPE_BYTES[p.dtype]
    alone = c.pingpong and c.blocks > 1 and single  # nothing is multiplied meanwhile
    issue = 2 * libraries.figure(CUBLAS, "xmma_per_fragment_word") * c.blocks * _fragment_words(p, c) if alone else 0
    return f.shared_latency + transfer(fragment_bytes * WARPGROUP, f.shared_rate) + issue


def _producer_cycles(f: Figures, c: WgmmaConfig) -> int:
    """Cycles of a k step of the warp that asks for its operands: it waits for the stage, and issues."""
    if not (c.tma and c.specialized):
        return 0
    # Integer instructions issue every second cycle.
    return f.mbarrier_wait + 2 * overhead.WGMMA_PRODUCER_STEP.alu + overhead.WGMMA_PRODUCER_STEP.imad


def _consumer_cycles(f: Figures, c: WgmmaConfig, single: bool) -> int:
    """Cycles of a k step in which a lone consumer warpgroup asks for no product: it waits for the next stage, and
    counts. Products that wait for the tensor core cover some. single: no CTA has a second tile."""
    alone = c.warpgroups == 1 or (c.pingpong and single)
    # Integer instructions issue every second cycle.
    return f.mbarrier_wait + 2 * overhead.WGMMA_CONSUMER_STEP.alu if alone else 0


def _shared_cycles(p: Problem, f: Figures, c: WgmmaConfig, operand_bytes: int) -> int:
    """Cycles of the shared-memory array in one k step: what warps load of an operand through registers, and the
    `operand_bytes` that wgmma reads. Writes of the TMA take none."""
    loaded = c.tile_m * c.tile_k * DTYPE_BYTES[p.dtype] if through_registers(p, c) else 0
    return transfer(loaded + operand_bytes, f.shared_rate)


def _round_shape(p: Problem, c: WgmmaConfig, ctas: int) -> tuple[int, int]:
    """Tiles along the first and second operand that one round of CTAs covers in grouped order."""
    x, y = p.sides(c.swap)
    tiles_m, tiles_n = ceil_div(x.rows, c.tile_m), ceil_div(y.rows, c.tile_n)
    return round_shape(tiles_m, tiles_n, c.group, ctas)
