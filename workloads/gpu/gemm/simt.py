"""GEMM on the vector pipes: FFMA for fp32, HFMA2 for fp16 summed in fp16, DP4A for int8 (CUTLASS 2.x SIMT).

fp16 summed in fp32 is widened on its way from registers to shared memory, and is fp32 from there on, as in cuBLAS's and
cuDNN's kernels called `fp16_sgemm` and `fp16_scudnn`.

Both operands lie k by rows in shared memory, so that a thread reads its 8 rows of one k as two 16-byte vectors; an
operand with k contiguous in memory is transposed on its way from registers. A k step of 8 for a warp tile of 32x64
takes 512 FFMA and 32 LDS.128 (CUTLASS 4.7.0, nvcc 13.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import IntLike, Op, RegisterTile, RoleBuilder, View
from workloads.gpu import overhead
from workloads.gpu.gemm import threadblock
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div, without_groups, zeros
from workloads.gpu.gemm.threadblock import WARP_SIZE, ThreadblockConfig

OPCODES = {
    ("fp32", "fp32"): ("ffma", 1), ("fp16", "fp16"): ("hfma2", 2), ("int8", "int32"): ("dp4a", 4),
    ("fp16", "fp32"): ("ffma", 1),
}  # fmt: skip
"""(operand format, accumulator): opcode and multiply-accumulates of a lane."""

THREADS_M, THREADS_N = 4, 8
"""Threads of a warp along m and n."""
VECTOR_BYTES = 16
"""Bytes of one fragment load."""
STEP_BYTES = 64
"""Bytes of k in one buffer: 16 fp32. Compiled kernels have 8 or 16; with 8, barriers are twice as many."""


def multiplied(dtype: str, acc: str) -> str:
    """The format in which operands of `dtype` are multiplied where sums are `acc`: fp32 where these are."""
    return "fp32" if (dtype, acc) == ("fp16", "fp32") else dtype


def available(spec: GpuSpec, dtype: str, acc: str) -> bool:
    """Whether a machine multiplies `dtype` on its vector pipes and sums in `acc`."""
    return (dtype, acc) in OPCODES and spec.has_instruction(OPCODES[dtype, acc][0], multiplied(dtype, acc))


class Vector:
    """`Inner` of the vector pipes."""

    step, per_copy = overhead.SIMT_STEP, overhead.SIMT_PER_COPY
    per_part: overhead.Overhead | None = None
    setup, epilogue = overhead.SIMT_SETUP, overhead.SIMT_EPILOGUE
    extra_registers = 33
    held_values = 4
    streams = True
    scales = True
    moves = False

    def __init__(self, spec: GpuSpec, dtype: str, acc: str, config: ThreadblockConfig) -> None:
        if not available(spec, dtype, acc):
            takes = [f"{d} summed in {a}" for d, a in OPCODES if available(spec, d, a)]
            raise InputError(f"schedule=simt: {spec.name} has {', '.join(takes)}, not {dtype} summed in {acc}")
        self.opcode, self.lane_macs = OPCODES[dtype, acc]
        self.macs = WARP_SIZE * self.lane_macs
        self.dtype = multiplied(dtype, acc)
        self.interval = spec.instruction(self.opcode, self.dtype).cadence_cycles
        self.widened: str | None = self.dtype if self.dtype != dtype else None
        # What one instruction takes of k: the inner loop reads one while it multiplies the one before.
        self.part_k = 4 if self.opcode == "dp4a" else 1

    def shared_shape(self, operand: Operand, rows: int, depth: int) -> tuple[tuple[int, int], int, int]:
        """K by rows; a transposing store writes down a column, so that rows are one word longer."""
        return (depth, rows), 0, 16 if self.transposed(operand) else 0

    def transposed(self, operand: Operand) -> bool:
        """Whether k is contiguous in memory."""
        return operand.k_major

    def fragment_bytes(self, warp_m: int, warp_n: int, depth: int) -> int:
        """Every thread its own rows and columns; pairs that read the same return together, at twice the rate."""
        return WARP_SIZE // 2 * (warp_m // THREADS_M + warp_n // THREADS_N) * depth * DTYPE_BYTES[self.dtype]

    def store_bytes(self, operand: Operand) -> int:
        """As loaded, but element by element (DP4A: word by word, its four k together) where it is transposed."""
        if self.opcode == "dp4a":
            return 4
        width = DTYPE_BYTES[self.dtype]
        wide = operand.vector_bytes * width // DTYPE_BYTES[operand.dtype]
        return width if self.transposed(operand) else min(VECTOR_BYTES, wide)

    def clear(self, r: RoleBuilder, acc: RegisterTile) -> None:
        """Zeroes the accumulators, two registers an instruction."""
        count = ceil_div(acc.shape[0] * acc.shape[1], 2 * WARP_SIZE)
        r.run(overhead.ALU, count, dtype="int32", dst=acc.whole, compute=zeros)

    def fragment_registers(self, warp_m: int, warp_n: int) -> int:
        """A thread's rows and columns of one k."""
        values = ceil_div(warp_m, THREADS_M) + ceil_div(warp_n, THREADS_N)
        return ceil_div(values * self.part_k * DTYPE_BYTES[self.dtype], 4)

    def load(self, src: View, k_major: bool) -> Op:
        """Each thread its rows of every k; threads in one row or column of the warp read the same words."""
        depth, rows = src.extents[-2:]
        threads, sharers = (THREADS_M, THREADS_N) if src.buffer.name == "a" else (THREADS_N, THREADS_M)
        thread_bytes = max(1, rows // threads) * self.part_k * DTYPE_BYTES[self.dtype]
        vector = max(4, min(VECTOR_BYTES, thread_bytes))
        count = ceil_div(thread_bytes, vector) * ceil_div(depth, self.part_k)
        return Op("lds", count, srcs=(src,), vector_bytes=vector, sharers=sharers)

    def multiply(
        self, r: RoleBuilder, acc: View, srcs: tuple[View, ...], depth: int, accumulate: IntLike, **fields: Any
    ) -> None:
        """The outer products of `depth` of k."""
        count = ceil_div(acc.extents[0] * acc.extents[1] * depth, self.macs)
        r.run(self.opcode, count, dtype=self.dtype, dst=acc, srcs=srcs, **fields)


@dataclass(frozen=True)
class SimtConfig(ThreadblockConfig):
    """Tile configuration; see `ThreadblockConfig`."""

    schedule: ClassVar[str] = "simt"
    copies_ahead: ClassVar[bool] = False
    step_bytes: ClassVar[int] = STEP_BYTES
    most_warp_m: ClassVar[int] = 32

    def inner(self, p: Problem, spec: GpuSpec) -> Vector:
        """What the warps do."""
        return Vector(spec, p.dtype, p.acc, self)

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        without_groups(p, where)
        vector = self.inner(p, spec)
        for name, warp, threads in (("m", self.warp_m, THREADS_M), ("n", self.warp_n, THREADS_N)):
            if warp % threads:
                near = max(1, round(warp / threads)) * threads
                raise InputError(f"{where}: warp tile {name} = {warp} must be a multiple of {threads}, nearest: {near}")
        threadblock.check(p, spec, self, vector, where)
