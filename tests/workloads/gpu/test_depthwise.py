"""Convolution of each channel by itself: numbers against NumPy, what is multiplied and moved, what is refused."""

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from workloads.gpu.conv.depthwise import OUTPUTS, DepthwiseConfig, build
from workloads.gpu.conv.implicit import choose
from workloads.ops import Conv2d

CASES = [
    ("a100-sxm4-80gb", "fp16", "n=2 c=72 h=9 w=13 r=3 pad=1"),
    ("t4", "fp32", "n=1 c=33 h=14 w=15 r=5 stride=2 pad=2"),
    ("h100-sxm", "bf16", "n=1 c=130 h=12 w=11 r=3 pad=3 dilation=3"),
]


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize(("machine", "dtype", "shape"), CASES)
def test_numbers_are_those_of_numpy(machine: str, dtype: str, shape: str, outputs: int) -> None:
    words = dict(word.split("=") for word in shape.split())
    text = f"conv2d {shape} s={words['r']} k={words['c']} groups={words['c']} dtype={dtype}"
    report = simulate(text, machine, schedule=f"depthwise outputs {outputs}", check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_it_multiplies_nothing_but_its_filters_and_auto_takes_it() -> None:
    report = simulate("conv2d n=1 c=64 h=16 w=16 k=64 groups=64 r=3 s=3 pad=1 dtype=fp16", "a100-sxm4-80gb")
    assert report.record.schedule.startswith("depthwise")
    assert report.record.kernels[0].counters["macs"] == 16 * 16 * 64 * 9
    assert report.record.kernels[0].counters["dram_read_bytes"] < 2 * 18 * 18 * 64 * 2


def test_more_results_a_thread_read_each_value_less_often() -> None:
    op = Conv2d(n=1, c=64, h=34, w=34, k=64, r=3, s=3, groups=64, dtype="fp16")
    asked = []
    for outputs in (8, 1):
        report = simulate(op, "a100-sxm4-80gb", schedule=f"depthwise outputs {outputs}")
        asked.append(report.record.kernels[0].counters["l1_read_bytes"])
    # 10 pixels for 8 results against 3 for one; both read the filters.
    assert asked[0] < asked[1] * 10 / 24 * 1.3


@pytest.mark.parametrize("more", ["groups=4", "k=16", "dtype=int8"])
def test_what_it_does_not_take_is_refused(more: str) -> None:
    words = dict(word.split("=") for word in f"n=1 c=8 h=8 w=8 k=8 r=3 s=3 groups=8 dtype=fp16 {more}".split())
    text = "conv2d " + " ".join(f"{key}={value}" for key, value in words.items())
    with pytest.raises(InputError, match=r"schedule=depthwise: t4 runs .* with"):
        simulate(text, "t4", schedule="depthwise")
    op = Conv2d(n=1, c=8, h=8, w=8, k=8, r=3, s=3, groups=4, dtype="fp16")
    with pytest.raises(InputError, match="takes groups=c=k"):
        build(op, load_arch("t4"), DepthwiseConfig(4))
    assert {config.schedule for config, _ in choose(op, load_arch("t4")).candidates} == {"mma"}
