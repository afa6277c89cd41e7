"""Of every operator and every schedule that GPUs have, on random shapes: work is conserved, accounts add up, no roof is
beaten. What single kernels move, to the byte, is tested beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.run import simulate
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.units.pipes import BACKLOG
from workloads.gpu.conv.winograd import Geometry
from workloads.gpu.select import choose
from workloads.ops import FUNCTIONS, Attention, Conv2d, Conv2dDgrad, Gather, Gemm, GroupedGemm, KvWrite, Moe, Operator
from workloads.parse import parse
from workloads.registry import operators, schedules

Draw = Callable[[Any], Any]

A100, H100, V100, T4, B200 = "a100-sxm4-80gb", "h100-sxm", "v100-sxm2", "t4", "b200"
#: What libraries have beside kernels of kinds of their own.
TAKEN = [("gemm", kind) for kind in ("vllm", "deepgemm", "deepgemm-2025-02")] + [("attention", "flash3-2024")]
EVERY = [(op, kind) for op in operators("gpu") for kind in schedules(op, "gpu")] + TAKEN
FLOATS = ("fp32", "fp16", "bf16")
#: Formats of each GEMM schedule by machine; TMA needs rows of whole 16 B and only 16-bit formats in any order.
FORMATS: dict[str, dict[str, tuple[str, ...]]] = {
    "wgmma": {H100: ("bf16", "fp16", "tf32", "fp8", "int8")},
    "tcgen05": {B200: ("bf16", "fp16")},
    "mma": {
        A100: ("bf16", "fp16", "tf32", "int8", "fp64"),
        H100: ("fp16", "fp64"),
        V100: ("fp16",),
        T4: ("fp16", "int8"),
    },
    "simt": {T4: ("fp32", "int8"), V100: ("fp32",), A100: ("fp32",), H100: ("fp32",)},
    "gemv": {T4: ("fp32", "fp16"), A100: ("bf16", "fp32"), H100: ("fp8", "fp16")},
    "triton": {A100: ("fp16", "bf16")},
    "marlin": {A100: ("fp16", "bf16"), H100: ("bf16",)},
    "vllm": {H100: ("fp8",)},
    "deepgemm": {H100: ("fp8",)},
    "deepgemm-2025-02": {H100: ("fp8",)},
}
DECODING = {
    "decode": ("flash3",),
    "decode-varlen": ("decode", "flash2", "flash3-varlen"),
    "flash2": ("decode",),
    "flash2-varlen": ("decode", "flash2"),
    "flash3-2024": ("flash3",),
}
"""Kernels that a library has for what a schedule names."""
SCALED = ("vllm", "deepgemm", "deepgemm-2025-02")
"""Schedules of operands with scales by block."""


def small(name: str) -> GpuSpec:
    """Two SMs of one GPC, so that clusters of two fit and grids have several waves."""
    return load_arch(name, {"sm.count": 2, "gpc.count": 1})


def gemm(draw: Draw, kind: str) -> tuple[str, str]:
    machine = draw(st.sampled_from(sorted(FORMATS[kind])))
    dtype = draw(st.sampled_from(FORMATS[kind][machine]))
    step = 16 if kind in ("wgmma", "tcgen05", *SCALED) else 2 if kind == "triton" else 1
    m, n, k = (step * draw(st.integers(1, 200 // step)) for _ in range(3))
    if kind == "gemv":
        m, n = draw(st.sampled_from([(1, n), (m, 1)]))
    ta, tb = draw(st.sampled_from("NT")), draw(st.sampled_from("NT"))
    if kind == "wgmma" and dtype not in ("fp16", "bf16"):
        ta, tb = "NT"
    scale = "block" if kind in SCALED else "none"
    if kind in SCALED:
        ta, tb = "NT"
    if kind == "marlin":
        weights = draw(st.sampled_from(["int4", "int8", "mxfp4", "nvfp4"]))
        return machine, f"gemm m={m} n={n} k={64 * draw(st.integers(1, 4))} dtype={dtype} group=64 weights={weights}"
    batch = draw(st.integers(1, 2))
    return machine, f"gemm m={m} n={n} k={k} batch={batch} ta={ta} tb={tb} dtype={dtype} scale={scale}"


def attention(draw: Draw, kind: str) -> tuple[str, str]:
    separate = kind in ("unfused", "torch-math")
    dtypes = ("fp16",) if separate else {"flash3": ("fp16", "bf16", "fp8")}.get(kind, ("fp16", "bf16"))
    kv_heads = draw(st.integers(1, 2)) if kind != "flash2-triton" else 2
    longest = 100 if separate else 300
    queries, keys = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    causal, window = draw(st.sampled_from("01")), draw(st.sampled_from([0, 50]))
    sizes = [64, 128] if kind in ("flash2-triton", "flash3-2024") else [48, 64, 80, 128, 176, 256]
    head_dim = draw(st.sampled_from([33, 64, 100, 128] if separate else sizes))
    if kind == "flash2-triton":  # the tutorial's kernel knows whole blocks and square problems
        queries = keys = 128 * draw(st.integers(1, 3))
    if separate or kind in ("flash2-triton", "flash3-2024"):
        window, queries = 0, min(queries, keys)
    if kind == "flash4":
        window, head_dim = 0, draw(st.sampled_from([64, 128]))
    if kind == "flash4-decode":
        queries, head_dim = 1, draw(st.sampled_from([64, 128, 256]))
    hopper = kind in ("flash3", "flash3-2024", "flash3-varlen", "flash2-triton")
    machine = B200 if kind.startswith("flash4") else H100 if hopper else draw(st.sampled_from([A100, H100]))
    return machine, (
        f"attention batch=1 heads=2 kv_heads={kv_heads} seq_q={queries} seq_k={keys} head_dim={head_dim} "
        f"causal={causal} window={window} dtype={draw(st.sampled_from(dtypes))}"
    )


def latent(draw: Draw) -> tuple[str, str]:
    columns = draw(st.sampled_from(["head_dim=192 head_dim_v=128", "head_dim=576 head_dim_v=512"]))
    return H100, (
        f"attention batch={draw(st.integers(1, 3))} heads={draw(st.integers(1, 130))} kv_heads=1 seq_q=1 "
        f"seq_k={draw(st.integers(1, 700))} {columns} latent=1 page={draw(st.sampled_from([0, 64]))} dtype=fp16"
    )


def rowwise(draw: Draw, op: str, kind: str) -> tuple[str, str]:
    copying = [A100, H100]  # by cp.async
    own = [H100] if kind == "cluster" or op == "quantize" else copying + [V100, T4] * (kind != "triton")
    machine = draw(st.sampled_from(own))
    dtype = draw(st.sampled_from(FLOATS))
    text = f"{op} rows={draw(st.integers(1, 60))} cols={draw(st.integers(1, 3000))} dtype={dtype}"
    return machine, text + draw(st.sampled_from([" axis=0", " axis=1", ""])) * (op == "sum")


def pointwise(draw: Draw) -> tuple[str, str]:
    machine = draw(st.sampled_from([A100, H100, V100, T4]))
    dtype = draw(st.sampled_from(FLOATS))
    names = sorted(name for name, function in FUNCTIONS.items() if not function.starts)
    chain = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    cols = draw(st.integers(1, 300))
    text = f"pointwise n={cols * draw(st.integers(1, 100))} chain={'+'.join(chain)} dtype={dtype}"
    text += f" fused={draw(st.sampled_from('01'))}"
    return machine, text + f" cols={cols}" * ("bias" in chain)


def conv2d(draw: Draw, word: str, kind: str) -> tuple[str, str]:
    machine = draw(st.sampled_from([T4, A100, H100]))
    if kind == "winograd":
        side, h, w = draw(st.sampled_from([3, 5])), 5 + draw(st.integers(0, 6)), 5 + draw(st.integers(0, 6))
        return machine, (
            f"conv2d n=1 c={draw(st.integers(1, 40))} h={h} w={w} k={draw(st.integers(1, 40))} "
            f"r={side} s={side} pad={draw(st.integers(0, 1))} dtype=fp32"
        )
    if kind == "depthwise":
        c, side, dilation = draw(st.integers(2, 70)), draw(st.integers(1, 5)), draw(st.integers(1, 2))
        h, w = (4 * side + draw(st.integers(0, 9)) for _ in range(2))
        dtype = draw(st.sampled_from(["fp32", "fp16"]))
        return machine, (
            f"conv2d n={draw(st.integers(1, 2))} c={c} h={h} w={w} k={c} groups={c} r={side} s={side} "
            f"stride={draw(st.integers(1, 2))} dilation={dilation} pad={draw(st.integers(0, 2))} dtype={dtype}"
        )
    dtype = "fp32" if kind == "simt" else draw(st.sampled_from(["fp16"] if machine == T4 else ["fp16", "bf16"]))
    r, s = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    h, w = r + draw(st.integers(0, 10)), s + draw(st.integers(0, 10))
    return machine, (
        f"{word} n={draw(st.integers(1, 2))} c={draw(st.integers(1, 70))} h={h} w={w} k={draw(st.integers(1, 70))} "
        f"r={r} s={s} stride={draw(st.integers(1, 2))} pad={draw(st.integers(0, 1))} dtype={dtype}"
    )


def moe(draw: Draw, kind: str) -> tuple[str, str]:
    experts, ep = draw(st.sampled_from([(4, 1), (6, 3), (8, 2)]))
    distribution = draw(st.sampled_from(["uniform", "balanced", "power_law_1.2"]))
    return draw(st.sampled_from([A100, H100])), (
        f"moe tokens={draw(st.integers(1, 60))} hidden={8 * draw(st.integers(1, 20))} "
        f"inter={8 * draw(st.integers(1, 12))} topk={draw(st.integers(1, 3))} experts={experts} ep={ep} "
        f"distribution={distribution} gate={draw(st.sampled_from('01'))} router={draw(st.sampled_from('01'))} "
        f"weights={draw(st.sampled_from(['int4', 'mxfp4', 'nvfp4'])) if kind == 'marlin' else 'same'} "
        f"dtype={draw(st.sampled_from(['fp16', 'bf16']))}"
    )


def rope(draw: Draw) -> tuple[str, str]:
    return draw(st.sampled_from([A100, H100, V100, T4])), (
        f"rope tokens={draw(st.integers(1, 40))} heads={draw(st.integers(1, 6))} kv_heads={draw(st.integers(1, 3))} "
        f"head_dim={draw(st.sampled_from([32, 64, 80, 128]))} norm={draw(st.sampled_from('01'))} "
        f"dtype={draw(st.sampled_from(['fp32', 'fp16']))}"
    )


def attention_backward(draw: Draw, kind: str) -> tuple[str, str]:
    keys, hopper = draw(st.integers(1, 200)), kind == "flash3"
    queries, kv_heads = draw(st.integers(1, keys)), draw(st.integers(1, 2))
    return draw(st.sampled_from([H100] if hopper else [A100, H100])), (
        f"attention_backward batch=1 heads=2 kv_heads={kv_heads} seq_q={queries} seq_k={keys} "
        f"head_dim={draw(st.sampled_from([40, 64, 80, 128] if hopper else [64, 88, 128, 160, 256]))} "
        f"causal={draw(st.sampled_from('01'))} window={draw(st.sampled_from([0, 40]))} "
        f"deterministic={draw(st.sampled_from('01'))} dtype={draw(st.sampled_from(['fp16', 'bf16']))}"
    )


def grouped_gemm(draw: Draw) -> tuple[str, str]:
    distribution = draw(st.sampled_from(["uniform", "balanced", "power_law_1.2"]))
    return draw(st.sampled_from([A100, H100])), (
        f"grouped_gemm m={draw(st.integers(2, 90))} n={8 * draw(st.integers(1, 20))} k={8 * draw(st.integers(1, 20))} "
        f"groups={draw(st.integers(1, 5))} align={16 * draw(st.integers(1, 4))} distribution={distribution} "
        f"dtype={draw(st.sampled_from(['fp16', 'bf16']))}"
    )


def lookup(draw: Draw, op: str) -> tuple[str, str]:
    machine = draw(st.sampled_from([A100, H100, V100, T4]))
    if op == "gather":
        dtype = draw(st.sampled_from(FLOATS))
        return machine, (
            f"gather rows={draw(st.integers(1, 60))} cols={draw(st.integers(1, 3000))} of={draw(st.integers(1, 90))} "
            f"dtype={dtype}"
        )
    new = draw(st.integers(1, 20))
    return machine, (
        f"kv_write batch={draw(st.integers(1, 4))} seq_q={new} seq_k={new + draw(st.integers(0, 50))} "
        f"kv_heads={draw(st.integers(1, 9))} head_dim={8 * draw(st.integers(1, 16))} page={draw(st.integers(1, 64))} "
        "dtype=fp16"
    )


def question(draw: Draw, op: str, kind: str) -> tuple[str, str]:
    """Machine and text of a random problem that the schedule takes."""
    if op == "gemm":
        return gemm(draw, kind)
    if op == "attention":
        return latent(draw) if kind == "flash-mla" else attention(draw, kind)
    if op.startswith("conv2d"):
        return conv2d(draw, op, kind)
    if op == "attention_backward":
        return attention_backward(draw, kind)
    if op == "moe":
        return moe(draw, kind)
    if op == "rope":
        return rope(draw)
    if op == "grouped_gemm":
        return grouped_gemm(draw)
    if op in ("gather", "kv_write"):
        return lookup(draw, op)
    return pointwise(draw) if op == "pointwise" else rowwise(draw, op, kind)


def reads_everything(op: Operator) -> bool:
    """Whether no mask, no stride and no choice of experts spares a part of the operands."""
    if isinstance(op, Moe | GroupedGemm | Gather | KvWrite):
        return False
    if isinstance(op, Conv2dDgrad):  # what lies in the padding has no gradient
        return op.stride == op.dilation == 1 and op.pad < min(op.r, op.s)
    if isinstance(op, Conv2d):
        return op.stride == op.dilation == 1
    return not isinstance(op, Attention) or (op.causal == "0" and not op.window)


def written_bytes(op: Operator) -> int:
    """Bytes that an operator stores: of caches only what is new."""
    results = op.operands[:2] if isinstance(op, KvWrite) else op.results
    return sum(result.size_bytes for result in results)


@pytest.mark.parametrize(("word", "kind"), EVERY, ids=[f"{op} {kind}" for op, kind in EVERY])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_work_is_conserved_accounts_add_up_and_no_roof_is_beaten(word: str, kind: str, data: st.DataObject) -> None:
    machine, text = question(data.draw, word, kind)
    spec, op = small(machine), parse(text)
    config = choose(op, spec, kind).config
    report = simulate(op, spec, schedule=str(config))
    record, figures = report.record, report.figures
    ran = record.schedule.split()[0]
    if word == "gemm" and kind in SCALED:
        assert ran == "wgmma"
    else:
        assert ran == kind or ran in DECODING.get(kind, ())
    counted = figures.counters

    # Winograd's transforms leave fewer products than the definition has.
    least = Geometry(op).product.macs if kind == "winograd" and isinstance(op, Conv2d) else op.macs
    assert counted["macs"] >= least
    if isinstance(op, Gemm) and kind != "gemv":
        tiles = ((op.m, config.tile_m), (op.n, config.tile_n), (op.k, config.tile_k))
        if getattr(config, "swap", False):
            tiles = ((op.n, config.tile_m), (op.m, config.tile_n), (op.k, config.tile_k))
        if ran == "wgmma":  # clusters are whole
            (x, tile_m), (y, tile_n), depth = tiles
            tiles = ((x, tile_m * config.cluster_m), (y, tile_n * config.cluster_n), depth)
        padded = [-(-x // tile) * tile for x, tile in tiles]
        # Blocks of k after the first are added to the sums by one more multiply-add a value.
        added = padded[0] * padded[1] * (padded[2] // config.tile_k - 1) if op.blockwise else 0
        beside = counted["macs"] - op.batch * (math.prod(padded) + added)
        # Each weight of few bits is shifted to zero and multiplied by its scale.
        assert beside >= 2 * padded[1] * padded[2] if kind == "marlin" else beside == 0
    assert counted["l2_write_bytes"] >= written_bytes(op)
    if reads_everything(op):
        assert counted["dram_read_bytes"] >= sum(operand.size_bytes for operand in op.operands)

    slots = spec.sm.count * spec.sm.sub_cores
    for kernel in record.kernels:
        assert slots * (kernel.cycles - 1) <= sum(kernel.stalls["issue"].values()) <= slots * kernel.cycles
        assert min(min(unit.values()) for unit in kernel.stalls.values()) >= 0
        # Issue slots are given once; memory instructions may book them for so long ahead of the others.
        ahead = BACKLOG // TICKS_PER_CYCLE
        assert kernel.stalls["issue"]["issued"] <= kernel.stalls["warps"]["selected"] <= slots * (kernel.cycles + ahead)
    roofs = figures.speed_of_light()
    assert max(roofs.values()) <= 1, roofs
    assert figures.share_of_peak <= 1
    moved = counted["dram_read_bytes"] + counted["dram_write_bytes"]
    assert figures.device_ps * spec.dram.bandwidth_bytes_per_s >= moved * 10**12
