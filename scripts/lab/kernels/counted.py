"""Kernels in Triton whose instructions others have counted (`scripts/lab/instruction_mix.py`), as people write them."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """out = x + y (tutorial 1)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(out, x, in_stride, out_stride, columns, BLOCK: tl.constexpr):
    """A row of x, held in registers."""
    row = tl.program_id(0)
    start = x + row * in_stride
    at = tl.arange(0, BLOCK)
    values = tl.load(start + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    result = powers / tl.sum(powers, axis=0)
    start = out + row * out_stride
    tl.store(start + at, result, mask=at < columns)


@triton.jit
def layer_norm(x, y, w, b, stride, n, eps, BLOCK: tl.constexpr):
    """A row of layer norm, held in registers."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    average = tl.sum(value, axis=0) / n
    centred = tl.where(inside, value - average, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / n + eps)
    weight = tl.load(w + at, mask=inside).to(tl.float32)
    bias = tl.load(b + at, mask=inside).to(tl.float32)
    tl.store(y + row * stride + at, centred * scale * weight + bias, mask=inside)


@triton.jit
def rms_norm(x, y, w, stride, n, eps, BLOCK: tl.constexpr):
    """A row of RMS norm, held in registers."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / n + eps)
    weight = tl.load(w + at, mask=inside).to(tl.float32)
    tl.store(y + row * stride + at, value * scale * weight, mask=inside)


@triton.jit
def softmax_rows(out, x, in_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Row after row of x, the next ones on their way (tutorial 2)."""
    first = tl.program_id(0)
    for row in tl.range(first, rows, tl.num_programs(0), num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        inside = at < columns
        values = tl.load(x + row * in_stride + at, mask=inside, other=-float("inf")).to(tl.float32)
        powers = tl.exp(values - tl.max(values, axis=0))
        total = tl.sum(powers, axis=0)
        places = out + row * out_stride + at
        tl.store(places, powers / total, mask=inside)


@triton.jit
def layer_norm_passes(x, y, w, b, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    """A row of layer norm in three sweeps over it (tutorial 5)."""
    row = tl.program_id(0)
    y += row * stride
    x += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    average = tl.sum(total, axis=0) / n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
        value = tl.where(at < n, value - average, 0.0)
        total += value * value
    scale = 1 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < n
        weight = tl.load(w + at, mask=inside)
        bias = tl.load(b + at, mask=inside)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + at, (value - average) * scale * weight + bias, mask=inside)


@triton.jit
def matmul_tma(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
               GROUP_M: tl.constexpr):  # fmt: skip
    """c = a @ b.T by tensor maps, by groups of rows of tiles."""
    program = tl.program_id(axis=0)
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    in_group = GROUP_M * columns
    group = program // in_group
    first = group * GROUP_M
    height = min(rows - first, GROUP_M)
    row = (first + (program % in_group) % height) * BLOCK_M
    column = ((program % in_group) // height) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for at in range(0, tl.cdiv(k, BLOCK_K)):
        total = tl.dot(a.load([row, at * BLOCK_K]), b.load([column, at * BLOCK_K]).T, total)
    c.store([row, column], total.to(tl.float16))
