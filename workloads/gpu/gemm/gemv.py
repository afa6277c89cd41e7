"""Matrix times vector: GEMM with m = 1 or n = 1, a stream of the matrix through the vector pipes.

With k contiguous in the matrix a warp takes a few rows: its lanes run along k, sums are joined by shuffles. Otherwise
lanes run along the rows, the warps of a CTA share k, and their sums meet in shared memory. Loads of the next step are
in flight while the current one is multiplied (`unroll` steps of registers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    WARP,
    Expr,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    View,
)
from workloads.gpu import overhead
from workloads.gpu.configuration import Word
from workloads.gpu.gemm.configuration import GemmConfig
from workloads.gpu.gemm.estimate import Figures, Work
from workloads.gpu.gemm.problem import Operand, Problem, ceil_div, problem, without_groups, without_scales, zeros
from workloads.gpu.gemm.threadblock import resident_ctas
from workloads.ops import Gemm
from workloads.registry import register

WARP_SIZE = 32
SHUFFLES = 5
"""Steps of a butterfly over a warp."""
SETUP = overhead.Overhead(alu=60, imad=20)


MAX_UNROLL = 5
"""Two register tiles a step, and two for the sums."""


@dataclass(frozen=True)
class GemvConfig(GemmConfig):
    """One kernel for a single row or column.

    warps: of a CTA.
    rows: results of a warp where k is contiguous, else rows of the matrix that a warp loads at once.
    unroll: steps in flight.
    """

    warps: int = 4
    rows: int = 4
    unroll: int = 4

    schedule: ClassVar[str] = "gemv"
    grammar: ClassVar[tuple[Word, ...]] = (Word.number("warps"), Word.number("rows"), Word.number("unroll"))

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the problem is no matrix-vector product or the configuration does not fit."""
        if min(p.m, p.n) != 1:
            raise InputError(f"schedule={self}: needs m = 1 or n = 1, got m={p.m} n={p.n}; nearest: mma or simt")
        without_scales(p, f"schedule={self}")
        if not spec.peak_flops(p.dtype):
            raise InputError(f"schedule={self}: {spec.name} does not multiply {p.dtype}; nearest: dtype=fp32")
        without_groups(p, f"schedule={self}")
        if p.op.finished:
            raise InputError(f"schedule={self}: it has neither an epilogue nor scales; nearest: mma or simt")
        if p.op.adds:
            raise InputError(f"schedule={self}: beta=1 is not available; nearest: mma or simt")
        if self.warps < 1 or self.warps * WARP_SIZE > spec.sm.max_threads_per_cta:
            raise InputError(f"schedule={self}: warps must be 1 to {spec.sm.max_threads_per_cta // WARP_SIZE}")
        if self.rows < 1 or self.unroll < 1:
            raise InputError(f"schedule={self}: rows and unroll must be at least 1")
        if self.unroll > MAX_UNROLL:
            raise InputError(f"schedule={self}: unroll is at most {MAX_UNROLL}, a warp names twelve register tiles")
        used = registers(p, self)
        if used > spec.sm.max_registers_per_thread:
            raise InputError(
                f"schedule={self}: {used} registers a thread, {spec.name} has {spec.sm.max_registers_per_thread}; "
                f"nearest: unroll {max(1, self.unroll // 2)}"
            )

    def work(self, p: Problem, spec: GpuSpec, f: Figures) -> Work:
        """Counts for the estimate: a k step is one round of loads of every warp."""
        matrix, _ = matrix_and_vector(p)
        resident = resident_ctas(spec, self.warps, registers(p, self), 0)
        chunk, width = _chunk(p), DTYPE_BYTES[p.dtype]
        if matrix.k_major:
            ctas, steps = ceil_div(matrix.rows, self.rows * self.warps) * p.batch, ceil_div(p.k, chunk * self.unroll)
        else:
            ctas, steps = ceil_div(matrix.rows, chunk) * p.batch, ceil_div(p.k, self.warps * self.rows * self.unroll)
        step_bytes = self.warps * self.rows * self.unroll * chunk * width
        elements = step_bytes // width // WARP_SIZE
        return Work(
            tiles=ctas,
            steps=steps,
            ctas=ctas,
            resident=resident,
            persistent=False,
            busy=ceil_div(3 * elements, f.sub_cores),
            bubble=f.load_latency,
            unicast_bytes=step_bytes,
            received_bytes=step_bytes,
            requested_bytes=step_bytes,
            ahead=1,
            latency=f.load_latency,
            epilogue=5 * f.shared_latency,
            overlapped=False,
            store_bytes=self.warps * self.rows * DTYPE_BYTES[p.out],
            cuts=1,
            stream=False,
            partial_bytes=0,
            operand_bytes=p.batch * p.k * (p.m + p.n) * width,
            round_bytes=0,
            result_bytes=p.batch * p.m * p.n * DTYPE_BYTES[p.out],
        )


