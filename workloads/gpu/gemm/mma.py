"""GEMM on the tensor cores by warp-level mma: copies through registers (Volta, Turing) or by cp.async (Ampere, Hopper).

Instruction counts of the k step as in CUTLASS 2.x tensor-op kernels (4.7.0, nvcc 13.0): a warp tile of 64x64x32 takes
64 HMMA.16816 (128 HMMA.1688 on Turing) and 16 ldmatrix.x4. Volta has no ldmatrix and reads fragments with 16-byte LDS,
each quad-pair its own copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import IntLike, Op, RegisterTile, RoleBuilder, View, as_expr
from workloads.gpu import overhead
from workloads.gpu.gemm import threadblock
from workloads.gpu.gemm.problem import MAX_VECTOR_BYTES, Operand, Problem, ceil_div, without_groups
from workloads.gpu.gemm.threadblock import WARP_SIZE, ThreadblockConfig

SHAPES = {
    "fp16": ("m16n8k16", "m16n8k8", "m8n8k4"),
    "bf16": ("m16n8k16", "m16n8k8"),
    "tf32": ("m16n8k8",),
    "fp8": ("m16n8k32",),
    "int8": ("m16n8k32", "m16n8k16", "m8n8k16"),
    "fp64": ("m16n8k8", "m8n8k4"),
}
"""Shapes of mma by operand format, the best first; a machine has some of them."""

STEP_BYTES = 64
"""Bytes of k in one stage; choosers try twice as many, too."""
BLOCK_BYTES = 128
"""Widest row of a permuted block: all banks of shared memory once."""
MATRIX_BYTES = 512
"""What one ldmatrix.x4 reads: four 8x8 matrices of 16-bit elements."""


def shape_of(spec: GpuSpec, dtype: str) -> str:
    """The machine's mma shape for a format. Raises InputError if its tensor cores do not take it."""
    for shape in SHAPES.get(dtype, ()):
        if spec.has_instruction("mma", dtype, shape):
            return shape
    takes = [d for d in SHAPES if any(spec.has_instruction("mma", d, s) for s in SHAPES[d])]
    raise InputError(f"schedule=mma dtype={dtype}: the tensor cores of {spec.name} take {', '.join(takes)}")


