"""Softmax of short rows: a warp reads 32 of them and turns them in shared memory, so that each thread has a row."""

import numpy as np

from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile


def softmax(rows: int, cols: int, pad: int = 0) -> Program:
    """`pad`: bytes behind each row of the tile; without any, all threads read and write one bank."""
    x = GlobalTensor("x", (rows, cols), "fp32", strides=(cols, 1))
    y = GlobalTensor("y", (rows, cols), "fp32", strides=(cols, 1), role="output")
    kernel = KernelBuilder("softmax", grid=(rows // 128, 1, 1))
    tile = kernel.shared("tile", (128, cols), "fp32", pad_bytes=pad)
    row = CTA_X * 128 + WARP * 32
    with kernel.role("warps", warps=4, registers=128) as r:
        line = RegisterTile("line", (32, cols), "fp32")
        r.ldg(line.whole, x[row:32, :], into="loaded", vector_bytes=4)
        r.sts(tile[0, WARP * 32 : 32, :], line.whole, after=("loaded",), vector_bytes=4)
        r.bar_sync(0, 4)
        mine = RegisterTile("mine", (cols, 32), "fp32")  # thread t has row t
        r.lds(mine.whole, tile[0, WARP * 32 : 32, :].T, vector_bytes=4)
        top, total = (RegisterTile(name, (1, 32), "fp32") for name in ("top", "total"))
        whole, one = (mine.whole,), (total.whole,)
        r.run("fmnmx", cols, dtype="fp32", dst=top.whole, srcs=whole, compute=lambda _, v: v.max(axis=0, keepdims=True))
        r.run("fadd", cols, dtype="fp32", dst=mine.whole, srcs=(*whole, top.whole), compute=lambda _, v, t: v - t)
        r.run("ex2", cols, dtype="fp32", dst=mine.whole, srcs=whole, compute=lambda _, v: np.exp(v))
        r.run(
            "fadd", cols, dtype="fp32", dst=total.whole, srcs=whole, compute=lambda _, v: v.sum(axis=0, keepdims=True)
        )
        r.run("rcp", 1, dtype="fp32", dst=total.whole, srcs=one, compute=lambda _, t: 1 / t)
        r.run("fmul", cols, dtype="fp32", dst=mine.whole, srcs=(*whole, *one), compute=lambda _, v, t: v * t)
        r.sts(tile[0, WARP * 32 : 32, :].T, mine.whole, vector_bytes=4)
        r.bar_sync(0, 4)
        back = RegisterTile("back", (32, cols), "fp32")
        r.lds(back.whole, tile[0, WARP * 32 : 32, :], vector_bytes=4)
        r.stg(y[row:32, :], back.whole, vector_bytes=4)

    def reference(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    schedule = f"turned in shared memory, pad {pad}"
    return Program("softmax", (x, y), (kernel.build(),), schedule=schedule, reference=reference)
