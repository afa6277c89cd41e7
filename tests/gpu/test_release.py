"""Barriers release what their warps have stored: whoever has passed one finds it in shared memory."""

from __future__ import annotations

import pytest

from arch.load import load_arch
from sim.gpu.language import WARP, KernelBuilder, Program, RegisterTile
from tests.gpu.conftest import cycles, run


def handover(barrier: str) -> Program:
    """Warp 0 stores 16 B a lane and arrives; the other warp, or the other CTA, waits for it."""
    builder = KernelBuilder("handover", (2, 1, 1), (2, 1, 1))
    tile, value = builder.shared("tile", (32, 4), "fp32"), RegisterTile("value", (32, 4), "fp32")
    full = builder.mbarrier("full", 1, 1)
    with builder.role("warps", warps=2, registers=32) as r:
        with r.when(WARP.equals(0)):
            r.sts(tile.stage(), value.whole, 1)
            if barrier == "mbarrier":
                r.mbarrier_arrive(full, 0)
        if barrier == "mbarrier":
            r.mbarrier_wait(full, 0, 0)
        else:
            r.cluster_sync()
    return Program("handover", (), (builder.build(),), "test")


@pytest.mark.parametrize("barrier", ["mbarrier", "cluster_sync"])
def test_whoever_waits_finds_the_stores_of_who_has_arrived(barrier: str) -> None:
    short, long = (
        cycles(run(load_arch("h100-sxm", {"instructions.sts.b128.latency": f"{n} cycles"}), handover(barrier)))
        for n in (1000, 2000)
    )
    assert long - short == 1000
