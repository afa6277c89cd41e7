"""The page on the dataflow language: its example runs and computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.app.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dataflow-language.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "compute multiply over (m < 2, n < 4) row_par=4 col_par=4" in printed
    assert "cycles;" in printed


def test_the_file_on_the_page_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, example = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "mine.py"
    file.write_text(example, encoding="utf-8")
    words = ["run", f"{file}:softmax", "rows=256", "cols=96", "--arch", "sn40l", "--check"]
    assert main(words) == 0
    assert "by hand" in capsys.readouterr().out
    assert main([*words, "--set", "pcu.count=3", "pmu.count=41", "mesh.rows=4", "agcu.count=2", "dies.count=1"]) == 0
    assert "it is cut into" in " ".join(capsys.readouterr().out.split())
