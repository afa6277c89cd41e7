"""Kernels over rows and columns: what they compute, that every wait matters, what they move, how fast they can be."""

import csv
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from arch.errors import InputError
from arch.load import load_arch
from scripts.lab.data import LAB
from sim.app.run import simulate
from sim.gpu.check.interpret import interpret
from sim.gpu.language import Program
from workloads.gpu.select import choose
from workloads.parse import parse
from workloads.registry import build

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

A100 = "a100-sxm4-80gb"

CHECKED = (
    ("softmax rows=37 cols=100 dtype=fp32", A100, "fused"),
    ("softmax rows=9 cols=77 dtype=fp16", "t4", "torch"),
    ("softmax rows=5 cols=1000 dtype=bf16", A100, "fused warps 4 rows 1"),
    ("softmax rows=300 cols=300 dtype=fp32", A100, "fused warps 2 rows 1 buffers 2"),
    ("softmax rows=3 cols=5000 dtype=fp16", "h100-sxm", "online"),
    ("softmax rows=3 cols=5000 dtype=fp16", "v100-sxm2", "torch-2.0"),
    ("softmax rows=3 cols=5000 dtype=fp16", "h100-sxm", "torch-2.1"),
    ("softmax rows=3 cols=2001 dtype=fp32", A100, "torch-2.1"),
    ("softmax rows=3 cols=2001 dtype=fp32", A100, "torch"),
    ("softmax rows=3 cols=2100 dtype=fp16", A100, "torch"),
    ("softmax rows=2 cols=9604 dtype=fp32", "t4", "torch"),
    ("softmax rows=3 cols=1500 dtype=fp16", "v100-sxm2", "threepass"),
    ("softmax rows=9 cols=300 dtype=fp32", "t4", "unfused"),
    ("softmax rows=3 cols=5000 dtype=fp16", "h100-sxm", "cluster warps 8 rows 1 cluster 2"),
    ("softmax rows=200 cols=700 dtype=fp32", A100, "triton"),
    ("softmax_backward rows=9 cols=3000 dtype=bf16", "h100-sxm", "auto"),
    ("layernorm rows=37 cols=100 dtype=fp32", A100, "fused"),
    ("layernorm rows=5 cols=1000 dtype=bf16 stats=1", A100, "fused warps 4 rows 1"),
    ("layernorm rows=5 cols=1000 dtype=fp16 stats=1", "v100-sxm2", "torch"),
    ("layernorm rows=5 cols=1000 dtype=fp16 stats=1", A100, "triton"),
    ("layernorm rows=3 cols=3000 dtype=bf16", "h100-sxm", "triton"),
    ("layernorm rows=9 cols=77 dtype=fp32 stats=1", "t4", "triton"),
    ("layernorm rows=3 cols=5000 dtype=fp16 affine=0", A100, "inductor"),
    ("layernorm rows=9 cols=700 dtype=bf16", A100, "inductor"),
    ("layernorm rows=3 cols=1000 dtype=fp32 affine=0", "t4", "torch"),
    ("softmax rows=3 cols=9000 dtype=fp32", A100, "unfused"),
    ("layernorm_backward rows=70 cols=200 dtype=bf16", "h100-sxm", "auto"),
    ("rmsnorm rows=5 cols=1000 dtype=fp16", "t4", "torch"),
    ("rmsnorm rows=20 cols=300 add=1 dtype=bf16", A100, "auto"),
    ("rmsnorm rows=2 cols=5000 add=1 out=fp8 dtype=bf16", "h100-sxm", "cluster warps 8 rows 1 cluster 2"),
    ("rmsnorm rows=5 cols=1000 dtype=fp16", "v100-sxm2", "fused"),
    ("sum n=30000 dtype=fp32", A100, "auto"),
    ("sum n=100 dtype=fp16", "t4", "auto"),
    ("sum rows=100 cols=300 axis=1 dtype=bf16", "h100-sxm", "auto"),
    ("sum rows=300 cols=300 axis=0 dtype=fp32", A100, "auto"),
    ("sum rows=10 cols=37 axis=0 dtype=fp16", A100, "auto"),
    ("transpose rows=100 cols=70 dtype=bf16", A100, "auto"),
    ("transpose rows=101 cols=71 dtype=fp64", "v100-sxm2", "auto"),
    ("transpose rows=300 cols=37 dtype=bf16", A100, "torch"),
    ("transpose rows=13 cols=90 dtype=fp32", A100, "torch"),
    ("transpose rows=301 cols=200 dtype=int8", "t4", "tile warps 4 pad 0"),
    ("gather rows=40 cols=3000 of=50 dtype=bf16", "h100-sxm", "auto"),
    ("gather rows=9 cols=301 of=70 dtype=fp32", "t4", "torch"),
    ("kv_write batch=3 seq_q=5 seq_k=40 kv_heads=3 head_dim=96 page=16 dtype=bf16", A100, "auto"),
    ("kv_write batch=3 seqlens_k=70,5,17 kv_heads=2 head_dim=64 page=16 dtype=bf16", A100, "auto"),
    ("kv_write batch=3 seqlens_q=9,5,1 seqlens_k=20,5,17 kv_heads=2 head_dim=64 dtype=fp16", A100, "auto"),
    ("kv_write batch=2 kv_heads=9 head_dim=128 head_dim_v=64 page=7 dtype=fp16", "v100-sxm2", "vllm"),
)


