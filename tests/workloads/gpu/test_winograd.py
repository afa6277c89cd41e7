"""Convolution by Winograd's transforms: the algebra, numbers against NumPy, what is multiplied, what is refused."""

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from workloads.gpu.conv import winograd
from workloads.gpu.conv.implicit import choose, of_library
from workloads.ops import Conv2d


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (5, 5)])
def test_transforms_give_a_correlation(outputs: int, taps: int) -> None:
    t = winograd.transforms(outputs, taps)
    rng = np.random.default_rng(0)
    row, taken = rng.normal(size=outputs + taps - 1), rng.normal(size=taps)
    found = t.result @ ((t.filter @ taken) * (t.data @ row))
    np.testing.assert_allclose(found, np.correlate(row, taken, "valid"), atol=1e-12)


@pytest.mark.parametrize(
    ("machine", "shape"),
    [
        ("v100-sxm2", "n=2 c=40 h=9 w=14 k=24 r=3 s=3 pad=1"),
        ("t4", "n=1 c=33 h=6 w=8 k=20 r=5 s=5 pad_h=2 pad_w=0"),
    ],
)
def test_numbers_are_those_of_numpy(machine: str, shape: str) -> None:
    report = simulate(f"conv2d {shape} dtype=fp32", machine, schedule="winograd", check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    names = [kernel.name for kernel in report.record.kernels]
    assert [name.startswith("winogradForward") for name in names] == [True, True, False, True]


def test_a_tile_multiplies_once_a_point() -> None:
    report = simulate("conv2d n=1 c=64 h=16 w=16 k=64 r=3 s=3 pad=1 dtype=fp32", "v100-sxm2", schedule="winograd")
    product = report.record.kernels[2]
    # 4 x 4 tiles of 4 x 4 results; 36 points where the filter has 9 for each of 16 results.
    assert product.counters["macs"] >= 36 * 16 * 64 * 64
    assert report.record.check is None


def test_the_library_has_it_where_it_pays() -> None:
    spec, tiles = load_arch("v100-sxm2"), ("128x128", "128x64", "128x32")
    deep = Conv2d(n=16, c=512, h=14, w=14, k=512, r=3, s=3, pad=1, dtype="fp32").with_defaults("fp32")
    assert of_library(deep, spec, tiles)[0][0].schedule == "winograd"
    assert choose(deep, spec).config.schedule == "winograd"
    strided = Conv2d(n=16, c=512, h=14, w=14, k=512, r=3, s=3, stride=2, dtype="fp32").with_defaults("fp32")
    assert {config.schedule for config, _ in of_library(strided, spec, tiles)} == {"simt"}


@pytest.mark.parametrize("more", ["stride=2", "dtype=fp16", "r=1 s=1"])
def test_what_it_does_not_take_is_refused(more: str) -> None:
    words = dict(word.split("=") for word in f"n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=fp32 {more}".split())
    with pytest.raises(InputError, match=r"schedule=winograd: t4 runs .* with"):
        simulate("conv2d " + " ".join(f"{key}={value}" for key, value in words.items()), "t4", schedule="winograd")
