"""FlashAttention-4 and decoding on tensor memory: numbers, waits, what is left out, what other machines say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.language import Program
from workloads.gpu.attention.blocks import problem
from workloads.gpu.attention.flash4 import Flash4Config
from workloads.gpu.attention.flash4_decode import Flash4DecodeConfig
from workloads.gpu.select import choose
from workloads.ops.attention import Attention
from workloads.registry import build

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

CASES = (
    Attention(batch=1, heads=2, seq=300, head_dim=64, causal="1", kv_heads=1, dtype="bf16"),
    Attention(batch=2, heads=1, seq_q=130, seq_k=400, head_dim=128, dtype="fp16"),
)


@pytest.fixture(scope="module")
def small() -> GpuSpec:
    return load_arch("b200", ["gpc.count=1", "sm.count=2"])


def inputs_of(op: Attention) -> tuple[dict[str, NDArray[Any]], tuple[NDArray[Any], ...]]:
    operands = op.inputs(seed=1)
    return {tensor.name: x for tensor, x in zip(problem(op).operands, operands, strict=True)}, operands


@pytest.mark.parametrize("op", CASES, ids=str)
def test_it_computes_attention(op: Attention, small: GpuSpec) -> None:
    """In a random legal order, and at the times of the engine."""
    program = build(op, small, Flash4Config(stages=2))
    inputs, operands = inputs_of(op)
    for events in (
        execute(program, seed=2),
        Device(small, log=True).run(program.kernels[0], program.addresses()).events,
    ):
        assert events is not None
        check = interpret(program, events, inputs)
        assert check.violations == []
        assert op.largest_error([check.outputs["o"]], *operands) < op.tolerance


@pytest.mark.slow
def test_every_wait_matters(small: GpuSpec) -> None:
    op = Attention(batch=1, heads=1, seq_q=256, seq_k=256, head_dim=64, dtype="bf16")
    program = build(op, small, Flash4Config(stages=2))
    inputs, _ = inputs_of(op)
    expected = {"o": interpret(program, execute(program, seed=2), inputs).outputs["o"]}

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    def simulate(mutant: Program) -> NDArray[np.int64]:
        return execute(mutant, seed=2)

    first = {f"{program.kernels[0].name}/load/9 mbarrier_wait": "of two blocks: the only trip finds its stage empty"}
    assert assert_mutants_caught(case, simulate, first) > 25


def test_auto_takes_it_where_there_is_tensor_memory(small: GpuSpec) -> None:
    assert choose(CASES[1], small).config.schedule == "flash4"
    with pytest.raises(InputError, match="h100-sxm has no tensor memory for fp16; its nearest schedule is flash2"):
        choose(CASES[1], load_arch("h100-sxm"), "flash4")


def test_without_a_mechanism_it_is_another_program(small: GpuSpec) -> None:
    """Exponentials by special functions alone take longer; without tensor memory it is FlashAttention-2."""
    op = Attention(batch=1, heads=2, seq=1024, head_dim=64, dtype="bf16")
    cycles = []
    for without in ((), ("exp_on_fma",)):
        program = build(op, small, choose(op, small, "flash4", without).config)
        cycles.append(Device(small).run(program.kernels[0], program.addresses()).ticks)
    assert cycles[1] > 1.02 * cycles[0]
    assert choose(op, small, "flash4", ("tensor_memory",)).config.schedule == "flash2"


DECODING = (
    (Attention(batch=2, heads=8, kv_heads=2, seq_q=1, seq_k=300, head_dim=64, dtype="bf16"), (1, 2)),
    (Attention(batch=1, heads=40, kv_heads=1, seq_q=1, seq_k=700, head_dim=128, page=64, dtype="fp16"), (5, 2)),
    (Attention(batch=2, heads=2, seq_q=1, seq_k=500, head_dim=256, page=256, window=200, dtype="bf16"), (2, 2)),
    (
        Attention(batch=1, heads=4, kv_heads=2, seq_q=1, seq_k=90, head_dim=64, page=16, append="1", dtype="bf16"),
        (1, 3),
    ),
)


@pytest.mark.parametrize(("op", "numbers"), DECODING, ids=str)
def test_decoding_computes_attention(op: Attention, numbers: tuple[int, int], small: GpuSpec) -> None:
    """Parts of the keys, one of which may have none, pages, windows, and lanes that no head fills."""
    program = build(op, small, Flash4DecodeConfig(*numbers))
    inputs, operands = inputs_of(op)
    check = interpret(program, execute(program, seed=2), inputs)
    assert check.violations == []
    results = [check.outputs[operand.name] for operand in op.results]
    assert op.largest_error(results, *operands) < op.tolerance


@pytest.mark.parametrize("head_dim", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_every_wait_of_decoding_matters(head_dim: int, small: GpuSpec) -> None:
    op = Attention(batch=1, heads=40, kv_heads=1, seq_q=1, seq_k=384, head_dim=head_dim, dtype="bf16")
    program = build(op, small, Flash4DecodeConfig(1, 2))
    inputs, _ = inputs_of(op)
    expected = {"o": interpret(program, execute(program, seed=2), inputs).outputs["o"]}

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    def simulate(mutant: Program) -> NDArray[np.int64]:
        return execute(mutant, seed=2)

    assert assert_mutants_caught(case, simulate, {}) > 10


def test_decoding_is_taken_where_there_is_tensor_memory(small: GpuSpec) -> None:
    op = DECODING[1][0]
    for schedule in ("auto", "decode", "decode-varlen"):
        assert choose(op, small, schedule).config.schedule == "flash4-decode"
    assert choose(op, small, "auto", ("tensor_memory",)).config.schedule == "decode"
    with pytest.raises(InputError, match="h100-sxm has no tensor memory for fp16; its nearest schedule is decode"):
        choose(op, load_arch("h100-sxm"), "flash4-decode")
    with pytest.raises(InputError, match="2 to 6 stages find room"):
        build(op, small, Flash4DecodeConfig(1, 9))
