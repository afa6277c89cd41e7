"""What every configuration of an attention kernel answers, and the estimate that most of them share."""

from __future__ import annotations

from typing import ClassVar

from arch.gpu import GpuSpec
from workloads.gpu.attention.blocks import AttentionProblem
from workloads.gpu.configuration import Configuration
from workloads.gpu.figures import figures, transfer
from workloads.gpu.gemm.problem import ceil_div


class AttentionConfig(Configuration):
    """A configuration of a kernel, or of several, that computes attention."""

    schedule: ClassVar[str]

    def check(self, p: AttentionProblem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        raise NotImplementedError

    def estimate_ps(self, p: AttentionProblem, spec: GpuSpec) -> int:
        """About the time in picoseconds, from counts of the kernel and figures of the machine."""
        raise NotImplementedError


def rounds_ps(
    p: AttentionProblem, spec: GpuSpec, block_m: int, block_n: int, products: float, overlapped: bool = False
) -> int:
    """Rounds of CTAs, each a start and its steps of products and softmax; nothing is faster than DRAM.

    Args:
        p: the problem.
        spec: the machine.
        block_m: queries of a CTA.
        block_n: keys of a step.
        products: cycles of both products of a step.
        overlapped: whether softmax runs beside them.
    """
    f = figures(spec)
    exponents = block_m * block_n // 32 * spec.instruction("ex2", "fp32", "").interval_cycles
    softmax = 2 * exponents / spec.sm.sub_cores
    step = max(products, softmax) if overlapped else products + softmax
    steps = ceil_div(p.op.pairs, block_m * block_n)
    rounds = max(ceil_div(steps * p.op.batch * p.op.heads, spec.sm.count), ceil_div(p.op.keys, block_n))
    moved = 0 if p.op.window or p.op.page else transfer(p.op.operand_bytes, f.dram_rate)  # all keys are read
    cycles = f.start + 3 * f.load_latency + max(int(rounds * step), moved)
    return f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)
