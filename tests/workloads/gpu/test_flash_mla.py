"""Latent attention by wgmma: numbers, waits, bytes, where it is chosen, and how long it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.run import simulate
from sim.gpu.check.interpret import interpret
from sim.gpu.language import Program
from workloads.gpu.attention.choose import choose
from workloads.gpu.attention.flash_mla import FlashMlaConfig, build, pieces_of
from workloads.ops.attention import Attention
from workloads.parse import parse

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

DECODE = "attention batch=32 heads=128 kv_heads=1 seq_q=1 seq_k=4096 head_dim=576 head_dim_v=512"


@pytest.fixture(scope="module")
def h100() -> GpuSpec:
    return load_arch("h100-sxm")


def latent(**keys: Any) -> Attention:
    """A small one: 192 columns, of which 128 are values."""
    defaults = {"kv_heads": 1, "seq_q": 1, "head_dim": 192, "head_dim_v": 128, "dtype": "fp16"}
    return Attention(**{**defaults, **keys})


def tensors(op: Attention) -> dict[str, NDArray[Any]]:
    return {operand.name: array for operand, array in zip(op.operands, op.inputs(seed=1), strict=True)}


@pytest.mark.parametrize(
    ("op", "parts"),
    [
        (latent(batch=1, heads=64, seq_k=256), 1),  # pairs alone
        (latent(batch=2, heads=70, seq_k=300), 1),  # a tile that is not full, an odd block, an end inside one
        (latent(batch=1, heads=4, seq_k=900), 3),  # cut
        (latent(batch=3, heads=4, seqlens_k="70,600,300"), 2),  # one of three cut, in a row
        (latent(batch=3, heads=4, seqlens_k="70,600,300", page=64), 2),
        (latent(batch=2, heads=1, seq_k=40, page=128, latent="1"), 4),  # parts that have nothing to do
    ],
    ids=str,
)
def test_the_schedule_computes_attention(op: Attention, parts: int, h100: GpuSpec) -> None:
    program = build(op, h100, FlashMlaConfig(parts))
    inputs = tensors(op)
    found = interpret(program, execute(program, seed=3), inputs)
    assert found.violations == []
    assert op.largest_error([found.outputs["o"]], *inputs.values()) <= op.tolerance


def test_widths_as_published_pass_the_check_on_the_engine() -> None:
    text = "attention batch=1 heads=16 kv_heads=1 seq_q=1 seq_k=150 head_dim=576 head_dim_v=512"
    record = simulate(text, "h100-sxm", check=True).record
    assert record.schedule.startswith("flash-mla")
    assert record.check is not None
    assert record.check.passed


def test_every_wait_matters(h100: GpuSpec) -> None:
    """Of two pairs and an odd block, and of a second sequence after them."""
    op = latent(batch=2, heads=64, seqlens_k="300,60")
    program, inputs = build(op, h100, FlashMlaConfig(1)), tensors(op)
    expected = interpret(program, execute(program, seed=2), inputs).outputs

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    name = program.kernels[0].name
    redundant = {
        f"{name}/second/33 fence_async": "the first warpgroup's own fence follows the barrier that shows these weights",
        f"{name}/second/41 wgmma_fence": "no register that wgmma reads or writes is touched since the one before",
    }
    assert assert_mutants_caught(case, lambda mutant: execute(mutant, seed=2), redundant) > 50


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 140))
def test_pieces_hold_each_block_once_and_share_them_out(blocks: list[int], parts: int) -> None:
    found = pieces_of(tuple(blocks), parts)
    assert len(found) == parts
    visited = [(p.sequence, block) for own in found for p in own for block in range(p.begin, p.end)]
    assert visited == [(sequence, block) for sequence, count in enumerate(blocks) for block in range(count)]
    for sequence in range(len(blocks)):
        splits = [p.split for own in found for p in own if p.sequence == sequence]
        assert splits == list(range(len(splits)))


def test_a_cache_is_read_once_for_64_heads_and_values_never() -> None:
    """From memory once in all; by the SMs once for each 64 heads. A CTA has a sequence here, and Q once."""
    text = "attention batch=4 heads={} kv_heads=1 seq_q=1 seq_k=2048 head_dim=576 head_dim_v=512 dtype=bf16"
    for heads in (64, 128):
        op = parse(text.format(heads))
        assert isinstance(op, Attention)
        q, k = (operand.size_bytes for operand in op.operands)
        (kernel,) = simulate(op, "h100-sxm", schedule="flash-mla parts 4").record.kernels
        assert k + q <= kernel.counters["dram_read_bytes"] < 1.01 * (k + q)
        assert k + q <= kernel.counters["l2_read_bytes"] < 1.01 * (heads // 64 * k + q)
        assert kernel.counters["macs"] == op.macs


def test_values_are_the_first_columns_of_keys() -> None:
    apart = latent(batch=2, heads=3, seq_k=40, latent="0")
    one = latent(batch=2, heads=3, seq_k=40)
    assert [operand.name for operand in apart.operands] == ["q", "k", "v"]
    assert [operand.name for operand in one.operands] == ["q", "k"]
    q, k, _ = apart.inputs(seed=4)
    np.testing.assert_array_equal(one.reference(q, k), apart.reference(q, k, k[..., :128]))
    assert one.macs == apart.macs
    for keys in ({"latent": "1", "head_dim_v": 256}, {"latent": "1", "append": "1", "page": 64}):
        with pytest.raises(InputError, match="nearest: latent=0"):
            latent(batch=1, heads=2, seq_k=64, **keys)


def test_decode_reads_the_one_cache() -> None:
    text = "attention batch=2 heads=4 kv_heads=1 seq_q=1 seq_k=70 head_dim=192 head_dim_v=128"
    record = simulate(text, "a100-sxm4-80gb", check=True).record
    assert record.check is not None
    assert record.check.passed
    assert record.schedule.startswith("decode")


def test_auto_takes_it_where_it_applies(h100: GpuSpec) -> None:
    for op in (latent(batch=8, heads=64, seq_k=1024), latent(batch=8, heads=64, seq_k=1024, page=64)):
        assert str(choose(op, h100).config) == "flash-mla parts 132"
    others = (
        (latent(batch=8, heads=64, seq_k=1024, latent="0"), h100),
        (latent(batch=8, heads=64, seq_k=1024), load_arch("a100-sxm4-80gb")),
        (latent(batch=8, heads=64, seq_k=1024, seq_q=2), h100),
        (latent(batch=8, heads=64, seq_k=1024, page=16), h100),
    )
    for op, spec in others:
        assert all(not isinstance(config, FlashMlaConfig) for config, _ in choose(op, spec).candidates)
        with pytest.raises(InputError, match=r"schedule=flash-mla .*nearest: decode"):
            choose(op, spec, "flash-mla")
    assert str(choose(latent(batch=1, heads=8, seq_k=64), h100, "flash-mla parts 7").config) == "flash-mla parts 7"
    with pytest.raises(InputError, match="1 to 65535 parts"):
        choose(latent(batch=1, heads=8, seq_k=64), h100, "flash-mla parts 0")


def test_decode_of_a_large_model_takes_what_libraries_take() -> None:
    """90.6 to 106 us (TensorRT-LLM) and 91 to 93 us (SGLang) by aiconfigurator, calls that also write the cache."""
    assert 0.88 * 90.6e6 <= simulate(DECODE, "h100-sxm").record.time_ps <= 93e6
