"""Which kernel a GEMM runs: a candidate set as a vendor library has for the machine, ranked by `estimate`.

Nothing here looks at a shape other than through the counts of the kernels that it would make. Ties are broken by the
order of the configurations' text, so that the choice is the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any, NoReturn

from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from workloads import libraries
from workloads.gpu.configuration import class_of
from workloads.gpu.gemm import marlin, mma, simt, splitk, tcgen05, triton, wgmma
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import Figures, Work, estimate_ps, figures
from workloads.gpu.gemm.fixup import ADDS
from workloads.gpu.gemm.gemv import GemvConfig
from workloads.gpu.gemm.marlin import MarlinConfig
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.problem import Problem, ceil_div, problem
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.tcgen05 import Tcgen05Config
from workloads.gpu.gemm.threadblock import ThreadblockConfig
from workloads.gpu.gemm.triton import TritonConfig
from workloads.gpu.gemm.wgmma import WgmmaConfig
from workloads.gpu.select import Choice
from workloads.ops import Gemm
from workloads.registry import register

Config = Any
CLASSES: tuple[type[GemmConfig], ...] = (
    Tcgen05Config, WgmmaConfig, MmaConfig, MarlinConfig, TritonConfig, SimtConfig, GemvConfig
)  # fmt: skip

SCHEDULES = ("tcgen05", "wgmma", "mma", "simt", "gemv")
"""Kinds that a vendor's library has."""
SCALED = ("vllm", "deepgemm", "deepgemm@2025-02")
"""Libraries with kernels of their own for operands with scales by block."""
KINDS = (*SCHEDULES, "triton", "marlin")
RUNNERS_UP = 12
"""Candidates that are reported, the chosen one included."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
"""Pieces of k. Only as many as find room on the chip at once are tried, but where a library has more."""
LEAST_SPLIT_STEPS = 4
"""K steps that a piece of k has at least."""
LEAST_PIECE = "cublas@10", "least_piece"
"""Figure: least depth of a piece that a second kernel adds."""

WGMMA_SHAPES = (
    # (tile m, ping-pong, columns, narrowest, widest, step of the width)
    (64, False, False, 8, 256, 8), (128, False, False, 16, 256, 8), (256, False, False, 32, 160, 8),
    (64, True, False, 64, 256, 8), (128, True, False, 64, 160, 8),
    (192, False, True, 64, 208, 16), (128, False, True, 272, 320, 16),
)  # fmt: skip
"""Tiles of cuBLAS 12 for Hopper (nvjet): names in public traces go from 64x8 to 256x128, 192x192 and 128x320, in widths
that are multiples of 8. Of the widths that cut a problem into equally many tiles only the narrowest is tried."""
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
REGISTER_OPERAND_LEAST_N = 64
"""Narrowest tile of kernels that bring an operand to registers, whose others are multiples of it, see
`_wgmma_candidates`."""
MOST_STAGES = 12
XMMA_FORMATS = ("tf32",)
"""Formats whose kernels by wgmma are of the family sm90_xmma, not nvjet, on Hopper: cuBLAS 13 names
sm90_xmma_gemm_f32f32_tf32f32_f32_{nn,tn}_n_tilesize64x256x32_warpgroupsize1x1x1_execute_segment_k_off for both orders
of B (`measured_kernels.csv`)."""
XMMA_TILES = ((64, 128), (64, 256), (128, 128), (128, 256))
XMMA_TILES_K_MAJOR = ((64, 64), (128, 64), *XMMA_TILES)
"""Tiles in their names, along n first; narrow ones where k is contiguous in B, too. Up to 64x256 and 128x128 they have
warpgroupsize1x1x1 and 384 threads: a warpgroup has a whole tile, and two take turns. 128x256 has 2x1x1: both share a
tile."""
XMMA_ALONE = 64 * 256
"""Results of the largest tile that one warpgroup has."""
XMMA_LEAST_PIECE = "cublas@13.1", "xmma_least_piece"
"""Figure: least depth of a piece of k of these."""
XMMA_CLUSTERS = (1, 2, 4, 8)
"""CTAs of their clusters, which lie along n and share the rows of A: Nsight Compute names clusters of 1x2, 1x3 and 1x8,
and what the L2 delivers is what such a multicast leaves (30 % of what SMs receive with 64x256 and eight)."""

SM80_TF32_TILES = (
    # (tile m, tile n, tile k, warp m, warp n, stages)
    (64, 64, 32, 32, 32, 6), (64, 64, 16, 32, 32, 6), (64, 128, 32, 32, 64, 6), (64, 128, 16, 32, 64, 6),
    (128, 64, 32, 64, 32, 6), (128, 64, 32, 64, 32, 3), (64, 256, 32, 64, 64, 3), (64, 256, 16, 64, 64, 4),
    (256, 64, 16, 64, 64, 4), (128, 128, 16, 64, 64, 4), (128, 256, 16, 64, 64, 3),
)  # fmt: skip
"""Their kernels by mma.sync that cuBLAS 13 takes on Hopper, cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4: the
first number is along n."""
SM80_SPLITS = tuple(range(1, 65))
"""Pieces of k of these: names come with grids of 2 to 37 pieces, which fill the chip once."""
SM80_LEAST_PIECE = "cublas@13.1", "sm80_least_piece"
"""Figure: least depth of such a piece."""

MMA_TILES = (
    # (tile m, tile n, warp m, warp n, stages of cp.async): CUTLASS's profiled set for sm_80 and sm_75
    (256, 128, 64, 64, 3), (128, 256, 64, 64, 3), (256, 64, 64, 64, 4), (64, 256, 64, 64, 4), (128, 128, 64, 64, 4),
    (128, 64, 64, 32, 6), (64, 128, 32, 64, 6), (64, 64, 32, 32, 8),
)  # fmt: skip
ASYNCHRONOUS_TILES = (
    # (tile m, tile n, bytes of k, warp m, warp n, stages)
    (128, 96, 64, 64, 48, 4), (128, 160, 64, 64, 80, 4), (128, 192, 64, 64, 48, 3), (64, 96, 64, 32, 48, 3),
    (64, 96, 128, 32, 48, 4), (96, 64, 128, 48, 32, 4),
)  # fmt: skip
"""Of the libraries' own kernels of sm_80. Names in public traces have the contiguous dimension first, which is n here:
sm80_xmma_gemm_f16f16_f16f32_f32_..._tilesize96x128x32_stage4_warpsize2x2x1, 160x128x32_stage4_warpsize2x2x1,
192x128x32_stage3_warpsize4x2x1, 96x64x32_stage3, 96x64x64_stage4 and 64x96x64_stage4 (all warpsize2x2x1). None has
128x96 or 128x192. Smaller tiles than 64x64 are SMALL_TILES; kernels for Volta and Turing (..._h884gemm_64x64_...,
..._s1688gemm_..._64x64_sliced1x2_...) have none."""
WITHOUT_ASYNCHRONOUS_TILES = ("bf16",)
"""Formats whose kernels public traces of A100 show in tiles of MMA_TILES alone: ampere_bf16_s16816gemm_bf16_64x64,
64x128, 128x64, 128x128, 128x256, 256x128_ldg8_f2f_stages_64x3_tn and cutlass_80_tensorop_bf16_..._256x64_32x4."""
SMALL_TILES = ((16, 16, 16, 16), (32, 32, 16, 16))
"""Tile and warp tile of the libraries' kernels for few rows: cutlass_80_wmma_tensorop_..._16x16_128x2_tn and
32x32_128x2."""
FP64_TILES = (
    (128, 128, 32, 64), (256, 64, 64, 32), (64, 256, 32, 64), (128, 64, 64, 32), (64, 128, 32, 64), (64, 64, 32, 32),
    (64, 32, 32, 32), (32, 64, 32, 32), (32, 32, 16, 32),
)  # fmt: skip
"""CUTLASS's profiled set of d884gemm (sm_80), three stages of 16 values of k each."""
FP64_STAGES = 3
SMALL_STAGES = 2
SMALL_STEP_BYTES = 256

