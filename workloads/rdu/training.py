"""One training step of a decoder layer as a sequence of programs: the forward pass in sections, the backward pass by
operators.

The backward pass is not fused: every operator is a section of its own and passes its result through memory, as the
compiler's fallback would. Norms stand as their element-by-element operations; their row sums, the turn of rotary
positions, the loss and the optimizer are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from workloads.graphs.llama import MODELS, Llama
from workloads.ops import Gemm, Operator, Pointwise, Softmax, SoftmaxBackward


class Step(NamedTuple):
    """An operator of the step, the schedule to run it with, and how often it runs."""

    name: str
    op: Operator
    schedule: str = "auto"
    times: int = 1


def training_step(model: str, seq: int, dtype: str = "bf16") -> list[Step]:
    """Forward and backward pass of one sequence through one layer."""
    m = MODELS[model]
    d = m.hidden // m.heads
    width = (m.heads + 2 * m.kv_heads) * d

    def gradients(name: str, k: int, n: int) -> list[Step]:
        """Of Y = X W with X [seq, k] and W [k, n]: dX = dY W^T, dW = X^T dY."""
        return [
            Step(f"{name}: dX", Gemm(m=seq, n=k, k=n, tb="T", dtype=dtype)),
            Step(f"{name}: dW", Gemm(m=k, n=n, k=seq, ta="T", dtype=dtype)),
        ]

    def heads(m_: int, n: int, k: int, ta: str = "N", tb: str = "N") -> Gemm:
        return Gemm(m=m_, n=n, k=k, ta=ta, tb=tb, batch=m.heads, dtype=dtype)

    def chain(size: int, *functions: str) -> Pointwise:
        return Pointwise(n=size, chain="+".join(functions), dtype=dtype)

    rows = m.heads * seq
    norm = Step("norm: dx", chain(seq * m.hidden, "mul", "mul", "sub"))
    return [
        Step("forward", Llama(model=model, phase="prefill", seq=seq, dtype=dtype), "cut"),
        *gradients("down", m.ffn, m.hidden),
        Step("silu: dg, du", chain(seq * m.ffn, "silu_backward", "mul"), times=2),
        *gradients("gate", m.hidden, m.ffn),
        *gradients("up", m.hidden, m.ffn),
        norm,
        *gradients("output", m.heads * d, m.hidden),
        Step("attention: S", heads(seq, seq, d, tb="T")),
        Step("attention: P", Softmax(rows=rows, cols=seq, dtype=dtype)),
        Step("attention: dV", heads(seq, d, seq, ta="T")),
        Step("attention: dP", heads(seq, seq, d, tb="T")),
        Step("attention: dS", SoftmaxBackward(rows=rows, cols=seq, dtype=dtype)),
        Step("attention: dQ", heads(seq, d, seq)),
        Step("attention: dK", heads(seq, d, seq, ta="T")),
        *gradients("qkv", m.hidden, width),
        norm,
    ]
