"""The README's promises about commands: its Python runs, its command lines parse, its pictures exist."""

import re
import shlex
from pathlib import Path

import pytest

from sim.cli import _parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.removeprefix("$ ") for line in README.splitlines() if line.removeprefix("$ ").startswith("tilewave ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    _parser().parse_args(shlex.split(command)[1:])


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block.replace("4096", "256"), "README.md", "exec"), {})
    assert "on h100-sxm" in capsys.readouterr().out


def test_pictures_exist() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
