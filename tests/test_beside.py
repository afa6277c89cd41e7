"""Two answers where a library decides: the fastest kernel that there is, and what the library takes."""

from __future__ import annotations

import json

import pytest

from sim.app.cli import main
from sim.app.run import simulate

GEMM = ["gemm", "m=256", "n=256", "k=512", "dtype=bf16", "--arch"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["run", *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_both_are_simulated_under_the_same_conditions(capsys: pytest.CaptureFixture[str]) -> None:
    conditions = ["--scope", "event", "--l2", "warm"]
    both = said(capsys, *GEMM, "h100-sxm", *conditions, "--beside", "cublas")
    alone = said(capsys, *GEMM, "h100-sxm", *conditions)
    library = said(capsys, *GEMM, "h100-sxm", *conditions, "--schedule", "cublas")
    found = both.pop("library")
    assert isinstance(found, dict)
    assert {name: both[name] for name in ("schedule", "time_us")} == {n: alone[n] for n in ("schedule", "time_us")}
    assert found["release"] == "cublas@13.1"
    assert {name: found[name] for name in ("schedule", "cycles", "time_us")} == {
        name: library[name] for name in ("schedule", "cycles", "time_us")
    }
    assert main(["run", *GEMM, "h100-sxm", "--beside", "cublas"]) == 0
    text = capsys.readouterr().out
    assert "What cublas@13.1 takes" in text
    assert "against the first" in text


def test_a_rule_that_is_missing_for_a_chip_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, *GEMM, "b200", "--beside", "cublas")["library"]
    assert isinstance(found, dict)
    assert "schedule" not in found
    assert "no rule of it is known" in found["source"]
    assert main(["run", *GEMM, "b200", "--beside", "cublas"]) == 0
    assert "No rule of it is known on b200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ([*GEMM, "h100-sxm", "--beside", "cublass"], "did you mean cublas?"),
        (["add", "n=64", "--arch", "t4", "--beside", "cublas"], "no library is known that decides on pointwise"),
        (["bert_layer", "batch=1", "seq=32", "--arch", "t4", "--beside", "cublas"], "goes with one operator"),
    ],
)
def test_what_no_library_has_is_refused(words: list[str], right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 2
    assert right in capsys.readouterr().err


def test_what_stands_for_kernels_that_nobody_knows_is_said() -> None:
    attention = "attention batch=1 heads=1 seq=128 head_dim=64 dtype=bf16"
    notes = [simulate(attention, "h100-sxm", schedule=name).record.notes for name in ("cudnn", "auto")]
    assert ["cuDNN" in " ".join(said) for said in notes] == [True, False]
