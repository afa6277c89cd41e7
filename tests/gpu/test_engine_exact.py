"""Runs against single issue: the same counters, and cycles within 1 %.

Random programs have one warp a sub-core, one an SM where they use shared memory: where several warps contend for a
pipe or for the array, a run keeps it to its end, while single issue lets the warps alternate.
`docs/accuracy/simulator.md` has the figures. Shipped kernels run as they are, with all their warps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device
from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile
from workloads.gpu.gemm import threadblock, wgmma
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.wgmma import WgmmaConfig
from workloads.ops import Gemm

AMPERE = load_arch("a100-sxm4-80gb", {"sm.count": 2, "gpc.count": 2})
COUNTED = (
    "instructions",
    "macs_tensor",
    "macs_vector",
    "shared_read_bytes",
    "shared_write_bytes",
    "shared_conflict_ticks",
    "global_read_bytes",
    "global_write_bytes",
    "port_write_bytes",
    "inst_fma",
    "inst_alu",
    "inst_tensor",
    "inst_shared",
    "inst_global",
    "inst_mufu",
    "ctas",
)
SHARED = ("lds", "sts", "ldmatrix")

Step = tuple[str, int, int]
vector = st.tuples(st.sampled_from(["ffma", "iadd", "ex2", "hfma2", "imad"]), st.integers(16, 96), st.integers(0, 24))
tensor = st.tuples(st.just("mma"), st.integers(1, 32), st.integers(0, 24))
shared = st.tuples(st.sampled_from(SHARED), st.integers(1, 16), st.integers(0, 8))
memory = st.tuples(st.sampled_from(["ldg", "stg"]), st.integers(1, 4), st.integers(0, 8))
meeting = st.tuples(st.just("bar_sync"), st.just(1), st.just(0))
programs = st.lists(st.one_of(vector, vector, tensor, shared, memory, meeting), min_size=1, max_size=6)


def build(steps: list[Step], trips: int, warps: int, ctas: int) -> Program:
    """A loop over `steps`: (opcode, count, ALU instructions mixed in), each step after the one before."""
    kernel = KernelBuilder("random", (ctas, 1, 1))
    tile = kernel.shared("tile", (32, 64), "fp16", swizzle_bytes=128)
    x = GlobalTensor("x", (ctas * warps * 128 * 4,), "fp32", (1,))
    y = GlobalTensor("y", x.shape, "fp32", (1,), "output")
    value, acc = RegisterTile("value", (16, 64), "fp16"), RegisterTile("acc", (16, 64), "fp32")
    with kernel.role("warps", warps=warps, registers=64) as r, r.loop("i", trips):
        for opcode, count, alu in steps:
            mixed: dict[str, Any] = {"mix": (("iadd", alu),)} if alu else {}
            at = (CTA_X * warps + WARP) * 512
            if opcode == "mma":
                a, b = value[:, 0:16], value[0:16, 0:8]
                r.mma(acc[:, 0:8], a, b, shape="m16n8k16", dtype="fp16", count=count, **mixed)
            elif opcode == "lds":
                r.lds(value.whole, tile[0, 0:16, 0:64], max(count, 4), **mixed)
            elif opcode == "sts":
                r.sts(tile[0, 0:16, 0:64], value.whole, max(count, 4), **mixed)
            elif opcode == "ldmatrix":
                r.ldmatrix(value.whole, tile[0, 0:16, 0:16], count, **mixed)
            elif opcode == "ldg":
                r.ldg(acc.whole, x[at : 128 * count], count, into="x", **mixed)
            elif opcode == "stg":
                r.stg(y[at : 128 * count], acc.whole, count, **mixed)
            elif opcode == "bar_sync":
                r.bar_sync(0, warps)
            else:
                r.run(opcode, count, dst=acc.whole, srcs=(value.whole,), **mixed)
    return Program("random", (x, y), (kernel.build(),), "test")


def compare(spec: GpuSpec, program: Program, slack_cycles: int = 0) -> None:
    """Runs and single issue give the same counters, and cycles within 1 % or `slack_cycles`."""
    device, exact = Device(spec, cold_launch=False), Device(spec, cold_launch=False, exact=True)
    for kernel in program.kernels:
        ours, theirs = (d.run(kernel, program.addresses(), launch_ps=0, drain_ps=0) for d in (device, exact))
        assert {name: ours.counters[name] for name in COUNTED} == {name: theirs.counters[name] for name in COUNTED}
        assert ours.ticks == pytest.approx(theirs.ticks, rel=0.01, abs=slack_cycles * TICKS_PER_CYCLE)


@settings(max_examples=80)
@given(steps=programs, trips=st.integers(4, 12), warps=st.integers(1, 4), ctas=st.integers(1, 2))
@example(steps=[("ffma", 64, 8), ("lds", 4, 0)], trips=12, warps=4, ctas=2)
@example(steps=[("lds", 8, 1), ("ffma", 27, 22), ("iadd", 87, 23), ("imad", 41, 5)], trips=12, warps=1, ctas=1)
def test_runs_agree_with_single_issue(steps: list[Step], trips: int, warps: int, ctas: int) -> None:
    """Slots that a run and its mix share round at the ends of single instructions: two cycles an op at most."""
    if any(opcode in SHARED for opcode, _, _ in steps):
        warps = 1
    compare(AMPERE, build(steps, trips, warps, ctas), slack_cycles=2 * trips * len(steps))


@pytest.mark.parametrize(
    ("machine", "make", "op", "config"),
    [
        ("h100-sxm", wgmma.build, Gemm(m=512, n=512, k=512, dtype="bf16"), WgmmaConfig(128, 128, 64, stages=4)),
        (
            "h100-sxm",
            wgmma.build,
            Gemm(m=512, n=512, k=512, dtype="bf16"),
            WgmmaConfig(64, 128, 64, pingpong=True, stages=4),
        ),
        (
            "a100-sxm4-80gb",
            threadblock.build,
            Gemm(m=512, n=256, k=512, dtype="bf16"),
            MmaConfig(128, 128, 32, 64, 64, stages=3, copy="cp.async"),
        ),
        ("v100-sxm2", threadblock.build, Gemm(m=256, n=128, k=1024, dtype="fp16"), MmaConfig(128, 128, 32, 64, 64)),
        ("v100-sxm2", threadblock.build, Gemm(m=256, n=256, k=1024, dtype="fp16"), MmaConfig(128, 128, 32, 64, 64)),
        ("t4", threadblock.build, Gemm(m=256, n=256, k=1024, dtype="fp16"), MmaConfig(128, 128, 32, 64, 64)),
        ("a100-sxm4-80gb", threadblock.build, Gemm(m=256, n=256, k=256, dtype="fp32"), SimtConfig(128, 128, 8, 32, 64)),
        ("t4", threadblock.build, Gemm(m=128, n=256, k=512, dtype="fp32"), SimtConfig(64, 64, 8, 32, 32)),
    ],
    ids=["wgmma", "wgmma ping-pong", "mma cp.async", "mma ldg", "mma ldg, two CTAs", "mma on T4", "simt", "simt on T4"],
)
def test_shipped_kernels_agree_with_single_issue(
    machine: str, make: Callable[..., Program], op: Gemm, config: Any
) -> None:
    spec = load_arch(machine, {"sm.count": 2, "gpc.count": 1})
    compare(spec, make(op, spec, config))
