"""The rules of a ring are judged apart from luck: here no stage is used twice, so that nothing is ever overwritten."""

from __future__ import annotations

import re

import numpy as np
import pytest

from arch.load import load_arch
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.language import GlobalTensor, KernelBuilder, Program, RegisterTile, Var

STAGES, READERS = 4, 2


def copy(
    steps: int = 3, *, consumers: int = READERS, releases: int = 1, silent: int = -1, off: int = 0, tile_off: int = 0
) -> Program:
    """A copy by TMA through a ring, two warps reading each stage; defects by argument."""
    x = GlobalTensor("x", (steps * 16, 64), "fp32", (64, 1))
    y = GlobalTensor("y", (steps * 16, 64), "fp32", (64, 1), role="output")
    kernel = KernelBuilder("copy", (1, 1, 1))
    tile = kernel.shared("tile", (16, 64), "fp32", STAGES)
    ring = kernel.ring(STAGES, consumers=consumers)
    value = RegisterTile("value", (8, 64), "fp32")
    warp = Var("warp")
    with kernel.role("producer", 1, 32) as r:
        r.bar_sync(0, 1 + READERS)
        with r.loop("step", steps) as step:
            r.mbarrier_wait(ring.empty, ring.stage(step + off), (step + off) // STAGES - 1)
            r.mbarrier_expect(ring.full, ring.stage(step), tile.stage_bytes)
            r.tma_load(tile.stage(ring.stage(step + tile_off)), x[step * 16 : 16, :], ring.full, ring.stage(step))
    with kernel.role("reader", READERS, 32) as r:
        r.bar_sync(0, 1 + READERS)
        with r.loop("step", steps) as step:
            ring.wait(r, step)
            r.lds(value.whole, tile[ring.stage(step + tile_off), warp * 8 : 8, :])
            with r.when(1 - warp.equals(silent)):
                for _ in range(releases):
                    ring.release(r, step)
            r.stg(y[step * 16 + warp * 8 : 8, :], value.whole)
    return Program("copy", (x, y), (kernel.build(),), "ring")


def findings(program: Program) -> list[str]:
    device = Device(load_arch("h100-sxm"), log=True)
    events = device.run(program.kernels[0], program.addresses()).events
    assert events is not None
    x = np.arange(np.prod(program.tensors[0].shape), dtype=float).reshape(program.tensors[0].shape)
    result = interpret(program, events, {"x": x})
    assert np.array_equal(result.outputs["y"], x)  # luck
    return result.violations


@pytest.mark.parametrize("steps", [1, 3, 8, 9])
def test_a_ring_that_keeps_its_rules_has_no_finding(steps: int) -> None:
    assert findings(copy(steps)) == []


@pytest.mark.parametrize(
    ("defect", "text"),
    [
        ({"consumers": 1}, "stage 0 is used 1 times .* and released 2 times .*; 1 consumers make 1"),
        ({"consumers": 3}, "released 2 times .*; 3 consumers make 3"),
        ({"consumers": 1 << 19}, "; 524288 consumers make 524288"),
        ({"silent": 1}, "released 1 times .*; 2 consumers make 2"),
        ({"releases": 0}, "used 1 times .* and released 0 times"),
        ({"releases": 2, "consumers": 4}, "warp 1 releases stage 0 2 times .*; it is used 1 times"),
        ({"off": 1}, r"warp 0 acquires stage 1 \(test_rings.py:\d+\) and fills stage 0 \(test_rings.py:\d+\)"),
        ({"tile_off": 1}, "tma_load brings stage 1 of tile on the barrier of stage 0"),
    ],
)
def test_a_ring_that_only_luck_keeps_from_harm_is_one_finding(defect: dict[str, int], text: str) -> None:
    found = findings(copy(**defect))
    assert len(found) == 1
    assert re.search(f"ring full, empty .*{text}", found[0])


def test_an_mbarrier_that_ends_within_a_phase_is_a_finding() -> None:
    kernel = KernelBuilder("k", (1, 1, 1))
    bar = kernel.mbarrier("done", 1, 3)
    with kernel.role("r", 2, 32) as r:
        r.bar_sync(0, 2)
        r.mbarrier_arrive(bar, 0)
    program = Program("k", (), (kernel.build(),), "s")
    events = Device(load_arch("h100-sxm"), log=True).run(program.kernels[0], {}).events
    assert events is not None
    (found,) = interpret(program, events, {}).violations
    assert "mbarrier done[0] (CTA 0) ends within a phase: 1 arrivals and 0 bytes missing in phase 0" in found
