"""Overrides that nothing in a run read are named, and those that something read are not."""

from __future__ import annotations

import pytest

from sim import simulate
from sim.app.cli import main

GEMM = "gemm m=256 n=256 k=128 dtype=fp16"


def unread(workload: str, arch: str, *overrides: str, **options: str) -> list[str]:
    found: list[str] = simulate(workload, arch, set=overrides, **options).to_dict().get("overrides_unread", [])  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("workload", "arch", "schedule", "override", "read"),
    [
        (GEMM, "h100-sxm", "wgmma", "tma.latency=700 cycles", True),
        (GEMM, "h100-sxm", "mma", "tma.latency=700 cycles", False),
        (GEMM, "h100-sxm", "mma", "sm.wgmma_in_flight=2", False),
        (GEMM, "h100-sxm", "mma", "cp_async.latency=100 cycles", True),
        (GEMM, "h100-sxm", "wgmma", "cp_async.latency=100 cycles", False),
        (GEMM, "h100-sxm", "wgmma", "instructions.mma.fp16.m16n8k16.interval=32 cycles", False),
        (GEMM, "h100-sxm", "mma", "instructions.ex2.fp32.interval=9 cycles", False),
        (GEMM, "h100-sxm", "mma", "power.energy.tensor.fp8=1 pJ/FLOP", False),
        (GEMM, "h100-sxm", "mma", "power.energy.tensor.fp16=1 pJ/FLOP", True),
        (GEMM, "h100-sxm", "mma", "pcie.bandwidth=20 GB/s", False),
        (GEMM, "h100-sxm", "mma", "l2.size=40 MiB", True),
        ("softmax rows=64 cols=32768 dtype=bf16", "h100-sxm", "cluster", "dsmem.latency=300 cycles", True),
        ("softmax rows=64 cols=1024 dtype=bf16", "h100-sxm", "fused", "dsmem.latency=300 cycles", False),
        ("softmax rows=64 cols=1024 dtype=bf16", "h100-sxm", "fused", "instructions.ex2.fp32.interval=9 cycles", True),
        ("copy_h2d bytes=100000", "h100-sxm", "auto", "pcie.bandwidth=20 GB/s", True),
        ("allreduce bytes=65536 devices=4", "h100-sxm", "auto", "link.bandwidth=20 GB/s", True),
        ("llama model=tiny phase=decode seq=16 vocab=64 tp=2", "h100-sxm", "auto", "collectives.flag=9 us", True),
        ("all_reduce gpus=4 elements=4k", "h100-sxm", "nccl", "collectives.flag=9 us", True),
        ("all_reduce gpus=4 elements=4k", "h100-sxm", "nccl", "l2.size=40 MiB", False),
        (GEMM, "t4", "mma", "sm.round_robin_run=4", False),
        ("softmax rows=64 cols=64", "tpu-v1", "auto", "host.bandwidth=9 GB/s", True),
        ("gemm m=64 n=64 k=64", "tpu-v1", "auto", "host.bandwidth=9 GB/s", False),
        ("softmax rows=64 cols=64", "sn40l", "auto", "link.bandwidth=9 GB/s", False),
        ("llama model=tiny phase=decode seq=64 layers=1 tp=2", "sn40l", "auto", "link.bandwidth=9 GB/s", True),
    ],
)
def test_a_figure_is_read_with_the_unit_that_takes_part(
    workload: str, arch: str, schedule: str, override: str, read: bool
) -> None:
    assert unread(workload, arch, override, schedule=schedule) == ([] if read else [override.partition("=")[0]])


def test_what_conditions_switch_off_is_unread() -> None:
    limit = "power.limit=60 W"
    assert unread(GEMM, "t4", limit, clock="1 GHz") == ["power.limit"]
    assert unread(GEMM, "t4", limit) == []
    assert unread(GEMM, "t4", "power.data.zeros=0.1") == ["power.data.zeros"]
    assert unread(GEMM, "t4", "power.data.zeros=0.1", data="zeros") == []
    assert unread(GEMM, "t4", "launch.gap_stream=9 us") == ["launch.gap_stream"]
    assert unread(GEMM, "t4", "launch.gap_stream=9 us", scope="stream") == []
    assert unread(GEMM, "t4", "sm.round_robin_run=4", "sm.scheduler=lrr") == []


def test_the_report_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", *GEMM.split(), "--arch", "h100-sxm", "--schedule", "mma", "--set", "tma.latency=700 cycles"]
    assert main([*words, "sm.count=66"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Nothing that ran read tma.latency." in out
    assert "read sm.count" not in out


@pytest.mark.parametrize(
    "override", ["tma.latency", "sm.wgmma_in_flight", "pcie.bandwidth", "link.bandwidth", "sync.cluster_sync"]
)
def test_what_is_called_unread_moves_nothing(override: str) -> None:
    values = {"sm.wgmma_in_flight": "1", "pcie.bandwidth": "9 GB/s", "link.bandwidth": "9 GB/s"}
    changed = f"{override}={values.get(override, '999 cycles')}"
    plain, other = (simulate(GEMM, "h100-sxm", schedule="mma", set=s).to_dict() for s in ((), (changed,)))
    assert other["overrides_unread"] == [override]
    for key in ("cycles", "time_us", "energy_j", "bytes", "stalls", "gpu"):
        assert plain[key] == other[key]