SIMT_TILES = (
    # (tile m, tile n, warp m, warp n): 8x8 results a thread where the tile has room for them
    (128, 128, 32, 64), (128, 64, 32, 64), (64, 128, 32, 64), (64, 64, 32, 32), (128, 32, 32, 32), (32, 128, 32, 32),
    (64, 32, 16, 32), (32, 64, 16, 32), (32, 32, 16, 16),
)  # fmt: skip
SGEMM_TILES = tuple(tile for tile in SIMT_TILES if tile[:2] not in ((128, 64), (64, 32), (32, 32)))
"""Those of products in fp32: names in public profiles have the contiguous dimension first, which is n here. They are
volta_sgemm_128x128, 128x64, 64x64, 128x32, 32x128, 64x32_sliced1x4 and the same of ampere. 32x32_sliced1x4, whose warps
share k, is not here, and nothing in its tile: its warps would do 16x16 each."""
SGEMM_SPLITS = (*range(1, 13), 16, 24, 32, 64, 128)
"""Pieces of k of products in fp32: 4096 x 64 x 4096 takes 174 us on V100, which five pieces of 32 tiles (twice its 80
SMs) reach, and four or six do not."""

GEMV_SHAPES = ((4, 4, 4), (8, 4, 4), (4, 2, 4), (4, 8, 2), (8, 1, 8))


