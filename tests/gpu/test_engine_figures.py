"""Figures of an SM that a what-if may change: what they move, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.gpu.engine.api import Device
from sim.gpu.language import GlobalTensor, KernelBuilder, Program, RegisterTile, SharedTile
from sim.gpu.lower.banks import access_waves, ldmatrix_waves
from sim.gpu.lower.occupancy import occupancy
from sim.gpu.units.l1 import fills
from tests.gpu.conftest import cycles, run
from tests.gpu.kernels import tma_copy

Overrides = Mapping[str, str | int | float]
SMALL: Overrides = {"sm.count": 2, "gpc.count": 2, "launch.cta_interval": "0 ns"}


def columns(loads: int = 8) -> Program:
    """16 warps load columns of a tile of two words a row."""
    builder = KernelBuilder("columns", (1, 1, 1))
    tile = builder.shared("tile", (32, 2), "fp32")
    value = RegisterTile("value", (1, 32), "fp32")
    with builder.role("warps", warps=16, registers=32) as r, r.loop("i", 16):
        r.lds(value.whole, tile[0, :, 0:1].T, loads, into="loads", vector_bytes=4)
    return Program("columns", (), (builder.build(),), "test")


@pytest.mark.parametrize("banks", [8, 16, 32, 64, 128])
def test_a_phase_holds_the_words_that_the_banks_have(banks: int) -> None:
    tile = SharedTile("s", (32, 32), "fp32")
    for vector_bytes in (4, 8, 16):
        words = 8 * vector_bytes  # of a warp that reads neighbouring words
        rows = tile[0, 0 : vector_bytes // 4, 0:32] if vector_bytes < 16 else tile[0, 0:4, 0:32]
        assert access_waves(rows, vector_bytes, banks) == max(1, words // banks)
    assert ldmatrix_waves(SharedTile("m", (8, 8), "fp16")[0, 0:8, 0:8], banks) == 4 * max(1, 32 // banks)


def test_words_two_apart_conflict_in_few_banks_and_not_in_many() -> None:
    conflicts = []
    for banks in (16, 32, 64):
        result = run(load_arch("a100-sxm4-80gb", {**SMALL, "shared.banks": banks}), columns())
        conflicts.append((result.counters["shared_conflict_ticks"], cycles(result)))
    assert conflicts[0] > conflicts[1] > conflicts[2]
    assert conflicts[2][0] == 0


@pytest.mark.parametrize(
    ("machine", "override", "said"),
    [
        ("t4", "shared.banks=30", "the model takes (8, 16, 32, 64, 128); nearest: 32"),
        ("t4", "l1.sector=96 B", "sectors of 32 or 64 or 128 B; nearest: 64 B"),
        ("t4", "l2.sector=16 B", "sectors of 32 B; nearest: 32 B"),
        ("t4", "l1.line=256 B", "nearest: 128 B"),
        ("a10", "cp_async.prefetch=256 B", "of a line; nearest: 128 B"),
        ("h100-sxm", "tma.promotion=16 B", "of a line; nearest: 32 B"),
        ("h100-sxm", "dsmem.max_cluster=32", "the model takes 16"),
        ("h100-sxm", "dsmem.max_cluster=4", "8 CTAs are more than dsmem.max_cluster = 4; nearest: 4"),
    ],
)
def test_what_the_model_cannot_take_is_refused(machine: str, override: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_arch(machine, [override])
    assert said in str(caught.value)


def test_threads_of_an_sm_and_of_a_cta_are_limits() -> None:
    kernel = columns().kernels[0]  # 512 threads
    held = occupancy(kernel, load_arch("a100-sxm4-80gb", {"sm.max_threads": 1024}))
    assert (held.ctas, held.limiter) == (2, "threads")
    assert occupancy(kernel, load_arch("a100-sxm4-80gb")).ctas == 4
    with pytest.raises(InputError, match="kernel columns has 512 threads a CTA; a100-sxm4-80gb allows 256"):
        occupancy(kernel, load_arch("a100-sxm4-80gb", {"sm.max_threads_per_cta": 256}))


def test_a_named_barrier_that_a_cta_does_not_have_is_refused() -> None:
    builder = KernelBuilder("meeting", (1, 1, 1))
    with builder.role("warps", warps=2, registers=32) as r:
        r.bar_sync(7, 2)
    program = Program("meeting", (), (builder.build(),), "test")
    assert run(load_arch("t4", {"sm.count": 2, "gpc.count": 2}), program).ticks > 0
    with pytest.raises(InputError, match="bar_sync: named barrier 7; allowed are 0 to 3"):
        run(load_arch("t4", {"sm.count": 2, "gpc.count": 2, "sync.named_barriers": 4}), program)


def flood() -> Program:
    """Warps that ask for more of global memory than its queue holds."""
    x, value = GlobalTensor("x", (32 * 64,), "fp32", (1,)), RegisterTile("value", (32,), "fp32")
    builder = KernelBuilder("flood", (1, 1, 1))
    with builder.role("warps", warps=32, registers=32) as r, r.loop("i", 64) as i:
        r.ldg(value.whole, x[i * 32 : 32], 8, into="x", vector_bytes=16)
        r.run("ffma", 8)
    return Program("flood", (x,), (builder.build(),), "test")


@pytest.mark.parametrize(
    ("program", "overrides"),
    [
        (tma_copy(2000, 256, 4), {"tma.queue": 1}),
        (columns(64), {"shared.queue": "8 cycles"}),
        (flood(), {"l1.queue": "8 cycles"}),
        (columns(64), {"sm.scheduler": "lrr", "sm.round_robin_run": 1}),
    ],
)
def test_queues_and_turns_move_when_instructions_issue(program: Program, overrides: Overrides) -> None:
    plain = {key: value for key, value in overrides.items() if key == "sm.scheduler"}
    found = []
    for changed in (plain, overrides):
        result = run(load_arch("h100-sxm", {**SMALL, **changed}), program)
        found.append((result.ticks, result.warp_states))
    assert found[0] != found[1]


def test_small_prefetches_and_slow_warps_put_the_first_instruction_off() -> None:
    plain, prefetch, setup = (
        cold(overrides) for overrides in ({}, {"sm.instruction_prefetch": "128 B"}, {"sm.warp_setup": "30 cycles"})
    )
    assert prefetch > plain
    assert setup > plain


def cold(overrides: Overrides) -> float:
    """Cycles of many small CTAs whose code no cache holds."""
    builder = KernelBuilder("small", (64, 1, 1), code_bytes=16384)
    with builder.role("warps", warps=16, registers=32) as r:
        r.run("ffma", 64)
    program = Program("small", (), (builder.build(),), "test")
    return cycles(Device(load_arch("h100-sxm", {**SMALL, **overrides})).run(program.kernels[0], {}))


def parts_of_lines() -> Program:
    """A warp loads the first 32 B of 64 lines, then the second, then the third and the last."""
    x = GlobalTensor("x", (64, 32), "fp32", (32, 1))
    builder = KernelBuilder("parts", (1, 1, 1))
    value = RegisterTile("value", (64, 8), "fp32")
    with builder.role("warps", warps=1, registers=64) as r:
        for part in range(4):
            r.ldg(value.whole, x[0:64, 8 * part : 8], 16, into=f"x{part}")
            r.run("fadd", 1, dst=value.whole, srcs=(value.whole,), after=(f"x{part}",))
    return Program("parts", (x,), (builder.build(),), "test")


@pytest.mark.parametrize(("sector", "misses"), [(32, 4), (64, 2), (128, 1)])
def test_a_sector_of_the_l1_is_filled_as_a_whole(sector: int, misses: int) -> None:
    """Parts of 32 B that stand beside a missing one come with it, and are found later."""
    found = run(load_arch("a100-sxm4-80gb", {**SMALL, "l1.sector": f"{sector} B"}), parts_of_lines())
    assert found.counters["l1_read_sectors"] == 4 * 64
    assert found.counters["l1_read_sectors"] - found.counters["l1_hit_sectors"] == misses * 64
    code = run(load_arch("a100-sxm4-80gb", SMALL), parts_of_lines()).counters["port_read_bytes"] - 4 * 64 * 32
    assert found.counters["port_read_bytes"] - code == 64 * 128


@pytest.mark.parametrize(
    ("sector", "mask", "filled"), [(32, 0b0101, 0b0101), (64, 0b0101, 0b1111), (64, 2, 3), (128, 4, 15)]
)
def test_sectors_that_hold_a_part_of_a_line(sector: int, mask: int, filled: int) -> None:
    assert (fills(sector) >> (mask << 2)) & 15 == filled
    assert fills(sector) & 15 == 0
    assert -(1 << 63) <= fills(sector) < 1 << 63


def halves_of_lines() -> Program:
    """A warp copies the first 64 B of 64 lines and then, when these are there, the others."""
    x = GlobalTensor("x", (64, 32), "fp32", (32, 1))
    builder = KernelBuilder("halves", (1, 1, 1))
    tile = builder.shared("tile", (64, 32), "fp32")
    with builder.role("warps", warps=1, registers=32) as r:
        for half in range(2):
            r.cp_async(tile[0, :, 16 * half : 16], x[0:64, 16 * half : 16], 8)
            r.cp_commit()
            r.cp_wait(0)
    return Program("halves", (x,), (builder.build(),), "test")


@pytest.mark.parametrize(("prefetch", "misses", "beside"), [(32, 4, 0), (64, 4, 0), (128, 2, 2)])
def test_the_l2_fetches_the_prefetch_size_of_a_copy(prefetch: int, misses: int, beside: int) -> None:
    """What comes beside the sectors that are asked for is found later; the SM gets no more than it asked for."""
    found = run(load_arch("a100-sxm4-80gb", {**SMALL, "cp_async.prefetch": f"{prefetch} B"}), halves_of_lines())
    code = run(load_arch("a100-sxm4-80gb", SMALL), halves_of_lines()).counters["port_read_bytes"] - 64 * 128
    assert found.memory["l2_read_miss_sectors"] - code // 32 == misses * 64
    assert found.memory["l2_prefetched_sectors"] == beside * 64
    assert found.memory["dram_read_bytes"] == code + 64 * 128
    assert found.counters["port_read_bytes"] == code + 64 * 128


def halves_by_tma() -> Program:
    """As `halves_of_lines`, by the TMA."""
    x = GlobalTensor("x", (64, 32), "fp32", (32, 1))
    builder = KernelBuilder("halves", (1, 1, 1))
    tile, full = builder.shared("tile", (64, 16), "fp32"), builder.mbarrier("full", 1, 1)
    with builder.role("warp", warps=1, registers=32) as r:
        for half in range(2):
            r.mbarrier_expect(full, 0, 64 * 64)
            r.tma_load(tile.stage(), x[0:64, 16 * half : 16], full, 0)
            r.mbarrier_wait(full, 0, half)
    return Program("halves", (x,), (builder.build(),), "test")


@pytest.mark.parametrize(("promotion", "beside"), [(32, 0), (64, 0), (128, 2)])
def test_the_l2_fetches_the_promotion_of_a_tensor_map(promotion: int, beside: int) -> None:
    """The second halves of the lines are found in the L2, which fetched them with the first; the SM gets its part."""
    spec = load_arch(
        "h100-sxm", {"sm.count": 2, "gpc.count": 2, "gpc.single_tpcs": 0, "tma.promotion": f"{promotion} B"}
    )
    found = run(spec, halves_by_tma())
    assert found.memory["l2_prefetched_sectors"] == beside * 64
    assert found.counters["tma_boxes"] == 2
    assert found.memory["l2_read_sectors"] - found.memory["l2_read_miss_sectors"] >= beside * 64
