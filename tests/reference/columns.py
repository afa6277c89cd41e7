"""A copy whose warps take columns of a row-major tensor, or rows of it."""

from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile


def columns(n: int, turned: int = 1) -> Program:
    """`turned`: by columns of 32 rows."""
    x = GlobalTensor("x", (n, 256), "fp32", strides=(256, 1))
    y = GlobalTensor("y", (n, 256), "fp32", strides=(256, 1), role="output")
    kernel = KernelBuilder("columns", grid=(n // 128, 1, 1))
    with kernel.role("warps", warps=4, registers=64) as r, r.loop("c", 256 if turned else 32) as c:
        row = CTA_X * 128 + WARP * 32
        if turned:
            v = RegisterTile("v", (32, 1), "fp32")
            r.ldg(v.whole, x[row:32, c:1], into="v", vector_bytes=4)
            r.stg(y[row:32, c:1], v.whole, vector_bytes=4, after=("v",))
        else:
            v = RegisterTile("v", (1, 256), "fp32")
            r.ldg(v.whole, x[row + c, :], into="v", vector_bytes=4)
            r.stg(y[row + c, :], v.whole, vector_bytes=4, after=("v",))
    return Program("columns", (x, y), (kernel.build(),), "by hand", reference=lambda x: x)
