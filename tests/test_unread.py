"""Overrides that nothing in a run read are named, and those that something read are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import simulate
from sim.app.cli import main

GEMM = "gemm m=256 n=256 k=128 dtype=fp16"
SASS = Path(__file__).parent / "gpu" / "sass"
ADD = f"{SASS / 'add.sm80.sass'}:add grid=4 block=128 x=fp32[2048] y=fp32[2048] out=fp32[2048] n=2048"
PRODUCT = (
    f"{SASS / 'matmul.sm90.sass'}:matmul grid=2,1 block=128 shared=24576 a=fp16[128,64] b=fp16[64,64] c=fp16[128,64] "
    "m=128 n=64 k=64"
)
EXCHANGE = f"{SASS / 'cluster_exchange.sm90.sass'} grid=2 block=64 out=fp32[1024]"
SOFTMAX = (
    f"{SASS / 'softmax.sm80.sass'} grid=2 block=128 shared=16 out=fp32[2048] x=fp32[2048] stride=1024 columns=1024"
)
A100 = "a100-sxm4-80gb"


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


@pytest.mark.parametrize(
    ("workload", "arch", "override", "read"),
    [
        (ADD, A100, "instructions.fadd.fp32.interval=40 cycles", True),
        (ADD, A100, "instructions.ffma.fp32.interval=40 cycles", False),
        (ADD, A100, "sm.address_interval=400 cycles", True),
        (ADD, A100, "sync.barrier=900 cycles", False),
        (ADD, A100, "cp_async.latency=900 cycles", False),
        (ADD, A100, "power.energy.tensor.fp16=1 pJ/FLOP", False),
        (SOFTMAX, A100, "sync.barrier=900 cycles", True),
        (SOFTMAX, A100, "instructions.shfl.b32.latency=99 cycles", True),
        (PRODUCT, "h100-sxm", "instructions.wgmma.fp16.m64n*k16.interval=99 cycles", True),
        (PRODUCT, "h100-sxm", "instructions.wgmma.bf16.m64n*k16.interval=99 cycles", False),
        (PRODUCT, "h100-sxm", "power.energy.tensor.fp16=1 pJ/FLOP", True),
        (PRODUCT, "h100-sxm", "sm.wgmma_in_flight=1", True),
        (PRODUCT, "h100-sxm", "sm.register_conflict=9 cycles", False),
        (PRODUCT, "h100-sxm", "sm.beside_wgmma_fma=9 cycles", False),
        (PRODUCT, "h100-sxm", "cp_async.latency=900 cycles", True),
        (PRODUCT, "h100-sxm", "tma.latency=900 cycles", False),
        (PRODUCT, "h100-sxm", "launch.descriptor_fetch=false", False),
        (PRODUCT, "h100-sxm", "sync.mbarrier_wait=900 cycles", False),
        (PRODUCT, "h100-sxm", "dsmem.latency=900 cycles", False),
        (EXCHANGE, "h100-sxm", "dsmem.latency=900 cycles", True),
        (EXCHANGE, "h100-sxm", "dsmem.read=1 B/clk", True),
        (EXCHANGE, "h100-sxm", "sync.cluster_sync=900 cycles", True),
        (EXCHANGE, "h100-sxm", "sm.wgmma_in_flight=1", False),
    ],
)
def test_a_compiled_kernel_reads_what_its_instructions_take(
    workload: str, arch: str, override: str, read: bool
) -> None:
    plain, changed = (simulate(workload, arch, set=overrides).to_dict() for overrides in ((), (override,)))
    for report in (plain, changed):
        del report["gpu"]["counters"]["events"]  # of the simulator: how far it may run ahead depends on latencies
    assert changed.get("overrides_unread", []) == ([] if read else [override.partition("=")[0]])
    moved = any(plain[key] != changed[key] for key in ("cycles", "time_us", "energy_j", "bytes", "stalls", "gpu"))
    assert moved is read


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
