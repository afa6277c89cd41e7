"""The guide's promises: its Python runs, its configuration and workflow are read, its commands parse."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from sim.app.cli import _parser
from sim.app.study.check import read_config

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = (DOCS / "studies.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    exec(compile(blocks("python")[0], "studies.md", "exec"), {})
    assert "6 of 6 runs" in capsys.readouterr().out


def test_configuration_is_read(tmp_path: Path) -> None:
    (configuration,) = blocks("toml")
    path = tmp_path / "tilewave.toml"
    path.write_text(configuration)
    assert [wanted.name for wanted in read_config(path)][2] == "our next chip"


def test_commands_of_the_workflow_parse() -> None:
    workflow = (DOCS / "workflows" / "cycles.yml").read_text(encoding="utf-8")
    steps = yaml.safe_load(workflow)["jobs"]["cycles"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("tilewave ")]
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command.partition(" >> ")[0])
        assert callable(_parser().parse_args(words[1:]).command)
