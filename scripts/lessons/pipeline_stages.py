"""What the compiler did with my pipeline stages: one Triton product compiled with 1 to 5 stages, for A100.

One stage loads into registers and waits for them. From two on the compiler copies tiles to shared memory ahead of
their use (LDGSTS), in `stages` - 1 buffers or more, and waits until all but a few groups of copies have come. More
stages hide more of the latency of memory, until shared memory lets fewer CTAs onto an SM. Needs Triton; no GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from sim.app.report import palette
from sim.app.report.report import Report
from sim.app.run import program_listing, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "a100-sxm4-80gb"
FILE = Path(__file__).parent / "kernels" / "matmul.py"
BM, BN, BK = 128, 128, 32
SHOWN = 6
"""States of warps in the picture; the rest is one."""


def text(size: int, stages: int) -> str:
    """The launch of a product of `size` in each direction."""
    arrays = " ".join(f"{name}=fp16[{size},{size}]" for name in "abc")
    tiles = f"BM={BM} BN={BN} BK={BK} PRECISION=ieee num-warps=4 num-stages={stages}"
    return f"{FILE}:by_pointers grid=cdiv(m,BM),cdiv(n,BN) {arrays} m={size} n={size} k={size} {tiles}"


def states(report: Report) -> Mapping[str, float]:
    """Microseconds of the kernel by state of its warps."""
    (kernel,) = report.record.kernels
    warps = kernel.stalls["warps"]
    whole = sum(warps.values())
    return {name: report.time_us * cycles / whole for name, cycles in warps.items()}


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Code and time by stages."""
    from matplotlib import pyplot

    size = 512 if quick else 2048
    stages = (1, 3) if quick else (1, 2, 3, 4, 5)
    claims, reports = [], {}
    for count in stages:
        code = program_listing(text(size, count), MACHINE)
        reports[count] = report = simulate(text(size, count), MACHINE)
        waits = [int(found, 16) for found in re.findall(r"DEPBAR\.LE SB0, 0x(\d+)", code)]
        shared = re.search(r"(\d+) B of shared memory", code)
        assert shared is not None
        buffers = int(shared[1]) / (2 * (BM + BN) * BK)
        name = f"{count} stages" if count > 1 else "1 stage"
        claims += [
            Claim(f"{name}: copies to shared memory (LDGSTS)", len(re.findall(r"LDGSTS", code)), "instructions"),
            Claim(f"{name}: tiles of a and b that shared memory holds", buffers, ""),
            Claim(f"{name}: groups of copies under way behind a wait", max(waits, default=0), ""),
            Claim(f"{name}: time", report.time_us, "us", remark=f"{report.tflops:.0f} TFLOPS"),
        ]
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    shares = {count: states(report) for count, report in reports.items()}
    order = sorted(shares[stages[0]], key=lambda name: -max(share.get(name, 0) for share in shares.values()))
    below = dict.fromkeys(stages, 0.0)
    for name in (*order[:SHOWN], "other"):
        values = {
            count: share.get(name, 0) if name != "other" else sum(share.get(n, 0) for n in order[SHOWN:])
            for count, share in shares.items()
        }
        drawn = axes.bar([str(count) for count in stages], list(values.values()), bottom=list(below.values()),
                         label=name.replace("_", " "), color=palette.of_state(name))  # fmt: skip
        below = {count: below[count] + value for count, value in values.items()}
    axes.bar_label(drawn, [f"{time:.3g}" for time in below.values()], padding=3, fontsize=8)
    axes.margins(y=0.1)
    axes.set(xlabel="num_stages", ylabel="us", title=f"{size}^3 fp16 in Triton on {MACHINE}: states of warps")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
