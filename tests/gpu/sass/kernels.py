# mypy: ignore-errors
"""Kernels in Triton whose disassembly the tests read; `scripts/lab/compile_fixtures.py` makes it."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def softmax(out, rows, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * stride
    at = tl.arange(0, BLOCK)
    values = tl.load(rows + row + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    a_at = a + row[:, None] * k + step[None, :]
    b_at = b + step[:, None] * n + column[None, :]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, k, BK):
        a_tile = tl.load(a_at, mask=(row[:, None] < m) & (step[None, :] < k - at), other=0.0)
        b_tile = tl.load(b_at, mask=(step[:, None] < k - at) & (column[None, :] < n), other=0.0)
        sums = tl.dot(a_tile, b_tile, sums)
        a_at += BK
        b_at += BK * n
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], sums.to(tl.float16), mask=inside)


@triton.jit
def matmul_tma(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b.T, by tensor maps."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, k, BK):
        total = tl.dot(a.load([row, at]), b.load([column, at]).T, total)
    c.store([row, column], total.to(tl.float16))


@triton.jit
def gather(x, index, out, BLOCK: tl.constexpr):
    """out = x[index]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + tl.load(index + at)))


@triton.jit
def matmul_fp8(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b.T of one tile; k is the length of both rows."""
    row, column, step = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    a_at = a + row[:, None] * k + step[None, :]
    b_at = b + step[:, None] + column[None, :] * k
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, k, BK):
        sums = tl.dot(tl.load(a_at), tl.load(b_at), sums)
        a_at += BK
        b_at += BK
    tl.store(c + row[:, None] * BN + column[None, :], sums.to(c.dtype.element_ty))