@pytest.mark.parametrize(("text", "machine", "schedule"), CHECKED)
def test_schedules_compute_what_numpy_does(text: str, machine: str, schedule: str) -> None:
    report = simulate(text, machine, schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


MUTATED = (
    ("softmax rows=3 cols=256 dtype=fp32", A100, "fused warps 2 rows 1"),
    ("softmax rows=40 cols=128 dtype=fp32", A100, "fused warps 2 rows 1 buffers 2"),
    ("softmax rows=2 cols=300 dtype=fp32", A100, "online warps 2 rows 1 elements 4"),
    ("softmax rows=2 cols=300 dtype=fp32", A100, "threepass warps 2 rows 1 elements 4"),
    ("softmax rows=2 cols=300 dtype=fp32", A100, "torch-2.0 warps 2 rows 1 elements 4"),
    ("softmax rows=2 cols=302 dtype=fp32", A100, "torch-2.1 warps 2 rows 1 elements 4"),
    ("softmax rows=2 cols=300 dtype=fp32", A100, "torch warps 2 rows 1 elements 4"),
    ("softmax rows=2 cols=300 dtype=fp32", A100, "torch warps 2 rows 1"),
    ("softmax rows=2 cols=300 dtype=fp32", "h100-sxm", "cluster warps 2 rows 1 cluster 2"),
    ("layernorm rows=2 cols=256 dtype=fp32", A100, "fused warps 2 rows 1"),
    ("layernorm rows=2 cols=300 dtype=fp32 stats=1", A100, "torch warps 2 rows 1 elements 4"),
    ("layernorm rows=2 cols=512 dtype=fp32 stats=1", A100, "triton"),
    ("layernorm_backward rows=40 cols=64 dtype=fp32", A100, "fused warps 2 rows 1"),
    ("sum n=9000 dtype=fp32", A100, "torch warps 2 vectors 1 ctas 1"),
    ("transpose rows=40 cols=40 dtype=fp32", A100, "tile"),
    ("transpose rows=40 cols=4 dtype=fp32", A100, "torch"),
)


ONE_WARP = "PyTorch's own: only the first warp works on either side of it"
FIRST = "PyTorch's own: the first reduction finds the buffer unused"
LAST = "PyTorch's own: nothing uses the buffer after the last reduction"
REDUNDANT = {
    "softmax torch-2.0 warps 2 rows 1 elements 4": {
        "softmax_threepass/warps/12 bar_sync": ONE_WARP,
        "softmax_threepass/warps/30 bar_sync": ONE_WARP,
    },
    "softmax torch-2.1 warps 2 rows 1 elements 4": {"softmax_threepass/warps/7 bar_sync": FIRST},
    "softmax torch warps 2 rows 1 elements 4": {"softmax_shared/warps/6 bar_sync": FIRST},
    "softmax torch warps 2 rows 1": {"softmax_held/warps/4 bar_sync": FIRST},
    "sum torch warps 2 vectors 1 ctas 1": {"sum/warps/10 bar_sync": LAST},
    "layernorm torch warps 2 rows 1 elements 4": {"layernorm/warps/15 bar_sync": ONE_WARP},
}


@pytest.mark.parametrize(("text", "machine", "schedule"), MUTATED)
def test_every_wait_matters(text: str, machine: str, schedule: str) -> None:
    spec = load_arch(machine, {"sm.count": 1, "gpc.count": 1})
    op = parse(text)
    program = build(op, spec, choose(op, spec, schedule).config)
    tensors = [tensor for tensor in program.tensors if tensor.role == "input"]
    pairs = zip(tensors, op.inputs(seed=1), strict=True)
    inputs = {tensor.name: array.reshape(tensor.shape) for tensor, array in pairs}
    result = interpret(program, execute(program, seed=3), inputs)
    expected = {t.name: result.outputs[t.name] for t in program.tensors if t.role == "output"}

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    redundant = REDUNDANT.get(f"{op.word} {schedule}")
    assert assert_mutants_caught(case, lambda mutant: execute(mutant, seed=2), redundant) > 0


rows_and_columns = st.tuples(st.integers(1, 60), st.integers(1, 6000))
SCHEDULES = {
    "softmax": ("fused", "online", "threepass", "torch", "torch-2.1", "torch-2.0", "triton", "unfused"),
    "layernorm": ("fused", "inductor", "torch", "triton"),
    "rmsnorm": ("fused", "torch"),
    "softmax_backward": ("fused",),
    "layernorm_backward": ("fused",),
    "transpose": ("tile", "torch"),
    "sum": ("torch",),
}


@pytest.mark.parametrize(
    ("cols", "dtype", "kernel", "schedule"),
    [
        (2048, "fp32", "softmax_warp", "torch warps 4 rows 4"),
        (2049, "fp32", "softmax_held", "torch warps 32 rows 1"),
        (9216, "fp16", "softmax_held", "torch warps 32 rows 1"),
        (9220, "fp32", "softmax_shared", "torch warps 32 rows 1 elements 4"),
        (9217, "fp32", "softmax_threepass", "torch warps 32 rows 1 elements 4"),
        (12252, "fp32", "softmax_shared", "torch warps 32 rows 1 elements 4"),
        (12256, "fp32", "softmax_threepass", "torch warps 32 rows 1 elements 4"),
        (1024, "fp32", "softmax_warp", "torch-2.1 warps 4 rows 4"),
        (1032, "fp16", "softmax_shared", "torch-2.1 warps 32 rows 1 elements 8"),
        (4096, "fp16", "softmax_threepass", "torch-2.0 warps 8 rows 1 elements 8"),
        (32768, "fp16", "softmax_threepass", "torch-2.0 warps 16 rows 1 elements 8"),
    ],
)
def test_pytorch_dispatches_by_length_format_and_version(cols: int, dtype: str, kernel: str, schedule: str) -> None:
    op, spec = parse(f"softmax rows=8 cols={cols} dtype={dtype}"), load_arch(A100)
    config = choose(op, spec, schedule.split()[0]).config
    assert str(config) == schedule
    assert build(op, spec, config).kernels[0].name == kernel


@pytest.mark.parametrize(
    ("cols", "dtype", "counted"),
    [
        *((2048, "bf16", 2476), (1500, "bf16", 2123), (1024, "bf16", 1260), (700, "bf16", 1054), (260, "bf16", 509)),
        *((2048, "fp32", 2348), (1500, "fp32", 2012), (1024, "fp32", 1196), (700, "fp32", 1000), (260, "fp32", 484)),
    ],
)
def test_a_warp_of_pytorch_computes_on_a_power_of_two(cols: int, dtype: str, counted: int) -> None:
    """Instructions a row that Nsight Compute counts on an H100: those of 1500 columns are nearly those of 2048."""
    record = simulate(f"softmax rows=132 cols={cols} dtype={dtype}", "h100-sxm", schedule="torch").record
    assert record.kernels[0].counters["warp_instructions"] / 132 == pytest.approx(counted, rel=0.1)


def test_loads_of_two_bytes_wait_for_a_predicate() -> None:
    """Seven at a time: with one warp a sub-core, half of the bytes take longer."""
    times = {
        dtype: simulate(f"softmax rows=512 cols=2048 dtype={dtype}", "h100-sxm", schedule="torch").record.time_ps
        for dtype in ("bf16", "fp32")
    }
    assert times["bf16"] > 1.05 * times["fp32"]


def test_a_row_of_eight_elements_a_thread_leaves_room_for_one_cta() -> None:
    def waves(cols: int) -> int:
        record = simulate(f"softmax rows=216 cols={cols} dtype=fp32", A100, schedule="torch").record
        return int(record.kernels[0].own.waves_milli)

    assert [waves(7168), waves(8192)] == [1000, 2000]


@settings(max_examples=40, deadline=None)
@given(rows_and_columns, st.sampled_from(sorted(SCHEDULES)), st.sampled_from(["fp32", "bf16"]), st.data())
def test_bytes_are_conserved_and_no_roof_is_beaten(shape: tuple[int, int], word: str, dtype: str, data: Any) -> None:
    schedule = data.draw(st.sampled_from(SCHEDULES[word]))
    axis = data.draw(st.sampled_from([" axis=0", " axis=1", ""])) if word == "sum" else ""
    rows, cols = shape
    op = parse(f"{word} rows={rows} cols={cols} dtype={dtype}{axis}")
    report = simulate(op, A100, schedule=schedule).record
    total = {name: sum(k.counters[name] for k in report.kernels) for name in report.kernels[0].counters}
    stored = sum(result.size_bytes for result in op.results)
    assert total["l2_write_bytes"] >= stored
    width = 4 if dtype == "fp32" else 2
    # Warps take rows that are not whole sectors in parts: a sector at each end of a row and warp, and per instruction.
    ends = 64 * rows * (1 + cols // 512) * 8 if cols * width % 512 else 64 * rows * 8
    if schedule != "unfused":
        ends += 64 * cols * (1 + rows // 32) * (word == "transpose")
        extra = 8 * cols * 4 * 128 * (word in ("sum", "layernorm_backward"))  # parts of column sums
        assert total["l2_write_bytes"] <= stored + ends + extra + 4096
        assert total["dram_read_bytes"] <= sum(o.size_bytes for o in op.operands) + ends + extra + 200_000
    assert total["dram_read_bytes"] >= sum(o.size_bytes for o in op.operands)
    spec = load_arch(A100)
    assert report.time_ps * spec.dram.bandwidth_bytes_per_s >= total["dram_read_bytes"] * 10**12
    assert total["ctas"] >= 1


def test_a_row_that_is_kept_is_read_once_and_one_that_is_swept_as_often_as_it_is() -> None:
    def l1_bytes(schedule: str) -> int:
        (kernel,) = simulate("softmax rows=64 cols=4096 dtype=fp32", A100, schedule=schedule).record.kernels
        return kernel.counters["l1_read_bytes"]

    once = 64 * 4096 * 4
    assert [l1_bytes(s) // once for s in ("fused warps 8 rows 1", "online", "threepass")] == [1, 2, 3]
    unfused = simulate("softmax rows=64 cols=4096 dtype=fp32", A100, schedule="unfused").record.kernels
    # Read: maximum, difference, exponential, sum, quotient, and twice a sector of a row's number for 32 elements of it;
    # written: difference, exponential, quotient.
    assert sum(k.counters["l1_read_bytes"] for k in unfused) / once == pytest.approx(5.5, abs=0.05)
    assert round(sum(k.counters["l2_write_bytes"] for k in unfused) / once) == 3


def test_exponentials_are_counted_and_show_on_their_pipe() -> None:
    (kernel,) = simulate("softmax rows=64 cols=4096 dtype=fp32", A100, schedule="fused warps 8 rows 1").record.kernels
    per_warp = 4096 // 8 // 32
    assert kernel.counters["warp_instructions"] >= 64 * 8 * per_warp * 12
    much = simulate("softmax rows=2048 cols=1024 dtype=fp32", A100, l2="warm", schedule="fused warps 4 rows 4")
    floor = 2048 * 1024 * 8 / 64 / 108  # eight instructions of the FMA pipe an element, 64 a cycle and SM
    assert much.cycles > floor


def test_a_copy_of_a_transposed_view_counts_elements_across_rows() -> None:
    """As many CTAs as PyTorch launches (measured_kernels.csv), and no sector of the result is written by two warps."""
    (kernel,) = simulate("transpose rows=600 cols=1400 dtype=bf16", "h100-sxm", schedule="torch").record.kernels
    assert kernel.counters["ctas"] == 1641
    assert kernel.counters["l2_write_bytes"] == 600 * 1400 * 2


def test_padding_removes_the_bank_conflicts_of_a_transpose() -> None:
    padded, plain = (
        simulate("transpose rows=2048 cols=2048 dtype=fp32", A100, schedule=f"tile warps 8 pad {pad}", l2="warm")
        for pad in (4, 0)
    )
    conflicts = [report.record.kernels[0].counters["smem_conflict_cycles"] for report in (padded, plain)]
    assert conflicts[0] == 0
    assert conflicts[1] == 31 * 2048 * 2048 // 32
    assert plain.cycles > 1.5 * padded.cycles


def test_a_dirty_l2_costs_the_write_back_of_what_it_holds() -> None:
    cold, dirty = (simulate("sum n=4194304 dtype=fp32", A100, l2=l2).record for l2 in ("cold", "dirty"))
    written = [sum(k.counters["dram_write_bytes"] for k in report.kernels) for report in (cold, dirty)]
    assert written[0] < 1e6
    assert 4 * 2**20 < written[1] < 16 * 2**20  # 16 MiB were read
    assert dirty.time_ps > 1.2 * cold.time_ps


def test_choice_keeps_short_rows_in_a_warp_and_sweeps_rows_that_do_not_fit() -> None:
    spec = load_arch(A100)

    def kind(cols: int) -> str:
        return str(choose(parse(f"softmax rows=4096 cols={cols} dtype=fp16"), spec).config)

    assert kind(64) in ("fused warps 4 rows 4", "fused warps 4 rows 8", "fused warps 4 rows 16")
    assert kind(8192).startswith("fused")
    assert kind(200_000).startswith("online")


@pytest.mark.parametrize(
    ("text", "schedule", "named"),
    [
        ("softmax rows=4 cols=4 dtype=int8", "auto", "one of fp32, fp16, bf16"),
        ("softmax rows=4 cols=4 dtype=fp32", "flash", "one of auto, fused, online"),
        ("softmax rows=4 cols=100000 dtype=fp32", "fused warps 8 rows 1", "nearest: warps 32 rows 1"),
        ("softmax rows=4 cols=64 dtype=fp32", "fused warps 4 rows 3", "rows must be 1 or a multiple of warps"),
        ("softmax rows=4 cols=64 dtype=fp32", "fused threads 4", "write fused warps"),
        ("softmax rows=4 cols=64 dtype=fp32", "fused warps 4 rows 4 buffers 2", "warps that share a row"),
        ("softmax rows=4 cols=4000 dtype=fp32", "cluster", "has no clusters"),
        ("layernorm rows=4 cols=4 dtype=fp32", "online", "one of auto, fused, inductor, torch, triton"),
        ("layernorm rows=4 cols=40000 dtype=fp16", "triton", "rows of at most 64 KiB, not 80000 B"),
        ("rmsnorm rows=4 cols=4 dtype=fp32", "triton", "one of auto, fused, torch, or"),
        ("layernorm rows=4 cols=4000 dtype=fp32", "cluster", "has no clusters"),
        ("transpose rows=4 cols=4 dtype=fp32", "tile warps 5", "warps must divide"),
        ("transpose rows=4 cols=4 dtype=fp32", "tile pad 3", "multiple of 4"),
        ("sum n=4 dtype=fp32", "torch lanes 3", "write torch warps 16 vectors 1 ctas 4"),
    ],
)
def test_wrong_schedules_are_refused(text: str, schedule: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        simulate(text, A100, schedule=schedule)


@pytest.mark.parametrize("op", ["softmax", "layernorm", "rmsnorm"])
def test_fused_takes_long_rows_by_a_cluster_near_the_streaming_bound(op: str) -> None:
    rows, cols = 128, 131_072
    report = simulate(f"{op} rows={rows} cols={cols} dtype=bf16", "h100-sxm", schedule="fused")
    assert report.record.schedule.startswith("cluster")
    stream_us = 4 * rows * cols / load_arch("h100-sxm").dram.bandwidth_bytes_per_s * 1e6  # type: ignore[attr-defined]
    assert report.time_us < 1.3 * stream_us
    online = simulate(f"softmax rows={rows} cols={cols} dtype=fp16", A100, schedule="fused")
    assert online.record.schedule.startswith("online")


def test_a_norm_of_a_cluster_computes_the_norm() -> None:
    for op, cols in (("layernorm", 1000), ("rmsnorm", 5000)):
        report = simulate(
            f"{op} rows=3 cols={cols} dtype=bf16", "h100-sxm", schedule="cluster warps 8 rows 1 cluster 4", check=True
        )
        assert report.record.check is not None
        assert report.record.check.passed


def test_results_do_not_depend_on_the_seed_of_hashes_or_on_order() -> None:
    first, again = (simulate("softmax rows=50 cols=700 dtype=fp16", A100) for _ in range(2))
    assert first.cycles == again.cycles
    assert np.isfinite(first.record.time_ps)


def test_a_run_leaves_the_end_of_all_its_matrices_in_the_cache() -> None:
    """So that one that repeats it writes to memory what it leaves there itself: no more than its result."""
    report = simulate("pointwise chain=scale n=2097152 dtype=fp32", "t4", schedule="torch", l2="warm").to_dict()
    assert report["bytes"]["dram"]["write"] == pytest.approx(4 * 2097152, rel=0.05)
    rows = simulate("softmax rows=4096 cols=512 dtype=fp32", "t4", schedule="torch-2.0", l2="warm").to_dict()
    assert rows["bytes"]["dram"]["write"] == pytest.approx(4 * 2097152, rel=0.05)


def test_registers_of_the_kernel_say_how_many_rows_an_sm_holds() -> None:
    """PyTorch 2.0 took 48 registers for rows in halves, 2.1 and later fit 32."""
    waves = [
        simulate("softmax rows=432 cols=8192 dtype=fp16", A100, schedule=schedule).record.kernels[0].own.waves_milli
        for schedule in ("torch-2.0", "threepass warps 16 rows 1 elements 8")
    ]
    assert waves == [2000, 1000]


def test_what_is_broadcast_is_computed_element_by_element() -> None:
    """PyTorch's kernel for it has one load on its way where the other has four elements."""
    spec, op = load_arch(A100), parse("softmax rows=256 cols=1024 dtype=fp32")
    program = build(op, spec, choose(op, spec, "unfused").config)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    ops = {name: [op.opcode for op in kernels[name].roles[0].body] for name in ("sub", "exp", "div")}  # type: ignore[union-attr]
    assert {name: found.count("ldg") for name, found in ops.items()} == {"sub": 4, "exp": 1, "div": 4}


COUNTED = ("layernorm", "rmsnorm", "softmax")
NOT_RIGHT = ("cunn_SoftMaxForwardReg", "cunn_SoftMaxForwardSmem")
"""Kernels of which fewer instructions are known (docs/accuracy/rows.md)."""


def _counted() -> Iterator[tuple[str, int]]:
    """Operators of PyTorch with fewer rows, and the warp instructions of a CTA that Nsight Compute counted."""
    with (LAB / "executed_instructions.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["operator"].split()[0] in COUNTED and row["kernel"] not in NOT_RIGHT:
                text = re.sub(r"rows=\d+", "rows=264", row["operator"])
                yield text, int(row["warp_instructions"]) // int(row["grid"].split("x")[0])


@pytest.mark.parametrize(("text", "counted"), list(_counted()))
def test_a_row_executes_what_was_counted(text: str, counted: int) -> None:
    counters = simulate(text, "h200-sxm", schedule="torch").record.kernels[0].counters
    assert counters["warp_instructions"] / counters["ctas"] == pytest.approx(counted, rel=0.07)


def test_a_sum_executes_what_was_counted() -> None:
    """656,290 warp instructions of 128 CTAs (workloads/silicon/lab/executed_instructions.csv)."""
    counters = simulate("sum n=1048576 dtype=bf16", "h200-sxm", schedule="torch").record.kernels[1].counters
    assert counters["ctas"] == 128
    assert counters["warp_instructions"] == pytest.approx(656_290, rel=0.01)


def test_a_norm_of_a_sum_reads_and_writes_two_matrices() -> None:
    alone, added = (simulate(f"rmsnorm rows=1024 cols=4096 add={add} dtype=bf16", "h100-sxm") for add in "01")
    for counter in ("dram_read_bytes", "l2_write_bytes"):
        assert added.figures.counters[counter] == pytest.approx(2 * alone.figures.counters[counter], rel=0.01)
    assert added.figures.device_ps > 1.3 * alone.figures.device_ps
    with pytest.raises(InputError, match="schedule=torch"):
        simulate("rmsnorm rows=4 cols=64 add=1 dtype=bf16", "h100-sxm", schedule="torch")
    with pytest.raises(InputError, match="sn40l adds in a stage"):
        simulate("rmsnorm rows=4 cols=64 add=1 dtype=bf16", "sn40l")
    with pytest.raises(InputError, match="no instruction that converts fp8"):
        simulate("rmsnorm rows=4 cols=64 out=fp8 dtype=bf16", A100)
