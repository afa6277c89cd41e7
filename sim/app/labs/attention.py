"""Lab 5, softmax and FlashAttention: one sweep instead of three, scores that never reach memory, a mask that saves."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.app.labs import NOT_ANSWERED, Answers, Task, Wrong, judge
from sim.gpu.language import (
    CTA_X,
    CTA_Y,
    WARP,
    GlobalTensor,
    IntLike,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
)

Array = NDArray[np.floating]
Merge = Callable[[Any, Any, Any], Any]

MACHINE = "a100-sxm4-80gb"
HEAD_DIM, BLOCK = 64, 64
HEADS, SEQ, SMALL_SEQ = 8, 1024, 256
"""Of the attention that is timed, and the length of that whose numbers are compared."""
ROWS, COLUMNS, SMALL_ROWS = 4096, 1024, 16
CYCLES_OVER_THREE_SWEEPS = 0.85
SPARE_BYTES = 256 << 10
SHAPES = ((16, 2048, 64), (1, 8192, 128), (32, 512, 64))


def _fused(heads: int, seq: int, head_dim: int) -> float:
    return 4 * heads * seq * head_dim * 2


def _unfused(heads: int, seq: int, head_dim: int) -> float:
    return _fused(heads, seq, head_dim) + 4 * heads * seq * seq * 2


def traffic(answers: Answers) -> None:
    """`fused_bytes` and `unfused_bytes`: what attention moves at least, without and with scores in memory."""
    judge.agrees(answers, "fused_bytes", _fused, SHAPES, "Q, K, V are read and O is written, 2 bytes a number")
    hint = "the scores are written, read, written as weights, and read again"
    judge.agrees(answers, "unfused_bytes", _unfused, SHAPES, hint)


# ------------------------------------------------------------------------------------------------ online softmax


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(scale=4.0, size=shape)


def merge(answers: Answers) -> None:
    """`merge(top, total, scores)`: what a softmax that sees a block of a row at a time keeps."""
    for seed, blocks in ((1, 1), (2, 2), (3, 5)):
        scores = _random(seed, 8, 32 * blocks) + 20 * np.arange(blocks).repeat(32)
        top, total, kept = np.full(8, -np.inf), np.zeros(8), np.zeros((8, 0))
        for part in np.split(scores, blocks, axis=1):
            found = judge.call(answers, "merge", top, total, part)
            if found is None:
                raise Wrong(f"merge returns nothing: {NOT_ANSWERED}")
            if not isinstance(found, tuple) or len(found) != 4:
                raise Wrong("merge has to return four arrays: top, total, weights, factor")
            top, total, weights, factor = found
            if np.shape(factor) != (8,) or np.shape(weights) != part.shape:
                raise Wrong("merge: weights have the shape of the scores, top, total and factor are a number a row")
            kept = np.concatenate([kept * np.asarray(factor)[:, None], weights], axis=1)
        exact = np.exp(scores - scores.max(axis=1, keepdims=True))
        if not np.allclose(top, scores.max(axis=1)):
            raise Wrong(f"after {blocks} blocks top is not the largest score of the row")
        if not np.allclose(kept, exact) or not np.allclose(total, exact.sum(axis=1)):
            raise Wrong(
                f"after {blocks} blocks the weights are not those of a softmax: what becomes of the earlier ones?"
            )


# ------------------------------------------------------------------------------------------------ a softmax


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def three_sweeps(rows: int, cols: int) -> Program:
    """A softmax that reads its rows three times: maximum, sum, result. A warp a row."""
    x = GlobalTensor("x", (rows, cols), "fp32", strides=(cols, 1))
    y = GlobalTensor("y", (rows, cols), "fp32", strides=(cols, 1), role="output")
    kernel = KernelBuilder("three_sweeps", grid=(rows // 4, 1, 1))
    row, part = CTA_X * 4 + WARP, 128
    with kernel.role("warps", warps=4, registers=64) as r:
        v = RegisterTile("v", (1, part), "fp32")
        top, total = RegisterTile("top", (1, 1), "fp32"), RegisterTile("total", (1, 1), "fp32")
        r.run("fadd", 1, dtype="fp32", dst=top.whole, compute=lambda old: np.full((1, 1), -np.inf))
        r.run("fadd", 1, dtype="fp32", dst=total.whole, compute=lambda old: np.zeros((1, 1)))
        with r.loop("first", cols // part) as i:
            r.ldg(v.whole, x[row, i * part : part], into="v", vector_bytes=16)  # type: ignore[misc]
            r.run(
                "fmnmx", 4, dtype="fp32", dst=top.whole, srcs=(v.whole,), after=("v",),
                compute=lambda old, v: np.maximum(old, v.max()),
            )  # fmt: skip
        across_lanes(r, top)
        with r.loop("second", cols // part) as i:
            r.ldg(v.whole, x[row, i * part : part], into="v", vector_bytes=16)  # type: ignore[misc]
            r.run(
                "ex2", 4, dtype="fp32", dst=v.whole, srcs=(v.whole, top.whole), after=("v",),
                compute=lambda old, v, m: np.exp(v - m),
            )  # fmt: skip
            r.run("fadd", 4, dtype="fp32", dst=total.whole, srcs=(v.whole,), compute=lambda old, v: old + v.sum())
        across_lanes(r, total)
        with r.loop("third", cols // part) as i:
            r.ldg(v.whole, x[row, i * part : part], into="v", vector_bytes=16)  # type: ignore[misc]
            r.run(
                "ex2", 4, dtype="fp32", dst=v.whole, srcs=(v.whole, top.whole, total.whole), after=("v",),
                compute=lambda old, v, m, s: np.exp(v - m) / s,
            )  # fmt: skip
            r.stg(y[row, i * part : part], v.whole, vector_bytes=16)  # type: ignore[misc]
    return Program("softmax", (x, y), (kernel.build(),), "three sweeps", reference=_softmax)


def across_lanes(r: RoleBuilder, tile: RegisterTile) -> None:
    """The five shuffles by which 32 threads combine a number each."""
    r.run("shfl", 5, dtype="b32", dst=tile.whole, srcs=(tile.whole,), chain=5, compute=lambda old, v: v)


@cache
def _three_sweeps_cycles() -> int:
    return judge.ran(three_sweeps(ROWS, COLUMNS), MACHINE).cycles


def softmax(answers: Answers) -> int:
    """`softmax(rows, cols)`: a kernel that reads each row once."""

    def made(rows: int) -> Program:
        shape = (rows, COLUMNS)
        return judge.gpu_program(answers, "softmax", (rows, COLUMNS), [shape, shape], _softmax)

    judge.checked(made(SMALL_ROWS), MACHINE)
    report = judge.ran(made(ROWS), MACHINE)
    size = 4 * ROWS * COLUMNS
    if judge.counter(report, "l1_read_bytes") > size + SPARE_BYTES:
        share = judge.counter(report, "l1_read_bytes") / size
        raise Wrong(f"your kernel loads {share:.2f} times the matrix: does a row fit into the registers of a warp?")
    if judge.counter(report, "inst_mufu") < ROWS * COLUMNS // 32:
        raise Wrong("an exponential for each element needs an ex2 for each 32 of them")
    if report.cycles > CYCLES_OVER_THREE_SWEEPS * _three_sweeps_cycles():
        raise Wrong(f"your kernel takes {report.cycles} cycles, three sweeps {_three_sweeps_cycles()}")
    return report.cycles


# ------------------------------------------------------------------------------------------------ attention


def attention(heads: int, seq: int, blocks: Callable[[IntLike], IntLike], merge: Merge) -> Program:
    """Causal attention: a CTA has 64 queries of a head, and goes through blocks of 64 keys.

    blocks: how many of them the `tile`-th tile of queries visits. merge: as the lab asks for it.
    """
    q, k, v, o = (
        GlobalTensor(
            name, (heads, seq, HEAD_DIM), "bf16", (seq * HEAD_DIM, HEAD_DIM, 1), "output" if name == "o" else "input"
        )
        for name in "qkvo"
    )
    kernel = KernelBuilder("attention", grid=(seq // BLOCK, heads, 1))
    q_tile, k_tile, v_tile = (kernel.shared(f"{n}_tile", (BLOCK, HEAD_DIM), "bf16", swizzle_bytes=128) for n in "qkv")

    def step(_: Array, state: Array, scores: Array) -> Array:
        top, total, weights, factor = merge(state[:, 0], state[:, 1], scores)
        return np.concatenate([top[:, None], total[:, None], factor[:, None], weights], axis=1)

    def masked(scores: Array, row: int, column: int) -> Array:
        seen = row + np.arange(16)[:, None] >= column + np.arange(BLOCK)[None, :]
        return np.where(seen, scores, -np.inf)

    with kernel.role("warps", warps=4, registers=168) as r:
        q_part = RegisterTile("q_part", (16, HEAD_DIM), "bf16")
        k_part, v_part = (RegisterTile(f"{n}_part", (HEAD_DIM, BLOCK), "bf16") for n in "kv")
        scores, weights = RegisterTile("scores", (16, BLOCK), "fp32"), RegisterTile("weights", (16, BLOCK), "bf16")
        acc, out = RegisterTile("acc", (16, HEAD_DIM), "fp32"), RegisterTile("out", (16, HEAD_DIM), "bf16")
        state, merged = RegisterTile("state", (16, 2), "fp32"), RegisterTile("merged", (16, 3 + BLOCK), "fp32")
        own = WARP * 16
        row = CTA_X * BLOCK + own
        r.cp_async(q_tile[0, own:16, :], q[CTA_Y, row:16, :], vector_bytes=16)  # type: ignore[misc]
        r.cp_commit()
        r.run("fadd", 1, dtype="fp32", dst=state.whole, compute=lambda old: np.tile([-np.inf, 0.0], (16, 1)))
        r.cp_wait(0)
        r.ldmatrix(q_part.whole, q_tile[0, own:16, :])  # type: ignore[misc]
        with r.loop("block", blocks(CTA_X)) as block:
            r.bar_sync(0, 4)  # nobody reads the block before this one any more
            for tile, tensor in ((k_tile, k), (v_tile, v)):
                r.cp_async(tile[0, own:16, :], tensor[CTA_Y, block * BLOCK + own : 16, :], vector_bytes=16)  # type: ignore[misc]
            r.cp_commit()
            r.cp_wait(0)
            r.bar_sync(0, 4)
            r.ldmatrix(k_part.whole.T, k_tile[0, :, :])
            r.mma(scores.whole, q_part.whole, k_part.whole, shape="m16n8k16", dtype="bf16", accumulate=0)
            with r.when(block >= CTA_X):  # the block on the diagonal, and any beyond
                r.run("fmnmx", 32, dtype="fp32", dst=scores.whole, indices=(row, block * BLOCK), compute=masked)
            r.run(
                "ex2", 32, dtype="fp32", dst=merged.whole, srcs=(state.whole, scores.whole), compute=step,
                mix=(("fmnmx.fp32", 32), ("fadd.fp32", 64)),
            )  # fmt: skip
            r.run("fadd", 1, dtype="fp32", dst=state.whole, srcs=(merged[:, 0:2],), compute=lambda old, x: x)
            r.run(
                "fmul", 32, dtype="fp32", dst=acc.whole, srcs=(merged[:, 2:1],),
                compute=lambda old, f: np.where(f == 0, 0, old * f),
            )  # fmt: skip
            r.run("cvt", 16, dtype="bf16", dst=weights.whole, srcs=(merged[:, 3:BLOCK],), compute=lambda old, x: x)
            r.ldmatrix(v_part.whole, v_tile[0, :, :])
            r.mma(acc.whole, weights.whole, v_part.whole, shape="m16n8k16", dtype="bf16", accumulate=block > 0)
        r.run(
            "fmul", 32, dtype="fp32", dst=out.whole, srcs=(acc.whole, state.whole), compute=lambda _, a, s: a / s[:, 1:]
        )
        r.stg(o[CTA_Y, row:16, :], out.whole, vector_bytes=4)  # type: ignore[misc]
    return Program("attention", (q, k, v, o), (kernel.build(),), "by blocks", reference=_attention)


def _attention(q: Array, k: Array, v: Array) -> Array:
    scores = np.where(np.tri(q.shape[-2]) > 0, q @ k.swapaxes(-1, -2), -np.inf)
    return np.asarray(_softmax(scores) @ v)


def causal(answers: Answers) -> None:
    """`blocks(tile)`: blocks of keys that a tile of queries needs under a causal mask; the kernel runs with it."""
    found = judge.call(answers, "blocks", CTA_X)
    if found is None:
        raise Wrong(f"blocks returns nothing: {NOT_ANSWERED}")

    def blocks(tile: IntLike) -> IntLike:
        return judge.call(answers, "blocks", tile)  # type: ignore[no-any-return]

    def merged(top: Array, total: Array, scores: Array) -> Any:
        return judge.call(answers, "merge", top, total, scores)

    merge(answers)
    judge.checked(attention(1, SMALL_SEQ, blocks, merged), MACHINE)
    report = judge.ran(attention(HEADS, SEQ, blocks, merged), MACHINE)
    tiles = SEQ // BLOCK
    least = HEADS * tiles * (tiles + 1) // 2 * BLOCK * BLOCK * HEAD_DIM * 2
    if judge.counter(report, "macs") > least:
        raise Wrong(
            f"{judge.counter(report, 'macs') / least:.2f} times the work that is needed: which blocks see nothing?"
        )


TASKS = (
    Task("what attention moves", 2, ("fused_bytes", "unfused_bytes"), traffic),
    Task("a softmax in one sweep", 4, ("softmax",), softmax),
    Task("merging blocks of scores", 3, ("merge",), merge),
    Task("attention by blocks", 3, ("merge", "blocks"), causal),
)
