"""Every wait of the test kernels matters, and the check knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from arch.dtypes import round_to
from sim.gpu.check.mutants import mutants
from sim.gpu.language import Kernel, Op, Program, walk
from tests.gpu.kernels import (
    Array,
    dynamic_copy,
    mma_gemm,
    numbers,
    split_sum,
    tensor_gemm,
    tma_copy,
    two_kernels,
    wgmma_gemm,
)
from tests.reference.gpu_executor import execute
from tests.reference.mutation import assert_mutants_caught

Case = tuple[Program, dict[str, Array], dict[str, Array]]


def _gemm(program: Program) -> Case:
    a, b, c = program.tensors
    x, y = numbers(*a.shape), numbers(*b.shape, seed=1)
    return program, {"a": x, "b": y}, {"c": round_to(x @ y, c.dtype)}


def _rows(program: Program, function: Callable[[Array], Array]) -> Case:
    x = numbers(*program.tensors[0].shape)
    return program, {"x": x}, {"y": function(x)}


def _tensor(program: Program, times: int) -> Case:
    program, inputs, outputs = _gemm(program)
    return program, inputs, {"c": times * outputs["c"]}


CASES: dict[str, Callable[[], Case]] = {
    "TMA copy": lambda: _rows(tma_copy(), lambda x: x),
    "wgmma": lambda: _gemm(wgmma_gemm(128, 256, 320)),
    "wgmma in a cluster": lambda: _gemm(wgmma_gemm(256, 128, 320, cluster=2)),
    "mma with cp.async": lambda: _gemm(mma_gemm()),
    "mma with cp.async, four stages": lambda: _gemm(mma_gemm(k=256, stages=4)),
    "semaphore": lambda: _rows(split_sum(), lambda x: 2 * x.sum(axis=0, keepdims=True)),
    "two kernels": lambda: _rows(two_kernels(), lambda x: 2 * x),
    "tensor memory": lambda: _tensor(tensor_gemm(clc=True), 4),
    "tensor memory of pairs": lambda: _tensor(tensor_gemm(512, pair=True, clc=True), 3),
    "dynamic scheduler": lambda: _rows(dynamic_copy(), lambda x: x),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_wait_matters(case: str, seed: int) -> None:
    number = assert_mutants_caught(CASES[case], lambda program: execute(program, seed))
    assert number > 0


def test_lucky_timing_does_not_hide_a_missing_wait() -> None:
    """With equal latencies of one tick nothing ever overlaps; the vector clocks still see what is not ordered."""
    for case in ("TMA copy", "mma with cp.async", "semaphore"):
        assert_mutants_caught(CASES[case], lambda program: execute(program, latency=1))


def _opcodes(kernel: Kernel) -> list[tuple[str, tuple[str, ...]]]:
    return [(op.opcode, op.after) for role in kernel.roles for op in walk(role.body)]


def test_a_mutant_lacks_exactly_what_it_says() -> None:
    program = mma_gemm()
    original = _opcodes(program.kernels[0])
    found = {}
    for what, mutant in mutants(program):
        found[what] = _opcodes(mutant.kernels[0])
    assert found["mma_gemm/warps/3 cp_wait"] == original[:3] + original[4:]
    unlinked = list(original)
    unlinked[10] = ("mma", ())
    assert found["mma_gemm/warps/10 mma after fragments"] == unlinked
    assert len(found) == 3


def test_a_barrier_of_several_roles_is_also_left_out_of_all() -> None:
    whats = [what for what, _ in mutants(wgmma_gemm(cluster=2))]
    assert "wgmma_gemm/*/0 cluster_wait" in whats
    assert "wgmma_gemm/*/0 cluster_sync" in whats


def test_a_redundant_wait_must_be_listed_and_the_list_must_be_true() -> None:
    def twice() -> Case:
        program, inputs, outputs = CASES["TMA copy"]()
        kernel = program.kernels[0]
        role = kernel.roles[0]
        last = role.body[-1]
        assert isinstance(last, Op)
        assert last.opcode == "bulk_wait_read"
        doubled = replace(kernel, roles=(replace(role, body=(*role.body, last)),))
        return replace(program, kernels=(doubled,)), inputs, outputs

    with pytest.raises(AssertionError, match="nobody noticed"):
        assert_mutants_caught(twice, execute)
    reasons = {"tma_copy/copy/6 bulk_wait_read": "said twice", "tma_copy/copy/7 bulk_wait_read": "said twice"}
    assert assert_mutants_caught(twice, execute, reasons) == 4
    with pytest.raises(AssertionError, match="is listed as redundant"):
        assert_mutants_caught(twice, execute, {**reasons, "tma_copy/copy/3 mbarrier_wait": "it is not"})
    with pytest.raises(AssertionError, match="no mutant"):
        assert_mutants_caught(twice, execute, {**reasons, "tma_copy/copy/99 mbarrier_wait": "gone"})
