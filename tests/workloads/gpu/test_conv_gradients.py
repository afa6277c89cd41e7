"""Gradients of convolutions on GPUs: numbers against NumPy, phases of strides, cut sums, what is multiplied."""

import dataclasses

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from workloads.gpu.conv import dgrad, wgrad
from workloads.gpu.conv.dgrad import DgradGeometry, axes, phases
from workloads.ops import Conv2dDgrad, Conv2dWgrad

CASES = [
    ("a100-sxm4-80gb", "fp16", "n=2 c=16 h=9 w=13 k=24 r=3 s=3 pad=1"),
    ("t4", "fp32", "n=1 c=12 h=14 w=15 k=9 r=3 s=2 stride=2 pad=3 dilation=3 groups=3"),
    ("v100-sxm2", "fp16", "n=2 c=8 h=10 w=18 k=48 r=5 s=2 stride_h=3 stride_w=1"),
    ("h100-sxm", "bf16", "n=1 c=40 h=7 w=7 k=32 r=1 s=1 stride=2"),
    ("a100-sxm4-80gb", "bf16", "n=2 c=40 h=8 w=9 k=32 r=3 s=3 stride=2 pad=1"),
    ("a100-sxm4-80gb", "bf16", "n=1 c=8 h=7 w=7 k=16 r=1 s=1 pad=3 stride=2"),
]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("word", ["dgrad", "wgrad"])
@pytest.mark.parametrize(("machine", "dtype", "shape"), CASES)
def test_numbers_are_those_of_numpy(machine: str, dtype: str, shape: str, word: str, layout: str) -> None:
    report = simulate(f"conv2d_{word} {shape} dtype={dtype} layout={layout}", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


@pytest.mark.parametrize(
    ("word", "sizes"),
    [("dgrad", {"n": 1, "c": 40, "h": 7, "w": 7, "k": 256}), ("wgrad", {"n": 4, "c": 40, "h": 14, "w": 14, "k": 64})],
)
def test_cut_sums_are_those_of_numpy(word: str, sizes: dict[str, int]) -> None:
    keys = {**sizes, "r": 3, "s": 3, "pad": 1}
    text = f"conv2d_{word} dtype=fp16 " + " ".join(f"{key}={value}" for key, value in keys.items())
    op = (Conv2dDgrad if word == "dgrad" else Conv2dWgrad)(**keys, dtype="fp16").with_defaults("fp16")  # type: ignore[arg-type]
    chooser = dgrad.choose if isinstance(op, Conv2dDgrad) else wgrad.choose
    found = chooser(op, load_arch("a100-sxm4-80gb")).candidates  # type: ignore[arg-type]
    cut = next(str(config) for config, _ in found if getattr(config, "split", 1) > 1)
    report = simulate(text, "a100-sxm4-80gb", schedule=cut, check=True)
    assert report.record.schedule == cut
    assert report.record.check is not None
    assert report.record.check.passed


@pytest.mark.parametrize(("stride", "dilation", "pad"), [(1, 1, 0), (2, 1, 1), (3, 2, 0), (2, 3, 3)])
def test_phases_meet_every_element_of_the_filter_as_often_as_the_convolution(
    stride: int, dilation: int, pad: int
) -> None:
    op = Conv2dDgrad(n=1, c=1, h=16, w=11, k=1, r=3, s=2, stride=stride, dilation=dilation, pad=pad, dtype="fp32")
    for axis, (size, taps, count) in enumerate(((16, 3, op.output[0]), (11, 2, op.output[1]))):
        met = set()
        for phase in axes(op, axis):
            for i in range(phase.count):
                for j in range(phase.taps):
                    y = i + phase.at - j * phase.at_step
                    if 0 <= y < count:
                        met.add((phase.first + i * stride, phase.tap + j * phase.tap_step, y))
        expected = {
            (y * stride + tap * dilation - pad, tap, y)
            for y in range(count)
            for tap in range(taps)
            if 0 <= y * stride + tap * dilation - pad < size
        }
        assert met == expected


def test_a_kernel_a_phase_and_zeros_where_no_filter_was() -> None:
    report = simulate("conv2d_dgrad n=1 c=32 h=8 w=8 k=32 r=1 s=1 stride=2 dtype=fp16", "a100-sxm4-80gb")
    assert [kernel.name for kernel in report.record.kernels] == ["clear", "dgrad_0_0"]
    assert report.record.kernels[0].counters["l2_write_bytes"] == 8 * 8 * 32 * 2
    report = simulate("conv2d_dgrad n=1 c=32 h=8 w=8 k=32 r=3 s=3 stride=2 pad=1 dtype=fp16", "a100-sxm4-80gb")
    assert [kernel.name for kernel in report.record.kernels] == ["dgrad_1_1", "dgrad_0_1", "dgrad_1_0", "dgrad_0_0"]
    # 4, 2, 2 and 1 elements of the filter for 16 positions each, in steps of 32 channels.
    macs = [kernel.counters["macs"] for kernel in report.record.kernels]
    assert [value // macs[-1] for value in macs] == [4, 2, 2, 1]


def test_windows_of_dy_have_zeros_around_them() -> None:
    op = Conv2dDgrad(n=1, c=4, h=5, w=6, k=3, r=3, s=3, pad=0, dtype="fp16").with_defaults("fp16")
    g = DgradGeometry(op, 4, 32, *phases(op)[0][0])
    dy = op.inputs()[0]
    windows = g.windows(dy)
    assert windows.shape == g.problem().a.tensor.shape
    # Row 0 of dY is the third one stored; a window that begins at column 2 has dY's first pixel first.
    assert (windows[2, 2, 0] == dy[0, 0, 0]).all()
    assert not windows[:2].any()
    assert not windows[2, 0, :2].any()
    assert np.count_nonzero(windows[2, 2]) == np.count_nonzero(dy[0, 0])


@pytest.mark.parametrize(
    ("word", "filter_size", "names"),
    [
        ("dgrad", 3, ["to_dy_nhwc", "to_w_nhwc", "dgrad", "to_dx"]),
        ("dgrad", 1, ["to_dy_nhwc", "dgrad", "to_dx"]),
        ("wgrad", 3, ["to_x_nhwc", "to_dy_nhwc", "wgrad", "to_dw"]),
        ("wgrad", 1, ["to_x_nhwc", "to_dy_nhwc", "wgrad"]),
    ],
)
def test_images_channel_by_channel_are_transposed_before_and_after(
    word: str, filter_size: int, names: list[str]
) -> None:
    shape = f"conv2d_{word} n=1 c=32 h=16 w=16 k=32 r={filter_size} s={filter_size} dtype=fp16"
    first, last = (simulate(f"{shape} layout={layout}", "a100-sxm4-80gb") for layout in ("nchw", "nhwc"))
    found = [kernel.name for kernel in first.record.kernels]
    # The product keeps the name that it has without transposes.
    assert [name if name.startswith("to_") else word for name in found] == names
    assert first.time_us > last.time_us
    size = 1 * 32 * 16 * 16 * 2
    moved = first.record.kernels[0 if word == "wgrad" else -1]
    assert moved.counters["l2_write_bytes"] == size


def test_other_machines_and_cut_phases_are_refused() -> None:
    shape = "n=1 c=4 h=8 w=8 k=4 r=3 s=3"
    with pytest.raises(InputError, match="conv2d_dgrad"):
        simulate(f"conv2d_dgrad {shape}", "tpu-v1")
    op = Conv2dDgrad(n=1, c=64, h=8, w=8, k=64, r=3, s=3, stride=2, dtype="fp16").with_defaults("fp16")
    spec = load_arch("a100-sxm4-80gb")
    whole = dgrad.choose(op, spec).config
    with pytest.raises(InputError, match="sums of 4 phases are not cut"):
        dgrad.build(op, spec, dataclasses.replace(whole, split=2))
