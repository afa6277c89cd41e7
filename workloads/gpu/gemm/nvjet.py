"""The kernels of cuBLAS for Hopper in which wgmma reads both operands by itself (nvjet), and which of them it takes.

Their names say what they are: nvjet_sm90_tst_128x80_64x8_4x2_h_bz_splitK_TNT has tiles of 128 along n and 80 along m,
eight stages of 64 values of k, clusters of 4 along n and 2 along m, CTAs of one wave along m first (h), pieces of k,
and B as wgmma's first operand (TNT; TNN: A). Names and `cublasLtMatmulAlgoGetHeuristic` agree in all of 1,771 products.

What the library takes was read from its answers (`ask_cublas.py`, `cublas_choices.csv`): it has no table, but
an estimate. That is the sum of what all SMs together do, as if tiles filled them evenly, and of what one tile takes in
each wave, of which the last counts as a whole one. Rows of operands, multiplies and results count; what the L2 and
memory give does not. docs/accuracy/gemm-hopper.md says how often this is the library's own choice.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from workloads import libraries
from workloads.gpu.gemm import wgmma
from workloads.gpu.gemm.fixup import ADDS
from workloads.gpu.gemm.problem import Problem, ceil_div
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, CUBLAS, STEP_BYTES, WgmmaConfig

TRIED = 12
"""Of those that the library likes best, until one is available here."""


def figure(name: str) -> Any:
    """A figure of these kernels."""
    return libraries.figure(CUBLAS, f"nvjet_{name}")


def clusters() -> tuple[Any, ...]:
    """Their clusters, along n and m."""
    return libraries.rows(CUBLAS, "nvjet_clusters")


class Weights(NamedTuple):
    """What the estimate weighs, where a row of an operand in a step counts 1; and steps that each piece of k exceeds.

    Over all SMs: a multiply of one step, a result. In each wave: the same multiply, a row along the longer side in a
    step, a result, the wave. A cut, and a result of one piece.
    """

    piece_steps: int
    spread_multiply: float
    spread_result: float
    tile_multiply: float
    tile_side: float
    tile_result: float
    wave: float
    cut: float
    piece_result: float

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Weights:
        """Those among the figures of a release."""
        return cls(*(figures[name] for name in cls._fields))


class Tile(NamedTuple):
    """rows: along the first operand of wgmma. swap: this is B. shared: two warpgroups have a part each."""

    rows: int
    width: int
    swap: bool
    shared: bool

    @property
    def by_columns(self) -> bool:
        """Whether warpgroups that share it have columns, since its rows do not halve or are too wide."""
        return self.rows // BLOCK_ROWS % 2 == 1 or self.width > figure("widest")

    @property
    def sides(self) -> tuple[int, int]:
        """Along n and m."""
        return (self.rows, self.width) if self.swap else (self.width, self.rows)


class Kernel(NamedTuple):
    """A tile with its cluster along n and m, and the pieces of k."""

    tile: Tile
    cluster: tuple[int, int]
    split: int


def reads(p: Problem, spec: GpuSpec) -> bool:
    """Whether the library has kernels in which wgmma reads both operands by itself."""
    known = wgmma.Rates.of(spec, p.dtype) is not None and p.dtype != "tf32"
    plain = not p.scales and p.group_scales is None and not p.op.adds
    return known and plain and p.a.tma and p.b.tma and (DTYPE_BYTES[p.dtype] == 2 or (p.a.k_major and p.b.k_major))


@functools.cache
def tiles(promoted: bool = False) -> tuple[Tile, ...]:
    """Its tiles: answers have all widths in steps of 8. promoted: sums in fp8, whose products take as many registers
    again.

    Where both sides are whole rows of wgmma, these lie along the longer one.
    """
    own, shared = (figure(name) // (1 + promoted) for name in ("own", "shared"))
    widest = figure("widest")
    found = []
    for rows in figure("rows"):
        blocks = rows // BLOCK_ROWS
        for width in range(8, 2 * widest + 1, 8):
            alone = blocks * width <= 2 * own and width <= widest
            for swap in (True, False):
                tile = Tile(rows, width, swap, not alone)
                if not alone and (blocks * width > 4 * shared or (width % 16 and tile.by_columns)):
                    continue
                turned = width > rows or (width == rows and swap == (rows == 192))
                if width % BLOCK_ROWS == 0 and turned and (alone or rows != BLOCK_ROWS):
                    continue
                if rows != 320 or (swap and width in (64, 128)):
                    found.append(tile)
    return tuple(found)


def ranked(p: Problem, spec: GpuSpec, w: Weights) -> list[Kernel]:
    """Kernels for a problem, those first that the library likes best; of equal ones the one that reads least."""
    width = DTYPE_BYTES[p.dtype]
    steps = ceil_div(p.k, STEP_BYTES // width)
    slots = {n * m: wgmma.clusters_resident(spec, n * m) * n * m for n, m in clusters()}
    most = (steps - 1) // w.piece_steps if p.batch == 1 and p.acc in ADDS else 1
    found: list[tuple[float, int, int, Kernel]] = []
    tried: set[tuple[int, int, bool]] = set()
    for number, tile in enumerate(tiles(p.dtype == wgmma.PROMOTED)):
        if width != 2 and not (p.b if tile.swap else p.a).k_major:
            continue
        along_n, along_m = tile.sides
        tiles_n, tiles_m = ceil_div(p.n, along_n), ceil_div(p.m, along_m)
        # Of the widths that cut a problem into equally many tiles the narrowest is the best.
        same = tile.rows, tiles_m if tile.swap else tiles_n, tile.swap
        if same in tried:
            continue
        tried.add(same)
        ctas = tiles_n * tiles_m * p.batch
        for split in range(1, max(1, min(most, spec.sm.count // ctas)) + 1):
            cluster, waves, reads = _cluster((tiles_n, tiles_m), tile.sides, split * p.batch, slots)
            deep, results = ceil_div(steps, split), along_n * along_m
            spread = deep * (along_n + along_m + w.spread_multiply * results) + w.spread_result * results
            step = w.tile_multiply * results + w.tile_side * max(along_n, along_m)
            time = ctas * split / spec.sm.count * spread + waves * (deep * step + w.tile_result * results + w.wave)
            time += w.cut + w.piece_result * split * p.m * p.n if split > 1 else 0.0
            found.append((time, reads, number, Kernel(tile, cluster, split)))
    return [kernel for *_, kernel in sorted(found)]


def _cluster(
    counts: tuple[int, int], sides: tuple[int, int], copies: int, slots: Mapping[int, int]
) -> tuple[tuple[int, int], int, int]:
    """The cluster of so many tiles of these sides, along n and m; the waves, and eight times the rows that a CTA reads
    in a step. copies: of the product, pieces of k included. slots: CTAs that find room at once, by size of the cluster.

    Where all find room at once, it is the largest, of equal ones that which reads least; else of two CTAs at most and
    with the fewest tiles of padding. So are 94 % of the answers for tiles that are taken.
    """
    best: tuple[tuple[int, ...], tuple[int, int], int, int] | None = None
    for n, m in clusters():
        if (n > 1 and 2 * counts[0] <= n) or (m > 1 and 2 * counts[1] <= m) or not slots[n * m]:
            continue
        ctas = ceil_div(counts[0], n) * n * ceil_div(counts[1], m) * m * copies
        waves = ceil_div(ctas, slots[n * m])
        reads = 8 * sides[0] // m + 8 * sides[1] // n
        order = (1, -n * m, reads, ctas) if waves == 1 else (waves, int(n * m > 2), ctas, reads)
        if best is None or order < best[0]:
            best = order, (n, m), waves, reads
    assert best is not None  # one CTA always finds room
    return best[1:]


def stages(tile: Tile, spec: GpuSpec) -> int:
    """As many as find room: the shared memory of all kernels by name has 24 B beside each, and 16 KB for results."""
    stage = (tile.rows + tile.width) * STEP_BYTES + wgmma.BARRIERS_BYTES
    room = spec.shared.max_per_cta_bytes - figure("result_bytes") - wgmma.BESIDE_BYTES
    return int(min(figure("stages"), room // stage))


def configurations(p: Problem, spec: GpuSpec, w: Weights, most: int = TRIED) -> list[WgmmaConfig]:
    """Those that the library likes best, as this simulator has them."""
    return [_configuration(p, spec, kernel) for kernel in ranked(p, spec, w)[:most]]


def _configuration(p: Problem, spec: GpuSpec, kernel: Kernel) -> WgmmaConfig:
    tile, (n, m), split = kernel
    along_rows, across = (n, m) if tile.swap else (m, n)
    config = WgmmaConfig(
        tile.rows, tile.width, STEP_BYTES // DTYPE_BYTES[p.dtype], cluster_m=along_rows, cluster_n=across,
        pingpong=not tile.shared, columns=tile.shared and tile.by_columns, swap=tile.swap, split=split,
        reduce=split > 1, promote=p.dtype == wgmma.PROMOTED,
    )  # fmt: skip
    config = replace(config, stages=min(stages(tile, spec), wgmma.max_stages(p, config, spec)))
    # Names with v, which are those with clusters along n alone, go along n first, those with h along m. In steps of
    # eight clusters, those that read the same rows lie in one GPC, to which every eighth cluster goes.
    rows_first, across_rows = (n > m == 1) == tile.swap, not wgmma.plan(p, spec, config).along_n
    return replace(
        config, group=figure("group") * (along_rows if across_rows else across) if rows_first == across_rows else 1
    )
