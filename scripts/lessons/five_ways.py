"""The same matmul, five ways: in Triton, and where there is one in the tile language, for H100.

Each way does away with what bounded the one before: a program a row loads everything once a row; tiles share what they
load; stages load ahead of use; tensor cores multiply; the TMA takes addresses and copies from the warps. Needs Triton,
no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lesson import Claim, bars, legend_below, main, plain_log

from sim.app.report import palette
from sim.app.report.report import Report
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "h100-sxm"
FILE = Path(__file__).parent / "kernels" / "matmul.py"

TILED = "grid=cdiv(m,BM),cdiv(n,BN) BM={bm} BN={bn} BK={bk} num-warps={warps} num-stages={stages}"
WAYS = {
    "naive": ("by_rows", "fp32", "grid=m,cdiv(n,BN) BN=64 BK=32 num-warps=4", "", ""),
    "tiled": (
        "by_pointers", "fp32", TILED.format(bm=64, bn=64, bk=16, warps=8, stages=1) + " PRECISION=ieee", "", "",
    ),
    "double-buffered": (
        "by_pointers", "fp32", TILED.format(bm=64, bn=64, bk=16, warps=8, stages=3) + " PRECISION=ieee", "", "simt",
    ),
    "tensor cores": (
        "by_pointers", "fp16", TILED.format(bm=128, bn=128, bk=64, warps=8, stages=3) + " PRECISION=ieee", "", "mma",
    ),
    "TMA": ("by_tensor_maps", "fp16", TILED.format(bm=128, bn=256, bk=64, warps=8, stages=3), "maps", "wgmma"),
}  # fmt: skip
"""By name: kernel, number format, launch, whether its arrays are tensor maps, schedule of the tile language."""


def triton(name: str, size: int) -> Report:
    """A way in Triton."""
    kernel, dtype, launch, maps, _ = WAYS[name]
    blocks = {"a": "@BM,BK", "b": "@BK,BN", "c": "@BM,BN"} if maps else dict.fromkeys("abc", "")
    arrays = " ".join(f"{array}={dtype}[{size},{size}]{block}" for array, block in blocks.items())
    return simulate(f"{FILE}:{kernel} {arrays} m={size} n={size} k={size} {launch}", MACHINE)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Time and traffic of each way."""
    from matplotlib import pyplot

    size = 256 if quick else 1024
    found = {name: triton(name, size) for name in WAYS}
    written = {
        name: simulate(f"gemm m={size} n={size} k={size} dtype={way[1]}", MACHINE, schedule=way[4])
        for name, way in WAYS.items()
        if way[4]
    }
    claims = []
    for name, report in found.items():
        (kernel,) = report.record.kernels
        read = kernel.counters["l2_read_bytes"] / 1e6
        claims += [
            Claim(f"{name}: time", report.time_us, "us", remark=f"{2e-6 * size**3 / report.time_us:.3g} TFLOPS"),
            Claim(f"{name}: read from the L2", read, "MB"),
            Claim(f"{name}: warp instructions", kernel.counters["warp_instructions"] / 1e6, "million"),
        ]
    claims += [
        Claim(f"{name} in the tile language: time", report.time_us, "us", remark=report.record.schedule)
        for name, report in written.items()
    ]
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    bars(axes, {name: report.time_us for name, report in found.items()}, label="Triton")
    for i, (name, report) in enumerate(written.items()):
        axes.plot(report.time_us, name, "D", color=palette.of_series(1), label="" if i else "tile language")
    plain_log(axes, "x")
    axes.set(xlabel="us", title=f"{size}^3 multiply on {MACHINE}: fp32, then fp16 with tensor cores")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
