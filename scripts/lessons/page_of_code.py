"""A page of code beside kernels that a library has: a GEMM in the tile language by size on H100.

Published (ThunderKittens): producer, consumers and a store over tiles such as 64x64 to 64x256, a page of code, come
close to the vendor library and are ahead of it at small sizes. `gemm` below is that page: one tile a CTA, TMA into a
ring of stages, wgmma, plain stores, rows of tiles in groups that share what they read in the L2. The only thing that
is tried is its tile. Beside it stands the fastest of what `auto` considers for the size: kernels with clusters,
ping-pong and splits, a dozen of the best by estimate. Both sides take what is fastest when it is simulated.

A kernel pays for what it states. So the page states, too, what a compiler adds to it: addresses, predicates and loop
control, and the size of its code, which each SM fetches before its first warp starts. The counts are those of CUTLASS's
machine code (`workloads/gpu/overhead.py`), as in the kernels beside it; those of ThunderKittens are not known here.
Without them the page is 18 % faster at 256 cubed and 14 % at 512, and would be ahead there for the wrong reason.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from sim.app.report import palette
from sim.app.run import simulate
from sim.gpu.language import (
    CTA_X,
    WARP,
    GlobalTensor,
    KernelBuilder,
    Program,
    RegisterTile,
)
from workloads.gpu import overhead
from workloads.ops import Gemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "h100-sxm"
TILE_K, STAGES = 64, 4
MANY_TILES = 4 * 132
"""From so many waves on, smaller tiles only read more."""
TILES = ((128, 256), (128, 128), (64, 128), (64, 64), (64, 32))
WGMMA_A_STEP = TILE_K // 16
BESIDE_A_STEP = overhead.WGMMA_CONSUMER_STEP.plus(overhead.WGMMA_PAIR, WGMMA_A_STEP // 2)


def code_bytes(tile_n: int) -> int:
    """Size of the machine code: set-up, a step of each role, conversions and stores of a thread's results."""
    beside = (
        overhead.WGMMA_BARRIERS, overhead.WGMMA_CTA_SETUP, overhead.WGMMA_CONSUMER_TILE, BESIDE_A_STEP,
        overhead.WGMMA_PRODUCER_STEP, overhead.WGMMA_EPILOGUE_TILE,
    )  # fmt: skip
    synchronised = 16  # waits, fences, arrivals and loads of both roles
    results = 2 * (16 * tile_n // 64)
    return overhead.INSTRUCTION_BYTES * (sum(o.instructions for o in beside) + WGMMA_A_STEP + synchronised + results)


def gemm(m: int, n: int, k: int, tile_m: int, tile_n: int) -> Program:
    """C = A B in bf16, one CTA a tile of tile_m x tile_n; m and n are multiples of it."""
    a = GlobalTensor("a", (m, k), "bf16", strides=(k, 1))
    b = GlobalTensor("b", (k, n), "bf16", strides=(n, 1))
    c = GlobalTensor("c", (m, n), "bf16", strides=(n, 1), role="output")

    rows, columns, warps = m // tile_m, n // tile_n, tile_m // 16
    group = next(size for size in (8, 4, 2, 1) if rows % size == 0)
    kernel = KernelBuilder("page", grid=(rows * columns, 1, 1), code_bytes=code_bytes(tile_n))
    row = (CTA_X // (group * columns) * group + CTA_X % group) * tile_m
    column = CTA_X % (group * columns) // group * tile_n
    a_tile = kernel.shared("a_tile", (tile_m, TILE_K), "bf16", STAGES, swizzle_bytes=128)
    b_tile = kernel.shared("b_tile", (TILE_K, tile_n), "bf16", STAGES, swizzle_bytes=min(128, 2 * tile_n))
    ring = kernel.ring(STAGES, consumers=warps)
    acc = RegisterTile("acc", (16, tile_n), "fp32")
    steps = -(-k // TILE_K)

    with kernel.role("consumer", warps, registers=min(64 + tile_n // 2, 168)) as r:
        overhead.in_turn(r, overhead.WGMMA_BARRIERS.plus(overhead.WGMMA_CTA_SETUP, 1))
        r.bar_sync(0, warps + 1)
        overhead.WGMMA_CONSUMER_TILE.write(r)
        with r.loop("step", steps) as step:
            ring.wait(r, step)
            r.wgmma_fence()
            r.wgmma(
                acc.whole, a_tile[ring.stage(step), WARP * 16 : 16, :], b_tile.stage(ring.stage(step)),
                shape=f"m64n{tile_n}k16", dtype="bf16", count=WGMMA_A_STEP, accumulate=step > 0,
            )  # fmt: skip
            r.wgmma_commit()
            r.wgmma_wait(0)
            ring.release(r, step)
            BESIDE_A_STEP.write(r)
        overhead.WGMMA_EPILOGUE_TILE.write(r)
        r.run("cvt", 16 * tile_n // 64, dtype="bf16", dst=acc.whole, srcs=(acc.whole,), compute=lambda old, x: x)
        r.stg(c[row + WARP * 16 : 16, column:tile_n], acc.whole, count=16 * tile_n // 64, vector_bytes=4)

    with kernel.role("producer", warps=1, registers=40) as r:
        overhead.in_turn(r, overhead.WGMMA_BARRIERS.plus(overhead.WGMMA_CTA_SETUP, 1))
        r.bar_sync(0, warps + 1)
        with r.loop("step", steps) as step:
            stage = ring.stage(step)
            ring.acquire(r, step, a_tile.stage_bytes + b_tile.stage_bytes)
            r.tma_load(a_tile.stage(stage), a[row:tile_m, step * TILE_K : TILE_K], ring.full, stage)
            r.tma_load(b_tile.stage(stage), b[step * TILE_K : TILE_K, column:tile_n], ring.full, stage)
            overhead.WGMMA_PRODUCER_STEP.write(r)

    return Program("gemm", (a, b, c), (kernel.build(),), schedule=f"a page, {tile_m}x{tile_n}")


def page(size: int, quick: bool) -> tuple[float, str]:
    """Throughput of the page by its best tile, TFLOPS, and that tile."""
    found = []
    for tile_m, tile_n in TILES[1 if quick else 0 :]:
        if found and size * size // (tile_m * tile_n) > MANY_TILES:
            continue
        report = simulate(gemm(size, size, size, tile_m, tile_n), MACHINE)
        found.append((2 * size**3 / report.time_us * 1e-6, report.record.schedule))
    return max(found)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Throughput of both by size."""
    from matplotlib import pyplot

    sizes = (256, 512) if quick else (256, 512, 1024, 2048, 4096, 8192)
    claims, ours, theirs = [], [], []
    for size in sizes:
        shipped = simulate(Gemm(m=size, n=size, k=size, dtype="bf16"), MACHINE, tune=True)
        tflops, tile = page(size, quick)
        ours.append(tflops)
        theirs.append(shipped.tflops)
        remark = f"{tflops:.4g} TFLOPS, {tile}; the other {shipped.tflops:.4g}, {shipped.record.schedule}"
        said = {256: "ahead at small sizes", 8192: "close"}.get(size, "")
        claims.append(Claim(f"page over the fastest candidate, {size} cubed", tflops / shipped.tflops, "x",
                            remark=remark, said=said))  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for number, (label, values) in enumerate(
        (("fastest of auto's candidates", theirs), ("a page of the tile language", ours))
    ):
        axes.semilogx(sizes, values, "o-", base=2, label=label, color=palette.of_series(number))
    axes.set(xlabel="M = N = K", ylabel="TFLOPS", ylim=(0, None), title=f"bf16 multiply on {MACHINE}")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
