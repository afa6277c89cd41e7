"""docs/tile-language.md stays true: its Python runs, its kernel needs every wait, and its warnings come about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.kernels import numbers
from tests.reference.gpu_executor import execute
from tests.reference.mutation import assert_mutants_caught, check

PAGE = (Path(__file__).parents[2] / "docs" / "tile-language.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def _gemm_of_the_page(change: tuple[str, str] | None = None) -> Any:
    """The page's `gemm`, with one piece of its text replaced."""
    source = BLOCKS[0]
    if change is not None:
        assert change[0] in source
        source = source.replace(*change)
    names: dict[str, Any] = {}
    exec(source, names)
    return names["gemm"]


def test_the_page_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) >= 7
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/tile-language.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"\d+ cycles, 1 CTAs an SM", printed)
    assert "kernel gemm: grid 3x2x1" in printed
    assert "gemm/consumer/" in printed


def test_every_wait_of_its_kernel_matters() -> None:
    def build() -> Any:
        program = _gemm_of_the_page()(m=150, n=140, k=330, stages=2)
        a, b = numbers(150, 330), numbers(330, 140, seed=1)
        return program, {"a": a, "b": b}, {"c": a @ b}

    assert assert_mutants_caught(build, execute) == 7


def test_what_the_page_says_the_check_refuses_is_refused() -> None:
    program = _gemm_of_the_page(("r.wgmma_wait(0)", "r.wgmma_wait(1)"))(m=128, n=128, k=512, stages=2)
    a, b = numbers(128, 512), numbers(512, 128, seed=1)
    wrong = check(program, execute, {"a": a, "b": b}, {"c": np.asarray(a @ b)})
    assert any("writes a_tile" in line and "which is read by consumer wgmma" in line for line in wrong)
