"""Configurations of kernels as text: one grammar for writing and reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from arch.errors import InputError
from workloads.gpu.configuration import Configuration, Word, class_of


@dataclass(frozen=True)
class SampleConfig(Configuration):
    """With a word of each form."""

    rows: int
    columns: int
    depth: int = 16
    copy: str = "ldg"
    stages: int = 2
    cluster_m: int = 1
    cluster_n: int = 1
    ahead: bool = True

    schedule: ClassVar[str] = "sample"
    grammar: ClassVar[tuple[Word, ...]] = (
        Word.tile("rows", "columns", "depth"),
        Word(("copy",), among=("ldg", "cp.async")),
        Word.number("stages"),
        Word(("cluster_m", "cluster_n"), "cluster", (1, 1)),
        Word.flag("late", "ahead", False),
    )


CASES = {
    "sample 64x32x16 ldg stages 2": SampleConfig(64, 32),
    "sample 8x8x8 cp.async stages 4 cluster 2x1": SampleConfig(8, 8, 8, "cp.async", 4, 2),
    "sample 8x8x8 ldg stages 2 late": SampleConfig(8, 8, 8, ahead=False),
}


@pytest.mark.parametrize("text", CASES)
def test_a_configuration_reads_what_it_writes(text: str) -> None:
    assert str(CASES[text]) == text
    assert SampleConfig.parse(text) == CASES[text]


def test_what_a_text_leaves_out() -> None:
    held = SampleConfig(8, 8, 8, "cp.async", 4, 2, 2, False)
    assert held.changed("sample stages 3") == SampleConfig(8, 8, 8, "cp.async", 3, 2, 2, False)
    assert held.as_said("sample stages 3") == SampleConfig(8, 8, 8, "cp.async", 3)
    assert SampleConfig.parse("sample 64x32") == SampleConfig(64, 32)
    assert held.without("tma") == str(held)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample 8x8 stage 3", "stage is no word of a sample configuration; did you mean stages"),
        ("sample 8x8 stages", "stages needs a number, such as stages 4"),
        ("sample 8x8 stages x", "stages needs a number"),
        ("sample 8x8 cluster 2", "cluster needs two numbers, such as cluster 2x1"),
        ("sample 8x8x8x8", "8x8x8x8 is no word"),
        ("sample stages 3", "rows and columns and depth are missing, such as 64x64x64"),
    ],
)
def test_wrong_words_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SampleConfig.parse(text)


def test_the_first_word_names_the_class() -> None:
    assert class_of("sample 8x8", (SampleConfig,)) is SampleConfig
    with pytest.raises(
        InputError, match="simple is no schedule; one of auto, sample, or a whole configuration; did you mean sample"
    ):
        class_of("simple 8x8", (SampleConfig,))
