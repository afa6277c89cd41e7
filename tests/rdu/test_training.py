"""A training step of a decoder layer: every gradient, in every form and on several devices."""

from __future__ import annotations

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate
from tests.rdu.conftest import SMALL
from workloads.graphs.llama import Llama
from workloads.parse import parse
from workloads.rdu import llama_reference
from workloads.rdu.select import build, choose

STEP = "llama model=tiny phase=training seq=64"


@pytest.mark.parametrize(
    ("text", "schedule"),
    [(f"{STEP} batch=2", "cut"), (f"{STEP} tp=2", "cut"), (STEP, "unfused"), (f"{STEP} tp=4", "auto")],
)
def test_every_gradient_is_what_numpy_says(text: str, schedule: str) -> None:
    report = simulate(text, "sn40l", schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_the_reference_is_the_slope_of_the_forward_pass() -> None:
    """Small steps of operands change the result as the gradients say."""
    op = Llama(model="tiny", phase="training", seq=8, dtype="bf16")
    spec = load_arch("sn40l")
    program = build(op, spec, choose(op, spec).config)
    given = {name: np.array(a, np.float64) for name, a in llama_reference.operands(op, program).items()}
    found = llama_reference.expected(op, given)
    rng = np.random.default_rng(0)
    names = {"x": "dx", "norm1": "d_norm1", "norm2": "d_norm2"}
    names |= {f"{name}_weight": f"d_{name}" for name in ("qkv", "wo", "gate", "up", "down")}

    def loss(moved: dict[str, np.ndarray]) -> float:
        return float((llama_reference.result(op, given | moved)[-1] * given["dy"][0]).sum())

    for name, gradient in names.items():
        step = 1e-5 * rng.standard_normal(given[name].shape)
        measured = (loss({name: given[name] + step}) - loss({name: given[name] - step})) / 2
        assert measured == pytest.approx(
            float((found[gradient][0] * step[0].reshape(found[gradient][0].shape)).sum()), rel=1e-4
        )


def test_a_small_chip_takes_the_step_in_more_sections() -> None:
    large, small = (simulate(STEP, load_arch("sn40l", more), check=True) for more in ({}, SMALL))
    assert len(small.record.kernels) > len(large.record.kernels)
    assert small.record.check is not None
    assert small.record.check.passed


def test_a_step_is_worth_three_forward_passes_and_cuts_beat_operators() -> None:
    text = "llama model=llama3.1-8b phase={} seq=1024"
    step, forward = (parse(text.format(phase)).with_defaults("bf16") for phase in ("training", "prefill"))
    assert step.flops == 3 * forward.flops
    fused, unfused = (simulate(text.format("training"), "sn40l", schedule=form) for form in ("cut", "unfused"))
    assert fused.time_us < 0.8 * unfused.time_us
    assert fused.figures.share_of_peak > 0.55
    weights = 4096 * 128 * (32 + 2 * 8) + 4096**2 + 3 * 4096 * 14336
    assert fused.figures.counters["macs"] >= 3 * 1024 * weights


def test_what_has_no_training_step_says_so() -> None:
    with pytest.raises(InputError, match="phase=training runs one layer"):
        parse(f"{STEP} layers=2")
    with pytest.raises(InputError, match="phase=training: dataflow machines alone"):
        simulate(STEP, "h100-sxm")