class TensorCore:
    """`Inner` of warp-level mma."""

    held_values = 2
    streams = False
    scales = True
    moves = False
    widened: str | None = None
    per_part: overhead.Overhead | None = None
    step, per_copy, setup, epilogue = (
        overhead.MMA_STEP,
        overhead.MMA_PER_COPY,
        overhead.MMA_SETUP,
        overhead.MMA_EPILOGUE,
    )

    def __init__(self, spec: GpuSpec, dtype: str, copy: str) -> None:
        self.dtype, self.shape = dtype, shape_of(spec, dtype)
        self.ldmatrix = spec.has_instruction("ldmatrix", "b16", "x4")
        self.quad_pairs = self.shape == "m8n8k4" and dtype == "fp16"
        row = spec.instruction("mma", dtype, self.shape)
        self.macs, self.interval = row.macs, row.cadence_cycles
        k = int(self.shape.rpartition("k")[2])
        # Fragments are read for at least 16 bytes of k: one row of an 8x8 matrix of 16-bit elements.
        self.part_k = max(k, 16 // DTYPE_BYTES[dtype])
        self.extra_registers = 38 if copy == "cp.async" else 24
        if copy == "ldg":
            self.streams = True
            self.step, self.per_copy = overhead.PREFETCH_STEP, overhead.PREFETCH_PER_COPY
            self.per_part, self.setup = overhead.PREFETCH_PER_PART, overhead.PREFETCH_SETUP

    def shared_shape(self, operand: Operand, rows: int, depth: int) -> tuple[tuple[int, int], int, int]:
        """In the order of memory, in blocks of 128 B with permuted rows (XOR): fragments come without conflicts."""
        memory_rows, columns = operand.tile_shape(rows, depth)
        width = DTYPE_BYTES[self.dtype]
        block_bytes = math.gcd(columns * width, BLOCK_BYTES)
        blocks = columns * width // block_bytes
        return (blocks * memory_rows, block_bytes // width), block_bytes if block_bytes >= 32 else 0, 0

    def transposed(self, operand: Operand) -> bool:
        """Never: fragments can be read in either order."""
        return False

    def fragment_bytes(self, warp_m: int, warp_n: int, depth: int) -> int:
        """Each element once, on Volta in two quad-pairs."""
        return (warp_m + warp_n) * depth * DTYPE_BYTES[self.dtype] * (2 if self.quad_pairs else 1)

    def store_bytes(self, operand: Operand) -> int:
        """16: a thread holds that much of a row, in however many loads it came."""
        return MAX_VECTOR_BYTES

    def clear(self, r: RoleBuilder, acc: RegisterTile) -> None:
        """Nothing: the first multiply starts from zero."""

    def fragment_registers(self, warp_m: int, warp_n: int) -> int:
        """Each element once; Volta's second copies share the registers of the halves that are used up."""
        return ceil_div((warp_m + warp_n) * self.part_k * DTYPE_BYTES[self.dtype], 4 * WARP_SIZE)

    def load(self, src: View, k_major: bool) -> Op:
        """ldmatrix where it can deliver the fragment: k contiguous, or 16-bit elements (transposed); else LDS, of fp64
        in either order."""
        width = DTYPE_BYTES[self.dtype]
        size = src.size_bytes
        if width == 8:
            return Op("lds", ceil_div(size, 32 * 8), srcs=(src,), vector_bytes=8)
        if self.ldmatrix and not self.quad_pairs and (k_major or width == 2):
            return Op("ldmatrix", ceil_div(size, MATRIX_BYTES), srcs=(src,), mix=self._rounding(size))
        if self.quad_pairs:
            # Each element is in two quad-pairs.
            count, vector, mix = ceil_div(2 * size, 32 * 16), 16, overhead.mix()
        else:
            # 8-bit elements arrive four rows a word: a 4x4 byte transpose takes two permutes a word.
            count, vector = ceil_div(size, 32 * 4), 4
            mix = overhead.mix(alu=2 * count) if width == 1 else self._rounding(size)
        return Op("lds", count, srcs=(src,), vector_bytes=vector, mix=mix)

    def _rounding(self, size: int) -> overhead.Mix:
        """Of `size` bytes of fragments of a warp."""
        words = ceil_div(size, 4 * WARP_SIZE)
        return overhead.mix(alu=overhead.TF32_PER_FRAGMENT_WORD * words if self.dtype == "tf32" else 0)

    def multiply(
        self, r: RoleBuilder, acc: View, srcs: tuple[View, ...], depth: int, accumulate: IntLike, **fields: Any
    ) -> None:
        """All mma of the warp tile for `depth` of k."""
        count = ceil_div(acc.extents[0] * acc.extents[1] * depth, self.macs)
        value = as_expr(accumulate)
        r.op("mma", count, dst=acc, srcs=srcs, shape=self.shape, dtype=self.dtype, value=value, **fields)


@dataclass(frozen=True)
class MmaConfig(ThreadblockConfig):
    """Tile configuration; see `ThreadblockConfig`. core: the `Inner` of its kernels."""

    schedule: ClassVar[str] = "mma"
    core: ClassVar[type[TensorCore]] = TensorCore
    on_tensor_cores: ClassVar[bool] = True
    step_bytes: ClassVar[int] = STEP_BYTES
    most_warp_m: ClassVar[int] = 64

    def inner(self, p: Problem, spec: GpuSpec) -> TensorCore:
        """What the warps do."""
        return self.core(spec, p.dtype, self.copy)

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        where = f"schedule={self}"
        without_groups(p, where)
        core = self.inner(p, spec)
        rows = 32 if core.quad_pairs else 8 if core.shape.startswith("m8") else 16
        for name, warp, step in (("m", self.warp_m, rows), ("n", self.warp_n, 32 if core.quad_pairs else 8)):
            if warp % step:
                near = max(1, round(warp / step)) * step
                raise InputError(f"{where}: warp tile {name} = {warp} must be a multiple of {step}, nearest: {near}")
        threadblock.check(p, spec, self, core, where)
