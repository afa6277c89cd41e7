"""What cuBLAS of 2025 takes, which is not always the fastest kernel that it has.

A library decides before it runs anything. The times of this one on A100 show by what, for kernels by mma.sync: it
takes the kernel whose operands are on the SMs first. Multiplies, results and epilogues do not count, and a last wave
counts as a whole one.
So it takes 256x128 where two smaller tiles on an SM would hide each other's epilogue: 4096 x 2048 x 32 takes 18.4 us
(19.8 here with 128x256, 12.2 with 128x128), 2048 x 2560 x 1024 takes 61.6 us (61 and 43). Nothing is fitted: the rule
reads tiles, waves, the port of an SM and the latency of a load. Products that were measured with cuBLAS of 2023 do not
follow it: 2944 cubed and 8192 x 1024 x 1024 take what the faster 128x128 takes.

It also cuts k into pieces that are more than one wave, where these fill the last wave better than whole tiles do:
1024 x 2560 x 16384 takes 322 us, which its 80 tiles of 128x256 on 108 SMs could not reach at full rate.

Up to four rows are another matter (`is_for_few_rows`): a kernel of its own, of which each CTA does one step of k.

On Hopper its kernels are others (`nvjet`), and a family of its own is for tf32 (`has_tf32`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from workloads import libraries
from workloads.gpu.gemm import nvjet, splitk
from workloads.gpu.gemm.choose import available, by_time, candidates, choose
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import PS_PER_S, Figures, Work, estimate_ps, transfer
from workloads.gpu.gemm.estimate import figures as machine_figures
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.problem import Problem, ceil_div, problem
from workloads.gpu.gemm.wgmma import CUBLAS, WgmmaConfig
from workloads.gpu.select import Choice
from workloads.ops import Gemm

RUNNERS_UP = 12


def first_named(op: Gemm, spec: GpuSpec, figures: Mapping[str, Any]) -> Choice | None:
    """The first of the kernels that the library names for Hopper which is available here. InputError of the first where
    none is; None for products that wgmma does not read by itself."""
    return _of_nvjet(op, spec, figures, nvjet.TRIED, 1)


def fastest_named(op: Gemm, spec: GpuSpec, figures: Mapping[str, Any]) -> Choice | None:
    """Of all kernels that it names for Hopper the fastest, by estimate."""
    return _of_nvjet(op, spec, libraries.release(CUBLAS).values, figures["named"], figures["named"])


def untuned(op: Gemm, spec: GpuSpec, _: Mapping[str, Any]) -> Choice | None:
    """What the library takes itself."""
    found: Choice = libraries.choose(op, spec, CUBLAS, choose)
    return found


def tf32(op: Gemm, spec: GpuSpec, figures: Mapping[str, Any]) -> Choice | None:
    """The fastest of the kernels for tf32 that the library takes on Hopper."""
    p, f = problem(op), machine_figures(spec)
    found = list(candidates(p, spec, f, several=figures["least_piece"]))
    limits = Tf32Limits.of(figures)
    taken = [(config, work) for config, work in found if has_tf32(p, config, work, limits)]
    return available(p, spec, by_time((estimate_ps(work, f), config) for config, work in taken or found), 1)


def operands_first(op: Gemm, spec: GpuSpec, figures: Mapping[str, Any]) -> Choice | None:
    """The kernel whose operands are on the SMs first; None where other kernels are among those that could run.

    Of equal ones those come first that do more of k in a step: names in public traces have 64x128 and 64x64 with 64x3
    to 64x6, 128x64 with 64x3 and 64x4, seldom with 32x6.
    """
    p, f = problem(op), machine_figures(spec)
    found = list(candidates(p, spec, f, several=figures["least_piece"]))
    if not all(config.asynchronous for config, _ in found):
        return None
    if is_for_few_rows(p, figures):
        return available(p, spec, _of_few_rows(p, f, found, figures), 1)
    order = [
        (loads_ps(p, config, work, f), -min(config.tile_k, p.k), estimate_ps(work, f), str(config), config)
        for config, work in found
        if has(p, config, figures)
    ]
    ranked = sorted(order, key=lambda item: item[:4])
    return available(p, spec, ((time_ps, config) for *_, time_ps, _, config in ranked), 1)


def _of_nvjet(op: Gemm, spec: GpuSpec, figures: Mapping[str, Any], tried: int, most: int) -> Choice | None:
    """The first `most` available ones of the `tried` that the library likes best, the fastest first."""
    p, f = problem(op), machine_figures(spec)
    if not nvjet.reads(p, spec):
        return None
    named = nvjet.configurations(p, spec, nvjet.Weights.of(figures), tried)
    found = available(p, spec, ((0, config) for config in named), most)
    assert found is not None
    timed = by_time((estimate_ps(config.work(p, spec, f), f), config) for config, _ in found.candidates)
    best = [(config, time_ps) for time_ps, config in timed][:RUNNERS_UP]
    return Choice(best[0][0], best)


def _of_few_rows(
    p: Problem, f: Figures, found: Sequence[tuple[Any, Work]], figures: Mapping[str, Any]
) -> Iterator[tuple[int, Any]]:
    """The library's kernel for few rows, with its estimate."""
    for config, work in found:
        if config.split == 1 and (config.tile_m, config.tile_n, config.tile_k) == figures["few_rows_tile"]:
            pieces = pieces_of_a_step(p, figures)
            if pieces > 1:
                config = replace(config, split=pieces, reduce=True)
                work = splitk.work(work, p, f, pieces, config.warp_n)
            yield estimate_ps(work, f), config


