"""Verdicts, tested by doing what they advise."""

from __future__ import annotations

import re

import pytest

from sim.app.report.report import Report
from sim.app.run import simulate

BUSY = {"External memory": "dram.bandwidth", "The L2": "l2.bandwidth", "The link to the host": "pcie.bandwidth"}


def _words(report: Report) -> str:
    return " ".join(str(report).split())


def _changed(workload: str, machine: str, path: str, factor: float, schedule: str) -> Report:
    """The same run on a machine with more of one figure."""
    from arch.load import load_arch

    spec = load_arch(machine)
    group, name = path.split(".")
    leaf = getattr(spec, group)
    now = next(getattr(leaf, f) for f in type(leaf).model_fields if f.startswith(name))
    return simulate(workload, machine, set={path: now * factor}, schedule=schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "machine"),
    [
        ("softmax rows=1024 cols=4096 dtype=bf16", "h100-sxm"),
        ("gemm m=512 n=512 k=4096 dtype=fp16", "t4"),
        ("softmax rows=512 cols=512", "tpu-v1"),
    ],
)
def test_twice_a_bandwidth_saves_what_the_report_allows(workload: str, machine: str) -> None:
    before = simulate(workload, machine)
    found = re.findall(r"([A-Z][\w ]+) moves data for ([\d.]+) %", _words(before))
    assert found
    for level, share in found:
        after = _changed(workload, machine, BUSY[level], 2, before.record.schedule)
        saved = 1 - after.time_us / before.time_us
        assert saved <= float(share) / 100 / 2 + 0.01
        assert saved > -0.01


def test_external_memory_that_bounds_a_run_moves_it() -> None:
    before = simulate("copy n=8000000 dtype=fp32", "t4")
    assert before.bound == "dram"
    assert "more bandwidth would move it" in _words(before)
    after = _changed("copy n=8000000 dtype=fp32", "t4", "dram.bandwidth", 2, before.record.schedule)
    assert after.time_us < 0.75 * before.time_us


def test_shared_memory_that_bounds_a_run_moves_it() -> None:
    """A T4 with half the width: its fp32 products read each operand from shared memory once a k step."""
    half, work, schedule = "shared.bandwidth=32 B/clk", "gemm m=128 n=512 k=256 dtype=fp32", "simt 64x64x16 warp 32x32"
    before = simulate(work, "t4", set=[half, "sm.count=16"], schedule=schedule)
    assert before.bound == "smem"
    assert before.figures.roofs()[0].name == "smem"
    assert "a wider array would move it" in _words(before)
    after = simulate(work, "t4", set=["shared.bandwidth=64 B/clk", "sm.count=16"], schedule=schedule)
    assert after.time_us < 0.85 * before.time_us


def test_the_host_that_bounds_a_tpu_is_named_and_moves_it() -> None:
    work = "softmax rows=1024 cols=1024"
    before = simulate(work, "tpu-v1")
    reached = before.figures.speed_of_light()
    assert max(reached, key=lambda name: reached[name]) == "host"
    assert "A faster host (host.ops, host.bandwidth) or a vector unit would move it" in _words(before)
    assert "faster link to the host" not in _words(before)
    faster = simulate(work, "tpu-v1", set=["host.ops=1000 GHz"])
    assert faster.time_us < (1 - 0.7 * reached["host"]) * before.time_us
    # Now the link is busier than the host, and the advice moves with it.
    assert "A faster link to the host" in _words(faster)


def test_a_pipe_is_called_busy_only_where_it_is() -> None:
    bursts = simulate(
        "gemm m=512 n=512 k=4096 dtype=fp16", "t4", schedule="mma 128x128x32 warp 64x64 ldg stages 2 split 2"
    )
    assert bursts.bound == "latency"
    assert "math pipe throttle; it moves with work that is spread over time and SMs" in _words(bursts)
    busy = simulate("gemm m=2048 n=2048 k=512 dtype=fp16", "t4")
    assert busy.bound == "compute"
    assert "math pipe throttle; it moves with a faster tensor pipe" in _words(busy)


def test_softmax_is_not_told_to_split_k() -> None:
    text = _words(simulate("softmax rows=64 cols=4096 dtype=fp16", "t4"))
    assert "would move it: smaller tiles for more CTAs" in text or "more loads in flight" in text
    assert "parts of k" not in text
    assert "split-K" not in text
