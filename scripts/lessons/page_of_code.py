"""A page of code beside the vendor's choice: the GEMM of docs/tile-language.md by size on H100.

Published (ThunderKittens): producer, consumers and a store over tiles such as 64x64 to 64x256, a page of code, come
close to the vendor library and are ahead of it at small sizes. The page here is the one that the documentation
explains: one tile a CTA, TMA into a ring of stages, wgmma, plain stores. Its tile is the only thing that is tried in
two sizes. The vendor's choice is the best of some hundred configurations with clusters, ping-pong and splits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lesson import Claim, main

from arch.load import load_arch
from sim.api import simulate
from sim.gpu.clocking import PowerRegulator
from sim.gpu.engine import Device
from workloads.ops import Gemm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "h100-sxm"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tile-language.md"
TILES = ((128, 128), (128, 64))


def page() -> dict[str, Any]:
    """The names that the documentation's first Python block defines."""
    names: dict[str, Any] = {}
    block = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(block, str(PAGE), "exec"), names)
    return names


def page_us(size: int) -> tuple[float, str]:
    """Time of the page's kernel, cold, microseconds, by its best tile."""
    names = page()
    found = []
    for tile_m, tile_n in TILES:
        names["TILE_M"], names["TILE_N"] = tile_m, tile_n
        program = names["gemm"](size, size, size)
        machine = load_arch(MACHINE)
        device = Device(machine, regulator=PowerRegulator(machine, sustained=False))
        device.energy.set_tensor_dtype("bf16")
        result = device.run(program.kernels[0], program.addresses())
        found.append((result.time_ps / 1e6, f"{tile_m}x{tile_n}"))
    return min(found)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Throughput of both by size."""
    from matplotlib import pyplot

    sizes = (256, 512) if quick else (256, 512, 1024, 2048, 4096, 8192)
    claims, ours, theirs = [], [], []
    for size in sizes:
        vendor = simulate(Gemm(m=size, n=size, k=size, dtype="bf16", out="fp32"), MACHINE)
        time_us, tile = page_us(size)
        ours.append(vendor.figures.flops / time_us * 1e-6)
        theirs.append(vendor.tflops)
        remark = f"{ours[-1]:.4g} TFLOPS with {tile}, vendor-like {theirs[-1]:.4g} with {vendor.record.schedule}"
        claims.append(Claim(f"page over vendor-like choice, {size} cubed", ours[-1] / theirs[-1], "x", remark=remark))
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.semilogx(sizes, theirs, "o-", base=2, label="vendor-like choice")
    axes.semilogx(sizes, ours, "o-", base=2, label="a page of the tile language")
    axes.set(xlabel="M = N = K", ylabel="TFLOPS", ylim=(0, None), title=f"bf16 multiply, fp32 result, on {MACHINE}")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.legend()
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
