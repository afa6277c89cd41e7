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
from workloads.gpu.select import Choice, unknown_schedule
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
"""Pieces of k that are tried: only as many as find room on the chip at once, but where a library has more."""
LEAST_SPLIT_STEPS = 4
"""K steps that a piece of k has at least."""
HOPPER, OLDER, CUTLASS = "cublas@13.1", "cublas@10", "cutlass@2"
"""Releases whose tables and figures say which kernels there are (`workloads/libraries`)."""
WHOLE_SUMS = ("blockfp8",)
"""Formats whose kernels on tensor memory never cut k: DeepGEMM's sm100_fp8_gemm_1d1d has no pieces."""

REGISTER_OPERAND_LEAST_N = 64
"""Narrowest tile of kernels that bring an operand to registers, whose others are multiples of it, see
`_wgmma_candidates`."""
MOST_STAGES = 12
MOST_CLUSTER = 4
"""CTAs of the largest cluster that is tried."""
XMMA_FORMATS = ("tf32",)
"""Formats whose kernels by wgmma are of the family sm90_xmma, not nvjet, on Hopper: cuBLAS 13 names
sm90_xmma_gemm_f32f32_tf32f32_f32_{nn,tn}_n_tilesize64x256x32_warpgroupsize1x1x1_execute_segment_k_off for both orders
of B (`measured_kernels.csv`)."""
WITHOUT_SM80_TILES = ("bf16",)
"""Formats that have none of the tiles beside CUTLASS's."""
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
        raise unknown_schedule(op, spec, schedule, KINDS)
    if p.scales and schedule in ("auto", "wgmma") and "tcgen05" not in _units(spec, p.dtype):
        found = by_time(_scaled(op, spec))
    else:
        found = by_time((estimate_ps(work, f), config) for config, work in candidates(p, spec, f, names))
    return available(p, spec, found) or _none(p, spec, schedule)


