"""Every attention schedule computes what NumPy does, in a random legal order of execution, and each wait matters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.run import row_request, simulate
from sim.app.run import run as run_request
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.language import Const, Loop, Program, evaluate, walk
from sim.gpu.lower.listing import listing
from workloads.gpu.attention.blocks import AttentionProblem, blocks, problem
from workloads.gpu.attention.configuration import AttentionConfig
from workloads.gpu.attention.flash2 import Flash2Config
from workloads.gpu.attention.flash3 import RELEASE, Flash3Config
from workloads.gpu.attention.flash3_varlen import Flash3VarlenConfig
from workloads.gpu.attention.flash_decode import DecodeConfig
from workloads.gpu.attention.flash_triton import FlashTritonConfig
from workloads.gpu.attention.sample import steps_of_head
from workloads.gpu.attention.torch_math import TorchMathConfig
from workloads.gpu.attention.unfused import UnfusedConfig
from workloads.gpu.select import choose
from workloads.libraries import figure
from workloads.ops.attention import Attention
from workloads.parse import parse
from workloads.registry import build
from workloads.silicon import packaged_rows

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip


@pytest.fixture(scope="module")
def machines() -> dict[str, GpuSpec]:
    return {
        "one SM": load_arch("h100-sxm", {"sm.count": 1, "gpc.count": 1}),
        "two SMs": load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 1}),
        "h100-sxm": load_arch("h100-sxm"),
        "a100-sxm4-80gb": load_arch("a100-sxm4-80gb"),
    }


def attention(seq_q: int, seq_k: int = 0, *, heads: int = 1, head_dim: int = 64, **keys: Any) -> Attention:
    defaults = {"batch": 1, "dtype": "fp16"}
    return Attention(
        **{**defaults, **keys, "heads": heads, "head_dim": head_dim, "seq_q": seq_q, "seq_k": seq_k or seq_q}
    )


def ragged(**keys: Any) -> Attention:
    return Attention(**{"dtype": "fp16", "heads": 2, "head_dim": 64, **keys})


FLASH3: list[tuple[Attention, Flash3Config]] = [
    (attention(256), Flash3Config(128, 64)),
    (attention(256, heads=2), Flash3Config(128, 64, cluster=2)),
    (attention(200, heads=3, causal="1"), Flash3Config(128, 64)),
    (attention(200, 270, heads=2, kv_heads=1, causal="1", window=70), Flash3Config(128, 32)),
    (attention(270, 200, causal="1"), Flash3Config(128, 32)),
    (attention(270, 300, window=60), Flash3Config(128, 32)),
    (attention(66, 192, causal="1"), Flash3Config(64, 64)),
    (attention(66, 192, causal="1"), Flash3Config(128, 64, overlap=False)),
    (attention(192, head_dim=128, dtype="bf16"), Flash3Config(192, 64)),
    (attention(384, heads=1, batch=2, head_dim=128), Flash3Config(128, 176, cluster=2)),
    (attention(128, 160, head_dim=256), Flash3Config(128, 80, pingpong=False)),
    (attention(256, 160, batch=2, head_dim=256), Flash3Config(128, 80, cluster=2, pingpong=False)),
    (attention(200, 400, batch=2), Flash3Config(192, 192)),
    (attention(64, 128), Flash3Config(64, 64, stages=1, overlap=True)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2, causal="1"), Flash3Config(64, 64)),
    (attention(1, 130, batch=2, heads=8, kv_heads=4, window=70), Flash3Config(64, 64)),
    (attention(200, 300, heads=2, causal="1", dtype="fp8"), Flash3Config(128, 64)),
    (attention(130, 200, heads=2, head_dim=256, dtype="fp8"), Flash3Config(128, 128)),
    (attention(200, 270, heads=2, kv_heads=1, causal="1", window=70), Flash3Config(128, 32, overlap=False)),
    (attention(384, batch=2, head_dim=128), Flash3Config(128, 176, cluster=2, overlap=False)),
    (attention(256), Flash3Config(128, 64, pingpong=False, overlap=False, tma=False, specialized=False)),
    (attention(200, causal="1"), Flash3Config(192, 128, pingpong=False, tma=False, specialized=False)),
    (attention(70, 160, heads=2, head_dim=96, causal="1"), Flash3Config(192, 144)),
    (attention(70, 130, head_dim=96, dtype="fp8"), Flash3Config(192, 128)),
    (attention(200, heads=2, causal="1"), Flash3Config(128, 64, longest_first=False)),
    (attention(70, 160, heads=2, head_dim=88, causal="1"), Flash3Config(128, 64)),
    (attention(70, 130, head_dim=16, dtype="fp8"), Flash3Config(64, 64)),
]
TRITON: list[tuple[Attention, FlashTritonConfig]] = [
    (attention(256, 384, heads=2), FlashTritonConfig(128, 64, 4, 4)),
    (attention(256, batch=2, heads=2, causal="1"), FlashTritonConfig(128, 64)),
    (attention(128, head_dim=128, causal="1", dtype="bf16"), FlashTritonConfig(64, 32, 4, 2)),
    (attention(128, 256, head_dim=128), FlashTritonConfig(128, 128, 8, 2)),
]
FLASH2: list[tuple[Attention, Flash2Config]] = [
    (attention(256), Flash2Config(128, 64)),
    (attention(66, 192, causal="1"), Flash2Config(64, 64)),
    (attention(200, 270, heads=2, kv_heads=1, causal="1", window=70), Flash2Config(128, 32)),
    (attention(100, 130, batch=2, head_dim=128, dtype="bf16"), Flash2Config(128, 64)),
    (attention(70, 80, head_dim=256), Flash2Config(64, 32)),
    (attention(270, 200, causal="1"), Flash2Config(64, 32)),
    (attention(70, 90, heads=2, head_dim=96, causal="1"), Flash2Config(128, 64)),
    (attention(70, 90, heads=2, head_dim=80, causal="1"), Flash2Config(64, 64)),
    (attention(70, 90, head_dim=24), Flash2Config(64, 32)),
]
DECODE: list[tuple[Attention, DecodeConfig]] = [
    (attention(1, 200, batch=2, heads=8, kv_heads=2, causal="1"), DecodeConfig(64, 32, 3)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2, causal="1"), DecodeConfig(64, 32, 1)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2, causal="1"), DecodeConfig(64, 32, 3, varlen=True)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2, causal="1"), DecodeConfig(64, 32, 1, varlen=True)),
    (attention(3, 150, heads=2, causal="1", window=70), DecodeConfig(64, 32, 1)),
    (attention(3, 150, heads=2, causal="1", window=70), DecodeConfig(64, 32, 2)),
    (attention(70, 90, heads=2, head_dim=128, dtype="bf16"), DecodeConfig(64, 32, 5)),
    (attention(1, 90, heads=4, kv_heads=2, head_dim=96), DecodeConfig(64, 32, 2, varlen=True)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2), DecodeConfig(64, 32, 3, fixed=True)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2), DecodeConfig(128, 64, 1, fixed=True)),
    (attention(1, 90, batch=2, heads=6, kv_heads=2, head_dim=88), DecodeConfig(64, 32, 2, varlen=True)),
    (attention(1, 90, batch=2, heads=6, kv_heads=2, head_dim=136), DecodeConfig(64, 32, 2)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2, window=70, causal="1"), DecodeConfig(64, 32, 2, fixed=True)),
]
PAGED: list[tuple[Attention, AttentionConfig]] = [
    (attention(1, 200, batch=2, heads=8, kv_heads=2, page=16), DecodeConfig(64, 32, 3, varlen=True)),
    (attention(1, 200, batch=2, heads=4, kv_heads=4, page=64), DecodeConfig(64, 128, 1, varlen=True)),
    (attention(130, 150, batch=2, heads=2, kv_heads=1, page=32, causal="1"), DecodeConfig(64, 128, 1, varlen=True)),
    (attention(70, 7, heads=2, kv_heads=1, head_dim=192, page=48), DecodeConfig(64, 64, 1, varlen=True)),
    (attention(3, 150, heads=2, causal="1", window=70, page=16), DecodeConfig(64, 32, 1, varlen=True)),
    (attention(30, 70, heads=6, kv_heads=3, page=16, append="1"), DecodeConfig(64, 64, 1, varlen=True)),
    (attention(2, 40, heads=2, head_dim=192, head_dim_v=128), DecodeConfig(64, 32, 2)),
    (attention(20, 50, heads=2, kv_heads=1, head_dim=96, page=16, causal="1"), DecodeConfig(64, 64, 1, varlen=True)),
    (
        attention(1, 70, heads=4, kv_heads=1, head_dim=576, head_dim_v=512, page=16),
        DecodeConfig(64, 32, 2, varlen=True),
    ),
]
VARLEN: list[tuple[Attention, AttentionConfig]] = [
    (attention(40, 70, batch=2, heads=6, kv_heads=2, page=16, causal="1"), Flash3VarlenConfig(64, 32)),
    (attention(1, 200, batch=2, heads=8, kv_heads=2, page=64), Flash3VarlenConfig(64, 32, 3)),
    (attention(1, 300, heads=2, page=16, window=170, causal="1"), Flash3VarlenConfig(192, 32, 2, overlap=False)),
    (attention(100, heads=4, kv_heads=1, page=32, window=50, causal="1"), Flash3VarlenConfig(128, 64)),
    (attention(17, 70, batch=2, heads=2, head_dim=256, page=48, causal="1"), Flash3VarlenConfig(128, 80)),
    (attention(70, 64, heads=3, kv_heads=1, head_dim=192), Flash3VarlenConfig(128, 96)),
    (attention(40, 70, heads=4, kv_heads=2, head_dim=96, page=16, causal="1"), Flash3VarlenConfig(192, 128)),
    (
        attention(70, 300, batch=2, heads=4, kv_heads=2, page=128, causal="1"),
        Flash3VarlenConfig(128, 64, whole_blocks=True),
    ),
    (attention(40, 100, heads=2, head_dim=256, page=80), Flash3VarlenConfig(128, 80, whole_blocks=True)),
    (attention(40, 70, heads=4, kv_heads=2, head_dim=72, page=16, causal="1"), Flash3VarlenConfig(192, 128)),
]
UNEVEN: dict[str, Any] = {"seqlens_k": "70,200,17", "causal": "1"}
DECODING: dict[str, Any] = {"seqlens_k": "300,5,130", "heads": 8, "kv_heads": 2, "batch": 3}
RAGGED: list[tuple[str, Attention, AttentionConfig]] = [
    ("a100-sxm4-80gb", ragged(batch=3, **UNEVEN), Flash2Config(128, 64)),
    ("a100-sxm4-80gb", ragged(batch=3, page=16, **UNEVEN), DecodeConfig(64, 64, 1, varlen=True)),
    ("a100-sxm4-80gb", ragged(batch=2, seqlens_q="70,20", seq_k=90), Flash2Config(64, 64)),
    ("a100-sxm4-80gb", ragged(seq_q=1, page=32, **DECODING), DecodeConfig(64, 64, 3, varlen=True)),
    ("a100-sxm4-80gb", ragged(seq_q=1, **DECODING), DecodeConfig(64, 64, 1, varlen=True)),
    ("a100-sxm4-80gb", ragged(page=16, append="1", seq_q=1, **DECODING), DecodeConfig(64, 64, 3, varlen=True)),
    ("two SMs", ragged(batch=3, page=16, append="1", seqlens_q="20,3,17", **UNEVEN), Flash3VarlenConfig(64, 64)),
    ("two SMs", ragged(batch=3, heads=1, **UNEVEN), Flash3VarlenConfig(128, 64)),
    ("two SMs", ragged(batch=3, page=16, kv_heads=1, **UNEVEN), Flash3VarlenConfig(64, 64)),
    ("two SMs", ragged(seq_q=1, page=32, **DECODING), Flash3VarlenConfig(64, 64, 3)),
    ("two SMs", ragged(batch=3, page=64, kv_heads=1, **UNEVEN), Flash3VarlenConfig(128, 64, whole_blocks=True)),
    ("two SMs", ragged(seq_q=1, page=16, window=150, causal="1", **DECODING), Flash3VarlenConfig(64, 32, 3)),
    (
        "two SMs",
        ragged(batch=2, seqlens_q="70,20", seqlens_k="30,90", window=30, page=16),
        Flash3VarlenConfig(128, 64, overlap=False),
    ),
]
CASES: list[tuple[str, Attention, AttentionConfig]] = [
    *RAGGED,
    *(("two SMs", op, c) for op, c in FLASH3),
    *(("two SMs", op, c) for op, c in TRITON),
    *(("a100-sxm4-80gb", op, c) for op, c in FLASH2),
    *(("a100-sxm4-80gb", op, c) for op, c in DECODE),
    *(("a100-sxm4-80gb", op, c) for op, c in PAGED),
    *(("two SMs", op, c) for op, c in VARLEN),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[2]}: {case[1]}")
def test_computes_what_numpy_does(case: tuple[str, Attention, AttentionConfig], machines: dict[str, GpuSpec]) -> None:
    machine, op, config = case
    program = build(op, machines[machine], config)
    operands = op.inputs(seed=1)
    named = {operand.name: array for operand, array in zip(op.operands, operands, strict=True)}
    result = interpret(program, execute(program, seed=2), named)
    assert result.violations == []
    results = [result.outputs[operand.name] for operand in op.results]
    assert op.largest_error(results, *operands) <= op.tolerance


def test_lengths_of_their_own_take_work_and_room_of_their_own() -> None:
    """Alone, each sequence has what its share of all has; nothing is stored over a neighbour, as numbers above show."""
    lengths = (70, 200, 17)
    together = ragged(batch=3, page=16, **UNEVEN)
    alone = [attention(n, heads=2, causal="1", page=16) for n in lengths]
    assert together.macs == sum(op.macs for op in alone)
    assert together.all_pages == sum(op.all_pages for op in alone) == 5 + 13 + 2
    assert [operand.shape[:2] for operand in together.operands[:2]] == [(1, 287), (20, 16)]
    # A row of the table has pages of its own, each once.
    used = [page for row, op in zip(together.page_table, alone, strict=True) for page in row[: op.pages]]
    assert sorted(used) == list(range(20))
    drawn = ragged(batch=64, seqlens_q="uniform_10_90", seqlens_k="exponential_100", seed=3)
    assert drawn.lengths_q == ragged(batch=64, seqlens_q="uniform_10_90", seq_k=100, seed=3).lengths_q
    assert 10 <= min(drawn.lengths_q) < 20 < 80 < max(drawn.lengths_q) <= 90
    assert len(set(drawn.lengths_k)) > 32
    assert len({ragged(batch=8, seqlens_k="uniform_1_99", seed=seed).lengths_k for seed in range(3)}) == 3


def test_lengths_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("70 200\n17\n", encoding="utf-8")
    assert ragged(batch=3, seqlens_k=str(path), causal="1") == ragged(batch=3, **UNEVEN)
    path.write_text("70 x", encoding="utf-8")
    for text, message in (
        (str(path), "the file must hold numbers alone"),
        ("nowhere.txt", "numbers with commas between, a file of numbers, uniform_LOW_HIGH or exponential_MEAN"),
        ("1,2", "2 lengths; one for each of batch=3 is needed"),
        ("1,0,2", "lengths are from 1"),
        ("uniform_9_3", "lowest and highest length, from 1 on, in this order"),
    ):
        with pytest.raises(InputError, match=message):
            ragged(batch=3, seqlens_k=text)
    with pytest.raises(InputError, match="seq and seq_k say the same"):
        ragged(batch=2, seq_k=5, seqlens_k="5,6")


def test_kernels_that_know_no_lengths_say_so(machines: dict[str, GpuSpec]) -> None:
    op = ragged(batch=3, **UNEVEN)
    for kind in ("flash3", "unfused", "flash2-triton"):
        with pytest.raises(InputError, match="knows no lengths that differ; nearest: flash"):
            choose(op, machines["h100-sxm"], kind)
    assert str(choose(op, machines["h100-sxm"]).config).startswith("flash3-varlen")
    assert str(choose(op, machines["a100-sxm4-80gb"]).config).startswith("flash2")


def test_one_warp_of_the_producer_looks_for_tiles(machines: dict[str, GpuSpec]) -> None:
    op = attention(1, 64, batch=40, heads=8, kv_heads=2, page=64)
    (kernel,) = build(op, machines["h100-sxm"], Flash3VarlenConfig(64, 64)).kernels
    looks = {
        role.name: sum(op.chain == figure(RELEASE, "look_steps") for op in walk(role.body)) for role in kernel.roles
    }
    assert looks == {"producer": 2, "consumer": 0}  # of each tile, and that none is left


def test_one_long_sequence_takes_longer_than_even_ones() -> None:
    """The same number of keys: parts of the long one end last, and its few pages are not shared out."""
    text = "attention batch=8 heads=8 kv_heads=8 seq_q=1 head_dim=64 dtype=fp16 page=16"
    even, uneven = (
        simulate(f"{text} {lengths}", "a100-sxm4-80gb", schedule="flash2-varlen").record
        for lengths in ("seq_k=600", "seqlens_k=4100,100,100,100,100,100,100,100")
    )
    assert uneven.time_ps > 2 * even.time_ps
    read = [sum(k.counters["dram_read_bytes"] for k in record.kernels) for record in (even, uneven)]
    assert 0.95 * read[0] < read[1] < 1.05 * read[0]


@pytest.mark.parametrize("splits", [1, 3])
def test_the_caller_gets_the_lse_by_head(splits: int, machines: dict[str, GpuSpec]) -> None:
    op = attention(1, 200, batch=3, heads=8, kv_heads=2)
    program = build(op, machines["a100-sxm4-80gb"], DecodeConfig(64, 32, splits, varlen=True))
    shown = tuple(replace(t, role="output") if t.name == "lse_by_head" else t for t in program.tensors)
    q, k, v = op.inputs(seed=1)
    result = interpret(replace(program, tensors=shown), execute(program, seed=2), {"q": q, "k": k, "v": v})
    scores = np.einsum("bhd,bshd->bhs", q[:, 0].astype(float), np.repeat(k, 4, axis=2).astype(float))
    expected = np.log(np.exp(scores / math.sqrt(op.head_dim)).sum(axis=2))
    np.testing.assert_allclose(result.outputs["lse_by_head"], expected.T, rtol=1e-2)


def test_the_kernel_that_adds_parts_executes_what_was_counted() -> None:
    """619 instructions a warp with four parts (workloads/silicon/lab/executed_instructions.csv)."""
    text = "attention batch=1 heads=8 kv_heads=2 seq_q=1 seq_k=512 head_dim=128 dtype=bf16"
    added = simulate(text, "h200-sxm", schedule="decode 64x128 warps 4 splits 4 fixed").record.kernels[1]
    assert added.counters["warp_instructions"] == pytest.approx(619 * 8, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "warp_instructions"),
    [
        ("batch=16 heads=16 seq=512 head_dim=64", 29_634_560),
        ("batch=8 heads=32 kv_heads=32 seq_q=1 seq_k=4096 head_dim=128", 79_382_528),
        ("batch=8 heads=32 kv_heads=8 seq_q=1 seq_k=4096 head_dim=128", 10_075_648),
    ],
)
def test_flash_attention_2_executes_what_was_counted(shape: str, warp_instructions: int) -> None:
    """By Nsight Compute on an H200 (workloads/silicon/lab/executed_instructions.csv)."""
    kernel = simulate(f"attention {shape} dtype=bf16", "h200-sxm", schedule="flash2").record.kernels[0]
    assert kernel.counters["warp_instructions"] == pytest.approx(warp_instructions, rel=0.03)


def test_the_interface_for_lengths_copies_heads_into_groups(machines: dict[str, GpuSpec]) -> None:
    """Outputs are copied to the caller, Q and LSE where neither batch nor key heads are 1; only groups are cut."""
    spec = machines["a100-sxm4-80gb"]
    for varlen, batch, key_heads, copies in ((True, 2, 2, 3), (True, 1, 2, 1), (True, 2, 1, 1), (False, 2, 2, 0)):
        op = attention(1, 64, batch=batch, heads=8, kv_heads=key_heads)
        kernels = build(op, spec, DecodeConfig(64, 32, 2, varlen=varlen)).kernels
        assert [kernel.name.startswith("copy") for kernel in kernels].count(True) == copies
        assert len(kernels) == copies + 2
    alone = attention(1, 8192, heads=8, kv_heads=8)
    parts = [choose(alone, spec, kind).config for kind in ("decode", "decode-varlen")]
    assert [isinstance(config, DecodeConfig) and config.splits > 1 for config in parts] == [True, False]


AGAIN = "the one at the beginning of the step orders the copies; the compiler places a second one"
FENCE = "no register that wgmma reads or writes is touched between this fence and the one before"
LISTED = "places and lengths are known when the program is written; only time depends on reading them"
FIRST_TILE = "all warps wait for the place of the first tile, too"
OWN_ROWS = "a warp brings the queries that it has read itself"
TURN = "keeps the warpgroups from multiplying at the same time, which is slower but not wrong"
IMPLIED = "the values loaded last went where values had been handed back after these keys had been read"
READ = "these values' buffer was read before the next keys, which are loaded first, were handed back"
NEXT = "the wait for the next scores covers these outputs, and only after it their values are overwritten"
TOGETHER = "queries and first keys arrive together, so that each wait implies the other"
STORED = "all warps have met at the barriers around the store of O since"
MUTANTS: dict[str, tuple[str, Attention, AttentionConfig, dict[str, str]]] = {
    "flash3": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16),
        {"producer/7 mbarrier_wait": IMPLIED, "consumer/20 bar_sync": TURN, "consumer/25 wgmma_fence": FENCE},
    ),
    "flash3 cluster": (
        "two SMs", attention(256, 64, heads=2), Flash3Config(128, 16, cluster=2),
        {"producer/7 mbarrier_wait": IMPLIED, "consumer/20 bar_sync": TURN, "consumer/25 wgmma_fence": FENCE},
    ),
    "flash3 over values": (
        "one SM", attention(128, 256, heads=2), Flash3Config(128, 64),
        {"producer/7 mbarrier_wait": IMPLIED, "consumer/20 bar_sync": TURN, "consumer/25 wgmma_fence": FENCE},
    ),
    "flash3 causal": (
        "one SM", attention(160, causal="1"), Flash3Config(128, 32),
        {
            "producer/8 mbarrier_wait": IMPLIED,
            **{f"consumer/{n} bar_sync": TURN for n in (21, 45)},
            **{f"consumer/{n} wgmma_fence": FENCE for n in (26, 50)},
        },
    ),
    "flash3 fp8": (
        "one SM", attention(64, 128, heads=2, dtype="fp8"), Flash3Config(64, 32),
        {**{f"producer/{n} mbarrier_wait": IMPLIED for n in (7, 10)}, "consumer/23 wgmma_fence": FENCE},
    ),
    "flash3 without tma": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16, tma=False),
        {
            "producer/7 mbarrier_wait": IMPLIED,
            **{f"consumer/{n} mbarrier_wait": TOGETHER for n in (5, 6)},
            "consumer/20 bar_sync": TURN,
            "consumer/25 wgmma_fence": FENCE,
        },
    ),
    "flash3 without wgmma": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16, overlap=False, wgmma=False),
        {
            "producer/7 mbarrier_wait": IMPLIED,
            "producer/13 mbarrier_wait": READ,
            "consumer/59 bar_sync": TURN,
        },
    ),
    "flash3 without warp specialization": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16, pingpong=False, specialized=False),
        {**{f"warps/{n} mbarrier_wait": STORED for n in (3, 7, 10, 13)}, "warps/41 wgmma_fence": FENCE},
    ),
    "flash3 without overlap": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16, overlap=False),
        {
            "producer/7 mbarrier_wait": IMPLIED,
            "producer/13 mbarrier_wait": READ,
            **{f"consumer/{n} bar_sync": TURN for n in (7, 22, 45)},
            "consumer/26 wgmma_wait": NEXT,
            "consumer/30 wgmma_fence": FENCE,
        },
    ),
    "flash3 without ping-pong": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16, pingpong=False),
        {"producer/7 mbarrier_wait": IMPLIED, "consumer/23 wgmma_fence": FENCE},
    ),
    "flash3 without ping-pong and overlap": (
        "one SM", attention(128, 64, heads=2), Flash3Config(128, 16, pingpong=False, overlap=False),
        {
            "producer/7 mbarrier_wait": IMPLIED,
            "producer/13 mbarrier_wait": READ,
            "consumer/22 wgmma_wait": NEXT,
            "consumer/26 wgmma_fence": FENCE,
        },
    ),
    "flash3 fp8 without a buffer for O": (
        "one SM", attention(64, 128, heads=2, head_dim=256, dtype="fp8"), Flash3Config(64, 32),
        {**{f"producer/{n} mbarrier_wait": IMPLIED for n in (7, 10)}, "consumer/23 wgmma_fence": FENCE},
    ),
    "flash3-varlen by TMA": (
        "one SM", attention(64, 96, heads=2, kv_heads=1, page=32), Flash3VarlenConfig(64, 32, whole_blocks=True),
        {
            **{f"producer/{n} iadd after {what}": LISTED for n, what in (
                (5, "look"), (7, "lengths"), (14, "place"), (19, "place"), (24, "place"), (30, "place"), (36, "look"),
                (38, "lengths")
            )},
            **{f"{what} bar_sync": LISTED for what in ("producer/10", "producer/39", "producer/41", "consumer/79")},
            "*/1 bar_sync 6": LISTED,
            "*/0 bar_sync 0": FIRST_TILE,
            "producer/15 mbarrier_wait": IMPLIED,
            "consumer/7 mbarrier_wait": OWN_ROWS,
            "consumer/37 wgmma_fence": FENCE,
        },
    ),
    "flash2-triton": (
        "two SMs", attention(256, causal="1"), FlashTritonConfig(128, 32, 8, 3),
        {f"warps/{n} fence_async": AGAIN for n in (17, 49)},
    ),
    "flash2": ("a100-sxm4-80gb", attention(64, 96), Flash2Config(64, 32), {}),
    "decode": ("a100-sxm4-80gb", attention(1, 192, heads=4, kv_heads=1), DecodeConfig(64, 32, 2), {}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("batch=4 heads=32 kv_heads=8 seq_q=1 seq_k=8192 head_dim=128", "decode 64x128 warps 4 splits 7 fixed"),
        ("batch=1 heads=32 kv_heads=8 seq_q=1 seq_k=8192 head_dim=128", "decode 64x128 warps 4 splits 32 fixed"),
        ("batch=16 heads=8 kv_heads=1 seq_q=1 seq_k=16384 head_dim=128", "decode 64x128 warps 4 splits 15 fixed"),
        ("batch=4 heads=32 seq_q=1 seq_k=2048 head_dim=64", "decode 64x256 warps 4 splits 2 fixed"),
        ("batch=64 heads=32 kv_heads=8 seq_q=1 seq_k=1024 head_dim=128", "decode 128x64 warps 4 splits 1 fixed"),
        ("batch=16 heads=32 seq_q=1 seq_k=2048 head_dim=64", "flash2 128x128 warps 4"),
        ("batch=1 heads=32 kv_heads=8 seq=512 head_dim=128", "flash2 128x64 warps 4"),
    ],
)
def test_flash2_cuts_keys_as_pytorch_was_seen_to(text: str, config: str) -> None:
    """Grids and kernels by CUPTI, PyTorch 2.11 on H100 (workloads/silicon/lab/measured_kernels.csv)."""
    op = parse(f"attention {text} dtype=bf16")
    assert isinstance(op, Attention)
    assert str(choose(op, load_arch("h100-sxm"), "flash2").config) == config


@pytest.mark.parametrize("name", MUTANTS)
def test_every_wait_matters(name: str, machines: dict[str, GpuSpec]) -> None:
    machine, op, config, redundant = MUTANTS[name]
    program = build(op, machines[machine], config)
    inputs = {operand.name: array for operand, array in zip(op.operands, op.inputs(seed=1), strict=True)}
    expected = interpret(program, execute(program, seed=2), inputs).outputs

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    def simulate(mutant: Program) -> NDArray[np.int64]:
        return execute(mutant, seed=2)

    excused = {f"{program.kernels[0].name}/{what}": why for what, why in redundant.items()}
    assert assert_mutants_caught(case, simulate, excused) > 0


@st.composite
def problems(draw: st.DrawFn) -> AttentionProblem:
    keys: dict[str, Any] = {"causal": draw(st.sampled_from("01")), "window": draw(st.sampled_from([0, 1, 5, 40, 100]))}
    return problem(attention(draw(st.integers(1, 300)), draw(st.integers(1, 300)), **keys))


@settings(max_examples=80, deadline=None)
@given(problems(), st.sampled_from([16, 64, 128]), st.sampled_from([16, 32, 80]))
def test_blocks_cover_what_a_tile_sees_and_mask_what_it_does_not(p: AttentionProblem, rows: int, block_n: int) -> None:
    for first in range(0, p.op.queries, rows):
        b = blocks(p, Const(first), rows, block_n)
        end, trips, tail, whole, head = (evaluate(e, {}) for e in (b.end, b.trips, b.tail, b.whole, b.head))
        assert min(tail, whole, head) >= 0
        assert 1 + tail + whole + head == trips
        # Keys that some query of the tile sees, and blocks that all of them see as a whole.
        seen = p.seen(np.arange(first, min(first + rows, p.op.queries)), np.arange(-(-p.op.keys // block_n) * block_n))
        visited = range(end - trips, end)
        needed = {int(key) // block_n for key in np.flatnonzero(seen.any(axis=0))}
        assert needed <= set(visited)
        assert len(visited) <= max(1, len(needed)) or not needed
        for block in range(end - 2 - tail, end - 2 - tail - whole, -1):
            assert seen[:, block * block_n : (block + 1) * block_n].all()


def test_the_machine_says_which_kernel_it_takes(machines: dict[str, GpuSpec]) -> None:
    op = attention(1024, heads=64, head_dim=128)
    assert choose(op, machines["h100-sxm"]).config.schedule == "flash3"
    assert choose(op, machines["a100-sxm4-80gb"]).config.schedule == "flash2"
    one = attention(1, 8192, heads=32, kv_heads=8, head_dim=128)
    assert {choose(one, machines[m]).config.schedule for m in ("h100-sxm", "a100-sxm4-80gb")} == {"decode"}
    # Where each SM has a sequence's key head to do nothing is cut, and FlashAttention-3 is as it is.
    many = attention(1, 8192, batch=64, heads=32, kv_heads=8, head_dim=128)
    chosen = {m: choose(many, machines[m], "decode").config for m in ("h100-sxm", "a100-sxm4-80gb")}
    assert [str(config).split()[0] for config in chosen.values()] == ["flash3", "decode"]
    assert (
        str(choose(op, machines["h100-sxm"], "flash3").config) == "flash3 128x176 cluster 2 stages 2 pingpong overlap"
    )
    assert choose(op, machines["h100-sxm"], "cudnn").config == choose(op, machines["h100-sxm"]).config
    paged = attention(1, 8192, heads=32, kv_heads=8, head_dim=128, page=64)
    assert [str(choose(paged, machines[m]).config).split()[0] for m in ("h100-sxm", "a100-sxm4-80gb")] == [
        "flash3-varlen",
        "decode",
    ]
    # The TMA copies blocks that lie in one page, for queries that fill more than a tile.
    long = [attention(n, 4096, heads=8, kv_heads=2, head_dim=128, page=256, causal="1") for n in (32, 33)]
    assert [str(choose(op, machines["h100-sxm"]).config) for op in long] == [
        "flash3-varlen 128x128 splits 1 overlap", "flash3-varlen 128x128 splits 1 overlap tma"
    ]  # fmt: skip
    few = [choose(attention(1, 64, head_dim=d, page=64), machines["h100-sxm"]).config for d in (64, 128)]
    assert [str(config).split()[1] for config in few] == ["64x192", "128x128"]
    with pytest.raises(InputError, match=r"keys that lie together; nearest: flash3-varlen"):
        choose(paged, machines["h100-sxm"], "flash3")
    with pytest.raises(InputError, match=r"no wgmma for fp16; its nearest schedule is flash2"):
        choose(op, machines["a100-sxm4-80gb"], "flash3")
    for size, nearest in ((100, 104), (264, 256), (33, 32)):
        with pytest.raises(InputError, match=rf"multiples of 8 .*, not {size}; nearest: {nearest}, or schedule=unf"):
            choose(attention(64, head_dim=size), machines["h100-sxm"], "flash2")
    with pytest.raises(InputError, match=r"multiples of 16 .*, not 72; nearest: 80"):
        choose(attention(64, head_dim=72, dtype="fp8"), machines["h100-sxm"], "flash3")
    assert choose(attention(64, head_dim=33), machines["h100-sxm"]).config == UnfusedConfig()


@pytest.mark.parametrize(("head_dim", "columns"), [(88, 96), (80, 96), (40, 64)])
def test_what_lies_behind_the_end_of_a_head_is_multiplied_but_not_moved(head_dim: int, columns: int) -> None:
    texts = (f"attention batch=8 heads=1 head_dim={d} seq=197 dtype=fp16" for d in (head_dim, columns))
    records = [simulate(text, "a100-sxm4-80gb", schedule="flash2 128x64 warps 4").record for text in texts]
    kernels = [record.kernels[0].counters for record in records]
    narrow, wide = ({name: int(kernel[name]) for name in kernel} for kernel in kernels)
    assert narrow["macs"] == wide["macs"]
    # Code comes beside, and where rows end within sectors these are moved twice.
    for name, tensors in (("dram_read_bytes", 3), ("l2_write_bytes", 1)):
        row = tensors * 8 * 197 * 2
        assert row * head_dim <= narrow[name] <= wide[name] - 0.5 * row * (columns - head_dim)


def test_the_first_release_of_flash3_has_tiles_and_an_order_of_its_own(machines: dict[str, GpuSpec]) -> None:
    spec = machines["h100-sxm"]

    def chosen(head_dim: int, **keys: Any) -> str:
        return str(choose(attention(512, head_dim=head_dim, **keys), spec, "flash3-2024").config)

    assert chosen(64) == "flash3 192x128 stages 2 pingpong overlap in-order"
    assert chosen(128) == "flash3 128x176 cluster 2 stages 2 pingpong overlap in-order"
    assert chosen(128, causal="1") == "flash3 128x128 stages 2 pingpong overlap in-order"
    assert chosen(256) == "flash3 128x80 cluster 2 stages 2 overlap in-order"
    assert str(choose(attention(512), spec, chosen(64)).config) == chosen(64)
    for refused in (attention(512, head_dim=192), attention(512, window=64), attention(512, dtype="fp8")):
        with pytest.raises(InputError, match=r"the first release has .* nearest is flash3"):
            choose(refused, spec, "flash3-2024")


def test_tiles_in_order_leave_the_longest_for_the_end(machines: dict[str, GpuSpec]) -> None:
    """Two SMs, causal tiles of one, two and three blocks of keys: in order one SM has the first and the last."""
    op = attention(384, causal="1")
    text = "flash3 128x128 stages 2 pingpong overlap"
    longest_first, in_order = (
        simulate(op, machines["two SMs"], schedule=text + order).cycles for order in ("", " in-order")
    )
    assert in_order > 1.05 * longest_first


#: Instructions of a consumer's warp and block of keys, from the published kernels' machine code (0251105a, nvcc 13).
MACHINE_CODE = {
    (64, "0"): {"fmnmx": 100, "ffma": 98, "ex2": 98, "fadd": 96, "fmul": 36, "cvt": 48, "shfl": 4, "stmatrix": 12},
    (64, "1"): {"fmnmx": 68, "ffma": 66, "ex2": 66, "fadd": 64, "fmul": 36, "cvt": 32, "shfl": 4},
    (128, "0"): {"fmnmx": 92, "ffma": 90, "ex2": 90, "fadd": 88, "fmul": 68, "cvt": 44, "shfl": 4},
    (128, "1"): {"fmnmx": 68, "ffma": 66, "ex2": 66, "fadd": 64, "fmul": 68, "cvt": 32, "shfl": 4},
}


@pytest.mark.parametrize(("head_dim", "causal"), MACHINE_CODE)
def test_a_step_of_softmax_has_the_instructions_of_the_published_kernel(
    head_dim: int, causal: str, machines: dict[str, GpuSpec]
) -> None:
    op, spec = attention(1024, head_dim=head_dim, causal=causal), machines["h100-sxm"]
    (kernel,) = build(op, spec, choose(op, spec, "flash3").config).kernels
    consumer = next(role for role in kernel.roles if role.name == "consumer")
    (step,) = (loop for loop in _loops(consumer.body) if loop.var == "whole")
    count: Counter[str] = Counter()
    for o in walk(step.body):
        count[o.opcode] += o.count
        count.update(dict(o.mix))
    expected = MACHINE_CODE[head_dim, causal]
    assert {name: count[name] for name in expected} == expected
    assert count["stmatrix"] == expected.get("stmatrix", 0)


def _loops(body: tuple[Any, ...]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from _loops(statement.body)


@pytest.mark.parametrize(
    "text",
    [
        "flash3 128x64 stages 3 pingpong",
        "flash3 64x32 stages 2 cp.async mma unspecialized",
        "flash2 64x32 warps 4",
        "decode 64x32 warps 4 splits 2",
        "decode 64x32 warps 4 splits 2 varlen",
        "decode 64x32 warps 4 splits 2 fixed",
        "flash2-triton 64x32 warps 4 stages 2",
    ],
)
def test_a_configuration_is_written_as_it_prints(text: str, machines: dict[str, GpuSpec]) -> None:
    assert str(choose(attention(64), machines["h100-sxm"], text).config) == text


MECHANISMS = {
    "tma": ("cp_async", "tma_load"),
    "wgmma": ("mma", "wgmma"),
    "warp_specialization": ("tma_load", "setmaxnreg"),
    "pingpong": ("wgmma", "bar_arrive"),
    "overlap": ("wgmma", ""),
    "multicast": ("tma_load", "cluster_sync"),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_mechanism_left_out_gives_another_program(mechanism: str, machines: dict[str, GpuSpec]) -> None:
    op = attention(256, head_dim=128)
    spec = machines["two SMs"]
    with_it = build(op, spec, choose(op, spec, "flash3").config)
    program = build(op, spec, choose(op, spec, "flash3", mechanism.split()).config)
    assert listing(program, spec) != listing(with_it, spec)
    used, gone = MECHANISMS[mechanism]
    opcodes = {op.opcode for role in program.kernels[0].roles for op in walk(role.body)}
    assert used in opcodes
    assert gone not in opcodes
    operands = op.inputs(seed=1)
    result = interpret(program, execute(program, seed=2), dict(zip("qkv", operands, strict=True)))
    assert result.violations == []
    assert op.largest_error([result.outputs["o"]], *operands) <= op.tolerance


def test_what_a_kernel_does_not_use_cannot_be_left_out(machines: dict[str, GpuSpec]) -> None:
    op = attention(256, head_dim=128, causal="1")
    with pytest.raises(
        InputError, match=r"without multicast: flash3 128x128 stages 2 pingpong overlap does not use it"
    ):
        choose(op, machines["h100-sxm"], "flash3", ["multicast"])
    with pytest.raises(InputError, match=r"without tmaa: .* did you mean tma\?"):
        choose(op, machines["h100-sxm"], "flash3", ["tmaa"])


@pytest.mark.parametrize(
    "op",
    [
        attention(12, heads=2, kv_heads=1, causal="1"),
        attention(6, 40, batch=2, window=30, dtype="bf16"),
        attention(20, 130, head_dim=128),
    ],
    ids=str,
)
@pytest.mark.parametrize("config", [UnfusedConfig(), TorchMathConfig()], ids=str)
def test_separate_kernels_compute_what_numpy_does(
    op: Attention, config: UnfusedConfig, machines: dict[str, GpuSpec]
) -> None:
    program = build(op, machines["a100-sxm4-80gb"], config)
    operands = op.inputs(seed=1)
    result = interpret(program, execute(program, seed=2), dict(zip("qkv", operands, strict=True)))
    assert result.violations == []
    assert op.largest_error([result.outputs["o"]], *operands) <= op.tolerance


def test_the_math_backend_runs_the_kernels_of_its_source(machines: dict[str, GpuSpec]) -> None:
    def names(op: Attention) -> list[str]:
        program = build(op, machines["a100-sxm4-80gb"], TorchMathConfig())
        return [kernel.name.split("_mma")[0] for kernel in program.kernels]

    safe = ["softmax_warp", "fill", "eq", "all", "fill", "where"]
    assert names(attention(20, 130)) == ["scale_q", "scale_k", "scores_gemm", *safe, "o_flat_gemm"]
    masked = ["scale_q", "ones", "triangle", "fill", "where_mask"]
    repeated = ["repeat_k", "repeat_v", "scale_k", "scores_gemm", "add_mask"]
    assert names(attention(12, 12, heads=2, kv_heads=1, causal="1")) == [*masked, *repeated, *safe, "o_flat_gemm"]


def test_the_safe_softmax_gives_zeros_where_nothing_is_seen(machines: dict[str, GpuSpec]) -> None:
    """Rows of minus infinity, which no attention here has, by the kernels alone."""
    program = build(attention(4, 40), machines["a100-sxm4-80gb"], TorchMathConfig())
    names = {"eq": ("scores_rows", "seen_rows"), "all": ("seen_rows", "any_seen"), "where": ("weights", "safe")}
    scores = np.zeros((4, 40))
    scores[1] = -np.inf
    scores[2, 3:] = -np.inf
    seen = alone(program, "eq", names["eq"], {"scores_rows": scores})
    assert np.array_equal(seen, np.isfinite(scores))
    kept = alone(program, "all", names["all"], {"seen_rows": seen})
    assert kept.reshape(-1).tolist() == [1, 0, 1, 1]
    weights = np.arange(160.0).reshape(1, 4, 40)
    safe = alone(program, "where", names["where"], {"weights": weights, "any_seen": kept})
    assert np.array_equal(safe, np.where(kept.reshape(1, 4, 1) > 0, weights, 0))


def alone(program: Program, name: str, io: tuple[str, str], inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """What one kernel of a program stores, run by itself."""
    kernel = next(kernel for kernel in program.kernels if kernel.name == name)
    roles = dict.fromkeys(inputs, "input") | {io[1]: "output"}
    tensors = tuple(replace(t, role=roles[t.name], alias="") for t in program.tensors if t.name in roles)
    one = replace(program, kernels=(kernel,), tensors=tensors)
    return interpret(one, execute(one, seed=1), inputs).outputs[io[1]]


@pytest.mark.parametrize(("keys", "blind"), [({"causal": "1"}, 123), ({"window": 40}, 84), ({"window": 130}, 0)])
def test_separate_kernels_need_a_key_for_each_query(
    keys: dict[str, Any], blind: int, machines: dict[str, GpuSpec]
) -> None:
    op = attention(200, 77, **keys)
    assert op.blind == blind
    if not blind:
        choose(op, machines["a100-sxm4-80gb"], "unfused")
        return
    with pytest.raises(
        InputError, match=f"{blind} queries see no key and give no softmax; nearest: seq_q={200 - blind}"
    ):
        choose(op, machines["a100-sxm4-80gb"], "unfused")
    choose(attention(200 - blind, 77, **keys), machines["a100-sxm4-80gb"], "unfused")


def test_the_report_says_what_softmax_takes() -> None:
    machine = load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 1})
    report = simulate("attention batch=1 heads=2 seq=1024 head_dim=64 dtype=fp16", machine, schedule="flash3")
    text = " ".join(str(report).split())
    assert "Exponentials keep the MUFU" in text
    assert f"{report.to_dict()['stalls']['issue']['issued']:.1%}".replace("%", " %") + " of the issue slots" in text
    light = report.figures.speed_of_light()
    scores = 2 * -(-1024 // 192) * 192 * -(-1024 // 192) * 192
    least = scores / (2 * 16) / report.figures.cycles  # 16 a cycle of an SM
    assert least <= light["mufu pipe"] <= 1.1 * least


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_work_is_conserved_and_no_roof_is_beaten(data: st.DataObject) -> None:
    """Products are those of whole tiles, outputs are stored once, and no unit does more than its peak."""
    head_dim, heads = data.draw(st.sampled_from([64, 128])), data.draw(st.sampled_from([1, 2]))
    op = attention(
        data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300)), heads=heads, head_dim=head_dim,
        causal=data.draw(st.sampled_from("01")), window=data.draw(st.sampled_from([0, 50])),
    )  # fmt: skip
    machine = load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 1})
    kind = data.draw(st.sampled_from(["flash3", "flash2", "decode"]))
    config = choose(op, machine, kind).config
    program = build(op, machine, config)
    done = Device(machine).run(program.kernels[0], program.addresses()).counters["macs_tensor"]
    p = problem(op)
    step = config.block_m * (config.cluster if isinstance(config, Flash3Config) else 1)
    rows = range(0, -(-op.queries // step) * step, config.block_m)  # tiles that fill a cluster included
    visited = sum(evaluate(blocks(p, Const(r), config.block_m, config.block_n).trips, {}) for r in rows)
    assert done == 2 * heads * visited * config.block_m * config.block_n * head_dim
    assert done >= op.macs
    assert max(simulate(op, machine, schedule=kind).figures.speed_of_light().values()) <= 1


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_tutorials_kernel_visits_what_a_causal_tile_sees(head_dim: int, machines: dict[str, GpuSpec]) -> None:
    op, machine = attention(256, head_dim=head_dim, causal="1"), machines["two SMs"]
    config = choose(op, machine, "flash2-triton").config
    program = build(op, machine, config)
    done = Device(machine).run(program.kernels[0], program.addresses()).counters["macs_tensor"]
    tiles = 256 // config.block_m
    assert done == 2 * config.block_m**2 * head_dim * tiles * (tiles + 1) // 2


@settings(max_examples=2, deadline=None)
@given(st.data())
def test_separate_kernels_conserve_work_and_beat_no_roof(data: st.DataObject) -> None:
    """Intermediates are written once and read back, and memory keeps its rate."""
    keys, causal = data.draw(st.integers(1, 100)), data.draw(st.sampled_from("01"))
    queries = data.draw(st.integers(1, keys if causal == "1" else 100))
    head_dim, heads = data.draw(st.sampled_from([64, 128])), data.draw(st.sampled_from([1, 2]))
    op = attention(queries, keys, heads=heads, head_dim=head_dim, causal=causal)
    machine = load_arch("a100-sxm4-80gb", {"sm.count": 2, "gpc.count": 1})
    report = simulate(op, machine, schedule="unfused")
    kernels = report.record.kernels
    names = ("l1_read_bytes", "l2_write_bytes", "dram_read_bytes")
    total = {name: sum(k.counters[name] for k in kernels) for name in names}
    scores = heads * queries * keys
    gathered = heads * head_dim * (queries + 2 * keys)
    masked = causal == "1"
    made = 2 * scores + masked * (scores + 5 * queries * keys) + gathered + heads * queries * head_dim
    assert total["l2_write_bytes"] >= 2 * made
    assert total["l1_read_bytes"] >= 2 * (scores + masked * 2 * scores + gathered)
    assert max(report.figures.speed_of_light().values()) <= 1
    assert report.record.time_ps * machine.dram.bandwidth_bytes_per_s >= total["dram_read_bytes"] * 10**12


OWN_KERNELS = ("copy_q", "copy_k_transposed", "triangle", "cast_mask", "add_mask", "copy_v")
MATH_KERNELS = ("scale_q", "repeat_k", "repeat_v", "scale_k", "where_mask", "eq", "where")


@pytest.mark.parametrize(
    ("config", "names", "expected_waits"),
    [(UnfusedConfig(), OWN_KERNELS, 7), (TorchMathConfig(), MATH_KERNELS, 8)],
    ids=str,
)
def test_every_wait_of_the_separate_kernels_matters(
    config: UnfusedConfig, names: tuple[str, ...], expected_waits: int, machines: dict[str, GpuSpec]
) -> None:
    """Of those around the products and the softmax, which have tests of their own; each alone, on random numbers."""
    whole = build(attention(4, 8, heads=2, kv_heads=1, causal="1"), machines["h100-sxm"], config)
    random = np.random.default_rng(1)
    waits = 0
    for kernel in whole.kernels:
        if kernel.name not in names:
            continue
        ops = [op for role in kernel.roles for op in walk(role.body)]
        written = {op.dst.buffer.name for op in ops if op.opcode == "stg" and op.dst is not None}
        read = {op.srcs[0].buffer.name for op in ops if op.opcode == "ldg"}
        roles = dict.fromkeys(read, "input") | dict.fromkeys(written, "output")
        tensors = tuple(replace(t, role=roles[t.name], alias="") for t in whole.tensors if t.name in roles)
        program = replace(whole, kernels=(kernel,), tensors=tensors)
        inputs = {t.name: random.integers(-8, 8, t.shape).astype(float) for t in tensors if t.role == "input"}
        expected = interpret(program, execute(program, seed=2), inputs).outputs

        def case(
            program: Program = program, inputs: dict[str, Any] = inputs, expected: dict[str, Any] = expected
        ) -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
            return program, inputs, expected

        waits += assert_mutants_caught(case, lambda mutant: execute(mutant, seed=2))
    assert waits == expected_waits


@pytest.mark.parametrize(
    ("op", "steps"),
    [
        (attention(256, 256), 4 * 4),
        (attention(256, 256, causal="1"), 1 + 2 + 3 + 4),
        (attention(64, 256, causal="1"), 4),
        (attention(256, 256, causal="1", window=65), 1 + 2 + 2 + 2),
        (attention(192, 192, window=1), 1 + 1 + 1),
    ],
)
def test_steps_of_a_head(op: Attention, steps: int) -> None:
    assert steps_of_head(problem(op), 64, 64) == steps


def test_whole_heads_of_some_sequences_stand_for_a_long_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "attention batch=16 heads=8 kv_heads=4 seq=384 head_dim=64 causal=1 page=64 dtype=fp16"
    whole = simulate(text, "a100-sxm4-80gb", schedule="flash2-varlen").record
    monkeypatch.setattr("workloads.gpu.attention.sample.MOST_STEPS", 600)
    sampled = simulate(text + " seed=1", "a100-sxm4-80gb", schedule="flash2-varlen").record
    first, other = whole.kernels[-1], sampled.kernels[-1]
    assert other.counters["events"] < first.counters["events"] / 1.5
    assert other.counters["macs"] == first.counters["macs"]
    assert other.time_ps == pytest.approx(first.time_ps, rel=0.1)
    assert any("which is long, 468 of 768 CTAs are simulated" in note for note in sampled.notes)
    with pytest.raises(InputError, match="a smaller problem runs the same code"):
        simulate(text + " seed=2", "a100-sxm4-80gb", schedule="flash2-varlen", check=True)


def test_sequences_of_different_lengths_are_simulated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.gpu.attention.sample.MOST_STEPS", 1)
    monkeypatch.setattr("workloads.gpu.attention.sample.LEAST_HEADS", 1)
    spec = load_arch("a100-sxm4-80gb")
    config = DecodeConfig(64, 128, 1, varlen=True)
    equal = attention(128, 128, batch=4, heads=4, page=64, causal="1")
    assert build(equal, spec, config).kernels[0].stands_for == 2 * 4 * 4
    assert (
        not build(ragged(batch=2, seqlens_q="64,128", seqlens_k="64,128", page=64, causal="1"), spec, config)
        .kernels[0]
        .stands_for
    )


SERVED = {
    "batch=128 heads=16 kv_heads=2 seq_q=16 seq_k=16 head_dim=256 causal=1": (43_008, 4_370_432),
    "batch=2 heads=8 kv_heads=8 seq_q=3072 seq_k=3072 head_dim=128 causal=1 window=128": (96_256, 14_426_112),
}
"""Shapes on h100-sxm: wgmma and warp instructions of the cache write that Nsight Compute counts in vLLM 0.24."""


@pytest.mark.parametrize("shape", SERVED)
def test_served_prefill_executes_what_the_profiler_counts(shape: str) -> None:
    (row,) = (r for r in packaged_rows() if (r.machine, r.shape) == ("h100-sxm", shape) and "prefill" in r.source)
    write, attention = run_request(row_request(row)).kernels
    products, written = SERVED[shape]
    assert attention.counters["inst_tensor"] == products
    assert write.counters["warp_instructions"] == pytest.approx(written, rel=0.02)


@pytest.mark.parametrize("machine", ["h100-sxm", "a100-sxm4-80gb", "b200"])
def test_no_estimate_of_a_decode_step_is_faster_than_memory(machine: str) -> None:
    """All keys are read once: 537 MB of them on H100 took 140,556 cycles by estimate, and 302,879 in the simulation."""
    op, spec = (
        parse("attention batch=16 heads=32 kv_heads=8 seq_q=1 seq_k=8192 head_dim=128 dtype=bf16"),
        load_arch(machine),
    )
    least_ps = 1e12 * op.operand_bytes / spec.dram.bandwidth_bytes_per_s
    for config, estimate_ps in choose(op, spec).candidates:
        assert estimate_ps > least_ps, config
