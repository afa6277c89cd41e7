"""A training step of a decoder layer: every operator computes, and the work is three times the forward pass's."""

from __future__ import annotations

from sim.api import simulate
from workloads.ops import Gemm
from workloads.rdu.training import training_step


def test_every_operator_of_a_step_computes() -> None:
    for step in training_step("tiny", 64):
        report = simulate(step.op, "sn40l", schedule=step.schedule, check=True)
        assert report.record.check is not None
        assert report.record.check.passed, (step.name, report.record.notes)


def test_backward_products_are_twice_those_of_the_forward_pass() -> None:
    steps = training_step("llama3.1-8b", 512)
    backward = sum(step.op.macs for step in steps if isinstance(step.op, Gemm) and "attention" not in step.name)
    weights = 4096 * 128 * (32 + 2 * 8) + 4096**2 + 3 * 4096 * 14336
    assert backward == 2 * 512 * weights
