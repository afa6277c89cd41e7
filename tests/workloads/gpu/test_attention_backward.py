"""Gradients of attention: of the function that NumPy computes, by the kernels in any legal order, each wait needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate
from sim.gpu.check.interpret import interpret
from sim.gpu.language import Program
from workloads.gpu.attention.flash2_backward import Flash2BackwardConfig
from workloads.gpu.attention.flash3_backward import Flash3BackwardConfig
from workloads.gpu.select import choose
from workloads.ops import AttentionBackward
from workloads.parse import parse
from workloads.registry import build

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

A100, H100 = "a100-sxm4-80gb", "h100-sxm"


def backward(text: str, dtype: str = "fp16") -> AttentionBackward:
    op = parse(f"attention_backward {text}").with_defaults(dtype)
    assert isinstance(op, AttentionBackward)
    return op


@pytest.mark.parametrize(
    "text", ["seq=7", "seq_q=5 seq_k=9 causal=1", "seq_q=9 seq_k=4 kv_heads=1", "seq_q=5 seq_k=9 window=3"]
)
def test_they_are_gradients_of_attention(text: str) -> None:
    """d(dO . O) along a random direction, by difference and by dQ, dK, dV."""
    op = backward(f"batch=2 heads=2 head_dim=8 {text}", "fp64")
    do, *given = op.inputs(seed=3)
    gradients = op.references(do, *given)
    rng = np.random.default_rng(4)
    for number, gradient in enumerate(gradients):
        direction = rng.normal(size=given[number].shape)

        def along(step: float, number: int = number, direction: np.ndarray = direction) -> float:
            moved = [x + step * direction if i == number else x for i, x in enumerate(given[:3])]
            return float((do * op.forward.with_defaults("fp64").references(*moved)[0]).sum())

        measured = (along(1e-5) - along(-1e-5)) / 2e-5
        assert (gradient * direction).sum() == pytest.approx(measured, rel=1e-5, abs=1e-6), number


@pytest.mark.parametrize(
    "text",
    [
        "batch=1 heads=2 kv_heads=1 seq=130 head_dim=64 causal=1",
        "batch=2 heads=1 seq_q=70 seq_k=260 head_dim=64 deterministic=1",
        "batch=1 heads=1 seq_q=100 seq_k=140 head_dim=128 causal=1",
        "batch=1 heads=1 seq_q=64 seq_k=70 head_dim=96",
        "batch=1 heads=1 seq_q=130 seq_k=60 head_dim=192",
        "batch=1 heads=1 seq=80 head_dim=256 causal=1",
        "batch=1 heads=1 seq_q=180 seq_k=400 head_dim=128 causal=1 window=50",
        "batch=1 heads=2 kv_heads=1 seq=300 head_dim=64 window=70 deterministic=1",
        "batch=1 heads=2 kv_heads=1 seq=70 head_dim=80 causal=1",
        "batch=1 heads=1 seq=70 head_dim=24",
        *(f"rtx-5090: batch=1 heads=1 seq=70 head_dim={columns} causal=1" for columns in (64, 128, 192, 256)),
    ],
)
def test_computes_what_numpy_does(text: str) -> None:
    *machine, keys = text.split(": ")
    op, spec = backward(keys), load_arch(machine[0] if machine else A100)
    program = build(op, spec, choose(op, spec).config)
    operands = op.inputs(seed=1)
    named = {operand.name: array for operand, array in zip(op.operands, operands, strict=True)}
    result = interpret(program, execute(program, seed=2), named)
    assert result.violations == []
    assert op.largest_error([result.outputs[o.name] for o in op.results], *operands) <= op.tolerance


@pytest.mark.parametrize(
    "text",
    [
        "batch=1 heads=1 seq=200 head_dim=64 causal=1",
        "batch=1 heads=1 seq_q=100 seq_k=140 head_dim=128 causal=1",
        "batch=1 heads=1 seq_q=64 seq_k=70 head_dim=96",
        "batch=1 heads=1 seq_q=170 seq_k=130 head_dim=128",
        "batch=1 heads=1 seq_q=180 seq_k=400 head_dim=128 causal=1 window=50",
        "batch=1 heads=2 kv_heads=1 seq=200 head_dim=64 window=70 deterministic=1",
        "batch=1 heads=2 kv_heads=1 seq=70 head_dim=88 causal=1",
    ],
)
def test_wgmma_computes_what_numpy_does(text: str) -> None:
    op, spec = backward(text), load_arch(H100)
    program = build(op, spec, choose(op, spec, "flash3").config)
    operands = op.inputs(seed=1)
    named = {operand.name: array for operand, array in zip(op.operands, operands, strict=True)}
    result = interpret(program, execute(program, seed=2), named)
    assert result.violations == []
    assert op.largest_error([result.outputs[o.name] for o in op.results], *operands) <= op.tolerance


@pytest.mark.parametrize("stages", [1, 2])
def test_each_wait_matters(stages: int) -> None:
    op, spec = backward("batch=1 heads=1 seq_q=32 seq_k=64 head_dim=64"), load_arch(A100)
    program = build(op, spec, Flash2BackwardConfig(16, 64, 1, 4, 1, stages))
    named = {o.name: array for o, array in zip(op.operands, op.inputs(seed=1), strict=True)}
    expected = interpret(program, execute(program, seed=2), named).outputs
    assert_mutants_caught(lambda: (program, named, expected), lambda mutant: execute(mutant, seed=2), REDUNDANT[stages])


STORED = "all warps have met since they read the buffers of K and V, for the next queries"
REDUNDANT: dict[int, dict[str, str]] = {1: {"attention_backward_flash2_16x64/warps/70 bar_sync": STORED}, 2: {}}


def test_each_wait_of_specialised_warps_matters() -> None:
    op, spec = backward("batch=1 heads=1 seq_q=48 seq_k=128 head_dim=128"), load_arch(H100)
    main, named = products(op, build(op, spec, Flash3BackwardConfig(16, 128, turned=True)))
    expected = interpret(main, execute(main, seed=2), named).outputs
    assert_mutants_caught(lambda: (main, named, expected), lambda mutant: execute(mutant, seed=2), OVERLAPPED)


def products(op: AttentionBackward, program: Program) -> tuple[Program, dict[str, np.ndarray]]:
    """The kernel of the products alone, with all that it reads; the sums of dQ stand for dQ."""
    tensors = [replace(t, role="output") if t.name == "dq_sums" else t for t in program.tensors if t.name != "dq"]
    named = {o.name: array for o, array in zip(op.operands, op.inputs(seed=1), strict=True)}
    named["dq_sums"] = np.zeros(next(t.shape for t in tensors if t.name == "dq_sums"))
    rng = np.random.default_rng(2)
    named |= {t.name: rng.normal(size=t.shape) for t in tensors if t.name in ("dots", "lse_log2")}
    return replace(program, kernels=program.kernels[1:2], tensors=tuple(tensors)), named


FENCED = "registers of this product were written before an earlier fence"
QUERIES = "Q of the same step has waited for the end of the step that used the stage"
OVERLAPPED = {
    f"attention_backward_flash3_16x128/{number}": why
    for number, why in {
        "producer/4 mbarrier_wait": "the first stage is empty",
        "producer/11 mbarrier_wait": QUERIES,
        "consumer/13 wgmma_fence": FENCED,
        "consumer/30 wgmma_fence": FENCED,
        "consumer/32 wgmma_fence": FENCED,
        "consumer/35 wgmma_wait": QUERIES,
        "consumer/37 wgmma_fence": FENCED,
    }.items()
}


def test_ordered_sums_are_the_same_in_any_order_of_ctas() -> None:
    op, spec = backward("batch=1 heads=1 seq_q=16 seq_k=384 head_dim=128 deterministic=1"), load_arch(H100)

    def sums(ordered: bool) -> set[bytes]:
        main, named = products(op, build(op, spec, Flash3BackwardConfig(16, 128, turned=True, ordered=ordered)))
        return {interpret(main, execute(main, seed=s), named).outputs["dq_sums"].tobytes() for s in range(3)}

    assert len(sums(ordered=True)) == 1 < len(sums(ordered=False))


def test_hopper_takes_the_kernel_that_was_written_for_it() -> None:
    def tile(head_dim: int, mask: str = "") -> str:
        return str(choose(backward(f"batch=1 heads=1 seq=64 head_dim={head_dim} {mask}"), load_arch(H100)).config)

    assert [tile(64), tile(96), tile(128)] == ["flash3 128x128", "flash3 64x128", "flash3 80x128"]
    assert tile(128, "causal=1 deterministic=1") == "flash3 64x128 ordered"
    assert tile(256) == "flash2 64x64"


def test_specialised_warps_with_wgmma_are_faster_and_move_dq_by_tma() -> None:
    text = "attention_backward batch=1 heads=8 seq=512 head_dim=128 dtype=fp16"
    old, new, causal = (
        simulate(f"{text}{mask}", H100, schedule=kind).record
        for kind, mask in (("flash2", ""), ("flash3", ""), ("flash3", " causal=1"))
    )
    assert new.time_ps < 0.8 * old.time_ps
    # Blocks of 80 queries, the last one in part: 7 of them times 4 of 128 keys, five products each.
    assert new.kernels[1].counters["macs"] == 5 * 8 * (7 * 80) * (4 * 128) * 128
    seen = sum(8 - 2 * block for block in range(4))
    assert causal.kernels[1].counters["macs"] == 5 * 8 * seen * 64 * 128 * 128


def test_tiles_are_the_published_ones() -> None:
    def tile(machine: str, head_dim: int) -> tuple[int, int, int]:
        op, spec = backward(f"batch=1 heads=1 seq=64 head_dim={head_dim}"), load_arch(machine)
        config = choose(op, spec).config
        return config.block_m, config.block_n, config.stages

    assert [tile(A100, d) for d in (64, 96, 128, 192)] == [(128, 128, 2), (64, 128, 2), (64, 128, 2), (64, 64, 2)]
    assert [tile(machine, 256) for machine in (A100, H100)] == [(64, 64, 1), (64, 64, 2)]


def test_order_that_does_not_depend_on_ctas_costs_sums_of_its_own() -> None:
    text = "attention_backward batch=2 heads=8 seq=512 head_dim=64 dtype=fp16"
    free, ordered = (simulate(f"{text} deterministic={d}", A100).record for d in "01")
    splits = -(-108 // 16)
    sums = 4 * 2 * 8 * 512 * 64
    written = [sum(k.counters["l2_write_bytes"] for k in record.kernels) for record in (free, ordered)]
    # Each CTA adds to sums of its own, all of which are cleared before.
    assert written[1] - written[0] == pytest.approx((splits - 1) * sums, rel=0.02)
    assert ordered.time_ps > free.time_ps
    # Blocks of queries that no key of a block sees are left out.
    causal = simulate(f"{text} causal=1", A100).record
    macs = [record.kernels[1].counters["macs"] for record in (free, causal)]
    assert macs[0] == 5 * 2 * 8 * 512 * 512 * 64
    assert macs[1] == macs[0] * (4 + 3 + 2 + 1) // 16
    # In a window as long as a block, a block of queries sees its own block of keys and the one before.
    local = simulate(f"{text} causal=1 window=128", A100).record
    assert local.kernels[1].counters["macs"] == macs[0] * (4 + 3) // 16


def test_wrong_input_is_one_line() -> None:
    spec = load_arch("t4")
    with pytest.raises(InputError, match=r"t4 has no cp\.async with mma m16n8k16 for fp16"):
        choose(backward("batch=1 heads=1 seq=64 head_dim=64"), spec)
    with pytest.raises(InputError, match=r"multiples of 8 .*, not 100; nearest: 104$"):
        choose(backward("batch=1 heads=1 seq=64 head_dim=100"), load_arch(A100))
    with pytest.raises(InputError, match="a100-sxm4-80gb has no TMA with wgmma for fp16; its nearest is flash2"):
        choose(backward("batch=1 heads=1 seq=64 head_dim=64"), load_arch(A100), "flash3")
    with pytest.raises(InputError, match=r"head_dim=192: flash3 has heads of up to 128; nearest: schedule=flash2"):
        choose(backward("batch=1 heads=1 seq=64 head_dim=192"), load_arch(H100), "flash3")
    with pytest.raises(
        InputError, match="schedule=flash4: attention_backward has flash3, which is flash3 128x128 here"
    ):
        choose(backward("batch=1 heads=1 seq=64 head_dim=64"), load_arch(H100), "flash4")
    with pytest.raises(InputError, match="seq_q=9: causal, at most seq_k=4"):
        backward("batch=1 heads=1 seq_q=9 seq_k=4 head_dim=64 causal=1")
    with pytest.raises(InputError, match="seq_q=9: window=3, at most 6"):
        backward("batch=1 heads=1 seq_q=9 seq_k=4 head_dim=64 window=3")
    assert replace(backward("batch=1 heads=1 seq=8 head_dim=64"), causal="1").macs < 5 * 64 * 64
