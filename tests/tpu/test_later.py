"""TPU v2 to v4: peaks as published, numbers as NumPy's, no host in between, and an external memory with timing."""

from __future__ import annotations

from typing import Any

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.report.verdict import sentences
from sim.app.run import simulate

PEAK_TFLOPS = {"tpu-v2": 46, "tpu-v3": 123, "tpu-v4": 275}
"""Jouppi et al., ISCA 2021 and 2023."""

SMALL = ("array.rows=8", "array.columns=8", "accumulators.rows=64", "array.count=3", "unified_buffer.size=64 KiB")
WORKLOADS = (
    "gemm m=70 n=30 k=20 batch=2",
    "gemm m=33 n=5 k=70 tb=T out=fp32",
    "matvec rows=20 cols=30",
    "conv2d n=2 c=6 h=9 w=7 k=10 r=3 s=3 pad=1",
    "conv2d n=1 c=4 h=12 w=12 k=4 r=3 s=3 dilation=2 groups=4 layout=nchw",
    "softmax rows=100 cols=33",
    "softmax rows=3 cols=700 out=fp32",
    "attention batch=1 heads=2 seq_q=10 seq_k=21 head_dim=9",
    "attention batch=2 heads=4 kv_heads=2 seq=12 head_dim=8 causal=1 window=5 out=fp32",
    "attention batch=1 heads=2 seq_q=90 seq_k=40 head_dim=8 causal=1",
    "attention batch=1 heads=2 seq=40 head_dim=8 window=7",
)


@pytest.mark.parametrize(("machine", "tflops"), PEAK_TFLOPS.items())
def test_the_published_peak_is_what_arrays_and_clock_give(machine: str, tflops: float) -> None:
    assert load_arch(machine).peak_flops("bf16") / 1e12 == pytest.approx(tflops, rel=0.004)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_numbers_are_those_of_numpy(workload: str) -> None:
    for machine, figures in (("tpu-v2", SMALL), ("tpu-v4", ())):
        check = simulate(workload, machine, set=figures, check=True).record.check
        assert check is not None, machine
        assert check.passed, machine


@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[5], WORKLOADS[8]])
def test_nothing_goes_to_a_host(workload: str) -> None:
    report = simulate(workload, "tpu-v4").to_dict()
    assert report["stalls"]["host"] == {"finished": 1.0}
    assert "pcie" not in report["bytes"]
    asked = simulate(workload, "tpu-v4", set=["pcie.latency=2 us"])
    assert asked.to_dict()["cycles"] == report["cycles"]
    assert "Nothing that ran read pcie.latency." in str(asked)


def test_a_machine_multiplies_what_its_cells_take() -> None:
    with pytest.raises(InputError, match="tpu-v3 multiplies bf16, not int8"):
        simulate("gemm m=8 n=8 k=8 dtype=int8", "tpu-v3")
    with pytest.raises(InputError, match="multiplies int8 and int16, not bf16"):
        simulate("gemm m=8 n=8 k=8 dtype=bf16", "tpu-v1")
    with pytest.raises(InputError, match="tpu-v1 runs it"):
        simulate("inference app=mlp0", "tpu-v2")


def share(report: dict[str, Any], name: str) -> float:
    return float(report["tpu"]["speed_of_light"][name])


@pytest.mark.parametrize("machine", PEAK_TFLOPS)
def test_large_products_are_bound_by_the_arrays_and_softmax_by_memory(machine: str) -> None:
    assert share(simulate("gemm m=2048 n=4096 k=4096", machine).to_dict(), "compute") > 0.85
    assert share(simulate("softmax rows=2048 cols=4096", machine).to_dict(), "dram") > 0.8


def test_an_array_with_nothing_to_do_in_a_column_takes_rows_of_it() -> None:
    """One column of tiles and four arrays: each takes a quarter of the rows, with weights of its own."""
    words = ["dram.bandwidth=12 TB/s", "dram.latency=10 ns"]
    alone, shared = (simulate("gemm m=4096 n=128 k=4096", "tpu-v4", set=[*words, f"array.count={n}"]) for n in (1, 4))
    assert shared.figures.counters["macs"] == alone.figures.counters["macs"]
    assert 3 < alone.record.kernels[0].cycles / shared.record.kernels[0].cycles <= 4


def test_a_pitch_of_many_units_meets_all_channels() -> None:
    """Columns of a wide matrix: rows of 256 B, 16 KiB apart, which without turns of the channels would meet two."""
    narrow, wide = (simulate(f"gemm m=4096 n={n} k=128", "tpu-v4").to_dict() for n in (128, 8192))
    assert wide["bytes"]["dram"]["write"] == 64 * narrow["bytes"]["dram"]["write"]
    assert share(wide, "dram") > 0.5


def test_refresh_of_all_banks_stops_the_bus_and_of_one_does_not() -> None:
    """DDR3 loses 260 ns of each 7.8 us; weights that stream from banks in turn lose next to nothing."""
    both = ["control.sync=0 cycles", "pcie.latency=0.01 us"]
    took = [
        simulate("gemm m=1 n=2560 k=2560", "tpu-v1", set=[*both, f"dram.refresh={what}"]).to_dict()["cycles"]
        for what in ("all", "bank")
    ]
    assert took[0] / took[1] == pytest.approx(1 + 260 / 7800, abs=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        ["dram.bandwidth=990 GB/s"],
        ["clock.boost=1034 MHz"],
        ["dram.t_rfc=0 ns"],
        ["dram.t_wtr=0 ns", "dram.t_rtw=0 ns"],
    ],
)
def test_reads_that_are_asked_for_with_writes_go_first(changes: list[str]) -> None:
    """A block's results leave when the next block may come. Which of both the memory took first was chance, so that a
    better memory or clock could cost 9 %."""
    before, after = (simulate("softmax rows=768 cols=768", "tpu-v3", set=s).time_us for s in ([], changes))
    assert after < before


@pytest.mark.parametrize(("rows", "sure"), [(1024, False), (8192, True)])
def test_a_memory_that_is_not_busy_enough_only_may_move_a_run(rows: int, sure: bool) -> None:
    """With 65 % of its bandwidth the rest is latency, and a tenth more of it saves 1.4 %."""
    report = simulate(f"softmax rows={rows} cols=1024", "tpu-v3")
    claims = [claim.figures for said in sentences(report) for claim in said.claims if claim.moves]
    assert report.bound == "dram"
    assert (claims == [("dram.bandwidth",)]) == sure
    assert ("may move it" in str(report)) == (not sure)