def is_for_few_rows(p: Problem, figures: Mapping[str, Any]) -> bool:
    """Whether the library takes its kernel for few rows, by `pieces_of_a_step`."""
    *_, step = figures["few_rows_tile"]
    long = p.k > step and p.n >= figures["few_rows_columns"]
    return p.batch == 1 and p.m <= figures["most_few_rows"] and long and DTYPE_BYTES[p.dtype] == 2


def pieces_of_a_step(p: Problem, figures: Mapping[str, Any]) -> int:
    """Pieces of k where each has one step of the kernel for few rows, or as many as their sums find room."""
    *_, step = figures["few_rows_tile"]
    room = figures["workspace_bytes"] // (p.m * p.n * DTYPE_BYTES[p.acc])
    return int(max(1, min(ceil_div(p.k, step), room)))


class Tf32Limits(NamedTuple):
    """Rows of A and depths by which the library tells products in tf32 apart, see `has_tf32`."""

    few_rows: int
    short_k: int
    very_few_rows: int
    many_rows: int

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Tf32Limits:
        """Those among the figures of a release."""
        return cls(*(figures[f"tf32_{name}"] for name in cls._fields))


def has_tf32(p: Problem, config: GemmConfig, w: Work, limits: Tf32Limits) -> bool:
    """Whether the library takes a kernel for tf32 on Hopper.

    By the names of the kernels that cuBLAS 13 ran for fitted shapes (`measured_kernels.csv`). Times of xla_matmul_table
    are those of the same kernels but for their start, with few exceptions.

    - By mma.sync are products with few rows, cut or whole, and whole ones whose tiles find room all at once with k of
      256, or of 512 and up to 64x128. CUTLASS 2.x has one number (`batch_count`) for matrices of a batch or pieces of
      k, so that these cut no batch.
    - Of 43 batches by wgmma 37 have 64x256. 4 of which that leaves most SMs idle have 64x128. With 64x256, up to 512
      rows have clusters of eight, beyond clusters of two with k of 256 and 512, and with more of three (11) or two
      (6), for which clusters of four stand here.
    - Single matrices have 64x128 and 128x128, and 128x256 where its tiles are one wave or k is long: nothing hides its
      epilogue. One wave of 64x128 has grids of 64x2 or 128x1, half of one 16x4. Those with k up to 512 and
      more than one wave have 64x128 in clusters of eight or more, with many rows 128x128. None of 8 with longer k
      and more than two waves of 64x128 has 64x128.
    """
    return _TF32[config.schedule](p, config, w, limits)


