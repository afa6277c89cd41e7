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
    words = ["run", "softmax", "rows=256", "cols=96", "--arch", "sn40l", "--program", str(file), "--check"]
    assert main(words) == 0
    assert "by hand" in capsys.readouterr().out
    assert main([*words, "--set", "pcu.count=3", "pmu.count=41", "mesh.rows=4", "agcu.count=2", "dies.count=1"]) == 0
    assert "it is cut into" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "it defines none"),
        ("def program(op, machine):\n    return op", "it gives Softmax"),
        ("def program(op, machine):\n    return op.colours", "line 2: AttributeError"),
        ("def program(:", "line 1: SyntaxError"),
        ("from arch.errors import InputError\n\n\ndef program(op, machine):\n    raise InputError('why')", ": why"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    assert main(["run", "softmax", "rows=256", "cols=96", "--arch", "sn40l", "--program", str(file)]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
