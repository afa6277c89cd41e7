"""Energy of a loop of one instruction: so many times the figure of its class, from the engine's own counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from arch.gpu import Energy
from arch.load import load_arch
from sim import simulate
from sim.gpu.counters import Counter
from sim.gpu.language import KernelBuilder
from sim.gpu.power.energy import EnergyModel
from sim.memory.counters import MemoryCounter
from tests.gpu.conftest import run
from tests.gpu.test_sass import launch, machine, written

LANES = 32
LESS, MORE = 8, 40
WARP_BYTES = 4 * LANES

Figure = Callable[[Energy], int]


def core_fj(counters: Mapping[str, int], spec: object) -> int:
    row = np.zeros(Counter.WIDTH, dtype=np.int64)
    for counter in Counter:
        if counter != Counter.WIDTH:
            row[counter] = counters[counter.name.lower()]
    return EnergyModel(spec).actions_fj(row, np.zeros(len(MemoryCounter), dtype=np.int64))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        ("FFMA R4, R4, R4, R4", lambda energy: LANES * energy.fma_fj),
        ("IMAD R4, R4, R4, R4", lambda energy: LANES * energy.fma_fj),
        ("HFMA2 R4, R4, R4, R4", lambda energy: LANES * (energy.hfma_fj or energy.fma_fj)),
        ("DFMA R4, R4, R4, R4", lambda energy: LANES * energy.dfma_fj),
        ("IADD3 R4, R4, 0x1, RZ", lambda energy: LANES * energy.alu_fj),
        ("LOP3.LUT R4, R4, R4, RZ, 0x3c, !PT", lambda energy: LANES * energy.alu_fj),
        ("MUFU.EX2 R4, R4", lambda energy: LANES * energy.xu_fj),
        ("LDS R4, [R0]", lambda energy: WARP_BYTES * energy.shared_fj_per_byte),
        ("LDS.128 R4, [R0]", lambda energy: 4 * WARP_BYTES * energy.shared_fj_per_byte),
        ("STS [R0], R4", lambda energy: WARP_BYTES * energy.shared_fj_per_byte),
    ],
)
def test_a_compiled_instruction_takes_its_issue_and_the_figure_of_its_class(line: str, figure: Figure) -> None:
    spec = machine()
    lanes = 16 if ".128" in line else 4

    def spent(count: int) -> int:
        lines = ("S2R R0, SR_LANEID; write=0", f"IMAD R0, R0, {hex(lanes)}, RZ; wait=1", *[line] * count)
        return core_fj(launch(written(*lines), shared=1024).result.counters, spec)

    energy = spec.power.energy
    assert spent(MORE) - spent(LESS) == (MORE - LESS) * (energy.issue_fj + figure(energy))


@pytest.mark.parametrize("arch", ["v100-sxm2", "t4", "h100-sxm"])
@pytest.mark.parametrize(
    ("name", "dtype", "figure"),
    [
        ("ffma", "fp32", lambda energy: energy.fma_fj),
        ("imad", "int32", lambda energy: energy.fma_fj),
        ("iadd", "int32", lambda energy: energy.alu_fj),
        ("ex2", "fp32", lambda energy: energy.xu_fj),
        ("dfma", "fp64", lambda energy: energy.dfma_fj),
    ],
)
def test_an_instruction_of_the_tile_language_takes_the_same(arch: str, name: str, dtype: str, figure: Figure) -> None:
    spec = load_arch(arch, {"sm.count": 2, "gpc.count": 2})

    def spent(count: int) -> int:
        k = KernelBuilder("loop", (1, 1, 1))
        with k.role("warps", 4, 64) as r:
            r.run(name, count, dtype=dtype)
        return core_fj(run(spec, k.build()).counters, spec)

    energy = spec.power.energy
    assert spent(MORE) - spent(LESS) == 4 * (MORE - LESS) * (energy.issue_fj + LANES * figure(energy))


@pytest.mark.parametrize("arch", ["v100-sxm2", "a100-sxm4-40gb", "gh200-96gb"])
def test_an_fp64_multiply_add_takes_what_was_measured(arch: str) -> None:
    """At the clock of the measurement, its share of the issue included."""
    measured_pj, clock_hz = {
        "v100-sxm2": (48.0, 1_380_000_000),
        "a100-sxm4-40gb": (2 * 28.5, 1_410_000_000),
        "gh200-96gb": (2 * 23.6, 1_980_000_000),
    }[arch]
    spec = load_arch(arch)
    model, energy = EnergyModel(spec), spec.power.energy
    a_lane = (energy.dfma_fj * LANES + energy.issue_fj) * 10**6
    assert model.window_fj(a_lane, 0, 1, clock_hz).core_fj / LANES / 1e9 == pytest.approx(measured_pj, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "step", "mhz", "measured_pj"),
    [
        ("bf16", 64, 1095, (288 - 52.3) / 115.2),
        ("bf16", 64, 1256, (396 - 70.2) / 132.1),
        ("fp16", 64, 1223, (401 - 70.2) / 127.9),
        ("tf32", 32, 1216, (397 - 70.2) / 63.44),
        ("int8", 64, 1095, (267 - 52.3) / 170.7),
        ("int8", 64, 1281, (397 - 70.2) / 198.9),
    ],
)
def test_a_products_multiply_add_takes_what_was_measured(dtype: str, step: int, mhz: int, measured_pj: float) -> None:
    """Watts less those of the idle chip over 1e12 multiply-adds a second (kiln, calibration/measurements/energy).

    By the library's large tiles: `auto` takes smaller ones here, which are faster and move more from the L2.
    """
    spec = load_arch("a100-sxm4-40gb")
    tiles = f"mma 128x256x{step} warp 64x64 cp.async stages 3"
    product = f"gemm m=4096 n=4096 k=4096 dtype={dtype}"
    found = simulate(product, spec, schedule=tiles, clock=f"{mhz} MHz", l2="warm").to_dict()
    spent_j = found["energy_j"] - spec.power.static_mw / 1e3 * found["time_us"] / 1e6
    assert spent_j / 4096**3 * 1e12 == pytest.approx(measured_pj, rel=0.07)
