"""Operators in every number format: NumPy's values, bytes of the format, and one reason where a machine has no unit."""

from __future__ import annotations

import numpy as np
import pytest

from arch.dtypes import FORMATS
from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate
from sim.gpu.check.interpret import interpret
from workloads.gpu.select import choose
from workloads.parse import parse
from workloads.registry import build

from tests.reference.gpu_executor import execute  # isort: skip

A100, H100, T4, ADA = "a100-sxm4-80gb", "h100-sxm", "t4", "rtx-4090"


def assert_computes(text: str, machine: str) -> np.ndarray:
    """The kernel's result, which is what the operator says."""
    spec = load_arch(machine)
    op = parse(text).with_defaults("bf16")
    program = build(op, spec, choose(op, spec).config)
    operands = op.inputs(seed=1)
    named = {operand.name: array for operand, array in zip(op.operands, operands, strict=True)}
    shaped = {t.name: named[t.name].reshape(t.shape) for t in program.tensors if t.name in named}
    result = interpret(program, execute(program, seed=2), shaped)
    assert result.violations == []
    results = [result.outputs[operand.name] for operand in op.results]
    assert op.largest_error(results, *operands) <= op.tolerance
    return np.asarray(results[0])


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_moves_data_takes_every_format(dtype: str) -> None:
    for text in ("copy n=300", "fill n=300", "transpose rows=20 cols=35", "gather rows=5 cols=35 of=9"):
        assert_computes(f"{text} dtype={dtype}", T4)


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("add n=300 dtype=uint8", T4),
        ("pointwise n=300 chain=mul+mul+sub dtype=int8", A100),
        ("pointwise n=300 chain=mul+neg dtype=int64", A100),
        ("pointwise n=300 chain=mul+add dtype=int32 out=int8 fused=0", A100),
        ("neg n=300 dtype=uint16", A100),
        ("pointwise n=300 chain=mul+add dtype=bool", A100),
        ("pointwise n=300 chain=cast+scale dtype=uint8 out=fp16", A100),
        ("cast n=300 dtype=fp32 out=int8", A100),
        ("cast n=300 dtype=int64 out=fp32", A100),
        ("pointwise n=300 chain=exp+add dtype=fp64", ADA),
        ("add n=300 dtype=fp8", H100),
        ("gather rows=5 cols=35 of=9 dtype=fp16 index_dtype=int64", A100),
        ("sum n=3000 dtype=uint8", A100),
        ("sum n=3000 dtype=fp64", ADA),
        ("sum rows=40 cols=70 axis=0 dtype=int64", A100),
        ("sum rows=40 cols=70 axis=0 dtype=uint8 out=uint32", A100),
        ("sum rows=4 cols=700 axis=1 dtype=bool", A100),
        ("sum rows=4 cols=700 axis=1 dtype=fp64", A100),
    ],
)
def test_computes_what_numpy_does(text: str, machine: str) -> None:
    assert_computes(text, machine)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32"])
def test_integers_keep_their_lowest_bits(dtype: str) -> None:
    op = parse(f"pointwise n=300 chain=mul+mul+sub dtype={dtype}")
    operands = [array.astype(dtype) for array in op.inputs(seed=1)]
    with np.errstate(over="ignore"):
        expected = operands[0] * operands[1] * operands[2] - operands[3]
    np.testing.assert_array_equal(assert_computes(str(op), A100).ravel(), expected.astype(np.float64))


def test_formats_move_their_bytes_and_take_their_units_time() -> None:
    def run(text: str, machine: str) -> tuple[int, int]:
        record = simulate(text, machine).record
        return int(record.kernels[0].counters["l2_write_bytes"]), record.kernels[0].cycles

    for dtype in ("uint8", "int16", "int64"):
        assert run(f"add n=256k dtype={dtype}", A100)[0] == FORMATS[dtype].bytes << 18
    # Two lanes an SM for fp64 on consumer chips, 32 in the data centre.
    slow, fast = (
        run("exp n=256k dtype=fp64", machine)[1] / run("copy n=256k dtype=fp64", machine)[1] for machine in (ADA, A100)
    )
    assert slow > 1.5 * fast


@pytest.mark.parametrize(
    ("text", "machine", "message"),
    [
        ("exp n=30 dtype=int32", A100, "exp of int32 is no int32; nearest: out=fp32"),
        ("neg n=30 dtype=bool", A100, "neg of bool is no bool; nearest: out=fp32, or copy"),
        ("add n=30 dtype=fp8", A100, "a100-sxm4-80gb has no instruction that converts fp8, Ada and Hopper have"),
        ("gelu n=30 dtype=fp64", A100, "gelu in fp64 is a routine that was not counted; of neg"),
        ("sum n=30 dtype=fp32 out=int32", A100, "sums of fractions are none; nearest: out=fp32"),
        ("sum n=30 dtype=int32 out=int8", A100, "sums of integers have 32 or 64 bits; nearest: out=int32"),
        ("softmax rows=3 cols=30 dtype=int32", A100, "dtype=int32 is not available for it on GPUs, one of fp32"),
        ("copy n=30 dtype=unit8", A100, "unknown number format, .*did you mean uint8"),
    ],
)
def test_what_has_no_unit_says_why(text: str, machine: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(parse(text).with_defaults("bf16"), load_arch(machine))
