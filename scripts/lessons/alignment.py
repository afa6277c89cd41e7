"""Alignment: a row that is not a whole number of lines makes a tile touch more of them.

Published: in a row-major matrix with 4 elements a line, a tile of 4 rows and 4 columns touches 4 lines where rows have
12 elements and 7 where they have 13. Here a line is a 32-byte sector of four 8-byte elements, one warp reads the tile,
and the sectors are those that the engine counts. The second half is what it does to a multiply.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, bars, main

from arch.load import load_arch
from sim.app.report import palette
from sim.app.run import simulate
from sim.gpu.engine.api import Device
from sim.gpu.language import GlobalTensor, KernelBuilder, Program, RegisterTile
from workloads.ops import Gemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "a100-sxm4-40gb"


def sectors(row: int) -> int:
    """Sectors that a warp reads for the first 4 columns of 4 rows of `row` elements."""
    matrix = GlobalTensor("matrix", (4, row), "fp64", (row, 1))
    kernel = KernelBuilder(f"rows of {row}", (1, 1, 1))
    tile = RegisterTile("tile", (4, 4), "fp64")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.ldg(tile.whole, matrix[0:4, 0:4], 1, into="tile")
    program = Program("tile", (matrix,), (kernel.build(),), "one warp")
    device = Device(load_arch(MACHINE), cold_launch=False)
    return device.run(program.kernels[0], program.addresses()).counters["l1_read_sectors"]


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Sectors of a tile, then a multiply by the length of its rows."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    claims = [Claim(f"lines of a tile, rows of {row}", sectors(row), "", lines, 0) for row, lines in ((12, 4), (13, 7))]
    base = 512 if quick else 2048
    sizes = [base, base + 1] if quick else [base - 8 + i for i in range(0, 17)]
    reports = {n: simulate(Gemm(m=base, n=n, k=n, dtype="fp16"), MACHINE) for n in sizes}
    aligned, odd = reports[base], reports[base + 1]
    claims += [
        Claim(f"multiply, rows of {base}", aligned.tflops, "TFLOPS", remark=aligned.record.schedule),
        Claim(f"multiply, rows of {base + 1}", odd.tflops, "TFLOPS", remark=odd.record.schedule),
    ]
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    whole, other = palette.of_series(0), palette.of_series(1)
    colours = [whole if n % 8 == 0 else other for n in reports]
    heights = {str(n): report.tflops for n, report in reports.items()}
    bars(axes, heights, form="{:.0f}", across=False, color=colours)
    handles = [Patch(color=whole, label="rows of whole 16-byte vectors"), Patch(color=other, label="other rows")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    axes.set(xlabel="N = K: elements of a row", ylabel="TFLOPS", title=f"fp16 multiply on {MACHINE}, M = {base}")
    axes.tick_params(axis="x", labelrotation=90)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
