"""`scripts/lab/determinism.py` on a few cases, and that it notices a difference."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from arch.load import load_arch

FOLDER = Path(__file__).resolve().parents[3] / "scripts" / "lab"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    module = importlib.import_module("determinism")
    # A cold compile takes most of a minute; test_cli runs one.
    warm = {name: found for name, found in module.PROCESSES.items() if "COLD" not in found}
    monkeypatch.setattr(module, "PROCESSES", warm)
    return module


@pytest.mark.slow
def test_processes_agree(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--cases", "12", "--seed", "3"]) == 0
    assert "12 cases, " in capsys.readouterr().out


def test_a_difference_is_seen(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(('[0, {"cycles": 5}]\n[1, "no"]', '[1, "no"]\n[0, {"cycles": 6}]'))

    def run(*_: Any, **__: Any) -> Any:
        return type("Done", (), {"stdout": next(answers)})

    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.main(["--cases", "2"]) == 1
    assert capsys.readouterr().out.endswith("2 cases, 1 refused, 1 differences\n")


def test_cases_are_the_same_for_a_seed_and_reach_every_family(script: ModuleType) -> None:
    first, again, other = (list(islice(script.random_cases(seed), 200)) for seed in (1, 1, 2))
    assert first == again != other
    assert {load_arch(case.arch).family for case in first} == {"gpu", "tpu", "rdu", "gemmini"}
    assert len({case.workload.split()[0] for case in first}) > 8
