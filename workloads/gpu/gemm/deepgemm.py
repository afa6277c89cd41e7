"""Tiles of DeepGEMM's fp8 kernels for Hopper as its `get_best_configs` chooses them, for operands with scales by block.

64 rows for up to 64, 128 for more; of the widths that with the fewest waves, then with the most tiles in the last wave,
then the narrowest. Two CTAs share an operand from 1024 rows on. The kernel keeps a whole tile of results in shared
memory in plain rows, whose stores meet in few banks, and one thread waits until the TMA has read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arch.gpu import GpuSpec
from workloads.gpu.gemm import wgmma
from workloads.gpu.gemm.choose import choose
from workloads.gpu.gemm.problem import ceil_div, problem
from workloads.gpu.gemm.wgmma import BLOCK_ROWS, WgmmaConfig
from workloads.gpu.select import Choice
from workloads.ops import Gemm
from workloads.ops.gemm import SCALE_BLOCK


def configuration(op: Gemm, spec: GpuSpec, figures: Mapping[str, Any]) -> Choice:
    """What a release takes for a product, by its figures."""
    p = problem(op)
    rows = BLOCK_ROWS if p.m <= BLOCK_ROWS else 2 * BLOCK_ROWS
    sms = spec.sm.count

    def waves(width: int) -> tuple[int, int, int]:
        tiles = ceil_div(p.m, rows) * ceil_div(p.n, width) * p.batch
        return ceil_div(tiles, sms), -((tiles - 1) % sms), width

    width = min(figures["widths"], key=waves)
    along_m = width > SCALE_BLOCK
    shared = p.m % (2 * rows) == 0 if along_m else p.n % (2 * width) == 0
    pair = 2 if p.m >= figures["least_rows_shared"] and shared else 1
    config = WgmmaConfig(
        rows, width, SCALE_BLOCK, cluster_m=pair if along_m else 1, cluster_n=1 if along_m else pair, flat=True
    )
    most = figures["stages" if config.scaled_blocks == 1 else "stages_of_two_scales"]
    return choose(op, spec, str(replace(config, stages=min(most, wgmma.max_stages(p, config, spec)))))
