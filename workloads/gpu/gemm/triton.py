"""GEMM as Triton's matrix multiplication tutorial has it on Ampere: the kernel of `mma`, in the tutorial's tiles.

The tutorial (triton-lang/triton, python/tutorials/03-matrix-multiplication.py) lists its configurations and takes the
one that it measures fastest; tiles are done in groups of eight rows of them. It never cuts k and scales nothing.

Instruction counts, registers, buffers and barriers are those of the compiled kernel (Triton 3.9.0, ptxas 12.9, sm_80):
with `stages` - 1 buffers it has a barrier before each operand's copies, three a k step in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from arch.errors import InputError
from arch.gpu import GpuSpec
from workloads import libraries
from workloads.gpu import overhead
from workloads.gpu.gemm.mma import MmaConfig, TensorCore
from workloads.gpu.gemm.problem import Problem

TUTORIAL = "triton@3"
"""Whose tiles these are (`workloads/libraries`)."""


class TritonCore(TensorCore):
    """`Inner` of Triton's compiled loop."""

    step, per_copy, setup, epilogue = (
        overhead.TRITON_STEP,
        overhead.TRITON_PER_COPY,
        overhead.TRITON_SETUP,
        overhead.TRITON_EPILOGUE,
    )
    scales = False
    moves = True

    def __init__(self, spec: GpuSpec, dtype: str, copy: str) -> None:
        super().__init__(spec, dtype, copy)
        self.extra_registers = 54


@dataclass(frozen=True)
class TritonConfig(MmaConfig):
    """Tile configuration; see `workloads.gpu.gemm.threadblock.ThreadblockConfig`."""

    schedule: ClassVar[str] = "triton"
    core: ClassVar[type[TensorCore]] = TritonCore
    groups_of_rows: ClassVar[bool] = True
    reuse: ClassVar[bool] = True

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self.schedule}"
        if any(row.op in ("wgmma", "tcgen05_mma") for row in spec.instructions):
            raise InputError(f"{where}: Triton multiplies by the asynchronous tensor unit of {spec.name}; nearest: mma")
        if spec.cp_async is None:
            raise InputError(
                f"{where}: {spec.name} has no cp.async, by which the tutorial's kernel copies; nearest: mma"
            )
        if self.copy != "cp.async":
            raise InputError(f"{where}: the tutorial's kernel copies by cp.async, not by {self.copy}; nearest: mma")
        if self.split > 1 or self.stream_k:
            raise InputError(f"{where}: the tutorial's kernel does not cut k; nearest: mma")
        super().check(p, spec)


def configs() -> list[TritonConfig]:
    """The tutorial's configurations."""
    tiles = libraries.rows(TUTORIAL, "tiles")
    return [TritonConfig(m, n, k, *warp_tile(m, n, warps), stages, "cp.async") for m, n, k, warps, stages in tiles]


def warp_tile(tile_m: int, tile_n: int, warps: int) -> tuple[int, int]:
    """Rows and columns of one warp where `warps` of them share a tile.

    As Triton's compiler lays them out: the side that holds more products of 16x16 a warp is halved, m where they are
    equal.
    """
    across, along = 1, 1
    while across * along < warps:
        if tile_m // 16 // across >= tile_n // 16 // along and across < tile_m // 16:
            across *= 2
        else:
            along *= 2
    return tile_m // across, tile_n // along
