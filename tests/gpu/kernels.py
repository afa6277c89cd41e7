"""Small kernels in the tile language that the tests of its readers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sim.gpu.language import (
    CLUSTER_RANK,
    CTA_X,
    CTA_Y,
    WARP,
    Const,
    Expr,
    GlobalTensor,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    minimum,
)

Array = np.ndarray[Any, Any]


def matrix(name: str, rows: int, columns: int, dtype: str, role: str = "input") -> GlobalTensor:
    """A row-major matrix."""
    return GlobalTensor(name, (rows, columns), dtype, (columns, 1), role)


def numbers(*shape: int, seed: int = 0) -> Array:
    """Small integers as floats: exact in every format and in every order of summation."""
    return np.random.default_rng(seed).integers(-4, 5, size=shape).astype(np.float64)


def tma_copy(rows: int = 200, columns: int = 64, stages: int = 2) -> Program:
    """Copies a matrix through shared memory with TMA, 32 rows at a time, two CTAs, one warp."""
    x, y = matrix("x", rows, columns, "fp32"), matrix("y", rows, columns, "fp32", "output")
    b = KernelBuilder("tma_copy", (2, 1, 1))
    tile = b.shared("tile", (32, columns), "fp32", stages)
    full = b.mbarrier("full", stages, 1)
    blocks = -(-rows // 32)
    with b.role("copy", warps=1, registers=32) as r:
        with r.loop("i", (blocks - CTA_X + 1) // 2) as i:
            stage, at = i % stages, (2 * i + CTA_X) * 32
            r.bulk_wait(stages - 1)
            r.mbarrier_expect(full, stage, 32 * columns * 4)
            r.tma_load(tile.stage(stage), x[at:32, :], full, stage)
            r.mbarrier_wait(full, stage, i // stages)
            r.tma_store(y[at:32, :], tile.stage(stage))
            r.bulk_commit()
        r.bulk_wait(0)
    return Program("copy", (x, y), (b.build(),), "tma")


def wgmma_gemm(
    m: int = 256,
    n: int = 256,
    k: int = 256,
    *,
    stages: int = 3,
    cluster: int = 1,
    dtype: str = "bf16",
    out: str = "bf16",
) -> Program:
    """C = A B with one producer warp and two consumer warpgroups, tiles of 128x128x64; clusters multicast B."""
    tm, tn, tk = 128, 128, 64
    a, bt = matrix("a", m, k, dtype), matrix("b", k, n, dtype)
    c = matrix("c", m, n, out, "output")
    kernel = KernelBuilder("wgmma_gemm", (-(-m // tm), -(-n // tn), 1), (cluster, 1, 1))
    sa = kernel.shared("sa", (tm, tk), dtype, stages, swizzle_bytes=128)
    sb = kernel.shared("sb", (tk, tn), dtype, stages, swizzle_bytes=128)
    sc = kernel.shared("sc", (tm, tn), out)
    full = kernel.mbarrier("full", stages, 1)
    empty = kernel.mbarrier("empty", stages, 2 * cluster)
    steps = -(-k // tk)
    everyone = (1 << cluster) - 1
    element = 1 if dtype in ("fp8", "int8") else 2
    rows, columns = CTA_X * tm, CTA_Y * tn
    acc_type = "int32" if dtype == "int8" else "fp32"

    def start(r: RoleBuilder) -> None:
        if cluster > 1:
            r.cluster_arrive()
            r.cluster_wait()
        else:
            r.bar_sync(0, 12)

    with kernel.role("producer", warps=4, registers=40) as p:
        start(p)
        with p.when(WARP.equals(0)), p.loop("k", steps) as i:
            stage = i % stages
            p.mbarrier_wait(empty, stage, i // stages - 1)
            p.mbarrier_expect(full, stage, (tm * tk + tk * tn) * element)
            p.tma_load(sa.stage(stage), a[rows:tm, i * tk : tk], full, stage)
            if cluster == 1:
                p.tma_load(sb.stage(stage), bt[i * tk : tk, columns:tn], full, stage)
            else:
                part = tk // cluster
                p.tma_load(
                    sb[stage, CLUSTER_RANK * part : part, :],
                    bt[i * tk + CLUSTER_RANK * part : part, columns:tn],
                    full,
                    stage,
                    multicast=everyone,
                )
        if cluster > 1:
            p.cluster_sync()
    with kernel.role("consumer", warps=8, registers=232) as r:
        start(r)
        acc = RegisterTile("acc", (16, tn), acc_type)
        mine = WARP * 16
        with r.loop("k", steps) as i:
            stage = i % stages
            r.mbarrier_wait(full, stage, i // stages)
            r.wgmma_fence()
            r.wgmma(
                acc.whole,
                sa[stage, mine:16, :],
                sb.stage(stage),
                shape="m64n128k16",
                dtype=dtype,
                count=tk // 16,
                accumulate=i > 0,
            )
            r.wgmma_commit()
            r.wgmma_wait(0)
            with r.when((WARP % 4).equals(0)):
                r.mbarrier_arrive(empty, stage, cluster=everyone if cluster > 1 else None)
        out_tile = RegisterTile("out", (16, tn), out)
        r.run("cvt", 32, dst=out_tile.whole, srcs=(acc.whole,), compute=lambda _, x: x)
        r.sts(sc[0, mine:16, :], out_tile.whole)
        r.fence_async()
        r.bar_sync(1, 8)
        with r.when(WARP.equals(0)):
            r.tma_store(c[rows:tm, columns:tn], sc.stage())
            r.bulk_commit()
            r.bulk_wait(0)
        if cluster > 1:
            r.cluster_sync()
    return Program("gemm", (a, bt, c), (kernel.build(),), "wgmma")


def mma_gemm(m: int = 96, n: int = 64, k: int = 96, stages: int = 2, b_transposed: bool = False) -> Program:
    """C = A B with four warps, cp.async in `stages` stages, ldmatrix and mma.sync; tiles of 64x64x32."""
    tm, tn, tk = 64, 64, 32
    a, c = matrix("a", m, k, "fp16"), matrix("c", m, n, "fp32", "output")
    b = GlobalTensor("b", (k, n), "fp16", (1, k) if b_transposed else (n, 1))
    kernel = KernelBuilder("mma_gemm", (-(-m // tm), -(-n // tn), 1))
    sa = kernel.shared("sa", (tm, tk), "fp16", stages)
    sb = kernel.shared("sb", (tk, tn), "fp16", stages)
    steps = -(-k // tk)
    rows, columns = CTA_X * tm, CTA_Y * tn
    fa, fb = RegisterTile("fa", (16, tk), "fp16"), RegisterTile("fb", (tk, tn), "fp16")
    acc = RegisterTile("acc", (16, tn), "fp32")
    with kernel.role("warps", warps=4, registers=128) as r:

        def fill(step: Expr) -> None:
            with r.when(step < steps):
                r.cp_async(sa[step % stages, WARP * 16 : 16, :], a[rows + WARP * 16 : 16, step * tk : tk], 2)
                r.cp_async(sb[step % stages, WARP * 8 : 8, :], b[step * tk + WARP * 8 : 8, columns:tn], 2)
            r.cp_commit()

        with r.loop("s", stages - 1) as s:
            fill(s)
        with r.loop("k", steps) as i:
            r.cp_wait(stages - 2)
            r.bar_sync(0, 4)
            fill(i + (stages - 1))
            r.ldmatrix(fa.whole, sa[i % stages, WARP * 16 : 16, :], 2, into="fragments")
            r.ldmatrix(fb.whole, sb.stage(i % stages), 8, into="fragments")
            r.mma(
                acc.whole,
                fa.whole,
                fb.whole,
                shape="m16n8k16",
                dtype="fp16",
                count=16,
                accumulate=i > 0,
                after=("fragments",),
            )
        r.stg(c[rows + WARP * 16 : 16, columns:tn], acc.whole, 16)
    return Program("gemm", (a, b, c), (kernel.build(),), "mma")


def split_sum(columns: int = 64, parts: int = 4) -> Program:
    """Sums the rows of x in `parts` CTAs: each stores a partial sum, the last adds them up when a semaphore says so."""
    x = matrix("x", parts, columns, "fp32")
    partial = matrix("partial", parts, columns, "fp32", "scratch")
    y = matrix("y", 1, columns, "fp32", "output")
    kernel = KernelBuilder("split_sum", (parts, 1, 1), flags=1)
    row, total = RegisterTile("row", (1, columns), "fp32"), RegisterTile("total", (1, columns), "fp32")
    everything = RegisterTile("everything", (parts, columns), "fp32")
    with kernel.role("warps", warps=1, registers=64) as r:
        r.ldg(row.whole, x[CTA_X:1, :], 1, into="row")
        r.run("fadd", 1, dst=row.whole, srcs=(row.whole,), compute=lambda _, v: 2 * v, after=("row",))
        r.stg(partial[CTA_X:1, :], row.whole, 1)
        r.flag_add(0)
        with r.when(CTA_X.equals(parts - 1)):
            r.flag_wait(0, parts)
            r.ldg(everything.whole, partial[:, :], parts, into="all")
            r.run(
                "fadd",
                parts,
                dst=total.whole,
                srcs=(everything.whole,),
                compute=lambda _, v: v.sum(axis=0, keepdims=True),
                after=("all",),
            )
            r.stg(y[:, :], total.whole, 1)
    return Program("sum", (x, partial, y), (kernel.build(),), "split")


def two_kernels(n: int = 64) -> Program:
    """y = x + x by atomics: one kernel clears y, two CTAs of the next add to it."""
    x, y = matrix("x", 1, n, "fp32"), matrix("y", 1, n, "fp32", "output")
    zero, value = RegisterTile("zero", (1, n), "fp32"), RegisterTile("value", (1, n), "fp32")
    clear = KernelBuilder("clear", (1, 1, 1))
    with clear.role("warps", warps=1, registers=32) as r:
        r.run("alu", 1, dst=zero.whole, compute=np.zeros_like)
        r.stg(y[:, :], zero.whole, 1)
    add = KernelBuilder("add", (2, 1, 1))
    with add.role("warps", warps=1, registers=32) as r:
        r.ldg(value.whole, x[:, :], 1, into="value")
        r.red(y[:, :], value.whole, 1, after=("value",))
    return Program("twice", (x, y), (clear.build(), add.build()), "atomics")


def dynamic_copy(tiles: int = 5, columns: int = 32) -> Program:
    """Copies rows; two CTAs of two warps take the rows from a dynamic scheduler."""
    x, y = matrix("x", tiles, columns, "fp32"), matrix("y", tiles, columns, "fp32", "output")
    kernel = KernelBuilder("dynamic_copy", (2, 1, 1))
    half = columns // 2
    value = RegisterTile("value", (1, half), "fp32")
    with kernel.role("warps", warps=2, registers=32) as r, r.loop("i", tiles):
        tile = r.next_tile("tile")
        with r.when(tile < tiles):
            r.ldg(value.whole, x[tile:1, WARP * half : half], 1, into="value")
            r.stg(y[tile:1, WARP * half : half], value.whole, 1, after=("value",))
    return Program("copy", (x, y), (kernel.build(),), "dynamic")


def exchange() -> Program:
    """y += 2 x, + 2 x of CTA 0, + 2 x of the other, in clusters of two CTAs of 16 rows: what other kernels leave out.

    A loader copies by cp.async and arrives when the copies are there; a worker doubles them, stores its fragments for
    the cluster, sends them to the other CTA, adds those of the first CTA and what came, and has the TMA add the sum to
    y.
    """
    x, y = matrix("x", 32, 16, "fp16"), matrix("y", 32, 16, "fp16", "output")
    kernel = KernelBuilder("exchange", (2, 1, 1), (2, 1, 1))
    loaded, doubled, came, total = (
        kernel.shared(name, (16, 16), "fp16") for name in ("loaded", "doubled", "came", "total")
    )
    full, sent = kernel.mbarrier("full", 1, 1), kernel.mbarrier("sent", 1, 1)
    rows = CTA_X * 16
    with kernel.role("loader", warps=1, registers=64) as r:
        r.setmaxnreg(40)
        r.cp_async(loaded.stage(), x[rows:16, :], 1)
        r.cp_async_arrive(full, 0)
        r.bar_arrive(1, 2)
        r.cluster_sync()
        r.cluster_sync()
    own, first, other = (RegisterTile(name, (16, 16), "fp16") for name in ("own", "first", "other"))
    with kernel.role("worker", warps=1, registers=64) as r:
        r.bar_sync(1, 2)
        r.mbarrier_wait(full, 0, 0)
        r.lds(own.whole, loaded.stage(), 1, into="own")
        r.run("fmul", dst=own.whole, srcs=(own.whole,), compute=lambda _, v: 2 * v, after=("own",))
        r.stmatrix(doubled.stage(), own.whole, 1)
        r.cluster_sync()
        r.dsmem_st(came.stage(), own.whole, 1, rank=1 - CLUSTER_RANK)
        r.mbarrier_arrive(sent, 0, cluster=Const(1) << (1 - CLUSTER_RANK))
        r.dsmem_ld(first.whole, doubled.stage(), 1, rank=0, into="first")
        r.mbarrier_wait(sent, 0, 0)
        r.lds(other.whole, came.stage(), 1, into="other")
        r.run(
            "fadd",
            4,
            dst=own.whole,
            srcs=(own.whole, first.whole, other.whole),
            compute=lambda _, a, b, c: a + b + c,
            after=("first", "other"),
        )
        r.sts(total.stage(), own.whole, 1)
        r.fence_async()
        r.tma_store(y[rows:16, :], total.stage(), add=True)
        r.bulk_commit()
        r.bulk_wait(0, read=False)
        r.cluster_sync()
    return Program("exchange", (x, y), (kernel.build(),), "cluster")


def butterfly() -> Program:
    """y = the sum of a row of x, in all its lanes: five shuffles of one warp."""
    x, y = matrix("x", 1, 32, "fp32"), matrix("y", 1, 32, "fp32", "output")
    kernel = KernelBuilder("butterfly", (1, 1, 1))
    value = RegisterTile("value", (1, 32), "fp32")
    with kernel.role("warps", warps=1, registers=32) as r:
        r.ldg(value.whole, x[:, :], 1, into="value")
        r.run(
            "shfl",
            5,
            dst=value.whole,
            srcs=(value.whole,),
            compute=lambda _, v: np.broadcast_to(v.sum(), v.shape),
            after=("value",),
        )
        r.stg(y[:, :], value.whole, 1)
    return Program("sum", (x, y), (kernel.build(),), "shuffles")


def tensor_gemm(m: int = 256, n: int = 128, k: int = 192, *, pair: bool = False, clc: bool = False) -> Program:
    """C = 4 A B (3 A B of pairs) with sums in tensor memory: A is in shared memory, copied from there, and doubled by
    way of registers. Tiles of 128x64x64 a CTA, or of both of a pair; CTAs that have not started are asked for where
    `clc`."""
    tm, tn, tk, sms = 128, 64, 64, 2 if pair else 1
    a, b, c = matrix("a", m, k, "bf16"), matrix("b", k, n, "bf16"), matrix("c", m, n, "fp32", "output")
    kernel = KernelBuilder("tensor_gemm", (m // tm * (n // tn), 1, 1), (sms, 1, 1))
    sa = kernel.shared("sa", (tm, tk), "bf16", 2, swizzle_bytes=128)
    sb = kernel.shared("sb", (tk, tn // sms), "bf16", 2)
    answer = kernel.shared("answer", (1, 4), "int32")
    acc, doubled = kernel.tensor("acc", (tm, tn), "fp32"), kernel.tensor("doubled", (tm, tk), "bf16")
    copied = kernel.tensor("copied", (tm, tk), "bf16")
    full, empty = kernel.mbarrier("full", 2, 1), kernel.mbarrier("empty", 2, 1)
    landed, ready = kernel.mbarrier("landed", 2, 1), kernel.mbarrier("ready", 1, 4 * sms)
    used = kernel.mbarrier("used", 1, 1)
    done, free = kernel.mbarrier("done", 1, 1), kernel.mbarrier("free", 1, 4 * sms)
    asked, answered = kernel.mbarrier("asked", 1, 1), kernel.mbarrier("answered", 1, 6 * sms)
    both, first = (3, 1) if pair else (None, None)
    steps, rows = k // tk, m // (tm * sms)
    worker = CTA_X // sms if pair else CTA_X

    def start(r: RoleBuilder) -> None:
        if pair:
            r.cluster_sync()
        else:
            r.bar_sync(0, 6)

    def tiles(r: RoleBuilder, body: Callable[[Expr, Expr], None]) -> None:
        """Calls for the body of a tile: its number, and how many the CTA has done before."""
        tile, turn = r.assign("tile", worker), r.assign("turn", 0)
        if not clc:
            body(tile, turn)
            return
        with r.loop_while(tile >= 0):
            body(minimum(tile, rows * (n // tn) - 1), turn)
            r.mbarrier_wait(asked, 0, turn)
            r.query_cancel("tile", answer.stage())
            r.mbarrier_arrive(answered, 0, first)
            r.assign("turn", turn + 1)

    def row(tile: Expr) -> Expr:
        return (tile % rows * sms + (CLUSTER_RANK if pair else 0)) * tm

    with kernel.role("epilogue", warps=4, registers=128) as r:
        with r.when(WARP.equals(0)):
            r.tcgen05_alloc()
        start(r)

        def results(tile: Expr, turn: Expr) -> None:
            part, twice = RegisterTile("part", (32, tk), "bf16"), RegisterTile("twice", (32, tk), "bf16")
            with r.loop("k", steps) as i:
                step = turn * steps + i
                r.mbarrier_wait(landed, step % 2, step // 2)
                r.lds(part.whole, sa[step % 2, WARP * 32 : 32, :], 8)
                r.run("fmul", 64, dtype="fp32", dst=twice.whole, srcs=(part.whole,), compute=lambda old, x: 2 * x)
                r.mbarrier_wait(used, 0, step - 1)
                r.tcgen05_fence_after()
                r.tcgen05_st(doubled[0, WARP * 32 : 32, :], twice.whole)
                r.tcgen05_wait_st()
                r.tcgen05_fence_before()
                r.mbarrier_arrive(ready, 0, first)
            out = RegisterTile("out", (32, tn), "fp32")
            r.mbarrier_wait(done, 0, turn)
            r.tcgen05_fence_after()
            r.tcgen05_ld(out.whole, acc[0, WARP * 32 : 32, :])
            r.tcgen05_wait_ld()
            r.tcgen05_fence_before()
            r.mbarrier_arrive(free, 0, first)
            r.stg(c[row(tile) + WARP * 32 : 32, tile // rows * tn : tn], out.whole)

        tiles(r, results)
        r.bar_sync(1, 4)
        with r.when(WARP.equals(0)):
            r.tcgen05_dealloc()
        if pair:
            r.cluster_sync()
    with kernel.role("producer", warps=1, registers=128) as r:
        start(r)

        def loads(tile: Expr, turn: Expr) -> None:
            if clc:
                r.mbarrier_expect(asked, 0, 16)
                with r.when(CLUSTER_RANK.equals(0)):
                    r.mbarrier_wait(answered, 0, turn - 1)
                    r.try_cancel(answer.stage(), asked, 0, both)
            with r.loop("k", steps) as i:
                step = turn * steps + i
                stage = step % 2
                r.mbarrier_wait(empty, stage, step // 2 - 1)
                with r.when(CLUSTER_RANK.equals(0)):
                    r.mbarrier_expect(full, stage, sms * (sa.stage_bytes + sb.stage_bytes))
                r.tma_load(sa.stage(stage), a[row(tile) : tm, i * tk : tk], full, stage, pair=pair)
                column = tile // rows * tn + (CLUSTER_RANK * (tn // sms) if pair else 0)
                r.tma_load(sb.stage(stage), b[i * tk : tk, column : tn // sms], full, stage, pair=pair)

        tiles(r, loads)
        if pair:
            r.cluster_sync()
    with kernel.role("mma", warps=1, registers=128) as r:
        start(r)

        def products(tile: Expr, turn: Expr) -> None:
            with r.when(CLUSTER_RANK.equals(0)):
                r.mbarrier_wait(free, 0, turn - 1)
                r.tcgen05_fence_after()
                with r.loop("k", steps) as i:
                    step = turn * steps + i
                    stage = step % 2
                    second = sb.stage(stage)
                    r.mbarrier_wait(full, stage, step // 2)
                    shape: Any = {"shape": f"m{tm * sms}n{tn}k16", "dtype": "bf16", "count": 4, "pair": pair}
                    r.tcgen05_mma(acc.stage(), sa.stage(stage), second, accumulate=i > 0, **shape)
                    r.mbarrier_arrive(landed, stage, both)
                    r.mbarrier_wait(ready, 0, step)
                    r.tcgen05_fence_after()
                    r.tcgen05_mma(acc.stage(), doubled.stage(), second, **shape)
                    if not pair:
                        r.tcgen05_cp(copied.stage(), sa.stage(stage), 8)
                        r.tcgen05_mma(acc.stage(), copied.stage(), second, **shape)
                    r.tcgen05_commit(used, 0, both)
                    r.tcgen05_commit(empty, stage, both)
                r.tcgen05_commit(done, 0, both)

        tiles(r, products)
        if pair:
            r.cluster_sync()
    return Program("tensor_gemm", (a, b, c), (kernel.build(),), "tcgen05")
