"""Long launches of attention of which whole heads of some sequences are simulated, the rest at their pace.

Sequences and heads do the same work where lengths are equal, and a CTA reads no other's results.
"""

from __future__ import annotations

from dataclasses import replace

from sim.gpu.language import Kernel
from workloads.gpu.attention.blocks import AttentionProblem
from workloads.gpu.gemm.problem import ceil_div

MOST_STEPS = 100_000
"""Blocks of keys that CTAs work on, about, in what is simulated of a longer launch: some 3 ms on A100."""
LEAST_HEADS = 8
"""Of all sequences together, so that the pace is taken where CTAs are in all parts of their heads."""


def steps_of_head(p: AttentionProblem, block_m: int, block_n: int) -> int:
    """Blocks of keys that all CTAs of one head of one sequence work on."""
    op = p.op
    before = op.keys - op.queries  # keys that the first query's own comes after
    ahead = 0 if op.causal == "1" else op.window - 1 if op.window else op.keys + op.queries
    steps = 0
    for first in range(0, op.queries, block_m):
        end = min(op.keys, first + block_m + before + ahead)
        begin = max(0, first + before - op.window + 1) if op.window else 0
        steps += max(0, ceil_div(end, block_n) - begin // block_n)
    return steps


def sampled(kernel: Kernel, p: AttentionProblem, block_m: int, block_n: int) -> Kernel:
    """The kernel, whose grid has tiles, sequences, heads; where it is long, with fewer sequences and heads.

    Heads that share keys stay together.
    """
    if p.ragged or p.ragged_q:
        return kernel
    tiles, batch, heads = kernel.grid
    wanted = max(LEAST_HEADS, ceil_div(MOST_STEPS, max(1, steps_of_head(p, block_m, block_n))))
    group = p.op.heads // p.op.key_heads
    kept_heads = min(heads, group * ceil_div(wanted, batch * group))
    kept_batch = min(batch, ceil_div(wanted, kept_heads))
    if 3 * kept_batch * kept_heads > 2 * batch * heads:
        return kernel
    return replace(kernel, grid=(tiles, kept_batch, kept_heads), stands_for=kernel.ctas)