def extent(op: Gemm, spec: GpuSpec, config: Any) -> tuple[int, float]:
    """What a configuration multiplies, where tiles are cut off at edges, too, and how many rounds of tiles it has; 0
    where it has no tiles."""
    whole = config.work(problem(op), spec, figures(spec))
    values = whole.partial_bytes // DTYPE_BYTES["fp32"]
    if not values:
        return 0, 0.0
    if whole.stream:
        rounds = 1.0
    else:
        rounds = whole.tiles / min(whole.ctas, whole.resident) if whole.persistent else whole.ctas / whole.resident
    return whole.tiles * values * whole.steps * config.tile_k, rounds


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
    units = (
        ["tcgen05"]
        if spec.tcgen05 and spec.has_instruction("tcgen05_mma", tcgen05.kind(dtype), tcgen05.row(dtype))
        else []
    )
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
    if older:
        least = libraries.figure(HOPPER, "sm80_least_piece")
        counts = range(1, libraries.figure(HOPPER, "sm80_most_pieces") + 1)
    else:
        least = several or libraries.figure(OLDER, "least_piece")
    for split in _splits(counts, work, p.k if stream_k else p.k // least, several > 0):
        cut = replace(config, split=split)
        if stream_k:
            yield cut, work._replace(cuts=split, ctas=work.ctas * split)
        else:
            yield replace(cut, reduce=True), splitk.work(work, p, f, split, config.warp_n)
    if stream_k and work.ctas > work.resident and work.ctas % work.resident:
        yield replace(config, stream_k=True), work._replace(stream=True)


def _wgmma_tiles(rows_m: int, rows_n: int) -> Iterator[tuple[int, int, bool, bool]]:
    """Tiles (m, n, ping-pong, columns) of cuBLAS for Hopper: of the widths that cut a problem into equally many tiles
    only the narrowest."""
    for tile_m, pingpong, columns, least, most, step in libraries.rows(HOPPER, "wgmma_tiles"):
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
            if p.acc in ADDS and p.dtype not in WHOLE_SUMS:
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
    clusters = [c for c in libraries.rows(HOPPER, "nvjet_clusters") if c.along_n * c.along_m <= MOST_CLUSTER]
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
            for cluster_m, cluster_n in clusters[:1] if plain else clusters:
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
    for tile_m, tile_n, k_contiguous in libraries.rows(HOPPER, "xmma_tiles"):
        if k_contiguous and not (p.a.k_major and p.b.k_major):
            continue
        alone = tile_m * tile_n <= libraries.figure(HOPPER, "xmma_alone")
        config = WgmmaConfig(tile_m, tile_n, tile_k, pingpong=alone, swap=swap)
        config = replace(config, stages=min(MOST_STAGES, wgmma.max_stages(p, config, spec)))
        for cluster in libraries.figure(HOPPER, "xmma_clusters"):
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
        for split in _splits(SPLITS, work, p.k // libraries.figure(HOPPER, "xmma_least_piece"), False):
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
    for tile in libraries.rows(HOPPER, "sm80_tf32_tiles"):
        yield MmaConfig(**tile._asdict(), copy="cp.async")


def _triton_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    """The tutorial's tiles for 8-bit operands on Hopper, where Triton multiplies by wgmma what all warps copy."""
    rates = wgmma.Rates.of(spec, p.dtype)
    assert rates is not None
    for tile_m, tile_n, stages in libraries.rows(triton.TUTORIAL, "hopper_tiles"):
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
    for tile_m, tile_n, warp_m, warp_n, _ in simt_tiles():
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


def cutlass_tiles() -> tuple[Any, ...]:
    """CUTLASS's tiles, with the stages of cp.async."""
    return libraries.rows(CUTLASS, "tiles")


def simt_tiles() -> tuple[Any, ...]:
    """Tiles on the vector pipes."""
    return libraries.rows(OLDER, "simt_tiles")


def _mma_tiles(dtype: str, copy: str) -> Iterator[MmaConfig]:
    """Tiles for operands of a format that are copied so."""
    width = DTYPE_BYTES[dtype]
    if copy == "ldg":
        for tile_m, tile_n, warp_m, warp_n, _ in cutlass_tiles():
            yield MmaConfig(tile_m, tile_n, mma.STEP_BYTES // width, warp_m, warp_n, 2, copy)
        return
    if dtype == "fp64":
        for tile_m, tile_n, warp_m, warp_n, stages in libraries.rows(CUTLASS, "fp64_tiles"):
            yield MmaConfig(tile_m, tile_n, 2 * mma.STEP_BYTES // width, warp_m, warp_n, stages, copy)
        return
    own = libraries.rows(HOPPER, "sm80_tiles") if dtype not in WITHOUT_SM80_TILES else ()
    for tile_m, tile_n, step_bytes, warp_m, warp_n, stages in (*own, *libraries.rows(HOPPER, "few_rows_tiles")):
        yield MmaConfig(tile_m, tile_n, step_bytes // width, warp_m, warp_n, stages, copy)
    for tile_m, tile_n, warp_m, warp_n, stages in cutlass_tiles():
        for steps in (1, 2):
            tile_k = steps * mma.STEP_BYTES // width
            yield MmaConfig(tile_m, tile_n, tile_k, warp_m, warp_n, max(3, stages // steps), copy)


def _simt_candidates(p: Problem, spec: GpuSpec, f: Figures) -> Iterator[tuple[Config, Work]]:
    fp32 = simt.multiplied(p.dtype, p.acc) == "fp32"
    counts = libraries.figure(OLDER, "sgemm_pieces") if fp32 else SPLITS
    for tile_m, tile_n, warp_m, warp_n, sgemm in simt_tiles():
        if fp32 and not sgemm:
            continue
        config = SimtConfig(tile_m, tile_n, simt.STEP_BYTES // DTYPE_BYTES[p.dtype], warp_m, warp_n)
        work = config.work(p, spec, f)
        if work.resident:
            yield from _with_cuts(p, f, config, work, spec.tma is not None, counts=counts)
