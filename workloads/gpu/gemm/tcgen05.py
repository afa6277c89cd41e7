"""GEMM on machines with tensor memory (Blackwell).

One warp asks the TMA for operands, one thread of another issues the products (`tcgen05.mma`), and four warps bring sums
from tensor memory to registers and on, as CUTLASS's sm100_mma_warpspecialized and cuBLAS's nvjet_sm100 do. A tile has
128 rows, or 256 of a pair of CTAs on two SMs: each has half of the rows, and of the columns of the second operand, in
its shared memory, so that the pair reads that operand once. CTAs take tile after tile. With two buffers in tensor
memory, the sums of one tile are stored while the next one is multiplied.

A CTA that has done its tile takes the next one by its number (a fixed stride), or asks the hardware for a CTA that has
not started (`clc`, cluster launch control): the grid has a CTA for each tile then.

`swap` exchanges the operands, computing the transpose of C: few rows of A are columns of a tile.

Operands in block formats bring their scales, which are copied to tensor memory step by step.

Operands with fp32 scales by block of k (`scale=block`; CUTLASS's KernelTmaWarpSpecializedBlockwise1SmSm100 and 2Sm): a
k step is one block. Its products have columns of tensor memory of their own, from which the epilogue's warps add them
with their scales to sums in registers ("promotion"), while the next blocks are multiplied into other columns. A warp of
its own copies the scales by cp.async.

Pieces of k are added by a second kernel (`splitk`). The kernel itself is written in `tcgen05_kernel`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from arch import tcgen05
from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from workloads.gpu import overhead
from workloads.gpu.configuration import Word
from workloads.gpu.gemm import epilogue, splitk
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import MILLI, Figures, Work, round_shape, transfer
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.plan import Plan
from workloads.gpu.gemm.problem import (
    Problem,
    ceil_div,
    shared_sectors,
    without_groups,
)
from workloads.ops import blocks
from workloads.ops.gemm import SCALE_BLOCK

ROWS = 128
"""Of a tile in one SM: the lanes of tensor memory."""
WARPS = 4
"""Of the epilogue: each reaches a quarter of the lanes."""
LANES = ROWS // WARPS
STEP_BYTES = 128
"""Bytes of k in one stage: the width of the widest swizzle."""
INSTRUCTION_K_BYTES = 32
"""Bytes of k that one product has."""
COLUMNS_STEP = 16
"""Columns of a tile are a multiple of it."""
MOST_COLUMNS = 256
EPILOGUE_COLUMNS = 32
"""Columns of an epilogue subtile (CUTLASS's choice for most tiles)."""
SUBTILE_CYCLES = 180
"""Of a subtile, beside its barriers and conversions: stores to shared memory, until the fence has seen them."""
BESIDE_BYTES = 1024
"""Shared memory beside operands and results: barriers, answers of launch control, alignment of the first buffer."""
SCALE_STAGES, SCALE_COLUMNS = 2, 4
"""Steps whose scales are in tensor memory, and columns of a group of them for 128 rows."""
ANSWERS = 3
"""Answers of launch control on their way (CUTLASS: SchedulerPipelineStageCount)."""
ANSWER_BYTES = 16
REGISTERS = 152
"""Of a thread of six or seven warps, for the four that hold sums."""


@dataclass(frozen=True)
class Tcgen05Config(GemmConfig):
    """One kernel on tensor memory: its tile, and which mechanisms it uses.

    tile_m, tile_n: output tile of a CTA or of a pair, along the first and the second operand.
    tile_k: values of k in one step.
    pair: two CTAs share the tile.
    stages, buffers: of the operands in shared memory, and of the sums in tensor memory.
    swap: the first operand is B, and the tile is one of C transposed.
    persistent: a CTA takes tile after tile.
    clc: it takes those of CTAs that have not started (launch control).
    group: tiles along the first direction that are done together.
    split: pieces of k, which a second kernel adds.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pair: bool = False
    stages: int = 4
    buffers: int = 2
    swap: bool = False
    persistent: bool = True
    clc: bool = False
    group: int = 8
    split: int = 1

    schedule: ClassVar[str] = "tcgen05"
    on_tensor_cores: ClassVar[bool] = True
    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("tile_m", "tile_n", "tile_k"),
        Word.flag("pair"),
        Word.number("stages"),
        Word.number("buffers", 2),
        *map(Word.flag, ("clc", "swap")),
        Word.flag("one-tile", "persistent", False),
        Word.number("group", 8),
        Word.number("split", 1),
    )

    @property
    def ctas(self) -> int:
        """CTAs of a tile."""
        return 2 if self.pair else 1

    @property
    def columns(self) -> int:
        """Columns of the second operand in one CTA's shared memory."""
        return self.tile_n // self.ctas

    @property
    def subtile(self) -> int:
        """Columns of an epilogue subtile."""
        return EPILOGUE_COLUMNS if self.tile_n % EPILOGUE_COLUMNS == 0 else COLUMNS_STEP

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        if spec.tcgen05 is None or spec.tma is None or spec.dsmem is None:
            raise InputError(f"{where}: {spec.name} has no tensor memory; its nearest schedule is mma")
        if p.op.adds:
            raise InputError(f"{where}: beta=1 is not available; nearest: mma")
        epilogue.check(p, spec, where)
        without_groups(p, where)
        if self.tile_m != ROWS * self.ctas:
            raise InputError(f"{where}: a tile has {ROWS} rows, of a pair {2 * ROWS}; nearest: {ROWS * self.ctas}")
        step = COLUMNS_STEP * self.ctas
        most = most_columns(p)
        if self.tile_n % step or not step <= self.tile_n <= most:
            nearest = min(most, max(1, round(self.tile_n / step)) * step)
            raise InputError(f"{where}: tile n must be a multiple of {step} up to {most}, nearest: {nearest}")
        if self.tile_k != step_k(p.dtype):
            raise InputError(f"{where}: tile k must be {step_k(p.dtype)} for {p.dtype}")
        tcgen05.product(spec, kind(p.dtype), shape(p, self), pair=self.pair)
        columns = spec.tcgen05.columns - _scale_columns(p, self)
        if not 1 <= self.buffers * self.tile_n <= columns:
            raise InputError(
                f"{where}: {self.buffers} buffers of {self.tile_n} columns, {spec.name} has {columns} for sums; "
                f"nearest: buffers = {max(1, columns // self.tile_n)}"
            )
        if not 1 <= self.stages <= max_stages(p, self, spec):
            raise InputError(
                f"{where}: {shared_bytes(p, self)} B of shared memory, {spec.name} has "
                f"{spec.shared.max_per_cta_bytes} B a CTA; nearest: stages = {max(1, max_stages(p, self, spec))}"
            )
        if self.split < 1 or (self.split > 1 and self.clc):
            raise InputError(f"{where}: split must be at least 1, and 1 with clc")
        for operand in p.sides(self.swap):
            if not operand.tma:
                name, align = operand.tensor.name, operand.vector_bytes
                raise InputError(
                    f"{where}: rows of {name} start at multiples of {align} B, TMA needs 16 B; nearest: mma"
                )

    def work(self, p: Problem, spec: GpuSpec, f: Figures) -> Work:
        """Counts for the estimate."""
        return work(p, spec, f, self)

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism; the same where it does not use it."""
        match mechanism:
            case "tensor_memory":
                return MmaConfig.schedule
            case "pairs":
                return str(replace(self, pair=False, tile_m=ROWS, stages=max(1, self.stages * 2 // 3)))
            case "clc":
                return str(replace(self, clc=False))
            case "overlap":
                return str(replace(self, buffers=1))
            case _:
                return str(self)

    @classmethod
    def completed(cls, fields: dict[str, Any], p: Problem, spec: GpuSpec) -> dict[str, Any]:
        """The fields with the k step and as many stages as fit, where they are not said."""
        whole = {"tile_k": step_k(p.dtype)} | fields
        if spec.tcgen05 is not None and "stages" not in whole:
            whole["stages"] = max(1, max_stages(p, cls(**whole), spec))
        return whole


def step_k(dtype: str) -> int:
    """Elements of k in one stage."""
    return STEP_BYTES * 8 // tcgen05.bits_of(dtype)


def kind(dtype: str) -> str:
    """Format of the instructions that multiply operands of a format."""
    return BLOCK_FORMATS[dtype].kind if dtype in BLOCK_FORMATS else dtype


def row(dtype: str) -> str:
    """Shape of the instruction table's row of a format."""
    return f"m{ROWS}n*k{INSTRUCTION_K_BYTES * 8 // tcgen05.bits_of(dtype)}"


def shape(p: Problem, config: Tcgen05Config) -> str:
    """Of one product."""
    return f"m{config.tile_m}n{config.tile_n}k{INSTRUCTION_K_BYTES * 8 // tcgen05.bits_of(p.dtype)}"


def stored_problem(p: Problem, config: Tcgen05Config) -> Problem:
    """The problem as the kernel that multiplies sees it."""
    return splitk.of_pieces(p, config.split, config.tile_k) if config.split > 1 else p


def stage_bytes(p: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one CTA's operands of one k step."""
    return (ROWS + config.columns) * STEP_BYTES + (1 + scale_blocks(config)) * scale_groups(p) * blocks.GROUP_BYTES


def scale_groups(p: Problem) -> int:
    """Groups of four scales of a row in one stage, of which several steps may share one."""
    return ceil_div(step_k(p.dtype), group_k(p.dtype)) if p.block_scales else 0


def group_k(dtype: str) -> int:
    """Elements of k that a group of scales is of."""
    return blocks.GROUP * BLOCK_FORMATS[dtype].block


def scale_blocks(config: Tcgen05Config) -> int:
    """Blocks of 128 rows of scales of the second operand in which a tile may lie."""
    last = ROWS - math.gcd(config.tile_n, ROWS)  # where in a block it begins at most
    return ceil_div(last + config.tile_n, ROWS)


def _scale_columns(p: Problem, config: Tcgen05Config) -> int:
    """Columns of tensor memory for the scales of two steps."""
    return SCALE_STAGES * (1 + scale_blocks(config)) * scale_groups(p) * SCALE_COLUMNS


def scaled_blocks(config: Tcgen05Config) -> int:
    """Blocks of columns of B, with scales of their own, that a tile may lie in."""
    return 2 if SCALE_BLOCK % config.tile_n and not config.swap else 1


def vector_scales(config: Tcgen05Config) -> int:
    """Scales of A that a CTA needs in one k step: of its rows, or where operands are exchanged of its columns."""
    return config.tile_n if config.swap else ROWS


def _promotion_bytes(p: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one k step's fp32 scales."""
    return (vector_scales(config) + scaled_blocks(config)) * DTYPE_BYTES["fp32"] if p.scales else 0


def epilogue_bytes(stored: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one CTA's results on their way, of a problem (`stored_problem`)."""
    staged = stored.c_vector_bytes == 16
    return 2 * ROWS * config.subtile * DTYPE_BYTES[stored.out] if staged else 0


def shared_bytes(p: Problem, config: Tcgen05Config) -> int:
    """Shared memory of one CTA."""
    each = stage_bytes(p, config) + _promotion_bytes(p, config)
    return config.stages * each + epilogue_bytes(stored_problem(p, config), config) + BESIDE_BYTES


def most_columns(p: Problem) -> int:
    """Of a tile; sums of operands with scales by block have to find room in registers."""
    return SCALE_BLOCK if p.scales else MOST_COLUMNS


def most_buffers(p: Problem, config: Tcgen05Config, spec: GpuSpec) -> int:
    """Buffers of sums for which tensor memory has room."""
    assert spec.tcgen05 is not None
    return (spec.tcgen05.columns - _scale_columns(p, config)) // config.tile_n


def max_stages(p: Problem, config: Tcgen05Config, spec: GpuSpec) -> int:
    """Stages that fit beside the results."""
    room = spec.shared.max_per_cta_bytes - epilogue_bytes(stored_problem(p, config), config) - BESIDE_BYTES
    return room // (stage_bytes(p, config) + _promotion_bytes(p, config))


def resident(spec: GpuSpec, config: Tcgen05Config) -> int:
    """Tiles that the chip works on at once: one CTA an SM, pairs within a GPC."""
    return max(1, sum(sms // config.ctas for sms in spec.sms_per_place))


def plan(p: Problem, spec: GpuSpec, config: Tcgen05Config) -> Plan:
    """Tiles, and workers (CTAs or pairs)."""
    x, y = p.sides(config.swap)
    tiles_m, tiles_n = ceil_div(x.rows, config.tile_m), ceil_div(y.rows, config.tile_n)
    tiles, steps = tiles_m * tiles_n * p.batch, ceil_div(p.k, config.tile_k)
    dealt = config.persistent and not config.clc
    shared_tiles, workers = 0, min(tiles, resident(spec, config)) if dealt else tiles
    if config.split > 1:
        shared_tiles, workers = tiles, min(tiles * config.split, tiles * steps)
    return Plan(tiles_m, tiles_n, p.batch, steps, workers, shared_tiles, max(1, config.group), tiles_m < tiles_n)


def code_bytes(config: Tcgen05Config) -> int:
    """Machine code on the path that runs: set-up, roles, an epilogue with its subtiles unrolled."""
    instructions = 249 + 88 + 46 + 40 + 144 + config.tile_n // config.subtile * (20 + config.subtile // 2 * 3)
    return instructions * overhead.INSTRUCTION_BYTES


def work(p: Problem, spec: GpuSpec, f: Figures, c: Tcgen05Config) -> Work:
    """Counts for the estimate, per CTA."""
    x, y = p.sides(c.swap)
    bits, out_width = tcgen05.bits_of(p.dtype), DTYPE_BYTES[p.out]
    steps = ceil_div(p.k, c.tile_k)
    tiles_m, tiles_n = ceil_div(x.rows, c.tile_m), ceil_div(y.rows, c.tile_n)
    tiles = tiles_m * tiles_n * p.batch * c.ctas
    at_once = resident(spec, c) * c.ctas
    product = tcgen05.product(spec, kind(p.dtype), shape(p, c), pair=c.pair)
    busy = int(STEP_BYTES // INSTRUCTION_K_BYTES * product.row.interval_cycles)
    # Rows beyond an operand's end are asked from nowhere.
    requested = (x.rows * tiles_n + y.rows * tiles_m) * p.batch * STEP_BYTES
    loaded = stage_bytes(p, c)
    values = ROWS * c.tile_n
    store_bytes = values * out_width
    if p.scales:
        busy = max(busy, _promotion_cycles(c, spec))
    # A subtile comes from tensor memory while the one before is stored.
    assert spec.tcgen05 is not None
    read = transfer(ROWS * c.subtile * 4, int(spec.tcgen05.read_bytes_per_cycle * MILLI))
    stored = 2 * (f.barrier + f.barrier_per_warp * WARPS) + c.subtile + SUBTILE_CYCLES
    latency = spec.tcgen05.read_latency_cycles
    epilogue_cycles = c.tile_n // c.subtile * (max(read, stored) + latency) + min(read, stored)
    pieces = min(c.split, steps)
    side_m, side_n = round_shape(tiles_m, tiles_n, c.group, min(at_once, tiles) // c.ctas)
    setup = (overhead.WGMMA_BARRIERS.instructions + overhead.WGMMA_CTA_SETUP.instructions) * 2
    columns = ROWS if c.swap else c.subtile
    whole = Work(
        tiles=tiles,
        steps=steps,
        ctas=tiles * pieces,
        resident=at_once,
        persistent=c.persistent,
        busy=busy,
        bubble=max(0, f.mbarrier_wait + 2 * overhead.TCGEN05_PRODUCER_STEP.alu - busy),
        shared=transfer(product.operand_bytes * STEP_BYTES // INSTRUCTION_K_BYTES, f.shared_rate),
        unicast_bytes=loaded,
        received_bytes=loaded,
        requested_bytes=ceil_div(requested, tiles),
        cluster=c.ctas,
        ahead=c.stages,
        latency=f.load_latency + f.tma_latency,
        epilogue=epilogue_cycles,
        overlapped=c.buffers > 1 and not p.scales,
        store_bytes=store_bytes,
        cuts=pieces,
        stream=False,
        partial_bytes=values * 4,
        code_bytes=code_bytes(c),
        setup=setup,
        operand_bytes=p.batch * p.k * (p.m + p.n) * bits // 8 + sum(scales.size_bytes for scales in p.scales or ()),
        round_bytes=(side_m * c.tile_m + side_n * c.tile_n) * p.k * bits // 8,
        result_bytes=p.batch * p.m * p.n * out_width,
        shared_sectors=shared_sectors(p, p.out, columns),
        extra_ps=f.launch_ps if c.split > 1 else 0,
        late=int(product.row.latency_cycles - product.row.interval_cycles),
    )
    return splitk.work(whole, stored_problem(p, c), f, pieces, columns) if c.split > 1 else whole


def _promotion_cycles(c: Tcgen05Config, spec: GpuSpec) -> int:
    """Cycles in which the epilogue's warps add the products of one k step: a lane is a thread of a sub-core."""
    assert spec.tcgen05 is not None
    read = transfer(ROWS * c.tile_n * DTYPE_BYTES["fp32"], int(spec.tcgen05.read_bytes_per_cycle * MILLI))
    return max(read, c.tile_n * (2 if c.swap else 1)) + spec.tcgen05.read_latency_cycles
