"""Pieces of k that a second kernel adds: split-K as the libraries before stream-K have it.

The first kernel leaves the sums of every piece in a scratch tensor. The second one adds the pieces of each result, adds
what C holds, applies the epilogue and converts: `splitKreduce_kernel<32, 16, ...>` of cuBLAS. Its machine code (cuBLAS
13.1, sm_80 and sm_90) says how many loads are on their way and what is issued around them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, CTA_Y, CTA_Z, WARP, GlobalTensor, Kernel, KernelBuilder, RegisterTile
from workloads.gpu import overhead
from workloads.gpu.gemm import epilogue
from workloads.gpu.gemm.estimate import PS_PER_S, Figures, Work, transfer
from workloads.gpu.gemm.fixup import ADDS
from workloads.gpu.gemm.problem import Problem, add, ceil_div, shared_sectors, zeros

if TYPE_CHECKING:
    import numpy as np

WARP_SIZE = 32
WARPS = 16
"""A CTA has 32 columns of 16 rows, one result a thread (its grids in `measured_kernels.csv`). Beyond some thousand CTAs
the library's threads have several results; here there are more CTAs."""
FETCHES = (8, 8), (8,), (4,)
"""Pieces that a thread has on their way, one group after the other: of sixteen that are left, of eight, of four. Of
sixteen the first sum waits where seven or eight have been asked for, since 32 registers hold no more."""
BEFORE, BETWEEN, BEHIND = overhead.Overhead(alu=27, imad=27), 5, 25
"""Instructions before the first load, between two groups, and from the last sum to the store."""
CODE_BYTES = 200 * overhead.INSTRUCTION_BYTES
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


def of_pieces(p: Problem, split: int, tile_k: int) -> Problem:
    """The problem of the kernel that multiplies where a second one adds: it stores the sums of pieces. split: pieces of
    k that are asked for, each of a step of `tile_k` at least."""
    return replace(p, out=p.acc, c=parts(p, min(split, ceil_div(p.k, tile_k))))


def groups(pieces: int) -> list[int]:
    """How many pieces of a result a thread asks for at once, one group after the other; what does not fill four comes
    one by itself, then the rest."""
    found: list[int] = []
    for group in FETCHES:
        while pieces >= sum(group):
            found += group
            pieces -= sum(group)
    return [*found, *([1] if pieces else []), *([pieces - 1] if pieces > 1 else [])]


def reduction(p: Problem, spec: GpuSpec, sums: GlobalTensor, dependent: bool = False) -> Kernel:
    """The second kernel. sums: of `parts`. dependent: as `Kernel.dependent`."""
    pieces = sums.shape[0]
    k = KernelBuilder(
        "splitk_reduction", (ceil_div(p.n, WARP_SIZE), ceil_div(p.m, WARPS), p.batch), code_bytes=CODE_BYTES
    )
    batch, row, column = CTA_Z, CTA_Y * WARPS + WARP, CTA_X * WARP_SIZE
    acc = RegisterTile("acc", (1, WARP_SIZE), p.acc)
    width, out_width = DTYPE_BYTES[p.acc], DTYPE_BYTES[p.out]
    opcode, _ = ADDS[p.acc]

    def total_of(sums_so_far: np.ndarray, fetched: np.ndarray) -> np.ndarray:
        return sums_so_far + fetched.sum(axis=0, keepdims=True, dtype=fetched.dtype)

    with k.role("warps", WARPS, REGISTERS) as r:
        mix = overhead.mix(imad=BEFORE.imad)
        r.run(overhead.ALU, BEFORE.alu, dtype="int32", dst=acc.whole, compute=zeros, mix=mix)
        with r.when(row < p.m):
            first = 0
            for count in groups(pieces):
                part = RegisterTile(f"part{count}", (count, WARP_SIZE), p.acc)
                box = sums[first:count, batch, row, column:WARP_SIZE]  # type: ignore[misc]
                r.ldg(part.whole, box, count, into="part", vector_bytes=width, mix=overhead.mix(imad=count))
                r.run(
                    opcode, count, dtype=p.acc, dst=acc.whole, srcs=(part.whole,), compute=total_of, after=("part",),
                    chain=count, mix=overhead.mix(alu=BETWEEN),
                )  # fmt: skip
                first += count
            result = p.c[batch, row:1, column:WARP_SIZE]  # type: ignore[misc]
            if p.op.adds:
                old = RegisterTile("old", (1, WARP_SIZE), p.out)
                r.ldg(old.whole, result, 1, into="old", vector_bytes=out_width)
                r.run(opcode, 1, dtype=p.acc, dst=acc.whole, srcs=(old.whole,), compute=add, after=("old",))
            done = epilogue.results(p, acc)
            epilogue.finish(r, p, spec, acc.whole, done.whole, batch, (row, 1), (column, WARP_SIZE))
            if convert := conversions(p, spec, 1):
                r.run("cvt", convert, dtype=p.out)
            r.run(overhead.ALU, BEHIND, dtype="int32")
            r.stg(result, done.whole, 1, vector_bytes=out_width)
    return replace(k.build(), dependent=dependent)


def work(whole: Work, p: Problem, f: Figures, pieces: int, columns: int) -> Work:
    """Counts for the estimate of both kernels; whole: of the kernel that does not cut k. columns: that the first one
    stores at once."""
    size = p.batch * p.m * p.n * DTYPE_BYTES[p.acc]
    cycles = (2 + len(groups(pieces))) * f.l2_latency + transfer(pieces * size, f.l2_rate)
    return whole._replace(
        cuts=pieces,
        apart=True,
        ctas=whole.tiles * pieces,
        store_bytes=whole.partial_bytes,
        shared_sectors=shared_sectors(p, p.out, WARP_SIZE) + pieces * shared_sectors(p, p.acc, columns),
        extra_ps=whole.extra_ps + f.gap_ps + cycles * PS_PER_S // f.clock_hz,
    )
