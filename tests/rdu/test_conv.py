"""Convolutions as dataflow programs: numbers against NumPy, traffic, what is refused."""

import numpy as np
import pytest

from arch.errors import InputError
from sim import simulate
from sim.rdu.interpret import evaluate
from sim.rdu.program import Value, record

SHAPES = [
    "n=2 c=16 h=9 w=13 k=24 r=3 s=3 pad=1",
    "n=1 c=3 h=23 w=23 k=40 r=7 s=7 stride=2 pad=3",
    "n=3 c=24 h=8 w=8 k=33 r=1 s=1 stride=2",
    "n=2 c=8 h=12 w=18 k=32 r=5 s=2 stride_h=3 stride_w=1 pad_h=2 pad_w=0",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_are_those_of_numpy(shape: str) -> None:
    report = simulate(f"conv2d {shape}", "sn40l", check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_several_bands_and_parts_on_plasticine() -> None:
    text = "conv2d n=1 c=8 h=12 w=10 k=12 r=3 s=3 pad=1"
    report = simulate(text, "plasticine", schedule="metapipeline 5 rows 8 filters par 2x2", check=True)
    assert report.record.check is not None
    assert report.record.check.passed


def test_a_band_is_read_once_and_filters_once_a_band() -> None:
    text = "conv2d n=1 c=64 h=30 w=30 k=128 r=3 s=3"
    report = simulate(text, "sn40l", schedule="metapipeline 14 rows 64 filters par 8x8").to_dict()
    filters = 128 * 3 * 3 * 64
    bands = 2 * 16 * 30 * 64  # of 14 rows each, which need 16
    assert report["bytes"]["hbm"] == {"read": 2 * (bands + 2 * filters), "write": 2 * 28 * 28 * 128}
    assert report["macs"] == 28 * 28 * filters


def test_windows_are_patches() -> None:
    def patches(x: Value) -> Value:
        return x.windows((2, 3), (2, 1), (3, 4), 5)

    body = record(patches, {"x": (7, 40)}, {}, ["out"])
    x = np.arange(7 * 40, dtype=float).reshape(1, 7, 40)
    found = evaluate(body, {"x": x}, {})[0]["out"]
    assert found.shape == (1, 12, 30)
    pixels = x.reshape(7, 8, 5)
    assert (found[0, 1 * 4 + 2] == pixels[2:4, 2:5].reshape(-1)).all()
    with pytest.raises(InputError, match="windows over 7 x 30"):
        record(lambda x: x.windows((3, 3), (2, 1), (3, 4), 5), {"x": (6, 40)}, {}, ["out"])


@pytest.mark.parametrize(
    ("more", "told"), [("layout=nchw", "layout=nhwc"), ("groups=2", "groups=1"), ("dilation=2", "dilation=1")]
)
def test_what_no_program_does_is_refused(more: str, told: str) -> None:
    with pytest.raises(InputError, match=f"sn40l has no program for it; {told}"):
        simulate(f"conv2d n=1 c=4 h=8 w=8 k=4 r=3 s=3 {more}", "sn40l")
