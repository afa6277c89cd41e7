"""The table of accuracies holds nothing but rows that were held back, and reads back what was written."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from arch.library import list_archs
from workloads.silicon.accuracy import read_accuracy

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "accuracy.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(machine: str, op: str, error: float, half: str = "held") -> dict[str, object]:
    return {"machine": machine, "op": op, "shape": "m=1", "error_percent": error, "half": half}


def test_errors_by_machine_and_operator(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    files[0].write_text(json.dumps({"rows": [row("t4", "gemm", 10.0), row("t4", "softmax", 1.0)]}))
    files[1].write_text(json.dumps({"rows": [row("t4", "gemm", -4.0), row("h20", "gemm", -2.0)]}))
    out, readme = tmp_path / "accuracy.csv", tmp_path / "README.md"
    readme.write_text(f"| a | {script.BEGIN}old{script.END} |\n")
    monkeypatch.setattr(sys, "argv", ["accuracy", *map(str, files), "--out", str(out), "--readme", str(readme)])
    assert script.main() == 0
    found = read_accuracy(out)
    assert [str(entry) for entry in found["t4"]] == ["gemm 7.0 % (2 rows)", "softmax 1.0 % (1 row)"]
    assert (found["t4"][0].bias_percent, found["h20"][0].bias_percent) == (3.0, -2.0)
    # Of a part of the rows, with --keep: the other operators keep their lines.
    files[0].write_text(json.dumps({"rows": [row("t4", "gemm", 5.0)]}))
    monkeypatch.setattr(sys, "argv", ["accuracy", str(files[0]), *sys.argv[3:], "--keep"])
    assert script.main() == 0
    kept = read_accuracy(out)
    assert [str(entry) for entry in kept["t4"]] == ["gemm 5.0 % (1 row)", "softmax 1.0 % (1 row)"]
    assert kept["h20"] == found["h20"]


def test_the_sentence_of_the_readme_has_groups_of_enough_rows(script: ModuleType) -> None:
    of = lambda machine, op, rows, mape: {  # noqa: E731
        "machine": machine, "op": op, "rows": rows, "mape_percent": mape, "date": "2026-01-02",
    }  # fmt: skip
    lines = [of("t4", "gemm", "6", "7.04"), of("h20", "gemm", "4", "1.0"), of("h20", "add", "9", "2.6")]
    sentence = script.quoted([*lines, of("a10", "gemm", "5", "3.0")])
    assert sentence == "2026-01-02: add 3 % (h20); gemm 3 % (a10), 7 % (t4)"
    assert script.page_with(f"a {script.BEGIN}old{script.END} b", "new") == f"a {script.BEGIN}new{script.END} b"
    assert script.page_with("no place", "new") == "no place"


def test_the_readme_has_a_place_for_it(script: ModuleType) -> None:
    assert script.page_with(script.README.read_text(encoding="utf-8"), "new") != script.README.read_text(
        encoding="utf-8"
    )


def test_rows_that_may_be_calibrated_on_are_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="may be calibrated on"):
        script.table([row("t4", "gemm", 1.0, "fitted")], "2026-01-01")


def test_the_table_that_ships_speaks_of_machines_that_ship() -> None:
    found = read_accuracy()
    assert set(found) <= set(list_archs())
    assert {"t4", "v100-sxm2", "a100-sxm4-80gb", "h100-sxm"} <= set(found)
