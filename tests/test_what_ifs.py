"""What-ifs that people ask first move what they should."""

from __future__ import annotations

import pytest

from arch.load import load_arch
from sim import simulate

WEIGHTS = "gemm m=1 n=7168 k=8192 dtype=bf16 tb=T"
"""A step of decode: a product that reads its weights once."""


@pytest.mark.parametrize(
    ("workload", "machine", "factors"),
    [
        (WEIGHTS, "h100-sxm", (4.8 / 3.352, 6.0 / 3.352)),
        ("gemm m=1 n=7168 k=4096 dtype=bf16 tb=T", "a100-sxm4-80gb", (1.1,)),
        ("gemm m=1 n=4096 k=2048 dtype=bf16 tb=T", "a40", (1.5,)),
        ("gemm m=1 n=4096 k=4096", "tpu-v4", (1.25,)),
        ("gemm m=1 n=2048 k=1024", "tpu-v1", (2.0,)),
    ],
)
def test_work_that_reads_weights_once_goes_with_the_bandwidth(
    workload: str, machine: str, factors: tuple[float, ...]
) -> None:
    before = simulate(workload, machine)
    assert before.to_dict()["bound"] == "dram"
    for factor in factors:
        rate = load_arch(machine).dram.bandwidth_bytes_per_s * factor / 1e9
        after = simulate(workload, machine, schedule=before.record.schedule, set=[f"dram.bandwidth={rate:.3f} GB/s"])
        assert 1 - after.time_us / before.time_us >= 0.5 * (1 - 1 / factor)
        assert "goes with dram.bandwidth" in after.to_dict()["notes"][-1]


def test_what_caps_a_bandwidth_is_named() -> None:
    """A time between bursts that is set stays, and lines of rows of their own hold each for as long as before."""
    held = ["dram.t_ccd=1.62 ns"]
    work, machine = "gemm m=1 n=7168 k=2048 dtype=bf16 tb=T", "a100-sxm4-80gb"
    before = simulate(work, machine)
    capped = simulate(work, machine, schedule=before.record.schedule, set=["dram.bandwidth=4.078 TB/s", *held])
    assert capped.time_us > 0.9 * before.time_us
    assert "(dram.t_ccd)" in str(capped)


@pytest.mark.parametrize("machine", ["v100-sxm2-32gb", "a30", "a100-sxm4-80gb", "h100-sxm"])
def test_a_little_more_bandwidth_never_costs(machine: str) -> None:
    """A copy that fills and empties channels evenly goes with the bandwidth from one per cent to twice of it."""
    before = simulate("copy n=2097152 dtype=fp16", machine)
    rate, last = load_arch(machine).dram.bandwidth_bytes_per_s / 1e9, before.time_us
    for factor in (1.01, 1.03, 1.05, 1.1, 1.2, 1.5, 2.0):
        bandwidth = [f"dram.bandwidth={rate * factor:.3f} GB/s"]
        after = simulate("copy n=2097152 dtype=fp16", machine, schedule=before.record.schedule, set=bandwidth)
        assert after.time_us < 1.015 * last  # what is capped by now may jitter
        last = after.time_us
    assert last < 0.95 * before.time_us


@pytest.mark.parametrize(
    ("workload", "machine", "primary", "cap", "ample"),
    [
        ("allreduce bytes=256M devices=8", "h100-sxm", "link.bandwidth=900 GB/s", "collectives.shared", "172 GB/s"),
        ("add n=4194304 dtype=fp32", "h20", "dram.bandwidth=6 TB/s", "port.write", "70 B/clk"),
    ],
)
def test_what_caps_a_bandwidth_beyond_it_is_named(
    workload: str, machine: str, primary: str, cap: str, ample: str
) -> None:
    """What a report names is what holds the run: more of it lets the bandwidth move it."""
    before = simulate(workload, machine)
    schedule = "auto" if workload.startswith("allreduce") else before.record.schedule
    capped = simulate(workload, machine, schedule=schedule, set=[primary])
    assert capped.time_us > 0.9 * before.time_us
    assert f"({cap})" in str(capped)
    free = simulate(workload, machine, schedule=schedule, set=[primary, f"{cap}={ample}"])
    assert free.time_us < 0.8 * before.time_us


def test_links_bound_what_they_bound() -> None:
    report = simulate("allreduce bytes=256M devices=8", "h100-sxm")
    assert report.to_dict()["bound"] == "link"
    assert 0.9 < report.figures.speed_of_light()["link"] <= 1
    assert "(collectives.shared)" not in str(report)
