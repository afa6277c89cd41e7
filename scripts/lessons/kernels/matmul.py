"""The same product in Triton, as lessons show it: by pointers, by tensor maps, and without tensor cores."""

import triton
import triton.language as tl


@triton.jit
def by_pointers(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    """c = a b in tiles; rows of a, b and c lie one behind the other."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    at_a = a + rows[:, None] * k + depth[None, :]
    at_b = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot(tl.load(at_a), tl.load(at_b), total, input_precision=PRECISION)
        at_a += BK
        at_b += BK * n
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def by_rows(a, b, c, m, n, k, BN: tl.constexpr, BK: tl.constexpr):
    """A row of c for each program: what is loaded is used once."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BN,), dtype=tl.float32)
    for at in range(0, k, BK):
        left = tl.load(a + row * k + at + depth)
        right = tl.load(b + (at + depth)[:, None] * n + columns[None, :])
        total += tl.sum(left[:, None].to(tl.float32) * right, axis=0)
    tl.store(c + row * n + columns, total.to(c.dtype.element_ty))


@triton.jit
def by_tensor_maps(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a b by the TMA: addresses are coordinates."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, k, BK):
        total = tl.dot(a.load([row, at]), b.load([at, column]), total)
    c.store([row, column], total.to(tl.float16))
