"""Pieces of k that a second kernel adds: split-K as the libraries before stream-K have it.

The first kernel leaves the sums of every piece in a scratch tensor. The second one, which starts when the first has
ended, adds the pieces of each result, adds what C holds, applies the epilogue and converts: `splitKreduce_kernel` in
public traces of cuBLAS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, WARP, GlobalTensor, IntLike, Kernel, KernelBuilder, RegisterTile, RoleBuilder
from workloads.gpu import overhead
from workloads.gpu.gemm import epilogue
from workloads.gpu.gemm.estimate import PS_PER_S, Figures, Work, transfer
from workloads.gpu.gemm.fixup import ADDS
from workloads.gpu.gemm.problem import Problem, add, ceil_div, shared_sectors, zeros

if TYPE_CHECKING:
    import numpy as np

WARP_SIZE = 32
WARPS = 8
"""A CTA has 256 results, one a thread: 400 CTAs for 1024 x 100, stores of 2 bytes (a memcheck report of cuBLAS 10)."""
AHEAD = 4
"""Pieces of a result that a thread has on their way: compilers unroll the loop so."""
CODE_BYTES = 150 * overhead.INSTRUCTION_BYTES
REGISTERS = 32


def conversions(p: Problem, spec: GpuSpec, values: int) -> int:
    """Instructions of a warp that convert `values` sums a thread; packed ones take two, the transcendental pipe's one.

    0 where the result has their format.
    """
    if p.out == epilogue.held(p):
        return 0
    return ceil_div(values, 1 if spec.instruction("cvt", p.out).pipe == "xu" else 2)


def parts(p: Problem, pieces: int) -> GlobalTensor:
    """The sums of all pieces, each a whole result."""
    shape = (pieces, p.batch, p.m, p.n)
    return GlobalTensor("parts", shape, p.acc, (p.batch * p.m * p.n, p.m * p.n, p.n, 1), "scratch")


def reduction(p: Problem, spec: GpuSpec, sums: GlobalTensor) -> Kernel:
    """The second kernel. sums: of `parts`."""
    pieces = sums.shape[0]
    segments = ceil_div(p.n, WARP_SIZE)
    total = p.batch * p.m * segments
    k = KernelBuilder("splitk_reduction", (ceil_div(total, WARPS), 1, 1), code_bytes=CODE_BYTES)
    number = CTA_X * WARPS + WARP
    line, column = number // segments, number % segments * WARP_SIZE
    batch, row = line // p.m, line % p.m
    acc = RegisterTile("acc", (1, WARP_SIZE), p.acc)
    width, out_width = DTYPE_BYTES[p.acc], DTYPE_BYTES[p.out]
    opcode, _ = ADDS[p.acc]

    def total_of(sums_so_far: np.ndarray, fetched: np.ndarray) -> np.ndarray:
        return sums_so_far + fetched.sum(axis=0, keepdims=True, dtype=fetched.dtype)

    def fetch(r: RoleBuilder, first: IntLike, count: int) -> None:
        part = RegisterTile(f"part{count}", (count, WARP_SIZE), p.acc)
        box = sums[first:count, batch, row, column:WARP_SIZE]  # type: ignore[misc]
        r.ldg(part.whole, box, count, into="part", vector_bytes=width, mix=overhead.mix(alu=count))
        r.run(opcode, count, dtype=p.acc, dst=acc.whole, srcs=(part.whole,), compute=total_of, after=("part",))

    with k.role("warps", WARPS, REGISTERS) as r, r.when(number < total):
        r.run(overhead.ALU, 12, dtype="int32", dst=acc.whole, compute=zeros, mix=overhead.mix(imad=8))
        if pieces >= AHEAD:
            with r.loop("piece", pieces // AHEAD) as i:
                fetch(r, i * AHEAD, AHEAD)
        if pieces % AHEAD:
            fetch(r, pieces // AHEAD * AHEAD, pieces % AHEAD)
        result = p.c[batch, row:1, column:WARP_SIZE]  # type: ignore[misc]
        if p.op.adds:
            old = RegisterTile("old", (1, WARP_SIZE), p.out)
            r.ldg(old.whole, result, 1, into="old", vector_bytes=out_width)
            r.run(opcode, 1, dtype=p.acc, dst=acc.whole, srcs=(old.whole,), compute=add, after=("old",))
        done = epilogue.results(p, acc)
        epilogue.finish(r, p, spec, acc.whole, done.whole, batch, (row, 1), (column, WARP_SIZE))
        if convert := conversions(p, spec, 1):
            r.run("cvt", convert, dtype=p.out)
        r.stg(result, done.whole, 1, vector_bytes=out_width)
    return k.build()


def work(whole: Work, p: Problem, f: Figures, pieces: int, columns: int) -> Work:
    """Counts for the estimate of both kernels; whole: of the kernel that does not cut k. columns: that the first one
    stores at once."""
    size = p.batch * p.m * p.n * DTYPE_BYTES[p.acc]
    cycles = (2 + ceil_div(pieces, AHEAD)) * f.l2_latency + transfer(pieces * size, f.l2_rate)
    return replace(
        whole,
        cuts=pieces,
        apart=True,
        ctas=whole.tiles * pieces,
        store_bytes=whole.partial_bytes,
        shared_sectors=shared_sectors(p, p.out, WARP_SIZE) + pieces * shared_sectors(p, p.acc, columns),
        extra_ps=whole.extra_ps + f.gap_ps + cycles * PS_PER_S // f.clock_hz,
    )
