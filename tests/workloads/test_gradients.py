"""Gradients of a convolution in NumPy: what is linear in X and in W has one value, however it is taken apart."""

import numpy as np
import pytest

from workloads.ops import Conv2d, Conv2dDgrad, Conv2dWgrad
from workloads.parse import parse

CASES = [
    "n=2 c=6 h=7 w=8 k=4 r=3 s=2 stride=2 pad=1 groups=2",
    "n=1 c=3 h=9 w=9 k=5 r=3 s=3 pad=1 dilation=2",
    "n=1 c=4 h=7 w=5 k=4 r=1 s=1 stride=2 pad=2",
    "n=1 c=4 h=7 w=5 k=4 r=2 s=3 stride_h=3 stride_w=1 pad=1 layout=nchw groups=2",
]


@pytest.mark.parametrize("shape", CASES)
def test_gradients_are_adjoint_to_the_convolution(shape: str) -> None:
    forward = parse(f"conv2d {shape} dtype=fp32")
    dgrad, wgrad = (parse(f"conv2d_{word} {shape} dtype=fp32") for word in ("dgrad", "wgrad"))
    assert isinstance(forward, Conv2d)
    assert isinstance(dgrad, Conv2dDgrad)
    assert isinstance(wgrad, Conv2dWgrad)
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=operand.shape) for operand in forward.operands)
    dy = rng.normal(size=forward.results[0].shape)
    dx, dw = dgrad.reference(dy, w), wgrad.reference(x, dy)
    assert (dx.shape, dw.shape) == (x.shape, w.shape)
    whole = (forward.reference(x, w) * dy).sum()
    assert (dx * x).sum() == pytest.approx(whole, rel=1e-5)
    assert (dw * w).sum() == pytest.approx(whole, rel=1e-5)
    assert dgrad.macs == wgrad.macs == forward.macs
    assert dgrad.largest_error([dx], dy, w) <= dgrad.tolerance < dgrad.largest_error([dx + 1e-3], dy, w)
    assert wgrad.largest_error([dw], x, dy) <= wgrad.tolerance < wgrad.largest_error([dw + 1e-2], x, dy)


def test_operands_have_their_format_and_results_theirs() -> None:
    shape = "n=1 c=4 h=8 w=8 k=6 r=3 s=3 dtype=fp16 out=fp32"
    dgrad, wgrad = parse(f"conv2d_dgrad {shape}"), parse(f"conv2d_wgrad {shape}")
    formats = [{o.name: o.dtype for o in (*op.operands, *op.results)} for op in (dgrad, wgrad)]
    assert formats == [{"dy": "fp16", "w": "fp16", "dx": "fp32"}, {"x": "fp16", "dy": "fp16", "dw": "fp32"}]
