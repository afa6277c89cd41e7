"""What the softmax of attention costs, from V100 to B300: exponentials beside products that became eight times as fast.

From V100 to B200 an SM computes 16 exponentials a cycle (32 on B300), while its tensor cores went from 1024 to 8192
operations. Each machine runs the kernel that was written for it, on as many heads as give all SMs the same work. What
exponentials cost is what goes away where they take next to no time. V100 has no fused kernel here: its softmax is a
kernel of its own.

Published ratios are those of the papers of FlashAttention-3 and FlashAttention-4, quoted from memory. They are reckoned
from rates of units, too, so that they check the machines' figures and nothing that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lesson import Claim, bars, main
from matplotlib.figure import Figure

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.report import palette
from sim.app.run import simulate

TILE, DTYPE = 128, "fp16"
"""Queries, keys and columns of a head in one step."""
FREE = "instructions.ex2.fp32.interval=0.0625 cycles"
"""Exponentials of a warp in next to no time; 4 or 8 cycles otherwise."""
PUBLISHED = {"H100": 0.5, "B200": 1.0}

RUNS = {
    "V100, unfused": ("v100-sxm2", "unfused"),
    "A100, FlashAttention-2": ("a100-sxm4-80gb", "flash2"),
    "H100, FlashAttention-3": ("h100-sxm", "flash3"),
    "B200, all by MUFU": ("b200", "flash4 stages 3 mufu"),
    "B200, a quarter by FMA": ("b200", "flash4 stages 3"),
    "B300, all by MUFU": ("b300", "flash4 stages 3 mufu"),
    "B300, a quarter by FMA": ("b300", "flash4 stages 3"),
}
"""Machine and schedule; the parts are of the exponentials."""


def over_products(spec: GpuSpec) -> float:
    """Cycles of an SM for the exponentials of a tile of scores, over those for its two products."""
    exponentials = TILE**2 / 32 / spec.sm.sub_cores * spec.instruction("ex2", "fp32").interval_cycles
    return exponentials / (4 * TILE**3 / (spec.tensor_flops_per_cycle(DTYPE) / spec.sm.count))


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Exponentials over products, the tensor cores' share of the cycles, and the cycles that exponentials cost."""
    ratios, busy, cost, claims = {}, {}, {}, []
    seq = 512 if quick else 2048
    for name, (machine, schedule) in list(RUNS.items())[2 if quick else 0 :]:
        spec = load_arch(machine)
        assert isinstance(spec, GpuSpec)
        text = f"attention batch=1 heads={512 * spec.sm.count // seq} seq={seq} head_dim={TILE} dtype={DTYPE} causal=0"
        report, free = (simulate(text, machine, schedule=schedule, set=figures) for figures in ((), (FREE,)))
        cycles, reached = report.figures.cycles, report.figures.speed_of_light()
        ratios[name.partition(",")[0]] = over_products(spec)
        busy[name] = 100 * reached["tensor pipe"]
        cost[name] = 100 * (cycles - free.figures.cycles) / cycles
        softmax = sum(kernel.cycles for kernel in report.record.kernels if "softmax" in kernel.name)
        apart = f", {100 * softmax / cycles:.0f} % of the cycles in the softmax's kernel" if softmax else ""
        remark = f"MUFU {100 * reached['mufu pipe']:.0f} %, {report.tflops:.0f} TFLOPS{apart}"
        claims.append(Claim(f"{name}: tensor cores busy", busy[name], "%", remark=remark))
        claims.append(Claim(f"{name}: exponentials cost", cost[name], "% of the cycles"))
    claims[:0] = [
        Claim(f"{name}: exponentials over products", r, "", PUBLISHED.get(name)) for name, r in ratios.items()
    ]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(0.9, 1.1, 0.8))
    for i, (values, form) in enumerate(((ratios, "{:.3g}"), (busy, "{:.0f}"), (cost, "{:z.1f}"))):
        bars(panels[i], values, form=form, color=palette.of_series(i))
        panels[i].margins(x=0.25)
    panels[0].set(xlabel="by the rates of the units", title="Cycles of exponentials over products")
    panels[1].set(xlabel="per cent of the cycles", title="Tensor cores busy")
    panels[2].set(xlabel="per cent of the cycles", title="What exponentials cost", yticks=[])
    figure.suptitle(f"Attention forward, {seq} keys, heads of {TILE} columns, {DTYPE}")
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
