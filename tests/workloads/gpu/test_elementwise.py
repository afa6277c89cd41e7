"""Elementwise kernels: what they compute, what they move, how fast they can be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate
from workloads.gpu.pointwise.functions import COSTS
from workloads.gpu.pointwise.lanes import instruction
from workloads.ops import FUNCTIONS
from workloads.parse import parse

CHECKED = (
    ("add n=5000 dtype=fp32", "a100-sxm4-80gb", "torch"),
    ("add n=1 dtype=fp16", "t4", "fused"),
    ("pointwise n=6000 chain=bias+gelu+dropout+add cols=600 dtype=bf16", "h100-sxm", "fused"),
    ("pointwise n=3000 chain=cos+cos repeat=2 fused=0 dtype=fp16", "t4", "torch"),
    ("fill n=1000", "v100-sxm2", "torch"),
    ("cast n=1000 dtype=fp32 out=fp16", "t4", "fused"),
    ("dropout_backward n=777 dtype=bf16", "a100-sxm4-80gb", "torch"),
    ("add n=8192 shape=128x64 layout=ab+ba dtype=fp32", "h100-sxm", "torch"),
    ("mul n=12000 shape=20x30x20 layout=bac+c dtype=bf16", "h100-sxm", "torch"),
    ("pointwise n=7000 chain=neg+mul+add fused=0 shape=5x7x10x20 layout=acbd+abcd+db dtype=fp32", "t4", "torch"),
)


@pytest.mark.parametrize(("text", "machine", "schedule"), CHECKED)
def test_schedules_compute_what_numpy_does(text: str, machine: str, schedule: str) -> None:
    report = simulate(text, machine, schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


@pytest.mark.parametrize("machine", ["v100-sxm2", "t4", "a100-sxm4-80gb", "h100-sxm"])
def test_every_function_has_costs_of_instructions_that_machines_have(machine: str) -> None:
    spec = load_arch(machine)
    assert set(COSTS) == set(FUNCTIONS)
    for cost in COSTS.values():
        for name in cost:
            assert instruction(spec, name).interval_cycles > 0


@pytest.mark.parametrize("text", ["gelu n=500 dtype=bf16", "softmax rows=3 cols=90 dtype=bf16", "copy n=99 dtype=int8"])
@pytest.mark.parametrize("machine", ["v100-sxm2", "t4"])
def test_formats_that_no_unit_multiplies_are_computed_in_fp32(text: str, machine: str) -> None:
    report = simulate(text, machine, check=True)
    document = report.to_dict()
    assert document["check"]["passed"]
    assert 0 <= document["percent_of_peak"] < 100
    assert document["flops"] == 0 or "of the data sheet's peak" in str(report)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 300_000),
    st.sampled_from(
        ["copy", "add", "gelu", "gelu_backward", "dropout", "dropout_backward", "silu_backward", "fill", "cos+cos"]
    ),
    st.sampled_from(["fp32", "bf16"]),
    st.sampled_from(["torch", "fused"]),
    st.sampled_from(["01", "10"]),
)
def test_bytes_are_those_of_the_operator_and_no_roof_is_beaten(
    n: int, chain: str, dtype: str, schedule: str, fused: str
) -> None:
    text = f"pointwise n={n} chain={chain} dtype={dtype} fused={fused[0]}"
    op = parse(text)
    report = simulate(op, "a100-sxm4-80gb", schedule=schedule)
    moved = sum(k.counters["l2_read_bytes"] + k.counters["l2_write_bytes"] for k in report.record.kernels)
    between = 2 * n * (4 if dtype == "fp32" else 2) * ("+" in chain and fused[0] == "0")
    # Whole sectors at the end of each tensor, and the code's lines in each of 7 instruction caches.
    room = 75_000 * len(report.record.kernels)
    assert op.operand_bytes + between <= moved <= op.operand_bytes + between + room
    dram = sum(k.counters["dram_read_bytes"] for k in report.record.kernels)
    assert report.record.time_ps * 2.039 >= dram, "faster than DRAM"


def test_dataflow_machines_refuse_operands_in_another_order() -> None:
    with pytest.raises(InputError, match="sn40l has no chain of operands in another order"):
        simulate("add n=8192 shape=128x64 layout=ab+ba", "sn40l")


def test_threads_that_read_from_rows_of_their_own_move_a_sector_each() -> None:
    """32 sectors a request where the operand is transposed, 4 where whole rows of 64 are in another order."""
    elements = 256 * 128
    moved = {}
    for layout, shape in (("ba", "256x128"), ("bac", "16x32x64")):
        report = simulate(f"copy n={elements} shape={shape} layout={layout} dtype=fp32", "h100-sxm").to_dict()
        moved[layout] = report["bytes"]["l1"]["read"]
        assert report["bytes"]["dram"]["read"] < 1.2 * 4 * elements
    assert moved == {"ba": 32 * elements, "bac": 4 * elements}


def test_fusing_halves_a_chain_and_work_shows_only_beyond_the_memory_time() -> None:
    n = 1 << 22
    one = simulate(f"scale n={n} dtype=fp32", "a100-sxm4-80gb").cycles
    fused = simulate(f"pointwise chain=scale+abs n={n} dtype=fp32", "a100-sxm4-80gb").cycles
    apart = simulate(f"pointwise chain=scale+abs n={n} dtype=fp32 fused=0", "a100-sxm4-80gb").cycles
    assert fused < 1.2 * one
    assert apart > 1.6 * fused
    much = simulate(f"pointwise chain=cos repeat=16 n={n} dtype=fp32", "a100-sxm4-80gb").cycles
    # 16 times 9 ffma, 2.5 imad and 2 fmul an element at 64 a cycle and SM, of the fma pipe alone.
    assert much >= 16 * 13.5 * n / 64 / 108


@pytest.mark.parametrize(
    ("text", "schedule", "named"),
    [
        ("exp n=4 dtype=int8", "auto", "exp of int8 is no int8; nearest: out=fp32"),
        ("exp n=4 dtype=fp32", "flash", "one of auto, fused, torch"),
        ("exp n=4 dtype=fp32", "torch threads 4", "write torch warps 4 elements 4"),
        ("exp n=4 dtype=fp32", "torch warps 64", "warps must be 1 to 32"),
        ("exp n=4 dtype=fp32", "torch elements 3", "power of two"),
        ("add n=8 shape=2x4 layout=ab+ba", "fused", "lie as the result does; nearest: schedule=torch"),
    ],
)
def test_wrong_schedules_are_refused(text: str, schedule: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        simulate(text, "a100-sxm4-80gb", schedule=schedule)


def test_pytorch_adds_1024_elements_a_cta_on_hopper() -> None:
    """Grids of workloads/silicon/lab/executed_instructions.csv; four elements a thread elsewhere."""
    ctas = [
        simulate("add n=65536 dtype=fp32", machine, schedule="torch").record.kernels[0].counters["ctas"]
        for machine in ("h200-sxm", "a100-sxm4-80gb")
    ]
    assert ctas == [64, 128]
