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
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from workloads.gpu.gemm.estimate import PS_PER_S, Figures, Work, transfer
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.problem import Problem, ceil_div
from workloads.gpu.gemm.wgmma import WgmmaConfig, through_registers

SCHEDULE = "cublas-2025"
"""Asks for what this library takes."""
DEEP_TILE = 256
"""Tiles with a side of so many rows have steps of DEEP_STEP_BYTES in formats of two bytes: public traces of A100 name
256x128_ldg8_f2f_stages_64x3, 128x256 .. 64x3 and 256x64 .. 64x4; smaller ones also have 32x5 and 32x6."""
DEEP_STEP_BYTES = 128

LEAST_TILE = 64
"""Smaller tiles (`cutlass_80_wmma_tensorop_.._16x16_128x2`) are for products whose k is one step of theirs. Calibrated
on rows of aiconfigurator_vllm on A100, fitted half: where k is 256 and more, times are those of 64x64."""
LEAST_PIECE = 256
"""Least depth of a piece of k. Calibrated on the same rows: one tile of 64x64 with k of 1024 to 2048 takes what four to
eight pieces take, with k of 3072 to 5120 eight to twelve. A trace of PyTorch with kernels of this family names pieces
of 128 and 320."""


def has_rule(spec: GpuSpec, config: object) -> bool:
    """Whether a configuration is of the kernels that are chosen so: mma.sync fed by cp.async, on a machine without
    TMA."""
    return spec.tma is None and isinstance(config, MmaConfig) and config.copy == "cp.async"


def reads_one_matrix(p: Problem, configs: Sequence[object]) -> bool:
    """Whether the library takes for a batch what is fastest for one of its matrices.

    It does where kernels by wgmma bring an operand to registers, which are of an older family (sm90_xmma) than those
    that do not (nvjet). Rows of xla_matmul_table on H100, fitted half: batches in tf32 of row-major operands are 24 %
    fast with the kernel that is fastest for the whole batch, two matrices of 512x2048 take 1.5 times as long as one of
    512x4096; bf16, of nvjet, is at 4 % with that kernel and at 12 % with the one for a single matrix.
    """
    by_wgmma = [config for config in configs if isinstance(config, WgmmaConfig)]
    return bool(by_wgmma) and all(through_registers(p, config) for config in by_wgmma)


def has(p: Problem, config: MmaConfig) -> bool:
    """Whether the library takes a kernel in this tile and step for the problem."""
    width = DTYPE_BYTES[p.dtype]
    if config.tile_m < LEAST_TILE:
        return p.k <= config.tile_k
    return width != 2 or max(config.tile_m, config.tile_n) < DEEP_TILE or config.tile_k * width >= DEEP_STEP_BYTES


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