def _tf32_by_mma(p: Problem, config: MmaConfig, w: Work, limits: Tf32Limits) -> bool:
    if p.batch == 1 and min(p.m, p.n) <= limits.very_few_rows:
        return True
    largest = 128 * 256 if p.k <= limits.short_k // 2 else 64 * 128 if p.k <= limits.short_k else 0
    return w.tiles <= w.resident and config.split == 1 and config.tile_m * config.tile_n <= largest


def _tf32_by_wgmma(p: Problem, config: WgmmaConfig, w: Work, limits: Tf32Limits) -> bool:
    if p.batch == 1 and min(p.m, p.n) <= limits.very_few_rows:
        return True
    tile, one_wave = (config.tile_m, config.tile_n), w.tiles <= w.resident
    if p.batch > 1:
        of_256 = ceil_div(p.n, 64) * ceil_div(p.m, 256) * p.batch
        narrow = 3 * of_256 < w.resident
        wide = 8 if p.m <= limits.few_rows else 2 if p.k <= limits.short_k and not narrow else 4
        return tile == (64, 128 if narrow else 256) and config.cluster_m == wide
    if tile == (64, 256):
        return config.split > 1
    if tile == (128, 256):
        return p.k > limits.short_k and (one_wave or p.k >= 8 * limits.short_k)
    if tile == (64, 128) and one_wave:
        return config.cluster_m == (4 if 3 * w.tiles <= 2 * w.resident else 1)
    if tile == (128, 128) and not one_wave:
        return config.cluster_m == 2 and (p.k > limits.short_k or p.m > limits.many_rows)
    if one_wave:
        return True
    if p.k > limits.short_k:
        return tile != (64, 128) or w.tiles <= 2 * w.resident
    return tile == (64, 128) and config.cluster_m == 8 if p.m <= limits.many_rows else config.cluster_m == 2


_TF32: dict[str, Callable[[Problem, Any, Work, Tf32Limits], bool]] = {"mma": _tf32_by_mma, "wgmma": _tf32_by_wgmma}


def has(p: Problem, config: MmaConfig, figures: Mapping[str, Any]) -> bool:
    """Whether the library takes a kernel in this tile and step for the problem; tiles smaller than `least_tile` are for
    products whose k is one step of theirs."""
    width = DTYPE_BYTES[p.dtype]
    if config.tile_m < figures["least_tile"]:
        return p.k <= config.tile_k
    shallow = max(config.tile_m, config.tile_n) < figures["deep_tile"]
    return width != 2 or shallow or config.tile_k * width >= figures["deep_step_bytes"]


def loads_ps(p: Problem, config: MmaConfig, w: Work, f: Figures) -> int:
    """Picoseconds until the busiest SM has its operands, and has stored its sums where a second kernel adds them."""
    ctas = w.ctas if w.ctas <= w.resident else ceil_div(w.ctas, w.resident) * w.resident
    operands = w.unicast_bytes * p.k // (config.tile_k * w.cuts)
    # Copies wait for each other's latency where few are on their way.
    waits = ceil_div(w.steps, w.cuts) * (w.latency // w.ahead)
    waves, last = divmod(ctas, w.resident)
    cycles = 0
    for times, each in ((waves, w.resident // f.sms), (1 if last else 0, ceil_div(last, f.sms))):
        stores = transfer(each * w.partial_bytes, f.write_rate) if w.cuts > 1 else 0
        cycles += times * (max(transfer(each * operands, f.read_rate), waits) + w.latency + stores)
    return cycles * PS_PER_S // f.clock_hz + w.extra_ps