@register("gemm", "gpu", "auto")
def choose(op: Gemm, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel for `op` on `spec`.

    schedule: `auto`, the name of one kind (`wgmma`, `mma`, `simt`, `gemv`; `triton`; `marlin`, that for quantised
    weights), or one configuration as it prints, such as `wgmma 128x256x64 cluster 2x1 stages 4`. Raises InputError
    where the machine or the problem cannot take it.
    """
    p = problem(op)
    f = figures(spec)
    words = schedule.split()
    if p.block_scales and words[0] not in ("auto", Tcgen05Config.schedule):
        raise InputError(f"schedule={schedule}: dtype={p.dtype} is multiplied by tcgen05 alone; nearest: auto")
    if len(words) > 1:
        config = parse(schedule, p, spec)
        config.check(p, spec)
        return Choice(config, [(config, estimate_ps(config.work(p, spec, f), f))])
    names = SCHEDULES if schedule == "auto" else (schedule,)
    if schedule != "auto" and schedule not in KINDS:
        known = (*KINDS, *libraries.words("gemm"))
        near = hint(schedule, known)
        raise InputError(f"schedule={schedule}: one of auto, {', '.join(known)}, or a whole configuration{near}")
    if p.scales and schedule in ("auto", "wgmma") and "tcgen05" not in _units(spec, p.dtype):
        found = by_time(_scaled(op, spec))
    else:
        found = by_time((estimate_ps(work, f), config) for config, work in candidates(p, spec, f, names))
    return available(p, spec, found) or _none(p, spec, schedule)


def available(p: Problem, spec: GpuSpec, found: Iterable[tuple[int, Config]], most: int = RUNNERS_UP) -> Choice | None:
    """The first configurations, with their times, that machine and problem can take; None without any. InputError, the
    first one's, where they can take none."""
    best: list[tuple[Config, int]] = []
    refused: InputError | None = None
    for time_ps, config in found:
        try:
            config.check(p, spec)
        except InputError as error:
            refused = refused or error
            continue
        best.append((config, time_ps))
        if len(best) == most:
            break
    if best:
        return Choice(best[0][0], best)
    if refused:
        raise refused
    return None


def parse(text: str, p: Problem, spec: GpuSpec) -> Any:
    """The configuration that `text` describes; what it leaves out is filled in for `p`. InputError for a wrong word."""
    return class_of(text, CLASSES).of(text, p, spec)


def by_time(found: Iterable[tuple[int, Config]]) -> Iterator[tuple[int, Config]]:
    """Configurations with their times, the fastest first; of equal ones by their text."""
    ordered = sorted(found, key=itemgetter(0))
    for _, equal in itertools.groupby(ordered, key=itemgetter(0)):
        yield from sorted(equal, key=lambda item: str(item[1]))


def _none(p: Problem, spec: GpuSpec, schedule: str) -> NoReturn:
    """Raises the InputError that says why there is no kernel."""
    if p.scales:
        raise InputError(
            f"gemm scale=block: {spec.name} needs wgmma or tensor memory, and k contiguous in A and B; "
            "nearest: tb=T on h100-sxm"
        )
    if p.group_scales is not None:
        raise InputError(
            f"gemm weights={p.op.weights}: {spec.name} needs cp.async, tensor cores for {p.dtype} and rows of A at "
            "multiples of 4 B; marlin runs from Ampere on"
        )
    if schedule == "marlin":
        raise InputError("schedule=marlin: its weights have 4 or 8 bits; weights=int4 or int8, or schedule=mma")
    formats, units = [d for d in DTYPE_BYTES if _units(spec, d)], _units(spec, p.dtype)
    if "wgmma" in units and (schedule == "wgmma" or units == ["wgmma"]):
        WgmmaConfig(64, 64, wgmma.STEP_BYTES // DTYPE_BYTES[p.dtype], stages=2).check(p, spec)
    if schedule == "gemv" and units:
        GemvConfig().check(p, spec)
    if p.block_scales:
        raise InputError(f"gemm dtype={p.dtype}: {spec.name} has no tensor memory; b200 multiplies it")
    if schedule == "auto" or p.dtype not in formats:
        raise InputError(f"gemm dtype={p.dtype}: {spec.name} multiplies {', '.join(formats)}")
    raise InputError(f"schedule={schedule}: {spec.name} runs {p.op} with {', '.join(units)}")


def _units(spec: GpuSpec, dtype: str) -> list[str]:
    """Schedules that a machine has for a format."""
    units = ["tcgen05"] if spec.tcgen05 and spec.has_instruction("tcgen05_mma", dtype, tcgen05.row(dtype)) else []
    if dtype in BLOCK_FORMATS:
        return units
    units += ["wgmma"] if wgmma.Rates.of(spec, dtype) else []
    units += ["mma"] if any(spec.has_instruction("mma", dtype, s) for s in mma.SHAPES.get(dtype, ())) else []
    units += ["simt"] if any(simt.available(spec, d, acc) for d, acc in simt.OPCODES if d == dtype) else []
    return units


def candidates(
    p: Problem, spec: GpuSpec, f: Figures, names: tuple[str, ...] = SCHEDULES, several: int = 0
) -> Iterator[tuple[Config, Work]]:
    """Configurations of the named kinds that fit, with their counts. several: where it is not 0, pieces of k by
    mma.sync may be several waves, and each has this depth at least."""
    if p.block_scales:
        yield from _tcgen05_candidates(p, spec, f)
        return
    if p.group_scales is not None or names == ("marlin",):
        yield from _marlin_candidates(p, spec, f, names)
        return
    specialised = on_tensor_cores = False
    if "tcgen05" in names:
        for found in _tcgen05_candidates(p, spec, f):
            specialised = on_tensor_cores = True
            yield found
    if "wgmma" in names:
        for found in _wgmma_candidates(p, spec, f):
            specialised |= p.dtype not in XMMA_FORMATS and not wgmma.through_registers(p, found[0])
            on_tensor_cores = True
            yield found
    # Traces of cuBLAS 12 on Hopper show no mma.sync where TMA can feed the tensor cores without registers (nvjet).
    if "mma" in names and "mma" in _units(spec, p.dtype) and not specialised:
        for found in _mma_candidates(p, spec, f, several):
            on_tensor_cores = True
            yield found
    # Libraries keep to the tensor cores where they take the format, also for one row: nine and two rows with m = 1 of
    # a serving framework on A100 and H100, fitted half, take what these kernels take, not what a dot product does.
    tensor = len(names) > 1 and {"tcgen05", "wgmma", "mma"}.intersection(_units(spec, p.dtype))
    if "simt" in names and not tensor and (p.dtype, p.acc) in simt.OPCODES:
        yield from _simt_candidates(p, spec, f)
    if "triton" in names and wgmma.Rates.of(spec, p.dtype) and DTYPE_BYTES[p.dtype] == 1:
        yield from _triton_candidates(p, spec, f)
    elif "triton" in names and "mma" not in _units(spec, p.dtype):
        yield from _vector_candidates(p, spec, f)
    elif "triton" in names:
        for config in triton.configs():
            work = config.work(p, spec, f)
            if work.resident:
                yield config, work
    alone = names == ("gemv",) or not on_tensor_cores
    if "gemv" in names and alone and min(p.m, p.n) == 1 and _units(spec, p.dtype) and p.acc in ADDS:
        for warps, rows, unroll in GEMV_SHAPES:
            vector = GemvConfig(warps, rows, unroll)
            work = vector.work(p, spec, f)
            if work.resident:
                yield vector, work


def _splits(counts: Sequence[int], work: Work, most: int, waves: bool) -> Iterator[int]:
    """Those of the `counts` of pieces that leave each piece of k enough steps, at most `most`: those that find room on
    the chip at once or, if `waves`, also more."""
    for split in counts[1:]:
        together = waves or work.ctas * split <= work.resident
        if split > most or not together or work.steps // split < LEAST_SPLIT_STEPS:
            return
        yield split


def _with_cuts(
    p: Problem,
    f: Figures,
    config: ThreadblockConfig,
    work: Work,
    stream_k: bool,
    several: int = 0,
    counts: Sequence[int] = SPLITS,
) -> Iterator[tuple[ThreadblockConfig, Work]]:
    """A configuration, its splits and, where the last wave is partial, its stream-K variant.

    Stream-K (Osama et al. 2023) is for machines with TMA, whose kernels here add the pieces themselves; the libraries
    of those before it only split, for which public traces name a second kernel. several: as in `candidates`.
    """
    yield config, work
    if p.acc not in ADDS:
        return
    older = f.tma_latency > 0 and not stream_k and p.dtype in XMMA_FORMATS
    least = libraries.figure(*SM80_LEAST_PIECE) if older else several or libraries.figure(*LEAST_PIECE)
    counts = SM80_SPLITS if older else counts
    for split in _splits(counts, work, p.k if stream_k else p.k // least, several > 0):
        cut = replace(config, split=split)
        if stream_k:
            yield cut, work._replace(cuts=split, ctas=work.ctas * split)
        else:
            yield replace(cut, reduce=True), splitk.work(work, p, f, split, config.warp_n)
    if stream_k and work.ctas > work.resident and work.ctas % work.resident:
        yield replace(config, stream_k=True), work._replace(stream=True)


def _wgmma_tiles(rows_m: int, rows_n: int) -> Iterator[tuple[int, int, bool, bool]]:
    """Tiles (m, n, ping-pong, columns) that are not wider than another one which cuts the problem alike."""
    for tile_m, pingpong, columns, least, most, step in WGMMA_SHAPES:
        if tile_m > wgmma.BLOCK_ROWS and tile_m >= 2 * rows_m:
            continue
        widths: dict[int, int] = {}
        for tile_n in range(least, most + 1, step):
            widths.setdefault(ceil_div(rows_n, tile_n), tile_n)
        for tile_n in widths.values():
            yield tile_m, tile_n, pingpong, columns


def _tcgen05_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    """Kernels on tensor memory: of the widths that cut a problem into equally many tiles, the narrowest."""
    if "tcgen05" not in _units(spec, p.dtype) or not (p.a.tma and p.b.tma):
        return
    tile_k = tcgen05.step_k(p.dtype)
    for swap, pair in itertools.product((False, True), (True, False)):
        rows_m, rows_n = (p.n, p.m) if swap else (p.m, p.n)
        tile_m, step = tcgen05.ROWS * (1 + pair), tcgen05.COLUMNS_STEP * (1 + pair)
        if pair and 2 * rows_m <= tile_m:
            continue
        widths: dict[int, int] = {}
        for tile_n in range(step, tcgen05.most_columns(p) + 1, step):
            widths.setdefault(ceil_div(rows_n, tile_n), tile_n)
        for tile_n in widths.values():
            config = Tcgen05Config(tile_m, tile_n, tile_k, pair=pair, swap=swap)
            config = replace(config, buffers=min(4 if p.scales else 2, tcgen05.most_buffers(p, config, spec)))
            config = replace(config, stages=min(MOST_STAGES, tcgen05.max_stages(p, config, spec)))
            work = config.work(p, spec, f)
            yield config, work
            if p.acc in ADDS:
                for split in _splits(SPLITS, work, p.k, False):
                    cut = replace(config, split=split)
                    cut = replace(cut, stages=min(config.stages, tcgen05.max_stages(p, cut, spec)))
                    yield cut, cut.work(p, spec, f)


def _wgmma_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    """Kernels by wgmma."""
    rates = wgmma.Rates.of(spec, p.dtype)
    if rates is None or not (p.a.tma and p.b.tma):
        return
    if p.dtype in XMMA_FORMATS:
        yield from _xmma_candidates(p, spec, f, rates)
        return
    width = DTYPE_BYTES[p.dtype]
    tile_k = wgmma.STEP_BYTES // width
    for swap in (False, True):
        if width != 2 and not (p.a if swap else p.b).k_major:
            continue
        rows_m, rows_n = (p.n, p.m) if swap else (p.m, p.n)
        for tile_m, tile_n, pingpong, columns in _wgmma_tiles(rows_m, rows_n):
            config = WgmmaConfig(tile_m, tile_n, tile_k, pingpong=pingpong, columns=columns, swap=swap)
            plain = wgmma.through_registers(p, config)
            stages = min(MOST_STAGES, wgmma.max_stages(p, config, spec))
            # Kernels that bring an operand to registers have no narrow tiles.
            if stages < 2 or (plain and (tile_n % REGISTER_OPERAND_LEAST_N or columns)):
                continue
            for cluster_m, cluster_n in CLUSTERS[:1] if plain else CLUSTERS:
                # A cluster wider than the problem would only multiply padding.
                if (cluster_m > 1 and tile_m * cluster_m >= 2 * rows_m) or (
                    cluster_n > 1 and tile_n * cluster_n >= 2 * rows_n
                ):
                    continue
                if tile_n % (8 * cluster_m):
                    continue
                clustered = replace(config, cluster_m=cluster_m, cluster_n=cluster_n, stages=stages)
                work = wgmma.work(p, f, clustered, rates, wgmma.ctas_per_sm(p, clustered, spec))
                # No GPC has as many SMs as the cluster has CTAs; or the second consumer never has a tile, where kernels
                # exist in which it has a part of one.
                if not work.resident or (pingpong and work.tiles <= work.resident):
                    continue
                yield clustered, work
                if not plain:
                    yield from _wgmma_cuts(p, spec, f, clustered, rates, work)


def _xmma_candidates(p: Problem, spec: GpuSpec, f: Figures, rates: wgmma.Rates) -> Iterator[tuple[Config, Work]]:
    """Kernels of the family sm90_xmma. Their first operand is B, which may come through registers, so that A needs k
    contiguous; where it has not, the operands change places."""
    swap = p.a.k_major
    if not (swap or p.b.k_major):
        return
    tile_k = wgmma.STEP_BYTES // DTYPE_BYTES[p.dtype]
    for tile_m, tile_n in XMMA_TILES_K_MAJOR if p.a.k_major and p.b.k_major else XMMA_TILES:
        alone = tile_m * tile_n <= XMMA_ALONE
        config = WgmmaConfig(tile_m, tile_n, tile_k, pingpong=alone, swap=swap)
        config = replace(config, stages=min(MOST_STAGES, wgmma.max_stages(p, config, spec)))
        for cluster in XMMA_CLUSTERS:
            if cluster > 1 and tile_m * cluster >= 2 * (p.n if swap else p.m):
                continue
            clustered = replace(config, cluster_m=cluster)
            work = wgmma.work(p, f, clustered, rates)
            if work.resident:
                yield clustered, work
                yield from _xmma_cuts(p, clustered, work)


def _xmma_cuts(p: Problem, config: WgmmaConfig, work: Work) -> Iterator[tuple[Config, Work]]:
    """Pieces of k of one matrix, which the kernel adds itself (`segment_k_on`)."""
    if p.acc in ADDS and p.batch == 1:
        for split in _splits(SPLITS, work, p.k // libraries.figure(*XMMA_LEAST_PIECE), False):
            cut = replace(config, split=split)
            yield cut, work._replace(cuts=split, ctas=work.ctas * split)


def _wgmma_cuts(
    p: Problem, spec: GpuSpec, f: Figures, config: WgmmaConfig, rates: wgmma.Rates, work: Work
) -> Iterator[tuple[Config, Work]]:
    """A configuration's pieces of k, which a second kernel adds: traces of cuBLAS 12 and 13 on Hopper name kernels
    nvjet_.._splitK and cublasLt::splitKreduce_kernel, and none by stream-K."""
    if p.acc not in ADDS:
        return
    for split in _splits(SPLITS, work, p.k, False):
        cut = replace(config, split=split, reduce=True)
        cut = replace(cut, stages=min(config.stages, wgmma.max_stages(p, cut, spec)))
        if cut.stages >= 2:
            yield cut, wgmma.work(p, f, cut, rates)


def _scaled(op: Gemm, spec: GpuSpec) -> Iterator[tuple[int, Config]]:
    """What libraries take for operands with scales by block, with their times."""
    found: dict[Config, int] = {}
    for name in SCALED:
        with suppress(InputError):
            found |= libraries.choose(op, spec, name, choose).candidates
    return ((time_ps, config) for config, time_ps in found.items())


def _mma_candidates(p: Problem, spec: GpuSpec, f: Figures, several: int) -> Iterator[tuple[Config, Work]]:
    asynchronous = spec.cp_async is not None and min(p.a.vector_bytes, p.b.vector_bytes) >= 4
    copy = "cp.async" if asynchronous else "ldg"
    core = mma.TensorCore(spec, p.dtype, copy)
    older = spec.tma is not None and p.dtype in XMMA_FORMATS
    for config in _sm80_tiles() if older else _mma_tiles(p.dtype, copy):
        resident = config.resident(p, spec, core)
        if resident:
            work, streams = config.counts(p, f, core, resident), spec.tma is not None and not older
            yield from _with_cuts(p, f, config, work, streams, several if asynchronous and not streams else 0)


def _sm80_tiles() -> Iterator[MmaConfig]:
    """Tiles for tf32 on Hopper."""
    for tile_m, tile_n, tile_k, warp_m, warp_n, stages in SM80_TF32_TILES:
        yield MmaConfig(tile_m, tile_n, tile_k, warp_m, warp_n, stages, "cp.async")


def _triton_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    """The tutorial's tiles for 8-bit operands on Hopper, where Triton multiplies by wgmma what all warps copy."""
    rates = wgmma.Rates.of(spec, p.dtype)
    assert rates is not None
    for tile_m, tile_n, stages in triton.HOPPER_TILES:
        step = wgmma.STEP_BYTES // DTYPE_BYTES[p.dtype]
        config = WgmmaConfig(
            tile_m, tile_n, step, stages=stages, persistent=False, tma=False, specialized=False
        )  # fmt: skip
        work = wgmma.work(p, f, config, rates)
        if p.a.k_major and p.b.k_major and work.resident:
            yield config, work


def _vector_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    """Triton's products that no tensor core takes (fp32 without tf32): multiply-adds, the whole sum, one tile a CTA."""
    if not simt.available(spec, p.dtype, p.acc):
        return
    for tile_m, tile_n, warp_m, warp_n in SIMT_TILES:
        config = SimtConfig(tile_m, tile_n, simt.STEP_BYTES // DTYPE_BYTES[p.dtype], warp_m, warp_n)
        work = config.work(p, spec, f)
        if work.resident:
            yield config, work


def _marlin_candidates(p: Problem, spec: GpuSpec, f: Figures, names: tuple[str, ...]) -> Iterator[tuple[Config, Work]]:
    """Tiles for quantised weights, whole and cut."""
    asynchronous = spec.cp_async is not None and p.a.vector_bytes >= 4
    if p.group_scales is None or not asynchronous or not {"mma", "marlin"}.intersection(names):
        return
    if "mma" not in _units(spec, p.dtype):
        return
    for config in marlin.configs():
        work = config.work(p, spec, f)
        if work.resident:
            yield from _with_cuts(p, f, config, work, True)


def _mma_tiles(dtype: str, copy: str) -> Iterator[MmaConfig]:
    """Tiles for operands of a format that are copied so."""
    width = DTYPE_BYTES[dtype]
    if copy == "ldg":
        for tile_m, tile_n, warp_m, warp_n, _ in MMA_TILES:
            yield MmaConfig(tile_m, tile_n, mma.STEP_BYTES // width, warp_m, warp_n, 2, copy)
        return
    if dtype == "fp64":
        for tile_m, tile_n, warp_m, warp_n in FP64_TILES:
            yield MmaConfig(tile_m, tile_n, 2 * mma.STEP_BYTES // width, warp_m, warp_n, FP64_STAGES, copy)
        return
    if dtype not in WITHOUT_ASYNCHRONOUS_TILES:
        for tile_m, tile_n, step_bytes, warp_m, warp_n, stages in ASYNCHRONOUS_TILES:
            yield MmaConfig(tile_m, tile_n, step_bytes // width, warp_m, warp_n, stages, copy)
    for tile_m, tile_n, warp_m, warp_n, stages in MMA_TILES:
        for steps in (1, 2):
            tile_k = steps * mma.STEP_BYTES // width
            yield MmaConfig(tile_m, tile_n, tile_k, warp_m, warp_n, max(3, stages // steps), copy)
    for tile_m, tile_n, warp_m, warp_n in SMALL_TILES:
        yield MmaConfig(tile_m, tile_n, SMALL_STEP_BYTES // width, warp_m, warp_n, SMALL_STAGES, copy)


def _simt_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    fp32 = simt.multiplied(p.dtype, p.acc) == "fp32"
    for tile_m, tile_n, warp_m, warp_n in SGEMM_TILES if fp32 else SIMT_TILES:
        config = SimtConfig(tile_m, tile_n, simt.STEP_BYTES // DTYPE_BYTES[p.dtype], warp_m, warp_n)
        work = config.work(p, spec, f)
        if work.resident:
            yield from _with_cuts(p, f, config, work, spec.tma is not None, counts=SGEMM_SPLITS if fp32 else SPLITS)
