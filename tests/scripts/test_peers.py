"""Other simulators beside this one: what ran, and that what did not says so."""

from __future__ import annotations

import json
import sys

import pytest

from arch.errors import InputError
from scripts.lab import peers


def test_what_was_not_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main([]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said] == [
        f"Not run: {name}" for name in ("SCALE-Sim", "LLMCompass", "ONNXim", "Accel-Sim 2.0")
    ]


def test_an_environment_without_the_other_one_is_named() -> None:
    with pytest.raises(InputError, match=r"has no SCALE-Sim; python -m venv"):
        peers.main(["--scalesim", sys.executable])


@pytest.mark.parametrize(("theirs", "code"), [(1000, 0), (1001, 1)])
def test_cycles_that_differ_are_an_error(
    theirs: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours, less one, are the number of the last cycle, which SCALE-Sim prints."""
    monkeypatch.setattr(peers, "scalesim_version", lambda _: "3.0.0")
    monkeypatch.setattr(peers, "run_ours", lambda *_: {"cycles": [1001], "cpu_s": 0.5, "mib": 50.0})
    monkeypatch.setattr(peers, "run_theirs", lambda *_: {"cycles": [theirs], "cpu_s": 10.0, "mib": 500.0})
    assert peers.main(["--scalesim", "python", "--size", "64", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["SCALE-Sim"] == "3.0.0"
    assert found["ran"][0]["times"] == 20
    assert [peer["name"] for peer in found["not_run"]] == ["LLMCompass", "ONNXim", "Accel-Sim 2.0"]
