"""GEMM on dataflow machines: numbers, conservation, roofline, and what moves cycles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import program_listing, simulate
from tests.rdu.conftest import SMALL


@given(
    st.integers(1, 150), st.integers(1, 150), st.integers(1, 150), st.integers(1, 2), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=12)
def test_any_shape_computes_and_conserves(m: int, n: int, k: int, batch: int, ta: bool, tb: bool, adds: bool) -> None:
    text = f"gemm m={m} n={n} k={k} batch={batch} ta={'NT'[ta]} tb={'NT'[tb]} beta={int(adds)}"
    report = simulate(text, load_arch("sn40l", SMALL), check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    counters = report.figures.counters
    assert counters["macs"] >= report.record.macs
    assert counters["hbm_read_bytes"] >= 2 * batch * k * (m + n)
    assert counters["hbm_write_bytes"] >= 2 * batch * m * n
    for level, share in report.figures.speed_of_light().items():
        assert share <= 1, level
    for kernel in report.record.kernels:
        assert sum(kernel.stalls["pcus"].values()) == kernel.cycles * 32


def test_large_gemm_is_near_the_peak() -> None:
    report = simulate("gemm m=8192 n=8192 k=8192", "sn40l")
    assert 0.85 < report.figures.share_of_peak < 1
    assert report.bound == "compute"


def test_inner_products_take_a_stage_in_six_and_a_tile_that_spares_memory() -> None:
    """A multiply, the tree over 16 lanes and its accumulator are six stages: a sixth of the peak at most."""
    report = simulate("gemm m=1024 n=1024 k=1024", "plasticine")
    assert 0.12 < report.figures.share_of_peak < 1 / 6
    counted = report.figures.counters
    assert counted["pcu_busy_cycles"] == 1024**3 // 16
    assert counted["ddr_read_bytes"] <= 5 * 4 * 1024**2 * 2
    arrays = simulate("gemm m=1024 n=1024 k=1024", "plasticine", set=["pcu.systolic=1"])
    assert arrays.figures.share_of_peak > 0.4


def test_a_cut_in_k_carries_partial_sums() -> None:
    spec = load_arch("sn40l", SMALL)
    whole = "metapipeline 64x48x512 par 2x2 over m"
    cut = "metapipeline 64x48x128 par 2x2 over m"
    reports = [simulate("gemm m=128 n=96 k=512", spec, schedule=s, check=True) for s in (whole, cut)]
    assert all(r.record.check is not None and r.record.check.passed for r in reports)
    assert reports[1].figures.counters["lane_operations"] > reports[0].figures.counters["lane_operations"] == 0


def test_more_of_anything_that_binds_moves_cycles() -> None:
    text, schedule = "gemm m=512 n=512 k=512", "metapipeline 64x48x512 par 2x2 over m"
    base = simulate(text, load_arch("sn40l", SMALL), schedule=schedule)
    twice = simulate(text, load_arch("sn40l", SMALL | {"pcu.macs": 2}), schedule=schedule)
    busy = base.record.kernels[0].counters["pcu_busy_cycles"]
    assert twice.record.kernels[0].counters["pcu_busy_cycles"] == pytest.approx(busy / 2, rel=0.01)
    assert twice.cycles < base.cycles


def test_wrong_requests_are_one_clear_line() -> None:
    with pytest.raises(InputError, match="sn40l computes in bf16, fp32; try bf16"):
        simulate("gemm m=64 n=64 k=64 dtype=int8", "sn40l")
    with pytest.raises(InputError, match="did you mean metapipeline"):
        simulate("gemm m=64 n=64 k=64", "sn40l", schedule="metapipelin")
    with pytest.raises(InputError, match="l2=warm: means nothing on sn40l"):
        simulate("gemm m=64 n=64 k=64", "sn40l", l2="warm")
    with pytest.raises(InputError, match="sn40l has hbm"):
        simulate("gemm m=131072 n=131072 k=131072", "sn40l")


def test_listing_names_stages_buffers_and_costs() -> None:
    text = program_listing("gemm m=640 n=312 k=256", "sn40l", schedule="metapipeline 640x312x256 par 20x52 over m")
    assert "compute multiply over (batch < 1, m < 1, n < 1) row_par=20 col_par=52" in text
    assert "1040 PCUs, 256 cycles a firing" in text


def test_an_array_is_as_deep_as_the_cells_that_a_product_fills() -> None:
    """32 x 32 results on arrays of more rows: no later; on fewer rows a second block of rows follows the first. Inner
    products climb a tree, a level for each doubling of the lanes."""

    def cycles(lanes: int, systolic: bool) -> int:
        machine = load_arch("sn40l", {"pcu.lanes": lanes, "pcu.systolic": systolic})
        schedule = "metapipeline 32x18x32 par 1x3 over m"
        return simulate("gemm m=32 n=32 k=32", machine, schedule=schedule).cycles

    assert cycles(32, True) == cycles(64, True) == cycles(128, True)
    assert cycles(16, True) > cycles(32, True)
    assert cycles(128, False) == cycles(64, False) + 1 == cycles(32, False) + 2