def matrix_and_vector(p: Problem) -> tuple[Operand, Operand]:
    """The operand that is a matrix, and the one with a single row."""
    return (p.b, p.a) if p.m == 1 else (p.a, p.b)


def _dot(acc: np.ndarray, matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """acc (rows, 1) + matrix (rows, k) times vector (1, k)."""
    return acc + matrix @ vector.T


def _sum(_: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The sum over warps of (warps, rows), as a column."""
    return parts.sum(axis=0, keepdims=True).T


def _vector_bytes(p: Problem) -> int:
    return min(p.a.vector_bytes, p.b.vector_bytes)


def _chunk(p: Problem) -> int:
    """Elements that a warp covers with one load of every thread."""
    return WARP_SIZE * _vector_bytes(p) // DTYPE_BYTES[p.dtype]


def registers(p: Problem, config: GemvConfig) -> int:
    """Registers of a thread."""
    words = ceil_div(_vector_bytes(p), 4)
    return 32 + config.unroll * (config.rows + 1) * words + max(config.rows, _vector_bytes(p) // DTYPE_BYTES[p.dtype])


@register("gemm", "gpu", "gemv")
def build(op: Gemm, spec: GpuSpec, config: GemvConfig) -> Program:
    """The program of `op` on `spec`. Raises InputError where `check` does."""
    p = problem(op)
    config.check(p, spec)
    matrix, _ = matrix_and_vector(p)
    kernel = _along_k(p, config) if matrix.k_major else _along_rows(p, config)
    return Program(str(op), (p.a.tensor, p.b.tensor, p.c), (kernel,), str(config), {"config": config})


def _result(p: Problem, batch: Expr, row: Expr, rows: int) -> View:
    """`rows` results as a column."""
    if p.m == 1:
        return p.c[batch, 0, row:rows].T  # type: ignore[misc]
    return p.c[batch, row:rows, 0:1]  # type: ignore[misc]


def _multiply(r: RoleBuilder, p: Problem, acc: View, matrix: View, vector: View, elements: int) -> None:
    """One multiply-add an element; 16- and 8-bit operands are converted to fp32 first."""
    count = ceil_div(elements, WARP_SIZE)
    mix = overhead.mix(alu=4)
    if p.dtype == "int8":
        opcode, dtype, count = "dp4a", "int8", ceil_div(count, 4)
    else:
        opcode, dtype = "ffma", "fp32"
        if DTYPE_BYTES[p.dtype] < 4:
            mix = overhead.mix(alu=4 + count)
    r.run(opcode, count, dtype=dtype, dst=acc, srcs=(matrix, vector), compute=_dot, mix=mix)


def _along_k(p: Problem, c: GemvConfig) -> Kernel:
    """Lanes along k: a warp has `rows` rows of the matrix."""
    matrix, vector = matrix_and_vector(p)
    chunk, bytes_each = _chunk(p), _vector_bytes(p)
    groups = ceil_div(matrix.rows, c.rows * c.warps)
    k = KernelBuilder(
        f"gemv_{c}".replace(" ", "_"), (groups, p.batch, 1), code_bytes=200 * c.unroll * overhead.INSTRUCTION_BYTES
    )
    acc = RegisterTile("acc", (c.rows, 1), p.acc)
    loaded = [
        (RegisterTile(f"m{i}", (c.rows, chunk), p.dtype), RegisterTile(f"v{i}", (1, chunk), p.dtype))
        for i in range(c.unroll)
    ]
    with k.role("warps", c.warps, registers(p, c)) as r:
        SETUP.write(r)
        row = (CTA_X * c.warps + WARP) * c.rows
        r.run(overhead.ALU, c.rows, dtype="int32", dst=acc.whole, compute=zeros)

        def fetch(i: int, depth: Expr) -> None:
            m, v = loaded[i]
            r.ldg(m.whole, matrix.box(CTA_Y, row, c.rows, depth, chunk), c.rows, into=f"s{i}", vector_bytes=bytes_each)
            r.ldg(v.whole, vector.box(CTA_Y, 0, 1, depth, chunk), 1, into=f"s{i}", vector_bytes=bytes_each)

        with r.loop("k", ceil_div(p.k, chunk * c.unroll)) as step:
            for i in range(c.unroll):
                fetch(i, (step * c.unroll + i) * chunk)
            for i, (m, v) in enumerate(loaded):
                r.run(overhead.ALU, 1, dtype="int32", after=(f"s{i}",))
                _multiply(r, p, acc.whole, m.whole, v.whole, c.rows * chunk)
        r.run("shfl", SHUFFLES * c.rows, dtype="b32", mix=(("fadd", SHUFFLES * c.rows),))
        if p.out != p.acc:
            r.run("cvt", ceil_div(c.rows, 2), dtype=p.out)
        r.stg(_result(p, CTA_Y, row, c.rows), acc.whole, 1, vector_bytes=DTYPE_BYTES[p.out])
    return k.build()


def _along_rows(p: Problem, c: GemvConfig) -> Kernel:
    """Lanes along the rows: warps share k, `rows` steps of k a load, and add up through shared memory."""
    matrix, vector = matrix_and_vector(p)
    chunk, bytes_each = _chunk(p), _vector_bytes(p)
    k = KernelBuilder(
        f"gemv_{c}".replace(" ", "_"), (ceil_div(matrix.rows, chunk), p.batch, 1),
        code_bytes=200 * c.unroll * overhead.INSTRUCTION_BYTES,
    )  # fmt: skip
    sums = k.shared("sums", (c.warps, chunk), p.acc)
    acc = RegisterTile("acc", (chunk, 1), p.acc)
    parts = RegisterTile("parts", (c.warps, chunk), p.acc)
    loaded = [
        (RegisterTile(f"m{i}", (c.rows, chunk), p.dtype), RegisterTile(f"v{i}", (1, c.rows), p.dtype))
        for i in range(c.unroll)
    ]
    with k.role("warps", c.warps, registers(p, c)) as r:
        SETUP.write(r)
        row = CTA_X * chunk
        r.run(overhead.ALU, c.rows, dtype="int32", dst=acc.whole, compute=zeros)
        with r.loop("k", ceil_div(p.k, c.warps * c.rows * c.unroll)) as step:
            for i, (m, v) in enumerate(loaded):
                depth = ((step * c.unroll + i) * c.warps + WARP) * c.rows
                box = matrix.box(CTA_Y, row, chunk, depth, c.rows)
                r.ldg(m.whole, box, c.rows, into=f"s{i}", vector_bytes=bytes_each)
                one = vector.box(CTA_Y, 0, 1, depth, c.rows)
                r.ldg(v.whole, one, 1, into=f"s{i}", vector_bytes=DTYPE_BYTES[p.dtype])
            for i, (m, v) in enumerate(loaded):
                r.run(overhead.ALU, 1, dtype="int32", after=(f"s{i}",))
                _multiply(r, p, acc.whole, m.whole.T, v.whole, c.rows * chunk)
        width = DTYPE_BYTES[p.acc]
        r.sts(sums[0, WARP, :], acc.whole.T, ceil_div(chunk * width, 512), vector_bytes=16)
        r.bar_sync(0, c.warps)
        with r.when(WARP.equals(0)):
            r.lds(parts.whole, sums.stage(), ceil_div(c.warps * chunk * width, 512), vector_bytes=16)
            count = ceil_div(c.warps * chunk, WARP_SIZE)
            opcode, dtype = ("iadd", "int32") if p.acc == "int32" else ("fadd", "fp32")
            r.run(opcode, count, dtype=dtype, dst=acc.whole, srcs=(parts.whole,), compute=_sum)
            if p.out != p.acc:
                r.run("cvt", ceil_div(chunk, 2 * WARP_SIZE), dtype=p.out)
            vector_out = min(16, max(DTYPE_BYTES[p.out], p.c_vector_bytes)) if p.m == 1 else DTYPE_BYTES[p.out]
            count = ceil_div(chunk * DTYPE_BYTES[p.out], WARP_SIZE * vector_out)
            r.stg(_result(p, CTA_Y, row, chunk), acc.whole, count, vector_bytes=vector_out)
    return k.build()
