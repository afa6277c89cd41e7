"""Grouped products on GPUs: numbers against NumPy, sizes by list, file and law, what is multiplied, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.gpu.check.interpret import interpret
from sim.gpu.language import Program
from workloads.gpu.moe.config import GroupedConfig
from workloads.gpu.moe.grouped import build
from workloads.ops import GroupedGemm, Moe
from workloads.ops.base import Array
from workloads.parse import parse

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

A100, H100, B200 = "a100-sxm4-80gb", "h100-sxm", "b200"


@pytest.mark.parametrize(
    ("machine", "schedule", "keys"),
    [
        (A100, "auto", "m=90 n=72 k=136 groups=3 align=32 distribution=power_law_1.2 dtype=bf16"),
        (H100, "auto", "m=60 n=72 k=72 groups=4 align=16 distribution=0,40,1,19 dtype=bf16"),
        (H100, "grouped 64x128x64 warps 4 stages 3 group 2", "m=100 n=200 k=192 groups=4 align=64 dtype=fp16"),
        (B200, "auto", "m=90 n=200 k=264 groups=3 align=32 distribution=power_law_1.2 dtype=bf16"),
    ],
)
def test_numbers_are_those_of_numpy(machine: str, schedule: str, keys: str) -> None:
    record = simulate(f"grouped_gemm {keys}", machine, schedule=schedule, check=True).record
    assert record.check is not None
    assert record.check.passed, record.notes


def test_only_groups_with_rows_are_read_and_multiplied() -> None:
    text = "grouped_gemm m=130 n=256 k=512 groups=4 distribution=0,128,0,2 align=64 dtype=bf16"
    record = simulate(text, A100, schedule="grouped 64x64x32 warps 4 stages 3 group 8").record
    (kernel,) = record.kernels
    assert kernel.counters["macs"] == (128 + 64) * 256 * 512
    matrix, rows = 256 * 512 * 2, 192 * 512 * 2
    assert 2 * matrix + rows <= kernel.counters["dram_read_bytes"] < 1.1 * (2 * matrix + rows)


def test_sizes_add_up_and_groups_begin_aligned() -> None:
    op = GroupedGemm(m=1000, n=64, k=64, groups=7, distribution="power_law_1.2", seed=3, align=48, dtype="fp16")
    assert op.sizes.sum() == 1000
    assert len(op.group_of) == sum(-(-size // 48) * 48 for size in op.sizes)
    assert (op.group_of[1:] >= op.group_of[:-1]).all()
    other = GroupedGemm(m=1000, n=64, k=64, groups=7, distribution="power_law_1.2", seed=4, align=48, dtype="fp16")
    assert (op.sizes != other.sizes).any()
    balanced = GroupedGemm(m=1000, n=64, k=64, groups=8, dtype="fp16")
    assert set(balanced.sizes) == {125}


def test_counts_come_from_a_file(tmp_path: Path) -> None:
    loads = tmp_path / "loads.txt"
    loads.write_text("5, 0\n3\t8\n")
    op = parse(f"grouped_gemm m=16 n=64 k=64 groups=4 distribution=file:{loads}")
    assert isinstance(op, GroupedGemm)
    assert (op.distribution, list(op.sizes)) == ("5,0,3,8", [5, 0, 3, 8])
    layer = parse(f"moe tokens=8 hidden=64 inter=64 topk=2 experts=4 distribution=file:{loads}")
    assert isinstance(layer, Moe)
    assert layer.distribution == "5,0,3,8"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("5 0 three 8", "'three' is no count, such as 5,0,3,8"),
        ("", "'nothing' is no count"),
        ("5 0 3", "3 counts; one for each of groups=4 is needed"),
        ("5 0 3 9", "counts add up to 17, the largest is 9; they must add up to m = 16, each at most m=16"),
    ],
)
def test_a_file_that_holds_no_counts_is_refused(tmp_path: Path, content: str | None, told: str) -> None:
    loads = tmp_path / "loads.txt"
    if content is not None:
        loads.write_text(content)
    with pytest.raises(InputError, match=told):
        parse(f"grouped_gemm m=16 n=64 k=64 groups=4 distribution=file:{loads}")


def test_blocks_must_fit_between_the_groups() -> None:
    with pytest.raises(InputError, match=r"align=48: blocks of 64 rows must divide it; nearest: align=64"):
        simulate(
            "grouped_gemm m=64 n=64 k=64 groups=2 align=48 dtype=fp16", A100,
            schedule="grouped 64x64x32 warps 4 stages 3 group 1",
        )  # fmt: skip
    with pytest.raises(InputError, match=r"one of auto, grouped, or a whole"):
        simulate("grouped_gemm m=64 n=64 k=64 groups=2 dtype=fp16", A100, schedule="vllm")
    with pytest.raises(InputError, match=r"t4 has no cp\.async"):
        simulate("grouped_gemm m=64 n=64 k=64 groups=2 dtype=fp16", "t4")


def test_every_wait_on_tensor_memory_matters() -> None:
    spec = load_arch(B200, ["sm.count=1", "gpc.count=1", "sm.per_tpc=1"])
    op = GroupedGemm(m=32, n=128, k=256, groups=1, align=32, dtype="bf16")
    program = build(op, spec, GroupedConfig(32, 128, 64, 4, 2))
    shapes = {tensor.name: tensor.shape for tensor in program.tensors}
    given = zip((o.name for o in op.operands), op.inputs(seed=1, data="integers"), strict=True)
    operands = {name: np.asarray(array).reshape(shapes[name]) for name, array in given}

    def case() -> tuple[Program, dict[str, Array], dict[str, Array]]:
        return program, operands, interpret(program, execute(program, seed=1), operands).outputs

    def run(mutant: Program) -> NDArray[np.int64]:
        return execute(mutant, seed=2)

    known = "which expert it is, the program knows"
    places = {"epilogue": 17, "weights": 16, "mma": 16}
    excused = {f"grouped_32x128x64/{role}/{at} iadd after expert": known for role, at in places.items()}
    assert assert_mutants_caught(case, run, excused) > 0
