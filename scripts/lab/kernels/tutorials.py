"""Kernels of Triton's tutorials, as users write them; each says which tutorial it is of."""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """c = a @ b, by groups of rows of tiles (tutorial 3)."""
    program = tl.program_id(axis=0)
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    in_group = GROUP_M * columns
    group = program // in_group
    first = group * GROUP_M
    height = min(rows - first, GROUP_M)
    at_m = first + (program % in_group) % height
    at_n = (program % in_group) // height
    row = (at_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    column = (at_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    step = tl.arange(0, BLOCK_K)
    a_at = a + (row[:, None] * stride_am + step[None, :] * stride_ak)
    b_at = b + (step[:, None] * stride_bk + column[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for at in range(0, tl.cdiv(k, BLOCK_K)):
        a_tile = tl.load(a_at, mask=step[None, :] < k - at * BLOCK_K, other=0.0)
        b_tile = tl.load(b_at, mask=step[:, None] < k - at * BLOCK_K, other=0.0)
        total = tl.dot(a_tile, b_tile, total)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    row = at_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = at_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_at = c + stride_cm * row[:, None] + stride_cn * column[None, :]
    tl.store(c_at, total.to(tl.float16), mask=(row[:, None] < m) & (column[None, :] < n))


@triton.jit
def softmax(out, x, in_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Rows of x, by programs that do one after the other (tutorial 2)."""
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * in_stride + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * out_stride + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def layer_norm(x, y, w, b, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    """y = (x - mean) * rstd * w + b of a row, in three sweeps over it (tutorial 5)."""
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
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        normal = (value - average) * scale
        tl.store(y + at, normal * tl.load(w + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


@triton.jit
def _sweep(acc, total, most, q, k_at, v_at, stride_kn, stride_vn, row, first, last, scale,
           BLOCK_N: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    at = tl.arange(0, BLOCK_N)
    k_at += first * stride_kn
    v_at += first * stride_vn
    for begin in range(first, last, BLOCK_N):
        begin = tl.multiple_of(begin, BLOCK_N)
        scores = tl.dot(q, tl.load(k_at))
        if MASKED:
            scores = scores * scale + tl.where(row[:, None] >= (begin + at[None, :]), 0, -1.0e6)
            above = tl.maximum(most, tl.max(scores, 1))
            scores -= above[:, None]
        else:
            above = tl.maximum(most, tl.max(scores, 1) * scale)
            scores = scores * scale - above[:, None]
        p = tl.math.exp2(scores)
        alpha = tl.math.exp2(most - above)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(tl.float16), tl.load(v_at), acc)
        total = total * alpha + tl.sum(p, 1)
        most = above
        k_at += BLOCK_N * stride_kn
        v_at += BLOCK_N * stride_vn
    return acc, total, most


@triton.jit
def attention(q, k, v, lse, out, scale, stride_z, stride_h, stride_n, heads, tokens,
              HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """softmax(q k^T) v of blocks of queries (tutorial 6), by pointers. scale: of exp2."""
    block, head = tl.program_id(0), tl.program_id(1)
    base = (head // heads).to(tl.int64) * stride_z + (head % heads).to(tl.int64) * stride_h
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    key, part = tl.arange(0, BLOCK_N), tl.arange(0, HEAD)
    own = row[:, None] * stride_n + part[None, :]
    k_at = k + base + part[:, None] + key[None, :] * stride_n
    v_at = v + base + key[:, None] * stride_n + part[None, :]
    most = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    queries = tl.load(q + base + own)
    if CAUSAL:
        acc, total, most = _sweep(acc, total, most, queries, k_at, v_at, stride_n, stride_n, row, 0, block * BLOCK_M,
                                  scale, BLOCK_N, False)  # fmt: skip
        acc, total, most = _sweep(acc, total, most, queries, k_at, v_at, stride_n, stride_n, row, block * BLOCK_M,
                                  (block + 1) * BLOCK_M, scale, BLOCK_N, True)  # fmt: skip
    else:
        acc, total, most = _sweep(acc, total, most, queries, k_at, v_at, stride_n, stride_n, row, 0, tokens, scale,
                                  BLOCK_N, False)  # fmt: skip
    tl.store(lse + head * tokens + row, most + tl.math.log2(total))
    tl.store(out + base + own, (acc / total[:, None]).to(tl.float16))


@triton.jit
def _sweep_2024(acc, total, most, q, k_at, v_at, row, first, last, scale, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    at = tl.arange(0, BLOCK_N)
    k_at = tl.advance(k_at, (0, first))
    v_at = tl.advance(v_at, (first, 0))
    for begin in range(first, last, BLOCK_N):
        begin = tl.multiple_of(begin, BLOCK_N)
        scores = tl.dot(q, tl.load(k_at))
        if MASKED:
            scores = scores * scale + tl.where(row[:, None] >= (begin + at[None, :]), 0, -1.0e6)
            above = tl.maximum(most, tl.max(scores, 1))
            scores -= above[:, None]
        else:
            above = tl.maximum(most, tl.max(scores, 1) * scale)
            scores = scores * scale - above[:, None]
        p = tl.math.exp2(scores)
        sums = tl.sum(p, 1)
        alpha = tl.math.exp2(most - above)
        total = total * alpha + sums
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(tl.float16), tl.load(v_at), acc)
        most = above
        v_at = tl.advance(v_at, (BLOCK_N, 0))
        k_at = tl.advance(k_at, (0, BLOCK_N))
    return acc, total, most


@triton.jit
def attention_2024(q, k, v, lse, out, scale, stride_qz, stride_qh, stride_qm, stride_kz, stride_kh, stride_kn,
                   stride_vz, stride_vh, stride_vn, stride_oz, stride_oh, stride_om, heads, TOKENS: tl.constexpr,
                   HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """`attention` by block pointers, as tutorial 6 had it in 2024."""
    block, head = tl.program_id(0), tl.program_id(1)
    base = (head // heads).to(tl.int64) * stride_qz + (head % heads).to(tl.int64) * stride_qh
    q_at = tl.make_block_ptr(q + base, (TOKENS, HEAD), (stride_qm, 1), (block * BLOCK_M, 0), (BLOCK_M, HEAD), (1, 0))
    k_at = tl.make_block_ptr(k + base, (HEAD, TOKENS), (1, stride_kn), (0, 0), (HEAD, BLOCK_N), (0, 1))
    v_at = tl.make_block_ptr(v + base, (TOKENS, HEAD), (stride_vn, 1), (0, 0), (BLOCK_N, HEAD), (1, 0))
    out_at = tl.make_block_ptr(
        out + base, (TOKENS, HEAD), (stride_om, 1), (block * BLOCK_M, 0), (BLOCK_M, HEAD), (1, 0)
    )
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    most = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    scale *= 1.44269504
    queries = tl.load(q_at)
    if CAUSAL:
        acc, total, most = _sweep_2024(acc, total, most, queries, k_at, v_at, row, 0, block * BLOCK_M, scale,
                                       BLOCK_N, False)  # fmt: skip
        acc, total, most = _sweep_2024(acc, total, most, queries, k_at, v_at, row, block * BLOCK_M,
                                       (block + 1) * BLOCK_M, scale, BLOCK_N, True)  # fmt: skip
    else:
        acc, total, most = _sweep_2024(acc, total, most, queries, k_at, v_at, row, 0, TOKENS, scale, BLOCK_N, False)
    tl.store(lse + head * TOKENS + row, most + tl.math.log2(total))
    tl.store(out_at, (acc / total[:, None]).to(tl.float16))
