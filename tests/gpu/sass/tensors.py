"""Triton kernels with the number formats that tensors have: labels of 64 bits, packed bytes; and a long scan."""

import triton
import triton.language as tl


@triton.jit
def dequant(q, s, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]  # q: two values of four bits a byte; s: one scale for 64 values
    o = tl.program_id(0) * B + tl.arange(0, B)
    b = tl.load(q + o, mask=o < n)
    c = tl.load(s + o // 32, mask=o < n)
    w = tl.interleave(((b & 15).to(tl.float16) - 8) * c, ((b >> 4).to(tl.float16) - 8) * c)
    p = tl.program_id(0) * 2 * B + tl.arange(0, 2 * B)
    tl.store(out + p, w, mask=p < 2 * n)


@triton.jit
def cross_entropy(x, label, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    r = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + r * n + o, mask=o < n, other=-1e9)
    m = tl.max(v, 0)
    tl.store(out + r, m + tl.log(tl.sum(tl.exp(v - m), 0)) - tl.load(x + r * n + tl.load(label + r)))


@triton.jit
def scan(x, out, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
    r = tl.program_id(0)
    o = tl.arange(0, B)
    tl.store(out + r * n + o, tl.cumsum(tl.load(x + r * n + o, mask=o < n), 0), mask=o < n)
