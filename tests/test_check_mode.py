"""Check mode as a whole: what passes is what rounding explains, no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arch.load import load_arch
from sim import simulate
from sim.app.families.gpu import check as gpu_check
from sim.gpu.check.interpret import CheckResult, interpret
from workloads.parse import parse


@pytest.mark.parametrize("workload", ["gemm m=64 n=64 k=64 dtype=fp16", "softmax rows=8 cols=64 dtype=fp16"])
@pytest.mark.parametrize(("share", "passes"), [(0.0, True), (0.7, True), (1.5, False), (50.0, False)])
def test_an_error_beyond_what_rounding_explains_fails(
    workload: str, share: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are replaced by NumPy's with an error of a share of the tolerance in one element."""
    op = parse(workload).with_defaults(load_arch("t4").default_dtype)
    operands = op.inputs(seed=0)
    (right,) = (np.asarray(result, dtype=np.float64) for result in op.references(*operands))
    step = np.zeros(right.shape)
    step.flat[5] = 1e-3
    step *= op.tolerance / op.largest_error([right + step], *operands)

    def replaced(*arguments: Any) -> CheckResult:
        found = interpret(*arguments)
        return CheckResult(dict.fromkeys(found.outputs, right + share * step), found.violations)

    monkeypatch.setattr(gpu_check, "interpret", replaced)
    check = simulate(workload, "t4", check=True).record.check
    assert check is not None
    assert check.passed == passes
    assert check.max_rel_error == pytest.approx(share * op.tolerance, rel=0.05, abs=1e-9)


def test_a_violation_fails_whatever_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def raced(*arguments: Any) -> CheckResult:
        return CheckResult(interpret(*arguments).outputs, ["kernel a: a race"])

    monkeypatch.setattr(gpu_check, "interpret", raced)
    report = simulate("add n=1000 dtype=fp32", "t4", check=True)
    assert report.record.check is not None
    assert not report.record.check.passed
    assert "Check: kernel a: a race." in report.record.notes
