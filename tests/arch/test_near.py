"""Names that people mistype, and sizes as they write them."""

import pytest

from arch.digits import whole_size
from arch.near import hint, nearest


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gto", "gto"), ("gtp", "gto"), ("old", "oldest"), ("oldest_first", "oldest"), ("wall", None), ("", None)],
)
def test_only_names_that_are_alike_are_near(typed: str, meant: str | None) -> None:
    assert nearest(typed, ["gto", "lrr", "oldest"]) == meant


def test_a_hint_is_the_end_of_a_message() -> None:
    assert hint("gemn", ["gemm"]) == "; did you mean gemm?"
    assert hint("gemn", ["gemm"], "; nearest: {}") == "; nearest: gemm"
    assert hint("gemn", []) == hint("gemn", ["stream"]) == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096), ("4_096", 4096), ("4k", 4096), ("1M", 2**20), ("2G", 2**31), ("2**12", 4096), ("0**0", 1),
        ("1**999", 1), ("2**62", None), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("2**63", None), ("9**999", None),
        ("9**9**9", None), ("4K", None), ("4kk", None), ("1.5k", None), ("-1", None), ("", None), ("0x10", None),
        ("\u00b2", None), ("2**1000", None), ("2 ** 3", None), ("999999999999999999G", None),
    ],
)  # fmt: skip
def test_sizes(text: str, number: int | None) -> None:
    assert whole_size(text) == number
